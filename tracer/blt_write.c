/*
 * blt_write.c: records in, chunks out. Each column of the chunk being filled is a growing buffer; a
 * flush strings them together, compresses and frames them.
 */
#include "tracer/blt.h"

#include "core/io.h"
#include "tracer/blt_format.h"
#include "tracer/blt_pack.h"
#include "tracer/le.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zstd.h>

#define ZSTD_LEVEL 3
#define BLOCK_BYTES ((size_t)4096) /* a block is at least this large: its tables take about 130 */
#define CUT_BYTES 16               /* what a block's end may cost beyond zstd's own bound */

/* Ids of one layer, in the order of its records. */
typedef struct layer_ids {
    bl_bytes low, high;
} layer_ids;

struct bl_blt_writer {
    bl_trace_info info;
    char *path;
    bl_file file; /* stream of both kinds; committed only when not live */
    bool live;
    bool broken;     /* a write failed: nothing more is written */
    uint64_t offset; /* bytes written so far */
    uint32_t n_chunks;
    bl_bytes column[BL_N_COLS];
    uint32_t n_records;             /* in the columns */
    size_t raw_bytes;               /* sum of the columns */
    uint64_t first_step, last_step; /* over the columns */
    uint32_t run;                   /* key of the last record */
    uint64_t step;
    int rank;
    bl_bytes index;
    uint64_t total_records, total_dropped;
    ZSTD_CCtx *zstd;
    bl_bytes raw, stored; /* scratch of flush */
    bl_blt_packed packed; /* scratch of one record */
    layer_ids *layers;    /* [info.n_layers] ids of the columns */
    size_t *cuts;         /* [2 * info.n_layers + 2] where blocks of a chunk end */
    bool sets;
};

static void writer_free(bl_blt_writer *w) {
    if (w == NULL)
        return;
    for (int c = 0; c < BL_N_COLS; c++)
        free(w->column[c].data);
    free(w->index.data);
    free(w->raw.data);
    free(w->stored.data);
    bl_blt_packed_free(&w->packed);
    for (int l = 0; w->layers != NULL && l < w->info.n_layers; l++) {
        free(w->layers[l].low.data);
        free(w->layers[l].high.data);
    }
    free(w->layers);
    free(w->cuts);
    ZSTD_freeCCtx(w->zstd);
    bl_trace_info_free(&w->info);
    free(w->path);
    free(w);
}

static bl_status put(bl_blt_writer *w, const void *data, size_t bytes, bl_error *err) {
    if (w->broken)
        return bl_fail_at(err, BL_ERR_IO, bl_at(w->path), "an earlier write failed");
    if (fwrite(data, 1, bytes, w->file.stream) != bytes) {
        w->broken = true;
        return bl_fail_at(err, BL_ERR_IO, bl_at(w->path), "cannot write: %s", strerror(errno));
    }
    w->offset += bytes;
    return BL_OK;
}

static bl_status put_header(bl_blt_writer *w, bl_error *err) {
    json_t *root = bl_blt_info_to_json(&w->info);
    char *text = root != NULL ? json_dumps(root, JSON_COMPACT) : NULL;
    json_decref(root);
    if (text == NULL)
        return bl_fail(err, BL_ERR_USAGE, "the model's name is not UTF-8");
    const size_t n = strlen(text);
    bl_bytes header = {0};
    bl_status st = bl_bytes_add(&header, BL_BLT_MAGIC, 8, err);
    if (st == BL_OK)
        st = bl_bytes_add_le(&header, BL_BLT_VERSION, 4, err);
    if (st == BL_OK)
        st = bl_bytes_add_le(&header, n, 4, err);
    if (st == BL_OK)
        st = bl_bytes_add(&header, text, n, err);
    if (st == BL_OK)
        st = bl_bytes_add_le(&header, bl_hash64(header.data, header.used), 8, err);
    if (st == BL_OK)
        st = put(w, header.data, header.used, err);
    free(header.data);
    free(text);
    return st;
}

