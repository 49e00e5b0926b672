/* What is asked and what is answered; no sockets here. */
#include "rebalancer/control_parts.h"

#include "core/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- requests -------------------------------------------------------------------------------- */

void bl_control_request_free(bl_control_request *request) {
    bl_placement_free(&request->goal);
}

/* The rule of a plan: one for all layers. */
static bl_status read_rule(const json_t *layers, bl_control_request *out, bl_error *err) {
    const json_t *split = json_object_get(json_array_get(layers, 0), "split");
    const char *rule = "even";
    if (json_is_object(split))
        BL_TRY(bl_json_string_or(split, "rule", "even", NULL, &rule, err));
    snprintf(out->rule, sizeof out->rule, "%s", rule);
    return BL_OK;
}

static bl_status read_plan(const json_t *plan, bl_control_request *out, bl_error *err) {
    const char *format;
    const json_t *model, *layers;
    int64_t version, ranks, experts, top_k, epoch;
    BL_TRY(bl_json_string(plan, "format", NULL, &format, err));
    BL_TRY(bl_json_int(plan, "version", 0, INT32_MAX, NULL, &version, err));
    if (strcmp(format, "ballast-plan") != 0 || version != 1)
        return bl_fail(err, BL_ERR_VERSION, "\"plan\" is %.40s version %lld, not ballast-plan 1",
                       format, (long long)version);
    BL_TRY(bl_json_object(plan, "model", NULL, &model, err));
    BL_TRY(bl_json_int(model, "experts", 1, 1 << 20, NULL, &experts, err));
    BL_TRY(bl_json_int(model, "top_k", 1, 1 << 20, NULL, &top_k, err));
    BL_TRY(bl_json_int(plan, "ranks", 1, BL_TX_MAX_RANKS, NULL, &ranks, err));
    BL_TRY(bl_json_int_or(plan, "epoch", 0, INT64_MAX, 0, NULL, &epoch, err));
    BL_TRY(bl_json_array(plan, "layers", NULL, &layers, err));
    BL_TRY(read_rule(layers, out, err));
    out->n_experts = (int)experts;
    out->top_k = (int)top_k;
    out->epoch = (uint64_t)epoch;
    BL_TRY(bl_placement_from_json(layers, (int)ranks, (int)experts, (uint64_t)epoch, NULL,
                                  &out->goal, err));
    return bl_placement_check(&out->goal, NULL, err);
}

static bl_status read_look(const json_t *root, bl_control_request *out, bl_error *err) {
    int64_t window;
    out->op = BL_CONTROL_LOOK;
    BL_TRY(bl_json_bool_or(root, "wait", false, NULL, &out->wait, err));
    BL_TRY(bl_json_bool_or(root, "placement", false, NULL, &out->placement, err));
    BL_TRY(bl_json_int_or(root, "window", 0, INT64_MAX, 0, NULL, &window, err));
    out->window = (uint64_t)window;
    return BL_OK;
}

static bl_status read_apply(const json_t *root, bl_control_request *out, bl_error *err) {
    const json_t *plan, *predicted = json_object_get(root, "predicted");
    out->op = BL_CONTROL_APPLY;
    BL_TRY(bl_json_bool_or(root, "dry_run", false, NULL, &out->dry_run, err));
    if (json_is_object(predicted)) {
        BL_TRY(bl_json_real_or(predicted, "before", 0, 1e9, 0, NULL, &out->before, err));
        BL_TRY(bl_json_real_or(predicted, "after", 0, 1e9, 0, NULL, &out->predicted, err));
    }
    BL_TRY(bl_json_object(root, "plan", NULL, &plan, err));
    return read_plan(plan, out, err);
}

static bl_status read_request(const json_t *root, bl_control_request *out, bl_error *err) {
    const char *op;
    BL_TRY(bl_json_string(root, "op", NULL, &op, err));
    if (strcmp(op, "status") == 0) {
        out->op = BL_CONTROL_STATUS;
        return bl_json_bool_or(root, "wait", false, NULL, &out->wait, err);
    }
    if (strcmp(op, "abort") == 0) {
        out->op = BL_CONTROL_ABORT;
        return BL_OK;
    }
    if (strcmp(op, "look") == 0)
        return read_look(root, out, err);
    if (strcmp(op, "drain") == 0) {
        out->op = BL_CONTROL_DRAIN;
        return bl_json_bool_or(root, "release", false, NULL, &out->release, err);
    }
    if (strcmp(op, "join") == 0) {
        int64_t rank;
        out->op = BL_CONTROL_JOIN;
        BL_TRY(bl_json_int(root, "rank", 0, BL_TX_MAX_RANKS - 1, NULL, &rank, err));
        out->rank = (int)rank;
        return BL_OK;
    }
    if (strcmp(op, "apply") != 0)
        return bl_fail(err, BL_ERR_USAGE,
                       "unknown op \"%.40s\"; there are apply, status, abort, look, drain and join",
                       op);
    return read_apply(root, out, err);
}

