/* Ranks that come back. */
#include "core/mem.h"
#include "rebalancer/messages.h"
#include "rebalancer/recovery_parts.h"

#include <stdlib.h>

#define WELCOME_BYTES ((size_t)64)

static const char MAGIC[4] = {'B', 'L', 'W', '1'};

/* What a rank tells in its note: of which rank it speaks follows from the step. */
typedef struct note {
    uint64_t incarnation; /* that knocks here and may come in; 0: none */
    uint64_t view, term;
} note;

_Static_assert(sizeof(note) <= BL_RECOVERY_NOTE_BYTES, "a note has no room");

/* ---- the welcome ----------------------------------------------------------------------------- */

static bl_status maps_of(const bl_recovery *r, bl_placement *out, bl_error *err) {
    bl_placement maps = {.n_ranks = r->n_ranks};
    const bl_layer_placement *map;
    int n_layers = 0;
    while (bl_agent_map(r->agent, n_layers) != NULL)
        n_layers++;
    BL_TRY(BL_CALLOC(maps.layers, n_layers, err));
    while ((map = bl_agent_map(r->agent, maps.n_layers)) != NULL)
        maps.layers[maps.n_layers++] = *map; /* the store's */
    maps.n_experts = maps.layers[0].n_experts;
    *out = maps;
    return BL_OK;
}

static bl_status encode(const bl_recovery *r, int rank, uint64_t step, uint64_t sequence,
                        unsigned char **data_p, size_t *bytes_p, bl_error *err) {
    bl_placement maps;
    unsigned char *goal, *data;
    size_t goal_bytes;
    BL_TRY(maps_of(r, &maps, err));
    bl_status st = bl_wire_encode_goal(&maps, &goal, &goal_bytes, err);
    const size_t epochs = 8 * (size_t)maps.n_layers;
    const size_t bytes = WELCOME_BYTES + epochs + goal_bytes + r->set_bytes;
    if (st >= 0) {
        st = BL_CALLOC(data, bytes, err);
        if (st < 0)
            free(goal);
    }
    if (st < 0) {
        free(maps.layers);
        return st;
    }
    const uint64_t words[] = {step, sequence, r->new_view, r->new_term, r->era, r->tries};
    memcpy(data, MAGIC, sizeof MAGIC);
    bl_word_put(data + 4, (uint64_t)rank, 4);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        bl_word_put(data + 8 + 8 * i, words[i], 8);
    bl_word_put(data + 56, (uint64_t)maps.n_layers, 4);
    bl_word_put(data + 60, goal_bytes, 4);
    for (int l = 0; l < maps.n_layers; l++)
        bl_word_put(data + WELCOME_BYTES + 8 * (size_t)l, maps.layers[l].epoch, 8);
    memcpy(data + WELCOME_BYTES + epochs, goal, goal_bytes);
    bl_word_pack(r->lost, r->n_ranks, data + WELCOME_BYTES + epochs + goal_bytes);
    free(goal);
    free(maps.layers);
    *data_p = data;
    *bytes_p = bytes;
    return BL_OK;
}

static bl_status fail_damaged(bl_error *err) {
    return bl_fail(err, BL_ERR_PARSE, "the others' welcome is damaged or of another version");
}

