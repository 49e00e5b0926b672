/*
 * recorder.h: from the ranks' rings into one trace file.
 *
 *     bl_recorder_create(path, &recorder)
 *     bl_recorder_attach(recorder, "my-model.0") ... one for each ring, before the first poll
 *     while (!bl_recorder_is_over(recorder)):
 *         bl_recorder_poll(recorder, &n_records)     never waits; sleep a little when it found none
 *     bl_recorder_finish(recorder, &totals)          drains what is left and closes the file
 *
 * The file is written as it goes (tracer/blt.h, live), so a crash leaves all whole chunks; buffered
 * records reach the file within about a second. Nothing is lost silently: what the rings dropped,
 * and what had to be rejected because its ids were no experts, is counted, and for every ring
 *
 *     pushed = kept + dropped,     kept = written + rejected
 *
 * once it is over. Errors (a full disk) end the recording, not the engine.
 */
#ifndef BL_TRACER_RECORDER_H
#define BL_TRACER_RECORDER_H

#include "core/status.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct bl_recorder bl_recorder;

typedef struct bl_recorder_totals {
    int n_rings;
    uint64_t pushed;        /* records that engines offered */
    uint64_t written;       /* records in the file */
    uint64_t dropped;       /* records of steps that found a full ring */
    uint64_t rejected;      /* records with ids that are no experts */
    char why_rejected[256]; /* the first of them; "" when there is none */
} bl_recorder_totals;

bl_status bl_recorder_create(const char *path, bl_recorder **recorder_p, bl_error *err);

/* BL_ERR_STATE when the ring is not there yet (try again), has another reader, or when polling has
 * begun; BL_ERR_MODEL when its model differs from that of the rings before it. */
bl_status bl_recorder_attach(bl_recorder *recorder, const char *ring, bl_error *err);

/* Write all steps published so far; *n_records counts them. */
bl_status bl_recorder_poll(bl_recorder *recorder, uint64_t *n_records, bl_error *err);

/* All rings are closed or their processes gone, and nothing is left in them. */
bool bl_recorder_is_over(const bl_recorder *recorder);

void bl_recorder_read_totals(const bl_recorder *recorder, bl_recorder_totals *totals);

/* Drain, write the index, close, free, whatever the result. `totals` may be NULL. */
bl_status bl_recorder_finish(bl_recorder *recorder, bl_recorder_totals *totals, bl_error *err);
/* Stop without closing the file properly: it stays, cut after its last chunk. NULL is fine. */
void bl_recorder_abandon(bl_recorder *recorder);

#endif
