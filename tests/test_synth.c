/* Made-up routing: the same seed gives the same bytes, and what is asked for is what comes out. */
#include "tests/support/support.h"

#include "core/io.h"
#include "tracer/blt.h"
#include "tracer/loads.h"
#include "tracer/synth.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static bl_model small_model(int n_experts, int top_k) {
    static int moe[] = {1, 2, 5};
    return (bl_model){.name = "small",
                      .n_layers = 6,
                      .n_moe_layers = 3,
                      .moe_layers = moe,
                      .n_experts = n_experts,
                      .top_k = top_k};
}

static void synth(const bl_model *model, const bl_synth_options *options, const char *out) {
    bl_error err;
    assert_ok(bl_synth(model, options, out, &err));
}

static bl_loads read_loads(const char *path) {
    bl_error err;
    bl_loads loads = {0};
    const bl_loads_options options = BL_LOADS_OPTIONS_INIT;
    assert_ok(bl_loads_read(&path, 1, NULL, &options, &loads, &err));
    return loads;
}

static bool same_bytes(const char *a, const char *b) {
    bl_error err;
    char *x, *y;
    size_t n, m;
    assert_ok(bl_read_file(a, 1 << 26, &x, &n, &err));
    assert_ok(bl_read_file(b, 1 << 26, &y, &m, &err));
    const bool same = n == m && memcmp(x, y, n) == 0;
    free(x);
    free(y);
    return same;
}

static void same_seed_same_bytes(void **state) {
    (void)state;
    const bl_model model = small_model(16, 2);
    bl_synth_options options = BL_SYNTH_OPTIONS_INIT;
    options.n_steps = 8;
    const char *a = bl_test_temp("a.blt"), *b = bl_test_temp("b.blt"), *c = bl_test_temp("c.blt");
    synth(&model, &options, a);
    synth(&model, &options, b);
    options.seed = 2;
    synth(&model, &options, c);
    assert_true(same_bytes(a, b));
    assert_false(same_bytes(a, c));
}

/* 10 tokens on 4 ranks are 3, 3, 2, 2; every row is distinct (the writer insists); all conserves. */
static void tokens_ranks_and_phase(void **state) {
    (void)state;
    bl_error err;
    const bl_model model = small_model(300, 8);
    bl_synth_options options = BL_SYNTH_OPTIONS_INIT;
    options.n_steps = 3;
    options.tokens_per_step = 10;
    options.phase = BL_PHASE_PREFILL;
    const char *out = bl_test_temp("t.blt");
    synth(&model, &options, out);
    bl_blt_reader *reader;
    assert_ok(bl_blt_open(out, &reader, &err));
    int n = 0;
    for (;; n++) {
        bl_record record;
        bool got;
        assert_ok(bl_blt_next(reader, &record, &got, &err));
        if (!got)
            break;
        assert_int_equal(record.n_tokens, record.rank < 2 ? 3 : 2);
        assert_int_equal(record.phase, BL_PHASE_PREFILL);
        assert_int_equal(record.n_empty, 0);
    }
    bl_blt_reader_free(reader);
    assert_int_equal(n, 3 * 4 * 3);
    bl_loads loads = read_loads(out);
    assert_int_equal(loads.tokens, 30);
    for (int l = 0; l < 3; l++)
        assert_true(loads.usable[l]);
    bl_loads_free(&loads);
}

static double correlation(const uint64_t *a, const uint64_t *b, int n) {
    double sa = 0, sb = 0, saa = 0, sbb = 0, sab = 0;
    for (int i = 0; i < n; i++) {
        const double x = (double)a[i], y = (double)b[i];
        sa += x;
        sb += y;
        saa += x * x;
        sbb += y * y;
        sab += x * y;
    }
    return (n * sab - sa * sb) / sqrt((n * saa - sa * sa) * (n * sbb - sb * sb));
}

/* Without drift the first and last step look alike; with a drift of one topic they do not. */
static void drift_moves_the_load(void **state) {
    (void)state;
    const bl_model model = small_model(64, 4);
    bl_synth_options options = BL_SYNTH_OPTIONS_INIT;
    options.n_steps = 5;
    options.tokens_per_step = 4000;
    const char *out = bl_test_temp("d.blt");
    for (int drifts = 0; drifts < 2; drifts++) {
        options.drift = drifts;
        synth(&model, &options, out);
        bl_loads loads = read_loads(out);
        for (int l = 0; l < 3; l++) {
            const double r =
                correlation(bl_loads_row(&loads, 0, l), bl_loads_row(&loads, 4, l), 64);
            assert_true(drifts ? r < 0.6 : r > 0.9);
        }
        bl_loads_free(&loads);
    }
}

/* top-1 of a Zipf law with exponent 1 over 4 experts: shares 12/25, 6/25, 4/25, 3/25. */
static void popularity_is_zipf(void **state) {
    (void)state;
    const bl_model model = small_model(4, 1);
    bl_synth_options options = BL_SYNTH_OPTIONS_INIT;
    options.n_topics = 1;
    options.n_steps = 1;
    options.tokens_per_step = 100000;
    options.skew = 1.0;
    const char *out = bl_test_temp("z.blt");
    synth(&model, &options, out);
    bl_loads loads = read_loads(out);
    for (int l = 0; l < 3; l++) {
        uint64_t sorted[4];
        memcpy(sorted, bl_loads_row(&loads, 0, l), sizeof sorted);
        for (int i = 0; i < 4; i++) {
            for (int j = i + 1; j < 4; j++) {
                if (sorted[j] > sorted[i]) {
                    const uint64_t swap = sorted[i];
                    sorted[i] = sorted[j];
                    sorted[j] = swap;
                }
            }
        }
        const double want[] = {48000, 24000, 16000, 12000};
        for (int i = 0; i < 4; i++)
            assert_true(fabs((double)sorted[i] - want[i]) < 800); /* 5 standard deviations */
    }
    bl_loads_free(&loads);
}

/* k = E leaves no choice; a steep law must still find k distinct experts. */
static void extremes(void **state) {
    (void)state;
    bl_error err;
    bl_model model = small_model(8, 8);
    bl_synth_options options = BL_SYNTH_OPTIONS_INIT;
    options.n_steps = 1;
    options.skew = 4;
    const char *out = bl_test_temp("x.blt");
    synth(&model, &options, out);
    bl_loads loads = read_loads(out);
    for (int expert = 0; expert < 8; expert++)
        assert_int_equal(bl_loads_row(&loads, 0, 1)[expert], 512);
    bl_loads_free(&loads);
    options.skew = 9;
    assert_fails(bl_synth(&model, &options, out, &err), BL_ERR_RANGE, "skew");
    options.skew = NAN;
    assert_fails(bl_synth(&model, &options, out, &err), BL_ERR_RANGE, "skew");
    options.skew = 1;
    options.n_steps = 0;
    assert_fails(bl_synth(&model, &options, out, &err), BL_ERR_RANGE, "positive");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_seed_same_bytes),
        cmocka_unit_test(tokens_ranks_and_phase),
        cmocka_unit_test(drift_moves_the_load),
        cmocka_unit_test(popularity_is_zipf),
        cmocka_unit_test(extremes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
