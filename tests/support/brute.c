#include "tests/support/brute.h"

#include <math.h>
#include <stdlib.h>

typedef struct brute {
    const bl_problem *problem;
    unsigned set[16]; /* experts of each rank, one bit each */
    int active;
    double total, best;
    void (*visit)(double score, void *context);
    void *context;
} brute;

static int bits(unsigned set) {
    int n = 0;
    for (; set != 0; set &= set - 1)
        n++;
    return n;
}

static bool holds(const brute *b, int rank, int expert) {
    return (b->set[rank] >> expert) & 1;
}

static bool keeps_rules(const brute *b) {
    const bl_problem *problem = b->problem;
    const bl_rules *rules = problem->rules;
    int moves = 0;
    for (int expert = 0; expert < problem->n_experts; expert++) {
        unsigned domains = 0;
        for (int rank = 0; rank < problem->n_ranks; rank++) {
            if (!holds(b, rank, expert))
                continue;
            if (rules != NULL && rules->may != NULL && !((rules->may->bits[rank] >> expert) & 1))
                return false;
            if (rules != NULL && rules->domain != NULL)
                domains |= 1u << rules->domain[rank];
            bool was_there = false;
            for (int slot = 0; problem->current != NULL && slot < problem->slots_per_rank[rank];
                 slot++)
                was_there =
                    was_there ||
                    problem->current->expert[problem->current->begin[rank] + slot] == expert;
            moves += !was_there;
        }
        if (rules != NULL && rules->domain != NULL && bits(domains) < rules->least[expert])
            return false;
    }
    return problem->current == NULL || problem->max_moves < 0 || moves <= problem->max_moves;
}

static void score(brute *b) {
    const bl_problem *problem = b->problem;
    int copies[20] = {0};
    for (int rank = 0; rank < problem->n_ranks; rank++) {
        for (int expert = 0; expert < problem->n_experts; expert++)
            copies[expert] += (int)((b->set[rank] >> expert) & 1);
    }
    for (int expert = 0; expert < problem->n_experts; expert++) {
        if (copies[expert] == 0)
            return;
    }
    if (!keeps_rules(b))
        return;
    double sum = 0.0;
    for (int s = 0; s < problem->n_scenarios; s++) {
        double most = 0.0;
        for (int rank = 0; rank < problem->n_ranks; rank++) {
            double load = 0.0;
            for (int expert = 0; expert < problem->n_experts; expert++) {
                if ((b->set[rank] >> expert) & 1)
                    load += problem->load[s * problem->n_experts + expert] / copies[expert];
            }
            most = fmax(most, load);
        }
        sum += most;
    }
    const double found = b->total > 0.0 ? sum * b->active / b->total : 1.0;
    b->best = fmin(b->best, found);
    if (b->visit != NULL)
        b->visit(found, b->context);
}

static void choose(brute *b, int rank) {
    const bl_problem *problem = b->problem;
    if (rank == problem->n_ranks) {
        score(b);
        return;
    }
    unsigned from = 0;
    const bool limited = problem->current != NULL && problem->max_moves >= 0;
    const bool holes = bl_problem_may_have_holes(problem);
    if (rank > 0 && problem->rules == NULL && !limited &&
        problem->slots_per_rank[rank] == problem->slots_per_rank[rank - 1])
        from = b->set[rank - 1];
    for (unsigned set = from; set < 1u << problem->n_experts; set++) {
        if (bits(set) != problem->slots_per_rank[rank] &&
            !(holes && bits(set) < problem->slots_per_rank[rank]))
            continue;
        b->set[rank] = set;
        choose(b, rank + 1);
    }
}

double bl_brute_best(const bl_problem *problem, void (*visit)(double score, void *context),
                     void *context) {
    brute b = {.problem = problem, .best = INFINITY, .visit = visit, .context = context};
    for (int rank = 0; rank < problem->n_ranks; rank++)
        b.active += problem->slots_per_rank[rank] > 0;
    for (int at = 0; at < problem->n_scenarios * problem->n_experts; at++)
        b.total += problem->load[at];
    choose(&b, 0);
    return b.best;
}

static double random_load(bl_rng *rng) {
    switch (bl_rng_below(rng, 4)) {
    case 0:
        return (double)bl_rng_below(rng, 3); /* cold, with zeros and ties */
    case 1:
        return (double)bl_rng_below(rng, 400); /* hot */
    default:
        return (double)(10 + bl_rng_below(rng, 40));
    }
}

