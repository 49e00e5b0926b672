/*
 * import_ranks.c: recordings of which each rank wrote a file.
 *
 * How many ranks there were is --ranks, or else one more than the highest that is there: a recording
 * without its last rank's file cannot be told from one of fewer ranks.
 */
#include "tracer/import_sink.h"

#include "core/mem.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

bl_status bl_rank_files_add(bl_rank_files *files, const char *path, int rank, bl_error *err) {
    void *items = files->items;
    const bl_status st = bl_grow(&items, &files->capacity, files->n + 1, sizeof *files->items, err);
    files->items = items;
    BL_TRY(st);
    char *copy = strdup(path);
    if (copy == NULL)
        return bl_fail(err, BL_ERR_NOMEM, "out of memory");
    files->items[files->n++] = (bl_rank_file){.rank = rank, .path = copy};
    return BL_OK;
}

/* ---- folders ------------------------------------------------------------------------------- */

/* The number that is all of text[0 .. n), or -1. */
static int number_of(const char *text, size_t n) {
    int number = 0;
    for (size_t i = 0; i < n; i++) {
        if (text[i] < '0' || text[i] > '9' || number >= BL_MAX_RANKS)
            return -1;
        number = number * 10 + (text[i] - '0');
    }
    return n > 0 && number < BL_MAX_RANKS ? number : -1;
}

static bl_status add_entry(bl_rank_files *files, const char *folder, const char *name,
                           const char *prefix, const char *suffix, bl_error *err) {
    const size_t n = strlen(name), before = strlen(prefix), behind = strlen(suffix);
    if (n < before + behind || strncmp(name, prefix, before) != 0 ||
        strcmp(name + n - behind, suffix) != 0)
        return BL_OK;
    const size_t bytes = strlen(folder) + 1 + n + 1;
    char *path = bl_calloc(bytes, 1);
    if (path == NULL)
        return bl_fail(err, BL_ERR_NOMEM, "out of memory");
    snprintf(path, bytes, "%s/%s", folder, name);
    const bl_status st =
        bl_rank_files_add(files, path, number_of(name + before, n - before - behind), err);
    free(path);
    return st;
}

static int by_path(const void *a, const void *b) {
    return strcmp(((const bl_rank_file *)a)->path, ((const bl_rank_file *)b)->path);
}

bl_status bl_rank_files_list(bl_rank_files *files, const char *folder, const char *prefix,
                             const char *suffix, bool *is_folder, bl_error *err) {
    DIR *dir = opendir(folder);
    *is_folder = dir != NULL;
    if (dir == NULL)
        return errno == ENOTDIR
                   ? BL_OK
                   : bl_fail_at(err, BL_ERR_IO, bl_at(folder), "cannot open: %s", strerror(errno));
    bl_status st = BL_OK;
    for (struct dirent *entry; st == BL_OK && (entry = readdir(dir)) != NULL;)
        st = add_entry(files, folder, entry->d_name, prefix, suffix, err);
    closedir(dir);
    if (files->n > 0)
        qsort(files->items, files->n, sizeof *files->items, by_path);
    return st;
}

/* ---- ranks --------------------------------------------------------------------------------- */

static int by_rank(const void *a, const void *b) {
    return ((const bl_rank_file *)a)->rank - ((const bl_rank_file *)b)->rank;
}

static void note_missing(const bl_rank_files *files, bl_import_sink *sink, int n_ranks) {
    char text[160] = "";
    size_t at = 0, used = 0;
    for (int rank = 0; rank < n_ranks; rank++) {
        while (at < files->n && files->items[at].rank < rank)
            at++;
        if (at < files->n && files->items[at].rank == rank)
            continue;
        if (used + 32 > sizeof text) {
            snprintf(text + used, sizeof text - used, " and more");
            break;
        }
        used += (size_t)snprintf(text + used, sizeof text - used, "%srank %d", used > 0 ? ", " : "",
                                 rank);
    }
    if (used > 0)
        bl_sink_note(sink, "incomplete: %s", text);
}

bl_status bl_rank_files_shape(bl_rank_files *files, bl_import_sink *sink, bl_source_shape *shape,
                              bl_error *err) {
    qsort(files->items, files->n, sizeof *files->items, by_rank);
    for (size_t i = 1; i < files->n; i++) {
        if (files->items[i].rank == files->items[i - 1].rank)
            return bl_fail_at(err, BL_ERR_STATE, bl_at(files->items[i].path),
                              "holds rank %d, and so does %.200s; import one recording at a time",
                              files->items[i].rank, files->items[i - 1].path);
    }
    const int highest = files->items[files->n - 1].rank, said = sink->options->ranks;
    if (said > 0 && highest >= said)
        return bl_fail_at(err, BL_ERR_RANGE, bl_at(files->items[files->n - 1].path),
                          "holds rank %d, but --ranks says there are %d", highest, said);
    BL_TRY(BL_CALLOC(files->present, files->n, err));
    for (size_t i = 0; i < files->n; i++)
        files->present[i] = files->items[i].rank;
    shape->n_ranks = said > 0 ? said : highest + 1;
    shape->present = files->present;
    shape->n_present = (int)files->n;
    note_missing(files, sink, shape->n_ranks);
    return BL_OK;
}

void bl_rank_files_note_steps(bl_rank_files *files, bl_import_sink *sink) {
    const uint64_t total = bl_steps_number(&files->steps);
    for (size_t i = 0; i < files->n; i++) {
        if (files->items[i].n_steps < total)
            bl_sink_note(sink, "rank %d lacks %llu of %llu steps", files->items[i].rank,
                         (unsigned long long)(total - files->items[i].n_steps),
                         (unsigned long long)total);
    }
}

void bl_rank_files_free(bl_rank_files *files) {
    for (size_t i = 0; i < files->n; i++)
        free(files->items[i].path);
    free(files->items);
    free(files->present);
    bl_steps_free(&files->steps);
    *files = (bl_rank_files){0};
}
