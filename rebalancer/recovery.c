#include "rebalancer/recovery_parts.h"

#include "core/mem.h"

#include <stdlib.h>
#include <string.h>

#define HEADER_BYTES ((size_t)40)
/* More than the transaction ever looks ahead, so that whatever was promised is due. */
#define STEPS_AHEAD 4096
#define EXCHANGES_AHEAD 65536
#define NEWS_S 2.0
#define REST_S 0.0005

static const char MAGIC[4] = {'B', 'L', 'V', '2'};

/* ---- life ------------------------------------------------------------------------------------ */

bl_status bl_recovery_create(bl_agent *agent, bl_store *store, bl_transport *transport,
                             bl_recovery_load_fn *load, void *user, double deadline_s,
                             bl_recovery **out, bl_error *err) {
    bl_recovery *r;
    BL_TRY(BL_CALLOC(r, 1, err));
    r->agent = agent;
    r->store = store;
    r->transport = transport;
    r->load = load;
    r->user = user;
    r->deadline_s = deadline_s;
    r->rank = bl_transport_rank(transport);
    r->n_ranks = bl_transport_n_ranks(transport);
    r->set_bytes = ((size_t)r->n_ranks + 7) / 8;
    r->chosen = r->coming = -1;
    bl_status st = BL_CALLOC(r->lost, r->n_ranks, err);
    if (st >= 0)
        st = BL_CALLOC(r->knows, r->n_ranks, err);
    if (st >= 0)
        st = BL_CALLOC(r->words, r->n_ranks, err);
    for (int rank = 0; st >= 0 && rank < r->n_ranks; rank++)
        st = BL_CALLOC(r->words[rank].lost, r->n_ranks, err);
    if (st >= 0) /* each loss is repaired once */
        st = BL_CALLOC(r->history, ((size_t)r->n_ranks + 1) * r->set_bytes, err);
    if (st >= 0)
        st = BL_CALLOC(r->orphans, bl_agent_map(agent, 0)->n_experts, err);
    if (st < 0) {
        bl_recovery_free(r);
        return st;
    }
    *out = r;
    return BL_OK;
}

void bl_recovery_free(bl_recovery *r) {
    if (r == NULL)
        return;
    for (int rank = 0; r->words != NULL && rank < r->n_ranks; rank++) {
        free(r->words[rank].lost);
        free(r->words[rank].history);
    }
    free(r->words);
    free(r->lost);
    free(r->knows);
    free(r->history);
    free(r->orphans);
    free(r);
}

void bl_recovery_on_check(bl_recovery *r, bl_recovery_check_fn *check) {
    r->check = check;
}

const bool *bl_recovery_lost(const bl_recovery *r) {
    return r->lost;
}

bool bl_recovery_is_due(const bl_recovery *r) {
    for (int rank = 0; rank < r->n_ranks; rank++) {
        if (!bl_agent_lives(r->agent, rank) && !r->lost[rank] && rank != r->coming)
            return true;
    }
    return r->coming >= 0 && bl_transport_is_lost(r->transport, r->coming);
}

/* ---- words ----------------------------------------------------------------------------------- */

bool bl_recovery_is_word(const void *data, size_t bytes) {
    return bytes >= HEADER_BYTES && memcmp(data, MAGIC, sizeof MAGIC) == 0;
}

void bl_recovery_hear(bl_recovery *r, int from, const void *data, size_t bytes) {
    const unsigned char *at = data;
    if (!bl_recovery_is_word(data, bytes) || from < 0 || from >= r->n_ranks)
        return;
    const uint64_t n = bl_word_get(at + 4, 4);
    if (n > (uint64_t)r->n_ranks || bytes != HEADER_BYTES + (size_t)(n + 1) * r->set_bytes)
        return;
    word *w = &r->words[from];
    unsigned char *history = bl_calloc((size_t)n, r->set_bytes);
    if (history == NULL)
        return; /* the sender is waited for until the deadline */
    memcpy(history, at + HEADER_BYTES + r->set_bytes, (size_t)n * r->set_bytes);
    free(w->history);
    w->history = history;
    w->n_history = (int)n;
    w->step = bl_word_get(at + 8, 8);
    w->sequence = bl_word_get(at + 16, 8);
    w->era = bl_word_get(at + 24, 8);
    w->tries = bl_word_get(at + 32, 8);
    bl_word_unpack(at + HEADER_BYTES, r->n_ranks, w->lost);
    w->said = true;
}

