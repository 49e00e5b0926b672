/*
 * replay_parts.h: what the files of replay share; private to planner/replay*.c.
 *
 *     replay.c         which steps, the baseline, the verdict
 *     replay_score.c   one plan on those steps
 *     replay_traffic.c rules that look at where tokens come from, and the rows that travel
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
    bl_sites sites;  /* owned */
    int *group; /* [loads->n_steps] index in `steps`, or -1; NULL: sources are not known; owned */
} bl_replaying;

/* replay_score.c: everything of `out` but the verdict; free with bl_replay_score_free(). */
bl_status bl_replay_score_plan(bl_replaying *r, const bl_plan *plan, const char *name,
                               bl_replay_score *out, bl_error *err);
void bl_replay_score_free(bl_replay_score *score);
double bl_replay_mean(const double *values, size_t n);
int bl_replay_ascending(const void *a, const void *b); /* for qsort() of doubles */

/* replay_traffic.c */

bl_status bl_replay_find_sources(bl_replaying *r, int n_ranks, bl_error *err);

/* A layer of a plan, with its sources where they are known. */
typedef struct bl_replay_lane {
    bl_sources sources;
    bl_source_split *split; /* NULL: not known */
    double *rows;           /* [n_slots] scratch */
    bool by_source;         /* the rule looks at sources, so slot rows come from here */
} bl_replay_lane;

bl_status bl_replay_lane_open(const bl_replaying *r, const bl_plan *plan,
                              const bl_layer_placement *placement, int row, bl_replay_lane *out,
                              bl_error *err);
void bl_replay_lane_close(bl_replay_lane *lane);
/* Scored step `i`: adds its rows to `traffic`. slot_rows[n_slots] are laid anew for a rule that looks at
 * sources; for others they are what the rule made of `count`. */
bl_status bl_replay_lane_step(bl_replay_lane *lane, const bl_layer_placement *placement, size_t i,
                              const uint64_t *count, double *slot_rows, bl_traffic *traffic,
                              bl_error *err);
bl_status bl_replay_traffic_of(const bl_replaying *r, const bl_traffic *traffic,
                               bl_replay_traffic *out, bl_error *err);

/* replay_traffic.c: add one step's traffic to all of it. */
void bl_replay_traffic_add(bl_traffic *all, const bl_traffic *step);

/* replay_noise.c: fills in the noise floor, on the slots of `plan`. */
bl_status bl_replay_find_noise(bl_replaying *r, const bl_plan *plan, bl_replay *out, bl_error *err);

#endif
