/* What planners are told of an engine: its model, and how its load lies. */
#include "rebalancer/embed_parts.h"

#include "core/mem.h"
#include "core/model.h"
#include "core/progress.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define WINDOW_STEPS 64
#define BATCH_IDS 256

/* ---- model ----------------------------------------------------------------------------------- */

/* Without a config: layers and experts are known, sizes are those of a square expert of three bf16
 * matrices that has as many bytes as the bundle. */
static json_t *model_from_layers(const bl_embed *embed) {
    const bl_placement *p = &embed->placement;
    const double bytes = (double)bl_store_bundle_bytes(embed->store);
    const int size = (int)fmax(1.0, round(sqrt(bytes / 6.0)));
    json_t *layers = json_array();
    for (int l = 0; l < p->n_layers; l++)
        json_array_append_new(layers, json_integer(p->layers[l].layer));
    return json_pack("{s:s, s:i, s:o, s:i, s:i, s:i, s:i}", "name", embed->model,
                     "num_hidden_layers", p->layers[p->n_layers - 1].layer + 1, "moe_layers",
                     layers, "num_experts", p->n_experts, "num_experts_per_tok",
                     embed->options.top_k, "hidden_size", size, "moe_intermediate_size", size);
}

static bl_status check_model(const bl_embed *embed, const bl_model *model, bl_error *err) {
    const bl_placement *p = &embed->placement;
    if (model->n_experts != p->n_experts || model->top_k != embed->options.top_k)
        return bl_fail_at(err, BL_ERR_MODEL, bl_at(embed->config),
                          "it has %d experts, top-%d; the engine has %d, top-%d", model->n_experts,
                          model->top_k, p->n_experts, embed->options.top_k);
    for (int l = 0; l < p->n_layers; l++) {
        if (bl_model_moe_index(model, p->layers[l].layer) < 0)
            return bl_fail_at(err, BL_ERR_MODEL, bl_at_layer(embed->config, p->layers[l].layer),
                              "is no MoE layer of this model; the engine declares it as one");
    }
    return BL_OK;
}

bl_status bl_embed_describe(const bl_embed *embed, json_t **model_p, bl_error *err) {
    bl_model model;
    if (embed->config == NULL) {
        *model_p = model_from_layers(embed);
    } else {
        BL_TRY(bl_model_load(embed->config, &model, err));
        const bl_status st = check_model(embed, &model, err);
        *model_p = st >= 0 ? bl_model_to_json(&model) : NULL;
        bl_model_free(&model);
        BL_TRY(st);
    }
    return *model_p != NULL ? BL_OK : bl_fail(err, BL_ERR_NOMEM, "out of memory for the model");
}

/* ---- load ------------------------------------------------------------------------------------ */

static void hear_other(void *user, int from, const void *data, size_t bytes) {
    bl_embed *embed = user;
    if (bl_recovery_is_word(data, bytes)) {
        bl_recovery_hear(embed->recovery, from, data, bytes);
        return;
    }
    if (bl_control_hear_server(data, bytes, &embed->server_pid))
        return;
    for (int rank = 0; rank < embed->n_ranks; rank++)
        embed->living[rank] = bl_agent_lives(embed->agent, rank);
    bl_meter_hear(embed->meter, from, data, bytes, embed->living, NULL); /* a bad one is no loss */
}

bl_status bl_embed_open_meter(bl_embed *embed, bl_error *err) {
    const int n_layers = embed->placement.n_layers;
    const int window = embed->options.window_steps > 0 ? embed->options.window_steps : WINDOW_STEPS;
    int *layers;
    BL_TRY(BL_CALLOC(embed->living, embed->n_ranks, err));
    BL_TRY(BL_CALLOC(embed->rows, n_layers, err));
    BL_TRY(BL_CALLOC(layers, n_layers, err));
    for (int l = 0; l < n_layers; l++)
        layers[l] = embed->placement.layers[l].layer;
    const bl_status st = bl_meter_create(embed->rank, embed->n_ranks, layers, n_layers,
                                         embed->options.n_experts, window, &embed->meter, err);
    free(layers);
    return st;
}

void bl_embed_listen(bl_embed *embed) {
    bl_agent_on_told(embed->agent, hear_other, embed);
}

