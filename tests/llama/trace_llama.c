/*
 * trace_llama BACKENDS RING MODEL.gguf: runs llama.cpp, traced by examples/capture/llama_capture.c: a
 * prompt of 11 tokens in ubatches of 8, then 5 tokens one by one. Prints what it must have pushed, one
 * line "step layer id ..." per token, from the router's own scores: the K highest of ffn_moe_logits,
 * highest first, which an own callback behind the adapter's takes. MODEL is written first. Begins when a line
 * comes on standard input, its ring open.
 */
#include "llama_capture.h"
#include "random_moe.h"

#include <ggml-backend.h>
#include <ggml.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int step;

static void say_nothing(enum ggml_log_level level, const char *text, void *user) {
    (void)user;
    if (level == GGML_LOG_LEVEL_ERROR)
        fputs(text, stderr);
}

static void print_best(int layer, const float *scores) {
    bool taken[MOE_EXPERTS] = {false};
    printf("%d %d", step, layer);
    for (int j = 0; j < MOE_K; j++) {
        int best = -1;
        for (int expert = 0; expert < MOE_EXPERTS; expert++) {
            if (!taken[expert] && (best < 0 || scores[expert] > scores[best]))
                best = expert;
        }
        taken[best] = true;
        printf(" %d", best);
    }
    printf("\n");
}

static bool look(struct ggml_tensor *t, bool ask, void *user) {
    int layer = 0, end = 0;
    (void)user;
    const bool wanted =
        sscanf(t->name, "ffn_moe_logits-%d%n", &layer, &end) == 1 && t->name[end] == '\0';
    if (ask || !wanted)
        return wanted || !ask;
    float scores[MOE_EXPERTS];
    for (int64_t token = 0; token < t->ne[1]; token++) {
        ggml_backend_tensor_get(t, scores, (size_t)token * t->nb[1], sizeof scores);
        print_best(layer, scores);
    }
    return true;
}

static int decode(ballast_llama *trace, struct llama_context *ctx, const char *text, int n,
                  int first, int phase) {
    struct llama_batch batch = llama_batch_init(n, 0, 1);
    batch.n_tokens = n;
    for (int i = 0; i < n; i++) {
        batch.token[i] = 3 + (unsigned char)text[i];
        batch.pos[i] = first + i;
        batch.n_seq_id[i] = 1;
        batch.seq_id[i][0] = 0;
        batch.logits[i] = i == n - 1; /* as an engine does: the last layer routes one token */
    }
    const int rc = ballast_llama_decode(trace, ctx, batch, phase);
    llama_batch_free(batch);
    step++;
    return rc;
}

int main(int argc, char **argv) {
    if (argc != 4)
        return 2;
    llama_log_set(say_nothing, NULL);
    ggml_backend_load_all_from_path(argv[1]);
    llama_backend_init();
    struct llama_model *model = NULL;
    if (random_moe_write(argv[3]))
        model = llama_model_load_from_file(argv[3], llama_model_default_params());
    if (model == NULL)
        return 1;
    struct llama_context_params params = llama_context_default_params();
    params.n_ctx = 128;
    params.n_batch = 64;
    params.n_ubatch = 8;
    params.n_threads = params.n_threads_batch = 1;
    params.cb_eval = look;
    bl_trace_options options = BL_TRACE_OPTIONS_INIT;
    options.model = "random-moe";
    ballast_llama *trace = NULL;
    int rc = ballast_llama_open(argv[2], &options, model, &params, &trace);
    struct llama_context *ctx = rc == 0 ? llama_init_from_model(model, params) : NULL;
    if (ctx == NULL)
        return 1;
    getchar(); /* until a recorder is there */
    rc = decode(trace, ctx, "Hello, MoE.", 11, 0, BL_PHASE_PREFILL);
    for (int i = 0; rc == 0 && i < 5; i++)
        rc = decode(trace, ctx, &"tokens"[i], 1, 11 + i, BL_PHASE_DECODE);
    int layer = -1;
    const int fault = ballast_llama_fault(trace, &layer);
    if (fault < 0)
        fprintf(stderr, "layer %d: %s\n", layer, bl_status_string(fault));
    llama_free(ctx);
    ballast_llama_close(trace);
    llama_model_free(model);
    llama_backend_free();
    return rc != 0 || fault < 0;
}
