#include "cli/controller.h"

#include "core/mem.h"
#include "core/progress.h"
#include "planner/planning.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MAX_HISTORY 64
/* Windows after a move over which the realised imbalance is averaged before it is told. */
#define TELL_AFTER 4
/* How long another rank may take to answer in place of a lost one. */
#define TAKE_OVER_S 5.0

typedef struct controller {
    const bl_controller_options *options;
    atomic_bool *stop;
    bl_control_client client;
    bl_policy policy;
    uint64_t seen; /* number of the latest window */
    /* earlier windows, oldest first */
    uint32_t *history[MAX_HISTORY];
    int n_history;
    /* the last move */
    int n_moves;
    uint64_t own_move;   /* its number */
    bl_placement before; /* what was in force; no layers: there was no move */
    bl_policy_offer offer;
    int n_after; /* windows since, -1: told */
    double realised;
} controller;

static void tell(const controller *c, uint64_t window, const char *format, ...) BL_PRINTF(3, 4);
static void tell(const controller *c, uint64_t window, const char *format, ...) {
    va_list args;
    fprintf(c->options->out, "window %llu: ", (unsigned long long)window);
    va_start(args, format);
    vfprintf(c->options->out, format, args);
    va_end(args);
    fputc('\n', c->options->out);
    fflush(c->options->out);
}

static bool is_over(const controller *c) {
    return bl_interrupted() || atomic_load(c->stop);
}

/* ---- history --------------------------------------------------------------------------------- */

static void forget(controller *c) {
    for (int i = 0; i < c->n_history; i++)
        free(c->history[i]);
    c->n_history = 0;
}

/* Takes over the counts of the view's window. */
static void remember(controller *c, bl_view *view) {
    if (c->n_history == c->options->history) {
        free(c->history[0]);
        memmove(c->history, c->history + 1, sizeof c->history[0] * (size_t)(c->n_history - 1));
        c->n_history--;
    }
    c->history[c->n_history++] = view->window.count;
    view->window.count = NULL;
}

/* ---- planning -------------------------------------------------------------------------------- */

/* The loads of the history; of the latest window when there is none. */
static bl_status make_loads(const controller *c, const bl_view *view, bl_loads *out,
                            bl_error *err) {
    const bl_model *model = &view->model;
    const size_t n_counts = (size_t)model->n_moe_layers * (size_t)model->n_experts;
    bl_loads loads = {.n_steps = c->n_history > 0 ? (size_t)c->n_history : 1,
                      .n_layers = model->n_moe_layers,
                      .n_experts = model->n_experts,
                      .top_k = model->top_k,
                      .complete = true};
    bl_status st = BL_CALLOC(loads.layers, loads.n_layers, err);
    if (st >= 0)
        st = BL_CALLOC(loads.usable, loads.n_layers, err);
    if (st >= 0)
        st = BL_CALLOC(loads.why, loads.n_layers, err);
    if (st >= 0)
        st = BL_CALLOC(loads.step_id, loads.n_steps, err);
    if (st >= 0)
        st = BL_CALLOC(loads.count, loads.n_steps * n_counts, err);
    for (int l = 0; l < loads.n_layers && st >= 0; l++) {
        loads.layers[l] = model->moe_layers[l];
        loads.usable[l] = true;
    }
    for (size_t s = 0; s < loads.n_steps && st >= 0; s++) {
        const uint32_t *count = c->n_history > 0 ? c->history[s] : view->window.count;
        loads.step_id[s] = s;
        for (size_t i = 0; i < n_counts; i++)
            loads.count[s * n_counts + i] = count[i];
    }
    loads.trace_steps = loads.n_steps;
    snprintf(loads.model_name, sizeof loads.model_name, "%s", model->name);
    if (st < 0)
        bl_loads_free(&loads);
    else
        *out = loads;
    return st;
}

/* The plan in force, as the planner wants it. */
static bl_status current_plan(const bl_view *view, bl_plan *out, bl_error *err) {
    bl_placement placement;
    BL_TRY(bl_placement_copy(&view->placement, &placement, err));
    const bl_status st = bl_plan_create(&view->model, &placement, out, err);
    if (st < 0)
        bl_placement_free(&placement);
    else
        out->epoch = view->epoch;
    return st;
}

