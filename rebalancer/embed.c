/* The life of an engine's handle: options, layers, start, end. */
#include "rebalancer/embed_parts.h"

#include "core/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- calls ----------------------------------------------------------------------------------- */

int bl_embed_enter(bl_embed *embed) {
    if (embed == NULL)
        return BL_ERR_USAGE;
    return atomic_exchange(&embed->in_call, true) ? BL_ERR_STATE : BL_OK;
}

int bl_embed_leave(bl_embed *embed, bl_status st, const bl_error *err) {
    if (st < 0)
        bl_error_format(err, embed->error, sizeof embed->error);
    atomic_store(&embed->in_call, false);
    return st < 0 ? (int)st : BL_OK;
}

const char *bl_embed_error(const bl_embed *embed) {
    return embed != NULL ? embed->error : "";
}

bl_status bl_embed_take_struct(void *out, size_t bytes, const void *given, size_t least,
                               const char *what, bl_error *err) {
    size_t size;
    if (given == NULL)
        return bl_fail(err, BL_ERR_USAGE, "%s is NULL", what);
    memcpy(&size, given, sizeof size);
    if (size < least || size > BL_EMBED_MAX_STRUCT)
        return bl_fail(err, BL_ERR_VERSION, "%s of size %zu: use its _INIT macro", what, size);
    memcpy(out, given, size < bytes ? size : bytes);
    return BL_OK;
}

bl_status bl_embed_give_struct(void *out, const void *made, size_t bytes, size_t least,
                               const char *what, bl_error *err) {
    size_t size;
    if (out == NULL)
        return bl_fail(err, BL_ERR_USAGE, "%s is NULL", what);
    memcpy(&size, out, sizeof size);
    if (size < least || size > BL_EMBED_MAX_STRUCT)
        return bl_fail(err, BL_ERR_VERSION, "%s of size %zu: use its _INIT macro", what, size);
    memcpy((unsigned char *)out + sizeof size, (const unsigned char *)made + sizeof size,
           (size < bytes ? size : bytes) - sizeof size);
    return BL_OK;
}

/* ---- options --------------------------------------------------------------------------------- */

static bl_status copy_text(const char *from, char **out, bl_error *err) {
    if (from == NULL)
        return BL_OK;
    const size_t bytes = strlen(from) + 1;
    BL_TRY(BL_CALLOC(*out, bytes, err));
    memcpy(*out, from, bytes);
    return BL_OK;
}

static bl_status check_options(const bl_embed_options *o, bl_error *err) {
    if (o->n_experts < 1 || o->n_experts > 65536 || o->top_k < 1 || o->top_k > o->n_experts)
        return bl_fail(err, BL_ERR_RANGE, "%d experts, of which a token takes %d, make no layer",
                       o->n_experts, o->top_k);
    if (o->spares < 0 || (o->step_bytes != 0 && o->step_bytes < BL_AGENT_MIN_STEP_BYTES))
        return bl_fail(err, BL_ERR_RANGE, "%d spares, %zu bytes per step: at least 0 and %d",
                       o->spares, o->step_bytes, BL_AGENT_MIN_STEP_BYTES);
    if (o->window_steps < 0)
        return bl_fail(err, BL_ERR_RANGE, "windows of %d steps", o->window_steps);
    if (!(o->deadline_s >= 0 && o->deadline_s < 1e6))
        return bl_fail(err, BL_ERR_RANGE, "a deadline of %g s", o->deadline_s);
    return BL_OK;
}

