#include "rebalancer/schedule.h"

#include "core/mem.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* One layer on its way. `now` is the placement after the waves made so far and, while a wave is
 * being made, after its exchanges so far; a slot with now != goal is pending: what it holds must
 * leave, what `goal` holds there must arrive. Which arrival takes which slot of its rank is free.
 */
typedef struct layer_way {
    const int *spares;
    bl_layer_placement goal, before, now;
    int *copies;      /* [n_experts] copies in `now` */
    int *room;        /* [n_ranks] arrivals that still fit into the wave */
    int *color;       /* [n_ranks] scratch of the cycle search */
    int *path_rank;   /* [n_ranks] ranks on the walk ... */
    int *path_expert; /* [n_ranks] ... and what each hands to the next */
    bl_move *moves;   /* of the wave being made */
    size_t n_moves, moves_capacity;
} layer_way;

void bl_schedule_free(bl_schedule *schedule) {
    for (int w = 0; schedule->waves != NULL && w < schedule->n_waves; w++) {
        free(schedule->waves[w].moves);
        bl_layer_placement_free(&schedule->waves[w].after);
    }
    free(schedule->waves);
    *schedule = (bl_schedule){0};
}

/* ---- shapes and alignment -------------------------------------------------------------------- */

static bl_status check_shapes(const bl_layer_placement *current, const bl_layer_placement *goal,
                              bl_error *err) {
    const bl_where where = bl_at_layer(NULL, goal->layer);
    if (goal->n_ranks != current->n_ranks)
        return bl_fail_at(err, BL_ERR_SHAPE, where, "the plan is for %d ranks, %d are running",
                          goal->n_ranks, current->n_ranks);
    if (goal->n_experts != current->n_experts)
        return bl_fail_at(err, BL_ERR_SHAPE, where, "the plan has %d experts, the model %d",
                          goal->n_experts, current->n_experts);
    for (int rank = 0; rank < goal->n_ranks; rank++) {
        const int has = current->begin[rank + 1] - current->begin[rank];
        const int wants = goal->begin[rank + 1] - goal->begin[rank];
        if (has != wants)
            return bl_fail_at(err, BL_ERR_SHAPE, where,
                              "rank %d has %d slots, the plan fills %d; plan with the slots that "
                              "the ranks were started with",
                              rank, has, wants);
    }
    return BL_OK;
}

bl_status bl_layer_align(const bl_layer_placement *current, const bl_layer_placement *goal,
                         bl_layer_placement *out, bl_error *err) {
    BL_TRY(check_shapes(current, goal, err));
    bl_layer_placement aligned;
    BL_TRY(bl_layer_placement_copy(goal, &aligned, err));
    for (int rank = 0; rank < goal->n_ranks; rank++) {
        int newcomer = goal->begin[rank]; /* next slot of `goal` to look for one that is new here */
        for (int slot = goal->begin[rank]; slot < goal->begin[rank + 1]; slot++) {
            const int held = current->expert[slot];
            const bool stays = held != BL_NO_EXPERT && bl_layer_find(goal, rank, held) >= 0;
            aligned.expert[slot] = stays ? held : BL_NO_EXPERT;
        }
        for (int slot = goal->begin[rank]; slot < goal->begin[rank + 1]; slot++) {
            if (aligned.expert[slot] != BL_NO_EXPERT)
                continue;
            while (newcomer < goal->begin[rank + 1] &&
                   (goal->expert[newcomer] == BL_NO_EXPERT ||
                    bl_layer_find(current, rank, goal->expert[newcomer]) >= 0))
                newcomer++;
            if (newcomer < goal->begin[rank + 1])
                aligned.expert[slot] = goal->expert[newcomer++];
        }
    }
    *out = aligned;
    return BL_OK;
}

/* ---- exchanges inside a wave ----------------------------------------------------------------- */

static bool is_pending(const layer_way *way, int slot) {
    return way->now.expert[slot] != way->goal.expert[slot];
}

