/*
 * replay.h: how plans would have done on a trace, step by step, and whether to change over.
 *
 * A plan is scored on steps it has not seen: when it was made from this very trace (same digest),
 * the steps it was made from are left out, for all plans alike. (A plan made from another phase of
 * the trace than the one scored has seen nothing of it. A plan made from a trace that was cut or
 * incomplete, which the whole one does not show, is refused unless the caller names the steps.) For each (step, layer) with load:
 *
 *     imbalance     max over ranks / mean over ranks of token rows (ranks without slots do not
 *                   count); mean, percentiles and maximum run over all (step, layer)
 *     balancedness  mean over (step, layer) of mean / max
 *     step_us       sum over layers of the modelled time of the step (planner/cost.h)
 *
 * Under the rule per-step every step is split anew and exactly (core/split_step.h), and step_us holds
 * the exchange of counts this takes.
 *
 * Where the trace tells on which ranks tokens are born, the rows that travel are counted, too
 * (planner/traffic.h), under the dispatch and combine modes given: over all scored steps and layers.
 * The rules that look at it (nearest, fixed, local) can only be scored then.
 *
 * The *noise floor* says what is left to win for a plan that is never changed. Such a plan can be
 * level on what is to be expected; what a step has more or less than that it cannot know. Taken from
 * how the distribution over experts changes from one step to the next (over the root of 2, since a
 * difference has twice the variance, and drift over many steps is then no noise), summed over the
 * experts of a rank, here with the first plan's copies dealt out to its ranks at random. It is a
 * statistic of the trace, not a bound: experts that vary against each other may be put together, and
 * single steps lie below it.
 *
 * Percentiles interpolate linearly between the sorted values.
 *
 * The verdict compares each plan with a baseline, the placement that would serve on otherwise. The
 * saving per step is base step_us - plan step_us. Steps of a trace resemble their neighbours, so
 * its mean is resampled in blocks of n^(1/3) consecutive steps (circular block bootstrap, 2000
 * resamples, seeded); `saved_us_low` is the 5th percentile of the resampled means, so the true
 * mean lies above it with 95 % confidence. Then
 *
 *     not enough evidence   fewer than 5 steps: even if all of them save, chance alone does that in
 *                           1 of 16 cases or more; or no time could be modelled
 *     recommend             saved_us_low x dwell > migration time from baseline to plan
 *     not worth it          otherwise
 *
 * where dwell is the number of such steps the plan is expected to serve.
 */
#ifndef BL_PLANNER_REPLAY_H
#define BL_PLANNER_REPLAY_H

#include "planner/plan.h"
#include "planner/traffic.h"
#include "topologies/topology.h"
#include "tracer/loads.h"

#define BL_REPLAY_MIN_STEPS 5
/* How many steps engines let pass between two looks at the balance, in their own default. */
#define BL_REPLAY_DWELL_STEPS 3000

typedef enum bl_verdict {
    BL_VERDICT_RECOMMEND,
    BL_VERDICT_NOT_WORTH_IT,
    BL_VERDICT_NOT_ENOUGH_EVIDENCE
} bl_verdict;

extern const char *const bl_verdict_names[]; /* indexed by bl_verdict */

typedef enum bl_baseline {
    BL_BASELINE_CONTIGUOUS, /* the start layout, on the first plan's slots */
    BL_BASELINE_GREEDY,     /* greedy, made from the steps that the first plan was made from */
    BL_BASELINE_PLAN        /* a plan that is given */
} bl_baseline;

typedef struct bl_replay_options {
    const bl_plan *plans; /* [n_plans], at least one; borrowed */
    const char *const *names;
    int n_plans;
    bl_baseline baseline;
    const bl_plan *baseline_plan; /* of BL_BASELINE_PLAN; borrowed */
    const char *baseline_name;
    const bl_model *model;        /* sizes for the modelled times; NULL: the first plan's own */
    int64_t first_step, end_step; /* half-open; steps outside are not scored */
    bool steps_named;  /* the user chose them: a plan of an incomplete trace may be scored */
    bool all_steps;    /* also those that a plan was made from: no test, a description */
    const char *phase; /* name of the phase that `loads` was read for; NULL: all */
    double dwell_steps;
    double tail; /* in (0, 1]: also give the mean of this part of the samples, the worst; 0: not */
    double tokens_per_rank; /* times as if every step had so many on each rank; 0: its own */
    bool overlap;           /* communication runs beside attention and experts (cost.h) */
    bl_dispatch dispatch, combine;
    uint64_t seed; /* of the bootstrap and the noise floor */
} bl_replay_options;

