#include "rebalancer/cover.h"

#include "core/mem.h"

#include <limits.h>
#include <stdio.h>
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

/* How little is lost with a slot's content: more is better, 0 is not to be given away. An empty slot
 * costs nothing; of n copies that share an expert's rows alike, one less lets each of the others grow by
 * 1 / (n - 1), which is least where n is largest. */
static int worth_giving(const repair *r, int slot) {
    const int expert = r->layer->expert[slot];
    if (expert == BL_NO_EXPERT)
        return INT_MAX;
    return r->copies[expert] > 1 ? r->copies[expert] : 0;
}

/* A place for an orphan: where least is lost; of equal slots on the rank that has got the fewest
 * orphans so far, and there the first. -1: none. */
static int find_place(const repair *r, int *rank_p) {
    int found = -1, most = 0;
    for (int rank = 0; rank < r->layer->n_ranks; rank++) {
        for (int slot = r->layer->begin[rank]; slot < r->layer->begin[rank + 1]; slot++) {
            const int worth = r->lost[rank] ? 0 : worth_giving(r, slot);
            if (worth < most || worth == 0 ||
                (worth == most && r->arrivals[rank] >= r->arrivals[*rank_p]))
                continue;
            found = slot;
            most = worth;
            *rank_p = rank;
        }
    }
    return found;
}

/* ", nor for experts 5 6 7 ...": those behind the first. */
static void name_another(char *text, size_t bytes, int n, int expert) {
    const size_t used = strlen(text);
    if (n < 2 || (used > 0 && text[used - 1] == '.'))
        return;
    const bool full = used + 32 > bytes;
    snprintf(text + used, bytes - used, "%s", n == 2 ? ", nor for" : "");
    snprintf(text + strlen(text), bytes - strlen(text), full ? " ..." : " %d", expert);
}

static int n_living_slots(const repair *r) {
    int n = 0;
    for (int rank = 0; rank < r->layer->n_ranks; rank++)
        n += r->lost[rank] ? 0 : r->layer->begin[rank + 1] - r->layer->begin[rank];
    return n;
}

static bl_status place_orphans(repair *r, bl_orphan *orphans, int *n_orphans, bl_error *err) {
    char homeless[64] = "";
    int first_homeless = -1, n_homeless = 0;
    *n_orphans = 0;
    for (int expert = 0; expert < r->layer->n_experts; expert++) {
        int rank = 0;
        if (r->copies[expert] > 0)
            continue;
        const int slot = find_place(r, &rank);
        if (slot < 0) {
            first_homeless = n_homeless++ == 0 ? expert : first_homeless;
            name_another(homeless, sizeof homeless, n_homeless, expert);
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
                      "was on lost ranks alone, and no living rank has a slot left for it%s: %d "
                      "experts, %d slots on living ranks; start with more slots",
                      homeless, r->layer->n_experts, n_living_slots(r));
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
