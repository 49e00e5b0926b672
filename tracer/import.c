/* import.c: the table of importers, and the sink they write into. */
#include "tracer/import_sink.h"

#include "core/mem.h"
#include "tracer/ledger.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_LOAD 0x1p53 /* whole numbers are exact in a double up to here */
#define MAX_SUM ((uint64_t)1 << 53)

const bl_importer bl_importers[] = {
    {.name = "load-json",
     .summary = "load matrix [layer][expert] or [step][layer][expert] in JSON",
     .read = bl_import_load_json},
    {.name = "load-npy",
     .summary = "load matrices as .npy, last two axes layer and expert",
     .read = bl_import_load_npy},
    {.name = "load-csv",
     .summary = "load matrix as CSV, one line per layer",
     .read = bl_import_load_csv},
    {.name = "topk-npy",
     .summary = "expert ids of tokens as .npy [token, layer, k]",
     .is_tokens = true,
     .read = bl_import_topk_npy},
    {.name = "topk-csv",
     .summary = "expert ids of tokens as CSV with the header pos,layer,n,e0,...,w0,...",
     .is_tokens = true,
     .read_all = bl_import_topk_csv},
    {.name = "sglang-stat",
     .summary = "SGLang's expert distribution recorder, modes stat and stat_approx (.pt)",
     .read = bl_import_sglang_stat},
    {.name = "sglang-pass",
     .summary =
         "SGLang's recorder, modes per_pass and per_token, a .pt of each rank or their folder",
     .is_ranks = true,
     .read_all = bl_import_sglang_pass},
    {.name = "sglang-reply",
     .summary = "SGLang's replies with return_routed_experts (JSON)",
     .is_tokens = true,
     .read_all = bl_import_sglang_reply},
    {.name = "vllm-reply",
     .summary = "vLLM's replies with enable_return_routed_experts (JSON)",
     .is_tokens = true,
     .read_all = bl_import_vllm_reply},
    {.name = "trtllm-stat",
     .summary = "TensorRT-LLM's expert statistics, a folder",
     .is_ranks = true,
     .read = bl_import_trtllm_stat},
    {0}};

void bl_sink_note(bl_import_sink *sink, const char *format, ...) {
    char *notes = sink->result.notes;
    const size_t size = sizeof sink->result.notes, used = strlen(notes);
    const char *between = used > 0 ? "; " : "";
    if (used + 3 >= size)
        return;
    memcpy(notes + used, between, strlen(between) + 1);
    va_list args;
    va_start(args, format);
    vsnprintf(notes + used + strlen(between), size - used - strlen(between), format, args);
    va_end(args);
}

/* ---- the shape ----------------------------------------------------------------------------- */

/* One number that several sources may state; those that do must agree. */
static bl_status agree(const char *what, int by_model, int by_file, int by_user, const char *file,
                       int *out, bl_error *err) {
    *out = by_model > 0 ? by_model : by_file > 0 ? by_file : by_user;
    if (by_model > 0 && by_file > 0 && by_model != by_file)
        return bl_fail_at(err, BL_ERR_MODEL, bl_at(file), "%d %s, but the model has %d", by_file,
                          what, by_model);
    if (by_user > 0 && *out != by_user)
        return bl_fail_at(err, BL_ERR_MODEL, bl_at(file), "%d %s, but --top-k says %d", *out, what,
                          by_user);
    return BL_OK;
}

static bl_status find_info(bl_import_sink *sink, const bl_source_shape *shape, bl_error *err) {
    const bl_model *model = sink->options->model;
    int n_experts, top_k;
    BL_TRY(agree("experts", model != NULL ? model->n_experts : 0, shape->n_experts, 0, shape->file,
                 &n_experts, err));
    BL_TRY(agree("experts per token", model != NULL ? model->top_k : 0, shape->top_k,
                 sink->options->top_k, shape->file, &top_k, err));
    if (n_experts == 0 || top_k == 0)
        return bl_fail_at(err, BL_ERR_MODEL, bl_at(shape->file),
                          n_experts == 0
                              ? "it does not say how many experts there are; give --model"
                              : "it does not say how many experts a token picks; give "
                                "--model or --top-k");
    BL_TRY(bl_layer_rows_find(sink->options->layers, shape->layers, shape->n_rows, model,
                              shape->file, &sink->rows, err));
    int *layers = NULL, n_layers = 0;
    BL_TRY(BL_CALLOC(layers, shape->n_rows, err));
    for (int row = 0; row < shape->n_rows; row++) {
        if (sink->rows.layer[row] != BL_ROW_LEFT_OUT)
            layers[n_layers++] = sink->rows.layer[row];
    }
    const char *name = model != NULL          ? model->name
                       : shape->model != NULL ? shape->model
                                              : "unnamed";
    const bl_status st = bl_trace_info_create(name, layers, n_layers, n_experts, top_k,
                                              sink->format, &sink->info, err);
    free(layers);
    return st;
}