static bl_status open_file(bl_blt_writer *w, const char *path, bl_error *err) {
    if (!w->live)
        return bl_file_create(&w->file, path, err);
    w->file.stream = fopen(path, "wb");
    if (w->file.stream == NULL)
        return bl_fail_at(err, BL_ERR_IO, bl_at(path), "cannot create: %s", strerror(errno));
    return BL_OK;
}

bl_status bl_blt_create(const char *path, const bl_trace_info *info, bool live,
                        bl_blt_writer **writer_p, bl_error *err) {
    BL_TRY(bl_trace_info_check(info, NULL, err));
    bl_blt_writer *w = NULL;
    BL_TRY(BL_CALLOC(w, 1, err));
    w->live = live;
    w->path = strdup(path);
    w->zstd = ZSTD_createCCtx();
    bl_status st = bl_trace_info_copy(info, &w->info, err);
    if (st == BL_OK)
        st = BL_CALLOC(w->layers, w->info.n_layers, err);
    if (st == BL_OK)
        st = BL_CALLOC(w->cuts, 2 * w->info.n_layers + 2, err);
    if (st == BL_OK && (w->path == NULL || w->zstd == NULL))
        st = bl_fail(err, BL_ERR_NOMEM, "out of memory");
    if (st == BL_OK)
        st = open_file(w, path, err);
    if (st == BL_OK)
        st = put_header(w, err);
    if (st == BL_OK && live) /* whoever waits for the file sees it now */
        st = bl_blt_flush(w, err);
    if (st < 0) {
        bl_blt_abandon(w);
        return st;
    }
    ZSTD_CCtx_setParameter(w->zstd, ZSTD_c_compressionLevel, ZSTD_LEVEL);
    *writer_p = w;
    return BL_OK;
}

void bl_blt_abandon(bl_blt_writer *w) {
    if (w == NULL)
        return;
    if (w->live && w->file.stream != NULL)
        fclose(w->file.stream);
    else if (!w->live)
        bl_file_discard(&w->file);
    writer_free(w);
}

/* ---- chunks -------------------------------------------------------------------------------- */

static bl_status index_chunk(bl_blt_writer *w, const bl_blt_frame *frame, bl_error *err) {
    BL_TRY(bl_bytes_reserve(&w->index, BL_BLT_ENTRY_BYTES, err));
    unsigned char *at = w->index.data + w->index.used;
    bl_put_le(at, w->offset, 8);
    bl_put_le(at + 8, frame->kind, 4);
    bl_put_le(at + 12, frame->items, 4);
    bl_put_le(at + 16, frame->first_step, 8);
    bl_put_le(at + 24, frame->last_step, 8);
    w->index.used += BL_BLT_ENTRY_BYTES;
    return BL_OK;
}

/* One zstd frame of raw[0 .. raw->used), whose blocks end at the ascending cuts[n_cuts], too. */
static bl_status compress(bl_blt_writer *w, const bl_bytes *raw, const size_t *cuts, size_t n_cuts,
                          ZSTD_outBuffer *out, bl_error *err) {
    size_t n = ZSTD_CCtx_reset(w->zstd, ZSTD_reset_session_only);
    if (!ZSTD_isError(n))
        n = ZSTD_CCtx_setPledgedSrcSize(w->zstd, raw->used);
    for (size_t i = 0, from = 0; i <= n_cuts && !ZSTD_isError(n); i++) {
        const size_t to = i < n_cuts ? cuts[i] : raw->used;
        ZSTD_inBuffer in = {raw->data + from, to - from, 0};
        const ZSTD_EndDirective how = i < n_cuts ? ZSTD_e_flush : ZSTD_e_end;
        do {
            n = ZSTD_compressStream2(w->zstd, out, &in, how);
        } while (n > 0 && !ZSTD_isError(n) && out->pos < out->size);
        from = to;
    }
    if (ZSTD_isError(n) || n > 0)
        return bl_fail(err, BL_ERR_INTERNAL, "zstd: %s",
                       n > 0 && !ZSTD_isError(n) ? "a bound too small" : ZSTD_getErrorName(n));
    return BL_OK;
}

