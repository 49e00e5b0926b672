/*
 * schedule.h: the way from the placement in force to the one a plan asks for, in waves.
 *
 * A rank cannot receive all its new experts at once: an expert needs a spare buffer to arrive in,
 * and spares are paid for in KV cache. So a layer moves in *waves*. In one wave a rank receives at
 * most as many experts as it has spares; then all ranks commit the wave's placement together, the
 * buffers of the displaced experts become the spares of the next wave, and so on.
 *
 *     layer 3       rank 0   rank 1   rank 2        one spare per rank
 *     in force      [0 1]    [2 3]    [4 5]
 *     goal          [2 4]    [0 5]    [1 3]
 *     wave 0        [4 1]    [2 0]    [3 5]         0, 3 and 4 go round, one arrival per rank
 *     wave 1        [4 2]    [5 0]    [3 1]         2, 5 and 1 likewise
 *
 * Every wave by itself ends in a placement that covers every expert, so a migration may stop after
 * any wave. An expert's last copy is displaced only in a wave in which it arrives elsewhere.
 *
 * Why this cannot get stuck with full slots and a single spare: take a rank that must still
 * receive. Some expert must leave it. Either another copy of that expert stays, and then an arrival
 * may take its slot at once; or it is the last copy, and then the goal, which covers it, makes it
 * arrive on some other rank. Go there and ask the same. The walk ends at a rank that can exchange
 * at once, or it closes a cycle of ranks that hand one expert on each: a wave with one arrival per
 * rank.
 *
 * Slots: experts that stay on a rank keep their slot, whatever the order in the plan, so the only
 * copies that travel are those whose rank did not hold the expert (bl_layer_moves()).
 *
 * Source of a move: the nearest rank that holds the expert when the wave begins; among equally near
 * ones the one with the least to send in this wave, then the lowest. *Rounds* order the moves of a
 * wave such that in one round a rank sends at most one bundle and receives at most one. There are as
 * few of them as can be: as many as the busiest rank has sends or receives (an edge colouring of a
 * bipartite graph).
 *
 * The schedule is a function of its inputs alone: every rank computes it by itself and the ranks
 * compare `hash` before anything starts. It covers the placement in force (slots and epochs), all
 * waves and all moves.
 */
#ifndef BL_REBALANCER_SCHEDULE_H
#define BL_REBALANCER_SCHEDULE_H

#include "core/placement.h"

/* More arrivals than this on one rank in one wave gain nothing and would make states large. */
#define BL_WAVE_MAX_ARRIVALS 16

typedef struct bl_move {
    int32_t expert;
    int32_t source, destination; /* ranks */
    int32_t round;               /* 0, 1, ...: pairs ranks one to one */
} bl_move;

typedef struct bl_wave {
    int n_moves;    /* may be 0: experts are only dropped */
    bl_move *moves; /* [n_moves] ascending by round, then destination; owned */
    bl_layer_placement
        after; /* of the wave's layer; its epoch is one above the one before; owned */
} bl_wave;

typedef struct bl_schedule {
    int n_ranks, n_experts;
    int n_waves;    /* 0: the goal is in force already */
    bl_wave *waves; /* [n_waves], layers ascending, the waves of a layer in a row; owned */
    int n_layers;   /* layers that change */
    int n_moves;    /* over all waves */
    uint64_t hash;
} bl_schedule;

/* The waves that lead from `current` to `goal`. Layers that `goal` leaves out keep what they have.
 * spares[n_ranks]: free spare buffers per rank. distance[source * n_ranks + destination]: cost of
 * a byte, any unit; NULL: all ranks are equally near. Refused: other ranks, experts, layers or
 * slots per rank than `current` (BL_ERR_SHAPE), a goal that breaks the hard rules, and a rank that
 * must receive but has no spare (BL_ERR_STATE). Free with bl_schedule_free(). */
bl_status bl_schedule_make(const bl_placement *current, const bl_placement *goal, const int *spares,
                           const double *distance, bl_schedule *out, bl_error *err);
void bl_schedule_free(bl_schedule *schedule); /* safe on a zeroed struct */

/* `goal` with its experts arranged inside each rank so that those that `current` holds there keep
 * their slot. Both must agree in ranks, slots and experts. The epoch is `goal`'s. */
bl_status bl_layer_align(const bl_layer_placement *current, const bl_layer_placement *goal,
                         bl_layer_placement *out, bl_error *err);

/* The dry run: replay the waves from `current` and check every promise made above, move by move.
 * BL_ERR_INTERNAL names wave, layer and expert of the first one that is broken. */
bl_status bl_schedule_check(const bl_schedule *schedule, const bl_placement *current,
                            const int *spares, bl_error *err);

/* Steps that the moves take at least, when a rank sends `step_bytes` (> 0) per step and a wave begins
 * only after the one before. */
uint64_t bl_schedule_min_steps(const bl_schedule *schedule, uint64_t bundle_bytes,
                               uint64_t step_bytes);

/* ---- the two sides of a wave ----------------------------------------------------------------- */

/* What one rank has to do in a wave, in the order in which it does it. */
typedef struct bl_wave_side {
    int n_sends, n_receives;
    int *sends;    /* [n_sends] indices into wave->moves; owned */
    int *receives; /* [n_receives]; owned */
} bl_wave_side;

bl_status bl_wave_side_of(const bl_wave *wave, int rank, bl_wave_side *out, bl_error *err);
void bl_wave_side_free(bl_wave_side *side); /* safe on a zeroed struct */

/* Do the ranks' sides fit together? Every move is sent once, by its source, and received once, by
 * its destination; no rank has two sends or two receives in one round. sides[n_ranks].
 * BL_ERR_STATE names the rank and expert that do not pair up. */
bl_status bl_wave_sides_check(const bl_wave *wave, const bl_wave_side *sides, int n_ranks,
                              bl_error *err);

/* Rounds of a wave. */
int bl_wave_rounds(const bl_wave *wave);

/* Number of moves of the wave that `rank` receives. */
int bl_wave_arrivals(const bl_wave *wave, int rank);

#endif
