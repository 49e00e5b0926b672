/*
 * agent.h: one rank's hands in a rebalance.
 *
 * The transaction (rebalancer/transaction.h) decides, the agent does: it carries messages over the
 * transport, reserves, fills, commits and retires buffers of the store, and sends experts in pieces.
 * It lives inside the rank's step loop and has no thread: the engine calls
 *
 *     bl_agent_at_step(agent, step)
 *
 * once per step, on every rank, at the same place, before the step reads the store's map. There,
 * and nowhere else, a placement changes. The call
 *
 *     1. takes what has arrived: messages of the transaction, pieces of experts;
 *     2. sends pieces, at most step_bytes per step, headers included, those of early rounds first;
 *     3. asks the transaction whether this step may begin, and carries out a commit that is due.
 *
 * It waits only when a commit is due and not yet decided (a hold, as long as a message takes), and
 * never longer than the transaction's hold_ns. With nothing to do it costs two looks into an empty
 * mailbox.
 *
 * A move needs steps to go on. While bl_agent_is_busy(), the engine must keep stepping, also without
 * tokens.
 *
 * Flow control: a rank sends only what its destination has asked for (FETCH), and to one peer at
 * most BL_AGENT_PEER_BYTES per step, so that the link never holds more than two steps' worth: a send
 * never waits for a peer that is still computing.
 *
 * Where the transport can post transfers that no step waits for (NCCL, runtime/round.h), bundles go that
 * way, in groups that follow from the schedule; all the rest stays as it is. Then step_bytes must be the
 * same on all ranks.
 *
 * The lowest living rank leads: bl_agent_apply() and bl_agent_stop() are for it alone.
 *
 * All ranks must have the same number of spares; an agent whose store has others computes another
 * schedule, and no move starts.
 */
#ifndef BL_REBALANCER_AGENT_H
#define BL_REBALANCER_AGENT_H

#include "rebalancer/transaction.h"
#include "runtime/store.h"
#include "runtime/transport.h"

#define BL_AGENT_PEER_BYTES ((int64_t)12 << 20)
#define BL_AGENT_MIN_STEP_BYTES 4096

typedef struct bl_agent_options {
    int64_t step_bytes; /* a rank sends at most this much per step */
    bl_tx_options transaction;
    /* [n_ranks][n_ranks], row = source: cost of a byte, any unit; copies come from the nearest rank.
     * The same on all ranks, or no move starts. NULL: all are equally near. Copied. */
    const double *distance;
    uint64_t
        form; /* of the bundles (names, shapes, layouts): ranks with others start no move; 0: none */
} bl_agent_options;

#define BL_AGENT_OPTIONS_INIT ((bl_agent_options){(int64_t)4 << 20, BL_TX_OPTIONS_INIT, NULL, 0})

/* Takes what other ranks sent with bl_agent_tell(). */
typedef void bl_agent_hear_fn(void *user, int from, const void *data, size_t bytes);

typedef struct bl_agent bl_agent;

/* `store` and `transport` are borrowed and must outlive the agent; `layers` [n_layers] are the
 * decoder-layer ids that the store holds, ascending (copied). */
bl_status bl_agent_create(bl_store *store, bl_transport *transport, const int *layers, int n_layers,
                          const bl_agent_options *options, bl_agent **out, bl_error *err);
void bl_agent_free(bl_agent *agent); /* NULL is fine; gives reserved spares back */

/* Called at the begin of every step. An error means that this rank must not go on serving: it
 * cannot know what the others serve. A move that merely fails is no error. */
bl_status bl_agent_at_step(bl_agent *agent, uint64_t step, bl_error *err);

/* The first part of that alone: take what has arrived and answer it. Optional, anywhere between two
 * steps; a move gets on faster when ranks hear each other more often. */
bl_status bl_agent_hear(bl_agent *agent, bl_error *err);

/* The same, asleep for up to `wait_s` seconds of the transport's clock until a word has come. */
bl_status bl_agent_await(bl_agent *agent, double wait_s, bl_error *err);

/* Something else for other ranks over the transaction's channel, e.g. what a meter reports; it must
 * not begin like a message of the transaction ("BLT1"). `to` may be this rank. */
bl_status bl_agent_tell(bl_agent *agent, int to, const void *data, size_t bytes, bl_error *err);
void bl_agent_on_told(bl_agent *agent, bl_agent_hear_fn *hear, void *user);

/* A rank that has taken its leave answers no more: for a move that is under way it is lost. To be told
 * when all that it sent has been heard. */
void bl_agent_note_leave(bl_agent *agent, int rank);

/* From now on this rank takes part in no move, for this reason (borrowed); one that has not been promised
 * yet is given up. */
void bl_agent_refuse(bl_agent *agent, const char *why);

