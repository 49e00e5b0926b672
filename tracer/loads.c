/*
 * loads.c: two passes over the trace. The first reads keys only and numbers the steps; the second
 * counts, for the steps that were asked for. So memory is what the answer needs.
 */
#include "tracer/loads.h"

#include "core/mem.h"
#include "tracer/ledger.h"
#include "tracer/steps.h"
#include "tracer/stream.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_COUNT_BYTES ((size_t)1 << 35) /* a table larger than this is a mistake, not a wish */
#define MAX_SOURCE_BYTES ((size_t)1 << 32)
#define NO_ROW SIZE_MAX

typedef struct part {
    bl_stream *stream;
    bl_steps steps;
    uint64_t first, end; /* positions of its steps over all parts */
    bl_ledger *ledger;
} part;

typedef struct work {
    part *parts;
    int n_parts;
    const bl_loads_options *options;
    bl_loads *loads;
    int *column; /* [layers of the trace] index in loads->layers */
    const bl_trace_info *info;
    uint64_t *record_count; /* [n_experts] scratch, where sources are kept */
} work;

static bool is_selected(const bl_loads_options *o, uint64_t position) {
    const uint64_t first = o->first_step > 0 ? (uint64_t)o->first_step : 0;
    const uint64_t end = o->end_step > 0 ? (uint64_t)o->end_step : 0;
    const bool excepted = o->except_end > o->except_first && o->except_end > 0 &&
                          position >= (uint64_t)(o->except_first > 0 ? o->except_first : 0) &&
                          position < (uint64_t)o->except_end;
    return position >= first && position < end && !excepted;
}

/* ---- first pass: which steps there are ----------------------------------------------------- */

/* Which ranks do tokens come from? */
static void note_source(bl_loads *loads, const bl_record *record) {
    if (record->n_tokens == 0 || (record->flags & BL_RECORD_DUMMY))
        return;
    if (record->rank >= loads->n_sources)
        loads->n_sources = record->rank + 1;
    if (record->rank < 0 && loads->sources_why[0] == '\0')
        snprintf(loads->sources_why, sizeof loads->sources_why,
                 "the records of layer %d, step %llu are summed over ranks: the trace does not say "
                 "where tokens come from",
                 record->layer, (unsigned long long)record->step);
}

static bl_status scan(part *p, uint64_t first, bl_loads *loads, bl_error *err) {
    bl_stream_skip_bodies(p->stream, true);
    for (;;) {
        bl_record record;
        bool got;
        BL_TRY(bl_stream_next(p->stream, &record, &got, err));
        if (!got)
            break;
        BL_TRY(bl_steps_add(&p->steps, record.run, record.step, err));
        loads->composed = loads->composed || (record.flags & BL_RECORD_COMPOSED) != 0;
        note_source(loads, &record);
    }
    bl_stream_skip_bodies(p->stream, false);
    bl_stream_rewind(p->stream);
    p->first = first;
    p->end = first + bl_steps_number(&p->steps);
    return BL_OK;
}

static void add_notes(bl_loads *loads, const bl_stream *stream) {
    const char *notes = bl_stream_notes(stream);
    loads->complete = loads->complete && bl_stream_is_complete(stream);
    if (notes[0] == '\0')
        return;
    const size_t used = strlen(loads->notes);
    snprintf(loads->notes + used, sizeof loads->notes - used, "%s%s", used > 0 ? "; " : "", notes);
}

static bl_status open_parts(work *w, const char *const *paths, const bl_model *model,
                            bl_error *err) {
    uint64_t first = 0;
    for (int i = 0; i < w->n_parts; i++) {
        part *p = &w->parts[i];
        BL_TRY(bl_stream_open(paths[i], &p->stream, err));
        const bl_trace_info *info = bl_stream_info(p->stream);
        if (i == 0)
            w->info = info;
        BL_TRY(bl_trace_info_same_model(w->info, info, paths[i], err));
        if (model != NULL)
            BL_TRY(bl_trace_info_fits_model(info, model, paths[i], err));
        BL_TRY(bl_ledger_create(info, &p->ledger, err));
        if (info->n_ranks > w->loads->n_sources)
            w->loads->n_sources = info->n_ranks;
        BL_TRY(scan(p, first, w->loads, err));
        first = p->end;
        add_notes(w->loads, p->stream);
    }
    w->loads->trace_steps = first;
    return BL_OK;
}

