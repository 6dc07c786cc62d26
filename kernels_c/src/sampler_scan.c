/* sampler_scan.c: scans over rows of logits for plain C, AVX2 and AVX-512.
 *
 * A maximum instruction returns its second operand when one of the two is NaN; with the running maximum second, NaN
 * entries are skipped at no cost. */
#include "sampler_scan.h"

#include <math.h>
#include <string.h>

#include "../include/ggfw_sampler.h"

#if defined(__x86_64__) && defined(__GNUC__)
#define GGFW_SCAN_X86 1
#include <cpuid.h>
#include <immintrin.h>
#endif

#define LANES 16

static float tail_maximum(const float *row, int32_t begin, int32_t end, float best) {
    for (int32_t i = begin; i < end; i++) best = row[i] > best ? row[i] : best;
    return best;
}

static void block_maxima_generic(const float *row, int32_t n, int32_t block, float *maxima) {
    for (int32_t begin = 0, b = 0; begin < n; begin += block, b++) {
        int32_t end = n - begin < block ? n : begin + block, i = begin;
        float lanes[LANES], best = -INFINITY;
        for (int j = 0; j < LANES; j++) lanes[j] = -INFINITY;
        for (; i + LANES <= end; i += LANES)
            for (int j = 0; j < LANES; j++) lanes[j] = row[i + j] > lanes[j] ? row[i + j] : lanes[j];
        for (int j = 0; j < LANES; j++) best = lanes[j] > best ? lanes[j] : best;
        maxima[b] = tail_maximum(row, i, end, best);
    }
}

static int32_t positions_from_generic(const float *row, int32_t n, float bound, int32_t *out) {
    int32_t m = 0;
    for (int32_t i = 0; i < n; i++) {
        out[m] = i; /* m <= i, so this stays inside */
        m += row[i] >= bound;
    }
    return m;
}

/* e^x for x <= 0, within 1 ulp, 0 below -708: e^x = 2^k e^r with k = round(x / ln 2) and a series of degree 13 for e^r.
 * Adding 1.5 * 2^52 rounds to an integer, which then stands in the low mantissa bits, ready to become an exponent.
 * ln 2 is split in two: its first part has so many zero bits at the end that k times it is exact. */
#define EXP_LOWEST (-708.0)
#define EXP_ROUNDER 6755399441055744.0
#define LOG2_E 1.4426950408889634
#define LN2_HIGH 0x1.62e42fee00000p-1
#define LN2_LOW 0x1.a39ef35793c76p-33
#define N_EXP_TERMS 14

static const double exp_terms[N_EXP_TERMS] = {/* 1/13!, ..., 1/0! */
    1.0 / 6227020800.0, 1.0 / 479001600.0, 1.0 / 39916800.0, 1.0 / 3628800.0, 1.0 / 362880.0,
    1.0 / 40320.0,      1.0 / 5040.0,      1.0 / 720.0,      1.0 / 120.0,     1.0 / 24.0,
    1.0 / 6.0,          1.0 / 2.0,         1.0,              1.0};

static double exp_nonpositive(double x) {
    const double clamped = x > EXP_LOWEST ? x : EXP_LOWEST;
    const double shifted = clamped * LOG2_E + EXP_ROUNDER;
    const double k = shifted - EXP_ROUNDER;
    const double r = (clamped - k * LN2_HIGH) - k * LN2_LOW;
    double e = exp_terms[0], scale;
    for (int i = 1; i < N_EXP_TERMS; i++) e = e * r + exp_terms[i];
    uint64_t bits;
    memcpy(&bits, &shifted, sizeof bits);
    bits = (bits << 52) + ((uint64_t)1023 << 52);
    memcpy(&scale, &bits, sizeof scale);
    return x < EXP_LOWEST ? 0.0 : e * scale;
}

static void exp_differences_generic(const float *logits, int32_t n, float best, double *terms) {
    for (int32_t i = 0; i < n; i++) terms[i] = exp_nonpositive((double)(logits[i] - best));
}

/* ---- sums in LANES interleaved lanes ---- */

