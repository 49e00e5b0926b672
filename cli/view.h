/*
 * view.h: a running cluster as seen from outside, through its control socket: which model it serves,
 * where the experts are, how the load of its latest window lies, and what a plan would change.
 *
 * Whoever plans for a running cluster (`ballast apply`, `ballast rebalance`, `run --auto`) lives in
 * another process than the ranks, looks at it this way, and weighs with rebalancer/policy.h.
 */
#ifndef BL_CLI_VIEW_H
#define BL_CLI_VIEW_H

#include "cli/operator.h"
#include "core/progress.h"
#include "planner/plan.h"
#include "rebalancer/policy.h"

/* Rows of a window of load: [n_layers][n_experts], layers as in the view's model. */
typedef struct bl_view_window {
    uint64_t number; /* 0: there is none */
    int n_steps;
    uint64_t tokens;
    bool moving;
    double step_s, longest_s, experts_s; /* means per step; the longest */
    double imbalance;
    uint32_t *count; /* owned */
} bl_view_window;

typedef struct bl_view {
    bl_model model;
    int n_ranks;
    bool *living; /* [n_ranks] */
    int *site;    /* [n_ranks] equal for ranks of one host and node; NULL: not known */
    uint64_t epoch, move;
    bool busy, drained;
    int spares;
    int64_t bundle_bytes, step_bytes;
    double ns_per_byte;     /* of moving: sending and taking together */
    bool measured;          /* that figure; else it is assumed */
    bl_placement placement; /* in force; no layers when it was not asked for */
    bl_view_window window;
} bl_view;

/* Look now, or, with later_than >= 0, when there is a window later than that number; waits for up to
 * a fraction of a second and then gives what there is. Free with bl_view_free(). */
bl_status bl_view_look(bl_control_client *client, int64_t later_than, bool placement, bl_view *out,
                       bl_error *err);
void bl_view_free(bl_view *view); /* safe on a zeroed struct */

/* max/mean of rows over the living ranks under a placement and a window's load, even split, mean
 * over the layers that have load; 1 without any. */
bl_status bl_view_imbalance(const bl_view *view, const uint32_t *count,
                            const bl_placement *placement, double *out, bl_error *err);

/* What moving from the view's placement to `goal` would give, on the view's window, and cost. */
bl_status bl_view_offer(const bl_view *view, const bl_placement *goal, bl_policy_offer *out,
                        bl_error *err);

/* Exchange what `plan` gives to ranks that are alike, layer by layer, such that as little as possible
 * moves from the view's placement: a plan that was made without looking at it may differ by no more than
 * the ranks' names. Alike are living ranks with equally many slots, of one host and node where that is
 * known. A plan that was made for a topology or for fault domains is left alone on a cluster that does
 * not know where its ranks are. */
bl_status bl_view_align(const bl_view *view, bl_plan *plan, bl_error *err);

/* A request that applies `plan`; the offer's imbalances go with it unless it is NULL. */
json_t *bl_view_request(const bl_plan *plan, const bl_policy_offer *offer, bool dry_run);

/* Ask for the status until the move is over; *answer (the one to apply, then the last status) is
 * replaced. An aborted move is BL_ERR_ABORTED. */
bl_status bl_view_wait(bl_control_client *client, bl_progress *progress, json_t **answer,
                       bl_error *err);

#endif
