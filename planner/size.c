#include "planner/size.h"

#include "planner/capacity.h"

#include <math.h>
#include <stdio.h>

/* ---- weights that are not routed experts -------------------------------------------------- */

/* Bytes of one weight of a large matrix, with its share of block scales; see size.h. */
static double matrix_bytes(bl_weight_format format) {
    switch (format) {
    case BL_WEIGHTS_F32:
        return 4;
    case BL_WEIGHTS_FP8:
        return 1;
    case BL_WEIGHTS_FP8_BLOCK:
        return 1 + 4.0 / (128 * 128);
    default:
        return 2;
    }
}

static double plain_bytes(bl_weight_format format) {
    return format == BL_WEIGHTS_F32 ? 4 : 2;
}

/* Bytes on one rank of what is cut over tp ranks, and of what every rank holds whole. */
static double rest_bytes(const bl_model *model, int tp) {
    const bl_parameters *p = &model->parameters;
    const double plain = plain_bytes(model->weight_format);
    const double cut = (p->attention + p->dense + p->shared) * matrix_bytes(model->weight_format) +
                       p->embedding * plain;
    return cut / tp + (p->router + p->norms) * plain;
}

static double all_expert_bytes(const bl_model *model) {
    return (double)model->expert_bytes * model->n_experts * model->n_moe_layers;
}

double bl_model_weights_bytes(const bl_model *model) {
    const bool told = model->parameters.untold[0] == '\0';
    return all_expert_bytes(model) + (told ? rest_bytes(model, 1) : 0);
}

/* ---- the layout --------------------------------------------------------------------------- */

static bl_status settle_ranks(const bl_topology *topology, const bl_layout *layout, bl_size *out,
                              bl_error *err) {
    if (layout->tp > 0 && layout->dp > 0) {
        if (layout->tp > BL_MAX_RANKS / layout->dp)
            return bl_fail(err, BL_ERR_RANGE, "tp %d x dp %d is more than %d ranks", layout->tp,
                           layout->dp, BL_MAX_RANKS);
        out->ranks = layout->tp * layout->dp;
    } else if (topology != NULL) {
        out->ranks = topology->n_ranks;
    } else if (layout->tp > 0 || layout->dp > 0) {
        out->ranks = layout->tp > 0 ? layout->tp : layout->dp;
    } else {
        out->ranks = layout->ep > 0 ? layout->ep : 1;
    }
    const int known = layout->tp > 0 ? layout->tp : layout->dp > 0 ? layout->dp : 1;
    if (out->ranks % known != 0)
        return bl_fail(err, BL_ERR_INFEASIBLE, "%d ranks do not divide by %s %d; name tp and dp",
                       out->ranks, layout->tp > 0 ? "tp" : "dp", known);
    out->tp = layout->tp > 0 ? layout->tp : layout->dp > 0 ? out->ranks / layout->dp : 1;
    out->dp = out->ranks / out->tp;
    out->ep = layout->ep > 0 ? layout->ep : out->ranks;
    if (topology != NULL && out->ranks > topology->n_ranks)
        return bl_fail(err, BL_ERR_INFEASIBLE,
                       "tp %d x dp %d needs %d ranks, but topology %s has %d", out->tp, out->dp,
                       out->ranks, topology->name, topology->n_ranks);
    if (out->ranks % out->ep != 0)
        return bl_fail(err, BL_ERR_INFEASIBLE, "ep %d does not divide the %d ranks (tp %d x dp %d)",
                       out->ep, out->ranks, out->tp, out->dp);
    return BL_OK;
}

static bl_status check_heads(const bl_model *model, int tp, bl_error *err) {
    const int heads = model->parameters.n_heads, kv_heads = model->parameters.n_kv_heads;
    if (heads > 0 && heads % tp != 0) {
        int less = tp;
        while (heads % less != 0)
            less--;
        return bl_fail(err, BL_ERR_INFEASIBLE,
                       "%d attention heads do not divide over tp %d; tp %d would do", heads, tp,
                       less);
    }
    if (kv_heads > 0 && kv_heads % tp != 0 && tp % kv_heads != 0)
        return bl_fail(err, BL_ERR_INFEASIBLE,
                       "%d key-value heads neither divide over tp %d nor repeat evenly on it",
                       kv_heads, tp);
    return BL_OK;
}

/* Bytes of a token's cache on one rank. */
static double kv_on_rank(const bl_model *model, int tp) {
    const int heads = model->parameters.n_kv_heads;
    const int parts = heads == 0 ? 1 : tp < heads ? tp : heads;
    return model->kv_bytes_per_token / parts;
}

/* ---- ranks -------------------------------------------------------------------------------- */

/* Consecutive ranks share an ep rank's slots: rank / (ranks / ep). */
static bl_rank_bytes weigh_rank(const bl_model *model, const bl_topology *topology,
                                const bl_layout *layout, const bl_capacity *capacity, int rank,
                                const bl_size *size) {
    const int cut = size->ranks / size->ep;
    const double bundle = (double)model->expert_bytes / cut;
    bl_rank_bytes at = {.rank = rank, .slots = capacity->slots_per_rank[rank / cut]};
    at.experts = bundle * at.slots * model->n_moe_layers;
    at.spares = bundle * layout->spares;
    at.rest = size->rest_told ? rest_bytes(model, size->tp) : 0;
    at.left = (double)NAN;
    if (topology != NULL) {
        at.memory = bl_topology_device(topology, rank)->memory_bytes.value;
        if (size->rest_told)
            at.left = at.memory * layout->memory_share - at.experts - at.spares - at.rest;
    }
    return at;
}

