/* ggfw_encode.h: float weights to quantised blocks, for writing GGUF files. Every instruction-set library exports it. */
#ifndef GGFW_ENCODE_H
#define GGFW_ENCODE_H

#include "ggfw_kernels.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* cffi: begin */

/* Encode n_blocks blocks of ggml type `format`. Scales are searched for, so that the error, weighted per column, is
 * small; see src/encode/search.h.
 *   x            n_blocks * block size floats
 *   importance   weight of each column, blocks_per_row * block size floats, none negative, or NULL: by magnitude
 *   out          n_blocks * type size bytes
 * Returns 0; 1 where a value is NaN, infinite or so large (from 16,376 on; at most a block may be counted together) that
 * the blocks may not stand for it, which the caller then has to look at; -1 for a format that has no encoder here. */
int32_t ggfw_encode_blocks(int32_t format, const float *x, int64_t n_blocks, int64_t blocks_per_row,
                           const float *importance, uint8_t *out);

/* cffi: end */

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
