/*
 * torch_zip.c: PKWARE's APPNOTE 6.3, as much of it as torch writes. Sizes come from the central
 * directory, positions of data from the local headers; both are checked against the file.
 */
#include "tracer/torch_zip.h"

#include "tracer/le.h"

#include <stdlib.h>

enum {
    END_BYTES = 22,
    LOCATOR64_BYTES = 20,
    END64_BYTES = 56,
    CENTRAL_BYTES = 46,
    LOCAL_BYTES = 30,
    MAX_COMMENT = 65535
};
#define END_MAGIC 0x06054b50u
#define LOCATOR64_MAGIC 0x07064b50u
#define END64_MAGIC 0x06064b50u
#define CENTRAL_MAGIC 0x02014b50u
#define LOCAL_MAGIC 0x04034b50u
#define MAX_ENTRIES ((uint64_t)1 << 20)

typedef struct directory {
    uint64_t n, bytes, offset;
} directory;

static bl_status broken(const bl_zip *zip, uint64_t offset, const char *what, bl_error *err) {
    return bl_fail_at(err, BL_ERR_PARSE, bl_at_byte(zip->path, (int64_t)offset), "%s", what);
}

static bool inside(const bl_zip *zip, uint64_t offset, uint64_t bytes) {
    return offset <= zip->file_bytes && bytes <= zip->file_bytes - offset;
}

/* Replace what the end record has no room for by the zip64 record's numbers. */
static bl_status find_end64(const bl_zip *zip, size_t end, directory *dir, bl_error *err) {
    if (end < LOCATOR64_BYTES || bl_get_u32(zip->file + end - LOCATOR64_BYTES) != LOCATOR64_MAGIC)
        return BL_OK;
    const uint64_t at = bl_get_u64(zip->file + end - LOCATOR64_BYTES + 8);
    if (!inside(zip, at, END64_BYTES) || bl_get_u32(zip->file + at) != END64_MAGIC)
        return broken(zip, end - LOCATOR64_BYTES, "the zip64 end record is not where it should be",
                      err);
    dir->n = bl_get_u64(zip->file + at + 32);
    dir->bytes = bl_get_u64(zip->file + at + 40);
    dir->offset = bl_get_u64(zip->file + at + 48);
    return BL_OK;
}

static bl_status find_directory(const bl_zip *zip, directory *dir, bl_error *err) {
    if (zip->file_bytes < END_BYTES || bl_get_u32(zip->file) != LOCAL_MAGIC)
        return bl_fail_at(err, BL_ERR_PARSE, bl_at(zip->path),
                          "not a file of torch.save (no zip; files of torch before 1.6 are not "
                          "supported)");
    const size_t last = zip->file_bytes - END_BYTES;
    for (size_t back = 0; back <= MAX_COMMENT && back <= last; back++) {
        const unsigned char *at = zip->file + last - back;
        if (bl_get_u32(at) != END_MAGIC || bl_get_u16(at + 20) != back)
            continue;
        *dir = (directory){bl_get_u16(at + 10), bl_get_u32(at + 12), bl_get_u32(at + 16)};
        BL_TRY(find_end64(zip, last - back, dir, err));
        if (!inside(zip, dir->offset, dir->bytes) || dir->n > MAX_ENTRIES ||
            dir->n > dir->bytes / CENTRAL_BYTES)
            return broken(zip, last - back, "the zip directory lies outside the file", err);
        return BL_OK;
    }
    return bl_fail_at(err, BL_ERR_PARSE, bl_at(zip->path),
                      "the zip directory is missing: the file is cut");
}

/* Sizes of 0xffffffff stand in the zip64 extra field, in order. */
static bool read_extra64(const unsigned char *extra, size_t bytes, uint64_t *size,
                         uint64_t *stored_bytes, uint64_t *offset) {
    while (bytes >= 4) {
        const uint16_t id = bl_get_u16(extra), n = bl_get_u16(extra + 2);
        if ((size_t)n + 4 > bytes)
            return false;
        if (id == 1) {
            uint64_t *wanted[] = {size, stored_bytes, offset};
            size_t at = 0;
            for (int i = 0; i < 3; i++) {
                if (*wanted[i] != UINT32_MAX)
                    continue;
                if (at + 8 > n)
                    return false;
                *wanted[i] = bl_get_u64(extra + 4 + at);
                at += 8;
            }
            return true;
        }
        extra += (size_t)n + 4;
        bytes -= (size_t)n + 4;
    }
    return *size != UINT32_MAX && *stored_bytes != UINT32_MAX && *offset != UINT32_MAX;
}

