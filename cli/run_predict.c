#include "cli/run_predict.h"

#include "cli/calibration.h"
#include "core/mem.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define LEAST_STEPS 50 /* to fit to, and as many to predict */

static const char *const REST_NAMES[] = {"token", "step", "attended", NULL};

/* What the prediction is made in. */
typedef struct predictor {
    const bl_run_job *job;
    const bl_run_report *reports;
    const double *step_s;
    size_t n_logged, n_steps, n_timed; /* steps; told by all ranks; of those, with layers' times */
    bl_model model;
    bl_topology topology; /* its own, where the run has none */
    const bl_topology *where;
    bl_cost *cost;
    double *rows, *active; /* [n_ranks] scratch */
    bl_samples samples;
} predictor;

static void free_predictor(predictor *p) {
    bl_samples_free(&p->samples);
    bl_cost_free(p->cost);
    bl_topology_free(&p->topology);
    bl_model_free(&p->model);
    free(p->rows);
}

/* Steps that all ranks tell of, from the first on: one that joined later has not seen it. */
static void count_steps(predictor *p) {
    size_t n = 0;
    for (bool same = true; same && n < p->n_steps; n += same)
        for (int g = 0; g < p->job->n_ranks; g++)
            same = same && n < p->reports[g].log.n_steps &&
                   p->reports[g].log.steps[n].step == p->reports[0].log.steps[n].step;
    p->n_steps = p->n_timed = n;
    for (int g = 0; g < p->job->n_ranks; g++)
        p->n_timed =
            p->reports[g].log.n_timed < p->n_timed ? p->reports[g].log.n_timed : p->n_timed;
}

static bl_status open_predictor(predictor *p, bl_error *err) {
    char path[4096];
    const int n_ranks = p->job->n_ranks;
    snprintf(path, sizeof path, "%s/config.json", p->job->model_dir);
    BL_TRY(bl_model_load(path, &p->model, err));
    p->where = &p->job->topology;
    if (!p->job->has_topology) {
        char spec[64];
        snprintf(spec, sizeof spec, "local:ranks=%d", n_ranks);
        BL_TRY(bl_topology_open(spec, &p->topology, err));
        p->where = &p->topology;
    }
    BL_TRY(bl_cost_create(&p->model, p->where, n_ranks, &p->cost, err));
    BL_TRY(BL_CALLOC(p->rows, 2 * (size_t)n_ranks, err));
    p->active = p->rows + n_ranks;
    bl_samples_init(p->cost, n_ranks, &p->samples);
    count_steps(p);
    return BL_OK;
}

static bool is_moving(const predictor *p, size_t step) {
    return (p->reports[0].log.steps[step].flags & BL_NOTE_BUSY) != 0;
}

static bl_status add_samples(predictor *p, bl_error *err) {
    const int n_ranks = p->job->n_ranks, n_layers = p->job->config.n_layers;
    bl_rank_times *times;
    bl_status st = BL_CALLOC(times, n_ranks, err);
    for (size_t step = 0; step < p->n_timed; step++) {
        for (int layer = 0; layer < n_layers && st >= 0 && !is_moving(p, step); layer++) {
            const size_t at = step * (size_t)n_layers + (size_t)layer;
            for (int g = 0; g < n_ranks; g++) {
                const bl_serve_log *log = &p->reports[g].log;
                const bl_layer_times *t = &log->times[at];
                times[g] = (bl_rank_times){.rows = log->rows[at],
                                           .active = log->active[at],
                                           .dispatch_s = 1e-9 * t->dispatch_ns,
                                           .experts_s = 1e-9 * t->experts_ns,
                                           .combine_s = 1e-9 * t->combine_ns};
            }
            st = bl_samples_add(&p->samples, step, times, err);
        }
    }
    free(times);
    return st;
}

