/*
 * io.h: files, read whole or written whole.
 *
 * Writers never leave a half-written file under the final name: bytes go to a new file that is
 * flushed, synced and put in place by rename() on bl_file_commit(), or dropped on
 * bl_file_discard(). A full disk therefore shows as an error and leaves what was there before.
 *
 * Until the commit the new file has no name (O_TMPFILE), so nothing is left of it when the process
 * is killed, by whatever signal. Where the file system has no such files (NFS, for one) it is a
 * neighbour called OUT.<process>-<handle>.tmp instead, which a kill leaves behind and anybody
 * may remove. A symbolic link stays: the file that it leads to is replaced. Any number of writers may write one path at once: the last to commit wins, whole.
 */
#ifndef BL_CORE_IO_H
#define BL_CORE_IO_H

#include "core/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

/* Open an input for reading; pipes are welcome, devices that never end are not (/dev/zero, a disk).
 * The caller closes it. */
bl_status bl_open_input(const char *path, FILE **in_p, bl_error *err);

/* Read all of `path`, at most max_bytes. *data_p gets a terminator behind the last byte (not
 * counted in *bytes); the caller frees it with free(). "-" reads standard input. */
bl_status bl_read_file(const char *path, size_t max_bytes, char **data_p, size_t *bytes,
                       bl_error *err);

typedef struct bl_file {
    FILE *stream;      /* write here */
    char *path, *temp; /* final name; NULL temp when writing straight to a device or stdout */
    bool nameless;     /* `temp` is not there before the commit */
} bl_file;

/* Open `path` for writing as above. "-" is standard output; an existing
 * path that is not a regular file (/dev/full, a pipe) is written directly. */
bl_status bl_file_create(bl_file *file, const char *path, bl_error *err);
/* Flush, sync, rename. On failure the temporary is removed. The handle is dead afterwards. */
bl_status bl_file_commit(bl_file *file, bl_error *err);
void bl_file_discard(bl_file *file); /* safe after commit or on a zeroed handle */

/* Refuse (BL_ERR_USAGE) an output that is one of the files it is made from, or one of the files of a
 * folder it is made from, under whatever name: writing it would destroy what cannot be made again.
 * An empty name is refused too. NULL and "-" among the inputs are passed over. */
bl_status bl_check_output(const char *output, const char *const *inputs, int n_inputs,
                          bl_error *err);

/* What a killed process held, a lock or a socket, is free only when its memory is torn down: a while
 * after its parent was told of its death. Who takes over what is in use tries again as long as this
 * says so, for 5 s from the first call on; it sleeps in between. *tries starts as 0. */
bool bl_may_be_leaving(int *tries);

/* Write a whole buffer to `path` by the same rules. */
bl_status bl_write_file(const char *path, const void *data, size_t bytes, bl_error *err);

#endif
