/*
 * launch.h: one process per rank, from one program.
 *
 * bl_launch_ranks() forks the ranks of a run on this host and stays behind as their launcher:
 *
 *                    +-- rank 0 --- seat: rank, meeting point, results  --+
 *     launcher ------+-- rank 1                                           +--> results per rank
 *     (waits)        +-- ...                                              |
 *                    +-- rank n-1 ----------------------------------------+
 *
 * The launcher opens the meeting point before it forks, so that ranks find each other without a
 * port being chosen or raced for: bl_seat_ucx_options() turns a seat into what
 * bl_transport_ucx_open() wants. Standard output and error are inherited unchanged, without
 * prefixes: by convention rank 0 alone writes data, and errors do not print at all but travel to
 * the launcher, which reports one. Standard input is empty in the ranks. What a rank computes goes
 * to the launcher through bl_seat_put(), in any number of pieces.
 *
 * When a rank fails or dies, the others get `grace_s` seconds to notice and end, then SIGTERM, then
 * SIGKILL. The launcher's error is the cause and not its echo: a rank that died of a signal, else
 * the first that failed with anything but BL_ERR_PEER, else the first of those. No rank outlives
 * its launcher (the kernel kills it then), and none is left unreaped. SIGINT, SIGTERM and SIGHUP
 * sent to the launcher are passed on to every rank; each rank is a process group of its own, so
 * that a Ctrl-C at the terminal reaches it once.
 *
 * Call it from the main thread while no other thread runs, before anything that does not survive a
 * fork (UCX, GLPK) was started.
 */
#ifndef BL_RUNTIME_LAUNCH_H
#define BL_RUNTIME_LAUNCH_H

#include "runtime/transport.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BL_LAUNCH_MAX_RANKS 256

/* What a rank process is given. */
typedef struct bl_seat {
    int rank, n_ranks;
    int rendezvous_fd;   /* listening socket in rank 0, else -1 */
    char rendezvous[64]; /* "127.0.0.1:port" */
    uint64_t job;        /* random, the same in all ranks of this launch */
    int launcher_fd;     /* private: where bl_seat_put() writes */
} bl_seat;

/* The body of a rank. Its status and error travel to the launcher. It runs in a process of its own:
 * what it changes in memory the launcher does not see, and it ends with _exit(), after stdio was
 * flushed. */
typedef bl_status bl_rank_fn(const bl_seat *seat, void *user, bl_error *err);

/* Add bytes to this rank's result. */
bl_status bl_seat_put(const bl_seat *seat, const void *data, size_t bytes, bl_error *err);

/* Options for bl_transport_ucx_open(); `rendezvous` points into the seat. */
bl_ucx_options bl_seat_ucx_options(const bl_seat *seat, double deadline_s);

/* How one rank ended. */
typedef struct bl_rank_end {
    unsigned char *result; /* all it put, in order; freed by bl_rank_ends_free() */
    size_t result_bytes;
    bl_status status; /* what the body returned; BL_ERR_PEER when it died before that */
    int exit_code;    /* -1 when a signal ended it */
    int signal;       /* 0 when it exited */
    bool ended_by_us; /* it was still running when the grace period was over */
} bl_rank_end;

typedef struct bl_launch_options {
    double grace_s;          /* between a first failure and SIGTERM, and from there to SIGKILL */
    size_t max_result_bytes; /* per rank; more is an error of that rank */
    /* A failure ends no other rank: for ranks that survive losses. When the first of them is done,
     * those that still run have grace_s: a rank that was given up as lost may stand still. */
    bool others_go_on;
    /* Optional: called in the launcher once all ranks have been forked, e.g. to tell their pids. */
    void (*started)(const int *pids, int n_ranks, void *user);
} bl_launch_options;

#define BL_LAUNCH_OPTIONS_INIT ((bl_launch_options){2.0, (size_t)1 << 30, false, NULL})

/* Run fn on n_ranks processes and wait for all of them. ends[n_ranks] is filled whatever happens,
 * also when the run failed: BL_OK when every rank returned a status >= 0, else the cause.
 * Interrupted by a signal to the launcher, with ranks that did not end well: BL_ERR_ABORTED. */
bl_status bl_launch_ranks(int n_ranks, bl_rank_fn *fn, void *user, const bl_launch_options *options,
                          bl_rank_end *ends, bl_error *err);

void bl_rank_ends_free(bl_rank_end *ends, int n_ranks);

#endif
