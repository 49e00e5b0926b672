/*
 * stream.h: a trace as its readers want it: one sequence of records with logical ids.
 *
 * A path is a .blt file or a directory of them (each host records the ranks it has, each rank in a
 * file or in numbered parts); a directory is one trace. Physical ids are turned into experts through
 * their own epoch's map. What is wrong but can be lived with is said in the notes: a file cut at its
 * last whole chunk, ranks and parts that are missing ("incomplete: rank 2"), records that were
 * dropped. A step of which a cut file kept only a part is left out.
 */
#ifndef BL_TRACER_STREAM_H
#define BL_TRACER_STREAM_H

#include "core/hash.h"
#include "core/placement.h"
#include "tracer/trace.h"

typedef struct bl_stream bl_stream;

/* The files of a directory must be of one model (BL_ERR_MODEL) and hold different ranks or different
 * parts of a rank (BL_ERR_STATE). A part that is missing between others makes it incomplete; an
 * unclosed part does when nothing follows it. */
bl_status bl_stream_open(const char *path, bl_stream **stream_p, bl_error *err);
void bl_stream_free(bl_stream *stream); /* NULL is fine */

const bl_trace_info *bl_stream_info(const bl_stream *stream); /* ranks of all files together */
const char *bl_stream_notes(const bl_stream *stream);         /* "" when there is nothing to say */
bool bl_stream_is_complete(const bl_stream *stream);          /* no cut file, no missing rank */
bl_digest bl_stream_digest(const bl_stream *stream);

/* The next record, its ids logical; its arrays hold until the next call. Of several files the one
 * whose next record has the lowest (run, step) goes first, so that what belongs to a step comes
 * together; within a file, steps ascend for each rank, not over ranks. */
bl_status bl_stream_next(bl_stream *stream, bl_record *record, bool *got, bl_error *err);

/* Give physical records as they are stored. bl_stream_map() then tells their map (NULL when the
 * trace holds none), and bl_stream_to_logical() turns them into logical ones. */
void bl_stream_keep_slots(bl_stream *stream, bool keep);
const bl_layer_placement *bl_stream_map(const bl_stream *stream, const bl_record *record);
bl_status bl_stream_to_logical(bl_stream *stream, bl_record *record, bl_error *err);

/* As for bl_blt_reader, for all files. */
void bl_stream_skip_bodies(bl_stream *stream, bool skip);
void bl_stream_only_steps(bl_stream *stream, uint64_t first, uint64_t end);
void bl_stream_rewind(bl_stream *stream);
uint64_t bl_stream_raw_bytes(const bl_stream *stream);

/* Records lost before they reached a file. For a cut file, the losses its records carry: complete
 * once the stream has been read to its end. */
uint64_t bl_stream_dropped(const bl_stream *stream);

#endif
