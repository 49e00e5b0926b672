#include "core/placement.h"

#include "core/mem.h"

#include <stdlib.h>
#include <string.h>

/* Larger shapes than any model or cluster we know; keeps products of ranks and slots far from
 * overflow. */
#define MAX_RANKS 65536
#define MAX_SLOTS (1 << 24)

static bl_status layer_create(int layer, int n_ranks, int n_experts, const int *slots_per_rank,
                              bl_layer_placement *out, bl_error *err) {
    bl_layer_placement made = {.layer = layer, .n_ranks = n_ranks, .n_experts = n_experts};
    BL_TRY(BL_CALLOC(made.begin, n_ranks + 1, err));
    for (int rank = 0; rank < n_ranks; rank++) {
        const int64_t end = (int64_t)made.begin[rank] + slots_per_rank[rank];
        if (slots_per_rank[rank] < 0 || end > MAX_SLOTS) {
            bl_layer_placement_free(&made);
            return bl_fail_at(err, BL_ERR_RANGE, bl_at_layer(NULL, layer),
                              "rank %d: %d slots is not possible", rank, slots_per_rank[rank]);
        }
        made.begin[rank + 1] = (int)end;
    }
    const int n_slots = made.begin[n_ranks];
    if (BL_CALLOC(made.expert, n_slots, err) < 0) {
        bl_layer_placement_free(&made);
        return BL_ERR_NOMEM;
    }
    for (int slot = 0; slot < n_slots; slot++)
        made.expert[slot] = BL_NO_EXPERT;
    *out = made;
    return BL_OK;
}

/* Room for layers, shapes checked; the layers themselves are still empty. */
static bl_status shell_create(int n_ranks, int n_experts, int n_layers, bl_placement *out,
                              bl_error *err) {
    if (n_ranks < 1 || n_ranks > MAX_RANKS || n_experts < 1 || n_experts > MAX_SLOTS ||
        n_layers < 0)
        return bl_fail(err, BL_ERR_RANGE, "%d ranks, %d experts and %d layers make no placement",
                       n_ranks, n_experts, n_layers);
    *out = (bl_placement){.n_ranks = n_ranks, .n_experts = n_experts, .n_layers = n_layers};
    return BL_CALLOC(out->layers, n_layers, err);
}

bl_status bl_placement_create(int n_ranks, int n_experts, const int *layers, int n_layers,
                              const int *slots_per_rank, bl_placement *out, bl_error *err) {
    bl_placement made;
    BL_TRY(shell_create(n_ranks, n_experts, n_layers, &made, err));
    for (int l = 0; l < n_layers; l++) {
        const bl_status st =
            layer_create(layers[l], n_ranks, n_experts, slots_per_rank, &made.layers[l], err);
        if (st < 0) {
            bl_placement_free(&made);
            return st;
        }
    }
    *out = made;
    return BL_OK;
}

/* The next expert, from `expert` on and around, that this rank does not hold yet; -1 when it holds
 * all of them. */
static int next_absent(const bl_layer_placement *layer, int rank, int expert) {
    for (int tried = 0; tried < layer->n_experts; tried++) {
        const int candidate = (expert + tried) % layer->n_experts;
        if (bl_layer_find(layer, rank, candidate) < 0)
            return candidate;
    }
    return BL_NO_EXPERT;
}

/* Slots in order get experts in order, around and around. The first pass needs no skipping, so every
 * expert has its slot before one is repeated. */
static void fill_layer(bl_layer_placement *layer) {
    if (bl_layer_n_slots(layer) < layer->n_experts)
        return; /* cannot cover; bl_layer_placement_check() says which expert has no slot */
    int next = 0;
    for (int rank = 0; rank < layer->n_ranks; rank++) {
        for (int slot = layer->begin[rank]; slot < layer->begin[rank + 1]; slot++) {
            const int expert = next_absent(layer, rank, next);
            layer->expert[slot] = expert;
            if (expert != BL_NO_EXPERT)
                next = (expert + 1) % layer->n_experts;
        }
    }
}

void bl_placement_fill_contiguous(bl_placement *placement) {
    for (int l = 0; l < placement->n_layers; l++)
        fill_layer(&placement->layers[l]);
}

