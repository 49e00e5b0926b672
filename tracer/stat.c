#include "tracer/stat.h"

#include "core/mem.h"
#include "tracer/ledger.h"
#include "tracer/stat_born.h"
#include "tracer/steps.h"
#include "tracer/stream.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_CELLS ((size_t)1 << 24)     /* layers x experts: some dozen tables of so many numbers */
#define PAIRS_BYTES ((uint64_t)1 << 26) /* of a trace, looked at for pairs: some seconds of work */

typedef struct work {
    const bl_stat_options *options;
    bl_stat *stat;
    bl_stream *stream;
    bl_ledger *ledger;
    bl_steps steps; /* all of the trace; filled when some were asked for */
    uint64_t trace_steps;
    bool select_steps;
    bl_open_steps *open;
    bl_stat_ranks *ranks; /* NULL without a plan, or one that looks at sources: then */
    bl_stat_born *born;   /* this */
    bl_stat_slots *slots;
    bl_stat_pairs *pairs;
    bl_stat_sources *sources;
    bl_stat_drift *drift;
    uint64_t *row; /* [n_experts] counts of one record */
} work;

/* ---- opening ------------------------------------------------------------------------------- */

/* Let the stream skip chunks without any of the steps asked for, where step numbers alone tell. */
static void narrow(work *w) {
    const bl_stat_options *o = w->options;
    const uint64_t first = o->first_step > 0 ? (uint64_t)o->first_step : 0;
    uint64_t end = o->end_step > 0 ? (uint64_t)o->end_step : 0;
    end = end < w->trace_steps ? end : w->trace_steps;
    if (first >= end)
        return;
    uint32_t run_of_first, run_of_last;
    uint64_t lowest, highest;
    bl_steps_at(&w->steps, first, &run_of_first, &lowest);
    bl_steps_at(&w->steps, end - 1, &run_of_last, &highest);
    if (run_of_first == run_of_last)
        bl_stream_only_steps(w->stream, lowest, highest < UINT64_MAX ? highest + 1 : highest);
}

/* A pass over the keys, so that --steps can count over what there is. */
static bl_status number_steps(work *w, bl_error *err) {
    bl_stream_skip_bodies(w->stream, true);
    for (;;) {
        bl_record record;
        bool got;
        BL_TRY(bl_stream_next(w->stream, &record, &got, err));
        if (!got)
            break;
        BL_TRY(bl_steps_add(&w->steps, record.run, record.step, err));
    }
    bl_stream_skip_bodies(w->stream, false);
    bl_stream_rewind(w->stream);
    w->trace_steps = bl_steps_number(&w->steps);
    narrow(w);
    return BL_OK;
}

static bl_status step_over(void *user, const bl_step_counts *step, bl_error *err) {
    work *w = user;
    if (w->ranks != NULL)
        BL_TRY(bl_stat_ranks_step(w->ranks, step, err));
    return bl_stat_drift_step(w->drift, step, err);
}

static bl_status open_plan(work *w, bl_error *err) {
    const bl_trace_info *info = &w->stat->info;
    const bl_stat_plan *plan = &w->options->plan;
    if (plan->placement->n_experts != info->n_experts)
        return bl_fail(err, BL_ERR_MODEL, "a plan for %d experts, but the trace has %d",
                       plan->placement->n_experts, info->n_experts);
    if (plan->rule == BL_RULE_LOCAL)
        return bl_fail(err, BL_ERR_USAGE,
                       "the rule \"%s\" looks at each token's experts together; ballast replay "
                       "scores such plans",
                       bl_rule_names[plan->rule]);
    if (bl_rule_needs_sources(plan->rule))
        return bl_stat_born_create(info, plan, &w->born, err);
    return bl_stat_ranks_create(info, plan, &w->ranks, err);
}

