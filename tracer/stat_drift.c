#include "tracer/stat_drift.h"

#include "core/mem.h"
#include "tracer/stat_noise.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MAX_BYTES ((size_t)1 << 29)
#define LEAST_DRIFT 0.05 /* of the sampling variance: below this, deviations are taken for chance */

typedef struct window {
    uint64_t *count;  /* [n_layers][n_experts]; owned */
    uint64_t *tokens; /* [n_layers]; owned */
} window;

/* Step to step, of one layer. */
typedef struct step_sums {
    double distance, inverse_tokens; /* sums over pairs; 1 / tokens of both steps */
    uint64_t n;
} step_sums;

struct bl_stat_drift {
    const bl_trace_info *info;
    size_t cells; /* n_layers * n_experts */
    bool known;
    window
        windows[BL_DRIFT_WINDOWS]; /* the first n_windows hold steps, the last one maybe in part */
    int n_windows;
    uint64_t window_steps, in_last; /* steps of a full window; of the last */
    window all;
    uint64_t *last_count, *last_tokens; /* the step before */
    bool any_step;
    step_sums *steps; /* [n_layers] */
};

static bl_status window_create(const bl_stat_drift *d, window *out, bl_error *err) {
    BL_TRY(BL_CALLOC(out->count, d->cells, err));
    return BL_CALLOC(out->tokens, d->info->n_layers, err);
}

static void window_free(window *w) {
    free(w->count);
    free(w->tokens);
}

static bl_status create(bl_stat_drift *d, bl_error *err) {
    BL_TRY(window_create(d, &d->all, err));
    BL_TRY(BL_CALLOC(d->steps, d->info->n_layers, err));
    BL_TRY(BL_CALLOC(d->last_count, d->cells, err));
    return BL_CALLOC(d->last_tokens, d->info->n_layers, err);
}

bl_status bl_stat_drift_create(const bl_trace_info *info, bl_stat_drift **out_p, bl_error *err) {
    bl_stat_drift *d = NULL;
    BL_TRY(BL_CALLOC(d, 1, err));
    d->info = info;
    d->cells = (size_t)info->n_layers * (size_t)info->n_experts;
    d->known = d->cells <= MAX_BYTES / BL_DRIFT_WINDOWS / sizeof(uint64_t);
    d->window_steps = 1;
    const bl_status st = create(d, err);
    if (st < 0)
        bl_stat_drift_free(d);
    else
        *out_p = d;
    return st;
}

void bl_stat_drift_free(bl_stat_drift *d) {
    if (d == NULL)
        return;
    for (int i = 0; i < BL_DRIFT_WINDOWS; i++)
        window_free(&d->windows[i]);
    window_free(&d->all);
    free(d->last_count);
    free(d->last_tokens);
    free(d->steps);
    free(d);
}

/* ---- collecting ---------------------------------------------------------------------------- */

static void window_add(const bl_stat_drift *d, window *to, const uint64_t *count,
                       const uint64_t *tokens) {
    for (size_t i = 0; i < d->cells; i++)
        to->count[i] += count[i];
    for (int l = 0; l < d->info->n_layers; l++)
        to->tokens[l] += tokens[l];
}

static void window_clear(const bl_stat_drift *d, window *w) {
    memset(w->count, 0, d->cells * sizeof *w->count);
    memset(w->tokens, 0, (size_t)d->info->n_layers * sizeof *w->tokens);
}

/* All windows are full: join neighbours, so that half of them are free again. */
static void join_windows(bl_stat_drift *d) {
    for (int i = 0; i < BL_DRIFT_WINDOWS / 2; i++) {
        window kept = d->windows[2 * i], joined = d->windows[2 * i + 1];
        window_add(d, &kept, joined.count, joined.tokens);
        window_clear(d, &joined);
        d->windows[2 * i] = d->windows[i];
        d->windows[i] = kept;
        d->windows[2 * i + 1] = joined;
    }
    d->n_windows = BL_DRIFT_WINDOWS / 2;
    d->window_steps *= 2;
    d->in_last = d->window_steps;
}

static bl_status add_to_window(bl_stat_drift *d, const bl_step_counts *step, bl_error *err) {
    if (d->n_windows == 0 || d->in_last == d->window_steps) {
        if (d->n_windows == BL_DRIFT_WINDOWS)
            join_windows(d);
        window *fresh = &d->windows[d->n_windows];
        if (fresh->count == NULL)
            BL_TRY(window_create(d, fresh, err));
        d->n_windows++;
        d->in_last = 0;
    }
    window_add(d, &d->windows[d->n_windows - 1], step->count, step->tokens);
    d->in_last++;
    return BL_OK;
}