/* Compress `raw`, frame it and write it; `frame` comes with kind, flags, items and steps filled. */
static bl_status put_chunk(bl_blt_writer *w, bl_blt_frame frame, const bl_bytes *raw,
                           const size_t *cuts, size_t n_cuts, bl_error *err) {
    const size_t bound = ZSTD_compressBound(raw->used) + n_cuts * CUT_BYTES;
    w->stored.used = 0;
    BL_TRY(bl_bytes_reserve(&w->stored, BL_BLT_FRAME_BYTES + bound, err));
    unsigned char *stored = w->stored.data + BL_BLT_FRAME_BYTES;
    ZSTD_outBuffer out = {stored, bound, 0};
    BL_TRY(compress(w, raw, cuts, n_cuts, &out, err));
    const size_t n = out.pos;
    frame.number = w->n_chunks;
    frame.stored_bytes = n;
    frame.raw_bytes = raw->used;
    frame.hash = bl_hash64(stored, n);
    bl_blt_frame_pack(&frame, w->stored.data);
    if (frame.kind != BL_BLT_INDX)
        BL_TRY(index_chunk(w, &frame, err));
    BL_TRY(put(w, w->stored.data, BL_BLT_FRAME_BYTES + n, err));
    w->n_chunks++;
    return BL_OK;
}

/* End a block where the next byte goes, if the block is worth its own statistics. */
static void cut_here(bl_blt_writer *w, size_t *n_cuts) {
    const size_t last = *n_cuts > 0 ? w->cuts[*n_cuts - 1] : 0;
    if (w->raw.used - last >= BLOCK_BYTES)
        w->cuts[(*n_cuts)++] = w->raw.used;
}

/* Ids of the layers, one after another, each a block of its own. */
static bl_status string_ids(bl_blt_writer *w, bool high, size_t *n_cuts, bl_error *err) {
    cut_here(w, n_cuts);
    for (int l = 0; l < w->info.n_layers; l++) {
        bl_bytes *ids = high ? &w->layers[l].high : &w->layers[l].low;
        BL_TRY(bl_bytes_add(&w->raw, ids->data, ids->used, err));
        ids->used = 0;
        cut_here(w, n_cuts);
    }
    return BL_OK;
}

static bl_status flush_columns(bl_blt_writer *w, bool step_goes_on, bl_error *err) {
    if (w->n_records == 0)
        return BL_OK;
    size_t n_cuts = 0;
    w->raw.used = 0;
    for (int c = 0; c < BL_N_COLS; c++) {
        if (c == BL_COL_IDS || c == BL_COL_IDS_HIGH)
            BL_TRY(string_ids(w, c == BL_COL_IDS_HIGH, &n_cuts, err));
        else
            BL_TRY(bl_bytes_add(&w->raw, w->column[c].data, w->column[c].used, err));
    }
    const bl_blt_frame frame = {.kind = BL_BLT_RECS,
                                .flags = step_goes_on ? BL_BLT_STEP_GOES_ON : 0,
                                .items = w->n_records,
                                .first_step = w->first_step,
                                .last_step = w->last_step};
    BL_TRY(put_chunk(w, frame, &w->raw, w->cuts, n_cuts, err));
    for (int c = 0; c < BL_N_COLS; c++)
        w->column[c].used = 0;
    w->n_records = 0;
    w->raw_bytes = 0;
    return BL_OK;
}

bl_status bl_blt_flush(bl_blt_writer *w, bl_error *err) {
    BL_TRY(flush_columns(w, false, err));
    if (w->live && fflush(w->file.stream) != 0) {
        w->broken = true;
        return bl_fail_at(err, BL_ERR_IO, bl_at(w->path), "cannot write: %s", strerror(errno));
    }
    return BL_OK;
}

uint64_t bl_blt_bytes(const bl_blt_writer *w) {
    return w->offset;
}

size_t bl_blt_buffered(const bl_blt_writer *w) {
    return w->raw_bytes;
}

bool bl_blt_is_removed(const bl_blt_writer *w) {
    struct stat info;
    return w->live && fstat(fileno(w->file.stream), &info) == 0 && S_ISREG(info.st_mode) &&
           info.st_nlink == 0;
}

