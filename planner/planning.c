#include "planner/planning.h"

#include "core/mem.h"
#include "core/rng.h"
#include "planner/budget.h"
#include "planner/robust.h"

#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define MAX_RUNGS 24
/* A tenth of the search's default effort tells well enough what a rung gains (planner/search.h:
 * steps under one scenario, proposals under several); the one that is chosen is searched again in
 * full. */
#define RUNG_STEPS 200
#define RUNG_PROPOSALS 20000

/* One layer on its way through the driver. */
typedef struct job {
    int layer;    /* decoder-layer id */
    int row;      /* index in loads, or -1: the trace has nothing of it */
    bool idle;    /* no load in the selected steps */
    double *load; /* [n_scenarios][n_experts]; owned */
    double total; /* sum of load */
    bl_problem problem;
    bl_solution solution; /* owned */
    bl_score before, greedy;
    int moves; /* from the current placement or the start layout */
    /* under a move budget: what the layer could have, by moves */
    int n_rungs;
    bl_rung rungs[MAX_RUNGS];
    bl_solution offers[MAX_RUNGS]; /* owned */
} job;

typedef struct run run;
struct run {
    const bl_loads *loads;
    const bl_model *model;
    const bl_planning_options *options;
    bl_progress *progress;
    size_t steps_per_scenario;
    int n_scenarios, n_jobs;
    job *jobs;
    /* shared by the threads, under the lock */
    pthread_mutex_t lock;
    bl_status (*task)(const run *, job *, bl_error *);
    int next, done;
    bool stopped;
    bl_status status;
    bl_error error;
};

/* ---- the objective ---------------------------------------------------------------------------- */

static const char *const over_names[] = {"mean", "p95", "cvar", "sample"}; /* by bl_over */

bl_status bl_over_parse(const char *text, bl_objective_over *out, bl_error *err) {
    for (int kind = BL_OVER_MEAN; kind <= BL_OVER_SAMPLE; kind++) {
        if (kind != BL_OVER_CVAR && strcmp(text, over_names[kind]) == 0) {
            *out = (bl_objective_over){.kind = (bl_over)kind};
            return BL_OK;
        }
    }
    char *end = NULL;
    const double level = strncmp(text, "cvar:", 5) == 0 ? strtod(text + 5, &end) : -1.0;
    if (end == NULL || end == text + 5 || *end != '\0' || !(level >= 0.0 && level < 1.0))
        return bl_fail(err, BL_ERR_USAGE,
                       "\"%s\" is no objective over steps; there are mean, p95, sample and cvar:A "
                       "with 0 <= A < 1 (cvar:0.9: the mean of the worst tenth)",
                       text);
    *out = (bl_objective_over){BL_OVER_CVAR, level};
    return BL_OK;
}

/* As bl_problem has it. */
static double tail_of(const run *r) {
    const bl_objective_over *over = &r->options->over;
    if (over->kind == BL_OVER_SAMPLE || r->options->rule == BL_RULE_PER_STEP ||
        r->n_scenarios < BL_ROBUST_SCENARIOS)
        return 0.0;
    return over->kind == BL_OVER_P95 ? 0.05 : over->kind == BL_OVER_CVAR ? 1.0 - over->level : 1.0;
}

static double min_gain_of(const run *r) {
    if (r->options->min_gain >= 0.0)
        return r->options->min_gain;
    return tail_of(r) > 0.0 ? BL_ROBUST_MIN_GAIN : BL_MIN_GAIN_DEFAULT;
}

/* What a step counts, against the last one. */
static double weight_of(const run *r, size_t step) {
    const double half_life = r->options->half_life;
    return half_life > 0.0
               ? exp2((double)(step + 1) / half_life - (double)r->loads->n_steps / half_life)
               : 1.0;
}

/* ---- scenarios --------------------------------------------------------------------------------*/

