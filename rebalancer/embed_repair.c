/* After a loss: who opens the socket, and how survivors get back what only the lost held. */
#include "rebalancer/embed_parts.h"

#include "core/mem.h"
#include "core/progress.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TRY_AGAIN_S 1.0

bool bl_embed_is_gone(const bl_embed *embed, int rank) {
    return embed->exchange.lost != NULL && embed->exchange.lost[rank];
}

int bl_embed_first(const bl_embed *embed) {
    int rank = 0;
    while (rank + 1 < embed->n_ranks && bl_embed_is_gone(embed, rank))
        rank++;
    return rank;
}

/* ---- the control socket ---------------------------------------------------------------------- */

void bl_embed_hold(bl_embed *embed, const char *why) {
    if (embed->control != NULL)
        bl_control_hold(embed->control, why);
}

/* The socket of a rank that was lost may take a moment to fall silent, or be held by a process that
 * stands still. */
void bl_embed_take_over(bl_embed *embed) {
    if (embed->control != NULL || embed->rank == 0 ||
        bl_agent_leader(embed->agent) != embed->rank || bl_now_s() < embed->next_try_s)
        return;
    embed->next_try_s = bl_now_s() + TRY_AGAIN_S;
    if (bl_embed_open_socket(embed, NULL) < 0 || embed->control == NULL)
        return;
    bl_control_announce(embed->agent, embed->rank, embed->n_ranks);
    if (embed->is_drained || embed->is_off)
        bl_embed_hold(embed, embed->is_drained ? BL_EMBED_HELD_BY_RELOAD : BL_EMBED_HELD_BY_LOSS);
}

/* ---- sources --------------------------------------------------------------------------------- */

static const bl_bundle *bundle_of(const bl_embed *embed, int layer) {
    int l = 0;
    while (embed->bundles[l].layer != layer)
        l++;
    return &embed->bundles[l];
}

/* All tensors of an expert, one behind the other, into `to`; or, when that is NULL, only whether the
 * engine has them. */
static bl_status fetch(const bl_embed *embed, int layer, int expert, unsigned char *to,
                       bl_error *err) {
    const bl_bundle *bundle = bundle_of(embed, layer);
    const bl_where where = bl_at_expert(NULL, layer, expert);
    if (embed->options.fetch == NULL)
        return bl_fail_at(
            err, BL_ERR_INFEASIBLE, where,
            "was on lost ranks alone, and the engine gave no function to fetch it by");
    for (int i = 0; i < bundle->n_tensors; i++) {
        const bl_tensor *t = &bundle->tensors[i];
        const size_t bytes = t->rows * t->row_bytes;
        if (!bl_tensor_is_moved(t))
            continue;
        const int rc = embed->options.fetch(embed->options.user, layer, expert, t->name, to, bytes);
        if (rc != 0)
            return bl_fail_at(
                err, to == NULL ? BL_ERR_INFEASIBLE : BL_ERR_IO, where,
                "was on lost ranks alone, and rank %d's engine cannot fetch its tensor "
                "%s (%d)",
                embed->rank, t->name, rc);
        if (to != NULL)
            to += bytes;
    }
    return BL_OK;
}

static bl_status load_expert(void *user, int layer, int expert, void *bundle, bl_error *err) {
    const bl_embed *embed = user;
    memset(bundle, 0, bl_store_bundle_bytes(embed->store)); /* what is behind a smaller layer's */
    return fetch(embed, layer, expert, bundle, err);
}

/* ---- may the loss be repaired? --------------------------------------------------------------- */

static bl_status check_layer(bl_embed *embed, const bl_layer_placement *now, const bool *lost,
                             bl_error *err) {
    bl_layer_placement goal;
    int n_orphans;
    bool changed;
    BL_TRY(bl_cover(now, lost, &goal, embed->orphans, &n_orphans, &changed, err));
    if (!changed)
        return BL_OK;
    bl_layer_placement_free(&goal);
    for (int i = 0; i < n_orphans; i++) {
        if (embed->orphans[i].rank == embed->rank)
            BL_TRY(fetch(embed, now->layer, embed->orphans[i].expert, NULL, err));
    }
    return BL_OK;
}