/* A trace of one part has that part's digest. */
static bl_status digest_parts(const work *w, bl_error *err) {
    bl_loads *loads = w->loads;
    BL_TRY(BL_CALLOC(loads->parts, w->n_parts, err));
    loads->n_parts = w->n_parts;
    bl_hasher *hasher = bl_hasher_new();
    if (hasher == NULL)
        return bl_fail(err, BL_ERR_NOMEM, "out of memory");
    bl_digest digest = {""};
    for (int i = 0; i < w->n_parts; i++) {
        bl_loads_part *told = &loads->parts[i];
        digest = bl_stream_digest(w->parts[i].stream);
        bl_hasher_add(hasher, digest.hex, sizeof digest.hex);
        memcpy(told->digest, digest.hex, sizeof told->digest);
        told->first = w->parts[i].first;
        told->end = w->parts[i].end;
    }
    const bl_digest all = bl_hasher_finish(hasher);
    memcpy(loads->digest, w->n_parts > 1 ? all.hex : digest.hex, sizeof loads->digest);
    return BL_OK;
}

/* ---- shape of the answer ------------------------------------------------------------------- */

static bl_status set_layers(work *w, const bl_model *model, bl_error *err) {
    bl_loads *loads = w->loads;
    loads->n_layers = model != NULL ? model->n_moe_layers : w->info->n_layers;
    loads->n_experts = w->info->n_experts;
    loads->top_k = w->info->top_k;
    snprintf(loads->model_name, sizeof loads->model_name, "%s", w->info->model);
    BL_TRY(BL_CALLOC(loads->layers, loads->n_layers, err));
    BL_TRY(BL_CALLOC(loads->usable, loads->n_layers, err));
    BL_TRY(BL_CALLOC(loads->why, loads->n_layers, err));
    BL_TRY(BL_CALLOC(w->column, w->info->n_layers, err));
    memcpy(loads->layers, model != NULL ? model->moe_layers : w->info->layers,
           (size_t)loads->n_layers * sizeof *loads->layers);
    for (int l = 0; l < loads->n_layers; l++) {
        const int at = bl_trace_layer_index(w->info, loads->layers[l]);
        if (at >= 0)
            w->column[at] = l;
    }
    return BL_OK;
}

static bl_status set_steps(work *w, bl_error *err) {
    bl_loads *loads = w->loads;
    size_t n = 0;
    for (uint64_t position = 0; position < loads->trace_steps; position++)
        n += is_selected(w->options, position);
    size_t cells = 0;
    if (!bl_size_mul(n, (size_t)loads->n_layers, &cells) ||
        !bl_size_mul(cells, (size_t)loads->n_experts, &cells) ||
        cells > MAX_COUNT_BYTES / sizeof *loads->count)
        return bl_fail(err, BL_ERR_RANGE,
                       "%zu steps of %d layers and %d experts do not fit into memory; choose some "
                       "with --steps",
                       n, loads->n_layers, loads->n_experts);
    BL_TRY(BL_CALLOC(loads->step_id, n, err));
    BL_TRY(BL_CALLOC(loads->count, cells, err));
    for (uint64_t position = 0; position < loads->trace_steps; position++) {
        if (is_selected(w->options, position))
            loads->step_id[loads->n_steps++] = position;
    }
    return BL_OK;
}