static bl_status fill_scenarios(const run *r, job *j, bl_error *err) {
    const size_t experts = (size_t)r->model->n_experts;
    size_t items;
    if (!bl_size_mul((size_t)r->n_scenarios, experts, &items))
        return bl_fail(err, BL_ERR_NOMEM, "out of memory");
    BL_TRY(BL_CALLOC(j->load, items, err));
    for (size_t step = 0; j->row >= 0 && step < r->loads->n_steps; step++) {
        const uint64_t *count = bl_loads_row(r->loads, step, j->row);
        const double weight = weight_of(r, step);
        double *load = j->load + step / r->steps_per_scenario * experts;
        for (size_t e = 0; e < experts; e++) {
            load[e] += weight * (double)count[e];
            j->total += weight * (double)count[e];
        }
    }
    j->idle = !(j->total > 0.0);
    return BL_OK;
}

static int loads_row_of(const bl_loads *loads, int layer) {
    for (int row = 0; row < loads->n_layers; row++) {
        if (loads->layers[row] == layer)
            return loads->usable[row] ? row : -1;
    }
    return -1;
}

static bl_status check_loads(const bl_loads *loads, const bl_model *model, bl_error *err) {
    if (loads->n_experts != model->n_experts || loads->top_k != model->top_k)
        return bl_fail(err, BL_ERR_MODEL, "the trace has top-%d of %d experts, %s has top-%d of %d",
                       loads->top_k, loads->n_experts, model->name, model->top_k, model->n_experts);
    for (int row = 0; row < loads->n_layers; row++) {
        const int layer = loads->layers[row];
        if (bl_model_moe_index(model, layer) < 0)
            return bl_fail_at(err, BL_ERR_MODEL, bl_at_layer(NULL, layer),
                              "is in the trace, but is not a MoE layer of %s", model->name);
        if (!loads->usable[row] && bl_loads_has_counts(loads, row))
            return bl_fail_at(err, BL_ERR_CONSERVATION, bl_at_layer(NULL, layer),
                              "cannot be planned on: %s", loads->why[row]);
    }
    if (loads->n_steps == 0)
        return bl_fail(err, BL_ERR_CONSERVATION, "no step of the trace has any traffic");
    return BL_OK;
}

/* The current plan must speak of this model and these ranks. */
static bl_status check_current(const bl_plan *current, const bl_model *model, int n_ranks,
                               bl_error *err) {
    if (current == NULL)
        return BL_OK;
    if (current->n_experts != model->n_experts || strcmp(current->model_name, model->name) != 0)
        return bl_fail(err, BL_ERR_MODEL,
                       "the current placement is for %s with %d experts, not for %s with %d",
                       current->model_name, current->n_experts, model->name, model->n_experts);
    if (current->placement.n_ranks != n_ranks)
        return bl_fail(err, BL_ERR_SHAPE, "the current placement is for %d ranks, not for %d",
                       current->placement.n_ranks, n_ranks);
    if (current->epoch >= INT64_MAX)
        return bl_fail(err, BL_ERR_RANGE,
                       "epoch %llu of the current placement is the last there is; set its "
                       "\"epoch\" to that of the running cluster",
                       (unsigned long long)current->epoch);
    for (int m = 0; m < model->n_moe_layers; m++) {
        if (bl_placement_layer(&current->placement, model->moe_layers[m]) == NULL)
            return bl_fail_at(err, BL_ERR_MODEL, bl_at_layer(NULL, model->moe_layers[m]),
                              "is not in the current placement");
    }
    return BL_OK;
}

static bl_status make_jobs(run *r, bl_error *err) {
    const bl_planning_options *o = r->options;
    int n_idle = 0, first_idle = -1;
    for (int m = 0; m < r->n_jobs; m++) {
        job *j = &r->jobs[m];
        j->layer = r->model->moe_layers[m];
        j->row = loads_row_of(r->loads, j->layer);
        BL_TRY(fill_scenarios(r, j, err));
        j->problem = (bl_problem){
            .layer = j->layer,
            .n_experts = r->model->n_experts,
            .n_ranks = o->n_ranks,
            .n_scenarios = r->n_scenarios,
            .load = j->load,
            .slots_per_rank = o->capacity.slots_per_rank,
            .rule = o->rule,
            .current =
                o->current != NULL ? bl_placement_layer(&o->current->placement, j->layer) : NULL,
            .max_moves = -1,
            .min_gain = min_gain_of(r),
            .tail = tail_of(r),
        };
        if (j->idle && n_idle++ == 0)
            first_idle = j->layer;
    }
    if (n_idle > 0 && o->strict)
        return bl_fail_at(
            err, BL_ERR_CONSERVATION, bl_at_layer(NULL, first_idle),
            "has no load in the trace, as %d of %d layers; without --strict they would "
            "keep their placement",
            n_idle, r->n_jobs);
    if (2 * n_idle > r->n_jobs)
        return bl_fail_at(
            err, BL_ERR_CONSERVATION, bl_at_layer(NULL, first_idle),
            "only %d of the %d MoE layers of %s have any load; the trace was recorded "
            "or imported with the wrong layers",
            r->n_jobs - n_idle, r->n_jobs, r->model->name);
    return BL_OK;
}

