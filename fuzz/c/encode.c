/* encode.c: any floats to blocks of every format that has an encoder, and back through its kernel. */
#include "ggfw_encode.h"

#include "choices.h"

#include <math.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const int64_t sizes[40][2] = {[2] = {32, 18},   [3] = {32, 20},   [6] = {32, 22},   [7] = {32, 24},
                                         [8] = {32, 34},   [10] = {256, 84}, [11] = {256, 110}, [12] = {256, 144},
                                         [13] = {256, 176}, [14] = {256, 210}, [20] = {32, 18},  [23] = {256, 136},
                                         [39] = {32, 17}};
    choices c = {data, size};
    int32_t format = (int32_t)below(&c, 40);
    if (sizes[format][0] == 0) return 0;
    int64_t per_row = 1 + below(&c, 2), rows = 1 + below(&c, 2), n_blocks = per_row * rows, block = sizes[format][0];
    float *x = exactly(n_blocks * block, sizeof *x), *importance = exactly(per_row * block, sizeof *importance);
    uint8_t *out = exactly(n_blocks * sizes[format][1], 1);
    int strange = 0;
    for (int64_t i = 0; i < n_blocks * block; i++) {
        x[i] = any_float(&c);
        strange |= !isfinite(x[i]);
    }
    for (int64_t i = 0; i < per_row * block; i++) {
        importance[i] = fabsf(any_float(&c));
        if (!isfinite(importance[i])) importance[i] = 1.0f;
    }
    if (ggfw_encode_blocks(format, x, n_blocks, per_row, below(&c, 2) ? importance : NULL, out) == 0 && strange) abort();
    free(x);
    free(importance);
    free(out);
    return 0;
}
