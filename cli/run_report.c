#include "cli/run_report.h"

#include "core/mem.h"

#include <stdlib.h>
#include <string.h>

void bl_run_report_free(bl_run_report *report) {
    bl_serve_log_free(&report->log);
    free(report->logits);
    free(report->topk);
    *report = (bl_run_report){0};
}

/* ---- encode -------------------------------------------------------------------------------- */

typedef struct writer {
    unsigned char *data;
    size_t bytes, capacity;
    bl_status status; /* the first failure; later puts do nothing */
    bl_error *err;
} writer;

static void put(writer *to, const void *items, size_t n, size_t item_bytes) {
    const uint64_t count = n;
    size_t payload = 0, needed = 0;
    if (to->status < 0)
        return;
    if (!bl_size_mul(n, item_bytes, &payload) ||
        !bl_size_add(to->bytes + sizeof count, payload, &needed)) {
        to->status = bl_fail(to->err, BL_ERR_NOMEM, "out of memory: a report of %zu items", n);
        return;
    }
    void *data = to->data;
    to->status = bl_grow(&data, &to->capacity, needed, 1, to->err);
    to->data = data;
    if (to->status < 0)
        return;
    memcpy(to->data + to->bytes, &count, sizeof count);
    if (payload > 0)
        memcpy(to->data + to->bytes + sizeof count, items, payload);
    to->bytes = needed;
}

/* The numbers in front of the arrays. */
typedef struct numbers {
    int64_t pid;
    uint64_t resident_bytes, serving_ns;
    uint64_t n_all, every, sent_bytes, sent_rows, n_messages;
    int32_t n_layers, n_ranks, stopped, unused;
} numbers;

bl_status bl_run_report_encode(const bl_run_report *report, unsigned char **data_p, size_t *bytes,
                               bl_error *err) {
    const bl_serve_log *log = &report->log;
    const numbers head = {.pid = report->pid,
                          .resident_bytes = report->resident_bytes,
                          .serving_ns = log->serving_ns,
                          .n_all = log->n_all,
                          .every = log->every,
                          .sent_bytes = log->sent_bytes,
                          .sent_rows = log->sent_rows,
                          .n_messages = log->n_messages,
                          .n_layers = log->n_layers,
                          .n_ranks = log->n_ranks,
                          .stopped = log->stopped};
    writer to = {.status = BL_OK, .err = err};
    put(&to, &head, 1, sizeof head);
    put(&to, log->steps, log->n_steps, sizeof *log->steps);
    put(&to, log->bytes_to, 2 * (size_t)log->n_ranks, sizeof *log->bytes_to);
    put(&to, log->rows, log->n_steps * (size_t)log->n_layers, sizeof *log->rows);
    put(&to, log->active, log->n_steps * (size_t)log->n_layers, sizeof *log->active);
    put(&to, log->times, log->n_timed * (size_t)log->n_layers, sizeof *log->times);
    put(&to, report->logits, report->n_logits, sizeof *report->logits);
    put(&to, report->topk, report->n_topk, sizeof *report->topk);
    put(&to, log->completions, (size_t)log->n_completions, sizeof *log->completions);
    for (int i = 0; i < log->n_completions; i++) {
        const bl_completion *completion = &log->completions[i];
        const size_t n = (size_t)completion->n_tokens;
        put(&to, completion->tokens, n, sizeof *completion->tokens);
        put(&to, completion->ready_ns, n, sizeof *completion->ready_ns);
    }
    if (to.status < 0) {
        free(to.data);
        return to.status;
    }
    *data_p = to.data;
    *bytes = to.bytes;
    return BL_OK;
}

/* One array of a report more; SIZE_MAX when that is beyond counting. */
static void add_array(size_t *total, size_t n, size_t item_bytes) {
    size_t payload;
    if (!bl_size_mul(n, item_bytes, &payload) ||
        !bl_size_add(payload, sizeof(uint64_t), &payload) || !bl_size_add(*total, payload, total))
        *total = SIZE_MAX;
}

