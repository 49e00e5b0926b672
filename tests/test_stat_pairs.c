/* Experts that go together, and where tokens come from and go to, with values by hand. */
#include "tests/support/traces.h"

#include "core/rng.h"
#include "tracer/stat.h"

#include <math.h>
#include <stdlib.h>
#include <sys/stat.h>

static void near(double value, double wanted, double within) {
    if (!(fabs(value - wanted) <= within))
        fail_msg("%.12g where %.12g was wanted", value, wanted);
}

static bl_stat read_stat(const char *path) {
    bl_error err;
    bl_stat stat = {0};
    const bl_stat_options options = BL_STAT_OPTIONS_INIT;
    assert_ok(bl_stat_read(path, &options, &stat, &err));
    return stat;
}

/* Rows 0 2, 0 2, 0 1, 1 3: three tokens picked 0, two 1, two 2, one 3. */
static void coactivation(void **state) {
    (void)state;
    const char *path = bl_test_temp("golden.blt");
    bl_test_write_golden(path);
    bl_stat stat = read_stat(path);
    assert_int_equal(stat.pairs.coactivation_state, BL_PAIRS_KNOWN);
    const bl_pair_figures *f = &stat.pairs.coactivation[0];
    assert_int_equal(f->tokens, 4);
    assert_int_equal(f->n_top, 3);
    near(f->chance, 4.0 / ((64.0 - 18.0) / 8.0), 1e-12);
    /* Excess over chance: (0,2) 2 - 0.70 * 1.5, (1,3) 1 - 0.70 * 0.5, (0,1) 1 - 0.70 * 1.5. */
    const bl_expert_pair wanted[] = {
        {0, 2, 2, 2 * 4.0 / (3 * 2)}, {1, 3, 1, 1 * 4.0 / (2 * 1)}, {0, 1, 1, 1 * 4.0 / (3 * 2)}};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(f->top[i].a, wanted[i].a);
        assert_int_equal(f->top[i].b, wanted[i].b);
        assert_int_equal(f->top[i].count, wanted[i].count);
        near(f->top[i].lift, wanted[i].lift, 1e-12);
    }
    bl_stat_free(&stat);
}

/* All pairs of many experts against brute force: the counters' triangle has every pair once. */
static void coactivation_brute_force(void **state) {
    (void)state;
    enum { E = 23, K = 5, TOKENS = 3000 };
    static int32_t ids[TOKENS * K];
    static int together[E][E], picks[E];
    bl_rng rng;
    bl_rng_seed(&rng, 11);
    for (int t = 0; t < TOKENS; t++) {
        for (int i = 0; i < K; i++) {
            bool again = true;
            while (again) {
                ids[t * K + i] = (int32_t)(bl_rng_unit(&rng) * bl_rng_unit(&rng) * E);
                again = false;
                for (int j = 0; j < i; j++)
                    again = again || ids[t * K + j] == ids[t * K + i];
            }
        }
        for (int i = 0; i < K; i++) {
            picks[ids[t * K + i]]++;
            for (int j = 0; j < K; j++)
                together[ids[t * K + i]][ids[t * K + j]] += i != j;
        }
    }
    const char *path = bl_test_temp("brute.blt");
    bl_trace_info info = bl_test_info(1, (int[]){2}, E, K);
    bl_blt_writer *writer = bl_test_create(path, &info);
    bl_test_put(writer, bl_test_record(0, 2, 0, E, K, TOKENS, ids));
    bl_test_close(writer);
    bl_stat stat = read_stat(path);
    const bl_pair_figures *f = &stat.pairs.coactivation[0];
    double least_listed = INFINITY;
    bool listed[E][E] = {{false}};
    for (int i = 0; i < f->n_top; i++) {
        const int a = f->top[i].a, b = f->top[i].b;
        const double expected = (double)picks[a] * picks[b] / TOKENS;
        assert_int_equal(f->top[i].count, together[a][b]);
        near(f->top[i].lift, together[a][b] / expected, 1e-9);
        listed[a][b] = true;
        least_listed = fmin(least_listed, together[a][b] - f->chance * expected);
    }
    for (int a = 0; a < E; a++) {
        for (int b = a + 1; b < E; b++) {
            if (!listed[a][b])
                assert_true(together[a][b] - f->chance * picks[a] * picks[b] / TOKENS <=
                            least_listed + 1e-9);
        }
    }
    bl_stat_free(&stat);
    bl_trace_info_free(&info);
}

/* Expert a of layer 1 is always followed by (a + 1) mod 4 in layer 3; what layer 7 picks has nothing
 * to do with it. Layer 1 comes in two parts. */
