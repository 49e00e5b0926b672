/* What a rank process tells its launcher: whole or refused. */
#include "tests/support/support.h"

#include "cli/run_report.h"

#include <stdlib.h>
#include <string.h>

static bl_run_report sample(void) {
    bl_run_report report = {.pid = 77, .resident_bytes = 1000, .n_logits = 3, .n_topk = 2};
    bl_serve_log *log = &report.log;
    log->n_layers = 2;
    log->n_ranks = 1;
    log->bytes_to = calloc(2, sizeof *log->bytes_to);
    log->bytes_to[1] = 55;
    log->stopped = true;
    log->n_steps = 2;
    log->steps = calloc(2, sizeof *log->steps);
    log->rows = calloc(4, sizeof *log->rows);
    log->active = calloc(4, sizeof *log->active);
    log->n_timed = 2;
    log->times = calloc(4, sizeof *log->times);
    log->n_completions = 2;
    log->completions = calloc(2, sizeof *log->completions);
    log->completions[1] = (bl_completion){.request = 5, .n_tokens = 2};
    log->completions[1].tokens = calloc(2, sizeof(int32_t));
    log->completions[1].ready_ns = calloc(2, sizeof(uint64_t));
    log->completions[1].ready_ns[1] = 77000;
    log->serving_ns = 99000;
    report.logits = calloc(3, sizeof *report.logits);
    report.topk = calloc(2, sizeof *report.topk);
    log->steps[1].step = 9;
    log->rows[3] = 41;
    log->active[3] = 7;
    log->times[2].experts_ns = 1234;
    log->completions[1].tokens[1] = 65;
    report.logits[2] = 0.5f;
    report.topk[1] = 31;
    return report;
}

static void comes_back_whole(void **state) {
    (void)state;
    bl_error err;
    bl_run_report report = sample(), back;
    unsigned char *data;
    size_t bytes;
    assert_ok(bl_run_report_encode(&report, &data, &bytes, &err));
    assert_ok(bl_run_report_decode(data, bytes, &back, &err));
    assert_int_equal(back.pid, 77);
    assert_int_equal(back.resident_bytes, 1000);
    assert_true(back.log.stopped);
    assert_int_equal(back.log.n_steps, 2);
    assert_int_equal(back.log.steps[1].step, 9);
    assert_int_equal(back.log.rows[3], 41);
    assert_int_equal(back.log.active[3], 7);
    assert_int_equal(back.log.n_timed, 2);
    assert_int_equal(back.log.times[2].experts_ns, 1234);
    assert_int_equal(back.log.bytes_to[1], 55);
    assert_int_equal(back.log.n_completions, 2);
    assert_int_equal(back.log.completions[0].n_tokens, 0);
    assert_int_equal(back.log.completions[1].request, 5);
    assert_int_equal(back.log.completions[1].tokens[1], 65);
    assert_int_equal(back.log.completions[1].ready_ns[1], 77000);
    assert_int_equal(back.log.serving_ns, 99000);
    assert_true(back.n_logits == 3 && back.logits[2] == 0.5f);
    assert_true(back.n_topk == 2 && back.topk[1] == 31);
    bl_run_report_free(&back);
    bl_run_report_free(&report);
    free(data);
}

static void cut_or_longer_is_refused(void **state) {
    (void)state;
    bl_error err;
    bl_run_report report = sample(), back;
    unsigned char *data;
    size_t bytes;
    assert_ok(bl_run_report_encode(&report, &data, &bytes, &err));
    for (size_t n = 0; n < bytes; n++) {
        unsigned char *exact = malloc(n > 0 ? n : 1);
        memcpy(exact, data, n);
        assert_fails(bl_run_report_decode(exact, n, &back, &err), BL_ERR_PARSE, "report");
        free(exact);
    }
    unsigned char *longer = calloc(bytes + 1, 1);
    memcpy(longer, data, bytes);
    assert_fails(bl_run_report_decode(longer, bytes + 1, &back, &err), BL_ERR_PARSE, "too many");
    free(longer);
    bl_run_report_free(&report);
    free(data);
}

