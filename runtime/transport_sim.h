/*
 * transport_sim.h: a cluster in one process, with a clock, a network and misfortunes of its own.
 *
 * Ranks are threads, of which one runs at a time: it has the baton until it sleeps in a transport call,
 * closes, or is made to pass it on. Who is next, when a message arrives and what befalls it is drawn
 * from the seed, and time passes only while all sleep, straight to the next thing that happens:
 *
 *     time    0 ........ 12 us ........ 27 us .............. 60 s
 *             all sleep  message 0->1   message 0->2 (again)  rank 3's deadline
 *                        rank 1 runs    rank 2 runs           rank 3 runs: BL_ERR_TIMEOUT
 *
 * So a run with the same seed and the same ranks happens in the same way, message by message, and a
 * minute of waiting takes no time. bl_transport_now_s() is that clock, from 0; computing takes none of
 * it, every call of the transport a tenth of a microsecond.
 *
 * The network delays each message, by chance; may lose one, which is sent again; may double one. The
 * interface of a transport holds all the same: in order, exactly once. What shows are faults:
 *
 *     BL_SIM_KILL       from at_s on all calls of the rank fail (BL_ERR_ABORTED); the others see it lost
 *     BL_SIM_STOP       it does not run from at_s to until_s; silent to the others after silence_s
 *     BL_SIM_PARTITION  nothing passes between `ranks` and the others meanwhile; after silence_s each
 *                       side has lost the other, for good
 *
 * Every rank must be a thread that makes its calls, or closes, without waiting for others by other
 * means: nothing happens before all have made a first call.
 */
#ifndef BL_RUNTIME_TRANSPORT_SIM_H
#define BL_RUNTIME_TRANSPORT_SIM_H

#include "runtime/transport.h"

#define BL_SIM_MAX_RANKS 64

typedef enum bl_sim_fault_kind { BL_SIM_KILL, BL_SIM_STOP, BL_SIM_PARTITION } bl_sim_fault_kind;

typedef struct bl_sim_fault {
    bl_sim_fault_kind kind;
    double at_s, until_s; /* until_s: of STOP and PARTITION */
    uint64_t ranks;       /* bit r: rank r */
} bl_sim_fault;

typedef struct bl_sim_options {
    uint64_t seed;
    double latency_s, jitter_s; /* a message takes latency_s and up to jitter_s more ... */
    double bytes_per_s;         /* ... and this for its bytes */
    double lose, again; /* chances in [0, 1) of being lost and sent anew, and of coming twice */
    double silence_s;   /* after which an unheard rank is lost */
    const bl_sim_fault *faults; /* borrowed for the call */
    int n_faults;
} bl_sim_options;

#define BL_SIM_OPTIONS_INIT \
    ((bl_sim_options){0, 10e-6, 20e-6, 10e9, 0.05, 0.05, BL_TRANSPORT_SILENCE_S, NULL, 0})

/* handles[0 .. n_ranks-1], each closed on its own by its thread. */
bl_status bl_transport_sim_open(int n_ranks, const bl_sim_options *options, bl_transport **handles,
                                bl_error *err);

/* The rank of this handle comes back, as a new incarnation, after a death or after it has stopped for good:
 * called by its thread, which holds nothing else of its former life any more. Sleeps for `pause_s`; then
 * the others have lost the former one for certain, and hear the new one knock. */
void bl_transport_sim_come_back(bl_transport *transport, double pause_s);

/* A number for all that has happened on the cluster so far: deliveries, faults, turns, each with its
 * time. Runs that are the same have the same. */
uint64_t bl_transport_sim_history(const bl_transport *transport);

#endif