static void transitions(void **state) {
    (void)state;
    enum { TOKENS = 4000 };
    static int32_t first[TOKENS], second[TOKENS], third[TOKENS];
    bl_rng rng;
    bl_rng_seed(&rng, 5);
    for (int t = 0; t < TOKENS; t++) {
        first[t] = t % 4;
        second[t] = (t + 1) % 4;
        third[t] = (int32_t)bl_rng_below(&rng, 4);
    }
    const char *path = bl_test_temp("transitions.blt");
    bl_trace_info info = bl_test_info(3, (int[]){1, 3, 7}, 4, 1);
    bl_blt_writer *writer = bl_test_create(path, &info);
    bl_test_put(writer, bl_test_record(0, 1, 0, 4, 1, 1000, first));
    bl_test_put(writer, bl_test_record(0, 1, 0, 4, 1, TOKENS - 1000, first + 1000));
    bl_test_put(writer, bl_test_record(0, 3, 0, 4, 1, TOKENS, second));
    bl_test_put(writer, bl_test_record(0, 7, 0, 4, 1, TOKENS, third));
    bl_test_close(writer);
    bl_stat stat = read_stat(path);
    assert_int_equal(stat.pairs.transition_state, BL_PAIRS_KNOWN);
    assert_int_equal(stat.pairs.coactivation_state, BL_PAIRS_NO_IDS); /* k is 1 */
    const bl_pair_figures *fixed = &stat.pairs.transition[0], *loose = &stat.pairs.transition[1];
    assert_int_equal(fixed->tokens, TOKENS);
    near(fixed->normalised, 1.0, 1e-9);
    near(fixed->information, 2.0, 2e-3);
    assert_int_equal(fixed->n_top, 4);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(fixed->top[i].b, (fixed->top[i].a + 1) % 4);
        assert_int_equal(fixed->top[i].count, TOKENS / 4);
        near(fixed->top[i].lift, 4.0, 1e-12);
    }
    assert_int_equal(loose->tokens, TOKENS);
    near(loose->normalised, 0.0, 2e-3);
    bl_stat_free(&stat);
    bl_trace_info_free(&info);
}

/* Rows that cannot be told to be of the same tokens are not taken for such. */
static void not_lined_up(void **state) {
    (void)state;
    const char *path = bl_test_temp("unaligned.blt");
    const int32_t ids[] = {0, 1, 2, 3};
    bl_trace_info info = bl_test_info(2, (int[]){1, 3}, 4, 1);
    bl_blt_writer *writer = bl_test_create(path, &info);
    bl_test_put(writer, bl_test_record(0, 1, 0, 4, 1, 4, ids)); /* another number of tokens */
    bl_test_put(writer, bl_test_record(0, 3, 0, 4, 1, 3, ids));
    bl_test_put(writer, bl_test_record(1, 1, 0, 4, 1, 4, ids)); /* another rank */
    bl_test_put(writer, bl_test_record(1, 3, 1, 4, 1, 4, ids));
    bl_test_put(writer, bl_test_record(2, 3, 0, 4, 1, 4, ids)); /* another step */
    bl_test_put(writer, bl_test_record(3, 1, 0, 4, 1, 4, ids));
    bl_test_close(writer);
    bl_stat stat = read_stat(path);
    assert_int_equal(stat.pairs.transition_state, BL_PAIRS_NOT_ALIGNED);
    assert_null(stat.pairs.transition);
    bl_stat_free(&stat);
    writer = bl_test_create(path, &info);
    bl_record record = bl_test_record(0, 1, 0, 4, 1, 4, NULL);
    record.counts = (uint64_t[]){1, 1, 1, 1};
    bl_test_put(writer, record);
    record.layer = 3;
    bl_test_put(writer, record);
    bl_test_close(writer);
    stat = read_stat(path);
    assert_int_equal(stat.pairs.transition_state, BL_PAIRS_NO_IDS);
    assert_int_equal(stat.pairs.coactivation_state, BL_PAIRS_NO_IDS);
    bl_stat_free(&stat);
    bl_trace_info_free(&info);
}

static bl_placement two_ranks(void) {
    bl_error err;
    bl_placement placement;
    assert_ok(bl_placement_create(2, 4, (int[]){0}, 1, (int[]){2, 2}, &placement, &err));
    bl_placement_fill_contiguous(&placement); /* 0 1 | 2 3 */
    return placement;
}

