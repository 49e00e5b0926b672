/*
 * ballast apply: move a running cluster to a plan.
 */
#include "cli/verbs.h"
#include "cli/view.h"
#include "topologies/topology.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct apply_options {
    const char *socket, *topology;
    double dwell_s;
    bool dry_run, wait, force, as_written, json;
} apply_options;

static const bl_opt OPTIONS[] = {
    {"socket", 0, BL_OPT_STRING, offsetof(apply_options, socket), .metavar = "PATH",
     .help = "the cluster's control socket"},
    {"dry-run", 0, BL_OPT_FLAG, offsetof(apply_options, dry_run),
     .help = "show what would move, and move nothing"},
    {"wait", 0, BL_OPT_FLAG, offsetof(apply_options, wait),
     .help = "return when the move is over; fail when it was aborted"},
    {"force", 0, BL_OPT_FLAG, offsetof(apply_options, force),
     .help = "move also when the plan does not pay for its move"},
    {"as-written", 0, BL_OPT_FLAG, offsetof(apply_options, as_written),
     .help =
         "give each rank what the plan gives it, also where an equal rank would need fewer moves"},
    {"dwell", 0, BL_OPT_DURATION, offsetof(apply_options, dwell_s), .metavar = "SECONDS",
     .min = 1e-3, .max = 1e9, .help = "for how long the plan is expected to stay good"},
    {"topology", 0, BL_OPT_STRING, offsetof(apply_options, topology), .metavar = "T",
     .help = "what bytes cost, for --dry-run"},
    {"json", 0, BL_OPT_FLAG, offsetof(apply_options, json), .help = "answer in JSON"},
    {0}};

static void set_defaults(void *options) {
    const bl_policy_options policy = BL_POLICY_OPTIONS_INIT;
    apply_options *o = options;
    o->dwell_s = policy.dwell_s;
}

static long long number(const json_t *object, const char *key) {
    return (long long)json_integer_value(json_object_get(object, key));
}

/* ---- is it worth it? ------------------------------------------------------------------------- */

/* "Qwen/Qwen3-30B-A3B" and a folder Qwen3-30B-A3B are the same model. Names come from files, too, so that
 * another one is worth a word and no refusal. */
static const char *last_name(const char *name) {
    const char *slash = strrchr(name, '/');
    return slash != NULL ? slash + 1 : name;
}

/* Lay the plan over the placement in force, and hear what the cluster's load says about it. *weighed:
 * it has seen a window of load, and the plan fits its layers. */
static bl_status weigh(bl_control_client *client, const apply_options *o, bl_plan *plan,
                       bl_policy_offer *offer, bl_view *view, bool *weighed, bl_error *err) {
    *weighed = false;
    BL_TRY(bl_view_look(client, -1, true, view, err));
    const bool fits = plan->n_experts == view->model.n_experts &&
                      plan->placement.n_ranks == view->n_ranks &&
                      plan->placement.n_layers == view->placement.n_layers;
    if (!fits) /* the cluster will say what does not fit */
        return BL_OK;
    if (strcmp(last_name(plan->model_name), last_name(view->model.name)) != 0)
        fprintf(stderr, "ballast apply: the plan names the model %s, the cluster serves %s\n",
                plan->model_name, view->model.name);
    if (!o->as_written)
        BL_TRY(bl_view_align(view, plan, err));
    if (view->window.number == 0)
        return BL_OK;
    BL_TRY(bl_view_offer(view, &plan->placement, offer, err));
    *weighed = true;
    return BL_OK;
}

static bl_status check_pays(const apply_options *o, const bl_policy_offer *offer,
                            const bl_view *view, bl_error *err) {
    double gain_s;
    if (offer->moves == 0 || bl_policy_pays(offer, o->dwell_s, 1.0, &gain_s))
        return BL_OK;
    return bl_fail(
        err, BL_ERR_STATE,
        "does not pay: imbalance %.3f -> %.3f on the live load saves %.3g s over %.3g s, "
        "moving %.3g MB costs %.3g s (%s); --force moves all the same",
        offer->now, offer->after, gain_s, o->dwell_s, offer->bytes * 1e-6, offer->cost_s,
        view->measured ? "measured" : "assumed");
}

/* ---- dry run --------------------------------------------------------------------------------- */

/* Bundles on the busiest side of a round all travel at once, so a round takes as long as its slowest
 * pair; rounds follow each other. */
