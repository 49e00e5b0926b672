/* What ranks compare before an expert may travel: the form of its bundles, and what stays behind. */
#include "rebalancer/embed_parts.h"

#include "core/mem.h"

#include <stdlib.h>
#include <string.h>

#define FORM_MAGIC UINT64_C(0x31304d524f464c42) /* "BLFORM01", little-endian */

/* On the wire: a head, then the layers, then the tensors of all layers in order. */
typedef struct form_head {
    uint64_t magic;
    int32_t n_experts, n_spares, n_layers, n_tensors;
    int32_t refused, layer; /* a status; where */
    char text[512];
} form_head;

typedef struct form_layer {
    int32_t layer, n_tensors;
    uint64_t placement;
} form_layer;

typedef struct form_tensor {
    char name[BL_TENSOR_NAME_BYTES], layout[BL_TENSOR_LAYOUT_BYTES];
    int32_t scope, recomputed;
    uint64_t rows, row_bytes;
    uint64_t content; /* 0: may differ */
} form_tensor;

typedef struct verdict {
    int32_t status, layer, expert;
    char text[512];
} verdict;

/* A form, one's own or one that arrived. */
typedef struct form {
    const form_head *head;
    const form_layer *layers;
    const form_tensor *tensors;
} form;

static form form_in(const void *data) {
    const form_head *head = data;
    const form_layer *layers = (const form_layer *)(const void *)(head + 1);
    return (form){head, layers, (const form_tensor *)(const void *)(layers + head->n_layers)};
}

/* ---- one's own ------------------------------------------------------------------------------- */

static uint64_t hash_of_placement(const bl_layer_placement *layer) {
    const uint64_t parts[] = {
        bl_hash64(layer->begin, sizeof *layer->begin * (size_t)(layer->n_ranks + 1)),
        bl_hash64(layer->expert, sizeof *layer->expert * (size_t)bl_layer_n_slots(layer)),
        layer->epoch};
    return bl_hash64(parts, sizeof parts);
}

/* Before the start the placement is the declared one, then the store's. */
static const bl_layer_placement *map_of(const bl_embed *embed, int l) {
    const bl_layer_placement *declared = &embed->placement.layers[l];
    return embed->store != NULL ? bl_store_map(embed->store, declared->layer) : declared;
}

static bl_status describe(const bl_bundle *bundle, const bl_tensor *t,
                          const bl_layer_placement *map, bool with_content, form_tensor *out,
                          bl_error *err) {
    memcpy(out->name, t->name, strlen(t->name));
    memcpy(out->layout, t->layout, strlen(t->layout));
    out->scope = t->scope;
    out->recomputed = t->recomputed != 0;
    out->rows = t->rows;
    out->row_bytes = t->row_bytes;
    if (!with_content || t->scope == BL_SCOPE_LOCAL || t->recomputed != 0)
        return BL_OK;
    void *scratch = bl_calloc(bl_tensor_bytes(t), 1);
    if (scratch == NULL)
        return bl_fail_at(err, BL_ERR_NOMEM, bl_at_layer(NULL, bundle->layer),
                          "out of memory: %zu bytes to compare tensor %s", bl_tensor_bytes(t),
                          t->name);
    const bl_status st = bl_bundle_hash_tensor(bundle, t, map, scratch, &out->content, err);
    free(scratch);
    return st;
}

