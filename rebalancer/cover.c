#include "rebalancer/cover.h"

#include "core/mem.h"

#include <stdlib.h>
#include <string.h>

typedef struct repair {
    bl_layer_placement *layer;
    const bool *lost;
    int *copies;   /* [n_experts] living ones */
    int *arrivals; /* [n_ranks] orphans given to the rank so far */
} repair;

static bool empty_lost_slots(repair *r) {
    bool changed = false;
    for (int rank = 0; rank < r->layer->n_ranks; rank++) {
        for (int slot = r->layer->begin[rank]; slot < r->layer->begin[rank + 1]; slot++) {
            int32_t *expert = &r->layer->expert[slot];
            if (r->lost[rank]) {
                changed = changed || *expert != BL_NO_EXPERT;
                *expert = BL_NO_EXPERT;
            } else if (*expert != BL_NO_EXPERT) {
                r->copies[*expert]++;
            }
        }
    }
    return changed;
}

/* The slot of a rank that can best be given away: empty, else that of the expert with most copies,
 * of which there must be another; -1 when there is none. */
static int spare_slot(const repair *r, int rank) {
    int best = -1, most = 1;
    for (int slot = r->layer->begin[rank]; slot < r->layer->begin[rank + 1]; slot++) {
        const int expert = r->layer->expert[slot];
        if (expert == BL_NO_EXPERT)
            return slot;
        if (r->copies[expert] > most) {
            most = r->copies[expert];
            best = slot;
        }
    }
    return best;
}

/* A place for an orphan, on the living rank that has got the fewest of them; -1: none. */
static int find_place(const repair *r, int *rank_p) {
    int found = -1;
    for (int rank = 0; rank < r->layer->n_ranks; rank++) {
        if (r->lost[rank] || (found >= 0 && r->arrivals[rank] >= r->arrivals[*rank_p]))
            continue;
        const int slot = spare_slot(r, rank);
        if (slot >= 0) {
            found = slot;
            *rank_p = rank;
        }
    }
    return found;
}

static bl_status place_orphans(repair *r, bl_orphan *orphans, int *n_orphans, bl_error *err) {
    int first_homeless = -1, n_homeless = 0;
    *n_orphans = 0;
    for (int expert = 0; expert < r->layer->n_experts; expert++) {
        int rank = -1;
        if (r->copies[expert] > 0)
            continue;
        const int slot = find_place(r, &rank);
        if (slot < 0) {
            first_homeless = n_homeless++ == 0 ? expert : first_homeless;
            continue;
        }
        if (r->layer->expert[slot] != BL_NO_EXPERT)
            r->copies[r->layer->expert[slot]]--;
        r->layer->expert[slot] = expert;
        r->copies[expert] = 1;
        r->arrivals[rank]++;
        orphans[(*n_orphans)++] = (bl_orphan){expert, rank, slot};
    }
    if (n_homeless == 0)
        return BL_OK;
    return bl_fail_at(err, BL_ERR_INFEASIBLE, bl_at_expert(NULL, r->layer->layer, first_homeless),
                      "was on lost ranks alone, and no living rank has a slot left for it (nor for "
                      "%d more); start with more slots",
                      n_homeless - 1);
}

bl_status bl_cover(const bl_layer_placement *now, const bool *lost, bl_layer_placement *out,
                   bl_orphan *orphans, int *n_orphans, bool *changed, bl_error *err) {
    bl_layer_placement layer;
    repair r = {.layer = &layer, .lost = lost};
    BL_TRY(bl_layer_placement_copy(now, &layer, err));
    bl_status st = BL_CALLOC(r.copies, now->n_experts, err);
    if (st >= 0)
        st = BL_CALLOC(r.arrivals, now->n_ranks, err);
    *n_orphans = 0;
    *changed = st >= 0 && empty_lost_slots(&r);
    if (*changed)
        st = place_orphans(&r, orphans, n_orphans, err);
    free(r.copies);
    free(r.arrivals);
    if (st < 0 || !*changed) {
        bl_layer_placement_free(&layer);
        return st;
    }
    layer.epoch++;
    *out = layer;
    return BL_OK;
}
