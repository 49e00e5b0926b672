/*
 * journal.h: what was decided about a cluster's placement, and by whom.
 *
 * While ranks live, their tables are the truth and nobody reads the journal. It is for two others:
 * the operator who asks who moved what, and the run that starts after all ranks have died and wants
 * to go on from where they were. So it records decisions, not copies:
 *
 *     begin   a move starts: who asked, from which address, what it was to do, the schedule's hash
 *     wave    a wave was committed: layer, epoch and the slots that serve from then on
 *     end     the move is over: moved, or aborted and why
 *     loss    a rank was lost; return: one came back
 *
 * The file is text, one record per line, only ever appended to:
 *
 *     xxh3-64 of the rest, 16 hex digits, a space, one JSON object, a newline
 *     5f0c...91 {"what":"begin","move":3,"time":1767225600.25,"uid":1000,"pid":4711,...}
 *
 * Records are written and brought to the disk (fsync) by a thread, so that no step waits for a
 * disk. A move that wants to start asks whether its `begin` is durable and starts when it is; a
 * disk that is full or gone therefore starts no new move, and stops none that is under way. What
 * was torn off by a crash, the last line, is cut when the journal is opened; damage anywhere else
 * is an error that names the line.
 *
 * One journal belongs to one run at a time (a lock on the file says so).
 */
#ifndef BL_REBALANCER_JOURNAL_H
#define BL_REBALANCER_JOURNAL_H

#include "core/json.h"
#include "core/placement.h"

typedef struct bl_journal bl_journal;

/* What a journal says when it is opened. */
typedef struct bl_journal_past {
    uint64_t n_records;
    size_t torn_bytes; /* cut at its end */
    uint64_t move;     /* of the last begin; 0: none */
    bool ended;        /* that move has an end */
    uint64_t n_waves;  /* committed, over all moves */
} bl_journal_past;

/* Open for appending; made when it does not exist (mode 0600). `placement`, if not NULL, is brought
 * to where the journal left it: each layer gets the slots of its last committed wave. Layers, ranks
 * and slots must be the journal's (BL_ERR_SHAPE), unless it is empty. BL_ERR_STATE: in use. */
bl_status bl_journal_open(const char *path, bl_placement *placement, bl_journal_past *past,
                          bl_journal **out, bl_error *err);
/* The same for a run that starts: the one before it may be dying, and is waited for (core/io.h). */
bl_status bl_journal_succeed(const char *path, bl_placement *placement, bl_journal_past *past,
                             bl_journal **out, bl_error *err);
/* Waits for what is queued. NULL is fine. */
void bl_journal_close(bl_journal *journal);

/* Queue a record (the reference is taken over; "time" is added). Returns its number, from 1; 0 when
 * out of memory. Never waits. */
uint64_t bl_journal_append(bl_journal *journal, json_t *record);

/* BL_OK: record `number` and all before it are on the disk. BL_LIMIT: not yet. Else why it could
 * not be written; later records are tried again. */
bl_status bl_journal_check(bl_journal *journal, uint64_t number, bl_error *err);

/* Call `take` with every record of a journal, in order. A torn last line is no error and counted in
 * *torn_bytes. */
typedef bl_status bl_journal_take_fn(void *user, const json_t *record, bl_error *err);
bl_status bl_journal_read(const char *path, bl_journal_take_fn *take, void *user,
                          size_t *torn_bytes, bl_error *err);

#endif
