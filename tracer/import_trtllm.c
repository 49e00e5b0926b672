/*
 * import_trtllm.c: TensorRT-LLM's expert statistics (EXPERT_STATISTIC_PATH), a folder:
 *
 *     meta_info.json         {"num_experts": E, "num_experts_per_token": k}, by rank 0
 *     rank<r>.safetensors    "<iteration>_<decoder layer>": int64 [E], how often each expert was
 *                            picked for this rank's tokens; MoE layers only
 *
 * Iterations are steps, and a folder is a run of its own. rank<r>_raw.safetensors, which some
 * versions write beside them, is not needed.
 */
#include "tracer/import_sink.h"

#include "core/mem.h"
#include "core/safetensors.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* One tensor: the counts of a layer in a step. */
typedef struct cell {
    uint64_t step;
    int layer;
    const bl_safetensor *tensor;
} cell;

typedef struct part {
    bl_safetensors *reader;
    cell *cells; /* [n_cells] by step, then layer */
    size_t n_cells;
} part;

typedef struct folder {
    const char *path;
    bl_rank_files files;
    part *parts; /* [files.n] */
    int n_experts;
    bool *has_layer; /* [BL_MAX_LAYERS] */
    int n_layers;
    int *layers;     /* [n_layers] ascending */
    int64_t *buffer; /* [n_experts] one tensor */
    uint64_t *count; /* [n_layers][n_experts] one step of one rank */
} folder;

/* ---- names and shapes ---------------------------------------------------------------------- */

/* "107_3": iteration 107, decoder layer 3. */
static bool parse_name(const char *name, cell *out) {
    char *end;
    if (name[0] < '0' || name[0] > '9')
        return false;
    errno = 0;
    out->step = strtoull(name, &end, 10);
    if (errno != 0 || out->step > INT64_MAX || end[0] != '_' || end[1] < '0' || end[1] > '9')
        return false;
    const long layer = strtol(end + 1, &end, 10);
    out->layer = layer < BL_MAX_LAYERS ? (int)layer : -1;
    return *end == '\0' && out->layer >= 0;
}

static int by_step(const void *a, const void *b) {
    const cell *x = a, *y = b;
    if (x->step != y->step)
        return x->step < y->step ? -1 : 1;
    return x->layer - y->layer;
}

static bl_status check_tensor(folder *f, const bl_safetensor *tensor, const char *path, cell *out,
                              bl_error *err) {
    if (!parse_name(tensor->name, out))
        return bl_fail_at(err, BL_ERR_PARSE, bl_at(path),
                          "tensor \"%.60s\" is not named ITERATION_LAYER", tensor->name);
    if (strcmp(tensor->dtype, "I64") != 0 || tensor->n_dims != 1 || tensor->shape[0] < 1 ||
        tensor->shape[0] > BL_MAX_EXPERTS ||
        (f->n_experts > 0 && tensor->shape[0] != (uint64_t)f->n_experts))
        return bl_fail_at(err, BL_ERR_SHAPE, bl_at(path),
                          "tensor \"%.60s\" is not a count (I64) for each of %d experts",
                          tensor->name, f->n_experts);
    f->n_experts = (int)tensor->shape[0];
    f->has_layer[out->layer] = true;
    out->tensor = tensor;
    return BL_OK;
}

static bl_status open_part(folder *f, bl_rank_file *file, part *p, bl_error *err) {
    BL_TRY(bl_safetensors_open(file->path, &p->reader, err));
    p->n_cells = bl_safetensors_count(p->reader);
    BL_TRY(BL_CALLOC(p->cells, p->n_cells, err));
    for (size_t i = 0; i < p->n_cells; i++)
        BL_TRY(check_tensor(f, bl_safetensors_at(p->reader, i), file->path, &p->cells[i], err));
    if (p->n_cells > 0)
        qsort(p->cells, p->n_cells, sizeof *p->cells, by_step);
    for (size_t i = 0; i < p->n_cells; i++) {
        if (i > 0 && by_step(&p->cells[i - 1], &p->cells[i]) == 0)
            return bl_fail_at(err, BL_ERR_PARSE, bl_at_layer(file->path, p->cells[i].layer),
                              "two tensors of iteration %llu",
                              (unsigned long long)p->cells[i].step);
        if (i > 0 && p->cells[i - 1].step == p->cells[i].step)
            continue;
        file->n_steps++;
        BL_TRY(bl_steps_add(&f->files.steps, 0, p->cells[i].step, err));
    }
    return BL_OK;
}

/* ---- the folder ---------------------------------------------------------------------------- */

/* Its rank<r>.safetensors; other files between prefix and suffix are not of a rank. */
static bl_status find_files(folder *f, bl_error *err) {
    bool is_folder = false;
    BL_TRY(bl_rank_files_list(&f->files, f->path, "rank", ".safetensors", &is_folder, err));
    size_t kept = 0;
    for (size_t i = 0; i < f->files.n; i++) {
        if (f->files.items[i].rank < 0)
            free(f->files.items[i].path);
        else
            f->files.items[kept++] = f->files.items[i];
    }
    f->files.n = kept;
    if (kept == 0)
        return bl_fail_at(err, BL_ERR_PARSE, bl_at(f->path),
                          is_folder
                              ? "no rank<r>.safetensors in it"
                              : "not a folder; give the one that EXPERT_STATISTIC_PATH named");
    return BL_OK;
}

