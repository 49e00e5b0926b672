/* Imbalance of ranks under a placement and as recorded, with values by hand. */
#include "tests/support/traces.h"

#include "core/mem.h"
#include "tracer/stat.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void near(double value, double wanted, double within) {
    if (!(fabs(value - wanted) <= within))
        fail_msg("%.12g where %.12g was wanted", value, wanted);
}

/* A placement of the same slots in all layers. */
static bl_placement placement_of(int n_layers, const int *layers, int n_ranks, const int *slots,
                                 int n_experts, const int32_t *expert) {
    bl_error err;
    bl_placement placement;
    assert_ok(bl_placement_create(n_ranks, n_experts, layers, n_layers, slots, &placement, &err));
    for (int l = 0; l < n_layers; l++)
        memcpy(placement.layers[l].expert, expert,
               (size_t)bl_layer_n_slots(&placement.layers[l]) * sizeof *expert);
    return placement;
}

static bl_record counts(uint64_t step, int layer, int n_ids, uint64_t n_tokens,
                        const uint64_t *count) {
    bl_record record = bl_test_record(step, layer, 0, n_ids, 1, n_tokens, NULL);
    record.counts = count;
    return record;
}

static bl_stat read_under(const char *path, const bl_placement *placement, bl_rule rule,
                          const double *const *share) {
    bl_error err;
    bl_stat stat = {0};
    bl_stat_options options = BL_STAT_OPTIONS_INIT;
    options.plan = (bl_stat_plan){placement, rule, share, NULL};
    assert_ok(bl_stat_read(path, &options, &stat, &err));
    return stat;
}

/* One written definition: [[100, 200], [100, 200]] (layer x rank) is 0.75, not 1.0. */
static void balancedness(void **state) {
    (void)state;
    const int layers[] = {3, 4};
    const char *path = bl_test_temp("balance.blt");
    bl_trace_info info = bl_test_info(2, layers, 2, 1);
    bl_blt_writer *writer = bl_test_create(path, &info);
    bl_test_put(writer, counts(0, 3, 2, 300, (uint64_t[]){100, 200}));
    bl_test_put(writer, counts(0, 4, 2, 300, (uint64_t[]){100, 200}));
    bl_test_close(writer);
    bl_placement placement = placement_of(2, layers, 2, (int[]){1, 1}, 2, (int32_t[]){0, 1});
    bl_stat stat = read_under(path, &placement, BL_RULE_EVEN, NULL);
    near(stat.predicted.all.balancedness, 0.75, 1e-12);
    near(stat.predicted.all.mean, 4.0 / 3, 1e-12);
    assert_int_equal(stat.predicted.all.n, 2);
    assert_null(stat.realised.layers);
    bl_stat_free(&stat);
    bl_placement_free(&placement);
    bl_trace_info_free(&info);
}

/* Per step, not of the sum: steps [100, 200] and [200, 100] are uneven, their sum is not. */
static void step_by_step(void **state) {
    (void)state;
    const int layers[] = {3};
    const char *path = bl_test_temp("steps.blt");
    bl_trace_info info = bl_test_info(1, layers, 2, 1);
    bl_blt_writer *writer = bl_test_create(path, &info);
    bl_test_put(writer, counts(7, 3, 2, 300, (uint64_t[]){100, 200}));
    bl_test_put(writer, counts(9, 3, 2, 300, (uint64_t[]){200, 100}));
    bl_test_put(writer, counts(10, 3, 2, 300, (uint64_t[]){150, 150}));
    bl_test_close(writer);
    /* A third rank without slots has no part in the mean. */
    bl_placement placement = placement_of(1, layers, 3, (int[]){1, 1, 0}, 2, (int32_t[]){0, 1});
    bl_stat stat = read_under(path, &placement, BL_RULE_EVEN, NULL);
    const bl_quantile_figures *f = &stat.predicted.layers[0];
    assert_int_equal(f->n, 3);
    near(f->mean, (4.0 / 3 + 4.0 / 3 + 1) / 3, 1e-12);
    near(f->p50, 4.0 / 3, 1e-12);
    near(f->max, 4.0 / 3, 1e-12);
    near(f->balancedness, (0.75 + 0.75 + 1) / 3, 1e-12);
    assert_true(f->exact);
    bl_stat_free(&stat);
    bl_placement_free(&placement);
    bl_trace_info_free(&info);
}

/* True loads 10, 10, 10, 10 and 500 padding hits on expert 0: as a dummy record and as rows of
 * zeros, which no router makes. */
