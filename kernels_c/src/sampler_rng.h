/* sampler_rng.h (internal): random numbers, PCG-DXSM with the constants and the seeding of Go's math/rand/v2. */
#ifndef GGFW_SAMPLER_RNG_H
#define GGFW_SAMPLER_RNG_H

#include <stdint.h>

typedef struct ggfw_rng {
    uint64_t high, low;
} ggfw_rng;

static inline ggfw_rng ggfw_rng_seeded(uint64_t seed) { return (ggfw_rng){seed, seed ^ 0x9e3779b97f4a7c15u}; }

/* High word of a 64 x 64 bit product, without a 128-bit type. */
static inline uint64_t ggfw_multiply_high(uint64_t a, uint64_t b) {
    const uint64_t a0 = (uint32_t)a, a1 = a >> 32, b0 = (uint32_t)b, b1 = b >> 32;
    const uint64_t middle = a1 * b0 + (a0 * b0 >> 32);
    return a1 * b1 + (middle >> 32) + ((a0 * b1 + (uint32_t)middle) >> 32);
}

static inline uint64_t ggfw_rng_next(ggfw_rng *rng) {
    const uint64_t multiplier_high = 2549297995355413924u, multiplier_low = 4865540595714422341u;
    const uint64_t increment_high = 6364136223846793005u, increment_low = 1442695040888963407u;
    uint64_t low = rng->low * multiplier_low;
    uint64_t high = ggfw_multiply_high(rng->low, multiplier_low) + rng->high * multiplier_low + rng->low * multiplier_high;
    low += increment_low;
    high += increment_high + (low < increment_low);
    rng->low = low;
    rng->high = high;
    high ^= high >> 32;
    high *= 0xda942042e4dd58b5u;
    high ^= high >> 48;
    return high * (low | 1);
}

/* In [0, 1): the low 53 bits over 2^53. */
static inline double ggfw_rng_float64(ggfw_rng *rng) {
    return (double)(ggfw_rng_next(rng) & 0x1fffffffffffffu) / 9007199254740992.0;
}

#endif