/* Room for counts apart by source, and for tokens. Without sources n_sources is 0. */
static bl_status set_views(work *w, bl_error *err) {
    bl_loads *loads = w->loads;
    const bool wanted = w->options->sources != BL_SOURCES_NONE;
    size_t cells = 0;
    if (w->options->most_tokens > 0)
        BL_TRY(bl_tokens_create(loads->n_layers, loads->top_k, w->options->most_tokens,
                                &loads->sample, err));
    if (wanted && loads->sources_why[0] == '\0' &&
        (!bl_size_mul(loads->n_steps, (size_t)loads->n_layers, &cells) ||
         !bl_size_mul(cells, (size_t)loads->n_sources, &cells) ||
         !bl_size_mul(cells, (size_t)loads->n_experts, &cells) ||
         cells > MAX_SOURCE_BYTES / sizeof *loads->source_count))
        snprintf(loads->sources_why, sizeof loads->sources_why,
                 "counts of %zu steps, %d layers and %d ranks apart do not fit into memory; choose "
                 "steps with --steps",
                 loads->n_steps, loads->n_layers, loads->n_sources);
    if (w->options->sources == BL_SOURCES_REQUIRED && loads->sources_why[0] != '\0')
        return bl_fail(err, BL_ERR_UNSUPPORTED, "%s", loads->sources_why);
    if (!wanted || loads->sources_why[0] != '\0') {
        loads->n_sources = 0;
        return BL_OK;
    }
    BL_TRY(BL_CALLOC(w->record_count, loads->n_experts, err));
    return BL_CALLOC(loads->source_count, cells, err);
}

/* ---- second pass: the counts --------------------------------------------------------------- */

static size_t row_of(const bl_loads *loads, uint64_t position) {
    size_t low = 0, high = loads->n_steps;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (loads->step_id[middle] < position)
            low = middle + 1;
        else
            high = middle;
    }
    return low < loads->n_steps && loads->step_id[low] == position ? low : NO_ROW;
}

static bl_status add_source(work *w, const bl_record *record, size_t row, int layer_index,
                            bl_error *err) {
    bl_loads *loads = w->loads;
    memset(w->record_count, 0, (size_t)loads->n_experts * sizeof *w->record_count);
    BL_TRY(bl_record_add_counts(record, w->record_count, err));
    uint32_t *to = loads->source_count + ((row * (size_t)loads->n_layers + (size_t)layer_index) *
                                              (size_t)loads->n_sources +
                                          (size_t)record->rank) *
                                             (size_t)loads->n_experts;
    for (int expert = 0; expert < loads->n_experts; expert++) {
        if (w->record_count[expert] > UINT32_MAX - to[expert])
            return bl_fail_at(err, BL_ERR_RANGE, bl_at_expert(NULL, record->layer, expert),
                              "a step of more than 2^32 rows from rank %d", record->rank);
        to[expert] += (uint32_t)w->record_count[expert];
    }
    return BL_OK;
}

static bl_status add_record(work *w, part *p, const bl_record *record, bl_error *err) {
    bl_loads *loads = w->loads;
    uint64_t position = 0, assignments = 0;
    const bool phase_fits = w->options->phase < 0 || w->options->phase == (int)record->phase;
    if ((record->flags & BL_RECORD_DUMMY) || !phase_fits ||
        !bl_steps_position(&p->steps, record->run, record->step, &position))
        return BL_OK;
    const size_t row = row_of(loads, p->first + position);
    if (row == NO_ROW)
        return BL_OK;
    const int layer_index = w->column[bl_trace_layer_index(w->info, record->layer)];
    const size_t at =
        (row * (size_t)loads->n_layers + (size_t)layer_index) * (size_t)loads->n_experts;
    if (!bl_record_assignments(record, &assignments))
        return bl_fail_at(err, BL_ERR_RANGE, bl_at_layer(NULL, record->layer),
                          "counts that do not fit into 64 bits");
    BL_TRY(bl_ledger_add(p->ledger, record, assignments, err));
    if (loads->sample.most > 0)
        BL_TRY(bl_tokens_add(&loads->sample, layer_index, record, p->first + position, err));
    if (loads->source_count != NULL && record->rank >= 0)
        BL_TRY(add_source(w, record, row, layer_index, err));
    return bl_record_add_counts(record, loads->count + at, err);
}

