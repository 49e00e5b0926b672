/*
 * stat_drift.h: how fast the load of experts changes, and how much of what changes is chance.
 *
 * The trace is cut into windows of equally many steps. There are at most BL_DRIFT_WINDOWS of them:
 * when a longer trace would need more, neighbours are joined and windows become twice as long, so
 * memory does not grow. The last window is left out unless it is full.
 *
 * *Distance at lag h*: mean over layers and pairs of windows (t, t + h) of the total-variation
 * distance between their expert distributions, 1/2 sum |p - q|, for h = 1, 2, 4, ... windows.
 * `noise` is the distance that windows of that size have by chance (tracer/stat_noise.h).
 *
 * *Half-life*: let d_t be a window's deviation from the long-run mean distribution, and
 *
 *     r(h) = mean over t of <d_t, d_(t+h)>  /  ( mean over t of <d_t, d_t>  -  sampling variance )
 *
 * summed over layers. r(0) is 1 but for sampling; the half-life is the lag at which r has fallen to
 * 1/2, linearly between lags. A plan made from a window that long ago knows half of what there is to
 * know beyond the mean. With fewer than BL_DRIFT_MIN_WINDOWS windows it is not estimated.
 *
 * *Step to step*: the mean distance between one step and the next, beside what chance alone gives
 * for steps of that size. Where the two agree, no static plan can do better from step to step.
 */
#ifndef BL_TRACER_STAT_DRIFT_H
#define BL_TRACER_STAT_DRIFT_H

#include "tracer/stat_steps.h"

#define BL_DRIFT_WINDOWS 64
#define BL_DRIFT_MIN_WINDOWS 8
#define BL_DRIFT_MAX_LAGS 8

typedef enum bl_half_life {
    BL_HALF_LIFE_MEASURED,
    BL_HALF_LIFE_LONGER,    /* r stays above 1/2 for as long as the trace tells: value is a bound */
    BL_HALF_LIFE_NO_DRIFT,  /* windows differ by no more than chance */
    BL_HALF_LIFE_NOT_ENOUGH /* fewer than BL_DRIFT_MIN_WINDOWS windows */
} bl_half_life;

typedef struct bl_drift_lag {
    uint64_t steps;
    double distance, noise;
} bl_drift_lag;

typedef struct bl_drift_result {
    bool known; /* false: the windows of so large a model would not fit */
    uint64_t window_steps;
    int n_windows;
    int n_lags;
    bl_drift_lag lags[BL_DRIFT_MAX_LAGS];
    bl_half_life half_life;
    double half_life_steps;           /* MEASURED: the value; LONGER: at least this; else NaN */
    double step_distance, step_noise; /* mean over layers; NaN with fewer than two steps */
    bl_drift_lag *layers;             /* [n_layers] from step to step, `steps` being pairs; owned */
} bl_drift_result;

void bl_drift_result_free(bl_drift_result *result); /* safe on a zeroed struct */

typedef struct bl_stat_drift bl_stat_drift;

bl_status bl_stat_drift_create(const bl_trace_info *info, bl_stat_drift **out_p, bl_error *err);
void bl_stat_drift_free(bl_stat_drift *drift); /* NULL is fine */
/* One whole step; columns are experts. Steps in ascending order. */
bl_status bl_stat_drift_step(bl_stat_drift *drift, const bl_step_counts *step, bl_error *err);
bl_status bl_stat_drift_finish(bl_stat_drift *drift, bl_drift_result *out, bl_error *err);

#endif
