#include "runtime/store_parts.h"

#include "core/mem.h"
#include "runtime/buffer.h"

#include <assert.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

static bl_layer_table *table_of(const bl_store *store, int layer) {
    int low = 0, high = store->n_layers;
    while (low < high) {
        const int middle = (low + high) / 2;
        if (store->layers[middle].map.layer < layer)
            low = middle + 1;
        else
            high = middle;
    }
    return low < store->n_layers && store->layers[low].map.layer == layer ? &store->layers[low]
                                                                          : NULL;
}

static bool is_reserved(const bl_store *store, int spare) {
    return spare >= 0 && spare < store->n_buffers &&
           (store->use[spare] == BL_BUFFER_RESERVED || store->use[spare] == BL_BUFFER_CLAIMED);
}

/* ---- create and free ----------------------------------------------------------------------- */

/* Buffers for slots and for the pool, as far as they are not the engine's memory. */
static bl_status take_memory(bl_store *store, const bl_placement *initial, int n_spares,
                             bl_error *err) {
    const bool over_tensors = store->through != BL_NO_BUFFER;
    size_t n_slots = 0, n_rows = 0, bytes;
    for (int i = 0; i < initial->n_layers; i++)
        n_slots += (size_t)bl_store_own_slots(&initial->layers[i], store->rank);
    if (over_tensors)
        n_rows = bl_store_is_by_pointers(store) ? n_slots + (size_t)n_spares : n_slots;
    const size_t n_buffers = n_slots + (size_t)n_spares + over_tensors;
    const size_t n_held = n_buffers - n_rows;
    if (n_buffers > INT_MAX || !bl_size_mul(n_held, store->stride, &bytes))
        return bl_fail(err, BL_ERR_NOMEM, "%zu expert buffers of %zu bytes are too many", n_buffers,
                       store->stride);
    void *memory = NULL;
    if (store->device != NULL)
        BL_TRY(bl_memory_alloc(store->device, bytes, &memory, err));
    else
        memory = bl_buffer_alloc(bytes);
    store->memory = memory;
    if (memory == NULL)
        return bl_fail(err, BL_ERR_NOMEM,
                       "out of memory for %zu expert buffers (slots and spares) of %zu bytes",
                       n_held, store->stride);
    if (store->device == NULL)
        memset(memory, 0, bytes);
    else
        BL_TRY(BL_CALLOC(store->host, store->bundle_bytes, err));
    store->n_buffers = (int)n_buffers;
    store->n_rows = (int)n_rows;
    BL_TRY(BL_CALLOC(store->use, n_buffers, err));
    return BL_CALLOC(store->free, n_buffers, err);
}

static bl_status create_layer(bl_store *store, const bl_layer_placement *initial, int *next_buffer,
                              bl_layer_table *out, bl_error *err) {
    BL_TRY(bl_layer_placement_copy(initial, &out->map, err));
    const int n_slots = bl_store_own_slots(&out->map, store->rank);
    const int first = out->map.begin[store->rank];
    BL_TRY(BL_CALLOC(out->slot_buffer, n_slots, err));
    BL_TRY(BL_CALLOC(out->displaced, n_slots, err));
    BL_TRY(BL_CALLOC(out->scratch_slots, n_slots, err));
    BL_TRY(BL_CALLOC(out->expert_buffer, store->n_experts, err));
    BL_TRY(BL_CALLOC(out->scratch_experts, store->n_experts, err));
    for (int expert = 0; expert < store->n_experts; expert++)
        out->expert_buffer[expert] = BL_NO_BUFFER;
    for (int i = 0; i < n_slots; i++) {
        const int buffer = (*next_buffer)++;
        const int expert = out->map.expert[first + i];
        out->slot_buffer[i] = buffer;
        store->use[buffer] = BL_BUFFER_IN_SLOT;
        if (expert != BL_NO_EXPERT)
            out->expert_buffer[expert] = buffer;
    }
    return BL_OK;
}

