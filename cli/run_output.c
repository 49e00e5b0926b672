#include "cli/run_output.h"

#include "cli/run_predict.h"
#include "core/json.h"
#include "core/mem.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Request i was served by rank i mod n, as its i / n-th. */
static const bl_completion *completion_of(const bl_run_job *job, const bl_run_report *reports,
                                          int request) {
    const bl_serve_log *log = &reports[request % job->n_ranks].log;
    const int at = request / job->n_ranks;
    return at < log->n_completions ? &log->completions[at] : NULL;
}

/* Requests to show: all, but of a run that was stopped none behind the last that was begun. */
static int n_shown(const bl_run_job *job, const bl_run_report *reports) {
    int n = 0;
    for (int g = 0; g < job->n_ranks; g++) {
        const bl_serve_log *log = &reports[g].log;
        if (log->n_completions > 0 && log->completions[log->n_completions - 1].request >= n)
            n = log->completions[log->n_completions - 1].request + 1;
    }
    return n;
}

void bl_run_count_complete(const bl_run_job *job, const bl_run_report *reports, int *complete,
                           int *requests) {
    *requests = job->requests.n;
    *complete = 0;
    for (int i = 0; i < n_shown(job, reports); i++) {
        const bl_completion *completion = completion_of(job, reports, i);
        const int full = bl_requests_length(&job->requests, i, &job->config);
        *complete += completion != NULL && completion->n_tokens == full;
    }
}

bl_status bl_run_print_texts(const bl_run_job *job, const bl_run_report *reports, bl_error *err) {
    for (int i = 0; i < n_shown(job, reports); i++) {
        const bl_completion *completion = completion_of(job, reports, i);
        if (i > 0)
            fputs("---\n", stdout);
        for (int t = 0; completion != NULL && t < completion->n_tokens; t++)
            putchar(completion->tokens[t] & 0xff);
        putchar('\n');
    }
    if (ferror(stdout))
        return bl_fail(err, BL_ERR_IO, "cannot write to standard output");
    return BL_OK;
}

/* ---- texts in JSON ------------------------------------------------------------------------- */

/* Bytes of the UTF-8 character at s[0 .. n-1], or 0 when there is none (RFC 3629). */
static int utf8_length(const unsigned char *s, int n) {
    const int length = s[0] < 0x80 ? 1 : s[0] < 0xc2 ? 0 : s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 : 4;
    if (length == 0 || s[0] > 0xf4 || length > n)
        return 0;
    for (int i = 1; i < length; i++)
        if ((s[i] & 0xc0) != 0x80)
            return 0;
    const bool overlong = (s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xf0 && s[1] < 0x90);
    const bool outside = (s[0] == 0xed && s[1] > 0x9f) || (s[0] == 0xf4 && s[1] > 0x8f);
    return overlong || outside ? 0 : length;
}

static json_t *text_json(const int32_t *tokens, int n) {
    unsigned char *bytes = bl_calloc((size_t)n, 1), *text = bl_calloc((size_t)n, 3);
    size_t used = 0;
    json_t *made = NULL;
    for (int t = 0; bytes != NULL && t < n; t++)
        bytes[t] = (unsigned char)tokens[t];
    for (int t = 0; bytes != NULL && text != NULL && t < n;) {
        const int length = utf8_length(bytes + t, n - t);
        memcpy(text + used, length > 0 ? bytes + t : (const unsigned char *)"\xef\xbf\xbd",
               length > 0 ? (size_t)length : 3);
        used += length > 0 ? (size_t)length : 3;
        t += length > 0 ? length : 1;
    }
    if (bytes != NULL && text != NULL)
        made = json_stringn((const char *)text, used);
    free(bytes);
    free(text);
    return made;
}

