#include "runtime/hop.h"

#include "core/mem.h"

#include <stdlib.h>
#include <string.h>

typedef struct header {
    uint32_t layer, items;
    uint64_t epoch;
} header;

/* ---- life ---------------------------------------------------------------------------------- */

bl_status bl_hop_create(bl_exchange *exchange, int n_experts, int hidden, bl_hop *out,
                        bl_error *err) {
    const int n = bl_transport_n_ranks(exchange->transport);
    bl_hop hop = {.exchange = exchange,
                  .rank = bl_transport_rank(exchange->transport),
                  .n_ranks = n,
                  .n_experts = n_experts,
                  .row_bytes = (size_t)hidden * sizeof(float)};
    if (BL_CALLOC(hop.n_to, n, err) < 0 || BL_CALLOC(hop.n_rows_to, n, err) < 0 ||
        BL_CALLOC(hop.last_key, n, err) < 0 || BL_CALLOC(hop.buffer, n, err) < 0 ||
        BL_CALLOC(hop.outgoing, n, err) < 0 || BL_CALLOC(hop.received, n, err) < 0 ||
        BL_CALLOC(hop.n_received, n, err) < 0 || BL_CALLOC(hop.answer, n, err) < 0 ||
        BL_CALLOC(hop.returned, n, err) < 0) {
        bl_hop_free(&hop);
        return BL_ERR_NOMEM;
    }
    *out = hop;
    return BL_OK;
}

static void free_buffers(bl_hop_buffer *buffers, int n) {
    for (int g = 0; buffers != NULL && g < n; g++)
        free(buffers[g].data);
    free(buffers);
}

void bl_hop_free(bl_hop *hop) {
    if (hop->received != NULL)
        bl_exchange_release(hop->received, hop->n_ranks);
    if (hop->returned != NULL)
        bl_exchange_release(hop->returned, hop->n_ranks);
    free_buffers(hop->buffer, hop->n_ranks);
    free_buffers(hop->answer, hop->n_ranks);
    free(hop->items);
    free(hop->n_to);
    free(hop->n_rows_to);
    free(hop->last_key);
    free(hop->outgoing);
    free(hop->received);
    free(hop->n_received);
    free(hop->returned);
    *hop = (bl_hop){0};
}

void bl_hop_begin(bl_hop *hop, int layer, uint64_t epoch) {
    bl_exchange_release(hop->received, hop->n_ranks);
    bl_exchange_release(hop->returned, hop->n_ranks);
    hop->layer = layer;
    hop->epoch = epoch;
    hop->n_items = 0;
}

/* ---- messages ------------------------------------------------------------------------------ */

/* Columns of numbers in front of the rows. */
static size_t n_columns(const bl_hop *hop) {
    return 1 + (size_t)hop->shares_rows + (size_t)hop->forwards;
}

static size_t columns_bytes(const bl_hop *hop, size_t n_items) {
    return (n_items * n_columns(hop) * sizeof(int32_t) + 15) & ~(size_t)15;
}

/* Room for a message with its header and what stands between header and rows zeroed. */
static bl_status reserve(const bl_hop *hop, bl_hop_buffer *buffer, size_t columns, int32_t items,
                         int32_t rows, bl_outgoing *out, bl_error *err) {
    const header head = {(uint32_t)hop->layer, (uint32_t)items, hop->epoch};
    size_t total;
    if (!bl_size_mul((size_t)rows, hop->row_bytes, &total) ||
        !bl_size_add(total, sizeof head + columns, &total))
        return bl_fail(err, BL_ERR_NOMEM, "out of memory: %d rows", rows);
    void *data = buffer->data;
    const bl_status st = bl_grow(&data, &buffer->capacity, total, 1, err);
    buffer->data = data;
    BL_TRY(st);
    memcpy(buffer->data, &head, sizeof head);
    memset(buffer->data + sizeof head, 0, columns);
    *out = (bl_outgoing){buffer->data, total};
    return BL_OK;
}

