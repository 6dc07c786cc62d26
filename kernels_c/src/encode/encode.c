/* encode.c: which encoder a format has. Compiled once per instruction set. */
#if defined(__AVX512F__)
#define GGFW_UNIT_AVX512 1
#elif defined(__AVX2__)
#define GGFW_UNIT_AVX2 1
#endif

#include "ggfw_encode.h"

#include "k_quants.h"
#include "small.h"

int32_t ggfw_encode_blocks(int32_t format, const float *x, int64_t n_blocks, int64_t blocks_per_row,
                           const float *importance, uint8_t *out) {
    source s = {x, importance, n_blocks, blocks_per_row, 0};
    source by_16 = {x, importance, n_blocks * 16, blocks_per_row * 16, 0};
    source by_32 = {x, importance, n_blocks * 8, blocks_per_row * 8, 0};
    switch (format) { /* ggml's type numbers */
    case 2: encode_scaled(&s, 7.0f, out); break;
    case 3: encode_offset(&s, 15.0f, out); break;
    case 6: encode_scaled(&s, 15.0f, out); break;
    case 7: encode_offset(&s, 31.0f, out); break;
    case 8: encode_q8_0(&s, out); break;
    case 10: encode_q2_k(&by_16, out); break;
    case 11: encode_q3_k(&by_16, out); break;
    case 12: encode_q45_k(&by_32, 0, out); break;
    case 13: encode_q45_k(&by_32, 1, out); break;
    case 14: encode_q6_k(&by_16, out); break;
    case 20: encode_iq4_nl(&s, out); break;
    case 23: encode_iq4_xs(&by_32, out); break;
    default: return -1;
    }
    return s.large | by_16.large | by_32.large;
}