static bl_status fill(bl_store *store, const bl_placement *initial, const bl_bundle *bundles,
                      int n_spares, bl_error *err) {
    BL_TRY(take_memory(store, initial, n_spares, err));
    BL_TRY(BL_CALLOC(store->layers, initial->n_layers, err));
    store->n_layers = initial->n_layers;
    int next_buffer = 0;
    for (int i = 0; i < initial->n_layers; i++) {
        store->layers[i].bundle = bundles != NULL ? &bundles[i] : NULL;
        BL_TRY(create_layer(store, &initial->layers[i], &next_buffer, &store->layers[i], err));
    }
    int end = store->n_buffers;
    if (bl_store_is_by_pointers(store))
        store->through = --end;
    else if (bundles != NULL)
        store->through = next_buffer++;
    for (int buffer = end - 1; buffer >= next_buffer; buffer--)
        store->free[store->n_free++] = buffer;
    if (bl_store_is_by_pointers(store))
        BL_TRY(bl_store_take_places(store, bundles, err));
    return bundles != NULL ? bl_store_prepare_tensors(store, err) : BL_OK;
}

/* A store for bundles of this size; `bundles` NULL: with pointers. `like` says how it recomputes. */
static bl_status create(const bl_placement *initial, int rank, size_t bundle_bytes,
                        const bl_bundle *bundles, int n_spares, const bl_store *like,
                        bl_store **out, bl_error *err) {
    if (rank < 0 || rank >= initial->n_ranks)
        return bl_fail(err, BL_ERR_RANGE, "rank %d is not below %d", rank, initial->n_ranks);
    if (bundle_bytes == 0 || bundle_bytes > SIZE_MAX - BL_BUFFER_ALIGNMENT || n_spares < 0)
        return bl_fail(err, BL_ERR_RANGE, "an expert of %zu bytes and %d spares make no store",
                       bundle_bytes, n_spares);
    BL_TRY(bl_placement_check(initial, NULL, err));
    bl_store *store;
    BL_TRY(BL_CALLOC(store, 1, err));
    *store = *like;
    store->rank = rank;
    store->n_experts = initial->n_experts;
    store->bundle_bytes = bundle_bytes;
    store->stride =
        (bundle_bytes + BL_BUFFER_ALIGNMENT - 1) / BL_BUFFER_ALIGNMENT * BL_BUFFER_ALIGNMENT;
    const bl_status st = fill(store, initial, bundles, n_spares, err);
    if (st < 0) {
        bl_store_free(store);
        return st;
    }
    *out = store;
    return BL_OK;
}

bl_status bl_store_create_on(const bl_placement *initial, int rank, size_t bundle_bytes,
                             int n_spares, bl_memory *device, bl_store **out, bl_error *err) {
    const bl_store like = {.through = BL_NO_BUFFER, .device = device};
    return create(initial, rank, bundle_bytes, NULL, n_spares, &like, out, err);
}

bl_status bl_store_create(const bl_placement *initial, int rank, size_t bundle_bytes, int n_spares,
                          bl_store **out, bl_error *err) {
    return bl_store_create_on(initial, rank, bundle_bytes, n_spares, NULL, out, err);
}

bl_status bl_store_create_over(const bl_placement *initial, int rank, const bl_bundle *bundles,
                               int n_spares, bl_memory *device, bl_recompute_fn *recompute,
                               void *user, bl_store **out, bl_error *err) {
    size_t bytes = 0;
    BL_TRY(bl_bundles_check_alike(bundles, initial->n_layers, err));
    for (int i = 0; i < initial->n_layers; i++)
        bytes = bundles[i].bytes > bytes ? bundles[i].bytes : bytes;
    const bool by_pointers = initial->n_layers > 0 && bundles[0].by_pointers;
    for (int i = 0, n = 0; by_pointers && i < initial->n_layers; i++)
        n_spares = n += bundles[i].n_spares;
    const bl_store like = {.device = device,
                           .recompute = recompute,
                           .user = user,
                           .form = by_pointers ? bundles : NULL};
    return create(initial, rank, bytes, bundles, n_spares, &like, out, err);
}

void bl_store_free(bl_store *store) {
    if (store == NULL)
        return;
    for (int i = 0; i < store->n_layers; i++) {
        bl_layer_table *table = &store->layers[i];
        bl_layer_placement_free(&table->map);
        free(table->slot_buffer);
        free(table->expert_buffer);
        free(table->displaced);
        free(table->scratch_slots);
        free(table->scratch_experts);
    }
    free(store->layers);
    free(store->places);
    free(store->table_scratch);
    free(store->names);
    free(store->slots);
    free(store->free);
    free(store->use);
    bl_memory_free(store->device, store->memory);
    free(store->host);
    free(store);
}

/* ---- serving ------------------------------------------------------------------------------- */

int bl_store_rank(const bl_store *store) {
    return store->rank;
}

bl_memory *bl_store_device(const bl_store *store) {
    return store->device;
}

bool bl_store_is_over_tensors(const bl_store *store) {
    return store->through != BL_NO_BUFFER;
}

