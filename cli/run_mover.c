#include "cli/run_mover.h"

#include "core/mem.h"

#include <stdio.h>
#include <stdlib.h>

bool bl_run_mover_wanted(const bl_run_job *job) {
    return job->tokens == NULL && (job->n_spares > 0 || job->socket != NULL);
}

static bl_status before_step(void *user, uint64_t step, bl_step_note *mine, bl_error *err) {
    bl_run_mover *mover = user;
    (void)step;
    BL_TRY(bl_agent_hear(mover->agent, err));
    if (mover->control != NULL)
        bl_control_poll(mover->control, mover->agent);
    if (bl_agent_is_busy(mover->agent))
        mine->flags |= BL_NOTE_BUSY;
    return BL_OK;
}

static bl_status at_step(void *user, uint64_t step, const bl_step_note *notes, int n_ranks,
                         bl_error *err) {
    bl_run_mover *mover = user;
    (void)notes, (void)n_ranks;
    return bl_agent_at_step(mover->agent, step, err);
}

/* A socket that was asked for must open. The usual one may be another run's: then this run serves on
 * without. */
static bl_status open_control(const bl_run_job *job, bl_control **out, bl_error *err) {
    const bl_control_cluster cluster = {.n_experts = job->config.n_experts,
                                        .top_k = job->config.top_k,
                                        .n_ranks = job->n_ranks,
                                        .rule = "even",
                                        .plan_epoch = job->plan_epoch};
    char usual[256], text[1024];
    bl_error why = BL_ERROR_INIT;
    if (job->socket != NULL)
        return bl_control_open(job->socket, &cluster, out, err);
    bl_control_default_path(usual, sizeof usual);
    if (bl_control_open(usual, &cluster, out, &why) < 0) {
        bl_error_format(&why, text, sizeof text);
        fprintf(stderr, "ballast run: serving without a control socket: %s\n", text);
    }
    return BL_OK;
}

bl_status bl_run_mover_open(const bl_run_job *job, bl_store *store, bl_transport *transport,
                            bl_run_mover *out, bl_engine_hooks *hooks, bl_error *err) {
    bl_agent_options options = BL_AGENT_OPTIONS_INIT;
    bl_run_mover mover = {0};
    int *layers;
    options.step_bytes = job->move_bytes;
    BL_TRY(BL_CALLOC(layers, job->placement.n_layers, err));
    for (int l = 0; l < job->placement.n_layers; l++)
        layers[l] = job->placement.layers[l].layer;
    bl_status st = bl_agent_create(store, transport, layers, job->placement.n_layers, &options,
                                   &mover.agent, err);
    free(layers);
    if (st >= 0 && bl_transport_rank(transport) == 0)
        st = open_control(job, &mover.control, err);
    if (st < 0) {
        bl_run_mover_close(&mover);
        return st;
    }
    *out = mover;
    *hooks = (bl_engine_hooks){.user = out, .before_step = before_step, .at_step = at_step};
    return BL_OK;
}

void bl_run_mover_close(bl_run_mover *mover) {
    bl_control_close(mover->control, mover->agent);
    bl_agent_free(mover->agent);
    *mover = (bl_run_mover){0};
}
