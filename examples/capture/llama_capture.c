#include "llama_capture.h"

#include <ggml-backend.h>
#include <ggml.h>

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_LAYERS = 4096 };

struct ballast_llama {
    bl_tracer *tracer;
    int top_k;
    uint64_t step;
    bool in_step;
    int fault, fault_layer;
    int last_layer;           /* with experts */
    struct llama_batch batch; /* of the open step */
    size_t before;            /* tokens of it in ubatches that are over */
    size_t rows;              /* tokens of the ubatch that runs: rows of its first layer */
    int at_layer;             /* pushed last in it, -1: none */
    unsigned char *copy;      /* of ids that lie on a device */
    int32_t *spread;          /* rows of the last layer, put where their tokens are */
    size_t copy_bytes, spread_bytes;
    ggml_backend_sched_eval_callback next; /* of the engine, behind ours */
    void *next_user;
    bool next_wants; /* the node that is being computed */
};

/* ---- what the model is ----------------------------------------------------------------------- */

/* The number under "<architecture>.<key>", or `otherwise`. */
static int meta(const struct llama_model *model, const char *key, int otherwise) {
    char architecture[64], name[128], text[32], *end;
    if (llama_model_meta_val_str(model, "general.architecture", architecture, sizeof architecture) <
        0)
        return otherwise;
    snprintf(name, sizeof name, "%s.%s", architecture, key);
    if (llama_model_meta_val_str(model, name, text, sizeof text) < 0)
        return otherwise;
    const long value = strtol(text, &end, 10);
    return *end == '\0' && end != text && value >= 0 && value <= INT_MAX ? (int)value : otherwise;
}

/* Decoder layers with experts: behind the leading dense ones, every so-manieth, but for those at the end
 * that only draft tokens. */
static int moe_layers(const struct llama_model *model, int layers[MAX_LAYERS]) {
    const int first = meta(model, "leading_dense_block_count", 0);
    const int every = meta(model, "interleave_moe_layer_step", 1);
    const int end = meta(model, "block_count", 0) - meta(model, "nextn_predict_layers", 0);
    int n = 0;
    for (int layer = first; layer < end && n < MAX_LAYERS; layer++) {
        if (every <= 1 || (layer + 1) % every == 0)
            layers[n++] = layer;
    }
    return n;
}

/* ---- the callback ---------------------------------------------------------------------------- */

/* The layer of a node "ffn_moe_topk-<layer>", and of nothing else, or -1. */
static int layer_of(const char *name) {
    static const char prefix[] = "ffn_moe_topk-";
    if (strncmp(name, prefix, sizeof prefix - 1) != 0)
        return -1;
    int layer = 0;
    const char *at = name + sizeof prefix - 1;
    if (*at == '\0')
        return -1;
    for (; *at != '\0'; at++) {
        if (*at < '0' || *at > '9' || layer > 100000)
            return -1;
        layer = 10 * layer + (*at - '0');
    }
    return layer;
}

static void note(ballast_llama *b, int status, int layer) {
    if (status < 0 && b->fault == 0) {
        b->fault = status;
        b->fault_layer = layer;
    }
}

/* Room for `bytes` in *at, whose content is not kept; NULL when there is no memory. */
static void *room(void *at, size_t *capacity, size_t bytes) {
    if (bytes <= *capacity)
        return at;
    free(at);
    at = malloc(bytes);
    *capacity = at != NULL ? bytes : 0;
    return at;
}

/* The bytes of the rows as they lie, on the host. NULL: no memory. */
static const void *rows_of(ballast_llama *b, const struct ggml_tensor *t, size_t bytes) {
    const struct ggml_tensor *owner = t->view_src != NULL ? t->view_src : t;
    if (owner->buffer == NULL || ggml_backend_buffer_is_host(owner->buffer))
        return t->data;
    b->copy = room(b->copy, &b->copy_bytes, bytes);
    if (b->copy != NULL)
        ggml_backend_tensor_get(t, b->copy, 0, bytes);
    return b->copy;
}

static bool has_output(const struct llama_batch *batch, size_t token) {
    if (token >= (size_t)batch->n_tokens)
        return false;
    return batch->logits != NULL ? batch->logits[token] != 0 : token + 1 == (size_t)batch->n_tokens;
}

/* The last layer routes only tokens with an output. The others are rows of empty slots in it, so that the
 * step adds up and row i is token i in all layers. When the engine reordered the batch and the rows cannot
 * be placed, they come first. */
static int push_last(ballast_llama *b, const unsigned char *ids, size_t n, size_t row_bytes) {
    const size_t k = (size_t)b->top_k, row = k * sizeof(int32_t);
    size_t n_outputs = 0, taken = 0;
    for (size_t i = 0; i < b->rows; i++)
        n_outputs += has_output(&b->batch, b->before + i);
    b->spread = room(b->spread, &b->spread_bytes, b->rows * row);
    if (b->spread == NULL)
        return BL_ERR_NOMEM;
    memset(b->spread, 0xff, b->rows * row); /* -1: empty */
    for (size_t i = 0; i < b->rows && taken < n; i++) {
        if (n_outputs != n || has_output(&b->batch, b->before + i))
            memcpy(b->spread + i * k, ids + taken++ * row_bytes, row);
    }
    return bl_trace_push(b->tracer, b->last_layer, b->spread, sizeof(int32_t), b->rows, row);
}

