/* Trace files from anywhere: opening and reading end in records within their bounds or in one clear
 * message. The bytes are read twice: as a whole file, and, since checksums stop almost every change of
 * one, as the content of a chunk in a file whose checksums are right: bit 0 of byte 0 is the kind, bit 1
 * the format's version, bytes 1 and 2 the number of items. */
#include "core/hash.h"
#include "tracer/blt.h"
#include "tracer/blt_format.h"
#include "tracer/ledger.h"
#include "tracer/le.h"

#include <stdlib.h>
#include <string.h>
#include <zstd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds) {
    if (!holds)
        abort();
}

static void check_record(const bl_record *record, const bl_trace_info *info) {
    require(bl_trace_layer_index(info, record->layer) >= 0);
    require((unsigned)record->phase < BL_N_PHASES);
    uint64_t assignments = 0, seen = 0;
    require(bl_record_assignments(record, &assignments));
    const size_t slots = record->ids != NULL ? (size_t)record->n_tokens * (size_t)record->k : 0;
    for (size_t i = 0; i < slots; i++) {
        require(record->ids[i] >= BL_EMPTY_SLOT && record->ids[i] < record->n_ids);
        seen += record->ids[i] != BL_EMPTY_SLOT;
    }
    require(record->ids == NULL || seen == assignments);
}

static void read_all(bl_blt_reader *reader) {
    for (;;) {
        bl_record record;
        bool got;
        bl_error err = BL_ERROR_INIT;
        if (bl_blt_next(reader, &record, &got, &err) < 0) {
            require(err.text[0] != '\0');
            return;
        }
        if (!got)
            return;
        check_record(&record, bl_blt_info(reader));
        if (bl_blt_to_logical(reader, &record, &err) >= 0)
            check_record(&record, bl_blt_info(reader));
    }
}

static void read_file(void *bytes, size_t size) { /* fmemopen wants a buffer it may write to */
    bl_blt_reader *reader = NULL;
    bl_error err = BL_ERROR_INIT;
    FILE *in = fmemopen(bytes, size, "rb");
    if (in == NULL || bl_blt_open_stream(in, "fuzz", &reader, &err) < 0)
        return;
    read_all(reader);
    bl_blt_skip_bodies(reader, true);
    bl_blt_rewind(reader);
    read_all(reader);
    bl_blt_reader_free(reader);
}

static size_t put_header(unsigned char *out, unsigned version) {
    static const char text[] = "{\"model\":{\"name\":\"toy\",\"layers\":[1,2],\"experts\":4,"
                               "\"top_k\":2},\"source\":\"fuzz\",\"ranks\":0,\"present\":[]}";
    const size_t n = sizeof text - 1;
    memcpy(out, BL_BLT_MAGIC, 8);
    bl_put_le(out + 8, version, 4);
    bl_put_le(out + 12, n, 4);
    memcpy(out + 16, text, n);
    bl_put_le(out + 16 + n, bl_hash64(out, 16 + n), 8);
    return 16 + n + 8;
}

static void read_as_chunk(const uint8_t *data, size_t size) {
    if (size < 4)
        return;
    const size_t bound = ZSTD_compressBound(size);
    unsigned char *file = malloc(1024 + bound);
    if (file == NULL)
        return;
    const size_t at = put_header(file, data[0] & 2 ? 2 : 1);
    unsigned char *stored = file + at + BL_BLT_FRAME_BYTES;
    const size_t n = ZSTD_compress(stored, bound, data + 3, size - 3, 1);
    const bl_blt_frame frame = {.kind = data[0] % 2 ? BL_BLT_MAPS : BL_BLT_RECS,
                                .items = bl_get_u16(data + 1),
                                .stored_bytes = n,
                                .raw_bytes = size - 3,
                                .last_step = UINT64_MAX,
                                .hash = bl_hash64(stored, n)};
    bl_blt_frame_pack(&frame, file + at);
    read_file(file, at + BL_BLT_FRAME_BYTES + n);
    free(file);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    unsigned char *copy = malloc(size + 1);
    if (copy == NULL || size == 0) {
        free(copy);
        return 0;
    }
    memcpy(copy, data, size);
    read_file(copy, size);
    read_as_chunk(data, size);
    free(copy);
    return 0;
}
