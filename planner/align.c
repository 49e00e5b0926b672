#include "planner/align.h"

#include "planner/holds.h"

#include <limits.h>
#include <string.h>

/* ---- laying a placement over the current one ------------------------------------------------ */

/* Copies that would stay if the content of rank `from` went to rank `to`. */
static int overlap(const bl_holds *now, const bl_layer_placement *placement, int from, int to) {
    int same = 0;
    for (int slot = placement->begin[from]; slot < placement->begin[from + 1]; slot++) {
        if (placement->expert[slot] != BL_NO_EXPERT)
            same += bl_holds_has(now, to, placement->expert[slot]);
    }
    return same;
}

/* Scratch of the assignment below; all [n + 1], index 0 is a sentinel. */
typedef struct matching {
    int n;
    const int *gain; /* [n][n] of (content, rank) */
    int *row_price, *column_price, *slack, *match, *way;
    bool *visited;
} matching;

/* One augmentation of the Hungarian method: give content `row` (1-based) a rank. */
static void match_row(matching *m, int row) {
    int column = 0;
    m->match[0] = row;
    for (int c = 0; c <= m->n; c++) {
        m->slack[c] = INT_MAX;
        m->visited[c] = false;
    }
    do {
        m->visited[column] = true;
        const int from = m->match[column];
        int step = INT_MAX, next = 0;
        for (int c = 1; c <= m->n; c++) {
            if (m->visited[c])
                continue;
            const int cost = -m->gain[(size_t)(from - 1) * (size_t)m->n + (size_t)(c - 1)];
            const int reduced = cost - m->row_price[from] - m->column_price[c];
            if (reduced < m->slack[c]) {
                m->slack[c] = reduced;
                m->way[c] = column;
            }
            if (m->slack[c] < step) {
                step = m->slack[c];
                next = c;
            }
        }
        for (int c = 0; c <= m->n; c++) {
            if (m->visited[c]) {
                m->row_price[m->match[c]] += step;
                m->column_price[c] -= step;
            } else if (m->slack[c] != INT_MAX) {
                m->slack[c] -= step;
            }
        }
        column = next;
    } while (m->match[column] != 0);
    for (; column != 0; column = m->way[column])
        m->match[column] = m->match[m->way[column]];
}

/* Assignment of largest gain: to[row] = column. O(n^3). */
static bl_status assign(const int *gain, int n, int *to, bl_error *err) {
    matching m = {.n = n, .gain = gain};
    int *ints;
    BL_TRY(BL_CALLOC(ints, 5 * ((size_t)n + 1), err));
    if (BL_CALLOC(m.visited, n + 1, err) < 0) {
        free(ints);
        return BL_ERR_NOMEM;
    }
    m.row_price = ints;
    m.column_price = ints + (n + 1);
    m.slack = ints + 2 * (n + 1);
    m.match = ints + 3 * (n + 1);
    m.way = ints + 4 * (n + 1);
    for (int row = 1; row <= n; row++)
        match_row(&m, row);
    for (int column = 1; column <= n; column++)
        to[m.match[column] - 1] = column - 1;
    free(m.visited);
    free(ints);
    return BL_OK;
}

/* Ranks that are all alike, and where the content of each goes. */
typedef struct peers {
    const bl_holds *now;
    const bl_layer_placement *current, *placement;
    const int *rank; /* [n] */
    int n;
    int *to;     /* [n] index in rank, or -1: not known yet */
    bool *taken; /* [n] some content goes there */
} peers;

static int held(const bl_layer_placement *placement, int rank) {
    int n = 0;
    for (int slot = placement->begin[rank]; slot < placement->begin[rank + 1]; slot++)
        n += placement->expert[slot] != BL_NO_EXPERT;
    return n;
}

/* Does the content of rank i hold what rank k holds now, no more and no less? */
static bool is_same(const peers *c, int i, int k) {
    const int n = held(c->placement, c->rank[i]);
    return n == held(c->current, c->rank[k]) &&
           overlap(c->now, c->placement, c->rank[i], c->rank[k]) == n;
}

static void send(peers *c, int i, int k) {
    c->to[i] = k;
    c->taken[k] = true;
}

