/*
 * recorder_entry.h: what lies in a ring, as records and maps. Entries come from another process, so
 * nothing is believed: an entry's size must be exactly what its numbers say.
 *
 * Internal to the tracer; recorder.c is the only user.
 */
#ifndef BL_TRACER_RECORDER_ENTRY_H
#define BL_TRACER_RECORDER_ENTRY_H

#include "core/placement.h"
#include "tracer/ring.h"
#include "tracer/trace.h"

/* Arrays that unpacked entries point into; they grow and are used again. */
typedef struct bl_entry_scratch {
    int32_t *ids;
    size_t ids_capacity;
    uint64_t *counts;
    size_t counts_capacity;
    uint16_t *weights;
    size_t weights_capacity;
    uint64_t stage_ns[BL_N_STAGES];
    int *begin;
    size_t begin_capacity;
    int32_t *expert;
    size_t expert_capacity;
} bl_entry_scratch;

void bl_entry_scratch_free(bl_entry_scratch *scratch);

/* A RECORD or COUNTS entry. run and rank are left to the caller. BL_ERR_PARSE: it makes no sense. */
bl_status bl_entry_to_record(bl_entry_scratch *scratch, const bl_ring_entry *entry,
                             const unsigned char *body, bl_record *out, bl_error *err);

/* A MAP entry; the arrays belong to the scratch. */
bl_status bl_entry_to_map(bl_entry_scratch *scratch, const bl_ring_entry *entry,
                          const unsigned char *body, int n_experts, bl_layer_placement *out,
                          bl_error *err);

/* A DROPS entry: the records lost of each of the ring's n_layers layers, borrowed from the body. */
bl_status bl_entry_to_drops(const bl_ring_entry *entry, const unsigned char *body, int n_layers,
                            const uint64_t **layers_p, bl_error *err);

#endif