static bl_status set_ranks(bl_import_sink *sink, const bl_source_shape *shape, bl_error *err) {
    if (shape->n_ranks > 0)
        return bl_trace_info_set_ranks(&sink->info, shape->n_ranks, shape->present,
                                       shape->n_present, err);
    if (sink->options->compose_batch == 0)
        return BL_OK;
    const int n = sink->options->compose_ranks;
    int *present = NULL;
    BL_TRY(BL_CALLOC(present, n, err));
    for (int rank = 0; rank < n; rank++)
        present[rank] = rank;
    const bl_status st = bl_trace_info_set_ranks(&sink->info, n, present, n, err);
    free(present);
    return st;
}

static bl_status begin_first(bl_import_sink *sink, const bl_source_shape *shape, bl_error *err) {
    BL_TRY(find_info(sink, shape, err));
    BL_TRY(set_ranks(sink, shape, err));
    size_t cells = 0;
    if (!bl_size_mul((size_t)shape->n_rows, (size_t)sink->info.n_experts, &cells))
        return bl_fail(err, BL_ERR_RANGE, "too many layers and experts");
    BL_TRY(BL_CALLOC(sink->counts, cells, err));
    BL_TRY(BL_CALLOC(sink->sums, shape->n_rows, err));
    BL_TRY(BL_CALLOC(sink->sorted, shape->n_rows, err));
    if (sink->rows.n_dense > 0)
        bl_sink_note(sink, "%d dense layer%s left out", sink->rows.n_dense,
                     sink->rows.n_dense == 1 ? "" : "s");
    if (sink->rows.n_mtp > 0)
        bl_sink_note(sink,
                     "%d row of a multi-token-prediction layer left out: a draft model is a model "
                     "of its own",
                     sink->rows.n_mtp);
    sink->result.n_layers = sink->info.n_layers;
    BL_TRY(bl_blt_create(sink->out, &sink->info, false, &sink->writer, err));
    bl_blt_as_sets(sink->writer, sink->options->sets);
    return BL_OK;
}

/* A trace says once which ranks it has. */
static bl_status same_ranks(const bl_import_sink *sink, const bl_source_shape *shape,
                            bl_error *err) {
    if (shape->n_ranks == 0)
        return BL_OK;
    bool same = sink->info.n_ranks == shape->n_ranks && sink->info.n_present == shape->n_present;
    for (int i = 0; same && i < shape->n_present; i++)
        same = sink->info.present[i] == shape->present[i];
    if (!same)
        return bl_fail_at(err, BL_ERR_SHAPE, bl_at(shape->file),
                          "%d of %d ranks, which are not those before; import it on its own",
                          shape->n_present, shape->n_ranks);
    return BL_OK;
}

bl_status bl_sink_begin(bl_import_sink *sink, const bl_source_shape *shape, bl_error *err) {
    sink->file = shape->file;
    sink->phase = sink->options->phase >= 0 ? sink->options->phase
                  : shape->phase >= 0       ? shape->phase
                                            : BL_PHASE_UNKNOWN;
    if (sink->writer == NULL)
        return begin_first(sink, shape, err);
    bl_import_sink again = {.format = sink->format, .options = sink->options};
    bl_status st = find_info(&again, shape, err);
    if (st == BL_OK)
        st = bl_trace_info_same_model(&sink->info, &again.info, shape->file, err);
    if (st == BL_OK && again.rows.n_rows != sink->rows.n_rows)
        st = bl_fail_at(err, BL_ERR_SHAPE, bl_at(shape->file), "%d layer rows, but %d before",
                        again.rows.n_rows, sink->rows.n_rows);
    if (st == BL_OK)
        st = same_ranks(sink, shape, err);
    bl_trace_info_free(&again.info);
    bl_layer_rows_free(&again.rows);
    return st;
}

bl_status bl_sink_read_side_json(const char *path, json_t **root_p, bl_error *err) {
    *root_p = NULL;
    const char *slash = strrchr(path, '/'), *dot = strrchr(path, '.');
    if (dot == NULL || (slash != NULL && dot < slash))
        return BL_OK;
    const size_t stem = (size_t)(dot - path);
    char *side = bl_calloc(stem + 6, 1);
    if (side == NULL)
        return bl_fail(err, BL_ERR_NOMEM, "out of memory");
    memcpy(side, path, stem);
    memcpy(side + stem, ".json", 6);
    bl_status st = BL_OK;
    if (access(side, F_OK) == 0) {
        st = bl_json_load(side, root_p, err);
        if (st == BL_OK && !json_is_object(*root_p)) { /* data of its own, not a description */
            json_decref(*root_p);
            *root_p = NULL;
        }
    }
    free(side);
    return st;
}

