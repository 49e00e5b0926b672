/*
 * recovery.h: how the survivors of a loss go on, and how a lost rank comes back to them.
 *
 * A rank dies; the step of all others fails (BL_ERR_PEER) and has changed nothing. Each of them
 * calls bl_recovery_run(), which returns when they can take that step again without the dead:
 *
 *     1. agree    each tells all others whom it knows to be lost, which step and exchange it had
 *                 reached, and which losses were repaired before. Done when all living ranks have
 *                 named the same lost ranks. Whoever hears of another loss meanwhile says so again.
 *     2. settle   what the transaction had under way ends: decided waves are carried out, others
 *                 taken back (rebalancer/transaction.h). Then all hold the same map.
 *     3. cover    all compute the same repair (rebalancer/cover.h); orphans are loaded from the
 *                 checkpoint, a few at a time through the spares, and committed. Ranks without spares
 *                 read them into the slots they get.
 *     4. go on    at a step and an exchange later than any of them had reached.
 *
 * Why repairs cannot diverge when another rank dies in the middle: a repair is applied when all
 * living ranks have named its loss, and each word carries the list of losses that its sender has
 * repaired. These lists are beginnings of each other, and every survivor applies what its own list
 * lacks of the longest one before it repairs the new loss. A rank that has taken a step after a
 * repair knows that all others had made that repair, since the step needs their notes.
 *
 * Only a majority of the last view goes on; the transaction decides that and halts the others. An
 * expert that nobody can hold any more is named, and its model cannot be served: that is an error
 * on all survivors.
 *
 * Coming back. A new process takes a lost rank's number and knocks at all that live. It is let in at a step,
 * between two moves, and with empty slots, so that maps do not change; experts it gets by an ordinary plan:
 *
 *     step s      all notes name the same rank and incarnation as knocking: all know that all know it
 *     s + 1       before it, everybody lets the rank in, and the rank that leads welcomes it: steps,
 *                 exchanges, view and term to go on with, who is lost, the maps. It takes part.
 *     s + 1       at it: with everybody's notes it is known to be in everywhere, and is a member: a new
 *                 view, a new *era*, in which losses are counted anew
 *
 * A rank asks about one lost rank per step, number (step mod ranks), so that no rank that does not get
 * on keeps another out. When a rank is lost in between, some may have let the one that comes back in and
 * others not. Each word therefore tells its sender's era and how often one was let in (`tries`): if one of the
 * living is in the new era, everybody had let the rank in, and follows; if none is, it is lost
 * again, and must knock anew. Words of another era or number of tries agree with nothing: what was said about
 * an earlier loss of a rank is never taken for its latest.
 *
 * The word, on the transaction's channel, little-endian:
 *
 *     0  "BLV2"   8  step       24  era     40  set of the ranks lost now, n_ranks bits, low bit first
 *     4  losses  16  exchange   32  tries       then `losses` such sets: repaired before, oldest first
 *
 * The welcome, likewise:
 *
 *     0  "BLW1"   8  step       24  view    40  era     56  layers, 60  bytes of the goal; epoch of each
 *     4  rank    16  exchange   32  term    48  tries       layer; the maps as a goal (messages.h); the set
 */
#ifndef BL_REBALANCER_RECOVERY_H
#define BL_REBALANCER_RECOVERY_H

#include "rebalancer/agent.h"

/* Read an expert from wherever it can be had: host memory, the checkpoint. */
typedef bl_status bl_recovery_load_fn(void *user, int layer, int expert, void *bundle,
                                      bl_error *err);

/* Asked on all survivors before anything is repaired: may the loss of lost[n_ranks] be? All have to
 * answer alike, for which they may exchange from number `sequence` on (runtime/exchange.h). BL_ERR_PEER
 * when another rank was lost meanwhile: then it is asked again. Any other refusal ends the recovery with
 * nothing changed, and it may be tried once more. */
typedef bl_status bl_recovery_check_fn(void *user, const bool *lost, uint64_t sequence,
                                       bl_error *err);

typedef struct bl_recovery bl_recovery;

/* All borrowed. deadline_s: of one recovery. */
bl_status bl_recovery_create(bl_agent *agent, bl_store *store, bl_transport *transport,
                             bl_recovery_load_fn *load, void *user, double deadline_s,
                             bl_recovery **out, bl_error *err);
void bl_recovery_free(bl_recovery *recovery); /* NULL is fine */
/* Optional; with the same user as `load`. */
void bl_recovery_on_check(bl_recovery *recovery, bl_recovery_check_fn *check);

/* Whether a message is a word of a recovery; to be handed over whenever one comes (bl_agent_on_told):
 * others may have noticed a loss before this rank does. */
bool bl_recovery_is_word(const void *data, size_t bytes);
void bl_recovery_hear(bl_recovery *recovery, int from, const void *data, size_t bytes);

/* Is a rank known to be lost that was not recovered from? Then the step must not go on. */
bool bl_recovery_is_due(const bl_recovery *recovery);

typedef struct bl_recovered {
    uint64_t step, sequence; /* to go on with */
    int n_lost;              /* in this recovery */
    int n_orphans;           /* experts loaded, over all ranks and layers */
    int n_loaded;            /* by this rank */
} bl_recovered;

/* `step` and `sequence` are the ones this rank has reached. BL_LIMIT: another rank has taken its
 * leave, so the step that failed here was the last one: serving is over. BL_ERR_PEER: nobody was lost, the step
 * failed otherwise. BL_ERR_ABORTED: this rank may not go on. */
bl_status bl_recovery_run(bl_recovery *recovery, uint64_t step, uint64_t sequence,
                          bl_recovered *out, bl_error *err);

/* [n_ranks] ranks that were recovered from and are not back; for bl_engine_restart(). */
const bool *bl_recovery_lost(const bl_recovery *recovery);

/* ---- coming back ----------------------------------------------------------------------------- */

#define BL_RECOVERY_NOTE_BYTES 32

/* Before a step of that number, whose first exchange is `sequence`: lets in who was chosen at the one before.
 * *rank_p: that rank, or -1. Then the step's note: what this rank has to tell the others. */
bl_status bl_recovery_begin_step(bl_recovery *recovery, uint64_t step, uint64_t sequence,
                                 unsigned char note[BL_RECOVERY_NOTE_BYTES], int *rank_p,
                                 bl_error *err);

/* At the step, with the notes of all: that of rank g begins `stride` * g bytes behind `notes`. */
void bl_recovery_at_step(bl_recovery *recovery, uint64_t step, const void *notes, size_t stride);

/* A rank has been let in and is not known to be a member everywhere: no move may start. */
bool bl_recovery_is_joining(const bl_recovery *recovery);

/* What a rank that comes back is told. */
typedef struct bl_welcome {
    uint64_t step, sequence, view, term, era, tries;
    bool *lost;             /* [n_ranks]; owned */
    bl_placement placement; /* in force, its own slots empty; owned */
} bl_welcome;

/* Wait for it. BL_ERR_PEER: everybody is gone; BL_ERR_TIMEOUT: `deadline_s` has passed. */
bl_status bl_welcome_await(bl_transport *transport, double deadline_s, bl_welcome *out,
                           bl_error *err);
bl_status bl_welcome_decode(const void *data, size_t bytes, int rank, int n_ranks, bl_welcome *out,
                            bl_error *err);
void bl_welcome_free(bl_welcome *welcome); /* safe on a zeroed struct */

/* On the rank that comes back, before its first step: agent and recovery were made over a store that
 * holds the welcome's placement. */
void bl_recovery_join(bl_recovery *recovery, const bl_welcome *welcome);

#endif