bl_status bl_control_parse(const char *line, size_t bytes, bl_control_request *out, bl_error *err) {
    json_t *root;
    bl_control_request request = {0};
    BL_TRY(bl_json_parse(line, bytes, "request", &root, err));
    const bl_status st = json_is_object(root)
                             ? read_request(root, &request, err)
                             : bl_fail(err, BL_ERR_PARSE, "a request is a JSON object");
    json_decref(root);
    if (st < 0)
        bl_control_request_free(&request);
    else
        *out = request;
    return st;
}

/* ---- apply ----------------------------------------------------------------------------------- */

static bl_status check_cluster(const bl_control_request *request, const bl_control_cluster *cluster,
                               bl_error *err) {
    if (request->n_experts != cluster->n_experts || request->top_k != cluster->top_k)
        return bl_fail(err, BL_ERR_MODEL,
                       "the plan is for %d experts, top-%d; the running model has %d, top-%d",
                       request->n_experts, request->top_k, cluster->n_experts, cluster->top_k);
    if (request->goal.n_ranks != cluster->n_ranks)
        return bl_fail(err, BL_ERR_SHAPE, "the plan is for %d ranks, %d are running",
                       request->goal.n_ranks, cluster->n_ranks);
    if (strcmp(request->rule, cluster->rule) != 0)
        return bl_fail(err, BL_ERR_UNSUPPORTED,
                       "the plan was made for the rule %s; the engine shares copies by %s",
                       request->rule, cluster->rule);
    return BL_OK;
}

static bl_status check_epoch(const bl_control_request *request, const bl_control_epochs *epochs,
                             bl_error *err) {
    if (request->epoch == 0 || request->epoch == epochs->in_force + 1)
        return BL_OK;
    return bl_fail(err, BL_ERR_STATE,
                   "the plan is stale: it follows epoch %llu, in force is epoch %llu; plan again "
                   "with --current",
                   (unsigned long long)(request->epoch - 1), (unsigned long long)epochs->in_force);
}

static json_t *schedule_to_json(const bl_schedule *schedule) {
    json_t *waves = json_array();
    for (int w = 0; w < schedule->n_waves; w++) {
        const bl_wave *wave = &schedule->waves[w];
        json_t *moves = json_array();
        for (int m = 0; m < wave->n_moves; m++)
            json_array_append_new(
                moves, json_pack("[i,i,i,i]", wave->moves[m].expert, wave->moves[m].source,
                                 wave->moves[m].destination, wave->moves[m].round));
        json_array_append_new(waves,
                              json_pack("{s:i, s:o}", "layer", wave->after.layer, "moves", moves));
    }
    return waves;
}

static json_t *way_to_json(const bl_schedule *schedule, const bl_agent *agent) {
    bl_agent_status status;
    bl_agent_get_status(agent, &status);
    const uint64_t bytes = (uint64_t)schedule->n_moves * status.bundle_bytes;
    return json_pack("{s:b, s:i, s:I, s:i, s:i, s:I, s:I, s:I, s:I}", "ok", 1, "moves",
                     schedule->n_moves, "bytes", (json_int_t)bytes, "layers", schedule->n_layers,
                     "waves", schedule->n_waves, "steps",
                     (json_int_t)bl_agent_min_steps(agent, schedule), "move", (json_int_t)0,
                     "bundle_bytes", (json_int_t)status.bundle_bytes, "step_bytes",
                     (json_int_t)bl_agent_step_bytes(agent));
}