static void end_ubatch(ballast_llama *b) {
    if (b->at_layer >= 0 && b->at_layer < b->last_layer) /* no token had an output */
        note(b, push_last(b, NULL, 0, 0), b->last_layer);
    b->before += b->rows;
    b->rows = 0;
    b->at_layer = -1;
}

static int push(ballast_llama *b, const struct ggml_tensor *t, int layer) {
    const size_t k = (size_t)b->top_k, n = (size_t)t->ne[1];
    if (t->type != GGML_TYPE_I32 || t->ne[0] != (int64_t)k || t->ne[1] < 0 || t->ne[2] != 1 ||
        t->nb[0] != sizeof(int32_t))
        return BL_ERR_SHAPE;
    if (layer <= b->at_layer)
        end_ubatch(b);
    if (b->at_layer < 0)
        b->rows = n;
    b->at_layer = layer;
    const void *ids = n > 0 ? rows_of(b, t, (n - 1) * t->nb[1] + k * sizeof(int32_t)) : t;
    if (ids == NULL)
        return BL_ERR_NOMEM;
    if (layer == b->last_layer && n < b->rows)
        return push_last(b, ids, n, t->nb[1]);
    return bl_trace_push(b->tracer, layer, ids, sizeof(int32_t), n, t->nb[1]);
}

/* Asked before a node whether the scheduler shall stop behind it, and called again as it has. */
static bool on_eval(struct ggml_tensor *t, bool ask, void *user) {
    ballast_llama *b = user;
    const int layer = b->in_step ? layer_of(t->name) : -1;
    if (ask) {
        b->next_wants = b->next != NULL && b->next(t, true, b->next_user);
        return layer >= 0 || b->next_wants;
    }
    if (layer >= 0)
        note(b, push(b, t, layer), layer);
    return !b->next_wants || b->next(t, false, b->next_user);
}

/* ---- the calls ------------------------------------------------------------------------------- */

int ballast_llama_open(const char *ring, const bl_trace_options *options,
                       const struct llama_model *model, struct llama_context_params *params,
                       ballast_llama **trace_p) {
    if (options == NULL || options->size != sizeof *options || model == NULL || params == NULL ||
        trace_p == NULL)
        return BL_ERR_USAGE;
    bl_trace_options o = *options;
    int layers[MAX_LAYERS];
    if (o.n_experts == 0)
        o.n_experts = meta(model, "expert_count", 0);
    if (o.top_k == 0)
        o.top_k = meta(model, "expert_used_count", 0);
    if (o.layers == NULL) {
        o.n_layers = moe_layers(model, layers);
        o.layers = layers;
    }
    if (o.n_experts == 0 || o.top_k == 0 || o.n_layers == 0)
        return BL_ERR_MODEL;
    ballast_llama *b = calloc(1, sizeof *b);
    if (b == NULL)
        return BL_ERR_NOMEM;
    const int status = bl_trace_open(ring, &o, &b->tracer);
    if (status < 0) {
        free(b);
        return status;
    }
    b->top_k = o.top_k;
    b->last_layer = o.layers[o.n_layers - 1];
    b->at_layer = -1;
    b->next = params->cb_eval;
    b->next_user = params->cb_eval_user_data;
    params->cb_eval = on_eval;
    params->cb_eval_user_data = b;
    *trace_p = b;
    return BL_OK;
}

int32_t ballast_llama_decode(ballast_llama *b, struct llama_context *ctx, struct llama_batch batch,
                             int phase) {
    if (b == NULL)
        return llama_decode(ctx, batch);
    const int status = bl_trace_step_begin(b->tracer, b->step++, phase, 0);
    note(b, status, -1);
    b->in_step = status == BL_OK;
    b->batch = batch;
    b->before = 0;
    const int32_t decoded = llama_decode(ctx, batch);
    llama_synchronize(ctx);
    if (b->in_step) {
        if (decoded == 0)
            end_ubatch(b);
        note(b, decoded == 0 ? bl_trace_step_end(b->tracer) : bl_trace_step_drop(b->tracer), -1);
    }
    b->in_step = false;
    return decoded;
}

int ballast_llama_fault(const ballast_llama *b, int *layer_p) {
    if (b == NULL)
        return BL_OK;
    if (layer_p != NULL)
        *layer_p = b->fault_layer;
    return b->fault;
}

int ballast_llama_read_counters(const ballast_llama *b, bl_trace_counters *counters) {
    return bl_trace_read_counters(b != NULL ? b->tracer : NULL, counters);
}

void ballast_llama_close(ballast_llama *b) {
    if (b == NULL)
        return;
    bl_trace_close(b->tracer);
    free(b->copy);
    free(b->spread);
    free(b);
}
