/*
 * Which decoder layers are MoE. Configs say it in one of a dozen ways; each way is one row of
 * RULES, known by its key. A config may use several (GLM-5 has both a list and a count of dense
 * layers): then they must agree.
 */
#include "core/model_source.h"

#include "core/mem.h"

#include <stdlib.h>
#include <string.h>

typedef bl_status layer_rule(const bl_model_source *source, int n_layers, bool *moe, bl_error *err);

#define KEYS(...) ((const char *const[]){__VA_ARGS__, NULL})

static bl_status fail_key(const bl_model_source *source, bl_error *err, const char *key,
                          const char *why) {
    return bl_fail_at(err, BL_ERR_MODEL, bl_at(source->file), "%s: %s", key, why);
}

/* "moe_layers": [ids], ascending. */
static bl_status by_list(const bl_model_source *source, int n_layers, bool *moe, bl_error *err) {
    const json_t *list;
    BL_TRY(bl_json_array(source->shape, "moe_layers", source->file, &list, err));
    int64_t last = -1;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *item = json_array_get(list, i);
        if (!json_is_integer(item))
            return bl_fail_at(err, BL_ERR_PARSE, bl_at(source->file),
                              "moe_layers[%zu] is not an integer", i);
        const int64_t layer = json_integer_value(item);
        if (layer < 0 || layer >= n_layers)
            return bl_fail_at(err, BL_ERR_RANGE, bl_at(source->file),
                              "moe_layers[%zu] is %lld, outside the %d decoder layers", i,
                              (long long)layer, n_layers);
        if (layer <= last)
            return bl_fail_at(err, BL_ERR_MODEL, bl_at(source->file),
                              "moe_layers[%zu] is %lld after %lld; ids must ascend", i,
                              (long long)layer, (long long)last);
        moe[layer] = true;
        last = layer;
    }
    return BL_OK;
}

/* A list with one word per layer; MoE layers bear one of `yes`. */
static bl_status by_words(const bl_model_source *source, const char *key, const char *const *yes,
                          int n_layers, bool *moe, bl_error *err) {
    const json_t *list;
    BL_TRY(bl_json_array(source->shape, key, source->file, &list, err));
    if (json_array_size(list) != (size_t)n_layers)
        return bl_fail_at(err, BL_ERR_MODEL, bl_at(source->file),
                          "%s has %zu entries for %d decoder layers", key, json_array_size(list),
                          n_layers);
    for (int layer = 0; layer < n_layers; layer++) {
        const char *word = json_string_value(json_array_get(list, (size_t)layer));
        if (word == NULL)
            return bl_fail_at(err, BL_ERR_PARSE, bl_at_layer(source->file, layer),
                              "%s: not a string", key);
        for (const char *const *y = yes; *y != NULL; y++)
            moe[layer] = moe[layer] || strcmp(word, *y) == 0;
    }
    return BL_OK;
}

static bl_status by_mlp_types(const bl_model_source *source, int n_layers, bool *moe,
                              bl_error *err) {
    return by_words(source, "mlp_layer_types", KEYS("sparse", "moe", "hash_moe"), n_layers, moe,
                    err);
}

static bl_status by_block_types(const bl_model_source *source, int n_layers, bool *moe,
                                bl_error *err) {
    return by_words(source, "layers_block_type", KEYS("moe"), n_layers, moe, err);
}

/* "hybrid_override_pattern": one letter per layer, E = experts. */
static bl_status by_pattern(const bl_model_source *source, int n_layers, bool *moe, bl_error *err) {
    const char *pattern;
    BL_TRY(bl_json_string(source->shape, "hybrid_override_pattern", source->file, &pattern, err));
    if (strlen(pattern) != (size_t)n_layers)
        return bl_fail_at(err, BL_ERR_MODEL, bl_at(source->file),
                          "hybrid_override_pattern has %zu letters for %d decoder layers",
                          strlen(pattern), n_layers);
    for (int layer = 0; layer < n_layers; layer++)
        moe[layer] = pattern[layer] == 'E';
    return BL_OK;
}

/* "moe_layers_enum": "4,5,6". */
static bl_status by_enum(const bl_model_source *source, int n_layers, bool *moe, bl_error *err) {
    const char *at;
    BL_TRY(bl_json_string(source->shape, "moe_layers_enum", source->file, &at, err));
    for (;;) {
        char *end;
        const long layer = strtol(at, &end, 10);
        if (end == at || (*end != ',' && *end != '\0') || layer < 0 || layer >= n_layers)
            return fail_key(source, err, "moe_layers_enum",
                            "not a comma-separated list of decoder layers");
        moe[layer] = true;
        if (*end == '\0')
            return BL_OK;
        at = end + 1;
    }
}

