#include "core/safetensors.h"

#include "core/json.h"
#include "core/mem.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct bl_safetensors {
    int fd; /* -1: parsed from memory */
    char *path;
    json_t *header; /* owns the names */
    size_t n_tensors;
    bl_safetensor *tensor; /* [n_tensors] ascending by name */
};

static const struct {
    const char *name;
    unsigned bytes;
} DTYPES[] = {{"BF16", 2},    {"F16", 2}, {"F32", 4}, {"F64", 8}, {"F8_E4M3", 1}, {"F8_E5M2", 1},
              {"F8_E8M0", 1}, {"I8", 1},  {"I16", 2}, {"I32", 4}, {"I64", 8},     {"U8", 1},
              {"U16", 2},     {"U32", 4}, {"U64", 8}, {"BOOL", 1}};

static int dtype_of(const char *name) {
    for (size_t i = 0; i < sizeof DTYPES / sizeof DTYPES[0]; i++)
        if (strcmp(DTYPES[i].name, name) == 0)
            return (int)i;
    return -1;
}

/* "[64, 128]" for messages. */
static const char *shape_text(const uint64_t *shape, int n_dims, char *out, size_t out_bytes) {
    size_t used = (size_t)snprintf(out, out_bytes, "[");
    for (int d = 0; d < n_dims && used < out_bytes; d++)
        used += (size_t)snprintf(out + used, out_bytes - used, "%s%" PRIu64, d > 0 ? ", " : "",
                                 shape[d]);
    if (used < out_bytes)
        snprintf(out + used, out_bytes - used, "]");
    return out;
}

static bl_status unsigned_item(const json_t *array, size_t index, const char *tensor,
                               const char *file, uint64_t *out, bl_error *err) {
    const json_t *item = json_array_get(array, index);
    if (!json_is_integer(item) || json_integer_value(item) < 0)
        return bl_fail_at(err, BL_ERR_PARSE, bl_at(file),
                          "tensor %.100s: shape and data_offsets must be numbers of 0 or more",
                          tensor);
    *out = (uint64_t)json_integer_value(item);
    return BL_OK;
}

/* Type and shape; *bytes gets the size they ask for. */
static bl_status parse_type(const json_t *entry, const char *file, bl_safetensor *tensor,
                            size_t *bytes, bl_error *err) {
    const char *dtype = json_string_value(json_object_get(entry, "dtype"));
    const json_t *shape = json_object_get(entry, "shape");
    if (dtype == NULL || !json_is_array(shape))
        return bl_fail_at(err, BL_ERR_PARSE, bl_at(file),
                          "tensor %.100s: needs dtype (a string) and shape (an array)",
                          tensor->name);
    const int type = dtype_of(dtype);
    if (type < 0)
        return bl_fail_at(err, BL_ERR_UNSUPPORTED, bl_at(file),
                          "tensor %.100s: unknown dtype %.40s", tensor->name, dtype);
    if (json_array_size(shape) > BL_SAFETENSORS_MAX_DIMS)
        return bl_fail_at(err, BL_ERR_UNSUPPORTED, bl_at(file),
                          "tensor %.100s: %zu dimensions, at most %d are read", tensor->name,
                          json_array_size(shape), BL_SAFETENSORS_MAX_DIMS);
    tensor->dtype = DTYPES[type].name;
    tensor->n_dims = (int)json_array_size(shape);
    *bytes = DTYPES[type].bytes;
    for (int d = 0; d < tensor->n_dims; d++) {
        BL_TRY(unsigned_item(shape, (size_t)d, tensor->name, file, &tensor->shape[d], err));
        if (!bl_size_mul(*bytes, (size_t)tensor->shape[d], bytes))
            return bl_fail_at(err, BL_ERR_RANGE, bl_at(file), "tensor %.100s: size overflows",
                              tensor->name);
    }
    return BL_OK;
}

static bl_status parse_tensor(const char *name, const json_t *entry, uint64_t data_begin,
                              uint64_t data_bytes, const char *file, bl_safetensor *tensor,
                              bl_error *err) {
    size_t bytes;
    uint64_t begin, end;
    tensor->name = name;
    BL_TRY(parse_type(entry, file, tensor, &bytes, err));
    const json_t *offsets = json_object_get(entry, "data_offsets");
    if (json_array_size(offsets) != 2)
        return bl_fail_at(err, BL_ERR_PARSE, bl_at(file),
                          "tensor %.100s: needs data_offsets, an array of two numbers", name);
    BL_TRY(unsigned_item(offsets, 0, name, file, &begin, err));
    BL_TRY(unsigned_item(offsets, 1, name, file, &end, err));
    if (begin > end || end > data_bytes)
        return bl_fail_at(err, BL_ERR_RANGE, bl_at(file),
                          "tensor %.100s: data_offsets [%" PRIu64 ", %" PRIu64
                          "] leave the file's %" PRIu64 " bytes of data",
                          name, begin, end, data_bytes);
    if (end - begin != bytes) {
        char shape[128];
        return bl_fail_at(err, BL_ERR_SHAPE, bl_at(file),
                          "tensor %.100s: %" PRIu64 " bytes of data, but %s %s needs %zu", name,
                          end - begin, tensor->dtype,
                          shape_text(tensor->shape, tensor->n_dims, shape, sizeof shape), bytes);
    }
    tensor->begin = data_begin + begin;
    tensor->bytes = bytes;
    return BL_OK;
}