/* A content that some rank holds already goes there, to its own rank first: some best assignment does so.
 * (For sets C, D and any rank's old content O:  |C n O| + |C n D| <= |C| + |D n O|.) */
static void match_same(peers *c) {
    for (int i = 0; i < c->n; i++) {
        c->to[i] = -1;
        if (is_same(c, i, i))
            send(c, i, i);
    }
    for (int i = 0; i < c->n; i++) {
        for (int k = 0; k < c->n && c->to[i] < 0; k++) {
            if (!c->taken[k] && is_same(c, i, k))
                send(c, i, k);
        }
    }
}

/* The others by the Hungarian method. */
static bl_status match_rest(peers *c, bl_error *err) {
    int *row = NULL, *column = NULL, *gain = NULL, *to = NULL, n = 0, free_ranks = 0;
    bl_status st;
    BL_TRY_GOTO(st, BL_CALLOC(row, c->n, err), done);
    BL_TRY_GOTO(st, BL_CALLOC(column, c->n, err), done);
    for (int i = 0; i < c->n; i++) {
        if (c->to[i] < 0)
            row[n++] = i;
        if (!c->taken[i])
            column[free_ranks++] = i;
    }
    if (n == 0)
        goto done;
    BL_TRY_GOTO(st, BL_CALLOC(gain, (size_t)n * (size_t)n, err), done);
    BL_TRY_GOTO(st, BL_CALLOC(to, n, err), done);
    /* A unit for staying put breaks ties: contents change rank only where that saves a move. */
    for (int i = 0; i < n; i++) {
        for (int k = 0; k < n; k++)
            gain[(size_t)i * (size_t)n + (size_t)k] =
                overlap(c->now, c->placement, c->rank[row[i]], c->rank[column[k]]) * (c->n + 1) +
                (row[i] == column[k]);
    }
    BL_TRY_GOTO(st, assign(gain, n, to, err), done);
    for (int i = 0; i < n; i++)
        c->to[row[i]] = column[to[i]];
done:
    free(row);
    free(column);
    free(gain);
    free(to);
    return st;
}

/* Relabel the `n` ranks listed in `rank`, which are all alike. */
static bl_status relabel_class(const bl_layer_placement *current, const bl_holds *now,
                               const int *rank, int n, bl_layer_placement *placement,
                               bl_error *err) {
    const int slots = placement->begin[rank[0] + 1] - placement->begin[rank[0]];
    peers c = {.now = now, .current = current, .placement = placement, .rank = rank, .n = n};
    int32_t *content = NULL;
    bl_status st;
    BL_TRY_GOTO(st, BL_CALLOC(c.to, n, err), done);
    BL_TRY_GOTO(st, BL_CALLOC(c.taken, n, err), done);
    BL_TRY_GOTO(st, BL_CALLOC(content, (size_t)n * (size_t)slots, err), done);
    match_same(&c);
    BL_TRY_GOTO(st, match_rest(&c, err), done);
    for (int i = 0; i < n; i++)
        memcpy(content + (size_t)i * (size_t)slots, placement->expert + placement->begin[rank[i]],
               (size_t)slots * sizeof *content);
    for (int i = 0; i < n; i++)
        memcpy(placement->expert + placement->begin[rank[c.to[i]]],
               content + (size_t)i * (size_t)slots, (size_t)slots * sizeof *content);
done:
    free(content);
    free(c.to);
    free(c.taken);
    return st;
}

/* class NULL: by the problem's rules. */
static bool are_alike(const bl_problem *problem, const int *class, int rank, int other) {
    if (class == NULL)
        return bl_rules_alike(problem, rank, other);
    return class[rank] == class[other] &&
           problem->slots_per_rank[rank] == problem->slots_per_rank[other];
}

