/* activation.h: where the parts of a quantised row of activations are (GGFW_Q8 and GGFW_Q16 in ggfw_kernels.h); for
 * the executor and for the kernels. */
#ifndef GGFW_ACTIVATION_H
#define GGFW_ACTIVATION_H

#include "ggfw_kernels.h"

static inline int64_t activation_align(int64_t n) { return (n + 63) / 64 * 64; }

/* Byte offset of d: q comes first, one plane (Q8) or two (Q16). */
static inline int64_t activation_scales(int32_t type, int64_t n) {
    return type == GGFW_Q16 ? 2 * n : activation_align(n);
}
/* Columns that share a scale. */
static inline int32_t activation_block(int32_t type) { return type == GGFW_Q16 ? 32 : 16; }

static inline int64_t activation_sums(int32_t type, int64_t n) {
    return activation_scales(type, n) + n / activation_block(type) * 4;
}
static inline int64_t activation_totals(int32_t type, int64_t n) { return activation_sums(type, n) + n / 16 * 4; }

/* Bytes of a row of n elements of any type. */
static inline int64_t activation_row_bytes(int32_t type, int64_t n) {
    if (type != GGFW_Q8 && type != GGFW_Q16) return n * 4;
    return activation_align(activation_totals(type, n) + n / 32 * 4);
}

#endif
