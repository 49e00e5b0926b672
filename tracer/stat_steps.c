#include "tracer/stat_steps.h"

#include "core/mem.h"

#include <stdlib.h>
#include <string.h>

#define WINDOW_BYTES ((size_t)64 << 20)
#define MAX_OPEN 512

typedef struct step_key {
    uint32_t run;
    uint64_t step;
} step_key;

typedef struct open_step {
    step_key key;
    uint64_t *count;  /* [n_layers][n_columns]; owned */
    uint64_t *tokens; /* [n_layers]; owned */
} open_step;

typedef struct rank_state {
    int rank;
    step_key latest;
} rank_state;

struct bl_open_steps {
    const bl_trace_info *info;
    size_t n_columns;
    bl_step_closed closed;
    void *user;
    open_step *open; /* [n_open] ascending by key; behind them, tables to be used again */
    size_t n_open, n_tables, max_open;
    rank_state *ranks; /* [n_ranks] that have shown up */
    size_t n_ranks, ranks_capacity, last_rank;
    bool any_closed;
    step_key last_closed; /* the highest */
    uint64_t n_closed, n_late;
};

static int compare_keys(step_key a, step_key b) {
    if (a.run != b.run)
        return a.run < b.run ? -1 : 1;
    return a.step < b.step ? -1 : a.step > b.step;
}

bl_status bl_open_steps_create(const bl_trace_info *info, int n_columns, bl_step_closed closed,
                               void *user, bl_open_steps **out_p, bl_error *err) {
    size_t bytes;
    if (!bl_size_mul((size_t)info->n_layers, (size_t)n_columns + 1, &bytes) ||
        !bl_size_mul(bytes, sizeof(uint64_t), &bytes))
        return bl_fail(err, BL_ERR_RANGE, "steps of %d layers and %d columns do not fit",
                       info->n_layers, n_columns);
    bl_open_steps *s = NULL;
    BL_TRY(BL_CALLOC(s, 1, err));
    const size_t fit = WINDOW_BYTES / bytes;
    *s = (bl_open_steps){.info = info,
                         .n_columns = (size_t)n_columns,
                         .closed = closed,
                         .user = user,
                         .max_open = fit < 2          ? 2
                                     : fit > MAX_OPEN ? MAX_OPEN
                                                      : fit};
    const bl_status st = BL_CALLOC(s->open, s->max_open, err);
    if (st < 0)
        free(s);
    else
        *out_p = s;
    return st;
}

void bl_open_steps_free(bl_open_steps *s) {
    if (s == NULL)
        return;
    for (size_t i = 0; i < s->n_tables; i++) {
        free(s->open[i].count);
        free(s->open[i].tokens);
    }
    free(s->open);
    free(s->ranks);
    free(s);
}

/* ---- closing ------------------------------------------------------------------------------- */

static bl_status close_first(bl_open_steps *s, bl_error *err) {
    open_step first = s->open[0];
    const bl_step_counts told = {first.key.run, first.key.step, first.count, first.tokens};
    BL_TRY(s->closed(s->user, &told, err));
    const size_t n_layers = (size_t)s->info->n_layers;
    memset(first.count, 0, n_layers * s->n_columns * sizeof *first.count);
    memset(first.tokens, 0, n_layers * sizeof *first.tokens);
    memmove(s->open, s->open + 1, (s->n_tables - 1) * sizeof *s->open);
    s->open[s->n_tables - 1] = first;
    s->n_open--;
    if (s->any_closed && compare_keys(first.key, s->last_closed) <= 0) {
        s->n_late++;
    } else {
        s->n_closed++;
        s->last_closed = first.key;
    }
    s->any_closed = true;
    return BL_OK;
}

/* Close what every rank has left behind. Ranks that the header names and that have not shown up
 * may still come with anything. */
