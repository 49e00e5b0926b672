#include "cli/run_mover.h"

#include "cli/run_agree.h"
#include "cli/run_back.h"
#include "core/mem.h"
#include "core/progress.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TRY_AGAIN_S 0.1

bool bl_run_mover_wanted(const bl_run_job *job) {
    return job->tokens == NULL && (job->n_spares > 0 || job->socket != NULL);
}

/* ---- the operator's door --------------------------------------------------------------------- */

/* What a planner has to know of the model. */
static json_t *model_to_json(const bl_run_job *job) {
    const bl_qwen3_config *c = &job->config;
    json_t *layers = json_array();
    for (int l = 0; l < job->placement.n_layers; l++)
        json_array_append_new(layers, json_integer(job->placement.layers[l].layer));
    return json_pack("{s:s, s:i, s:o, s:i, s:i, s:i, s:i}", "name", job->model_name,
                     "num_hidden_layers", c->n_layers, "moe_layers", layers, "num_experts",
                     c->n_experts, "num_experts_per_tok", c->top_k, "hidden_size", c->hidden,
                     "moe_intermediate_size", c->inner);
}

/* A socket that was asked for, or that a controller needs, must open. The usual one may be another
 * run's: then this run serves on without. */
static bl_status open_socket(const bl_run_mover *mover, const bl_control_cluster *cluster,
                             bl_control **out, bl_error *err) {
    char usual[256], text[1024];
    bl_error why = BL_ERROR_INIT;
    if (mover->job->socket != NULL)
        return bl_control_open(mover->job->socket, cluster, out, err);
    bl_control_default_path(usual, sizeof usual);
    if (mover->job->needs_socket)
        return bl_control_open(usual, cluster, out, err);
    if (bl_control_open(usual, cluster, out, &why) < 0) {
        bl_error_format(&why, text, sizeof text);
        fprintf(stderr, "ballast run: serving without a control socket: %s\n", text);
    }
    return BL_OK;
}

static bl_status open_control(bl_run_mover *mover, bl_error *err) {
    const bl_run_job *job = mover->job;
    bl_journal_past past;
    if (job->journal != NULL && mover->journal == NULL)
        BL_TRY(bl_journal_open(job->journal, NULL, &past, &mover->journal, err));
    if (mover->model == NULL)
        mover->model = model_to_json(job);
    const bl_control_cluster cluster = {.n_experts = job->config.n_experts,
                                        .top_k = job->config.top_k,
                                        .n_ranks = job->n_ranks,
                                        .rule = bl_rule_names[job->sharing.rule],
                                        .plan_epoch = job->plan_epoch,
                                        .meter = mover->meter,
                                        .model = mover->model,
                                        .started = mover->started,
                                        .starts = bl_engine_steps(mover->engine) == 0,
                                        .replaces_pid = mover->server_pid,
                                        .host = job->sites.host,
                                        .node = job->sites.node,
                                        .journal = mover->journal};
    BL_TRY(open_socket(mover, &cluster, &mover->control, err));
    bl_run_auto_start(job->led);
    return BL_OK;
}

/* Whoever leads answers the operator: after a loss that is another rank. The socket of the one that
 * was lost may take a moment to fall silent. */
static void take_over(bl_run_mover *mover) {
    bl_error err = BL_ERROR_INIT;
    if (mover->control != NULL || (mover->rank == 0 && mover->job->back == NULL) ||
        bl_agent_leader(mover->agent) != mover->rank || bl_now_s() < mover->next_try_s)
        return;
    mover->next_try_s = bl_now_s() + TRY_AGAIN_S;
    if (open_control(mover, &err) < 0)
        mover->control = NULL;
    else
        bl_control_announce(mover->agent, mover->rank, mover->job->n_ranks);
}

/* A lower rank has come back, and answers from now on. */
static void hand_over(bl_run_mover *mover) {
    if (mover->control == NULL || bl_agent_leader(mover->agent) == mover->rank)
        return;
    bl_control_close(mover->control, NULL);
    bl_journal_close(mover->journal);
    mover->control = NULL;
    mover->journal = NULL;
}

/* ---- steps ----------------------------------------------------------------------------------- */

static void hear_other(void *user, int from, const void *data, size_t bytes) {
    bl_run_mover *mover = user;
    if (bl_recovery_is_word(data, bytes)) {
        bl_recovery_hear(mover->recovery, from, data, bytes);
        return;
    }
    if (bl_control_hear_server(data, bytes, &mover->server_pid))
        return;
    for (int rank = 0; rank < mover->job->n_ranks; rank++)
        mover->living[rank] = bl_agent_lives(mover->agent, rank);
    bl_meter_hear(mover->meter, from, data, bytes, mover->living, NULL); /* a bad one is no loss */
}

