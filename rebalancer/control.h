/*
 * control.h: how an operator speaks to a running cluster.
 *
 * The rank that leads opens a Unix socket (mode 0600: whoever may open it may move experts).
 * Requests and answers are JSON objects, one per line, any number per connection:
 *
 *     {"op":"apply","plan":{...}}              start moving to a plan (the plan file's object)
 *     {"op":"apply","plan":{...},"dry_run":true}   what that would take; nothing starts
 *     {"op":"status"}
 *     {"op":"status","wait":true}     answered when no move is under way, or after 0.2 s
 *     {"op":"abort"}
 *     {"op":"look"}                   what runs here and how its load lies, for planning
 *     {"op":"drain"}                  start no more moves; answered when none is under way
 *     {"op":"drain","release":true}   moves may start again
 *     {"op":"join","rank":R}          for a process that is to come back as a lost rank
 *
 *     {"ok":true, ...}      {"ok":false,"error":{"code","message","layer"?,"expert"?}}
 *
 *     apply   moves, bytes, layers, waves: of the way to the plan; steps: needed at least by the
 *             byte budget; move: the number of this migration, 0 when nothing had to be moved;
 *             with dry_run also schedule: [{"layer","moves":[[expert, from, to], ...]}, ...]
 *             The request may hold "predicted":{"before","after"}, imbalances that whoever asks
 *             expects: status shows them beside the realised one
 *     status  see bl_control_answer()
 *     look    see rebalancer/control_look.c; {"placement":true} adds the map, {"window":N,"wait":true}
 *             waits (up to 0.2 s) for a window of load later than number N
 *     drain   layers: the map in force; for whoever reloads weights
 *     join    directory: where the ranks are (runtime/transport.h), living: who they are; refused for a
 *             rank that lives
 *
 * When the cluster ends, every client is sent a last status with "ended":true, so that whoever waits
 * for a move learns how it went.
 *
 * bl_control_poll() is called once per step and never waits: it takes what has arrived, a little per
 * client, answers complete lines and keeps what a slow reader has not taken. Only the reading of a
 * long request (a plan) happens beside it, in a thread that lives as long as that takes. A client
 * that sends no end of a line, too much, or nothing for a while is dropped. Nothing a client does
 * ends in an error of the rank.
 *
 * With a journal (rebalancer/journal.h) a move starts when the record of its begin is on the disk,
 * and not at all when that cannot be written. Who asked is known from the socket (the peer's user
 * and process) and recorded.
 *
 * A plan is refused when it is not for this model (experts, top-k, layers), these ranks and slots,
 * or the rule by which the engine shares copies; and when it is *stale*: a plan that was made from a
 * placement in force (`plan --current`) carries that placement's epoch plus one, and is accepted
 * only while that placement is still the one in force. A plan made from nothing has epoch 0 and is
 * never stale. A plan that is in force already is 0 moves, whatever its epoch.
 */
#ifndef BL_REBALANCER_CONTROL_H
#define BL_REBALANCER_CONTROL_H

#include "core/json.h"
#include "rebalancer/agent.h"
#include "rebalancer/journal.h"
#include "rebalancer/meter.h"

#define BL_CONTROL_MAX_REQUEST ((size_t)8 << 20)

/* What runs here, for checking plans; text is copied. */
typedef struct bl_control_cluster {
    int n_experts, top_k, n_ranks;
    const char *rule;    /* how the engine shares copies: "even" */
    uint64_t plan_epoch; /* of the plan it was started with; 0: none */
    /* Optional, borrowed: */
    const bl_meter *meter;
    json_t *model;          /* a model.json, for whoever plans */
    json_t *started;        /* how the ranks were started, for one that comes back */
    const int *host, *node; /* [n_ranks] where ranks are; both NULL: not known */
    bl_journal *journal;
    bool
        starts; /* whoever serves the path may be dying, and is waited for (core/io.h); who takes over in
                    the middle of serving must not wait */
    int64_t
        replaces_pid; /* a server at the path that is this process was lost, and stands still there;
                             0: none */
} bl_control_cluster;

typedef struct bl_control bl_control;

/* Open the socket. A file left behind by a dead server is replaced; a living server, or a file that
 * is no socket, is BL_ERR_STATE. */
bl_status bl_control_open(const char *path, const bl_control_cluster *cluster, bl_control **out,
                          bl_error *err);
/* Ranks were lost and recovered from: for the journal. lost[n_ranks]. */
void bl_control_note_loss(bl_control *control, const bool *lost, int n_orphans);
/* A rank has come back: likewise. */
void bl_control_note_return(bl_control *control, int rank);
/* Why no move may start for now, besides what operators want; static text, NULL: moves may start. */
void bl_control_hold(bl_control *control, const char *why);
/* Look at the clients; does not wait. */
void bl_control_poll(bl_control *control, bl_agent *agent);
/* Sends the last status, closes all connections and removes the socket. NULL is fine; the agent may
 * be NULL when it never came to life. */
