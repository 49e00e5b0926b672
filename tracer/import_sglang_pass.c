/*
 * import_sglang_pass.c: dumps of SGLang's expert distribution recorder, modes per_pass and per_token:
 * a .pt file of each rank,
 *
 *     records                        one for each forward pass:
 *         forward_pass_id, rank
 *         global_physical_count      [decoder layer, slot], what this rank adds to the pass
 *         topk_ids_of_layer          [decoder layer, token, 8], slots, -1 behind the k-th;
 *                                    per_token only
 *         forward_mode               per_token only
 *     last_physical_to_logical_map   [decoder layer, slot]
 *
 * Ids are *slots*: the map turns them into experts. It is written into the trace as the map of epoch
 * 0, and the records keep their slots. The map is the one in force when the recording ended. If the
 * experts were rebalanced in between, ids of before mean other experts: ranks whose maps differ are
 * refused, and so is a token whose slots give one expert twice. Counts alone cannot show it.
 *
 * per_token becomes a record for each pass, layer and rank. per_pass is summed over the ranks first,
 * because some dispatch modes count tokens where they arrive: only the sum is tokens * k.
 */
#include "tracer/import_sink.h"

#include "core/mem.h"
#include "tracer/torch.h"

#include <stdlib.h>
#include <string.h>

#define MAX_SUM_BYTES ((size_t)1 << 33)

/* What holds for all files. */
typedef struct recording {
    bl_import_sink *sink;
    bl_rank_files files;
    bool is_tokens; /* per_token */
    size_t n_rows, n_slots;
    int32_t *map; /* [n_rows][n_slots] */
    int n_experts;
    uint64_t *sum; /* per_pass: [pass][n_rows][n_slots] over the ranks */
    int32_t *ids;  /* per_token: scratch, [tokens][k] */
    size_t ids_capacity;
    uint64_t last_pass; /* of the file being surveyed */
    uint64_t unequal;   /* (pass, layer)s of which counts and ids disagree */
} recording;

/* One pass of one rank. */
typedef struct pass {
    uint64_t id;
    int64_t mode;
    const bl_torch_tensor *count, *topk; /* topk is NULL in per_pass */
} pass;

/* ---- reading a file ------------------------------------------------------------------------ */

static const bl_torch_tensor *tensor_of(const bl_torch_value *dict, const char *key, int n_dims) {
    const bl_torch_value *value = bl_torch_get(dict, key);
    const bool good = value != NULL && value->type == BL_TORCH_TENSOR &&
                      value->tensor->n_dims == n_dims &&
                      (value->tensor->kind == 'i' || value->tensor->kind == 'u');
    return good ? value->tensor : NULL;
}

/* A whole number in [0, most] under `key`, or -1. */
static int64_t number_of(const bl_torch_value *dict, const char *key, int64_t most) {
    const bl_torch_value *value = bl_torch_get(dict, key);
    if (value == NULL || value->type != BL_TORCH_INT || value->integer < 0 || value->integer > most)
        return -1;
    return value->integer;
}

static bl_status read_pass(const recording *r, const bl_torch_value *record,
                           const bl_rank_file *file, pass *out, bl_error *err) {
    const char *path = file->path;
    const int64_t id = number_of(record, "forward_pass_id", INT64_MAX);
    if (id < 0 || number_of(record, "rank", BL_MAX_RANKS - 1) != file->rank)
        return bl_fail_at(err, BL_ERR_PARSE, bl_at(path),
                          "a record without forward_pass_id, or not of rank %d", file->rank);
    *out = (pass){.id = (uint64_t)id,
                  .mode = number_of(record, "forward_mode", INT32_MAX),
                  .count = tensor_of(record, "global_physical_count", 2),
                  .topk = tensor_of(record, "topk_ids_of_layer", 3)};
    if (out->count == NULL || out->count->shape[0] != r->n_rows ||
        out->count->shape[1] != r->n_slots)
        return bl_fail_at(err, BL_ERR_SHAPE, bl_at(path),
                          "pass %lld: \"global_physical_count\" is not integers [%zu layers, %zu "
                          "slots] as the map",
                          (long long)id, r->n_rows, r->n_slots);
    if ((bl_torch_get(record, "topk_ids_of_layer") != NULL) != r->is_tokens)
        return bl_fail_at(err, BL_ERR_STATE, bl_at(path),
                          "pass %lld: records of modes per_pass and per_token are mixed",
                          (long long)id);
    if (r->is_tokens && (out->topk == NULL || out->topk->shape[0] != r->n_rows))
        return bl_fail_at(
            err, BL_ERR_SHAPE, bl_at(path),
            "pass %lld: \"topk_ids_of_layer\" is not integers [%zu layers, token, id]",
            (long long)id, r->n_rows);
    return BL_OK;
}