static bl_status make_form(const bl_embed *embed, bool with_content, unsigned char **data_p,
                           size_t *bytes, bl_error *err) {
    const size_t n_layers = (size_t)embed->placement.n_layers;
    size_t n_tensors = 0, at = 0;
    for (size_t l = 0; l < n_layers; l++)
        n_tensors += (size_t)embed->bundles[l].n_tensors;
    *bytes = sizeof(form_head) + n_layers * sizeof(form_layer) + n_tensors * sizeof(form_tensor);
    BL_TRY(BL_CALLOC(*data_p, *bytes, err));
    form_head *head = (form_head *)(void *)*data_p;
    *head = (form_head){.magic = FORM_MAGIC,
                        .n_experts = embed->placement.n_experts,
                        .n_spares = embed->n_spares,
                        .n_layers = (int32_t)n_layers,
                        .n_tensors = (int32_t)n_tensors,
                        .layer = -1};
    form_layer *layers = (form_layer *)(void *)(head + 1);
    form_tensor *tensors = (form_tensor *)(void *)(layers + n_layers);
    bl_status st = BL_OK;
    for (size_t l = 0; l < n_layers && st >= 0; l++) {
        const bl_bundle *bundle = &embed->bundles[l];
        const bl_layer_placement *map = map_of(embed, (int)l);
        layers[l] = (form_layer){bundle->layer, bundle->n_tensors,
                                 with_content ? hash_of_placement(map) : 0};
        for (int t = 0; t < bundle->n_tensors && st >= 0; t++)
            st = describe(bundle, &bundle->tensors[t], map, with_content, &tensors[at++], err);
    }
    if (st < 0) {
        free(*data_p);
        *data_p = NULL;
    }
    return st;
}

bl_status bl_embed_form(const bl_embed *embed, uint64_t *out, bl_error *err) {
    unsigned char *data;
    size_t bytes;
    BL_TRY(make_form(embed, false, &data, &bytes, err));
    *out = bl_hash64(data, bytes);
    free(data);
    return BL_OK;
}

/* ---- comparing ------------------------------------------------------------------------------- */

/* Does it hold together, whoever sent it? */
static bl_status check_form(const bl_message *message, bl_error *err) {
    const form_head *head = (const form_head *)(const void *)message->data;
    if (message->bytes < sizeof *head || head->magic != FORM_MAGIC)
        return bl_fail(err, BL_ERR_VERSION, "rank %d speaks another version of ballast",
                       message->from);
    size_t n_tensors = 0;
    const bool fits = head->n_layers >= 0 && head->n_tensors >= 0 &&
                      message->bytes == sizeof *head + (size_t)head->n_layers * sizeof(form_layer) +
                                            (size_t)head->n_tensors * sizeof(form_tensor);
    if (fits) {
        const form f = form_in(message->data);
        for (int l = 0; l < head->n_layers; l++)
            n_tensors += f.layers[l].n_tensors >= 0 ? (size_t)f.layers[l].n_tensors : SIZE_MAX / 4;
        for (int t = 0; t < head->n_tensors; t++)
            if (memchr(f.tensors[t].name, '\0', BL_TENSOR_NAME_BYTES) == NULL ||
                memchr(f.tensors[t].layout, '\0', BL_TENSOR_LAYOUT_BYTES) == NULL)
                n_tensors = SIZE_MAX;
    }
    if (!fits || n_tensors != (size_t)head->n_tensors)
        return bl_fail(err, BL_ERR_PARSE, "what rank %d declares does not hold together",
                       message->from);
    return BL_OK;
}

static const char *kind_of(const form_tensor *t) {
    return t->recomputed ? "is recomputed" : "moves or stays by itself";
}

/* Two ranks: `us` judges. */
typedef struct pair {
    int us, them;
} pair;

/* One tensor that both ranks have. */
static bl_status compare_tensor(int layer, pair rank, const form_tensor *ours,
                                const form_tensor *theirs, bl_error *err) {
    const bl_where at = bl_at_layer(NULL, layer);
    const char *name = ours->name;
    if (ours->scope != theirs->scope)
        return bl_fail_at(err, BL_ERR_SHAPE, at, "tensor %s: %s on rank %d, %s on rank %d", name,
                          bl_scope_name(ours->scope), rank.us, bl_scope_name(theirs->scope),
                          rank.them);
    if (ours->recomputed != theirs->recomputed)
        return bl_fail_at(err, BL_ERR_SHAPE, at, "tensor %s: it %s on rank %d, it %s on rank %d",
                          name, kind_of(ours), rank.us, kind_of(theirs), rank.them);
    if (ours->rows != theirs->rows || ours->row_bytes != theirs->row_bytes)
        return bl_fail_at(
            err, BL_ERR_SHAPE, at,
            "tensor %s: %llu rows of %llu bytes on rank %d, %llu rows of %llu bytes on "
            "rank %d",
            name, (unsigned long long)ours->rows, (unsigned long long)ours->row_bytes, rank.us,
            (unsigned long long)theirs->rows, (unsigned long long)theirs->row_bytes, rank.them);
    if (strcmp(ours->layout, theirs->layout) != 0)
        return bl_fail_at(
            err, BL_ERR_SHAPE, at,
            "tensor %s: layout \"%s\" on rank %d, \"%s\" on rank %d: bytes of the one "
            "mean something else in the other",
            name, ours->layout, rank.us, theirs->layout, rank.them);
    if (ours->content != theirs->content)
        return bl_fail_at(
            err, BL_ERR_CHECKSUM, at,
            "tensor %s, %s, holds something else on rank %d than on rank %d: an expert "
            "that moves would meet other values there",
            name, bl_scope_name(ours->scope), rank.them, rank.us);
    return BL_OK;
}