static bl_status open_parts(work *w, bl_error *err) {
    const bl_trace_info *info = &w->stat->info;
    const uint64_t every = bl_stream_raw_bytes(w->stream) / PAIRS_BYTES + 1;
    if ((size_t)info->n_layers > MAX_CELLS / (size_t)info->n_experts)
        return bl_fail(err, BL_ERR_RANGE, "%d layers of %d experts are too many for statistics",
                       info->n_layers, info->n_experts);
    BL_TRY(bl_ledger_create(info, &w->ledger, err));
    BL_TRY(BL_CALLOC(w->stat->layers, info->n_layers, err));
    BL_TRY(BL_CALLOC(w->row, info->n_experts, err));
    if (w->options->plan.placement != NULL)
        BL_TRY(open_plan(w, err));
    BL_TRY(bl_open_steps_create(info, info->n_experts, step_over, w, &w->open, err));
    BL_TRY(bl_stat_slots_create(info, &w->slots, err));
    BL_TRY(bl_stat_pairs_create(info, every, &w->pairs, err));
    BL_TRY(bl_stat_sources_create(info, &w->sources, err));
    return bl_stat_drift_create(info, &w->drift, err);
}

static void close_parts(work *w) {
    bl_ledger_free(w->ledger);
    bl_steps_free(&w->steps);
    bl_open_steps_free(w->open);
    bl_stat_ranks_free(w->ranks);
    bl_stat_born_free(w->born);
    bl_stat_slots_free(w->slots);
    bl_stat_pairs_free(w->pairs);
    bl_stat_sources_free(w->sources);
    bl_stat_drift_free(w->drift);
    bl_stream_free(w->stream);
    free(w->row);
}

/* ---- the pass ------------------------------------------------------------------------------ */

static bool is_selected(work *w, const bl_record *record) {
    const bl_stat_options *o = w->options;
    uint64_t position = 0;
    if (o->phase >= 0 && o->phase != (int)record->phase)
        return false;
    if (!w->select_steps)
        return true;
    return bl_steps_position(&w->steps, record->run, record->step, &position) &&
           position <= INT64_MAX && (int64_t)position >= o->first_step &&
           (int64_t)position < o->end_step;
}

static uint64_t padding_rows(const bl_record *record) {
    uint64_t rows = 0;
    for (uint64_t token = 0; record->ids != NULL && record->n_empty > 0 && token < record->n_tokens;
         token++) {
        const int32_t *row = record->ids + token * (uint64_t)record->k;
        bool empty = true;
        for (int i = 0; i < record->k; i++)
            empty = empty && row[i] == BL_EMPTY_SLOT;
        rows += empty;
    }
    return rows;
}

static bl_status phase_of(work *w, const bl_record *record, bl_stat_phase **phase_p,
                          bl_error *err) {
    bl_stat_phase *phase = &w->stat->phases[record->phase];
    const size_t n_layers = (size_t)w->stat->info.n_layers;
    if (phase->count == NULL) {
        BL_TRY(BL_CALLOC(phase->count, n_layers * (size_t)w->stat->info.n_experts, err));
        BL_TRY(BL_CALLOC(phase->layers, n_layers, err));
    }
    *phase_p = phase;
    return BL_OK;
}

/* Add the counts of a record to several rows: by way of one, when the record is worth it. */
static bl_status add_counts(work *w, const bl_record *record, uint64_t assignments,
                            uint64_t *const rows[], int n_rows, bl_error *err) {
    const int n = w->stat->info.n_experts;
    if (assignments * 2 < (uint64_t)n) {
        for (int i = 0; i < n_rows; i++)
            BL_TRY(bl_record_add_counts(record, rows[i], err));
        return BL_OK;
    }
    memset(w->row, 0, (size_t)n * sizeof *w->row);
    BL_TRY(bl_record_add_counts(record, w->row, err));
    for (int i = 0; i < n_rows; i++) {
        for (int expert = 0; expert < n; expert++)
            rows[i][expert] += w->row[expert];
    }
    return BL_OK;
}

