/*
 * blt_decode.c: from chunks to records and maps. A chunk passed its checksum, but it may have been
 * made by anyone: all of its metadata is checked against its size before the first record is given.
 */
#include "tracer/blt_reader.h"

#include <stdlib.h>

static const unsigned char *cell(const bl_blt_reader *r, bl_blt_column column, uint32_t record) {
    return r->column[column] + (size_t)record * (size_t)bl_blt_column_bytes[column];
}

static uint64_t value(const bl_blt_reader *r, bl_blt_column column, uint32_t record) {
    const unsigned char *at = cell(r, column, record);
    switch (bl_blt_column_bytes[column]) {
    case 1:
        return at[0];
    case 2:
        return bl_get_u16(at);
    case 4:
        return bl_get_u32(at);
    default:
        return bl_get_u64(at);
    }
}

static int layer_index(const bl_blt_reader *r, uint32_t record) {
    return bl_trace_layer_index(&r->info, (int32_t)value(r, BL_COL_LAYER, record));
}

static bl_status bad(const bl_blt_reader *r, bl_status code, const char *what, bl_error *err) {
    const uint64_t offset = r->spans[r->next_span - 1].offset;
    return bl_fail_at(err, code, bl_at_byte(r->path, (int64_t)offset), "in this chunk: %s", what);
}

/* Bytes of each body column that one record uses; false when its metadata makes no sense. */
static bool body_sizes(const bl_blt_reader *r, uint32_t i, size_t sizes[BL_N_COLS]) {
    const uint64_t flags = value(r, BL_COL_FLAGS, i), n_ids = value(r, BL_COL_N_IDS, i),
                   tokens = value(r, BL_COL_N_TOKENS, i), k = value(r, BL_COL_K, i),
                   n_empty = value(r, BL_COL_N_EMPTY, i), width = value(r, BL_COL_WIDTH, i);
    if (n_ids < 1 || n_ids > BL_MAX_IDS_SPACE || k < 1 || k > BL_MAX_TOP_K ||
        tokens > BL_BLT_MAX_TOKENS || n_empty > tokens * k ||
        width != (uint64_t)bl_blt_id_width((int)n_ids))
        return false;
    const bool counts = (flags & BL_BLT_HAS_COUNTS) != 0;
    if (counts && (flags & (BL_BLT_HAS_EMPTIES | BL_BLT_HAS_WEIGHTS | BL_BLT_GAPS)))
        return false;
    if ((flags & BL_BLT_GAPS) && n_empty > 0)
        return false;
    if (!counts &&
        (tokens * k > BL_BLT_RECORD_IDS || (n_empty > 0) != ((flags & BL_BLT_HAS_EMPTIES) != 0)))
        return false;
    const size_t slots = counts ? 0 : (size_t)(tokens * k);
    sizes[BL_COL_EMPTIES] = flags & BL_BLT_HAS_EMPTIES ? (slots + 7) / 8 : 0;
    const size_t n_ids_there = counts ? 0 : slots - (size_t)n_empty;
    sizes[BL_COL_IDS] = r->version == 1 ? n_ids_there * (size_t)width : n_ids_there;
    sizes[BL_COL_IDS_HIGH] = r->version == 1 ? 0 : n_ids_there * (size_t)(width - 1);
    sizes[BL_COL_WEIGHTS] = flags & BL_BLT_HAS_WEIGHTS ? slots * 2 : 0;
    sizes[BL_COL_STAGES] = flags & BL_BLT_HAS_STAGES ? 8 * BL_N_STAGES : 0;
    sizes[BL_COL_COUNTS] = counts ? (size_t)n_ids * 8 : 0;
    return true;
}

static bl_status check_key(const bl_blt_reader *r, uint32_t i, bl_error *err) {
    const uint64_t flags = value(r, BL_COL_FLAGS, i), n_ids = value(r, BL_COL_N_IDS, i);
    const int layer = (int32_t)value(r, BL_COL_LAYER, i), rank = (int32_t)value(r, BL_COL_RANK, i);
    const uint64_t known = r->version == 1
                               ? BL_BLT_KNOWN_FLAGS & ~(uint64_t)(BL_BLT_GAPS | BL_RECORD_SETS)
                               : BL_BLT_KNOWN_FLAGS;
    if (flags & ~known)
        return bad(r, BL_ERR_VERSION, "a record with flags of a later version", err);
    if (value(r, BL_COL_PHASE, i) >= BL_N_PHASES)
        return bad(r, BL_ERR_RANGE, "an unknown phase", err);
    if (rank < BL_ALL_RANKS || rank >= BL_MAX_RANKS)
        return bad(r, BL_ERR_RANGE, "a rank out of range", err);
    if (bl_trace_layer_index(&r->info, layer) < 0)
        return bad(r, BL_ERR_RANGE, "a layer that the header does not list", err);
    if (!(flags & BL_RECORD_PHYSICAL) && n_ids != (uint64_t)r->info.n_experts)
        return bad(r, BL_ERR_RANGE, "logical ids of another number of experts", err);
    return BL_OK;
}