size_t bl_store_bundle_bytes(const bl_store *store) {
    return store->bundle_bytes;
}

size_t bl_store_resident_bytes(const bl_store *store) {
    return (size_t)(store->n_buffers - store->n_rows) * store->stride;
}

int bl_store_spares_free(const bl_store *store) {
    return store->n_free;
}

const bl_layer_placement *bl_store_map(const bl_store *store, int layer) {
    const bl_layer_table *table = table_of(store, layer);
    return table != NULL ? &table->map : NULL;
}

const void *bl_store_expert(const bl_store *store, int layer, int expert) {
    const bl_layer_table *table = table_of(store, layer);
    if (table == NULL || table->bundle != NULL || expert < 0 || expert >= store->n_experts ||
        table->expert_buffer[expert] == BL_NO_BUFFER)
        return NULL;
    return bl_store_buffer(store, table->expert_buffer[expert]);
}

bl_status bl_store_read_buffer(const bl_store *store, const bl_layer_table *table, int buffer,
                               size_t offset, void *out, size_t n, bl_error *err) {
    if (buffer >= store->n_rows)
        return bl_memory_copy(store->device, out,
                              (const unsigned char *)bl_store_buffer(store, buffer) + offset, n,
                              err);
    const bool by_pointers = bl_store_is_by_pointers(store);
    /* what a smaller layer's bundle lacks is cleared here: `out` may be on the device */
    const size_t bytes = by_pointers ? store->form->bytes : table->bundle->bytes;
    const size_t held = offset >= bytes ? 0 : n < bytes - offset ? n : bytes - offset;
    BL_TRY(by_pointers ? bl_bundle_read_at(store->form, bl_store_place(store, buffer), offset, out,
                                           held, err)
                       : bl_bundle_read(table->bundle, buffer - table->slot_buffer[0], offset, out,
                                        held, err));
    return bl_memory_clear(store->device, (unsigned char *)out + held, n - held, err);
}

bl_status bl_store_read_expert(const bl_store *store, int layer, int expert, size_t offset,
                               void *out, size_t n, bl_error *err) {
    const bl_layer_table *table = table_of(store, layer);
    if (table == NULL || expert < 0 || expert >= store->n_experts ||
        table->expert_buffer[expert] == BL_NO_BUFFER)
        return bl_fail_at(err, BL_ERR_STATE, bl_at_expert(NULL, layer, expert),
                          "rank %d does not hold it", store->rank);
    if (offset > store->bundle_bytes || n > store->bundle_bytes - offset)
        return bl_fail_at(err, BL_ERR_RANGE, bl_at_expert(NULL, layer, expert),
                          "an expert has %zu bytes", store->bundle_bytes);
    return bl_store_read_buffer(store, table, table->expert_buffer[expert], offset, out, n, err);
}

void *bl_store_slot(bl_store *store, int layer, int slot) {
    const bl_layer_table *table = table_of(store, layer);
    if (table == NULL || table->bundle != NULL || slot < table->map.begin[store->rank] ||
        slot >= table->map.begin[store->rank + 1])
        return NULL;
    return bl_store_buffer(store, table->slot_buffer[slot - table->map.begin[store->rank]]);
}

/* ---- migration ----------------------------------------------------------------------------- */

bl_status bl_store_reserve(bl_store *store, int *spare_p, bl_error *err) {
    if (store->n_free == 0)
        return bl_fail(err, BL_ERR_STATE, "rank %d has no spare expert buffer left", store->rank);
    const int spare = store->free[--store->n_free];
    store->use[spare] = BL_BUFFER_RESERVED;
    *spare_p = spare;
    return BL_OK;
}

bl_status bl_store_claim(bl_store *store, int layer, int slot, int *spare_p, bl_error *err) {
    const bl_layer_table *table = table_of(store, layer);
    const int first = table != NULL ? table->map.begin[store->rank] : 0;
    if (table == NULL || slot < first || slot >= table->map.begin[store->rank + 1] ||
        store->use[table->slot_buffer[slot - first]] != BL_BUFFER_IN_SLOT)
        return bl_fail_at(err, BL_ERR_STATE, bl_at_layer(NULL, layer),
                          "rank %d cannot give slot %d's buffer away", store->rank, slot);
    *spare_p = table->slot_buffer[slot - first];
    store->use[*spare_p] = BL_BUFFER_CLAIMED;
    return BL_OK;
}