static bl_status enter(work *w, const bl_record *record, int layer_index, uint64_t assignments,
                       bl_error *err) {
    uint64_t *rows[3];
    int n_rows = 0;
    bl_stat_phase *phase = NULL;
    BL_TRY(phase_of(w, record, &phase, err));
    bl_expert_figures *figures = &phase->layers[layer_index];
    if (assignments > UINT64_MAX / 16 - figures->assignments)
        return bl_fail_at(err, BL_ERR_RANGE, bl_at_layer(NULL, record->layer),
                          "counts that do not fit into 64 bits");
    figures->tokens += record->n_tokens;
    figures->assignments += assignments;
    figures->empty += record->n_empty;
    figures->padding_rows += padding_rows(record);
    rows[n_rows++] = phase->count + (size_t)layer_index * (size_t)w->stat->info.n_experts;
    BL_TRY(bl_open_steps_row(w->open, record, layer_index, &rows[n_rows++], err));
    BL_TRY(bl_stat_sources_row(w->sources, record, layer_index, &rows[n_rows], err));
    n_rows += rows[n_rows] != NULL;
    BL_TRY(add_counts(w, record, assignments, rows, n_rows, err));
    if (w->born != NULL)
        BL_TRY(bl_stat_born_add(w->born, record, layer_index, err));
    return bl_stat_pairs_add(w->pairs, record, layer_index, err);
}

/* A record that counts nothing: its rank has come this far. */
static bl_status pass_by(work *w, const bl_record *record, bl_error *err) {
    if (w->born != NULL)
        BL_TRY(bl_stat_born_note(w->born, record, err));
    return bl_open_steps_note(w->open, record, err);
}

static bl_status to_logical(work *w, bl_record *record, int layer_index, bool is_load,
                            bl_error *err) {
    if (!(record->flags & BL_RECORD_PHYSICAL))
        return BL_OK;
    const bl_layer_placement *map = bl_stream_map(w->stream, record);
    if (is_load && map != NULL && bl_layer_n_slots(map) == record->n_ids)
        BL_TRY(bl_stat_slots_add(w->slots, record, layer_index, map, err));
    return bl_stream_to_logical(w->stream, record, err); /* says what is wrong with the map */
}

static bl_status add_record(work *w, bl_record *record, bl_error *err) {
    bl_stat *stat = w->stat;
    if (!is_selected(w, record))
        return BL_OK;
    const int at = bl_trace_layer_index(&stat->info, record->layer);
    const bool is_dummy = (record->flags & BL_RECORD_DUMMY) != 0;
    stat->records++;
    stat->composed = stat->composed || (record->flags & BL_RECORD_COMPOSED) != 0;
    if (is_dummy) {
        stat->dummy_records++;
        stat->layers[at].dummy_tokens += record->n_tokens;
        return pass_by(w, record, err);
    }
    BL_TRY(to_logical(w, record, at, record->n_tokens > 0, err));
    uint64_t assignments = 0;
    if (!bl_record_assignments(record, &assignments))
        return bl_fail_at(err, BL_ERR_RANGE, bl_at_layer(NULL, record->layer),
                          "counts that do not fit into 64 bits");
    BL_TRY(bl_ledger_add(w->ledger, record, assignments, err));
    if (record->n_tokens == 0 && assignments == 0)
        return pass_by(w, record, err);
    return enter(w, record, at, assignments, err);
}

/* ---- figures ------------------------------------------------------------------------------- */

uint64_t bl_stat_count(const bl_stat *stat, int layer_index, int expert) {
    const size_t at = (size_t)layer_index * (size_t)stat->info.n_experts + (size_t)expert;
    uint64_t sum = 0;
    for (int phase = 0; phase < BL_N_PHASES; phase++)
        sum += stat->phases[phase].count != NULL ? stat->phases[phase].count[at] : 0;
    return sum;
}

