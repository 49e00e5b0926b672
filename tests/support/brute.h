/*
 * brute.h: the best placement of a tiny problem, by looking at all of them.
 *
 * Slow and obvious on purpose: it shares no code with the planner. Every rank in turn takes every
 * set of as many experts as it has slots; equal neighbours take their sets in ascending order,
 * since exchanging them changes nothing. Meant for up to some millions of combinations.
 */
#ifndef BL_TESTS_BRUTE_H
#define BL_TESTS_BRUTE_H

#include "core/rng.h"
#include "planner/problem.h"

/* Least score (max/mean as in problem.h, even split) over all placements that fill every slot.
 * Experts <= 20. `visit`, when not NULL, is called with the score of every complete placement. */
double bl_brute_best(const bl_problem *problem, void (*visit)(double score, void *context),
                     void *context);

/* A random problem that owns its arrays: 2..max_experts experts, 2..max_ranks ranks, slots uneven
 * or not, now and then a masked rank, 1..max_scenarios scenarios; loads small whole numbers,
 * skewed, with zeros and ties. */
typedef struct bl_random_problem {
    bl_problem problem;
    double load[256];
    int slots[16];
} bl_random_problem;

/* max_experts * max_scenarios <= 256, max_ranks <= 16. Do not move the struct afterwards. */
void bl_random_problem_make(bl_rng *rng, int max_experts, int max_ranks, int max_slots,
                            int max_scenarios, bl_random_problem *out);

#endif