static void padding_is_no_load(void **state) {
    (void)state;
    const int layers[] = {0};
    int32_t real[40], zeros[1000] = {0}, dummies[1000];
    for (int i = 0; i < 40; i++)
        real[i] = i % 4; /* rows 0 1 and 2 3 */
    for (int i = 0; i < 1000; i++)
        dummies[i] = i % 2; /* rows 0 1 */
    const char *path = bl_test_temp("padding.blt");
    bl_trace_info info = bl_test_info(1, layers, 4, 2);
    bl_blt_writer *writer = bl_test_create(path, &info);
    bl_test_put(writer, bl_test_record(0, 0, 0, 4, 2, 20, real));
    bl_test_put(writer, bl_test_record(0, 0, 0, 4, 2, 500, zeros));
    bl_record dummy = bl_test_record(0, 0, 1, 4, 2, 500, dummies);
    dummy.flags = BL_RECORD_DUMMY;
    bl_test_put(writer, dummy);
    bl_test_close(writer);
    bl_placement placement =
        placement_of(1, layers, 2, (int[]){3, 3}, 4, (int32_t[]){0, 1, 2, 0, 1, 3});
    bl_stat stat = read_under(path, &placement, BL_RULE_EVEN, NULL);
    near(stat.predicted.all.mean, 1.0, 1e-12);
    near(stat.predicted.all.balancedness, 1.0, 1e-12);
    for (int expert = 0; expert < 4; expert++)
        assert_int_equal(bl_stat_count(&stat, 0, expert), 10);
    assert_int_equal(stat.layers[0].experts.padding_rows, 500);
    assert_int_equal(stat.layers[0].experts.empty, 1000);
    assert_int_equal(stat.layers[0].dummy_tokens, 500);
    assert_true(stat.layers[0].conserved);
    bl_stat_free(&stat);
    bl_placement_free(&placement);
    bl_trace_info_free(&info);
}

/* 100 rows of expert 0 on both ranks, 30 of expert 1 on the first. */
static void rules(void **state) {
    (void)state;
    bl_error err;
    const int layers[] = {3};
    const char *path = bl_test_temp("rules.blt");
    bl_trace_info info = bl_test_info(1, layers, 2, 1);
    bl_blt_writer *writer = bl_test_create(path, &info);
    bl_test_put(writer, counts(0, 3, 2, 130, (uint64_t[]){100, 30}));
    bl_test_close(writer);
    bl_placement placement = placement_of(1, layers, 2, (int[]){2, 1}, 2, (int32_t[]){0, 1, 0});
    const double shares[] = {0.3, 1.0, 0.7};
    const double *const share[] = {shares};
    bl_stat stat = read_under(path, &placement, BL_RULE_EVEN, NULL);
    near(stat.predicted.all.mean, 80.0 / 65, 1e-12);
    bl_stat_free(&stat);
    stat = read_under(path, &placement, BL_RULE_FRACTIONS, share);
    near(stat.predicted.all.mean, 70.0 / 65, 1e-12);
    near(stat.predicted.slots[0].load[2], 70.0, 1e-9);
    bl_stat_free(&stat);
    stat = read_under(path, &placement, BL_RULE_PER_STEP, NULL);
    near(stat.predicted.all.mean, 1.0, 1e-12);
    near(stat.predicted.slots[0].load[0], 35.0, 1e-12);
    near(bl_slot_share(&stat.predicted.slots[0], 2), 0.65, 1e-12);
    bl_stat_free(&stat);
    bl_stat_options options = BL_STAT_OPTIONS_INIT;
    options.plan = (bl_stat_plan){&placement, BL_RULE_NEAREST, NULL, NULL};
    assert_fails(bl_stat_read(path, &options, &stat, &err), BL_ERR_USAGE, "a topology tells");
    options.plan.rule = BL_RULE_LOCAL;
    assert_fails(bl_stat_read(path, &options, &stat, &err), BL_ERR_USAGE, "replay");
    placement.layers[0].layer = 4;
    options.plan.rule = BL_RULE_EVEN;
    assert_fails(bl_stat_read(path, &options, &stat, &err), BL_ERR_MODEL, "the plan does not");
    placement.n_experts = 3;
    assert_fails(bl_stat_read(path, &options, &stat, &err), BL_ERR_MODEL, "3 experts");
    bl_placement_free(&placement);
    bl_trace_info_free(&info);
}

/* Four ranks on two machines: expert 0 on ranks 0 and 2, 1 on ranks 1 and 3, 2 on ranks 0 and 1.
 *
 *     rank 0: 4 rows to expert 1     nearest and fixed: to rank 1, on the own machine
 *     rank 1: 4 rows to expert 0     to rank 0
 *     rank 2: 6 rows to expert 0     stay
 *             3 rows to expert 2     nearest: drawn, half and half; fixed: copy 2 mod 2, on rank 0
 *     rank 3: 2 rows to expert 1     stay
 */
