/*
 * window.h: live windows: what the routers did lately, for whoever decides now.
 *
 * The recorder of a host keeps rolling sums of its ranks' loads in shared memory: per phase, MoE
 * layer and logical expert, over three horizons:
 *
 *     steps      the last 64 steps             (16 buckets of 4)
 *     seconds    the last 10 seconds           (10 buckets of 1 s)
 *     minutes    the last 5 minutes            (10 buckets of 30 s)
 *
 *     count(horizon, phase, layer, expert) = token rows sent to the expert within the horizon
 *
 * A horizon moves on a whole bucket at a time: it holds between (buckets - 1) and all of its span.
 * Dummy steps, empty slots and steps left out by sampling are not in it; physical ids are inverted
 * through their epoch's map. Rows of ranks are summed.
 *
 * Any number of processes may read, and none stops the recorder or another reader: each row (one
 * horizon, phase and layer) has a version that is odd while it is written, and a reader that met a
 * writer reads again. So a row is consistent in itself; two rows may be a record apart.
 *
 *      header | row: version, tokens, count[experts] | row | ...
 *
 * Times are of the monotonic clock. Who reads from another host asks its recorder's neighbour: the
 * sums of hosts add up.
 */
#ifndef BL_TRACER_WINDOW_H
#define BL_TRACER_WINDOW_H

#include "core/placement.h"
#include "tracer/trace.h"

#define BL_WINDOW_PREFIX "/ballast-live-" /* of the shared memory object, before the name */

typedef enum bl_horizon {
    BL_HORIZON_STEPS,
    BL_HORIZON_SECONDS,
    BL_HORIZON_MINUTES,
    BL_N_HORIZONS
} bl_horizon;

extern const char *const bl_horizon_names[]; /* NULL-terminated, indexed by bl_horizon */

/* ---- writing: the recorder ----------------------------------------------------------------- */

typedef struct bl_window bl_window;

/* BL_ERR_STATE when a living process publishes under this name. `info` is copied. */
bl_status bl_window_create(const char *name, const bl_trace_info *info, bl_window **window_p,
                           bl_error *err);
void bl_window_close(bl_window *window); /* removes the name; NULL is fine */

void bl_window_add(bl_window *window, const bl_record *record, double now_s);
/* The map of a layer, for physical ids of its epoch; the two latest of each layer are kept. */
bl_status bl_window_set_map(bl_window *window, const bl_layer_placement *map);
/* Let time pass: call it a few times a second also when there are no records. */
void bl_window_tick(bl_window *window, double now_s);

/* ---- reading: anybody ---------------------------------------------------------------------- */

typedef struct bl_window_view bl_window_view;

typedef struct bl_window_facts {
    char model[128];
    int n_layers, n_experts, top_k, n_ranks;
    const int *layers;  /* [n_layers] decoder-layer ids; belongs to the view */
    bool live;          /* its recorder is alive and has not closed it */
    double age_s;       /* since the recorder last wrote or looked */
    uint64_t last_step; /* highest step seen */
    uint64_t unmapped;  /* records of physical ids without a map, left out */
} bl_window_facts;

/* BL_ERR_STATE when nothing is published under this name. */
bl_status bl_window_open(const char *name, bl_window_view **view_p, bl_error *err);
void bl_window_view_free(bl_window_view *view); /* NULL is fine */
void bl_window_read_facts(bl_window_view *view, bl_window_facts *facts);

/* One layer's loads: count[n_experts] and tokens over the horizon; phase -1: all. BL_ERR_PEER when
 * the recorder died while it wrote this row. */
bl_status bl_window_read(bl_window_view *view, bl_horizon horizon, int phase, int layer_index,
                         uint64_t *count, uint64_t *tokens, bl_error *err);

#endif
