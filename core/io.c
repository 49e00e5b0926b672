#define _GNU_SOURCE 1 /* O_TMPFILE */
#include "core/io.h"

#include "core/mem.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
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

/* A device that gives bytes for ever; a terminal ends when its user says so, /dev/null at once. */
static bool is_endless(int fd) {
    struct stat of, null;
    if (fstat(fd, &of) != 0 || (!S_ISCHR(of.st_mode) && !S_ISBLK(of.st_mode)) || isatty(fd))
        return false;
    return stat("/dev/null", &null) != 0 || of.st_rdev != null.st_rdev;
}

bl_status bl_open_input(const char *path, FILE **in_p, bl_error *err) {
    FILE *in = fopen(path, "rb");
    if (in == NULL)
        return bl_fail_at(err, BL_ERR_IO, bl_at(path), "cannot open: %s", strerror(errno));
    if (is_endless(fileno(in))) {
        fclose(in);
        return bl_fail_at(err, BL_ERR_IO, bl_at(path), "is a device, not a file");
    }
    *in_p = in;
    return BL_OK;
}

bl_status bl_read_file(const char *path, size_t max_bytes, char **data_p, size_t *bytes,
                       bl_error *err) {
    if (strcmp(path, "-") == 0)
        return read_stream(stdin, "standard input", max_bytes, data_p, bytes, err);
    FILE *in = NULL;
    BL_TRY(bl_open_input(path, &in, err));
    const bl_status st = read_stream(in, path, max_bytes, data_p, bytes, err);
    fclose(in);
    return st;
}

static void forget(bl_file *file) {
    free(file->path);
    free(file->temp);
    *file = (bl_file){0};
}

/* A file without a name in the folder of `path`, which vanishes with its last descriptor however
 * the process ends. -1 where there are none, or no way to name one later. */
static int open_nameless(const char *path) {
#ifdef O_TMPFILE
    char link[64];
    const char *slash = strrchr(path, '/');
    char *folder = slash != NULL ? strndup(path, (size_t)(slash - path) + 1) : strdup(".");
    const int fd = folder != NULL ? open(folder, O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666) : -1;
    free(folder);
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    if (fd >= 0 && access(link, F_OK) != 0) {
        close(fd);
        return -1;
    }
    return fd;
#else
    (void)path;
    return -1;
#endif
}

/* The stream of a new file, and the name of the neighbour that it has or will have: one of its own
 * among all writers, by process and handle. */
static bl_status open_neighbour(bl_file *file, bl_error *err) {
    const size_t temp_bytes = strlen(file->path) + 64;
    file->temp = bl_calloc(temp_bytes, 1);
    if (file->temp == NULL)
        return bl_fail(err, BL_ERR_NOMEM, "out of memory");
    snprintf(file->temp, temp_bytes, "%s.%ld-%zx.tmp", file->path, (long)getpid(),
             (size_t)(uintptr_t)file);
    int fd = open_nameless(file->path);
    file->nameless = fd >= 0;
    if (!file->nameless)
        fd = open(file->temp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    file->stream = fd >= 0 ? fdopen(fd, "wb") : NULL;
    if (file->stream != NULL)
        return BL_OK;
    const int why = errno;
    if (fd >= 0)
        close(fd);
    if (fd >= 0 && !file->nameless)
        unlink(file->temp);
    return bl_fail_at(err, BL_ERR_IO, bl_at(file->path), "cannot create: %s", strerror(why));
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
    struct stat link;
    const bool linked = exists && lstat(path, &link) == 0 && S_ISLNK(link.st_mode);
    file->path = linked && S_ISREG(info.st_mode) ? realpath(path, NULL) : strdup(path);
    if (file->path == NULL)
        return bl_fail_at(err, BL_ERR_IO, bl_at(path), "cannot create: %s", strerror(errno));
    bl_status st = BL_OK;
    if (!exists || S_ISREG(info.st_mode))
        st = open_neighbour(file, err);
    else if ((file->stream = fopen(path, "wb")) == NULL)
        st = bl_fail_at(err, BL_ERR_IO, bl_at(path), "cannot create: %s", strerror(errno));
    if (st < 0)
        forget(file);
    return st;
}

/* Give the synced file its final name: for a nameless one by way of its neighbour's, since only
 * rename() puts a file in another's place at once. */
static bool put_in_place(const bl_file *file) {
    if (file->temp == NULL)
        return true;
    if (file->nameless) {
        char link[64];
        snprintf(link, sizeof link, "/proc/self/fd/%d", fileno(file->stream));
        if (linkat(AT_FDCWD, link, AT_FDCWD, file->temp, AT_SYMLINK_FOLLOW) != 0)
            return false;
    }
    if (rename(file->temp, file->path) == 0)
        return true;
    const int why = errno;
    unlink(file->temp);
    errno = why;
    return false;
}

bl_status bl_file_commit(bl_file *file, bl_error *err) {
    if (file->path == NULL) { /* standard output */
        file->stream = NULL;
        return fflush(stdout) == 0 ? BL_OK
                                   : bl_fail(err, BL_ERR_IO, "cannot write to standard output: %s",
                                             strerror(errno));
    }
    const bool ok = fflush(file->stream) == 0 && !ferror(file->stream) &&
                    (file->temp == NULL || fsync(fileno(file->stream)) == 0) && put_in_place(file);
    const int why = errno;
    const bool closed = fclose(file->stream) == 0 || file->temp != NULL; /* that one is synced */
    file->stream = NULL;
    if (!ok || !closed) {
        bl_fail_at(err, BL_ERR_IO, bl_at(file->path), "cannot write: %s",
                   strerror(ok ? errno : why));
        bl_file_discard(file);
        return BL_ERR_IO;
    }
    forget(file);
    return BL_OK;
}

void bl_file_discard(bl_file *file) {
    if (file->stream != NULL && file->path != NULL)
        fclose(file->stream);
    if (file->temp != NULL && !file->nameless)
        unlink(file->temp);
    forget(file);
}

static bool is_same_file(const struct stat *a, const struct stat *b) {
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

/* Is the file one of those in a folder, by whatever name? */
static bool is_member(const struct stat *file, const char *folder) {
    DIR *dir = opendir(folder);
    if (dir == NULL)
        return false;
    bool found = false;
    for (struct dirent *entry; !found && (entry = readdir(dir)) != NULL;) {
        struct stat info;
        found = fstatat(dirfd(dir), entry->d_name, &info, 0) == 0 && is_same_file(file, &info);
    }
    closedir(dir);
    return found;
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
        if (is_same_file(&from, &to))
            return bl_fail_at(err, BL_ERR_USAGE, bl_at(output),
                              "is both read and to be written, and would be lost; write to "
                              "another file");
        if (S_ISDIR(from.st_mode) && is_member(&to, inputs[i]))
            return bl_fail_at(err, BL_ERR_USAGE, bl_at(output),
                              "is one of the files of %s, which is read, and would be lost; "
                              "write to another file",
                              inputs[i]);
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

bool bl_may_be_leaving(int *tries) {
    if (++*tries > 100)
        return false;
    nanosleep(&(struct timespec){0, 50000000}, NULL);
    return true;
}
