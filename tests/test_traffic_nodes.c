/* Which nodes hold what: against brute force, the solver, and by hand. */
#include "tests/support/support.h"

#include "core/rng.h"
#include "core/json.h"
#include "planner/nodes.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_TOKENS 64
#define MOST_CELLS 512

/* An instance with its arrays. */
typedef struct instance {
    int slots[4], ranks[4], own[MOST_TOKENS];
    int32_t id[MOST_TOKENS * 4];
    double weight[MOST_TOKENS];
    bl_nodes_problem p;
} instance;

static void wire(instance *x) {
    x->p.slots = x->slots;
    x->p.ranks = x->ranks;
    x->p.id = x->id;
    x->p.own = x->own;
    x->p.weight = x->weight;
}

/* Tokens of k distinct experts; node n has ranks of one slot each. */
static void make(instance *x, bl_rng *rng, int n_nodes, int n_experts, int k, int n_tokens,
                 int spare) {
    *x = (instance){.p = {.n_nodes = n_nodes,
                          .n_experts = n_experts,
                          .k = k,
                          .n_tokens = (size_t)n_tokens,
                          .limit = INFINITY}};
    for (int s = 0; s < n_experts + spare; s++)
        x->slots[s % n_nodes]++;
    for (int n = 0; n < n_nodes; n++)
        x->ranks[n] = x->slots[n];
    for (int t = 0; t < n_tokens; t++) {
        x->own[t] = (int)bl_rng_below(rng, (uint32_t)n_nodes);
        x->weight[t] = 1.0 + bl_rng_below(rng, 9);
        for (int i = 0; i < k; i++) {
            bool again = true;
            while (again) {
                again = false;
                x->id[t * k + i] = (int32_t)bl_rng_below(rng, (uint32_t)n_experts);
                for (int j = 0; j < i; j++)
                    again = again || x->id[t * k + j] == x->id[t * k + i];
            }
        }
    }
    wire(x);
}

/* Copies dealt out in turn. */
static void deal(const instance *x, int *count) {
    int e = 0;
    memset(count, 0, MOST_CELLS * sizeof *count);
    for (int n = 0; n < x->p.n_nodes; n++) {
        for (int s = 0; s < x->slots[n]; s++)
            count[e++ % x->p.n_experts * x->p.n_nodes + n]++;
    }
}

/* ---- brute force ------------------------------------------------------------------------------- */

/* The fewest nodes that serve a token, by every subset of the others. */
static int fewest(const instance *x, const unsigned *mask, int t) {
    int best = 99;
    for (unsigned set = 0; set < 1u << x->p.n_nodes; set++) {
        int bits = 0;
        bool all = !(set >> x->own[t] & 1);
        for (int n = 0; n < x->p.n_nodes; n++)
            bits += (int)(set >> n & 1);
        for (int i = 0; i < x->p.k && all; i++)
            all = (mask[x->id[t * x->p.k + i]] & (set | 1u << x->own[t])) != 0;
        if (all && bits < best)
            best = bits;
    }
    return best;
}

typedef struct brute {
    const instance *x;
    unsigned mask[16];
    int left[4];
    double best;
    bool homes; /* judge the balance: every expert has one home, which serves all of it */
} brute;

static void judge(brute *b) {
    const instance *x = b->x;
    double remote = 0.0, rows[4] = {0}, total = 0.0;
    int ranks = 0;
    for (int t = 0; t < (int)x->p.n_tokens; t++) {
        remote += x->weight[t] * fewest(x, b->mask, t);
        for (int i = 0; i < x->p.k; i++) {
            for (int n = 0; n < x->p.n_nodes; n++) {
                if (b->mask[x->id[t * x->p.k + i]] >> n & 1)
                    rows[n] += x->weight[t];
            }
            total += x->weight[t];
        }
    }
    for (int n = 0; n < x->p.n_nodes; n++)
        ranks += x->ranks[n];
    for (int n = 0; n < x->p.n_nodes && b->homes; n++) {
        if (rows[n] / x->ranks[n] > x->p.limit * total / ranks * (1 + 1e-9))
            return;
    }
    if (remote < b->best)
        b->best = remote;
}

/* Every way to give each expert a set of nodes within the slots. A copy more never makes a token's
 * way longer, so sets that leave slots empty do no harm. */