/* From this step on it serves with the others. */
static void welcome_back(bl_run_mover *mover, uint64_t step, int rank) {
    bl_meter_restart(mover->meter, step);
    if (bl_agent_leader(mover->agent) != mover->rank)
        return;
    if (mover->control != NULL)
        bl_control_note_return(mover->control, rank);
    fprintf(stderr, "ballast run: rank %d is back from step %llu on, without experts so far\n",
            rank, (unsigned long long)step);
}

static bl_status before_step(void *user, uint64_t step, bl_step_note *mine, bl_error *err) {
    bl_run_mover *mover = user;
    int back;
    BL_TRY(bl_recovery_begin_step(mover->recovery, step, bl_engine_sequence(mover->engine),
                                  mine->user, &back, err));
    if (back >= 0)
        welcome_back(mover, step, back);
    BL_TRY(bl_agent_hear(mover->agent, err));
    if (bl_recovery_is_due(mover->recovery))
        return bl_fail(err, BL_ERR_PEER, "a rank was lost");
    hand_over(mover);
    take_over(mover);
    if (mover->control != NULL) {
        bl_control_hold(mover->control, bl_recovery_is_joining(mover->recovery)
                                            ? "a rank that was lost is coming back"
                                            : NULL);
        bl_control_poll(mover->control, mover->agent);
    }
    if (bl_agent_is_busy(mover->agent))
        mine->flags |= BL_NOTE_BUSY;
    return BL_OK;
}

static bl_status at_step(void *user, uint64_t step, const bl_step_note *notes, int n_ranks,
                         bl_error *err) {
    bl_run_mover *mover = user;
    (void)n_ranks;
    BL_TRY(bl_agent_at_step(mover->agent, step, err));
    bl_recovery_at_step(mover->recovery, step, notes[0].user, sizeof *notes);
    return BL_OK;
}

static bl_status on_route(void *user, uint64_t step, int layer, const int32_t *ids, int n_tokens,
                          int k, bl_error *err) {
    bl_run_mover *mover = user;
    (void)step, (void)err;
    bl_meter_route(mover->meter, layer, ids, (size_t)n_tokens * (size_t)k);
    return BL_OK;
}

/* A report that cannot be sent is no reason to stop serving: whoever is gone is told otherwise. */
static bl_status after_step(void *user, const bl_step_result *result, bl_error *err) {
    bl_run_mover *mover = user;
    const unsigned char *report;
    size_t bytes;
    const bl_meter_step step = {.step = result->step,
                                .tokens = (uint64_t)result->n_tokens,
                                .all_tokens = (uint64_t)result->all_tokens,
                                .moving = (result->flags & BL_NOTE_BUSY) != 0,
                                .step_ns = result->total_ns,
                                .experts_ns = result->stage_ns[BL_STAGE_EXPERTS],
                                .rows = result->rows};
    (void)err;
    if (bl_meter_end_step(mover->meter, &step, &report, &bytes))
        bl_agent_tell(mover->agent, bl_agent_leader(mover->agent), report, bytes, NULL);
    return BL_OK;
}

/* ---- losses ---------------------------------------------------------------------------------- */

static bl_status load_expert(void *user, int layer, int expert, void *bundle, bl_error *err) {
    const bl_run_mover *mover = user;
    return bl_qwen3_read_expert(mover->model_of_rank, layer, expert, bundle, err);
}

static void tell_loss(const bl_run_mover *mover, const bl_recovered *r) {
    const bool *lost = bl_recovery_lost(mover->recovery);
    char ranks[256] = "";
    int n_living = 0;
    for (int rank = 0; rank < mover->job->n_ranks; rank++) {
        const size_t used = strlen(ranks);
        n_living += !lost[rank];
        if (lost[rank])
            snprintf(ranks + used, sizeof ranks - used, " %d", rank);
    }
    fprintf(stderr,
            "ballast run: lost so far: rank%s; %d ranks go on at step %llu, %d experts came from "
            "the checkpoint\n",
            ranks, n_living, (unsigned long long)r->step, r->n_orphans);
}