/* Tell all living ranks, this one too. A rank that cannot be told is lost, which the agent notices. */
static bl_status speak(bl_recovery *r, uint64_t step, uint64_t sequence, bl_error *err) {
    const size_t bytes = HEADER_BYTES + ((size_t)r->n_history + 1) * r->set_bytes;
    unsigned char *data;
    BL_TRY(BL_CALLOC(data, bytes, err));
    memcpy(data, MAGIC, sizeof MAGIC);
    bl_word_put(data + 4, (uint64_t)r->n_history, 4);
    bl_word_put(data + 8, step, 8);
    bl_word_put(data + 16, sequence, 8);
    bl_word_put(data + 24, r->era, 8);
    bl_word_put(data + 32, r->tries, 8);
    bl_word_pack(r->knows, r->n_ranks, data + HEADER_BYTES);
    memcpy(data + HEADER_BYTES + r->set_bytes, r->history, (size_t)r->n_history * r->set_bytes);
    bl_recovery_hear(r, r->rank, data, bytes);
    for (int to = 0; to < r->n_ranks; to++) {
        if (to != r->rank && !r->knows[to])
            bl_agent_tell(r->agent, to, data, bytes, NULL);
    }
    free(data);
    return BL_OK;
}

/* ---- 1. agree -------------------------------------------------------------------------------- */

/* Whom the agent knows to be lost; true when that is news. */
static bool look_for_losses(bl_recovery *r) {
    bool news = false;
    for (int rank = 0; rank < r->n_ranks; rank++) {
        if (bl_agent_lives(r->agent, rank) || r->knows[rank])
            continue;
        r->knows[rank] = news = true;
    }
    return news;
}

/* The lowest living rank that has not said the same, or -1. */
static int first_dissenter(const bl_recovery *r) {
    for (int rank = 0; rank < r->n_ranks; rank++) {
        const word *w = &r->words[rank];
        if (!r->knows[rank] &&
            (!w->said || w->era != r->era || w->tries != r->tries ||
             memcmp(w->lost, r->knows, sizeof *r->knows * (size_t)r->n_ranks) != 0))
            return rank;
    }
    return -1;
}

/* What others have learnt of a rank that comes back: that it was let in (and was so here, or was about to
 * be), or that it is in everywhere. True when that is news. */
static bool catch_up(bl_recovery *r) {
    bool news = false;
    for (int rank = 0; rank < r->n_ranks; rank++) {
        const word *w = &r->words[rank];
        if (w->said && w->tries > r->tries) {
            r->tries = w->tries;
            news = true;
        }
        if (w->said && w->era > r->era && r->coming >= 0) {
            bl_recovery_confirm(r, true);
            news = true;
        }
    }
    return news;
}

static bl_status agree(bl_recovery *r, uint64_t step, uint64_t sequence, double until_s,
                       bl_error *err) {
    for (bool news = true;;) {
        BL_TRY(bl_agent_hear(r->agent, err));
        BL_TRY(bl_agent_check(r->agent, err));
        news = catch_up(r) || news;
        news = look_for_losses(r) || news;
        if (news)
            BL_TRY(speak(r, step, sequence, err));
        news = false;
        const int missing = first_dissenter(r);
        if (missing < 0)
            return BL_OK;
        if (bl_transport_has_closed(r->transport, missing)) {
            BL_TRY(bl_agent_hear(r->agent, err)); /* what it said last comes before that */
            if (first_dissenter(r) == missing)
                return BL_LIMIT;
        }
        if (bl_transport_now_s(r->transport) > until_s)
            return bl_fail(err, BL_ERR_TIMEOUT,
                           "rank %d did not say within %g s how it goes on after a loss", missing,
                           r->deadline_s);
        BL_TRY(bl_agent_await(r->agent, REST_S, err));
    }
}

/* ---- 2. settle ------------------------------------------------------------------------------- */

static bl_status settle(bl_recovery *r, uint64_t step, double until_s, bl_error *err) {
    for (;;) {
        BL_TRY(bl_agent_at_step(r->agent, step, err));
        if (bl_agent_is_settled(r->agent))
            return BL_OK;
        if (bl_transport_now_s(r->transport) > until_s)
            return bl_fail(
                err, BL_ERR_TIMEOUT,
                "the move that was under way did not end within %g s after a loss; it is %s",
                r->deadline_s, bl_agent_state(r->agent));
        BL_TRY(bl_agent_await(r->agent, REST_S, err));
    }
}

/* ---- 3. cover -------------------------------------------------------------------------------- */

/* A spare for an orphan. Without a pool it is read into the slot that it gets, over a copy that is not
 * the last one: no step runs, and nobody moves experts. */
static bl_status take_spare(bl_recovery *r, int layer, const bl_orphan *orphan, int *spare,
                            bl_error *err) {
    if (bl_agent_spares(r->agent) == 0)
        return bl_store_claim(r->store, layer, orphan->slot, spare, err);
    return bl_store_reserve(r->store, spare, err);
}

