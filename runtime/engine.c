#include "runtime/engine.h"

#include "core/mem.h"
#include "core/progress.h"
#include "runtime/kernels.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* How a layer's copies are shared, made anew when its map changes. */
typedef struct sharing_at {
    bl_sharing *sharing; /* NULL: not needed yet */
    uint64_t epoch;
} sharing_at;

/* One row of the step: a token of a sequence at a position. */
typedef struct token_row {
    int sequence, position;
} token_row;

struct bl_engine {
    const bl_qwen3 *model;
    const bl_qwen3_config *config;
    bl_store *store;
    bl_exchange *exchange;
    bl_engine_hooks hooks;
    bl_moe moe;
    bl_sharing_rule rule;
    sharing_at *sharing; /* [n_layers] */
    uint64_t step;
    bl_step_note *notes; /* [n_ranks] */

    int max_sequences;
    int *length; /* [max_sequences] */
    float *kv;   /* [n_layers][max_sequences][key, value][max_positions][kv_width] */

    /* rows of the step at hand */
    int n_rows;
    bl_phase phase;
    size_t capacity; /* rows there is room for */
    token_row *row;  /* [n_rows] */
    float *residual; /* [n_rows][hidden] */
    float *normed;   /* [n_rows][hidden] */
    float *angles;   /* [n_rows][head_dim] */
    float *heads;    /* [n_rows][q_width], then the same for the attention's output */
    float *scores;   /* [max_positions] */
    uint64_t attended;
    int32_t *load;      /* [n_layers] rows computed */
    int32_t *active;    /* [n_layers] experts that had rows */
    uint64_t *layer_ns; /* [n_layers][BL_N_STAGES] */
};

/* ---- life ---------------------------------------------------------------------------------- */

static size_t kv_width(const bl_qwen3_config *c) {
    return (size_t)c->n_kv_heads * (size_t)c->head_dim;
}

static size_t q_width(const bl_qwen3_config *c) {
    return (size_t)c->n_heads * (size_t)c->head_dim;
}

static bl_status allocate(bl_engine *engine, bl_error *err) {
    const bl_qwen3_config *c = engine->config;
    const int n_ranks = bl_transport_n_ranks(engine->exchange->transport);
    size_t n_kv = 2;
    if (!bl_size_mul(n_kv, kv_width(c), &n_kv) ||
        !bl_size_mul(n_kv, (size_t)c->max_positions, &n_kv) ||
        !bl_size_mul(n_kv, (size_t)c->n_layers, &n_kv) ||
        !bl_size_mul(n_kv, (size_t)engine->max_sequences, &n_kv))
        return bl_fail(err, BL_ERR_NOMEM, "%d sequences of %d tokens do not fit into memory",
                       engine->max_sequences, c->max_positions);
    BL_TRY(BL_CALLOC(engine->kv, n_kv, err));
    BL_TRY(BL_CALLOC(engine->length, engine->max_sequences, err));
    BL_TRY(BL_CALLOC(engine->notes, n_ranks, err));
    BL_TRY(BL_CALLOC(engine->sharing, c->n_layers, err));
    BL_TRY(BL_CALLOC(engine->load, c->n_layers, err));
    BL_TRY(BL_CALLOC(engine->active, c->n_layers, err));
    BL_TRY(BL_CALLOC(engine->layer_ns, (size_t)c->n_layers * BL_N_STAGES, err));
    BL_TRY(BL_CALLOC(engine->scores, c->max_positions, err));
    const bl_moe_shape shape = {.hidden = c->hidden,
                                .inner = c->inner,
                                .n_experts = c->n_experts,
                                .top_k = c->top_k,
                                .renormalise = c->renormalise};
    return bl_moe_create(&shape, engine->exchange, &engine->moe, err);
}

