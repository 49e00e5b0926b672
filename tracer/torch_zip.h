/*
 * torch_zip.h: the stored entries of a zip file in memory (also zip64). Internal to tracer/torch.h.
 */
#ifndef BL_TRACER_TORCH_ZIP_H
#define BL_TRACER_TORCH_ZIP_H

#include "core/mem.h"
#include "core/status.h"

typedef struct bl_zip_entry {
    const char *name; /* behind the first '/'; not terminated */
    size_t name_bytes;
    const unsigned char *data;
    size_t bytes;
    uint32_t crc;
    bool stored;  /* false: compressed; refused when it is asked for */
    bool checked; /* against its CRC-32, as it is when it is first asked for */
} bl_zip_entry;

typedef struct bl_zip {
    const unsigned char *file;
    size_t file_bytes;
    const char *path;      /* for messages; borrowed */
    bl_zip_entry *entries; /* [n] by name; owned */
    size_t n;
    uint32_t crc_of_byte[256];
} bl_zip;

/* Read the directory; `file` must outlive the zip. */
bl_status bl_zip_open(const void *file, size_t bytes, const char *path, bl_zip *out, bl_error *err);
void bl_zip_free(bl_zip *zip);

/* Find an entry by its name behind the first '/' ("data.pkl", "data/0") and check it; NULL when
 * there is none. O(log entries): a recording has two for each forward pass. */
bl_status bl_zip_find(bl_zip *zip, const char *name, const bl_zip_entry **entry_p, bl_error *err);

#endif