/* Where each layer's ids start. */
static void place_ids(bl_blt_reader *r) {
    const unsigned char *low = r->column[BL_COL_IDS], *high = r->column[BL_COL_IDS_HIGH];
    for (int l = 0; l < r->info.n_layers; l++) {
        r->ids_of[l].low = low;
        r->ids_of[l].high = high;
        low += r->ids_of[l].low_bytes;
        high += r->ids_of[l].high_bytes;
    }
}

/* Set up the columns of a RECS chunk in r->raw. */
static bl_status begin_records(bl_blt_reader *r, uint32_t n, bl_error *err) {
    size_t fixed = 0;
    for (int c = 0; c < BL_COL_EMPTIES; c++) {
        r->column[c] = r->raw.data + fixed * n;
        fixed += (size_t)bl_blt_column_bytes[c];
    }
    if (n == 0 || n > r->raw.used / fixed)
        return bad(r, BL_ERR_PARSE, "more records than bytes", err);
    size_t total[BL_N_COLS] = {0}, used = fixed * n;
    memset(r->ids_of, 0, (size_t)r->info.n_layers * sizeof *r->ids_of);
    for (uint32_t i = 0; i < n; i++) {
        size_t sizes[BL_N_COLS] = {0};
        BL_TRY(check_key(r, i, err));
        if (!body_sizes(r, i, sizes))
            return bad(r, BL_ERR_RANGE, "a record whose sizes make no sense", err);
        for (int c = BL_COL_EMPTIES; c < BL_N_COLS; c++) {
            total[c] += sizes[c];
            used += sizes[c];
        }
        if (used > r->raw.used)
            return bad(r, BL_ERR_PARSE, "records larger than the chunk", err);
        bl_blt_id_cursor *ids = &r->ids_of[layer_index(r, i)];
        ids->low_bytes += sizes[BL_COL_IDS];
        ids->high_bytes += sizes[BL_COL_IDS_HIGH];
    }
    if (used != r->raw.used)
        return bad(r, BL_ERR_PARSE, "bytes that belong to no record", err);
    const unsigned char *at = r->raw.data + fixed * n;
    for (int c = BL_COL_EMPTIES; c < BL_N_COLS; c++) {
        r->column[c] = at;
        at += total[c];
    }
    place_ids(r);
    r->n_records = n;
    r->next_record = 0;
    return BL_OK;
}

/* ---- maps ---------------------------------------------------------------------------------- */

static bl_layer_placement *find_own_map(const bl_blt_reader *r, int layer, uint64_t epoch) {
    for (size_t i = r->n_maps; i > 0; i--) {
        if (r->maps[i - 1].layer == layer && r->maps[i - 1].epoch == epoch)
            return &r->maps[i - 1];
    }
    return NULL;
}

/* A map of this part or of one before it. */
static bl_layer_placement *find_map(const bl_blt_reader *r, int layer, uint64_t epoch) {
    bl_layer_placement *map = NULL;
    for (; r != NULL && map == NULL; r = r->before)
        map = find_own_map(r, layer, epoch);
    return map;
}

void bl_blt_continues(bl_blt_reader *r, const bl_blt_reader *before) {
    r->before = before;
}

/* Forget the oldest map of a layer that has too many, so that memory stays bounded. */
static void forget_old_maps(bl_blt_reader *r, int layer) {
    size_t oldest = r->n_maps, n = 0;
    for (size_t i = r->n_maps; i > 0; i--) {
        if (r->maps[i - 1].layer == layer) {
            oldest = i - 1;
            n++;
        }
    }
    if (n < BL_BLT_MAPS_KEPT)
        return;
    bl_layer_placement_free(&r->maps[oldest]);
    memmove(&r->maps[oldest], &r->maps[oldest + 1], (r->n_maps - oldest - 1) * sizeof *r->maps);
    r->n_maps--;
}