/* All survivors look for themselves, tell each other, and are of one mind. */
static bl_status check_loss(void *user, const bool *lost, uint64_t sequence, bl_error *err) {
    bl_embed *embed = user;
    bl_error own = BL_ERROR_INIT;
    const bl_layer_placement *map;
    bl_exchange_restart(&embed->exchange, sequence, lost);
    for (int rank = 0; rank < embed->n_ranks; rank++) {
        if (lost[rank]) /* these end no exchange any more */
            bl_transport_forgive(embed->transport, rank);
    }
    for (int l = 0; own.code >= 0 && (map = bl_agent_map(embed->agent, l)) != NULL; l++)
        check_layer(embed, map, lost, &own);
    BL_TRY(bl_embed_agree_on(embed, &own, err));
    embed->was_allowed = true;
    return BL_OK;
}

bl_status bl_embed_open_recovery(bl_embed *embed, bl_error *err) {
    BL_TRY(BL_CALLOC(embed->orphans, embed->placement.n_experts, err));
    BL_TRY(BL_CALLOC(embed->lost, embed->n_ranks, err));
    BL_TRY(bl_recovery_create(embed->agent, embed->store, embed->transport, load_expert, embed,
                              embed->exchange.deadline_s, &embed->recovery, err));
    bl_recovery_on_check(embed->recovery, check_loss);
    return BL_OK;
}

/* ---- repair ---------------------------------------------------------------------------------- */

static void note_repair(bl_embed *embed, const bl_recovered *r, bl_repaired *out) {
    const bool *lost = bl_recovery_lost(embed->recovery);
    embed->exchange.lost = lost;
    embed->step = r->step;
    embed->step_began_ns = 0; /* what the loss took is no step */
    embed->is_off = false;
    embed->reason[0] = '\0';
    *embed->told = -1; /* the engine asks for all maps */
    for (int l = 0; l < embed->placement.n_layers; l++)
        embed->epochs[l] = bl_agent_map(embed->agent, l)->epoch;
    for (int rank = 0; rank < embed->n_ranks; rank++) {
        if (lost[rank])
            embed->lost[out->n_lost++] = rank;
    }
    out->lost = embed->lost;
    out->n_fetched = r->n_orphans;
    out->n_fetched_here = r->n_loaded;
    out->step = r->step;
    bl_embed_take_over(embed);
    bl_embed_hold(embed, NULL);
    if (embed->control != NULL)
        bl_control_note_loss(embed->control, lost, r->n_orphans);
}

/* Without the others' yes nothing has changed. With it they go on, and a rank that cannot must not. */
static bl_status note_failure(bl_embed *embed, bl_status st, const bl_error *why, bl_error *err) {
    bl_agent_status s;
    bl_agent_get_status(embed->agent, &s);
    if (s.step > embed->step)
        embed->step = s.step;
    if (st == BL_LIMIT)
        return bl_fail(err, BL_ERR_STATE, "a rank has taken its leave: serving is over");
    if (!embed->was_allowed && st != BL_ERR_ABORTED)
        return bl_fail_at(err, st, bl_at_expert(NULL, why->layer, why->expert), "%s", why->text);
    bl_error_format(why, embed->reason, sizeof embed->reason);
    embed->is_dead = embed->is_off = true;
    bl_embed_hold(embed, BL_EMBED_HELD_BY_LOSS);
    return bl_fail(err, BL_ERR_ABORTED, "this rank must not serve on: %s", embed->reason);
}

static bl_status repair(bl_embed *embed, bl_repaired *out, bl_error *err) {
    bl_repaired made = BL_REPAIRED_INIT, ignored = BL_REPAIRED_INIT;
    bl_error why = BL_ERROR_INIT;
    bl_recovered r;
    if (out == NULL)
        out = &ignored;
    BL_TRY(bl_embed_give_struct(out, &made, sizeof made, sizeof made, "repaired", err));
    BL_TRY(bl_embed_check_started(embed, err));
    if (embed->is_dead)
        return bl_fail(err, BL_ERR_ABORTED, "this rank must not serve on: %s", embed->reason);
    if (embed->is_drained)
        return bl_fail(
            err, BL_ERR_STATE,
            "weights are being reloaded: bl_resume() first, which compares nothing after "
            "a loss");
    embed->was_allowed = false;
    const bl_status st =
        bl_recovery_run(embed->recovery, embed->step, embed->exchange.sequence, &r, &why);
    if (st != BL_OK)
        return note_failure(embed, st, &why, err);
    note_repair(embed, &r, &made);
    return bl_embed_give_struct(out, &made, sizeof made, sizeof made, "repaired", err);
}

int bl_repair(bl_embed *embed, bl_repaired *repaired) {
    bl_error err = BL_ERROR_INIT;
    const int entered = bl_embed_enter(embed);
    return entered < 0 ? entered : bl_embed_leave(embed, repair(embed, repaired, &err), &err);
}
