/* What an engine calls while it serves. */
#include "rebalancer/embed_parts.h"

#include "core/mem.h"
#include "core/progress.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int index_of(const bl_embed *embed, int layer) {
    for (int l = 0; l < embed->placement.n_layers; l++) {
        if (embed->placement.layers[l].layer == layer)
            return l;
    }
    return -1;
}

/* ---- a step ---------------------------------------------------------------------------------- */

static void set_reason(bl_embed *embed, const char *text) {
    snprintf(embed->reason, sizeof embed->reason, "%s", text);
}

/* Balancing is over. Serving goes on, unless nobody can say any more what the others serve. */
static bl_status turn_off(bl_embed *embed, bl_error *why, bl_error *err) {
    char text[BL_EMBED_REASON_BYTES];
    bl_error_format(why, text, sizeof text);
    if (!embed->is_off)
        set_reason(embed, text);
    embed->is_off = true;
    bl_embed_hold(embed, embed->is_drained ? BL_EMBED_HELD_BY_RELOAD : BL_EMBED_HELD_BY_LOSS);
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

/* The lowest rank that is lost and was not repaired, or -1. */
static int lost_rank(const bl_embed *embed) {
    const bool *repaired = bl_recovery_lost(embed->recovery);
    for (int rank = 0; rank < embed->n_ranks; rank++) {
        if (!bl_agent_lives(embed->agent, rank) && !repaired[rank])
            return rank;
    }
    return -1;
}

static void note_loss(bl_embed *embed) {
    const int lost = lost_rank(embed);
    if (lost < 0 || embed->is_off)
        return;
    embed->is_off = true;
    snprintf(embed->reason, sizeof embed->reason, "rank %d was lost", lost);
    bl_embed_hold(embed, BL_EMBED_HELD_BY_LOSS);
}

static bool is_idle(const bl_embed *embed) {
    return !bl_agent_is_busy(embed->agent);
}

/* A rank that closes says nothing to a move that waits for it. */
static void note_leaves(bl_embed *embed) {
    for (int rank = 0; rank < embed->n_ranks && !is_idle(embed); rank++) {
        if (!bl_agent_lives(embed->agent, rank) || !bl_transport_has_closed(embed->transport, rank))
            continue;
        bl_agent_hear(embed->agent, NULL); /* what it said last */
        if (!is_idle(embed))
            bl_agent_note_leave(embed->agent, rank);
    }
}

bl_status bl_embed_take_step(bl_embed *embed, int *layer_p, bl_error *err) {
    bl_error why = BL_ERROR_INIT;
    const uint64_t step = ++embed->step;
    *layer_p = -1;
    if (embed->is_dead)
        return bl_fail(err, BL_ERR_ABORTED, "this rank must not serve on: %s", embed->reason);
    bl_embed_take_over(embed);
    if (embed->control != NULL)
        bl_control_poll(embed->control, embed->agent);
    if (embed->is_off && is_idle(embed)) {
        bl_agent_hear(embed->agent,
                      NULL); /* who else is lost; a bl_repair() that others have begun */
        return BL_OK;
    }
    const bool was_busy = !is_idle(embed);
    note_leaves(embed);
    const bl_status st = bl_agent_at_step(embed->agent, step, &why);
    if (st >= 0)
        note_loss(embed);
    if (was_busy || !is_idle(embed))
        *layer_p = changed_layer(embed);
    return st < 0 ? turn_off(embed, &why, err) : BL_OK;
}

bl_status bl_embed_check_started(const bl_embed *embed, bl_error *err) {
    return embed->is_started ? BL_OK : bl_fail(err, BL_ERR_STATE, "bl_embed_start() comes first");
}

/* An engine that does not ask for the map it was told of goes on by the old one. In the first step one
 * layer is named though its map is the one declared, so that this shows before anything has moved. */
static bl_status check_asked(bl_embed *embed, bl_error *err) {
    const int l = *embed->told;
    *embed->told = -1;
    if (l < 0 || embed->is_dead)
        return BL_OK;
    const int layer = embed->placement.layers[l].layer;
    if (embed->step == 1) {
        snprintf(embed->deaf, sizeof embed->deaf,
                 "layer %d: rank %d was told of its map in the first step and did not ask for it "
                 "(bl_map()): it would serve by an old one after a move",
                 layer, embed->rank);
        bl_agent_refuse(embed->agent, embed->deaf);
        return BL_OK;
    }
    embed->is_dead = true;
    set_reason(embed, "a new map was not asked for");
    return bl_fail_at(err, BL_ERR_ABORTED, bl_at_layer(NULL, layer),
                      "its experts have moved in step %llu and nobody asked for the new map "
                      "(bl_map()): what this rank has served since is wrong",
                      (unsigned long long)embed->step);
}

/* ... and tell: which layer's map the engine has to ask for. */
static int tell(bl_embed *embed, int changed) {
    if (changed < 0 && embed->step == 1)
        changed = embed->placement.layers[0].layer;
    *embed->told = changed < 0 ? -1 : index_of(embed, changed);
    return changed;
}

static bl_status step(bl_embed *embed, bl_step_news *news, bl_error *err) {
    const uint64_t begin = bl_now_ns();
    bl_step_news made = BL_STEP_NEWS_INIT, ignored = BL_STEP_NEWS_INIT;
    const size_t least = offsetof(bl_step_news, lost);
    if (news == NULL)
        news = &ignored;
    BL_TRY(bl_embed_check_started(embed, err));
    BL_TRY(bl_embed_give_struct(news, &made, sizeof made, least, "news", err));
    bl_embed_end_step(embed, begin);
    BL_TRY(check_asked(embed, err));
    const bl_status st = bl_embed_take_step(embed, &made.layer, err);
    made.layer = tell(embed, made.layer);
    const uint64_t took = bl_now_ns() - begin;
    if (took > embed->max_step_ns)
        embed->max_step_ns = took;
    made.busy = !is_idle(embed);
    made.step = embed->step;
    made.lost = lost_rank(embed);
    bl_embed_give_struct(news, &made, sizeof made, least, "news", NULL);
    return st;
}

int bl_step(bl_embed *embed, bl_step_news *news) {
    bl_error err = BL_ERROR_INIT;
    const int entered = bl_embed_enter(embed);
    return entered < 0 ? entered : bl_embed_leave(embed, step(embed, news, &err), &err);
}

/* ---- maps ------------------------------------------------------------------------------------ */

/* Reads only, and from inside a call there is no map to be had: it may be the one that is changing. */
int bl_map(const bl_embed *embed, int layer, bl_trace_map *map) {
    if (embed == NULL || map == NULL)
        return BL_ERR_USAGE;
    if (atomic_load(&embed->in_call))
        return BL_ERR_STATE;
    const int l = index_of(embed, layer);
    if (l < 0)
        return BL_ERR_RANGE;
    if (map->size < sizeof *map || map->size > BL_EMBED_MAX_STRUCT)
        return BL_ERR_VERSION;
    const bl_layer_placement *now =
        embed->store != NULL ? bl_store_map(embed->store, layer) : &embed->placement.layers[l];
    if (*embed->told == l)
        *embed->told = -1;
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
    BL_TRY(bl_embed_check_started(embed, err));
    if (hash == NULL)
        return bl_fail(err, BL_ERR_USAGE, "hash is NULL");
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
    const int entered = bl_embed_enter(embed);
    return entered < 0 ? entered
                       : bl_embed_leave(embed, hash_slot(embed, layer, slot, hash, &err), &err);
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
        if (bl_embed_is_gone(embed, rank))
            continue;
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
            bl_agent_stop(embed->agent, BL_EMBED_HELD_BY_RELOAD,
                          NULL); /* it may have ended meanwhile */
        BL_TRY(bl_embed_take_step(embed, &layer, err));
    }
}

