#include "tracer/stat_quantile.h"

#include "core/mem.h"

#include <math.h>
#include <stdlib.h>

#define GROWTH 1.002
#define N_BINS 8192 /* up to 1.002^8192, about 1.3e7: more than there can be ranks */

static size_t bin_of(double ratio) {
    const double at = ratio > 1.0 ? log(ratio) / log(GROWTH) : 0.0;
    return at < N_BINS - 1 ? (size_t)at : N_BINS - 1;
}

static bl_status start_bins(bl_quantiles *q, bl_error *err) {
    BL_TRY(BL_CALLOC(q->bins, N_BINS, err));
    for (uint64_t i = 0; i < q->n; i++)
        q->bins[bin_of(q->values[i])]++;
    free(q->values);
    q->values = NULL;
    q->capacity = 0;
    return BL_OK;
}

bl_status bl_quantiles_add(bl_quantiles *q, double ratio, bl_error *err) {
    if (q->bins == NULL && q->n == BL_QUANTILES_EXACT)
        BL_TRY(start_bins(q, err));
    if (q->bins != NULL) {
        q->bins[bin_of(ratio)]++;
    } else {
        void *values = q->values;
        const bl_status st =
            bl_grow(&values, &q->capacity, (size_t)q->n + 1, sizeof *q->values, err);
        q->values = values;
        BL_TRY(st);
        q->values[q->n] = ratio;
    }
    q->min = q->n == 0 || ratio < q->min ? ratio : q->min;
    q->max = q->n == 0 || ratio > q->max ? ratio : q->max;
    q->sum += ratio;
    q->n++;
    return BL_OK;
}

static int compare_doubles(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double exact_at(bl_quantiles *q, double p) {
    qsort(q->values, (size_t)q->n, sizeof *q->values, compare_doubles);
    const double at = p * (double)(q->n - 1);
    const size_t low = (size_t)at, high = low + 1 < q->n ? low + 1 : low;
    return q->values[low] + (at - (double)low) * (q->values[high] - q->values[low]);
}

double bl_quantiles_at(bl_quantiles *q, double p) {
    if (q->n == 0)
        return NAN;
    if (q->bins == NULL)
        return exact_at(q, p);
    const double at = p * (double)(q->n - 1);
    uint64_t before = 0;
    size_t bin = 0;
    while (bin < N_BINS - 1 && (double)(before + q->bins[bin]) <= at)
        before += q->bins[bin++];
    const double value = pow(GROWTH, (double)bin + 0.5);
    return value < q->min ? q->min : value > q->max ? q->max : value;
}

void bl_quantiles_free(bl_quantiles *q) {
    free(q->values);
    free(q->bins);
    *q = (bl_quantiles){0};
}