static bl_status layers_from_json(const json_t *list, bl_source_shape *shape, int **layers_p,
                                  bl_error *err) {
    if (json_array_size(list) != (size_t)shape->n_rows)
        return bl_fail_at(err, BL_ERR_SHAPE, bl_at(shape->file),
                          "%d layer rows, but %zu \"layer_ids\"", shape->n_rows,
                          json_array_size(list));
    BL_TRY(BL_CALLOC(*layers_p, shape->n_rows, err));
    for (int row = 0; row < shape->n_rows; row++) {
        const json_t *item = json_array_get(list, (size_t)row);
        const json_int_t id = json_is_integer(item) ? json_integer_value(item) : -1;
        if (id < 0 || id > INT32_MAX || (row > 0 && id <= (*layers_p)[row - 1]))
            return bl_fail_at(err, BL_ERR_RANGE, bl_at(shape->file),
                              "\"layer_ids\" are not ascending decoder-layer ids");
        (*layers_p)[row] = (int)id;
    }
    shape->layers = *layers_p;
    return BL_OK;
}

bl_status bl_sink_shape_from_json(const json_t *root, bl_source_shape *shape, int **layers_p,
                                  bl_error *err) {
    int64_t n_experts, top_k;
    const char *phase;
    BL_TRY(bl_json_int_or(root, "num_experts", 1, BL_MAX_EXPERTS, shape->n_experts, shape->file,
                          &n_experts, err));
    BL_TRY(bl_json_int_or(root, "top_k", 1, BL_MAX_TOP_K, shape->top_k, shape->file, &top_k, err));
    BL_TRY(bl_json_string_or(root, "model", NULL, shape->file, &shape->model, err));
    BL_TRY(bl_json_string_or(root, "phase", NULL, shape->file, &phase, err));
    if (shape->n_experts > 0 && n_experts != shape->n_experts)
        return bl_fail_at(err, BL_ERR_SHAPE, bl_at(shape->file),
                          "rows of %d experts, but \"num_experts\" is %lld", shape->n_experts,
                          (long long)n_experts);
    if (shape->top_k > 0 && top_k != shape->top_k)
        return bl_fail_at(err, BL_ERR_SHAPE, bl_at(shape->file),
                          "%d ids per token, but \"top_k\" is %lld", shape->top_k,
                          (long long)top_k);
    shape->n_experts = (int)n_experts;
    shape->top_k = (int)top_k;
    for (int p = 0; phase != NULL && bl_phase_names[p] != NULL; p++) {
        if (strcmp(phase, bl_phase_names[p]) == 0)
            shape->phase = p;
    }
    const json_t *list = json_object_get(root, "layer_ids");
    if (list == NULL || json_is_null(list))
        return BL_OK;
    return layers_from_json(list, shape, layers_p, err);
}

/* ---- steps of loads ------------------------------------------------------------------------ */

/* One row of loads as whole counts; all 0 when the row cannot be used. */
static bl_status whole_row(bl_import_sink *sink, const double *load, int row, uint64_t *count,
                           bl_error *err) {
    const int layer = sink->rows.layer[row], n_experts = sink->info.n_experts;
    for (int expert = 0; expert < n_experts; expert++) {
        const double value = load[expert];
        if (!isfinite(value) || value < 0) {
            if (sink->bad_rows++ == 0)
                snprintf(sink->first_bad_row, sizeof sink->first_bad_row,
                         "step %llu, layer %d, expert %d: %g", (unsigned long long)sink->next_step,
                         layer, expert, value);
            memset(count, 0, (size_t)n_experts * sizeof *count);
            return BL_OK;
        }
        if (value != floor(value) || value > MAX_LOAD)
            return bl_fail_at(
                err, BL_ERR_RANGE, bl_at_expert(sink->file, layer, expert),
                "a load of %g is no count of tokens; scale the loads to whole numbers", value);
        count[expert] = (uint64_t)value;
    }
    return BL_OK;
}

/* Tokens of a step: as stated, else what most layers agree on. A sum that is no multiple of k is
 * explained by the fewest empty slots that can be. */
