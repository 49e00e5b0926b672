/*
 * transaction_parts.h: what the three files of the transaction share: transaction.c (a rank's
 * part), transaction_lead.c (the leader's part), transaction_loss.c (when a rank is lost).
 */
#ifndef BL_REBALANCER_TRANSACTION_PARTS_H
#define BL_REBALANCER_TRANSACTION_PARTS_H

#include "rebalancer/transaction.h"

/* ---- transaction.c --------------------------------------------------------------------------- */

bl_tx_action *bl_tx_act(bl_tx_actions *out, bl_tx_action_kind kind);
/* A message of this rank about `wave` of `schedule` (NULL: about none), ready to be completed. */
bl_tx_message *bl_tx_send(const bl_transaction *tx, bl_tx_actions *out, int to,
                          bl_tx_message_type type, const bl_schedule *schedule, int wave);
/* Epoch of the layer of `wave` before that wave; 0 when there is no such wave. */
uint64_t bl_tx_epoch(const bl_schedule *schedule, int wave);
int bl_tx_n_living(const bl_transaction *tx);
/* Back to stable: undecided work is taken back. */
void bl_tx_release(bl_transaction *tx, bl_tx_outcome outcome, const char *reason,
                   bl_tx_actions *out);
void bl_tx_halt(bl_transaction *tx, const char *reason, bl_tx_actions *out);
void bl_tx_set_reason(char *to, const char *reason);

/* ---- transaction_lead.c ---------------------------------------------------------------------- */

void bl_tx_lead_apply(bl_transaction *tx, const bl_schedule *schedule, uint64_t now,
                      bl_tx_actions *out);
/* Abort now, or after the wave that is decided. */
void bl_tx_lead_abort(bl_transaction *tx, const char *reason, bl_tx_actions *out);
void bl_tx_lead_message(bl_transaction *tx, const bl_tx_message *message, uint64_t now,
                        bl_tx_actions *out);
/* This rank, which leads, is about to begin `step`. */
void bl_tx_lead_step(bl_transaction *tx, uint64_t step, uint64_t now, bl_tx_actions *out);
void bl_tx_lead_tick(bl_transaction *tx, uint64_t now, bl_tx_actions *out);
/* `rank`, not this one, is lost while this one leads. */
void bl_tx_lead_lost(bl_transaction *tx, int rank, uint64_t now, bl_tx_actions *out);

/* ---- transaction_loss.c ---------------------------------------------------------------------- */

void bl_tx_lost(bl_transaction *tx, int rank, uint64_t now, bl_tx_actions *out);
void bl_tx_resolve_message(bl_transaction *tx, const bl_tx_message *message, bl_tx_actions *out);
/* BEGUN said by a survivor, of a wave without a leader. */
void bl_tx_orphan_begun(bl_transaction *tx, const bl_tx_message *message, bl_tx_actions *out);
/* Retire the orphaned wave when all survivors have begun it. */
void bl_tx_orphan_retire(bl_transaction *tx, bl_tx_actions *out);

#endif