static void rules_that_look_at_sources(void **state) {
    (void)state;
    bl_error err;
    const int layers[] = {3}, host[] = {0, 0, 1, 1};
    const char *path = bl_test_temp("born.blt");
    bl_trace_info info = bl_test_info(1, layers, 3, 1);
    bl_blt_writer *writer = bl_test_create(path, &info);
    const uint64_t count[4][3] = {{0, 4, 0}, {4, 0, 0}, {6, 0, 3}, {0, 2, 0}};
    const uint64_t tokens[] = {4, 4, 9, 2};
    for (int rank = 0; rank < 4; rank++) {
        bl_record record = counts(0, 3, 3, tokens[rank], count[rank]);
        record.rank = rank;
        bl_test_put(writer, record);
    }
    bl_test_close(writer);
    bl_placement placement =
        placement_of(1, layers, 4, (int[]){2, 2, 1, 1}, 3, (int32_t[]){0, 2, 1, 2, 0, 1});
    const struct {
        bl_rule rule;
        double busiest, traffic[4][4];
    } cases[] = {
        {BL_RULE_NEAREST, 6, {{0, 4, 0, 0}, {4, 0, 0, 0}, {1.5, 1.5, 6, 0}, {0, 0, 0, 2}}},
        {BL_RULE_FIXED, 7, {{0, 4, 0, 0}, {4, 0, 0, 0}, {3, 0, 6, 0}, {0, 0, 0, 2}}},
    };
    for (size_t i = 0; i < 2; i++) {
        bl_stat stat;
        bl_stat_options options = BL_STAT_OPTIONS_INIT;
        options.plan = (bl_stat_plan){&placement, cases[i].rule, NULL, host};
        assert_ok(bl_stat_read(path, &options, &stat, &err));
        near(stat.predicted.all.mean, cases[i].busiest / (19.0 / 4), 1e-5);
        assert_int_equal(stat.sources.n_destinations, 4);
        for (int j = 0; j < 16; j++)
            near(stat.sources.traffic[j], cases[i].traffic[j / 4][j % 4], 1e-12);
        near(stat.predicted.slots[0].load[4], 6, 1e-12); /* expert 0 on rank 2 */
        bl_stat_free(&stat);
    }
    bl_placement_free(&placement);
    bl_trace_info_free(&info);
}

static void sources_must_be_told(void **state) {
    (void)state;
    bl_error err;
    bl_stat stat;
    const int layers[] = {3}, host[] = {0};
    const char *path = bl_test_temp("unborn.blt");
    bl_trace_info info = bl_test_info(1, layers, 2, 1);
    bl_placement placement = placement_of(1, layers, 1, (int[]){2}, 2, (int32_t[]){0, 1});
    bl_stat_options options = BL_STAT_OPTIONS_INIT;
    options.plan = (bl_stat_plan){&placement, BL_RULE_FIXED, NULL, host};
    for (int rank = BL_ALL_RANKS; rank < 2; rank += 2) {
        bl_blt_writer *writer = bl_test_create(path, &info);
        bl_record record = counts(0, 3, 2, 3, (uint64_t[]){1, 2});
        record.rank = rank;
        bl_test_put(writer, record);
        bl_test_close(writer);
        assert_fails(bl_stat_read(path, &options, &stat, &err), BL_ERR_STATE,
                     rank < 0 ? "does not tell them" : "tokens of rank 1, but the plan has 1");
    }
    bl_placement_free(&placement);
    bl_trace_info_free(&info);
}

static void put_map(bl_blt_writer *writer, uint64_t epoch, const int32_t *expert) {
    bl_error err;
    bl_placement map = placement_of(1, (int[]){0}, 2, (int[]){3, 3}, 4, expert);
    map.layers[0].epoch = epoch;
    assert_ok(bl_blt_write_map(writer, &map.layers[0], &err));
    bl_placement_free(&map);
}