/* Which rank of how many this is, and where they meet. */
static bl_status find_place(bl_embed *embed, bl_error *err) {
    const bl_embed_options *o = &embed->options;
    bool found = true;
    embed->ucx = BL_UCX_OPTIONS_INIT;
    if (o->transport != NULL) {
        embed->rank = bl_transport_rank(o->transport);
        embed->n_ranks = bl_transport_n_ranks(o->transport);
        return BL_OK;
    }
    if (o->rank < 0)
        BL_TRY(bl_ucx_options_from_env(&embed->ucx, embed->meeting_point,
                                       sizeof embed->meeting_point, &found, err));
    else
        embed->ucx.rank = o->rank, embed->ucx.n_ranks = o->n_ranks;
    if (!found)
        return bl_fail(
            err, BL_ERR_USAGE,
            "which rank is this? Give rank and n_ranks, or start it with torchrun, mpirun "
            "or srun");
    if (embed->rendezvous != NULL)
        embed->ucx.rendezvous = embed->rendezvous;
    if (embed->ucx.n_ranks < 1 || embed->ucx.rank >= embed->ucx.n_ranks ||
        (embed->ucx.n_ranks > 1 && embed->ucx.rendezvous == NULL))
        return bl_fail(err, BL_ERR_USAGE, "rank %d of %d needs a rendezvous (\"host:port\")",
                       embed->ucx.rank, embed->ucx.n_ranks);
    if (o->job != 0)
        embed->ucx.job = o->job;
    if (o->deadline_s > 0)
        embed->ucx.deadline_s = o->deadline_s;
    embed->rank = embed->ucx.rank;
    embed->n_ranks = embed->ucx.n_ranks;
    return BL_OK;
}

static bl_status take_options(bl_embed *embed, const bl_embed_options *given, bl_error *err) {
    bl_embed_options *o = &embed->options;
    *o = (bl_embed_options)BL_EMBED_OPTIONS_INIT;
    BL_TRY(bl_embed_take_struct(o, sizeof *o, given, offsetof(bl_embed_options, fetch), "options",
                                err));
    BL_TRY(copy_text(o->model != NULL ? o->model : "", &embed->model, err));
    BL_TRY(copy_text(o->rule != NULL ? o->rule : "even", &embed->rule, err));
    BL_TRY(copy_text(o->rendezvous, &embed->rendezvous, err));
    BL_TRY(copy_text(o->socket, &embed->socket, err));
    BL_TRY(copy_text(o->config, &embed->config, err));
    BL_TRY(check_options(o, err));
    BL_TRY(find_place(embed, err));
    embed->placement.n_ranks = embed->n_ranks;
    embed->placement.n_experts = o->n_experts;
    return BL_OK;
}

int bl_embed_open(const bl_embed_options *options, bl_embed **embed_p, char *text,
                  size_t text_bytes) {
    bl_error err = BL_ERROR_INIT;
    bl_embed *embed = NULL;
    bl_status st = embed_p != NULL ? BL_CALLOC(embed, 1, &err)
                                   : bl_fail(&err, BL_ERR_USAGE, "embed_p is NULL");
    if (st >= 0) {
        embed->refused = BL_ERROR_INIT;
        st = BL_CALLOC(embed->told, 1, &err);
    }
    if (st >= 0) {
        *embed->told = -1;
        st = take_options(embed, options, &err);
    }
    if (st < 0) {
        if (text != NULL && text_bytes > 0)
            bl_error_format(&err, text, text_bytes);
        bl_embed_close(embed);
        return (int)st;
    }
    *embed_p = embed;
    return BL_OK;
}

/* ---- layers ---------------------------------------------------------------------------------- */

/* Slots of each rank as the layer says, or even. */
static bl_status take_slots(const bl_embed *embed, const bl_layer *layer, int *slots,
                            bl_error *err) {
    const bl_where at = bl_at_layer(NULL, layer->layer);
    int64_t sum = 0;
    if (layer->slots_of_rank == NULL && layer->n_slots % embed->n_ranks != 0)
        return bl_fail_at(err, BL_ERR_SHAPE, at,
                          "%d slots are not even over %d ranks: give "
                          "slots_of_rank",
                          layer->n_slots, embed->n_ranks);
    for (int rank = 0; rank < embed->n_ranks; rank++) {
        slots[rank] = layer->slots_of_rank != NULL ? layer->slots_of_rank[rank]
                                                   : layer->n_slots / embed->n_ranks;
        sum += slots[rank];
    }
    if (sum != layer->n_slots)
        return bl_fail_at(err, BL_ERR_SHAPE, at, "the ranks have %lld slots, the layer %d",
                          (long long)sum, layer->n_slots);
    return BL_OK;
}