/* The record of a move that is to start. */
static json_t *begin_record(const bl_control_request *request, const bl_schedule *schedule,
                            uint64_t move) {
    char hash[17];
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)schedule->hash);
    return json_pack("{s:s, s:I, s:I, s:i, s:i, s:i, s:s, s:o}", "what", "begin", "move",
                     (json_int_t)move, "epoch", (json_int_t)request->epoch, "moves",
                     schedule->n_moves, "waves", schedule->n_waves, "layers", schedule->n_layers,
                     "schedule", hash, "by", bl_control_who_to_json(&request->who));
}

/* BL_OK: the move may start. BL_LIMIT: its record is on its way to the disk. */
static bl_status record_begin(bl_control_request *request, const bl_schedule *schedule,
                              const bl_control_cluster *cluster, const bl_agent *agent,
                              bl_error *err) {
    bl_agent_status status;
    if (cluster->journal == NULL)
        return BL_OK;
    bl_agent_get_status(agent, &status);
    if (status.busy) /* refused in a moment; not worth a record */
        return BL_OK;
    if (request->recorded == 0)
        request->recorded =
            bl_journal_append(cluster->journal, begin_record(request, schedule, status.term + 1));
    return bl_journal_check(cluster->journal, request->recorded, err);
}

static bl_status start_move(bl_control_request *request, bl_schedule *schedule,
                            const bl_control_cluster *cluster, bl_control_epochs *epochs,
                            bl_agent *agent, bl_error *err) {
    if (epochs->drained)
        return bl_fail(err, BL_ERR_STATE,
                       "the cluster is drained by process %lld of user %lld: no move starts before "
                       "ballast drain --release",
                       (long long)epochs->drained_by.pid, (long long)epochs->drained_by.uid);
    if (epochs->held != NULL)
        return bl_fail(err, BL_ERR_STATE, "no move can start now: %s", epochs->held);
    const bl_status st = record_begin(request, schedule, cluster, agent, err);
    if (st != BL_OK)
        return st;
    BL_TRY(bl_agent_start(agent, &request->goal, schedule, err));
    epochs->coming = request->epoch;
    epochs->moving = true;
    epochs->waves_recorded = 0;
    epochs->predicted = request->predicted;
    epochs->before = request->before;
    epochs->by = request->who;
    return BL_OK;
}

/* BL_LIMIT: to be asked again. */
static bl_status apply(bl_control_request *request, const bl_control_cluster *cluster,
                       bl_control_epochs *epochs, bl_agent *agent, json_t **answer, bl_error *err) {
    bl_schedule schedule;
    bl_agent_status status;
    BL_TRY(check_cluster(request, cluster, err));
    BL_TRY(bl_agent_preview(agent, &request->goal, &schedule, err));
    json_t *way = way_to_json(&schedule, agent);
    bl_status st = schedule.n_waves > 0 ? check_epoch(request, epochs, err) : BL_OK;
    const bool starts = schedule.n_waves > 0 && !request->dry_run;
    if (st >= 0 && request->dry_run)
        json_object_set_new(way, "schedule", schedule_to_json(&schedule));
    if (st >= 0 && starts)
        st = start_move(request, &schedule, cluster, epochs, agent, err);
    if (st == BL_OK && starts) {
        bl_agent_get_status(agent, &status);
        json_object_set_new(way, "move", json_integer((json_int_t)status.term));
    }
    bl_schedule_free(&schedule);
    if (st != BL_OK) {
        json_decref(way);
        return st;
    }
    *answer = way;
    return BL_OK;
}

/* ---- status ---------------------------------------------------------------------------------- */

static json_t *text_or_null(const char *text) {
    return text[0] != '\0' ? json_string(text) : json_null();
}

static json_t *figure_or_null(double value) {
    return value > 0 ? json_real(value) : json_null();
}

static json_t *imbalance_to_json(const bl_control_cluster *cluster,
                                 const bl_control_epochs *epochs) {
    double now = 0;
    if (cluster->meter != NULL) {
        const bl_window window = bl_meter_window(cluster->meter);
        now = bl_window_imbalance(&window);
    }
    return json_pack("{s:o, s:o, s:o}", "before", figure_or_null(epochs->before), "now",
                     figure_or_null(now), "predicted", figure_or_null(epochs->predicted));
}

