/* What is asked and what is answered; no sockets here. */
#include "rebalancer/control.h"

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

static bl_status read_request(const json_t *root, bl_control_request *out, bl_error *err) {
    const char *op;
    const json_t *plan;
    BL_TRY(bl_json_string(root, "op", NULL, &op, err));
    if (strcmp(op, "status") == 0) {
        out->op = BL_CONTROL_STATUS;
        return bl_json_bool_or(root, "wait", false, NULL, &out->wait, err);
    }
    if (strcmp(op, "abort") == 0) {
        out->op = BL_CONTROL_ABORT;
        return BL_OK;
    }
    if (strcmp(op, "apply") != 0)
        return bl_fail(err, BL_ERR_USAGE, "unknown op \"%.40s\"; there are apply, status and abort",
                       op);
    out->op = BL_CONTROL_APPLY;
    BL_TRY(bl_json_bool_or(root, "dry_run", false, NULL, &out->dry_run, err));
    BL_TRY(bl_json_object(root, "plan", NULL, &plan, err));
    return read_plan(plan, out, err);
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
            json_array_append_new(moves,
                                  json_pack("[i,i,i]", wave->moves[m].expert, wave->moves[m].source,
                                            wave->moves[m].destination));
        json_array_append_new(waves,
                              json_pack("{s:i, s:o}", "layer", wave->after.layer, "moves", moves));
    }
    return waves;
}

static json_t *way_to_json(const bl_schedule *schedule, const bl_agent *agent) {
    bl_agent_status status;
    bl_agent_get_status(agent, &status);
    const uint64_t bytes = (uint64_t)schedule->n_moves * status.bundle_bytes;
    return json_pack("{s:b, s:i, s:I, s:i, s:i, s:I, s:I}", "ok", 1, "moves", schedule->n_moves,
                     "bytes", (json_int_t)bytes, "layers", schedule->n_layers, "waves",
                     schedule->n_waves, "steps", (json_int_t)bl_agent_min_steps(agent, schedule),
                     "move", (json_int_t)0);
}

static bl_status apply(const bl_control_request *request, const bl_control_cluster *cluster,
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
        st = bl_agent_start(agent, &request->goal, &schedule, err);
    if (st >= 0 && starts) {
        bl_agent_get_status(agent, &status);
        json_object_set_new(way, "move", json_integer((json_int_t)status.term));
        epochs->coming = request->epoch;
        epochs->moving = true;
    }
    bl_schedule_free(&schedule);
    if (st < 0) {
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

static json_t *status_to_json(const bl_agent_status *s, const bl_control_epochs *epochs) {
    static const char *const outcomes[] = {"none", "running", "moved", "aborted"};
    char partial[32] = "";
    if (s->outcome == BL_TX_ABORTED && s->layers_done > 0)
        snprintf(partial, sizeof partial, "%d/%d", s->layers_done, s->n_layers);
    json_t *rank =
        json_pack("{s:I, s:I, s:I, s:f, s:I, s:f, s:I}", "sent_bytes", (json_int_t)s->sent_bytes,
                  "received_bytes", (json_int_t)s->received_bytes, "max_step_bytes",
                  (json_int_t)s->max_step_bytes, "max_step_us", (double)s->max_step_ns * 1e-3,
                  "holds", (json_int_t)s->holds, "max_hold_us", (double)s->max_hold_ns * 1e-3,
                  "stray", (json_int_t)s->stray);
    return json_pack("{s:b, s:s, s:s, s:o, s:o, s:I, s:o, s:i, s:i, s:i, s:i, s:i, s:i, s:I, s:I, "
                     "s:I, s:I, s:o}",
                     "ok", 1, "state", s->state, "outcome", outcomes[s->outcome], "reason",
                     text_or_null(s->reason), "partial", text_or_null(partial), "move",
                     (json_int_t)s->term, "layer",
                     s->layer >= 0 ? json_integer(s->layer) : json_null(), "layers_done",
                     s->layers_done, "layers", s->n_layers, "waves_done", s->waves_done, "waves",
                     s->n_waves, "moves_done", s->moves_done, "moves", s->n_moves, "bytes_done",
                     (json_int_t)s->bytes_done, "bytes", (json_int_t)s->n_bytes, "epoch",
                     (json_int_t)epochs->in_force, "step", (json_int_t)s->step, "rank", rank);
}

/* A move that has ended since the last request has put its plan in force, or has not. */
static void settle(bl_control_epochs *epochs, const bl_agent_status *status) {
    if (!epochs->moving || status->busy)
        return;
    epochs->moving = false;
    if (status->outcome == BL_TX_MOVED)
        epochs->in_force = epochs->coming;
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

json_t *bl_control_answer(const bl_control_request *request, bool may_wait,
                          const bl_control_cluster *cluster, bl_control_epochs *epochs,
                          bl_agent *agent) {
    bl_error err = BL_ERROR_INIT;
    bl_agent_status status;
    json_t *answer = NULL;
    bl_status st = BL_OK;
    bl_agent_get_status(agent, &status);
    settle(epochs, &status);
    switch (request->op) {
    case BL_CONTROL_STATUS:
        if (request->wait && may_wait && status.busy)
            return NULL;
        answer = status_to_json(&status, epochs);
        break;
    case BL_CONTROL_ABORT:
        st = bl_agent_stop(agent, "aborted by the operator", &err);
        answer = st >= 0 ? json_pack("{s:b}", "ok", 1) : NULL;
        break;
    case BL_CONTROL_APPLY:
        st = apply(request, cluster, epochs, agent, &answer, &err);
        break;
    }
    return st >= 0 ? answer : bl_control_refusal(&err);
}