static void find_tokens(bl_import_sink *sink, uint64_t stated, uint64_t *tokens,
                        uint64_t *n_empty) {
    const uint64_t k = (uint64_t)sink->info.top_k;
    *tokens = stated;
    *n_empty = 0;
    if (stated > 0)
        return;
    int n = 0;
    for (int row = 0; row < sink->rows.n_rows; row++) {
        if (sink->rows.layer[row] != BL_ROW_LEFT_OUT)
            sink->sorted[n++] = sink->sums[row];
    }
    const uint64_t sum = bl_usual_value(sink->sorted, n);
    *tokens = (sum + k - 1) / k;
    *n_empty = *tokens * k - sum;
    sink->padded_steps += *n_empty > 0;
}

/* Sums of the rows that are kept; *any when there is a count at all. */
static bl_status sum_rows(bl_import_sink *sink, const uint64_t *count, int n_ids, bool *any,
                          bl_error *err) {
    *any = false;
    for (int row = 0; row < sink->rows.n_rows; row++) {
        const int layer = sink->rows.layer[row];
        sink->sums[row] = 0;
        for (int id = 0; layer != BL_ROW_LEFT_OUT && id < n_ids; id++) {
            const uint64_t value = count[(size_t)row * (size_t)n_ids + (size_t)id];
            if (value > MAX_SUM || sink->sums[row] > MAX_SUM - value)
                return bl_fail_at(err, BL_ERR_RANGE, bl_at_layer(sink->file, layer),
                                  "loads that sum to more than %llu", (unsigned long long)MAX_SUM);
            sink->sums[row] += value;
        }
        *any = *any || sink->sums[row] > 0;
    }
    return BL_OK;
}

bl_status bl_sink_counts(bl_import_sink *sink, const bl_record *key, const uint64_t *count,
                         uint64_t *tokens_p, bl_error *err) {
    bool any = false;
    bl_record record = *key;
    BL_TRY(sum_rows(sink, count, key->n_ids, &any, err));
    record.k = sink->info.top_k;
    find_tokens(sink, key->n_tokens, &record.n_tokens, &record.n_empty);
    for (int row = 0; any && row < sink->rows.n_rows; row++) {
        record.layer = sink->rows.layer[row];
        record.counts = count + (size_t)row * (size_t)key->n_ids;
        if (sink->sums[row] > 0)
            BL_TRY(bl_sink_put(sink, &record, err));
    }
    *tokens_p = any ? record.n_tokens : 0;
    return BL_OK;
}

bl_status bl_sink_loads(bl_import_sink *sink, const double *load, uint64_t stated, bl_error *err) {
    const size_t n_experts = (size_t)sink->info.n_experts;
    for (int row = 0; row < sink->rows.n_rows; row++) {
        const size_t at = (size_t)row * n_experts;
        if (sink->rows.layer[row] != BL_ROW_LEFT_OUT)
            BL_TRY(whole_row(sink, load + at, row, sink->counts + at, err));
    }
    const bl_record key = {.step = sink->next_step++,
                           .rank = BL_ALL_RANKS,
                           .phase = (bl_phase)sink->phase,
                           .n_ids = sink->info.n_experts,
                           .n_tokens = stated};
    uint64_t tokens = 0;
    BL_TRY(bl_sink_counts(sink, &key, sink->counts, &tokens, err));
    sink->result.tokens += tokens;
    sink->empty_steps += tokens == 0;
    return BL_OK;
}

/* ---- records ------------------------------------------------------------------------------- */

static bool is_equal_row(const int32_t *row, int k) {
    for (int j = 1; j < k; j++) {
        if (row[j] != row[0])
            return false;
    }
    return k > 1 && row[0] != BL_EMPTY_SLOT;
}

bl_status bl_sink_put(bl_import_sink *sink, const bl_record *record, bl_error *err) {
    for (uint64_t i = 0; record->ids != NULL && i < record->n_tokens; i++)
        sink->equal_rows += is_equal_row(record->ids + i * (uint64_t)record->k, record->k);
    if (record->n_tokens > 0 && !(record->flags & BL_RECORD_DUMMY))
        BL_TRY(bl_steps_add(&sink->steps, record->run, record->step, err));
    return bl_blt_write(sink->writer, record, err);
}

/* ---- the whole import ---------------------------------------------------------------------- */

