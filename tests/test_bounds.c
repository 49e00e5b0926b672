/* Bounds: by hand, and against every placement of thousands of tiny problems. */
#include "tests/support/brute.h"
#include "tests/support/support.h"

#include "core/mem.h"
#include "planner/bounds.h"
#include "planner/replicate.h"

#include <math.h>
#include <string.h>

static void near(double a, double b) {
    if (!(fabs(a - b) <= 1e-12 * (1.0 + fabs(b))))
        fail_msg("%.15g is not %.15g", a, b);
}

static void test_by_hand(void **state) {
    (void)state;
    bl_error err;
    bl_load_bounds b;
    const int two_by_three[] = {3, 3}, three_by_two[] = {2, 2, 2}, four_by_one[] = {1, 1, 1, 1};

    /* One spare slot for the hottest: 16 / 2 = 8 and the others stay, 15 is the hottest copy. */
    const double cold[] = {16, 12, 11, 15, 0};
    assert_ok(bl_bounds_of_load(cold, 5, two_by_three, 2, NULL, BL_RULE_EVEN, &b, &err));
    near(b.mean, 27);
    near(b.slot, 15);
    assert_false(b.slot_is_width);

    /* Three spares: 90 gets three, then 40 / 1 is the hottest: 40, 90 / 3 = 30. */
    const double hot[] = {90, 40, 10};
    assert_ok(bl_bounds_of_load(hot, 3, three_by_two, 3, NULL, BL_RULE_EVEN, &b, &err));
    near(b.mean, 140.0 / 3.0);
    near(b.slot, 30); /* copies 3, 2, 1 */

    /* No wider than the ranks: four copies on two ranks would need more ranks. */
    const double one[] = {100, 1};
    const int two_by_two[] = {2, 2};
    assert_ok(bl_bounds_of_load(one, 2, two_by_two, 2, NULL, BL_RULE_EVEN, &b, &err));
    near(b.slot, 50);
    assert_true(b.slot_is_width);

    /* No spare slot at all: the hottest shares its rank with at least one other. */
    const double full[] = {50, 20, 10, 5};
    const int two_ranks[] = {2, 2};
    assert_ok(bl_bounds_of_load(full, 4, two_ranks, 2, NULL, BL_RULE_EVEN, &b, &err));
    near(b.packing, 55);
    assert_ok(bl_bounds_of_load(full, 4, four_by_one, 4, NULL, BL_RULE_EVEN, &b, &err));
    near(b.packing, 50);
    near(b.slot, 50);

    /* Three copies of 30 on two ranks of two: two of them meet. The lonely experts give 40 only; big
     * and small copies prove all but a little of 60, which holds for the even split alone. */
    const double three[] = {30, 30, 30, 10};
    assert_ok(bl_bounds_of_load(three, 4, two_ranks, 2, NULL, BL_RULE_EVEN, &b, &err));
    assert_true(b.packing > 59 && b.packing <= 60);
    assert_ok(bl_bounds_of_load(three, 4, two_ranks, 2, NULL, BL_RULE_FRACTIONS, &b, &err));
    near(b.packing, 40);

    /* Ranks of 1 and 3 slots, none to spare: the hottest may have the small one for itself. */
    const int uneven[] = {1, 3};
    assert_ok(bl_bounds_of_load(full, 4, uneven, 2, NULL, BL_RULE_EVEN, &b, &err));
    near(b.packing, 50);
}

static void test_kind(void **state) {
    (void)state;
    bl_error err;
    bl_bound bound;
    const double level[] = {5, 5, 5, 5}, hot[] = {90, 5, 5, 5}, wide[] = {100, 0};
    const int two_by_two[] = {2, 2}, five[] = {2, 2, 1}, mask[] = {2, 0, 2};
    bl_problem problem = {.n_experts = 4,
                          .n_ranks = 2,
                          .n_scenarios = 1,
                          .load = level,
                          .slots_per_rank = two_by_two,
                          .max_moves = -1};
    assert_ok(bl_bound_of(&problem, &bound, &err));
    assert_string_equal(bound.kind, "mean");
    near(bound.max_over_mean, 1.0);
    problem.load = hot;
    assert_ok(bl_bound_of(&problem, &bound, &err));
    assert_string_equal(bound.kind, "packing");
    near(bound.max_over_mean, 95 * 2 / 105.0);
    problem.n_ranks = 3; /* one spare slot: 45 and 45 on three ranks of mean 35 */
    problem.slots_per_rank = five;
    assert_ok(bl_bound_of(&problem, &bound, &err));
    assert_string_equal(bound.kind, "slot");
    near(bound.max_over_mean, 45 * 3 / 105.0);
    problem.slots_per_rank = mask; /* a masked rank does not count */
    problem.load = level;
    assert_ok(bl_bound_of(&problem, &bound, &err));
    near(bound.max_over_mean, 1.0);
    problem.n_experts = 2;
    problem.load = wide;
    const int three[] = {1, 1, 1};
    problem.slots_per_rank = three;
    assert_ok(bl_bound_of(&problem, &bound, &err));
    assert_string_equal(bound.kind, "slot");
    near(bound.max_over_mean, 1.5);
}