/* Every layer of the model has a map for this many ranks and experts. */
static bl_status check_store(const bl_engine *engine, bl_error *err) {
    const bl_qwen3_config *c = engine->config;
    if (bl_store_bundle_bytes(engine->store) != bl_qwen3_bundle_bytes(c))
        return bl_fail(err, BL_ERR_SHAPE, "slots of %zu bytes for experts of %zu",
                       bl_store_bundle_bytes(engine->store), bl_qwen3_bundle_bytes(c));
    for (int layer = 0; layer < c->n_layers; layer++) {
        const bl_layer_placement *map = bl_store_map(engine->store, layer);
        const int n_ranks = bl_transport_n_ranks(engine->exchange->transport);
        if (map == NULL)
            return bl_fail_at(err, BL_ERR_MODEL, bl_at_layer(NULL, layer),
                              "the placement does not have this layer");
        if (map->n_experts != c->n_experts || map->n_ranks != n_ranks)
            return bl_fail_at(err, BL_ERR_SHAPE, bl_at_layer(NULL, layer),
                              "the placement is for %d experts on %d ranks, this is a run of %d on "
                              "%d",
                              map->n_experts, map->n_ranks, c->n_experts, n_ranks);
    }
    return BL_OK;
}

bl_status bl_engine_create(const bl_qwen3 *model, bl_store *store, bl_exchange *exchange,
                           int max_sequences, const bl_engine_hooks *hooks, bl_engine **out,
                           bl_error *err) {
    bl_engine *engine;
    assert(max_sequences > 0);
    BL_TRY(BL_CALLOC(engine, 1, err));
    engine->model = model;
    engine->config = bl_qwen3_config_of(model);
    engine->store = store;
    engine->exchange = exchange;
    engine->max_sequences = max_sequences;
    if (hooks != NULL)
        engine->hooks = *hooks;
    bl_status st = check_store(engine, err);
    if (st >= 0)
        st = allocate(engine, err);
    if (st < 0) {
        bl_engine_free(engine);
        return st;
    }
    *out = engine;
    return BL_OK;
}

void bl_engine_free(bl_engine *engine) {
    if (engine == NULL)
        return;
    for (int layer = 0; engine->sharing != NULL && layer < engine->config->n_layers; layer++)
        bl_sharing_free(engine->sharing[layer].sharing);
    bl_moe_free(&engine->moe);
    free(engine->sharing);
    free(engine->notes);
    free(engine->length);
    free(engine->kv);
    free(engine->row);
    free(engine->residual);
    free(engine->normed);
    free(engine->angles);
    free(engine->heads);
    free(engine->scores);
    free(engine->load);
    free(engine->active);
    free(engine->layer_ns);
    free(engine);
}

void bl_engine_dispatch_by(bl_engine *engine, bl_dispatch dispatch, const int *node) {
    assert(engine->step == 0);
    bl_moe_dispatch_by(&engine->moe, dispatch, node);
}

void bl_engine_share_by(bl_engine *engine, const bl_sharing_rule *rule) {
    assert(engine->step == 0);
    engine->rule = *rule;
}

bl_status bl_engine_load_experts(const bl_qwen3 *model, bl_store *store, bl_error *err) {
    const bl_qwen3_config *c = bl_qwen3_config_of(model);
    const int rank = bl_store_rank(store);
    for (int layer = 0; layer < c->n_layers; layer++) {
        const bl_layer_placement *map = bl_store_map(store, layer);
        if (map == NULL)
            return bl_fail_at(err, BL_ERR_MODEL, bl_at_layer(NULL, layer),
                              "the placement does not have this layer");
        for (int slot = map->begin[rank]; slot < map->begin[rank + 1]; slot++) {
            if (map->expert[slot] != BL_NO_EXPERT)
                BL_TRY(bl_qwen3_read_expert(model, layer, map->expert[slot],
                                            bl_store_slot(store, layer, slot), err));
        }
    }
    return BL_OK;
}

/* ---- the rows of a step -------------------------------------------------------------------- */

