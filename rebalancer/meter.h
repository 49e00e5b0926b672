/*
 * meter.h: how the load of a running cluster lies, window by window.
 *
 * A trace is for planning at leisure; a rebalance that acts by itself needs to know how things are
 * now, and little of it. So every rank counts what its own tokens were routed to, and every
 * `window_steps` steps *with tokens* it tells the leader, which adds the ranks up:
 *
 *     rank 0   |--- window 1 ---|--- window 2 ---|       steps without tokens on any rank
 *     rank 1   |--- window 1 ---|--- window 2 ---|       belong to no window
 *                               \__ report ____/
 *     leader                     window 1 = sum over ranks, whole when all living ranks have told
 *
 *     count[layer][expert]   assignments to the logical expert, over all ranks
 *     rows[layer][rank]      rows that rank has computed: what the placement made of them
 *     imbalance of a layer   max over living ranks of rows / their mean
 *
 * Ranks step together, so they close a window at the same step. A window that a rank's loss leaves
 * incomplete is dropped when the next one is whole. A window is `moving` when experts were on their
 * way in one of its steps: its counts are good, its rows are of two placements.
 *
 * The report is one message, a little-endian header and two arrays of 32-bit counts:
 *
 *     0  "BLL1"      8  number         24 expert time (ns)   40 count[layers][experts]
 *     4  layers     16 tokens (u64)    32 experts, 36 0         rows[layers]
 *
 * Counts saturate at 2^32 - 1, which no window of a sane length reaches.
 */
#ifndef BL_REBALANCER_METER_H
#define BL_REBALANCER_METER_H

#include "core/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct bl_window {
    uint64_t number; /* 1, 2, ...; 0: there is none yet */
    uint64_t first_step, last_step;
    int n_steps; /* with tokens */
    int n_layers, n_experts, n_ranks;
    const int *layers; /* [n_layers] decoder-layer ids, ascending */
    bool moving;
    uint64_t tokens;       /* over all ranks */
    uint64_t step_ns;      /* sum over the steps, on the leader */
    uint64_t longest_ns;   /* longest of them */
    uint64_t experts_ns;   /* time in experts, sum over the steps, of the rank that had most */
    const uint32_t *count; /* [n_layers][n_experts] */
    const uint32_t *rows;  /* [n_layers][n_ranks] */
    const bool *told;      /* [n_ranks] ranks that have a part in it */
} bl_window;

/* What a step was on this rank. */
typedef struct bl_meter_step {
    uint64_t step;
    uint64_t tokens;     /* of this rank */
    uint64_t all_tokens; /* of all ranks */
    bool moving;         /* on any rank */
    uint64_t step_ns, experts_ns;
    const int32_t *rows; /* [n_layers] computed by this rank */
} bl_meter_step;

typedef struct bl_meter bl_meter;

/* layers[n_layers] ascending (copied); window_steps > 0. */
bl_status bl_meter_create(int rank, int n_ranks, const int *layers, int n_layers, int n_experts,
                          int window_steps, bl_meter **out, bl_error *err);
void bl_meter_free(bl_meter *meter); /* NULL is fine */

/* ids[n] logical experts that this rank's tokens were routed to in a decoder layer, any order;
 * negative ones are empty slots. Layers that are not the meter's are not counted. */
void bl_meter_route(bl_meter *meter, int layer, const int32_t *ids, size_t n);

/* End of a step. True when it closed a window: then *data_p [*bytes] is the report for the leader,
 * borrowed until the next step. */
bool bl_meter_end_step(bl_meter *meter, const bl_meter_step *step, const unsigned char **data_p,
                       size_t *bytes);

/* A rank has come back, which has counted nothing: all ranks start their window anew before the same step,
 * whose number the window gets; it is later than that of any window. */
void bl_meter_restart(bl_meter *meter, uint64_t step);

/* Whether a message begins like a report. */
bool bl_meter_is_report(const void *data, size_t bytes);
/* The leader takes a report; BL_ERR_PARSE when it is none of this cluster's. living[n_ranks]: whose
 * reports make a window whole. */
bl_status bl_meter_hear(bl_meter *meter, int from, const void *data, size_t bytes,
                        const bool *living, bl_error *err);

/* The latest whole window, number 0 when there is none; its arrays are borrowed until the next
 * report is heard. */
bl_window bl_meter_window(const bl_meter *meter);

/* max over the ranks told of rows / their mean, mean over the layers that have rows; 0 without
 * any. */
double bl_window_imbalance(const bl_window *window);

#endif