bl_status bl_layer_placement_copy(const bl_layer_placement *layer, bl_layer_placement *out,
                                  bl_error *err) {
    bl_layer_placement made = *layer;
    const size_t n_slots = (size_t)bl_layer_n_slots(layer);
    made.expert = NULL;
    BL_TRY(BL_CALLOC(made.begin, layer->n_ranks + 1, err));
    if (BL_CALLOC(made.expert, n_slots, err) < 0) {
        bl_layer_placement_free(&made);
        return BL_ERR_NOMEM;
    }
    memcpy(made.begin, layer->begin, sizeof *made.begin * (size_t)(layer->n_ranks + 1));
    memcpy(made.expert, layer->expert, sizeof *made.expert * n_slots);
    *out = made;
    return BL_OK;
}

bl_status bl_placement_copy(const bl_placement *placement, bl_placement *out, bl_error *err) {
    bl_placement made;
    BL_TRY(shell_create(placement->n_ranks, placement->n_experts, placement->n_layers, &made, err));
    for (int l = 0; l < placement->n_layers; l++) {
        const bl_status st = bl_layer_placement_copy(&placement->layers[l], &made.layers[l], err);
        if (st < 0) {
            bl_placement_free(&made);
            return st;
        }
    }
    *out = made;
    return BL_OK;
}

void bl_layer_placement_free(bl_layer_placement *layer) {
    free(layer->begin);
    free(layer->expert);
    layer->begin = NULL;
    layer->expert = NULL;
}

void bl_placement_free(bl_placement *placement) {
    for (int l = 0; placement->layers != NULL && l < placement->n_layers; l++)
        bl_layer_placement_free(&placement->layers[l]);
    free(placement->layers);
    *placement = (bl_placement){0};
}