bl_status bl_blt_sync(bl_blt_writer *w, bl_error *err) {
    if (fflush(w->file.stream) != 0 || fsync(fileno(w->file.stream)) != 0)
        return bl_fail_at(err, BL_ERR_IO, bl_at(w->path), "cannot sync: %s", strerror(errno));
    return BL_OK;
}

bl_status bl_blt_write_map(bl_blt_writer *w, const bl_layer_placement *map, bl_error *err) {
    const int n_slots = bl_layer_n_slots(map);
    if (bl_trace_layer_index(&w->info, map->layer) < 0 || map->n_experts != w->info.n_experts)
        return bl_fail_at(err, BL_ERR_MODEL, bl_at_layer(NULL, map->layer),
                          "a map of %d experts for a layer this trace does not have",
                          map->n_experts);
    if (n_slots < 1 || n_slots > BL_MAX_IDS_SPACE)
        return bl_fail_at(err, BL_ERR_RANGE, bl_at_layer(NULL, map->layer),
                          "a map of %d slots (1 to %d are possible)", n_slots, BL_MAX_IDS_SPACE);
    BL_TRY(flush_columns(w, false, err)); /* maps come before what they explain */
    bl_bytes *raw = &w->raw;
    raw->used = 0;
    BL_TRY(bl_bytes_add_le(raw, (uint32_t)map->layer, 4, err));
    BL_TRY(bl_bytes_add_le(raw, map->epoch, 8, err));
    BL_TRY(bl_bytes_add_le(raw, (uint32_t)map->n_ranks, 4, err));
    BL_TRY(bl_bytes_add_le(raw, (uint32_t)map->n_experts, 4, err));
    for (int rank = 0; rank <= map->n_ranks; rank++)
        BL_TRY(bl_bytes_add_le(raw, (uint32_t)map->begin[rank], 4, err));
    for (int slot = 0; slot < n_slots; slot++)
        BL_TRY(bl_bytes_add_le(raw, (uint32_t)map->expert[slot], 4, err));
    return put_chunk(w, (bl_blt_frame){.kind = BL_BLT_MAPS, .items = 1}, raw, NULL, 0, err);
}

/* ---- records ------------------------------------------------------------------------------- */

static bl_status check_record(const bl_blt_writer *w, const bl_record *r, bl_error *err) {
    const bl_where at = bl_at_layer(NULL, r->layer);
    if (bl_trace_layer_index(&w->info, r->layer) < 0)
        return bl_fail_at(err, BL_ERR_RANGE, at, "not an MoE layer of model \"%s\"", w->info.model);
    if (r->rank < BL_ALL_RANKS || r->rank >= BL_MAX_RANKS)
        return bl_fail_at(err, BL_ERR_RANGE, at, "rank %d (0 to %d are possible)", r->rank,
                          BL_MAX_RANKS - 1);
    if ((unsigned)r->phase >= BL_N_PHASES || (r->flags & ~(unsigned)BL_BLT_KNOWN_RECORD_FLAGS))
        return bl_fail_at(err, BL_ERR_RANGE, at, "unknown phase %d or flags 0x%x", (int)r->phase,
                          r->flags);
    const bool physical = (r->flags & BL_RECORD_PHYSICAL) != 0;
    if (r->n_ids < 1 || r->n_ids > BL_MAX_IDS_SPACE || (!physical && r->n_ids != w->info.n_experts))
        return bl_fail_at(err, BL_ERR_RANGE, at, "ids below %d, but the model has %d experts",
                          r->n_ids, w->info.n_experts);
    if (r->k < 1 || r->k > BL_MAX_TOP_K || r->n_tokens > BL_BLT_MAX_TOKENS)
        return bl_fail_at(err, BL_ERR_RANGE, at, "%llu tokens of top-%d",
                          (unsigned long long)r->n_tokens, r->k);
    if ((r->ids != NULL) == (r->counts != NULL) && !(r->ids == NULL && r->n_tokens == 0))
        return bl_fail_at(err, BL_ERR_USAGE, at, "a record holds either ids or counts");
    if (r->counts != NULL && r->n_empty > r->n_tokens * (uint64_t)r->k)
        return bl_fail_at(err, BL_ERR_RANGE, at, "more empty slots than slots");
    for (int id = 0; r->counts != NULL && id < r->n_ids; id++) {
        if (r->counts[id] > BL_BLT_MAX_COUNT)
            return bl_fail_at(err, BL_ERR_RANGE, bl_at_expert(NULL, r->layer, id),
                              "a count of %llu", (unsigned long long)r->counts[id]);
    }
    return BL_OK;
}

