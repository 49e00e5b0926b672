/*
 * examples/capture/llama_capture.c against a fake of llama.cpp: the nodes of an MoE layer in the shapes
 * and order that v0.4.0 gives them, run by a scheduler that stops where the callback asks it to.
 */
#include "tests/support/support.h"

#include "llama_capture.h"
#include "tracer/recorder.h"
#include "tracer/stream.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- the fake -------------------------------------------------------------------------------- */

enum { EXPERTS = 16, K = 4, LAYERS = 4, MAX_TOKENS = 32 };

struct ggml_backend_buffer {
    bool is_host;
};

struct llama_model {
    const char *const (*meta)[2]; /* pairs, up to a NULL */
};

struct llama_context {
    struct llama_context_params params;
    int n_ubatch, dense; /* decoder layers without experts at the beginning */
    bool on_device, warming;
    int seen, decodes, stops;
};

/* Memory of the device: what the adapter reads directly instead of through the backend is wrong there. */
static struct ggml_backend_buffer host = {true}, device = {false};
static int32_t on_device[EXPERTS * MAX_TOKENS];

bool ggml_backend_buffer_is_host(struct ggml_backend_buffer *buffer) {
    return buffer->is_host;
}

void ggml_backend_tensor_get(const struct ggml_tensor *tensor, void *data, size_t offset,
                             size_t size) {
    assert_ptr_equal(tensor->view_src->buffer, &device);
    assert_true(tensor->view_offs + offset + size <= sizeof on_device);
    memcpy(data, (unsigned char *)on_device + tensor->view_offs + offset, size);
}

int32_t llama_model_meta_val_str(const struct llama_model *model, const char *key, char *buf,
                                 size_t buf_size) {
    for (int i = 0; model->meta[i][0] != NULL; i++) {
        if (strcmp(model->meta[i][0], key) == 0)
            return snprintf(buf, buf_size, "%s", model->meta[i][1]);
    }
    return -1;
}

void llama_synchronize(struct llama_context *ctx) {
    (void)ctx;
}

/* The full ranking: expert `rank` places behind the token's first choice. 5 is odd: all are different. */
static int32_t ranked(int layer, int token, int rank) {
    return (layer * 3 + token * 7 + rank * 5) % EXPERTS;
}

static bool node(struct llama_context *ctx, struct ggml_tensor *t, const char *name, int layer) {
    const struct llama_context_params *p = &ctx->params;
    snprintf(t->name, sizeof t->name, name, layer);
    if (p->cb_eval == NULL || !p->cb_eval(t, true, p->cb_eval_user_data))
        return true;
    ctx->stops++;
    return p->cb_eval(t, false, p->cb_eval_user_data);
}

static bool moe_layer(struct llama_context *ctx, int layer, const int *tokens, int n) {
    static int32_t ranking[EXPERTS * MAX_TOKENS];
    static float weights[K * MAX_TOKENS];
    int32_t *to = ctx->on_device ? on_device : ranking;
    for (int i = 0; i < n; i++) {
        for (int rank = 0; rank < EXPERTS; rank++)
            to[i * EXPERTS + rank] = ranked(layer, tokens[i], rank);
    }
    const size_t row = EXPERTS * sizeof(int32_t);
    struct ggml_tensor argsort = {.type = GGML_TYPE_I32,
                                  .buffer = ctx->on_device ? &device : &host,
                                  .ne = {EXPERTS, n, 1, 1},
                                  .nb = {4, row, row * (size_t)n, row * (size_t)n},
                                  .data = ctx->on_device ? (void *)weights : ranking};
    struct ggml_tensor topk = argsort; /* a view: its rows are as far apart as the ranking's */
    topk.ne[0] = ctx->warming ? EXPERTS : K;
    topk.view_src = &argsort;
    topk.buffer = NULL;
    struct ggml_tensor gathered = {.type = GGML_TYPE_F32,
                                   .buffer = &host,
                                   .ne = {1, K, n, 1},
                                   .nb = {4, 4, 4 * K, 4 * K * (size_t)n},
                                   .data = weights};
    return node(ctx, &argsort, "ffn_moe_argsort-%d", layer) &&
           node(ctx, &topk, "ffn_moe_topk-%d", layer) &&
           node(ctx, &topk, "ffn_moe_topk-%d (reshaped)", layer) &&
           node(ctx, &gathered, "ffn_moe_weights_norm-%d", layer);
}