static double lane_sum(const double *lanes) {
    double sum = lanes[0];
    for (int j = 1; j < LANES; j++) sum += lanes[j];
    return sum;
}

/* Add entries [begin, end) above -inf to their lanes, `begin` being one of lane 0; returns their number. */
static int32_t add_tail(const float *row, int32_t begin, int32_t end, double *lanes) {
    int32_t count = 0;
    for (int32_t i = begin; i < end; i++)
        if (row[i] > -INFINITY) {
            lanes[(i - begin) % LANES] += (double)row[i];
            count++;
        }
    return count;
}

static void square_tail(const float *row, int32_t begin, int32_t end, double mean, double *lanes) {
    for (int32_t i = begin; i < end; i++)
        if (row[i] > -INFINITY) {
            const double d = (double)row[i] - mean;
            lanes[(i - begin) % LANES] += d * d;
        }
}

static int32_t moments_generic(const float *row, int32_t n, double *mean, double *variance) {
    double sums[LANES] = {0}, squares[LANES] = {0};
    const int32_t count = add_tail(row, 0, n, sums);
    *mean = count ? lane_sum(sums) / count : 0.0;
    square_tail(row, 0, n, *mean, squares);
    *variance = count ? lane_sum(squares) / count : 0.0;
    return count;
}

/* ---- the sum of exponentials ---- */

#define NEGLIGIBLE 80.0f

static double sum_exp_generic(const float *row, int32_t n, float best) {
    double sum = 0.0;
    for (int32_t i = 0; i < n; i++)
        if (row[i] >= best - NEGLIGIBLE) sum += exp_nonpositive((double)row[i] - (double)best);
    return sum;
}

#ifdef GGFW_SCAN_X86

/* Four lanes of four doubles: lane i mod 16 as in the plain version. */
__attribute__((target("avx2"))) static int32_t moments_avx2(const float *row, int32_t n, double *mean,
                                                            double *variance) {
    const __m128 lowest = _mm_set1_ps(-INFINITY);
    const int32_t whole = n - n % LANES;
    __m256d sums[4], squares[4];
    for (int j = 0; j < 4; j++) sums[j] = squares[j] = _mm256_setzero_pd();
    int32_t count = 0;
    for (int32_t i = 0; i < whole; i += LANES)
        for (int j = 0; j < 4; j++) {
            const __m128 x = _mm_loadu_ps(row + i + 4 * j), above = _mm_cmpgt_ps(x, lowest);
            count += __builtin_popcount((unsigned)_mm_movemask_ps(above));
            sums[j] = _mm256_add_pd(sums[j], _mm256_cvtps_pd(_mm_and_ps(x, above)));
        }
    double lanes[LANES];
    for (int j = 0; j < 4; j++) _mm256_storeu_pd(lanes + 4 * j, sums[j]);
    count += add_tail(row, whole, n, lanes);
    *mean = count ? lane_sum(lanes) / count : 0.0;
    const __m256d middle = _mm256_set1_pd(*mean);
    for (int32_t i = 0; i < whole; i += LANES)
        for (int j = 0; j < 4; j++) {
            const __m128 x = _mm_loadu_ps(row + i + 4 * j), above = _mm_cmpgt_ps(x, lowest);
            const __m256d used = _mm256_castsi256_pd(_mm256_cvtepi32_epi64(_mm_castps_si128(above)));
            const __m256d d = _mm256_and_pd(used, _mm256_sub_pd(_mm256_cvtps_pd(x), middle));
            squares[j] = _mm256_add_pd(squares[j], _mm256_mul_pd(d, d));
        }
    for (int j = 0; j < 4; j++) _mm256_storeu_pd(lanes + 4 * j, squares[j]);
    square_tail(row, whole, n, *mean, lanes);
    *variance = count ? lane_sum(lanes) / count : 0.0;
    return count;
}

__attribute__((target("avx512f"))) static inline __m512d high_half(__m512 x) {
    return _mm512_cvtps_pd(_mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(x), 1)));
}

