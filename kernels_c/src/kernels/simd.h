/* simd.h: 16 floats as one value, so that every op is written once: __m512, two __m256, four float32x4_t or plain C.
 *
 *     vf   16 floats          vm   16 truth values
 *
 * Sums over lanes use one fixed tree in all units: ((0+2)+(1+3)) within four lanes, then (0+1)+(2+3) of the fours.
 * vf_max and vf_min return the second operand when one is NaN. */
#ifndef GGFW_SIMD_H
#define GGFW_SIMD_H

#include <stdint.h>
#include <string.h>

#define VF_LANES 16
#define VF_INLINE static inline __attribute__((always_inline))
#define VF_UNROLL _Pragma("GCC unroll 16")

#if defined(GGFW_UNIT_AVX512)
#include "simd_avx512.h"
#elif defined(GGFW_UNIT_AVX2)
#include "simd_avx2.h"
#elif defined(GGFW_UNIT_NEON)
#include "simd_neon.h"
#else
#include "simd_generic.h"
#endif

/* ---- built from the above ------------------------------------------------------------------------------------ */

VF_INLINE vf vf_abs(vf a) { return vf_max(a, vf_sub(vf_zero(), a)); }

VF_INLINE float vf_sum(vf a) {
    float v[16];
    vf_store(v, a);
    float four[4];
    for (int i = 0; i < 4; i++) four[i] = (v[4 * i] + v[4 * i + 2]) + (v[4 * i + 1] + v[4 * i + 3]);
    return (four[0] + four[1]) + (four[2] + four[3]);
}

/* Lanes of a that are in front of n; the others are zero. */
VF_INLINE vf vf_first(vf a, int n) { return vf_select(vf_lanes_below(n), a, vf_zero()); }

#endif