/* What rank 0 wrote beside the counts; a folder without it is read with a model. */
static bl_status read_meta(const folder *f, bl_source_shape *shape, bl_error *err) {
    char path[4096];
    json_t *root = NULL;
    int64_t n_experts = 0, top_k = 0;
    if (snprintf(path, sizeof path, "%s/meta_info.json", f->path) >= (int)sizeof path)
        return bl_fail_at(err, BL_ERR_RANGE, bl_at(f->path), "its path is too long");
    shape->n_experts = f->n_experts;
    if (access(path, F_OK) != 0)
        return BL_OK;
    BL_TRY(bl_json_load(path, &root, err));
    bl_status st = bl_json_int(root, "num_experts", 1, BL_MAX_EXPERTS, path, &n_experts, err);
    if (st == BL_OK)
        st = bl_json_int(root, "num_experts_per_token", 1, BL_MAX_TOP_K, path, &top_k, err);
    json_decref(root);
    BL_TRY(st);
    if (n_experts != f->n_experts)
        return bl_fail_at(err, BL_ERR_SHAPE, bl_at(path), "%lld experts, but the ranks counted %d",
                          (long long)n_experts, f->n_experts);
    shape->top_k = (int)top_k;
    return BL_OK;
}

static bl_status list_layers(folder *f, bl_error *err) {
    BL_TRY(BL_CALLOC(f->layers, BL_MAX_LAYERS, err));
    for (int layer = 0; layer < BL_MAX_LAYERS; layer++) {
        if (f->has_layer[layer])
            f->layers[f->n_layers++] = layer;
    }
    if (f->n_layers == 0)
        return bl_fail_at(err, BL_ERR_CONSERVATION, bl_at(f->path),
                          "its files hold no counts: nothing can be concluded from it");
    return BL_OK;
}

static int row_of(const folder *f, int layer) {
    int row = 0;
    while (f->layers[row] != layer)
        row++;
    return row;
}

/* ---- counts -------------------------------------------------------------------------------- */

static bl_status read_cell(folder *f, const part *p, const cell *c, const char *path,
                           bl_error *err) {
    const uint64_t shape[1] = {(uint64_t)f->n_experts};
    uint64_t *to = f->count + (size_t)row_of(f, c->layer) * (size_t)f->n_experts;
    BL_TRY(bl_safetensors_read(p->reader, c->tensor->name, "I64", shape, 1, f->buffer, err));
    for (int expert = 0; expert < f->n_experts; expert++) {
        if (f->buffer[expert] < 0)
            return bl_fail_at(err, BL_ERR_RANGE, bl_at_expert(path, c->layer, expert),
                              "a count of %lld", (long long)f->buffer[expert]);
        to[expert] = (uint64_t)f->buffer[expert];
    }
    return BL_OK;
}

static bl_status import_part(folder *f, const part *p, const bl_rank_file *file,
                             bl_import_sink *sink, bl_error *err) {
    sink->file = file->path;
    for (size_t i = 0; i < p->n_cells;) {
        const bl_record key = {.run = sink->run,
                               .step = p->cells[i].step,
                               .rank = file->rank,
                               .phase = (bl_phase)sink->phase,
                               .n_ids = f->n_experts};
        uint64_t tokens = 0;
        memset(f->count, 0, (size_t)f->n_layers * (size_t)f->n_experts * sizeof *f->count);
        for (; i < p->n_cells && p->cells[i].step == key.step; i++)
            BL_TRY(read_cell(f, p, &p->cells[i], file->path, err));
        BL_TRY(bl_sink_counts(sink, &key, f->count, &tokens, err));
        sink->result.tokens += tokens;
    }
    return BL_OK;
}

static bl_status import_folder(folder *f, bl_import_sink *sink, bl_error *err) {
    BL_TRY(find_files(f, err));
    BL_TRY(BL_CALLOC(f->has_layer, BL_MAX_LAYERS, err));
    bl_source_shape shape = {.file = f->path, .phase = -1};
    BL_TRY(bl_rank_files_shape(&f->files, sink, &shape, err));
    BL_TRY(BL_CALLOC(f->parts, f->files.n, err));
    for (size_t i = 0; i < f->files.n; i++)
        BL_TRY(open_part(f, &f->files.items[i], &f->parts[i], err));
    BL_TRY(list_layers(f, err));
    BL_TRY(read_meta(f, &shape, err));
    shape.n_rows = f->n_layers;
    shape.layers = f->layers;
    BL_TRY(bl_sink_begin(sink, &shape, err));
    BL_TRY(BL_CALLOC(f->buffer, f->n_experts, err));
    BL_TRY(BL_CALLOC(f->count, (size_t)f->n_layers * (size_t)f->n_experts, err));
    for (size_t i = 0; i < f->files.n; i++)
        BL_TRY(import_part(f, &f->parts[i], &f->files.items[i], sink, err));
    bl_rank_files_note_steps(&f->files, sink);
    sink->run++;
    return BL_OK;
}

bl_status bl_import_trtllm_stat(bl_import_sink *sink, const char *path, bl_error *err) {
    folder f = {.path = path};
    const bl_status st = import_folder(&f, sink, err);
    for (size_t i = 0; f.parts != NULL && i < f.files.n; i++) {
        bl_safetensors_free(f.parts[i].reader);
        free(f.parts[i].cells);
    }
    free(f.parts);
    free(f.has_layer);
    free(f.layers);
    free(f.buffer);
    free(f.count);
    bl_rank_files_free(&f.files);
    return st;
}