__attribute__((target("avx512f"))) static int32_t moments_avx512(const float *row, int32_t n, double *mean,
                                                                 double *variance) {
    const __m512 lowest = _mm512_set1_ps(-INFINITY);
    const int32_t whole = n - n % LANES;
    __m512d low = _mm512_setzero_pd(), high = low;
    int32_t count = 0;
    for (int32_t i = 0; i < whole; i += LANES) {
        const __m512 x = _mm512_loadu_ps(row + i);
        const __mmask16 above = _mm512_cmp_ps_mask(x, lowest, _CMP_GT_OQ);
        count += __builtin_popcount(above);
        low = _mm512_mask_add_pd(low, (__mmask8)above, low, _mm512_cvtps_pd(_mm512_castps512_ps256(x)));
        high = _mm512_mask_add_pd(high, (__mmask8)(above >> 8), high, high_half(x));
    }
    double lanes[LANES];
    _mm512_storeu_pd(lanes, low);
    _mm512_storeu_pd(lanes + 8, high);
    count += add_tail(row, whole, n, lanes);
    *mean = count ? lane_sum(lanes) / count : 0.0;
    const __m512d middle = _mm512_set1_pd(*mean);
    low = high = _mm512_setzero_pd();
    for (int32_t i = 0; i < whole; i += LANES) {
        const __m512 x = _mm512_loadu_ps(row + i);
        const __mmask16 above = _mm512_cmp_ps_mask(x, lowest, _CMP_GT_OQ);
        const __m512d d0 = _mm512_sub_pd(_mm512_cvtps_pd(_mm512_castps512_ps256(x)), middle);
        const __m512d d1 = _mm512_sub_pd(high_half(x), middle);
        low = _mm512_mask_add_pd(low, (__mmask8)above, low, _mm512_mul_pd(d0, d0));
        high = _mm512_mask_add_pd(high, (__mmask8)(above >> 8), high, _mm512_mul_pd(d1, d1));
    }
    _mm512_storeu_pd(lanes, low);
    _mm512_storeu_pd(lanes + 8, high);
    square_tail(row, whole, n, *mean, lanes);
    *variance = count ? lane_sum(lanes) / count : 0.0;
    return count;
}

__attribute__((target("avx2,fma"))) static double sum_exp_avx2(const float *row, int32_t n, float best) {
    const __m256d rounder = _mm256_set1_pd(EXP_ROUNDER), middle = _mm256_set1_pd((double)best);
    const __m256i one = _mm256_set1_epi64x((long long)1023 << 52);
    const __m128 lowest = _mm_set1_ps(best - NEGLIGIBLE);
    __m256d sum = _mm256_setzero_pd();
    int32_t i = 0;
    for (; i + 4 <= n; i += 4) {
        const __m128 x = _mm_loadu_ps(row + i);
        const __m128 near = _mm_cmpge_ps(x, lowest); /* false for NaN */
        if (!_mm_movemask_ps(near)) continue;
        const __m256d d = _mm256_sub_pd(_mm256_cvtps_pd(_mm_blendv_ps(lowest, x, near)), middle);
        const __m256d shifted = _mm256_fmadd_pd(d, _mm256_set1_pd(LOG2_E), rounder);
        const __m256d k = _mm256_sub_pd(shifted, rounder);
        const __m256d r = _mm256_fnmadd_pd(k, _mm256_set1_pd(LN2_HIGH + LN2_LOW), d);
        __m256d e = _mm256_set1_pd(exp_terms[2]); /* from 1/11! on: 1e-14 is enough here */
        for (int j = 3; j < N_EXP_TERMS; j++)
            e = _mm256_fmadd_pd(e, r, _mm256_set1_pd(exp_terms[j]));
        const __m256i scale = _mm256_add_epi64(_mm256_slli_epi64(_mm256_castpd_si256(shifted), 52), one);
        e = _mm256_mul_pd(e, _mm256_castsi256_pd(scale));
        const __m256d used = _mm256_castsi256_pd(_mm256_cvtepi32_epi64(_mm_castps_si128(near)));
        sum = _mm256_add_pd(sum, _mm256_and_pd(used, e));
    }
    double lanes[4];
    _mm256_storeu_pd(lanes, sum);
    return lanes[0] + lanes[1] + lanes[2] + lanes[3] + sum_exp_generic(row + i, n - i, best);
}