/* Two scenarios with different hot experts and one spare slot between them. */
static void test_scenarios(void **state) {
    (void)state;
    bl_error err;
    bl_bound bound;
    const double load[] = {60, 0, 0, 0, 60, 0};
    const int slots[] = {2, 2};
    const bl_problem problem = {.n_experts = 3,
                                .n_ranks = 2,
                                .n_scenarios = 2,
                                .load = load,
                                .slots_per_rank = slots,
                                .max_moves = -1};
    assert_ok(bl_bound_of(&problem, &bound, &err));
    /* Each scenario alone could be level at 30. Together they have loads 60, 60, 0 in four slots,
     * of mean 60. Both say 60; the truth is 30 + 60, since only one expert gets two copies. */
    near(bound.max_over_mean, 1.0);
    near(bl_brute_best(&problem, NULL, NULL), 1.5);
}

static void test_replicate(void **state) {
    (void)state;
    bl_error err;
    int copies[4];
    double hottest;
    bool widest;
    const double load[] = {12, 6, 6, 0};
    assert_ok(bl_replicate(load, 4, 8, NULL, 8, copies, &hottest, &widest, &err));
    /* 12 goes first, then all three at 6: those with fewer copies first, of them the lower id. */
    near(hottest, 4);
    assert_int_equal(copies[0], 3);
    assert_int_equal(copies[1], 2);
    assert_int_equal(copies[2], 2);
    assert_false(widest);
    assert_ok(bl_replicate(load, 4, 8, NULL, 2, copies, &hottest, &widest, &err));
    for (int expert = 0; expert < 4; expert++)
        assert_int_equal(copies[expert], 2);
    near(hottest, 6);
    assert_true(widest);
}

typedef struct least {
    double bound;
    int n;
} least;

static void at_least(double score, void *context) {
    least *l = context;
    l->n++;
    if (score < l->bound * (1 - 1e-12))
        fail_msg("a placement scores %.15g, below the bound %.15g", score, l->bound);
}

/* Every bound <= every placement. */
static void test_below_every_placement(void **state) {
    (void)state;
    bl_error err;
    bl_rng rng;
    bl_rng_seed(&rng, 11);
    long placements = 0;
    for (int round = 0; round < 3000; round++) {
        bl_random_problem r;
        bl_random_problem_make(&rng, 5, 4, 3, 3, &r);
        bl_bound bound;
        assert_ok(bl_bound_of(&r.problem, &bound, &err));
        least l = {bound.max_over_mean, 0};
        bl_brute_best(&r.problem, at_least, &l);
        assert_true(l.n > 0);
        placements += l.n;
        if (r.problem.n_scenarios > 1)
            continue;
        /* Each bound alone as well. */
        bl_load_bounds alone;
        assert_ok(bl_bounds_of_load(r.load, r.problem.n_experts, r.slots, r.problem.n_ranks, NULL,
                                    BL_RULE_EVEN, &alone, &err));
        double total = 0.0;
        for (int expert = 0; expert < r.problem.n_experts; expert++)
            total += r.load[expert];
        const double best =
            bl_brute_best(&r.problem, NULL, NULL) * total / bl_problem_active_ranks(&r.problem);
        assert_true(total == 0.0 || alone.mean <= best * (1 + 1e-12));
        assert_true(total == 0.0 || alone.slot <= best * (1 + 1e-12));
        assert_true(total == 0.0 || alone.packing <= best * (1 + 1e-12));
    }
    assert_true(placements > 100000);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_by_hand),
        cmocka_unit_test(test_kind),
        cmocka_unit_test(test_scenarios),
        cmocka_unit_test(test_replicate),
        cmocka_unit_test(test_below_every_placement),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
