/*
 * window_memory.h: the shared memory of live windows, as writer (window.c) and readers
 * (window_view.c) see it. Internal to the tracer; the interface is window.h.
 */
#ifndef BL_TRACER_WINDOW_MEMORY_H
#define BL_TRACER_WINDOW_MEMORY_H

#include "tracer/ring.h"
#include "tracer/window.h"

#define BL_WINDOW_MAGIC UINT64_C(0x3145564c4c424c42)
#define BL_WINDOW_VERSION 1u

typedef struct bl_window_memory {
    uint64_t magic;
    uint32_t version;
    uint32_t rows_offset;
    uint64_t row_words; /* 64-bit words of one row */
    uint64_t writer;    /* who (tracer/ring.h) */
    char model[128];
    int32_t n_layers, n_experts, top_k, n_ranks;
    int32_t layers[BL_MAX_LAYERS];
    bl_word ready, closed, updated_ns, last_step, unmapped;
} bl_window_memory;

/* Words of a row: version, tokens, count of each expert. */
enum { BL_ROW_VERSION, BL_ROW_TOKENS, BL_ROW_COUNT };

static inline size_t bl_window_row_words(int n_experts) {
    return ((size_t)n_experts + BL_ROW_COUNT + 7) / 8 * 8;
}

static inline size_t bl_window_n_rows(int n_layers) {
    return (size_t)BL_N_HORIZONS * BL_N_PHASES * (size_t)n_layers;
}

static inline size_t bl_window_row(int n_layers, int horizon, int phase, int layer_index) {
    return ((size_t)horizon * BL_N_PHASES + (size_t)phase) * (size_t)n_layers + (size_t)layer_index;
}

#endif
