#include "tracer/demand.h"

#include "core/mem.h"
#include "tracer/steps.h"
#include "tracer/stream.h"

#include <stdlib.h>
#include <string.h>

/* Tokens of one step, phase by phase and (last) all together: over ranks, and of the fullest one. */
typedef struct cell {
    uint64_t sum[BL_N_PHASES + 1], most[BL_N_PHASES + 1];
} cell;

/* What a rank has in a step so far: its steps ascend, so the next one ends it. */
typedef struct pending {
    bool is_open;
    uint32_t run;
    uint64_t step;
    uint64_t tokens[BL_N_PHASES + 1];
} pending;

typedef struct reader {
    bl_stream *stream;
    bl_steps steps;
    uint64_t before;     /* steps of earlier paths */
    int64_t first, end;  /* of all paths together */
    cell *cells;         /* [n_cells] the selected steps of this path */
    uint64_t first_cell; /* position in this path */
    size_t n_cells;
    int layer;      /* the one that is counted: tokens are the same in all; -1: not known yet */
    pending *ranks; /* [n_ranks] */
    int n_ranks;    /* highest rank of this path + 1, at least 1 */
    bool sources_told;
} reader;

static bl_status find_steps(reader *r, bl_error *err) {
    bl_stream_skip_bodies(r->stream, true);
    for (;;) {
        bl_record record;
        bool got;
        BL_TRY(bl_stream_next(r->stream, &record, &got, err));
        if (!got)
            break;
        BL_TRY(bl_steps_add(&r->steps, record.run, record.step, err));
        if (record.flags & BL_RECORD_DUMMY)
            continue;
        if (r->layer < 0 || record.layer < r->layer)
            r->layer = record.layer;
        r->sources_told = r->sources_told && record.rank != BL_ALL_RANKS;
        r->n_ranks = record.rank >= r->n_ranks ? record.rank + 1 : r->n_ranks;
    }
    bl_stream_rewind(r->stream);
    return BL_OK;
}

/* Room for the steps of this path that were asked for. */
static bl_status select_steps(reader *r, bl_error *err) {
    const uint64_t n = bl_steps_number(&r->steps);
    const uint64_t first = r->first > 0 ? (uint64_t)r->first : 0;
    const uint64_t end = r->end > 0 ? (uint64_t)r->end : 0;
    uint64_t from = first > r->before ? first - r->before : 0;
    uint64_t to = end > r->before ? end - r->before : 0;
    to = to < n ? to : n;
    from = from < to ? from : to;
    r->first_cell = from;
    r->n_cells = (size_t)(to - from);
    return BL_CALLOC(r->cells, r->n_cells, err);
}

static void close_step(reader *r, pending *now) {
    uint64_t position;
    if (!now->is_open)
        return;
    now->is_open = false;
    if (!bl_steps_position(&r->steps, now->run, now->step, &position) || position < r->first_cell ||
        position - r->first_cell >= r->n_cells)
        return;
    cell *c = &r->cells[position - r->first_cell];
    for (int p = 0; p <= BL_N_PHASES; p++) {
        c->sum[p] += now->tokens[p];
        c->most[p] = now->tokens[p] > c->most[p] ? now->tokens[p] : c->most[p];
    }
}

static bl_status count(reader *r, bl_error *err) {
    for (;;) {
        bl_record record;
        bool got;
        BL_TRY(bl_stream_next(r->stream, &record, &got, err));
        if (!got)
            break;
        if (record.layer != r->layer || (record.flags & BL_RECORD_DUMMY))
            continue;
        pending *now = &r->ranks[record.rank != BL_ALL_RANKS ? record.rank : 0];
        if (!now->is_open || now->run != record.run || now->step != record.step) {
            close_step(r, now);
            *now = (pending){.is_open = true, .run = record.run, .step = record.step};
        }
        now->tokens[record.phase] += record.n_tokens;
        now->tokens[BL_N_PHASES] += record.n_tokens;
    }
    for (int rank = 0; rank < r->n_ranks; rank++)
        close_step(r, &r->ranks[rank]);
    return BL_OK;
}

static bl_status read_path(reader *r, const char *path, int *n_ranks, bl_error *err) {
    BL_TRY(bl_stream_open(path, &r->stream, err));
    const int told = bl_stream_info(r->stream)->n_ranks;
    *n_ranks = told > *n_ranks ? told : *n_ranks;
    BL_TRY(find_steps(r, err));
    *n_ranks = r->n_ranks > *n_ranks ? r->n_ranks : *n_ranks;
    BL_TRY(BL_CALLOC(r->ranks, r->n_ranks, err));
    BL_TRY(select_steps(r, err));
    return count(r, err);
}

static int ascending(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Figures of one phase over the cells of all paths. */
static bl_status sum_up(const reader *readers, int n, int phase, int n_ranks, bool known,
                        bl_demand_phase *out, bl_error *err) {
    size_t most = 0, n_samples = 0;
    double *samples, sum = 0.0;
    for (int i = 0; i < n; i++)
        most += readers[i].n_cells;
    BL_TRY(BL_CALLOC(samples, most, err));
    for (int i = 0; i < n; i++) {
        for (size_t c = 0; c < readers[i].n_cells; c++) {
            const cell *here = &readers[i].cells[c];
            if (here->sum[phase] == 0)
                continue;
            out->tokens += here->sum[phase];
            out->steps++;
            samples[n_samples] = (double)here->most[phase] * n_ranks / (double)here->sum[phase];
            sum += samples[n_samples++];
        }
    }
    out->known = known && n_samples > 0;
    if (out->known) {
        qsort(samples, n_samples, sizeof *samples, ascending);
        const double at = 0.95 * (double)(n_samples - 1);
        const size_t low = (size_t)at, high = low + 1 < n_samples ? low + 1 : low;
        out->mean = sum / (double)n_samples;
        out->p95 = samples[low] + (at - (double)low) * (samples[high] - samples[low]);
        out->max = samples[n_samples - 1];
    }
    free(samples);
    return BL_OK;
}

bl_status bl_demand_read(const char *const *paths, int n_paths, int64_t first_step,
                         int64_t end_step, bl_demand *out, bl_error *err) {
    bl_demand made = {0};
    bool told = true;
    uint64_t before = 0;
    reader *readers;
    BL_TRY(BL_CALLOC(readers, n_paths, err));
    bl_status st = BL_OK;
    for (int i = 0; i < n_paths && st >= 0; i++) {
        reader *r = &readers[i];
        *r = (reader){.before = before,
                      .first = first_step,
                      .end = end_step,
                      .layer = -1,
                      .n_ranks = 1,
                      .sources_told = true};
        st = read_path(r, paths[i], &made.n_ranks, err);
        if (st >= 0)
            before += bl_steps_number(&r->steps);
        told = told && r->sources_told;
    }
    made.n_ranks = told ? made.n_ranks : 0;
    const bool known = made.n_ranks > 1;
    for (int p = 0; p < BL_N_PHASES && st >= 0; p++) {
        st = sum_up(readers, n_paths, p, made.n_ranks, known, &made.phases[p], err);
        made.n_phases += made.phases[p].tokens > 0;
    }
    if (st >= 0)
        st = sum_up(readers, n_paths, BL_N_PHASES, made.n_ranks, known, &made.all, err);
    for (int i = 0; i < n_paths; i++) {
        bl_stream_free(readers[i].stream);
        bl_steps_free(&readers[i].steps);
        free(readers[i].cells);
        free(readers[i].ranks);
    }
    free(readers);
    if (st >= 0)
        *out = made;
    return st;
}
