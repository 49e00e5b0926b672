#include "tests/support/cluster_sim_parts.h"

#include <stdlib.h>
#include <string.h>

int bl_sim_tag(int layer, int expert) {
    return (layer + 1) * 1000 + expert;
}

uint64_t bl_sim_hash(int tag) {
    uint64_t state = (uint64_t)tag;
    return bl_splitmix64(&state);
}

int bl_sim_take(sim_rank *r, use as) {
    for (int buffer = 0; buffer < r->n_buffers; buffer++) {
        if (r->use[buffer] == FREE) {
            r->use[buffer] = as;
            return buffer;
        }
    }
    return -1;
}

int bl_sim_count(const sim_rank *r, use what) {
    int n = 0;
    for (int buffer = 0; buffer < r->n_buffers; buffer++)
        n += r->use[buffer] == what;
    return n;
}

void bl_sim_fill_store(sim *s, int rank, const bl_placement *initial) {
    sim_rank *r = &s->ranks[rank];
    if (bl_placement_copy(initial, &r->map, NULL) < 0)
        abort();
    r->n_buffers = s->n_spares;
    for (int l = 0; l < s->n_layers; l++) {
        const bl_layer_placement *map = &r->map.layers[l];
        r->n_buffers += map->begin[rank + 1] - map->begin[rank];
    }
    for (int l = 0; l < s->n_layers; l++) {
        const bl_layer_placement *map = &r->map.layers[l];
        for (int expert = 0; expert < s->n_experts; expert++) {
            r->table[l][expert] = -1;
            if (bl_layer_find(map, rank, expert) < 0)
                continue;
            r->table[l][expert] = bl_sim_take(r, IN_SLOT);
            r->tag[r->table[l][expert]] = bl_sim_tag(l, expert);
        }
    }
}

int bl_sim_layer_index(int layer) {
    return layer / 2;
}

void bl_sim_commit(sim *s, int rank) {
    sim_rank *r = &s->ranks[rank];
    const bl_wave *wave = &r->tx.schedule->waves[r->tx.wave];
    const int l = bl_sim_layer_index(wave->after.layer);
    bl_layer_placement *map = &r->map.layers[l];
    if (wave->after.epoch != map->epoch + 1)
        bl_sim_violate(s, "rank %d commits an epoch that does not follow", rank);
    if (bl_sim_count(r, DISPLACED) > 0)
        bl_sim_violate(s, "rank %d commits before the last commit was retired", rank);
    int table[MAX_EXPERTS];
    for (int expert = 0; expert < s->n_experts; expert++) {
        table[expert] = -1;
        if (bl_layer_find(&wave->after, rank, expert) < 0)
            continue;
        table[expert] = r->table[l][expert];
        for (int buffer = 0; buffer < r->n_buffers && table[expert] < 0; buffer++) {
            if (r->use[buffer] == RESERVED &&
                wave->moves[r->reserved_move[buffer]].expert == expert)
                table[expert] = buffer;
        }
        if (table[expert] < 0)
            bl_sim_violate(s, "rank %d commits without expert %d", rank, expert);
    }
    for (int expert = 0; expert < s->n_experts; expert++) {
        if (r->table[l][expert] >= 0)
            r->use[r->table[l][expert]] = DISPLACED;
    }
    for (int expert = 0; expert < s->n_experts; expert++) {
        r->table[l][expert] = table[expert];
        if (table[expert] >= 0)
            r->use[table[expert]] = IN_SLOT;
    }
    memcpy(map->expert, wave->after.expert, sizeof *map->expert * (size_t)bl_layer_n_slots(map));
    map->epoch = wave->after.epoch;
}

void bl_sim_free_buffers(sim_rank *r, use which) {
    for (int buffer = 0; buffer < r->n_buffers; buffer++) {
        if (r->use[buffer] == which) {
            r->use[buffer] = FREE;
            r->tag[buffer] = GARBAGE; /* a spare is overwritten at any time */
        }
    }
}

void bl_sim_check_reads(sim *s, int rank, const running_step *step) {
    const sim_rank *r = &s->ranks[rank];
    for (int l = 0; l < s->n_layers; l++) {
        for (int expert = 0; expert < s->n_experts; expert++) {
            const int buffer = step->buffer[l][expert];
            if (buffer >= 0 && r->tag[buffer] != bl_sim_tag(l, expert))
                bl_sim_violate(s,
                               "rank %d, step %llu, layer %d: reads %d where expert %d should be",
                               rank, (unsigned long long)step->step, l, r->tag[buffer], expert);
        }
    }
}

/* Of ranks that have lost each other each may have its own idea of a step; whoever is not of the majority
 * completes none. What a rank did that died is retried. */
void bl_sim_check_epochs(sim *s, int rank) {
    sim_rank *r = &s->ranks[rank];
    const uint64_t step = r->begun;
    for (int l = 0; l < s->n_layers; l++) {
        const bl_layer_placement *map = &r->map.layers[l];
        r->epochs[step][l] = map->epoch;
        for (int other = 0; other < s->n_ranks; other++) {
            const sim_rank *o = &s->ranks[other];
            if (bl_sim_is_live(s, other) && o->begun >= step && !r->tx.lost[other] &&
                !o->tx.lost[rank] && o->epochs[step][l] != map->epoch &&
                s->fault != BL_SIM_MISMATCH)
                bl_sim_violate(s, "rank %d begins step %llu with another epoch of layer %d", rank,
                               (unsigned long long)step, l);
        }
        if (bl_layer_placement_check(map, NULL, NULL) < 0)
            bl_sim_violate(s, "step %llu is served by a map that does not cover layer %d",
                           (unsigned long long)step, l);
    }
}