/* 2^(i/16) for i = 0 .. 15. */
static const double sixteenths[16] = {
    0x1.0000000000000p+0, 0x1.0b5586cf9890fp+0, 0x1.172b83c7d517bp+0, 0x1.2387a6e756238p+0,
    0x1.306fe0a31b715p+0, 0x1.3dea64c123422p+0, 0x1.4bfdad5362a27p+0, 0x1.5ab07dd485429p+0,
    0x1.6a09e667f3bcdp+0, 0x1.7a11473eb0187p+0, 0x1.8ace5422aa0dbp+0, 0x1.9c49182a3f090p+0,
    0x1.ae89f995ad3adp+0, 0x1.c199bdd85529cp+0, 0x1.d5818dcfba487p+0, 0x1.ea4afa2a490dap+0};

/* e^d = 2^(k/16) e^r with k = round(16 d / ln 2): |r| < 0.022, so that r^5/5! ends the series at 2e-13. The low four
 * bits of k choose the root, the others become the exponent. */
__attribute__((target("avx512f"))) static inline __m512d add_exp_avx512(__m512d sum, __mmask8 near, __m512d d) {
    const __m512d rounder = _mm512_set1_pd(EXP_ROUNDER);
    const __m512d shifted = _mm512_fmadd_pd(d, _mm512_set1_pd(16 * LOG2_E), rounder);
    const __m512d k = _mm512_sub_pd(shifted, rounder);
    const __m512d r = _mm512_fnmadd_pd(k, _mm512_set1_pd((LN2_HIGH + LN2_LOW) / 16), d);
    __m512d e = _mm512_set1_pd(exp_terms[N_EXP_TERMS - 6]);
    for (int j = N_EXP_TERMS - 5; j < N_EXP_TERMS; j++) e = _mm512_fmadd_pd(e, r, _mm512_set1_pd(exp_terms[j]));
    const __m512i bits = _mm512_castpd_si512(shifted);
    const __m512d root = _mm512_permutex2var_pd(_mm512_loadu_pd(sixteenths), bits, _mm512_loadu_pd(sixteenths + 8));
    const __m512i exponent = _mm512_slli_epi64(_mm512_srli_epi64(bits, 4), 52);
    const __m512d scale = _mm512_castsi512_pd(_mm512_add_epi64(_mm512_castpd_si512(root), exponent));
    return _mm512_mask3_fmadd_pd(e, scale, sum, near);
}

__attribute__((target("avx512f"))) static double sum_exp_avx512(const float *row, int32_t n, float best) {
    const __m512d middle = _mm512_set1_pd((double)best);
    const __m512 lowest = _mm512_set1_ps(best - NEGLIGIBLE);
    __m512d sum0 = _mm512_setzero_pd(), sum1 = sum0;
    for (int32_t i = 0; i < n; i += 16) {
        const __mmask16 valid = n - i < 16 ? (__mmask16)((1u << (n - i)) - 1) : (__mmask16)0xffff;
        const __m512 x = _mm512_maskz_loadu_ps(valid, row + i);
        const __mmask16 near = _mm512_mask_cmp_ps_mask(valid, x, lowest, _CMP_GE_OQ);
        if (!near) continue;
        sum0 = add_exp_avx512(sum0, (__mmask8)near, _mm512_sub_pd(_mm512_cvtps_pd(_mm512_castps512_ps256(x)), middle));
        sum1 = add_exp_avx512(sum1, (__mmask8)(near >> 8), _mm512_sub_pd(high_half(x), middle));
    }
    return _mm512_reduce_add_pd(_mm512_add_pd(sum0, sum1));
}

