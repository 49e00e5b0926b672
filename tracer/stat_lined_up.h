/*
 * stat_lined_up.h: the ids of two neighbouring MoE layers, token by token.
 *
 * Records come layer by layer within a (run, step, rank), each layer perhaps in several parts:
 *
 *     layer 3: part, part      layer 4: part      layer 5: part, part        before = 3, now = 4
 *
 * The parts of a layer are strung together. Two layers match when the second is the one right
 * behind the first in the model, in the same (run, step, rank), with equally many tokens. Records of
 * counts, and more than BL_PAIRS_MAX_IDS ids, match nothing. Internal to stat_pairs.c.
 */
#ifndef BL_TRACER_STAT_LINED_UP_H
#define BL_TRACER_STAT_LINED_UP_H

#include "tracer/trace.h"

typedef struct bl_layer_ids {
    bool usable;
    uint32_t run;
    uint64_t step;
    int rank, layer_index, k;
    size_t n_tokens;
    int32_t *ids; /* [n_tokens][k]; owned */
    size_t capacity;
} bl_layer_ids;

typedef struct bl_lined_up {
    bl_layer_ids before, now;
} bl_lined_up; /* zeroed: nothing yet */

void bl_lined_up_free(bl_lined_up *lined_up);
/* Is the record another part of `now`? */
bool bl_lined_up_same(const bl_lined_up *lined_up, const bl_record *record, int layer_index);
bool bl_lined_up_match(const bl_lined_up *lined_up);
/* `now` becomes `before`, and an empty layer of this record `now`. */
void bl_lined_up_turn(bl_lined_up *lined_up, const bl_record *record, int layer_index);
bl_status bl_lined_up_append(bl_lined_up *lined_up, const bl_record *record, bl_error *err);

#endif