/* How the move gets on: rate, time left, longest step. */
static void add_pace(json_t *to, const bl_agent_status *s) {
    const double elapsed_s = (double)s->elapsed_ns * 1e-9;
    const double rate = elapsed_s > 0 ? (double)s->bytes_done / elapsed_s : 0;
    const double left = (double)(s->n_bytes - s->bytes_done);
    json_object_set_new(to, "elapsed_s", json_real(elapsed_s));
    json_object_set_new(to, "rate", json_real(rate));
    json_object_set_new(to, "eta_s", s->busy && rate > 0 ? json_real(left / rate) : json_null());
    json_object_set_new(to, "longest_step_us", json_real((double)s->longest_step_ns * 1e-3));
}

static json_t *ranks_to_json(const bl_control_cluster *cluster, const bl_agent *agent,
                             bool living) {
    json_t *ranks = json_array();
    for (int rank = 0; rank < cluster->n_ranks; rank++) {
        if (bl_agent_lives(agent, rank) == living)
            json_array_append_new(ranks, json_integer(rank));
    }
    return ranks;
}

static json_t *status_to_json(const bl_agent_status *s, const bl_control_cluster *cluster,
                              const bl_control_epochs *epochs, const bl_agent *agent) {
    static const char *const outcomes[] = {"none", "running", "moved", "aborted"};
    char partial[32] = "";
    if (s->outcome == BL_TX_ABORTED && s->layers_done > 0)
        snprintf(partial, sizeof partial, "%d/%d", s->layers_done, s->n_layers);
    json_t *rank =
        json_pack("{s:i, s:I, s:I, s:I, s:f, s:I, s:f, s:I}", "number",
                  bl_agent_leader(agent), /* it answers */
                  "sent_bytes", (json_int_t)s->sent_bytes, "received_bytes",
                  (json_int_t)s->received_bytes, "max_step_bytes", (json_int_t)s->max_step_bytes,
                  "max_step_us", (double)s->max_step_ns * 1e-3, "holds", (json_int_t)s->holds,
                  "max_hold_us", (double)s->max_hold_ns * 1e-3, "stray", (json_int_t)s->stray);
    json_t *made = json_pack(
        "{s:b, s:s, s:s, s:o, s:o, s:I, s:o, s:i, s:i, s:i, s:i, s:i, s:i, s:I, s:I, "
        "s:I, s:I, s:o}",
        "ok", 1, "state", s->state, "outcome", outcomes[s->outcome], "reason",
        text_or_null(s->reason), "partial", text_or_null(partial), "move", (json_int_t)s->term,
        "layer", s->layer >= 0 ? json_integer(s->layer) : json_null(), "layers_done",
        s->layers_done, "layers", s->n_layers, "waves_done", s->waves_done, "waves", s->n_waves,
        "moves_done", s->moves_done, "moves", s->n_moves, "bytes_done", (json_int_t)s->bytes_done,
        "bytes", (json_int_t)s->n_bytes, "epoch", (json_int_t)epochs->in_force, "step",
        (json_int_t)s->step, "rank", rank);
    if (made == NULL)
        return NULL;
    json_object_set_new(made, "by", bl_control_who_to_json(&epochs->by));
    json_object_set_new(made, "imbalance", imbalance_to_json(cluster, epochs));
    json_object_set_new(made, "drained", json_boolean(epochs->drained));
    json_object_set_new(made, "living", ranks_to_json(cluster, agent, true));
    json_object_set_new(made, "lost", ranks_to_json(cluster, agent, false));
    add_pace(made, s);
    return made;
}

/* ---- what has happened ----------------------------------------------------------------------- */

static void record_wave(const bl_control_cluster *cluster, const bl_layer_placement *after,
                        uint64_t move) {
    bl_journal_append(cluster->journal,
                      json_pack("{s:s, s:I, s:i, s:I, s:o}", "what", "wave", "move",
                                (json_int_t)move, "layer", after->layer, "epoch",
                                (json_int_t)after->epoch, "slots", bl_layer_slots_to_json(after)));
}

static void record_end(const bl_control_cluster *cluster, const bl_agent_status *status) {
    bl_journal_append(cluster->journal,
                      json_pack("{s:s, s:I, s:s, s:o}", "what", "end", "move",
                                (json_int_t)status->term, "outcome",
                                status->outcome == BL_TX_MOVED ? "moved" : "aborted", "reason",
                                text_or_null(status->reason)));
}

