/* pooling.h: one row per sequence. */
#ifndef GGFW_POOLING_H
#define GGFW_POOLING_H

#include "norm.h"

static void pooling_run(const ggfw_step *step, const ggfw_run *run, int32_t row_begin, int32_t row_end, int32_t chunk,
                        void *scratch) {
    (void)scratch;
    const ggfw_pooling *p = &step->params.pooling;
    int32_t width = step->in[0].width;
    row_range r = rows_of(step, row_begin, row_end, chunk);
    for (int32_t i = r.begin; i < r.end; i++) {
        const ggfw_segment *s = &run->batch->segments[i];
        int32_t first = s->row, n = s->n_rows;
        if (p->input_domain == GGFW_DOMAIN_OUTPUTS) {
            first = s->output;
            n = s->n_outputs;
        }
        float *y = floats_of(run, &step->out[0], i);
        if (n == 0) {
            memset(y, 0, (size_t)width * sizeof *y);
            continue;
        }
        if (p->kind != GGFW_POOL_MEAN) {
            memcpy(y, floats_of(run, &step->in[0], p->kind == GGFW_POOL_FIRST ? first : first + n - 1),
                   (size_t)width * sizeof *y);
            continue;
        }
        memcpy(y, floats_of(run, &step->in[0], first), (size_t)width * sizeof *y);
        for (int32_t row = 1; row < n; row++) add_row(y, floats_of(run, &step->in[0], first + row), width, y);
        scale_row(y, width, 0.0f, 1.0f / (float)n, NULL, NULL, y);
    }
}

#define GGFW_POOLING_KERNELS                                                                                           \
    {.name = "pool", .op = GGFW_OP_POOL, .format = GGFW_FORMAT_NONE, .row_classes = GGFW_ROWS_ANY,                     \
     .n_chunks = row_chunks, .run = pooling_run},

#endif