/* Load this rank's orphans among orphans[first .. end - 1] and commit a layer with all of these. */
static bl_status commit_some(bl_recovery *r, const bl_layer_placement *next, int first, int end,
                             bl_recovered *out, bl_error *err) {
    bl_arrival arrivals[BL_WAVE_MAX_ARRIVALS];
    int n = 0;
    bl_status st = BL_OK;
    for (int i = first; i < end && st >= 0; i++) {
        if (r->orphans[i].rank != r->rank)
            continue;
        bl_arrival *arrival = &arrivals[n];
        st = take_spare(r, next->layer, &r->orphans[i], &arrival->spare, err);
        if (st < 0)
            break;
        n++;
        arrival->expert = r->orphans[i].expert;
        st = r->load(r->user, next->layer, arrival->expert,
                     bl_store_staging(r->store, arrival->spare), err);
        if (st >= 0)
            st = bl_store_staged(r->store, arrival->spare, err);
    }
    if (st >= 0)
        st = bl_store_commit(r->store, next, arrivals, n, err);
    for (int i = 0; i < n && st < 0; i++)
        bl_store_unreserve(r->store, arrivals[i].spare);
    BL_TRY(st);
    bl_store_retire(r->store, next->layer); /* no step is running */
    out->n_loaded += n;
    return BL_OK;
}

/* As many orphans, in order, as every rank has spares for; without any, as one commit takes. */
static int end_of_batch(const bl_recovery *r, int first, int n_orphans, int *per_rank) {
    const int spares = bl_agent_spares(r->agent);
    const int most = spares > 0 && spares < BL_WAVE_MAX_ARRIVALS ? spares : BL_WAVE_MAX_ARRIVALS;
    memset(per_rank, 0, sizeof *per_rank * (size_t)r->n_ranks);
    int end = first;
    while (end < n_orphans && per_rank[r->orphans[end].rank] < most)
        per_rank[r->orphans[end++].rank]++;
    return end;
}

static bl_status cover_layer(bl_recovery *r, const bl_layer_placement *now, const bool *lost,
                             int *per_rank, bl_recovered *out, bl_error *err) {
    bl_layer_placement goal, next;
    int n_orphans, end = 0;
    bool changed;
    BL_TRY(bl_cover(now, lost, &goal, r->orphans, &n_orphans, &changed, err));
    if (!changed)
        return BL_OK;
    /* Until the last batch the slots of lost ranks go on speaking for the orphans that have no copy
     * yet: a placement covers every expert. */
    bl_status st = bl_layer_placement_copy(now, &next, err);
    for (int first = 0; st >= 0 && (first == 0 || first < n_orphans); first = end) {
        end = end_of_batch(r, first, n_orphans, per_rank);
        for (int i = first; i < end; i++)
            next.expert[r->orphans[i].slot] = r->orphans[i].expert;
        if (end == n_orphans)
            memcpy(next.expert, goal.expert, sizeof *goal.expert * (size_t)bl_layer_n_slots(&goal));
        next.epoch++;
        st = commit_some(r, &next, first, end, out, err);
        if (n_orphans == 0)
            break;
    }
    out->n_orphans += st >= 0 ? n_orphans : 0;
    bl_layer_placement_free(&goal);
    bl_layer_placement_free(&next);
    return st;
}

static bl_status cover(bl_recovery *r, const bool *lost, bl_recovered *out, bl_error *err) {
    const bl_layer_placement *map;
    int *per_rank;
    BL_TRY(BL_CALLOC(per_rank, r->n_ranks, err));
    bl_status st = BL_OK;
    for (int l = 0; st >= 0 && (map = bl_agent_map(r->agent, l)) != NULL; l++) {
        bl_layer_placement now; /* commits replace the store's own */
        st = bl_layer_placement_copy(map, &now, err);
        if (st < 0)
            break;
        st = cover_layer(r, &now, lost, per_rank, out, err);
        bl_layer_placement_free(&now);
    }
    free(per_rank);
    return st;
}

/* Repair what others have repaired and this rank has not, then the loss at hand. */
static bl_status repair(bl_recovery *r, bl_recovered *out, bl_error *err) {
    const word *longest = &r->words[r->rank];
    for (int rank = 0; rank < r->n_ranks; rank++) {
        if (!r->knows[rank] && r->words[rank].n_history > longest->n_history)
            longest = &r->words[rank];
    }
    bool *lost;
    BL_TRY(BL_CALLOC(lost, r->n_ranks, err));
    bl_status st = BL_OK;
    while (st >= 0 && r->n_history < longest->n_history) {
        const unsigned char *set = longest->history + (size_t)r->n_history * r->set_bytes;
        memcpy(r->history + (size_t)r->n_history * r->set_bytes, set, r->set_bytes);
        r->n_history++;
        bl_word_unpack(set, r->n_ranks, lost);
        st = cover(r, lost, out, err);
    }
    free(lost);
    BL_TRY(st);
    unsigned char *last = r->history + (size_t)r->n_history * r->set_bytes;
    bl_word_pack(r->knows, r->n_ranks, last);
    if (r->n_history > 0 && memcmp(last - r->set_bytes, last, r->set_bytes) == 0)
        return BL_OK; /* who came back and was lost at once: it held nothing */
    if (r->n_history == r->n_ranks)
        return bl_fail(err, BL_ERR_INTERNAL, "more losses than ranks");
    bl_word_pack(r->knows, r->n_ranks, r->history + (size_t)r->n_history++ * r->set_bytes);
    return cover(r, r->knows, out, err);
}