static bl_status add_metadata(bl_blt_writer *w, const bl_record *r, unsigned form, uint64_t tokens,
                              uint64_t n_empty, bl_error *err) {
    const uint64_t value[BL_COL_EMPTIES] = {
        [BL_COL_RUN] = r->run,
        [BL_COL_STEP] = r->step,
        [BL_COL_LAYER] = (uint32_t)r->layer,
        [BL_COL_RANK] = (uint32_t)r->rank,
        [BL_COL_PHASE] = (uint64_t)r->phase,
        [BL_COL_FLAGS] = r->flags | form,
        [BL_COL_WIDTH] = (uint64_t)bl_blt_id_width(r->n_ids),
        [BL_COL_K] = (uint64_t)r->k,
        [BL_COL_EPOCH] = r->epoch,
        [BL_COL_N_IDS] = (uint64_t)r->n_ids,
        [BL_COL_N_TOKENS] = tokens,
        [BL_COL_N_EMPTY] = n_empty,
        [BL_COL_DROPPED] = r->dropped,
    };
    for (int c = 0; c < BL_COL_EMPTIES; c++) {
        BL_TRY(bl_bytes_add_le(&w->column[c], value[c], bl_blt_column_bytes[c], err));
        w->raw_bytes += (size_t)bl_blt_column_bytes[c];
    }
    return BL_OK;
}

static bl_status add_body(bl_blt_writer *w, bl_blt_column column, const bl_bytes *body,
                          bl_error *err) {
    w->raw_bytes += body->used;
    return bl_bytes_add(&w->column[column], body->data, body->used, err);
}

static bl_status add_numbers(bl_blt_writer *w, bl_blt_column column, const uint64_t *values,
                             size_t n, bl_error *err) {
    BL_TRY(bl_bytes_reserve(&w->column[column], n * 8, err));
    for (size_t i = 0; i < n; i++)
        BL_TRY(bl_bytes_add_le(&w->column[column], values[i], 8, err));
    w->raw_bytes += n * 8;
    return BL_OK;
}

/* Ids go to the buffers of their layer (blt.h says why). */
static bl_status add_ids(bl_blt_writer *w, const bl_record *r, const bl_blt_packed *packed,
                         bl_error *err) {
    layer_ids *layer = &w->layers[bl_trace_layer_index(&w->info, r->layer)];
    w->raw_bytes += packed->low.used + packed->high.used;
    BL_TRY(bl_bytes_add(&layer->low, packed->low.data, packed->low.used, err));
    return bl_bytes_add(&layer->high, packed->high.data, packed->high.used, err);
}

/* Rows [first, first + n) of a record; counts go in whole. */
static bl_status add_part(bl_blt_writer *w, const bl_record *r, size_t first, size_t n,
                          uint64_t n_empty, bl_error *err) {
    unsigned form = w->sets && r->counts == NULL ? BL_RECORD_SETS : 0;
    if (r->counts != NULL) {
        form |= BL_BLT_HAS_COUNTS;
        BL_TRY(add_numbers(w, BL_COL_COUNTS, r->counts, (size_t)r->n_ids, err));
    } else {
        bl_blt_packed *packed = &w->packed;
        const bool sets = (r->flags & BL_RECORD_SETS) != 0 || w->sets;
        BL_TRY(bl_blt_pack_rows(packed, r, first, n, n_empty, sets, err));
        BL_TRY(add_body(w, BL_COL_EMPTIES, &packed->bitmap, err));
        BL_TRY(add_ids(w, r, packed, err));
        BL_TRY(add_body(w, BL_COL_WEIGHTS, &packed->weights, err));
        form |= packed->form;
    }
    if (r->stage_ns != NULL) {
        form |= BL_BLT_HAS_STAGES;
        BL_TRY(add_numbers(w, BL_COL_STAGES, r->stage_ns, BL_N_STAGES, err));
    }
    BL_TRY(add_metadata(w, r, form, r->counts != NULL ? r->n_tokens : n, n_empty, err));
    if (w->n_records == 0 || r->step < w->first_step)
        w->first_step = r->step;
    if (w->n_records == 0 || r->step > w->last_step)
        w->last_step = r->step;
    w->n_records++;
    w->total_records++;
    w->total_dropped += r->dropped;
    return BL_OK;
}

