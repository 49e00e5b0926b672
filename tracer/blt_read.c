/*
 * blt_read.c: opening a .blt: the header, a walk over all frames, and where to cut a file that has
 * no proper end. Records come out of blt_decode.c.
 */
#include "tracer/blt_reader.h"

#include "core/io.h"
#include "tracer/le.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/types.h>
#include <zstd.h>

static bl_status read_at(bl_blt_reader *r, uint64_t offset, void *out, size_t bytes,
                         bl_error *err) {
    if (r->in == NULL && (r->in = fopen(r->path, "rb")) == NULL)
        return bl_fail_at(err, BL_ERR_IO, bl_at(r->path), "cannot open again: %s", strerror(errno));
    if (fseeko(r->in, (off_t)offset, SEEK_SET) != 0 || fread(out, 1, bytes, r->in) != bytes)
        return bl_fail_at(err, BL_ERR_IO, bl_at_byte(r->path, (int64_t)offset),
                          "cannot read %zu bytes: %s", bytes,
                          ferror(r->in) ? strerror(errno) : "the file ends");
    return BL_OK;
}

/* ---- header -------------------------------------------------------------------------------- */

static bl_status read_header_text(bl_blt_reader *r, size_t n, bl_error *err) {
    bl_bytes header = {0};
    bl_status st = bl_bytes_reserve(&header, 16 + n + 8, err);
    if (st == BL_OK)
        st = read_at(r, 0, header.data, 16 + n + 8, err);
    if (st == BL_OK && bl_get_u64(header.data + 16 + n) != bl_hash64(header.data, 16 + n))
        st = bl_fail_at(err, BL_ERR_CHECKSUM, bl_at(r->path), "the header is damaged");
    json_t *root = NULL;
    if (st == BL_OK)
        st = bl_json_parse((const char *)header.data + 16, n, r->path, &root, err);
    if (st == BL_OK)
        st = bl_blt_info_from_json(root, r->path, &r->info, err);
    if (st == BL_OK)
        bl_hasher_add(r->hasher, header.data, 16 + n);
    json_decref(root);
    free(header.data);
    return st;
}

static bl_status read_header(bl_blt_reader *r, bl_error *err) {
    unsigned char start[16];
    if (r->size < sizeof start)
        return bl_fail_at(err, BL_ERR_PARSE, bl_at(r->path),
                          "not a .blt trace: too short for its header");
    BL_TRY(read_at(r, 0, start, sizeof start, err));
    if (memcmp(start, BL_BLT_MAGIC, 8) != 0)
        return bl_fail_at(err, BL_ERR_PARSE, bl_at(r->path), "not a .blt trace (wrong magic)");
    const uint32_t version = bl_get_u32(start + 8), n = bl_get_u32(start + 12);
    if (version < BL_BLT_FIRST_VERSION || version > BL_BLT_VERSION)
        return bl_fail_at(err, BL_ERR_VERSION, bl_at(r->path),
                          "version %u of the trace format; this program reads versions %d to %d",
                          version, BL_BLT_FIRST_VERSION, BL_BLT_VERSION);
    r->version = version;
    if (n > BL_BLT_HEADER_MAX || 16 + (uint64_t)n + 8 > r->size)
        return bl_fail_at(err, BL_ERR_PARSE, bl_at(r->path),
                          "not a whole .blt trace: the header is cut or damaged");
    BL_TRY(read_header_text(r, n, err));
    r->first_chunk = 16 + (uint64_t)n + 8;
    return BL_OK;
}

/* ---- the walk over frames ------------------------------------------------------------------ */

static bl_status damaged(const bl_blt_reader *r, uint64_t offset, bl_error *err) {
    return bl_fail_at(err, BL_ERR_CHECKSUM, bl_at_byte(r->path, (int64_t)offset),
                      "the chunk that starts here is damaged");
}

/* The stored bytes of a chunk into r->stored, checked. */
static bl_status load_stored(bl_blt_reader *r, const bl_blt_span *span, bl_error *err) {
    const size_t n = (size_t)span->frame.stored_bytes;
    r->stored.used = 0;
    BL_TRY(bl_bytes_reserve(&r->stored, n, err));
    BL_TRY(read_at(r, span->offset + BL_BLT_FRAME_BYTES, r->stored.data, n, err));
    r->stored.used = n;
    return bl_hash64(r->stored.data, n) == span->frame.hash ? BL_OK : damaged(r, span->offset, err);
}

bl_status bl_blt_load_chunk(bl_blt_reader *r, const bl_blt_span *span, bl_error *err) {
    BL_TRY(load_stored(r, span, err));
    const size_t raw_bytes = (size_t)span->frame.raw_bytes;
    r->raw.used = 0;
    BL_TRY(bl_bytes_reserve(&r->raw, raw_bytes, err));
    const size_t got =
        ZSTD_decompressDCtx(r->zstd, r->raw.data, raw_bytes, r->stored.data, r->stored.used);
    if (ZSTD_isError(got) || got != raw_bytes)
        return damaged(r, span->offset, err);
    r->raw.used = raw_bytes;
    return BL_OK;
}