/* Let the stream skip chunks that hold none of the steps that were asked for. */
static void narrow(const work *w, part *p) {
    const bl_loads *loads = w->loads;
    uint64_t lowest = UINT64_MAX, highest = 0;
    for (size_t i = 0; i < loads->n_steps; i++) {
        if (loads->step_id[i] < p->first || loads->step_id[i] >= p->end)
            continue;
        uint32_t run;
        uint64_t step;
        bl_steps_at(&p->steps, loads->step_id[i] - p->first, &run, &step);
        lowest = step < lowest ? step : lowest;
        highest = step > highest ? step : highest;
    }
    bl_stream_only_steps(p->stream, lowest, highest < UINT64_MAX ? highest + 1 : highest);
}

static bl_status count(work *w, part *p, bl_error *err) {
    narrow(w, p);
    for (;;) {
        bl_record record;
        bool got;
        BL_TRY(bl_stream_next(p->stream, &record, &got, err));
        if (!got)
            break;
        BL_TRY(add_record(w, p, &record, err));
    }
    bl_ledger_finish(p->ledger);
    w->loads->tokens += bl_ledger_tokens(p->ledger);
    w->loads->dropped += bl_stream_dropped(p->stream);
    return BL_OK;
}

/* ---- the verdict --------------------------------------------------------------------------- */

static bl_status judge_layers(work *w, bl_error *err) {
    bl_loads *loads = w->loads;
    for (int l = 0; l < loads->n_layers; l++) {
        const int at = bl_trace_layer_index(w->info, loads->layers[l]);
        const char *why = at < 0 ? "the trace does not have this layer" : NULL;
        for (int i = 0; i < w->n_parts && why == NULL; i++) {
            if (bl_ledger_tokens(w->parts[i].ledger) > 0)
                why = bl_ledger_why_bad(w->parts[i].ledger, at);
        }
        loads->usable[l] = why == NULL;
        if (why != NULL && (loads->why[l] = strdup(why)) == NULL)
            return bl_fail(err, BL_ERR_NOMEM, "out of memory");
    }
    return BL_OK;
}

static bool has_load(const uint64_t *counts, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (counts[i] != 0)
            return true;
    }
    return false;
}

/* A step in which nothing was routed (or nothing of the phase asked for) is absent, not zero. */
static void drop_empty_steps(bl_loads *loads) {
    const size_t step_cells = (size_t)loads->n_layers * (size_t)loads->n_experts;
    const size_t source_cells = step_cells * (size_t)loads->n_sources;
    size_t kept = 0;
    for (size_t step = 0; step < loads->n_steps; step++) {
        const uint64_t *from = loads->count + step * step_cells;
        if (!has_load(from, step_cells))
            continue;
        memmove(loads->count + kept * step_cells, from, step_cells * sizeof *from);
        if (loads->source_count != NULL)
            memmove(loads->source_count + kept * source_cells,
                    loads->source_count + step * source_cells,
                    source_cells * sizeof *loads->source_count);
        loads->step_id[kept++] = loads->step_id[step];
    }
    loads->n_steps = kept;
}