void *bl_store_spare(bl_store *store, int spare) {
    return is_reserved(store, spare) && spare >= store->n_rows ? bl_store_buffer(store, spare)
                                                               : NULL;
}

/* The layer whose tensors a row belongs to. */
static const bl_layer_table *table_of_row(const bl_store *store, int row) {
    int l = store->n_layers - 1;
    while (l > 0 && (bl_store_own_slots(&store->layers[l].map, store->rank) == 0 ||
                     store->layers[l].slot_buffer[0] > row))
        l--;
    return &store->layers[l];
}

static bl_status check_spare(const bl_store *store, int spare, size_t offset, size_t n,
                             bl_error *err) {
    if (!is_reserved(store, spare))
        return bl_fail(err, BL_ERR_STATE, "buffer %d is not reserved", spare);
    if (offset > store->bundle_bytes || n > store->bundle_bytes - offset)
        return bl_fail(err, BL_ERR_RANGE, "an expert has %zu bytes", store->bundle_bytes);
    return BL_OK;
}

bl_status bl_store_read_spare(const bl_store *store, int spare, size_t offset, void *out, size_t n,
                              bl_error *err) {
    BL_TRY(check_spare(store, spare, offset, n, err));
    return bl_store_read_buffer(store, table_of_row(store, spare), spare, offset, out, n, err);
}

bl_status bl_store_write_spare(bl_store *store, int spare, size_t offset, const void *data,
                               size_t n, bl_error *err) {
    BL_TRY(check_spare(store, spare, offset, n, err));
    if (spare >= store->n_rows)
        return bl_memory_copy(
            store->device, (unsigned char *)bl_store_buffer(store, spare) + offset, data, n, err);
    if (bl_store_is_by_pointers(store))
        return bl_bundle_write_at(store->form, bl_store_place(store, spare), offset, data, n, err);
    const bl_layer_table *table = table_of_row(store, spare);
    return bl_bundle_write(table->bundle, spare - table->slot_buffer[0], offset, data, n, err);
}

void *bl_store_staging(bl_store *store, int spare) {
    if (!is_reserved(store, spare))
        return NULL;
    return store->device != NULL
               ? store->host
               : bl_store_buffer(store, spare < store->n_rows ? store->through : spare);
}

bl_status bl_store_staged(bl_store *store, int spare, bl_error *err) {
    if (store->device == NULL && spare >= store->n_rows)
        return BL_OK;
    return bl_store_write_spare(store, spare, 0, bl_store_staging(store, spare),
                                store->bundle_bytes, err);
}

static void to_pool(bl_store *store, int buffer) {
    store->use[buffer] = BL_BUFFER_FREE;
    store->free[store->n_free++] = buffer;
}

void bl_store_unreserve(bl_store *store, int spare) {
    if (!is_reserved(store, spare))
        return;
    if (store->use[spare] == BL_BUFFER_CLAIMED)
        store->use[spare] = BL_BUFFER_IN_SLOT;
    else
        to_pool(store, spare);
}

static bl_status check_next(const bl_store *store, const bl_layer_table *table,
                            const bl_layer_placement *next, bl_error *err) {
    const bl_layer_placement *map = &table->map;
    const bl_where where = bl_at_layer(NULL, map->layer);
    if (next->n_ranks != map->n_ranks || next->n_experts != map->n_experts ||
        memcmp(next->begin, map->begin, sizeof *map->begin * (size_t)(map->n_ranks + 1)) != 0)
        return bl_fail_at(err, BL_ERR_SHAPE, where,
                          "the next placement has other ranks, slots or experts than the one in "
                          "force");
    if (next->epoch != map->epoch + 1)
        return bl_fail_at(err, BL_ERR_STATE, where,
                          "rank %d is at epoch %llu and cannot commit epoch %llu", store->rank,
                          (unsigned long long)map->epoch, (unsigned long long)next->epoch);
    if (table->n_displaced > 0)
        return bl_fail_at(err, BL_ERR_STATE, where,
                          "rank %d has not retired %d buffers of the last commit", store->rank,
                          table->n_displaced);
    return bl_layer_placement_check(next, NULL, err);
}

/* Write into experts[] the buffer that will serve each expert of this rank under `next`: one it
 * holds already, or an arrival. */