bl_status bl_hop_add(bl_hop *hop, bl_hop_item item, int *index, bl_error *err) {
    if (hop->n_items >= INT32_MAX / 4)
        return bl_fail_at(err, BL_ERR_RANGE, bl_at_layer(NULL, hop->layer),
                          "too many rows in one step");
    void *items = hop->items;
    const bl_status st =
        bl_grow(&items, &hop->item_capacity, (size_t)hop->n_items + 1, sizeof *hop->items, err);
    hop->items = items;
    BL_TRY(st);
    hop->items[hop->n_items] = item;
    *index = hop->n_items++;
    return BL_OK;
}

/* Number the items and rows of each rank. */
static void number(bl_hop *hop) {
    for (int rank = 0; rank < hop->n_ranks; rank++) {
        hop->n_to[rank] = hop->n_rows_to[rank] = 0;
        hop->last_key[rank] = -1;
    }
    for (int i = 0; i < hop->n_items; i++) {
        bl_hop_item *item = &hop->items[i];
        item->at = hop->n_to[item->to]++;
        if (!hop->shares_rows || hop->last_key[item->to] != item->key)
            hop->n_rows_to[item->to]++;
        hop->last_key[item->to] = item->key;
        item->row = hop->n_rows_to[item->to] - 1;
    }
}

bl_status bl_hop_pack(bl_hop *hop, bl_error *err) {
    number(hop);
    for (int rank = 0; rank < hop->n_ranks; rank++)
        BL_TRY(reserve(hop, &hop->buffer[rank], columns_bytes(hop, (size_t)hop->n_to[rank]),
                       hop->n_to[rank], hop->n_rows_to[rank], &hop->outgoing[rank], err));
    for (int i = 0; i < hop->n_items; i++) {
        const bl_hop_item *item = &hop->items[i];
        const size_t n = (size_t)hop->n_to[item->to], at = (size_t)item->at;
        unsigned char *data = hop->buffer[item->to].data + sizeof(header);
        int32_t *column = (int32_t *)(void *)data;
        column[at] = item->expert;
        if (hop->shares_rows)
            column[n + at] = item->row;
        if (hop->forwards)
            column[(n_columns(hop) - 1) * n + at] = item->final;
        memcpy(data + columns_bytes(hop, n) + (size_t)item->row * hop->row_bytes, item->x,
               hop->row_bytes);
    }
    return BL_OK;
}

/* ---- exchanges ----------------------------------------------------------------------------- */

static bl_status exchange(bl_hop *hop, const int32_t *rows, bl_message *incoming, size_t way,
                          bl_hop_cost *cost, bl_error *err) {
    BL_TRY(bl_exchange_alltoallv(hop->exchange, hop->outgoing, incoming, err));
    for (int g = 0; g < hop->n_ranks; g++) {
        if (g == hop->rank)
            continue;
        cost->bytes_to[way * (size_t)hop->n_ranks + (size_t)g] += hop->outgoing[g].bytes;
        cost->bytes += hop->outgoing[g].bytes;
        cost->rows += (uint64_t)rows[g];
        cost->messages++;
    }
    return BL_OK;
}

/* Header of a message from `peer`, checked against the layer at hand; `shared`: rows are as many as
 * there is room for, else one per item. */
static bl_status check_header(const bl_hop *hop, int peer, const bl_message *message, bool out,
                              int32_t *items, bl_error *err) {
    const size_t bytes = message->bytes;
    header head = {0};
    if (bytes >= sizeof head)
        memcpy(&head, message->data, sizeof head);
    bool fits =
        bytes >= sizeof head && head.items <= bytes / sizeof(int32_t) && head.items <= INT32_MAX;
    if (fits) {
        const size_t columns = out ? columns_bytes(hop, head.items) : 0;
        const size_t left = bytes - sizeof head;
        fits = left >= columns &&
               (out && hop->shares_rows ? (left - columns) % hop->row_bytes == 0
                                        : left - columns == head.items * hop->row_bytes);
    }
    if (!fits)
        return bl_fail_at(err, BL_ERR_SHAPE, bl_at_layer(NULL, hop->layer),
                          "rank %d sent %zu bytes for %u rows", peer, bytes, head.items);
    if (head.layer != (uint32_t)hop->layer || head.epoch != hop->epoch)
        return bl_fail_at(err, BL_ERR_STATE, bl_at_layer(NULL, hop->layer),
                          "rank %d is at layer %u, epoch %llu, rank %d at epoch %llu", peer,
                          head.layer, (unsigned long long)head.epoch, hop->rank,
                          (unsigned long long)hop->epoch);
    *items = (int32_t)head.items;
    return BL_OK;
}

