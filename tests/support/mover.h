/*
 * mover.h: a rank that serves steps while plans are carried out, for tests over whatever transport and
 * memory: threads with the fake NCCL, processes with a GPU each.
 *
 * Every rank draws the same placements from the seed and fills its slots with content that follows from
 * layer and expert. It then serves: a word with all others (no rank is more than a step ahead), the
 * agent's step, a look at what it holds. Rank 0 has the plans applied in turn. Each commit is followed by
 * a check of every expert of the rank by its hash.
 *
 * bl_test_mover_run() is called on a rank's thread, and does not use cmocka's assertions.
 */
#ifndef BL_TESTS_MOVER_H
#define BL_TESTS_MOVER_H

#include "core/device.h"
#include "rebalancer/agent.h"

typedef struct bl_test_mover_plan {
    int layers, experts, slots, spares; /* slots and spares per rank */
    size_t bundle_bytes;
    int n_goals;
    uint64_t seed;
    bl_agent_options options;
    /* Over tensors of an engine (two per layer) with this copy function; NULL: slots that point. */
    bl_copy_fn *copy;
    /* faults; -1 or 0: none */
    int dead_rank, dies_after; /* leaves without a word after so many steps with a move under way */
    int stop_after;            /* rank 0 aborts after so many steps of the first move */
    bool goes_on;              /* the next goal is tried after a move that was aborted */
} bl_test_mover_plan;

#define BL_TEST_MOVER_PLAN                                                                    \
    {                                                                                         \
        .layers = 3, .experts = 12, .slots = 4, .spares = 2, .bundle_bytes = 5000, .seed = 1, \
        .options = BL_AGENT_OPTIONS_INIT, .dead_rank = -1                                     \
    }

#define BL_TEST_MOVER_GOALS 32

typedef struct bl_test_mover {
    bl_agent_status status;
    uint64_t n_steps;
    uint64_t epochs; /* a hash of all maps as they were seen, step by step */
    int n_checked;   /* experts whose content was compared */
    int n_outcomes;  /* on rank 0, of the goals, in turn */
    bl_tx_outcome outcomes[BL_TEST_MOVER_GOALS];
    char reasons[BL_TEST_MOVER_GOALS][BL_TX_REASON];
    int n_moves;
    int at_goal; /* the goal that the maps are those of at the end; -1: the first placement, -2: none */
    int spares_left; /* free at the end */
    double moved_s;  /* on rank 0, longest time from a plan's start to its end */
    bool died;       /* the transport is still open */
} bl_test_mover;

/* `memory` NULL: the host's. */
bl_status bl_test_mover_run(const bl_test_mover_plan *plan, bl_transport *transport,
                            bl_memory *memory, bl_test_mover *out, bl_error *err);

#endif