static bl_status close_passed(bl_open_steps *s, bl_error *err) {
    if (s->n_ranks < (size_t)s->info->n_present)
        return BL_OK;
    step_key lowest = s->ranks[0].latest;
    for (size_t i = 1; i < s->n_ranks; i++) {
        if (compare_keys(s->ranks[i].latest, lowest) < 0)
            lowest = s->ranks[i].latest;
    }
    while (s->n_open > 0 && compare_keys(s->open[0].key, lowest) < 0)
        BL_TRY(close_first(s, err));
    return BL_OK;
}

bl_status bl_open_steps_finish(bl_open_steps *s, bl_error *err) {
    while (s->n_open > 0)
        BL_TRY(close_first(s, err));
    return BL_OK;
}

/* ---- adding -------------------------------------------------------------------------------- */

/* Note where a rank is now; *moved says whether that changed. */
static bl_status follow_rank(bl_open_steps *s, const bl_record *record, bool *moved,
                             bl_error *err) {
    const step_key key = {record->run, record->step};
    size_t at = s->last_rank;
    if (at >= s->n_ranks || s->ranks[at].rank != record->rank) {
        at = 0;
        while (at < s->n_ranks && s->ranks[at].rank != record->rank)
            at++;
    }
    if (at == s->n_ranks) {
        void *ranks = s->ranks;
        const bl_status st =
            bl_grow(&ranks, &s->ranks_capacity, s->n_ranks + 1, sizeof *s->ranks, err);
        s->ranks = ranks;
        BL_TRY(st);
        s->ranks[s->n_ranks++] = (rank_state){.rank = record->rank, .latest = key};
        *moved = true;
    } else {
        *moved = compare_keys(key, s->ranks[at].latest) > 0;
        if (*moved)
            s->ranks[at].latest = key;
    }
    s->last_rank = at;
    return BL_OK;
}

/* Insert an empty step at its place, with a table that is free or new. */
static bl_status open_at(bl_open_steps *s, size_t at, step_key key, bl_error *err) {
    if (s->n_open == s->n_tables) {
        open_step *fresh = &s->open[s->n_tables];
        const size_t n_layers = (size_t)s->info->n_layers;
        BL_TRY(BL_CALLOC(fresh->count, n_layers * s->n_columns, err));
        s->n_tables++;
        BL_TRY(BL_CALLOC(fresh->tokens, n_layers, err));
    }
    open_step step = s->open[s->n_open];
    step.key = key;
    memmove(s->open + at + 1, s->open + at, (s->n_open - at) * sizeof *s->open);
    s->open[at] = step;
    s->n_open++;
    return BL_OK;
}

static bl_status find_step(bl_open_steps *s, step_key key, open_step **step_p, bl_error *err) {
    size_t at = s->n_open;
    while (at > 0 && compare_keys(s->open[at - 1].key, key) > 0)
        at--;
    if (at == 0 || compare_keys(s->open[at - 1].key, key) != 0) {
        if (s->n_open == s->max_open) {
            BL_TRY(close_first(s, err));
            at -= at > 0;
        }
        BL_TRY(open_at(s, at, key, err));
        at++;
    }
    *step_p = &s->open[at - 1];
    return BL_OK;
}

bl_status bl_open_steps_note(bl_open_steps *s, const bl_record *record, bl_error *err) {
    bool moved;
    BL_TRY(follow_rank(s, record, &moved, err));
    return moved ? close_passed(s, err) : BL_OK;
}

bl_status bl_open_steps_row(bl_open_steps *s, const bl_record *record, int layer_index,
                            uint64_t **row_p, bl_error *err) {
    BL_TRY(bl_open_steps_note(s, record, err));
    open_step *step = NULL;
    BL_TRY(find_step(s, (step_key){record->run, record->step}, &step, err));
    step->tokens[layer_index] += record->n_tokens;
    *row_p = step->count + (size_t)layer_index * s->n_columns;
    return BL_OK;
}

uint64_t bl_open_steps_closed(const bl_open_steps *s) {
    return s->n_closed;
}

uint64_t bl_open_steps_late(const bl_open_steps *s) {
    return s->n_late;
}
