#include "cli/run_back.h"

#include "cli/operator.h"
#include "core/progress.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#define NOTICE_S 2.0
#define LOOK_S 0.5
#define PAUSE_MS 50

static bl_status ask(const bl_run_back *back, json_t **answer, bl_error *err) {
    bl_control_client client = {.fd = -1};
    BL_TRY(bl_operator_connect(back->socket, &client, err));
    json_t *request = json_pack("{s:s, s:i}", "op", "join", "rank", back->rank);
    const bl_status st = bl_control_ask(&client, request, BL_OPERATOR_WAIT_S, answer, err);
    json_decref(request);
    bl_control_disconnect(&client);
    return st;
}

/* Experts that fit into the others' slots, shared alike. */
static bl_status check_model(const bl_run_job *job, const json_t *look, bl_error *err) {
    const char *file = job->back->socket, *rule;
    int64_t experts, top_k, bytes;
    const size_t own_bytes = bl_qwen3_bundle_bytes(&job->config);
    BL_TRY(bl_json_int(look, "experts", 1, INT32_MAX, file, &experts, err));
    BL_TRY(bl_json_int(look, "top_k", 1, INT32_MAX, file, &top_k, err));
    BL_TRY(bl_json_int(look, "bundle_bytes", 1, INT64_MAX, file, &bytes, err));
    BL_TRY(bl_json_string(look, "rule", file, &rule, err));
    if (experts != job->config.n_experts || top_k != job->config.top_k ||
        (size_t)bytes != own_bytes)
        return bl_fail(
            err, BL_ERR_MODEL,
            "the cluster serves %lld experts, top-%lld, of %lld bytes; %s has %d, top-%d, "
            "of %zu",
            (long long)experts, (long long)top_k, (long long)bytes, job->model_dir,
            job->config.n_experts, job->config.top_k, own_bytes);
    if (strcmp(rule, bl_rule_names[job->sharing.rule]) != 0)
        return bl_fail(err, BL_ERR_USAGE,
                       "the cluster shares copies by %s; start this rank with --rule %s", rule,
                       rule);
    return BL_OK;
}

/* A rank that was killed a moment ago may still count as alive. */
static bl_status await_loss(const bl_run_back *back, bl_error *err) {
    const double until_s = bl_now_s() + NOTICE_S;
    const struct timespec pause = {0, PAUSE_MS * 1000000};
    for (;;) {
        bl_error why = BL_ERROR_INIT;
        json_t *answer;
        const bl_status st = ask(back, &answer, &why);
        if (st >= 0)
            json_decref(answer);
        if (st >= 0 || (st != BL_ERR_STATE && st != BL_ERR_PEER) || bl_now_s() > until_s) {
            if (st < 0 && err != NULL)
                *err = why;
            return st;
        }
        nanosleep(&pause, NULL);
    }
}

bl_status bl_run_back_look(const bl_run_job *job, bl_run_back *back, bl_error *err) {
    bl_control_client client = {.fd = -1};
    json_t *look, *request;
    const json_t *layers;
    BL_TRY(await_loss(back, err));
    BL_TRY(bl_operator_connect(back->socket, &client, err));
    request = json_pack("{s:s, s:b}", "op", "look", "placement", 1);
    bl_status st = bl_control_ask(&client, request, BL_OPERATOR_WAIT_S, &look, err);
    json_decref(request);
    bl_control_disconnect(&client);
    BL_TRY(st);
    st = check_model(job, look, err);
    if (st >= 0 && !json_is_object(json_object_get(look, "started")))
        st = bl_fail_at(err, BL_ERR_STATE, bl_at(back->socket),
                        "this cluster does not say how it was started: only ranks of ballast run "
                        "can come back");
    if (st >= 0)
        back->started = json_incref(json_object_get(look, "started"));
    if (st >= 0)
        st = bl_json_array(look, "layers", back->socket, &layers, err);
    if (st >= 0)
        st = bl_placement_from_json(layers, job->n_ranks, job->config.n_experts, 0, back->socket,
                                    &back->placement, err);
    json_decref(look);
    return st;
}