/* ---- 4. go on -------------------------------------------------------------------------------- */

static void find_goal(const bl_recovery *r, bl_recovered *out) {
    for (int rank = 0; rank < r->n_ranks; rank++) {
        const word *w = &r->words[rank];
        if (r->knows[rank])
            continue;
        out->step = w->step > out->step ? w->step : out->step;
        out->sequence = w->sequence > out->sequence ? w->sequence : out->sequence;
    }
    out->step += STEPS_AHEAD;
    out->sequence += EXCHANGES_AHEAD;
}

/* A send may fail a moment before the loss of its peer is known. */
static bl_status wait_for_the_news(bl_recovery *r, bl_error *err) {
    const double until_s = bl_transport_now_s(r->transport) + NEWS_S;
    for (;;) {
        BL_TRY(bl_agent_hear(r->agent, err));
        BL_TRY(bl_agent_check(r->agent, err));
        if (bl_recovery_is_due(r))
            return BL_OK;
        for (int rank = 0; rank < r->n_ranks; rank++) {
            if (bl_transport_has_closed(r->transport, rank))
                return BL_LIMIT;
        }
        if (bl_transport_now_s(r->transport) > until_s)
            return bl_fail(err, BL_ERR_PEER, "the step failed, and no rank is known to be lost");
        BL_TRY(bl_agent_await(r->agent, REST_S, err));
    }
}

/* May the losses be? *more: another one came in between. A refusal, which all survivors have got alike,
 * ends the recovery: they come again with new words. */
static bl_status ask(bl_recovery *r, uint64_t sequence, bool *more, bl_error *err) {
    bl_error why = BL_ERROR_INIT;
    const bl_status st = r->check(r->user, r->knows, sequence, &why);
    *more = false;
    if (st == BL_ERR_PEER) {
        BL_TRY(bl_agent_hear(r->agent, err));
        *more = look_for_losses(r);
    }
    if (st >= 0 || *more)
        return BL_OK;
    for (int rank = 0; rank < r->n_ranks; rank++)
        r->words[rank].said = false;
    if (err != NULL && err->code >= 0)
        *err = why;
    return st;
}

static bl_status recover(bl_recovery *r, uint64_t step, uint64_t sequence, bl_recovered *out,
                         bl_error *err) {
    const double until_s = bl_transport_now_s(r->transport) + r->deadline_s;
    bl_recovered made = {0};
    r->chosen = -1;
    const bl_status news = wait_for_the_news(r, err);
    if (news != BL_OK)
        return news;
    for (;;) {
        const bl_status st = agree(r, step, sequence, until_s, err);
        if (st != BL_OK)
            return st;
        made.step = made.sequence = 0;
        find_goal(r, &made);
        BL_TRY(settle(r, made.step, until_s, err));
        step = made.step;
        bool more = look_for_losses(r);
        if (!more && r->check != NULL) {
            bl_agent_regroup(r->agent); /* whoever dies now dies out of the survivors */
            BL_TRY(ask(r, made.sequence, &more, err));
        }
        if (!more)
            break;
        sequence = made.sequence;
        BL_TRY(speak(r, step, sequence, err)); /* another one, meanwhile */
    }
    if (r->coming == r->rank)
        return bl_fail(err, BL_ERR_ABORTED,
                       "the others were lost just as rank %d came back; it has nothing to go on "
                       "with",
                       r->rank);
    bl_recovery_give_up_joiner(r);
    bl_agent_regroup(r->agent);
    BL_TRY(repair(r, &made, err));
    for (int rank = 0; rank < r->n_ranks; rank++) {
        if (!r->knows[rank])
            continue;
        made.n_lost += !r->lost[rank];
        r->lost[rank] = true;
        bl_transport_forgive(r->transport, rank);
    }
    *out = made;
    return BL_OK;
}

bl_status bl_recovery_run(bl_recovery *r, uint64_t step, uint64_t sequence, bl_recovered *out,
                          bl_error *err) {
    bl_agent_set_recovering(r->agent, true);
    const bl_status st = recover(r, step, sequence, out, err);
    bl_agent_set_recovering(r->agent, false);
    return st;
}
