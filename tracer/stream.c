#include "tracer/stream.h"

#include "core/mem.h"
#include "tracer/blt.h"

#include <dirent.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define NOTES_BYTES 1024

typedef struct source {
    bl_blt_reader *reader;
    size_t at; /* in the order of names */
    bool cut;
    bool is_last;  /* of a rank's parts */
    bool mid_step; /* leave out the step below: the file holds a part of it */
    uint32_t cut_run;
    uint64_t cut_step;
    bl_record head; /* read, not given yet */
    bool has_head, at_end;
} source;

/* Files that are read one after another: the parts of one rank, or one file. */
typedef struct lane {
    size_t first, at, end; /* sources; at: the one that is being read */
} lane;

struct bl_stream {
    source *sources; /* [n] */
    size_t n, capacity;
    lane *lanes; /* [n_lanes] */
    size_t n_lanes;
    lane *current; /* where the last record came from, or NULL */
    uint32_t run;  /* its key */
    uint64_t step;
    bool keep_slots;
    bl_trace_info info;
    bool complete;
    bl_digest digest;
    uint64_t dropped_by_index;   /* of whole files */
    uint64_t dropped_by_records; /* of cut files, as far as they were read */
    char notes[NOTES_BYTES];
};

static void note(bl_stream *s, const char *format, ...) BL_PRINTF(2, 3);
static void note(bl_stream *s, const char *format, ...) {
    const size_t used = strlen(s->notes);
    va_list args;
    va_start(args, format);
    if (used > 0 && used + 2 < NOTES_BYTES)
        memcpy(s->notes + used, "; ", 3);
    const size_t at = strlen(s->notes);
    vsnprintf(s->notes + at, NOTES_BYTES - at, format, args);
    va_end(args);
}

/* ---- opening ------------------------------------------------------------------------------- */

/* The step that a cut file ends in: the one of its last record. */
static bl_status find_cut_step(source *src, bl_error *err) {
    bl_blt_skip_bodies(src->reader, true);
    for (;;) {
        bl_record record;
        bool got;
        BL_TRY(bl_blt_next(src->reader, &record, &got, err));
        if (!got)
            break;
        src->cut_run = record.run;
        src->cut_step = record.step;
    }
    bl_blt_skip_bodies(src->reader, false);
    bl_blt_rewind(src->reader);
    return BL_OK;
}

/* A recorder killed between making a part and writing its header. */
static bool is_empty(const char *path) {
    struct stat info;
    return stat(path, &info) == 0 && S_ISREG(info.st_mode) && info.st_size == 0;
}

static bl_status add_file(bl_stream *s, const char *path, bl_error *err) {
    void *sources = s->sources;
    const bl_status st = bl_grow(&sources, &s->capacity, s->n + 1, sizeof *s->sources, err);
    s->sources = sources;
    BL_TRY(st);
    source *src = &s->sources[s->n];
    *src = (source){.at = s->n};
    BL_TRY(bl_blt_open(path, &src->reader, err));
    s->n++;
    uint64_t kept, size;
    src->cut = bl_blt_cut(src->reader, &kept, &size, &src->mid_step);
    if (src->cut) {
        note(s, "%s was not closed: cut at byte %llu of %llu, after its last whole chunk", path,
             (unsigned long long)kept, (unsigned long long)size);
    } else {
        s->dropped_by_index += bl_blt_dropped(src->reader);
    }
    const bl_status found = src->cut && src->mid_step ? find_cut_step(src, err) : BL_OK;
    bl_blt_park(src->reader); /* a recording may have thousands of parts */
    return found;
}

