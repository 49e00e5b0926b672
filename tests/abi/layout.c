/*
 * layout: prints size and offsets of every struct of ballast.h, for the check against
 * tests/abi/layout.txt: fields may be added behind, never moved (tests/cli/test_abi.sh).
 */
#include "ballast.h"

#include <stdio.h>

#define STRUCT(type) printf(#type " %zu\n", sizeof(type))
#define FIELD(type, field) \
    printf("    " #field " %zu %zu\n", offsetof(type, field), sizeof(((type *)0)->field))

int main(void) {
    STRUCT(bl_trace_options);
    FIELD(bl_trace_options, size);
    FIELD(bl_trace_options, model);
    FIELD(bl_trace_options, n_experts);
    FIELD(bl_trace_options, top_k);
    FIELD(bl_trace_options, layers);
    FIELD(bl_trace_options, n_layers);
    FIELD(bl_trace_options, rank);
    FIELD(bl_trace_options, n_ranks);
    FIELD(bl_trace_options, run);
    FIELD(bl_trace_options, ring_bytes);
    FIELD(bl_trace_options, source_domain);
    FIELD(bl_trace_options, flags);
    FIELD(bl_trace_options, epoch);
    FIELD(bl_trace_options, sample_every);
    FIELD(bl_trace_options, sample_burst);
    STRUCT(bl_trace_counters);
    FIELD(bl_trace_counters, pushed);
    FIELD(bl_trace_counters, kept);
    FIELD(bl_trace_counters, dropped);
    FIELD(bl_trace_counters, skipped);
    STRUCT(bl_trace_rows);
    FIELD(bl_trace_rows, size);
    FIELD(bl_trace_rows, ids);
    FIELD(bl_trace_rows, id_bytes);
    FIELD(bl_trace_rows, n_tokens);
    FIELD(bl_trace_rows, row_bytes);
    FIELD(bl_trace_rows, weights);
    FIELD(bl_trace_rows, weight_bytes);
    FIELD(bl_trace_rows, weight_row_bytes);
    STRUCT(bl_trace_stages);
    FIELD(bl_trace_stages, size);
    FIELD(bl_trace_stages, route_ns);
    FIELD(bl_trace_stages, unpermute_ns);
    STRUCT(bl_trace_map);
    FIELD(bl_trace_map, size);
    FIELD(bl_trace_map, layer);
    FIELD(bl_trace_map, epoch);
    FIELD(bl_trace_map, n_ranks);
    FIELD(bl_trace_map, n_slots);
    FIELD(bl_trace_map, slots_of_rank);
    FIELD(bl_trace_map, expert);
    STRUCT(bl_trace_cuda_block);
    FIELD(bl_trace_cuda_block, step);
    FIELD(bl_trace_cuda_block, epoch);
    FIELD(bl_trace_cuda_block, n_tokens);
    FIELD(bl_trace_cuda_block, phase);
    FIELD(bl_trace_cuda_block, flags);
    FIELD(bl_trace_cuda_block, reserved);
    return 0;
}
