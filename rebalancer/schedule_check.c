#include "rebalancer/schedule.h"

#include "core/mem.h"

#include <stdlib.h>

int bl_wave_arrivals(const bl_wave *wave, int rank) {
    int n = 0;
    for (int m = 0; m < wave->n_moves; m++)
        n += wave->moves[m].destination == rank;
    return n;
}

int bl_wave_rounds(const bl_wave *wave) {
    return wave->n_moves > 0 ? wave->moves[wave->n_moves - 1].round + 1 : 0;
}

/* ---- sides ----------------------------------------------------------------------------------- */

bl_status bl_wave_side_of(const bl_wave *wave, int rank, bl_wave_side *out, bl_error *err) {
    bl_wave_side side = {0};
    BL_TRY(BL_CALLOC(side.sends, wave->n_moves, err));
    if (BL_CALLOC(side.receives, wave->n_moves, err) < 0) {
        bl_wave_side_free(&side);
        return BL_ERR_NOMEM;
    }
    for (int m = 0; m < wave->n_moves; m++) {
        if (wave->moves[m].source == rank)
            side.sends[side.n_sends++] = m;
        if (wave->moves[m].destination == rank)
            side.receives[side.n_receives++] = m;
    }
    *out = side;
    return BL_OK;
}

void bl_wave_side_free(bl_wave_side *side) {
    free(side->sends);
    free(side->receives);
    *side = (bl_wave_side){0};
}

static bl_status mark(const bl_wave *wave, const int *list, int n, int rank, bool sends,
                      unsigned char *seen, bl_error *err) {
    const unsigned char bit = sends ? 1 : 2;
    for (int i = 0; i < n; i++) {
        const bl_where where = bl_at_layer(NULL, wave->after.layer);
        if (list[i] < 0 || list[i] >= wave->n_moves)
            return bl_fail_at(err, BL_ERR_STATE, where, "rank %d lists move %d of %d", rank,
                              list[i], wave->n_moves);
        const bl_move *move = &wave->moves[list[i]];
        if ((sends ? move->source : move->destination) != rank || (seen[list[i]] & bit))
            return bl_fail_at(err, BL_ERR_STATE, where,
                              "rank %d %s expert %d, which is not its move", rank,
                              sends ? "sends" : "receives", move->expert);
        seen[list[i]] |= bit;
        for (int before = 0; before < i; before++) {
            if (wave->moves[list[before]].round == move->round)
                return bl_fail_at(err, BL_ERR_STATE, where, "rank %d has two %s in round %d", rank,
                                  sends ? "sends" : "receives", move->round);
        }
    }
    return BL_OK;
}

bl_status bl_wave_sides_check(const bl_wave *wave, const bl_wave_side *sides, int n_ranks,
                              bl_error *err) {
    unsigned char *seen; /* per move: bit 0 sent, bit 1 received */
    BL_TRY(BL_CALLOC(seen, wave->n_moves, err));
    bl_status st = BL_OK;
    for (int rank = 0; rank < n_ranks && st >= 0; rank++) {
        st = mark(wave, sides[rank].sends, sides[rank].n_sends, rank, true, seen, err);
        if (st >= 0)
            st = mark(wave, sides[rank].receives, sides[rank].n_receives, rank, false, seen, err);
    }
    for (int m = 0; m < wave->n_moves && st >= 0; m++) {
        const bl_move *move = &wave->moves[m];
        if (seen[m] != 3)
            st = bl_fail_at(
                err, BL_ERR_STATE, bl_at_expert(NULL, wave->after.layer, move->expert),
                "rank %d does not %s what rank %d %s",
                seen[m] & 1 ? move->destination : move->source, seen[m] & 1 ? "receive" : "send",
                seen[m] & 1 ? move->source : move->destination, seen[m] & 1 ? "sends" : "receives");
    }
    free(seen);
    return st;
}

