/*
 * buffer.h: memory for the bytes of messages and experts.
 *
 * Aligned to 64 bytes, not zeroed, given back with free(). Large buffers ask for huge pages: a fresh
 * buffer of tens of MiB costs ten thousand page faults otherwise, several times the price of copying
 * a bundle into it (tests/bench/bench_transport.c).
 */
#ifndef BL_RUNTIME_BUFFER_H
#define BL_RUNTIME_BUFFER_H

#include <stddef.h>

#define BL_BUFFER_ALIGNMENT ((size_t)64) /* a cache line, and what vector loads want */

/* NULL when out of memory; never NULL for 0 bytes otherwise. */
void *bl_buffer_alloc(size_t bytes);

#endif
