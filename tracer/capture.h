/*
 * capture.h: the tracer's own state, shared by capture.c (life, steps, maps), capture_rows.c (ids
 * into the ring) and capture_cuda. Internal to libballast-trace; the interface is ballast.h.
 */
#ifndef BL_TRACER_CAPTURE_H
#define BL_TRACER_CAPTURE_H

#include "ballast.h"

#include "tracer/ring.h"

/* The newest map of a layer as an entry of the ring, header included. */
typedef struct bl_capture_map {
    unsigned char *entry; /* owned; NULL: none was set */
    uint32_t bytes;
    bool pending; /* not in the ring yet, or to be told again to a new recorder */
} bl_capture_map;

/* What a layer has done in the open step. */
typedef struct bl_capture_layer {
    uint64_t epoch;
    int n_ids;            /* experts, or slots of the map */
    uint64_t records;     /* pushed in the open step */
    unsigned char *times; /* of the last record, in the ring; NULL: none */
    /* counts only */
    uint64_t n_tokens, n_empty;
    int64_t bad_id;
    bool timed;
    uint64_t stages[6];
} bl_capture_layer;

struct bl_tracer {
    bl_ring ring;
    int n_experts, top_k, n_layers;
    unsigned options;   /* BL_TRACE_... */
    int next_layer;     /* index after the last one pushed: engines go through layers in order */
    int32_t *layer_ids; /* [n_layers] */
    bl_capture_layer *layers; /* [n_layers] */
    bl_capture_map *maps;     /* [n_layers] */
    bool maps_pending;
    uint64_t attached; /* consumers seen so far */
    uint32_t *counts;  /* [n_layers][counts_stride], made when first needed */
    size_t counts_stride;
    bool in_step, overflowed, sampled_out, counting, drops_told;
    uint64_t step;
    uint8_t phase;
    uint32_t flags; /* BL_ENTRY_DUMMY */
    uint64_t step_records;
    uint64_t pushed, kept, dropped, skipped;
    pid_t owner; /* the process that opened it, not a child of it */
    void *cuda;  /* capture_cuda's */
};

/* Index of a layer, or -1. */
int bl_capture_layer_index(bl_tracer *tracer, int layer);
/* Bytes of an id below n_ids. */
static inline int bl_capture_width(int n_ids) {
    return n_ids <= 256 ? 1 : n_ids <= 65536 ? 2 : 4;
}
/* Put what was counted in the open step into the ring, layer by layer. */
void bl_capture_write_counts(bl_tracer *tracer);

#endif
