#include "cli/run_back.h"
#include "cli/run_agree.h"
#include "cli/run_mover.h"

#include "core/mem.h"
#include "core/progress.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_PARTS 4
#define FAREWELL_S 1.0 /* of a rank that has failed */

/* One rank while it runs. */
typedef struct run_rank {
    const bl_run_job *job;
    int self;
    int max_sequences;
    bl_run_report report;
    bl_qwen3 *model;
    bl_transport *transport;
    bl_exchange exchange;
    bl_store *store;
    bl_engine *engine;
    bl_run_tracer tracer;
    bl_run_mover mover;
    bool disagrees; /* with the others; all end for the same reason */
    bl_engine_hooks parts[MAX_PARTS];
    int n_parts;
} run_rank;

void bl_run_job_free(bl_run_job *job) {
    bl_placement_free(&job->placement);
    bl_plan_free(&job->plan);
    bl_sites_free(&job->sites);
    bl_topology_free(&job->topology);
    free((void *)job->shares);
    bl_requests_free(&job->requests);
    free(job->prompts_text);
    free(job->prompts);
    free(job->tokens);
    *job = (bl_run_job){0};
}

/* ---- parts --------------------------------------------------------------------------------- */

static void add_part(run_rank *rank, bl_engine_hooks part) {
    assert(rank->n_parts < MAX_PARTS);
    rank->parts[rank->n_parts++] = part;
}

static bl_status all_before_step(void *user, uint64_t step, bl_step_note *mine, bl_error *err) {
    const run_rank *rank = user;
    for (int p = 0; p < rank->n_parts; p++)
        if (rank->parts[p].before_step != NULL)
            BL_TRY(rank->parts[p].before_step(rank->parts[p].user, step, mine, err));
    return BL_OK;
}

static bl_status all_at_step(void *user, uint64_t step, const bl_step_note *notes, int n_ranks,
                             bl_error *err) {
    const run_rank *rank = user;
    for (int p = 0; p < rank->n_parts; p++)
        if (rank->parts[p].at_step != NULL)
            BL_TRY(rank->parts[p].at_step(rank->parts[p].user, step, notes, n_ranks, err));
    return BL_OK;
}

static bl_status all_on_route(void *user, uint64_t step, int layer, const int32_t *ids,
                              int n_tokens, int k, bl_error *err) {
    const run_rank *rank = user;
    for (int p = 0; p < rank->n_parts; p++)
        if (rank->parts[p].on_route != NULL)
            BL_TRY(
                rank->parts[p].on_route(rank->parts[p].user, step, layer, ids, n_tokens, k, err));
    return BL_OK;
}

static bl_status all_after_step(void *user, const bl_step_result *result, bl_error *err) {
    const run_rank *rank = user;
    for (int p = 0; p < rank->n_parts; p++)
        if (rank->parts[p].after_step != NULL)
            BL_TRY(rank->parts[p].after_step(rank->parts[p].user, result, err));
    return BL_OK;
}

/* Ctrl-C on any rank ends serving on all of them, at the same step. */
static bl_status note_interrupt(void *user, uint64_t step, bl_step_note *mine, bl_error *err) {
    (void)user, (void)step, (void)err;
    if (bl_interrupted())
        mine->flags |= BL_NOTE_STOP;
    return BL_OK;
}

/* Keep the routing of the tokens whose logits were asked for; they are one chunk on rank 0. */
static bl_status keep_topk(void *user, uint64_t step, int layer, const int32_t *ids, int n_tokens,
                           int k, bl_error *err) {
    run_rank *rank = user;
    const size_t n_layers = (size_t)rank->job->config.n_layers, row = (size_t)k;
    (void)step, (void)err;
    for (size_t token = 0; token < (size_t)n_tokens; token++)
        memcpy(rank->report.topk + (token * n_layers + (size_t)layer) * row, ids + token * row,
               row * sizeof *ids);
    return BL_OK;
}

/* ---- the two jobs -------------------------------------------------------------------------- */

static bl_status run_tokens(run_rank *rank, bl_error *err) {
    const bl_run_job *job = rank->job;
    const bl_chunk chunk = {.sequence = 0,
                            .n_tokens = job->n_tokens,
                            .tokens = job->tokens,
                            .every_token = true,
                            .logits = rank->report.logits};
    const int n_chunks = rank->report.logits != NULL;
    bl_step_result result;
    BL_TRY(bl_serve_log_create(job->config.n_layers, job->n_ranks, &rank->report.log, err));
    BL_TRY(bl_engine_step(rank->engine, &chunk, n_chunks, n_chunks, &result, err));
    return bl_serve_log_step(&rank->report.log, &result, err);
}

static bl_status take_logits(run_rank *rank, bl_error *err) {
    const bl_qwen3_config *c = &rank->job->config;
    bl_run_report *report = &rank->report;
    const size_t n_tokens = (size_t)rank->job->n_tokens;
    report->n_logits = n_tokens * (size_t)c->vocab;
    report->n_topk = n_tokens * (size_t)c->n_layers * (size_t)c->top_k;
    BL_TRY(BL_CALLOC(report->logits, report->n_logits, err));
    BL_TRY(BL_CALLOC(report->topk, report->n_topk, err));
    add_part(rank, (bl_engine_hooks){.user = rank, .on_route = keep_topk});
    return BL_OK;
}

