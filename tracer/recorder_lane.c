#include "tracer/recorder_lane.h"

#include "core/mem.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define RETRY_S 1.0
#define ROOM_FOR_END ((uint64_t)256 << 10) /* index and footer of a part that must be closed */

static void part_name(const bl_lane *lane, int part, char *out, size_t bytes) {
    snprintf(out, bytes, "%s/rank-%05d.%06d.blt", lane->options->directory, lane->rank, part);
}

/* The highest part of this rank that is in the directory, 0: none. */
static int last_part(const bl_lane *lane) {
    int last = 0;
    DIR *dir = opendir(lane->options->directory);
    if (dir == NULL)
        return 0;
    for (struct dirent *entry; (entry = readdir(dir)) != NULL;) {
        int rank, part, end = 0;
        if (sscanf(entry->d_name, "rank-%9d.%9d.blt%n", &rank, &part, &end) == 2 && end > 0 &&
            entry->d_name[end] == '\0' && rank == lane->rank && part > last)
            last = part;
    }
    closedir(dir);
    return last;
}

/* The highest run in the newest part that has records. */
static int64_t last_run(const bl_lane *lane) {
    int64_t run = -1;
    for (int part = lane->info.part; part > 0 && run < 0; part--) {
        char path[1024];
        bl_blt_reader *reader = NULL;
        part_name(lane, part, path, sizeof path);
        if (bl_blt_open(path, &reader, NULL) < 0)
            continue;
        bl_blt_skip_bodies(reader, true);
        bl_record record;
        bool got = true;
        while (bl_blt_next(reader, &record, &got, NULL) == BL_OK && got)
            run = (int64_t)record.run > run ? (int64_t)record.run : run;
        bl_blt_reader_free(reader);
    }
    return run;
}

bool bl_lane_has_files(const char *directory) {
    bool found = false;
    DIR *dir = opendir(directory);
    if (dir == NULL)
        return false;
    for (struct dirent *entry; !found && (entry = readdir(dir)) != NULL;) {
        const size_t n = strlen(entry->d_name);
        found = n > 4 && strcmp(entry->d_name + n - 4, ".blt") == 0;
    }
    closedir(dir);
    return found;
}

bl_status bl_lane_check_earlier(const char *directory, const bl_trace_info *info, bl_error *err) {
    bl_status st = BL_OK;
    DIR *dir = opendir(directory);
    if (dir == NULL)
        return BL_OK; /* making a file there will say why not */
    bool judged = false;
    for (struct dirent *entry; !judged && (entry = readdir(dir)) != NULL;) {
        char path[1024];
        bl_blt_reader *reader = NULL;
        const size_t n = strlen(entry->d_name);
        if (n <= 4 || strcmp(entry->d_name + n - 4, ".blt") != 0 ||
            snprintf(path, sizeof path, "%s/%s", directory, entry->d_name) >= (int)sizeof path ||
            bl_blt_open(path, &reader, NULL) < 0)
            continue;
        st = bl_trace_info_same_model(bl_blt_info(reader), info, directory, err);
        bl_blt_reader_free(reader);
        judged = true;
    }
    closedir(dir);
    return st;
}

bool bl_lane_can_name(const char *directory) {
    return strlen(directory) + 32 < sizeof((bl_lane *)0)->path;
}

bl_status bl_lane_create(const bl_recorder_options *options, bl_trace_info *info, bool in_parts,
                         bl_lane *out, bl_error *err) {
    bl_lane lane = {.options = options,
                    .info = *info,
                    .in_parts = in_parts,
                    .rank = info->n_present > 0 ? info->present[0] : 0};
    *info = (bl_trace_info){0};
    bl_status st = BL_CALLOC(lane.maps, lane.info.n_layers, err);
    lane.last_run = -1;
    if (st == BL_OK && in_parts) {
        lane.info.part = last_part(&lane);
        if (options->append)
            lane.last_run = last_run(&lane);
    }
    if (st < 0)
        bl_lane_free(&lane);
    else
        *out = lane;
    return st;
}

void bl_lane_free(bl_lane *lane) {
    for (int l = 0; lane->maps != NULL && l < lane->info.n_layers; l++)
        bl_layer_placement_free(&lane->maps[l]);
    free(lane->maps);
    free(lane->runs);
    bl_blt_abandon(lane->writer);
    bl_trace_info_free(&lane->info);
    *lane = (bl_lane){0};
}

static bool is_taken(const bl_lane *lane, uint32_t run) {
    for (size_t i = 0; i < lane->n_runs; i++) {
        if (lane->runs[i] == run)
            return true;
    }
    return false;
}

bl_status bl_lane_give_run(bl_lane *lane, uint32_t told, uint32_t *run, bl_error *err) {
    uint32_t given = told;
    if (is_taken(lane, told) || (told == 0 && lane->last_run >= 0))
        given = (uint32_t)(lane->last_run + 1);
    void *runs = lane->runs;
    const bl_status st =
        bl_grow(&runs, &lane->runs_capacity, lane->n_runs + 1, sizeof *lane->runs, err);
    lane->runs = runs;
    BL_TRY(st);
    lane->runs[lane->n_runs++] = given;
    lane->last_run = given > lane->last_run ? (int64_t)given : lane->last_run;
    *run = given;
    return BL_OK;
}

