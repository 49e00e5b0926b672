#include "core/split_step.h"

#include "core/mem.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* A shared expert has two or more copies. Its copies stand together, and the shared experts are in
 * ascending order of their number of copies: those with least choice pour first. */
struct bl_step_split {
    int n_ranks, n_experts, n_slots;
    bl_arena *arena;  /* of all arrays */
    int active;       /* ranks with slots */
    int *begin;       /* [n_ranks + 1] of the slots */
    int *single;      /* [n_single] experts of one copy */
    int *single_slot; /* [n_single] */
    int *single_rank; /* [n_single] */
    int n_single, n_shared, n_copies;
    int *shared;     /* [n_shared] experts */
    int *first;      /* [n_shared + 1] first copy of a shared expert */
    int *rank;       /* [n_copies] */
    int *slot;       /* [n_copies] */
    int *owner;      /* [n_copies] which shared expert's it is */
    int *rank_first; /* [n_ranks + 1] first of rank_copy[] */
    int *rank_copy;  /* [n_copies] the copies on each rank */
    /* Counting scratch of bl_step_split_set(). */
    int *n_copies_of; /* [n_experts] */
    int *at;          /* [n_experts] */
    int *by_copies;   /* [n_ranks + 2] */
    /* Of a solution. */
    int64_t *flow; /* [n_copies] rows */
    int64_t *load; /* [n_ranks] rows */
    int *cut;      /* [n_cut] ranks */
    int n_cut;
    /* Scratch of pouring and of looking for a path. */
    int *order;     /* [n_ranks] */
    int64_t *base;  /* [n_ranks] */
    int *queue;     /* [n_ranks] ranks in the order they were reached */
    int *from, *to; /* [n_ranks] copies by which a rank was reached: rows shift from one to other */
    unsigned *reached; /* [n_ranks] == round: in this round */
    unsigned round;
};

/* ---- the graph of a placement -----------------------------------------------------------------*/

static bl_status allocate(bl_step_split *s, bl_error *err) {
    const size_t experts = (size_t)s->n_experts, slots = (size_t)s->n_slots;
    const size_t ranks = (size_t)s->n_ranks;
    const struct {
        int **at;
        size_t n;
    } ints[] = {{&s->begin, ranks + 1},
                {&s->single, experts},
                {&s->single_slot, experts},
                {&s->single_rank, experts},
                {&s->shared, experts},
                {&s->first, experts + 1},
                {&s->rank, slots},
                {&s->slot, slots},
                {&s->owner, slots},
                {&s->rank_first, ranks + 1},
                {&s->rank_copy, slots},
                {&s->n_copies_of, experts},
                {&s->at, experts},
                {&s->by_copies, ranks + 2},
                {&s->cut, ranks},
                {&s->order, ranks},
                {&s->queue, ranks},
                {&s->from, ranks},
                {&s->to, ranks}};
    bool got = true;
    for (size_t i = 0; i < sizeof ints / sizeof *ints; i++)
        got = (*ints[i].at = bl_arena_calloc(s->arena, ints[i].n, sizeof(int))) != NULL && got;
    s->flow = bl_arena_calloc(s->arena, slots, sizeof *s->flow);
    s->load = bl_arena_calloc(s->arena, ranks, sizeof *s->load);
    s->base = bl_arena_calloc(s->arena, ranks, sizeof *s->base);
    s->reached = bl_arena_calloc(s->arena, ranks, sizeof *s->reached);
    if (!got || s->flow == NULL || s->load == NULL || s->base == NULL || s->reached == NULL)
        return bl_fail(err, BL_ERR_NOMEM, "out of memory");
    return BL_OK;
}

void bl_step_split_free(bl_step_split *split) {
    if (split == NULL)
        return;
    bl_arena_free(split->arena);
    free(split);
}