/* The pending slot of `rank` at which `goal` holds `expert`, or -1. */
static int arrival_slot(const layer_way *way, int rank, int expert) {
    const int slot = bl_layer_find(&way->goal, rank, expert);
    return slot >= 0 && is_pending(way, slot) ? slot : -1;
}

static bool has_arrivals(const layer_way *way, int rank) {
    for (int slot = way->goal.begin[rank]; slot < way->goal.begin[rank + 1]; slot++) {
        if (is_pending(way, slot) && way->goal.expert[slot] != BL_NO_EXPERT)
            return true;
    }
    return false;
}

/* `expert` arrives on `rank` and takes the pending slot `slot`. */
static bl_status exchange(layer_way *way, int rank, int expert, int slot, bl_error *err) {
    void *moves = way->moves;
    const bl_status st =
        bl_grow(&moves, &way->moves_capacity, way->n_moves + 1, sizeof *way->moves, err);
    way->moves = moves;
    BL_TRY(st);
    way->moves[way->n_moves++] = (bl_move){.expert = expert, .source = -1, .destination = rank};
    way->goal.expert[arrival_slot(way, rank, expert)] = way->goal.expert[slot];
    way->goal.expert[slot] = expert;
    if (way->now.expert[slot] != BL_NO_EXPERT)
        way->copies[way->now.expert[slot]]--;
    way->now.expert[slot] = expert;
    way->copies[expert]++;
    way->room[rank]--;
    return BL_OK;
}

/* A pending slot of `rank` that may be given away now: an empty one, else one whose expert has
 * another copy. -1 when there is none. */
static int free_slot(const layer_way *way, int rank) {
    int found = -1;
    for (int slot = way->now.begin[rank]; slot < way->now.begin[rank + 1]; slot++) {
        if (!is_pending(way, slot))
            continue;
        if (way->now.expert[slot] == BL_NO_EXPERT)
            return slot;
        if (found < 0 && way->copies[way->now.expert[slot]] > 1)
            found = slot;
    }
    return found;
}

/* The arrival of `rank` to serve first: one whose only copy waits to leave another rank, since its
 * arrival frees a slot there; else any. */
static int next_arrival(const layer_way *way, int rank) {
    int found = -1;
    for (int slot = way->goal.begin[rank]; slot < way->goal.begin[rank + 1]; slot++) {
        const int expert = way->goal.expert[slot];
        if (!is_pending(way, slot) || expert == BL_NO_EXPERT)
            continue;
        if (way->copies[expert] == 1)
            return expert;
        if (found < 0)
            found = expert;
    }
    return found;
}

/* Exchange wherever a slot can be given away, until nothing more fits. */
static bl_status exchange_freely(layer_way *way, bl_error *err) {
    for (bool again = true; again;) {
        again = false;
        for (int rank = 0; rank < way->now.n_ranks; rank++) {
            const int expert = way->room[rank] > 0 ? next_arrival(way, rank) : -1;
            const int slot = expert >= 0 ? free_slot(way, rank) : -1;
            if (slot < 0)
                continue;
            BL_TRY(exchange(way, rank, expert, slot, err));
            again = true;
        }
    }
    return BL_OK;
}

/* ---- cycles of last copies ------------------------------------------------------------------- */

/* Colour of a rank in the walk: not met yet, given up, or its position on the path (from 0). */
enum { DEAD_END = -2, UNSEEN = -1 };

/* Where the walk goes on from `rank`: a rank with room where an expert that must leave `rank` can
 * arrive; *expert_p is that expert. Ranks not met yet come first, then the earliest one on the
 * path, so that cycles, and with them waves, get long. -1 when there is none. */
static int next_on_walk(const layer_way *way, int rank, int *expert_p) {
    int found = -1;
    for (int slot = way->now.begin[rank]; slot < way->now.begin[rank + 1]; slot++) {
        const int expert = way->now.expert[slot];
        if (!is_pending(way, slot) || expert == BL_NO_EXPERT)
            continue;
        for (int to = 0; to < way->now.n_ranks; to++) {
            if (way->color[to] == DEAD_END || arrival_slot(way, to, expert) < 0)
                continue;
            if (found >= 0 && way->color[to] >= way->color[found])
                continue;
            found = to;
            *expert_p = expert;
        }
    }
    return found;
}