/* Expert 0 on slots 0 and 4 with a realised split of 90 to 10 is shown as such. */
static void realised_split(void **state) {
    (void)state;
    const int layers[] = {0};
    const char *path = bl_test_temp("split.blt");
    int32_t slots[100];
    for (int i = 0; i < 100; i++)
        slots[i] = i < 90 ? 0 : 4;
    bl_trace_info info = bl_test_info(1, layers, 4, 1);
    bl_blt_writer *writer = bl_test_create(path, &info);
    put_map(writer, 5, (int32_t[]){0, 1, 2, 3, 0, 1});
    bl_record record = bl_test_record(0, 0, 0, 6, 1, 100, slots);
    record.flags = BL_RECORD_PHYSICAL;
    record.epoch = 5;
    bl_test_put(writer, record);
    bl_test_close(writer);
    bl_placement plan = placement_of(1, layers, 2, (int[]){3, 3}, 4, (int32_t[]){0, 1, 2, 3, 0, 1});
    bl_stat stat = read_under(path, &plan, BL_RULE_EVEN, NULL);
    assert_int_equal(bl_stat_count(&stat, 0, 0), 100);
    const bl_slot_loads *realised = &stat.realised.slots[0];
    near(realised->load[0], 90, 0);
    near(realised->load[4], 10, 0);
    near(bl_slot_share(realised, 0), 0.9, 1e-12);
    near(bl_slot_share(realised, 4), 0.1, 1e-12);
    assert_true(isnan(bl_slot_share(realised, 1)));
    assert_int_equal(bl_slot_copies(realised, 0), 2);
    assert_int_equal(bl_slot_copies(realised, 3), 1);
    near(stat.realised.all.mean, 1.8, 1e-12);
    near(stat.predicted.all.mean, 1.0, 1e-12); /* side by side with what the plan said */
    bl_stat_free(&stat);
    bl_placement_free(&plan);
    bl_trace_info_free(&info);
}

/* A trace across a rebalance: each record under its own epoch's map, slots of the latest. */
static void across_a_rebalance(void **state) {
    (void)state;
    bl_error err;
    const int layers[] = {0};
    const char *path = bl_test_temp("rebalance.blt");
    bl_trace_info info = bl_test_info(1, layers, 4, 1);
    bl_blt_writer *writer = bl_test_create(path, &info);
    put_map(writer, 1, (int32_t[]){0, 1, 2, 3, 0, 1});
    put_map(writer, 2, (int32_t[]){3, 2, 1, 0, 3, 2});
    for (uint64_t epoch = 1; epoch <= 2; epoch++) {
        bl_record record = bl_test_record(epoch, 0, 0, 6, 1, 3, (int32_t[]){0, 0, 4});
        record.flags = BL_RECORD_PHYSICAL;
        record.epoch = epoch;
        bl_test_put(writer, record);
    }
    bl_test_close(writer);
    bl_stat stat;
    bl_stat_options options = BL_STAT_OPTIONS_INIT;
    assert_ok(bl_stat_read(path, &options, &stat, &err));
    assert_int_equal(bl_stat_count(&stat, 0, 0), 3); /* of epoch 1 */
    assert_int_equal(bl_stat_count(&stat, 0, 3), 3); /* of epoch 2 */
    assert_int_equal(stat.realised.slots[0].epochs, 2);
    assert_int_equal(stat.realised.slots[0].map.epoch, 2);
    near(stat.realised.slots[0].load[0], 2, 0);
    near(stat.realised.all.mean, 4.0 / 3, 1e-12); /* 2 of 3 rows on rank 0, twice */
    assert_int_equal(stat.realised.all.n, 2);
    bl_stat_free(&stat);
    bl_trace_info_free(&info);
}

/* Beyond the exact ones, percentiles are within 0.1 %; mean and maximum stay exact. */
static void many_quantiles(void **state) {
    (void)state;
    bl_error err;
    bl_quantiles q = {0};
    const int n = 20000;
    for (int i = 0; i < n; i++)
        assert_ok(bl_quantiles_add(&q, 1.0 + (double)(i * 7919 % n) / n, &err));
    assert_null(q.values);
    near(q.sum / n, 1.0 + (n - 1) / 2.0 / n, 1e-9);
    near(q.max, 2.0 - 1.0 / n, 1e-12);
    for (double p = 0.0; p < 1.0; p += 0.05) {
        const double wanted = 1.0 + p * (n - 1) / n;
        near(bl_quantiles_at(&q, p), wanted, wanted * 0.0011 + 1.0 / n);
    }
    bl_quantiles_free(&q);
    for (int i = 0; i < 4; i++)
        assert_ok(bl_quantiles_add(&q, 4.0 - i, &err));
    near(bl_quantiles_at(&q, 0.5), 2.5, 1e-12);
    near(bl_quantiles_at(&q, 1.0), 4.0, 1e-12);
    bl_quantiles_free(&q);
    assert_true(isnan(bl_quantiles_at(&q, 0.5)));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(balancedness),
        cmocka_unit_test(step_by_step),
        cmocka_unit_test(padding_is_no_load),
        cmocka_unit_test(rules),
        cmocka_unit_test(rules_that_look_at_sources),
        cmocka_unit_test(sources_must_be_told),
        cmocka_unit_test(realised_split),
        cmocka_unit_test(across_a_rebalance),
        cmocka_unit_test(many_quantiles),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