static bool frame_is_sane(const bl_blt_frame *frame) {
    return (frame->kind == BL_BLT_RECS || frame->kind == BL_BLT_MAPS ||
            frame->kind == BL_BLT_INDX) &&
           frame->flags <= BL_BLT_STEP_GOES_ON && frame->raw_bytes <= BL_BLT_RAW_MAX &&
           frame->stored_bytes <= ZSTD_COMPRESSBOUND(BL_BLT_RAW_MAX);
}

/* One step of the walk: *got false where whole chunks end. In a file with a footer every mismatch
 * is damage; in one without, it is where the writer died. */
static bl_status walk_frame(bl_blt_reader *r, uint64_t offset, bl_blt_span *span, bool *got,
                            bl_error *err) {
    unsigned char bytes[BL_BLT_FRAME_BYTES];
    *got = false;
    if (r->size - offset < sizeof bytes)
        return r->has_footer ? damaged(r, offset, err) : BL_OK;
    BL_TRY(read_at(r, offset, bytes, sizeof bytes, err));
    span->offset = offset;
    const bool whole = bl_blt_frame_unpack(bytes, &span->frame) && frame_is_sane(&span->frame) &&
                       span->frame.number == r->n_spans &&
                       span->frame.stored_bytes <= r->size - offset - sizeof bytes;
    if (!whole)
        return r->has_footer ? damaged(r, offset, err) : BL_OK;
    *got = true;
    return BL_OK;
}

static bl_status keep_span(bl_blt_reader *r, const bl_blt_span *span, bl_error *err) {
    void *spans = r->spans;
    const bl_status st = bl_grow(&spans, &r->spans_capacity, r->n_spans + 1, sizeof *r->spans, err);
    r->spans = spans;
    BL_TRY(st);
    r->spans[r->n_spans++] = *span;
    return BL_OK;
}

/* The index must list exactly the chunks that the walk met. */
static bl_status check_index(bl_blt_reader *r, const bl_blt_span *index, bl_error *err) {
    BL_TRY(bl_blt_load_chunk(r, index, err));
    const size_t wanted = r->n_spans * BL_BLT_ENTRY_BYTES + 16;
    if (r->raw.used != wanted || index->frame.items != r->n_spans)
        return damaged(r, index->offset, err);
    for (size_t i = 0; i < r->n_spans; i++) {
        const unsigned char *at = r->raw.data + i * BL_BLT_ENTRY_BYTES;
        const bl_blt_frame *frame = &r->spans[i].frame;
        if (bl_get_u64(at) != r->spans[i].offset || bl_get_u32(at + 8) != frame->kind ||
            bl_get_u32(at + 12) != frame->items || bl_get_u64(at + 16) != frame->first_step ||
            bl_get_u64(at + 24) != frame->last_step)
            return damaged(r, index->offset, err);
    }
    r->dropped = bl_get_u64(r->raw.data + wanted - 8);
    return BL_OK;
}

static void cut_at(bl_blt_reader *r, uint64_t offset) {
    r->cut = true;
    r->kept_bytes = offset;
}

/* After a crash the last chunks may have their place in the file but not their bytes. */
static bl_status drop_bad_tail(bl_blt_reader *r, bl_error *err) {
    while (r->n_spans > 0) {
        const bl_blt_span *last = &r->spans[r->n_spans - 1];
        bl_error why = BL_ERROR_INIT;
        const bl_status st = load_stored(r, last, &why);
        if (st == BL_OK) {
            r->mid_step = (last->frame.flags & BL_BLT_STEP_GOES_ON) != 0;
            return BL_OK;
        }
        if (st != BL_ERR_CHECKSUM) {
            if (err != NULL)
                *err = why;
            return st;
        }
        cut_at(r, last->offset);
        r->n_spans--;
    }
    return BL_OK;
}

static bl_status walk(bl_blt_reader *r, bl_error *err) {
    uint64_t offset = r->first_chunk;
    for (;;) {
        bl_blt_span span = {0};
        bool got;
        BL_TRY(walk_frame(r, offset, &span, &got, err));
        if (!got)
            break;
        const uint64_t end = offset + BL_BLT_FRAME_BYTES + span.frame.stored_bytes;
        if (span.frame.kind == BL_BLT_INDX) {
            if (!r->has_footer)
                break;
            if (end + BL_BLT_FOOTER_BYTES != r->size || r->footer_index != offset)
                return damaged(r, offset, err);
            return check_index(r, &span, err);
        }
        BL_TRY(keep_span(r, &span, err));
        offset = end;
    }
    cut_at(r, offset);
    return drop_bad_tail(r, err);
}

