/*
 * rng.h: one small, seedable random generator.
 *
 * xoshiro256** seeded through splitmix64 (Blackman and Vigna, "Scrambled linear pseudorandom number
 * generators", 2021). The same seed gives the same numbers on every machine; nothing here is
 * cryptographic. State is owned by the caller: no globals, so parallel uses do not disturb each
 * other.
 */
#ifndef BL_CORE_RNG_H
#define BL_CORE_RNG_H

#include <stdint.h>

typedef struct bl_rng {
    uint64_t s[4];
} bl_rng;

static inline uint64_t bl_splitmix64(uint64_t *state) {
    uint64_t z = (*state += UINT64_C(0x9e3779b97f4a7c15));
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

static inline void bl_rng_seed(bl_rng *rng, uint64_t seed) {
    for (int i = 0; i < 4; i++)
        rng->s[i] = bl_splitmix64(&seed);
}

static inline uint64_t bl_rng_next(bl_rng *rng) {
    uint64_t *s = rng->s;
    const uint64_t scrambled = s[1] * 5;
    const uint64_t result = ((scrambled << 7) | (scrambled >> 57)) * 9;
    const uint64_t t = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = (s[3] << 45) | (s[3] >> 19);
    return result;
}

/* Uniform in [0, n), n > 0. The bias of the multiply-shift is below n / 2^32. */
static inline uint32_t bl_rng_below(bl_rng *rng, uint32_t n) {
    return (uint32_t)(((bl_rng_next(rng) >> 32) * n) >> 32);
}

/* Uniform in [0, 1). */
static inline double bl_rng_unit(bl_rng *rng) {
    return (double)(bl_rng_next(rng) >> 11) * 0x1.0p-53;
}

#endif