/* Ranks path_rank[first .. n - 1] hand one expert on each, the last one to the first. */
static bl_status exchange_cycle(layer_way *way, int first, int n, bl_error *err) {
    for (int at = first; at < n; at++) {
        const int previous = at > first ? at - 1 : n - 1;
        const int rank = way->path_rank[at];
        const int slot = bl_layer_find(&way->now, rank, way->path_expert[at]);
        BL_TRY(exchange(way, rank, way->path_expert[previous], slot, err));
    }
    return BL_OK;
}

/* Find one cycle among ranks with room, by depth-first walk, and exchange along it. */
static bl_status exchange_one_cycle(layer_way *way, bool *found, bl_error *err) {
    const int n_ranks = way->now.n_ranks;
    *found = false;
    for (int rank = 0; rank < n_ranks; rank++)
        way->color[rank] = way->room[rank] > 0 && has_arrivals(way, rank) ? UNSEEN : DEAD_END;
    for (int start = 0; start < n_ranks; start++) {
        if (way->color[start] != UNSEEN)
            continue;
        int n = 0;
        way->path_rank[n++] = start;
        way->color[start] = 0;
        while (n > 0) {
            const int to = next_on_walk(way, way->path_rank[n - 1], &way->path_expert[n - 1]);
            if (to < 0) {
                way->color[way->path_rank[--n]] = DEAD_END;
            } else if (way->color[to] == UNSEEN) {
                way->color[to] = n;
                way->path_rank[n++] = to;
            } else {
                *found = true;
                return exchange_cycle(way, way->color[to], n, err);
            }
        }
    }
    return BL_OK;
}

/* Experts that leave a slot empty go as soon as another copy exists. */
static bool drop_surplus(layer_way *way) {
    bool dropped = false;
    for (int slot = 0; slot < bl_layer_n_slots(&way->now); slot++) {
        const int held = way->now.expert[slot];
        if (held != BL_NO_EXPERT && way->goal.expert[slot] == BL_NO_EXPERT &&
            way->copies[held] > 1) {
            way->now.expert[slot] = BL_NO_EXPERT;
            way->copies[held]--;
            dropped = true;
        }
    }
    return dropped;
}

/* ---- sources and rounds ---------------------------------------------------------------------- */

static void choose_sources(layer_way *way, const double *distance, int *n_sends) {
    const int n_ranks = way->now.n_ranks;
    memset(n_sends, 0, sizeof *n_sends * (size_t)n_ranks);
    for (size_t m = 0; m < way->n_moves; m++) {
        bl_move *move = &way->moves[m];
        double best = 0;
        for (int rank = 0; rank < n_ranks; rank++) {
            if (bl_layer_find(&way->before, rank, move->expert) < 0)
                continue;
            const double far = distance != NULL ? distance[rank * n_ranks + move->destination] : 0;
            if (move->source < 0 || far < best ||
                (!(far > best) && n_sends[rank] < n_sends[move->source])) {
                move->source = rank;
                best = far;
            }
        }
        assert(move->source >= 0);
        n_sends[move->source]++;
    }
}

static int compare_moves(const void *left, const void *right) {
    const bl_move *a = left, *b = right;
    if (a->round != b->round)
        return a->round < b->round ? -1 : 1;
    return (a->destination > b->destination) - (a->destination < b->destination);
}

/* Edge colouring of the bipartite graph of sources and destinations: as many colours, which are the
 * rounds, as the busiest rank has sends or receives (Koenig). sends[rank][round] and
 * receives[rank][round] are moves, -1: none. */
typedef struct coloring {
    bl_move *moves;
    int n_rounds;
    int *sends, *receives;
    int *path; /* [moves] scratch */
} coloring;

static int *cell(const coloring *c, int *side, int rank, int round) {
    return &side[(size_t)rank * (size_t)c->n_rounds + (size_t)round];
}

static int free_round(const coloring *c, int *side, int rank) {
    int round = 0;
    while (*cell(c, side, rank, round) >= 0)
        round++;
    return round;
}

