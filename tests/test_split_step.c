/*
 * The per-step split against two oracles that share nothing with it: the largest cut over all sets
 * of ranks, and all ways of dividing the rows on the smallest instances.
 */
#include "tests/support/support.h"

#include "core/mem.h"
#include "core/rng.h"
#include "core/split_step.h"

#include <stdlib.h>
#include <string.h>

#define MAX_RANKS 32
#define MAX_EXPERTS 256
#define MAX_SLOTS 512

typedef struct instance {
    bl_layer_placement placement;
    int begin[MAX_RANKS + 1];
    int32_t expert[MAX_SLOTS];
    uint64_t count[MAX_EXPERTS];
} instance;

static bool is_on(const instance *in, int rank, int expert) {
    for (int slot = in->begin[rank]; slot < in->begin[rank + 1]; slot++) {
        if (in->expert[slot] == expert)
            return true;
    }
    return false;
}

/* Every expert once, then spare copies at random; ranks without slots and holes happen. */
static void make(bl_rng *rng, int n_ranks, int n_experts, int most_slots, uint32_t most_rows,
                 instance *in) {
    for (;;) {
        int n = 0;
        for (int rank = 0; rank < n_ranks; rank++) {
            in->begin[rank] = n;
            n += (int)bl_rng_below(rng, (uint32_t)most_slots + 1);
        }
        in->begin[n_ranks] = n;
        if (n >= n_experts)
            break;
    }
    const int n_slots = in->begin[n_ranks];
    for (int slot = 0; slot < n_slots; slot++)
        in->expert[slot] = BL_NO_EXPERT;
    for (int expert = 0; expert < n_experts; expert++) {
        int slot;
        do
            slot = (int)bl_rng_below(rng, (uint32_t)n_slots);
        while (in->expert[slot] != BL_NO_EXPERT);
        in->expert[slot] = expert;
        in->count[expert] = bl_rng_below(rng, 3) == 0 ? 0 : bl_rng_below(rng, most_rows);
    }
    for (int rank = 0; rank < n_ranks; rank++) {
        for (int slot = in->begin[rank]; slot < in->begin[rank + 1]; slot++) {
            const int expert = (int)bl_rng_below(rng, (uint32_t)n_experts);
            if (in->expert[slot] == BL_NO_EXPERT && !is_on(in, rank, expert))
                in->expert[slot] = expert;
        }
    }
    in->placement = (bl_layer_placement){.layer = 3,
                                         .n_ranks = n_ranks,
                                         .n_experts = n_experts,
                                         .begin = in->begin,
                                         .expert = in->expert};
}

/* ceil(rows of the experts wholly within the set / its size), without slotless ranks. */
static uint64_t cut_of(const instance *in, const bool *in_set, int size) {
    uint64_t rows = 0;
    for (int expert = 0; expert < in->placement.n_experts; expert++) {
        bool within = true;
        for (int rank = 0; rank < in->placement.n_ranks; rank++)
            within = within && (in_set[rank] || !is_on(in, rank, expert));
        rows += within ? in->count[expert] : 0;
    }
    return (rows + (uint64_t)size - 1) / (uint64_t)size;
}

static uint64_t largest_cut(const instance *in) {
    uint64_t largest = 0;
    for (unsigned set = 1; set < 1u << in->placement.n_ranks; set++) {
        bool in_set[MAX_RANKS];
        int size = 0;
        for (int rank = 0; rank < in->placement.n_ranks; rank++) {
            in_set[rank] = (set >> rank & 1) && in->begin[rank + 1] > in->begin[rank];
            size += in_set[rank];
        }
        const uint64_t bound = size > 0 ? cut_of(in, in_set, size) : 0;
        largest = bound > largest ? bound : largest;
    }
    return largest;
}

/* The rows are a split of the counts, and its busiest rank is the one reported. */
static void check_rows(const instance *in, const bl_step_split *split,
                       const bl_step_split_result *result) {
    uint64_t rows[MAX_SLOTS], sum[MAX_EXPERTS] = {0}, busiest = 0, all = 0;
    bl_step_split_rows(split, in->count, rows);
    for (int rank = 0; rank < in->placement.n_ranks; rank++) {
        uint64_t load = 0;
        for (int slot = in->begin[rank]; slot < in->begin[rank + 1]; slot++) {
            assert_true(in->expert[slot] != BL_NO_EXPERT || rows[slot] == 0);
            if (in->expert[slot] != BL_NO_EXPERT)
                sum[in->expert[slot]] += rows[slot];
            load += rows[slot];
        }
        busiest = load > busiest ? load : busiest;
        all += load;
    }
    for (int expert = 0; expert < in->placement.n_experts; expert++)
        assert_int_equal(sum[expert], in->count[expert]);
    assert_int_equal(busiest, result->busiest);
    assert_int_equal(all, result->rows);
}

