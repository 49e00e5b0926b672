/*
 * import_reply.c: the experts of single tokens as engines return them with a reply.
 *
 *     vLLM     choices[].routed_experts                     nested lists [token, layer, k], or
 *                                                           base64 of a whole .npy file of it
 *     SGLang   meta_info.routed_experts, or that of         base64 of raw integers
 *              choices[].sgl_ext (OpenAI routes)            [token, decoder layer, k]
 *
 * Ids are logical; prompt and generated tokens without the last one. What is behind the base64 is
 * told by its content. Each reply is one sequence. A reply has no step and no rank: steps are
 * composed (tracer/import_compose.c). Negative ids are missing. Rows that the engine never filled
 * read as zeros, "expert 0, k times", and are no data.
 *
 * Engines keep routes with the KV cache, so tokens served from a cached prefix come with routes
 * though no expert ran for them here: such a trace is right for which experts go together and
 * overstates load.
 */
#include "tracer/import_sink.h"

#include "core/base64.h"
#include "core/mem.h"

#include <stdlib.h>
#include <string.h>

typedef struct replies replies;

/* `holder` is the object that holds the value, `usage` what the reply says of its tokens; either
 * may be NULL. */
typedef bl_status take_fn(replies *r, const json_t *value, const json_t *holder,
                          const json_t *usage, bl_error *err);

struct replies {
    bl_import_sink *sink;
    const char *file;
    bl_token_table table;
    take_fn *take;
    const char *ask; /* how to ask the engine for them */
};

/* ---- finding them -------------------------------------------------------------------------- */

enum { MAX_DEPTH = 6 };

static bl_status find(replies *r, const json_t *node, const json_t *usage, int depth,
                      bl_error *err) {
    static const char *const INSIDE[] = {"meta_info", "sgl_ext", "choices"};
    if (depth > MAX_DEPTH)
        return BL_OK;
    for (size_t i = 0; json_is_array(node) && i < json_array_size(node); i++)
        BL_TRY(find(r, json_array_get(node, i), usage, depth + 1, err));
    if (!json_is_object(node))
        return BL_OK;
    const json_t *value = json_object_get(node, "routed_experts");
    if (json_array_size(json_object_get(node, "choices")) == 1)
        usage = json_object_get(node, "usage");
    if (value != NULL && !json_is_null(value))
        return r->take(r, value, node, usage, err);
    for (size_t i = 0; i < sizeof INSIDE / sizeof INSIDE[0]; i++)
        BL_TRY(find(r, json_object_get(node, INSIDE[i]), usage, depth + 1, err));
    return BL_OK;
}

/* A document may also be the value alone. */
static bl_status read_document(replies *r, const json_t *root, bl_error *err) {
    const size_t before = r->table.n_sequences;
    if (json_is_string(root) || json_is_array(json_array_get(root, 0)))
        BL_TRY(r->take(r, root, NULL, NULL, err));
    else
        BL_TRY(find(r, root, NULL, 0, err));
    if (r->table.n_sequences == before)
        return bl_fail_at(err, BL_ERR_PARSE, bl_at(r->file),
                          "no \"routed_experts\" in it; requests must ask for them (%s)", r->ask);
    return BL_OK;
}

static bl_status read_replies(replies *r, const char *const *paths, int n_paths, bl_error *err) {
    for (int i = 0; i < n_paths; i++) {
        json_t *root = NULL;
        r->file = paths[i];
        BL_TRY(bl_json_load(paths[i], &root, err));
        const bl_status st = read_document(r, root, err);
        json_decref(root);
        BL_TRY(st);
    }
    const bl_source_shape shape = {
        .file = paths[0], .n_rows = (int)r->table.n_rows, .top_k = (int)r->table.k, .phase = -1};
    BL_TRY(bl_sink_begin(r->sink, &shape, err));
    return bl_token_table_put(&r->table, r->sink, err);
}

static int32_t narrow(int64_t id) {
    return id < 0 ? BL_EMPTY_SLOT : id > INT32_MAX ? INT32_MAX : (int32_t)id;
}

/* ---- vLLM ---------------------------------------------------------------------------------- */