typedef bl_status pass_fn(recording *r, const pass *p, bl_rank_file *file, bl_error *err);

static bl_status each_pass(recording *r, const bl_torch_value *records, bl_rank_file *file,
                           pass_fn *visit, bl_error *err) {
    for (size_t i = 0; i < records->n; i++) {
        pass p = {0};
        BL_TRY(read_pass(r, records->items[i], file, &p, err));
        BL_TRY(visit(r, &p, file, err));
    }
    return BL_OK;
}

/* ---- what all files must agree on ---------------------------------------------------------- */

static int64_t item(const bl_torch_tensor *t, size_t row, size_t column) {
    return bl_torch_int(t, row * t->stride[0] + column * t->stride[1]);
}

/* The first file's map: slots to experts; experts are numbered without gaps. */
static bl_status take_map(recording *r, const bl_torch_tensor *map, const char *path,
                          bl_error *err) {
    r->n_rows = map->shape[0];
    r->n_slots = map->shape[1];
    if (r->n_rows < 1 || r->n_rows > BL_MAX_LAYERS || r->n_slots < 1 ||
        r->n_slots > BL_MAX_IDS_SPACE)
        return bl_fail_at(err, BL_ERR_SHAPE, bl_at(path), "a map of %zu layers and %zu slots",
                          r->n_rows, r->n_slots);
    BL_TRY(BL_CALLOC(r->map, r->n_rows * r->n_slots, err));
    for (size_t row = 0; row < r->n_rows; row++) {
        for (size_t slot = 0; slot < r->n_slots; slot++) {
            const int64_t expert = item(map, row, slot);
            if (expert < 0 || expert >= BL_MAX_EXPERTS)
                return bl_fail_at(err, BL_ERR_RANGE, bl_at(path),
                                  "its map puts expert %lld into slot %zu of row %zu",
                                  (long long)expert, slot, row);
            r->map[row * r->n_slots + slot] = (int32_t)expert;
            if (expert >= r->n_experts)
                r->n_experts = (int)expert + 1;
        }
    }
    return BL_OK;
}

static bl_status same_map(const recording *r, const bl_torch_tensor *map, const char *path,
                          bl_error *err) {
    bool same = map->shape[0] == r->n_rows && map->shape[1] == r->n_slots;
    for (size_t row = 0; same && row < r->n_rows; row++) {
        for (size_t slot = 0; same && slot < r->n_slots; slot++)
            same = item(map, row, slot) == r->map[row * r->n_slots + slot];
    }
    if (!same)
        return bl_fail_at(err, BL_ERR_STATE, bl_at(path),
                          "its map of slots to experts differs from that of %.200s: the files are "
                          "of two recordings, or the experts were rebalanced while they were "
                          "written",
                          r->files.items[0].path);
    return BL_OK;
}

/* Several records of one pass (halves of a batch) add up. */
static bl_status note_pass(recording *r, const pass *p, bl_rank_file *file, bl_error *err) {
    if (file->n_steps > 0 && p->id < r->last_pass)
        return bl_fail_at(err, BL_ERR_RANGE, bl_at(file->path), "pass %llu comes after pass %llu",
                          (unsigned long long)p->id, (unsigned long long)r->last_pass);
    if (file->n_steps == 0 || p->id > r->last_pass)
        file->n_steps++;
    r->last_pass = p->id;
    return bl_steps_add(&r->files.steps, 0, p->id, err);
}