/* Moves are limited, and there is something to move from. */
static bool has_budget(const run *r) {
    return r->options->current != NULL && r->options->max_moves >= 0;
}

/* ---- solving ----------------------------------------------------------------------------------*/

static bl_status score_of(const job *j, bl_algorithm algorithm, bl_score *out, int *moves,
                          bl_error *err) {
    bl_solve_options options = BL_SOLVE_OPTIONS_INIT;
    options.algorithm = algorithm;
    bl_problem problem = j->problem;
    bl_solution solution = {0};
    problem.current = NULL;
    const bl_status st = bl_solve(&problem, &options, &solution, err);
    if (st >= 0) {
        *out = solution.score;
        if (moves != NULL)
            *moves = bl_layer_moves(&solution.placement, &j->solution.placement);
    }
    bl_solution_free(&solution);
    return st;
}

/* The current placement on its own slots, which may differ from the ones planned for. */
static bl_status score_current(const job *j, bl_score *out, bl_error *err) {
    const bl_layer_placement *current = j->problem.current;
    int *slots_per_rank;
    BL_TRY(BL_CALLOC(slots_per_rank, current->n_ranks, err));
    for (int rank = 0; rank < current->n_ranks; rank++)
        slots_per_rank[rank] = current->begin[rank + 1] - current->begin[rank];
    bl_problem problem = j->problem;
    problem.slots_per_rank = slots_per_rank;
    const bl_status st = bl_evaluate(&problem, current, out, err);
    free(slots_per_rank);
    return st;
}

static bl_solve_options solve_options(const run *r, const job *j) {
    bl_solve_options options = r->options->solve;
    uint64_t mixed = options.seed ^ ((uint64_t)j->layer << 32);
    options.seed = bl_splitmix64(&mixed);
    options.time_s *= (double)r->options->n_threads / r->n_jobs;
    if (has_budget(r))
        options.time_s /= 2.0; /* every layer is searched twice */
    return options;
}

static bl_status solve_within(const job *j, const bl_solve_options *options, int64_t max_moves,
                              bl_solution *out, bl_error *err) {
    bl_problem problem = j->problem;
    problem.max_moves = max_moves < 0 || max_moves > INT_MAX ? -1 : (int)max_moves;
    return bl_solve(&problem, options, out, err);
}

static bl_status compare_job(const run *r, job *j, bl_error *err) {
    if (j->problem.current != NULL)
        BL_TRY(score_current(j, &j->before, err));
    else
        BL_TRY(score_of(j, BL_ALG_CONTIGUOUS, &j->before, &j->moves, err));
    if (!r->options->compare)
        return BL_OK;
    return score_of(j, BL_ALG_GREEDY, &j->greedy, NULL, err);
}

static bl_status plan_job(const run *r, job *j, bl_error *err) {
    const bl_solve_options options = solve_options(r, j);
    const bl_status st = solve_within(j, &options, -1, &j->solution, err);
    if (st < 0)
        return st;
    j->moves = j->solution.moves;
    BL_TRY(compare_job(r, j, err));
    return st;
}