static bl_status from_npy(replies *r, const unsigned char *bytes, size_t n_bytes, bl_error *err) {
    bl_npy npy = {0};
    BL_TRY(bl_npy_parse(bytes, n_bytes, r->file, &npy, err));
    if (npy.n_dims != 3 || (npy.kind != 'i' && npy.kind != 'u'))
        return bl_fail_at(err, BL_ERR_SHAPE, bl_at(r->file),
                          "its \"routed_experts\" are not integers with the axes token, layer, k");
    int32_t *ids = NULL;
    BL_TRY(bl_token_table_begin(&r->table, npy.shape[1], npy.shape[2], r->file, err));
    BL_TRY(bl_token_table_add(&r->table, npy.shape[0], &ids, err));
    for (size_t i = 0; i < npy.n_items; i++)
        ids[i] = narrow(bl_npy_int(&npy, i));
    return BL_OK;
}

/* Ids of one token, [layer][k]; the first token has fixed the shape. */
static bl_status token_from_list(replies *r, const json_t *token, size_t number, int32_t *ids,
                                 bl_error *err) {
    const size_t k = r->table.k;
    bool good = json_array_size(token) == r->table.n_rows;
    for (size_t row = 0; good && row < r->table.n_rows; row++) {
        const json_t *list = json_array_get(token, row);
        good = json_array_size(list) == k;
        for (size_t j = 0; good && j < k; j++) {
            const json_t *id = json_array_get(list, j);
            good = json_is_integer(id);
            ids[row * k + j] = good ? narrow(json_integer_value(id)) : BL_EMPTY_SLOT;
        }
    }
    if (!good)
        return bl_fail_at(err, BL_ERR_SHAPE, bl_at(r->file),
                          "token %zu is not %zu layers of %zu integer ids", number, r->table.n_rows,
                          k);
    return BL_OK;
}

static bl_status from_list(replies *r, const json_t *list, bl_error *err) {
    const size_t n = json_array_size(list);
    const json_t *first = json_array_get(list, 0);
    int32_t *ids = NULL;
    BL_TRY(bl_token_table_begin(&r->table, json_array_size(first),
                                json_array_size(json_array_get(first, 0)), r->file, err));
    BL_TRY(bl_token_table_add(&r->table, n, &ids, err));
    for (size_t i = 0; i < n; i++)
        BL_TRY(token_from_list(r, json_array_get(list, i), i,
                               ids + i * r->table.n_rows * r->table.k, err));
    return BL_OK;
}

static bl_status take_vllm(replies *r, const json_t *value, const json_t *holder,
                           const json_t *usage, bl_error *err) {
    (void)holder;
    (void)usage;
    if (json_is_array(value))
        return from_list(r, value, err);
    if (!json_is_string(value))
        return bl_fail_at(err, BL_ERR_PARSE, bl_at(r->file),
                          "\"routed_experts\" is neither a list nor base64");
    unsigned char *bytes = NULL;
    size_t n_bytes = 0;
    BL_TRY(bl_base64_decode(json_string_value(value), json_string_length(value), r->file, &bytes,
                            &n_bytes, err));
    bl_status st;
    if (n_bytes < 6 || memcmp(bytes, "\x93NUMPY", 6) != 0)
        st = bl_fail_at(err, BL_ERR_PARSE, bl_at(r->file),
                        "its \"routed_experts\" hold no .npy file; raw integers are read by "
                        "--from sglang-reply");
    else
        st = from_npy(r, bytes, n_bytes, err);
    free(bytes);
    return st;
}

bl_status bl_import_vllm_reply(bl_import_sink *sink, const char *const *paths, int n_paths,
                               bl_error *err) {
    replies r = {.sink = sink, .take = take_vllm, .ask = "enable_return_routed_experts"};
    const bl_status st = read_replies(&r, paths, n_paths, err);
    bl_token_table_free(&r.table);
    return st;
}

/* ---- SGLang -------------------------------------------------------------------------------- */

static bl_status item_type(const replies *r, const json_t *holder, bl_npy *items, bl_error *err) {
    static const struct {
        const char *name, kind;
        int bytes;
    } TYPES[] = {{"int32", 'i', 4}, {"uint16", 'u', 2}, {"uint8", 'u', 1}};
    const char *name;
    BL_TRY(bl_json_string_or(holder, "routed_experts_dtype", "int32", r->file, &name, err));
    for (size_t i = 0; i < sizeof TYPES / sizeof TYPES[0]; i++) {
        if (strcmp(name, TYPES[i].name) == 0) {
            items->kind = TYPES[i].kind;
            items->item_bytes = TYPES[i].bytes;
            return BL_OK;
        }
    }
    return bl_fail_at(err, BL_ERR_UNSUPPORTED, bl_at(r->file),
                      "\"routed_experts_dtype\" is \"%s\", not int32, uint16 or uint8", name);
}

