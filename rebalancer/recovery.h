/*
 * recovery.h: how the survivors of a loss go on.
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
 * The word, on the transaction's channel, little-endian:
 *
 *     0  "BLV1"   8  step       24  set of the ranks lost now, n_ranks bits, low bit first
 *     4  losses  16  exchange       then `losses` such sets: repaired before, oldest first
 */
#ifndef BL_REBALANCER_RECOVERY_H
#define BL_REBALANCER_RECOVERY_H

#include "rebalancer/agent.h"

/* Read an expert from wherever it can be had: host memory, the checkpoint. */
typedef bl_status bl_recovery_load_fn(void *user, int layer, int expert, void *bundle,
                                      bl_error *err);

typedef struct bl_recovery bl_recovery;

/* All borrowed. deadline_s: of one recovery. */
bl_status bl_recovery_create(bl_agent *agent, bl_store *store, bl_transport *transport,
                             bl_recovery_load_fn *load, void *user, double deadline_s,
                             bl_recovery **out, bl_error *err);
void bl_recovery_free(bl_recovery *recovery); /* NULL is fine */

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

/* [n_ranks] ranks that were recovered from; for bl_engine_restart(). */
const bool *bl_recovery_lost(const bl_recovery *recovery);

#endif