static void lengths_are_not_trusted(void **state) {
    (void)state;
    bl_run_report report = sample();
    unsigned char *data;
    size_t bytes;
    bl_error err;
    assert_ok(bl_run_report_encode(&report, &data, &bytes, &err));
    for (size_t at = 0; at < bytes;
         at++) { /* survives; what it reads fits the bytes it was given */
        bl_run_report back;
        const unsigned char kept = data[at];
        data[at] = 0xff;
        if (bl_run_report_decode(data, bytes, &back, NULL) >= 0)
            bl_run_report_free(&back);
        data[at] = kept;
    }
    bl_run_report_free(&report);
    free(data);
}

/* A run of a million steps: its log stays as small as one of 65 536, holds the first steps one by one and
 * the later ones at equal distances, and its sums are of all. */
static void a_long_run_is_sampled(void **state) {
    (void)state;
    bl_error err;
    bl_serve_log log;
    const uint64_t n = 1000000, bytes_to[] = {3, 4};
    const int32_t rows[] = {1, 2}, active[] = {1, 1};
    const uint64_t layer_ns[2 * BL_N_STAGES] = {0};
    assert_ok(bl_serve_log_create(2, 1, &log, &err));
    for (uint64_t step = 0; step < n; step++) {
        const bl_step_result result = {.step = step,
                                       .sent_bytes = 7,
                                       .sent_rows = 2,
                                       .n_messages = 1,
                                       .bytes_to = bytes_to,
                                       .rows = rows,
                                       .active = active,
                                       .layer_ns = layer_ns};
        assert_ok(bl_serve_log_step(&log, &result, &err));
    }
    assert_true(log.n_steps <= BL_SERVE_MOST_STEPS && log.n_steps > BL_SERVE_MOST_STEPS / 2);
    assert_int_equal(log.every,
                     32); /* 995 904 later ones into 61 440 places: 17 to one, in halves */
    assert_int_equal(log.n_timed, BL_SERVE_TIMED);
    for (size_t i = 0; i < log.n_steps; i++) {
        const uint64_t at = i < BL_SERVE_TIMED ? i : BL_SERVE_TIMED + (i - BL_SERVE_TIMED) * 32;
        assert_int_equal(log.steps[i].step, at);
        assert_int_equal(log.rows[2 * i + 1], 2);
    }
    assert_true(log.steps[log.n_steps - 1].step + 32 >= n);
    assert_int_equal(log.n_all, n);
    assert_int_equal(log.sent_bytes, 7 * n);
    assert_int_equal(log.sent_rows, 2 * n);
    assert_int_equal(log.n_messages, n);
    assert_int_equal(log.bytes_to[1], 4 * n);

    /* as bytes it is within what a launcher reads at most, which a little less would not be */
    const bl_qwen3_config config = {.n_layers = 2, .vocab = 256, .top_k = 2, .max_positions = 64};
    const bl_requests none = {0},
                      three = {.n = 3,
                               .max_tokens = 5,
                               .n_prompts = 1,
                               .prompts =
                                   &(bl_prompt){.text = (const unsigned char *)"ab", .bytes = 2}};
    bl_run_report report = {.log = log};
    unsigned char *data;
    size_t bytes;
    assert_ok(bl_run_report_encode(&report, &data, &bytes, &err));
    const size_t most = bl_run_report_most_bytes(&config, 1, &none, 0);
    assert_true(bytes <= most && 2 * bytes > most && most < (size_t)16 << 20);
    assert_int_equal(bl_run_report_most_bytes(&config, 1, &three, 0) - most,
                     3 * (sizeof(bl_completion) + 8 + 5 * 4 + 8 + 5 * 8));
    assert_int_equal(bl_run_report_most_bytes(&config, 1, &none, 10) - most,
                     10 * 256 * 4 + 10 * 2 * 2 * 4);
    free(data);
    bl_serve_log_free(&log);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_long_run_is_sampled),
        cmocka_unit_test(comes_back_whole),
        cmocka_unit_test(cut_or_longer_is_refused),
        cmocka_unit_test(lengths_are_not_trusted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