bl_status bl_step_split_create(const bl_layer_placement *placement, bl_step_split **out_p,
                               bl_error *err) {
    BL_TRY(bl_layer_placement_check(placement, NULL, err));
    if (placement->n_experts > BL_STEP_SPLIT_MAX_EXPERTS)
        return bl_fail_at(err, BL_ERR_RANGE, bl_at_layer(NULL, placement->layer),
                          "%d experts are more than the %d a step's split is made for",
                          placement->n_experts, BL_STEP_SPLIT_MAX_EXPERTS);
    bl_step_split *made;
    BL_TRY(BL_CALLOC(made, 1, err));
    made->n_ranks = placement->n_ranks;
    made->n_experts = placement->n_experts;
    made->n_slots = bl_layer_n_slots(placement);
    made->arena = bl_arena_new(0);
    const bl_status st =
        made->arena != NULL ? allocate(made, err) : bl_fail(err, BL_ERR_NOMEM, "out of memory");
    if (st < 0) {
        bl_step_split_free(made);
        return st;
    }
    memcpy(made->begin, placement->begin, (size_t)(made->n_ranks + 1) * sizeof *made->begin);
    for (int rank = 0; rank < made->n_ranks; rank++)
        made->active += made->begin[rank + 1] > made->begin[rank];
    bl_step_split_set(made, placement->expert);
    *out_p = made;
    return BL_OK;
}

/* Number the shared experts by ascending copies (a counting sort) and lay out their copies. */
static void order_shared(bl_step_split *s) {
    int *begin = s->by_copies;
    memset(begin, 0, (size_t)(s->n_ranks + 2) * sizeof *begin);
    for (int expert = 0; expert < s->n_experts; expert++) {
        if (s->n_copies_of[expert] > 1)
            begin[s->n_copies_of[expert] + 1]++; /* at most n_ranks copies */
    }
    for (int n = 1; n <= s->n_ranks + 1; n++)
        begin[n] += begin[n - 1];
    s->n_shared = 0;
    for (int expert = 0; expert < s->n_experts; expert++) {
        if (s->n_copies_of[expert] < 2)
            continue;
        s->shared[begin[s->n_copies_of[expert]]++] = expert;
        s->n_shared++;
    }
    s->first[0] = 0;
    for (int i = 0; i < s->n_shared; i++) {
        s->at[s->shared[i]] = s->first[i];
        s->first[i + 1] = s->first[i] + s->n_copies_of[s->shared[i]];
        for (int copy = s->first[i]; copy < s->first[i + 1]; copy++)
            s->owner[copy] = i;
    }
    s->n_copies = s->first[s->n_shared];
}

void bl_step_split_set(bl_step_split *split, const int32_t *expert) {
    bl_step_split *s = split;
    memset(s->n_copies_of, 0, (size_t)s->n_experts * sizeof *s->n_copies_of);
    for (int slot = 0; slot < s->n_slots; slot++) {
        assert(expert[slot] >= BL_NO_EXPERT && expert[slot] < s->n_experts);
        if (expert[slot] != BL_NO_EXPERT)
            s->n_copies_of[expert[slot]]++;
    }
    order_shared(s);
    s->n_single = 0;
    int n = 0;
    for (int rank = 0; rank < s->n_ranks; rank++) {
        s->rank_first[rank] = n;
        for (int slot = s->begin[rank]; slot < s->begin[rank + 1]; slot++) {
            const int e = expert[slot];
            if (e == BL_NO_EXPERT)
                continue;
            if (s->n_copies_of[e] == 1) {
                s->single[s->n_single] = e;
                s->single_slot[s->n_single] = slot;
                s->single_rank[s->n_single++] = rank;
                continue;
            }
            const int copy = s->at[e]++;
            s->rank[copy] = rank;
            s->slot[copy] = slot;
            s->rank_copy[n++] = copy;
        }
    }
    s->rank_first[s->n_ranks] = n;
    assert(s->n_single + s->n_shared == s->n_experts);
}

/* ---- pouring ----------------------------------------------------------------------------------*/

/* Whole rows for n >= 3 copies: the lowest ranks are filled up to a common level; what is left over
 * by rounding down goes to the lowest of them, one row each. */
static void pour_many(bl_step_split *s, int first, int n, int64_t rows) {
    for (int i = 0; i < n; i++) {
        const int64_t base = s->base[i];
        int at = i;
        for (; at > 0 && s->base[s->order[at - 1]] > base; at--)
            s->order[at] = s->order[at - 1];
        s->order[at] = i;
        s->flow[first + i] = 0;
    }
    int64_t sum = rows, level = 0;
    int filled = 0;
    do {
        sum += s->base[s->order[filled++]];
        level = sum / filled; /* rounded down: a rank at exactly this level gets nothing */
    } while (filled < n && s->base[s->order[filled]] < level);
    int64_t over = sum - level * filled;
    for (int i = 0; i < filled; i++) {
        const int at = s->order[i];
        s->flow[first + at] = level - s->base[at] + (over-- > 0 ? 1 : 0);
    }
}

