/*
 * foreign.h: the tensors of an engine that is not Ballast's, for tests: quantised experts in
 * contiguous tensors, as engines keep them.
 *
 *     w            int8 [slots][4][6], rows 8 bytes apart        LOCAL
 *     w_scale      float [slots][4], one per output channel      LOCAL
 *     f8           e4m3 [slots][4][4]                            LOCAL
 *     f8_scale     float [slots][2][2], one per 2 x 2 block      LOCAL
 *     row_sum      int32 [slots][4], sums of rows of w           LOCAL, recomputed
 *     bias         float [slots of all ranks]                    SLOT
 *     gain         float [experts]                               EXPERT
 *     alpha        float                                         LAYER
 *
 * By pointers the first four lie in pieces of memory of their own, one per slot and spare, found by
 * tables.
 *
 * Every value is a function of layer, expert and version, so a slot can be checked for whose it holds.
 */
#ifndef BL_TESTS_FOREIGN_H
#define BL_TESTS_FOREIGN_H

#include "ballast_embed.h"
#include "core/placement.h"

#define FOREIGN_ROWS 4
#define FOREIGN_COLUMNS 6
#define FOREIGN_ROW_STRIDE 8
#define FOREIGN_TENSORS 8
#define FOREIGN_BUNDLE_BYTES ((size_t)(4 * 6 + 4 * 4 + 16 + 2 * 2 * 4)) /* what moves */

typedef enum bl_foreign_part {
    FOREIGN_W,
    FOREIGN_W_SCALE,
    FOREIGN_F8,
    FOREIGN_F8_SCALE
} bl_foreign_part;
#define FOREIGN_PARTS 4

typedef struct bl_foreign {
    int layer, rank, own_slots, n_slots, n_experts;
    bool by_pointers;
    int n_spares;
    void **at[FOREIGN_PARTS];     /* [own_slots + n_spares] where each entry lies */
    void **pieces[FOREIGN_PARTS]; /* the same at the start: what is freed. Contiguous: [0] is all */
    float *bias, *gain;
    int32_t *row_sum;
    float alpha;
    int n_recomputed; /* calls */
} bl_foreign;

/* Memory for the slots of `rank`, holding `version` of the experts of `map`. NULL: out of memory. */
bl_foreign *bl_foreign_new(const bl_layer_placement *map, int rank, int version);
bl_foreign *bl_foreign_new_by_pointers(const bl_layer_placement *map, int rank, int version,
                                       int n_spares);
void bl_foreign_free(bl_foreign *foreign);

/* Load `version` of the expert into every slot that `expert` [n_slots] names, and all tables. */
void bl_foreign_load(bl_foreign *foreign, const int32_t *expert, const int *begin, int version);
/* One slot of this rank. */
void bl_foreign_load_slot(bl_foreign *foreign, int slot, int expert, int version);

/* What an entry of one slot holds. */
void *bl_foreign_at(const bl_foreign *foreign, bl_foreign_part part, int slot);
/* A moved tensor of an expert as the checkpoint has it: for bl_embed_options.fetch. false: no such. */
bool bl_foreign_tensor(int layer, int expert, int version, const char *name, void *to,
                       size_t bytes);

/* The tensors as an engine declares them, tensors[FOREIGN_TENSORS]. */
void bl_foreign_declare(bl_foreign *foreign, bl_tensor *tensors);
/* For bl_embed_options: `user` is an array of bl_foreign *, ended by NULL. */
int bl_foreign_recompute(void *user, int layer, const char *const *tensors, int n_tensors,
                         const int *slots, int n_slots);

/* Does slot `slot` of this rank hold, dequantised, what `version` of `expert` is? */
bool bl_foreign_holds(const bl_foreign *foreign, int slot, int expert, int version);
/* Do all of this rank's slots, and the tables over all ranks' slots? */
bool bl_foreign_is(const bl_foreign *foreign, const int32_t *expert, const int *begin, int version);

/* The value of an e4m3 byte (1 sign, 4 exponent, 3 mantissa; bias 7; no infinities). */
float bl_e4m3(uint8_t bits);

#endif
