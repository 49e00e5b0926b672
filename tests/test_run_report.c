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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(comes_back_whole),
        cmocka_unit_test(cut_or_longer_is_refused),
        cmocka_unit_test(lengths_are_not_trusted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