static void go_through(brute *b, int e) {
    if (e == b->x->p.n_experts) {
        judge(b);
        return;
    }
    for (unsigned set = 1; set < 1u << b->x->p.n_nodes; set++) {
        bool fits = true;
        for (int n = 0; n < b->x->p.n_nodes; n++)
            fits = fits && !((set >> n & 1) && b->left[n] == 0);
        if (!fits || (b->homes && (set & (set - 1)) != 0))
            continue;
        b->mask[e] = set;
        for (int n = 0; n < b->x->p.n_nodes; n++)
            b->left[n] -= (int)(set >> n & 1);
        go_through(b, e + 1);
        for (int n = 0; n < b->x->p.n_nodes; n++)
            b->left[n] += (int)(set >> n & 1);
    }
}

static double by_force(const instance *x, bool homes) {
    brute b = {.x = x, .best = INFINITY, .homes = homes};
    memcpy(b.left, x->slots, sizeof b.left);
    go_through(&b, 0);
    return b.best;
}

static bool is_near(double a, double b) {
    return fabs(a - b) <= 1e-6 * (1.0 + fabs(b));
}

/* Solver from a poor start and search from the same; both against brute force. */
static void compare(instance *x, bool homes, int *n_search_best) {
    bl_error err;
    int count[MOST_CELLS], searched[MOST_CELLS];
    bl_nodes_exact_result exact;
    bl_nodes_score score, found;
    const bl_milp_limits limits = {.max_nodes = 100000, .time_s = 60.0};
    const double best = by_force(x, homes);
    deal(x, count);
    memcpy(searched, count, sizeof searched);
    const bl_nodes_options options = {.seed = 3, .proposals = 3000};
    assert_ok(bl_nodes_search(&x->p, &options, searched, &found, &err));
    const bool within = found.balance <= x->p.limit * (1 + 1e-9);
    if (within && found.remote < best - 1e-6)
        fail_msg("the search reached %.3f where %.3f is the best there is", found.remote, best);
    *n_search_best += within ? is_near(found.remote, best) : isinf(best);
    assert_ok(bl_nodes_exact(&x->p, &limits, count, &exact, &err));
    assert_ok(bl_nodes_evaluate(&x->p, count, NULL, &score, &err));
    if (isinf(best)) { /* nothing is balanced enough */
        assert_false(exact.improved);
        return;
    }
    if (!is_near(score.remote, best) || !exact.proven || score.balance > x->p.limit * (1 + 1e-9))
        fail_msg("the solver found %.6f (balance %.4f, proven %d), the best is %.6f", score.remote,
                 score.balance, exact.proven, best);
    assert_true(exact.bound <= best + 1e-6 * (1.0 + best));
    /* started from the best there is, it proves it */
    assert_ok(bl_nodes_exact(&x->p, &limits, count, &exact, &err));
    assert_false(exact.improved);
    assert_true(exact.proven);
}

static void solver_equals_brute_force(void **state) {
    (void)state;
    bl_rng rng;
    instance x;
    int best = 0, n = 0;
    bl_rng_seed(&rng, 17);
    if (bl_milp_solver() == NULL)
        skip();
    for (int round = 0; round < 25; round++) { /* tokens of three experts, spare slots */
        make(&x, &rng, 3, 5, 3, 6, 2);
        compare(&x, false, &best);
        make(&x, &rng, 2, 6, 2, 10, 3);
        compare(&x, false, &best);
        make(&x, &rng, 3, 5, 1, 12, 3); /* single rows */
        compare(&x, false, &best);
        n += 3;
    }
    /* Of 75 the search misses at most one. */
    assert_in_range(best, n - 1, n);
}

static void solver_keeps_the_balance(void **state) {
    (void)state;
    bl_rng rng;
    instance x;
    int best = 0, n = 0;
    bl_rng_seed(&rng, 23);
    if (bl_milp_solver() == NULL)
        skip();
    for (int round = 0; round < 30; round++) { /* one home for every expert */
        make(&x, &rng, 3, 8, 1, 24, 0);
        x.p.limit = 1.02 + 0.02 * (round % 8);
        for (int i = 0; i < 3; i++)
            x.ranks[i] = 1; /* single experts may be heavier than a rank's share */
        x.slots[0] = 3, x.slots[1] = 3, x.slots[2] = 2;
        compare(&x, true, &best);
        make(&x, &rng, 2, 6, 2, 10, 0);
        x.p.limit = 1.05 + 0.05 * (round % 4);
        x.ranks[0] = x.ranks[1] = 1;
        compare(&x, true, &best);
        n += 2;
    }
    /* Where balance leaves little room the search often misses: 48 of 60. */
    assert_in_range(best, n - 20, n);
}