bl_status bl_welcome_decode(const void *data, size_t bytes, int rank, int n_ranks, bl_welcome *out,
                            bl_error *err) {
    const unsigned char *at = data;
    const size_t set_bytes = ((size_t)n_ranks + 7) / 8;
    if (bytes < WELCOME_BYTES || memcmp(at, MAGIC, sizeof MAGIC) != 0 ||
        bl_word_get(at + 4, 4) != (uint64_t)rank)
        return fail_damaged(err);
    const uint64_t n_layers = bl_word_get(at + 56, 4), goal_bytes = bl_word_get(at + 60, 4);
    const uint64_t epochs = 8 * n_layers;
    if (bytes != WELCOME_BYTES + epochs + goal_bytes + set_bytes)
        return fail_damaged(err);
    bl_welcome made = {.step = bl_word_get(at + 8, 8),
                       .sequence = bl_word_get(at + 16, 8),
                       .view = bl_word_get(at + 24, 8),
                       .term = bl_word_get(at + 32, 8),
                       .era = bl_word_get(at + 40, 8),
                       .tries = bl_word_get(at + 48, 8)};
    BL_TRY(
        bl_wire_decode_goal(at + WELCOME_BYTES + epochs, (size_t)goal_bytes, &made.placement, err));
    bl_status st = BL_CALLOC(made.lost, n_ranks, err);
    if (st >= 0 && (made.placement.n_ranks != n_ranks ||
                    (uint64_t)made.placement.n_layers != n_layers || n_layers == 0))
        st = fail_damaged(err);
    for (int l = 0; st >= 0 && l < made.placement.n_layers; l++) {
        bl_layer_placement *map = &made.placement.layers[l];
        map->epoch = bl_word_get(at + WELCOME_BYTES + 8 * (size_t)l, 8);
        for (int slot = map->begin[rank]; slot < map->begin[rank + 1] && st >= 0; slot++)
            st = map->expert[slot] == BL_NO_EXPERT ? BL_OK : fail_damaged(err);
    }
    if (st < 0) {
        bl_welcome_free(&made);
        return st;
    }
    bl_word_unpack(at + WELCOME_BYTES + epochs + goal_bytes, n_ranks, made.lost);
    *out = made;
    return BL_OK;
}

void bl_welcome_free(bl_welcome *welcome) {
    free(welcome->lost);
    bl_placement_free(&welcome->placement);
    *welcome = (bl_welcome){0};
}

/* Whom this rank can still hear; -1: nobody. */
static int anybody(bl_transport *transport) {
    for (int rank = 0; rank < bl_transport_n_ranks(transport); rank++) {
        if (rank != bl_transport_rank(transport) && !bl_transport_is_lost(transport, rank) &&
            !bl_transport_has_closed(transport, rank))
            return rank;
    }
    return -1;
}

bl_status bl_welcome_await(bl_transport *transport, double deadline_s, bl_welcome *out,
                           bl_error *err) {
    const int rank = bl_transport_rank(transport), n_ranks = bl_transport_n_ranks(transport);
    const double until_s = bl_transport_now_s(transport) + deadline_s;
    for (;;) {
        bl_message message = {0};
        bool got;
        BL_TRY(bl_transport_await(transport, BL_CHANNEL_CONTROL, 0.05, &message, &got, err));
        const bool is_welcome =
            got && message.bytes >= sizeof MAGIC && memcmp(message.data, MAGIC, sizeof MAGIC) == 0;
        if (is_welcome) {
            const bl_status st =
                bl_welcome_decode(message.data, message.bytes, rank, n_ranks, out, err);
            bl_message_free(&message);
            return st;
        }
        bl_message_free(&message); /* of those who do not know yet that it only waits */
        const int lost = bl_transport_lost(transport);
        if (lost >= 0 || anybody(transport) < 0)
            return bl_fail(err, BL_ERR_PEER,
                           lost >= 0
                               ? "rank %d was lost, or took this one for lost, before rank %d "
                                 "was let in"
                               : "%.0drank %d was not let in: the others have ended",
                           lost >= 0 ? lost : 0, rank);
        if (bl_transport_now_s(transport) > until_s)
            return bl_fail(err, BL_ERR_TIMEOUT, "rank %d was not let in within %g s", rank,
                           deadline_s);
    }
}

/* ---- steps ----------------------------------------------------------------------------------- */

/* About whom all ranks speak in this step. */
static int candidate(const bl_recovery *r, uint64_t step) {
    return (int)(step % (uint64_t)r->n_ranks);
}