static bl_status drain(bl_embed *embed, int how, bl_error *err) {
    drain_note *notes;
    BL_TRY(bl_embed_check_started(embed, err));
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
    bl_embed_hold(embed, BL_EMBED_HELD_BY_RELOAD);
    *embed->told = -1; /* the engine asks for all maps afterwards */
    BL_TRY(BL_CALLOC(notes, embed->n_ranks, err));
    const bl_status st = settle(embed, how, notes, err);
    free(notes);
    if (st < 0)
        bl_embed_hold(embed, embed->is_off ? BL_EMBED_HELD_BY_LOSS : NULL);
    else
        embed->is_drained = true;
    return st;
}

int bl_drain(bl_embed *embed, int how) {
    bl_error err = BL_ERROR_INIT;
    const int entered = bl_embed_enter(embed);
    return entered < 0 ? entered : bl_embed_leave(embed, drain(embed, how, &err), &err);
}

static bl_status resume(bl_embed *embed, int check_copies, bl_error *err) {
    const bl_error fine = BL_ERROR_INIT;
    BL_TRY(bl_embed_check_started(embed, err));
    if (!embed->is_drained)
        return bl_fail(err, BL_ERR_STATE, "bl_drain() comes first");
    if (!embed->is_off) {
        BL_TRY(bl_embed_agree(embed, &fine, err));
        if (check_copies)
            BL_TRY(bl_embed_compare_copies(embed, err));
    }
    embed->is_drained = false;
    bl_embed_hold(embed, embed->is_off ? BL_EMBED_HELD_BY_LOSS : NULL);
    return BL_OK;
}

int bl_resume(bl_embed *embed, int check_copies) {
    bl_error err = BL_ERROR_INIT;
    const int entered = bl_embed_enter(embed);
    return entered < 0 ? entered : bl_embed_leave(embed, resume(embed, check_copies, &err), &err);
}

/* ---- looking --------------------------------------------------------------------------------- */

int bl_embed_read_status(const bl_embed *embed, bl_embed_status *status) {
    bl_agent_status s = {0};
    if (embed == NULL || status == NULL)
        return BL_ERR_USAGE;
    if (atomic_load(&embed->in_call))
        return BL_ERR_STATE;
    if (status->size < sizeof *status || status->size > BL_EMBED_MAX_STRUCT)
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
