/* Trace files from anywhere: opening and reading end in records within their bounds or in one clear
 * message. The bytes are read twice: as a whole file, and as the content of a chunk (blt_chunk.h). */
#include "tests/fuzz/blt_chunk.h"
#include "tracer/ledger.h"

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

static void read_as_chunk(const uint8_t *data, size_t size) {
    size_t n = 0;
    unsigned char *file = blt_file_of_chunk(data, size, &n);
    if (file != NULL)
        read_file(file, n);
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