static bl_status reserve_rows(bl_engine *engine, size_t n_rows, bl_error *err) {
    const bl_qwen3_config *c = engine->config;
    if (n_rows <= engine->capacity)
        return BL_OK;
    free(engine->row);
    free(engine->residual);
    free(engine->normed);
    free(engine->angles);
    free(engine->heads);
    engine->row = NULL;
    engine->residual = engine->normed = engine->angles = engine->heads = NULL;
    engine->capacity = 0;
    BL_TRY(BL_CALLOC(engine->row, n_rows, err));
    BL_TRY(BL_CALLOC(engine->residual, n_rows * (size_t)c->hidden, err));
    BL_TRY(BL_CALLOC(engine->normed, n_rows * (size_t)c->hidden, err));
    BL_TRY(BL_CALLOC(engine->angles, n_rows * (size_t)c->head_dim, err));
    BL_TRY(BL_CALLOC(engine->heads, n_rows * 2 * q_width(c), err));
    engine->capacity = n_rows;
    return BL_OK;
}

static bl_status check_chunk(const bl_engine *engine, const bl_chunk *chunk, bl_error *err) {
    const bl_qwen3_config *c = engine->config;
    assert(chunk->sequence >= 0 && chunk->sequence < engine->max_sequences);
    assert(chunk->n_tokens > 0);
    const int length = engine->length[chunk->sequence];
    if (chunk->n_tokens > c->max_positions - length)
        return bl_fail(err, BL_ERR_RANGE,
                       "a sequence of %d tokens and %d more exceeds the model's "
                       "max_position_embeddings of %d",
                       length, chunk->n_tokens, c->max_positions);
    for (int t = 0; t < chunk->n_tokens; t++)
        if (chunk->tokens[t] < 0 || chunk->tokens[t] >= c->vocab)
            return bl_fail(err, BL_ERR_RANGE,
                           "token %d at position %d is not in the vocabulary of %d",
                           chunk->tokens[t], length + t, c->vocab);
    return BL_OK;
}

static bl_phase phase_of(const bl_engine *engine, const bl_chunk *chunks, int n_chunks) {
    int prefill = 0, midfill = 0, decode = 0;
    for (int i = 0; i < n_chunks; i++) {
        const bool fresh = engine->length[chunks[i].sequence] == 0;
        prefill += fresh;
        midfill += !fresh && chunks[i].n_tokens > 1;
        decode += !fresh && chunks[i].n_tokens == 1;
    }
    if (prefill + midfill + decode == 0)
        return BL_PHASE_IDLE;
    if (decode > 0)
        return prefill + midfill == 0 ? BL_PHASE_DECODE : BL_PHASE_MIXED;
    return midfill == 0 ? BL_PHASE_PREFILL : BL_PHASE_MIDFILL;
}

/* Check the chunks and lay out their rows: positions, rotation angles, embeddings. */
static bl_status lay_out(bl_engine *engine, const bl_chunk *chunks, int n_chunks, bl_error *err) {
    const bl_qwen3_config *c = engine->config;
    const size_t hidden = (size_t)c->hidden, head_dim = (size_t)c->head_dim;
    size_t n_rows = 0;
    for (int i = 0; i < n_chunks; i++) {
        BL_TRY(check_chunk(engine, &chunks[i], err));
        n_rows += (size_t)chunks[i].n_tokens;
    }
    if (n_rows > INT32_MAX)
        return bl_fail(err, BL_ERR_RANGE, "%zu tokens in one step are too many", n_rows);
    BL_TRY(reserve_rows(engine, n_rows, err));
    size_t r = 0;
    engine->attended = 0;
    for (int i = 0; i < n_chunks; i++) {
        for (int t = 0; t < chunks[i].n_tokens; t++, r++) {
            const int position = engine->length[chunks[i].sequence] + t;
            const uint16_t *embedding =
                bl_qwen3_embedding(engine->model) + (size_t)chunks[i].tokens[t] * hidden;
            engine->row[r] = (token_row){chunks[i].sequence, position};
            engine->attended += (uint64_t)position + 1;
            bl_rope_angles(c->rope_theta, head_dim, (size_t)position,
                           engine->angles + r * head_dim);
            for (size_t h = 0; h < hidden; h++)
                engine->residual[r * hidden + h] = bl_bf16_to_float(embedding[h]);
        }
    }
    engine->n_rows = (int)n_rows;
    engine->phase = phase_of(engine, chunks, n_chunks);
    return BL_OK;
}