static bl_status plan_from(const controller *c, const bl_view *view, const bl_loads *loads,
                           const bl_plan *current, bl_plan *out, bl_error *err) {
    const bl_layer_placement *layer = &view->placement.layers[0];
    bl_planning_options options = BL_PLANNING_OPTIONS_INIT;
    bl_planning_summary summary;
    bl_progress silent = bl_progress_none();
    BL_TRY(BL_CALLOC(options.capacity.slots_per_rank, view->n_ranks, err));
    for (int rank = 0; rank < view->n_ranks; rank++) {
        const int slots = layer->begin[rank + 1] - layer->begin[rank];
        options.capacity.slots_per_rank[rank] = view->living[rank] ? slots : 0;
        options.capacity.n_slots += options.capacity.slots_per_rank[rank];
        options.capacity.n_active += options.capacity.slots_per_rank[rank] > 0;
    }
    options.n_ranks = view->n_ranks;
    options.current = current;
    options.max_moves = c->options->max_moves;
    options.solve.algorithm = BL_ALG_SEARCH;
    options.half_life = 1.0;
    const bl_status st =
        bl_planning_run(loads, &view->model, NULL, &options, &silent, out, &summary, err);
    free(options.capacity.slots_per_rank);
    return st;
}

static bl_status make_plan(const controller *c, const bl_view *view, bl_plan *out, bl_error *err) {
    bl_loads loads;
    bl_plan current = {0};
    BL_TRY(make_loads(c, view, &loads, err));
    bl_status st = current_plan(view, &current, err);
    if (st >= 0)
        st = plan_from(c, view, &loads, &current, out, err);
    bl_plan_free(&current);
    bl_loads_free(&loads);
    return st < 0 ? st : BL_OK;
}

/* ---- moving ---------------------------------------------------------------------------------- */

/* Apply and wait; *moved tells whether it came into force, *copies how many that took. A move that is
 * refused or aborted is no error of the controller. */
static bl_status move(controller *c, uint64_t window, const bl_plan *plan,
                      const bl_policy_offer *offer, bool *moved, long long *copies, bl_error *err) {
    bl_error why = BL_ERROR_INIT;
    bl_progress silent = bl_progress_none();
    json_t *answer, *request = bl_view_request(plan, offer, false);
    if (request == NULL)
        return bl_fail(err, BL_ERR_NOMEM, "out of memory");
    bl_status st = bl_control_ask(&c->client, request, BL_OPERATOR_WAIT_S, &answer, &why);
    json_decref(request);
    if (st >= 0) {
        const json_int_t number = json_integer_value(json_object_get(answer, "move"));
        *copies = json_integer_value(json_object_get(answer, "moves"));
        if (number > 0) {
            c->own_move = (uint64_t)number;
            st = bl_view_wait(&c->client, &silent, &answer, &why);
        }
        json_decref(answer);
    }
    *moved = st >= 0;
    if (st < 0 && (st == BL_ERR_PEER || st == BL_ERR_TIMEOUT || st == BL_ERR_IO)) {
        if (err != NULL)
            *err = why;
        return st;
    }
    if (st < 0)
        tell(c, window, "not moved: %s", why.text);
    return BL_OK;
}

/* Plan, weigh, and move if it pays. */
static bl_status consider(controller *c, uint64_t window, bl_error *err) {
    bl_view view;
    bl_plan plan = {0};
    bl_policy_offer offer;
    BL_TRY(bl_view_look(&c->client, -1, true, &view, err));
    if (view.drained && !c->options->quiet)
        tell(c, window, "wait: the cluster is drained, no move starts before it is released");
    if (view.busy || view.drained || view.window.number == 0) {
        bl_view_free(&view);
        return BL_OK;
    }
    bl_status st = make_plan(c, &view, &plan, err);
    if (st >= 0)
        st = bl_view_offer(&view, &plan.placement, &offer, err);
    if (st >= 0) {
        const bl_policy_decision decision = bl_policy_weigh(&c->policy, &offer, bl_now_s());
        if (decision.verdict == BL_POLICY_MOVE || !c->options->quiet)
            tell(c, window, "%s%s", decision.line, view.measured ? "" : " (cost assumed)");
        bool moved = false;
        long long copies;
        if (decision.verdict == BL_POLICY_MOVE) {
            st = move(c, window, &plan, &offer, &moved, &copies, err);
            bl_policy_moved(&c->policy, &offer, moved, bl_now_s());
        }
        if (moved) {
            bl_placement_free(&c->before);
            c->before = view.placement;
            view.placement = (bl_placement){0};
            c->offer = offer;
            c->n_after = 0;
            c->realised = 0;
            c->n_moves++;
        }
    }
    bl_plan_free(&plan);
    bl_view_free(&view);
    return st;
}

/* Back to the placement before the last move. */
static bl_status roll_back(controller *c, uint64_t window, bl_error *err) {
    bl_view view;
    bl_plan plan = {0};
    bool moved = false;
    long long copies = 0;
    if (c->before.n_layers == 0)
        return BL_OK;
    const uint64_t failed = c->own_move;
    BL_TRY(bl_view_look(&c->client, -1, false, &view, err));
    bl_status st = bl_plan_create(&view.model, &c->before, &plan, err);
    if (st >= 0) {
        plan.epoch = view.epoch + 1;
        st = move(c, window, &plan, NULL, &moved, &copies, err);
    }
    if (moved)
        tell(c, window, "rolled back: %lld copies are where they were before move %llu", copies,
             (unsigned long long)failed);
    bl_policy_rolled_back(&c->policy, bl_now_s());
    c->n_after = -1;
    bl_plan_free(&plan);
    bl_view_free(&view);
    return st;
}