static bl_status missing(int layer, const char *name, int has, int lacks, bl_error *err) {
    return bl_fail_at(err, BL_ERR_SHAPE, bl_at_layer(NULL, layer),
                      "tensor %s: declared by rank %d and not by rank %d", name, has, lacks);
}

/* Both are sorted by name. */
static bl_status compare_layer(pair rank, const form_layer *ours, const form_tensor *our_tensors,
                               const form_layer *theirs, const form_tensor *their_tensors,
                               bl_error *err) {
    const int layer = ours->layer;
    int i = 0, j = 0;
    if (ours->placement != theirs->placement)
        return bl_fail_at(err, BL_ERR_STATE, bl_at_layer(NULL, layer),
                          "rank %d has other experts in its slots' table than rank %d", rank.them,
                          rank.us);
    while (i < ours->n_tensors || j < theirs->n_tensors) {
        const int order = i == ours->n_tensors ? 1
                          : j == theirs->n_tensors
                              ? -1
                              : strcmp(our_tensors[i].name, their_tensors[j].name);
        if (order < 0)
            return missing(layer, our_tensors[i].name, rank.us, rank.them, err);
        if (order > 0)
            return missing(layer, their_tensors[j].name, rank.them, rank.us, err);
        BL_TRY(compare_tensor(layer, rank, &our_tensors[i++], &their_tensors[j++], err));
    }
    return BL_OK;
}

static bl_status compare(pair rank, const form *ours, const form *theirs, bl_error *err) {
    const form_tensor *a = ours->tensors, *b = theirs->tensors;
    if (ours->head->n_experts != theirs->head->n_experts)
        return bl_fail(err, BL_ERR_SHAPE, "%d experts on rank %d, %d on rank %d",
                       ours->head->n_experts, rank.us, theirs->head->n_experts, rank.them);
    if (ours->head->n_layers != theirs->head->n_layers)
        return bl_fail(err, BL_ERR_SHAPE, "%d layers on rank %d, %d on rank %d",
                       ours->head->n_layers, rank.us, theirs->head->n_layers, rank.them);
    for (int l = 0; l < ours->head->n_layers; l++) {
        if (ours->layers[l].layer != theirs->layers[l].layer)
            return bl_fail_at(err, BL_ERR_SHAPE, bl_at_layer(NULL, ours->layers[l].layer),
                              "declared by rank %d, rank %d has layer %d in its place", rank.us,
                              rank.them, theirs->layers[l].layer);
        BL_TRY(compare_layer(rank, &ours->layers[l], a, &theirs->layers[l], b, err));
        a += ours->layers[l].n_tensors;
        b += theirs->layers[l].n_tensors;
    }
    if (ours->head->n_spares != theirs->head->n_spares)
        return bl_fail(err, BL_ERR_SHAPE, "%d spares on rank %d, %d on rank %d",
                       ours->head->n_spares, rank.us, theirs->head->n_spares, rank.them);
    return BL_OK;
}