/* Take jobs until there are none; the calling thread and its helpers all run this. */
static void *work(void *user) {
    run *r = user;
    pthread_mutex_lock(&r->lock);
    while (r->next < r->n_jobs && r->status >= 0) {
        job *j = &r->jobs[r->next++];
        pthread_mutex_unlock(&r->lock);
        bl_error err = BL_ERROR_INIT;
        const bl_status st = r->task(r, j, &err);
        pthread_mutex_lock(&r->lock);
        if (st < 0 && r->status >= 0) {
            r->status = st;
            r->error = err;
        }
        r->stopped = r->stopped || st > 0;
        r->done++;
        if (st >= 0 && j->solution.score.max_over_mean > 0.0) /* not while only counting moves */
            bl_progress_line(r->progress,
                             "layer %d (%d of %d): max/mean %.4f, bound %.4f, gap %.2f %%",
                             j->layer, r->done, r->n_jobs, j->solution.score.max_over_mean,
                             j->solution.bound.max_over_mean, 100.0 * j->solution.gap);
    }
    pthread_mutex_unlock(&r->lock);
    return NULL;
}

/* Run a task for every job, on all threads. */
static bl_status for_all(run *r, bl_status (*task)(const run *, job *, bl_error *), bl_error *err) {
    enum { MOST_THREADS = 64 };
    pthread_t helpers[MOST_THREADS];
    int n = 0;
    r->task = task;
    r->next = r->done = 0;
    pthread_mutex_init(&r->lock, NULL);
    while (n + 1 < r->options->n_threads && n < MOST_THREADS && n + 1 < r->n_jobs &&
           pthread_create(&helpers[n], NULL, work, r) == 0)
        n++;
    work(r);
    for (int i = 0; i < n; i++)
        pthread_join(helpers[i], NULL);
    pthread_mutex_destroy(&r->lock);
    bl_progress_end(r->progress);
    if (r->status < 0 && err != NULL && err->code >= 0)
        *err = r->error;
    return r->status;
}

/* ---- the move budget --------------------------------------------------------------------------*/

/* Token rows that the busiest ranks are spared in all scenarios together. */
static double gain_of(const job *j, const bl_solution *solution) {
    return (j->before.max_over_mean - solution->score.max_over_mean) * j->total;
}

/* Takes the solution over, unless it is no more than the rung before. */
static void add_rung(job *j, bl_solution *solution) {
    const int n = j->n_rungs;
    if (n > 0 && j->rungs[n - 1].moves >= solution->moves) {
        bl_solution_free(solution);
        return;
    }
    j->rungs[n] = (bl_rung){solution->moves, gain_of(j, solution)};
    j->offers[n] = *solution;
    j->n_rungs++;
}

static bl_solve_options rung_options(const run *r, const job *j) {
    bl_solve_options options = solve_options(r, j);
    options.time_s = 0.0;
    options.iterations = r->n_scenarios == 1 ? RUNG_STEPS : RUNG_PROPOSALS;
    return options;
}

/* The least limit under which the layer can be served at all; `most` is one. Only where the current
 * placement does not fit the slots. */
static bl_status least_limit(const job *j, const bl_solve_options *options, int most, int *limit,
                             bl_error *err) {
    int low = -1, high = most;
    while (high - low > 1) {
        const int middle = low + (high - low) / 2;
        bl_solution solution = {0};
        const bl_status st = solve_within(j, options, middle, &solution, NULL);
        bl_solution_free(&solution);
        if (st == BL_ERR_INFEASIBLE)
            low = middle;
        else if (st < 0)
            return bl_fail_at(err, st, bl_at_layer(NULL, j->layer), "could not be planned");
        else
            high = middle;
    }
    *limit = high;
    return BL_OK;
}

/* What the layer offers for 0 (or the least that serves), 1, 2, 4, ... moves, up to the placement
 * that was found without a limit. */
static bl_status offer(const run *r, job *j, bl_error *err) {
    const bl_solve_options options = rung_options(r, j);
    bl_solve_options least = options;
    const int most = j->moves;
    int limit = 0;
    least.iterations = 1; /* where nothing may move there is nothing to search */
    if (!j->idle && !bl_problem_current_fits(&j->problem))
        BL_TRY(least_limit(j, &options, most, &limit, err));
    while (limit < most && j->n_rungs + 1 < MAX_RUNGS) {
        bl_solution solution = {0};
        BL_TRY(solve_within(j, limit > 0 ? &options : &least, limit, &solution, err));
        add_rung(j, &solution);
        limit = limit > 0 ? 2 * limit : 1;
    }
    bl_solution last = j->solution;
    j->solution = (bl_solution){0};
    add_rung(j, &last);
    return BL_OK;
}