/* Lowest living rank; and who lives, [n_ranks], borrowed. */
int bl_agent_leader(const bl_agent *agent);
bool bl_agent_lives(const bl_agent *agent, int rank);
/* The placement in force of layer number l of this agent, 0 .. n - 1; NULL past the last. */
const bl_layer_placement *bl_agent_map(const bl_agent *agent, int l);
/* What a wave of the move under way, or of the last one, leads to; NULL past the last. */
const bl_layer_placement *bl_agent_wave(const bl_agent *agent, int wave);
int bl_agent_spares(const bl_agent *agent);
int64_t bl_agent_step_bytes(const bl_agent *agent);

/* Something is under way here: keep stepping. */
bool bl_agent_is_busy(const bl_agent *agent);

/* Nothing is, nor is it open what a lost leader had decided. */
bool bl_agent_is_settled(const bl_agent *agent);

/* BL_ERR_ABORTED with the reason when this rank must serve no further step. */
bl_status bl_agent_check(const bl_agent *agent, bl_error *err);

/* A wave was promised, or committed and not yet retired: were this rank cut off now, it could not know
 * whether all others serve the same map. */
bool bl_agent_is_in_doubt(const bl_agent *agent);

/* All survivors have told each other the same losses: from now on they are whom a majority is of. */
void bl_agent_regroup(bl_agent *agent);

/* What a member says of itself when a rank is to come back: its view, and the latest term it knows. */
void bl_agent_view(const bl_agent *agent, uint64_t *view, uint64_t *term);
/* A lost rank comes back, with all that the transaction's functions of these names do; to expect -1: it
 * does not after all. */
void bl_agent_expect(bl_agent *agent, int rank);
void bl_agent_readmit(bl_agent *agent, uint64_t view, uint64_t term, bool late);
void bl_agent_join(bl_agent *agent, uint64_t view, uint64_t term, const bool *lost);

/* Where the members can be reached (bl_transport_directory()). */
bl_status bl_agent_directory(const bl_agent *agent, char **text_p, bl_error *err);

/* While the rank recovers from a loss it agrees to no new move: its map is not the others' yet. */
void bl_agent_set_recovering(bl_agent *agent, bool recovering);

/* What the transaction is doing, for messages. Borrowed until the next call. */
const char *bl_agent_state(bl_agent *agent);

/* ---- for the rank that leads ----------------------------------------------------------------- */

/* The way from the placement in force to `goal`; nothing is started. Free the schedule. */
bl_status bl_agent_preview(const bl_agent *agent, const bl_placement *goal, bl_schedule *out,
                           bl_error *err);

/* Start moving to `goal` (copied) along a schedule from bl_agent_preview() that has waves, made since
 * the last step; it is taken over and zeroed. BL_ERR_STATE: this rank does not lead, or a move is
 * under way. */
bl_status bl_agent_start(bl_agent *agent, const bl_placement *goal, bl_schedule *schedule,
                         bl_error *err);

/* Both in one. *n_moves is 0 when the goal is in force already: then nothing is started. */
bl_status bl_agent_apply(bl_agent *agent, const bl_placement *goal, int *n_moves, bl_error *err);

/* Abort what is under way; BL_ERR_STATE when nothing is. Waves that are committed stay. */
bl_status bl_agent_stop(bl_agent *agent, const char *reason, bl_error *err);

/* Steps that the moves of a schedule take at least, by the bytes a rank may send. */
uint64_t bl_agent_min_steps(const bl_agent *agent, const bl_schedule *schedule);

typedef struct bl_agent_status {
    bool leads, busy;
    const char *state;         /* "stable", "agreed", "copying", ...; static storage */
    bl_tx_outcome outcome;     /* of the move under way, or of the last one */
    char reason[BL_TX_REASON]; /* why it was aborted; "" otherwise */
    uint64_t term;             /* migrations so far */
    uint64_t step;             /* last begun */
    int layer;                 /* decoder layer being moved, -1: none */
    int layers_done, n_layers; /* of the schedule, as are the following */
    int waves_done, n_waves;
    int moves_done, n_moves;
    uint64_t bytes_done, n_bytes;
    size_t bundle_bytes; /* one expert of one layer */
    /* this rank, since it was started */
    uint64_t sent_bytes, received_bytes; /* of experts, headers included */
    uint64_t max_step_bytes;             /* most sent in one step */
    uint64_t max_step_ns;                /* longest bl_agent_at_step() */
    uint64_t copy_ns;                    /* spent sending and taking experts */
    uint64_t elapsed_ns;                 /* of the move under way or the last one, so far */
    uint64_t longest_step_ns;            /* longest time between two steps' begins in it */
    uint64_t holds, max_hold_ns;
    uint64_t stray; /* pieces and messages that belonged to nothing */
} bl_agent_status;

void bl_agent_get_status(const bl_agent *agent, bl_agent_status *out);

#endif