/* End the chunk before this record if it is large enough and a step ended, or if it is too large.
 */
static bl_status make_room(bl_blt_writer *w, const bl_record *r, bl_error *err) {
    const bool same_step = w->run == r->run && w->step == r->step && w->rank == r->rank;
    w->run = r->run;
    w->step = r->step;
    w->rank = r->rank;
    if (w->raw_bytes >= (same_step ? BL_BLT_RAW_LIMIT : BL_BLT_RAW_TARGET))
        return flush_columns(w, same_step, err);
    return BL_OK;
}

/* All rows are checked before the first part is added, so that a refused record leaves no trace. */
static bl_status write_parts(bl_blt_writer *w, bl_record r, bl_error *err) {
    if (r.counts != NULL) {
        BL_TRY(make_room(w, &r, err));
        return add_part(w, &r, 0, 0, r.n_empty, err);
    }
    const size_t max_rows = BL_BLT_RECORD_IDS / (size_t)r.k;
    uint64_t n_empty = 0;
    BL_TRY(bl_blt_check_rows(&r, 0, (size_t)r.n_tokens, &n_empty, err));
    const bool split = r.n_tokens > max_rows;
    size_t first = 0;
    do {
        const size_t left = (size_t)r.n_tokens - first, n = left < max_rows ? left : max_rows;
        if (split)
            BL_TRY(bl_blt_check_rows(&r, first, n, &n_empty, err));
        BL_TRY(make_room(w, &r, err));
        BL_TRY(add_part(w, &r, first, n, n_empty, err));
        first += n;
        r.stage_ns = NULL; /* times and losses belong to the record once */
        r.dropped = 0;
    } while (first < r.n_tokens);
    return BL_OK;
}

bl_status bl_blt_write(bl_blt_writer *w, const bl_record *record, bl_error *err) {
    BL_TRY(check_record(w, record, err));
    const bl_status st = write_parts(w, *record, err);
    if (st == BL_ERR_NOMEM) /* the columns may disagree now */
        w->broken = true;
    return st;
}

void bl_blt_as_sets(bl_blt_writer *w, bool sets) {
    w->sets = sets;
}

void bl_blt_add_dropped(bl_blt_writer *w, uint64_t n) {
    w->total_dropped += n;
}

/* ---- the end ------------------------------------------------------------------------------- */

static bl_status put_index(bl_blt_writer *w, bl_error *err) {
    BL_TRY(flush_columns(w, false, err));
    unsigned char footer[BL_BLT_FOOTER_BYTES];
    bl_put_le(footer, w->offset, 8);
    memcpy(footer + 8, BL_BLT_END, 8);
    const bl_blt_frame frame = {.kind = BL_BLT_INDX, .items = w->n_chunks};
    BL_TRY(bl_bytes_add_le(&w->index, w->total_records, 8, err));
    BL_TRY(bl_bytes_add_le(&w->index, w->total_dropped, 8, err));
    BL_TRY(put_chunk(w, frame, &w->index, NULL, 0, err));
    return put(w, footer, sizeof footer, err);
}

bl_status bl_blt_close(bl_blt_writer *w, bl_error *err) {
    bl_status st = put_index(w, err);
    if (st < 0) {
        bl_blt_abandon(w);
        return st;
    }
    if (!w->live) {
        st = bl_file_commit(&w->file, err);
    } else if (fclose(w->file.stream) != 0) {
        st = bl_fail_at(err, BL_ERR_IO, bl_at(w->path), "cannot write: %s", strerror(errno));
    }
    writer_free(w);
    return st;
}
