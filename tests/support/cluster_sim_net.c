#include "tests/support/cluster_sim_parts.h"

uint64_t bl_sim_delay(sim *s) {
    const uint64_t usual = 10000 + below(s, s->slow_ns);
    return below(s, 50) == 0 ? usual + below(s, 20 * MS) : usual;
}

/* ---- messages -------------------------------------------------------------------------------- */

static bool is_under_way(const sim *s) {
    return s->now >= s->fault_at && s->now < s->fault_until;
}

bool bl_sim_is_cut(const sim *s, int from, int to) {
    const unsigned sends = s->side >> from & 1, hears = s->side >> to & 1;
    return s->fault == BL_SIM_CUT && is_under_way(s) && sends != hears &&
           (!s->one_way || sends == 1);
}

bool bl_sim_is_short(const sim *s) {
    return s->fault_until - s->fault_at < SILENCE;
}

/* What a link that heals in time carries later; what one that does not carries never. */
static bool is_swallowed(const sim *s, int from, int to, uint64_t *at) {
    if (!bl_sim_is_cut(s, from, to))
        return false;
    *at += s->fault_until - s->now;
    return !bl_sim_is_short(s);
}

void bl_sim_send(sim *s, int from, int to, const bl_tx_message *message) {
    uint64_t at = s->now + (from == to ? 1000 : bl_sim_delay(s));
    if (s->fault == BL_SIM_LATE && from == s->victim && from != to && below(s, 8) == 0)
        at += below(s, 800 * MS);
    s->report->messages++;
    s->report->late += message->type == BL_TX_LATE;
    if (is_swallowed(s, from, to, &at))
        return;
    if (at <= s->last_delivery[from][to])
        at = s->last_delivery[from][to] + 1;
    s->last_delivery[from][to] = at;
    event e = {.at = at, .kind = DELIVER, .rank = to, .other = from, .message = *message};
    bl_sim_push(&s->queue, e);
    if (below(s, 12) == 0) { /* the same message again, late: it must change nothing */
        e.at += below(s, 4) == 0 ? below(s, 200 * MS) : below(s, 5 * MS);
        bl_sim_push(&s->queue, e);
    }
}

void bl_sim_send_bundle(sim *s, event e) {
    e.at = s->now + bl_sim_delay(s) + bl_sim_delay(s);
    if (!is_swallowed(s, e.other, e.rank, &e.at))
        bl_sim_push(&s->queue, e);
}

void bl_sim_show_step(sim *s, int rank) {
    const sim_rank *r = &s->ranks[rank];
    for (int to = 0; to < s->n_ranks; to++) {
        if (!r->tx.lost[to] && !bl_sim_is_cut(s, rank, to))
            s->ranks[to].seen[rank] = r->begun;
    }
}

/* ---- losses ---------------------------------------------------------------------------------- */

static void push_notice(sim *s, uint64_t at, int rank, int lost) {
    bl_sim_push(&s->queue, (event){.at = at, .kind = NOTICE, .rank = rank, .other = lost});
}

/* What is on its way from a dead rank arrives in order up to some moment, and then no more. */
void bl_sim_die(sim *s, int rank) {
    if (s->ranks[rank].dead)
        return;
    s->ranks[rank].dead = true;
    for (int to = 0; to < s->n_ranks; to++) {
        const uint64_t cut = s->now + below(s, 2 * s->slow_ns);
        for (size_t i = 0; i < s->queue.n; i++) {
            event *e = &s->queue.items[i];
            if ((e->kind == DELIVER || e->kind == BUNDLE) && e->other == rank && e->rank == to &&
                e->at > cut)
                e->kind = NOTICE, e->other = to; /* of oneself: nothing happens */
        }
        push_notice(s, s->now + MS + below(s, 10 * MS), to, rank);
    }
}

/* A rank that has lost another breaks its link, which the other sees once anything reaches it. */
void bl_sim_break(sim *s, int rank, int lost) {
    if (bl_sim_is_live(s, lost) && !bl_sim_is_cut(s, rank, lost))
        push_notice(s, s->now + bl_sim_delay(s), lost, rank);
}

void bl_sim_begin_fault(sim *s) {
    if (bl_sim_is_short(s))
        return;
    for (int rank = 0; rank < s->n_ranks; rank++) {
        for (int from = 0; from < s->n_ranks; from++) {
            const bool silent = s->fault == BL_SIM_STALL ? from == s->victim && rank != from
                                                         : bl_sim_is_cut(s, from, rank);
            if (silent)
                push_notice(s, s->now + SILENCE + below(s, 5 * MS), rank, from);
        }
    }
}

void bl_sim_end_fault(sim *s) {
    for (int rank = 0; rank < s->n_ranks; rank++)
        bl_sim_show_step(s, rank);
}

bool bl_sim_put_off(sim *s, const event *e) {
    if (s->fault != BL_SIM_STALL || e->rank != s->victim || !is_under_way(s) || e->kind >= DIE)
        return false;
    event again = *e;
    again.at = s->fault_until;
    bl_sim_push(&s->queue, again);
    return true;
}