static bl_status let_in(bl_recovery *r, uint64_t step, uint64_t sequence, bl_error *err) {
    const int rank = r->chosen;
    unsigned char *data;
    size_t bytes;
    r->chosen = -1;
    r->coming = rank;
    r->tries++;
    r->lost[rank] = false;
    bl_transport_let_in(r->transport, rank);
    bl_agent_expect(r->agent, rank);
    if (bl_agent_leader(r->agent) != r->rank)
        return BL_OK;
    BL_TRY(encode(r, rank, step, sequence, &data, &bytes, err));
    bl_agent_tell(r->agent, rank, data, bytes, NULL); /* if it is gone, that is noticed */
    free(data);
    return BL_OK;
}

bl_status bl_recovery_begin_step(bl_recovery *r, uint64_t step, uint64_t sequence,
                                 unsigned char bytes[BL_RECOVERY_NOTE_BYTES], int *rank_p,
                                 bl_error *err) {
    note mine = {0};
    *rank_p = r->chosen;
    if (r->chosen >= 0)
        BL_TRY(let_in(r, step, sequence, err));
    const int rank = candidate(r, step);
    if (r->coming < 0 && r->lost[rank] && !bl_agent_is_busy(r->agent))
        mine.incarnation = bl_transport_knocking(r->transport, rank);
    bl_agent_view(r->agent, &mine.view, &mine.term);
    memset(bytes, 0, BL_RECOVERY_NOTE_BYTES);
    memcpy(bytes, &mine, sizeof mine);
    return BL_OK;
}

void bl_recovery_at_step(bl_recovery *r, uint64_t step, const void *notes, size_t stride) {
    const int rank = candidate(r, step);
    uint64_t incarnation = 0, view = 0, term = 0;
    if (r->coming >= 0) {
        bl_recovery_confirm(r, false);
        return;
    }
    if (!r->lost[rank])
        return;
    for (int g = 0; g < r->n_ranks; g++) {
        note said;
        memcpy(&said, (const unsigned char *)notes + stride * (size_t)g, sizeof said);
        if (r->lost[g])
            continue;
        if (said.incarnation == 0 || (incarnation != 0 && said.incarnation != incarnation))
            return;
        incarnation = said.incarnation;
        view = said.view > view ? said.view : view;
        term = said.term > term ? said.term : term;
    }
    r->chosen = rank;
    r->new_view = view + 1;
    r->new_term = term;
}

bool bl_recovery_is_joining(const bl_recovery *r) {
    return r->chosen >= 0 || r->coming >= 0;
}

void bl_recovery_confirm(bl_recovery *r, bool late) {
    const int rank = r->coming;
    r->coming = -1;
    r->era++;
    r->n_history = 0;
    r->knows[rank] = false;
    if (rank != r->rank)
        bl_agent_readmit(r->agent, r->new_view, r->new_term, late);
}

void bl_recovery_give_up_joiner(bl_recovery *r) {
    if (r->coming < 0)
        return;
    bl_transport_give_up(r->transport, r->coming);
    bl_agent_expect(r->agent, -1);
    r->coming = -1;
}

void bl_recovery_join(bl_recovery *r, const bl_welcome *welcome) {
    memcpy(r->lost, welcome->lost, sizeof *r->lost * (size_t)r->n_ranks);
    memcpy(r->knows, welcome->lost, sizeof *r->knows * (size_t)r->n_ranks);
    r->era = welcome->era;
    r->tries = welcome->tries;
    r->coming = r->rank;
    for (int rank = 0; rank < r->n_ranks; rank++) {
        if (r->lost[rank]) /* perhaps while this one waited: it is known */
            bl_transport_forgive(r->transport, rank);
        else if (bl_transport_knocking(r->transport, rank) !=
                 0) /* as this one did, and was first */
            bl_transport_let_in(r->transport, rank);
    }
    bl_agent_join(r->agent, welcome->view, welcome->term, welcome->lost);
}
