/* replay_noise.c: the noise floor of replay.h. */
#include "planner/replay_parts.h"

#include "core/mem.h"
#include "core/rng.h"

#include <math.h>
#include <stdlib.h>

#define DEALS 4        /* random ways of dealing copies to ranks, averaged over */
#define MOST_STEPS 512 /* of more, the first */

typedef struct noise {
    const bl_replaying *r;
    bl_rng rng;
    size_t n_steps;
    double *share; /* [n_experts] part of a step's rows */
    double *last;  /* [n_experts] of the step before */
    int *copies;   /* [n_experts] */
    int32_t *deal; /* [slots of a layer] */
} noise;

/* Parts of one step's rows; false when it has none. */
static bool parts_of(const noise *n, size_t step, int row, double *share) {
    const uint64_t *count = bl_loads_row(n->r->loads, n->r->steps[step], row);
    double total = 0.0;
    for (int e = 0; e < n->r->loads->n_experts; e++)
        total += (double)count[e];
    for (int e = 0; e < n->r->loads->n_experts && total > 0.0; e++)
        share[e] = (double)count[e] / total;
    return total > 0.0;
}

static void shuffle(noise *n, int n_slots) {
    for (int i = n_slots - 1; i > 0; i--) {
        const int j = (int)bl_rng_below(&n->rng, (uint32_t)i + 1);
        const int32_t swap = n->deal[i];
        n->deal[i] = n->deal[j];
        n->deal[j] = swap;
    }
}

/* What a rank of the deal has more than before at most, in mean rank loads, plus 1. */
static double floor_of(const noise *n, const bl_layer_placement *placement) {
    double most = 0.0;
    int active = 0;
    for (int rank = 0; rank < placement->n_ranks; rank++) {
        double sum = 0.0;
        active += placement->begin[rank + 1] > placement->begin[rank];
        for (int slot = placement->begin[rank]; slot < placement->begin[rank + 1]; slot++) {
            const int e = n->deal[slot];
            if (e != BL_NO_EXPERT)
                sum += (n->share[e] - n->last[e]) / n->copies[e];
        }
        most = fmax(most, sum);
    }
    return 1.0 + most * active * sqrt(0.5); /* a difference has twice the variance */
}

/* Samples of one layer, behind the others. */
static void add_layer(noise *n, const bl_layer_placement *placement, int row, double *samples,
                      size_t *n_samples) {
    const int n_slots = bl_layer_n_slots(placement);
    bool has_last = false;
    for (int e = 0; e < placement->n_experts; e++)
        n->copies[e] = 0;
    for (int slot = 0; slot < n_slots; slot++) {
        n->deal[slot] = placement->expert[slot];
        if (n->deal[slot] != BL_NO_EXPERT)
            n->copies[n->deal[slot]]++;
    }
    for (size_t s = 0; s < n->n_steps; s++) {
        double sum = 0.0;
        if (!parts_of(n, s, row, n->share))
            continue;
        for (int deal = 0; deal < DEALS && has_last; deal++) {
            shuffle(n, n_slots);
            sum += floor_of(n, placement);
        }
        if (has_last)
            samples[(*n_samples)++] = sum / DEALS;
        double *swap = n->last;
        n->last = n->share;
        n->share = swap;
        has_last = true;
    }
}

static bl_status allocate(noise *n, const bl_plan *plan, bl_error *err) {
    int most = 0;
    for (int l = 0; l < plan->placement.n_layers; l++) {
        const int n_slots = bl_layer_n_slots(&plan->placement.layers[l]);
        most = n_slots > most ? n_slots : most;
    }
    BL_TRY(BL_CALLOC(n->last, plan->n_experts, err));
    BL_TRY(BL_CALLOC(n->share, plan->n_experts, err));
    BL_TRY(BL_CALLOC(n->copies, plan->n_experts, err));
    return BL_CALLOC(n->deal, most, err);
}

bl_status bl_replay_find_noise(bl_replaying *r, const bl_plan *plan, bl_replay *out,
                               bl_error *err) {
    noise n = {.r = r, .n_steps = r->n_steps < MOST_STEPS ? r->n_steps : MOST_STEPS};
    out->noise_mean = out->noise_p95 = NAN;
    if (r->n_steps < BL_REPLAY_MIN_STEPS)
        return BL_OK;
    bl_rng_seed(&n.rng, r->options->seed);
    const bl_status st = allocate(&n, plan, err);
    size_t n_samples = 0;
    for (int row = 0; row < r->loads->n_layers && st >= 0; row++)
        add_layer(&n, bl_placement_layer(&plan->placement, r->loads->layers[row]), row, r->samples,
                  &n_samples);
    if (st >= 0 && n_samples > 0) {
        out->noise_mean = bl_replay_mean(r->samples, n_samples);
        qsort(r->samples, n_samples, sizeof *r->samples, bl_replay_ascending);
        out->noise_p95 = bl_quantile(r->samples, n_samples, 0.95);
    }
    free(n.last);
    free(n.share);
    free(n.copies);
    free(n.deal);
    return st;
}
