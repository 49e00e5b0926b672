/*
 * omni.c: omni-infer's placement pattern, an .npy array of 0 and 1.
 *
 *     pattern[ranks][MoE layers][experts]    1: the rank holds the expert
 *
 * Written as int32; read as any integers. A rank cannot hold an expert twice, and the order of its
 * slots is that of expert ids, so a plan comes back with the same experts on the same ranks, but
 * perhaps in other slots of them.
 */
#include "core/mem.h"
#include "planner/engines/engine.h"

#include <stdlib.h>

static bl_status write_pattern(const bl_export *x, const char *path, bl_error *err) {
    const bl_placement *placement = &x->plan->placement;
    const size_t layers = (size_t)placement->n_layers, experts = (size_t)placement->n_experts;
    const size_t shape[] = {(size_t)x->n_ranks, layers, experts};
    size_t items = 0;
    int32_t *pattern;
    if (!bl_size_mul(shape[0], layers, &items) || !bl_size_mul(items, experts, &items))
        return bl_fail(err, BL_ERR_NOMEM, "out of memory");
    BL_TRY(BL_CALLOC(pattern, items, err));
    for (size_t l = 0; l < layers; l++) {
        const bl_layer_placement *layer = &placement->layers[l];
        for (int slot = 0; slot < x->n_slots; slot++) {
            const size_t rank = (size_t)(slot / x->slots_per_rank);
            pattern[(rank * layers + l) * experts + (size_t)layer->expert[slot]] = 1;
        }
    }
    const bl_status st = bl_npy_write(path, "<i4", shape, 3, pattern, err);
    free(pattern);
    return st;
}

static void start(const bl_export *x, const char *path, FILE *out) {
    fprintf(out,
            "start omni-infer on %d expert-parallel ranks with pattern_path: %s in its placement "
            "configuration, which must allow %d experts per rank and %d copies of one expert\n",
            x->n_ranks, path, x->slots_per_rank, x->max_copies);
}

static bool is_pattern(const bl_engine_file *file) {
    return file->npy != NULL && file->npy->n_dims == 3;
}

/* Item [rank][index][expert]. */
static int64_t mark(const bl_npy *npy, int rank, int index, int expert) {
    return bl_npy_int(npy, ((size_t)rank * npy->shape[1] + (size_t)index) * npy->shape[2] +
                               (size_t)expert);
}

static bl_status read_shape(const bl_engine_file *file, const bl_model *model, int n_ranks,
                            int64_t *n_slots, bl_error *err) {
    const bl_npy *npy = file->npy;
    if (npy->kind == 'f')
        return bl_fail_at(err, BL_ERR_PARSE, bl_at(file->path),
                          "a pattern is of integers, not of real numbers");
    BL_TRY(bl_engine_expect_rows(file, model, npy->shape[1], err));
    if (npy->shape[0] != (size_t)n_ranks || npy->shape[2] != (size_t)model->n_experts)
        return bl_fail_at(err, BL_ERR_SHAPE, bl_at(file->path),
                          "the pattern is for %zu ranks and %zu experts, not for %d and %d",
                          npy->shape[0], npy->shape[2], n_ranks, model->n_experts);
    int64_t slots = 0;
    for (int expert = 0; expert < model->n_experts; expert++)
        slots += mark(npy, 0, 0, expert) == 1;
    *n_slots = slots * n_ranks;
    return BL_OK;
}

static bl_status read_layer(const bl_engine_file *file, const bl_model *model, int n_ranks,
                            int index, int n_slots, int64_t *expert, bl_error *err) {
    const bl_where where = bl_at_layer(file->path, model->moe_layers[index]);
    const int slots = n_slots / n_ranks;
    for (int rank = 0; rank < n_ranks; rank++) {
        int held = 0;
        for (int e = 0; e < model->n_experts; e++) {
            const int64_t value = mark(file->npy, rank, index, e);
            if (value != 0 && value != 1)
                return bl_fail_at(err, BL_ERR_RANGE, where,
                                  "rank %d, expert %d: a pattern is of 0 and 1, not %lld", rank, e,
                                  (long long)value);
            if (value == 1 && held++ < slots)
                expert[rank * slots + held - 1] = e;
        }
        if (held != slots)
            return bl_fail_at(err, BL_ERR_SHAPE, where,
                              "rank %d holds %d experts, and rank 0 of the first layer %d", rank,
                              held, slots);
    }
    return BL_OK;
}

const bl_engine bl_engine_omni = {
    .name = "omni",
    .title = "omni-infer",
    .rule = BL_RULE_FIXED,
    .no_twins = true,
    .write = write_pattern,
    .start = start,
    .is = is_pattern,
    .read_shape = read_shape,
    .read_layer = read_layer,
};