/* ---- room ---------------------------------------------------------------------------------- */

static bool is_below_guard(const bl_lane *lane) {
    struct statvfs disk;
    return lane->in_parts && lane->options->min_free_bytes > 0 &&
           statvfs(lane->options->directory, &disk) == 0 &&
           (uint64_t)disk.f_bavail * (uint64_t)disk.f_frsize <
               (uint64_t)lane->options->min_free_bytes + ROOM_FOR_END;
}

static void hold(bl_lane *lane, double now_s, const bl_error *why) {
    lane->held = true;
    lane->retry_s = now_s + RETRY_S;
    bl_error_format(why, lane->why, sizeof lane->why);
}

static void hold_by_guard(bl_lane *lane, double now_s) {
    bl_error why = BL_ERROR_INIT;
    bl_fail_at(&why, BL_ERR_IO, bl_at(lane->options->directory),
               "the disk has less room than --min-free asks for");
    hold(lane, now_s, &why);
}

/* The part was removed under us: what it held is gone, what comes goes into the next one. */
static bl_status leave_removed(bl_lane *lane, double now_s, bl_error *err) {
    bl_error why = BL_ERROR_INIT;
    bl_fail_at(&why, BL_ERR_IO, bl_at(lane->path), "the file was removed while it was written");
    bl_blt_abandon(lane->writer);
    lane->writer = NULL;
    lane->n_removed++;
    hold(lane, now_s, &why);
    lane->retry_s = now_s; /* there may be room enough */
    return bl_fail_at(err, BL_ERR_IO, bl_at(lane->path), "%s", why.text);
}

/* A write failed: the file is good up to where it was; what is behind was never given back to the
 * rings and is read again. */
static void cut_back(bl_lane *lane, double now_s, const bl_error *why) {
    bl_blt_abandon(lane->writer);
    lane->writer = NULL;
    if (!lane->has_records) {
        unlink(lane->path);
        lane->info.part--;
    } else if (truncate(lane->path, (off_t)lane->safe_bytes) == 0) {
        lane->bytes += lane->safe_bytes;
    }
    lane->n_parts += lane->has_records;
    hold(lane, now_s, why);
}

bool bl_lane_has_room(bl_lane *lane, double now_s) {
    if (lane->held)
        return false;
    if (!is_below_guard(lane))
        return true;
    bl_error why = BL_ERROR_INIT;
    if (lane->writer != NULL && bl_lane_close(lane, &why) < 0)
        lane->writer = NULL;
    hold_by_guard(lane, now_s);
    return false;
}

/* ---- opening and closing ------------------------------------------------------------------- */

static bl_status write_maps(bl_lane *lane, bl_error *err) {
    for (int l = 0; l < lane->info.n_layers; l++) {
        if (lane->maps[l].begin != NULL)
            BL_TRY(bl_blt_write_map(lane->writer, &lane->maps[l], err));
    }
    return BL_OK;
}

/* The name of the next part. It is taken at once, so that nobody else's file is written over: another
 * recorder may write into the directory, too. */