/* "moe_layer_freq" as a list: one 0 or 1 per layer. */
static bl_status by_flags(const bl_model_source *source, const json_t *flags, int n_layers,
                          bool *moe, bl_error *err) {
    if (json_array_size(flags) != (size_t)n_layers)
        return bl_fail_at(err, BL_ERR_MODEL, bl_at(source->file),
                          "moe_layer_freq has %zu entries for %d decoder layers",
                          json_array_size(flags), n_layers);
    for (int layer = 0; layer < n_layers; layer++) {
        const json_t *flag = json_array_get(flags, (size_t)layer);
        if (!json_is_integer(flag) || json_integer_value(flag) < 0 || json_integer_value(flag) > 1)
            return bl_fail_at(err, BL_ERR_PARSE, bl_at_layer(source->file, layer),
                              "moe_layer_freq: neither 0 nor 1");
        moe[layer] = json_integer_value(flag) == 1;
    }
    return BL_OK;
}

/* DeepSeek: dense layers first, then every moe_layer_freq-th layer. */
static bl_status by_first_dense(const bl_model_source *source, int n_layers, bool *moe,
                                bl_error *err) {
    const json_t *freq = json_object_get(source->shape, "moe_layer_freq");
    if (json_is_array(freq))
        return by_flags(source, freq, n_layers, moe, err);
    int first, every;
    BL_TRY(bl_source_int(source, KEYS("first_k_dense_replace"), 0, n_layers, &first, err));
    BL_TRY(bl_source_int_or(source, KEYS("moe_layer_freq"), 1, BL_MAX_LAYERS, 1, &every, err));
    for (int layer = first; layer < n_layers; layer++)
        moe[layer] = layer % every == 0;
    return BL_OK;
}

/* Qwen: every decoder_sparse_step-th layer but those of mlp_only_layers. */
static bl_status by_sparse_step(const bl_model_source *source, int n_layers, bool *moe,
                                bl_error *err) {
    int every;
    BL_TRY(bl_source_int_or(source, KEYS("decoder_sparse_step"), 1, BL_MAX_LAYERS, 1, &every, err));
    for (int layer = every - 1; layer < n_layers; layer += every)
        moe[layer] = true;
    if (!bl_source_has(source, "mlp_only_layers"))
        return BL_OK;
    const json_t *dense;
    BL_TRY(bl_json_array(source->shape, "mlp_only_layers", source->file, &dense, err));
    for (size_t i = 0; i < json_array_size(dense); i++) {
        const json_t *item = json_array_get(dense, i);
        const int64_t layer = json_integer_value(item);
        if (!json_is_integer(item) || layer < 0 || layer >= n_layers)
            return fail_key(source, err, "mlp_only_layers", "not a list of decoder layers");
        moe[layer] = false;
    }
    return BL_OK;
}

/* Llama 4: the last of every n layers. */
static bl_status by_interleave(const bl_model_source *source, int n_layers, bool *moe,
                               bl_error *err) {
    int every;
    BL_TRY(bl_source_int(source, KEYS("interleave_moe_layer_step"), 1, BL_MAX_LAYERS, &every, err));
    for (int layer = every - 1; layer < n_layers; layer += every)
        moe[layer] = true;
    return BL_OK;
}

/* Jamba: layer mod period = offset. */
static bl_status by_period(const bl_model_source *source, int n_layers, bool *moe, bl_error *err) {
    int period, offset;
    BL_TRY(bl_source_int(source, KEYS("expert_layer_period"), 1, BL_MAX_LAYERS, &period, err));
    BL_TRY(bl_source_int(source, KEYS("expert_layer_offset"), 0, period - 1, &offset, err));
    for (int layer = offset; layer < n_layers; layer += period)
        moe[layer] = true;
    return BL_OK;
}

/* Dense layers first, all others MoE. */
static bl_status by_dense_count(const bl_model_source *source, int n_layers, bool *moe,
                                bl_error *err) {
    int first;
    BL_TRY(bl_source_int(source, KEYS("num_dense_layers"), 0, n_layers, &first, err));
    for (int layer = first; layer < n_layers; layer++)
        moe[layer] = true;
    return BL_OK;
}

/* ERNIE, OpenMoE: the last of every n layers, from start to end inclusive. Other models count their
 * intervals from another layer. */
