/*
 * stat_born.h: imbalance of ranks under rules that look at the rank a token was born on.
 *
 * Under nearest and fixed (core/split.h) the copy that serves a token depends on its source rank, so
 * a step's counts by expert are not enough: every record is spread over the slots by the shares of
 * its own source, and steps are summed by rank. Shares are made once for each source and layer.
 * Internal to stat.c; figures are those of stat_ranks.h.
 */
#ifndef BL_TRACER_STAT_BORN_H
#define BL_TRACER_STAT_BORN_H

#include "tracer/stat_ranks.h"
#include "tracer/stat_sources.h"

#define BL_BORN_MAX_BYTES ((size_t)1 << 29) /* of shares */

typedef struct bl_stat_born bl_stat_born;

/* plan->rule is nearest or fixed; plan->host must be given. */
bl_status bl_stat_born_create(const bl_trace_info *info, const bl_stat_plan *plan,
                              bl_stat_born **out_p, bl_error *err);
void bl_stat_born_free(bl_stat_born *born); /* NULL is fine */

/* A record with logical ids or counts. Without a source rank of the plan's: BL_ERR_STATE. */
bl_status bl_stat_born_add(bl_stat_born *born, const bl_record *record, int layer_index,
                           bl_error *err);
/* A record that counts nothing. */
bl_status bl_stat_born_note(bl_stat_born *born, const bl_record *record, bl_error *err);

bl_status bl_stat_born_finish(bl_stat_born *born, bl_rank_figures *out, bl_error *err);
/* Traffic for the sources of a result that has none yet. After bl_stat_born_finish(). */
bl_status bl_stat_born_traffic(const bl_stat_born *born, bl_sources_result *out, bl_error *err);

#endif