static double held(const bl_rank_bytes *at) {
    return at->experts + at->spares + at->rest;
}

/* Experts alone may already be too much for what is told of the rank. */
static bool is_too_full(const bl_rank_bytes *at, const bl_layout *layout) {
    return at->memory > 0 && held(at) > at->memory * layout->memory_share;
}

static void weigh_ranks(const bl_model *model, const bl_topology *topology, const bl_layout *layout,
                        const bl_capacity *capacity, bl_size *out) {
    out->fits = true;
    for (int rank = 0; rank < out->ranks; rank++) {
        const bl_rank_bytes at = weigh_rank(model, topology, layout, capacity, rank, out);
        const bool tighter =
            topology == NULL ? held(&at) > held(&out->binding)
                             : at.memory * layout->memory_share - held(&at) <
                                   out->binding.memory * layout->memory_share - held(&out->binding);
        if (rank == 0 || tighter)
            out->binding = at;
        if (rank == 0 || held(&at) < held(&out->lightest))
            out->lightest = at;
        out->fits = out->fits && !is_too_full(&at, layout);
        if (topology != NULL)
            out->over_share =
                out->over_share ||
                at.experts + at.spares >
                    at.memory * bl_topology_device(topology, rank)->expert_share.value;
    }
}

static void weigh_model(const bl_model *model, const bl_layout *layout, const bl_capacity *capacity,
                        bl_size *out) {
    const bl_parameters *p = &model->parameters;
    const int cut = out->ranks / out->ep;
    out->weights_bytes = bl_model_weights_bytes(model);
    out->slot_bytes = (double)model->expert_bytes / cut * model->n_moe_layers;
    out->kv_bytes_per_token = kv_on_rank(model, out->tp);
    if (!out->rest_told)
        return;
    const double one = p->experts / model->n_experts / model->n_moe_layers;
    const double buffers =
        (double)capacity->n_slots * model->n_moe_layers + (double)layout->spares * out->ep;
    out->resident_parameters = one * buffers +
                               out->dp * (p->attention + p->dense + p->shared + p->embedding) +
                               out->ranks * (p->router + p->norms);
}

static bl_status check_layout(const bl_layout *layout, bl_error *err) {
    if (!(layout->memory_share > 0 && layout->memory_share <= 1))
        return bl_fail(err, BL_ERR_USAGE, "the share of memory is %g, but must be in (0, 1]",
                       layout->memory_share);
    if (layout->tp < 0 || layout->dp < 0 || layout->ep < 0 || layout->spares < 0 ||
        layout->redundant < 0)
        return bl_fail(err, BL_ERR_USAGE, "tp, dp, ep, redundant and spares must not be negative");
    return BL_OK;
}

bl_status bl_size_of(const bl_model *model, const bl_topology *topology, const bl_layout *layout,
                     bl_size *out, bl_error *err) {
    bl_size made = {.rest_told = model->parameters.untold[0] == '\0', .spares = layout->spares};
    BL_TRY(check_layout(layout, err));
    BL_TRY(settle_ranks(topology, layout, &made, err));
    BL_TRY(check_heads(model, made.tp, err));
    const bl_capacity_request request = {.n_experts = model->n_experts,
                                         .n_ranks = made.ep,
                                         .slots = -1,
                                         .redundant =
                                             layout->redundant_auto ? -1 : layout->redundant,
                                         .redundant_auto = layout->redundant_auto};
    bl_capacity capacity;
    BL_TRY(bl_capacity_of(&request, &capacity, err));
    made.n_slots = capacity.n_slots;
    made.redundant = capacity.n_slots - model->n_experts;
    made.uneven = capacity.uneven;
    made.even_redundant = capacity.even_redundant;
    weigh_model(model, layout, &capacity, &made);
    weigh_ranks(model, topology, layout, &capacity, &made);
    bl_capacity_free(&capacity);
    made.kv_tokens = (double)NAN;
    if (!isnan(made.binding.left) && made.kv_bytes_per_token > 0)
        made.kv_tokens = fmax(0, floor(made.binding.left / made.kv_bytes_per_token));
    *out = made;
    return BL_OK;
}

bl_status bl_size_remedy(const bl_model *model, const bl_topology *topology,
                         const bl_layout *layout, int n, bl_size *out, bl_error *err) {
    bl_size ranks = {0};
    BL_TRY(check_layout(layout, err));
    BL_TRY(settle_ranks(topology, layout, &ranks, err));
    bl_layout even = *layout;
    even.redundant_auto = false;
    even.redundant = (ranks.ep - model->n_experts % ranks.ep) % ranks.ep + (int64_t)n * ranks.ep;
    return bl_size_of(model, topology, &even, out, err);
}
