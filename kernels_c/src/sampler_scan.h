/* sampler_scan.h (internal): the two loops over whole rows, one version per instruction set, chosen at run time. */
#ifndef GGFW_SAMPLER_SCAN_H
#define GGFW_SAMPLER_SCAN_H

#include <stdint.h>

typedef struct ggfw_scan {
    /* maxima[b] = the largest of row[b * block .. (b + 1) * block), NaN skipped, -inf when there is nothing else; the
     * last block may be short. block is a multiple of 16. */
    void (*block_maxima)(const float *row, int32_t n, int32_t block, float *maxima);
    /* The positions i in [0, n) with row[i] >= bound, rising, into out [n]; returns their number. */
    int32_t (*positions_from)(const float *row, int32_t n, float bound, int32_t *out);
} ggfw_scan;

/* The best version that processor, system and ggfw_sampler_isa() allow. */
const ggfw_scan *ggfw_scan_get(void);

#endif