/* ---- attention ----------------------------------------------------------------------------- */

/* Keys of a layer and sequence; its values follow at max_positions * kv_width. */
static float *keys_of(const bl_engine *engine, int layer, int sequence) {
    const size_t one = 2 * (size_t)engine->config->max_positions * kv_width(engine->config);
    return engine->kv + ((size_t)layer * (size_t)engine->max_sequences + (size_t)sequence) * one;
}

static void norm_and_rotate(const bl_engine *engine, float *heads, int n_heads,
                            const uint16_t *norm, const float *angles) {
    const size_t head_dim = (size_t)engine->config->head_dim;
    for (int head = 0; head < n_heads; head++) {
        float *at = heads + (size_t)head * head_dim;
        bl_rms_norm(at, norm, head_dim, engine->config->norm_eps, at);
        bl_rope(at, head_dim, angles);
    }
}

/* Queries of one row, and its keys and values into the cache. */
static void project(bl_engine *engine, int layer, size_t r) {
    const bl_qwen3_config *c = engine->config;
    const bl_qwen3_layer *w = bl_qwen3_layer_of(engine->model, layer);
    const size_t hidden = (size_t)c->hidden, width = kv_width(c);
    const float *x = engine->normed + r * hidden;
    const float *angles = engine->angles + r * (size_t)c->head_dim;
    const size_t at = (size_t)engine->row[r].position * width;
    float *queries = engine->heads + r * 2 * q_width(c);
    float *keys = keys_of(engine, layer, engine->row[r].sequence);
    float *values = keys + (size_t)c->max_positions * width;
    bl_matmul(w->q, q_width(c), hidden, x, 1, queries);
    bl_matmul(w->k, width, hidden, x, 1, keys + at);
    bl_matmul(w->v, width, hidden, x, 1, values + at);
    norm_and_rotate(engine, queries, c->n_heads, w->q_norm, angles);
    norm_and_rotate(engine, keys + at, c->n_kv_heads, w->k_norm, angles);
}

static void attend(bl_engine *engine, int layer, size_t r) {
    const bl_qwen3_config *c = engine->config;
    const size_t head_dim = (size_t)c->head_dim, width = kv_width(c);
    const int group = c->n_heads / c->n_kv_heads;
    const float *queries = engine->heads + r * 2 * q_width(c);
    float *out = engine->heads + r * 2 * q_width(c) + q_width(c);
    const float *keys = keys_of(engine, layer, engine->row[r].sequence);
    const float *values = keys + (size_t)c->max_positions * width;
    for (int head = 0; head < c->n_heads; head++) {
        const size_t kv_head = (size_t)(head / group) * head_dim;
        bl_attend(queries + (size_t)head * head_dim, keys + kv_head, values + kv_head,
                  (size_t)engine->row[r].position + 1, width, head_dim, engine->scores,
                  out + (size_t)head * head_dim);
    }
}

static void norm_rows(bl_engine *engine, const uint16_t *weight) {
    const size_t hidden = (size_t)engine->config->hidden;
    for (size_t r = 0; r < (size_t)engine->n_rows; r++)
        bl_rms_norm(engine->residual + r * hidden, weight, hidden, engine->config->norm_eps,
                    engine->normed + r * hidden);
}

static void attention(bl_engine *engine, int layer) {
    const bl_qwen3_config *c = engine->config;
    const bl_qwen3_layer *w = bl_qwen3_layer_of(engine->model, layer);
    const size_t hidden = (size_t)c->hidden;
    norm_rows(engine, w->input_norm);
    for (size_t r = 0; r < (size_t)engine->n_rows; r++) {
        project(engine, layer, r);
        attend(engine, layer, r);
        bl_matmul(w->o, hidden, q_width(c), engine->heads + r * 2 * q_width(c) + q_width(c), 1,
                  engine->normed + r * hidden);
        bl_add_scaled(engine->residual + r * hidden, engine->normed + r * hidden, 1.0f, hidden);
    }
}