static bool has_output(const struct llama_batch *batch, int token) {
    return batch->logits != NULL ? batch->logits[token] != 0 : token == batch->n_tokens - 1;
}

int32_t llama_decode(struct llama_context *ctx, struct llama_batch batch) {
    ctx->decodes++;
    for (int first = 0; first < batch.n_tokens; first += ctx->n_ubatch) {
        const int rest = batch.n_tokens - first, n = rest < ctx->n_ubatch ? rest : ctx->n_ubatch;
        for (int layer = ctx->dense; layer < LAYERS; layer++) {
            int tokens[MAX_TOKENS], rows = 0;
            for (int token = first; token < first + n; token++) {
                if (layer < LAYERS - 1 || has_output(&batch, token))
                    tokens[rows++] = ctx->seen + token;
            }
            if (rows > 0 && !moe_layer(ctx, layer, tokens, rows))
                return 2;
        }
    }
    ctx->seen += batch.n_tokens;
    return 0;
}

/* ---- the tests ------------------------------------------------------------------------------- */

static const char *const META[][2] = {{"general.architecture", "qwen3moe"},
                                      {"qwen3moe.block_count", "4"},
                                      {"qwen3moe.expert_count", "16"},
                                      {"qwen3moe.expert_used_count", "4"},
                                      {NULL, NULL}};
static const struct llama_model MODEL = {META};

static const char *ring_name(void) {
    static char name[64];
    snprintf(name, sizeof name, "test-llama-%ld", (long)getpid());
    return name;
}

typedef struct session {
    struct llama_context ctx;
    ballast_llama *trace;
    bl_recorder *recorder;
} session;

static session begin(const struct llama_model *model, int n_ubatch) {
    bl_error err;
    session s = {.ctx = {.n_ubatch = n_ubatch}};
    bl_trace_options options = BL_TRACE_OPTIONS_INIT;
    options.model = "fake";
    options.ring_bytes = 1 << 16;
    assert_int_equal(ballast_llama_open(ring_name(), &options, model, &s.ctx.params, &s.trace),
                     BL_OK);
    assert_ok(bl_recorder_create(bl_test_temp("llama.blt"), &s.recorder, &err));
    assert_ok(bl_recorder_attach(s.recorder, ring_name(), &err));
    return s;
}

static int32_t decode(session *s, int n_tokens, int8_t *logits, int phase) {
    return ballast_llama_decode(
        s->trace, &s->ctx, (struct llama_batch){.n_tokens = n_tokens, .logits = logits}, phase);
}

static bl_stream *finish(session *s) {
    bl_error err;
    bl_stream *stream = NULL;
    ballast_llama_close(s->trace);
    assert_ok(bl_recorder_finish(s->recorder, NULL, &err));
    assert_ok(bl_stream_open(bl_test_temp("llama.blt"), &stream, &err));
    return stream;
}

/* `outputs`: which of the tokens were routed, as digits 0 and 1; the others have empty slots. */
static void expect_routed(bl_stream *stream, uint64_t step, int layer, int first,
                          const char *outputs, bl_phase phase) {
    const int n = (int)strlen(outputs);
    bl_error err;
    bl_record record;
    bool got = false;
    assert_ok(bl_stream_next(stream, &record, &got, &err));
    assert_true(got);
    assert_int_equal(record.step, step);
    assert_int_equal(record.layer, layer);
    assert_int_equal(record.phase, phase);
    assert_int_equal(record.n_tokens, n);
    assert_int_equal(record.k, K);
    for (int i = 0; i < n * K; i++)
        assert_int_equal(record.ids[i], outputs[i / K] == '1' ? ranked(layer, first + i / K, i % K)
                                                              : BL_EMPTY_SLOT);
}

static void expect_record(bl_stream *stream, uint64_t step, int layer, int first, int n,
                          bl_phase phase) {
    expect_routed(stream, step, layer, first, "1111111" + 7 - n, phase);
}

static void expect_end(bl_stream *stream) {
    bl_error err;
    bl_record record;
    bool got = true;
    assert_ok(bl_stream_next(stream, &record, &got, &err));
    assert_false(got);
    bl_stream_free(stream);
}

/* A prompt of 8 tokens in ubatches of 3, 3 and 2, of which the last layer routes what has an output: none
 * of the first, the first and last of the second, the last of the third. Then one token. */