typedef struct dry_run {
    const bl_topology *topology; /* or NULL */
    double bundle_bytes;
    double bytes[BL_MAX_LEVELS + 1]; /* by the level at which the ranks meet */
    double seconds;
    int n_rounds, most_rounds;
} dry_run;

static void add_move(dry_run *run, int from, int to, double *round_s) {
    if (run->topology == NULL)
        return;
    const double s = bl_topology_move_s(run->topology, from, to, run->bundle_bytes);
    run->bytes[bl_topology_level(run->topology, from, to)] += run->bundle_bytes;
    *round_s = s > *round_s ? s : *round_s;
}

static long long item(const json_t *move, size_t i) {
    return (long long)json_integer_value(json_array_get(move, i));
}

/* Moves are [expert, from, to, round], ascending by round. */
static void print_wave(size_t w, const json_t *wave, dry_run *run) {
    const json_t *moves = json_object_get(wave, "moves");
    const size_t n = json_array_size(moves);
    const int rounds = n > 0 ? (int)item(json_array_get(moves, n - 1), 3) + 1 : 0;
    double round_s = 0;
    printf("wave %zu, layer %lld:", w + 1, number(wave, "layer"));
    for (size_t m = 0; m < n; m++) {
        const json_t *move = json_array_get(moves, m);
        const bool first = m == 0 || item(move, 3) != item(json_array_get(moves, m - 1), 3);
        if (first) {
            run->seconds += round_s;
            round_s = 0;
        }
        add_move(run, (int)item(move, 1), (int)item(move, 2), &round_s);
        printf("%s %lld: %lld -> %lld",
               m == 0  ? ""
               : first ? ";"
                       : ",",
               item(move, 0), item(move, 1), item(move, 2));
    }
    run->seconds += round_s;
    run->n_rounds += rounds;
    run->most_rounds = rounds > run->most_rounds ? rounds : run->most_rounds;
    printf("%s\n", n == 0 ? " copies are dropped" : "");
}

static void print_prediction(const json_t *answer, const dry_run *run, const bl_view *view,
                             const bl_policy_offer *offer) {
    const double copy_s = (double)view->step_bytes * view->ns_per_byte * 2e-9;
    printf("%d rounds, at most %d in a wave\n", run->n_rounds, run->most_rounds);
    for (int k = 0; run->topology != NULL && k <= run->topology->n_levels; k++) {
        if (run->bytes[k] > 0)
            printf("%.0f bytes within %s\n", run->bytes[k], run->topology->levels[k].name);
    }
    if (run->topology != NULL)
        printf("%.3g s on the links, round by round (modelled, %s)\n", run->seconds,
               run->topology->name);
    if (offer == NULL)
        return;
    printf("%.3g s beside serving, %lld bytes per step at most (modelled)\n", offer->duration_s,
           number(answer, "step_bytes"));
    printf("longest step %.3g s -> %.3g s (modelled from %s cost of a byte)\n",
           view->window.longest_s, view->window.longest_s + copy_s,
           view->measured ? "the measured" : "an assumed");
    printf("imbalance %.3f -> %.3f on the live load, cost %.3g s\n", offer->now, offer->after,
           offer->cost_s);
}

static bl_status print_dry_run(const apply_options *o, const json_t *answer, const bl_view *view,
                               const bl_policy_offer *offer, bl_error *err) {
    const json_t *waves = json_object_get(answer, "schedule");
    bl_topology topology = {0};
    dry_run run = {.bundle_bytes = (double)number(answer, "bundle_bytes")};
    if (o->topology != NULL) {
        BL_TRY(bl_topology_open(o->topology, &topology, err));
        run.topology = &topology;
        if (topology.n_ranks < view->n_ranks) {
            bl_fail(err, BL_ERR_SHAPE, "%s has %d ranks, the cluster %d", o->topology,
                    topology.n_ranks, view->n_ranks);
            bl_topology_free(&topology);
            return BL_ERR_SHAPE;
        }
    }
    for (size_t w = 0; w < json_array_size(waves); w++)
        print_wave(w, json_array_get(waves, w), &run);
    if (number(answer, "waves") > 0)
        print_prediction(answer, &run, view, offer);
    bl_topology_free(&topology);
    return BL_OK;
}

/* ---- applying -------------------------------------------------------------------------------- */

