/*
 * busy_engine NAME RANK RANKS STEPS RING_BYTES PAUSE_US: stands in for an engine's rank that traces
 * made-up routing (tests/support/routing.h) as fast as it can, with a pause every 8 steps. Prints what
 * its tracer counted: pushed kept dropped skipped. Uses the public header only, as an engine would.
 */
#include "ballast.h"
#include "tests/support/routing.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

int main(int argc, char **argv) {
    if (argc != 7)
        return 2;
    int layers[ROUTING_LAYERS];
    int32_t ids[ROUTING_MAX_TOKENS * ROUTING_K];
    const uint64_t steps = strtoull(argv[4], NULL, 10);
    const struct timespec pause = {0, atol(argv[6]) * 1000};
    bl_trace_options options = BL_TRACE_OPTIONS_INIT;
    bl_tracer *tracer = NULL;
    for (int l = 0; l < ROUTING_LAYERS; l++)
        layers[l] = routing_layer(l);
    options.model = "busy";
    options.n_experts = ROUTING_EXPERTS;
    options.top_k = ROUTING_K;
    options.layers = layers;
    options.n_layers = ROUTING_LAYERS;
    options.rank = atoi(argv[2]);
    options.n_ranks = atoi(argv[3]);
    options.ring_bytes = (size_t)atol(argv[5]);
    int st = bl_trace_open(argv[1], &options, &tracer);
    bl_trace_counters counters = {0};
    for (uint64_t step = 0; st == BL_OK && step < steps; step++) {
        st = bl_trace_step_begin(tracer, step, BL_PHASE_DECODE, 0);
        for (int l = 0; st == BL_OK && l < ROUTING_LAYERS; l++) {
            routing_fill(step, layers[l], ids);
            st = bl_trace_push(tracer, layers[l], ids, 4, routing_tokens(step), 4 * ROUTING_K);
        }
        bl_trace_step_end(tracer);
        if (step % 8 == 0)
            nanosleep(&pause, NULL);
    }
    bl_trace_read_counters(tracer, &counters);
    bl_trace_close(tracer);
    printf("%llu %llu %llu %llu\n", (unsigned long long)counters.pushed,
           (unsigned long long)counters.kept, (unsigned long long)counters.dropped,
           (unsigned long long)counters.skipped);
    if (st < 0)
        fprintf(stderr, "%s\n", bl_status_string(st));
    return st < 0;
}
