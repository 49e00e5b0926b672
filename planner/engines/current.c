#include "planner/engines/current.h"

#include "core/io.h"
#include "core/yaml.h"
#include "planner/engines/engine.h"

#include <stdlib.h>
#include <string.h>

#define NPY_MAGIC "\x93NUMPY"
#define ZIP_MAGIC "PK\x03\x04"

/* The one engine that claims the file. */
static bl_status recognise(const bl_engine_file *file, const bl_engine **engine_p, bl_error *err) {
    const bl_engine *found = NULL;
    for (const bl_engine *const *e = bl_engines; *e != NULL; e++) {
        if (!(*e)->is(file))
            continue;
        if (found != NULL)
            return bl_fail_at(err, BL_ERR_PARSE, bl_at(file->path),
                              "has marks of two formats, %s and %s", found->title, (*e)->title);
        found = *e;
    }
    if (found == NULL)
        return bl_fail_at(err, BL_ERR_PARSE, bl_at(file->path),
                          "is not a placement Ballast knows: neither a plan (\"format\"), nor a "
                          "file of SGLang, TensorRT-LLM, vllm-ascend, omni-infer, EPLB or patched "
                          "vLLM");
    *engine_p = found;
    return BL_OK;
}

static bl_status from_engine(const bl_engine_file *file, const bl_model *model, int n_ranks,
                             bl_plan *out, int *duplicates, bl_error *err) {
    const bl_engine *engine = NULL;
    bl_placement placement;
    BL_TRY(recognise(file, &engine, err));
    BL_TRY(bl_engine_read(engine, file, model, n_ranks, &placement, duplicates, err));
    const bl_status st = bl_plan_create(model, &placement, out, err);
    bl_placement_free(&placement);
    return st;
}

static bool starts_with(const char *bytes, size_t n_bytes, const char *magic) {
    return n_bytes >= strlen(magic) && memcmp(bytes, magic, strlen(magic)) == 0;
}

static bool is_json(const char *bytes, size_t n_bytes) {
    size_t at = 0;
    while (at < n_bytes && strchr(" \t\r\n", bytes[at]) != NULL && bytes[at] != '\0')
        at++;
    return at < n_bytes && (bytes[at] == '{' || bytes[at] == '[');
}

bl_status bl_current_parse(const char *bytes, size_t n_bytes, const char *name,
                           const bl_model *model, int n_ranks, bl_plan *out, int *duplicates,
                           bl_error *err) {
    bl_npy npy;
    json_t *tree;
    *duplicates = 0;
    if (starts_with(bytes, n_bytes, ZIP_MAGIC))
        return bl_fail_at(err, BL_ERR_UNSUPPORTED, bl_at(name),
                          "is an archive (.pt, .npz), which is not read as a placement; save the "
                          "map as JSON or .npy");
    if (starts_with(bytes, n_bytes, NPY_MAGIC)) {
        BL_TRY(bl_npy_parse(bytes, n_bytes, name, &npy, err));
        const bl_engine_file file = {.path = name, .npy = &npy};
        return from_engine(&file, model, n_ranks, out, duplicates, err);
    }
    BL_TRY(is_json(bytes, n_bytes) ? bl_json_parse(bytes, n_bytes, name, &tree, err)
                                   : bl_yaml_parse(bytes, n_bytes, name, &tree, err));
    const bl_engine_file file = {.path = name, .tree = tree};
    const bl_status st = json_object_get(tree, "format") != NULL
                             ? bl_plan_from_json(tree, name, out, err)
                             : from_engine(&file, model, n_ranks, out, duplicates, err);
    json_decref(tree);
    return st;
}

bl_status bl_current_load(const char *path, const bl_model *model, int n_ranks, bl_plan *out,
                          int *duplicates, bl_error *err) {
    char *bytes = NULL;
    size_t n_bytes = 0;
    BL_TRY(bl_read_file(path, BL_JSON_MAX_BYTES, &bytes, &n_bytes, err));
    const bl_status st =
        bl_current_parse(bytes, n_bytes, path, model, n_ranks, out, duplicates, err);
    free(bytes);
    return st;
}
