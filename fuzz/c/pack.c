/* pack.c: blocks of any bits in every format: packed, unpacked, multiplied. */
#include "ggfw_executor.h"

#include "choices.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const struct {
        int32_t format;
        int64_t block, bytes;
    } formats[] = {{0, 1, 4},     {1, 1, 2},     {2, 32, 18},    {3, 32, 20},    {6, 32, 22},    {7, 32, 24},
                   {8, 32, 34},   {10, 256, 84}, {11, 256, 110}, {12, 256, 144}, {13, 256, 176}, {14, 256, 210},
                   {20, 32, 18},  {23, 256, 136}, {30, 1, 2},    {39, 32, 17}};
    choices c = {data, size};
    uint32_t at = below(&c, sizeof formats / sizeof *formats);
    int32_t activation = (int32_t)below(&c, 3);
    activation = activation == 0 ? GGFW_F32 : activation == 1 ? GGFW_Q8 : GGFW_Q16;
    const ggfw_kernel_table *t = ggfw_kernels();
    const ggfw_kernel *linear = NULL, *quantize = NULL;
    for (int32_t i = 0; i < t->n_kernels; i++) {
        const ggfw_kernel *k = &t->kernels[i];
        if (k->op == GGFW_OP_LINEAR && k->format == formats[at].format && k->activation == activation) linear = k;
        if (k->op == GGFW_OP_QUANTIZE) quantize = k;
    }
    if (linear == NULL) return 0;
    int64_t step = formats[at].block > linear->n_in_multiple ? formats[at].block : linear->n_in_multiple;
    if (step < 1) step = 1;
    int64_t n_in = step * (1 + below(&c, step >= 256 ? 2 : 5)), n_out = 1 + below(&c, 40), n_rows = 1 + below(&c, 9);
    int64_t row = n_in / formats[at].block * formats[at].bytes;
    uint8_t *file = exactly(n_out * row, 1), *packed = exactly(linear->pack_size(n_out, n_in), 1);
    float *x = exactly(n_rows * n_in, sizeof *x), *y = exactly(n_rows * n_out, sizeof *y);
    float *unpacked = exactly(n_out * n_in, sizeof *unpacked);
    int32_t *ids = exactly(n_out, sizeof *ids);
    for (int64_t i = 0; i < n_rows * n_in; i++) x[i] = any_float(&c);
    for (int64_t i = 0; i < n_out * row; i++) file[i] = c.left ? (uint8_t)number(&c, 1) : (uint8_t)(i * 37);
    for (int32_t i = 0; i < n_out; i++) ids[i] = (int32_t)(n_out - 1 - i);
    linear->pack(file, n_out, n_in, 0, n_out, packed);
    linear->unpack_rows(packed, n_out, n_in, ids, n_out, unpacked, n_in * (int64_t)sizeof(float));
    if (ggfw_linear_once(linear, activation == GGFW_F32 ? NULL : quantize, file, n_out, n_in, x, (int32_t)n_rows, y) != GGFW_OK &&
        n_in % 32 == 0)
        abort();
    free(file);
    free(packed);
    free(x);
    free(y);
    free(unpacked);
    free(ids);
    return 0;
}