/* The cost model's part of a step. */
static double layers_s(const predictor *p, const bl_calibration *calibration, size_t step) {
    const int n_ranks = p->job->n_ranks, n_layers = p->job->config.n_layers;
    double sum = 0.0;
    for (int layer = 0; layer < n_layers; layer++) {
        const size_t at = step * (size_t)n_layers + (size_t)layer;
        double rows = 0.0;
        for (int g = 0; g < n_ranks; g++) {
            p->rows[g] = p->reports[g].log.rows[at];
            p->active[g] = p->reports[g].log.active[at];
            rows += p->rows[g];
        }
        if (rows > 0.0)
            sum += bl_calibration_layer_s(calibration, p->where, p->rows, p->active, n_ranks,
                                          bl_cost_wire_s(p->cost, p->rows));
    }
    return sum;
}

/* What else a step does: of the rank that does most. */
static void rest_of(const predictor *p, size_t step, double *x) {
    x[BL_TERM_TOKEN] = x[BL_TERM_ATTENDED] = 0.0;
    x[BL_TERM_STEP] = 1.0;
    for (int g = 0; g < p->job->n_ranks; g++) {
        const bl_step_record *record = &p->reports[g].log.steps[step];
        x[BL_TERM_TOKEN] = fmax(x[BL_TERM_TOKEN], (double)record->n_tokens);
        x[BL_TERM_ATTENDED] = fmax(x[BL_TERM_ATTENDED], (double)record->attended);
    }
}

static bl_status fit_rest(const predictor *p, bl_run_prediction *out, bl_error *err) {
    const size_t end = (size_t)out->calibration.from;
    double *x, *y;
    size_t n = 0;
    BL_TRY(BL_CALLOC(x, end * (BL_N_REST_TERMS + 1), err));
    y = x + end * BL_N_REST_TERMS;
    for (size_t step = 0; step < end; step++) {
        if (is_moving(p, step))
            continue;
        rest_of(p, step, x + n * BL_N_REST_TERMS);
        y[n++] = p->step_s[step] - layers_s(p, &out->calibration, step);
    }
    out->n_fitted = n;
    const bl_status st = bl_fit_costs(x, y, n, BL_N_REST_TERMS, &out->rest, err);
    free(x);
    return st;
}

static bl_status predict_steps(const predictor *p, bl_run_prediction *out, bl_error *err) {
    double *pairs;
    size_t n = 0;
    BL_TRY(BL_CALLOC(out->predicted_s, p->n_logged, err));
    BL_TRY(BL_CALLOC(pairs, 2 * p->n_steps, err));
    double *said = pairs, *was = pairs + p->n_steps;
    for (size_t step = 0; step < p->n_logged; step++)
        out->predicted_s[step] = (double)NAN;
    for (size_t step = 0; step < p->n_steps; step++) {
        double x[BL_N_REST_TERMS];
        if (step < out->calibration.from || is_moving(p, step))
            continue;
        rest_of(p, step, x);
        out->predicted_s[step] = layers_s(p, &out->calibration, step) + bl_fit_at(&out->rest, x);
        said[n] = out->predicted_s[step];
        was[n++] = p->step_s[step];
    }
    const bl_status st = bl_fit_compare(said, was, n, &out->step, err);
    free(pairs);
    return st;
}

/* The slowest rank's experts by the topology's own constants. How rows are shared among a rank's experts
 * is not logged: where the longer of reading and multiplying counts, it is that of the sums. */
static double given_experts_s(const predictor *p, const double *rows, const double *active) {
    const bl_cost_rates *r = bl_cost_rates_of(p->cost);
    double slowest = 0.0;
    for (int g = 0; g < r->n_ranks; g++) {
        const double read = active[g] * r->weights_s[g], multiply = rows[g] * r->row_s[g];
        slowest = fmax(slowest, r->apart[g] ? read + multiply : fmax(read, multiply));
    }
    return slowest;
}