bl_status bl_import_parse_compose(const char *text, bl_import_options *options, bl_error *err) {
    char *end;
    int64_t batch = 0;
    long ranks = 1;
    const char *at = text;
    bool good = *at != '\0';
    while (good && *at != '\0') {
        errno = 0;
        if (strncmp(at, "batch=", 6) == 0) {
            batch = strtoll(at + 6, &end, 10);
            good = end != at + 6;
        } else if (strncmp(at, "ranks=", 6) == 0) {
            ranks = strtol(at + 6, &end, 10);
            good = end != at + 6;
        } else {
            good = false;
        }
        if (!good || errno != 0 || (*end != ',' && *end != '\0'))
            good = false;
        else
            at = *end == ',' ? end + 1 : end;
    }
    if (!good || batch < 1 || batch > INT32_MAX || ranks < 1 || ranks > BL_MAX_RANKS)
        return bl_fail(err, BL_ERR_USAGE,
                       "--compose takes batch=TOKENS,ranks=RANKS, such as batch=256,ranks=8, not "
                       "\"%s\"",
                       text);
    if (batch % ranks != 0)
        return bl_fail(err, BL_ERR_USAGE,
                       "a batch of %lld tokens does not divide into %ld ranks; try batch=%lld",
                       (long long)batch, ranks, (long long)((batch + ranks - 1) / ranks * ranks));
    options->compose_batch = batch;
    options->compose_ranks = (int)ranks;
    return BL_OK;
}

static const bl_importer *find_importer(const char *format) {
    for (const bl_importer *importer = bl_importers; importer->name != NULL; importer++) {
        if (strcmp(importer->name, format) == 0)
            return importer;
    }
    return NULL;
}

static bl_status read_inputs(bl_import_sink *sink, const bl_importer *importer,
                             const char *const *paths, int n_paths, bl_error *err) {
    if (importer->read_all != NULL)
        return importer->read_all(sink, paths, n_paths, err);
    for (int i = 0; i < n_paths; i++) {
        const bl_status st = importer->read(sink, paths[i], err);
        if (st < 0) {
            bl_error_set_file(err, paths[i]);
            return st;
        }
    }
    return BL_OK;
}

static void add_notes(bl_import_sink *sink) {
    if (sink->empty_steps > 0)
        bl_sink_note(sink, "%llu steps without tokens left out",
                     (unsigned long long)sink->empty_steps);
    if (sink->missing_tokens > 0)
        bl_sink_note(sink, "%llu tokens of which no layer has an id left out",
                     (unsigned long long)sink->missing_tokens);
    if (sink->equal_rows > 0)
        bl_sink_note(sink,
                     "%llu rows of %d equal ids left out: no router picks them, they come from "
                     "buffers that were never filled",
                     (unsigned long long)sink->equal_rows, sink->info.top_k);
    if (sink->bad_rows > 0)
        bl_sink_note(sink, "%llu rows that are no counts left out, the first at %s",
                     (unsigned long long)sink->bad_rows, sink->first_bad_row);
    if (sink->padded_steps > 0)
        bl_sink_note(sink,
                     "in %llu steps the counts are no multiple of top-%d: the rest is taken as "
                     "empty slots",
                     (unsigned long long)sink->padded_steps, sink->info.top_k);
}

static bl_status read_all(bl_import_sink *sink, const bl_importer *importer,
                          const char *const *paths, int n_paths, bl_error *err) {
    BL_TRY(read_inputs(sink, importer, paths, n_paths, err));
    sink->result.steps = bl_steps_number(&sink->steps);
    if (sink->result.steps == 0)
        return bl_fail_at(err, BL_ERR_CONSERVATION, bl_at(paths[0]),
                          "it holds no tokens: nothing can be concluded from it");
    add_notes(sink);
    return BL_OK;
}

bl_status bl_import(const char *format, const char *const *paths, int n_paths,
                    const bl_import_options *options, const char *out, bl_import_result *result,
                    bl_error *err) {
    const bl_importer *importer = find_importer(format);
    if (importer == NULL || n_paths < 1)
        return bl_fail(err, BL_ERR_USAGE, "no importer \"%s\", or nothing to import", format);
    if (options->compose_batch > 0 && !importer->is_tokens)
        return bl_fail(err, BL_ERR_USAGE,
                       "--compose makes steps from tokens; %s holds steps already", format);
    if (options->ranks > 0 && !importer->is_ranks)
        return bl_fail(err, BL_ERR_USAGE, "--ranks is for files of single ranks; %s has none",
                       format);
    bl_import_sink sink = {.format = format, .out = out, .options = options};
    bl_status st = read_all(&sink, importer, paths, n_paths, err);
    if (st == BL_OK)
        st = bl_blt_close(sink.writer, err);
    else
        bl_blt_abandon(sink.writer);
    if (st == BL_OK)
        *result = sink.result;
    bl_trace_info_free(&sink.info);
    bl_layer_rows_free(&sink.rows);
    bl_steps_free(&sink.steps);
    free(sink.counts);
    free(sink.sums);
    free(sink.sorted);
    return st;
}