bl_status bl_run_back_find(const bl_run_back *back, int n_spares, int *n_ranks, bl_error *err) {
    json_t *look;
    int64_t ranks = 0, spares = 0;
    BL_TRY(bl_operator_ask(back->socket, "look", &look, err));
    bl_status st = bl_json_int(look, "ranks", 1, BL_TX_MAX_RANKS, back->socket, &ranks, err);
    if (st >= 0)
        st = bl_json_int(look, "spares", 0, INT32_MAX, back->socket, &spares, err);
    json_decref(look);
    BL_TRY(st);
    if (back->rank >= ranks)
        return bl_fail(err, BL_ERR_USAGE, "the cluster has ranks 0 to %d, no rank %d",
                       (int)ranks - 1, back->rank);
    if (spares != n_spares)
        return bl_fail(
            err, BL_ERR_USAGE,
            "the cluster's ranks keep %d spares each, this one would keep %d; start it with "
            "--spares %d",
            (int)spares, n_spares, (int)spares);
    *n_ranks = (int)ranks;
    return BL_OK;
}

/* Are those that live still the ones this rank has knocked at? */
static bool is_unchanged(const bl_run_back *back, const json_t *living) {
    json_t *now;
    if (ask(back, &now, NULL) < 0)
        return true; /* the transport knows better */
    const bool same = json_equal(json_object_get(now, "living"), living) != 0;
    json_decref(now);
    return same;
}

static bl_status await(bl_run_back *back, bl_transport *transport, const json_t *living,
                       double until_s, bl_error *err) {
    for (;;) {
        bl_error why = BL_ERROR_INIT;
        const bl_status st = bl_welcome_await(transport, LOOK_S, &back->welcome, &why);
        if (st != BL_ERR_TIMEOUT || bl_now_s() > until_s || bl_interrupted() ||
            !is_unchanged(back, living)) {
            if (st < 0 && err != NULL)
                *err = why;
            return st;
        }
    }
}

static bl_status knock_once(bl_run_back *back, const bl_run_job *job, double until_s,
                            bl_transport **out, bl_error *err) {
    bl_ucx_options options = BL_UCX_OPTIONS_INIT;
    json_t *answer;
    const char *directory;
    bl_transport *transport = NULL;
    options.rank = back->rank;
    options.n_ranks = job->n_ranks;
    options.deadline_s = job->deadline_s;
    options.silence_s = job->silence_s;
    BL_TRY(ask(back, &answer, err));
    bl_status st = bl_json_string(answer, "directory", back->socket, &directory, err);
    if (st >= 0)
        st = bl_transport_ucx_come_back(&options, directory, &transport, err);
    if (st >= 0)
        st = await(back, transport, json_object_get(answer, "living"), until_s, err);
    json_decref(answer);
    if (st < 0 && transport != NULL)
        bl_transport_abandon(transport);
    else if (st >= 0)
        *out = transport;
    return st;
}

static bl_status connect_back(void *user, bl_transport **out, bl_error *err) {
    const bl_run_job *job = user;
    bl_run_back *back = job->back;
    const double until_s = bl_now_s() + job->deadline_s;
    const struct timespec pause = {0, PAUSE_MS * 1000000};
    for (;;) {
        bl_error why = BL_ERROR_INIT;
        const bl_status st = knock_once(back, job, until_s, out, &why);
        const bool again = st == BL_ERR_PEER || st == BL_ERR_TIMEOUT;
        if (st >= 0 || !again || bl_now_s() > until_s || bl_interrupted()) {
            if (st < 0 && err != NULL)
                *err = why;
            return st;
        }
        nanosleep(&pause, NULL);
    }
}

bl_status bl_run_back_run(bl_run_job *job, bl_run_report *reports, bl_error *err) {
    const int self = job->back->rank;
    bl_status st = bl_run_rank(job, self, connect_back, job, &reports[self], err);
    for (int rank = 0; st >= 0 && rank < job->n_ranks; rank++) {
        if (rank != self)
            st = bl_run_report_of_lost(&reports[self], &reports[rank], err);
    }
    bl_welcome_free(&job->back->welcome);
    bl_placement_free(&job->back->placement);
    json_decref(job->back->started);
    return st;
}