/* Search once more, within the moves of the rung that was chosen. */
static bl_status refine(const run *r, job *j, bl_error *err) {
    const bl_solve_options options = solve_options(r, j);
    if (j->moves == 0 || j->moves == j->rungs[j->n_rungs - 1].moves)
        return BL_OK;
    bl_solution solution = {0};
    const bl_status st = solve_within(j, &options, j->moves, &solution, err);
    if (st >= 0 && solution.score.max_over_mean < j->solution.score.max_over_mean) {
        const bl_solution swap = j->solution;
        j->solution = solution;
        solution = swap;
        j->moves = j->solution.moves;
    }
    bl_solution_free(&solution);
    return st;
}

static bl_status choose_rungs(run *r, bl_error *err) {
    bl_ladder *ladders;
    int *choice = NULL;
    BL_TRY(BL_CALLOC(ladders, r->n_jobs, err));
    bl_status st = BL_CALLOC(choice, r->n_jobs, err);
    for (int m = 0; m < r->n_jobs; m++)
        ladders[m] = (bl_ladder){r->jobs[m].rungs, r->jobs[m].n_rungs};
    if (st >= 0)
        st = bl_budget_choose(ladders, r->n_jobs, r->options->max_moves, choice, err);
    for (int m = 0; st >= 0 && m < r->n_jobs; m++) {
        job *j = &r->jobs[m];
        j->solution = j->offers[choice[m]];
        j->moves = j->solution.moves;
        j->offers[choice[m]] = (bl_solution){0};
    }
    free(ladders);
    free(choice);
    return st;
}

static bl_status keep_budget(run *r, bl_error *err) {
    int64_t wanted = 0;
    for (int m = 0; m < r->n_jobs; m++)
        wanted += r->jobs[m].moves;
    if (!has_budget(r) || wanted <= r->options->max_moves)
        return BL_OK;
    BL_TRY(for_all(r, offer, err));
    BL_TRY(choose_rungs(r, err));
    return for_all(r, refine, err);
}

/* ---- the result -------------------------------------------------------------------------------*/

static void figure_add(bl_planning_figure *figure, double value, const job *j, int n) {
    figure->mean += value / n;
    if (value > figure->worst) {
        figure->worst = value;
        figure->worst_layer = j->layer;
    }
}

/* Bytes of the copies beyond each expert's first, laid on the rank that has most slots beyond its
 * even part of the experts. */
static void price_replicas(const run *r, bl_planning_summary *s) {
    const bl_capacity *capacity = &r->options->capacity;
    const uint64_t bytes = r->model->expert_bytes, layers = (uint64_t)r->n_jobs;
    int most = 0;
    for (int rank = 0; rank < r->options->n_ranks; rank++)
        most = capacity->slots_per_rank[rank] > most ? capacity->slots_per_rank[rank] : most;
    s->replicas = capacity->n_slots - r->model->n_experts;
    s->resident_bytes = (uint64_t)most * bytes * layers;
    s->replica_bytes = (uint64_t)s->replicas * bytes * layers;
    const double extra = most - (double)r->model->n_experts / capacity->n_active;
    s->rank_bytes = (uint64_t)((extra > 0.0 ? extra : 0.0) * (double)(bytes * layers));
    if (r->model->kv_bytes_per_token > 0.0)
        s->kv_tokens_lost = (double)s->rank_bytes / r->model->kv_bytes_per_token;
}

