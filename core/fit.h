/*
 * fit.h: constants out of measurements that cannot be trusted one by one.
 *
 *     y  =  value[0] x[0]  +  value[1] x[1]  +  ...          value >= 0
 *
 * y is a time, the x are what was done in it (rows multiplied, bytes sent, 1 for what happens every
 * time), and the values are what one of each costs. Costs are not negative. Times are skewed: a
 * processor that was taken away for 3 ms turns 40 us into 3 ms. So the sum of *absolute* errors is
 * minimised, on which a measurement pulls no harder for being far off. And a step of a hundred times
 * the rows is expected to be off by a hundred times as much, so errors count in parts of the work: of
 * the largest x of a measurement, each beside its own median.
 *
 * Not every set of measurements tells every value, and one that does not is a number from nowhere.
 * Terms are given in the order of their importance, and a term is left out, with the reason, when
 *
 *     absent    its x is 0 throughout
 *     tied      its x follows from those of the terms before it (1 % of its length does not): only
 *               the sum of their costs can be told, and the terms before it carry it
 *     noisy     the standard error of what it costs exceeds a tenth of the typical y, and of that
 *               cost itself
 *
 *     rows  experts   us                rows  experts   us
 *      10      10     30                 10       5     25      "experts" is tied to "rows" on the
 *      20      20     60                 20      20     60      left: any split of 3 us explains the
 *      40      40    120                 40       8     88      figures. On the right 2 and 1 do.
 *
 * Pure: no clock, no memory between calls, the same input gives the same bits.
 *
 * How. Weighted least squares over all sets of values that are not 0 (there are few terms, so all
 * sets are tried, which solves the non-negative problem exactly), reweighted by one over the last
 * error until nothing changes. Standard errors are those of a median regression with errors that
 * are normal in the middle.
 */
#ifndef BL_CORE_FIT_H
#define BL_CORE_FIT_H

#include "core/status.h"

#include <stddef.h>

#define BL_FIT_MAX_TERMS 6
#define BL_FIT_LEAST 8 /* measurements for each term */

typedef enum bl_fit_verdict {
    BL_FIT_TOLD,
    BL_FIT_ABSENT,
    BL_FIT_TIED,
    BL_FIT_NOISY
} bl_fit_verdict;

typedef struct bl_fit_term {
    double value; /* 0 unless told; a cost that is told may be 0 */
    double error; /* its standard error */
    bl_fit_verdict verdict;
} bl_fit_term;

typedef struct bl_fit {
    int n_terms;
    size_t n; /* measurements */
    bl_fit_term term[BL_FIT_MAX_TERMS];
} bl_fit;

/* x[n][n_terms], y[n]. BL_ERR_RANGE: fewer than BL_FIT_LEAST measurements for each term, or one that
 * is not a number. That terms are not told is no error. */
bl_status bl_fit_costs(const double *x, const double *y, size_t n, int n_terms, bl_fit *out,
                       bl_error *err);

/* y of one measurement, x[n_terms]. */
double bl_fit_at(const bl_fit *fit, const double *x);

/* "is told", "never happened", ...: behind the name of a term. */
const char *bl_fit_verdict_text(bl_fit_verdict verdict);

/* How predictions compare with what was measured. */
typedef struct bl_fit_errors {
    size_t n;
    double measured, predicted;         /* medians */
    double measured_p95, predicted_p95; /* 95th percentiles */
    double median_error, p95_error;     /* of |predicted - measured| / measured */
    double total_error;                 /* of the sums: (predicted - measured) / measured */
} bl_fit_errors;

/* Pairs whose measured value is not above 0 are left out. */
bl_status bl_fit_compare(const double *predicted, const double *measured, size_t n,
                         bl_fit_errors *out, bl_error *err);

#endif
