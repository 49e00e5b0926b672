#include "tests/support/mover.h"

#include "core/hash.h"
#include "core/mem.h"
#include "core/progress.h"
#include "core/rng.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_STEPS 100000
#define MAX_LAYERS 8
#define MEET_S 120 /* for what must come; machines stall */

typedef struct mover {
    const bl_test_mover_plan *plan;
    bl_test_mover *out;
    bl_transport *transport;
    bl_memory *memory;
    int rank, n_ranks;
    int layers[MAX_LAYERS];
    bl_placement initial, goals[BL_TEST_MOVER_GOALS];
    bl_bundle bundles[MAX_LAYERS];
    void *tensors[MAX_LAYERS][2];
    bl_store *store;
    bl_agent *agent;
    unsigned char *content; /* [bundle_bytes] */
    bool *gone;             /* [n_ranks] */
    int next_goal;
    uint64_t begun_at, busy_steps, last_epochs;
    double begun_s;
} mover;

/* ---- placements and content ------------------------------------------------------------------ */

static bl_status draw(const mover *m, bl_rng *rng, bl_placement *out, bl_error *err) {
    int slots[64];
    const uint32_t per_rank = (uint32_t)m->plan->slots, n_experts = (uint32_t)m->plan->experts;
    for (int g = 0; g < m->n_ranks; g++)
        slots[g] = m->plan->slots;
    BL_TRY(bl_placement_create(m->n_ranks, m->plan->experts, m->layers, m->plan->layers, slots, out,
                               err));
    for (int l = 0; l < m->plan->layers; l++) {
        bl_layer_placement *layer = &out->layers[l];
        for (int expert = 0; expert < m->plan->experts; expert++) {
            uint32_t slot;
            do
                slot = bl_rng_below(rng, (uint32_t)m->n_ranks * per_rank);
            while (layer->expert[slot] != BL_NO_EXPERT);
            layer->expert[slot] = expert;
        }
        for (int slot = 0; slot < m->n_ranks * m->plan->slots; slot++) {
            const int expert = (int)bl_rng_below(rng, n_experts);
            if (layer->expert[slot] == BL_NO_EXPERT &&
                bl_layer_find(layer, slot / m->plan->slots, expert) < 0)
                layer->expert[slot] = expert;
        }
    }
    return BL_OK;
}

static const unsigned char *content_of(mover *m, int layer, int expert) {
    bl_rng rng;
    bl_rng_seed(&rng, (uint64_t)(layer * 1000 + expert));
    for (size_t i = 0; i < m->plan->bundle_bytes; i++)
        m->content[i] = (unsigned char)bl_rng_next(&rng);
    return m->content;
}

/* ---- the store ------------------------------------------------------------------------------- */

/* A layer as an engine has it: a large tensor in rows with gaps, and a small one. */
static bl_status declare(mover *m, int l, bl_error *err) {
    const size_t n = (size_t)m->plan->slots, small = 40, rows = 4;
    const size_t row = (m->plan->bundle_bytes - small) / rows, stride = row + 24;
    bl_tensor tensors[2] = {BL_TENSOR_INIT, BL_TENSOR_INIT};
    bl_layer layer = BL_LAYER_INIT;
    const bl_bundle_shape shape = {m->layers[l], m->plan->slots, m->n_ranks * m->plan->slots,
                                   m->plan->experts};
    BL_TRY(bl_memory_alloc(m->memory, n * rows * stride, &m->tensors[l][0], err));
    BL_TRY(bl_memory_alloc(m->memory, n * small, &m->tensors[l][1], err));
    tensors[0].name = "w13";
    tensors[0].base = m->tensors[l][0];
    tensors[0].entries = n;
    tensors[0].rows = rows;
    tensors[0].row_bytes = row;
    tensors[0].row_stride = stride;
    tensors[1].name = "w13_scale";
    tensors[1].base = m->tensors[l][1];
    tensors[1].entries = n;
    tensors[1].row_bytes = small;
    layer.layer = m->layers[l];
    layer.n_slots = shape.n_slots;
    layer.expert = m->initial.layers[l].expert;
    layer.tensors = tensors;
    layer.n_tensors = 2;
    return bl_bundle_create(&layer, &shape, m->plan->copy, NULL, &m->bundles[l], err);
}

