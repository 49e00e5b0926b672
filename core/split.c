#include "core/split.h"

#include "core/mem.h"

#include <assert.h>
#include <stdlib.h>

const char *const bl_rule_names[] = {"even",     "nearest", "fixed", "fractions",
                                     "per-step", "local",   NULL};

bl_status bl_copies_of(const bl_layer_placement *layer, bl_copies *out, bl_error *err) {
    bl_copies made = {.n_experts = layer->n_experts};
    const int n_slots = bl_layer_n_slots(layer);
    if (BL_CALLOC(made.first, layer->n_experts + 1, err) < 0 ||
        BL_CALLOC(made.slot, n_slots, err) < 0 || BL_CALLOC(made.rank, n_slots, err) < 0) {
        bl_copies_free(&made);
        return BL_ERR_NOMEM;
    }
    /* Counting sort by expert: count, prefix sums, place (which shifts first[] by one expert). */
    for (int slot = 0; slot < n_slots; slot++) {
        if (layer->expert[slot] != BL_NO_EXPERT)
            made.first[layer->expert[slot] + 1]++;
    }
    for (int expert = 0; expert < layer->n_experts; expert++)
        made.first[expert + 1] += made.first[expert];
    for (int rank = 0; rank < layer->n_ranks; rank++) {
        for (int slot = layer->begin[rank]; slot < layer->begin[rank + 1]; slot++) {
            if (layer->expert[slot] == BL_NO_EXPERT)
                continue;
            const int at = made.first[layer->expert[slot]]++;
            made.slot[at] = slot;
            made.rank[at] = rank;
        }
    }
    for (int expert = layer->n_experts; expert > 0; expert--)
        made.first[expert] = made.first[expert - 1];
    made.first[0] = 0;
    *out = made;
    return BL_OK;
}

void bl_copies_free(bl_copies *copies) {
    free(copies->first);
    free(copies->slot);
    free(copies->rank);
    *copies = (bl_copies){0};
}

void bl_split_even_shares(const bl_layer_placement *layer, const bl_copies *copies, double *share) {
    for (int slot = 0; slot < bl_layer_n_slots(layer); slot++) {
        const int expert = layer->expert[slot];
        share[slot] = expert == BL_NO_EXPERT
                          ? 0.0
                          : 1.0 / (copies->first[expert + 1] - copies->first[expert]);
    }
}

int bl_split_settled(bl_rule rule, const bl_copies *copies, const int *host, int expert,
                     int source) {
    const int first = copies->first[expert], end = copies->first[expert + 1];
    int on_host = 0, first_on_host = -1;
    for (int i = end - 1; i >= first; i--) {
        if (copies->rank[i] == source)
            return i;
        if (host[copies->rank[i]] == host[source]) {
            on_host++;
            first_on_host = i;
        }
    }
    if (rule == BL_RULE_FIXED)
        return on_host > 0 ? first_on_host : first + source % (end - first);
    return on_host > 0 && on_host < end - first ? first_on_host : -1;
}

void bl_split_source_shares(bl_rule rule, const bl_layer_placement *layer, const bl_copies *copies,
                            const int *host, int source, double *share) {
    assert(rule == BL_RULE_EVEN || rule == BL_RULE_NEAREST || rule == BL_RULE_FIXED);
    bl_split_even_shares(layer, copies, share);
    if (rule == BL_RULE_EVEN)
        return;
    for (int expert = 0; expert < copies->n_experts; expert++) {
        const int first = copies->first[expert], end = copies->first[expert + 1];
        const int settled = end > first ? bl_split_settled(rule, copies, host, expert, source) : -1;
        for (int i = first; settled >= 0 && i < end; i++)
            share[copies->slot[i]] = i == settled ? 1.0 : 0.0;
    }
}

/* The golden-ratio sequence u_r = frac((r + 1) / phi) fills [0, 1) evenly at every length, so a row
 * goes to the copy whose stretch of the cumulated shares contains u_r. */
static int choose_by_share(const bl_copies *copies, const double *share, int first, int end,
                           uint64_t row) {
    const double golden = 0.6180339887498949;
    const double steps = (double)(row % (UINT64_C(1) << 32)) + 1.0;
    const double position = steps * golden;
    double rest = position - (double)(uint64_t)position;
    for (int i = first; i < end - 1; i++) {
        rest -= share[copies->slot[i]];
        if (rest < 0.0)
            return copies->slot[i];
    }
    return copies->slot[end - 1];
}

int bl_split_choose(bl_rule rule, const bl_copies *copies, const double *share, int expert,
                    int source_rank, uint64_t row) {
    const int first = copies->first[expert], end = copies->first[expert + 1];
    assert(end > first && (rule == BL_RULE_EVEN || (rule == BL_RULE_FRACTIONS && share != NULL)));
    if (rule == BL_RULE_FRACTIONS)
        return choose_by_share(copies, share, first, end, row);
    const uint64_t turn = row + (uint64_t)source_rank + (uint64_t)expert;
    return copies->slot[first + (int)(turn % (uint64_t)(end - first))];
}