static int by_name(const void *a, const void *b) {
    return strcmp(((const bl_safetensor *)a)->name, ((const bl_safetensor *)b)->name);
}

static int by_place(const void *a, const void *b) {
    const bl_safetensor *x = a, *y = b;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    return x->bytes < y->bytes ? -1 : x->bytes > y->bytes;
}

/* Ranges tile the data: no byte belongs to two tensors or to none. Leaves them sorted by name. */
static bl_status check_tiling(bl_safetensors *reader, uint64_t data_begin, uint64_t data_bytes,
                              bl_error *err) {
    bl_safetensor *tensor = reader->tensor;
    qsort(tensor, reader->n_tensors, sizeof *tensor, by_place);
    uint64_t at = data_begin;
    for (size_t i = 0; i < reader->n_tensors; i++) {
        if (tensor[i].begin < at)
            return bl_fail_at(err, BL_ERR_RANGE, bl_at_byte(reader->path, (int64_t)tensor[i].begin),
                              "tensors %.100s and %.100s overlap", tensor[i - 1].name,
                              tensor[i].name);
        if (tensor[i].begin > at)
            return bl_fail_at(err, BL_ERR_RANGE, bl_at_byte(reader->path, (int64_t)at),
                              "%" PRIu64 " bytes in front of tensor %.100s belong to no tensor",
                              tensor[i].begin - at, tensor[i].name);
        at += tensor[i].bytes;
    }
    if (at != data_begin + data_bytes)
        return bl_fail_at(err, BL_ERR_RANGE, bl_at_byte(reader->path, (int64_t)at),
                          "%" PRIu64
                          " bytes behind the last tensor; is the header from another file?",
                          data_begin + data_bytes - at);
    qsort(tensor, reader->n_tensors, sizeof *tensor, by_name);
    return BL_OK;
}

static bl_status parse_header(bl_safetensors *reader, const char *text, size_t bytes,
                              uint64_t data_begin, uint64_t data_bytes, bl_error *err) {
    const char *name;
    json_t *entry;
    BL_TRY(bl_json_parse(text, bytes, reader->path, &reader->header, err));
    if (!json_is_object(reader->header))
        return bl_fail_at(err, BL_ERR_PARSE, bl_at(reader->path), "the header is not an object");
    BL_TRY(BL_CALLOC(reader->tensor, json_object_size(reader->header), err));
    json_object_foreach (reader->header, name, entry) {
        if (strcmp(name, "__metadata__") == 0)
            continue;
        BL_TRY(parse_tensor(name, entry, data_begin, data_bytes, reader->path,
                            &reader->tensor[reader->n_tensors], err));
        reader->n_tensors++;
    }
    return check_tiling(reader, data_begin, data_bytes, err);
}

static bl_status reader_new(const char *path, int fd, bl_safetensors **out, bl_error *err) {
    bl_safetensors *reader;
    BL_TRY(BL_CALLOC(reader, 1, err));
    reader->fd = fd;
    reader->path = strdup(path);
    if (reader->path == NULL) {
        free(reader);
        return bl_fail(err, BL_ERR_NOMEM, "out of memory");
    }
    *out = reader;
    return BL_OK;
}

bl_status bl_safetensors_parse(const char *header, size_t header_bytes, uint64_t data_bytes,
                               const char *name, bl_safetensors **out, bl_error *err) {
    bl_safetensors *reader;
    BL_TRY(reader_new(name, -1, &reader, err));
    const bl_status st = parse_header(reader, header, header_bytes, 0, data_bytes, err);
    if (st < 0) {
        bl_safetensors_free(reader);
        return st;
    }
    *out = reader;
    return BL_OK;
}