/* Keep the most picked experts, the lower number first among equals. */
static void offer_hottest(bl_expert_figures *f, const uint64_t *count, int expert) {
    if (count[expert] == 0 || (f->n_hottest == BL_STAT_HOTTEST &&
                               count[expert] <= count[f->hottest[BL_STAT_HOTTEST - 1]]))
        return;
    int at = f->n_hottest < BL_STAT_HOTTEST ? f->n_hottest++ : BL_STAT_HOTTEST - 1;
    while (at > 0 && count[f->hottest[at - 1]] < count[expert]) {
        f->hottest[at] = f->hottest[at - 1];
        at--;
    }
    f->hottest[at] = expert;
}

static void judge_experts(bl_expert_figures *f, const uint64_t *count, int n_experts) {
    uint64_t most = 0;
    double sum = 0.0, entropy = 0.0;
    for (int expert = 0; expert < n_experts; expert++) {
        f->n_idle += count[expert] == 0;
        sum += (double)count[expert];
        most = count[expert] > most ? count[expert] : most;
        offer_hottest(f, count, expert);
    }
    for (int expert = 0; expert < n_experts && sum > 0.0; expert++) {
        const double p = (double)count[expert] / sum;
        entropy -= p > 0.0 ? p * log(p) : 0.0;
    }
    f->max_over_mean = sum > 0.0 ? (double)most * n_experts / sum : 1.0;
    f->entropy = !(sum > 0.0) ? NAN : n_experts > 1 ? entropy / log(n_experts) : 1.0;
    f->effective = sum > 0.0 ? exp(entropy) : NAN;
}

static void judge_layer(work *w, int l) {
    bl_stat *stat = w->stat;
    const int n_experts = stat->info.n_experts;
    bl_expert_figures *f = &stat->layers[l].experts;
    for (int p = 0; p < BL_N_PHASES; p++) {
        bl_stat_phase *phase = &stat->phases[p];
        if (phase->count == NULL)
            continue;
        const bl_expert_figures *part = &phase->layers[l];
        f->tokens += part->tokens;
        f->assignments += part->assignments;
        f->empty += part->empty;
        f->padding_rows += part->padding_rows;
        judge_experts(&phase->layers[l], phase->count + (size_t)l * (size_t)n_experts, n_experts);
    }
    for (int expert = 0; expert < n_experts; expert++)
        w->row[expert] = bl_stat_count(stat, l, expert);
    judge_experts(f, w->row, n_experts);
}

static bl_status judge_layers(work *w, bl_error *err) {
    bl_stat *stat = w->stat;
    bl_ledger_finish(w->ledger);
    stat->tokens = bl_ledger_tokens(w->ledger);
    for (int phase = 0; phase < BL_N_PHASES; phase++)
        stat->phases[phase].tokens = bl_ledger_phase_tokens(w->ledger, (bl_phase)phase);
    for (int l = 0; l < stat->info.n_layers; l++) {
        bl_stat_layer *layer = &stat->layers[l];
        const char *why = bl_ledger_why_bad(w->ledger, l);
        layer->layer = stat->info.layers[l];
        layer->conserved = why == NULL;
        if (why != NULL && (layer->why = strdup(why)) == NULL)
            return bl_fail(err, BL_ERR_NOMEM, "out of memory");
        judge_layer(w, l);
    }
    return BL_OK;
}