void bl_control_close(bl_control *control, bl_agent *agent);

/* Remove the socket that a server left at `path` when it was killed; anything else stays. */
void bl_control_sweep(const char *path);

/* Where the socket is served from, told to all other living ranks: a rank that was stopped and is lost
 * still holds it, and whoever leads then has to know whom it replaces (replaces_pid). */
void bl_control_announce(bl_agent *agent, int rank, int n_ranks);
/* Whether what an agent was told is such a word; then *pid serves. */
bool bl_control_hear_server(const void *data, size_t bytes, int64_t *pid);

/* Where program and server meet when nobody names a socket: $BALLAST_SOCKET, else ballast.sock in
 * $XDG_RUNTIME_DIR, else /tmp/ballast-<uid>.sock. */
void bl_control_default_path(char *out, size_t bytes);

/* ---- parts, for the server and its tests ----------------------------------------------------- */

typedef enum bl_control_op {
    BL_CONTROL_APPLY,
    BL_CONTROL_STATUS,
    BL_CONTROL_ABORT,
    BL_CONTROL_LOOK,
    BL_CONTROL_DRAIN,
    BL_CONTROL_JOIN
} bl_control_op;

/* Who asks; -1: not known. */
typedef struct bl_control_who {
    int64_t uid, pid;
} bl_control_who;

typedef struct bl_control_request {
    bl_control_op op;
    bool wait;          /* status, look */
    bool placement;     /* look */
    uint64_t window;    /* look: later than this one */
    bool release;       /* drain */
    int rank;           /* join */
    bl_control_who who; /* set by the server */
    /* apply */
    bool dry_run;
    int n_experts, top_k;
    char rule[32];
    uint64_t epoch;
    bl_placement goal;        /* owned; obeys the hard rules */
    double before, predicted; /* imbalance; 0: not told */
    uint64_t recorded;        /* number of its record in the journal; 0: none yet */
} bl_control_request;

/* One request, without its newline. Free with bl_control_request_free(). */
bl_status bl_control_parse(const char *line, size_t bytes, bl_control_request *out, bl_error *err);
void bl_control_request_free(bl_control_request *request); /* safe on a zeroed struct */

/* Which plan is in force, as far as control knows. */
typedef struct bl_control_epochs {
    uint64_t in_force, coming; /* coming: of the plan being moved to */
    bool moving;
    int waves_recorded;
    double before, predicted; /* imbalance around the last move; 0: not told */
    bl_control_who by;        /* who asked for it */
    bool drained;             /* no move starts */
    bl_control_who drained_by;
    const char *held; /* why the ranks themselves start none; NULL: they do */
} bl_control_epochs;

/* Answer a request; a new reference, or NULL while a request that waits has to (may_wait). Status:
 *   state    stable, agreed, copying, verified, committed, halted
 *   outcome  none, running, moved or aborted: of the move under way, or of the last one
 *   reason   why it was aborted; null otherwise
 *   partial  "20/58" when it was aborted after some layers; null otherwise
 *   move     number of that migration; layer: being moved, null when none is
 *   layers_done, layers, waves_done, waves, moves_done, moves, bytes_done, bytes
 *   epoch    of the plan in force; step: last begun
 *   by       who asked for that move: {"uid","pid"}
 *   elapsed_s, rate (bytes per second), eta_s (null when not moving), longest_step_us: of that move
 *   imbalance  {"before","now","predicted"}: max/mean of rows over ranks; null when not known
 *   drained  no moves start; living: ranks that serve, lost: ranks that were lost
 *   rank     who answers: number; and what it has measured: sent_bytes, received_bytes, max_step_bytes,
 *            max_step_us (longest bl_agent_at_step), holds, max_hold_us, stray */
json_t *bl_control_answer(bl_control_request *request, bool may_wait,
                          const bl_control_cluster *cluster, bl_control_epochs *epochs,
                          bl_agent *agent);
/* Once per step: what has happened to the move since, for the journal. */
void bl_control_settle(const bl_control_cluster *cluster, bl_control_epochs *epochs,
                       const bl_agent *agent);
/* The answer to a request that could not be read. */
json_t *bl_control_refusal(const bl_error *err);

/* ---- the operator's side --------------------------------------------------------------------- */

typedef struct bl_control_client {
    int fd;
    char path[108];
} bl_control_client;

bl_status bl_control_connect(const char *path, bl_control_client *out, bl_error *err);
/* Send a request and wait up to `deadline_s` for its answer. An answer that is not ok is returned as
 * the error it carries; otherwise *answer_p is a new reference. When the cluster ends meanwhile, its
 * last status answers a request for the status, and any other request is BL_ERR_PEER. */
bl_status bl_control_ask(bl_control_client *client, const json_t *request, double deadline_s,
                         json_t **answer_p, bl_error *err);
void bl_control_disconnect(bl_control_client *client);

#endif
