/* Names say nothing: who permutes experts, or ranks that are alike, gets the same plan, permuted; under every
 * objective, with rules and from placements in force. And a plan made from a plan is that plan. */
#include "tests/support/brute.h"
#include "tests/support/support.h"

#include "planner/solve.h"
#include "planner/timed.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_EXPERTS = 16, MOST_SLOTS = 64, PROPOSALS = 2000 };

/* What is asked of a layer. */
typedef enum question { MEAN, P95, CVAR, SAMPLE, FRACTIONS, PER_STEP, TIME, N_QUESTIONS } question;

typedef struct world {
    bl_topology topology;
    bl_cost *cost[7]; /* by ranks */
    bl_rng rng;
} world;

static const bl_model model = {.name = "m",
                               .n_layers = 1,
                               .n_experts = MOST_EXPERTS,
                               .top_k = 2,
                               .hidden_size = 64,
                               .moe_intermediate_size = 64,
                               .weight_format = BL_WEIGHTS_BF16,
                               .expert_bytes = 24576,
                               .dispatch_bytes_per_row = 128,
                               .combine_bytes_per_row = 128};

static int set_up(void **state) {
    static world w;
    bl_error err;
    assert_ok(bl_topology_open("hgx-h100", &w.topology, &err));
    for (int ranks = 2; ranks <= 6; ranks++)
        assert_ok(bl_cost_create(&model, &w.topology, ranks, &w.cost[ranks], &err));
    bl_rng_seed(&w.rng, 41);
    *state = &w;
    return 0;
}

static int tear_down(void **state) {
    world *w = *state;
    for (int ranks = 2; ranks <= 6; ranks++)
        bl_cost_free(w->cost[ranks]);
    bl_topology_free(&w->topology);
    return 0;
}

/* A random problem without ties, asked about in one of the ways. */
typedef struct instance {
    bl_random_problem r;
    bl_timed timed;
    double scale[4], weight[4];
} instance;

static void make(world *w, question q, instance *in) {
    do {
        bl_random_problem_make(&w->rng, MOST_EXPERTS, 6, 5, 4, &in->r);
        bl_random_rules(&w->rng, &in->r);
    } while (bl_problem_check(&in->r.problem, NULL) < 0);
    bl_problem *p = &in->r.problem;
    for (int i = 0; i < p->n_scenarios * p->n_experts; i++)
        in->r.load[i] += 1e-3 * bl_rng_unit(&w->rng);
    p->tail = q == MEAN ? 1.0 : q == P95 ? 0.05 : q == CVAR ? 0.5 : 0.0;
    p->rule = q == FRACTIONS ? BL_RULE_FRACTIONS : q == PER_STEP ? BL_RULE_PER_STEP : BL_RULE_EVEN;
    for (int s = 0; s < p->n_scenarios; s++) {
        in->scale[s] = 1.0;
        in->weight[s] = 1.0 / p->n_scenarios;
    }
    in->timed = (bl_timed){.cost = w->cost[p->n_ranks], .scale = in->scale, .weight = in->weight};
    if (q == TIME) {
        p->timed = &in->timed;
        p->objective = BL_OBJECTIVE_TIME;
    }
}

static void shuffle(bl_rng *rng, int n, int *to) {
    for (int i = 0; i < n; i++) {
        const int at = (int)bl_rng_below(rng, (uint32_t)i + 1);
        to[i] = to[at];
        to[at] = i;
    }
}

/* A permutation that exchanges ranks with ranks like them. */
static void shuffle_alike(bl_rng *rng, const bl_problem *p, int *to) {
    for (int rank = 0; rank < p->n_ranks; rank++)
        to[rank] = rank;
    for (int rank = 0; rank < p->n_ranks; rank++) {
        const int other = (int)bl_rng_below(rng, (uint32_t)p->n_ranks), was = to[rank];
        if (!bl_rules_alike(p, to[rank], to[other]) || !bl_rules_alike(p, rank, other))
            continue;
        to[rank] = to[other];
        to[other] = was;
    }
}

typedef struct turned {
    bl_problem problem;
    double load[256];
    int least[16];
    uint64_t bits[16];
    bl_holds may;
    bl_rules rules;
    bl_layer_placement current;
    int32_t expert[MOST_SLOTS];
} turned;

static void turn(const bl_problem *p, const int *expert_to, const int *rank_to, turned *t) {
    t->problem = *p;
    t->problem.load = t->load;
    for (int i = 0; i < p->n_scenarios * p->n_experts; i++)
        t->load[i / p->n_experts * p->n_experts + expert_to[i % p->n_experts]] = p->load[i];
    if (p->rules != NULL) {
        t->rules = *p->rules;
        t->problem.rules = &t->rules;
        for (int e = 0; p->rules->least != NULL && e < p->n_experts; e++)
            t->least[expert_to[e]] = p->rules->least[e];
        t->rules.least = p->rules->least != NULL ? t->least : NULL;
        for (int rank = 0; p->rules->may != NULL && rank < p->n_ranks; rank++) {
            t->bits[rank] = 0; /* alike ranks may hold the same */
            for (int e = 0; e < p->n_experts; e++)
                t->bits[rank] |= (p->rules->may->bits[rank] >> e & 1) << expert_to[e];
        }
        t->may = (bl_holds){1, t->bits};
        t->rules.may = p->rules->may != NULL ? &t->may : NULL;
    }
    if (p->current == NULL)
        return;
    t->current = *p->current; /* alike ranks have as many slots */
    t->current.expert = t->expert;
    t->problem.current = &t->current;
    for (int rank = 0; rank < p->n_ranks; rank++) {
        const int from = p->current->begin[rank], to = p->current->begin[rank_to[rank]];
        for (int i = 0; i < p->current->begin[rank + 1] - from; i++) {
            const int expert = p->current->expert[from + i];
            t->expert[to + i] = expert == BL_NO_EXPERT ? BL_NO_EXPERT : expert_to[expert];
        }
    }
}