/* ---- by hand ------------------------------------------------------------------------------------- */

/* Tokens born on node A use only experts 0 and 1, those on B only 2 and 3: they live there. */
static void experts_live_where_their_tokens_are_born(void **state) {
    (void)state;
    bl_error err;
    instance x = {.slots = {2, 2},
                  .ranks = {2, 2},
                  .own = {0, 1, 0, 1},
                  .id = {0, 1, 2, 3, 1, 0, 3, 2},
                  .weight = {5, 5, 5, 5},
                  .p = {.n_nodes = 2, .n_experts = 4, .k = 2, .n_tokens = 4, .limit = 1.0}};
    wire(&x);
    int count[MOST_CELLS] = {1, 0, 0, 1, 1, 0, 0, 1}; /* 0 and 2 on A, 1 and 3 on B */
    bl_nodes_score score;
    assert_ok(bl_nodes_evaluate(&x.p, count, NULL, &score, &err));
    assert_true(is_near(score.remote, 20.0) && is_near(score.balance, 1.0));
    const bl_nodes_options options = {.seed = 1, .proposals = 500};
    assert_ok(bl_nodes_search(&x.p, &options, count, &score, &err));
    assert_true(is_near(score.remote, 0.0) && is_near(score.balance, 1.0));
    const int want[] = {1, 0, 1, 0, 0, 1, 0, 1};
    assert_memory_equal(count, want, sizeof want);
}

/* Rows and balance of a placement: expert 0 on both nodes, 1 on A, 2 on B; A has two ranks. */
static void rows_by_hand(void **state) {
    (void)state;
    bl_error err;
    instance x = {.slots = {2, 2},
                  .ranks = {2, 1},
                  .own = {0, 1, 1},
                  .id = {0, 2, 0, 1, 1, -1},
                  .weight = {4, 2, 3},
                  .p = {.n_nodes = 2, .n_experts = 3, .k = 2, .n_tokens = 3, .limit = INFINITY}};
    wire(&x);
    const int count[] = {1, 1, 1, 0, 0, 1};
    double rows[6];
    bl_nodes_score score;
    assert_ok(bl_nodes_evaluate(&x.p, count, rows, &score, &err));
    /* born on A: 0 at home, 2 on B; on B: 0 at home, 1 on A; on B: 1 on A */
    const double want[] = {4, 2, 5, 0, 0, 4};
    for (int i = 0; i < 6; i++)
        assert_true(is_near(rows[i], want[i]));
    assert_true(is_near(score.remote, 4 + 2 + 3));
    /* 15 rows on 3 ranks: B's one rank has 6 of mean 5 */
    assert_true(is_near(score.balance, 6.0 / 5.0));
}

/* Renaming equal nodes renames the answer. */
static void equal_nodes_may_change_names(void **state) {
    (void)state;
    bl_error err;
    bl_rng rng;
    instance x, y;
    bl_rng_seed(&rng, 31);
    for (int round = 0; round < 20; round++) {
        int a[MOST_CELLS], b[MOST_CELLS] = {0};
        bl_nodes_score before, after;
        make(&x, &rng, 3, 6, 3, 20, 3);
        y = x;
        wire(&y);
        deal(&x, a);
        for (int t = 0; t < 20; t++)
            y.own[t] = (x.own[t] + 1) % 3;
        for (int e = 0; e < 6; e++) {
            for (int n = 0; n < 3; n++)
                b[e * 3 + (n + 1) % 3] = a[e * 3 + n];
        }
        assert_ok(bl_nodes_evaluate(&x.p, a, NULL, &before, &err));
        assert_ok(bl_nodes_evaluate(&y.p, b, NULL, &after, &err));
        assert_true(is_near(before.remote, after.remote));
        if (bl_milp_solver() == NULL)
            continue;
        bl_nodes_exact_result exact;
        const bl_milp_limits limits = {.max_nodes = 100000, .time_s = 60.0};
        assert_ok(bl_nodes_exact(&x.p, &limits, a, &exact, &err));
        assert_true(exact.proven);
        assert_ok(bl_nodes_exact(&y.p, &limits, b, &exact, &err));
        assert_true(exact.proven);
        assert_ok(bl_nodes_evaluate(&x.p, a, NULL, &before, &err));
        assert_ok(bl_nodes_evaluate(&y.p, b, NULL, &after, &err));
        assert_true(is_near(before.remote, after.remote));
    }
}

