/*
 * stat_sources.h: which rank's tokens go to which experts, and so over which links.
 *
 * For each layer and source rank the assignments to each expert over the whole trace. Two questions:
 *
 * *Do sources differ?* distance = mean over pairs of sources of the total-variation distance between
 * their distributions over experts, TV = 1/2 sum |p - q|: 0 the same, 1 nothing in common. Sources
 * that draw from one distribution still differ by chance; `noise` is what that alone would give
 * (independent tokens). Where distance is well above noise, experts can be placed near their tokens.
 *
 * *What goes where?* Under a placement, traffic[source][destination] = assignments of the tokens of
 * rank `source` that are served on rank `destination`, all layers together: fixed shares of each
 * expert go to each copy (under the per-step rule, those it came to over the whole trace). A token's
 * own rank is counted, too: the diagonal needs no link.
 */
#ifndef BL_TRACER_STAT_SOURCES_H
#define BL_TRACER_STAT_SOURCES_H

#include "tracer/stat_ranks.h"

#define BL_SOURCES_MAX_BYTES ((size_t)1 << 29)

typedef enum bl_sources_state {
    BL_SOURCES_KNOWN,
    BL_SOURCES_UNKNOWN,  /* some records do not tell their rank */
    BL_SOURCES_TOO_LARGE /* ranks * layers * experts beyond BL_SOURCES_MAX_BYTES */
} bl_sources_state;

typedef struct bl_source_figures {
    double distance, noise; /* NaN with fewer than two sources */
} bl_source_figures;

typedef struct bl_sources_result {
    bl_sources_state state;
    int n_sources;
    int *rank;                 /* [n_sources] ascending; owned */
    uint64_t *count;           /* [n_sources][n_layers][n_experts]; owned */
    bl_source_figures *layers; /* [n_layers]; owned */
    int n_destinations;        /* 0: no placement was given */
    double *traffic;           /* [n_sources][n_destinations]; owned */
} bl_sources_result;

void bl_sources_result_free(bl_sources_result *result); /* safe on a zeroed struct */

typedef struct bl_stat_sources bl_stat_sources;

bl_status bl_stat_sources_create(const bl_trace_info *info, bl_stat_sources **out_p, bl_error *err);
void bl_stat_sources_free(bl_stat_sources *sources); /* NULL is fine */
/* The row of a record's source and layer for the caller to add its counts to, or NULL when sources
 * are not known; valid until the next call. */
bl_status bl_stat_sources_row(bl_stat_sources *sources, const bl_record *record, int layer_index,
                              uint64_t **row_p, bl_error *err);
/* `predicted`: slots and their loads under a placement, or NULL. */
bl_status bl_stat_sources_finish(bl_stat_sources *sources, const bl_rank_figures *predicted,
                                 bl_sources_result *out, bl_error *err);

#endif
