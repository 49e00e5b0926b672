#include "rebalancer/messages.h"

#include "core/mem.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static const char MESSAGE_MAGIC[4] = {'B', 'L', 'T', '1'};
static const char CHUNK_MAGIC[4] = {'B', 'L', 'C', '1'};
static const char NAME_MAGIC[8] = {'B', 'L', 'N', '1'}; /* as a word no expert's number */

/* More than any model has; keeps what a message can make us allocate small. */
#define MAX_EXPERTS (1 << 20)

static void put(unsigned char *at, uint64_t value, int n_bytes) {
    for (int i = 0; i < n_bytes; i++)
        at[i] = (unsigned char)(value >> (8 * i));
}

static uint64_t get(const unsigned char *at, int n_bytes) {
    uint64_t value = 0;
    for (int i = 0; i < n_bytes; i++)
        value |= (uint64_t)at[i] << (8 * i);
    return value;
}

static int32_t get_int(const unsigned char *at) {
    const uint32_t bits = (uint32_t)get(at, 4);
    int32_t value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* ---- messages -------------------------------------------------------------------------------- */

bl_status bl_wire_encode(const bl_tx_message *m, const void *payload, size_t payload_bytes,
                         unsigned char **data_p, size_t *bytes, bl_error *err) {
    const size_t reason_bytes = strlen(m->reason);
    size_t total;
    if (payload_bytes > UINT32_MAX ||
        !bl_size_add(BL_WIRE_MESSAGE_BYTES + reason_bytes, payload_bytes, &total))
        return bl_fail(err, BL_ERR_RANGE, "a payload of %zu bytes is too large", payload_bytes);
    unsigned char *data;
    BL_TRY(BL_CALLOC(data, total, err));
    memcpy(data, MESSAGE_MAGIC, sizeof MESSAGE_MAGIC);
    put(data + 4, (uint64_t)m->type, 1);
    put(data + 6, reason_bytes, 2);
    put(data + 8, m->view, 8);
    put(data + 16, m->term, 8);
    put(data + 24, m->epoch, 8);
    put(data + 32, (uint32_t)m->wave, 4);
    put(data + 36, (uint32_t)m->move, 4);
    put(data + 40, (uint32_t)m->attempt, 4);
    put(data + 44, payload_bytes, 4);
    put(data + 48, m->step, 8);
    put(data + 56, m->hash, 8);
    memcpy(data + BL_WIRE_MESSAGE_BYTES, m->reason, reason_bytes);
    if (payload_bytes > 0)
        memcpy(data + BL_WIRE_MESSAGE_BYTES + reason_bytes, payload, payload_bytes);
    *data_p = data;
    *bytes = total;
    return BL_OK;
}

bool bl_wire_is_message(const void *data, size_t bytes) {
    return bytes >= sizeof MESSAGE_MAGIC && memcmp(data, MESSAGE_MAGIC, sizeof MESSAGE_MAGIC) == 0;
}

bl_status bl_wire_decode(const void *data, size_t bytes, int from, bl_tx_message *out,
                         const unsigned char **payload_p, size_t *payload_bytes, bl_error *err) {
    const unsigned char *at = data;
    if (bytes < BL_WIRE_MESSAGE_BYTES || memcmp(at, MESSAGE_MAGIC, sizeof MESSAGE_MAGIC) != 0)
        return bl_fail(err, BL_ERR_PARSE, "rank %d sent %zu bytes that are no message", from,
                       bytes);
    const size_t reason_bytes = (size_t)get(at + 6, 2), payload = (size_t)get(at + 44, 4);
    if (at[4] >= BL_TX_N_MESSAGES || at[5] != 0)
        return bl_fail(err, BL_ERR_VERSION, "rank %d sent a message of unknown type %d", from,
                       at[4]);
    if (reason_bytes >= BL_TX_REASON || BL_WIRE_MESSAGE_BYTES + reason_bytes + payload != bytes)
        return bl_fail(err, BL_ERR_PARSE, "rank %d sent a message of %zu bytes that says otherwise",
                       from, bytes);
    const unsigned char *reason = at + BL_WIRE_MESSAGE_BYTES;
    if (memchr(reason, '\0', reason_bytes) != NULL)
        return bl_fail(err, BL_ERR_PARSE, "rank %d sent a reason that is no text", from);
    *out = (bl_tx_message){.type = (bl_tx_message_type)at[4],
                           .from = from,
                           .view = get(at + 8, 8),
                           .term = get(at + 16, 8),
                           .epoch = get(at + 24, 8),
                           .wave = get_int(at + 32),
                           .move = get_int(at + 36),
                           .attempt = get_int(at + 40),
                           .step = get(at + 48, 8),
                           .hash = get(at + 56, 8)};
    memcpy(out->reason, reason, reason_bytes);
    *payload_p = reason + reason_bytes;
    *payload_bytes = payload;
    return BL_OK;
}

/* ---- goals ----------------------------------------------------------------------------------- */

bl_status bl_wire_encode_goal(const bl_placement *goal, unsigned char **data_p, size_t *bytes,
                              bl_error *err) {
    size_t words = 3;
    for (int l = 0; l < goal->n_layers; l++)
        words += 1 + (size_t)goal->n_ranks + (size_t)bl_layer_n_slots(&goal->layers[l]);
    unsigned char *data;
    BL_TRY(BL_CALLOC(data, 4 * words, err));
    unsigned char *at = data;
    put(at, (uint32_t)goal->n_ranks, 4);
    put(at + 4, (uint32_t)goal->n_experts, 4);
    put(at + 8, (uint32_t)goal->n_layers, 4);
    at += 12;
    for (int l = 0; l < goal->n_layers; l++) {
        const bl_layer_placement *layer = &goal->layers[l];
        put(at, (uint32_t)layer->layer, 4);
        at += 4;
        for (int rank = 0; rank < goal->n_ranks; rank++, at += 4)
            put(at, (uint32_t)(layer->begin[rank + 1] - layer->begin[rank]), 4);
        for (int slot = 0; slot < bl_layer_n_slots(layer); slot++, at += 4)
            put(at, (uint32_t)layer->expert[slot], 4);
    }
    assert(at == data + 4 * words);
    *data_p = data;
    *bytes = 4 * words;
    return BL_OK;
}

/* A goal being read: words left and where the next one is. */
typedef struct reader {
    const unsigned char *at;
    size_t words;
} reader;

static int32_t next(reader *in) {
    const int32_t value = get_int(in->at);
    in->at += 4;
    in->words--;
    return value;
}

static bl_status malformed(bl_error *err) {
    return bl_fail(err, BL_ERR_PARSE, "the goal that arrived is malformed");
}

static bl_status read_layer(reader *in, const bl_placement *goal, bl_layer_placement *out,
                            bl_error *err) {
    *out = (bl_layer_placement){.n_ranks = goal->n_ranks, .n_experts = goal->n_experts};
    if (in->words < 1 + (size_t)goal->n_ranks)
        return malformed(err);
    out->layer = next(in);
    BL_TRY(BL_CALLOC(out->begin, goal->n_ranks + 1, err));
    const size_t words = in->words - (size_t)goal->n_ranks;
    for (int rank = 0; rank < goal->n_ranks; rank++) {
        const int32_t slots = next(in);
        if (slots < 0 || (size_t)out->begin[rank] + (size_t)slots > words)
            return malformed(err);
        out->begin[rank + 1] = out->begin[rank] + slots;
    }
    const int n_slots = bl_layer_n_slots(out);
    BL_TRY(BL_CALLOC(out->expert, n_slots, err));
    for (int slot = 0; slot < n_slots; slot++) {
        out->expert[slot] = next(in);
        if (out->expert[slot] < BL_NO_EXPERT || out->expert[slot] >= goal->n_experts)
            return malformed(err);
    }
    return out->layer >= 0 ? BL_OK : malformed(err);
}

static bl_status read_goal(reader *in, bl_placement *goal, bl_error *err) {
    if (in->words < 3)
        return malformed(err);
    goal->n_ranks = next(in);
    goal->n_experts = next(in);
    const int32_t n_layers = next(in);
    if (goal->n_ranks < 1 || goal->n_ranks > BL_TX_MAX_RANKS || goal->n_experts < 1 ||
        goal->n_experts > MAX_EXPERTS || n_layers < 1 || (size_t)n_layers > in->words)
        return malformed(err);
    BL_TRY(BL_CALLOC(goal->layers, n_layers, err));
    goal->n_layers = n_layers;
    for (int l = 0; l < n_layers; l++) {
        BL_TRY(read_layer(in, goal, &goal->layers[l], err));
        if (l > 0 && goal->layers[l].layer <= goal->layers[l - 1].layer)
            return malformed(err);
    }
    return in->words == 0 ? BL_OK : malformed(err);
}

bl_status bl_wire_decode_goal(const void *data, size_t bytes, bl_placement *out, bl_error *err) {
    reader in = {data, bytes / 4};
    bl_placement goal = {0};
    const bl_status st = bytes % 4 == 0 ? read_goal(&in, &goal, err) : malformed(err);
    if (st < 0)
        bl_placement_free(&goal);
    else
        *out = goal;
    return st;
}

void bl_wire_encode_name(const unsigned char name[BL_ROUND_NAME_BYTES],
                         unsigned char tail[BL_WIRE_NAME_BYTES]) {
    memcpy(tail, NAME_MAGIC, sizeof NAME_MAGIC);
    memcpy(tail + sizeof NAME_MAGIC, name, BL_ROUND_NAME_BYTES);
}

const unsigned char *bl_wire_find_name(const unsigned char *goal, size_t *bytes) {
    if (*bytes < BL_WIRE_NAME_BYTES ||
        memcmp(goal + *bytes - BL_WIRE_NAME_BYTES, NAME_MAGIC, sizeof NAME_MAGIC) != 0)
        return NULL;
    *bytes -= BL_WIRE_NAME_BYTES;
    return goal + *bytes + sizeof NAME_MAGIC;
}

/* ---- chunks ---------------------------------------------------------------------------------- */

void bl_wire_encode_chunk(const bl_wire_chunk *chunk, unsigned char head[BL_WIRE_CHUNK_BYTES]) {
    memcpy(head, CHUNK_MAGIC, sizeof CHUNK_MAGIC);
    put(head + 4, (uint32_t)chunk->wave, 4);
    put(head + 8, chunk->term, 8);
    put(head + 16, (uint32_t)chunk->move, 4);
    put(head + 20, (uint32_t)chunk->attempt, 4);
    put(head + 24, chunk->offset, 8);
    put(head + 32, chunk->hash, 8);
}

bl_status bl_wire_decode_chunk(const void *data, size_t bytes, size_t bundle_bytes,
                               bl_wire_chunk *out, bl_error *err) {
    const unsigned char *at = data;
    if (bytes < BL_WIRE_CHUNK_BYTES || memcmp(at, CHUNK_MAGIC, sizeof CHUNK_MAGIC) != 0)
        return bl_fail(err, BL_ERR_PARSE, "%zu bytes that are no piece of an expert", bytes);
    const bl_wire_chunk chunk = {.wave = get_int(at + 4),
                                 .term = get(at + 8, 8),
                                 .move = get_int(at + 16),
                                 .attempt = get_int(at + 20),
                                 .offset = get(at + 24, 8),
                                 .hash = get(at + 32, 8)};
    const size_t piece = bytes - BL_WIRE_CHUNK_BYTES;
    if (piece > bundle_bytes || chunk.offset > bundle_bytes - piece ||
        (piece == 0 && chunk.offset != bundle_bytes))
        return bl_fail(err, BL_ERR_RANGE,
                       "%zu bytes at offset %llu do not fit an expert of %zu bytes", piece,
                       (unsigned long long)chunk.offset, bundle_bytes);
    *out = chunk;
    return BL_OK;
}