/* Total-variation distance of two rows of counts; NaN when one is empty. */
static double distance(const uint64_t *a, const uint64_t *b, size_t n) {
    double sum_a = 0.0, sum_b = 0.0, sum = 0.0;
    for (size_t e = 0; e < n; e++) {
        sum_a += (double)a[e];
        sum_b += (double)b[e];
    }
    if (!(sum_a > 0.0 && sum_b > 0.0))
        return NAN;
    const double by_a = 1.0 / sum_a, by_b = 1.0 / sum_b;
    for (size_t e = 0; e < n; e++)
        sum += fabs((double)a[e] * by_a - (double)b[e] * by_b);
    return sum / 2.0;
}

static void compare_with_last(bl_stat_drift *d, const bl_step_counts *step) {
    const size_t n = (size_t)d->info->n_experts;
    for (size_t l = 0; l < (size_t)d->info->n_layers; l++) {
        if (d->last_tokens[l] == 0 || step->tokens[l] == 0)
            continue;
        const double far = distance(d->last_count + l * n, step->count + l * n, n);
        if (isnan(far))
            continue;
        d->steps[l].distance += far;
        d->steps[l].inverse_tokens +=
            1.0 / (double)d->last_tokens[l] + 1.0 / (double)step->tokens[l];
        d->steps[l].n++;
    }
}

bl_status bl_stat_drift_step(bl_stat_drift *d, const bl_step_counts *step, bl_error *err) {
    window_add(d, &d->all, step->count, step->tokens);
    if (d->any_step)
        compare_with_last(d, step);
    d->any_step = true;
    memcpy(d->last_count, step->count, d->cells * sizeof *d->last_count);
    memcpy(d->last_tokens, step->tokens, (size_t)d->info->n_layers * sizeof *d->last_tokens);
    return d->known ? add_to_window(d, step, err) : BL_OK;
}

/* ---- figures ------------------------------------------------------------------------------- */

static void judge_steps(const bl_stat_drift *d, bl_drift_result *out) {
    const size_t n = (size_t)d->info->n_experts;
    double distances = 0.0, noises = 0.0, layers = 0.0;
    for (size_t l = 0; l < (size_t)d->info->n_layers; l++) {
        const step_sums *sums = &d->steps[l];
        bl_drift_lag *told = &out->layers[l];
        *told = (bl_drift_lag){sums->n, NAN, NAN};
        if (sums->n == 0)
            continue;
        told->distance = sums->distance / (double)sums->n;
        told->noise = bl_noise_distance(d->all.count + l * n, (int)n, (double)d->all.tokens[l],
                                        2.0 * (double)sums->n / sums->inverse_tokens);
        distances += told->distance;
        noises += told->noise;
        layers += 1.0;
    }
    out->step_distance = layers > 0.0 ? distances / layers : NAN;
    out->step_noise = layers > 0.0 ? noises / layers : NAN;
}

/* Mean distance over layers and pairs of windows at a lag, and that of chance. */
static void judge_lag(const bl_stat_drift *d, int n_windows, int lag, bl_drift_lag *out) {
    const size_t n = (size_t)d->info->n_experts;
    double distances = 0.0, noises = 0.0, pairs = 0.0;
    for (size_t l = 0; l < (size_t)d->info->n_layers; l++) {
        double of_layer = 0.0, inverse = 0.0, n_pairs = 0.0;
        for (int t = 0; t + lag < n_windows; t++) {
            const window *a = &d->windows[t], *b = &d->windows[t + lag];
            const double far = distance(a->count + l * n, b->count + l * n, n);
            if (isnan(far) || a->tokens[l] == 0 || b->tokens[l] == 0)
                continue;
            of_layer += far;
            inverse += 1.0 / (double)a->tokens[l] + 1.0 / (double)b->tokens[l];
            n_pairs += 1.0;
        }
        if (n_pairs == 0.0)
            continue;
        distances += of_layer;
        pairs += n_pairs;
        noises += n_pairs * bl_noise_distance(d->all.count + l * n, (int)n,
                                              (double)d->all.tokens[l], 2.0 * n_pairs / inverse);
    }
    out->distance = pairs > 0.0 ? distances / pairs : NAN;
    out->noise = pairs > 0.0 ? noises / pairs : NAN;
}

/* deviation[n_windows][n_experts] of one layer from its mean over windows; NaN rows without load.
 * Returns the mean sampling variance of a row. */