static bl_status read_footer(bl_blt_reader *r, bl_error *err) {
    unsigned char footer[BL_BLT_FOOTER_BYTES];
    if (r->size < r->first_chunk + sizeof footer)
        return BL_OK;
    BL_TRY(read_at(r, r->size - sizeof footer, footer, sizeof footer, err));
    r->has_footer = memcmp(footer + 8, BL_BLT_END, 8) == 0;
    r->footer_index = bl_get_u64(footer);
    return BL_OK;
}

static bl_status open_all(bl_blt_reader *r, bl_error *err) {
    r->hasher = bl_hasher_new();
    r->zstd = ZSTD_createDCtx();
    if (r->hasher == NULL || r->zstd == NULL || r->path == NULL)
        return bl_fail(err, BL_ERR_NOMEM, "out of memory");
    if (fseeko(r->in, 0, SEEK_END) != 0)
        return bl_fail_at(err, BL_ERR_IO, bl_at(r->path),
                          "cannot seek: a trace must be a regular file");
    const off_t size = ftello(r->in);
    if (size < 0)
        return bl_fail_at(err, BL_ERR_IO, bl_at(r->path), "cannot tell its size: %s",
                          strerror(errno));
    r->size = (uint64_t)size;
    BL_TRY(read_header(r, err));
    BL_TRY(BL_CALLOC(r->ids_of, r->info.n_layers, err));
    BL_TRY(read_footer(r, err));
    BL_TRY(walk(r, err));
    for (size_t i = 0; i < r->n_spans; i++)
        bl_hasher_add_int(r->hasher, (int64_t)r->spans[i].frame.hash);
    r->digest = bl_hasher_finish(r->hasher);
    r->hasher = NULL;
    r->end_step = UINT64_MAX;
    return BL_OK;
}

bl_status bl_blt_open_stream(FILE *in, const char *name, bl_blt_reader **reader_p, bl_error *err) {
    bl_blt_reader *r = bl_calloc(1, sizeof *r);
    if (r == NULL) {
        fclose(in);
        return bl_fail(err, BL_ERR_NOMEM, "out of memory");
    }
    r->in = in;
    r->path = strdup(name);
    const bl_status st = open_all(r, err);
    if (st < 0)
        bl_blt_reader_free(r);
    else
        *reader_p = r;
    return st;
}

bl_status bl_blt_open(const char *path, bl_blt_reader **reader_p, bl_error *err) {
    FILE *in = NULL;
    BL_TRY(bl_open_input(path, &in, err));
    return bl_blt_open_stream(in, path, reader_p, err);
}

static void free_chunk(bl_blt_reader *r) {
    free(r->stored.data);
    free(r->raw.data);
    free(r->ids);
    free(r->weights);
    free(r->counts);
    free(r->logical_counts);
}

void bl_blt_release(bl_blt_reader *r) {
    free_chunk(r);
    r->stored = r->raw = (bl_bytes){0};
    r->ids = NULL;
    r->weights = NULL;
    r->counts = r->logical_counts = NULL;
    r->ids_capacity = r->weights_capacity = 0;
    r->counts_capacity = r->logical_counts_capacity = 0;
    r->n_records = r->next_record = 0;
}

void bl_blt_park(bl_blt_reader *r) {
    if (r->in != NULL)
        fclose(r->in);
    r->in = NULL;
}

void bl_blt_reader_free(bl_blt_reader *r) {
    if (r == NULL)
        return;
    bl_blt_park(r);
    if (r->hasher != NULL)
        bl_hasher_finish(r->hasher);
    ZSTD_freeDCtx(r->zstd);
    bl_trace_info_free(&r->info);
    for (size_t i = 0; i < r->n_maps; i++)
        bl_layer_placement_free(&r->maps[i]);
    free(r->maps);
    free(r->spans);
    free(r->ids_of);
    free_chunk(r);
    free(r->path);
    free(r);
}

const bl_trace_info *bl_blt_info(const bl_blt_reader *r) {
    return &r->info;
}

bool bl_blt_cut(const bl_blt_reader *r, uint64_t *kept, uint64_t *size, bool *mid_step) {
    *kept = r->cut ? r->kept_bytes : r->size;
    *size = r->size;
    *mid_step = r->mid_step;
    return r->cut;
}

uint64_t bl_blt_dropped(const bl_blt_reader *r) {
    return r->dropped;
}

uint64_t bl_blt_raw_bytes(const bl_blt_reader *r) {
    uint64_t sum = 0;
    for (size_t i = 0; i < r->n_spans; i++)
        sum += r->spans[i].frame.raw_bytes;
    return sum;
}

bl_digest bl_blt_digest(const bl_blt_reader *r) {
    return r->digest;
}

void bl_blt_skip_bodies(bl_blt_reader *r, bool skip) {
    r->skip_bodies = skip;
}

void bl_blt_only_steps(bl_blt_reader *r, uint64_t first, uint64_t end) {
    r->first_step = first;
    r->end_step = end;
}

void bl_blt_rewind(bl_blt_reader *r) {
    r->next_span = 0;
    r->n_records = r->next_record = 0;
    r->last_is_physical = false;
}
