/*
 * recorder.h: from the ranks' rings into trace files.
 *
 *     bl_recorder_open(&options, &recorder)
 *     bl_recorder_attach(recorder, "my-model.0") ... one for each ring
 *     while (!bl_recorder_is_over(recorder)):
 *         bl_recorder_poll(recorder, &n_records)     never waits; sleep a little when it found none
 *     bl_recorder_finish(recorder, &totals)          drains what is left and closes the files
 *
 * Two ways to write. Into one file (`path`): all rings are attached before the first poll, and an
 * error ends the recording. Into a directory: one file per rank, in parts (tracer/recorder_lane.h);
 * rings come and go while it runs, a restarted engine's new ring takes the place of its old one, and
 * a full disk is waited out.
 *
 * Files are written chunk by chunk (tracer/blt.h, live), so a crash leaves all whole chunks. Bytes
 * are given back to the ring only when they are in a file (tracer/ring.h): a recorder that is killed
 * loses nothing and doubles nothing, its successor goes on where it was. Records reach the file
 * within about a second.
 *
 * The ledger. Nothing is lost silently; for every ring, once it is over and drained,
 *
 *     pushed = written + rejected + dropped + skipped (+ earlier: written by recorders before)
 *
 * where a step that an engine was publishing as it was killed counts as dropped. Every drop has its
 * place: a record without tokens whose `dropped` says how many records of that (rank, layer) were
 * lost up to that step; the steps in between are those that the rank's records do not show.
 *
 * Clocks: only the monotonic one is used, and one that runs backwards stands still for us.
 */
#ifndef BL_TRACER_RECORDER_H
#define BL_TRACER_RECORDER_H

#include "core/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct bl_recorder bl_recorder;

typedef enum bl_recorder_fsync {
    BL_FSYNC_NEVER, /* the operating system writes when it likes: a crash of the machine costs that */
    BL_FSYNC_CHUNK,  /* after every chunk */
    BL_FSYNC_ROTATE, /* when a file is closed */
} bl_recorder_fsync;

typedef struct bl_recorder_options {
    const char *path;      /* one file for all ranks, or */
    const char *directory; /* a file per rank; must exist */
    bool sets;             /* rows as sets: which experts, not in which order (tracer/blt.h) */
    int64_t rotate_bytes;  /* close a part that is at least so large; 0: never */
    double rotate_s;       /* or so old; 0: never */
    int keep;              /* closed parts kept of each rank; 0: all */
    bl_recorder_fsync fsync;
    int64_t min_free_bytes; /* stop writing while the disk has less; 0: until it is full */
    const char *live;       /* publish live windows under this name (tracer/window.h), or NULL */
    bool set_control;       /* give the rings `control` (pack.h, bl_control_word()) */
    uint64_t control;
    bool append; /* go on with an earlier recording in the directory, also by another engine */
    double (*clock)(void *user); /* monotonic seconds; NULL: the real one */
    void *clock_user;
} bl_recorder_options;

#define BL_RECORDER_OPTIONS_INIT ((bl_recorder_options){0})

typedef struct bl_recorder_totals {
    int n_rings;       /* that were attached; a restarted engine's count once */
    int n_open;        /* attached now */
    int n_held;        /* lanes that wait for room on the disk */
    uint64_t pushed;   /* records that engines offered */
    uint64_t written;  /* records in files of this recorder */
    uint64_t dropped;  /* records of steps that found a full ring, or died with their engine */
    uint64_t rejected; /* records with ids that are no experts */
    uint64_t skipped;  /* records of steps left out by sampling */
    uint64_t earlier;  /* records that recorders before us took */
    uint64_t ids;      /* top-k slots in written records */
    uint64_t bytes;    /* of files, closed and open */
    uint64_t files;    /* closed and open */
    uint64_t removed; /* files that somebody removed while they were written, with what they held */
    double fullest;   /* of all rings: share of its bytes that wait, 0 .. 1 */
    char why_rejected[256]; /* the first of them; "" when there is none */
    char why_held[256];     /* what the disk said */
} bl_recorder_totals;

/* Strings in `options` are borrowed for the recorder's life. */
bl_status bl_recorder_open(const bl_recorder_options *options, bl_recorder **recorder_p,
                           bl_error *err);
/* One file, no rotation. */
bl_status bl_recorder_create(const char *path, bl_recorder **recorder_p, bl_error *err);

/* BL_ERR_STATE when the ring is not there yet (try again), has another reader, when its rank is being
 * recorded already, or when one file has been begun; BL_ERR_MODEL when its model differs from that of
 * the rings before it. */
bl_status bl_recorder_attach(bl_recorder *recorder, const char *ring, bl_error *err);
/* The directory holds files, and no ring says that they are of a recording to be gone on with. */
bool bl_recorder_has_earlier(const bl_recorder *recorder);
bool bl_recorder_has(const bl_recorder *recorder, const char *ring); /* attached, and not over */

/* Write all steps published so far; *n_records counts them. */
bl_status bl_recorder_poll(bl_recorder *recorder, uint64_t *n_records, bl_error *err);

/* All rings are closed or their processes gone, and nothing is left in them. */
bool bl_recorder_is_over(const bl_recorder *recorder);
/* The same, but the disk has no room for what is left in them. */
bool bl_recorder_is_stuck(const bl_recorder *recorder);

void bl_recorder_read_totals(const bl_recorder *recorder, bl_recorder_totals *totals);

/* Drain, write the index, close, free, whatever the result. `totals` may be NULL. */
bl_status bl_recorder_finish(bl_recorder *recorder, bl_recorder_totals *totals, bl_error *err);
/* Stop without closing the file properly: it stays, cut after its last chunk. NULL is fine. */
void bl_recorder_abandon(bl_recorder *recorder);

#endif
