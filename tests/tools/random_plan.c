/* random_plan SEED MODEL RANKS SLOTS_PER_RANK [EPOCH [ORDER]]: prints a random plan that obeys the hard
 * rules, with copies in the slots that are left. ORDER, e.g. 1032: the same plan with its ranks
 * exchanged, what rank 0 would have goes to rank 1, and so on; and the slots of each in reverse. */
#include "core/rng.h"
#include "planner/plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void fill(bl_layer_placement *layer, bl_rng *rng) {
    const uint32_t n_slots = (uint32_t)bl_layer_n_slots(layer);
    for (int expert = 0; expert < layer->n_experts; expert++) {
        uint32_t slot;
        do
            slot = bl_rng_below(rng, n_slots);
        while (layer->expert[slot] != BL_NO_EXPERT);
        layer->expert[slot] = expert;
    }
    for (int slot = 0; slot < (int)n_slots; slot++) {
        while (layer->expert[slot] == BL_NO_EXPERT) {
            const int expert = (int)bl_rng_below(rng, (uint32_t)layer->n_experts);
            if (bl_layer_find(layer, bl_layer_rank_of(layer, slot), expert) < 0)
                layer->expert[slot] = expert;
        }
    }
}

/* Equal slots on all ranks. */
static void exchange(bl_layer_placement *layer, const char *order, int per_rank) {
    int32_t old[256 * 256];
    const int n = layer->n_ranks;
    memcpy(old, layer->expert, sizeof *old * (size_t)(n * per_rank));
    for (int rank = 0; rank < n; rank++) {
        for (int slot = 0; slot < per_rank; slot++)
            layer->expert[(order[rank] - '0') * per_rank + slot] =
                old[(rank + 1) * per_rank - 1 - slot];
    }
}

static bl_status make(char **args, int n_args, bl_error *err) {
    bl_rng rng;
    bl_model model;
    bl_placement placement;
    bl_plan plan;
    int slots[256];
    const int n_ranks = atoi(args[2]);
    bl_rng_seed(&rng, strtoull(args[0], NULL, 10));
    BL_TRY(bl_model_load(args[1], &model, err));
    const int per_rank = atoi(args[3]);
    if (n_args > 5 && (strlen(args[5]) != (size_t)n_ranks || n_ranks > 9 || per_rank > 256))
        return bl_fail(err, BL_ERR_USAGE, "%s does not order %d ranks", args[5], n_ranks);
    if (per_rank < 1 || per_rank > model.n_experts || per_rank * n_ranks < model.n_experts)
        return bl_fail(err, BL_ERR_USAGE, "%d slots on %d ranks cannot hold %d experts once each",
                       per_rank, n_ranks, model.n_experts);
    for (int rank = 0; rank < n_ranks && rank < 256; rank++)
        slots[rank] = per_rank;
    BL_TRY(bl_placement_create(n_ranks, model.n_experts, model.moe_layers, model.n_moe_layers,
                               slots, &placement, err));
    for (int l = 0; l < placement.n_layers; l++)
        fill(&placement.layers[l], &rng);
    for (int l = 0; l < placement.n_layers && n_args > 5; l++)
        exchange(&placement.layers[l], args[5], per_rank);
    BL_TRY(bl_plan_create(&model, &placement, &plan, err));
    plan.epoch = n_args > 4 ? strtoull(args[4], NULL, 10) : 0;
    const bl_status st = bl_plan_save(&plan, "-", err);
    bl_plan_free(&plan);
    bl_model_free(&model);
    return st;
}

int main(int argc, char **argv) {
    bl_error err = BL_ERROR_INIT;
    if (argc < 5 || atoi(argv[3]) < 1 || atoi(argv[3]) > 256) {
        fprintf(stderr, "usage: random_plan SEED MODEL RANKS SLOTS_PER_RANK [EPOCH [ORDER]]\n");
        return 2;
    }
    if (make(argv + 1, argc - 1, &err) >= 0)
        return 0;
    fprintf(stderr, "random_plan: %s\n", err.text);
    return 1;
}
