#include "core/io.h"

#include "core/mem.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static bl_status read_stream(FILE *in, const char *path, size_t max_bytes, char **data_p,
                             size_t *bytes, bl_error *err) {
    char *data = NULL;
    size_t capacity = 0, used = 0;
    for (;;) {
        void *grown = data;
        bl_status st = bl_grow(&grown, &capacity, used + (1u << 16) + 1, 1, err);
        data = grown;
        if (st < 0) {
            free(data);
            return st;
        }
        const size_t got = fread(data + used, 1, capacity - used - 1, in);
        used += got;
        if (used > max_bytes) {
            free(data);
            return bl_fail_at(err, BL_ERR_RANGE, bl_at(path), "larger than %zu bytes", max_bytes);
        }
        if (got == 0)
            break;
    }
    if (ferror(in)) {
        free(data);
        return bl_fail_at(err, BL_ERR_IO, bl_at(path), "cannot read: %s", strerror(errno));
    }
    data[used] = '\0';
    *data_p = data;
    *bytes = used;
    return BL_OK;
}

bl_status bl_read_file(const char *path, size_t max_bytes, char **data_p, size_t *bytes,
                       bl_error *err) {
    if (strcmp(path, "-") == 0)
        return read_stream(stdin, "standard input", max_bytes, data_p, bytes, err);
    FILE *in = fopen(path, "rb");
    if (in == NULL)
        return bl_fail_at(err, BL_ERR_IO, bl_at(path), "cannot open: %s", strerror(errno));
    const bl_status st = read_stream(in, path, max_bytes, data_p, bytes, err);
    fclose(in);
    return st;
}

static void forget(bl_file *file) {
    free(file->path);
    free(file->temp);
    *file = (bl_file){0};
}

bl_status bl_file_create(bl_file *file, const char *path, bl_error *err) {
    *file = (bl_file){0};
    if (strcmp(path, "-") == 0) {
        file->stream = stdout;
        return BL_OK;
    }
    struct stat info;
    const int exists = stat(path, &info) == 0;
    if (exists && S_ISDIR(info.st_mode))
        return bl_fail_at(err, BL_ERR_IO, bl_at(path), "is a directory");
    file->path = strdup(path);
    if (file->path == NULL)
        return bl_fail(err, BL_ERR_NOMEM, "out of memory");
    if (exists && !S_ISREG(info.st_mode)) {
        file->stream = fopen(path, "wb");
    } else {
        const size_t temp_bytes = strlen(path) + 32;
        file->temp = bl_calloc(temp_bytes, 1);
        if (file->temp == NULL) {
            forget(file);
            return bl_fail(err, BL_ERR_NOMEM, "out of memory");
        }
        snprintf(file->temp, temp_bytes, "%s.%ld.tmp", path, (long)getpid());
        file->stream = fopen(file->temp, "wb");
    }
    if (file->stream == NULL) {
        const int why = errno;
        forget(file);
        return bl_fail_at(err, BL_ERR_IO, bl_at(path), "cannot create: %s", strerror(why));
    }
    return BL_OK;
}

bl_status bl_file_commit(bl_file *file, bl_error *err) {
    if (file->path == NULL) { /* standard output */
        file->stream = NULL;
        return fflush(stdout) == 0 ? BL_OK
                                   : bl_fail(err, BL_ERR_IO, "cannot write to standard output: %s",
                                             strerror(errno));
    }
    int ok = fflush(file->stream) == 0 && !ferror(file->stream);
    if (ok && file->temp != NULL)
        ok = fsync(fileno(file->stream)) == 0;
    int why = errno;
    if (fclose(file->stream) != 0 && ok) {
        ok = 0;
        why = errno;
    }
    file->stream = NULL;
    if (ok && file->temp != NULL && rename(file->temp, file->path) != 0) {
        ok = 0;
        why = errno;
    }
    if (!ok) {
        bl_fail_at(err, BL_ERR_IO, bl_at(file->path), "cannot write: %s", strerror(why));
        bl_file_discard(file);
        return BL_ERR_IO;
    }
    forget(file);
    return BL_OK;
}

void bl_file_discard(bl_file *file) {
    if (file->stream != NULL && file->path != NULL)
        fclose(file->stream);
    if (file->temp != NULL)
        unlink(file->temp);
    forget(file);
}

bl_status bl_check_output(const char *output, const char *const *inputs, int n_inputs,
                          bl_error *err) {
    struct stat to, from;
    if (output[0] == '\0')
        return bl_fail(err, BL_ERR_USAGE, "the name of the file to write is empty");
    if (strcmp(output, "-") == 0 || stat(output, &to) != 0 || !S_ISREG(to.st_mode))
        return BL_OK;
    for (int i = 0; i < n_inputs; i++) {
        if (inputs[i] == NULL || strcmp(inputs[i], "-") == 0 || stat(inputs[i], &from) != 0)
            continue;
        if (from.st_dev == to.st_dev && from.st_ino == to.st_ino)
            return bl_fail_at(err, BL_ERR_USAGE, bl_at(output),
                              "is both read and to be written, and would be lost; write to "
                              "another file");
    }
    return BL_OK;
}

bl_status bl_write_file(const char *path, const void *data, size_t bytes, bl_error *err) {
    bl_file file;
    BL_TRY(bl_file_create(&file, path, err));
    if (fwrite(data, 1, bytes, file.stream) != bytes) {
        const int why = errno;
        bl_file_discard(&file);
        return bl_fail_at(err, BL_ERR_IO, bl_at(path), "cannot write: %s", strerror(why));
    }
    return bl_file_commit(&file, err);
}
