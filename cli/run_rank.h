/*
 * run_rank.h: `ballast run`, as one of its ranks: what every rank is given and what it does.
 *
 * The launcher (run.c) parses everything into a bl_run_job before ranks exist, so that mistakes are
 * told once and cost nothing. bl_run_rank() is the body of a rank, the same for threads and for
 * processes: it opens the model, fills its store with the experts the placement gives it (and reads
 * no others), meets the other ranks, and serves.
 *
 * What hangs on a rank's steps are its *parts* (interrupts, the tracer, ...): each is a set of
 * engine hooks, called in the order they were added.
 */
#ifndef BL_CLI_RUN_RANK_H
#define BL_CLI_RUN_RANK_H

#include "cli/run_auto.h"
#include "cli/run_record.h"
#include "cli/run_report.h"
#include "core/placement.h"
#include "planner/plan.h"
#include "planner/sources.h"

/* Input, the same on every rank; owned by the launcher, read-only for ranks. */
typedef struct bl_run_job {
    const char *model_dir;
    char model_name[128];
    bl_qwen3_config config;
    bl_placement placement;
    int n_ranks;
    bl_plan plan; /* zeroed without one */
    bl_dispatch dispatch;
    bl_sharing_rule sharing; /* points into plan, shares and sites */
    const double **shares;   /* [n_layers] of the plan's fractions; owned */
    bool has_topology;
    bl_topology topology;
    bl_sites sites;
    int n_spares;      /* buffers per rank for moves */
    double deadline_s; /* of waiting for another rank */
    double silence_s;  /* after which a rank that was stopped or cut off is lost; 0: never */

    /* rebalancing while prompts are served */
    const char
        *socket; /* where rank 0 hears operators; NULL: the usual place, if spares are kept */
    int64_t move_bytes;  /* of experts, that a rank sends at most per step */
    uint64_t plan_epoch; /* of the plan the run starts with, 0 without one */
    const char *journal; /* of decisions, or NULL */
    int window_steps;    /* of the live load */

    /* serve prompts ... */
    char *prompts_text;
    bl_prompt *prompts; /* into prompts_text */
    int n_prompts;
    bl_requests requests; /* of these prompts */
    bl_serve_options serve;

    /* ... or compute the logits of these tokens, on rank 0 */
    int32_t *tokens; /* [n_tokens], or NULL */
    int n_tokens;

    /* Optional: called when the rank is done and traces nothing more, while the ranks still stand in
     * connection. lost[n_ranks]: those without which the others went on; NULL: none. */
    bl_status (*collect)(void *user, bl_transport *transport, const bool *lost,
                         const bl_run_report *mine, bl_error *err);
    void *collect_user;
    bool parsed_apart; /* every rank by itself: they compare before they serve */

    bl_run_recorder *recorder; /* borrowed, or NULL: routing is not recorded */
    bool some_lost;            /* told by the launcher's side: ranks died, the others went on */
    bl_run_auto *automatic;    /* the launcher's, or NULL: nothing moves by itself */
    bl_run_auto *led;          /* the same without a launcher: the rank that answers starts it */
    struct bl_run_back *back;  /* this rank comes back to a cluster that lost it; NULL: no */
    bool needs_socket;         /* there must be one, in the usual place too */
} bl_run_job;

void bl_run_job_free(bl_run_job *job); /* safe on a zeroed struct */

/* Gives the rank its transport, which bl_run_rank() closes. Called at most once, when everything that
 * can fail on one rank alone has been done. */
typedef bl_status bl_run_connect_fn(void *user, bl_transport **out, bl_error *err);

/* The report is written on success only. */
bl_status bl_run_rank(const bl_run_job *job, int rank, bl_run_connect_fn *connect, void *user,
                      bl_run_report *report, bl_error *err);

#endif
