/*
 * calibrate.h: the constants of the cost model, out of stage times that ranks have measured.
 *
 * A topology says what bytes and FLOP cost by datasheet or by a probe; an engine has kernels,
 * launches and copies of its own. What its ranks measured, layer by layer and step by step, says
 * what they really cost. One *sample* is one layer of one step:
 *
 *     of each rank   rows it multiplied, experts that had any, seconds of its grouped GEMM
 *     of all         seconds of dispatch and combine
 *
 *     experts of a rank  =  row      x rows              6 x hidden x intermediate / FLOP rate
 *                         + active   x experts in use    expert bytes / memory bandwidth
 *                         + layer                        the same under every placement
 *     exchanges          =  latency                      of both, messages included
 *                         + wire     x what the topology takes for the bytes of the busiest ports
 *
 * A rank that arrives first at an exchange waits for the others, and its time tells what *they* did.
 * The last one waits for nobody. So each exchange takes what it takes the rank that needs least.
 *
 * Terms are fitted by core/fit.h in the order above, each kind of device for itself. What the samples
 * do not tell is left as the topology has it, and named: decoding a batch that never changes cannot
 * tell latency from bytes. What is fitted is tried on samples that it has not seen.
 *
 * Where the constants go. Rates that `measured` figures of a topology hold: the FLOP rate of the
 * model's weight format, the memory's bandwidth (a device then reads apart, topology.h), the
 * bandwidths of all levels that the ranks use divided by `wire`, and their latencies scaled so that
 * both exchanges take `latency`. Rates, because another model has other experts; they are the rates of
 * this engine on these devices, and better constants for other models than a datasheet's, no more.
 */
#ifndef BL_PLANNER_CALIBRATE_H
#define BL_PLANNER_CALIBRATE_H

#include "core/fit.h"
#include "planner/cost.h"

enum { BL_TERM_ROW, BL_TERM_ACTIVE, BL_TERM_LAYER, BL_N_EXPERT_TERMS };
enum { BL_TERM_LATENCY, BL_TERM_WIRE, BL_N_EXCHANGE_TERMS };
extern const char *const bl_expert_term_names[], *const bl_exchange_term_names[];

typedef struct bl_samples {
    const bl_cost *cost; /* of the topology that is calibrated; borrowed */
    int n_ranks;
    size_t n;
    uint64_t *step;                  /* [n] of which step, ascending */
    double *rows, *active, *seconds; /* [n][n_ranks] */
    double *exchange_s, *wire_s;     /* [n] */
    size_t capacities[6];
} bl_samples;

/* What one rank measured of a layer. */
typedef struct bl_rank_times {
    double rows, active;
    double dispatch_s, experts_s, combine_s;
} bl_rank_times;

void bl_samples_init(const bl_cost *cost, int n_ranks, bl_samples *out);
/* ranks[n_ranks]. A layer without rows is no sample. */
bl_status bl_samples_add(bl_samples *samples, uint64_t step, const bl_rank_times *ranks,
                         bl_error *err);
void bl_samples_free(bl_samples *samples); /* safe on a zeroed struct */

typedef struct bl_calibration {
    int n_devices;
    bl_fit *experts; /* [n_devices]; n 0: no rank has that device; owned */
    bl_fit exchange;
    size_t n_fitted; /* samples */
    uint64_t from;   /* the first step that was held out */
    /* held out: a layer's slowest experts and its exchanges; each of the two; and whole steps */
    bl_fit_errors layer, expert_errors, exchange_errors, step;
} bl_calibration;

/* Fit on the first half of the steps, try on the second. BL_ERR_RANGE when there are too few. */
bl_status bl_calibrate(const bl_samples *samples, const bl_topology *topology, bl_calibration *out,
                       bl_error *err);
void bl_calibration_free(bl_calibration *calibration); /* safe on a zeroed struct */

/* Seconds of a rank's experts; and of a layer: exchanges and the slowest rank's experts. */
double bl_calibration_experts_s(const bl_calibration *calibration, int device, double rows,
                                double active);
double bl_calibration_layer_s(const bl_calibration *calibration, const bl_topology *topology,
                              const double *rows, const double *active, int n_ranks, double wire_s);

/* Put the constants into the topology of which the samples' cost was made; figures that were not told
 * stay. Returns how many figures were replaced. */
int bl_calibration_apply(const bl_calibration *calibration, const bl_model *model,
                         const bl_cost *cost, bl_topology *topology);

#endif
