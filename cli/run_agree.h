/*
 * run_agree.h: do ranks that others started run the same thing?
 *
 * With -n one process parses options and files for all. Ranks of torchrun or mpirun each parse their own,
 * on hosts that may hold an older plan, prompts that were edited, another checkpoint under the same name:
 * each would serve its own, and the texts that rank 0 prints would be of no run at all. So they compare
 * digests before the first step, and the first difference is refused on every rank, by name.
 *
 * Of a checkpoint the parts that every rank reads are compared (all but experts), not the
 * experts, of which each reads its own.
 */
#ifndef BL_CLI_RUN_AGREE_H
#define BL_CLI_RUN_AGREE_H

#include "cli/run_rank.h"

/* All ranks call it together, before they exchange anything else. */
bl_status bl_run_agree(const bl_run_job *job, const bl_qwen3 *model, bl_exchange *exchange,
                       bl_error *err);

#endif