/* ---- body ---------------------------------------------------------------------------------- */

static bl_status add_parts(run_rank *rank, bl_error *err) {
    const bl_run_job *job = rank->job;
    add_part(rank, (bl_engine_hooks){.before_step = note_interrupt});
    if (job->tokens != NULL && rank->self == 0)
        BL_TRY(take_logits(rank, err));
    if (job->recorder != NULL) {
        bl_engine_hooks hooks;
        BL_TRY(bl_run_tracer_open(job->recorder, job->model_name, &job->config, rank->max_sequences,
                                  rank->self, job->n_ranks, &rank->tracer, &hooks, err));
        add_part(rank, hooks);
    }
    return BL_OK;
}

static bl_status take_memory(run_rank *rank, const bl_placement *placement, bl_error *err) {
    const bl_run_job *job = rank->job;
    BL_TRY(bl_store_create(placement, rank->self, bl_qwen3_bundle_bytes(&job->config),
                           job->n_spares, &rank->store, err));
    rank->report.resident_bytes = bl_store_resident_bytes(rank->store);
    return BL_OK;
}

/* Everything this rank does by itself. One that comes back holds no experts, and is told later where they
 * are; then the others wait for it, so it takes its memory now. */
static bl_status prepare(run_rank *rank, bl_error *err) {
    const bl_run_job *job = rank->job;
    rank->report.pid = (int)getpid();
    if (job->back != NULL)
        BL_TRY(bl_run_back_look(job, job->back, err));
    BL_TRY(bl_qwen3_open(job->model_dir, &rank->model, err));
    if (job->back != NULL)
        BL_TRY(bl_run_agree_with(job->back->started, job->back->socket, job, rank->model, err));
    BL_TRY(take_memory(rank, job->back != NULL ? &job->back->placement : &job->placement, err));
    if (job->back == NULL)
        BL_TRY(bl_engine_load_experts(rank->model, rank->store, err));
    return add_parts(rank, err);
}

/* And together with the others. */
static bl_status run(run_rank *rank, bl_error *err) {
    const bl_run_job *job = rank->job;
    const bl_engine_hooks hooks = {.user = rank,
                                   .before_step = all_before_step,
                                   .at_step = all_at_step,
                                   .on_route = all_on_route,
                                   .after_step = all_after_step};
    rank->exchange = bl_exchange_over(rank->transport, job->deadline_s);
    if (job->parsed_apart) {
        const bl_status st = bl_run_agree(job, rank->model, &rank->exchange, err);
        rank->disagrees = st == BL_ERR_USAGE;
        BL_TRY(st);
    }
    BL_TRY(bl_engine_create(rank->model, rank->store, &rank->exchange, rank->max_sequences, &hooks,
                            &rank->engine, err));
    bl_engine_share_by(rank->engine, &job->sharing);
    bl_engine_dispatch_by(rank->engine, job->dispatch, job->sharing.node);
    if (job->tokens != NULL)
        return run_tokens(rank, err);
    bl_serve_options serve = job->serve;
    if (bl_run_mover_wanted(job)) {
        bl_engine_hooks mover_hooks;
        const bl_run_parts parts = {rank->store, rank->transport, rank->engine, rank->model};
        BL_TRY(bl_run_mover_open(job, &parts, &rank->mover, &mover_hooks, err));
        add_part(rank, mover_hooks);
        serve.recover = bl_run_mover_recover;
        serve.recover_user = &rank->mover;
    }
    return bl_serve(rank->engine, &job->config, rank->self, job->n_ranks, &job->requests, &serve,
                    &rank->report.log, err);
}

bl_status bl_run_rank(const bl_run_job *job, int self, bl_run_connect_fn *connect, void *user,
                      bl_run_report *report, bl_error *err) {
    run_rank rank = {
        .job = job, .self = self, .max_sequences = job->tokens != NULL ? 1 : job->serve.batch};
    bl_status st = prepare(&rank, err);
    if (st >= 0)
        st = connect(user, &rank.transport, err);
    if (st >= 0 && job->back != NULL)
        st = bl_store_adopt(rank.store, &job->back->welcome.placement, err);
    if (st >= 0)
        st = run(&rank, err);
    bl_run_tracer_close(&rank.tracer);
    if (st >= 0 && job->collect != NULL)
        st =
            job->collect(job->collect_user, rank.transport,
                         rank.mover.recovery != NULL ? bl_recovery_lost(rank.mover.recovery) : NULL,
                         &rank.report, err);
    if (st < 0 && rank.transport != NULL) /* a peer that stands still takes no leave either */
        bl_transport_set_deadline(rank.transport, FAREWELL_S);
    const bool others_go_on = st < 0 && bl_run_mover_wanted(job) && !rank.disagrees;
    bl_run_mover_close(&rank.mover);
    bl_engine_free(rank.engine);
    bl_store_free(rank.store);
    bl_qwen3_free(rank.model);
    if (others_go_on) /* and have to see that this one does not */
        bl_transport_abandon(rank.transport);
    else
        bl_transport_close(rank.transport);
    if (st < 0)
        bl_run_report_free(&rank.report);
    else
        *report = rank.report;
    return st;
}
