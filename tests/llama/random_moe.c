#include "random_moe.h"

#include <ggml.h>
#include <gguf.h>

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { WIDTH = 64, HIDDEN = 32, HEADS = 4, HEAD = 16, CONTEXT = 256 };

static uint64_t seed = 1;

static float random_weight(void) {
    seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return ((float)(seed >> 40) / (float)(1 << 24) - 0.5F) * 0.4F;
}

static void add(struct gguf_context *file, struct ggml_context *ctx, const char *name, int64_t a,
                int64_t b, int64_t c) {
    struct ggml_tensor *t = c > 0   ? ggml_new_tensor_3d(ctx, GGML_TYPE_F32, a, b, c)
                            : b > 0 ? ggml_new_tensor_2d(ctx, GGML_TYPE_F32, a, b)
                                    : ggml_new_tensor_1d(ctx, GGML_TYPE_F32, a);
    float *weights = t->data;
    for (int64_t i = 0; i < ggml_nelements(t); i++)
        weights[i] = b > 0 ? random_weight() : 1.0F; /* norms are vectors */
    ggml_set_name(t, name);
    gguf_add_tensor(file, t);
}

/* One byte is one token, as in the byte fallback of SentencePiece. */
static void add_vocabulary(struct gguf_context *file) {
    static char text[MOE_VOCABULARY][16];
    const char *tokens[MOE_VOCABULARY];
    float scores[MOE_VOCABULARY] = {0};
    int32_t types[MOE_VOCABULARY];
    for (int id = 0; id < MOE_VOCABULARY; id++) {
        static const char *const special[] = {"<unk>", "<s>", "</s>"};
        if (id < 3)
            snprintf(text[id], sizeof text[id], "%s", special[id]);
        else
            snprintf(text[id], sizeof text[id], "<0x%02X>", id - 3);
        tokens[id] = text[id];
        types[id] = id == 0 ? 2 : id < 3 ? 3 : 6; /* unknown, control, byte */
    }
    gguf_set_val_str(file, "tokenizer.ggml.model", "llama");
    gguf_set_arr_str(file, "tokenizer.ggml.tokens", tokens, MOE_VOCABULARY);
    gguf_set_arr_data(file, "tokenizer.ggml.scores", GGUF_TYPE_FLOAT32, scores, MOE_VOCABULARY);
    gguf_set_arr_data(file, "tokenizer.ggml.token_type", GGUF_TYPE_INT32, types, MOE_VOCABULARY);
    gguf_set_val_u32(file, "tokenizer.ggml.bos_token_id", 1);
    gguf_set_val_u32(file, "tokenizer.ggml.eos_token_id", 2);
}

static void add_shape(struct gguf_context *file) {
    const struct {
        const char *key;
        uint32_t value;
    } numbers[] = {{"block_count", MOE_LAYERS},
                   {"context_length", CONTEXT},
                   {"embedding_length", WIDTH},
                   {"feed_forward_length", HIDDEN},
                   {"expert_feed_forward_length", HIDDEN},
                   {"expert_count", MOE_EXPERTS},
                   {"expert_used_count", MOE_K},
                   {"attention.head_count", HEADS},
                   {"attention.head_count_kv", HEADS},
                   {"attention.key_length", HEAD},
                   {"attention.value_length", HEAD}};
    gguf_set_val_str(file, "general.architecture", "qwen3moe");
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        char key[64];
        snprintf(key, sizeof key, "qwen3moe.%s", numbers[i].key);
        gguf_set_val_u32(file, key, numbers[i].value);
    }
    gguf_set_val_f32(file, "qwen3moe.attention.layer_norm_rms_epsilon", 1e-6F);
    gguf_set_val_f32(file, "qwen3moe.rope.freq_base", 10000.0F);
}

static void add_layer(struct gguf_context *file, struct ggml_context *ctx, int layer) {
    const struct {
        const char *name;
        int64_t a, b, c;
    } tensors[] = {{"attn_norm", WIDTH, 0, 0},
                   {"ffn_norm", WIDTH, 0, 0},
                   {"attn_q", WIDTH, HEADS * HEAD, 0},
                   {"attn_k", WIDTH, HEADS * HEAD, 0},
                   {"attn_v", WIDTH, HEADS * HEAD, 0},
                   {"attn_output", HEADS * HEAD, WIDTH, 0},
                   {"attn_q_norm", HEAD, 0, 0},
                   {"attn_k_norm", HEAD, 0, 0},
                   {"ffn_gate_inp", WIDTH, MOE_EXPERTS, 0},
                   {"ffn_gate_exps", WIDTH, HIDDEN, MOE_EXPERTS},
                   {"ffn_up_exps", WIDTH, HIDDEN, MOE_EXPERTS},
                   {"ffn_down_exps", HIDDEN, WIDTH, MOE_EXPERTS}};
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++) {
        char name[64];
        snprintf(name, sizeof name, "blk.%d.%s.weight", layer, tensors[i].name);
        add(file, ctx, name, tensors[i].a, tensors[i].b, tensors[i].c);
    }
}

bool random_moe_write(const char *path) {
    struct ggml_context *ctx = ggml_init((struct ggml_init_params){.mem_size = 64u << 20});
    struct gguf_context *file = gguf_init_empty();
    add_shape(file);
    add_vocabulary(file);
    add(file, ctx, "token_embd.weight", WIDTH, MOE_VOCABULARY, 0);
    add(file, ctx, "output.weight", WIDTH, MOE_VOCABULARY, 0);
    add(file, ctx, "output_norm.weight", WIDTH, 0, 0);
    for (int layer = 0; layer < MOE_LAYERS; layer++)
        add_layer(file, ctx, layer);
    const bool written = gguf_write_to_file(file, path, false);
    gguf_free(file);
    ggml_free(ctx);
    return written;
}