/* The path of moves that starts with what `rank` receives in round a and takes rounds a, b, a, ... in
 * turn: exchange its two rounds. Then `rank` receives nothing in a. */
static void flip_path(coloring *c, int rank, int a, int b) {
    int n = 0;
    for (int m = *cell(c, c->receives, rank, a); m >= 0;) {
        const bl_move *move = &c->moves[m];
        c->path[n++] = m;
        m = n % 2 == 1 ? *cell(c, c->sends, move->source, b)
                       : *cell(c, c->receives, move->destination, a);
    }
    for (int i = 0; i < n; i++) {
        const bl_move *move = &c->moves[c->path[i]];
        *cell(c, c->sends, move->source, move->round) = -1;
        *cell(c, c->receives, move->destination, move->round) = -1;
    }
    for (int i = 0; i < n; i++) {
        bl_move *move = &c->moves[c->path[i]];
        move->round = move->round == a ? b : a;
        *cell(c, c->sends, move->source, move->round) = c->path[i];
        *cell(c, c->receives, move->destination, move->round) = c->path[i];
    }
}

static void color_move(coloring *c, int m) {
    bl_move *move = &c->moves[m];
    const int a = free_round(c, c->sends, move->source);
    const int b = free_round(c, c->receives, move->destination);
    if (*cell(c, c->receives, move->destination, a) >= 0)
        flip_path(c, move->destination, a, b);
    move->round = a;
    *cell(c, c->sends, move->source, a) = m;
    *cell(c, c->receives, move->destination, a) = m;
}

static int busiest(const layer_way *way, const int *n_sends) {
    int most = 1;
    for (int rank = 0; rank < way->now.n_ranks; rank++) {
        int receives = 0;
        for (size_t m = 0; m < way->n_moves; m++)
            receives += way->moves[m].destination == rank;
        most = n_sends[rank] > most ? n_sends[rank] : most;
        most = receives > most ? receives : most;
    }
    return most;
}

static bl_status choose_rounds(layer_way *way, const int *n_sends, bl_error *err) {
    coloring c = {.moves = way->moves, .n_rounds = busiest(way, n_sends)};
    size_t cells;
    if (!bl_size_mul((size_t)way->now.n_ranks, (size_t)c.n_rounds, &cells))
        return bl_fail(err, BL_ERR_NOMEM, "out of memory");
    bl_status st = BL_CALLOC(c.sends, cells, err);
    if (st >= 0)
        st = BL_CALLOC(c.receives, cells, err);
    if (st >= 0)
        st = BL_CALLOC(c.path, way->n_moves, err);
    for (size_t i = 0; st >= 0 && i < cells; i++)
        c.sends[i] = c.receives[i] = -1;
    for (size_t m = 0; st >= 0 && m < way->n_moves; m++)
        color_move(&c, (int)m);
    free(c.sends);
    free(c.receives);
    free(c.path);
    if (st >= 0 && way->n_moves > 0) /* a wave may only drop copies: then there is no array */
        qsort(way->moves, way->n_moves, sizeof *way->moves, compare_moves);
    return st;
}

/* ---- waves ----------------------------------------------------------------------------------- */

/* Fill one wave; way->before is the placement it starts from. */
static bl_status fill_wave(layer_way *way, const double *distance, bl_error *err) {
    bl_status st = BL_OK;
    for (int rank = 0; rank < way->now.n_ranks; rank++) {
        way->room[rank] = way->spares[rank];
        if (way->room[rank] > BL_WAVE_MAX_ARRIVALS)
            way->room[rank] = BL_WAVE_MAX_ARRIVALS;
    }
    memcpy(way->before.expert, way->now.expert,
           sizeof *way->now.expert * (size_t)bl_layer_n_slots(&way->now));
    way->n_moves = 0;
    for (bool found = true; found && st >= 0;) {
        st = exchange_freely(way, err);
        if (st >= 0)
            st = exchange_one_cycle(way, &found, err);
    }
    BL_TRY(st);
    const bool dropped = drop_surplus(way);
    if (way->n_moves == 0 && !dropped)
        return bl_fail_at(err, BL_ERR_INTERNAL, bl_at_layer(NULL, way->now.layer),
                          "no wave leads on from here");
    int *n_sends;
    BL_TRY(BL_CALLOC(n_sends, way->now.n_ranks, err));
    choose_sources(way, distance, n_sends);
    st = choose_rounds(way, n_sends, err);
    free(n_sends);
    return st;
}

