/*
 * trace_engine NAME RANK RANKS STEPS: stands in for an engine's rank: traces the golden routing (4
 * tokens, 4 experts, top-2, layers 3 and 4) for a number of steps, when a line comes on standard input,
 * and closes. Uses the public header only, as an engine would.
 */
#include "ballast.h"

#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv) {
    if (argc != 5)
        return 2;
    static const int layers[] = {3, 4};
    static const int16_t ids[] = {0, 2, 0, 2, 0, 1, 1, 3};
    bl_trace_options options = BL_TRACE_OPTIONS_INIT;
    options.model = "golden";
    options.n_experts = 4;
    options.top_k = 2;
    options.layers = layers;
    options.n_layers = 2;
    options.rank = atoi(argv[2]);
    options.n_ranks = atoi(argv[3]);
    bl_tracer *tracer = NULL;
    int st = bl_trace_open(argv[1], &options, &tracer);
    if (st < 0) {
        fprintf(stderr, "%s\n", bl_status_string(st));
        return 1;
    }
    puts("ready");
    fflush(stdout);
    const int go = getchar();
    for (int step = 0; st >= 0 && go != EOF && step < atoi(argv[4]); step++) {
        bl_trace_step_begin(tracer, (uint64_t)step, BL_PHASE_DECODE, 0);
        for (int l = 0; st >= 0 && l < 2; l++)
            st = bl_trace_push(tracer, layers[l], ids, sizeof ids[0], 4, 2 * sizeof ids[0]);
        bl_trace_step_end(tracer);
    }
    bl_trace_close(tracer);
    return st < 0;
}