static bl_status find_buffers(const bl_store *store, const bl_layer_table *table,
                              const bl_layer_placement *next, const bl_arrival *arrivals,
                              int n_arrivals, int *experts, bl_error *err) {
    const int layer = next->layer;
    for (int expert = 0; expert < store->n_experts; expert++)
        experts[expert] = BL_NO_BUFFER;
    for (int i = 0; i < n_arrivals; i++) {
        const int expert = arrivals[i].expert, spare = arrivals[i].spare;
        if (!is_reserved(store, spare))
            return bl_fail_at(err, BL_ERR_STATE, bl_at_expert(NULL, layer, expert),
                              "arrives in buffer %d, which is not reserved", spare);
        for (int before = 0; before < i; before++) {
            if (arrivals[before].spare == spare || arrivals[before].expert == expert)
                return bl_fail_at(err, BL_ERR_STATE, bl_at_expert(NULL, layer, expert),
                                  "arrivals %d and %d share an expert or a buffer", before, i);
        }
        if (expert < 0 || expert >= store->n_experts ||
            bl_layer_find(next, store->rank, expert) < 0 ||
            table->expert_buffer[expert] != BL_NO_BUFFER)
            return bl_fail_at(err, BL_ERR_STATE, bl_at_expert(NULL, layer, expert),
                              "arrives on rank %d, where it is held already or has no slot",
                              store->rank);
        experts[expert] = spare;
    }
    for (int slot = next->begin[store->rank]; slot < next->begin[store->rank + 1]; slot++) {
        const int expert = next->expert[slot];
        if (expert == BL_NO_EXPERT || experts[expert] != BL_NO_BUFFER)
            continue;
        experts[expert] = table->expert_buffer[expert];
        if (experts[expert] != BL_NO_BUFFER && store->use[experts[expert]] == BL_BUFFER_CLAIMED)
            return bl_fail_at(err, BL_ERR_STATE, bl_at_expert(NULL, layer, expert),
                              "stays on rank %d, where its buffer was given away", store->rank);
        if (experts[expert] == BL_NO_BUFFER)
            return bl_fail_at(err, BL_ERR_STATE, bl_at_expert(NULL, layer, expert),
                              "gets a slot on rank %d but did not arrive there", store->rank);
    }
    return BL_OK;
}

/* Give every slot its buffer under `next`. An empty slot takes one that nobody serves from any
 * more; what is left over after that is displaced. */
static void swap_tables(bl_store *store, bl_layer_table *table, const bl_layer_placement *next,
                        int n_arrivals) {
    const int first = next->begin[store->rank], n_slots = bl_store_own_slots(next, store->rank);
    int *slots = table->scratch_slots, *experts = table->scratch_experts;
    int n_claimed = 0;
    for (int i = 0; i < n_slots; i++) {
        n_claimed += store->use[table->slot_buffer[i]] == BL_BUFFER_CLAIMED;
        store->use[table->slot_buffer[i]] = BL_BUFFER_DISPLACED;
    }
    for (int i = 0; i < n_slots; i++) {
        const int expert = next->expert[first + i];
        slots[i] = expert != BL_NO_EXPERT ? experts[expert] : BL_NO_BUFFER;
        if (slots[i] != BL_NO_BUFFER)
            store->use[slots[i]] = BL_BUFFER_IN_SLOT;
    }
    int old = 0;
    for (int i = 0; i < n_slots; i++) {
        if (slots[i] != BL_NO_BUFFER)
            continue;
        while (store->use[table->slot_buffer[old]] != BL_BUFFER_DISPLACED)
            old++;
        slots[i] = table->slot_buffer[old];
        store->use[slots[i]] = BL_BUFFER_IN_SLOT;
    }
    for (int i = 0; i < n_slots; i++) {
        if (store->use[table->slot_buffer[i]] == BL_BUFFER_DISPLACED)
            table->displaced[table->n_displaced++] = table->slot_buffer[i];
    }
    assert(table->n_displaced == n_arrivals - n_claimed);
    table->scratch_slots = table->slot_buffer;
    table->scratch_experts = table->expert_buffer;
    table->slot_buffer = slots;
    table->expert_buffer = experts;
}

/* The tables of the engine, then the tensors that follow: what may fail comes before what is seen. */
static bl_status flip(bl_store *store, bl_layer_table *table, const bl_layer_placement *next,
                      int n_arrivals, bl_error *err) {
    BL_TRY(bl_bundle_reorder(table->bundle, &table->map, next, store->table_scratch, err));
    swap_tables(store, table, next, n_arrivals);
    bl_store_point(store, table);
    return bl_store_recompute(store, table, next, err);
}

