/*
 * hash.h: content checks with xxHash (XXH3).
 *
 * 64 bits guard chunks and bundles against damage, 128 bits name plans, models and traces. Neither
 * is meant to resist an attacker.
 */
#ifndef BL_CORE_HASH_H
#define BL_CORE_HASH_H

#include <stddef.h>
#include <stdint.h>

uint64_t bl_hash64(const void *data, size_t bytes);

/* A 128-bit digest as 32 lower-case hexadecimal digits and a terminator. */
typedef struct bl_digest {
    char hex[33];
} bl_digest;

/* A digest over several pieces: start, add each, finish (which frees the state). */
typedef struct bl_hasher bl_hasher;
bl_hasher *bl_hasher_new(void); /* NULL when out of memory */
void bl_hasher_add(bl_hasher *hasher, const void *data, size_t bytes);
/* Adds a little-endian int64, so that digests do not depend on the machine. */
void bl_hasher_add_int(bl_hasher *hasher, int64_t value);
bl_digest bl_hasher_finish(bl_hasher *hasher);
/* The same end for 64 bits: what bl_hash64() gives of the pieces as one. */
uint64_t bl_hasher_finish64(bl_hasher *hasher);

bl_digest bl_digest_of(const void *data, size_t bytes);

#endif