/* The cut given as proof demands the bound, computed from the placement alone. */
static void check_cut(const instance *in, const bl_step_split *split, uint64_t bound) {
    const int *ranks;
    const int n = bl_step_split_cut(split, &ranks);
    bool in_set[MAX_RANKS] = {false};
    for (int i = 0; i < n; i++) {
        assert_false(in_set[ranks[i]]);
        in_set[ranks[i]] = true;
    }
    assert_true(n > 0);
    assert_int_equal(cut_of(in, in_set, n), bound);
}

static void test_by_hand(void **state) {
    (void)state;
    bl_error err;
    /* Expert 0 on ranks 0 and 1; rank 2 cannot help: 10 + 4 rows on two ranks are 7 and 7. */
    int begin[] = {0, 2, 4, 5};
    int32_t expert[] = {0, 1, 0, BL_NO_EXPERT, 2};
    const uint64_t count[] = {10, 4, 1};
    const bl_layer_placement placement = {
        .layer = 3, .n_ranks = 3, .n_experts = 3, .begin = begin, .expert = expert};
    bl_step_split *split;
    bl_step_split_result result;
    assert_ok(bl_step_split_create(&placement, &split, &err));
    assert_ok(bl_step_split_solve(split, count, 0.0, &result, &err));
    assert_int_equal(result.rows, 15);
    assert_int_equal(result.busiest, 7);
    assert_int_equal(result.bound, 7);
    uint64_t rows[5];
    const uint64_t want[] = {3, 4, 7, 0, 1};
    bl_step_split_rows(split, count, rows);
    assert_memory_equal(rows, want, sizeof want);
    const int *ranks;
    assert_int_equal(bl_step_split_cut(split, &ranks), 2);
    assert_int_equal(ranks[0] + ranks[1], 1);
    bl_step_split_free(split);
}

static void test_exact_equals_largest_cut(void **state) {
    (void)state;
    bl_error err;
    bl_rng rng;
    bl_rng_seed(&rng, 1);
    for (int round = 0; round < 3000; round++) {
        instance in;
        const int n_ranks = 1 + (int)bl_rng_below(&rng, 8);
        const int n_experts = 1 + (int)bl_rng_below(&rng, 12);
        const int slots = 2 + 2 * n_experts / n_ranks;
        make(&rng, n_ranks, n_experts, slots, round % 2 ? 10 : 1000, &in);
        bl_step_split *split;
        bl_step_split_result result;
        assert_ok(bl_step_split_create(&in.placement, &split, &err));
        assert_ok(bl_step_split_solve(split, in.count, 0.0, &result, &err));
        assert_int_equal(result.busiest, largest_cut(&in));
        assert_int_equal(result.bound, result.busiest);
        check_rows(&in, split, &result);
        check_cut(&in, split, result.bound);
        bl_step_split_free(split);
    }
}

/* Least busiest rank over all ways of dividing the rows of experts `expert`, ... */
static uint64_t brute(const instance *in, int expert, uint64_t *load) {
    const int n_ranks = in->placement.n_ranks;
    if (expert == in->placement.n_experts) {
        uint64_t busiest = 0;
        for (int rank = 0; rank < n_ranks; rank++)
            busiest = load[rank] > busiest ? load[rank] : busiest;
        return busiest;
    }
    /* Row by row would count orders; a digit per rank counts divisions. */
    uint64_t best = UINT64_MAX, part[4] = {0};
    for (;;) {
        uint64_t sum = 0;
        bool legal = true;
        for (int rank = 0; rank < n_ranks; rank++) {
            sum += part[rank];
            legal = legal && (part[rank] == 0 || is_on(in, rank, expert));
        }
        if (legal && sum == in->count[expert]) {
            for (int rank = 0; rank < n_ranks; rank++)
                load[rank] += part[rank];
            const uint64_t found = brute(in, expert + 1, load);
            best = found < best ? found : best;
            for (int rank = 0; rank < n_ranks; rank++)
                load[rank] -= part[rank];
        }
        int digit = 0;
        while (digit < n_ranks && part[digit] == in->count[expert])
            part[digit++] = 0;
        if (digit == n_ranks)
            return best;
        part[digit]++;
    }
}

static void test_exact_equals_brute_force(void **state) {
    (void)state;
    bl_error err;
    bl_rng rng;
    bl_rng_seed(&rng, 2);
    for (int round = 0; round < 300; round++) {
        instance in;
        uint64_t load[4] = {0};
        const int n_ranks = 2 + (int)bl_rng_below(&rng, 2);
        make(&rng, n_ranks, 1 + (int)bl_rng_below(&rng, 4), 4, 5, &in);
        bl_step_split *split;
        bl_step_split_result result;
        assert_ok(bl_step_split_create(&in.placement, &split, &err));
        assert_ok(bl_step_split_solve(split, in.count, 0.0, &result, &err));
        assert_int_equal(result.busiest, brute(&in, 0, load));
        bl_step_split_free(split);
    }
}