static const int32_t *column_of(const bl_hop *hop, int peer, size_t column) {
    return (const int32_t *)(const void *)(hop->received[peer].data + sizeof(header)) +
           column * (size_t)hop->n_received[peer];
}

int bl_hop_expert(const bl_hop *hop, int peer, int i) {
    return column_of(hop, peer, 0)[i];
}

int bl_hop_final(const bl_hop *hop, int peer, int i) {
    return hop->forwards ? column_of(hop, peer, n_columns(hop) - 1)[i] : hop->rank;
}

int bl_hop_row(const bl_hop *hop, int peer, int i) {
    return hop->shares_rows ? column_of(hop, peer, 1)[i] : i;
}

const void *bl_hop_input(const bl_hop *hop, int peer, int i) {
    return hop->received[peer].data + sizeof(header) +
           columns_bytes(hop, (size_t)hop->n_received[peer]) +
           (size_t)bl_hop_row(hop, peer, i) * hop->row_bytes;
}

static bl_status check_items(const bl_hop *hop, int peer, bl_error *err) {
    const size_t before = sizeof(header) + columns_bytes(hop, (size_t)hop->n_received[peer]);
    const size_t n_rows = (hop->received[peer].bytes - before) / hop->row_bytes;
    for (int i = 0; i < hop->n_received[peer]; i++) {
        const int expert = bl_hop_expert(hop, peer, i), row = bl_hop_row(hop, peer, i);
        const int final = bl_hop_final(hop, peer, i);
        if (expert < 0 || expert >= hop->n_experts)
            return bl_fail_at(err, BL_ERR_RANGE, bl_at_layer(NULL, hop->layer),
                              "rank %d sent a row for expert %d of %d", peer, expert,
                              hop->n_experts);
        if (row < 0 || (size_t)row >= n_rows || final < 0 || final >= hop->n_ranks)
            return bl_fail_at(err, BL_ERR_RANGE, bl_at_layer(NULL, hop->layer),
                              "rank %d sent %zu rows and speaks of row %d for rank %d", peer,
                              n_rows, row, final);
    }
    return BL_OK;
}

bl_status bl_hop_out(bl_hop *hop, bl_hop_cost *cost, bl_error *err) {
    BL_TRY(exchange(hop, hop->n_rows_to, hop->received, 0, cost, err));
    for (int g = 0; g < hop->n_ranks; g++) {
        BL_TRY(check_header(hop, g, &hop->received[g], true, &hop->n_received[g], err));
        BL_TRY(check_items(hop, g, err));
    }
    return BL_OK;
}

bl_status bl_hop_reserve_answers(bl_hop *hop, bl_error *err) {
    for (int g = 0; g < hop->n_ranks; g++)
        BL_TRY(reserve(hop, &hop->answer[g], 0, hop->n_received[g], hop->n_received[g],
                       &hop->outgoing[g], err));
    return BL_OK;
}

void *bl_hop_answer(bl_hop *hop, int peer, int i) {
    return hop->answer[peer].data + sizeof(header) + (size_t)i * hop->row_bytes;
}

void bl_hop_drop_inputs(bl_hop *hop) {
    bl_exchange_release(hop->received, hop->n_ranks);
}

bl_status bl_hop_back(bl_hop *hop, bl_hop_cost *cost, bl_error *err) {
    BL_TRY(exchange(hop, hop->n_received, hop->returned, 1, cost, err));
    for (int g = 0; g < hop->n_ranks; g++) {
        int32_t items;
        BL_TRY(check_header(hop, g, &hop->returned[g], false, &items, err));
        if (items != hop->n_to[g])
            return bl_fail_at(err, BL_ERR_STATE, bl_at_layer(NULL, hop->layer),
                              "rank %d was sent %d rows and returned %d", g, hop->n_to[g], items);
    }
    return BL_OK;
}

const void *bl_hop_result(const bl_hop *hop, int index) {
    const bl_hop_item *item = &hop->items[index];
    return hop->returned[item->to].data + sizeof(header) + (size_t)item->at * hop->row_bytes;
}
