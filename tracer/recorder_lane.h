/*
 * recorder_lane.h: the file side of the recorder: where the records of one or several ranks go.
 *
 * A lane is one file, or a sequence of parts of which one is being written:
 *
 *     DIR/rank-00003.000001.blt   closed: with index, complete
 *     DIR/rank-00003.000002.blt   the one being written
 *
 * A part is closed when it is large or old enough (rotation), the oldest ones are removed when only
 * so many are kept, and the newest map of each layer is written again into each new part, so that
 * every part can be read alone.
 *
 * A full disk is a state, not an end: the lane is *held*. Nothing is written or read from the rings
 * then, they fill up, and their producers drop whole steps and note them down; once there is room the
 * lane goes on with a new part. A part in which a write failed is cut back to its last whole chunk.
 *
 * Internal to the tracer; recorder.c is the only user.
 */
#ifndef BL_TRACER_RECORDER_LANE_H
#define BL_TRACER_RECORDER_LANE_H

#include "core/placement.h"
#include "tracer/blt.h"
#include "tracer/recorder.h"

typedef struct bl_lane {
    const bl_recorder_options *options; /* borrowed */
    bl_trace_info info;                 /* owned */
    int rank;                           /* of a lane in parts */
    bool in_parts;
    char path[1024];       /* of the file being written */
    bl_blt_writer *writer; /* NULL: not open, or held */
    uint64_t safe_bytes;   /* length up to which the file is good */
    double opened_s, committed_s, retry_s;
    bool held;
    bool has_records;         /* in the part being written */
    char why[256];            /* what the disk said when it was held last */
    bl_layer_placement *maps; /* [info.n_layers] newest of each layer; begin NULL: none; owned */
    int64_t last_run;         /* highest run so far, an earlier recording's included; -1: none */
    uint32_t *runs;           /* [n_runs] that rings were recorded under; owned */
    size_t n_runs, runs_capacity;
    uint64_t n_parts, bytes; /* closed parts, and their bytes */
    uint64_t n_removed;      /* parts that somebody removed while they were written */
} bl_lane;

/* `info` is taken over whatever the result. */
bl_status bl_lane_create(const bl_recorder_options *options, bl_trace_info *info, bool in_parts,
                         bl_lane *out, bl_error *err);
void bl_lane_free(bl_lane *lane); /* an open file stays, cut after its last chunk */

/* The run to record a ring under: what its engine says, unless another life of the engine has it
 * already or it says nothing (0); then the next free one. */
bl_status bl_lane_give_run(bl_lane *lane, uint32_t told, uint32_t *run, bl_error *err);

/* Open the file if none is open. A held lane tries again when its time has come; BL_OK with
 * lane->held when it cannot yet. */
bl_status bl_lane_open(bl_lane *lane, double now_s, bl_error *err);

/* Write what is buffered as a chunk. BL_OK, or BL_ERR_IO after which the lane is held (in parts) or
 * broken. */
bl_status bl_lane_flush(bl_lane *lane, double now_s, bl_error *err);

/* Is there room on the disk for more? False holds the lane, its part closed. */
bool bl_lane_has_room(bl_lane *lane, double now_s);

/* An engine was restarted: its maps begin anew, and so does its part. */
bl_status bl_lane_restart(bl_lane *lane, bl_error *err);

/* Close the part if it is large or old enough. */
bl_status bl_lane_rotate(bl_lane *lane, double now_s, bl_error *err);
bl_status bl_lane_close(bl_lane *lane, bl_error *err);

/* Remember and write a map. */
bl_status bl_lane_write_map(bl_lane *lane, const bl_layer_placement *map, bl_error *err);

/* Trace files in a directory? Is its path short enough to name files in it? */
bool bl_lane_has_files(const char *directory);
/* Is what was recorded there of the same model? A directory is one trace. */
bl_status bl_lane_check_earlier(const char *directory, const bl_trace_info *info, bl_error *err);
bool bl_lane_can_name(const char *directory);

/* Was the chunk written that a consumer began to write at `from` of `file` when it died? */
bool bl_lane_was_written(const char *file, uint64_t from);

#endif
