/*
 * run_agree.h: do ranks that others started run the same thing?
 *
 * With -n one process parses options and files for all. Ranks of torchrun or mpirun each parse their own,
 * on hosts that may hold an older plan, prompts that were edited, another checkpoint under the same name:
 * each would serve its own, and the texts that rank 0 prints would be of no run at all. So they compare
 * digests before the first step, and the first difference is refused on every rank, by name.
 *
 * A rank that comes back later (cli/run_back.h) was started by itself as well. It compares with what the
 * cluster says of itself at its socket, but for where the experts live: that it is told.
 *
 * Of a checkpoint the parts that every rank reads are compared (all but experts), not the
 * experts, of which each reads its own.
 */
#ifndef BL_CLI_RUN_AGREE_H
#define BL_CLI_RUN_AGREE_H

#include "cli/run_rank.h"
#include "core/json.h"

/* All ranks call it together, before they exchange anything else. */
bl_status bl_run_agree(const bl_run_job *job, const bl_qwen3 *model, bl_exchange *exchange,
                       bl_error *err);

/* What is compared, as an object of digests: a new reference. */
bl_status bl_run_facts(const bl_run_job *job, const bl_qwen3 *model, json_t **facts_p,
                       bl_error *err);
/* Of a rank that comes back to a cluster with these facts. */
bl_status bl_run_agree_with(const json_t *theirs, const char *socket, const bl_run_job *job,
                            const bl_qwen3 *model, bl_error *err);

#endif