/* The same for 4 at a time. AVX2 without FMA, also on AVX-512: no compiler is tempted to contract. */
__attribute__((target("avx2"))) static void exp_differences_avx2(const float *logits, int32_t n, float best,
                                                                 double *terms) {
    const __m256d lowest = _mm256_set1_pd(EXP_LOWEST), rounder = _mm256_set1_pd(EXP_ROUNDER);
    const __m256i one = _mm256_set1_epi64x((long long)1023 << 52);
    int32_t i = 0;
    for (; i + 4 <= n; i += 4) {
        const __m256d x = _mm256_cvtps_pd(_mm_sub_ps(_mm_loadu_ps(logits + i), _mm_set1_ps(best)));
        const __m256d clamped = _mm256_max_pd(x, lowest);
        const __m256d shifted = _mm256_add_pd(_mm256_mul_pd(clamped, _mm256_set1_pd(LOG2_E)), rounder);
        const __m256d k = _mm256_sub_pd(shifted, rounder);
        const __m256d high = _mm256_sub_pd(clamped, _mm256_mul_pd(k, _mm256_set1_pd(LN2_HIGH)));
        const __m256d r = _mm256_sub_pd(high, _mm256_mul_pd(k, _mm256_set1_pd(LN2_LOW)));
        __m256d e = _mm256_set1_pd(exp_terms[0]);
        for (int j = 1; j < N_EXP_TERMS; j++)
            e = _mm256_add_pd(_mm256_mul_pd(e, r), _mm256_set1_pd(exp_terms[j]));
        const __m256i scale = _mm256_add_epi64(_mm256_slli_epi64(_mm256_castpd_si256(shifted), 52), one);
        e = _mm256_mul_pd(e, _mm256_castsi256_pd(scale));
        _mm256_storeu_pd(terms + i, _mm256_andnot_pd(_mm256_cmp_pd(x, lowest, _CMP_LT_OQ), e));
    }
    exp_differences_generic(logits + i, n - i, best, terms + i);
}

__attribute__((target("avx2"))) static void block_maxima_avx2(const float *row, int32_t n, int32_t block,
                                                               float *maxima) {
    const __m256 lowest = _mm256_set1_ps(-INFINITY);
    for (int32_t begin = 0, b = 0; begin < n; begin += block, b++) {
        int32_t end = n - begin < block ? n : begin + block, i = begin;
        __m256 m0 = lowest, m1 = lowest, m2 = lowest, m3 = lowest;
        for (; i + 32 <= end; i += 32) {
            m0 = _mm256_max_ps(_mm256_loadu_ps(row + i), m0);
            m1 = _mm256_max_ps(_mm256_loadu_ps(row + i + 8), m1);
            m2 = _mm256_max_ps(_mm256_loadu_ps(row + i + 16), m2);
            m3 = _mm256_max_ps(_mm256_loadu_ps(row + i + 24), m3);
        }
        for (; i + 8 <= end; i += 8) m0 = _mm256_max_ps(_mm256_loadu_ps(row + i), m0);
        m0 = _mm256_max_ps(_mm256_max_ps(m0, m1), _mm256_max_ps(m2, m3));
        __m128 m = _mm_max_ps(_mm256_castps256_ps128(m0), _mm256_extractf128_ps(m0, 1));
        m = _mm_max_ps(m, _mm_movehl_ps(m, m));
        m = _mm_max_ss(m, _mm_movehdup_ps(m));
        maxima[b] = tail_maximum(row, i, end, _mm_cvtss_f32(m));
    }
}

__attribute__((target("avx2"))) static int32_t positions_from_avx2(const float *row, int32_t n, float bound,
                                                                    int32_t *out) {
    const __m256 bounds = _mm256_set1_ps(bound);
    int32_t m = 0, i = 0;
    for (; i + 32 <= n; i += 32) {
        uint32_t hits = 0;
        for (int j = 0; j < 4; j++)
            hits |= (uint32_t)_mm256_movemask_ps(
                        _mm256_cmp_ps(_mm256_loadu_ps(row + i + 8 * j), bounds, _CMP_GE_OQ))
                    << (8 * j);
        for (; hits; hits &= hits - 1) out[m++] = i + __builtin_ctz(hits);
    }
    for (; i < n; i++)
        if (row[i] >= bound) out[m++] = i;
    return m;
}