static void assert_turned(const bl_problem *p, const int *expert_to, const int *rank_to,
                          const bl_solution *a, const bl_solution *b) {
    assert_true(a->score.max_over_mean == b->score.max_over_mean);
    assert_true(a->bound.max_over_mean == b->bound.max_over_mean);
    assert_true(a->time.step_us == b->time.step_us);
    assert_int_equal(a->moves, b->moves);
    assert_int_equal(a->kept_current, b->kept_current);
    for (int rank = 0; rank < p->n_ranks; rank++) {
        const int from = a->placement.begin[rank], to = b->placement.begin[rank_to[rank]];
        for (int i = 0; i < a->placement.begin[rank + 1] - from; i++) {
            const int expert = a->placement.expert[from + i];
            assert_int_equal(expert == BL_NO_EXPERT ? BL_NO_EXPERT : expert_to[expert],
                             b->placement.expert[to + i]);
            if (a->share != NULL)
                assert_true(a->share[from + i] == b->share[to + i]);
        }
    }
}

/* Do two ranks that are alike hold the same now? Then nothing tells them apart. */
static bool has_twins(const bl_problem *p) {
    for (int a = 0; p->current != NULL && a < p->n_ranks; a++) {
        for (int b = 0; b < a; b++) {
            const int n = p->current->begin[a + 1] - p->current->begin[a];
            int same = 0;
            for (int i = 0; bl_rules_alike(p, a, b) && i < n; i++) {
                const int expert = p->current->expert[p->current->begin[a] + i];
                same += expert == BL_NO_EXPERT || bl_layer_find(p->current, b, expert) >= 0;
            }
            if (bl_rules_alike(p, a, b) && same == n)
                return true;
        }
    }
    return false;
}

static void names_say_nothing(void **state) {
    world *w = *state;
    bl_solve_options options = BL_SOLVE_OPTIONS_INIT;
    options.algorithm = BL_ALG_SEARCH;
    options.iterations = PROPOSALS;
    int solved[N_QUESTIONS] = {0}, moved = 0;
    for (int round = 0; round < 50 * N_QUESTIONS; round++) {
        const question q = (question)(round % N_QUESTIONS);
        instance in;
        turned t;
        int expert_to[MOST_EXPERTS], rank_to[16];
        bl_error error_a = BL_ERROR_INIT, error_b = BL_ERROR_INIT;
        bl_solution a, b;
        make(w, q, &in);
        shuffle(&w->rng, in.r.problem.n_experts, expert_to);
        shuffle_alike(&w->rng, &in.r.problem, rank_to);
        if (in.r.problem.current == NULL || has_twins(&in.r.problem)) {
            for (int rank = 0; rank < 16; rank++)
                rank_to[rank] = rank;
        }
        turn(&in.r.problem, expert_to, rank_to, &t);
        const bl_status st = bl_solve(&in.r.problem, &options, &a, &error_a);
        assert_int_equal(bl_solve(&t.problem, &options, &b, &error_b), st);
        if (st < 0) {
            if (error_a.expert >= 0) /* named as whoever asked names it */
                assert_int_equal(expert_to[error_a.expert], error_b.expert);
            continue;
        }
        assert_turned(&in.r.problem, expert_to, rank_to, &a, &b);
        solved[q]++;
        moved += a.moves > 0;
        bl_solution_free(&a);
        bl_solution_free(&b);
    }
    for (int q = 0; q < N_QUESTIONS; q++)
        assert_true(solved[q] > 30);
    assert_true(moved > 25);
}

static void a_plan_from_a_plan_is_that_plan(void **state) {
    world *w = *state;
    bl_solve_options options = BL_SOLVE_OPTIONS_INIT;
    options.algorithm = BL_ALG_SEARCH;
    options.iterations = 300; /* little: a second search would find something */
    for (int round = 0; round < 25 * N_QUESTIONS; round++) {
        const question q = (question)(round % N_QUESTIONS);
        instance in;
        bl_solution first, second;
        make(w, q, &in);
        in.r.problem.max_moves = -1;
        in.r.problem.min_gain = round % 3 == 0 ? 0.0 : 0.005;
        if (bl_solve(&in.r.problem, &options, &first, NULL) < 0)
            continue;
        bl_problem again = in.r.problem;
        again.current = &first.placement;
        again.declined = first.declined;
        bl_error err;
        assert_ok(bl_solve(&again, &options, &second, &err));
        assert_int_equal(second.moves, 0);
        assert_memory_equal(first.placement.expert, second.placement.expert,
                            (size_t)bl_layer_n_slots(&first.placement) *
                                sizeof *first.placement.expert);
        bl_solution_free(&first);
        bl_solution_free(&second);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_say_nothing),
        cmocka_unit_test(a_plan_from_a_plan_is_that_plan),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