static bl_status check_sides(const bl_wave *wave, int n_ranks, bl_error *err) {
    bl_wave_side *sides;
    BL_TRY(BL_CALLOC(sides, n_ranks, err));
    bl_status st = BL_OK;
    for (int rank = 0; rank < n_ranks && st >= 0; rank++)
        st = bl_wave_side_of(wave, rank, &sides[rank], err);
    if (st >= 0)
        st = bl_wave_sides_check(wave, sides, n_ranks, err);
    for (int rank = 0; rank < n_ranks; rank++)
        bl_wave_side_free(&sides[rank]);
    free(sides);
    return st;
}

/* ---- dry run --------------------------------------------------------------------------------- */

static bl_status broken(const bl_schedule *schedule, int wave, int expert, const char *what,
                        bl_error *err) {
    const bl_where where = {NULL, -1, -1, schedule->waves[wave].after.layer, expert};
    return bl_fail_at(err, BL_ERR_INTERNAL, where, "wave %d: %s", wave, what);
}

/* Every copy of `after` stayed or arrived, and every arrival is in `after`. */
static bl_status check_copies(const bl_schedule *schedule, int w, const bl_layer_placement *before,
                              bl_error *err) {
    const bl_wave *wave = &schedule->waves[w];
    for (int rank = 0; rank < schedule->n_ranks; rank++) {
        int arrived = 0;
        for (int slot = wave->after.begin[rank]; slot < wave->after.begin[rank + 1]; slot++) {
            const int expert = wave->after.expert[slot];
            if (expert == BL_NO_EXPERT || bl_layer_find(before, rank, expert) >= 0)
                continue;
            arrived++;
            int m = 0;
            while (m < wave->n_moves &&
                   (wave->moves[m].destination != rank || wave->moves[m].expert != expert))
                m++;
            if (m == wave->n_moves)
                return broken(schedule, w, expert, "appears without a move", err);
        }
        if (arrived != bl_wave_arrivals(wave, rank))
            return broken(schedule, w, -1, "a move arrives where it has no slot", err);
    }
    return BL_OK;
}

static bl_status check_wave(const bl_schedule *schedule, int w, const bl_layer_placement *before,
                            const int *spares, bl_error *err) {
    const bl_wave *wave = &schedule->waves[w];
    if (wave->after.epoch != before->epoch + 1)
        return broken(schedule, w, -1, "its epoch does not follow", err);
    for (int m = 0; m < wave->n_moves; m++) {
        const bl_move *move = &wave->moves[m];
        if (move->source < 0 || move->source >= schedule->n_ranks || move->destination < 0 ||
            move->destination >= schedule->n_ranks)
            return broken(schedule, w, move->expert, "moves from or to no rank", err);
        if (bl_layer_find(before, move->source, move->expert) < 0)
            return broken(schedule, w, move->expert, "is sent by a rank that does not hold it",
                          err);
    }
    for (int rank = 0; rank < schedule->n_ranks; rank++) {
        const int arrivals = bl_wave_arrivals(wave, rank);
        if (arrivals > spares[rank] || arrivals > BL_WAVE_MAX_ARRIVALS)
            return broken(schedule, w, -1, "more arrivals on a rank than it has spares", err);
    }
    BL_TRY(bl_layer_placement_check(&wave->after, NULL, err));
    BL_TRY(check_copies(schedule, w, before, err));
    return check_sides(wave, schedule->n_ranks, err);
}

bl_status bl_schedule_check(const bl_schedule *schedule, const bl_placement *current,
                            const int *spares, bl_error *err) {
    for (int w = 0; w < schedule->n_waves; w++) {
        const int layer = schedule->waves[w].after.layer;
        const bool first = w == 0 || schedule->waves[w - 1].after.layer != layer;
        const bl_layer_placement *before =
            first ? bl_placement_layer(current, layer) : &schedule->waves[w - 1].after;
        if (before == NULL)
            return broken(schedule, w, -1, "moves a layer that nobody serves", err);
        BL_TRY(check_wave(schedule, w, before, spares, err));
    }
    return BL_OK;
}