static bl_status take_placement(bl_embed *embed, const bl_layer *layer, const int *slots,
                                bl_layer_placement *out, bl_error *err) {
    bl_placement one;
    BL_TRY(bl_placement_create(embed->n_ranks, embed->options.n_experts, &layer->layer, 1, slots,
                               &one, err));
    if (layer->n_slots > 0)
        memcpy(one.layers[0].expert, layer->expert, sizeof *layer->expert * (size_t)layer->n_slots);
    const bl_status st = bl_layer_placement_check(&one.layers[0], NULL, err);
    if (st >= 0)
        *out = one.layers[0];
    else
        bl_layer_placement_free(&one.layers[0]);
    free(one.layers);
    return st;
}

/* Room for one more layer in all lists. */
static bl_status make_room(bl_embed *embed, bl_error *err) {
    const size_t n = (size_t)embed->placement.n_layers + 1;
    void *layers = embed->placement.layers, *bundles = embed->bundles,
         *slots = embed->slots_of_rank;
    bl_status st =
        bl_grow(&layers, &embed->layers_capacity, n, sizeof *embed->placement.layers, err);
    embed->placement.layers = layers;
    if (st >= 0)
        st = bl_grow(&bundles, &embed->bundles_capacity, n, sizeof *embed->bundles, err);
    embed->bundles = bundles;
    if (st >= 0)
        st = bl_grow(&slots, &embed->slots_capacity, n, sizeof *embed->slots_of_rank, err);
    embed->slots_of_rank = slots;
    return st;
}

static bl_status check_layer(const bl_embed *embed, const bl_layer *layer, bl_error *err) {
    const int l = embed->placement.n_layers;
    if (embed->is_started)
        return bl_fail(err, BL_ERR_STATE, "layers are declared before bl_embed_start()");
    if (l > 0 && embed->placement.layers[l - 1].layer >= layer->layer)
        return bl_fail_at(err, BL_ERR_USAGE, bl_at_layer(NULL, layer->layer),
                          "layers are declared in ascending order");
    if (layer->layer < 0 || layer->n_slots < 0 || layer->expert == NULL || layer->n_tensors < 0 ||
        layer->n_inventory < 0 || (layer->n_tensors > 0 && layer->tensors == NULL) ||
        (layer->n_inventory > 0 && layer->inventory == NULL))
        return bl_fail_at(err, BL_ERR_USAGE, bl_at_layer(NULL, layer->layer),
                          "a layer needs its number, its slots, what is in them, and its tensors");
    return BL_OK;
}

static bl_status add_layer(bl_embed *embed, const bl_layer *given, bl_error *err) {
    const int l = embed->placement.n_layers;
    bl_layer whole = BL_LAYER_INIT, *layer = &whole;
    bl_layer_placement map = {0};
    bl_bundle bundle = {0};
    int *slots;
    BL_TRY(bl_embed_take_struct(&whole, sizeof whole, given, offsetof(bl_layer, n_spares),
                                "a layer", err));
    BL_TRY(check_layer(embed, layer, err));
    BL_TRY(make_room(embed, err));
    BL_TRY(BL_CALLOC(slots, embed->n_ranks, err));
    bl_status st = take_slots(embed, layer, slots, err);
    if (st >= 0)
        st = take_placement(embed, layer, slots, &map, err);
    const bl_bundle_shape shape = {layer->layer, slots[embed->rank], layer->n_slots,
                                   embed->options.n_experts};
    if (st >= 0)
        st =
            bl_bundle_create(layer, &shape, embed->options.copy, embed->options.user, &bundle, err);
    if (st < 0) {
        bl_layer_placement_free(&map);
        free(slots);
        return st;
    }
    embed->placement.layers[l] = map;
    embed->bundles[l] = bundle;
    embed->slots_of_rank[l] = slots;
    embed->placement.n_layers++;
    return BL_OK;
}

int bl_embed_add_layer(bl_embed *embed, const bl_layer *layer) {
    bl_error err = BL_ERROR_INIT;
    const int entered = bl_embed_enter(embed);
    if (entered < 0)
        return entered;
    const bl_status st = add_layer(embed, layer, &err);
    if (st < 0 && embed->refused.code >= 0)
        embed->refused = err;
    return bl_embed_leave(embed, st, &err);
}

