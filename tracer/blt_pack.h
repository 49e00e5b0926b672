/*
 * blt_pack.h: the rows of a record as the bytes a RECS chunk holds for them. Internal to the writer;
 * the bytes are drawn in blt.h.
 */
#ifndef BL_TRACER_BLT_PACK_H
#define BL_TRACER_BLT_PACK_H

#include "tracer/blt_format.h"
#include "tracer/le.h"

typedef struct bl_blt_packed {
    bl_bytes bitmap;    /* of empty slots; nothing when there are none */
    bl_bytes low, high; /* lowest byte of each id that is there; its other bytes */
    bl_bytes weights;   /* nothing when the record has none */
    uint64_t n_empty;
    unsigned form; /* BL_BLT_HAS_... and BL_BLT_GAPS flags that follow from it */
    int32_t *row;  /* scratch of one row */
    uint16_t *row_weights;
    size_t row_capacity, row_weights_capacity;
} bl_blt_packed;

/* Zeroed: ready for use. */
void bl_blt_packed_free(bl_blt_packed *packed);

/* Ids in [-1, n_ids) and distinct within rows, or BL_ERR_RANGE; rows of k > 1 equal ids pass, being
 * none. *n_empty counts the slots that will be empty. */
bl_status bl_blt_check_rows(const bl_record *record, size_t first, size_t n, uint64_t *n_empty,
                            bl_error *err);

/* Pack rows [first, first + n), checked before. `sets`: ascending within each row, empty slots
 * last. */
bl_status bl_blt_pack_rows(bl_blt_packed *packed, const bl_record *record, size_t first, size_t n,
                           uint64_t n_empty, bool sets, bl_error *err);

#endif