/* Pour the rows of a shared expert over its ranks, as level as the loads without it allow. `flow`
 * holds what it has there now. */
static void pour(bl_step_split *s, int shared, int64_t rows) {
    const int first = s->first[shared], n = s->first[shared + 1] - first;
    if (n == 2) {
        const int a = s->rank[first], b = s->rank[first + 1];
        const int64_t base_a = s->load[a] - s->flow[first];
        const int64_t base_b = s->load[b] - s->flow[first + 1];
        int64_t part = (base_b - base_a + rows) / 2;
        part = part < 0 ? 0 : part > rows ? rows : part;
        s->flow[first] = part;
        s->flow[first + 1] = rows - part;
        s->load[a] = base_a + part;
        s->load[b] = base_b + rows - part;
        return;
    }
    for (int i = 0; i < n; i++)
        s->base[i] = s->load[s->rank[first + i]] - s->flow[first + i];
    pour_many(s, first, n, rows);
    for (int i = 0; i < n; i++)
        s->load[s->rank[first + i]] = s->base[i] + s->flow[first + i];
}

/* ---- paths and cuts ---------------------------------------------------------------------------*/

/* Reach the ranks to which rows of `rank` can shift. Returns one that holds less than `most`, or
 * -1. */
static int expand(bl_step_split *s, int rank, int64_t most, int *n_queued) {
    for (int i = s->rank_first[rank]; i < s->rank_first[rank + 1]; i++) {
        const int copy = s->rank_copy[i];
        if (s->flow[copy] == 0)
            continue;
        const int shared = s->owner[copy];
        for (int other = s->first[shared]; other < s->first[shared + 1]; other++) {
            const int to = s->rank[other];
            if (s->reached[to] == s->round)
                continue;
            s->reached[to] = s->round;
            s->from[to] = copy;
            s->to[to] = other;
            if (s->load[to] < most)
                return to;
            s->queue[(*n_queued)++] = to;
        }
    }
    return -1;
}

/* A search, breadth first from one source. It may go on after rows were shifted, as long as the way
 * to every rank it has reached still stands. */
typedef struct search {
    int source, head, n_queued;
} search;

static search begin_search(bl_step_split *s, int source) {
    s->round++;
    if (s->round == 0) { /* after 2^32 rounds */
        memset(s->reached, 0, (size_t)s->n_ranks * sizeof *s->reached);
        s->round = 1;
    }
    s->queue[0] = source;
    s->reached[source] = s->round;
    return (search){source, 0, 1};
}

/* Returns a rank with room, or -1: then queue[0 .. n_queued - 1] is a cut. */
static int find_room(bl_step_split *s, search *at, int64_t most) {
    for (; at->head < at->n_queued; at->head++) {
        const int found = expand(s, s->queue[at->head], most, &at->n_queued);
        if (found >= 0)
            return found;
    }
    return -1;
}

/* Shift what source, target and the way between them allow. Returns whether the search may go on:
 * the target is full and every way still carries rows. What was reached stays closed then: an
 * expert whose rows moved still has rows where it was reached from, and that rank's turn, past or
 * taken up again, reaches all its copies. */
static bool shift_along(bl_step_split *s, search *at, int target, int64_t most) {
    const int source = at->source;
    int64_t rows = s->load[source] - most;
    bool stands = true;
    if (most - s->load[target] < rows)
        rows = most - s->load[target];
    for (int rank = target; rank != source; rank = s->rank[s->from[rank]]) {
        if (s->flow[s->from[rank]] < rows)
            rows = s->flow[s->from[rank]];
    }
    for (int rank = target; rank != source; rank = s->rank[s->from[rank]]) {
        s->flow[s->from[rank]] -= rows;
        s->flow[s->to[rank]] += rows;
        stands = stands && s->flow[s->from[rank]] > 0;
    }
    s->load[source] -= rows;
    s->load[target] += rows;
    if (!stands || s->load[target] < most)
        return false;
    s->queue[at->n_queued++] = target;
    return true;
}

static void keep_cut(bl_step_split *s, int n_ranks) {
    memcpy(s->cut, s->queue, (size_t)n_ranks * sizeof *s->cut);
    s->n_cut = n_ranks;
}

/* What the cut in the queue demands. */
static int64_t cut_bound(const bl_step_split *s, int n) {
    int64_t sum = 0;
    for (int i = 0; i < n; i++)
        sum += s->load[s->queue[i]];
    return (sum + n - 1) / n;
}