static bl_status try_topology(const predictor *p, bl_run_prediction *out, bl_error *err) {
    const bl_samples *s = &p->samples;
    const size_t n_ranks = (size_t)s->n_ranks;
    double *pairs;
    size_t n = 0;
    if (!p->job->has_topology)
        return BL_OK;
    BL_TRY(BL_CALLOC(pairs, 2 * s->n, err));
    for (size_t i = 0; i < s->n; i++) {
        if (s->step[i] < out->calibration.from)
            continue;
        double slowest = 0.0;
        for (size_t g = 0; g < n_ranks; g++)
            slowest = fmax(slowest, s->seconds[i * n_ranks + g]);
        pairs[n] = bl_cost_rates_of(p->cost)->fixed_s + s->wire_s[i] +
                   given_experts_s(p, s->rows + i * n_ranks, s->active + i * n_ranks);
        pairs[s->n + n++] = s->exchange_s[i] + slowest;
    }
    const bl_status st = bl_fit_compare(pairs, pairs + s->n, n, &out->given, err);
    free(pairs);
    return st;
}

static bl_status predict(predictor *p, bl_run_prediction *out, bl_error *err) {
    BL_TRY(open_predictor(p, err));
    if (p->n_timed < 2 * LEAST_STEPS)
        return bl_fail(err, BL_ERR_RANGE, "%zu steps are too few to fit costs to; %d are needed",
                       p->n_timed, 2 * LEAST_STEPS);
    BL_TRY(add_samples(p, err));
    BL_TRY(bl_calibrate(&p->samples, p->where, &out->calibration, err));
    BL_TRY(fit_rest(p, out, err));
    BL_TRY(try_topology(p, out, err));
    return predict_steps(p, out, err);
}

bl_status bl_run_predict(const bl_run_job *job, const bl_run_report *reports, const double *step_s,
                         size_t n_steps, bl_run_prediction *out, bl_error *err) {
    predictor p = {
        .job = job, .reports = reports, .step_s = step_s, .n_logged = n_steps, .n_steps = n_steps};
    bl_run_prediction made = {.made = true};
    bl_error why = BL_ERROR_INIT;
    const bl_status st = predict(&p, &made, &why);
    free_predictor(&p);
    if (st < 0) {
        bl_run_prediction_free(&made);
        snprintf(made.why_not, sizeof made.why_not, "%.159s", why.text);
    }
    if (st == BL_ERR_NOMEM) {
        if (err != NULL)
            *err = why;
        return st;
    }
    *out = made;
    return BL_OK;
}

void bl_run_prediction_free(bl_run_prediction *prediction) {
    bl_calibration_free(&prediction->calibration);
    free(prediction->predicted_s);
    *prediction = (bl_run_prediction){0};
}

/* ---- telling it ---------------------------------------------------------------------------- */

json_t *bl_run_prediction_json(const bl_run_prediction *p) {
    if (!p->made)
        return json_pack("{s:i, s:s}", "n", 0, "why", p->why_not);
    json_t *made = bl_errors_json(&p->step), *constants = bl_calibration_json(&p->calibration);
    json_object_set_new(constants, "rest_us", bl_fit_json(&p->rest, REST_NAMES));
    json_object_set_new(made, "fitted_steps", json_integer((json_int_t)p->n_fitted));
    json_object_set_new(made, "layer", bl_errors_json(&p->calibration.layer));
    json_object_set_new(made, "experts", bl_errors_json(&p->calibration.expert_errors));
    json_object_set_new(made, "exchanges", bl_errors_json(&p->calibration.exchange_errors));
    if (p->given.n > 0)
        json_object_set_new(made, "by_topology", bl_errors_json(&p->given));
    json_object_set_new(made, "constants", constants);
    return made;
}

void bl_run_prediction_print(const bl_run_prediction *p) {
    char line[320];
    if (!p->made || p->step.n == 0)
        return;
    fprintf(stderr, "ballast run: a step: %s\n",
            bl_errors_text(&p->step, "steps", line, sizeof line));
    fprintf(stderr, "ballast run: an MoE layer: %s; costs fitted to the %zu steps before\n",
            bl_errors_text(&p->calibration.layer, "layers", line, sizeof line), p->n_fitted);
    if (p->given.n > 0)
        fprintf(stderr, "ballast run: an MoE layer by the topology's constants: %s\n",
                bl_errors_text(&p->given, "layers", line, sizeof line));
}