static void rows_are_taken_by_their_stride_from_every_ubatch(void **state) {
    (void)state;
    session s = begin(&MODEL, 3);
    int8_t logits[8] = {0, 0, 0, 1, 0, 1, 0, 1};
    assert_int_equal(decode(&s, 8, logits, BL_PHASE_PREFILL), 0);
    assert_int_equal(decode(&s, 1, NULL, BL_PHASE_DECODE), 0);
    assert_int_equal(ballast_llama_fault(s.trace, NULL), BL_OK);
    assert_int_equal(s.ctx.stops, 3 + 4 + 4 + 4); /* once per layer and ubatch, and nowhere else */
    bl_stream *stream = finish(&s);
    for (int layer = 0; layer < 4; layer++)
        expect_routed(stream, 0, layer, 0, layer < 3 ? "111" : "000", BL_PHASE_PREFILL);
    for (int layer = 0; layer < 4; layer++)
        expect_routed(stream, 0, layer, 3, layer < 3 ? "111" : "101", BL_PHASE_PREFILL);
    for (int layer = 0; layer < 4; layer++)
        expect_routed(stream, 0, layer, 6, layer < 3 ? "11" : "01", BL_PHASE_PREFILL);
    for (int layer = 0; layer < 4; layer++)
        expect_record(stream, 1, layer, 8, 1, BL_PHASE_DECODE);
    expect_end(stream);
}

static void ids_on_a_device_come_through_the_backend(void **state) {
    (void)state;
    session s = begin(&MODEL, 8);
    s.ctx.on_device = true;
    int8_t logits[7] = {1, 1, 1, 1, 1, 1, 1};
    assert_int_equal(decode(&s, 2, logits, BL_PHASE_DECODE), 0);
    assert_int_equal(decode(&s, 7, logits, BL_PHASE_DECODE),
                     0); /* more than the copy had room for */
    bl_stream *stream = finish(&s);
    for (int layer = 0; layer < 4; layer++)
        expect_record(stream, 0, layer, 0, 2, BL_PHASE_DECODE);
    for (int layer = 0; layer < 4; layer++)
        expect_record(stream, 1, layer, 2, 7, BL_PHASE_DECODE);
    expect_end(stream);
}

/* Warm-up graphs run all experts; they are no traffic. Outside of a step nothing is asked for. */
static void what_is_no_step_of_the_model_is_left_out(void **state) {
    (void)state;
    int layer = -1;
    session s = begin(&MODEL, 8);
    assert_int_equal(llama_decode(&s.ctx, (struct llama_batch){.n_tokens = 1}), 0);
    assert_int_equal(s.ctx.stops, 0);
    s.ctx.warming = true;
    assert_int_equal(decode(&s, 1, NULL, BL_PHASE_DECODE), 0);
    assert_int_equal(ballast_llama_fault(s.trace, &layer), BL_ERR_SHAPE);
    assert_int_equal(layer, 0);
    s.ctx.warming = false;
    assert_int_equal(decode(&s, 1, NULL, BL_PHASE_DECODE), 0);
    bl_trace_counters counters;
    assert_int_equal(ballast_llama_read_counters(s.trace, &counters), BL_OK);
    assert_int_equal(counters.pushed, 4);
    bl_stream *stream = finish(&s);
    for (layer = 0; layer < 4; layer++)
        expect_record(stream, 1, layer, 2, 1, BL_PHASE_DECODE);
    expect_end(stream);
}

/* DeepSeek's dense layer at the beginning, and a layer at the end that only drafts. */
static void moe_layers_are_read_from_the_model(void **state) {
    (void)state;
    static const char *const meta[][2] = {{"general.architecture", "deepseek2"},
                                          {"deepseek2.block_count", "5"},
                                          {"deepseek2.nextn_predict_layers", "1"},
                                          {"deepseek2.leading_dense_block_count", "1"},
                                          {"deepseek2.expert_count", "16"},
                                          {"deepseek2.expert_used_count", "4"},
                                          {NULL, NULL}};
    const struct llama_model model = {meta};
    session s = begin(&model, 8);
    s.ctx.dense = 1;
    assert_int_equal(decode(&s, 1, NULL, BL_PHASE_DECODE), 0);
    assert_int_equal(ballast_llama_fault(s.trace, NULL), BL_OK);
    s.ctx.dense = 0; /* then layer 0 was not named: a fault, and the others go on */
    int layer = -1;
    assert_int_equal(decode(&s, 1, NULL, BL_PHASE_DECODE), 0);
    assert_int_equal(ballast_llama_fault(s.trace, &layer), BL_ERR_RANGE);
    assert_int_equal(layer, 0);
    bl_stream *stream = finish(&s);
    for (int step = 0; step < 2; step++) {
        for (layer = 1; layer < 4; layer++)
            expect_record(stream, (uint64_t)step, layer, step, 1, BL_PHASE_DECODE);
    }
    expect_end(stream);
}