/* A move that has ended since has put its plan in force, or has not. */
void bl_control_settle(const bl_control_cluster *cluster, bl_control_epochs *epochs,
                       const bl_agent *agent) {
    bl_agent_status status;
    if (!epochs->moving)
        return;
    bl_agent_get_status(agent, &status);
    while (cluster->journal != NULL && epochs->waves_recorded < status.waves_done) {
        const bl_layer_placement *after = bl_agent_wave(agent, epochs->waves_recorded++);
        if (after != NULL)
            record_wave(cluster, after, status.term);
    }
    if (status.busy)
        return;
    epochs->moving = false;
    if (status.outcome == BL_TX_MOVED)
        epochs->in_force = epochs->coming;
    if (cluster->journal != NULL)
        record_end(cluster, &status);
}

/* ---- answers --------------------------------------------------------------------------------- */

json_t *bl_control_refusal(const bl_error *err) {
    json_t *body = json_pack("{s:s, s:s}", "code", bl_status_name(err->code), "message",
                             err->text[0] != '\0' ? err->text : bl_status_string(err->code));
    if (err->layer >= 0)
        json_object_set_new(body, "layer", json_integer(err->layer));
    if (err->expert >= 0)
        json_object_set_new(body, "expert", json_integer(err->expert));
    return json_pack("{s:b, s:o}", "ok", 0, "error", body);
}

static json_t *drain(const bl_control_request *request, bool may_wait, bl_control_epochs *epochs,
                     const bl_agent *agent) {
    if (epochs->drained == request->release) {
        epochs->drained = !request->release;
        epochs->drained_by = request->who;
    }
    if (!request->release && may_wait && bl_agent_is_busy(agent))
        return NULL;
    return json_pack("{s:b, s:b, s:b, s:I, s:o}", "ok", 1, "drained", (int)epochs->drained, "busy",
                     (int)bl_agent_is_busy(agent), "epoch", (json_int_t)epochs->in_force, "layers",
                     bl_control_map(agent));
}

static bl_status join(const bl_control_request *request, const bl_control_cluster *cluster,
                      const bl_agent *agent, json_t **answer, bl_error *err) {
    char *directory;
    if (request->rank >= cluster->n_ranks)
        return bl_fail(err, BL_ERR_RANGE, "there are ranks 0 to %d, no rank %d",
                       cluster->n_ranks - 1, request->rank);
    if (bl_agent_lives(agent, request->rank))
        return bl_fail(err, BL_ERR_STATE, "rank %d lives; only a lost rank can come back",
                       request->rank);
    BL_TRY(bl_agent_directory(agent, &directory, err));
    *answer = json_pack("{s:b, s:s, s:o}", "ok", 1, "directory", directory, "living",
                        ranks_to_json(cluster, agent, true));
    free(directory);
    return BL_OK;
}

/* A window later than the one the request knows? */
static bool has_news(const bl_control_request *request, const bl_control_cluster *cluster) {
    return cluster->meter != NULL && bl_meter_window(cluster->meter).number > request->window;
}

json_t *bl_control_answer(bl_control_request *request, bool may_wait,
                          const bl_control_cluster *cluster, bl_control_epochs *epochs,
                          bl_agent *agent) {
    bl_error err = BL_ERROR_INIT;
    bl_agent_status status;
    json_t *answer = NULL;
    bl_status st = BL_OK;
    bl_control_settle(cluster, epochs, agent);
    bl_agent_get_status(agent, &status);
    switch (request->op) {
    case BL_CONTROL_STATUS:
        if (request->wait && may_wait && status.busy)
            return NULL;
        answer = status_to_json(&status, cluster, epochs, agent);
        break;
    case BL_CONTROL_ABORT:
        st = bl_agent_stop(agent, "aborted by the operator", &err);
        answer = st >= 0 ? json_pack("{s:b}", "ok", 1) : NULL;
        break;
    case BL_CONTROL_APPLY:
        st = apply(request, cluster, epochs, agent, &answer, &err);
        if (st == BL_LIMIT)
            return NULL;
        break;
    case BL_CONTROL_LOOK:
        if (request->wait && may_wait && !has_news(request, cluster))
            return NULL;
        answer = bl_control_look(request, cluster, epochs, agent);
        break;
    case BL_CONTROL_DRAIN:
        answer = drain(request, may_wait, epochs, agent);
        if (answer == NULL)
            return NULL;
        break;
    case BL_CONTROL_JOIN:
        st = join(request, cluster, agent, &answer, &err);
        break;
    }
    return st >= 0 ? answer : bl_control_refusal(&err);
}
