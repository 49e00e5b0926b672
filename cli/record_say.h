/*
 * record_say.h: what `ballast record` says while it records: a line on stderr, and a file for machines.
 */
#ifndef BL_CLI_RECORD_SAY_H
#define BL_CLI_RECORD_SAY_H

#include "core/json.h"
#include "core/progress.h"
#include "tracer/recorder.h"

typedef struct bl_record_voice {
    const char *directory, *status; /* borrowed; status: the file for machines, or NULL */
    bl_progress progress;
    bl_recorder_totals said, noted; /* as of the last line, and of the last status */
    double said_s, noted_s;
    bool failed; /* the status could not be written, and that was said */
} bl_record_voice;

bl_record_voice bl_record_voice_of(const char *directory, const char *status);

/* Call it often. The line comes once a second on a terminal; in a log once a minute, and at once when
 * something is dropped, rejected or removed, or the disk's state changes. The status comes once a second:
 * a new file in the place of the old one, so that who reads it sees a whole one. Not synced, and a failure
 * is said once and ends nothing. */
void bl_record_say(bl_record_voice *voice, const bl_recorder *recorder);

/* The last status, with "over" true, and the last words on stderr or, `json`, on stdout. */
bl_status bl_record_say_end(bl_record_voice *voice, const bl_recorder_totals *totals, bool json,
                            bl_error *err);

#endif