/* ---- start ----------------------------------------------------------------------------------- */

static size_t largest_bundle(const bl_embed *embed) {
    size_t bytes = 0;
    for (int l = 0; l < embed->placement.n_layers; l++)
        bytes = embed->bundles[l].bytes > bytes ? embed->bundles[l].bytes : bytes;
    return bytes;
}

/* As many spares as asked for, within their memory. */
static bl_status count_spares(bl_embed *embed, bl_error *err) {
    const bl_embed_options *o = &embed->options;
    const size_t bundle = largest_bundle(embed);
    embed->n_spares = o->spares;
    if (embed->bundles[0].by_pointers) { /* they are the engine's */
        embed->n_spares = 0;
        for (int l = 0; l < embed->placement.n_layers; l++)
            embed->n_spares += embed->bundles[l].n_spares;
        return BL_OK;
    }
    if (o->spare_bytes == 0 || o->spares == 0 || o->spare_bytes / bundle >= (size_t)o->spares)
        return BL_OK;
    embed->n_spares = (int)(o->spare_bytes / bundle);
    if (embed->n_spares == 0)
        return bl_fail(err, BL_ERR_RANGE,
                       "one expert takes %zu bytes and spares may take %zu: nothing could move",
                       bundle, o->spare_bytes);
    return BL_OK;
}

/* All that this rank can find wrong by itself, and the memory. */
static bl_status prepare(bl_embed *embed, bl_error *err) {
    if (embed->refused.code < 0) {
        *err = embed->refused;
        return err->code;
    }
    if (embed->placement.n_layers == 0)
        return bl_fail(err, BL_ERR_USAGE, "no layer was declared");
    BL_TRY(bl_bundles_check_apart(embed->bundles, embed->placement.n_layers, err));
    BL_TRY(count_spares(embed, err));
    BL_TRY(BL_CALLOC(embed->epochs, embed->placement.n_layers, err));
    if (embed->options.gpu >= 0)
        BL_TRY(bl_memory_open(embed->options.gpu, &embed->memory, err));
    BL_TRY(bl_store_create_over(&embed->placement, embed->rank, embed->bundles, embed->n_spares,
                                embed->memory, embed->options.recompute, embed->options.user,
                                &embed->store, err));
    BL_TRY(bl_embed_open_meter(embed, err));
    return bl_embed_describe(embed, &embed->described, err);
}

/* Bundles over NCCL, all else over what carries it. What this rank cannot do it tells the others. */
static void add_nccl(bl_embed *embed, bl_error *own) {
    bl_nccl_options options = BL_NCCL_OPTIONS_INIT;
    options.device = embed->options.gpu;
    options.join_later = true;
    if (embed->memory != NULL && embed->options.transport == NULL && embed->n_ranks > 1 &&
        own->code >= 0)
        bl_transport_nccl_open(&options, embed->transport, &embed->transport, own);
}

static bl_status connect_ranks(bl_embed *embed, bl_error *err) {
    if (embed->options.transport != NULL)
        embed->transport = embed->options.transport;
    else if (embed->n_ranks > 1)
        BL_TRY(bl_transport_ucx_open(&embed->ucx, &embed->transport, err));
    else
        BL_TRY(bl_transport_local_open(1, &embed->transport, err));
    return BL_OK;
}

static bl_status make_agent(bl_embed *embed, bl_error *err) {
    const int n_layers = embed->placement.n_layers;
    bl_agent_options options = BL_AGENT_OPTIONS_INIT;
    int *layers;
    if (embed->options.step_bytes > 0)
        options.step_bytes =
            embed->options.step_bytes < INT64_MAX ? (int64_t)embed->options.step_bytes : INT64_MAX;
    if (embed->options.deadline_s > 0) {
        const uint64_t ns = (uint64_t)(embed->options.deadline_s * 1e9);
        options.transaction.agree_ns = options.transaction.copy_ns = ns;
        options.transaction.commit_ns = ns;
    }
    BL_TRY(bl_embed_form(embed, &options.form, err));
    BL_TRY(BL_CALLOC(layers, n_layers, err));
    for (int l = 0; l < n_layers; l++)
        layers[l] = embed->placement.layers[l].layer;
    const bl_status st = bl_agent_create(embed->store, embed->transport, layers, n_layers, &options,
                                         &embed->agent, err);
    free(layers);
    return st;
}