typedef struct bl_replay_figures {
    double mean, p50, p95, p99, max; /* imbalance; NaN when nothing was scored */
} bl_replay_figures;

/* Rows and bytes of all scored steps and layers. */
typedef struct bl_replay_traffic {
    int n_levels, n_ranks;                                          /* 0: not known */
    double dispatch[BL_MAX_LEVELS + 1], combine[BL_MAX_LEVELS + 1]; /* rows by level */
    double bytes[BL_MAX_LEVELS + 1]; /* of both; 0 when the model's sizes are not known */
    double remote_nodes;             /* per token and layer; NaN when tokens are not known */
    bl_port busiest_dispatch, busiest_combine;
    double *dispatch_pairs, *combine_pairs; /* [n_ranks][n_ranks] rows, sender first; owned */
} bl_replay_traffic;

typedef struct bl_replay_score {
    const char *name;                /* borrowed from the options */
    double mean, p50, p95, p99, max; /* imbalance; NaN when nothing was scored */
    double balancedness;
    double tail_mean; /* of imbalance over the worst part; NaN when not asked for */
    int n_layers;
    bl_replay_figures *layers; /* [n_layers] as in the loads; owned */
    /* [n_steps] imbalance of every step scored, mean over its layers; NaN without load; owned */
    double *step_imbalance;
    int *step_layers; /* [n_steps] layers with load; owned */
    int n_ranks;
    /* [n_layers][n_ranks] rank load / mean rank load, mean over steps; 0 on a masked rank; owned */
    double *rank_load;
    double step_us_mean, step_us_p95; /* NaN when no time could be modelled */
    double *step_us;                  /* [n_steps] or NULL; owned */
    bl_replay_traffic traffic;
    int64_t moves; /* against the baseline, from here on */
    uint64_t move_bytes;
    double *layer_moves; /* [n_layers] of `moves`; NULL for the baseline; owned */
    double migration_s, saved_us, saved_us_low; /* NaN when unknown */
    bl_verdict verdict;
} bl_replay_score;

typedef struct bl_replay {
    size_t n_steps;    /* scored */
    uint64_t *step_id; /* [n_steps] positions in the trace; owned */
    size_t n_left_out; /* selected, but seen by a plan */
    bool modelled;     /* times are there */
    /* Noise floor: imbalance under steps that vary as these do, of a plan that is level on what is to
     * be expected. NaN with fewer than BL_REPLAY_MIN_STEPS steps. */
    double noise_mean, noise_p95;
    bl_replay_score baseline;
    int n_plans;
    bl_replay_score *plans; /* [n_plans], in the order given; owned */
    int best;               /* the plan with the largest net saving, or else the least imbalance */
    bl_verdict verdict;     /* the best plan's */
} bl_replay;

/* `loads` holds all steps of the trace (of the phase asked for). Without a topology (NULL) no time is
 * modelled. Layers of the trace that a plan
 * lacks, unusable layers and other models are errors by name. Free with bl_replay_free(). */
bl_status bl_replay_run(const bl_loads *loads, const bl_topology *topology,
                        const bl_replay_options *options, bl_replay *out, bl_error *err);
void bl_replay_free(bl_replay *replay); /* safe on a zeroed struct */

/* Lower end of the one-sided 95 % interval of the mean of values[n], n >= 1, as described above. */
bl_status bl_bootstrap_low(const double *values, size_t n, uint64_t seed, double *low,
                           bl_error *err);

/* The p-th quantile (0 .. 1) of sorted values[n], n >= 1. */
double bl_quantile(const double *sorted, size_t n, double p);

#endif