/* Bring buffers, tensors or pointers of a layer to what `next` says. */
static bl_status turn_over(bl_store *store, bl_layer_table *table, const bl_layer_placement *next,
                           int n_arrivals, bl_error *err) {
    if (bl_store_is_by_pointers(store))
        return flip(store, table, next, n_arrivals, err);
    if (table->bundle != NULL)
        return bl_store_turn_tensors(store, table, next, err);
    swap_tables(store, table, next, n_arrivals);
    return BL_OK;
}

bl_status bl_store_commit(bl_store *store, const bl_layer_placement *next,
                          const bl_arrival *arrivals, int n_arrivals, bl_error *err) {
    bl_layer_table *table = table_of(store, next->layer);
    if (table == NULL)
        return bl_fail_at(err, BL_ERR_STATE, bl_at_layer(NULL, next->layer),
                          "rank %d has no such MoE layer", store->rank);
    BL_TRY(check_next(store, table, next, err));
    BL_TRY(find_buffers(store, table, next, arrivals, n_arrivals, table->scratch_experts, err));
    bl_layer_placement map;
    BL_TRY(bl_layer_placement_copy(next, &map, err));
    const bl_status st = turn_over(store, table, &map, n_arrivals, err);
    if (st < 0) {
        bl_layer_placement_free(&map);
        return st;
    }
    bl_layer_placement_free(&table->map);
    table->map = map;
    return BL_OK;
}

static bool holds_nothing(const bl_layer_placement *map, int rank) {
    for (int slot = map->begin[rank]; slot < map->begin[rank + 1]; slot++) {
        if (map->expert[slot] != BL_NO_EXPERT)
            return false;
    }
    return true;
}

bl_status bl_store_adopt(bl_store *store, const bl_placement *maps, bl_error *err) {
    BL_TRY(bl_placement_check(maps, NULL, err));
    for (int l = 0; l < maps->n_layers || l < store->n_layers; l++) {
        const bl_layer_placement *mine = l < store->n_layers ? &store->layers[l].map : NULL;
        const bl_layer_placement *map = l < maps->n_layers ? &maps->layers[l] : NULL;
        if (mine == NULL || map == NULL || map->layer != mine->layer ||
            map->n_ranks != mine->n_ranks || map->n_experts != mine->n_experts ||
            memcmp(map->begin, mine->begin, sizeof *map->begin * (size_t)(map->n_ranks + 1)) != 0 ||
            !holds_nothing(mine, store->rank) || !holds_nothing(map, store->rank))
            return bl_fail(
                err, BL_ERR_SHAPE,
                "rank %d cannot take over a placement of other slots, or one in which it "
                "holds experts",
                store->rank);
    }
    for (int l = 0; l < maps->n_layers; l++) {
        bl_layer_placement *mine = &store->layers[l].map;
        const size_t n_slots = (size_t)bl_layer_n_slots(mine);
        memcpy(mine->expert, maps->layers[l].expert, sizeof *mine->expert * n_slots);
        mine->epoch = maps->layers[l].epoch;
    }
    return BL_OK;
}

void bl_store_retire(bl_store *store, int layer) {
    bl_layer_table *table = table_of(store, layer);
    if (table == NULL)
        return;
    while (table->n_displaced > 0)
        to_pool(store, table->displaced[--table->n_displaced]);
}

bl_status bl_store_hash_expert(const bl_store *store, int layer, int expert, uint64_t *hash,
                               bl_error *err) {
    const void *bundle = bl_store_expert(store, layer, expert);
    *hash = 0;
    if (bundle == NULL && store->through == BL_NO_BUFFER)
        return bl_fail_at(err, BL_ERR_STATE, bl_at_expert(NULL, layer, expert),
                          "rank %d does not hold it", store->rank);
    if (bundle == NULL) {
        void *whole = bl_store_buffer(store, store->through);
        BL_TRY(bl_store_read_expert(store, layer, expert, 0, whole, store->bundle_bytes, err));
        bundle = whole;
    }
    return bl_memory_hash64(store->device, bundle, store->bundle_bytes, hash, err);
}

uint64_t bl_store_hash_spare(const bl_store *store, int spare) {
    uint64_t hash = 0;
    if (!is_reserved(store, spare))
        return 0;
    void *whole = bl_store_buffer(store, spare < store->n_rows ? store->through : spare);
    if (spare < store->n_rows && bl_store_read_buffer(store, table_of_row(store, spare), spare, 0,
                                                      whole, store->bundle_bytes, NULL) < 0)
        return 0;
    bl_memory_hash64(store->device, whole, store->bundle_bytes, &hash, NULL);
    return hash;
}
