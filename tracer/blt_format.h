/*
 * blt_format.h: what the writer and the reader of .blt share; the bytes are drawn in blt.h.
 * Internal to the tracer.
 */
#ifndef BL_TRACER_BLT_FORMAT_H
#define BL_TRACER_BLT_FORMAT_H

#include "core/json.h"
#include "tracer/trace.h"

#define BL_BLT_MAGIC \
    "\x89"           \
    "BLT\r\n\x1a\n"
#define BL_BLT_END "\nBLTEND\n"
#define BL_BLT_VERSION 2
#define BL_BLT_FIRST_VERSION 1 /* the oldest that is read */
#define BL_BLT_FRAME_BYTES 64
#define BL_BLT_FOOTER_BYTES 16
#define BL_BLT_ENTRY_BYTES 32
#define BL_BLT_HEADER_MAX ((size_t)1 << 22) /* model block */
#define BL_BLT_RAW_MAX ((size_t)32 << 20)   /* a chunk before compression */
#define BL_BLT_RAW_TARGET ((size_t)1 << 20) /* cut at the next end of a step */
#define BL_BLT_RAW_LIMIT ((size_t)8 << 20)  /* cut within a step */
#define BL_BLT_RECORD_IDS ((size_t)1 << 20) /* n_tokens * k of one record of ids */
#define BL_BLT_MAX_TOKENS ((uint64_t)1 << 50)
#define BL_BLT_MAX_COUNT ((uint64_t)1 << 60) /* one count of a histogram */

#define BL_BLT_RECS 0x53434552u /* "RECS" read as little-endian */
#define BL_BLT_MAPS 0x5350414du /* "MAPS" */
#define BL_BLT_INDX 0x58444e49u /* "INDX" */

#define BL_BLT_STEP_GOES_ON 1u

/* Flags of a record on disk: BL_RECORD_... below, the form of its body above. */
enum {
    BL_BLT_KNOWN_RECORD_FLAGS =
        BL_RECORD_DUMMY | BL_RECORD_COMPOSED | BL_RECORD_PHYSICAL | BL_RECORD_SETS,
    BL_BLT_HAS_COUNTS = 1 << 8,
    BL_BLT_HAS_EMPTIES = 1 << 9,
    BL_BLT_HAS_WEIGHTS = 1 << 10,
    BL_BLT_HAS_STAGES = 1 << 11,
    BL_BLT_GAPS = 1 << 12, /* rows are stored as their first id and gaps */
    BL_BLT_KNOWN_FLAGS = BL_BLT_KNOWN_RECORD_FLAGS | BL_BLT_HAS_COUNTS | BL_BLT_HAS_EMPTIES |
                         BL_BLT_HAS_WEIGHTS | BL_BLT_HAS_STAGES | BL_BLT_GAPS
};

/* Columns of a RECS chunk in order: name, bytes for each record (0: a body, of varying size). */
/* clang-format off */
#define BL_BLT_COLUMNS(X)                                                            \
    X(RUN, 4) X(STEP, 8) X(LAYER, 4) X(RANK, 4) X(PHASE, 1) X(FLAGS, 2) X(WIDTH, 1)   \
    X(K, 2) X(EPOCH, 8) X(N_IDS, 4) X(N_TOKENS, 8) X(N_EMPTY, 8) X(DROPPED, 8)        \
    X(EMPTIES, 0) X(IDS, 0) X(IDS_HIGH, 0) X(WEIGHTS, 0) X(STAGES, 0) X(COUNTS, 0)
/* clang-format on */

typedef enum bl_blt_column {
#define BL_BLT_COLUMN_ENUM(name, bytes) BL_COL_##name,
    BL_BLT_COLUMNS(BL_BLT_COLUMN_ENUM)
#undef BL_BLT_COLUMN_ENUM
        BL_N_COLS
} bl_blt_column;

extern const int bl_blt_column_bytes[BL_N_COLS];

typedef struct bl_blt_frame {
    uint32_t kind, flags, items, number;
    uint64_t stored_bytes, raw_bytes, first_step, last_step, hash;
} bl_blt_frame;

void bl_blt_frame_pack(const bl_blt_frame *frame, unsigned char out[BL_BLT_FRAME_BYTES]);
/* False when the frame's own checksum does not match. */
bool bl_blt_frame_unpack(const unsigned char in[BL_BLT_FRAME_BYTES], bl_blt_frame *out);

/* Bytes of one id in a space of n_ids. */
static inline int bl_blt_id_width(int n_ids) {
    return n_ids <= 256 ? 1 : n_ids <= 65536 ? 2 : 4;
}

json_t *bl_blt_info_to_json(const bl_trace_info *info); /* new reference or NULL */
bl_status bl_blt_info_from_json(const json_t *root, const char *file, bl_trace_info *out,
                                bl_error *err);

#endif