static bl_status relabel(const bl_problem *problem, const int *class, const bl_holds *now,
                         bl_layer_placement *placement, bl_error *err) {
    int *rank;
    BL_TRY(BL_CALLOC(rank, problem->n_ranks, err));
    bl_status st = BL_OK;
    for (int leader = 0; leader < problem->n_ranks && st == BL_OK; leader++) {
        int n = 0;
        bool first_of_class = problem->slots_per_rank[leader] > 0;
        for (int g = 0; g < leader && first_of_class; g++)
            first_of_class = !are_alike(problem, class, g, leader);
        for (int g = leader; g < problem->n_ranks && first_of_class; g++) {
            if (are_alike(problem, class, g, leader))
                rank[n++] = g;
        }
        if (n > 1)
            st = relabel_class(problem->current, now, rank, n, placement, err);
    }
    free(rank);
    return st;
}

/* Order the slots of one rank: staying copies in their old slot, the rest ascending behind them in
 * what is free. `has` is what the placement holds; `scratch` has room for the rank's slots. */
static void align_rank(const bl_layer_placement *current, const bl_holds *has, const bl_holds *now,
                       int rank, bl_layer_placement *placement, int32_t *scratch) {
    const int begin = placement->begin[rank], slots = placement->begin[rank + 1] - begin;
    const int old_begin = current->begin[rank];
    const int old_slots = current->begin[rank + 1] - old_begin;
    for (int i = 0; i < slots; i++) {
        const int32_t old = i < old_slots ? current->expert[old_begin + i] : BL_NO_EXPERT;
        bool stays = old != BL_NO_EXPERT && bl_holds_has(has, rank, old);
        for (int k = 0; k < i && stays; k++)
            stays = scratch[k] != old; /* a faulty current placement may hold it twice */
        scratch[i] = stays ? old : BL_NO_EXPERT;
    }
    int at = 0;
    for (int i = 0; i < slots; i++) {
        const int32_t expert = placement->expert[begin + i];
        bool placed = expert == BL_NO_EXPERT;
        for (int k = 0; k < slots && !placed && bl_holds_has(now, rank, expert); k++)
            placed = scratch[k] == expert;
        if (placed)
            continue;
        while (scratch[at] != BL_NO_EXPERT)
            at++;
        scratch[at] = expert;
    }
    memcpy(placement->expert + begin, scratch, (size_t)slots * sizeof *scratch);
}

static bl_status align_slots(const bl_problem *problem, const bl_holds *now,
                             bl_layer_placement *placement, bl_error *err) {
    bl_holds has;
    BL_TRY(bl_holds_create(problem->n_ranks, problem->n_experts, &has, err));
    int32_t *scratch;
    const bl_status st = BL_CALLOC(scratch, bl_layer_n_slots(placement), err);
    if (st == BL_OK) {
        bl_holds_add(&has, placement);
        for (int rank = 0; rank < problem->n_ranks; rank++)
            align_rank(problem->current, &has, now, rank, placement, scratch);
        free(scratch);
    }
    bl_holds_free(&has);
    return st;
}

bl_status bl_align_classes(const bl_problem *problem, const int *class,
                           bl_layer_placement *placement, bl_error *err) {
    bl_holds now;
    BL_TRY(bl_holds_create(problem->n_ranks, problem->n_experts, &now, err));
    bl_holds_add(&now, problem->current);
    bl_status st = relabel(problem, class, &now, placement, err);
    if (st == BL_OK)
        st = align_slots(problem, &now, placement, err);
    bl_holds_free(&now);
    return st;
}

bl_status bl_align(const bl_problem *problem, bl_layer_placement *placement, bl_error *err) {
    return bl_align_classes(problem, NULL, placement, err);
}

bl_status bl_align_copy(const bl_problem *problem, const bl_layer_placement *made,
                        bl_layer_placement *out, bl_error *err) {
    bl_layer_placement copy;
    BL_TRY(bl_layer_placement_copy(made, &copy, err));
    const bl_status st = problem->current != NULL ? bl_align(problem, &copy, err) : BL_OK;
    if (st < 0)
        bl_layer_placement_free(&copy);
    else
        *out = copy;
    return st;
}

bl_status bl_align_slots(const bl_problem *problem, bl_layer_placement *placement, bl_error *err) {
    bl_holds now;
    BL_TRY(bl_holds_create(problem->n_ranks, problem->n_experts, &now, err));
    bl_holds_add(&now, problem->current);
    const bl_status st = align_slots(problem, &now, placement, err);
    bl_holds_free(&now);
    return st;
}
