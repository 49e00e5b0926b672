/*
 * bounds.h: what no placement can beat.
 *
 * A plan is reported with the distance to such a bound, so "good enough" is a number and not a
 * hope. For one load w, with P slots on G' ranks and R = P - E slots to spare, every placement,
 * under any split if nothing else is said, has max_g L_g >= each of:
 *
 *   mean     total(w) / G'. Somebody carries at least the average.
 *
 *   slot     the smallest T with sum_e max(1, ceil(w_e / T)) <= P and w_e / T <= G'.
 *            Proof: let T be the largest rank load of a placement in which expert e has r_e copies.
 *            They carry w_e together, so one of them carries at least w_e / r_e, and T >= w_e / r_e,
 *            that is r_e >= ceil(w_e / T). Also r_e >= 1, r_e <= G' (no rank holds two), and the r_e
 *            sum to at most P: T is one of those over which the minimum is taken.
 *            It is found by giving the spare slots one by one to the expert with the largest
 *            w_e / r_e. Let T be the largest quotient at the end, of expert x. A choice r' with all
 *            quotients below T has r'_e >= r_e for every e, since the last copy e was given came
 *            when w_e / (r_e - 1) was the largest quotient, hence >= T; and r'_x > r_x. It needs
 *            more than the P slots that were given out, or more than G' copies of x. (In that last
 *            case the bound is called "max": the width of the cluster stops the hottest expert.)
 *
 *   packing  which copies must share a rank, or cannot; for few spare slots or few slots per rank
 *            (packing.h, with proofs; part of it holds for the even split only).
 *
 * Rules (rules.h): where experts must be in several domains they have so many copies, and the slot
 * bound starts from these. Where experts may live on some ranks only, ranks and experts fall into
 * parts that have nothing to do with each other (the nodes, when groups are kept whole); the busiest
 * rank is in one of them, so the largest of the parts' own bounds bounds the whole.
 *
 * Several scenarios: the score is a sum of largest rank loads, one per scenario, so the sum of the
 * scenarios' own bounds bounds it; and the sum of largest rank loads is at least the largest summed
 * rank load, so the bound of the summed load bounds it too. The larger one is taken.
 */
#ifndef BL_PLANNER_BOUNDS_H
#define BL_PLANNER_BOUNDS_H

#include "planner/problem.h"

typedef struct bl_bound {
    double max_over_mean; /* no placement can score below this */
    const char *kind;     /* "mean", "slot", "max", "packing", "exact"; static storage */
} bl_bound;

/* The best of the bounds above; 1 for an idle layer. */
bl_status bl_bound_of(const bl_problem *problem, bl_bound *out, bl_error *err);

/* Each bound alone, as a load (token rows on the busiest rank), for one load vector under a rule.
 * least[n_experts]: copies that every expert has at least, or NULL: 1. */
typedef struct bl_load_bounds {
    double mean, slot, packing;
    bool slot_is_width; /* the slot bound is w_e / G' */
} bl_load_bounds;
bl_status bl_bounds_of_load(const double *load, int n_experts, const int *slots_per_rank,
                            int n_ranks, const int *least, bl_rule rule, bl_load_bounds *out,
                            bl_error *err);

#endif