static bl_status load(mover *m, bl_error *err) {
    for (int l = 0; l < m->plan->layers; l++) {
        const bl_layer_placement *map = bl_store_map(m->store, m->layers[l]);
        for (int slot = map->begin[m->rank]; slot < map->begin[m->rank + 1]; slot++) {
            if (map->expert[slot] == BL_NO_EXPERT)
                continue;
            const unsigned char *content = content_of(m, m->layers[l], map->expert[slot]);
            BL_TRY(m->plan->copy != NULL
                       ? bl_bundle_write(&m->bundles[l], slot - map->begin[m->rank], 0, content,
                                         m->plan->bundle_bytes, err)
                       : bl_memory_copy(m->memory, bl_store_slot(m->store, m->layers[l], slot),
                                        content, m->plan->bundle_bytes, err));
        }
    }
    return BL_OK;
}

static bl_status open_all(mover *m, bl_error *err) {
    const bl_test_mover_plan *p = m->plan;
    bl_rng rng;
    bl_rng_seed(&rng, p->seed);
    for (int l = 0; l < p->layers; l++)
        m->layers[l] = 2 * l + 1;
    BL_TRY(draw(m, &rng, &m->initial, err));
    for (int i = 0; i < p->n_goals; i++)
        BL_TRY(draw(m, &rng, &m->goals[i], err));
    BL_TRY(BL_CALLOC(m->content, p->bundle_bytes, err));
    BL_TRY(BL_CALLOC(m->gone, m->n_ranks, err));
    for (int l = 0; l < p->layers && p->copy != NULL; l++)
        BL_TRY(declare(m, l, err));
    BL_TRY(p->copy != NULL ? bl_store_create_over(&m->initial, m->rank, m->bundles, p->spares,
                                                  m->memory, NULL, NULL, &m->store, err)
                           : bl_store_create_on(&m->initial, m->rank, p->bundle_bytes, p->spares,
                                                m->memory, &m->store, err));
    BL_TRY(load(m, err));
    return bl_agent_create(m->store, m->transport, m->layers, p->layers, &p->options, &m->agent,
                           err);
}

static void close_all(mover *m) {
    bl_agent_free(m->agent);
    bl_store_free(m->store);
    for (int l = 0; l < m->plan->layers; l++) {
        bl_bundle_free(&m->bundles[l]);
        bl_memory_free(m->memory, m->tensors[l][0]);
        bl_memory_free(m->memory, m->tensors[l][1]);
    }
    bl_placement_free(&m->initial);
    for (int i = 0; i < m->plan->n_goals; i++)
        bl_placement_free(&m->goals[i]);
    free(m->content);
    free(m->gone);
}

/* ---- serving --------------------------------------------------------------------------------- */

/* Every expert of this rank by its hash. */
static bl_status check_content(mover *m, bl_error *err) {
    for (int l = 0; l < m->plan->layers; l++) {
        const bl_layer_placement *map = bl_store_map(m->store, m->layers[l]);
        BL_TRY(bl_layer_placement_check(map, NULL, err));
        for (int slot = map->begin[m->rank]; slot < map->begin[m->rank + 1]; slot++) {
            const int expert = map->expert[slot];
            uint64_t hash;
            if (expert == BL_NO_EXPERT)
                continue;
            BL_TRY(bl_store_hash_expert(m->store, m->layers[l], expert, &hash, err));
            if (hash != bl_hash64(content_of(m, m->layers[l], expert), m->plan->bundle_bytes))
                return bl_fail_at(err, BL_ERR_INTERNAL, bl_at_expert(NULL, m->layers[l], expert),
                                  "rank %d serves something else", m->rank);
            m->out->n_checked++;
        }
    }
    return BL_OK;
}

static bl_status look(mover *m, bl_error *err) {
    uint64_t epochs = 0;
    for (int l = 0; l < m->plan->layers; l++)
        epochs = epochs * 1000 + bl_store_map(m->store, m->layers[l])->epoch;
    const uint64_t both[] = {m->out->epochs, epochs};
    m->out->epochs = bl_hash64(both, sizeof both);
    m->out->n_steps++;
    if (epochs == m->last_epochs)
        return BL_OK;
    m->last_epochs = epochs;
    return check_content(m, err);
}

static void note_outcome(mover *m) {
    bl_test_mover *out = m->out;
    const double took_s = bl_now_s() - m->begun_s;
    bl_agent_get_status(m->agent, &out->status);
    out->outcomes[out->n_outcomes] = out->status.outcome;
    memcpy(out->reasons[out->n_outcomes++], out->status.reason, BL_TX_REASON);
    if (took_s > out->moved_s)
        out->moved_s = took_s;
}

