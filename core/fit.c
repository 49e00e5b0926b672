#include "core/fit.h"

#include "core/mem.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

#define MAX BL_FIT_MAX_TERMS
#define TIED 1e-4 /* squared: of a term's length, what the terms before it leave */
#define MAX_SHARE 0.1
#define MAX_ROUNDS 200
#define SETTLED 1e-10    /* change of the values, in parts of the typical y */
#define LEAST_ERROR 1e-9 /* in parts of the typical y: weights stay finite */
/* A median's standard error over a mean's, and a standard deviation over a median error. */
#define OF_MEDIAN 1.2533141373155
#define OF_DEVIATION 1.4826022185056

/* Terms scaled to length 1 (root of the mean square), those that were left out skipped. */
typedef struct fitter {
    const double *x, *y;
    size_t n;
    int n_terms;
    double *size; /* [n] what a measurement was about, beside a usual one */
    double length[MAX];
    int used[MAX], n_used; /* terms in play, ascending */
    double value[MAX];     /* of the terms used, scaled */
    double typical;        /* median of |y| */
    double *error;         /* [n] */
    double *scratch;       /* [n] */
} fitter;

static int ascending(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double quantile(double *values, size_t n, double part) {
    const size_t at = (size_t)(part * (double)n);
    qsort(values, n, sizeof *values, ascending);
    return values[at < n ? at : n - 1];
}

/* The median, or the mean where most are 0. */
static double typical_of(double *values, size_t n) {
    const double median = quantile(values, n, 0.5);
    double sum = 0.0;
    for (size_t i = 0; i < n; i++)
        sum += values[i];
    return median > 0.0 ? median : sum / (double)n;
}

static double x_at(const fitter *f, size_t i, int u) {
    return f->x[i * (size_t)f->n_terms + (size_t)f->used[u]] / f->length[f->used[u]] / f->size[i];
}

static double y_at(const fitter *f, size_t i) {
    return f->y[i] / f->size[i];
}

/* ---- small systems ------------------------------------------------------------------------- */

/* a x = b by Cholesky, a[n][n] symmetric and destroyed. False where a pivot is not above `least`. */
static bool solve(double a[MAX][MAX], const double *b, int n, double least, double *x) {
    for (int j = 0; j < n; j++) {
        for (int k = 0; k < j; k++)
            a[j][j] -= a[j][k] * a[j][k];
        if (!(a[j][j] > least))
            return false;
        a[j][j] = sqrt(a[j][j]);
        for (int i = j + 1; i < n; i++) {
            for (int k = 0; k < j; k++)
                a[i][j] -= a[i][k] * a[j][k];
            a[i][j] /= a[j][j];
        }
    }
    for (int i = 0; i < n; i++) {
        x[i] = b[i];
        for (int k = 0; k < i; k++)
            x[i] -= a[i][k] * x[k];
        x[i] /= a[i][i];
    }
    for (int i = n - 1; i >= 0; i--) {
        for (int k = i + 1; k < n; k++)
            x[i] -= a[k][i] * x[k];
        x[i] /= a[i][i];
    }
    return true;
}

/* Least squares x' g x / 2 - r x over x >= 0: of all sets of terms that are not 0, the one whose
 * own solution is not negative and lowest. */
static void solve_nonnegative(double g[MAX][MAX], const double *r, int n, double *x) {
    double best = 0.0;
    for (int u = 0; u < n; u++)
        x[u] = 0.0;
    for (unsigned set = 1; set < 1u << n; set++) {
        double a[MAX][MAX], b[MAX], trial[MAX], value = 0.0;
        int at[MAX], m = 0;
        for (int u = 0; u < n; u++)
            if ((set >> u & 1u) != 0)
                at[m++] = u;
        for (int i = 0; i < m; i++) {
            b[i] = r[at[i]];
            for (int k = 0; k < m; k++)
                a[i][k] = g[at[i]][at[k]];
        }
        bool fits = solve(a, b, m, 0.0, trial);
        for (int i = 0; i < m && fits; i++) {
            fits = trial[i] >= 0.0;
            value -= trial[i] * b[i] / 2.0;
        }
        if (!fits || !(value < best))
            continue;
        best = value;
        for (int u = 0; u < n; u++)
            x[u] = 0.0;
        for (int i = 0; i < m; i++)
            x[at[i]] = trial[i];
    }
}

/* Sums over measurements of w x x' (per unit of weight) and w x y; all weights 1 without `weight`. */
static void gather(const fitter *f, const double *weight, double g[MAX][MAX], double *r) {
    double total = 0.0;
    for (int u = 0; u < f->n_used; u++) {
        r[u] = 0.0;
        for (int v = 0; v < f->n_used; v++)
            g[u][v] = 0.0;
    }
    for (size_t i = 0; i < f->n; i++) {
        const double w = weight != NULL ? weight[i] : 1.0;
        total += w;
        for (int u = 0; u < f->n_used; u++) {
            const double wx = w * x_at(f, i, u);
            r[u] += wx * y_at(f, i);
            for (int v = 0; v <= u; v++)
                g[u][v] += wx * x_at(f, i, v);
        }
    }
    for (int u = 0; u < f->n_used; u++) {
        r[u] /= total;
        for (int v = 0; v <= u; v++)
            g[v][u] = g[u][v] /= total;
    }
}

/* ---- the fit ------------------------------------------------------------------------------- */

static void take_errors(fitter *f) {
    for (size_t i = 0; i < f->n; i++) {
        f->error[i] = y_at(f, i);
        for (int u = 0; u < f->n_used; u++)
            f->error[i] -= f->value[u] * x_at(f, i, u);
    }
}

static void minimise(fitter *f) {
    double g[MAX][MAX], r[MAX], next[MAX];
    const double least = LEAST_ERROR * f->typical;
    for (int u = 0; u < f->n_used; u++)
        f->value[u] = 0.0;
    for (size_t i = 0; i < f->n; i++) /* as if every measurement were off by its size */
        f->scratch[i] = 1.0 / fmax(fabs(y_at(f, i)), f->typical);
    for (int round = 0; round < MAX_ROUNDS; round++) {
        double change = 0.0;
        gather(f, f->scratch, g, r);
        solve_nonnegative(g, r, f->n_used, next);
        for (int u = 0; u < f->n_used; u++) {
            change = fmax(change, fabs(next[u] - f->value[u]));
            f->value[u] = next[u];
        }
        take_errors(f);
        if (change <= SETTLED * f->typical)
            break;
        for (size_t i = 0; i < f->n; i++)
            f->scratch[i] = 1.0 / fmax(fabs(f->error[i]), least);
    }
}

/* Terms that are there and do not follow from those before them. */
static void choose_terms(fitter *f, bl_fit *out) {
    double g[MAX][MAX], r[MAX], x[MAX];
    for (int j = 0; j < f->n_terms; j++) {
        double sum = 0.0;
        for (size_t i = 0; i < f->n; i++) {
            const double value = f->x[i * (size_t)f->n_terms + (size_t)j] / f->size[i];
            sum += value * value;
        }
        f->length[j] = sqrt(sum / (double)f->n);
        out->term[j] = (bl_fit_term){.verdict = BL_FIT_ABSENT};
        if (!(f->length[j] > 0.0))
            continue;
        f->used[f->n_used++] = j;
        gather(f, NULL, g, r);
        const bool apart = solve(g, r, f->n_used, TIED, x);
        out->term[j].verdict = apart ? BL_FIT_TOLD : BL_FIT_TIED;
        f->n_used -= apart ? 0 : 1;
    }
}

/* The largest x of each measurement in units of the median of those that are not 0. */
static void take_sizes(fitter *f) {
    for (size_t i = 0; i < f->n; i++)
        f->size[i] = 0.0;
    for (size_t j = 0; j < (size_t)f->n_terms; j++) {
        size_t kept = 0;
        for (size_t i = 0; i < f->n; i++) {
            const double value = fabs(f->x[i * (size_t)f->n_terms + j]);
            if (value > 0.0)
                f->scratch[kept++] = value;
        }
        const double usual = kept > 0 ? quantile(f->scratch, kept, 0.5) : 1.0;
        for (size_t i = 0; i < f->n; i++)
            f->size[i] = fmax(f->size[i], fabs(f->x[i * (size_t)f->n_terms + j]) / usual);
    }
    for (size_t i = 0; i < f->n; i++) /* nothing was done at all */
        f->size[i] = f->size[i] > 0.0 ? f->size[i] : 1.0;
}

/* The scaled values' standard errors; their lengths are 1, so these are also errors of y. */
static void judge(fitter *f, double *deviation) {
    double g[MAX][MAX], r[MAX];
    for (size_t i = 0; i < f->n; i++)
        f->scratch[i] = fabs(f->error[i]);
    const double sigma = OF_DEVIATION * quantile(f->scratch, f->n, 0.5);
    gather(f, NULL, g, r);
    for (int u = 0; u < f->n_used; u++) {
        double a[MAX][MAX], unit[MAX] = {0}, column[MAX];
        for (int i = 0; i < f->n_used; i++)
            for (int k = 0; k < f->n_used; k++)
                a[i][k] = g[i][k];
        unit[u] = 1.0;
        const bool apart = solve(a, unit, f->n_used, 0.0, column);
        deviation[u] = apart ? OF_MEDIAN * sigma * sqrt(column[u] / (double)f->n) : INFINITY;
    }
}

static void fit_terms(fitter *f, bl_fit *out) {
    double deviation[MAX];
    while (f->n_used > 0) {
        int noisy = -1;
        minimise(f);
        judge(f, deviation);
        for (int u = 0; u < f->n_used; u++)
            if (deviation[u] > MAX_SHARE * fmax(f->typical, f->value[u]))
                noisy = u;
        if (noisy < 0)
            break;
        out->term[f->used[noisy]].verdict = BL_FIT_NOISY;
        for (int u = noisy; u + 1 < f->n_used; u++)
            f->used[u] = f->used[u + 1];
        f->n_used--;
    }
    for (int u = 0; u < f->n_used; u++) {
        bl_fit_term *term = &out->term[f->used[u]];
        term->value = f->value[u] / f->length[f->used[u]];
        term->error = deviation[u] / f->length[f->used[u]];
    }
}

static bl_status check(const double *x, const double *y, size_t n, int n_terms, bl_error *err) {
    assert(n_terms > 0 && n_terms <= MAX);
    if (n < (size_t)n_terms * BL_FIT_LEAST)
        return bl_fail(err, BL_ERR_RANGE, "%zu measurements do not tell %d costs; %d are needed", n,
                       n_terms, n_terms * BL_FIT_LEAST);
    for (size_t i = 0; i < n; i++) {
        bool finite = isfinite(y[i]);
        for (int j = 0; j < n_terms; j++)
            finite = finite && isfinite(x[i * (size_t)n_terms + (size_t)j]);
        if (!finite)
            return bl_fail(err, BL_ERR_RANGE, "measurement %zu is not a number", i);
    }
    return BL_OK;
}

bl_status bl_fit_costs(const double *x, const double *y, size_t n, int n_terms, bl_fit *out,
                       bl_error *err) {
    BL_TRY(check(x, y, n, n_terms, err));
    fitter f = {.x = x, .y = y, .n = n, .n_terms = n_terms};
    bl_status st = BL_CALLOC(f.size, n, err);
    if (st >= 0)
        st = BL_CALLOC(f.error, n, err);
    if (st >= 0)
        st = BL_CALLOC(f.scratch, n, err);
    if (st >= 0) {
        bl_fit fit = {.n_terms = n_terms, .n = n};
        take_sizes(&f);
        for (size_t i = 0; i < n; i++)
            f.scratch[i] = fabs(y_at(&f, i));
        f.typical = typical_of(f.scratch, n);
        choose_terms(&f, &fit);
        if (f.typical > 0.0)
            fit_terms(&f, &fit);
        *out = fit;
    }
    free(f.size);
    free(f.error);
    free(f.scratch);
    return st;
}

double bl_fit_at(const bl_fit *fit, const double *x) {
    double sum = 0.0;
    for (int j = 0; j < fit->n_terms; j++)
        sum += fit->term[j].value * x[j];
    return sum;
}

const char *bl_fit_verdict_text(bl_fit_verdict verdict) {
    static const char *const texts[] = {"is told", "never happened",
                                        "cannot be told from the others: only their sum can",
                                        "is lost in the noise"};
    return texts[verdict];
}

/* ---- predictions --------------------------------------------------------------------------- */

bl_status bl_fit_compare(const double *predicted, const double *measured, size_t n,
                         bl_fit_errors *out, bl_error *err) {
    double *scratch, sum_predicted = 0.0, sum_measured = 0.0;
    size_t kept = 0;
    BL_TRY(BL_CALLOC(scratch, 3 * n, err));
    double *was = scratch, *said = scratch + n, *error = scratch + 2 * n;
    for (size_t i = 0; i < n; i++) {
        if (!(measured[i] > 0.0))
            continue;
        was[kept] = measured[i];
        said[kept] = predicted[i];
        error[kept] = fabs(predicted[i] - measured[i]) / measured[i];
        sum_measured += measured[i];
        sum_predicted += predicted[i];
        kept++;
    }
    *out = (bl_fit_errors){.n = kept};
    if (kept > 0)
        *out = (bl_fit_errors){.n = kept,
                               .measured = quantile(was, kept, 0.5),
                               .measured_p95 = quantile(was, kept, 0.95),
                               .predicted = quantile(said, kept, 0.5),
                               .predicted_p95 = quantile(said, kept, 0.95),
                               .median_error = quantile(error, kept, 0.5),
                               .p95_error = quantile(error, kept, 0.95),
                               .total_error = sum_predicted / sum_measured - 1.0};
    free(scratch);
    return BL_OK;
}