/* ---- experts ------------------------------------------------------------------------------- */

static bl_status refresh_sharing(bl_engine *engine, const bl_layer_placement *map, bl_error *err) {
    sharing_at *at = &engine->sharing[map->layer];
    if (at->sharing != NULL && at->epoch == map->epoch)
        return BL_OK;
    bl_sharing_free(at->sharing);
    at->sharing = NULL;
    BL_TRY(bl_sharing_create(&engine->rule, map, bl_store_rank(engine->store), &at->sharing, err));
    at->epoch = map->epoch;
    return BL_OK;
}

static bl_status experts(bl_engine *engine, int layer, bl_error *err) {
    bl_moe *moe = &engine->moe;
    uint64_t before[BL_N_STAGES], *layer_ns = engine->layer_ns + (size_t)layer * BL_N_STAGES;
    const bl_qwen3_layer *w = bl_qwen3_layer_of(engine->model, layer);
    const bl_layer_placement *map = bl_store_map(engine->store, layer);
    memcpy(before, moe->stage_ns, sizeof before);
    BL_TRY(refresh_sharing(engine, map, err));
    norm_rows(engine, w->post_norm);
    BL_TRY(bl_moe_begin(moe, map, engine->sharing[layer].sharing, engine->n_rows, err));
    BL_TRY(bl_moe_route(moe, w->router, engine->normed, err));
    if (engine->hooks.on_route != NULL)
        BL_TRY(engine->hooks.on_route(engine->hooks.user, engine->step, layer, moe->ids,
                                      moe->n_tokens, moe->shape.top_k, err));
    BL_TRY(bl_moe_permute(moe, engine->normed, err));
    BL_TRY(bl_moe_dispatch(moe, err));
    BL_TRY(bl_moe_experts(moe, engine->store, err));
    BL_TRY(bl_moe_combine(moe, err));
    bl_moe_unpermute(moe, engine->residual);
    engine->load[layer] = bl_moe_rows(moe);
    engine->active[layer] = bl_moe_active(moe);
    for (int stage = 0; stage < BL_N_STAGES; stage++)
        layer_ns[stage] = moe->stage_ns[stage] - before[stage];
    return BL_OK;
}

/* ---- a step -------------------------------------------------------------------------------- */

static bl_status exchange_notes(bl_engine *engine, int64_t left, bl_step_result *result,
                                bl_error *err) {
    const int n_ranks = bl_transport_n_ranks(engine->exchange->transport);
    bl_step_note *mine = &engine->notes[bl_transport_rank(engine->exchange->transport)];
    *mine =
        (bl_step_note){.n_tokens = engine->n_rows, .left = left, .phase = (int32_t)engine->phase};
    if (engine->hooks.before_step != NULL)
        BL_TRY(engine->hooks.before_step(engine->hooks.user, engine->step, mine, err));
    BL_TRY(bl_exchange_allgather(engine->exchange, mine, sizeof *mine, engine->notes, err));
    for (int g = 0; g < n_ranks; g++) {
        result->all_tokens += engine->notes[g].n_tokens;
        result->left += engine->notes[g].left;
        result->flags |= engine->notes[g].flags;
    }
    if (engine->hooks.at_step != NULL)
        BL_TRY(
            engine->hooks.at_step(engine->hooks.user, engine->step, engine->notes, n_ranks, err));
    return BL_OK;
}

/* Routers vouch for what comes before them; nothing else does for the last layer and the head. */
static bl_status check_logits(const float *logits, size_t n, bl_error *err) {
    for (size_t i = 0; i < n; i++)
        if (!isfinite(logits[i]))
            return bl_fail(err, BL_ERR_RANGE,
                           "the model's logits are not finite; are the weights damaged?");
    return BL_OK;
}

