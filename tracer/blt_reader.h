/*
 * blt_reader.h: the state that blt_read.c (opening, frames) and blt_decode.c (records, maps) share.
 * Internal to the tracer; the interface is blt.h.
 */
#ifndef BL_TRACER_BLT_READER_H
#define BL_TRACER_BLT_READER_H

#include "tracer/blt.h"
#include "tracer/blt_format.h"
#include "tracer/le.h"

#define BL_BLT_MAPS_KEPT 64 /* epochs of one layer */

typedef struct bl_blt_span {
    bl_blt_frame frame;
    uint64_t offset; /* of the frame in the file */
} bl_blt_span;

/* In the id columns of a chunk of version 2, which go by layer. */
typedef struct bl_blt_id_cursor {
    const unsigned char *low, *high;
    size_t low_bytes, high_bytes; /* of the layer in this chunk */
} bl_blt_id_cursor;

struct bl_blt_reader {
    FILE *in;
    char *path;
    bl_trace_info info;
    uint32_t version; /* of the file's format */
    uint64_t size, first_chunk;
    bool has_footer;
    uint64_t footer_index; /* offset of the index, as the footer says */
    bl_blt_span *spans;    /* [n_spans] whole chunks before the index */
    size_t n_spans, spans_capacity;
    bool cut, mid_step;
    uint64_t kept_bytes, dropped;
    bl_hasher *hasher;
    bl_digest digest;
    struct ZSTD_DCtx_s *zstd;
    bl_bytes stored, raw; /* the current chunk */

    bool skip_bodies;
    uint64_t first_step, end_step; /* chunks outside are skipped */
    size_t next_span;
    uint32_t n_records, next_record;        /* of the current chunk */
    const unsigned char *column[BL_N_COLS]; /* in raw; bodies advance record by record */
    bl_blt_id_cursor *ids_of; /* [info.n_layers] where each layer's next ids are; owned */
    bool last_is_physical;    /* the last record has not been converted yet */
    int32_t *ids;
    size_t ids_capacity;
    uint16_t *weights;
    size_t weights_capacity;
    uint64_t *counts, *logical_counts;
    size_t counts_capacity, logical_counts_capacity;
    uint64_t stage_ns[BL_N_STAGES];
    bl_layer_placement *maps; /* [n_maps] in order of appearance; owned */
    size_t n_maps, maps_capacity;
    const bl_blt_reader *before; /* the part before this one, or NULL */
};

/* Read, check and decompress a chunk into r->raw. */
bl_status bl_blt_load_chunk(bl_blt_reader *r, const bl_blt_span *span, bl_error *err);

#endif