static bl_status by_interval(const bl_model_source *source, int n_layers, bool *moe,
                             bl_error *err) {
    int every, start, end;
    BL_TRY(bl_source_int_or(source, KEYS("moe_layer_interval"), 1, BL_MAX_LAYERS, 1, &every, err));
    if (every > 1 && source->family == NULL)
        return fail_key(source, err, "moe_layer_interval",
                        "the model_type is not known, so the first MoE layer is not either; add "
                        "\"moe_layers\": [ids]");
    BL_TRY(bl_source_int_or(source, KEYS("moe_layer_start_index"), 0, n_layers, 0, &start, err));
    BL_TRY(bl_source_int_or(source, KEYS("moe_layer_end_index"), -1, n_layers - 1, n_layers - 1,
                            &end, err));
    end = end == -1 ? n_layers - 1 : end;
    for (int layer = start; layer <= end; layer++)
        moe[layer] = (layer + 1) % every == 0;
    return BL_OK;
}

static const struct {
    const char *key; /* its presence, non-null, calls for the rule */
    layer_rule *fill;
} RULES[] = {{"mlp_layer_types", by_mlp_types},
             {"hybrid_override_pattern", by_pattern},
             {"layers_block_type", by_block_types},
             {"moe_layers_enum", by_enum},
             {"first_k_dense_replace", by_first_dense},
             {"moe_layer_freq", by_first_dense},
             {"decoder_sparse_step", by_sparse_step},
             {"mlp_only_layers", by_sparse_step},
             {"interleave_moe_layer_step", by_interleave},
             {"expert_layer_period", by_period},
             {"num_dense_layers", by_dense_count},
             {"moe_layer_interval", by_interval},
             {"moe_layer_start_index", by_interval}};
#define N_RULES (sizeof RULES / sizeof *RULES)

/* Apply every rule that the config calls for; they must agree. *used is the first one's key. */
static bl_status by_rules(const bl_model_source *source, int n_layers, bool *moe, bool *scratch,
                          const char **used, bl_error *err) {
    for (size_t r = 0; r < N_RULES; r++) {
        if (!bl_source_has(source, RULES[r].key))
            continue;
        bool *into = *used == NULL ? moe : scratch;
        memset(into, 0, (size_t)n_layers * sizeof *into);
        BL_TRY(RULES[r].fill(source, n_layers, into, err));
        if (*used == NULL) {
            *used = RULES[r].key;
            continue;
        }
        for (int layer = 0; layer < n_layers; layer++) {
            if (moe[layer] != scratch[layer])
                return bl_fail_at(err, BL_ERR_MODEL, bl_at_layer(source->file, layer),
                                  "%s and %s disagree whether this layer is MoE; add "
                                  "\"moe_layers\": [ids] to settle it",
                                  *used, RULES[r].key);
        }
    }
    return BL_OK;
}

static bl_status mark_layers(const bl_model_source *source, int n_layers, bool *moe, bool *scratch,
                             bl_error *err) {
    if (bl_source_has(source, "moe_layers"))
        return by_list(source, n_layers, moe, err);
    const char *used = NULL;
    BL_TRY(by_rules(source, n_layers, moe, scratch, &used, err));
    if (used != NULL)
        return BL_OK;
    if (source->family == NULL || !source->family->all_moe)
        return bl_fail_at(err, BL_ERR_MODEL, bl_at(source->file),
                          "cannot tell which decoder layers are MoE: none of moe_layers, "
                          "mlp_layer_types, first_k_dense_replace, decoder_sparse_step is there, "
                          "and the model_type is not known; add \"moe_layers\": [ids]");
    for (int layer = 0; layer < n_layers; layer++)
        moe[layer] = true;
    return BL_OK;
}

bl_status bl_model_read_layers(const bl_model_source *source, bl_model *model, bl_error *err) {
    const int n_layers = model->n_layers;
    bool *moe = NULL, *scratch = NULL;
    bl_status st = BL_CALLOC(moe, n_layers, err);
    if (st == BL_OK)
        st = BL_CALLOC(scratch, n_layers, err);
    if (st == BL_OK)
        st = mark_layers(source, n_layers, moe, scratch, err);
    if (st == BL_OK)
        st = BL_CALLOC(model->moe_layers, n_layers, err);
    if (st == BL_OK) {
        for (int layer = 0; layer < n_layers; layer++) {
            if (moe[layer])
                model->moe_layers[model->n_moe_layers++] = layer;
        }
        if (model->n_moe_layers == 0)
            st = bl_fail_at(err, BL_ERR_MODEL, bl_at(source->file),
                            "none of the %d decoder layers is MoE: nothing to balance", n_layers);
    }
    free(moe);
    free(scratch);
    return st;
}