/* Final norm and output head of the rows that were asked for. */
static bl_status write_logits(bl_engine *engine, const bl_chunk *chunks, int n_chunks,
                              bl_error *err) {
    const size_t hidden = (size_t)engine->config->hidden, vocab = (size_t)engine->config->vocab;
    size_t first = 0;
    norm_rows(engine, bl_qwen3_final_norm(engine->model));
    for (int i = 0; i < n_chunks; i++) {
        const size_t n = (size_t)chunks[i].n_tokens;
        const size_t skip = chunks[i].every_token ? 0 : n - 1;
        first += n;
        if (chunks[i].logits == NULL)
            continue;
        bl_matmul(bl_qwen3_head(engine->model), vocab, hidden,
                  engine->normed + (first - n + skip) * hidden, n - skip, chunks[i].logits);
        BL_TRY(check_logits(chunks[i].logits, (n - skip) * vocab, err));
    }
    return BL_OK;
}

static bl_status run_layers(bl_engine *engine, bl_error *err) {
    for (int layer = 0; layer < engine->config->n_layers; layer++) {
        attention(engine, layer);
        BL_TRY(experts(engine, layer, err));
    }
    return BL_OK;
}

bl_status bl_engine_step(bl_engine *engine, const bl_chunk *chunks, int n_chunks, int64_t left,
                         bl_step_result *result, bl_error *err) {
    const bl_moe *moe = &engine->moe;
    const uint64_t start = bl_now_ns();
    const size_t n_layers = (size_t)engine->config->n_layers;
    bl_step_result made = {.step = engine->step,
                           .rows = engine->load,
                           .active = engine->active,
                           .layer_ns = engine->layer_ns};
    bl_moe_reset_counters(&engine->moe);
    memset(engine->load, 0, n_layers * sizeof *engine->load);
    memset(engine->active, 0, n_layers * sizeof *engine->active);
    memset(engine->layer_ns, 0, n_layers * BL_N_STAGES * sizeof *engine->layer_ns);
    BL_TRY(lay_out(engine, chunks, n_chunks, err));
    BL_TRY(exchange_notes(engine, left, &made, err));
    const uint64_t layers_start = bl_now_ns();
    if (made.all_tokens > 0)
        BL_TRY(run_layers(engine, err));
    BL_TRY(write_logits(engine, chunks, n_chunks, err));
    for (int i = 0; i < n_chunks; i++)
        engine->length[chunks[i].sequence] += chunks[i].n_tokens;
    engine->step++;
    made.n_tokens = engine->n_rows;
    made.attended = engine->attended;
    memcpy(made.stage_ns, moe->stage_ns, sizeof made.stage_ns);
    made.sent_bytes = moe->cost.bytes;
    made.sent_rows = moe->cost.rows;
    made.n_messages = moe->cost.messages;
    made.bytes_to = moe->cost.bytes_to;
    const uint64_t end = bl_now_ns();
    made.layers_ns = end - layers_start;
    made.total_ns = end - start;
    *result = made;
    if (engine->hooks.after_step != NULL)
        BL_TRY(engine->hooks.after_step(engine->hooks.user, result, err));
    return BL_OK;
}

void bl_engine_restart(bl_engine *engine, uint64_t step, uint64_t sequence, const bool *lost) {
    engine->step = step;
    bl_exchange_restart(engine->exchange, sequence, lost);
}

uint64_t bl_engine_sequence(const bl_engine *engine) {
    return engine->exchange->sequence;
}

int bl_engine_length(const bl_engine *engine, int sequence) {
    return engine->length[sequence];
}

void bl_engine_truncate(bl_engine *engine, int sequence, int length) {
    assert(length >= 0 && length <= engine->length[sequence]);
    engine->length[sequence] = length;
}

uint64_t bl_engine_steps(const bl_engine *engine) {
    return engine->step;
}
