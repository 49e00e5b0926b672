/*
 * metrics_text.h: a cluster's state in the text format that Prometheus reads.
 *
 *     ballast_up                                   1 when the cluster answers
 *     ballast_state{state}                         1 for the state it is in
 *     ballast_epoch, _step, _drained               of the placement in force, ...
 *     ballast_ranks{state="living"|"lost"}
 *     ballast_move, ballast_move_outcome{outcome}  the number of the last move; how it went
 *     ballast_move_{layers,waves,moves,bytes}{part="done"|"all"}
 *     ballast_move_{elapsed,longest_step}_seconds, ballast_move_bytes_per_second
 *     ballast_imbalance{when="now"|"before"|"predicted"}, ballast_layer_imbalance{layer}
 *     ballast_window{what="number"|"tokens"|"steps"}, ballast_step_seconds, ballast_experts_seconds
 *     ballast_rank_sent_bytes_total, _received_bytes_total, _stray_total, _holds_total,
 *     ballast_rank_max_step_bytes, _max_step_seconds, _max_hold_seconds: of the rank that answers
 *     ballast_last_error{reason}                   1 while the last move was aborted
 */
#ifndef BL_CLI_METRICS_TEXT_H
#define BL_CLI_METRICS_TEXT_H

#include "cli/operator.h"

/* Ask the cluster and write; a cluster that does not answer is "ballast_up 0" and no error. The
 * caller frees *text_p. */
bl_status bl_metrics_text(const char *socket, char **text_p, bl_error *err);

#endif