int bl_layer_rank_of(const bl_layer_placement *layer, int slot) {
    int low = 0, high = layer->n_ranks - 1;
    while (low < high) {
        const int middle = (low + high) / 2;
        if (slot < layer->begin[middle + 1])
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

int bl_layer_find(const bl_layer_placement *layer, int rank, int expert) {
    for (int slot = layer->begin[rank]; slot < layer->begin[rank + 1]; slot++) {
        if (layer->expert[slot] == expert)
            return slot;
    }
    return -1;
}

bl_layer_placement *bl_placement_layer(const bl_placement *placement, int layer) {
    for (int l = 0; l < placement->n_layers; l++) {
        if (placement->layers[l].layer == layer)
            return &placement->layers[l];
    }
    return NULL;
}

static bl_status check_slots(const bl_layer_placement *layer, const char *file, int *last_rank,
                             bl_error *err) {
    for (int expert = 0; expert < layer->n_experts; expert++)
        last_rank[expert] = -1;
    for (int rank = 0; rank < layer->n_ranks; rank++) {
        for (int slot = layer->begin[rank]; slot < layer->begin[rank + 1]; slot++) {
            const int expert = layer->expert[slot];
            if (expert == BL_NO_EXPERT)
                continue;
            if (expert < 0 || expert >= layer->n_experts)
                return bl_fail_at(err, BL_ERR_RANGE, bl_at_layer(file, layer->layer),
                                  "rank %d: expert %d is not in [0, %d)", rank, expert,
                                  layer->n_experts);
            if (last_rank[expert] == rank)
                return bl_fail_at(err, BL_ERR_INFEASIBLE, bl_at_expert(file, layer->layer, expert),
                                  "rank %d holds it twice; a second copy there gains nothing",
                                  rank);
            last_rank[expert] = rank;
        }
    }
    for (int expert = 0; expert < layer->n_experts; expert++) {
        if (last_rank[expert] < 0)
            return bl_fail_at(err, BL_ERR_INFEASIBLE, bl_at_expert(file, layer->layer, expert),
                              "expert %d has no slot", expert);
    }
    return BL_OK;
}

bl_status bl_layer_placement_check(const bl_layer_placement *layer, const char *file,
                                   bl_error *err) {
    int *last_rank;
    BL_TRY(BL_CALLOC(last_rank, layer->n_experts, err));
    const bl_status st = check_slots(layer, file, last_rank, err);
    free(last_rank);
    return st;
}

bl_status bl_placement_check(const bl_placement *placement, const char *file, bl_error *err) {
    for (int l = 0; l < placement->n_layers; l++)
        BL_TRY(bl_layer_placement_check(&placement->layers[l], file, err));
    return BL_OK;
}

int bl_layer_moves(const bl_layer_placement *from, const bl_layer_placement *to) {
    int moves = 0;
    for (int rank = 0; rank < to->n_ranks; rank++) {
        for (int slot = to->begin[rank]; slot < to->begin[rank + 1]; slot++) {
            if (to->expert[slot] != BL_NO_EXPERT && bl_layer_find(from, rank, to->expert[slot]) < 0)
                moves++;
        }
    }
    return moves;
}

/* ---- JSON -------------------------------------------------------------------------------------*/

static bl_status read_slot(const json_t *value, int layer, int rank, int n_experts,
                           const char *file, int32_t *out, bl_error *err) {
    if (!json_is_integer(value))
        return bl_fail_at(err, BL_ERR_PARSE, bl_at_layer(file, layer),
                          "rank %d: a slot must hold an expert id or -1", rank);
    const int64_t expert = json_integer_value(value);
    if (expert < BL_NO_EXPERT || expert >= n_experts)
        return bl_fail_at(err, BL_ERR_RANGE, bl_at_layer(file, layer),
                          "rank %d: expert %lld is not in [0, %d)", rank, (long long)expert,
                          n_experts);
    *out = (int32_t)expert;
    return BL_OK;
}

static bl_status read_layer(const json_t *object, int n_ranks, int n_experts, int *slots_per_rank,
                            const char *file, bl_layer_placement *out, bl_error *err) {
    int64_t layer;
    const json_t *ranks;
    BL_TRY(bl_json_int(object, "layer", 0, 1 << 20, file, &layer, err));
    bl_status st = bl_json_array(object, "slots", file, &ranks, err);
    if (st < 0)
        return st;
    if ((int)json_array_size(ranks) != n_ranks)
        return bl_fail_at(err, BL_ERR_SHAPE, bl_at_layer(file, (int)layer),
                          "slots are given for %zu ranks, not for %d", json_array_size(ranks),
                          n_ranks);
    for (int rank = 0; rank < n_ranks; rank++) {
        const json_t *slots = json_array_get(ranks, (size_t)rank);
        if (!json_is_array(slots) || json_array_size(slots) > MAX_SLOTS)
            return bl_fail_at(err, BL_ERR_PARSE, bl_at_layer(file, (int)layer),
                              "rank %d: slots must be an array of expert ids", rank);
        slots_per_rank[rank] = (int)json_array_size(slots);
    }
    bl_layer_placement made;
    BL_TRY(layer_create((int)layer, n_ranks, n_experts, slots_per_rank, &made, err));
    for (int rank = 0; rank < n_ranks && st >= 0; rank++) {
        const json_t *slots = json_array_get(ranks, (size_t)rank);
        for (int s = 0; s < slots_per_rank[rank] && st >= 0; s++)
            st = read_slot(json_array_get(slots, (size_t)s), made.layer, rank, n_experts, file,
                           &made.expert[made.begin[rank] + s], err);
    }
    if (st < 0)
        bl_layer_placement_free(&made);
    else
        *out = made;
    return st;
}

bl_status bl_placement_from_json(const json_t *layers, int n_ranks, int n_experts, uint64_t epoch,
                                 const char *file, bl_placement *out, bl_error *err) {
    if (!json_is_array(layers) || json_array_size(layers) == 0 || json_array_size(layers) > 1 << 20)
        return bl_fail_at(err, BL_ERR_PARSE, bl_at(file),
                          "\"layers\" must be an array of at least one layer");
    bl_placement made;
    BL_TRY(shell_create(n_ranks, n_experts, (int)json_array_size(layers), &made, err));
    int *slots_per_rank = NULL;
    bl_status st = BL_CALLOC(slots_per_rank, n_ranks, err);
    for (int l = 0; l < made.n_layers && st >= 0; l++) {
        st = read_layer(json_array_get(layers, (size_t)l), n_ranks, n_experts, slots_per_rank, file,
                        &made.layers[l], err);
        made.layers[l].epoch = epoch;
        if (st >= 0 && l > 0 && made.layers[l].layer <= made.layers[l - 1].layer)
            st = bl_fail_at(err, BL_ERR_PARSE, bl_at_layer(file, made.layers[l].layer),
                            "layers must ascend, but this one follows layer %d",
                            made.layers[l - 1].layer);
    }
    free(slots_per_rank);
    if (st < 0)
        bl_placement_free(&made);
    else
        *out = made;
    return st;
}

json_t *bl_layer_slots_to_json(const bl_layer_placement *layer) {
    json_t *ranks = json_array();
    for (int rank = 0; ranks != NULL && rank < layer->n_ranks; rank++) {
        json_t *slots = json_array();
        for (int slot = layer->begin[rank]; slots != NULL && slot < layer->begin[rank + 1]; slot++)
            json_array_append_new(slots, json_integer(layer->expert[slot]));
        if (slots == NULL || json_array_append_new(ranks, slots) != 0) {
            json_decref(ranks);
            return NULL;
        }
    }
    return ranks;
}
