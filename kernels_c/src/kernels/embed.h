/* embed.h: rows of a table, and rows of the arena moved about. */
#ifndef GGFW_EMBED_H
#define GGFW_EMBED_H

#include "norm.h"

static void embed_run(const ggfw_step *step, const ggfw_run *run, int32_t row_begin, int32_t row_end, int32_t chunk,
                      void *scratch) {
    (void)scratch;
    const ggfw_embed *p = &step->params.embed;
    const ggfw_weight *w = step->weight[0];
    const ggfw_batch *batch = run->batch;
    int32_t width = step->out[0].width;
    row_range r = rows_of(step, row_begin, row_end, chunk);
    if (p->by == 0 && batch->embeddings) {
        for (int32_t row = r.begin; row < r.end; row++)
            memcpy(floats_of(run, &step->out[0], row), batch->embeddings + (int64_t)row * width,
                   (size_t)width * sizeof(float));
    } else if (p->by == 3 || (p->by == 2 && batch->embeddings)) {
        int32_t first = 0;
        for (int32_t row = r.begin; row < r.end; row++)
            w->kernel->unpack_rows(w->data, w->n_out, w->n_in, &first, 1, floats_of(run, &step->out[0], row),
                                   step->out[0].stride);
    } else {
        const int32_t *ids = (p->by == 1 ? batch->positions : batch->tokens) + r.begin;
        w->kernel->unpack_rows(w->data, w->n_out, w->n_in, ids, r.end - r.begin, floats_of(run, &step->out[0], r.begin),
                               step->out[0].stride);
    }
    if (p->scale != 1.0f)
        for (int32_t row = r.begin; row < r.end; row++) {
            float *y = floats_of(run, &step->out[0], row);
            scale_row(y, width, 0.0f, p->scale, NULL, NULL, y);
        }
}

VF_INLINE void copy_row(const ggfw_run *run, const ggfw_view *from, int32_t from_row, const ggfw_view *to,
                        int32_t to_row) {
    int64_t bytes = activation_row_bytes(from->type, from->width);
    void *target = row_of(run, to, to_row), *source = row_of(run, from, from_row);
    if (target != source) memmove(target, source, (size_t)bytes);
}

static void copy_run(const ggfw_step *step, const ggfw_run *run, int32_t row_begin, int32_t row_end, int32_t chunk,
                     void *scratch) {
    (void)scratch;
    const ggfw_copy *p = &step->params.copy;
    row_range r = rows_of(step, row_begin, row_end, chunk);
    for (int32_t row = r.begin; row < r.end; row++) {
        if (p->slots <= 1) {
            copy_row(run, &step->in[0], row, &step->out[0], row);
            continue;
        }
        const float *x = floats_of(run, &step->in[0], row);
        float *y = floats_of(run, &step->out[0], row);
        size_t bytes = (size_t)(step->out[0].width / p->slots) * sizeof *y;
        for (int32_t s = 0; s < p->slots; s++) memcpy(y + (int64_t)s * p->to, x + (int64_t)s * p->from, bytes);
    }
}

static void gather_run(const ggfw_step *step, const ggfw_run *run, int32_t row_begin, int32_t row_end, int32_t chunk,
                       void *scratch) {
    (void)scratch;
    row_range r = rows_of(step, row_begin, row_end, chunk);
    for (int32_t row = r.begin; row < r.end; row++)
        copy_row(run, &step->in[0], run->batch->output_rows[row], &step->out[0], row);
}

#define GGFW_EMBED_KERNELS                                                                                             \
    {.name = "embed", .op = GGFW_OP_EMBED, .format = GGFW_FORMAT_NONE, .row_classes = GGFW_ROWS_ANY,                   \
     .n_chunks = row_chunks, .run = embed_run},                                                                        \
    {.name = "gather", .op = GGFW_OP_GATHER, .format = GGFW_FORMAT_NONE, .row_classes = GGFW_ROWS_ANY,                 \
     .n_chunks = row_chunks, .run = gather_run},                                                                       \
    {.name = "copy", .op = GGFW_OP_COPY, .format = GGFW_FORMAT_NONE, .row_classes = GGFW_ROWS_ANY,                     \
     .n_chunks = row_chunks, .run = copy_run},

#endif