static bl_status judge_forms(const bl_embed *embed, const bl_message *forms, bl_error *err) {
    const int us = embed->rank;
    const form ours = form_in(forms[us].data);
    for (int rank = 0; rank < embed->n_ranks; rank++) {
        if (bl_embed_is_gone(embed, rank))
            continue;
        BL_TRY(check_form(&forms[rank], err));
        const form_head *head = (const form_head *)(const void *)forms[rank].data;
        if (head->refused < 0) {
            const bl_where at = bl_at_layer(NULL, head->layer);
            return bl_fail_at(err, (bl_status)head->refused, at, "rank %d refuses: %.400s", rank,
                              head->text);
        }
    }
    for (int rank = us + 1; rank < embed->n_ranks; rank++) {
        if (bl_embed_is_gone(embed, rank))
            continue;
        const form theirs = form_in(forms[rank].data);
        BL_TRY(compare((pair){us, rank}, &ours, &theirs, err));
    }
    return BL_OK;
}

/* ---- together -------------------------------------------------------------------------------- */

static verdict verdict_of(const bl_error *err) {
    verdict said = {.status = err->code, .layer = err->layer, .expert = err->expert};
    memcpy(said.text, err->text, sizeof said.text);
    return said;
}

static bl_status fail_as_said(verdict *said, bl_error *err) {
    said->text[sizeof said->text - 1] = '\0';
    return bl_fail_at(err, (bl_status)said->status, bl_at_expert(NULL, said->layer, said->expert),
                      "%s", said->text);
}

/* Bytes of every rank to the lowest that lives, and its judgement of them to all. */
typedef bl_status judge_fn(const bl_embed *embed, const bl_message *parts, bl_error *err);

static bl_status let_judge(bl_embed *embed, const void *mine, size_t bytes, judge_fn *judge_parts,
                           bl_error *err) {
    const size_t n = (size_t)embed->n_ranks;
    const int judging = bl_embed_first(embed);
    bl_outgoing *outgoing = bl_calloc(n, sizeof *outgoing);
    bl_message *incoming = bl_calloc(n, sizeof *incoming);
    verdict said = {.layer = -1, .expert = -1};
    bl_status st = outgoing != NULL && incoming != NULL
                       ? BL_OK
                       : bl_fail(err, BL_ERR_NOMEM, "out of memory for %zu ranks", n);
    if (st >= 0) {
        outgoing[judging] = (bl_outgoing){mine, bytes};
        st = bl_exchange_alltoallv(&embed->exchange, outgoing, incoming, err);
    }
    if (st >= 0 && embed->rank == judging) {
        bl_error why = BL_ERROR_INIT;
        judge_parts(embed, incoming, &why);
        said = verdict_of(&why);
    }
    if (st >= 0) {
        bl_exchange_release(incoming, embed->n_ranks);
        memset(outgoing, 0, n * sizeof *outgoing);
        for (size_t rank = 0; embed->rank == judging && rank < n; rank++)
            outgoing[rank] = (bl_outgoing){&said, sizeof said};
        st = bl_exchange_alltoallv(&embed->exchange, outgoing, incoming, err);
    }
    if (st >= 0 && incoming[judging].bytes == sizeof said)
        memcpy(&said, incoming[judging].data, sizeof said);
    if (st >= 0)
        bl_exchange_release(incoming, embed->n_ranks);
    free(outgoing);
    free(incoming);
    if (st >= 0 && said.status < 0)
        st = fail_as_said(&said, err);
    return st;
}

bl_status bl_embed_agree(bl_embed *embed, const bl_error *mine, bl_error *err) {
    bl_error own = *mine;
    unsigned char *data = NULL;
    size_t bytes = 0;
    form_head refusal = {.magic = FORM_MAGIC};
    if (own.code >= 0)
        make_form(embed, true, &data, &bytes, &own);
    if (own.code < 0) {
        refusal.refused = own.code;
        refusal.layer = own.layer;
        memcpy(refusal.text, own.text, sizeof refusal.text);
    }
    const bl_status st = own.code < 0 ? let_judge(embed, &refusal, sizeof refusal, judge_forms, err)
                                      : let_judge(embed, data, bytes, judge_forms, err);
    free(data);
    return st;
}