static void print_text(const json_t *answer, bool is_dry) {
    printf("%lld moves", number(answer, "moves"));
    if (number(answer, "waves") > 0)
        printf(" in %lld layers, %lld waves, %lld bytes, at least %lld steps",
               number(answer, "layers"), number(answer, "waves"), number(answer, "bytes"),
               number(answer, "steps"));
    puts(is_dry ? " (dry run)" : "");
}

static bl_status print_answer(const apply_options *o, const json_t *answer, const bl_view *view,
                              const bl_policy_offer *offer, bl_error *err) {
    if (o->json)
        return BL_OK;
    if (o->dry_run)
        BL_TRY(print_dry_run(o, answer, view, offer, err));
    print_text(answer, o->dry_run);
    return BL_OK;
}

static bl_status ask(bl_control_client *client, const bl_plan *plan, const bl_policy_offer *offer,
                     bool is_dry, json_t **answer, bl_error *err) {
    json_t *request = bl_view_request(plan, offer, is_dry);
    if (request == NULL)
        return bl_fail(err, BL_ERR_NOMEM, "out of memory");
    const bl_status st = bl_control_ask(client, request, BL_OPERATOR_WAIT_S, answer, err);
    json_decref(request);
    return st;
}

static bl_status apply(const apply_options *o, bl_plan *plan, bl_control_client *client,
                       bl_view *view, bl_error *err) {
    bl_policy_offer offer = {0};
    json_t *answer = NULL;
    bool weighed;
    BL_TRY(weigh(client, o, plan, &offer, view, &weighed, err));
    if (weighed && !o->dry_run && !o->force) { /* what cannot be done at all is said first */
        BL_TRY(ask(client, plan, &offer, true, &answer, err));
        json_decref(answer);
        BL_TRY(check_pays(o, &offer, view, err));
    }
    BL_TRY(ask(client, plan, weighed ? &offer : NULL, o->dry_run, &answer, err));
    bl_status st = print_answer(o, answer, view, weighed ? &offer : NULL, err);
    if (st >= 0 && o->wait && number(answer, "move") > 0) {
        bl_progress progress = bl_progress_stderr();
        bl_interrupts_install();
        fflush(stdout);
        st = bl_view_wait(client, &progress, &answer, err);
    }
    if (st >= 0 && o->json)
        st = bl_json_write("-", answer, 0, err);
    json_decref(answer);
    return st;
}

static bl_status run(void *options, int n_args, char **args, bl_error *err) {
    const apply_options *o = options;
    bl_control_client client = {.fd = -1};
    bl_plan plan = {0};
    bl_view view = {0};
    (void)n_args;
    bl_status st = bl_plan_load(args[0], &plan, err);
    if (st >= 0)
        st = bl_operator_connect(o->socket, &client, err);
    if (st >= 0)
        st = apply(o, &plan, &client, &view, err);
    bl_control_disconnect(&client);
    bl_view_free(&view);
    bl_plan_free(&plan);
    return st;
}

const bl_verb bl_verb_apply = {
    .name = "apply",
    .arguments = "PLAN",
    .summary = "move a running cluster to a plan while it serves",
    .details =
        "Experts move in waves, a layer at a time, into the spares that the ranks were started "
        "with (ballast run --spares). Each wave is verified on all ranks and takes effect on all "
        "of them at the same step. Ranks with equally many slots are equal to most plans, so what "
        "a "
        "plan gives them is exchanged, layer by layer, where fewer experts have to move that way; "
        "not between hosts or nodes, where the ranks were started with --topology, and not at all "
        "where the plan was made for a topology or fault domains that they do not know, or with "
        "--as-written. A plan that is in force already is 0 moves; a plan for other "
        "ranks, slots or another model is refused, and so is a stale one: made with --current "
        "from a placement that is no longer in force. After a rank was lost, a plan with that rank "
        "masked (ballast plan --mask) is what fits; one that puts experts on it is refused, by "
        "layer "
        "and expert. On a cluster that has seen load, a plan that "
        "does not pay for its move is refused with the figures, unless --force: what it saves over "
        "--dwell on the latest window of load, against the time that serving loses to the move.\n\n"
        "Without --wait the answer says what has been started; ballast status says how it goes.",
    .options = OPTIONS,
    .options_bytes = sizeof(apply_options),
    .set_defaults = set_defaults,
    .min_args = 1,
    .max_args = 1,
    .run = run,
};