static void summarise(const run *r, bl_planning_summary *s) {
    *s = (bl_planning_summary){.n_layers = r->n_jobs,
                               .n_steps = r->loads->n_steps,
                               .steps_per_scenario = r->steps_per_scenario,
                               .current_given = r->options->current != NULL,
                               .compared = r->options->compare,
                               .stopped = r->stopped};
    for (int m = 0; m < r->n_jobs; m++) {
        s->n_idle += r->jobs[m].idle;
        s->n_missing += r->jobs[m].row < 0;
    }
    const int n = r->n_jobs - s->n_idle;
    for (int m = 0; m < r->n_jobs; m++) {
        const job *j = &r->jobs[m];
        s->moves += j->moves;
        if (j->idle)
            continue;
        s->n_proven += j->solution.gap <= 0.0;
        figure_add(&s->before, j->before.max_over_mean, j, n);
        figure_add(&s->greedy, j->greedy.max_over_mean, j, n);
        figure_add(&s->score, j->solution.score.max_over_mean, j, n);
        figure_add(&s->bound, j->solution.bound.max_over_mean, j, n);
        figure_add(&s->gap, j->solution.gap, j, n);
    }
    price_replicas(r, s);
}

static json_t *idle_layers(const run *r, bool missing) {
    json_t *ids = json_array();
    for (int m = 0; m < r->n_jobs; m++) {
        if (r->jobs[m].idle && (r->jobs[m].row < 0) == missing)
            json_array_append_new(ids, json_integer(r->jobs[m].layer));
    }
    return ids;
}

static json_t *masked_ranks(const run *r) {
    json_t *ranks = json_array();
    for (int rank = 0; rank < r->options->n_ranks; rank++) {
        if (r->options->capacity.slots_per_rank[rank] == 0)
            json_array_append_new(ranks, json_integer(rank));
    }
    return ranks;
}

/* Which steps each of several traces has in the whole, so that one of them alone is known again. */
static json_t *traces_of(const bl_loads *loads) {
    json_t *traces = json_array();
    for (int i = 0; i < loads->n_parts; i++) {
        const bl_loads_part *part = &loads->parts[i];
        json_array_append_new(traces, json_pack("{s:s, s:[I,I]}", "trace", part->digest, "steps",
                                                (json_int_t)part->first, (json_int_t)part->end));
    }
    return traces;
}

static void name_over(const run *r, char *name, size_t size) {
    const bl_objective_over *over = &r->options->over;
    if (over->kind == BL_OVER_CVAR)
        snprintf(name, size, "cvar:%g", over->level);
    else
        snprintf(name, size, "%s", over_names[over->kind]);
}

/* How the plan came about; nothing in it depends on when or where it was made. */
static json_t *provenance_of(const run *r, const bl_topology *topology,
                             const bl_planning_summary *s) {
    const bl_planning_options *o = r->options;
    const int64_t last = (int64_t)r->loads->step_id[r->loads->n_steps - 1] + 1;
    const int64_t end = o->end_step < last ? o->end_step : last;
    char over[32];
    name_over(r, over, sizeof over);
    json_t *p = json_pack(
        "{s:s, s:s, s:s, s:s, s:s, s:I, s:[I,I], s:I, s:I, s:i}", "tool", "ballast " BL_VERSION,
        "objective", "tokens", "over", over, "rule", bl_rule_names[o->rule], "algorithm",
        bl_algorithm_names[o->solve.algorithm], "seed", (json_int_t)o->solve.seed, "steps",
        (json_int_t)o->first_step, (json_int_t)end, "n_steps", (json_int_t)r->loads->n_steps,
        "steps_per_scenario", (json_int_t)r->steps_per_scenario, "scenarios", r->n_scenarios);
    if (p == NULL)
        return NULL;
    json_object_set_new(p, "robust", json_boolean(tail_of(r) > 0.0));
    if (o->half_life > 0.0)
        json_object_set_new(p, "half_life", json_real(o->half_life));
    json_object_set_new(p, "phase", json_string(o->phase != NULL ? o->phase : "all"));
    json_object_set_new(p, "trace", json_string(r->loads->digest));
    if (r->loads->n_parts > 1)
        json_object_set_new(p, "traces", traces_of(r->loads));
    json_object_set_new(p, "composed", json_boolean(r->loads->composed));
    json_object_set_new(p, "complete", json_boolean(r->loads->complete));
    if (topology != NULL) {
        json_object_set_new(p, "topology", json_string(topology->name));
        json_object_set_new(p, "topology_digest", json_string(bl_topology_digest(topology).hex));
    }
    json_object_set_new(p, "slots", json_integer(o->capacity.n_slots));
    json_object_set_new(p, "masked_ranks", masked_ranks(r));
    json_object_set_new(p, "idle_layers", idle_layers(r, false));
    json_object_set_new(p, "missing_layers", idle_layers(r, true));
    if (o->current != NULL)
        json_object_set_new(p, "current", json_string(o->current->digest.hex));
    json_object_set_new(p, "moves", json_integer((json_int_t)s->moves));
    json_object_set_new(p, "reproducible", json_boolean(o->solve.time_s <= 0.0 && !s->stopped));
    return p;
}