static bool same_map(const bl_layer_placement *a, const bl_layer_placement *b) {
    const size_t n = (size_t)bl_layer_n_slots(a);
    return a->n_ranks == b->n_ranks &&
           memcmp(a->begin, b->begin, ((size_t)a->n_ranks + 1) * sizeof *a->begin) == 0 &&
           memcmp(a->expert, b->expert, n * sizeof *a->expert) == 0;
}

/* Takes the map over, whatever the result. */
static bl_status keep_map(bl_blt_reader *r, bl_layer_placement *map, bl_error *err) {
    const bl_layer_placement *same = find_own_map(r, map->layer, map->epoch);
    if (same != NULL) {
        const bool equal = same_map(same, map);
        bl_layer_placement_free(map);
        return equal ? BL_OK : bad(r, BL_ERR_STATE, "a second map of one layer and epoch", err);
    }
    forget_old_maps(r, map->layer);
    void *maps = r->maps;
    const bl_status st = bl_grow(&maps, &r->maps_capacity, r->n_maps + 1, sizeof *r->maps, err);
    r->maps = maps;
    if (st < 0) {
        bl_layer_placement_free(map);
        return st;
    }
    r->maps[r->n_maps++] = *map;
    return BL_OK;
}

/* First slots of the ranks and experts of the slots, both checked. */
static bl_status fill_map(bl_blt_reader *r, const unsigned char *begin, int n_slots,
                          bl_layer_placement *map, bl_error *err) {
    BL_TRY(BL_CALLOC(map->begin, (size_t)map->n_ranks + 1, err));
    BL_TRY(BL_CALLOC(map->expert, n_slots, err));
    for (int rank = 0; rank <= map->n_ranks; rank++) {
        const uint32_t first = bl_get_u32(begin + 4 * (size_t)rank);
        if (first > (uint32_t)n_slots || (rank == 0 && first != 0) ||
            (rank > 0 && first < (uint32_t)map->begin[rank - 1]))
            return bad(r, BL_ERR_RANGE, "a map whose ranks' slots do not ascend", err);
        map->begin[rank] = (int)first;
    }
    const unsigned char *expert = begin + 4 * ((size_t)map->n_ranks + 1);
    for (int slot = 0; slot < n_slots; slot++) {
        map->expert[slot] = (int32_t)bl_get_u32(expert + 4 * (size_t)slot);
        if (map->expert[slot] < BL_NO_EXPERT || map->expert[slot] >= r->info.n_experts)
            return bad(r, BL_ERR_RANGE, "a map to experts the model does not have", err);
    }
    return BL_OK;
}

static bl_status read_map(bl_blt_reader *r, bl_error *err) {
    const unsigned char *at = r->raw.data;
    if (r->raw.used < 24)
        return bad(r, BL_ERR_PARSE, "a map that is too short", err);
    const uint32_t n_ranks = bl_get_u32(at + 12), n_experts = bl_get_u32(at + 16);
    bl_layer_placement map = {.layer = (int32_t)bl_get_u32(at), .epoch = bl_get_u64(at + 4)};
    if (bl_trace_layer_index(&r->info, map.layer) < 0 || n_ranks < 1 || n_ranks > BL_MAX_RANKS ||
        n_experts != (uint32_t)r->info.n_experts)
        return bad(r, BL_ERR_RANGE, "a map for another model", err);
    const size_t head = 20 + 4 * ((size_t)n_ranks + 1);
    if (r->raw.used < head)
        return bad(r, BL_ERR_PARSE, "a map that is too short", err);
    const uint32_t n_slots = bl_get_u32(at + head - 4);
    if (n_slots < 1 || n_slots > BL_MAX_IDS_SPACE || r->raw.used != head + 4 * (size_t)n_slots)
        return bad(r, BL_ERR_PARSE, "a map of another size than it says", err);
    map.n_ranks = (int)n_ranks;
    map.n_experts = r->info.n_experts;
    const bl_status st = fill_map(r, at + 20, (int)n_slots, &map, err);
    if (st < 0) {
        bl_layer_placement_free(&map);
        return st;
    }
    return keep_map(r, &map, err);
}

/* ---- records ------------------------------------------------------------------------------- */

static bl_status grow_scratch(void **items, size_t *capacity, size_t n, size_t item_bytes,
                              bl_error *err) {
    return bl_grow(items, capacity, n > 0 ? n : 1, item_bytes, err);
}

