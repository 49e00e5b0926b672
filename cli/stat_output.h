/*
 * stat_output.h: what `ballast stat` prints, in its three forms.
 *
 *     text   stat_text.c, and the heat map in stat_map.c      for people
 *     JSON   stat_json.c                                      one object, everything but long tables
 *     CSV    stat_csv.c                                       one long table of the reader's choice
 */
#ifndef BL_CLI_STAT_OUTPUT_H
#define BL_CLI_STAT_OUTPUT_H

#include "planner/plan.h"
#include "topologies/topology.h"
#include "tracer/stat.h"

typedef enum bl_stat_table {
    BL_STAT_EXPERTS,
    BL_STAT_LAYERS,
    BL_STAT_RANKS,
    BL_STAT_SLOTS,
    BL_STAT_PAIRS,
    BL_STAT_TRANSITIONS,
    BL_STAT_SOURCES,
    BL_STAT_TRAFFIC,
    BL_STAT_DRIFT,
    BL_N_STAT_TABLES
} bl_stat_table;

typedef struct bl_stat_report {
    const bl_stat *stat;
    const bl_plan *plan;         /* NULL: none was given */
    const bl_topology *topology; /* of the plan's ranks, or NULL */
} bl_stat_report;

bl_status bl_stat_print_json(const bl_stat_report *report, bl_error *err);
void bl_stat_print_csv(const bl_stat_report *report, bl_stat_table table);
void bl_stat_print_text(const bl_stat_report *report);
void bl_stat_print_map(const bl_stat *stat);

/* Assignments whose source and destination meet at a level of the topology: 0 on the same rank,
 * 1 within a domain of level 1, ... `sum` has n_levels + 1 entries. */
void bl_stat_traffic_levels(const bl_stat_report *report, double sum[BL_MAX_LEVELS + 1]);

/* The plan's own gap to its bound in a layer (a decoder-layer id), or its mean over layers for -1;
 * NaN when the plan was never scored. */
double bl_stat_plan_gap(const bl_plan *plan, int layer);

/* What stands in the place of figures that are not known. */
const char *bl_pairs_state_text(bl_pairs_state state);
const char *bl_sources_state_text(bl_sources_state state);
const char *bl_half_life_text(bl_half_life half_life);

#endif