static bl_status read_entry(bl_zip *zip, uint64_t *at, uint64_t end, bl_error *err) {
    const unsigned char *c = zip->file + *at;
    if (end - *at < CENTRAL_BYTES || bl_get_u32(c) != CENTRAL_MAGIC)
        return broken(zip, *at, "not an entry of a zip directory", err);
    const size_t name_bytes = bl_get_u16(c + 28), extra_bytes = bl_get_u16(c + 30);
    const uint64_t total = CENTRAL_BYTES + name_bytes + extra_bytes + bl_get_u16(c + 32);
    if (total > end - *at)
        return broken(zip, *at, "an entry that runs over the zip directory", err);
    uint64_t stored_bytes = bl_get_u32(c + 20), size = bl_get_u32(c + 24),
             offset = bl_get_u32(c + 42);
    if (!read_extra64(c + CENTRAL_BYTES + name_bytes, extra_bytes, &size, &stored_bytes, &offset))
        return broken(zip, *at, "an entry with an unreadable zip64 field", err);
    if (!inside(zip, offset, LOCAL_BYTES) || bl_get_u32(zip->file + offset) != LOCAL_MAGIC)
        return broken(zip, *at, "an entry whose data is not in the file", err);
    const unsigned char *local = zip->file + offset;
    const uint64_t data = offset + LOCAL_BYTES + bl_get_u16(local + 26) + bl_get_u16(local + 28);
    const bool stored = bl_get_u16(c + 10) == 0 && (bl_get_u16(c + 8) & 1u) == 0;
    if (!inside(zip, data, stored_bytes) || (stored && size != stored_bytes))
        return broken(zip, *at, "an entry whose data is not in the file", err);
    *at += total;
    const char *name = (const char *)c + CENTRAL_BYTES, *slash = memchr(name, '/', name_bytes);
    if (slash == NULL)
        return BL_OK; /* nothing of torch's */
    zip->entries[zip->n++] = (bl_zip_entry){.name = slash + 1,
                                            .name_bytes = name_bytes - (size_t)(slash + 1 - name),
                                            .data = zip->file + data,
                                            .bytes = (size_t)stored_bytes,
                                            .crc = bl_get_u32(c + 16),
                                            .stored = stored};
    return BL_OK;
}

static int by_name(const void *a, const void *b) {
    const bl_zip_entry *x = a, *y = b;
    const size_t n = x->name_bytes < y->name_bytes ? x->name_bytes : y->name_bytes;
    const int order = memcmp(x->name, y->name, n);
    if (order != 0 || x->name_bytes == y->name_bytes)
        return order;
    return x->name_bytes < y->name_bytes ? -1 : 1;
}

/* CRC-32 (IEEE 802.3, reflected), a byte at a time. */
static void fill_crc_table(bl_zip *zip) {
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t crc = i;
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0xedb88320u : 0);
        zip->crc_of_byte[i] = crc;
    }
}

bl_status bl_zip_open(const void *file, size_t bytes, const char *path, bl_zip *out,
                      bl_error *err) {
    bl_zip zip = {.file = file, .file_bytes = bytes, .path = path};
    directory dir = {0};
    fill_crc_table(&zip);
    BL_TRY(find_directory(&zip, &dir, err));
    BL_TRY(BL_CALLOC(zip.entries, dir.n, err));
    uint64_t at = dir.offset;
    for (uint64_t i = 0; i < dir.n; i++) {
        const bl_status st = read_entry(&zip, &at, dir.offset + dir.bytes, err);
        if (st < 0) {
            bl_zip_free(&zip);
            return st;
        }
    }
    if (zip.n > 0)
        qsort(zip.entries, zip.n, sizeof *zip.entries, by_name);
    *out = zip;
    return BL_OK;
}

void bl_zip_free(bl_zip *zip) {
    free(zip->entries);
    *zip = (bl_zip){0};
}

static uint32_t crc32_of(const bl_zip *zip, const unsigned char *data, size_t bytes) {
    uint32_t crc = 0xffffffffu;
    for (size_t i = 0; i < bytes; i++)
        crc = crc >> 8 ^ zip->crc_of_byte[(crc ^ data[i]) & 255];
    return ~crc;
}

bl_status bl_zip_find(bl_zip *zip, const char *name, const bl_zip_entry **entry_p, bl_error *err) {
    const bl_zip_entry key = {.name = name, .name_bytes = strlen(name)};
    *entry_p = NULL;
    if (zip->n == 0)
        return BL_OK;
    bl_zip_entry *entry = bsearch(&key, zip->entries, zip->n, sizeof key, by_name);
    if (entry == NULL)
        return BL_OK;
    if (!entry->stored)
        return bl_fail_at(err, BL_ERR_UNSUPPORTED, bl_at(zip->path),
                          "its entry %s is compressed, which torch.save never does", name);
    if (!entry->checked && entry->crc != 0 &&
        crc32_of(zip, entry->data, entry->bytes) != entry->crc)
        return bl_fail_at(err, BL_ERR_CHECKSUM, bl_at(zip->path), "its entry %s is damaged", name);
    entry->checked = true;
    *entry_p = entry;
    return BL_OK;
}
