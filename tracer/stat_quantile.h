/*
 * stat_quantile.h: mean and percentiles of any number of ratios in bounded memory.
 *
 * Ratios (max over mean) are at least 1. Up to BL_QUANTILES_EXACT of them are kept, and percentiles
 * are exact: linear interpolation between sorted values, as in planner/replay.h. Beyond that they go
 * into a histogram whose bins grow by 0.2 %, so a percentile is off by at most 0.1 % of its value:
 *
 *     bin i holds   1.002^i <= ratio < 1.002^(i + 1)       answer: 1.002^(i + 1/2), within [min, max]
 *
 * Mean, minimum and maximum are exact always. A zeroed struct is empty.
 */
#ifndef BL_TRACER_STAT_QUANTILE_H
#define BL_TRACER_STAT_QUANTILE_H

#include "core/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BL_QUANTILES_EXACT 4096

typedef struct bl_quantiles {
    uint64_t n;
    double sum, min, max;
    double *values; /* [n] while n <= BL_QUANTILES_EXACT; owned */
    size_t capacity;
    uint64_t *bins; /* NULL while exact; owned */
} bl_quantiles;

/* What is reported of them; NaN without any value. */
typedef struct bl_quantile_figures {
    uint64_t n;
    double mean, p50, p95, p99, max;
    double balancedness; /* mean of 1 / ratio */
    bool exact;
} bl_quantile_figures;

bl_status bl_quantiles_add(bl_quantiles *quantiles, double ratio, bl_error *err);
double bl_quantiles_at(bl_quantiles *quantiles, double p); /* p in [0, 1] */
void bl_quantiles_free(bl_quantiles *quantiles);

#endif
