/*
 * replay_parts.h: what the files of replay share; private to planner/replay*.c.
 *
 *     replay.c         which steps, the baseline, the verdict
 *     replay_score.c   one plan on those steps
 *     replay_noise.c   what no plan that is never changed can help
 */
#ifndef BL_PLANNER_REPLAY_PARTS_H
#define BL_PLANNER_REPLAY_PARTS_H

#include "planner/cost.h"
#include "planner/replay.h"

typedef struct bl_replaying {
    const bl_loads *loads;
    const bl_topology *topology;
    const bl_replay_options *options;
    bl_cost *cost; /* NULL: the model's sizes are not known */
    size_t *steps; /* [n_steps] indices into loads; owned */
    size_t n_steps, n_left_out;
    double *samples; /* [n_steps x n_layers] scratch; owned */
} bl_replaying;

/* replay_score.c: everything of `out` but the verdict; free with bl_replay_score_free(). */
bl_status bl_replay_score_plan(bl_replaying *r, const bl_plan *plan, const char *name,
                               bl_replay_score *out, bl_error *err);
void bl_replay_score_free(bl_replay_score *score);
double bl_replay_mean(const double *values, size_t n);
int bl_replay_ascending(const void *a, const void *b); /* for qsort() of doubles */

/* replay_noise.c: fills in the noise floor, on the slots of `plan`. */
bl_status bl_replay_find_noise(bl_replaying *r, const bl_plan *plan, bl_replay *out, bl_error *err);

#endif