/* Tokens that the reply says there are, or -1 when it does not say. */
static bl_status stated_tokens(const replies *r, const json_t *holder, const json_t *usage,
                               int64_t *tokens, bl_error *err) {
    const int64_t most = (int64_t)1 << 40;
    const json_t *from = json_object_get(holder, "prompt_tokens") != NULL ? holder : usage;
    int64_t start, prompt, generated;
    *tokens = -1;
    if (json_object_get(from, "prompt_tokens") == NULL)
        return BL_OK;
    BL_TRY(bl_json_int_or(holder, "routed_experts_start_len", 0, most, 0, r->file, &start, err));
    BL_TRY(bl_json_int(from, "prompt_tokens", 0, most, r->file, &prompt, err));
    BL_TRY(bl_json_int(from, "completion_tokens", 0, most, r->file, &generated, err));
    *tokens = prompt + generated - 1 - start;
    return BL_OK;
}

static bl_status check_length(const replies *r, const bl_npy *items, size_t n_bytes, int64_t stated,
                              bl_error *err) {
    const size_t token = items->shape[1] * items->shape[2] * (size_t)items->item_bytes;
    if (n_bytes % token == 0 && (stated < 0 || n_bytes / token == (size_t)stated))
        return BL_OK;
    char tokens[96] = "";
    if (stated >= 0)
        snprintf(tokens, sizeof tokens, ", or %lld tokens by prompt_tokens + completion_tokens - 1",
                 (long long)stated);
    return bl_fail_at(err, BL_ERR_SHAPE, bl_at(r->file),
                      "%zu bytes of \"routed_experts\" are not whole tokens of %zu bytes (%zu "
                      "layers, top-%zu, %d bytes an id)%s; of a request with "
                      "routed_experts_start_len, put that number beside them",
                      n_bytes, token, items->shape[1], items->shape[2], items->item_bytes, tokens);
}

static bl_status take_sglang(replies *r, const json_t *value, const json_t *holder,
                             const json_t *usage, bl_error *err) {
    const bl_model *model = r->sink->options->model;
    unsigned char *bytes = NULL;
    size_t n_bytes = 0;
    int64_t stated = -1;
    bl_npy items = {.n_dims = 3, .shape = {0, (size_t)model->n_layers, (size_t)model->top_k}};
    if (!json_is_string(value))
        return bl_fail_at(err, BL_ERR_PARSE, bl_at(r->file), "\"routed_experts\" is no base64");
    items.kind = 'i';
    items.item_bytes = 4;
    if (holder != NULL) {
        BL_TRY(item_type(r, holder, &items, err));
        BL_TRY(stated_tokens(r, holder, usage, &stated, err));
    }
    BL_TRY(bl_base64_decode(json_string_value(value), json_string_length(value), r->file, &bytes,
                            &n_bytes, err));
    bl_status st = check_length(r, &items, n_bytes, stated, err);
    int32_t *ids = NULL;
    items.n_items = n_bytes / (size_t)items.item_bytes;
    items.data = bytes;
    if (st == BL_OK)
        st = bl_token_table_begin(&r->table, items.shape[1], items.shape[2], r->file, err);
    if (st == BL_OK)
        st = bl_token_table_add(&r->table, items.n_items / (items.shape[1] * items.shape[2]), &ids,
                                err);
    for (size_t i = 0; st == BL_OK && i < items.n_items; i++)
        ids[i] = narrow(bl_npy_int(&items, i));
    free(bytes);
    return st;
}

bl_status bl_import_sglang_reply(bl_import_sink *sink, const char *const *paths, int n_paths,
                                 bl_error *err) {
    if (sink->options->model == NULL)
        return bl_fail_at(err, BL_ERR_MODEL, bl_at(paths[0]),
                          "a reply does not say how many layers and ids its tokens have; give "
                          "--model");
    replies r = {.sink = sink, .take = take_sglang, .ask = "return_routed_experts"};
    const bl_status st = read_replies(&r, paths, n_paths, err);
    bl_token_table_free(&r.table);
    return st;
}