static int compare_names(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static bl_status list_files(const char *path, char ***names_p, size_t *n, bl_error *err) {
    DIR *dir = opendir(path);
    if (dir == NULL)
        return bl_fail_at(err, BL_ERR_IO, bl_at(path), "cannot open: %s", strerror(errno));
    char **names = NULL;
    size_t capacity = 0;
    bl_status st = BL_OK;
    for (struct dirent *entry; st == BL_OK && (entry = readdir(dir)) != NULL;) {
        const size_t length = strlen(entry->d_name);
        if (length < 5 || strcmp(entry->d_name + length - 4, ".blt") != 0)
            continue;
        void *grown = names;
        st = bl_grow(&grown, &capacity, *n + 1, sizeof *names, err);
        names = grown;
        if (st == BL_OK && (names[*n] = bl_calloc(strlen(path) + length + 2, 1)) == NULL)
            st = bl_fail(err, BL_ERR_NOMEM, "out of memory");
        if (st == BL_OK)
            sprintf(names[(*n)++], "%s/%s", path, entry->d_name);
    }
    closedir(dir);
    *names_p = names;
    if (*n > 1)
        qsort(names, *n, sizeof *names, compare_names);
    return st;
}

/* Parts in their order, rank by rank; other files as their names have it, in front. */
static int compare_sources(const void *a, const void *b) {
    const source *x = a, *y = b;
    const bl_trace_info *i = bl_blt_info(x->reader), *j = bl_blt_info(y->reader);
    const int rank_i = i->part > 0 && i->n_present > 0 ? i->present[0] : -1;
    const int rank_j = j->part > 0 && j->n_present > 0 ? j->present[0] : -1;
    if (rank_i != rank_j)
        return rank_i < rank_j ? -1 : 1;
    if (rank_i >= 0 && i->part != j->part)
        return i->part < j->part ? -1 : 1;
    return (x->at > y->at) - (x->at < y->at);
}

static bl_status add_directory(bl_stream *s, const char *path, bl_error *err) {
    char **names = NULL;
    size_t n = 0;
    bl_status st = list_files(path, &names, &n, err);
    if (st == BL_OK && n == 0)
        st = bl_fail_at(err, BL_ERR_IO, bl_at(path), "no .blt file in this directory");
    for (size_t i = 0; st == BL_OK && i < n; i++) {
        if (n > 1 && is_empty(names[i]))
            note(s, "%s is empty", names[i]);
        else
            st = add_file(s, names[i], err);
    }
    if (st == BL_OK && n > 0 && s->n == 0)
        st = bl_fail_at(err, BL_ERR_PARSE, bl_at(path), "all its trace files are empty");
    for (size_t i = 0; i < n; i++)
        free(names[i]);
    free(names);
    if (s->n > 1)
        qsort(s->sources, s->n, sizeof *s->sources, compare_sources);
    return st;
}

/* Two files may hold one rank when they are different parts of one recording. */
static bool is_part_of_same(const bl_trace_info *a, const bl_trace_info *b) {
    return a->part > 0 && b->part > 0 && a->part != b->part;
}

static bl_status two_files(const char *path, const bl_trace_info *info, int rank, bl_error *err) {
    return info->part > 0
               ? bl_fail_at(err, BL_ERR_STATE, bl_at(path), "two files hold part %d of rank %d",
                            info->part, rank)
               : bl_fail_at(err, BL_ERR_STATE, bl_at(path), "two files hold rank %d", rank);
}

/* `last` [BL_MAX_RANKS]: 1 + the file that a rank was seen in last. */
static bl_status see_ranks(bl_stream *s, size_t at, uint32_t *last, const char *path,
                           bl_error *err) {
    const bl_trace_info *info = bl_blt_info(s->sources[at].reader);
    if (s->n > 1 && info->n_present == 0)
        return bl_fail_at(err, BL_ERR_STATE, bl_at(path),
                          "a file does not say which ranks it holds, so it cannot be one of "
                          "several; give it by itself");
    for (int j = 0; j < info->n_present; j++) {
        const int rank = info->present[j];
        const bl_trace_info *before =
            last[rank] > 0 ? bl_blt_info(s->sources[last[rank] - 1].reader) : NULL;
        if (before != NULL && !is_part_of_same(before, info))
            return two_files(path, info, rank, err);
        if (before != NULL && info->part > before->part + 1) {
            note(s, "incomplete: rank %d, part%s %d", rank,
                 info->part > before->part + 2 ? "s from" : "", before->part + 1);
            s->complete = false;
        }
        if (before == NULL && info->part > 1)
            note(s, "rank %d begins with part %d", rank, info->part);
        if (before != NULL)
            bl_blt_continues(s->sources[at].reader, s->sources[last[rank] - 1].reader);
        last[rank] = (uint32_t)at + 1;
    }
    return BL_OK;
}

/* Ranks of all files together; two files with one rank would count its tokens twice. */
static bl_status join_ranks(bl_stream *s, const char *path, bl_error *err) {
    uint32_t *last = bl_calloc(BL_MAX_RANKS, sizeof *last);
    int *present = bl_calloc(BL_MAX_RANKS, sizeof *present);
    bl_status st =
        last != NULL && present != NULL ? BL_OK : bl_fail(err, BL_ERR_NOMEM, "out of memory");
    int n_ranks = 0, n_present = 0;
    for (size_t i = 0; st == BL_OK && i < s->n; i++) {
        const bl_trace_info *info = bl_blt_info(s->sources[i].reader);
        n_ranks = info->n_ranks > n_ranks ? info->n_ranks : n_ranks;
        st = see_ranks(s, i, last, path, err);
    }
    for (int rank = 0; st == BL_OK && rank < BL_MAX_RANKS; rank++) {
        if (last[rank] == 0)
            continue;
        present[n_present++] = rank;
        s->sources[last[rank] - 1].is_last = true;
    }
    if (st == BL_OK)
        st = bl_trace_info_set_ranks(&s->info, n_ranks, present, n_present, err);
    free(last);
    free(present);
    return st;
}

/* A recorder that was killed left its part unclosed; what was not in it went into the next one. */
static void judge_cuts(bl_stream *s) {
    for (size_t i = 0; i < s->n; i++) {
        const bool taken_over =
            bl_blt_info(s->sources[i].reader)->part > 0 && !s->sources[i].is_last;
        s->complete = s->complete && (!s->sources[i].cut || taken_over);
    }
}

static void note_missing_ranks(bl_stream *s) {
    if (s->info.n_present == 0)
        return;
    int at = 0;
    for (int rank = 0; rank < s->info.n_ranks; rank++) {
        while (at < s->info.n_present && s->info.present[at] < rank)
            at++;
        if (at < s->info.n_present && s->info.present[at] == rank)
            continue;
        if (s->complete || strstr(s->notes, "incomplete") == NULL)
            note(s, "incomplete: rank %d", rank);
        else if (strlen(s->notes) + 24 < NOTES_BYTES)
            snprintf(s->notes + strlen(s->notes), 24, ", rank %d", rank);
        s->complete = false;
    }
}

/* Sources are sorted: parts of a rank are neighbours. */
static bl_status make_lanes(bl_stream *s, bl_error *err) {
    BL_TRY(BL_CALLOC(s->lanes, s->n, err));
    for (size_t i = 0; i < s->n; i++) {
        const bl_trace_info *info = bl_blt_info(s->sources[i].reader);
        const bl_trace_info *before = i > 0 ? bl_blt_info(s->sources[i - 1].reader) : NULL;
        const bool follows = before != NULL && is_part_of_same(before, info) &&
                             before->n_present == 1 && info->n_present == 1 &&
                             before->present[0] == info->present[0];
        if (!follows)
            s->lanes[s->n_lanes++] = (lane){i, i, i};
        s->lanes[s->n_lanes - 1].end = i + 1;
    }
    return BL_OK;
}

static bl_status join(bl_stream *s, const char *path, bl_error *err) {
    const bl_trace_info *first = bl_blt_info(s->sources[0].reader);
    BL_TRY(bl_trace_info_copy(first, &s->info, err));
    bl_hasher *hasher = bl_hasher_new();
    if (hasher == NULL)
        return bl_fail(err, BL_ERR_NOMEM, "out of memory");
    bl_status st = BL_OK;
    for (size_t i = 0; i < s->n; i++) {
        const bl_digest digest = bl_blt_digest(s->sources[i].reader);
        bl_hasher_add(hasher, digest.hex, sizeof digest.hex);
        if (st == BL_OK)
            st = bl_trace_info_same_model(&s->info, bl_blt_info(s->sources[i].reader), path, err);
    }
    s->digest = bl_hasher_finish(hasher);
    if (st == BL_OK)
        st = join_ranks(s, path, err);
    if (st == BL_OK)
        st = make_lanes(s, err);
    if (st == BL_OK) {
        judge_cuts(s);
        note_missing_ranks(s);
    }
    return st;
}

bl_status bl_stream_open(const char *path, bl_stream **stream_p, bl_error *err) {
    struct stat info;
    if (stat(path, &info) != 0)
        return bl_fail_at(err, BL_ERR_IO, bl_at(path), "cannot open: %s", strerror(errno));
    bl_stream *s = NULL;
    BL_TRY(BL_CALLOC(s, 1, err));
    s->complete = true;
    bl_status st = S_ISDIR(info.st_mode) ? add_directory(s, path, err) : add_file(s, path, err);
    if (st == BL_OK)
        st = join(s, path, err);
    if (st < 0)
        bl_stream_free(s);
    else
        *stream_p = s;
    return st;
}

void bl_stream_free(bl_stream *s) {
    if (s == NULL)
        return;
    for (size_t i = 0; i < s->n; i++)
        bl_blt_reader_free(s->sources[i].reader);
    free(s->sources);
    free(s->lanes);
    bl_trace_info_free(&s->info);
    free(s);
}

/* ---- reading ------------------------------------------------------------------------------- */

/* The next record of one file into its head. */
static bl_status read_head(bl_stream *s, source *src, bl_error *err) {
    while (!src->has_head && !src->at_end) {
        bool got;
        BL_TRY(bl_blt_next(src->reader, &src->head, &got, err));
        if (got && src->cut)
            s->dropped_by_records += src->head.dropped;
        src->at_end = !got;
        src->has_head = got && !(src->mid_step && src->head.run == src->cut_run &&
                                 src->head.step == src->cut_step);
    }
    return BL_OK;
}

/* The next record of a lane, or NULL at its end. */
static bl_status lane_head(bl_stream *s, lane *l, const bl_record **head_p, bl_error *err) {
    for (;;) {
        source *src = &s->sources[l->at];
        BL_TRY(read_head(s, src, err));
        *head_p = src->has_head ? &src->head : NULL;
        if (src->has_head || l->at + 1 == l->end)
            return BL_OK;
        bl_blt_release(src->reader);
        bl_blt_park(src->reader);
        l->at++;
    }
}

/* The lane whose next record has the lowest key. Most often the one that gave the last record goes
 * on with the same step: then no other can be before it. */
static bl_status choose_lane(bl_stream *s, lane **chosen_p, bl_error *err) {
    const bl_record *head = NULL, *lowest = NULL;
    *chosen_p = NULL;
    if (s->current != NULL) {
        BL_TRY(lane_head(s, s->current, &head, err));
        *chosen_p = s->current;
        if (head != NULL && head->run == s->run && head->step == s->step)
            return BL_OK;
        *chosen_p = NULL;
    }
    for (size_t i = 0; i < s->n_lanes; i++) {
        BL_TRY(lane_head(s, &s->lanes[i], &head, err));
        if (head == NULL ||
            (lowest != NULL &&
             (head->run > lowest->run || (head->run == lowest->run && head->step >= lowest->step))))
            continue;
        lowest = head;
        *chosen_p = &s->lanes[i];
    }
    return BL_OK;
}

bl_status bl_stream_next(bl_stream *s, bl_record *record, bool *got, bl_error *err) {
    *got = false;
    BL_TRY(choose_lane(s, &s->current, err));
    if (s->current == NULL)
        return BL_OK;
    source *src = &s->sources[s->current->at];
    src->has_head = false;
    s->run = src->head.run;
    s->step = src->head.step;
    if ((src->head.flags & BL_RECORD_PHYSICAL) && !s->keep_slots)
        BL_TRY(bl_blt_to_logical(src->reader, &src->head, err));
    *record = src->head;
    *got = true;
    return BL_OK;
}

void bl_stream_keep_slots(bl_stream *s, bool keep) {
    s->keep_slots = keep;
}

const bl_layer_placement *bl_stream_map(const bl_stream *s, const bl_record *record) {
    return bl_blt_map(s->sources[s->current->at].reader, record);
}

bl_status bl_stream_to_logical(bl_stream *s, bl_record *record, bl_error *err) {
    return bl_blt_to_logical(s->sources[s->current->at].reader, record, err);
}

void bl_stream_skip_bodies(bl_stream *s, bool skip) {
    for (size_t i = 0; i < s->n; i++)
        bl_blt_skip_bodies(s->sources[i].reader, skip);
}

void bl_stream_only_steps(bl_stream *s, uint64_t first, uint64_t end) {
    for (size_t i = 0; i < s->n; i++)
        bl_blt_only_steps(s->sources[i].reader, first, end);
}

void bl_stream_rewind(bl_stream *s) {
    for (size_t i = 0; i < s->n; i++) {
        bl_blt_rewind(s->sources[i].reader);
        s->sources[i].has_head = s->sources[i].at_end = false;
    }
    for (size_t i = 0; i < s->n_lanes; i++)
        s->lanes[i].at = s->lanes[i].first;
    s->current = NULL;
    s->dropped_by_records = 0;
}

const bl_trace_info *bl_stream_info(const bl_stream *s) {
    return &s->info;
}

const char *bl_stream_notes(const bl_stream *s) {
    return s->notes;
}

bool bl_stream_is_complete(const bl_stream *s) {
    return s->complete;
}

bl_digest bl_stream_digest(const bl_stream *s) {
    return s->digest;
}

uint64_t bl_stream_raw_bytes(const bl_stream *s) {
    uint64_t sum = 0;
    for (size_t i = 0; i < s->n; i++)
        sum += bl_blt_raw_bytes(s->sources[i].reader);
    return sum;
}

uint64_t bl_stream_dropped(const bl_stream *s) {
    return s->dropped_by_index + s->dropped_by_records;
}
