/* The flat call of include/ballast_plan.h over the search: one problem per layer. */
#include "ballast_plan.h"

#include "core/mem.h"
#include "core/rng.h"
#include "planner/solve.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_ITEMS (1 << 24)

typedef struct shape {
    int n_layers, n_experts, n_slots, n_ranks;
    int *slots_per_rank; /* [n_ranks]; owned */
} shape;

static bl_status check_shape(const shape *s, const bl_rebalance_options *o, bl_error *err) {
    if (s->n_layers < 1 || s->n_experts < 1 || s->n_slots < 1 || s->n_ranks < 1 ||
        s->n_layers > MAX_ITEMS || s->n_experts > MAX_ITEMS || s->n_slots > MAX_ITEMS ||
        s->n_ranks > s->n_slots)
        return bl_fail(err, BL_ERR_RANGE, "%d layers, %d experts, %d slots on %d ranks",
                       s->n_layers, s->n_experts, s->n_slots, s->n_ranks);
    if (o->size < sizeof *o)
        return bl_fail(err, BL_ERR_VERSION,
                       "options of %zu bytes, not %zu; set size to sizeof(bl_rebalance_options)",
                       o->size, sizeof *o);
    return BL_OK;
}

/* The old slots of a layer as a placement on the same ranks. */
static bl_status read_old(const shape *s, int layer, const int32_t *old, bl_placement *out,
                          bl_error *err) {
    bl_placement made;
    BL_TRY(bl_placement_create(s->n_ranks, s->n_experts, &layer, 1, s->slots_per_rank, &made, err));
    memcpy(made.layers[0].expert, old, (size_t)s->n_slots * sizeof *old);
    for (int slot = 0; slot < s->n_slots; slot++) {
        if (old[slot] >= -1 && old[slot] < s->n_experts)
            continue;
        bl_placement_free(&made);
        return bl_fail_at(err, BL_ERR_RANGE, bl_at_layer(NULL, layer),
                          "old slot %d holds expert %d, which is not in [0, %d)", slot, old[slot],
                          s->n_experts);
    }
    *out = made;
    return BL_OK;
}

static bl_status rebalance_layer(const shape *s, int layer, const double *weight,
                                 const int32_t *old, const bl_rebalance_options *o,
                                 int32_t *phy2log, bl_error *err) {
    bl_placement before = {0};
    if (old != NULL)
        BL_TRY(read_old(s, layer, old, &before, err));
    uint64_t mixed = o->seed ^ ((uint64_t)layer << 32);
    bl_solve_options options = BL_SOLVE_OPTIONS_INIT;
    options.algorithm = BL_ALG_SEARCH; /* whatever the program is linked with: the same tables */
    options.seed = bl_splitmix64(&mixed);
    const bl_problem problem = {.layer = layer,
                                .n_experts = s->n_experts,
                                .n_ranks = s->n_ranks,
                                .n_scenarios = 1,
                                .load = weight,
                                .slots_per_rank = s->slots_per_rank,
                                .rule = BL_RULE_EVEN,
                                .current = old != NULL ? &before.layers[0] : NULL,
                                .max_moves = o->max_moves,
                                .min_gain = o->min_gain < 0.0 ? BL_MIN_GAIN_DEFAULT : o->min_gain};
    bl_solution solution = {0};
    const bl_status st = bl_solve(&problem, &options, &solution, err);
    if (st >= 0)
        memcpy(phy2log, solution.placement.expert, (size_t)s->n_slots * sizeof *phy2log);
    bl_solution_free(&solution);
    bl_placement_free(&before);
    return st;
}

/* The two tables that follow from phy2log. */
static void invert_layer(const shape *s, const int32_t *phy2log, int32_t *log2phy,
                         int32_t *logcnt) {
    const size_t width = (size_t)(s->n_slots - s->n_experts + 1);
    for (int e = 0; e < s->n_experts; e++)
        logcnt[e] = 0;
    for (size_t i = 0; log2phy != NULL && i < (size_t)s->n_experts * width; i++)
        log2phy[i] = -1;
    for (int slot = 0; slot < s->n_slots; slot++) {
        const int32_t expert = phy2log[slot];
        if (expert < 0)
            continue;
        if (log2phy != NULL)
            log2phy[(size_t)expert * width + (size_t)logcnt[expert]] = slot;
        logcnt[expert]++;
    }
}

static bl_status rebalance(const shape *s, const double *weight, const int32_t *old,
                           const bl_rebalance_options *o, int32_t *made, bl_error *err) {
    for (int rank = 0; rank < s->n_ranks; rank++)
        s->slots_per_rank[rank] = s->n_slots / s->n_ranks + (rank < s->n_slots % s->n_ranks);
    const size_t slots = (size_t)s->n_slots, experts = (size_t)s->n_experts;
    for (int l = 0; l < s->n_layers; l++) {
        const size_t row = (size_t)l;
        BL_TRY(rebalance_layer(s, l, weight + row * experts, old != NULL ? old + row * slots : NULL,
                               o, made + row * slots, err));
    }
    return BL_OK;
}

int bl_plan_rebalance(const double *weight, int n_layers, int n_experts, int n_slots, int n_ranks,
                      const int32_t *old_phy2log, const bl_rebalance_options *options,
                      int32_t *phy2log, int32_t *log2phy, int32_t *logcnt, char *error_text,
                      size_t error_bytes) {
    static const bl_rebalance_options defaults = BL_REBALANCE_OPTIONS_INIT;
    const bl_rebalance_options *o = options != NULL ? options : &defaults;
    shape s = {n_layers, n_experts, n_slots, n_ranks, NULL};
    bl_error err = BL_ERROR_INIT;
    int32_t *made = NULL, *counts = NULL;
    size_t items = 0;
    bl_status st = check_shape(&s, o, &err);
    if (st >= 0 && !bl_size_mul((size_t)n_layers, (size_t)n_slots, &items))
        st = bl_fail(&err, BL_ERR_NOMEM, "out of memory");
    if (st >= 0)
        st = BL_CALLOC(made, items, &err);
    if (st >= 0)
        st = BL_CALLOC(counts, n_experts, &err);
    if (st >= 0)
        st = BL_CALLOC(s.slots_per_rank, n_ranks, &err);
    if (st >= 0)
        st = rebalance(&s, weight, old_phy2log, o, made, &err);
    for (size_t l = 0; st >= 0 && l < (size_t)n_layers; l++) {
        const size_t experts = (size_t)n_experts, slots = (size_t)n_slots;
        invert_layer(&s, made + l * slots,
                     log2phy != NULL ? log2phy + l * experts * (slots - experts + 1) : NULL,
                     logcnt != NULL ? logcnt + l * experts : counts);
    }
    if (st >= 0)
        memcpy(phy2log, made, items * sizeof *made);
    else if (error_text != NULL && error_bytes > 0)
        bl_error_format(&err, error_text, error_bytes);
    free(made);
    free(counts);
    free(s.slots_per_rank);
    return st < 0 ? st : BL_OK;
}