/* ---- windows --------------------------------------------------------------------------------- */

/* What came of the last move, once a few windows have shown it. */
static void tell_outcome(controller *c, const bl_view *view) {
    if (c->n_after < 0 || c->before.n_layers == 0 || view->window.moving)
        return;
    c->realised += (view->window.imbalance - c->realised) / ++c->n_after;
    if (c->n_after < TELL_AFTER)
        return;
    tell(c, view->window.number, "realised %.3f, predicted %.3f (%+.1f %%), before %.3f",
         c->realised, c->offer.after, 100 * (c->realised / c->offer.after - 1), c->offer.now);
    c->n_after = -1;
}

static bl_status take_window(controller *c, bl_view *view, bl_error *err) {
    const bl_view_window *w = &view->window;
    if (view->spares == 0)
        return bl_fail(err, BL_ERR_STATE,
                       "the cluster has no spare buffers, so that nothing can move; start it with "
                       "ballast run --spares");
    int n_living = 0;
    for (int rank = 0; rank < view->n_ranks; rank++)
        n_living += view->living[rank];
    const double rows = (double)w->tokens * view->model.top_k / n_living;
    const bl_policy_window_in in = {.seconds = w->step_s * w->n_steps,
                                    .imbalance = w->imbalance,
                                    .rows_per_rank = rows,
                                    .n_ranks = n_living,
                                    .moving = w->moving,
                                    .step_s = w->step_s,
                                    .tokens = (double)w->tokens / w->n_steps};
    c->seen = w->number;
    if (c->n_moves > 0 && view->move != c->own_move) {
        bl_policy_overtaken(&c->policy);
        c->n_after = -1;
    }
    tell_outcome(c, view);
    const bl_policy_decision decision = bl_policy_window(&c->policy, &in, bl_now_s());
    if (decision.verdict == BL_POLICY_ROLL_BACK || !c->options->quiet)
        tell(c, w->number, "%s", decision.line);
    bl_status st = BL_OK;
    if (decision.verdict == BL_POLICY_PLAN)
        st = consider(c, w->number, err);
    else if (decision.verdict == BL_POLICY_ROLL_BACK)
        st = roll_back(c, w->number, err);
    remember(c, view);
    return st;
}

/* The cluster may still be starting, or another rank about to lead it. */
static bl_status connect_patiently(controller *c, double patience_s, bl_error *err) {
    const double until_s = bl_now_s() + patience_s;
    const struct timespec pause = {0, 20000000};
    for (;;) {
        bl_error why = BL_ERROR_INIT;
        const bl_status st = bl_operator_connect(c->options->socket, &c->client, &why);
        if (st >= 0)
            return st;
        if (bl_now_s() > until_s || is_over(c)) {
            if (err != NULL)
                *err = why;
            return st;
        }
        nanosleep(&pause, NULL);
    }
}

static bl_status watch(controller *c, bl_error *err) {
    while (!is_over(c)) {
        bl_view view;
        if (c->options->n_moves > 0 && c->n_moves >= c->options->n_moves && c->n_after < 0)
            return BL_OK;
        bl_error why = BL_ERROR_INIT;
        bl_status st = bl_view_look(&c->client, (int64_t)c->seen, false, &view, &why);
        if (st >= 0) {
            if (view.window.number > c->seen)
                st = take_window(c, &view, &why);
            bl_view_free(&view);
        }
        if (st == BL_ERR_PEER) { /* it has ended, or lost the rank that answered */
            bl_control_disconnect(&c->client);
            if (connect_patiently(c, TAKE_OVER_S, NULL) < 0)
                return BL_OK;
            continue;
        }
        if (st < 0 && is_over(c)) /* it was told to end while it waited for an answer */
            return BL_OK;
        if (st < 0) {
            if (err != NULL)
                *err = why;
            return st;
        }
    }
    return BL_OK;
}

bl_status bl_controller_run(const bl_controller_options *options, atomic_bool *stop,
                            bl_error *err) {
    controller c = {.options = options, .stop = stop, .client = {.fd = -1}, .n_after = -1};
    bl_policy_init(&c.policy, &options->policy);
    bl_status st = connect_patiently(&c, options->patience_s, err);
    if (st >= 0)
        st = watch(&c, err);
    bl_control_disconnect(&c.client);
    forget(&c);
    bl_placement_free(&c.before);
    return st;
}