bl_status bl_embed_agree_on(bl_embed *embed, const bl_error *mine, bl_error *err) {
    const verdict own = verdict_of(mine);
    verdict *all;
    BL_TRY(BL_CALLOC(all, embed->n_ranks, err));
    bl_status st = bl_exchange_allgather(&embed->exchange, &own, sizeof own, all, err);
    for (int rank = 0; rank < embed->n_ranks && st >= 0; rank++) {
        if (all[rank].status < 0) /* those of lost ranks are zero */
            st = fail_as_said(&all[rank], err);
    }
    free(all);
    return st;
}

/* ---- copies of experts ----------------------------------------------------------------------- */

/* Scratch of a comparison: how far the hashes of each rank were read; the first copy of each expert. */
typedef struct copies {
    size_t *at;     /* [n_ranks] */
    int *slot;      /* [n_experts] -1: none seen yet */
    uint64_t *hash; /* [n_experts] */
} copies;

static uint64_t next_hash(const bl_message *part, size_t *at) {
    uint64_t hash = 0;
    if (part->bytes >= (*at + 1) * sizeof hash)
        memcpy(&hash, part->data + *at * sizeof hash, sizeof hash);
    ++*at;
    return hash;
}

static bl_status judge_layer(const bl_layer_placement *map, const bl_message *parts, copies *c,
                             bl_error *err) {
    for (int expert = 0; expert < map->n_experts; expert++)
        c->slot[expert] = -1;
    for (int rank = 0, slot = 0; rank < map->n_ranks; rank++) {
        for (; slot < map->begin[rank + 1]; slot++) {
            const int32_t expert = map->expert[slot];
            const uint64_t hash = next_hash(&parts[rank], &c->at[rank]);
            if (expert == BL_NO_EXPERT)
                continue;
            if (c->slot[expert] >= 0 && hash != c->hash[expert])
                return bl_fail_at(err, BL_ERR_CHECKSUM, bl_at_expert(NULL, map->layer, expert),
                                  "its copy in slot %d is not the one in slot %d: one of them was "
                                  "loaded for another expert or from another version",
                                  slot, c->slot[expert]);
            if (c->slot[expert] < 0) {
                c->slot[expert] = slot;
                c->hash[expert] = hash;
            }
        }
    }
    return BL_OK;
}

/* parts[g]: hashes of rank g's slots, layer by layer. */
static bl_status judge_copies(const bl_embed *embed, const bl_message *parts, bl_error *err) {
    const size_t n_experts = (size_t)embed->placement.n_experts;
    copies c = {bl_calloc((size_t)embed->n_ranks, sizeof *c.at),
                bl_calloc(n_experts, sizeof *c.slot), bl_calloc(n_experts, sizeof *c.hash)};
    bl_status st = c.at != NULL && c.slot != NULL && c.hash != NULL
                       ? BL_OK
                       : bl_fail(err, BL_ERR_NOMEM, "out of memory to compare copies");
    for (int l = 0; l < embed->placement.n_layers && st >= 0; l++)
        st = judge_layer(map_of(embed, l), parts, &c, err);
    free(c.at);
    free(c.slot);
    free(c.hash);
    return st;
}

bl_status bl_embed_compare_copies(bl_embed *embed, bl_error *err) {
    size_t n = 0, at = 0;
    for (int l = 0; l < embed->placement.n_layers; l++)
        n += (size_t)embed->bundles[l].own_slots;
    uint64_t *hashes;
    BL_TRY(BL_CALLOC(hashes, n, err));
    bl_status st = BL_OK;
    for (int l = 0; l < embed->placement.n_layers; l++) {
        const bl_layer_placement *map = map_of(embed, l);
        for (int slot = map->begin[embed->rank]; slot < map->begin[embed->rank + 1]; slot++, at++)
            if (map->expert[slot] != BL_NO_EXPERT && st >= 0)
                st = bl_store_hash_expert(embed->store, map->layer, map->expert[slot], &hashes[at],
                                          err);
    }
    /* A rank that cannot read its own weights says zeros, and is found out or stops by itself. */
    const bl_status told = let_judge(embed, hashes, n * sizeof *hashes, judge_copies, err);
    free(hashes);
    return st < 0 ? st : told;
}
