/* What an engine calls while it serves. */
#include "rebalancer/embed_parts.h"

#include "core/mem.h"
#include "core/progress.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HELD_BY_RELOAD "weights are being reloaded"
#define HELD_BY_LOSS \
    "a rank was lost; the placement stays as it is until the ranks are started again"

/* ---- a step ---------------------------------------------------------------------------------- */

static void set_reason(bl_embed *embed, const char *text) {
    snprintf(embed->reason, sizeof embed->reason, "%s", text);
}

static void hold(bl_embed *embed, const char *why) {
    if (embed->control != NULL)
        bl_control_hold(embed->control, why);
}

/* Balancing is over. Serving goes on, unless nobody can say any more what the others serve. */
static bl_status turn_off(bl_embed *embed, bl_error *why, bl_error *err) {
    char text[BL_EMBED_REASON_BYTES];
    bl_error_format(why, text, sizeof text);
    if (!embed->is_off)
        set_reason(embed, text);
    embed->is_off = true;
    hold(embed, embed->is_drained ? HELD_BY_RELOAD : HELD_BY_LOSS);
    if (!bl_agent_is_in_doubt(embed->agent))
        return BL_OK;
    embed->is_dead = true;
    return bl_fail(err, BL_ERR_ABORTED, "this rank must not serve on: %s", text);
}

/* The layer whose epoch is another than when last seen, or -1. */
static int changed_layer(bl_embed *embed) {
    int changed = -1;
    for (int l = 0; l < embed->placement.n_layers; l++) {
        const bl_layer_placement *map = bl_agent_map(embed->agent, l);
        if (map->epoch == embed->epochs[l])
            continue;
        embed->epochs[l] = map->epoch;
        embed->commits++;
        changed = map->layer;
    }
    return changed;
}

static void note_loss(bl_embed *embed) {
    const int lost = bl_transport_lost(embed->transport);
    if (lost < 0 || embed->is_off)
        return;
    embed->is_off = true;
    snprintf(embed->reason, sizeof embed->reason, "rank %d was lost", lost);
    hold(embed, HELD_BY_LOSS);
}

static bool is_idle(const bl_embed *embed) {
    return !bl_agent_is_busy(embed->agent);
}

bl_status bl_embed_take_step(bl_embed *embed, int *layer_p, bl_error *err) {
    bl_error why = BL_ERROR_INIT;
    const uint64_t step = ++embed->step;
    *layer_p = -1;
    if (embed->is_dead)
        return bl_fail(err, BL_ERR_ABORTED, "this rank must not serve on: %s", embed->reason);
    if (embed->control != NULL)
        bl_control_poll(embed->control, embed->agent);
    if (embed->is_off && is_idle(embed))
        return BL_OK;
    const bool was_busy = !is_idle(embed);
    const bl_status st = bl_agent_at_step(embed->agent, step, &why);
    if (st >= 0)
        note_loss(embed);
    if (was_busy || !is_idle(embed))
        *layer_p = changed_layer(embed);
    return st < 0 ? turn_off(embed, &why, err) : BL_OK;
}

static bl_status check_started(const bl_embed *embed, bl_error *err) {
    return embed->is_started ? BL_OK : bl_fail(err, BL_ERR_STATE, "bl_embed_start() comes first");
}

int bl_step(bl_embed *embed, bl_step_news *news) {
    bl_error err = BL_ERROR_INIT;
    const uint64_t begin = bl_now_ns();
    int layer = -1;
    bl_status st = check_started(embed, &err);
    if (st >= 0) {
        bl_embed_end_step(embed, begin);
        st = bl_embed_take_step(embed, &layer, &err);
    }
    const uint64_t took = bl_now_ns() - begin;
    if (took > embed->max_step_ns)
        embed->max_step_ns = took;
    if (news != NULL && news->size >= sizeof *news) {
        news->layer = layer;
        news->busy = embed->agent != NULL && !is_idle(embed);
        news->step = embed->step;
    }
    return st >= 0 ? BL_OK : bl_embed_fail(embed, &err);
}

/* ---- maps ------------------------------------------------------------------------------------ */

static int index_of(const bl_embed *embed, int layer) {
    for (int l = 0; l < embed->placement.n_layers; l++) {
        if (embed->placement.layers[l].layer == layer)
            return l;
    }
    return -1;
}

int bl_map(const bl_embed *embed, int layer, bl_trace_map *map) {
    const int l = index_of(embed, layer);
    if (l < 0)
        return BL_ERR_RANGE;
    if (map->size < sizeof *map)
        return BL_ERR_VERSION;
    const bl_layer_placement *now =
        embed->store != NULL ? bl_store_map(embed->store, layer) : &embed->placement.layers[l];
    map->layer = layer;
    map->epoch = now->epoch;
    map->n_ranks = now->n_ranks;
    map->n_slots = bl_layer_n_slots(now);
    map->slots_of_rank = embed->slots_of_rank[l];
    map->expert = now->expert;
    return BL_OK;
}

static bl_status hash_slot(const bl_embed *embed, int layer, int slot, uint64_t *hash,
                           bl_error *err) {
    const int l = index_of(embed, layer);
    BL_TRY(check_started(embed, err));
    if (l < 0 || slot < 0 || slot >= embed->bundles[l].own_slots)
        return bl_fail_at(err, BL_ERR_RANGE, bl_at_layer(NULL, layer),
                          "rank %d has no slot %d in it", embed->rank, slot);
    const bl_layer_placement *map = bl_store_map(embed->store, layer);
    const int32_t expert = map->expert[map->begin[embed->rank] + slot];
    if (expert == BL_NO_EXPERT)
        return bl_fail_at(err, BL_ERR_STATE, bl_at_layer(NULL, layer), "slot %d is empty", slot);
    return bl_store_hash_expert(embed->store, layer, expert, hash, err);
}