/* The size it is made for: proof by the cut, the slack kept, nothing left over from the call before. */
static void test_large_and_slack(void **state) {
    (void)state;
    bl_error err;
    bl_rng rng;
    bl_rng_seed(&rng, 3);
    for (int round = 0; round < 60; round++) {
        instance in;
        make(&rng, 32, 256, 14, 500, &in);
        bl_step_split *split;
        bl_step_split_result exact, again, fast;
        assert_ok(bl_step_split_create(&in.placement, &split, &err));
        assert_ok(bl_step_split_solve(split, in.count, 0.0, &exact, &err));
        assert_int_equal(exact.busiest, exact.bound);
        check_rows(&in, split, &exact);
        check_cut(&in, split, exact.bound);
        assert_ok(bl_step_split_solve(split, in.count, 0.01, &fast, &err));
        check_rows(&in, split, &fast);
        check_cut(&in, split, fast.bound);
        assert_true(fast.bound <= exact.bound && fast.busiest >= exact.busiest);
        assert_true((double)fast.busiest <= 1.01 * (double)exact.busiest);
        assert_ok(bl_step_split_solve(split, in.count, 0.0, &again, &err));
        assert_int_equal(again.busiest, exact.busiest);
        bl_step_split_free(split);
    }
}

/* bl_step_split_set() is the same as a new solver. */
static void test_set(void **state) {
    (void)state;
    bl_error err;
    bl_rng rng;
    bl_rng_seed(&rng, 4);
    instance in;
    make(&rng, 8, 24, 6, 100, &in);
    bl_step_split *kept;
    assert_ok(bl_step_split_create(&in.placement, &kept, &err));
    for (int round = 0; round < 200; round++) {
        /* Exchange two slots where neither rank then holds an expert twice. */
        const int n = bl_layer_n_slots(&in.placement);
        const int p = (int)bl_rng_below(&rng, (uint32_t)n),
                  q = (int)bl_rng_below(&rng, (uint32_t)n);
        const int32_t kept_p = in.expert[p];
        in.expert[p] = in.expert[q];
        in.expert[q] = kept_p;
        if (bl_layer_placement_check(&in.placement, NULL, NULL) < 0) {
            in.expert[q] = in.expert[p];
            in.expert[p] = kept_p;
            continue;
        }
        bl_step_split *fresh;
        bl_step_split_result a, b;
        uint64_t rows_a[MAX_SLOTS], rows_b[MAX_SLOTS];
        assert_ok(bl_step_split_create(&in.placement, &fresh, &err));
        bl_step_split_set(kept, in.expert);
        assert_ok(bl_step_split_solve(kept, in.count, 0.0, &a, &err));
        assert_ok(bl_step_split_solve(fresh, in.count, 0.0, &b, &err));
        assert_int_equal(a.busiest, b.busiest);
        bl_step_split_rows(kept, in.count, rows_a);
        bl_step_split_rows(fresh, in.count, rows_b);
        assert_memory_equal(rows_a, rows_b, (size_t)n * sizeof *rows_a);
        bl_step_split_free(fresh);
    }
    bl_step_split_free(kept);
}

static void test_refusals(void **state) {
    (void)state;
    bl_error err;
    int begin[] = {0, 1, 2};
    int32_t expert[] = {0, 1}, uncovered[] = {0, 0};
    uint64_t count[] = {0, BL_STEP_SPLIT_MAX_ROWS - 1};
    bl_layer_placement placement = {
        .layer = 3, .n_ranks = 2, .n_experts = 2, .begin = begin, .expert = expert};
    bl_step_split *split;
    bl_step_split_result result;
    assert_ok(bl_step_split_create(&placement, &split, &err));
    assert_ok(bl_step_split_solve(split, count, 0.0, &result, &err));
    assert_int_equal(result.busiest, BL_STEP_SPLIT_MAX_ROWS - 1);
    count[0] = BL_STEP_SPLIT_MAX_ROWS;
    assert_fails(bl_step_split_solve(split, count, 0.0, &result, &err), BL_ERR_RANGE, "2^44");
    count[0] = count[1] = 0; /* a step without rows is level */
    assert_ok(bl_step_split_solve(split, count, 0.0, &result, &err));
    assert_int_equal(result.busiest, 0);
    bl_step_split_free(split);
    bl_step_split_free(NULL);
    placement.expert = uncovered;
    assert_true(bl_step_split_create(&placement, &split, &err) < 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_by_hand),
        cmocka_unit_test(test_exact_equals_largest_cut),
        cmocka_unit_test(test_exact_equals_brute_force),
        cmocka_unit_test(test_large_and_slack),
        cmocka_unit_test(test_set),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
