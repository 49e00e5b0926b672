/*
 * run_predict.h: what the cost model says of the steps that `ballast run` has measured.
 *
 * The constants are fitted to the stage times of the run's first steps (planner/calibrate.h), and the
 * steps behind them, which no constant has seen, are predicted from what was done in them:
 *
 *     step  =  sum over layers of  exchanges + the slowest rank's experts        the cost model's T
 *            + token x tokens of the rank with most, + attended x tokens looked back at,
 *            + step                               attention, logits, notes: what no plan changes
 *
 * Where the run was given a topology, its constants are tried on the same layers without any fit: of an
 * earlier run (`ballast topo calibrate`), of a probe, or of a datasheet.
 *
 * The first half of the steps whose layers' times were kept (runtime/serve.h) is fitted to; steps in
 * which experts moved are left out of both. Short runs predict nothing.
 */
#ifndef BL_CLI_RUN_PREDICT_H
#define BL_CLI_RUN_PREDICT_H

#include "cli/run_rank.h"
#include "planner/calibrate.h"

enum { BL_TERM_TOKEN, BL_TERM_STEP, BL_TERM_ATTENDED, BL_N_REST_TERMS };

typedef struct bl_run_prediction {
    bool made;
    char why_not[160];
    bl_calibration calibration;
    bl_fit rest;
    size_t n_fitted;    /* steps */
    bl_fit_errors step; /* in seconds, of the steps behind */
    bl_fit_errors
        given; /* of their layers, by the constants of the run's own topology; n 0: none */
    double *predicted_s; /* [n_steps] of the run's log, NaN where nothing is predicted; owned */
} bl_run_prediction;

/* step_s[n_steps]: what each step took. A run that tells too little is no error: made is false. */
bl_status bl_run_predict(const bl_run_job *job, const bl_run_report *reports, const double *step_s,
                         size_t n_steps, bl_run_prediction *out, bl_error *err);
void bl_run_prediction_free(bl_run_prediction *prediction); /* safe on a zeroed struct */

/* {"fitted_steps","n","measured_us":{"p50","p95"},"predicted_us":{...},
 *  "error":{"median","p95","total"},"layer":{the same of what the cost model is about: an MoE layer},
 *  "experts":{its slowest rank's experts},"exchanges":{...},"by_topology":{layers, by the constants of
 *  --topology},"constants":{...}}, or {"n":0,"why"}. New reference or NULL. */
json_t *bl_run_prediction_json(const bl_run_prediction *prediction);

/* Two lines for people; nothing where nothing was predicted. */
void bl_run_prediction_print(const bl_run_prediction *prediction);

#endif