static bl_status append_wave(layer_way *way, bl_schedule *schedule, size_t *capacity,
                             bl_error *err) {
    void *waves = schedule->waves;
    const bl_status st =
        bl_grow(&waves, capacity, (size_t)schedule->n_waves + 1, sizeof *schedule->waves, err);
    schedule->waves = waves;
    BL_TRY(st);
    bl_wave wave = {.n_moves = (int)way->n_moves};
    BL_TRY(BL_CALLOC(wave.moves, way->n_moves, err));
    if (way->n_moves > 0)
        memcpy(wave.moves, way->moves, sizeof *way->moves * way->n_moves);
    if (bl_layer_placement_copy(&way->now, &wave.after, err) < 0) {
        free(wave.moves);
        return BL_ERR_NOMEM;
    }
    schedule->waves[schedule->n_waves++] = wave;
    schedule->n_moves += wave.n_moves;
    return BL_OK;
}

static bool is_done(const layer_way *way) {
    return memcmp(way->now.expert, way->goal.expert,
                  sizeof *way->now.expert * (size_t)bl_layer_n_slots(&way->now)) == 0;
}

static void way_free(layer_way *way) {
    bl_layer_placement_free(&way->goal);
    bl_layer_placement_free(&way->before);
    bl_layer_placement_free(&way->now);
    free(way->copies);
    free(way->room);
    free(way->color);
    free(way->path_rank);
    free(way->path_expert);
    free(way->moves);
}

static bl_status way_open(layer_way *way, const bl_layer_placement *current,
                          const bl_layer_placement *goal, bl_error *err) {
    BL_TRY(bl_layer_align(current, goal, &way->goal, err));
    BL_TRY(bl_layer_placement_copy(current, &way->before, err));
    BL_TRY(bl_layer_placement_copy(current, &way->now, err));
    BL_TRY(BL_CALLOC(way->copies, current->n_experts, err));
    BL_TRY(BL_CALLOC(way->room, current->n_ranks, err));
    BL_TRY(BL_CALLOC(way->color, current->n_ranks, err));
    BL_TRY(BL_CALLOC(way->path_rank, current->n_ranks, err));
    BL_TRY(BL_CALLOC(way->path_expert, current->n_ranks, err));
    for (int slot = 0; slot < bl_layer_n_slots(current); slot++) {
        if (current->expert[slot] != BL_NO_EXPERT)
            way->copies[current->expert[slot]]++;
    }
    for (int rank = 0; rank < current->n_ranks; rank++) {
        if (way->spares[rank] < 1 && has_arrivals(way, rank))
            return bl_fail_at(err, BL_ERR_STATE, bl_at_layer(NULL, current->layer),
                              "rank %d must receive experts but has no spare buffer; start the "
                              "ranks with at least one spare",
                              rank);
    }
    return BL_OK;
}

static bl_status schedule_layer(const bl_layer_placement *current, const bl_layer_placement *goal,
                                const int *spares, const double *distance, bl_schedule *schedule,
                                size_t *capacity, bl_error *err) {
    layer_way way = {.spares = spares};
    bl_status st = way_open(&way, current, goal, err);
    if (st >= 0 && !is_done(&way))
        schedule->n_layers++;
    while (st >= 0 && !is_done(&way)) {
        way.now.epoch++;
        st = fill_wave(&way, distance, err);
        if (st >= 0)
            st = append_wave(&way, schedule, capacity, err);
    }
    way_free(&way);
    return st;
}

/* ---- hash ------------------------------------------------------------------------------------ */

typedef struct ints {
    int64_t *items;
    size_t n, capacity;
    bl_status st;
} ints;

