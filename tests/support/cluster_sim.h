/*
 * cluster_sim.h: a cluster in one thread, for the pure transaction (rebalancer/transaction.h).
 *
 * Ranks run steps in lockstep (nobody is more than one step ahead) and, if told so, two steps deep,
 * so that an old step still reads buffers after a new one has begun. Each has a store whose buffers
 * hold a tag instead of weights. Messages take random times, in order per pair of ranks; some are
 * delivered a second time, much later. In half of the clusters ranks listen between steps only. Time is
 * virtual and everything follows from the seed.
 *
 * After every event these must hold, or the run stops with a text:
 *   - a step reads, in every slot of the map it began with, the expert that the map says;
 *   - ranks that have not lost each other begin the same step with the same epochs, and the map covers
 *     every expert;
 *   - a commit finds all its experts and follows the epoch before; a reserve finds a spare;
 *   - without a fault of ranks or links nobody holds a step for longer than a message takes;
 *   - of parts that are cut apart one goes on, and it is the right one;
 *   - in the end all ranks are idle, hold the same maps, and all spares are free again;
 *   - the outcome is the one that the scenario must have.
 */
#ifndef BL_TESTS_CLUSTER_SIM_H
#define BL_TESTS_CLUSTER_SIM_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

typedef enum bl_sim_fault {
    BL_SIM_NO_FAULT,
    BL_SIM_CORRUPT_ONCE,   /* every bundle is damaged on its first way: the move still succeeds */
    BL_SIM_CORRUPT_ALWAYS, /* one bundle is always damaged: abort */
    BL_SIM_MISMATCH,       /* one rank holds another placement than the others: abort */
    BL_SIM_SILENT_COPY,    /* bundles for one rank never arrive: abort by deadline */
    BL_SIM_DEAF,           /* one rank (not the leader) stops hearing at a random time */
    BL_SIM_STOP,           /* the operator aborts at a random time */
    BL_SIM_SHRINK,    /* one rank finds no spare buffer at a random time: abort, nothing leaks */
    BL_SIM_LOSE_RANK, /* a rank that does not lead dies at a random time */
    BL_SIM_LOSE_LEADER,
    BL_SIM_LOSE_TWO, /* two of five or six ranks, the leader among them */
    BL_SIM_LATE,     /* what one rank says takes up to 800 ms, longer than the deadlines */
    BL_SIM_STALL,    /* one rank stands still; the others lose it when that lasts */
    BL_SIM_CUT, /* nothing passes between two parts, or only one way; it heals before anybody is missed,
                   or too late: then the larger part goes on, of equal ones that of the lowest rank */
    BL_SIM_N_FAULTS
} bl_sim_fault;

typedef struct bl_sim_report {
    char violation[400]; /* "" when all went well */
    int moved, aborted;  /* plans */
    int waves, holds, late, rejected, halted, resent, two_deep;
    /* CUT: clusters that healed in time, or not; halves; where ranks halted since they could not know
     * what had been decided */
    int healed, cut, tied, in_doubt;
    uint64_t steps, messages, longest_hold_ns;
    FILE *trace; /* not NULL: one line per event and action */
} bl_sim_report;

/* Run one cluster, from one to three plans after another; true without a violation. Adds to the
 * counts of `report`. */
bool bl_sim_run(uint64_t seed, bl_sim_fault fault, bl_sim_report *report);

#endif