/* A socket that was asked for must open; the usual one may be another cluster's. */
bl_status bl_embed_open_socket(bl_embed *embed, bl_error *err) {
    const bl_control_cluster cluster = {.n_experts = embed->options.n_experts,
                                        .top_k = embed->options.top_k,
                                        .n_ranks = embed->n_ranks,
                                        .rule = embed->rule,
                                        .meter = embed->meter,
                                        .starts = !embed->is_started,
                                        .replaces_pid = embed->server_pid,
                                        .model = embed->described};
    char usual[256], text[BL_EMBED_REASON_BYTES - 40];
    bl_error why = BL_ERROR_INIT;
    if (embed->socket != NULL && embed->socket[0] == '\0')
        return BL_OK;
    if (embed->socket != NULL)
        return bl_control_open(embed->socket, &cluster, &embed->control, err);
    bl_control_default_path(usual, sizeof usual);
    if (bl_control_open(usual, &cluster, &embed->control, &why) < 0) {
        bl_error_format(&why, text, sizeof text);
        snprintf(embed->reason, sizeof embed->reason, "no control socket: %s", text);
    }
    return BL_OK;
}

static bl_status start(bl_embed *embed, bl_error *err) {
    bl_error own = BL_ERROR_INIT;
    if (embed->is_started)
        return bl_fail(err, BL_ERR_STATE, "it was started before");
    if (embed->is_spent)
        return bl_fail(err, BL_ERR_STATE, "it could not start before: bl_embed_close(), then anew");
    embed->is_spent = true;
    if (prepare(embed, &own) >= 0 && embed->rank == 0)
        bl_embed_open_socket(embed, &own);
    BL_TRY(connect_ranks(embed, err));
    add_nccl(embed, &own);
    embed->exchange =
        bl_exchange_over(embed->transport, embed->options.deadline_s > 0 ? embed->options.deadline_s
                                                                         : embed->ucx.deadline_s);
    BL_TRY(bl_embed_agree(embed, &own, err));
    BL_TRY(make_agent(embed, err));
    BL_TRY(bl_embed_open_recovery(embed, err));
    bl_embed_listen(embed);
    embed->is_started = true;
    if (embed->control != NULL)
        bl_control_announce(embed->agent, embed->rank, embed->n_ranks);
    return BL_OK;
}

int bl_embed_start(bl_embed *embed) {
    bl_error err = BL_ERROR_INIT;
    const int entered = bl_embed_enter(embed);
    return entered < 0 ? entered : bl_embed_leave(embed, start(embed, &err), &err);
}

/* ---- end ------------------------------------------------------------------------------------- */

void bl_embed_close(bl_embed *embed) {
    if (bl_embed_enter(embed) < 0)
        return;
    bl_control_close(embed->control, embed->agent);
    bl_recovery_free(embed->recovery);
    bl_agent_free(embed->agent);
    if (embed->options.transport == NULL)
        bl_transport_close(embed->transport);
    bl_store_free(embed->store);
    bl_memory_close(embed->memory);
    for (int l = 0; l < embed->placement.n_layers; l++) {
        bl_bundle_free(&embed->bundles[l]);
        free(embed->slots_of_rank[l]);
    }
    free(embed->bundles);
    free(embed->slots_of_rank);
    bl_placement_free(&embed->placement);
    free(embed->epochs);
    free(embed->told);
    free(embed->model);
    free(embed->rule);
    free(embed->rendezvous);
    free(embed->socket);
    free(embed->config);
    json_decref(embed->described);
    bl_meter_free(embed->meter);
    free(embed->living);
    free(embed->rows);
    free(embed->orphans);
    free(embed->lost);
    free(embed);
}