static int64_t with_slack(int64_t bound, double slack) {
    return slack > 0.0 ? bound + (int64_t)((double)bound * slack) : bound;
}

/* Bring every rank down to the bound (and slack), which rises where a cut demands it. */
static int64_t level(bl_step_split *s, int64_t bound, double slack) {
    int64_t most = with_slack(bound, slack);
    for (int source = 0; source < s->n_ranks; source++) {
        bool fresh = true;
        search at = {0};
        while (s->load[source] > most) {
            if (fresh)
                at = begin_search(s, source);
            const int target = find_room(s, &at, most);
            if (target >= 0) {
                fresh = !shift_along(s, &at, target, most);
                continue;
            }
            bound = cut_bound(s, at.n_queued); /* > most: all hold `most` there, the source more */
            keep_cut(s, at.n_queued);
            most = with_slack(bound, slack);
            fresh = true;
        }
    }
    return bound;
}

/* ---- a step -----------------------------------------------------------------------------------*/

/* Lay the rows without choice and note the largest rank load and the sum of all rows. Returns false
 * when a count is too large. */
static bool lay_singles(bl_step_split *s, const uint64_t *count, int64_t *rows) {
    uint64_t bits = 0;
    int64_t sum = 0;
    memset(s->load, 0, (size_t)s->n_ranks * sizeof *s->load);
    for (int i = 0; i < s->n_single; i++) {
        const uint64_t w = count[s->single[i]];
        bits |= w;
        sum += (int64_t)(w & (BL_STEP_SPLIT_MAX_ROWS - 1));
        s->load[s->single_rank[i]] += (int64_t)(w & (BL_STEP_SPLIT_MAX_ROWS - 1));
    }
    for (int i = 0; i < s->n_shared; i++) {
        bits |= count[s->shared[i]];
        sum += (int64_t)(count[s->shared[i]] & (BL_STEP_SPLIT_MAX_ROWS - 1));
    }
    *rows = sum;
    return bits < BL_STEP_SPLIT_MAX_ROWS;
}

/* The mean over all ranks with slots, or one rank that has more without choice. */
static int64_t first_bound(bl_step_split *s, int64_t rows) {
    int64_t bound = (rows + s->active - 1) / s->active;
    int worst = -1;
    for (int rank = 0; rank < s->n_ranks; rank++) {
        if (s->load[rank] > bound) {
            bound = s->load[rank];
            worst = rank;
        }
    }
    s->n_cut = 0;
    for (int rank = 0; rank < s->n_ranks; rank++) {
        if (worst >= 0 ? rank == worst : s->begin[rank + 1] > s->begin[rank])
            s->cut[s->n_cut++] = rank;
    }
    return bound;
}

/* Turns of pouring before paths are looked for: they do most of the work in the least time. */
#define TURNS 2

bl_status bl_step_split_solve(bl_step_split *split, const uint64_t *count, double slack,
                              bl_step_split_result *out, bl_error *err) {
    int64_t rows;
    if (!lay_singles(split, count, &rows))
        return bl_fail(err, BL_ERR_RANGE,
                       "an expert has 2^44 token rows or more in one step, which cannot be right");
    const int64_t bound = first_bound(split, rows);
    memset(split->flow, 0, (size_t)split->n_copies * sizeof *split->flow);
    for (int turn = 0; turn < TURNS; turn++) {
        for (int i = 0; i < split->n_shared; i++)
            pour(split, i, (int64_t)count[split->shared[i]]);
    }
    const int64_t proven = level(split, bound, slack);
    int64_t busiest = 0;
    for (int rank = 0; rank < split->n_ranks; rank++)
        busiest = split->load[rank] > busiest ? split->load[rank] : busiest;
    *out = (bl_step_split_result){(uint64_t)rows, (uint64_t)busiest, (uint64_t)proven};
    return BL_OK;
}

void bl_step_split_rows(const bl_step_split *split, const uint64_t *count, uint64_t *rows) {
    memset(rows, 0, (size_t)split->n_slots * sizeof *rows);
    for (int i = 0; i < split->n_single; i++)
        rows[split->single_slot[i]] = count[split->single[i]];
    for (int copy = 0; copy < split->n_copies; copy++)
        rows[split->slot[copy]] = (uint64_t)split->flow[copy];
}

int bl_step_split_cut(const bl_step_split *split, const int **ranks_p) {
    *ranks_p = split->cut;
    return split->n_cut;
}