void bl_random_problem_make(bl_rng *rng, int max_experts, int max_ranks, int max_slots,
                            int max_scenarios, bl_random_problem *out) {
    const int n_experts = 2 + (int)bl_rng_below(rng, (uint32_t)max_experts - 1);
    const int most = max_slots < n_experts ? max_slots : n_experts;
    int n_ranks, n_slots;
    do {
        n_ranks = 2 + (int)bl_rng_below(rng, (uint32_t)max_ranks - 1);
        n_slots = 0;
        const int level = 1 + (int)bl_rng_below(rng, (uint32_t)most);
        const bool uneven = bl_rng_below(rng, 3) == 0;
        for (int rank = 0; rank < n_ranks; rank++) {
            out->slots[rank] = uneven ? 1 + (int)bl_rng_below(rng, (uint32_t)most) : level;
            if (bl_rng_below(rng, 10) == 0)
                out->slots[rank] = 0;
            n_slots += out->slots[rank];
        }
    } while (n_slots < n_experts);
    const int n_scenarios = 1 + (int)bl_rng_below(rng, (uint32_t)max_scenarios);
    for (int at = 0; at < n_scenarios * n_experts; at++)
        out->load[at] = random_load(rng);
    out->problem = (bl_problem){.layer = 3,
                                .n_experts = n_experts,
                                .n_ranks = n_ranks,
                                .n_scenarios = n_scenarios,
                                .load = out->load,
                                .slots_per_rank = out->slots,
                                .rule = BL_RULE_EVEN,
                                .max_moves = -1,
                                .min_gain = 0.0};
}

static void add_groups(bl_rng *rng, bl_random_problem *r) {
    const int n_groups = 2 + (int)bl_rng_below(rng, 2), n_nodes = 2;
    for (int rank = 0; rank < r->problem.n_ranks; rank++) {
        r->bits[rank] = 0;
        for (int expert = 0; expert < r->problem.n_experts; expert++) {
            const int group = expert * n_groups / r->problem.n_experts;
            if (group % n_nodes == rank * n_nodes / r->problem.n_ranks)
                r->bits[rank] |= UINT64_C(1) << expert;
        }
    }
    r->may = (bl_holds){1, r->bits};
    r->rules.may = &r->may;
}

static void add_domains(bl_rng *rng, bl_random_problem *r) {
    const int per_domain = 1 + (int)bl_rng_below(rng, 2);
    for (int rank = 0; rank < r->problem.n_ranks; rank++)
        r->domain[rank] = rank / per_domain;
    for (int expert = 0; expert < r->problem.n_experts; expert++)
        r->least[expert] = bl_rng_below(rng, 3) == 0 ? 2 : 1;
    r->rules.domain = r->domain;
    r->rules.least = r->least;
}

static void add_current(bl_rng *rng, bl_random_problem *r) {
    const int n_experts = r->problem.n_experts, n_ranks = r->problem.n_ranks;
    for (int rank = 0; rank < n_ranks; rank++) {
        r->begin[rank + 1] = r->begin[rank] + r->slots[rank];
        int expert = (int)bl_rng_below(rng, (uint32_t)n_experts);
        for (int slot = r->begin[rank]; slot < r->begin[rank + 1]; slot++) {
            r->expert[slot] = bl_rng_below(rng, 12) == 0 ? BL_NO_EXPERT : expert;
            expert = (expert + 1) % n_experts;
        }
    }
    r->current = (bl_layer_placement){.layer = r->problem.layer,
                                      .n_ranks = n_ranks,
                                      .n_experts = n_experts,
                                      .begin = r->begin,
                                      .expert = r->expert};
    r->problem.current = &r->current;
    if (bl_rng_below(rng, 2) == 0)
        r->problem.max_moves = (int)bl_rng_below(rng, 6);
}

void bl_random_rules(bl_rng *rng, bl_random_problem *r) {
    r->rules = (bl_rules){0};
    r->begin[0] = 0;
    if (bl_rng_below(rng, 3) == 0)
        add_groups(rng, r);
    if (bl_rng_below(rng, 3) == 0)
        add_domains(rng, r);
    if (r->rules.may != NULL || r->rules.domain != NULL)
        r->problem.rules = &r->rules;
    if (bl_rng_below(rng, 2) == 0)
        add_current(rng, r);
}