/* tests/data/nodes_glpk.json: 32 experts on 4 nodes of 2 ranks, no spare slot, balance within 1 per
 * cent, rows between every node and every expert. Found by going through seeds of random instances,
 * with the search's own budget: the search stops at 18 042 rows in the best of ten runs, GLPK finds
 * 17 978 and proves that there is nothing better. */
static void the_solver_beats_the_search(void **state) {
    (void)state;
    bl_error err;
    json_t *root;
    static int32_t id[256];
    static int own[256];
    static double weight[256];
    int slots[4], ranks[4], start[MOST_CELLS] = {0}, count[MOST_CELLS];
    size_t n = 0;
    if (bl_milp_solver() == NULL)
        skip();
    assert_ok(bl_json_load("tests/data/nodes_glpk.json", &root, &err));
    json_t *rows = json_object_get(root, "rows");
    for (int m = 0; m < 4; m++) {
        slots[m] =
            (int)json_integer_value(json_array_get(json_object_get(root, "slots"), (size_t)m));
        ranks[m] =
            (int)json_integer_value(json_array_get(json_object_get(root, "ranks"), (size_t)m));
    }
    for (int e = 0; e < 32; e++) {
        start[e * 4 + e / 8] = 1;
        for (int m = 0; m < 4; m++) {
            id[n] = e;
            own[n] = m;
            weight[n++] =
                json_number_value(json_array_get(json_array_get(rows, (size_t)e), (size_t)m));
        }
    }
    const bl_nodes_problem p = {.n_nodes = 4,
                                .n_experts = 32,
                                .slots = slots,
                                .ranks = ranks,
                                .n_tokens = n,
                                .k = 1,
                                .id = id,
                                .own = own,
                                .weight = weight,
                                .limit = json_number_value(json_object_get(root, "limit"))};
    json_decref(root);
    bl_nodes_score score;
    double best = INFINITY;
    for (uint64_t seed = 1; seed <= 10; seed++) {
        const bl_nodes_options options = {.seed = seed};
        memcpy(count, start, sizeof count);
        assert_ok(bl_nodes_search(&p, &options, count, &score, &err));
        assert_true(score.balance <= p.limit * (1 + 1e-9));
        best = score.remote < best ? score.remote : best;
    }
    assert_true(best > 17978.5 && best < 18200.0);
    bl_nodes_exact_result exact;
    const bl_milp_limits limits = {.max_nodes = 300}; /* as in planning */
    assert_ok(bl_nodes_exact(&p, &limits, count, &exact, &err));
    assert_ok(bl_nodes_evaluate(&p, count, NULL, &score, &err));
    assert_true(exact.improved && exact.proven);
    assert_true(is_near(score.remote, 17978.0) && score.balance <= p.limit * (1 + 1e-9));
}

static void what_is_wrong_is_named(void **state) {
    (void)state;
    bl_error err;
    instance x = {.slots = {2, 2},
                  .ranks = {2, 2},
                  .own = {0},
                  .id = {0},
                  .weight = {1},
                  .p = {.n_nodes = 2, .n_experts = 3, .k = 1, .n_tokens = 1, .limit = INFINITY}};
    wire(&x);
    const int missing[] = {1, 1, 1, 1, 0, 0}, crowded[] = {1, 0, 1, 1, 1, 1},
              thrice[] = {-1, 1, 2, 0, 1, 1};
    assert_fails(bl_nodes_check(&x.p, missing, &err), BL_ERR_INFEASIBLE, "expert 2 is on no node");
    assert_fails(bl_nodes_check(&x.p, crowded, &err), BL_ERR_SHAPE,
                 "node 0 holds 3 copies in 2 slots");
    assert_fails(bl_nodes_check(&x.p, thrice, &err), BL_ERR_RANGE, "-1 copies of expert 0");
    x.p.n_nodes = 65;
    assert_fails(bl_nodes_check(&x.p, missing, &err), BL_ERR_UNSUPPORTED, "65 nodes");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(solver_equals_brute_force),
        cmocka_unit_test(solver_keeps_the_balance),
        cmocka_unit_test(experts_live_where_their_tokens_are_born),
        cmocka_unit_test(rows_by_hand),
        cmocka_unit_test(equal_nodes_may_change_names),
        cmocka_unit_test(the_solver_beats_the_search),
        cmocka_unit_test(what_is_wrong_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
