/* sampler_scan.h (internal): the loops over whole rows, one version per instruction set, chosen at run time. */
#ifndef GGFW_SAMPLER_SCAN_H
#define GGFW_SAMPLER_SCAN_H

#include <stdint.h>

/* The sampler's arithmetic is the same bit for bit everywhere: no multiply-add is contracted in files that see this. */
#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#elif defined(__GNUC__) && (defined(__FP_FAST_FMA) || defined(__FP_FAST_FMAF))
#pragma GCC optimize("fp-contract=off")
#endif

typedef struct ggfw_scan {
    /* maxima[b] = the largest of row[b * block .. (b + 1) * block), NaN skipped, -inf when there is nothing else; the
     * last block may be short. block is a multiple of 16. */
    void (*block_maxima)(const float *row, int32_t n, int32_t block, float *maxima);
    /* The positions i in [0, n) with row[i] >= bound, rising, into out [n]; returns their number. */
    int32_t (*positions_from)(const float *row, int32_t n, float bound, int32_t *out);
    /* terms[i] = e^(logits[i] - best), the difference in float32, the rest in float64; best >= every logit. */
    void (*exp_differences)(const float *logits, int32_t n, float best, double *terms);
    /* Mean and variance (a float64 two-pass sum) of the entries above -inf; returns their number. Sums are kept in 16
     * interleaved lanes and those added from first to last: the same bits everywhere. */
    int32_t (*moments)(const float *row, int32_t n, double *mean, double *variance);
    /* Sum of e^(row[i] - best) in float64, within 3e-13; NaN and entries 80 below `best` (finite, the largest) count as
     * nothing. Not the same bits everywhere. */
    double (*sum_exp)(const float *row, int32_t n, float best);
} ggfw_scan;

/* The best version that processor, system and ggfw_sampler_isa() allow. */
const ggfw_scan *ggfw_scan_get(void);

#endif