static double deviations(const bl_stat_drift *d, int n_windows, size_t l, double *deviation) {
    const size_t n = (size_t)d->info->n_experts;
    double variance = 0.0, rows = 0.0;
    for (int t = 0; t < n_windows; t++) {
        const uint64_t *count = d->windows[t].count + l * n;
        double *row = deviation + (size_t)t * n, sum = 0.0;
        for (size_t e = 0; e < n; e++)
            sum += (double)count[e];
        const bool loaded = sum > 0.0 && d->windows[t].tokens[l] > 0;
        for (size_t e = 0; e < n; e++)
            row[e] = loaded ? (double)count[e] / sum : NAN;
        if (!loaded)
            continue;
        rows += 1.0;
        variance += bl_noise_variance(d->all.count + l * n, (int)n, (double)d->all.tokens[l],
                                      (double)d->windows[t].tokens[l]);
    }
    for (size_t e = 0; e < n && rows > 0.0; e++) {
        double mean = 0.0;
        for (int t = 0; t < n_windows; t++)
            mean += isnan(deviation[(size_t)t * n]) ? 0.0 : deviation[(size_t)t * n + e] / rows;
        for (int t = 0; t < n_windows; t++) {
            if (!isnan(deviation[(size_t)t * n]))
                deviation[(size_t)t * n + e] -= mean;
        }
    }
    return rows > 0.0 ? variance / rows : 0.0;
}

/* Mean over t of <d_t, d_(t + lag)> for one layer, added to products[lag]. */
static void add_products(const double *deviation, int n_windows, size_t n, int n_lags,
                         double *products) {
    for (int lag = 0; lag < n_lags; lag++) {
        double sum = 0.0, pairs = 0.0;
        for (int t = 0; t + lag < n_windows; t++) {
            const double *a = deviation + (size_t)t * n, *b = a + (size_t)lag * n;
            if (isnan(a[0]) || isnan(b[0]))
                continue;
            for (size_t e = 0; e < n; e++)
                sum += a[e] * b[e];
            pairs += 1.0;
        }
        products[lag] += pairs > 0.0 ? sum / pairs : 0.0;
    }
}

static void find_half(const double *products, int n_lags, double noise, double window_steps,
                      bl_drift_result *out) {
    const double drift = products[0] - noise;
    if (drift < LEAST_DRIFT * noise || !(drift > 0.0)) {
        out->half_life = BL_HALF_LIFE_NO_DRIFT;
        return;
    }
    double before = 1.0;
    for (int lag = 1; lag < n_lags; lag++) {
        const double r = products[lag] / drift;
        if (r <= 0.5) {
            const double part = before > r ? (before - 0.5) / (before - r) : 0.0;
            out->half_life = BL_HALF_LIFE_MEASURED;
            out->half_life_steps = (lag - 1 + part) * window_steps;
            return;
        }
        before = r;
    }
    out->half_life = BL_HALF_LIFE_LONGER;
    out->half_life_steps = (n_lags - 1) * window_steps;
}

static bl_status judge_half_life(const bl_stat_drift *d, int n_windows, bl_drift_result *out,
                                 bl_error *err) {
    const size_t n = (size_t)d->info->n_experts;
    double products[BL_DRIFT_WINDOWS] = {0}, noise = 0.0, *deviation = NULL;
    const int n_lags = n_windows / 2 + 1;
    if (n_windows < BL_DRIFT_MIN_WINDOWS)
        return BL_OK;
    BL_TRY(BL_CALLOC(deviation, (size_t)n_windows * n, err));
    for (size_t l = 0; l < (size_t)d->info->n_layers; l++) {
        noise += deviations(d, n_windows, l, deviation);
        add_products(deviation, n_windows, n, n_lags, products);
    }
    free(deviation);
    find_half(products, n_lags, noise, (double)d->window_steps, out);
    return BL_OK;
}

bl_status bl_stat_drift_finish(bl_stat_drift *d, bl_drift_result *out, bl_error *err) {
    int n_windows = d->n_windows;
    if (n_windows > 0 && d->in_last < d->window_steps)
        n_windows--;
    *out = (bl_drift_result){.known = d->known,
                             .window_steps = d->window_steps,
                             .n_windows = n_windows,
                             .half_life = BL_HALF_LIFE_NOT_ENOUGH,
                             .half_life_steps = NAN};
    BL_TRY(BL_CALLOC(out->layers, d->info->n_layers, err));
    judge_steps(d, out);
    for (int lag = 1; lag <= n_windows / 2 && out->n_lags < BL_DRIFT_MAX_LAGS; lag *= 2) {
        bl_drift_lag *told = &out->lags[out->n_lags++];
        told->steps = (uint64_t)lag * d->window_steps;
        judge_lag(d, n_windows, lag, told);
    }
    return judge_half_life(d, n_windows, out, err);
}

void bl_drift_result_free(bl_drift_result *result) {
    free(result->layers);
    *result = (bl_drift_result){0};
}
