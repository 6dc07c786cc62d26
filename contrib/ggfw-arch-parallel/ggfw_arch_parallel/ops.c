/* softsign_gate: out = a / (1 + |a|) * b, as a chunked kernel of ggfw. */
#include <math.h>

#include "ggfw_kernels.h"

enum { ROWS_PER_CHUNK = 16 };

static int32_t n_chunks(const ggfw_step *step, const ggfw_run *run, int32_t begin, int32_t end) {
    (void)step, (void)run;
    return (end - begin + ROWS_PER_CHUNK - 1) / ROWS_PER_CHUNK;
}

static const float *row(const ggfw_run *run, const ggfw_view *view, int32_t i) {
    return (const float *)(run->arena + view->offset + (int64_t)i * view->stride);
}

static void gate(const ggfw_step *step, const ggfw_run *run, int32_t begin, int32_t end, int32_t chunk, void *scratch) {
    (void)scratch;
    int32_t first = begin + chunk * ROWS_PER_CHUNK;
    int32_t last = first + ROWS_PER_CHUNK < end ? first + ROWS_PER_CHUNK : end;
    for (int32_t i = first; i < last; i++) {
        const float *a = row(run, &step->in[0], i), *b = row(run, &step->in[1], i);
        float *out = (float *)row(run, &step->out[0], i);
        for (int32_t j = 0; j < step->out[0].width; j++) out[j] = a[j] / (1.0f + fabsf(a[j])) * b[j];
    }
}

__attribute__((visibility("default"))) const ggfw_kernel softsign_gate = {
    .name = "softsign_gate",
    .op = GGFW_OP_CUSTOM,
    .format = GGFW_FORMAT_NONE,
    .row_classes = GGFW_ROWS_ANY,
    .n_chunks = n_chunks,
    .run = gate,
};