/* Rank 0 sends 3 rows to expert 0 and one to 2, rank 1 five to 3 and two to 1. */
static void traffic(void **state) {
    (void)state;
    bl_error err;
    const char *path = bl_test_temp("traffic.blt");
    bl_trace_info info = bl_test_info(1, (int[]){0}, 4, 1);
    bl_blt_writer *writer = bl_test_create(path, &info);
    bl_test_put(writer, bl_test_record(0, 0, 1, 4, 1, 7, (int32_t[]){3, 1, 3, 3, 1, 3, 3}));
    bl_test_put(writer, bl_test_record(0, 0, 0, 4, 1, 4, (int32_t[]){0, 0, 2, 0}));
    bl_test_close(writer);
    bl_placement placement = two_ranks();
    bl_stat stat;
    bl_stat_options options = BL_STAT_OPTIONS_INIT;
    options.plan = (bl_stat_plan){&placement, BL_RULE_EVEN, NULL, NULL};
    assert_ok(bl_stat_read(path, &options, &stat, &err));
    const bl_sources_result *sources = &stat.sources;
    assert_int_equal(sources->state, BL_SOURCES_KNOWN);
    assert_int_equal(sources->n_sources, 2);
    assert_int_equal(sources->rank[0], 0);
    assert_int_equal(sources->rank[1], 1);
    assert_int_equal(sources->n_destinations, 2);
    const double wanted[] = {3, 1, 2, 5};
    for (int i = 0; i < 4; i++)
        near(sources->traffic[i], wanted[i], 1e-12);
    assert_int_equal(sources->count[4 + 3], 5);    /* source 1, expert 3 */
    near(sources->layers[0].distance, 1.0, 1e-12); /* nothing in common */
    bl_stat_free(&stat);
    bl_placement_free(&placement);
    bl_trace_info_free(&info);
}

/* Three sources: TV 1/2 between the first two, 1 and 1/2 to the third; the mean is 2/3. */
static void distances(void **state) {
    (void)state;
    const char *path = bl_test_temp("distances.blt");
    bl_trace_info info = bl_test_info(1, (int[]){0}, 4, 1);
    bl_blt_writer *writer = bl_test_create(path, &info);
    bl_test_put(writer, bl_test_record(0, 0, 0, 4, 1, 2, (int32_t[]){0, 0}));
    bl_test_put(writer, bl_test_record(0, 0, 1, 4, 1, 4, (int32_t[]){0, 1, 0, 1}));
    bl_test_put(writer, bl_test_record(0, 0, 2, 4, 1, 1, (int32_t[]){1}));
    bl_test_close(writer);
    bl_stat stat = read_stat(path);
    near(stat.sources.layers[0].distance, (0.5 + 1.0 + 0.5) / 3, 1e-12);
    bl_stat_free(&stat);
    writer = bl_test_create(path, &info);
    bl_test_put(writer, bl_test_record(0, 0, BL_ALL_RANKS, 4, 1, 2, (int32_t[]){0, 0}));
    bl_test_close(writer);
    stat = read_stat(path);
    assert_int_equal(stat.sources.state, BL_SOURCES_UNKNOWN);
    bl_stat_free(&stat);
    bl_trace_info_free(&info);
}

/* Each rank wrote a file: a step is the sum over both. Apart they would be uneven, 2 and 2. */
static void steps_over_files(void **state) {
    (void)state;
    bl_error err;
    char dir[256], path[300];
    snprintf(dir, sizeof dir, "%s", bl_test_temp("ranks"));
    assert_int_equal(mkdir(dir, 0700), 0);
    for (int rank = 0; rank < 2; rank++) {
        bl_trace_info info = bl_test_info(1, (int[]){0}, 4, 1);
        assert_ok(bl_trace_info_set_ranks(&info, 2, &rank, 1, &err));
        snprintf(path, sizeof path, "%s/%d.blt", dir, rank);
        bl_blt_writer *writer = bl_test_create(path, &info);
        for (uint64_t step = 0; step < 10; step++)
            bl_test_put(writer, bl_test_record(step, 0, rank, 4, 1, 2,
                                               rank == 0 ? (int32_t[]){0, 1} : (int32_t[]){2, 3}));
        bl_test_close(writer);
        bl_trace_info_free(&info);
    }
    bl_placement placement = two_ranks();
    bl_stat stat;
    bl_stat_options options = BL_STAT_OPTIONS_INIT;
    options.plan = (bl_stat_plan){&placement, BL_RULE_EVEN, NULL, NULL};
    assert_ok(bl_stat_read(dir, &options, &stat, &err));
    assert_int_equal(stat.steps, 10);
    assert_int_equal(stat.late_steps, 0);
    assert_int_equal(stat.predicted.all.n, 10);
    near(stat.predicted.all.max, 1.0, 1e-12);
    bl_stat_free(&stat);
    bl_placement_free(&placement);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(coactivation),     cmocka_unit_test(coactivation_brute_force),
        cmocka_unit_test(transitions),      cmocka_unit_test(not_lined_up),
        cmocka_unit_test(traffic),          cmocka_unit_test(distances),
        cmocka_unit_test(steps_over_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
