#include "tracer/stat.h"

#include "core/mem.h"
#include "tracer/ledger.h"
#include "tracer/steps.h"
#include "tracer/stream.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct work {
    bl_stream *stream;
    bl_ledger *ledger;
    bl_steps steps;
    uint64_t *count; /* [n_layers][n_experts] over the whole trace */
    int phase;
} work;

static bl_status add_record(work *w, bl_stat *stat, const bl_record *record, bl_error *err) {
    if (w->phase >= 0 && w->phase != (int)record->phase)
        return BL_OK;
    stat->records++;
    stat->composed = stat->composed || (record->flags & BL_RECORD_COMPOSED) != 0;
    if (record->flags & BL_RECORD_DUMMY) {
        stat->dummy_records++;
        return BL_OK;
    }
    uint64_t assignments = 0;
    if (!bl_record_assignments(record, &assignments))
        return bl_fail_at(err, BL_ERR_RANGE, bl_at_layer(NULL, record->layer),
                          "counts that do not fit into 64 bits");
    BL_TRY(bl_ledger_add(w->ledger, record, assignments, err));
    if (record->n_tokens > 0)
        BL_TRY(bl_steps_add(&w->steps, record->run, record->step, err));
    const int at = bl_trace_layer_index(&stat->info, record->layer);
    bl_stat_layer *layer = &stat->layers[at];
    if (assignments > UINT64_MAX / 2 - layer->assignments)
        return bl_fail_at(err, BL_ERR_RANGE, bl_at_layer(NULL, record->layer),
                          "counts that do not fit into 64 bits");
    layer->tokens += record->n_tokens;
    layer->assignments += assignments;
    layer->empty += record->n_empty;
    return bl_record_add_counts(record, w->count + (size_t)at * (size_t)stat->info.n_experts, err);
}

static void judge_experts(bl_stat_layer *layer, const uint64_t *count, int n_experts) {
    uint64_t most = 0, sum = 0;
    for (int expert = 0; expert < n_experts; expert++) {
        layer->n_idle += count[expert] == 0;
        sum += count[expert];
        if (count[expert] > most) {
            most = count[expert];
            layer->hottest = expert;
        }
    }
    layer->max_over_mean_experts = sum > 0 ? (double)most * n_experts / (double)sum : 1.0;
}

static bl_status judge(work *w, bl_stat *stat, const char *path, bl_error *err) {
    bl_ledger_finish(w->ledger);
    stat->steps = bl_steps_number(&w->steps);
    stat->tokens = bl_ledger_tokens(w->ledger);
    stat->dropped = bl_stream_dropped(w->stream);
    for (int phase = 0; phase < BL_N_PHASES; phase++)
        stat->phase_tokens[phase] = bl_ledger_phase_tokens(w->ledger, (bl_phase)phase);
    for (int l = 0; l < stat->info.n_layers; l++) {
        bl_stat_layer *layer = &stat->layers[l];
        const char *why = bl_ledger_why_bad(w->ledger, l);
        layer->layer = stat->info.layers[l];
        layer->conserved = why == NULL;
        if (why != NULL && (layer->why = strdup(why)) == NULL)
            return bl_fail(err, BL_ERR_NOMEM, "out of memory");
        judge_experts(layer, w->count + (size_t)l * (size_t)stat->info.n_experts,
                      stat->info.n_experts);
    }
    if (stat->tokens == 0)
        return bl_fail_at(err, BL_ERR_CONSERVATION, bl_at(path),
                          w->phase < 0
                              ? "the trace holds no tokens: nothing can be concluded from it"
                              : "the trace holds no tokens of this phase");
    return BL_OK;
}

static bl_status read_all(work *w, bl_stat *stat, const char *path, bl_error *err) {
    BL_TRY(bl_stream_open(path, &w->stream, err));
    BL_TRY(bl_trace_info_copy(bl_stream_info(w->stream), &stat->info, err));
    BL_TRY(bl_ledger_create(&stat->info, &w->ledger, err));
    const size_t n_layers = (size_t)stat->info.n_layers;
    BL_TRY(BL_CALLOC(stat->layers, n_layers, err));
    BL_TRY(BL_CALLOC(w->count, n_layers * (size_t)stat->info.n_experts, err));
    for (;;) {
        bl_record record;
        bool got;
        BL_TRY(bl_stream_next(w->stream, &record, &got, err));
        if (!got)
            break;
        BL_TRY(add_record(w, stat, &record, err));
    }
    snprintf(stat->notes, sizeof stat->notes, "%s", bl_stream_notes(w->stream));
    stat->complete = bl_stream_is_complete(w->stream);
    memcpy(stat->digest, bl_stream_digest(w->stream).hex, sizeof stat->digest);
    return judge(w, stat, path, err);
}

bl_status bl_stat_read(const char *path, int phase, bl_stat *out, bl_error *err) {
    work w = {.phase = phase};
    bl_stat stat = {0};
    const bl_status st = read_all(&w, &stat, path, err);
    bl_ledger_free(w.ledger);
    bl_steps_free(&w.steps);
    bl_stream_free(w.stream);
    free(w.count);
    if (st < 0) {
        bl_error_set_file(err, path);
        bl_stat_free(&stat);
    } else {
        *out = stat;
    }
    return st;
}

void bl_stat_free(bl_stat *stat) {
    for (int l = 0; stat->layers != NULL && l < stat->info.n_layers; l++)
        free(stat->layers[l].why);
    free(stat->layers);
    bl_trace_info_free(&stat->info);
    *stat = (bl_stat){0};
}