/* pread until `bytes` are there. */
static bl_status read_at(const bl_safetensors *reader, uint64_t at, void *out, size_t bytes,
                         bl_error *err) {
    unsigned char *to = out;
    for (size_t done = 0; done < bytes;) {
        const ssize_t got = pread(reader->fd, to + done, bytes - done, (off_t)(at + done));
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return bl_fail_at(err, BL_ERR_IO, bl_at_byte(reader->path, (int64_t)(at + done)),
                              "cannot read: %s", strerror(errno));
        if (got == 0)
            return bl_fail_at(err, BL_ERR_IO, bl_at_byte(reader->path, (int64_t)(at + done)),
                              "the file ends here, %zu bytes early", bytes - done);
        done += (size_t)got;
    }
    return BL_OK;
}

static bl_status open_header(bl_safetensors *reader, bl_error *err) {
    struct stat info;
    if (fstat(reader->fd, &info) != 0)
        return bl_fail_at(err, BL_ERR_IO, bl_at(reader->path), "cannot stat: %s", strerror(errno));
    if (!S_ISREG(info.st_mode))
        return bl_fail_at(err, BL_ERR_IO, bl_at(reader->path), "is no regular file");
    const uint64_t file_bytes = (uint64_t)info.st_size;
    unsigned char size_bytes[8];
    if (file_bytes < sizeof size_bytes)
        return bl_fail_at(err, BL_ERR_PARSE, bl_at(reader->path),
                          "not a safetensors file: %" PRIu64 " bytes, no room for a header",
                          file_bytes);
    BL_TRY(read_at(reader, 0, size_bytes, sizeof size_bytes, err));
    uint64_t header_bytes = 0;
    for (int i = 7; i >= 0; i--)
        header_bytes = header_bytes << 8 | size_bytes[i];
    if (header_bytes > BL_SAFETENSORS_MAX_HEADER || header_bytes > file_bytes - 8)
        return bl_fail_at(err, BL_ERR_PARSE, bl_at_byte(reader->path, 0),
                          "not a safetensors file: a header of %" PRIu64
                          " bytes in a file of %" PRIu64 " (at most %" PRIu64 ")",
                          header_bytes, file_bytes, BL_SAFETENSORS_MAX_HEADER);
    char *text;
    BL_TRY(BL_CALLOC(text, header_bytes, err));
    bl_status st = read_at(reader, 8, text, (size_t)header_bytes, err);
    if (st >= 0)
        st = parse_header(reader, text, (size_t)header_bytes, 8 + header_bytes,
                          file_bytes - 8 - header_bytes, err);
    free(text);
    return st;
}

bl_status bl_safetensors_open(const char *path, bl_safetensors **out, bl_error *err) {
    /* Or a pipe that nobody writes to would keep open() waiting; open_header() refuses it. */
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return bl_fail_at(err, BL_ERR_IO, bl_at(path), "cannot open: %s", strerror(errno));
    bl_safetensors *reader;
    bl_status st = reader_new(path, fd, &reader, err);
    if (st < 0) {
        close(fd);
        return st;
    }
    st = open_header(reader, err);
    if (st < 0) {
        bl_safetensors_free(reader);
        return st;
    }
    *out = reader;
    return BL_OK;
}

void bl_safetensors_free(bl_safetensors *reader) {
    if (reader == NULL)
        return;
    if (reader->fd >= 0)
        close(reader->fd);
    json_decref(reader->header);
    free(reader->tensor);
    free(reader->path);
    free(reader);
}

size_t bl_safetensors_count(const bl_safetensors *reader) {
    return reader->n_tensors;
}

const bl_safetensor *bl_safetensors_at(const bl_safetensors *reader, size_t index) {
    assert(index < reader->n_tensors);
    return &reader->tensor[index];
}

const bl_safetensor *bl_safetensors_find(const bl_safetensors *reader, const char *name) {
    const bl_safetensor key = {.name = name};
    return bsearch(&key, reader->tensor, reader->n_tensors, sizeof key, by_name);
}

bl_status bl_safetensors_read(const bl_safetensors *reader, const char *name, const char *dtype,
                              const uint64_t *shape, int n_dims, void *out, bl_error *err) {
    const bl_safetensor *tensor = bl_safetensors_find(reader, name);
    if (tensor == NULL)
        return bl_fail_at(err, BL_ERR_MODEL, bl_at(reader->path), "no tensor %s", name);
    bool same = strcmp(tensor->dtype, dtype) == 0 && tensor->n_dims == n_dims;
    for (int d = 0; same && d < n_dims; d++)
        same = tensor->shape[d] == shape[d];
    if (!same) {
        char have[128], want[128];
        return bl_fail_at(err, BL_ERR_SHAPE, bl_at(reader->path),
                          "tensor %s is %s %s, the config asks for %s %s", name, tensor->dtype,
                          shape_text(tensor->shape, tensor->n_dims, have, sizeof have), dtype,
                          shape_text(shape, n_dims, want, sizeof want));
    }
    assert(reader->fd >= 0);
    return read_at(reader, tensor->begin, out, (size_t)tensor->bytes, err);
}