bl_status bl_run_mover_recover(void *user, bl_error *err) {
    bl_run_mover *mover = user;
    bl_recovered r;
    const bl_status st = bl_recovery_run(mover->recovery, bl_engine_steps(mover->engine),
                                         bl_engine_sequence(mover->engine), &r, err);
    if (st != BL_OK)
        return st;
    bl_engine_restart(mover->engine, r.step, r.sequence, bl_recovery_lost(mover->recovery));
    take_over(mover);
    if (mover->control != NULL)
        bl_control_note_loss(mover->control, bl_recovery_lost(mover->recovery), r.n_orphans);
    if (bl_agent_leader(mover->agent) == mover->rank)
        tell_loss(mover, &r);
    return BL_OK;
}

/* ---- life ------------------------------------------------------------------------------------ */

/* What an expert costs from rank to rank, so that copies come from the nearest one that lives. */
static bl_status make_distance(const bl_run_job *job, double **out, bl_error *err) {
    const size_t n = (size_t)job->n_ranks;
    const double bytes = (double)bl_qwen3_bundle_bytes(&job->config);
    *out = NULL;
    if (!job->has_topology)
        return BL_OK;
    BL_TRY(BL_CALLOC(*out, n * n, err));
    for (int from = 0; from < job->n_ranks; from++) {
        for (int to = 0; to < job->n_ranks; to++)
            (*out)[(size_t)from * n + (size_t)to] =
                from != to ? bl_topology_move_s(&job->topology, from, to, bytes) : 0.0;
    }
    return BL_OK;
}

static bl_status open_parts(bl_run_mover *mover, const bl_run_parts *parts, bl_error *err) {
    const bl_run_job *job = mover->job;
    bl_agent_options options = BL_AGENT_OPTIONS_INIT;
    int *layers;
    double *distance = NULL;
    options.step_bytes = job->move_bytes;
    BL_TRY(BL_CALLOC(mover->living, job->n_ranks, err));
    BL_TRY(BL_CALLOC(layers, job->placement.n_layers, err));
    for (int l = 0; l < job->placement.n_layers; l++)
        layers[l] = job->placement.layers[l].layer;
    bl_status st = bl_run_facts(job, parts->model, &mover->started, err);
    if (st >= 0)
        st = make_distance(job, &distance, err);
    options.distance = distance;
    if (st >= 0)
        st = bl_agent_create(parts->store, parts->transport, layers, job->placement.n_layers,
                             &options, &mover->agent, err);
    free(distance);
    if (st >= 0)
        st = bl_meter_create(mover->rank, job->n_ranks, layers, job->placement.n_layers,
                             job->config.n_experts, job->window_steps, &mover->meter, err);
    free(layers);
    if (st >= 0)
        st = bl_recovery_create(mover->agent, parts->store, parts->transport, load_expert, mover,
                                job->deadline_s, &mover->recovery, err);
    if (st >= 0 && mover->rank == 0 && job->back == NULL)
        st = open_control(mover, err);
    if (st >= 0 && job->back != NULL) {
        const bl_welcome *welcome = &job->back->welcome;
        bl_recovery_join(mover->recovery, welcome);
        bl_meter_restart(mover->meter, welcome->step);
        bl_engine_restart(mover->engine, welcome->step, welcome->sequence,
                          bl_recovery_lost(mover->recovery));
    }
    return st;
}

bl_status bl_run_mover_open(const bl_run_job *job, const bl_run_parts *parts, bl_run_mover *out,
                            bl_engine_hooks *hooks, bl_error *err) {
    *out = (bl_run_mover){.job = job,
                          .rank = bl_transport_rank(parts->transport),
                          .engine = parts->engine,
                          .model_of_rank = parts->model};
    const bl_status st = open_parts(out, parts, err);
    if (st < 0) {
        bl_run_mover_close(out);
        return st;
    }
    bl_agent_on_told(out->agent, hear_other, out);
    if (out->control != NULL)
        bl_control_announce(out->agent, out->rank, job->n_ranks);
    *hooks = (bl_engine_hooks){.user = out,
                               .before_step = before_step,
                               .at_step = at_step,
                               .on_route = on_route,
                               .after_step = after_step};
    return BL_OK;
}

void bl_run_mover_close(bl_run_mover *mover) {
    bl_control_close(mover->control, mover->agent);
    bl_journal_close(mover->journal);
    bl_recovery_free(mover->recovery);
    bl_agent_free(mover->agent);
    bl_meter_free(mover->meter);
    json_decref(mover->model);
    json_decref(mover->started);
    free(mover->living);
    *mover = (bl_run_mover){0};
}