static void take_part_name(bl_lane *lane) {
    int fd;
    do {
        lane->info.part++;
        part_name(lane, lane->info.part, lane->path, sizeof lane->path);
        fd = open(lane->path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    } while (fd < 0 && errno == EEXIST);
    if (fd >= 0) /* else creating it says why not */
        close(fd);
}

static bl_status begin_file(bl_lane *lane, double now_s, bl_error *err) {
    if (lane->in_parts) {
        take_part_name(lane);
    } else {
        snprintf(lane->path, sizeof lane->path, "%s", lane->options->path);
    }
    BL_TRY(bl_blt_create(lane->path, &lane->info, true, &lane->writer, err));
    bl_blt_as_sets(lane->writer, lane->options->sets);
    lane->has_records = false;
    lane->safe_bytes = 0;
    bl_status st = write_maps(lane, err);
    if (st == BL_OK)
        st = bl_blt_flush(lane->writer, err);
    if (st == BL_OK)
        lane->safe_bytes = bl_blt_bytes(lane->writer);
    lane->opened_s = lane->committed_s = now_s;
    return st;
}

bl_status bl_lane_open(bl_lane *lane, double now_s, bl_error *err) {
    if (lane->writer != NULL)
        return BL_OK;
    if (lane->held && now_s < lane->retry_s && now_s > lane->retry_s - 2 * RETRY_S)
        return BL_OK;
    if (is_below_guard(lane)) {
        hold_by_guard(lane, now_s);
        return BL_OK;
    }
    bl_error why = BL_ERROR_INIT;
    const bl_status st = begin_file(lane, now_s, &why);
    const bool waits = lane->held && st == BL_ERR_IO; /* the first part must be possible */
    if (st == BL_OK)
        lane->held = false;
    else if (lane->in_parts && lane->writer != NULL)
        cut_back(lane, now_s, &why);
    else if (waits) {
        unlink(lane->path);
        lane->info.part--;
        hold(lane, now_s, &why);
    }
    if (st < 0 && !waits && err != NULL)
        *err = why;
    return waits ? BL_OK : st;
}

static void sync_directory(const bl_lane *lane) {
    const int fd = open(lane->options->directory, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    fsync(fd);
    close(fd);
}

static void remove_old_parts(const bl_lane *lane) {
    char path[1024];
    if (lane->options->keep < 1)
        return;
    for (int part = lane->info.part - lane->options->keep - 1; part > 0; part--) {
        part_name(lane, part, path, sizeof path);
        if (unlink(path) != 0)
            return;
    }
}

bl_status bl_lane_close(bl_lane *lane, bl_error *err) {
    if (lane->writer == NULL)
        return BL_OK;
    struct stat info;
    bl_status st = BL_OK;
    if (lane->options->fsync != BL_FSYNC_NEVER)
        st = bl_blt_sync(lane->writer, err);
    const bl_status closed = bl_blt_close(lane->writer, err);
    lane->writer = NULL;
    if (stat(lane->path, &info) == 0)
        lane->bytes += (uint64_t)info.st_size;
    lane->n_parts++;
    if (lane->in_parts && lane->options->fsync != BL_FSYNC_NEVER)
        sync_directory(lane);
    return st < 0 ? st : closed;
}

bl_status bl_lane_restart(bl_lane *lane, bl_error *err) {
    for (int l = 0; l < lane->info.n_layers; l++)
        bl_layer_placement_free(&lane->maps[l]);
    return bl_lane_close(lane, err);
}

bl_status bl_lane_rotate(bl_lane *lane, double now_s, bl_error *err) {
    const bl_recorder_options *o = lane->options;
    if (!lane->in_parts || lane->writer == NULL || !lane->has_records)
        return BL_OK;
    const bool large = o->rotate_bytes > 0 && lane->safe_bytes >= (uint64_t)o->rotate_bytes;
    const bool old = o->rotate_s > 0 && now_s - lane->opened_s >= o->rotate_s;
    if (!large && !old)
        return BL_OK;
    /* What fails from here on for want of room is no loss: the chunks are in the file. */
    if (bl_lane_close(lane, NULL) == BL_ERR_IO &&
        truncate(lane->path, (off_t)lane->safe_bytes) != 0)
        return bl_fail_at(err, BL_ERR_IO, bl_at(lane->path), "cannot cut: %s", strerror(errno));
    lane->held = true; /* until the next part is open */
    lane->retry_s = now_s;
    BL_TRY(bl_lane_open(lane, now_s, err));
    remove_old_parts(lane);
    return BL_OK;
}

/* ---- writing ------------------------------------------------------------------------------- */

bl_status bl_lane_flush(bl_lane *lane, double now_s, bl_error *err) {
    bl_error why = BL_ERROR_INIT;
    if (lane->in_parts && bl_blt_is_removed(lane->writer))
        return leave_removed(lane, now_s, err);
    const bool adds = bl_blt_buffered(lane->writer) > 0;
    bl_status st = bl_blt_flush(lane->writer, &why);
    if (st == BL_OK && lane->options->fsync == BL_FSYNC_CHUNK)
        st = bl_blt_sync(lane->writer, &why);
    if (st == BL_OK) {
        lane->safe_bytes = bl_blt_bytes(lane->writer);
        lane->has_records = lane->has_records || adds;
        lane->committed_s = now_s;
        return BL_OK;
    }
    if (lane->in_parts && st == BL_ERR_IO)
        cut_back(lane, now_s, &why);
    return bl_fail_at(err, st, bl_at(lane->path), "%s", why.text);
}

static bool is_same_map(const bl_layer_placement *a, const bl_layer_placement *b) {
    return a->begin != NULL && a->epoch == b->epoch && a->n_ranks == b->n_ranks &&
           memcmp(a->begin, b->begin, ((size_t)a->n_ranks + 1) * sizeof *a->begin) == 0 &&
           memcmp(a->expert, b->expert, (size_t)a->begin[a->n_ranks] * sizeof *a->expert) == 0;
}

bl_status bl_lane_write_map(bl_lane *lane, const bl_layer_placement *map, bl_error *err) {
    const int l = bl_trace_layer_index(&lane->info, map->layer);
    if (l < 0)
        return bl_fail_at(err, BL_ERR_RANGE, bl_at_layer(NULL, map->layer),
                          "a map of a layer that the ring does not have");
    if (is_same_map(&lane->maps[l], map)) /* told again, to a recorder that had just come */
        return BL_OK;
    BL_TRY(bl_blt_write_map(lane->writer, map, err));
    bl_layer_placement_free(&lane->maps[l]);
    return bl_layer_placement_copy(map, &lane->maps[l], err);
}

bool bl_lane_was_written(const char *file, uint64_t from) {
    bl_blt_reader *reader = NULL;
    uint64_t kept = 0, size;
    bool mid_step;
    if (bl_blt_open(file, &reader, NULL) < 0)
        return false;
    bl_blt_cut(reader, &kept, &size, &mid_step);
    bl_blt_reader_free(reader);
    return kept > from;
}