/* Hand the layers' placements over to a plan. */
static bl_status assemble(run *r, const bl_topology *topology, const bl_planning_summary *s,
                          bl_plan *out, bl_error *err) {
    const bl_planning_options *o = r->options;
    const uint64_t before = o->current != NULL ? o->current->epoch : 0;
    bl_placement placement = {
        .n_ranks = o->n_ranks, .n_experts = r->model->n_experts, .n_layers = r->n_jobs};
    BL_TRY(BL_CALLOC(placement.layers, r->n_jobs, err));
    const uint64_t epoch = before + (o->current != NULL && s->moves > 0);
    for (int m = 0; m < r->n_jobs; m++) {
        placement.layers[m] = r->jobs[m].solution.placement;
        placement.layers[m].epoch = epoch;
        r->jobs[m].solution.placement = (bl_layer_placement){0};
    }
    bl_plan plan;
    const bl_status st = bl_plan_create(r->model, &placement, &plan, err);
    bl_placement_free(&placement);
    if (st < 0)
        return st;
    plan.epoch = epoch;
    plan.rule = o->rule;
    for (int m = 0; m < r->n_jobs; m++) {
        bl_solution *solution = &r->jobs[m].solution;
        plan.layers[m] =
            (bl_plan_layer){true, solution->score, solution->bound, solution->gap, solution->share};
        solution->share = NULL;
        if (r->jobs[m].idle)
            plan.layers[m].bound.kind = "idle";
    }
    json_decref(plan.provenance);
    plan.provenance = provenance_of(r, topology, s);
    plan.digest = bl_plan_digest(&plan);
    if (plan.provenance == NULL || plan.digest.hex[0] == '\0') {
        bl_plan_free(&plan);
        return bl_fail(err, BL_ERR_NOMEM, "out of memory");
    }
    *out = plan;
    return BL_OK;
}

bl_status bl_planning_run(const bl_loads *loads, const bl_model *model, const bl_topology *topology,
                          const bl_planning_options *options, bl_progress *progress, bl_plan *out,
                          bl_planning_summary *summary, bl_error *err) {
    run r = {.loads = loads,
             .model = model,
             .options = options,
             .progress = progress,
             .n_jobs = model->n_moe_layers,
             .error = BL_ERROR_INIT};
    BL_TRY(check_loads(loads, model, err));
    BL_TRY(check_current(options->current, model, options->n_ranks, err));
    const size_t cap = options->max_scenarios > 0 ? (size_t)options->max_scenarios : 1;
    r.steps_per_scenario = (loads->n_steps + cap - 1) / cap;
    r.n_scenarios = (int)((loads->n_steps + r.steps_per_scenario - 1) / r.steps_per_scenario);
    BL_TRY(BL_CALLOC(r.jobs, r.n_jobs, err));
    bl_status st = make_jobs(&r, err);
    if (st >= 0)
        st = for_all(&r, plan_job, err);
    if (st >= 0)
        st = keep_budget(&r, err);
    if (st >= 0) {
        summarise(&r, summary);
        st = assemble(&r, topology, summary, out, err);
    }
    for (int m = 0; m < r.n_jobs; m++) {
        free(r.jobs[m].load);
        bl_solution_free(&r.jobs[m].solution);
        for (int rung = 0; rung < r.jobs[m].n_rungs; rung++)
            bl_solution_free(&r.jobs[m].offers[rung]);
    }
    free(r.jobs);
    return st < 0 ? st : r.stopped ? BL_LIMIT : BL_OK;
}
