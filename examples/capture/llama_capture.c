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
    unsigned char *copy; /* of ids that lie on a device */
    size_t copy_bytes;
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

/* The bytes of the rows as they lie, on the host. NULL: no memory. */
static const void *rows_of(ballast_llama *b, const struct ggml_tensor *t, size_t bytes) {
    const struct ggml_tensor *owner = t->view_src != NULL ? t->view_src : t;
    if (owner->buffer == NULL || ggml_backend_buffer_is_host(owner->buffer))
        return t->data;
    if (bytes > b->copy_bytes) {
        free(b->copy);
        b->copy = malloc(bytes);
        b->copy_bytes = b->copy != NULL ? bytes : 0;
    }
    if (b->copy != NULL)
        ggml_backend_tensor_get(t, b->copy, 0, bytes);
    return b->copy;
}

static int push(ballast_llama *b, const struct ggml_tensor *t, int layer) {
    const size_t k = (size_t)b->top_k, rows = (size_t)t->ne[1];
    if (t->type != GGML_TYPE_I32 || t->ne[0] != (int64_t)k || t->ne[1] < 0 || t->ne[2] != 1 ||
        t->nb[0] != sizeof(int32_t))
        return BL_ERR_SHAPE;
    if (rows == 0)
        return bl_trace_push(b->tracer, layer, NULL, sizeof(int32_t), 0, 0);
    const void *ids = rows_of(b, t, (rows - 1) * t->nb[1] + k * sizeof(int32_t));
    if (ids == NULL)
        return BL_ERR_NOMEM;
    return bl_trace_push(b->tracer, layer, ids, sizeof(int32_t), rows, t->nb[1]);
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
    const int32_t decoded = llama_decode(ctx, batch);
    llama_synchronize(ctx);
    if (b->in_step)
        note(b, bl_trace_step_end(b->tracer), -1);
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
    free(b);
}