/* Rank 0's orders; *more is false when there is nothing left to do. */
static bl_status command(mover *m, bool *more, bl_error *err) {
    const bl_test_mover_plan *p = m->plan;
    *more = true;
    if (bl_agent_is_busy(m->agent)) {
        const uint64_t since = m->out->n_steps - m->begun_at;
        return p->stop_after > 0 && m->next_goal == 1 && since == (uint64_t)p->stop_after
                   ? bl_agent_stop(m->agent, "the operator says so", err)
                   : BL_OK;
    }
    if (m->next_goal > m->out->n_outcomes)
        note_outcome(m);
    const bool moved = m->next_goal == 0 || m->out->outcomes[m->next_goal - 1] == BL_TX_MOVED;
    *more = m->next_goal < p->n_goals && (moved || p->goes_on);
    if (!*more)
        return BL_OK;
    int n_moves;
    m->begun_at = m->out->n_steps;
    m->begun_s = bl_now_s();
    BL_TRY(bl_agent_apply(m->agent, &m->goals[m->next_goal++], &n_moves, err));
    m->out->n_moves += n_moves;
    return BL_OK;
}

/* A word with all living ranks: does anybody want to go on? */
static bl_status meet(mover *m, uint64_t step, unsigned char going, bool *any, bl_error *err) {
    for (int g = 0; g < m->n_ranks; g++) {
        bl_error lost = BL_ERROR_INIT;
        if (!m->gone[g] && bl_transport_send(m->transport, g, BL_CHANNEL_STEP, step, &going, 1,
                                             &lost) == BL_ERR_PEER)
            m->gone[g] = true;
    }
    *any = false;
    for (int g = 0; g < m->n_ranks; g++) {
        bl_error lost = BL_ERROR_INIT;
        bl_message word;
        if (m->gone[g])
            continue;
        const bl_status st =
            bl_transport_receive(m->transport, g, BL_CHANNEL_STEP, step, MEET_S, &word, &lost);
        if (st < 0 && st != BL_ERR_PEER)
            return bl_fail(err, st, "%s", lost.text);
        m->gone[g] = st < 0;
        if (st < 0)
            continue;
        *any = *any || word.data[0] == 1;
        bl_message_free(&word);
    }
    return BL_OK;
}

static bl_status serve(mover *m, bl_error *err) {
    const bl_test_mover_plan *p = m->plan;
    for (uint64_t step = 0; step < MAX_STEPS; step++) {
        bool any, more = bl_agent_is_busy(m->agent);
        m->busy_steps += more;
        if (m->rank == 0)
            BL_TRY(command(m, &more, err));
        if (m->rank == p->dead_rank && m->busy_steps == (uint64_t)p->dies_after) {
            m->out->died = true;
            return BL_OK;
        }
        BL_TRY(meet(m, step, more ? 1 : 0, &any, err));
        BL_TRY(bl_agent_at_step(m->agent, step, err));
        BL_TRY(look(m, err));
        if (!any)
            return check_content(m, err);
    }
    return bl_fail(err, BL_ERR_TIMEOUT, "the plans did not come to an end");
}

static int find_goal(const mover *m) {
    for (int goal = m->plan->n_goals - 1; goal >= -1; goal--) {
        const bl_placement *is = goal < 0 ? &m->initial : &m->goals[goal];
        int n = 0;
        for (int l = 0; l < m->plan->layers; l++) {
            const bl_layer_placement *map = bl_store_map(m->store, m->layers[l]);
            n += bl_layer_moves(map, &is->layers[l]) + bl_layer_moves(&is->layers[l], map);
        }
        if (n == 0)
            return goal;
    }
    return -2;
}

bl_status bl_test_mover_run(const bl_test_mover_plan *plan, bl_transport *transport,
                            bl_memory *memory, bl_test_mover *out, bl_error *err) {
    mover m = {.plan = plan,
               .out = out,
               .transport = transport,
               .memory = memory,
               .rank = bl_transport_rank(transport),
               .n_ranks = bl_transport_n_ranks(transport)};
    *out = (bl_test_mover){0};
    bl_status st = open_all(&m, err);
    if (st >= 0)
        st = serve(&m, err);
    if (m.agent != NULL) {
        bl_agent_get_status(m.agent, &out->status);
        out->spares_left = bl_store_spares_free(m.store);
        out->at_goal = find_goal(&m);
    }
    close_all(&m);
    return st;
}
