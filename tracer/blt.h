/*
 * blt.h: the trace file, .blt.
 *
 * A header, then chunks, then an index. Every number is little-endian.
 *
 *     file     = header  chunk...  index  footer
 *
 *     header     0   8  magic: 89 'B' 'L' 'T' 0d 0a 1a 0a   (shows files damaged as text)
 *                8   4  version: 2 (1 is read, too)
 *               12   4  n, bytes of the model block
 *               16   n  model block, JSON: {"model":{"name","layers":[ids],"experts","top_k"},
 *                       "source":"...","ranks":G,"present":[ranks recorded here]} and, where told,
 *                       "part":N of a recording in several files, "domain":node of the ranks
 *             16+n   8  xxh3 of everything before
 *
 *     chunk      0   4  kind: "RECS" records, "MAPS" maps of slots to experts, "INDX" the index
 *                4   4  flags: bit 0, the last record's step goes on in the next chunk
 *                8   8  bytes stored behind this frame
 *               16   8  bytes before compression, at most 32 MiB
 *               24   4  items: records, maps or entries
 *               28   4  number of this chunk, from 0
 *               32  16  lowest and highest step in it
 *               48   8  xxh3 of the stored bytes
 *               56   8  xxh3 of bytes 0..55 of this frame
 *               64      the stored bytes: one zstd frame
 *
 *     RECS       R records, column by column:
 *                run u32, step u64, layer i32, rank i32, phase u8, flags u16, id width u8, k u16,
 *                epoch u64, id space n u32, tokens u64, empty slots u64, dropped u64;
 *                then the bodies, each for all records in turn:
 *                bitmaps of empty slots (bit j: row-major slot j is empty; only where there are
 *                some); lowest bytes of the ids that are not empty; their other bytes (none when
 *                n <= 256, 1 when n <= 65536, else 3); weights (2 bytes a slot, binary16); stage
 *                times (six u64); counts (n u64).
 *                Both parts of the ids go by layer first, records second. With flag bit 12 a row
 *                is its first id and the gaps between the others, less one each; bit 3 then says
 *                that rows are sets, their order not the router's
 *     MAPS       layer i32, epoch u64, ranks u32, experts u32, first slot of each rank and the end
 *                u32, expert of each slot i32 (-1: empty); before the first record that needs it
 *     INDX       for each chunk: offset u64, kind u32, items u32, lowest and highest step u64;
 *                then u64 records and u64 dropped, those lost after the last record included
 *     footer     0   8  offset of the INDX frame
 *                8   8  "\nBLTEND\n"
 *
 * Why ids go by layer: each layer has favourites of its own, and a zstd block codes bytes by how
 * often they occur in it. Blocks end where a layer's ids end, so each layer gets its own code; mixed
 * together all experts would seem alike and cost 8 bits. The upper bytes of ids apart, for the same
 * reason. A set of k is cheaper than a sequence by log2 k! bits at best (15.3 for k = 8).
 *
 * Version 1 had ids in one piece (width 1, 2 or 4), by record, and no sets.
 *
 * No id is reserved: with 256 experts, 255 is an expert, and empty slots are in the bitmap.
 *
 * Chunks are self-contained, about 1 MiB before compression, and end where a step ends unless the
 * step is larger than 8 MiB. So memory is bounded by one chunk whatever the file's size, chunks are
 * skipped without reading them, and a file whose writer died is good up to its last whole chunk:
 * the reader cuts there, checks what it keeps, and says so (bl_blt_cut()). Damage in a file that
 * was closed properly is an error that names the byte; no damage ever gives other counts quietly.
 */
#ifndef BL_TRACER_BLT_H
#define BL_TRACER_BLT_H

#include "core/hash.h"
#include "core/placement.h"
#include "tracer/trace.h"

#include <stdio.h>

/* ---- writing ------------------------------------------------------------------------------- */

typedef struct bl_blt_writer bl_blt_writer;

/* `live`: write under the final name at once, chunk by chunk, so that a crash leaves a file that is
 * cut and not lost; otherwise the file appears whole on close (core/io.h). `info` is copied. */
bl_status bl_blt_create(const char *path, const bl_trace_info *info, bool live,
                        bl_blt_writer **writer_p, bl_error *err);

/* Append a record (copied). Ids must be in [-1, n_ids) and distinct within a row, logical ids below
 * the model's experts, the layer one of info->layers: BL_ERR_RANGE names layer and id, and the
 * writer goes on as if the call had not been made. Rows of k > 1 equal ids become empty rows. A
 * record with too many rows for a chunk is split. n_empty is taken from the record for counts only.
 */
bl_status bl_blt_write(bl_blt_writer *writer, const bl_record *record, bl_error *err);