size_t bl_run_report_most_bytes(const bl_qwen3_config *config, int n_ranks,
                                const bl_requests *requests, size_t n_tokens) {
    const size_t n_layers = (size_t)config->n_layers, n_steps = BL_SERVE_MOST_STEPS;
    size_t total = 0;
    add_array(&total, 1, sizeof(numbers));
    add_array(&total, n_steps, sizeof(bl_step_record));
    add_array(&total, 2 * (size_t)n_ranks, sizeof(uint64_t));
    add_array(&total, n_steps * n_layers, sizeof(int32_t)); /* rows */
    add_array(&total, n_steps * n_layers, sizeof(int32_t)); /* active */
    add_array(&total, BL_SERVE_TIMED * n_layers, sizeof(bl_layer_times));
    add_array(&total, n_tokens * (size_t)config->vocab, sizeof(float));
    add_array(&total, n_tokens * n_layers * (size_t)config->top_k, sizeof(int32_t));
    add_array(&total, (size_t)requests->n, sizeof(bl_completion));
    for (int i = 0; i < requests->n; i++) {
        const int length = bl_requests_length(requests, i, config);
        add_array(&total, (size_t)length, sizeof(int32_t));
        add_array(&total, (size_t)length, sizeof(uint64_t));
    }
    return total;
}

/* ---- decode -------------------------------------------------------------------------------- */

typedef struct reader {
    const unsigned char *data;
    size_t left;
    bl_error *err;
} reader;

/* The next array, copied into fresh memory; NULL when it is empty. */
static bl_status take(reader *from, size_t item_bytes, void **items_p, size_t *n) {
    uint64_t count = 0;
    *items_p = NULL;
    *n = 0;
    if (from->left >= sizeof count)
        memcpy(&count, from->data, sizeof count);
    if (from->left < sizeof count || count > (from->left - sizeof count) / item_bytes)
        return bl_fail(from->err, BL_ERR_PARSE, "a rank's report is cut");
    const size_t payload = (size_t)count * item_bytes;
    if (count > 0) {
        *items_p = malloc(payload);
        if (*items_p == NULL)
            return bl_fail(from->err, BL_ERR_NOMEM, "out of memory: a report of %zu bytes",
                           payload);
        memcpy(*items_p, from->data + sizeof count, payload);
    }
    *n = (size_t)count;
    from->data += sizeof count + payload;
    from->left -= sizeof count + payload;
    return BL_OK;
}

static bl_status take_numbers(reader *from, bl_run_report *report) {
    void *items;
    size_t n;
    BL_TRY(take(from, sizeof(numbers), &items, &n));
    numbers head = {0};
    if (n == 1)
        memcpy(&head, items, sizeof head);
    free(items);
    if (n != 1 || head.n_layers <= 0 || head.n_ranks < 0)
        return bl_fail(from->err, BL_ERR_PARSE, "a rank's report is damaged");
    report->pid = (int)head.pid;
    report->resident_bytes = (size_t)head.resident_bytes;
    report->log.n_layers = head.n_layers;
    report->log.n_ranks = head.n_ranks;
    report->log.stopped = head.stopped != 0;
    report->log.serving_ns = head.serving_ns;
    report->log.n_all = head.n_all;
    report->log.every = head.every;
    report->log.sent_bytes = head.sent_bytes;
    report->log.sent_rows = head.sent_rows;
    report->log.n_messages = head.n_messages;
    return BL_OK;
}

static bl_status take_completions(reader *from, bl_serve_log *log) {
    void *items;
    size_t n;
    BL_TRY(take(from, sizeof *log->completions, &items, &n));
    log->completions = items;
    for (size_t i = 0; i < n; i++) {
        bl_completion *completion = &log->completions[i];
        size_t n_tokens, n_times;
        completion->tokens = NULL; /* the sender's addresses */
        completion->ready_ns = NULL;
        log->n_completions = (int)i + 1;
        BL_TRY(take(from, sizeof(int32_t), &items, &n_tokens));
        completion->tokens = items;
        BL_TRY(take(from, sizeof *completion->ready_ns, &items, &n_times));
        completion->ready_ns = items;
        if (completion->n_tokens < 0 || n_tokens != (size_t)completion->n_tokens ||
            n_times != n_tokens)
            return bl_fail(from->err, BL_ERR_PARSE, "a rank's report is damaged");
    }
    return BL_OK;
}

