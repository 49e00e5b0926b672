/*
 * stat_pairs.h: experts that go together: within a token, and from one layer to the next.
 *
 * *Co-activation.* Of T tokens of a layer, n_a picked expert a, n_b expert b and n_ab both:
 *
 *     lift = n_ab T / (n_a n_b)         1: as often as if picks were independent
 *
 * Picks of one token are never quite independent, as they are distinct: k of E equally popular
 * experts give every pair the lift (k-1)/k * E/(E-1). `chance` is that figure for this layer's own
 * popularities: pairs seen / pairs expected, over all pairs. Pairs are listed by how many more there
 * are than lift = chance would give, since that is what keeping them together saves.
 *
 * *Transitions.* For one token, an expert a in a layer and an expert b in the next MoE layer; every
 * combination of its picks counts once, n_ab of N. How much a tells about b:
 *
 *     information = sum over a, b of p_ab log2( p_ab / (p_a p_b) )          bits
 *     normalised  = information / min(entropy of a, entropy of b)           0 .. 1
 *
 * Finite samples show information where there is none, about (E-1)^2 / (2 N ln 2) bits; this is
 * subtracted (Miller and Madow 1955), so small values mean nothing to tell.
 *
 * Which records can be used: those with ids, and for transitions those of one (run, step, rank)
 * whose two layers hold equally many tokens, so that row i is the same token in both. Counts alone
 * tell nothing of either. Long traces are sampled by whole steps: every one whose hashed number is 0
 * modulo `every`.
 *
 * Memory: a triangle of counters for each layer and a square for each pair of layers, 4 bytes each;
 * beyond BL_PAIRS_MAX_BYTES nothing is counted.
 */
#ifndef BL_TRACER_STAT_PAIRS_H
#define BL_TRACER_STAT_PAIRS_H

#include "tracer/trace.h"

#define BL_PAIRS_TOP 8
#define BL_PAIRS_MAX_BYTES ((size_t)1 << 29) /* of each of the two */
#define BL_PAIRS_MAX_IDS ((size_t)1 << 23)   /* of one (step, rank, layer) that is lined up */

typedef enum bl_pairs_state {
    BL_PAIRS_KNOWN,
    BL_PAIRS_NO_IDS,      /* counts only, or no token with two picks */
    BL_PAIRS_NOT_ALIGNED, /* no two neighbouring layers hold the same tokens in order */
    BL_PAIRS_TOO_LARGE    /* counters beyond BL_PAIRS_MAX_BYTES */
} bl_pairs_state;

typedef struct bl_expert_pair {
    int a, b; /* experts; a < b, or of the layer and of the next */
    uint64_t count;
    double lift;
} bl_expert_pair;

/* Of one layer (co-activation), or of it and the next MoE layer (transitions). */
typedef struct bl_pair_figures {
    uint64_t tokens;                /* looked at */
    double chance;                  /* co-activation; NaN when unknown */
    double information, normalised; /* transitions; NaN when unknown */
    int n_top;
    bl_expert_pair top[BL_PAIRS_TOP];
} bl_pair_figures;

typedef struct bl_pairs_result {
    bl_pairs_state coactivation_state, transition_state;
    uint64_t every;                /* one step of so many was looked at */
    bl_pair_figures *coactivation; /* [n_layers]; owned; NULL unless known */
    bl_pair_figures *transition;   /* [n_layers - 1]; owned; NULL unless known */
} bl_pairs_result;

void bl_pairs_result_free(bl_pairs_result *result); /* safe on a zeroed struct */

typedef struct bl_stat_pairs bl_stat_pairs;

/* `every`: look at one step of so many, at least 1. `info` is borrowed. */
bl_status bl_stat_pairs_create(const bl_trace_info *info, uint64_t every, bl_stat_pairs **out_p,
                               bl_error *err);
void bl_stat_pairs_free(bl_stat_pairs *pairs); /* NULL is fine */
/* A record with logical ids or counts, in stream order. */
bl_status bl_stat_pairs_add(bl_stat_pairs *pairs, const bl_record *record, int layer_index,
                            bl_error *err);
bl_status bl_stat_pairs_finish(bl_stat_pairs *pairs, bl_pairs_result *out, bl_error *err);

#endif