static void add_texts(json_t *root, const bl_run_job *job, const bl_run_report *reports) {
    json_t *texts = json_array(), *all_tokens = json_array();
    for (int i = 0; i < n_shown(job, reports); i++) {
        const bl_completion *completion = completion_of(job, reports, i);
        const int n = completion != NULL ? completion->n_tokens : 0;
        json_t *tokens = json_array();
        for (int t = 0; t < n; t++)
            json_array_append_new(tokens, json_integer(completion->tokens[t]));
        json_array_append_new(all_tokens, tokens);
        json_array_append_new(texts, text_json(n > 0 ? completion->tokens : NULL, n));
    }
    json_object_set_new(root, "texts", texts);
    json_object_set_new(root, "tokens", all_tokens);
    json_object_set_new(root, "stopped", json_boolean(reports[0].log.stopped));
}

/* ---- figures ------------------------------------------------------------------------------- */

static int ascending(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* Sorts `values`. The p-quantile is the smallest value with at least a share p at or below it. */
static json_t *summary(double *values, size_t n) {
    static const struct {
        const char *name;
        double p;
    } quantiles[] = {{"p50", 0.5}, {"p95", 0.95}, {"p99", 0.99}, {"max", 1.0}};
    double sum = 0;
    if (n == 0)
        return json_null();
    qsort(values, n, sizeof *values, ascending);
    for (size_t i = 0; i < n; i++)
        sum += values[i];
    json_t *made = json_pack("{s:f}", "mean", sum / (double)n);
    for (size_t q = 0; q < sizeof quantiles / sizeof quantiles[0]; q++) {
        const double at = quantiles[q].p * (double)n;
        size_t index = (size_t)at;
        if ((double)index == at && index > 0)
            index--;
        json_object_set_new(made, quantiles[q].name, json_real(values[index]));
    }
    return made;
}

/* Busiest rank's rows over the mean of one (step, layer); 0 when there are none. */
static double imbalance_of(const bl_run_job *job, const bl_run_report *reports, size_t step,
                           int layer) {
    int64_t sum = 0, max = 0;
    for (int g = 0; g < job->n_ranks; g++) {
        const bl_serve_log *log = &reports[g].log;
        const int32_t rows = log->rows[step * (size_t)log->n_layers + (size_t)layer];
        sum += rows;
        max = rows > max ? rows : max;
    }
    return sum > 0 ? (double)max * job->n_ranks / (double)sum : 0;
}

/* Steps all ranks recorded; a rank cannot have fewer unless its report is damaged. */
static size_t common_steps(const bl_run_job *job, const bl_run_report *reports) {
    size_t n = reports[0].log.n_steps;
    for (int g = 1; g < job->n_ranks; g++)
        n = reports[g].log.n_steps < n ? reports[g].log.n_steps : n;
    return n;
}

/* What every step cost, over all ranks. */
typedef struct step_figures {
    size_t n_steps, n_layers;
    double *us;        /* [n_steps] of the slowest rank */
    double *imbalance; /* [n_steps][n_layers], 0 where a layer had no rows */
    double *scratch;   /* [n_steps * n_layers] */
} step_figures;

static void free_figures(step_figures *f) {
    free(f->us);
    free(f->imbalance);
    free(f->scratch);
}

static bl_status measure_steps(const bl_run_job *job, const bl_run_report *reports, step_figures *f,
                               bl_error *err) {
    *f = (step_figures){.n_steps = common_steps(job, reports),
                        .n_layers = (size_t)job->config.n_layers};
    BL_TRY(BL_CALLOC(f->us, f->n_steps, err));
    BL_TRY(BL_CALLOC(f->imbalance, f->n_steps * f->n_layers, err));
    BL_TRY(BL_CALLOC(f->scratch, f->n_steps * f->n_layers, err));
    for (size_t step = 0; step < f->n_steps; step++) {
        for (int g = 0; g < job->n_ranks; g++) {
            const double took = (double)reports[g].log.steps[step].total_ns * 1e-3;
            f->us[step] = took > f->us[step] ? took : f->us[step];
        }
        for (size_t layer = 0; layer < f->n_layers; layer++)
            f->imbalance[step * f->n_layers + layer] = imbalance_of(job, reports, step, (int)layer);
    }
    return BL_OK;
}

/* Copy the values that are above 0 to `out`; returns how many. */
static size_t keep_positive(const double *values, size_t n, double *out) {
    size_t kept = 0;
    for (size_t i = 0; i < n; i++) {
        if (values[i] > 0)
            out[kept++] = values[i];
    }
    return kept;
}

/* {"steps","step_us","imbalance"} of the steps [first, end). */
static json_t *range_json(step_figures *f, size_t first, size_t end) {
    json_t *made = json_pack("{s:I}", "steps", (json_int_t)(end - first));
    size_t n = keep_positive(f->us + first, end - first, f->scratch);
    json_object_set_new(made, "step_us", summary(f->scratch, n));
    n = keep_positive(f->imbalance + first * f->n_layers, (end - first) * f->n_layers, f->scratch);
    json_object_set_new(made, "imbalance", summary(f->scratch, n));
    return made;
}

static bl_status predict_steps(const bl_run_job *job, const bl_run_report *reports,
                               const step_figures *f, bl_run_prediction *out, bl_error *err) {
    for (size_t step = 0; step < f->n_steps; step++)
        f->scratch[step] = f->us[step] * 1e-6;
    return bl_run_predict(job, reports, f->scratch, f->n_steps, out, err);
}

/* Both are the caller's to free, whatever comes of it; *prediction starts as {0}. */
static bl_status take_figures(const bl_run_job *job, const bl_run_report *reports, step_figures *f,
                              bl_run_prediction *prediction, bl_error *err) {
    BL_TRY(measure_steps(job, reports, f, err));
    return predict_steps(job, reports, f, prediction, err);
}

static json_t *step_json(const bl_run_job *job, const bl_run_report *reports, step_figures *f,
                         const bl_run_prediction *prediction, size_t step) {
    const bl_step_record *record = &reports[0].log.steps[step];
    int64_t tokens = 0;
    double sum = 0;
    for (int g = 0; g < job->n_ranks; g++)
        tokens += reports[g].log.steps[step].n_tokens;
    const size_t n = keep_positive(f->imbalance + step * f->n_layers, f->n_layers, f->scratch);
    for (size_t layer = 0; layer < n; layer++)
        sum += f->scratch[layer];
    json_t *made =
        json_pack("{s:I, s:I, s:f, s:f, s:b}", "step", (json_int_t)record->step, "tokens",
                  (json_int_t)tokens, "us", f->us[step], "imbalance", n > 0 ? sum / (double)n : 0.0,
                  "moving", (record->flags & BL_NOTE_BUSY) != 0);
    if (prediction->made && !isnan(prediction->predicted_s[step]))
        json_object_set_new(made, "predicted_us", json_real(prediction->predicted_s[step] * 1e6));
    return made;
}

static void add_around_moves(json_t *root, const bl_run_report *reports, step_figures *f) {
    size_t first = f->n_steps, end = 0;
    for (size_t step = 0; step < f->n_steps; step++) {
        if ((reports[0].log.steps[step].flags & BL_NOTE_BUSY) == 0)
            continue;
        first = step < first ? step : first;
        end = step + 1;
    }
    if (end == 0)
        return;
    json_object_set_new(root, "around_moves",
                        json_pack("{s:o, s:o, s:o}", "before", range_json(f, 0, first), "during",
                                  range_json(f, first, end), "after",
                                  range_json(f, end, f->n_steps)));
}

static bl_status add_steps(json_t *root, const bl_run_job *job, const bl_run_report *reports,
                           bl_error *err) {
    step_figures f;
    bl_run_prediction prediction = {0};
    bl_status st = take_figures(job, reports, &f, &prediction, err);
    if (st >= 0) {
        json_t *all = range_json(&f, 0, f.n_steps), *per_step = json_array();
        json_object_update(root, all);
        json_decref(all);
        json_object_set_new(root, "steps", json_integer((json_int_t)reports[0].log.n_all));
        if (reports[0].log.every > 1) /* a long run: its figures are of a sample */
            json_object_set_new(root, "sampled",
                                json_pack("{s:I, s:I}", "steps", (json_int_t)f.n_steps, "every",
                                          (json_int_t)reports[0].log.every));
        for (size_t step = 0; step < f.n_steps; step++)
            json_array_append_new(per_step, step_json(job, reports, &f, &prediction, step));
        json_object_set_new(root, "per_step", per_step);
        json_object_set_new(root, "predicted", bl_run_prediction_json(&prediction));
        add_around_moves(root, reports, &f);
    }
    bl_run_prediction_free(&prediction);
    free_figures(&f);
    return st;
}

static void add_stages(json_t *root, const bl_run_job *job, const bl_run_report *reports) {
    const size_t n = common_steps(job, reports);
    uint64_t ns[BL_N_STAGES] = {0}, bytes = 0, rows = 0, messages = 0;
    for (int g = 0; g < job->n_ranks; g++) {
        const bl_serve_log *log = &reports[g].log;
        for (size_t step = 0; step < n; step++) {
            for (int s = 0; s < BL_N_STAGES; s++)
                ns[s] += log->steps[step].stage_ns[s];
        }
        bytes += log->sent_bytes;
        rows += log->sent_rows;
        messages += log->n_messages;
    }
    json_t *stages = json_object();
    for (int s = 0; s < BL_N_STAGES && n > 0; s++)
        json_object_set_new(stages, bl_stage_names[s],
                            json_real((double)ns[s] * 1e-3 / ((double)n * job->n_ranks)));
    json_object_set_new(root, "stage_us", stages);
    json_object_set_new(root, "sent",
                        json_pack("{s:I, s:I, s:I}", "bytes", (json_int_t)bytes, "rows",
                                  (json_int_t)rows, "messages", (json_int_t)messages));
}

/* Time to the first token, between two tokens, and per token after the first (mean of a request). */
static bl_status add_latency(json_t *root, const bl_run_job *job, const bl_run_report *reports,
                             bl_error *err) {
    size_t n_tokens = 0, n_first = 0, n_gaps = 0, n_means = 0;
    double *first, *gap, *mean;
    for (int g = 0; g < job->n_ranks; g++) {
        for (int i = 0; i < reports[g].log.n_completions; i++)
            n_tokens += (size_t)reports[g].log.completions[i].n_tokens;
    }
    BL_TRY(BL_CALLOC(first, 3 * n_tokens, err));
    gap = first + n_tokens;
    mean = gap + n_tokens;
    for (int g = 0; g < job->n_ranks; g++) {
        for (int i = 0; i < reports[g].log.n_completions; i++) {
            const bl_completion *c = &reports[g].log.completions[i];
            if (c->n_tokens > 0)
                first[n_first++] = (double)c->ready_ns[0] * 1e-3;
            for (int t = 1; t < c->n_tokens; t++)
                gap[n_gaps++] = (double)(c->ready_ns[t] - c->ready_ns[t - 1]) * 1e-3;
            if (c->n_tokens > 1)
                mean[n_means++] = (double)(c->ready_ns[c->n_tokens - 1] - c->ready_ns[0]) * 1e-3 /
                                  (c->n_tokens - 1);
        }
    }
    json_object_set_new(root, "latency",
                        json_pack("{s:o, s:o, s:o}", "first_token_us", summary(first, n_first),
                                  "between_tokens_us", summary(gap, n_gaps), "per_token_us",
                                  summary(mean, n_means)));
    free(first);
    return BL_OK;
}

/* Tokens decoded, those of prompts that were there already, and what a second brought. */
static void add_throughput(json_t *root, const bl_run_job *job, const bl_run_report *reports) {
    json_int_t decoded = 0, cached = 0;
    uint64_t ns = 0;
    for (int g = 0; g < job->n_ranks; g++) {
        const bl_serve_log *log = &reports[g].log;
        ns = log->serving_ns > ns ? log->serving_ns : ns;
        for (int i = 0; i < log->n_completions; i++) {
            decoded += log->completions[i].n_tokens;
            cached += log->completions[i].n_cached;
        }
    }
    json_object_set_new(root, "decoded_tokens", json_integer(decoded));
    json_object_set_new(root, "cached_tokens", json_integer(cached));
    json_object_set_new(root, "tokens_per_s",
                        ns > 0 ? json_real((double)decoded / ((double)ns * 1e-9)) : json_null());
}

/* Bytes of one direction, by sender and receiver, and by the level of the topology they cross. */
static json_t *direction_json(const bl_run_job *job, const bl_run_report *reports, size_t at,
                              json_t *domains) {
    json_t *matrix = json_array();
    uint64_t level_bytes[BL_MAX_LEVELS + 1] = {0};
    for (int from = 0; from < job->n_ranks; from++) {
        json_t *row = json_array();
        const uint64_t *bytes_to = reports[from].log.bytes_to + at * (size_t)job->n_ranks;
        for (int to = 0; to < job->n_ranks; to++) {
            json_array_append_new(row, json_integer((json_int_t)bytes_to[to]));
            if (job->has_topology)
                level_bytes[bl_topology_level(&job->topology, from, to)] += bytes_to[to];
        }
        json_array_append_new(matrix, row);
    }
    for (int level = 1; job->has_topology && level <= job->topology.n_levels; level++)
        json_object_set_new(domains, job->topology.levels[level].name,
                            json_integer((json_int_t)level_bytes[level]));
    return matrix;
}

static void add_traffic(json_t *root, const bl_run_job *job, const bl_run_report *reports) {
    static const char *const names[2] = {"dispatch", "combine"};
    json_t *traffic = json_object();
    for (int g = 0; g < job->n_ranks; g++) {
        if (reports[g].log.n_ranks != job->n_ranks) { /* a damaged report: no guess */
            json_decref(traffic);
            return;
        }
    }
    for (size_t at = 0; at < 2; at++) {
        json_t *domains = json_object();
        json_t *matrix = direction_json(job, reports, at, domains);
        json_object_set_new(traffic, names[at],
                            json_pack("{s:o, s:o}", "bytes", matrix, "domains", domains));
    }
    json_object_set_new(root, "traffic", traffic);
}

static void add_trace(json_t *root, const bl_recorder_totals *trace) {
    json_object_set_new(root, "trace",
                        json_pack("{s:I, s:I, s:I, s:I}", "pushed", (json_int_t)trace->pushed,
                                  "written", (json_int_t)trace->written, "dropped",
                                  (json_int_t)trace->dropped, "rejected",
                                  (json_int_t)trace->rejected));
}

bl_status bl_run_print_json(const bl_run_job *job, const char *transport,
                            const bl_run_report *reports, const bl_recorder_totals *trace,
                            bl_error *err) {
    json_t *pids = json_array(), *resident = json_array();
    for (int g = 0; g < job->n_ranks; g++) {
        json_array_append_new(pids, json_integer(reports[g].pid));
        json_array_append_new(resident, json_integer((json_int_t)reports[g].resident_bytes));
    }
    json_t *root =
        json_pack("{s:s, s:i, s:s, s:s, s:o, s:o}", "model", job->model_name, "ranks", job->n_ranks,
                  "transport", transport, "rule", bl_rule_names[job->sharing.rule], "pids", pids,
                  "resident_bytes", resident);
    if (root == NULL)
        return bl_fail(err, BL_ERR_NOMEM, "out of memory");
    bl_status st = BL_OK;
    if (job->tokens == NULL) {
        add_texts(root, job, reports);
        add_throughput(root, job, reports);
        st = add_latency(root, job, reports, err);
    }
    if (st >= 0)
        st = add_steps(root, job, reports, err);
    if (st >= 0) {
        add_stages(root, job, reports);
        add_traffic(root, job, reports);
        if (trace->n_rings > 0)
            add_trace(root, trace);
        st = bl_json_write("-", root, 0, err);
    }
    json_decref(root);
    return st;
}

bl_status bl_run_print_prediction(const bl_run_job *job, const bl_run_report *reports,
                                  bl_error *err) {
    step_figures f;
    bl_run_prediction prediction = {0};
    bl_status st = take_figures(job, reports, &f, &prediction, err);
    if (st >= 0)
        bl_run_prediction_print(&prediction);
    bl_run_prediction_free(&prediction);
    free_figures(&f);
    return st;
}
