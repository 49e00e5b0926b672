#include "tests/support/cluster_sim_parts.h"

#include <stdlib.h>

static void random_placement(sim *s, const int *slots, bl_placement *out) {
    int layers[MAX_LAYERS];
    for (int l = 0; l < s->n_layers; l++)
        layers[l] = 2 * l + 1;
    if (bl_placement_create(s->n_ranks, s->n_experts, layers, s->n_layers, slots, out, NULL) < 0)
        abort();
    for (int l = 0; l < s->n_layers; l++) {
        bl_layer_placement *layer = &out->layers[l];
        const uint64_t n_slots = (uint64_t)bl_layer_n_slots(layer);
        for (int expert = 0; expert < s->n_experts; expert++) {
            int slot = (int)below(s, n_slots);
            while (layer->expert[slot] != BL_NO_EXPERT)
                slot = (int)below(s, n_slots);
            layer->expert[slot] = expert;
        }
        for (int slot = 0; slot < (int)n_slots; slot++) {
            const int expert = (int)below(s, (uint64_t)s->n_experts);
            if (layer->expert[slot] == BL_NO_EXPERT &&
                bl_layer_find(layer, bl_layer_rank_of(layer, slot), expert) < 0)
                layer->expert[slot] = expert;
        }
    }
}

void bl_sim_set_up(sim *s) {
    int slots[MAX_RANKS], total = 0;
    s->n_ranks = s->fault == BL_SIM_LOSE_TWO    ? 5 + (int)below(s, 2)
                 : s->fault >= BL_SIM_LOSE_RANK ? 3 + (int)below(s, 4)
                                                : 2 + (int)below(s, 5);
    s->n_layers = 1 + (int)below(s, MAX_LAYERS);
    s->n_spares = 1 + (int)below(s, MAX_SPARES);
    s->depth = 1 + (int)below(s, MAX_DEPTH);
    s->n_plans = s->fault == BL_SIM_STOP || s->fault == BL_SIM_LATE ? MAX_PLANS
                 : s->fault >= BL_SIM_DEAF                          ? 1
                                                                    : 1 + (int)below(s, MAX_PLANS);
    s->in_steps_deaf = below(s, 2) == 0;
    s->slow_ns = below(s, 2) == 0 ? MS / 5 : 2 * MS;
    for (int rank = 0; rank < s->n_ranks; rank++)
        total += slots[rank] = 1 + (int)below(s, MAX_SLOTS);
    const int most = total < MAX_EXPERTS ? total : MAX_EXPERTS;
    s->n_experts = 1 + (int)below(s, (uint64_t)most);
    bl_placement initial, other;
    random_placement(s, slots, &initial);
    random_placement(s, slots, &other);
    const bool other_map = below(s, 2) == 0;
    const bool anybody =
        s->fault == BL_SIM_SILENT_COPY || s->fault == BL_SIM_LATE || s->fault == BL_SIM_STALL;
    s->victim =
        anybody ? (int)below(s, (uint64_t)s->n_ranks) : 1 + (int)below(s, (uint64_t)s->n_ranks - 1);
    const bl_tx_options options = {.agree_ns = 300 * MS,
                                   .copy_ns = 300 * MS,
                                   .commit_ns = 500 * MS,
                                   .orphan_ns = 5000 * MS,
                                   .hold_ns = 1000 * MS,
                                   .margin_steps = 2 + (int)below(s, 5),
                                   .decide_steps = (int)below(s, 3),
                                   .max_proposals = 10};
    for (int rank = 0; rank < s->n_ranks; rank++) {
        bl_tx_init(&s->ranks[rank].tx, rank, s->n_ranks, &options);
        const bool differs = s->fault == BL_SIM_MISMATCH && rank == s->victim;
        bl_sim_fill_store(s, rank, differs && other_map ? &other : &initial);
        if (differs) /* another epoch alone is enough */
            s->ranks[rank].map.layers[0].epoch++;
        bl_sim_push(&s->queue, (event){.at = 1 + below(s, MS), .kind = STEP, .rank = rank});
    }
    for (int plan = 0; plan < s->n_plans; plan++)
        random_placement(s, slots, &s->goals[plan]);
    bl_placement_free(&initial);
    bl_placement_free(&other);
}

/* For a while that is over before anybody is missed, or not. */
static void plant_window(sim *s, uint64_t when) {
    const bool is_short = below(s, 3) == 0;
    s->fault_at = when;
    s->fault_until =
        when + (is_short ? 1 + below(s, SILENCE - MS) : SILENCE + 6 * MS + below(s, 200 * MS));
    s->side = 1 + (unsigned)below(s, (1u << s->n_ranks) - 2);
    s->one_way = below(s, 3) == 0;
    bl_sim_push(&s->queue, (event){.at = s->fault_at, .kind = BEGIN_FAULT});
    bl_sim_push(&s->queue, (event){.at = s->fault_until, .kind = END_FAULT});
}

void bl_sim_plant_fault(sim *s) {
    const uint64_t when = 5 * MS + below(s, 60 * MS);
    if (s->fault == BL_SIM_STOP)
        bl_sim_push(&s->queue, (event){.at = when, .kind = STOP, .rank = 0});
    else if (s->fault == BL_SIM_DEAF)
        bl_sim_push(&s->queue, (event){.at = when, .kind = TICK, .rank = s->victim, .other = 1});
    else if (s->fault == BL_SIM_LOSE_RANK)
        bl_sim_push(&s->queue, (event){.at = when, .kind = DIE, .rank = s->victim});
    else if (s->fault == BL_SIM_LOSE_LEADER || s->fault == BL_SIM_LOSE_TWO)
        bl_sim_push(&s->queue, (event){.at = when, .kind = DIE, .rank = 0});
    else if (s->fault == BL_SIM_STALL || s->fault == BL_SIM_CUT)
        plant_window(s, when);
    if (s->fault == BL_SIM_LOSE_TWO)
        bl_sim_push(&s->queue,
                    (event){.at = when + below(s, 30 * MS), .kind = DIE, .rank = s->victim});
    bl_sim_push(&s->queue, (event){.at = 5 * MS, .kind = APPLY});
}