static bl_status read_parts(work *w, const char *const *paths, const bl_model *model,
                            bl_error *err) {
    BL_TRY(open_parts(w, paths, model, err));
    BL_TRY(digest_parts(w, err));
    BL_TRY(set_layers(w, model, err));
    BL_TRY(set_steps(w, err));
    const bl_status viewed = set_views(w, err);
    if (viewed < 0) {
        bl_error_set_file(err, paths[0]);
        return viewed;
    }
    const bool asked_for_some = w->loads->n_steps < w->loads->trace_steps || w->options->phase >= 0;
    for (int i = 0; i < w->n_parts; i++) {
        const bl_status st = count(w, &w->parts[i], err);
        if (st < 0) {
            bl_error_set_file(err, paths[i]);
            return st;
        }
    }
    BL_TRY(judge_layers(w, err));
    BL_TRY(bl_tokens_finish(&w->loads->sample, err));
    drop_empty_steps(w->loads);
    if (w->loads->n_steps == 0 && !asked_for_some)
        return bl_fail_at(err, BL_ERR_CONSERVATION, bl_at(paths[0]),
                          "the trace holds no tokens: nothing can be concluded from it");
    if (w->loads->n_steps == 0)
        return bl_fail_at(err, BL_ERR_RANGE, bl_at(paths[0]),
                          "no tokens in the steps and the phase that were asked for (the trace has "
                          "%llu steps)",
                          (unsigned long long)w->loads->trace_steps);
    return BL_OK;
}

bl_status bl_loads_read(const char *const *paths, int n_paths, const bl_model *model,
                        const bl_loads_options *options, bl_loads *out, bl_error *err) {
    if (n_paths < 1)
        return bl_fail(err, BL_ERR_USAGE, "no trace was given");
    bl_loads loads = {.complete = true};
    work w = {.n_parts = n_paths, .options = options, .loads = &loads};
    BL_TRY(BL_CALLOC(w.parts, n_paths, err));
    const bl_status st = read_parts(&w, paths, model, err);
    for (int i = 0; i < n_paths; i++) {
        bl_ledger_free(w.parts[i].ledger);
        bl_steps_free(&w.parts[i].steps);
        bl_stream_free(w.parts[i].stream);
    }
    free(w.parts);
    free(w.column);
    free(w.record_count);
    if (st < 0)
        bl_loads_free(&loads);
    else
        *out = loads;
    return st;
}

void bl_loads_free(bl_loads *loads) {
    free(loads->layers);
    free(loads->usable);
    for (int l = 0; loads->why != NULL && l < loads->n_layers; l++)
        free(loads->why[l]);
    free(loads->why);
    free(loads->step_id);
    free(loads->count);
    free(loads->source_count);
    bl_tokens_free(&loads->sample);
    free(loads->parts);
    *loads = (bl_loads){0};
}

void bl_loads_tell_sample(const bl_loads *loads, const char *name, FILE *out) {
    const bl_token_layer *thinnest = NULL;
    for (int l = 0; loads->sample.most > 0 && l < loads->sample.n_layers; l++) {
        const bl_token_layer *layer = &loads->sample.layers[l];
        if (layer->n < layer->n_seen && (thinnest == NULL || layer->n_seen > thinnest->n_seen))
            thinnest = layer;
    }
    if (thinnest != NULL)
        fprintf(out,
                "%s: what depends on which experts a token picks together is told from a sample, "
                "%zu of %llu tokens per layer\n",
                name, thinnest->n, (unsigned long long)thinnest->n_seen);
}

void bl_loads_tell(const bl_loads *loads, const char *name, const char *model_name, int64_t first,
                   int64_t end, FILE *out) {
    if (loads->notes[0] != '\0')
        fprintf(out, "%s: %s\n", name, loads->notes);
    if (end != INT64_MAX && end > first && (uint64_t)end > loads->trace_steps)
        fprintf(out, "%s: has %llu steps, so --steps %lld:%lld ends at %llu\n", name,
                (unsigned long long)loads->trace_steps, (long long)first, (long long)end,
                (unsigned long long)loads->trace_steps);
    if (loads->model_name[0] != '\0' && model_name[0] != '\0' &&
        strcmp(loads->model_name, model_name) != 0)
        fprintf(out,
                "%s: was recorded from model \"%s\", not \"%s\"; if they are not the same under "
                "two names, what follows means nothing\n",
                name, loads->model_name, model_name);
}
