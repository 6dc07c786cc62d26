/* reduce.h: one value for each group of a row's columns. */
#ifndef GGFW_REDUCE_H
#define GGFW_REDUCE_H

#include "norm.h"

VF_INLINE int32_t reduce_rows(const ggfw_step *step) { return rows_per_chunk(step->in[0].width); }

static int32_t reduce_chunks(const ggfw_step *step, const ggfw_run *run, int32_t row_begin, int32_t row_end) {
    (void)run;
    return chunks_of_rows(row_begin, row_end, reduce_rows(step));
}

static void reduce_run(const ggfw_step *step, const ggfw_run *run, int32_t row_begin, int32_t row_end, int32_t chunk,
                       void *scratch) {
    (void)scratch;
    const ggfw_reduce *p = &step->params.reduce;
    row_range r = rows_of_chunk(row_begin, row_end, reduce_rows(step), chunk);
    for (int32_t row = r.begin; row < r.end; row++) {
        const float *x = floats_of(run, &step->in[0], row);
        float *y = floats_of(run, &step->out[0], row);
        for (int32_t i = 0; i < step->out[0].width; i++, x += p->group)
            y[i] = p->kind == GGFW_REDUCE_MEAN ? sum_of(x, p->group) / (float)p->group
                                               : sqrtf(square_sum_of(x, p->group, 0.0f));
    }
}

#define GGFW_REDUCE_KERNELS                                                                                            \
    {.name = "reduce", .op = GGFW_OP_REDUCE, .format = GGFW_FORMAT_NONE, .row_classes = GGFW_ROWS_ANY,                 \
     .n_chunks = reduce_chunks, .run = reduce_run},

#endif