#define GROW(r, field, n, err)                                                             \
    do {                                                                                   \
        void *grown_ = (r)->field;                                                         \
        const bl_status st_ =                                                              \
            grow_scratch(&grown_, &(r)->field##_capacity, (n), sizeof *(r)->field, (err)); \
        (r)->field = grown_;                                                               \
        BL_TRY(st_);                                                                       \
    } while (0)

#define BLOCK 16 /* ids that are widened at once: a count compilers turn into vectors */

/* Widen n bytes; returns the largest. Blocks go by way of copies, as bytes may alias anything. */
static uint32_t widen_bytes(const unsigned char *at, size_t n, int32_t *out) {
    unsigned char most[BLOCK] = {0}, block[BLOCK];
    int32_t wide[BLOCK];
    size_t i = 0;
    for (; i + BLOCK <= n; i += BLOCK) {
        memcpy(block, at + i, sizeof block);
        for (size_t j = 0; j < BLOCK; j++)
            most[j] = block[j] > most[j] ? block[j] : most[j];
        for (size_t j = 0; j < BLOCK; j++)
            wide[j] = block[j];
        memcpy(out + i, wide, sizeof wide);
    }
    uint32_t largest = 0;
    for (size_t j = 0; j < BLOCK; j++)
        largest = most[j] > largest ? most[j] : largest;
    for (; i < n; i++) {
        largest = at[i] > largest ? at[i] : largest;
        out[i] = at[i];
    }
    return largest;
}

/* Ids of which the lowest bytes lie in one place and the others in another. */
static uint32_t widen_parts(const unsigned char *low, const unsigned char *high, int width,
                            size_t n, int32_t *out) {
    uint32_t largest = 0;
    for (size_t i = 0; i < n; i++) {
        const uint32_t above = width == 2 ? high[i]
                                          : (uint32_t)high[3 * i] | (uint32_t)high[3 * i + 1] << 8 |
                                                (uint32_t)high[3 * i + 2] << 16;
        const uint32_t id = low[i] | above << 8;
        largest = id > largest ? id : largest;
        out[i] = (int32_t)id;
    }
    return largest;
}

/* Ids of version 1: each in one piece. */
static uint32_t widen_whole(const unsigned char *at, int width, size_t n, int32_t *out) {
    uint32_t largest = 0;
    for (size_t i = 0; i < n; i++) {
        const uint32_t id = width == 2 ? bl_get_u16(at + 2 * i) : bl_get_u32(at + 4 * i);
        largest = id > largest ? id : largest;
        out[i] = (int32_t)id;
    }
    return largest;
}

/* Widen the next n ids of a layer; the largest one tells whether all are in range (unsigned, so -1
 * is out too). */
static uint32_t widen(bl_blt_reader *r, uint32_t record, int width, size_t n, int32_t *out) {
    bl_blt_id_cursor *ids = &r->ids_of[layer_index(r, record)];
    const unsigned char *low = r->version == 1 ? r->column[BL_COL_IDS] : ids->low;
    if (width == 1) {
        ids->low += n;
        return widen_bytes(low, n, out);
    }
    if (r->version == 1)
        return widen_whole(low, width, n, out);
    const unsigned char *high = ids->high;
    ids->low += n;
    ids->high += n * (size_t)(width - 1);
    return widen_parts(low, high, width, n, out);
}

/* The id behind a gap. */
static uint64_t after_gap(uint64_t id, int32_t *gap) {
    id += (uint64_t)(uint32_t)*gap + 1;
    *gap = (int32_t)(uint32_t)id;
    return id;
}

static uint64_t larger(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

/* Rows of first ids and gaps into rows of ids; returns the largest id. Two rows at a time, whose
 * sums need not wait for each other. */
static uint64_t add_gaps(int32_t *ids, size_t n_rows, size_t k) {
    uint64_t largest = 0;
    for (; n_rows >= 2; n_rows -= 2, ids += 2 * k) {
        uint64_t a = (uint32_t)ids[0], b = (uint32_t)ids[k];
        for (size_t j = 1; j < k; j++) {
            a = after_gap(a, &ids[j]);
            b = after_gap(b, &ids[k + j]);
        }
        largest = larger(largest, larger(a, b));
    }
    if (n_rows > 0) {
        uint64_t a = (uint32_t)ids[0];
        for (size_t j = 1; j < k; j++)
            a = after_gap(a, &ids[j]);
        largest = larger(largest, a);
    }
    return largest;
}

/* Spread `n` ids at the front of ids[slots] over the slots whose bit is clear, from the back. */
static bool spread(const unsigned char *bitmap, size_t slots, size_t n, int32_t *ids) {
    size_t left = n;
    for (size_t slot = slots; slot-- > 0;) {
        if (((unsigned)bitmap[slot / 8] >> (slot % 8) & 1u) != 0) {
            ids[slot] = BL_EMPTY_SLOT;
        } else {
            if (left == 0)
                return false;
            ids[slot] = ids[--left];
        }
    }
    const bool tail_clear = slots % 8 == 0 || bitmap[slots / 8] >> (slots % 8) == 0;
    return left == 0 && tail_clear;
}

static bl_status decode_ids(bl_blt_reader *r, uint32_t i, bl_record *out,
                            const size_t sizes[BL_N_COLS], bl_error *err) {
    const size_t k = (size_t)out->k, slots = (size_t)out->n_tokens * k,
                 n = slots - (size_t)out->n_empty;
    GROW(r, ids, slots, err);
    uint64_t largest = widen(r, i, bl_blt_id_width(out->n_ids), n, r->ids);
    if (value(r, BL_COL_FLAGS, i) & BL_BLT_GAPS)
        largest = add_gaps(r->ids, (size_t)out->n_tokens, k);
    if (n > 0 && largest >= (uint32_t)out->n_ids)
        return bad(r, BL_ERR_RANGE, "an id that is out of range", err);
    if (sizes[BL_COL_EMPTIES] > 0 && !spread(r->column[BL_COL_EMPTIES], slots, n, r->ids))
        return bad(r, BL_ERR_PARSE, "empty slots that do not match their number", err);
    out->ids = r->ids;
    if (sizes[BL_COL_WEIGHTS] > 0) {
        GROW(r, weights, slots, err);
        for (size_t slot = 0; slot < slots; slot++)
            r->weights[slot] = bl_get_u16(r->column[BL_COL_WEIGHTS] + 2 * slot);
        out->weights = r->weights;
    }
    return BL_OK;
}

static bl_status decode_counts(bl_blt_reader *r, bl_record *out, bl_error *err) {
    GROW(r, counts, (size_t)out->n_ids, err);
    for (int id = 0; id < out->n_ids; id++) {
        r->counts[id] = bl_get_u64(r->column[BL_COL_COUNTS] + 8 * (size_t)id);
        if (r->counts[id] > BL_BLT_MAX_COUNT)
            return bad(r, BL_ERR_RANGE, "a count that is out of range", err);
    }
    out->counts = r->counts;
    return BL_OK;
}

static bl_status decode_body(bl_blt_reader *r, uint32_t i, bl_record *out, bl_error *err) {
    const unsigned flags = (unsigned)value(r, BL_COL_FLAGS, i);
    size_t sizes[BL_N_COLS] = {0};
    if (!body_sizes(r, i, sizes))
        return bl_fail(err, BL_ERR_INTERNAL, "a chunk changed while it was read");
    if (flags & BL_BLT_HAS_COUNTS)
        BL_TRY(decode_counts(r, out, err));
    else
        BL_TRY(decode_ids(r, i, out, sizes, err));
    if (flags & BL_BLT_HAS_STAGES) {
        for (int stage = 0; stage < BL_N_STAGES; stage++)
            r->stage_ns[stage] = bl_get_u64(r->column[BL_COL_STAGES] + 8 * (size_t)stage);
        out->stage_ns = r->stage_ns;
    }
    for (int c = BL_COL_EMPTIES; c < BL_N_COLS; c++)
        r->column[c] += sizes[c];
    return BL_OK;
}

static bl_status decode_record(bl_blt_reader *r, bl_record *out, bl_error *err) {
    const uint32_t i = r->next_record++;
    bl_record record = {.run = (uint32_t)value(r, BL_COL_RUN, i),
                        .step = value(r, BL_COL_STEP, i),
                        .layer = (int32_t)value(r, BL_COL_LAYER, i),
                        .rank = (int32_t)value(r, BL_COL_RANK, i),
                        .phase = (bl_phase)value(r, BL_COL_PHASE, i),
                        .flags = (unsigned)value(r, BL_COL_FLAGS, i) & BL_BLT_KNOWN_RECORD_FLAGS,
                        .epoch = value(r, BL_COL_EPOCH, i),
                        .n_ids = (int)value(r, BL_COL_N_IDS, i),
                        .n_tokens = value(r, BL_COL_N_TOKENS, i),
                        .k = (int)value(r, BL_COL_K, i),
                        .n_empty = value(r, BL_COL_N_EMPTY, i),
                        .dropped = value(r, BL_COL_DROPPED, i)};
    if (!r->skip_bodies)
        BL_TRY(decode_body(r, i, &record, err));
    r->last_is_physical = (record.flags & BL_RECORD_PHYSICAL) != 0;
    *out = record;
    return BL_OK;
}

bl_status bl_blt_next(bl_blt_reader *r, bl_record *record, bool *got, bl_error *err) {
    *got = false;
    while (r->next_record >= r->n_records) {
        if (r->next_span >= r->n_spans)
            return BL_OK;
        const bl_blt_span *span = &r->spans[r->next_span++];
        const bool maps = span->frame.kind == BL_BLT_MAPS;
        if (!maps &&
            (span->frame.last_step < r->first_step || span->frame.first_step >= r->end_step))
            continue;
        BL_TRY(bl_blt_load_chunk(r, span, err));
        if (maps)
            BL_TRY(read_map(r, err));
        else
            BL_TRY(begin_records(r, span->frame.items, err));
    }
    BL_TRY(decode_record(r, record, err));
    *got = true;
    return BL_OK;
}

/* ---- physical to logical ------------------------------------------------------------------- */

static bl_status no_expert(const bl_blt_reader *r, const bl_record *record, int slot,
                           bl_error *err) {
    return bl_fail_at(err, BL_ERR_RANGE, bl_at_layer(r->path, record->layer),
                      "slot %d was used, but holds no expert in epoch %llu", slot,
                      (unsigned long long)record->epoch);
}

static bl_status ids_to_logical(bl_blt_reader *r, const bl_layer_placement *map, bl_record *record,
                                bl_error *err) {
    const size_t slots = (size_t)record->n_tokens * (size_t)record->k;
    for (size_t i = 0; i < slots; i++) {
        const int32_t slot = r->ids[i];
        if (slot == BL_EMPTY_SLOT)
            continue;
        if (map->expert[slot] == BL_NO_EXPERT)
            return no_expert(r, record, slot, err);
        r->ids[i] = map->expert[slot];
    }
    return BL_OK;
}

static bl_status counts_to_logical(bl_blt_reader *r, const bl_layer_placement *map,
                                   bl_record *record, bl_error *err) {
    const size_t n_experts = (size_t)r->info.n_experts;
    GROW(r, logical_counts, n_experts, err);
    memset(r->logical_counts, 0, n_experts * sizeof *r->logical_counts);
    for (int slot = 0; slot < bl_layer_n_slots(map); slot++) {
        if (r->counts[slot] == 0)
            continue;
        if (map->expert[slot] == BL_NO_EXPERT)
            return no_expert(r, record, slot, err);
        uint64_t *sum = &r->logical_counts[map->expert[slot]];
        if (r->counts[slot] > UINT64_MAX - *sum)
            return bl_fail_at(err, BL_ERR_RANGE, bl_at_layer(r->path, record->layer),
                              "counts that do not fit into 64 bits");
        *sum += r->counts[slot];
    }
    record->counts = r->logical_counts;
    return BL_OK;
}

const bl_layer_placement *bl_blt_map(const bl_blt_reader *r, const bl_record *record) {
    return record->flags & BL_RECORD_PHYSICAL ? find_map(r, record->layer, record->epoch) : NULL;
}

bl_status bl_blt_to_logical(bl_blt_reader *r, bl_record *record, bl_error *err) {
    const bl_where at = bl_at_layer(r->path, record->layer);
    if (!(record->flags & BL_RECORD_PHYSICAL) || !r->last_is_physical)
        return bl_fail_at(err, BL_ERR_STATE, at,
                          "these ids are logical already: converting twice is an error");
    const bl_layer_placement *map = find_map(r, record->layer, record->epoch);
    if (map == NULL)
        return bl_fail_at(err, BL_ERR_STATE, at,
                          "physical ids of epoch %llu, but the trace holds no such map",
                          (unsigned long long)record->epoch);
    if (bl_layer_n_slots(map) != record->n_ids)
        return bl_fail_at(err, BL_ERR_SHAPE, at,
                          "ids of %d slots, but the map of epoch %llu has %d", record->n_ids,
                          (unsigned long long)record->epoch, bl_layer_n_slots(map));
    if (record->ids != NULL)
        BL_TRY(ids_to_logical(r, map, record, err));
    if (record->counts != NULL)
        BL_TRY(counts_to_logical(r, map, record, err));
    record->flags &= ~(unsigned)BL_RECORD_PHYSICAL;
    record->n_ids = r->info.n_experts;
    r->last_is_physical = false;
    return BL_OK;
}