/* Rank, map, mode and passes of a file. */
static bl_status survey(recording *r, const bl_torch_value *root, bl_rank_file *file,
                        bl_error *err) {
    const bl_torch_value *records = bl_torch_get(root, "records");
    const bl_torch_tensor *map = tensor_of(root, "last_physical_to_logical_map", 2);
    if (records == NULL && bl_torch_get(root, "logical_count") != NULL)
        return bl_fail_at(err, BL_ERR_UNSUPPORTED, bl_at(file->path),
                          "a dump of mode stat; import it with --from sglang-stat");
    if (records == NULL || records->type != BL_TORCH_LIST || records->n == 0 || map == NULL)
        return bl_fail_at(err, BL_ERR_PARSE, bl_at(file->path),
                          "no \"records\", or no \"last_physical_to_logical_map\"");
    file->rank = (int)number_of(records->items[0], "rank", BL_MAX_RANKS - 1);
    if (file->rank < 0)
        return bl_fail_at(err, BL_ERR_PARSE, bl_at(file->path),
                          "its records do not say their rank");
    if (r->map == NULL) {
        BL_TRY(take_map(r, map, file->path, err));
        r->is_tokens = bl_torch_get(records->items[0], "topk_ids_of_layer") != NULL;
    }
    BL_TRY(same_map(r, map, file->path, err));
    return each_pass(r, records, file, note_pass, err);
}

/* ---- the map ------------------------------------------------------------------------------- */

/* Slots lie on the ranks in turn, equally many on each. */
static bl_status write_maps(recording *r, const bl_source_shape *shape, bl_error *err) {
    const size_t n_ranks = (size_t)shape->n_ranks;
    int *begin = NULL;
    if (r->n_slots % n_ranks != 0)
        return bl_fail_at(
            err, BL_ERR_SHAPE, bl_at(shape->file),
            "%zu slots do not divide among %zu ranks; say with --ranks how many there "
            "were",
            r->n_slots, n_ranks);
    BL_TRY(BL_CALLOC(begin, n_ranks + 1, err));
    for (size_t rank = 0; rank <= n_ranks; rank++)
        begin[rank] = (int)(rank * (r->n_slots / n_ranks));
    bl_status st = BL_OK;
    for (size_t row = 0; st == BL_OK && row < r->n_rows; row++) {
        const bl_layer_placement map = {.layer = r->sink->rows.layer[row],
                                        .n_ranks = shape->n_ranks,
                                        .n_experts = r->sink->info.n_experts,
                                        .begin = begin,
                                        .expert = r->map + row * r->n_slots};
        if (map.layer != BL_ROW_LEFT_OUT)
            st = bl_blt_write_map(r->sink->writer, &map, err);
    }
    free(begin);
    return st;
}

/* ---- per_token ----------------------------------------------------------------------------- */

static bl_phase phase_of(const bl_import_sink *sink, int64_t mode) {
    static const bl_phase PHASES[] = {BL_PHASE_UNKNOWN, BL_PHASE_PREFILL, BL_PHASE_DECODE,
                                      BL_PHASE_MIXED,   BL_PHASE_IDLE,    BL_PHASE_VERIFY};
    if (sink->options->phase >= 0)
        return (bl_phase)sink->phase;
    return mode > 0 && mode < 6 ? PHASES[mode] : BL_PHASE_UNKNOWN;
}

/* Slots of all tokens in one row; what stands behind the k-th must be empty. */
static bl_status gather(recording *r, const pass *p, size_t row, const char *path, bl_error *err) {
    const bl_torch_tensor *t = p->topk;
    const size_t k = (size_t)r->sink->info.top_k;
    const int layer = r->sink->rows.layer[row];
    for (size_t token = 0; token < t->shape[1]; token++) {
        for (size_t j = 0; j < t->shape[2]; j++) {
            const int64_t slot =
                bl_torch_int(t, row * t->stride[0] + token * t->stride[1] + j * t->stride[2]);
            if (slot >= (int64_t)r->n_slots)
                return bl_fail_at(err, BL_ERR_RANGE, bl_at_layer(path, layer),
                                  "pass %llu: id %lld is not a slot below %zu",
                                  (unsigned long long)p->id, (long long)slot, r->n_slots);
            if (j < k)
                r->ids[token * k + j] = slot < 0 ? BL_EMPTY_SLOT : (int32_t)slot;
            else if (slot >= 0)
                return bl_fail_at(err, BL_ERR_MODEL, bl_at_layer(path, layer),
                                  "pass %llu: a token with %zu ids, but the model is top-%zu",
                                  (unsigned long long)p->id, j + 1, k);
        }
    }
    return BL_OK;
}

