#include "core/hash.h"

#include <stdio.h>
#include <xxhash.h>

uint64_t bl_hash64(const void *data, size_t bytes) {
    return XXH3_64bits(data, bytes);
}

static bl_digest hex_of(XXH128_hash_t hash) {
    bl_digest digest;
    snprintf(digest.hex, sizeof digest.hex, "%016llx%016llx", (unsigned long long)hash.high64,
             (unsigned long long)hash.low64);
    return digest;
}

/* The handle is xxHash's own state under our name, so that only this file sees <xxhash.h>. */
static XXH3_state_t *state_of(bl_hasher *hasher) {
    return (XXH3_state_t *)(void *)hasher;
}

bl_hasher *bl_hasher_new(void) {
    XXH3_state_t *state = XXH3_createState();
    if (state != NULL)
        XXH3_128bits_reset(state);
    return (bl_hasher *)(void *)state;
}

void bl_hasher_add(bl_hasher *hasher, const void *data, size_t bytes) {
    XXH3_128bits_update(state_of(hasher), data, bytes);
}

void bl_hasher_add_int(bl_hasher *hasher, int64_t value) {
    unsigned char bytes[8];
    for (int i = 0; i < 8; i++)
        bytes[i] = (unsigned char)((uint64_t)value >> (8 * i));
    bl_hasher_add(hasher, bytes, sizeof bytes);
}

bl_digest bl_hasher_finish(bl_hasher *hasher) {
    const bl_digest digest = hex_of(XXH3_128bits_digest(state_of(hasher)));
    XXH3_freeState(state_of(hasher));
    return digest;
}

/* One state serves both widths: xxHash gives them one reset and one update. */
uint64_t bl_hasher_finish64(bl_hasher *hasher) {
    const uint64_t hash = XXH3_64bits_digest(state_of(hasher));
    XXH3_freeState(state_of(hasher));
    return hash;
}

bl_digest bl_digest_of(const void *data, size_t bytes) {
    return hex_of(XXH3_128bits(data, bytes));
}