int bl_slot_hash(bl_embed *embed, int layer, int slot, uint64_t *hash) {
    bl_error err = BL_ERROR_INIT;
    return hash_slot(embed, layer, slot, hash, &err) >= 0 ? BL_OK : bl_embed_fail(embed, &err);
}

/* ---- drain and resume ------------------------------------------------------------------------ */

typedef struct drain_note {
    uint64_t step;
    int32_t busy, how;
} drain_note;

/* Every rank says whether it is busy; nobody is: *idle. */
static bl_status hear_all(bl_embed *embed, int how, drain_note *notes, bool *idle, bl_error *err) {
    const drain_note mine = {embed->step, !is_idle(embed), how};
    BL_TRY(bl_exchange_allgather(&embed->exchange, &mine, sizeof mine, notes, err));
    *idle = true;
    for (int rank = 0; rank < embed->n_ranks; rank++) {
        if (notes[rank].step != mine.step || notes[rank].how != how)
            return bl_fail(
                err, BL_ERR_STATE,
                "rank %d drains after %llu steps, rank %d after %llu: ranks call bl_step() "
                "equally often and bl_drain() alike",
                rank, (unsigned long long)notes[rank].step, embed->rank,
                (unsigned long long)mine.step);
        *idle = *idle && notes[rank].busy == 0;
    }
    return BL_OK;
}

/* Step together, without tokens, until no rank has anything under way. */
static bl_status settle(bl_embed *embed, int how, drain_note *notes, bl_error *err) {
    for (;;) {
        bool idle;
        int layer;
        BL_TRY(hear_all(embed, how, notes, &idle, err));
        if (idle)
            return BL_OK;
        if (how == BL_DRAIN_ABORT && bl_agent_leader(embed->agent) == embed->rank)
            bl_agent_stop(embed->agent, HELD_BY_RELOAD, NULL); /* it may have ended meanwhile */
        BL_TRY(bl_embed_take_step(embed, &layer, err));
    }
}

static bl_status drain(bl_embed *embed, int how, bl_error *err) {
    drain_note *notes;
    BL_TRY(check_started(embed, err));
    if (embed->is_dead)
        return bl_fail(err, BL_ERR_ABORTED, "this rank must not serve on: %s", embed->reason);
    if (how != BL_DRAIN_ABORT && how != BL_DRAIN_FINISH)
        return bl_fail(err, BL_ERR_USAGE, "bl_drain() aborts or finishes, %d is neither", how);
    if (embed->is_drained)
        return bl_fail(err, BL_ERR_STATE, "it is drained already");
    if (embed->is_off && is_idle(embed)) { /* nothing moves any more anyway */
        embed->is_drained = true;
        return BL_OK;
    }
    hold(embed, HELD_BY_RELOAD);
    BL_TRY(BL_CALLOC(notes, embed->n_ranks, err));
    const bl_status st = settle(embed, how, notes, err);
    free(notes);
    if (st < 0)
        hold(embed, embed->is_off ? HELD_BY_LOSS : NULL);
    else
        embed->is_drained = true;
    return st;
}

int bl_drain(bl_embed *embed, int how) {
    bl_error err = BL_ERROR_INIT;
    return drain(embed, how, &err) >= 0 ? BL_OK : bl_embed_fail(embed, &err);
}

static bl_status resume(bl_embed *embed, int check_copies, bl_error *err) {
    const bl_error fine = BL_ERROR_INIT;
    BL_TRY(check_started(embed, err));
    if (!embed->is_drained)
        return bl_fail(err, BL_ERR_STATE, "bl_drain() comes first");
    if (!embed->is_off) {
        BL_TRY(bl_embed_agree(embed, &fine, err));
        if (check_copies)
            BL_TRY(bl_embed_compare_copies(embed, err));
    }
    embed->is_drained = false;
    hold(embed, embed->is_off ? HELD_BY_LOSS : NULL);
    return BL_OK;
}

int bl_resume(bl_embed *embed, int check_copies) {
    bl_error err = BL_ERROR_INIT;
    return resume(embed, check_copies, &err) >= 0 ? BL_OK : bl_embed_fail(embed, &err);
}

/* ---- looking --------------------------------------------------------------------------------- */

int bl_embed_read_status(const bl_embed *embed, bl_embed_status *status) {
    bl_agent_status s = {0};
    if (status->size < sizeof *status)
        return BL_ERR_VERSION;
    *status = (bl_embed_status){.size = status->size};
    if (embed->agent != NULL)
        bl_agent_get_status(embed->agent, &s);
    status->leads = s.leads;
    status->busy = s.busy;
    status->drained = embed->is_drained;
    status->is_off = embed->is_off;
    snprintf(status->reason, sizeof status->reason, "%s",
             embed->reason[0] != '\0' ? embed->reason : s.reason);
    status->moves = s.term;
    status->commits = embed->commits;
    status->sent_bytes = s.sent_bytes;
    status->received_bytes = s.received_bytes;
    status->max_step_bytes = s.max_step_bytes;
    status->max_step_ns = embed->max_step_ns;
    if (embed->store != NULL) {
        status->bundle_bytes = bl_store_bundle_bytes(embed->store);
        status->pool_bytes = bl_store_resident_bytes(embed->store);
    }
    status->spares = embed->n_spares;
    return BL_OK;
}