/* Two slots of one token never hold one expert under the map the router used. */
static bl_status check_map(const recording *r, const pass *p, size_t row, const char *path,
                           bl_error *err) {
    const size_t k = (size_t)r->sink->info.top_k;
    const int32_t *expert = r->map + row * r->n_slots;
    for (size_t token = 0; token < p->topk->shape[1]; token++) {
        const int32_t *slot = r->ids + token * k;
        for (size_t a = 0; a + 1 < k; a++) {
            for (size_t b = a + 1; b < k; b++) {
                if (slot[a] >= 0 && slot[b] >= 0 && slot[a] != slot[b] &&
                    expert[slot[a]] == expert[slot[b]])
                    return bl_fail_at(
                        err, BL_ERR_STATE,
                        bl_at_expert(path, r->sink->rows.layer[row], expert[slot[a]]),
                        "pass %llu: a token picked it in two slots, so the map is not "
                        "the one in force: the experts were rebalanced while "
                        "recording; record between rebalances",
                        (unsigned long long)p->id);
            }
        }
    }
    return BL_OK;
}

/* The file counts the same ids itself. */
static void compare_counts(recording *r, const pass *p, size_t row) {
    const size_t n_ids = p->topk->shape[1] * (size_t)r->sink->info.top_k;
    uint64_t counted = 0, listed = 0;
    for (size_t slot = 0; slot < r->n_slots; slot++)
        counted += (uint64_t)item(p->count, row, slot);
    for (size_t i = 0; i < n_ids; i++)
        listed += r->ids[i] >= 0;
    r->unequal += counted != listed;
}

static bl_status put_tokens(recording *r, const pass *p, bl_rank_file *file, bl_error *err) {
    bl_import_sink *sink = r->sink;
    const char *path = file->path;
    const size_t k = (size_t)sink->info.top_k, n_tokens = p->topk->shape[1];
    size_t needed = 0;
    void *ids = r->ids;
    if (p->topk->shape[2] < k)
        return bl_fail_at(err, BL_ERR_MODEL, bl_at(path),
                          "its tokens have %zu ids, but the model is top-%zu", p->topk->shape[2],
                          k);
    if (!bl_size_mul(n_tokens, k, &needed))
        return bl_fail_at(err, BL_ERR_RANGE, bl_at(path), "%zu tokens", n_tokens);
    const bl_status st = bl_grow(&ids, &r->ids_capacity, needed + 1, sizeof *r->ids, err);
    r->ids = ids;
    BL_TRY(st);
    const bl_phase phase = phase_of(sink, p->mode);
    const unsigned dummy = p->mode == 4 ? BL_RECORD_DUMMY : 0;
    for (size_t row = 0; row < r->n_rows; row++) {
        if (sink->rows.layer[row] == BL_ROW_LEFT_OUT)
            continue;
        BL_TRY(gather(r, p, row, path, err));
        BL_TRY(check_map(r, p, row, path, err));
        compare_counts(r, p, row);
        const bl_record record = {.step = p->id,
                                  .layer = sink->rows.layer[row],
                                  .rank = file->rank,
                                  .phase = phase,
                                  .flags = BL_RECORD_PHYSICAL | dummy,
                                  .n_ids = (int)r->n_slots,
                                  .n_tokens = n_tokens,
                                  .k = sink->info.top_k,
                                  .ids = r->ids};
        BL_TRY(bl_sink_put(sink, &record, err));
    }
    sink->result.tokens += dummy ? 0 : n_tokens;
    return BL_OK;
}

/* ---- per_pass ------------------------------------------------------------------------------ */

static bl_status add_counts(recording *r, const pass *p, bl_rank_file *file, bl_error *err) {
    const char *path = file->path;
    uint64_t position = 0;
    if (!bl_steps_position(&r->files.steps, 0, p->id, &position))
        return bl_fail_at(err, BL_ERR_IO, bl_at(path), "it changed while it was read");
    uint64_t *sum = r->sum + position * r->n_rows * r->n_slots;
    for (size_t row = 0; row < r->n_rows; row++) {
        const int layer = r->sink->rows.layer[row];
        for (size_t slot = 0; layer != BL_ROW_LEFT_OUT && slot < r->n_slots; slot++) {
            const int64_t count = item(p->count, row, slot);
            if (count < 0 || count > INT32_MAX)
                return bl_fail_at(err, BL_ERR_RANGE, bl_at_layer(path, layer),
                                  "pass %llu: a count of %lld in slot %zu",
                                  (unsigned long long)p->id, (long long)count, slot);
            sum[row * r->n_slots + slot] += (uint64_t)count;
        }
    }
    return BL_OK;
}