__attribute__((target("avx512f"))) static void block_maxima_avx512(const float *row, int32_t n, int32_t block,
                                                                    float *maxima) {
    const __m512 lowest = _mm512_set1_ps(-INFINITY);
    for (int32_t begin = 0, b = 0; begin < n; begin += block, b++) {
        int32_t end = n - begin < block ? n : begin + block, i = begin;
        __m512 m0 = lowest, m1 = lowest, m2 = lowest, m3 = lowest;
        for (; i + 64 <= end; i += 64) {
            m0 = _mm512_max_ps(_mm512_loadu_ps(row + i), m0);
            m1 = _mm512_max_ps(_mm512_loadu_ps(row + i + 16), m1);
            m2 = _mm512_max_ps(_mm512_loadu_ps(row + i + 32), m2);
            m3 = _mm512_max_ps(_mm512_loadu_ps(row + i + 48), m3);
        }
        for (; i + 16 <= end; i += 16) m0 = _mm512_max_ps(_mm512_loadu_ps(row + i), m0);
        m0 = _mm512_max_ps(_mm512_max_ps(m0, m1), _mm512_max_ps(m2, m3));
        maxima[b] = tail_maximum(row, i, end, _mm512_reduce_max_ps(m0));
    }
}

__attribute__((target("avx512f"))) static int32_t positions_from_avx512(const float *row, int32_t n, float bound,
                                                                         int32_t *out) {
    const __m512 bounds = _mm512_set1_ps(bound);
    int32_t m = 0, i = 0;
    for (; i + 32 <= n; i += 32) {
        uint32_t hits = _mm512_cmp_ps_mask(_mm512_loadu_ps(row + i), bounds, _CMP_GE_OQ);
        hits |= (uint32_t)_mm512_cmp_ps_mask(_mm512_loadu_ps(row + i + 16), bounds, _CMP_GE_OQ) << 16;
        for (; hits; hits &= hits - 1) out[m++] = i + __builtin_ctz(hits);
    }
    for (; i < n; i++)
        if (row[i] >= bound) out[m++] = i;
    return m;
}

/* CPUID says what the processor has, XGETBV what the system saves on a task switch; both must agree. */
static int32_t best_isa(void) {
    unsigned a, b, c, d, xcr0, high;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & (1u << 27))) return 0;
    const int fma = (c >> 12) & 1;
    __asm__ volatile("xgetbv" : "=a"(xcr0), "=d"(high) : "c"(0));
    if ((xcr0 & 0x06) != 0x06 || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return 0;
    if ((b & (1u << 16)) && (xcr0 & 0xe6) == 0xe6) return 2;
    return (b & (1u << 5)) && fma ? 1 : 0;
}

#else

static int32_t best_isa(void) { return 0; }

#endif

static const ggfw_scan scans[] = {
    {block_maxima_generic, positions_from_generic, exp_differences_generic, moments_generic, sum_exp_generic},
#ifdef GGFW_SCAN_X86
    {block_maxima_avx2, positions_from_avx2, exp_differences_avx2, moments_avx2, sum_exp_avx2},
    {block_maxima_avx512, positions_from_avx512, exp_differences_avx2, moments_avx512, sum_exp_avx512},
#endif
};

/* Asked once, since CPUID is slow in virtual machines. Two threads may both ask; they store the same answer. */
static int32_t isa_in_use = -1;

const ggfw_scan *ggfw_scan_get(void) {
    int32_t isa = __atomic_load_n(&isa_in_use, __ATOMIC_RELAXED);
    if (isa < 0) isa = ggfw_sampler_isa(-1);
    return &scans[isa];
}

int32_t ggfw_sampler_isa(int32_t limit) {
    int32_t isa = best_isa();
    if (limit >= 0 && limit < isa) isa = limit;
    __atomic_store_n(&isa_in_use, isa, __ATOMIC_RELAXED);
    return isa;
}
