/*
 * placement.h: which expert sits in which slot of which rank, per layer and epoch.
 *
 *     layer 3, epoch 7       rank 0      rank 1      rank 2
 *                          +--+--+--+  +--+--+--+  +--+--+
 *       expert[]           | 0| 4| 1|  | 2| 5| 0|  | 3|-1|      -1 = empty slot
 *                          +--+--+--+  +--+--+--+  +--+--+
 *       begin[]             0           3           6        8
 *
 * An *expert* is logical (0 .. n_experts-1); a *slot* is physical (0 .. n_slots-1, numbered through
 * the ranks); a *copy* (replica) is a slot that holds an expert. Slots per rank may differ between
 * ranks and layers. Every committed change of a layer adds one to that layer's *epoch*.
 *
 * A Placement is the noun in which planner, runtime and rebalancer meet: a plan carries one, ranks
 * serve one, a migration leads from one to the next.
 */
#ifndef BL_CORE_PLACEMENT_H
#define BL_CORE_PLACEMENT_H

#include "core/hash.h"
#include "core/json.h"
#include "core/status.h"

#include <stdbool.h>
#include <stdint.h>

#define BL_NO_EXPERT (-1)

typedef struct bl_layer_placement {
    int layer; /* decoder-layer id */
    uint64_t epoch;
    int n_ranks, n_experts;
    int *begin;      /* [n_ranks + 1]: rank g owns slots begin[g] .. begin[g + 1] - 1 */
    int32_t *expert; /* [begin[n_ranks]] logical expert of each slot, or BL_NO_EXPERT */
} bl_layer_placement;

typedef struct bl_placement {
    int n_ranks, n_experts, n_layers;
    bl_layer_placement *layers; /* [n_layers], ascending by decoder-layer id; owned */
} bl_placement;

/* All slots empty, slots_per_rank[g] slots on rank g in each of the given decoder layers. */
bl_status bl_placement_create(int n_ranks, int n_experts, const int *layers, int n_layers,
                              const int *slots_per_rank, bl_placement *out, bl_error *err);

/* Fill like vLLM and SGLang start: slot i of all ranks' slots in order holds expert i mod E; an
 * expert that the rank holds already is skipped. */
void bl_placement_fill_contiguous(bl_placement *placement);

bl_status bl_placement_copy(const bl_placement *placement, bl_placement *out, bl_error *err);
void bl_placement_free(bl_placement *placement); /* safe on a zeroed struct */

bl_status bl_layer_placement_copy(const bl_layer_placement *layer, bl_layer_placement *out,
                                  bl_error *err);
void bl_layer_placement_free(bl_layer_placement *layer);

static inline int bl_layer_n_slots(const bl_layer_placement *layer) {
    return layer->begin[layer->n_ranks];
}
/* Rank that owns a slot; O(log ranks). */
int bl_layer_rank_of(const bl_layer_placement *layer, int slot);
/* Slot of `rank` that holds `expert`, or -1. */
int bl_layer_find(const bl_layer_placement *layer, int rank, int expert);

/* The layer with this decoder-layer id, or NULL; borrowed. */
bl_layer_placement *bl_placement_layer(const bl_placement *placement, int layer);

/* The hard rules: ids in range, every expert has a copy, no expert twice on one rank. The message
 * names layer, expert and rank. `file` is used in messages and may be NULL. */
bl_status bl_placement_check(const bl_placement *placement, const char *file, bl_error *err);
bl_status bl_layer_placement_check(const bl_layer_placement *layer, const char *file,
                                   bl_error *err);

/* Copies of `to` on ranks that did not hold that expert in `from` (they must travel). The layers
 * must agree in ranks and experts. */
int bl_layer_moves(const bl_layer_placement *from, const bl_layer_placement *to);

/* JSON form: [{"layer": id, "slots": [[expert, ...] per rank]}, ...]; empty slots are -1. Reading
 * checks shapes and ranges but not the hard rules; the epoch of every layer is `epoch`. */
bl_status bl_placement_from_json(const json_t *layers, int n_ranks, int n_experts, uint64_t epoch,
                                 const char *file, bl_placement *out, bl_error *err);
json_t *bl_layer_slots_to_json(const bl_layer_placement *layer); /* new reference or NULL */

#endif
