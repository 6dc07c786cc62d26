/* A library for one format, here TQ1_0's neighbour TQ2_0: 64 B of 2-bit numbers, d f16; value d * (q - 1). Of each 32
 * bytes, bits 2 l and 2 l + 1 are the 32 weights from 32 l on. `ggfw_format.h` makes the rest; for other ops, fill a
 * ggfw_kernel_table of `ggfw_kernels.h` yourself. */
#include <stdint.h>

#define FORMAT_NAME "@NAME@"
#define FORMAT_TYPE 35
#define FORMAT_BLOCK 256
#define FORMAT_BLOCK_BYTES 66

static inline float format_half(const uint8_t *at);

static inline void format_unpack(const uint8_t *block, float *out) {
    const float d = format_half(block + 64);
    for (int half = 0; half < 2; half++, block += 32)
        for (int l = 0; l < 4; l++, out += 32)
            for (int j = 0; j < 32; j++) out[j] = d * (float)((block[j] >> 2 * l & 3) - 1);
}

#include "ggfw_format.h"