static int32_t id_at(const unsigned char *at, int id_bytes) {
    int64_t wide;
    int32_t word;
    int16_t half;
    switch (id_bytes) {
    case 1:
        return *at;
    case 2:
        memcpy(&half, at, sizeof half);
        return half;
    case 4:
        memcpy(&word, at, sizeof word);
        return word;
    default:
        memcpy(&wide, at, sizeof wide);
        return wide < 0 || wide > INT32_MAX ? -1 : (int32_t)wide;
    }
}

static void count_ids(bl_embed *embed, int layer, const unsigned char *ids, int id_bytes,
                      size_t n_tokens, size_t row_bytes) {
    int32_t batch[BATCH_IDS];
    size_t n = 0;
    for (size_t token = 0; token < n_tokens; token++) {
        for (int k = 0; k < embed->options.top_k; k++) {
            batch[n++] = id_at(ids + token * row_bytes + (size_t)(k * id_bytes), id_bytes);
            if (n < BATCH_IDS)
                continue;
            bl_meter_route(embed->meter, layer, batch, n);
            n = 0;
        }
    }
    bl_meter_route(embed->meter, layer, batch, n);
}

static bl_status check_counted(const bl_embed *embed, const bl_counted *c, int *l, bl_error *err) {
    BL_TRY(bl_embed_check_started(embed, err));
    if (c->id_bytes != 1 && c->id_bytes != 2 && c->id_bytes != 4 && c->id_bytes != 8)
        return bl_fail(err, BL_ERR_RANGE, "ids of %d bytes", c->id_bytes);
    if (c->ids == NULL && c->n_tokens > 0)
        return bl_fail(err, BL_ERR_USAGE, "%zu tokens without ids", c->n_tokens);
    if (c->n_tokens > 1 && c->row_bytes < (size_t)c->id_bytes * (size_t)embed->options.top_k)
        return bl_fail(err, BL_ERR_RANGE, "rows of %zu bytes for %d ids of %d bytes", c->row_bytes,
                       embed->options.top_k, c->id_bytes);
    for (*l = 0; *l < embed->placement.n_layers; ++*l) {
        if (embed->placement.layers[*l].layer == c->layer)
            return BL_OK;
    }
    return bl_fail_at(err, BL_ERR_RANGE, bl_at_layer(NULL, c->layer), "it was not declared");
}

static bl_status count(bl_embed *embed, const bl_counted *given, bl_error *err) {
    bl_counted counted = BL_COUNTED_INIT;
    int l = 0;
    BL_TRY(bl_embed_take_struct(&counted, sizeof counted, given, sizeof counted, "a count", err));
    BL_TRY(check_counted(embed, &counted, &l, err));
    count_ids(embed, counted.layer, counted.ids, counted.id_bytes, counted.n_tokens,
              counted.row_bytes);
    if (l == 0)
        embed->tokens += counted.n_tokens;
    embed->rows[l] += counted.n_rows < INT32_MAX ? (int32_t)counted.n_rows : 0;
    embed->experts_ns += counted.experts_ns;
    return BL_OK;
}

int bl_count(bl_embed *embed, const bl_counted *counted) {
    bl_error err = BL_ERROR_INIT;
    const int entered = bl_embed_enter(embed);
    return entered < 0 ? entered : bl_embed_leave(embed, count(embed, counted, &err), &err);
}

/* All ranks step together, so they close a window at the same step. A report that cannot be sent is no
 * reason to stop: whoever is gone is told otherwise. */
void bl_embed_end_step(bl_embed *embed, uint64_t now_ns) {
    const unsigned char *report;
    size_t bytes;
    const bl_meter_step step = {.step = embed->step,
                                .tokens = embed->tokens,
                                .all_tokens = 1,
                                .moving = bl_agent_is_busy(embed->agent),
                                .step_ns = now_ns - embed->step_began_ns,
                                .experts_ns = embed->experts_ns,
                                .rows = embed->rows};
    if (embed->step_began_ns != 0 && bl_meter_end_step(embed->meter, &step, &report, &bytes) &&
        !embed->is_off)
        bl_agent_tell(embed->agent, bl_agent_leader(embed->agent), report, bytes, NULL);
    embed->step_began_ns = now_ns;
    embed->tokens = embed->experts_ns = 0;
    memset(embed->rows, 0, sizeof *embed->rows * (size_t)embed->placement.n_layers);
}