/* Why there is nothing to tell. */
static bl_status no_tokens(const work *w, const char *path, bl_error *err) {
    const bl_stat *stat = w->stat;
    const bl_where at = bl_at(path);
    const unsigned long long records = (unsigned long long)stat->records;
    if (w->select_steps)
        return bl_fail_at(err, BL_ERR_RANGE, at,
                          "no tokens in the steps that were asked for (the trace has %llu steps)",
                          (unsigned long long)w->trace_steps);
    if (w->options->phase >= 0)
        return bl_fail_at(err, BL_ERR_CONSERVATION, at, "the trace holds no tokens of this phase");
    if (stat->records == 0 && stat->notes[0] != '\0')
        return bl_fail_at(err, BL_ERR_CONSERVATION, at, "the trace holds no tokens: %s",
                          stat->notes);
    if (stat->records > 0 && stat->dummy_records == stat->records)
        return bl_fail_at(err, BL_ERR_CONSERVATION, at,
                          "the trace holds no tokens: all of its %llu records are of dummy steps",
                          records);
    if (stat->records > 0)
        return bl_fail_at(err, BL_ERR_CONSERVATION, at,
                          "the trace holds no tokens: its %llu records are of steps without any",
                          records);
    return bl_fail_at(err, BL_ERR_CONSERVATION, at,
                      "the trace holds no tokens: nothing can be concluded from it");
}

static bl_status judge(work *w, const char *path, bl_error *err) {
    bl_stat *stat = w->stat;
    stat->dropped = bl_stream_dropped(w->stream);
    BL_TRY(bl_open_steps_finish(w->open, err));
    stat->steps = bl_open_steps_closed(w->open);
    stat->late_steps = bl_open_steps_late(w->open);
    BL_TRY(judge_layers(w, err));
    if (stat->tokens == 0)
        return no_tokens(w, path, err);
    if (w->ranks != NULL)
        BL_TRY(bl_stat_ranks_finish(w->ranks, &stat->predicted, err));
    if (w->born != NULL)
        BL_TRY(bl_stat_born_finish(w->born, &stat->predicted, err));
    BL_TRY(bl_stat_slots_finish(w->slots, &stat->realised, err));
    BL_TRY(bl_stat_pairs_finish(w->pairs, &stat->pairs, err));
    BL_TRY(bl_stat_sources_finish(w->sources, w->ranks != NULL ? &stat->predicted : NULL,
                                  &stat->sources, err));
    if (w->born != NULL)
        BL_TRY(bl_stat_born_traffic(w->born, &stat->sources, err));
    return bl_stat_drift_finish(w->drift, &stat->drift, err);
}

static bl_status read_all(work *w, const char *path, bl_error *err) {
    bl_stat *stat = w->stat;
    BL_TRY(bl_stream_open(path, &w->stream, err));
    BL_TRY(bl_trace_info_copy(bl_stream_info(w->stream), &stat->info, err));
    BL_TRY(open_parts(w, err));
    w->select_steps = w->options->first_step > 0 || w->options->end_step != INT64_MAX;
    if (w->select_steps)
        BL_TRY(number_steps(w, err));
    bl_stream_keep_slots(w->stream, true);
    for (;;) {
        bl_record record;
        bool got;
        BL_TRY(bl_stream_next(w->stream, &record, &got, err));
        if (!got)
            break;
        BL_TRY(add_record(w, &record, err));
    }
    snprintf(stat->notes, sizeof stat->notes, "%s", bl_stream_notes(w->stream));
    stat->complete = bl_stream_is_complete(w->stream);
    memcpy(stat->digest, bl_stream_digest(w->stream).hex, sizeof stat->digest);
    return judge(w, path, err);
}

bl_status bl_stat_read(const char *path, const bl_stat_options *options, bl_stat *out,
                       bl_error *err) {
    bl_stat stat = {0};
    work w = {.options = options, .stat = &stat};
    const bl_status st = read_all(&w, path, err);
    close_parts(&w);
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
    for (int phase = 0; phase < BL_N_PHASES; phase++) {
        free(stat->phases[phase].count);
        free(stat->phases[phase].layers);
    }
    bl_rank_figures_free(&stat->predicted);
    bl_rank_figures_free(&stat->realised);
    bl_pairs_result_free(&stat->pairs);
    bl_sources_result_free(&stat->sources);
    bl_drift_result_free(&stat->drift);
    bl_trace_info_free(&stat->info);
    *stat = (bl_stat){0};
}
