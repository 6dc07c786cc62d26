/* Q6_0: see blocks.py for the layout. */
#include <stdint.h>

#define FORMAT_NAME "q6_0"
#define FORMAT_TYPE 133
#define FORMAT_BLOCK 32
#define FORMAT_BLOCK_BYTES 26

static inline float format_half(const uint8_t *at);

static inline void format_unpack(const uint8_t *block, float *out) {
    const float d = format_half(block);
    const uint8_t *high = block + 2, *low = block + 10;
    for (int j = 0; j < 8; j++) {
        out[j] = d * (float)(((low[j] & 15) | (high[j] & 3) << 4) - 32);
        out[j + 16] = d * (float)((low[j] >> 4 | (high[j] >> 2 & 3) << 4) - 32);
        out[j + 8] = d * (float)(((low[j + 8] & 15) | (high[j] >> 4 & 3) << 4) - 32);
        out[j + 24] = d * (float)((low[j + 8] >> 4 | (high[j] >> 6) << 4) - 32);
    }
}

#include "ggfw_format.h"
