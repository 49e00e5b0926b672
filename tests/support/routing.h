/*
 * routing.h: made-up routing in which everything follows from step and layer, so that whoever reads a
 * trace can tell whether a record is right, wrong or there twice.
 */
#ifndef BL_TESTS_ROUTING_H
#define BL_TESTS_ROUTING_H

#include <stddef.h>
#include <stdint.h>

enum { ROUTING_LAYERS = 2, ROUTING_EXPERTS = 256, ROUTING_K = 8, ROUTING_MAX_TOKENS = 24 };

static inline int routing_layer(int index) {
    return 3 + 4 * index;
}

static inline size_t routing_tokens(uint64_t step) {
    return (size_t)(step * 7 % (ROUTING_MAX_TOKENS + 1));
}

/* 31 is odd: the 8 ids of a row are different ones. */
static inline int32_t routing_id(uint64_t step, int layer, size_t token, int j) {
    uint64_t x = step * 1000003u + (uint64_t)layer * 8191u + token;
    x = (x ^ (x >> 31)) * UINT64_C(0x9e3779b97f4a7c15);
    return (int32_t)((x >> 40) + (uint64_t)j * 31u) % ROUTING_EXPERTS;
}

static inline void routing_fill(uint64_t step, int layer, int32_t *ids) {
    for (size_t token = 0; token < routing_tokens(step); token++) {
        for (int j = 0; j < ROUTING_K; j++)
            ids[token * ROUTING_K + (size_t)j] = routing_id(step, layer, token, j);
    }
}

#endif