static void llama4_has_experts_in_every_second_layer(void **state) {
    (void)state;
    static const char *const meta[][2] = {
        {"general.architecture", "llama4"},        {"llama4.block_count", "4"},
        {"llama4.interleave_moe_layer_step", "2"}, {"llama4.expert_count", "16"},
        {"llama4.expert_used_count", "4"},         {NULL, NULL}};
    const struct llama_model model = {meta};
    int layer = -1;
    session s = begin(&model, 8);
    assert_int_equal(decode(&s, 1, NULL, BL_PHASE_DECODE), 0); /* the fake has them everywhere */
    assert_int_equal(ballast_llama_fault(s.trace, &layer), BL_ERR_RANGE);
    assert_int_equal(layer, 0);
    bl_stream *stream = finish(&s);
    expect_record(stream, 0, 1, 0, 1, BL_PHASE_DECODE);
    expect_record(stream, 0, 3, 0, 1, BL_PHASE_DECODE);
    expect_end(stream);
}

/* A callback that was there before goes on to get what it asks for, and to say stop. */
static int wanted;
static bool wants_weights(struct ggml_tensor *t, bool ask, void *user) {
    const bool is_weights = strncmp(t->name, "ffn_moe_weights", 15) == 0;
    wanted += !ask && is_weights;
    assert_true(ask || is_weights);
    return ask ? is_weights : wanted < *(const int *)user;
}

static void an_engines_own_callback_stays(void **state) {
    (void)state;
    int until = 6;
    session s = {.ctx = {.n_ubatch = 8, .params = {wants_weights, &until}}};
    bl_trace_options options = BL_TRACE_OPTIONS_INIT;
    options.model = "fake";
    assert_int_equal(ballast_llama_open(ring_name(), &options, &MODEL, &s.ctx.params, &s.trace),
                     BL_OK);
    assert_int_equal(decode(&s, 1, NULL, BL_PHASE_DECODE), 0);
    assert_int_equal(wanted, 4);
    assert_int_equal(decode(&s, 1, NULL, BL_PHASE_DECODE), 2); /* it aborts the second */
    bl_trace_counters counters;
    assert_int_equal(ballast_llama_read_counters(s.trace, &counters), BL_OK);
    assert_int_equal(counters.pushed, 4 + 2);
    assert_int_equal(counters.kept, 4);
    ballast_llama_close(s.trace);
}

static void wrong_arguments_are_refused(void **state) {
    (void)state;
    static const char *const dense[][2] = {
        {"general.architecture", "llama"}, {"llama.block_count", "4"}, {NULL, NULL}};
    const struct llama_model model = {dense};
    struct llama_context_params params = {NULL, NULL};
    bl_trace_options options = BL_TRACE_OPTIONS_INIT;
    ballast_llama *trace = NULL;
    assert_int_equal(ballast_llama_open("x", &options, &model, &params, &trace), BL_ERR_MODEL);
    assert_int_equal(ballast_llama_open("a/b", &options, &MODEL, &params, &trace), BL_ERR_USAGE);
    assert_int_equal(ballast_llama_open("x", NULL, &MODEL, &params, &trace), BL_ERR_USAGE);
    assert_null(trace);
    assert_null(params.cb_eval);
    struct llama_context ctx = {.n_ubatch = 8};
    assert_int_equal(
        ballast_llama_decode(NULL, &ctx, (struct llama_batch){.n_tokens = 1}, BL_PHASE_DECODE), 0);
    assert_int_equal(ctx.decodes, 1);
    ballast_llama_close(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_taken_by_their_stride_from_every_ubatch),
        cmocka_unit_test(ids_on_a_device_come_through_the_backend),
        cmocka_unit_test(what_is_no_step_of_the_model_is_left_out),
        cmocka_unit_test(moe_layers_are_read_from_the_model),
        cmocka_unit_test(llama4_has_experts_in_every_second_layer),
        cmocka_unit_test(an_engines_own_callback_stays),
        cmocka_unit_test(wrong_arguments_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