static void add(ints *list, int64_t value) {
    void *items = list->items;
    if (list->st >= 0)
        list->st = bl_grow(&items, &list->capacity, list->n + 1, sizeof value, NULL);
    list->items = items;
    if (list->st >= 0)
        list->items[list->n++] = value;
}

static void add_layer(ints *list, const bl_layer_placement *layer) {
    add(list, layer->layer);
    add(list, (int64_t)layer->epoch);
    for (int rank = 0; rank <= layer->n_ranks; rank++)
        add(list, layer->begin[rank]);
    for (int slot = 0; slot < bl_layer_n_slots(layer); slot++)
        add(list, layer->expert[slot]);
}

static bl_status hash_schedule(bl_schedule *schedule, const bl_placement *current, bl_error *err) {
    ints list = {0};
    add(&list, schedule->n_ranks);
    add(&list, schedule->n_experts);
    for (int l = 0; l < current->n_layers; l++)
        add_layer(&list, &current->layers[l]);
    for (int w = 0; w < schedule->n_waves; w++) {
        const bl_wave *wave = &schedule->waves[w];
        add_layer(&list, &wave->after);
        add(&list, wave->n_moves);
        for (int m = 0; m < wave->n_moves; m++) {
            add(&list, wave->moves[m].expert);
            add(&list, wave->moves[m].source);
            add(&list, wave->moves[m].destination);
            add(&list, wave->moves[m].round);
        }
    }
    bl_hasher *hasher = list.st >= 0 ? bl_hasher_new() : NULL;
    if (hasher == NULL) {
        free(list.items);
        return bl_fail(err, BL_ERR_NOMEM, "out of memory");
    }
    for (size_t i = 0; i < list.n; i++)
        bl_hasher_add_int(hasher, list.items[i]);
    free(list.items);
    const bl_digest digest = bl_hasher_finish(hasher);
    schedule->hash = bl_hash64(digest.hex, sizeof digest.hex);
    return BL_OK;
}

/* ---- the whole way --------------------------------------------------------------------------- */

static bl_status check_goal(const bl_placement *current, const bl_placement *goal, bl_error *err) {
    for (int l = 0; l < goal->n_layers; l++) {
        const int layer = goal->layers[l].layer;
        const bl_layer_placement *running = bl_placement_layer(current, layer);
        if (running == NULL)
            return bl_fail_at(err, BL_ERR_SHAPE, bl_at_layer(NULL, layer),
                              "the plan places a layer that has no experts in the running model");
        BL_TRY(check_shapes(running, &goal->layers[l], err));
    }
    return bl_placement_check(goal, NULL, err);
}

bl_status bl_schedule_make(const bl_placement *current, const bl_placement *goal, const int *spares,
                           const double *distance, bl_schedule *out, bl_error *err) {
    BL_TRY(check_goal(current, goal, err));
    bl_schedule made = {.n_ranks = current->n_ranks, .n_experts = current->n_experts};
    size_t capacity = 0;
    bl_status st = BL_OK;
    for (int l = 0; l < current->n_layers && st >= 0; l++) {
        const bl_layer_placement *layer = &current->layers[l];
        const bl_layer_placement *wanted = bl_placement_layer(goal, layer->layer);
        if (wanted != NULL)
            st = schedule_layer(layer, wanted, spares, distance, &made, &capacity, err);
    }
    if (st >= 0)
        st = hash_schedule(&made, current, err);
    if (st < 0)
        bl_schedule_free(&made);
    else
        *out = made;
    return st;
}

uint64_t bl_schedule_min_steps(const bl_schedule *schedule, uint64_t bundle_bytes,
                               uint64_t step_bytes) {
    uint64_t steps = 0;
    for (int w = 0; w < schedule->n_waves; w++) {
        const bl_wave *wave = &schedule->waves[w];
        uint64_t most = 0;
        for (int rank = 0; rank < schedule->n_ranks; rank++) {
            uint64_t sends = 0;
            for (int m = 0; m < wave->n_moves; m++)
                sends += wave->moves[m].source == rank;
            most = sends > most ? sends : most;
        }
        steps += (most * bundle_bytes + step_bytes - 1) / step_bytes;
    }
    return steps;
}
