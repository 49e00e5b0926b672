/*
 * packing.h: lower bounds from which copies must, or cannot, share a rank.
 *
 * With many slots per rank the mean load is practically reached and these say nothing new. With few
 * they are what keeps a plan from the mean.
 *
 * Lonely experts (any split). With few spare slots some ranks are full of experts that live nowhere
 * else. If expert e has r copies and one of them is on a rank with s slots, the other ranks hold at
 * most P - s - (r - 1) experts other than e; at least c = E - 1 - (P - s - r + 1) experts have their
 * only copy beside that copy of e, with their whole load. For the copy of e that carries w_e / r or
 * more:  T >= w_e / r + (the c smallest loads other than w_e).  The least of this over r holds
 * whatever r is; the largest of that over e is the bound.
 *
 * Untouched ranks (any split, every slot filled). R spare slots make at most R experts have several
 * copies, and these at most 2 R copies: n = G' - 2 R ranks at least hold only experts that live
 * nowhere else, n * m of them at least, where m is the fewest slots of a rank. One of these ranks
 * carries T >= (the n * m smallest loads) / n.
 *
 * Crowded ranks (even split, every slot filled, experts that must have several copies). With S slots
 * beyond what all experts need, an expert f has at most least_f + S copies, and at most least_f + S - t
 * when expert e has t more than it needs. A rank with a copy of e holds m - 1 others as well:
 * T >= w_e / (least_e + t) + (the m - 1 smallest w_f / (least_f + S - t) of other experts); the least of
 * this over t, the largest of that over e.
 *
 * Big and small copies (even split only). Suppose no rank carries more than T, and let T/2 <= x < T.
 * A copy heavier than x ("big") shares its rank only with copies of at most T - x ("small"). Charge
 * a big copy with m, the fewest slots of a rank, a small one with 0 and the others with 1: then a
 * rank with a big copy is charged m, and any other rank at most its slots. So for every x
 *
 *      sum_e r_e charge_x(w_e / r_e) <= P,       and also       sum_e r_e <= P.
 *
 * Any weighted mean of these inequalities holds as well, and its left side is least when every expert
 * chooses its r_e alone. If that least is above P, no placement stays within T. Weights that
 * prove it are looked for by multiplicative updates (raise the weight of what the present choice
 * violates), T by bisection. The weights decide how strong the bound is, never whether it is right.
 */
#ifndef BL_PLANNER_PACKING_H
#define BL_PLANNER_PACKING_H

#include "core/status.h"

#include <stdbool.h>

typedef struct bl_packing_shape {
    int n_experts, n_slots;
    int active_ranks; /* ranks with slots */
    int least_slots;  /* of an active rank */
} bl_packing_shape;

/* The bound from lonely experts, in load; 0 where it says nothing. */
bl_status bl_packing_lonely(const double *load, const bl_packing_shape *shape, double *out,
                            bl_error *err);

/* The bound from untouched ranks, in load; 0 where it says nothing. */
bl_status bl_packing_untouched(const double *load, const bl_packing_shape *shape, double *out,
                               bl_error *err);

/* The bound from crowded ranks, in load; 0 where it says nothing or spare slots are many. */
bl_status bl_packing_crowded(const double *load, const int *least, const bl_packing_shape *shape,
                             double *out, bl_error *err);

/* The bound from big and small copies, in load, no lower than `known` (another bound: never less
 * than the mean, the largest load per copy included). Returns `known` at once where ranks have more
 * than a few slots. */
bl_status bl_packing_big_small(const double *load, const bl_packing_shape *shape, double known,
                               double *out, bl_error *err);

#endif
