/*
 * brute.h: the best placement of a tiny problem, by looking at all of them.
 *
 * Slow and obvious on purpose: it shares no code with the planner. Every rank in turn takes every
 * set of as many experts as it has slots (fewer too, where holes may stay); equal neighbours take
 * their sets in ascending order, since exchanging them changes nothing, unless rules or moves tell
 * them apart. Meant for up to some millions of combinations.
 */
#ifndef BL_TESTS_BRUTE_H
#define BL_TESTS_BRUTE_H

#include "core/rng.h"
#include "planner/problem.h"

/* Least score (max/mean as in problem.h, even split) over all placements that fill every slot and
 * keep the problem's rules and its limit on moves; INFINITY when there is none. Experts <= 20. `visit`, when not NULL, is called with the score of every complete placement. */
double bl_brute_best(const bl_problem *problem, void (*visit)(double score, void *context),
                     void *context);

/* A random problem that owns its arrays: 2..max_experts experts, 2..max_ranks ranks, slots uneven
 * or not, now and then a masked rank, 1..max_scenarios scenarios; loads small whole numbers,
 * skewed, with zeros and ties. */
typedef struct bl_random_problem {
    bl_problem problem;
    double load[256];
    int slots[16];
    int domain[16], least[16], begin[17]; /* what bl_random_rules() adds */
    int32_t expert[64];
    uint64_t bits[16];
    bl_holds may;
    bl_rules rules;
    bl_layer_placement current;
} bl_random_problem;

/* max_experts * max_scenarios <= 256, max_ranks <= 16. Do not move the struct afterwards. */
void bl_random_problem_make(bl_rng *rng, int max_experts, int max_ranks, int max_slots,
                            int max_scenarios, bl_random_problem *out);

/* Add, each now and then: groups of experts kept on a node, fault domains with experts that must be
 * in two of them, a placement in force (with holes, doubles of no rank, experts missing) and a limit
 * on moves from it. Not every such problem has a solution. At most 16 experts and 64 slots. */
void bl_random_rules(bl_rng *rng, bl_random_problem *r);

#endif
