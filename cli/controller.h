/*
 * controller.h: rebalancing that goes by itself: `ballast rebalance --auto` and `ballast run --auto`.
 *
 *          look (a window of load)      policy      plan      weigh      apply      watch
 *      ┌──────────────────────────────────────────────────────────────────────────────────┐
 *      └── wait ◀──────── nothing worth doing ◀──────────┘        roll back if it failed ──┘
 *
 * It runs beside the ranks, in another process or thread, and sees them through their control socket
 * alone. It keeps nothing that matters: started anew, it looks at what is in force and goes on.
 *
 * A plan is made from the windows before the latest one and weighed on the latest one, so that its
 * promise is not the one of the load it was fitted to. After a move the realised imbalance is
 * compared with that promise, and printed beside it; a move that turned out markedly worse for long
 * enough is taken back, by a move to the placement before.
 *
 * One line per decision goes to `out`, with its figures:
 *
 *     window 12: move: imbalance 1.412 -> 1.105, gain 3.1 s over 600 s, cost 0.002 s x 1.5; 31 moves
 *     window 16: realised 1.121, predicted 1.105 (+1.4 %), before 1.412
 */
#ifndef BL_CLI_CONTROLLER_H
#define BL_CLI_CONTROLLER_H

#include "cli/view.h"

#include <stdatomic.h>
#include <stdio.h>

typedef struct bl_controller_options {
    const char *socket; /* NULL: the default */
    bl_policy_options policy;
    int history;       /* windows that a plan is made from, at most */
    int64_t max_moves; /* of one plan; -1: no limit */
    int n_moves;       /* end after so many moves; 0: go on */
    double patience_s; /* how long to wait for the cluster to answer at the start */
    bool quiet;        /* only moves and what came of them, no waiting */
    FILE *out;
} bl_controller_options;

#define BL_CONTROLLER_OPTIONS_INIT \
    ((bl_controller_options){NULL, BL_POLICY_OPTIONS_INIT, 4, -1, 0, 0, false, NULL})

/* Until the cluster ends (BL_OK), *stop or an interrupt says so, or an error. */
bl_status bl_controller_run(const bl_controller_options *options, atomic_bool *stop, bl_error *err);

#endif