/* Append the map of a layer and epoch (copied); physical records of that epoch may follow. */
bl_status bl_blt_write_map(bl_blt_writer *writer, const bl_layer_placement *map, bl_error *err);

/* Store rows as sets from now on: ids ascending, weights along; about a fifth smaller. For traces of
 * which nobody will ask what a router chose first. */
void bl_blt_as_sets(bl_blt_writer *writer, bool sets);

/* Count records that were lost and have no record behind them to carry the number. */
void bl_blt_add_dropped(bl_blt_writer *writer, uint64_t n);

/* Write what is buffered as a chunk; for live files, hand it to the operating system. Call it
 * between steps only. */
bl_status bl_blt_flush(bl_blt_writer *writer, bl_error *err);

/* Bytes given to the file so far (a stream may still hold some), and bytes of records that wait for
 * the next chunk, uncompressed. */
uint64_t bl_blt_bytes(const bl_blt_writer *writer);
size_t bl_blt_buffered(const bl_blt_writer *writer);

/* The file has no name any more: somebody removed it, and what is written vanishes with us. */
bool bl_blt_is_removed(const bl_blt_writer *writer);

/* Make what was flushed survive a loss of power. */
bl_status bl_blt_sync(bl_blt_writer *writer, bl_error *err);

/* Flush, write the index, close. The writer is freed whatever the result. */
bl_status bl_blt_close(bl_blt_writer *writer, bl_error *err);
/* Give up: a file that is not live vanishes. NULL is fine. */
void bl_blt_abandon(bl_blt_writer *writer);

/* ---- reading ------------------------------------------------------------------------------- */

typedef struct bl_blt_reader bl_blt_reader;

/* Opens, checks the header, and walks over all frames (not their content). */
bl_status bl_blt_open(const char *path, bl_blt_reader **reader_p, bl_error *err);
/* The same on a stream that can seek; `name` is used in messages. The stream is closed with the
 * reader, also when opening fails. */
bl_status bl_blt_open_stream(FILE *in, const char *name, bl_blt_reader **reader_p, bl_error *err);
void bl_blt_reader_free(bl_blt_reader *reader); /* NULL is fine */

/* Close the file until it is read again, under the name it was opened by: who has many files open at
 * once would run out of descriptors. */
void bl_blt_park(bl_blt_reader *reader);

const bl_trace_info *bl_blt_info(const bl_blt_reader *reader); /* borrowed */

/* The file had no proper end. *kept and *size (bytes) say where it was cut; *mid_step, that the
 * last step that was kept may lack records. */
bool bl_blt_cut(const bl_blt_reader *reader, uint64_t *kept, uint64_t *size, bool *mid_step);

/* Records lost before they reached the file, as its index says; for a cut file 0 (sum the
 * records'). */
uint64_t bl_blt_dropped(const bl_blt_reader *reader);

/* Size of all chunks before compression: about what a pass over the file has to look at. */
uint64_t bl_blt_raw_bytes(const bl_blt_reader *reader);

/* Over header and all chunks that were kept. */
bl_digest bl_blt_digest(const bl_blt_reader *reader);

/* This file is the next part of one recording: maps that it lacks are looked for in the part before,
 * as far as that has been read. `before` must outlive the reader's use. */
void bl_blt_continues(bl_blt_reader *reader, const bl_blt_reader *before);

/* The next record; *got false at the end. Its arrays belong to the reader and hold until the next
 * call. Physical ids are given as they are stored. */
bl_status bl_blt_next(bl_blt_reader *reader, bl_record *record, bool *got, bl_error *err);

/* Without bodies: ids, counts, weights and stage_ns are NULL. For passes that only need keys. */
void bl_blt_skip_bodies(bl_blt_reader *reader, bool skip);
/* Skip chunks without a step in [first, end), unread; other steps may still appear. */
void bl_blt_only_steps(bl_blt_reader *reader, uint64_t first, uint64_t end);
/* Give the memory of the current chunk back, for a file that is not read for a while; the last
 * record's arrays are gone, too. */
void bl_blt_release(bl_blt_reader *reader);
/* Back to the first record. */
void bl_blt_rewind(bl_blt_reader *reader);

/* The map under which a physical record of the last bl_blt_next() was made, or NULL when the file
 * holds none; borrowed until the next call. */
const bl_layer_placement *bl_blt_map(const bl_blt_reader *reader, const bl_record *record);

/* Turn a physical record of the last bl_blt_next() into a logical one, through its own epoch's map.
 * BL_ERR_STATE when it is logical already, or when the file holds no such map (the 64 latest epochs
 * of each layer are kept); BL_ERR_RANGE when a slot is used that holds no expert. */
bl_status bl_blt_to_logical(bl_blt_reader *reader, bl_record *record, bl_error *err);

#endif
