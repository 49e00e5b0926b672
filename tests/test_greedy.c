/* Greedy: what engines do, but never two copies on one rank. */
#include "tests/support/brute.h"
#include "tests/support/support.h"

#include "core/json.h"
#include "core/mem.h"
#include "planner/bounds.h"
#include "planner/evaluate.h"
#include "planner/greedy.h"

#include <math.h>
#include <stdlib.h>

/* Valid, and every slot filled. */
static void check_full(const bl_problem *problem, const bl_layer_placement *pl) {
    bl_error err;
    assert_ok(bl_layer_placement_check(pl, NULL, &err));
    for (int rank = 0; rank < problem->n_ranks; rank++)
        assert_int_equal(pl->begin[rank + 1] - pl->begin[rank], problem->slots_per_rank[rank]);
    for (int slot = 0; slot < bl_layer_n_slots(pl); slot++)
        assert_true(pl->expert[slot] != BL_NO_EXPERT);
}

static void test_by_hand(void **state) {
    (void)state;
    bl_error err;
    /* 16 gets the spare slot. Longest first: 15 on rank 0, 12 and 11 on rank 1, an 8 on rank 0, and
     * the other 8 must go to rank 1, which makes 31; the 0 fills rank 0. */
    const double load[] = {16, 12, 11, 15, 0};
    const int slots[] = {3, 3};
    const bl_problem problem = {.n_experts = 5,
                                .n_ranks = 2,
                                .n_scenarios = 1,
                                .load = load,
                                .slots_per_rank = slots,
                                .max_moves = -1};
    bl_layer_placement pl;
    assert_ok(bl_greedy(&problem, &pl, &err));
    check_full(&problem, &pl);
    const int32_t want[] = {3, 0, 4, 1, 2, 0};
    assert_memory_equal(pl.expert, want, sizeof want);
    bl_score score;
    assert_ok(bl_evaluate(&problem, &pl, &score, &err));
    assert_true(fabs(score.max_over_mean - 31.0 / 27.0) < 1e-12);
    bl_layer_placement_free(&pl);
}

static void test_no_two_copies_on_one_rank(void **state) {
    (void)state;
    bl_error err;
    const double load[] = {8, 8, 8, 8};
    const int slots[] = {2, 2, 2, 2};
    const bl_problem problem = {.n_experts = 4,
                                .n_ranks = 4,
                                .n_scenarios = 1,
                                .load = load,
                                .slots_per_rank = slots,
                                .max_moves = -1};
    bl_layer_placement pl;
    assert_ok(bl_greedy(&problem, &pl, &err));
    check_full(&problem, &pl);
    bl_score score;
    assert_ok(bl_evaluate(&problem, &pl, &score, &err));
    assert_true(score.max_over_mean == 1.0);
    bl_layer_placement_free(&pl);
}

/* Corners: whatever the numbers, a placement comes out, valid and full. */
static void test_random(void **state) {
    (void)state;
    bl_error err;
    bl_rng rng;
    bl_rng_seed(&rng, 5);
    for (int round = 0; round < 20000; round++) {
        bl_random_problem r;
        bl_random_problem_make(&rng, 12, 9, 12, 2, &r);
        bl_layer_placement pl;
        assert_ok(bl_problem_check(&r.problem, &err));
        assert_ok(bl_greedy(&r.problem, &pl, &err));
        check_full(&r.problem, &pl);
        bl_layer_placement_free(&pl);
    }
}

/* Any numbers of copies are packed, and `copies` says what became of them. */
static void test_pack(void **state) {
    (void)state;
    bl_error err;
    bl_rng rng;
    bl_rng_seed(&rng, 6);
    int kept = 0, rounds = 0;
    for (int round = 0; round < 5000; round++) {
        bl_random_problem r;
        bl_random_problem_make(&rng, 8, 6, 8, 1, &r);
        int copies[8], asked[8], spare = bl_problem_n_slots(&r.problem) - r.problem.n_experts;
        for (int expert = 0; expert < r.problem.n_experts; expert++) {
            const int most = bl_problem_active_ranks(&r.problem) - 1;
            const int extra = (int)bl_rng_below(&rng, (uint32_t)(spare < most ? spare : most) + 1);
            copies[expert] = asked[expert] = 1 + extra;
            spare -= extra;
        }
        bl_layer_placement pl;
        assert_ok(bl_pack(&r.problem, r.load, copies, &pl, &err));
        check_full(&r.problem, &pl);
        bool same = spare == 0;
        for (int expert = 0; expert < r.problem.n_experts; expert++) {
            int n = 0;
            for (int rank = 0; rank < r.problem.n_ranks; rank++)
                n += bl_layer_find(&pl, rank, expert) >= 0;
            assert_int_equal(n, copies[expert]);
            same = same && n == asked[expert];
        }
        kept += same;
        rounds += spare == 0;
        bl_layer_placement_free(&pl);
    }
    assert_true(kept * 10 >= rounds * 9); /* giving in is the exception */
}

/* The yardstick is the one the references use: 1.0 % above the bound on average (chat, 32 x 9). */
static void test_glm(void **state) {
    (void)state;
    bl_error err;
    json_t *root;
    assert_ok(bl_json_load(bl_test_data("routing/glm-5.2/chat.load.json"), &root, &err));
    const json_t *rows = json_object_get(root, "load");
    int slots[32];
    for (int rank = 0; rank < 32; rank++)
        slots[rank] = 9;
    double gaps = 0.0;
    for (size_t layer = 0; layer < 75; layer++) {
        double load[256];
        for (size_t expert = 0; expert < 256; expert++)
            load[expert] = json_number_value(json_array_get(json_array_get(rows, layer), expert));
        const bl_problem problem = {.n_experts = 256,
                                    .n_ranks = 32,
                                    .n_scenarios = 1,
                                    .load = load,
                                    .slots_per_rank = slots,
                                    .max_moves = -1};
        bl_layer_placement pl;
        bl_score score;
        bl_bound bound;
        assert_ok(bl_greedy(&problem, &pl, &err));
        assert_ok(bl_evaluate(&problem, &pl, &score, &err));
        assert_ok(bl_bound_of(&problem, &bound, &err));
        gaps += score.max_over_mean / bound.max_over_mean - 1.0;
        bl_layer_placement_free(&pl);
    }
    json_decref(root);
    assert_true(gaps / 75 > 0.009 && gaps / 75 < 0.011);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_by_hand), cmocka_unit_test(test_no_two_copies_on_one_rank),
        cmocka_unit_test(test_random),  cmocka_unit_test(test_pack),
        cmocka_unit_test(test_glm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