/* An array of every layer of `steps` steps. */
static bl_status take_layers(reader *from, size_t item_bytes, int n_layers, size_t steps,
                             void **items_p) {
    size_t n;
    BL_TRY(take(from, item_bytes, items_p, &n));
    if (n / (size_t)n_layers != steps || n % (size_t)n_layers != 0)
        return bl_fail(from->err, BL_ERR_PARSE, "a rank's report is damaged");
    return BL_OK;
}

static bl_status take_steps(reader *from, bl_serve_log *log) {
    void *items;
    size_t n_bytes_to;
    BL_TRY(take(from, sizeof *log->steps, &items, &log->n_steps));
    log->steps = items;
    BL_TRY(take(from, sizeof *log->bytes_to, &items, &n_bytes_to));
    log->bytes_to = items;
    if (n_bytes_to != 2 * (size_t)log->n_ranks)
        return bl_fail(from->err, BL_ERR_PARSE, "a rank's report is damaged");
    bl_status st = take_layers(from, sizeof *log->rows, log->n_layers, log->n_steps, &items);
    log->rows = items;
    BL_TRY(st);
    st = take_layers(from, sizeof *log->active, log->n_layers, log->n_steps, &items);
    log->active = items;
    BL_TRY(st);
    const size_t n_timed = log->n_steps < BL_SERVE_TIMED ? log->n_steps : BL_SERVE_TIMED;
    st = take_layers(from, sizeof *log->times, log->n_layers, n_timed, &items);
    log->times = items;
    BL_TRY(st);
    log->n_timed = n_timed;
    return BL_OK;
}

static bl_status take_all(reader *from, bl_run_report *report) {
    void *items;
    BL_TRY(take_numbers(from, report));
    BL_TRY(take_steps(from, &report->log));
    BL_TRY(take(from, sizeof *report->logits, &items, &report->n_logits));
    report->logits = items;
    BL_TRY(take(from, sizeof *report->topk, &items, &report->n_topk));
    report->topk = items;
    BL_TRY(take_completions(from, &report->log));
    if (from->left != 0)
        return bl_fail(from->err, BL_ERR_PARSE, "a rank's report has %zu bytes too many",
                       from->left);
    return BL_OK;
}

bl_status bl_run_report_decode(const unsigned char *data, size_t bytes, bl_run_report *report,
                               bl_error *err) {
    reader from = {data, bytes, err};
    bl_run_report made = {0};
    const bl_status st = take_all(&from, &made);
    if (st < 0) {
        bl_run_report_free(&made);
        return st;
    }
    *report = made;
    return BL_OK;
}

bl_status bl_run_report_of_lost(const bl_run_report *other, bl_run_report *out, bl_error *err) {
    const bl_serve_log *log = &other->log;
    const size_t n_rows = log->n_steps * (size_t)log->n_layers;
    bl_run_report report = {.log = {.n_layers = log->n_layers,
                                    .n_steps = log->n_steps,
                                    .n_all = log->n_all,
                                    .every = log->every}};
    bl_status st = BL_CALLOC(report.log.steps, log->n_steps, err);
    if (st >= 0)
        st = BL_CALLOC(report.log.rows, n_rows, err);
    if (st >= 0)
        st = BL_CALLOC(report.log.active, n_rows, err);
    if (st < 0) {
        bl_run_report_free(&report);
        return st;
    }
    for (size_t step = 0; step < log->n_steps; step++)
        report.log.steps[step] =
            (bl_step_record){.step = log->steps[step].step, .flags = log->steps[step].flags};
    report.log.stopped = log->stopped;
    *out = report;
    return BL_OK;
}