static bl_status put_sums(recording *r, bl_error *err) {
    const uint64_t n = bl_steps_number(&r->files.steps);
    for (uint64_t position = 0; position < n; position++) {
        uint32_t run;
        uint64_t tokens;
        bl_record key = {.rank = BL_ALL_RANKS,
                         .phase = (bl_phase)r->sink->phase,
                         .flags = BL_RECORD_PHYSICAL,
                         .n_ids = (int)r->n_slots};
        bl_steps_at(&r->files.steps, position, &run, &key.step);
        BL_TRY(bl_sink_counts(r->sink, &key, r->sum + position * r->n_rows * r->n_slots, &tokens,
                              err));
        r->sink->result.tokens += tokens;
        r->sink->empty_steps += tokens == 0;
    }
    bl_sink_note(r->sink,
                 "counts are turned into experts by the map at the end of the recording; a "
                 "rebalance before it would not show");
    return BL_OK;
}

/* ---- the recording ------------------------------------------------------------------------- */

typedef bl_status file_fn(recording *r, const bl_torch_value *root, bl_rank_file *file,
                          bl_error *err);

/* One file in memory at a time. */
static bl_status each_file(recording *r, file_fn *visit, bl_error *err) {
    for (size_t i = 0; i < r->files.n; i++) {
        bl_torch *torch = NULL;
        BL_TRY(bl_torch_open(r->files.items[i].path, &torch, err));
        const bl_status st = visit(r, bl_torch_root(torch), &r->files.items[i], err);
        bl_torch_free(torch);
        BL_TRY(st);
    }
    return BL_OK;
}

static bl_status import_file(recording *r, const bl_torch_value *root, bl_rank_file *file,
                             bl_error *err) {
    const bl_torch_value *records = bl_torch_get(root, "records");
    if (records == NULL || records->type != BL_TORCH_LIST)
        return bl_fail_at(err, BL_ERR_IO, bl_at(file->path), "it changed while it was read");
    r->sink->file = file->path;
    return each_pass(r, records, file, r->is_tokens ? put_tokens : add_counts, err);
}

static bl_status find_files(recording *r, const char *const *paths, int n_paths, bl_error *err) {
    for (int i = 0; i < n_paths; i++) {
        bool is_folder = false;
        const size_t before = r->files.n;
        BL_TRY(bl_rank_files_list(&r->files, paths[i], "", ".pt", &is_folder, err));
        if (!is_folder)
            BL_TRY(bl_rank_files_add(&r->files, paths[i], -1, err));
        if (r->files.n == before)
            return bl_fail_at(err, BL_ERR_PARSE, bl_at(paths[i]), "no .pt file in it");
    }
    return BL_OK;
}

static bl_status make_sums(recording *r, bl_error *err) {
    size_t cells = 0;
    if (!bl_size_mul((size_t)bl_steps_number(&r->files.steps), r->n_rows * r->n_slots, &cells) ||
        cells > MAX_SUM_BYTES / sizeof *r->sum)
        return bl_fail(err, BL_ERR_RANGE,
                       "too many passes to sum in memory; record fewer at a time");
    return BL_CALLOC(r->sum, cells, err);
}

static bl_status import_recording(recording *r, const char *const *paths, int n_paths,
                                  bl_error *err) {
    BL_TRY(find_files(r, paths, n_paths, err));
    BL_TRY(each_file(r, survey, err));
    bl_source_shape shape = {
        .file = paths[0], .n_rows = (int)r->n_rows, .n_experts = r->n_experts, .phase = -1};
    BL_TRY(bl_rank_files_shape(&r->files, r->sink, &shape, err));
    BL_TRY(bl_sink_begin(r->sink, &shape, err));
    BL_TRY(write_maps(r, &shape, err));
    if (!r->is_tokens)
        BL_TRY(make_sums(r, err));
    BL_TRY(each_file(r, import_file, err));
    if (!r->is_tokens)
        BL_TRY(put_sums(r, err));
    if (r->unequal > 0)
        bl_sink_note(r->sink,
                     "in %llu layers of passes the counts are not those of the ids, which "
                     "were taken",
                     (unsigned long long)r->unequal);
    bl_rank_files_note_steps(&r->files, r->sink);
    return BL_OK;
}

bl_status bl_import_sglang_pass(bl_import_sink *sink, const char *const *paths, int n_paths,
                                bl_error *err) {
    recording r = {.sink = sink};
    const bl_status st = import_recording(&r, paths, n_paths, err);
    bl_rank_files_free(&r.files);
    free(r.map);
    free(r.sum);
    free(r.ids);
    return st;
}
