/* rows.h: where rows of views are, and how rows become chunks. */
#ifndef GGFW_ROWS_H
#define GGFW_ROWS_H

#include "ggfw_kernels.h"
#include "simd.h"

VF_INLINE void *row_of(const ggfw_run *run, const ggfw_view *view, int32_t row) {
    return run->arena + view->offset + (int64_t)row * view->stride;
}
VF_INLINE float *floats_of(const ggfw_run *run, const ggfw_view *view, int32_t row) {
    return (float *)row_of(run, view, row);
}

/* Rows of `width` elements that make one chunk of about CHUNK_ELEMENTS: some microseconds of work, several times the
 * cost of sharing it. Functions of the shape only, never of the number of threads. */
#define CHUNK_ELEMENTS 8192

VF_INLINE int32_t rows_per_chunk(int32_t width) {
    return width >= CHUNK_ELEMENTS ? 1 : CHUNK_ELEMENTS / (width > 0 ? width : 1);
}

VF_INLINE int32_t chunks_of_rows(int32_t row_begin, int32_t row_end, int32_t per_chunk) {
    return (row_end - row_begin + per_chunk - 1) / per_chunk;
}

typedef struct row_range {
    int32_t begin;
    int32_t end;
} row_range;

VF_INLINE row_range rows_of_chunk(int32_t row_begin, int32_t row_end, int32_t per_chunk, int32_t chunk) {
    int32_t begin = row_begin + chunk * per_chunk;
    return (row_range){begin, row_end - begin > per_chunk ? begin + per_chunk : row_end};
}

/* n_chunks of kernels whose chunks are whole rows of their (widest) output. */
static int32_t row_chunks(const ggfw_step *step, const ggfw_run *run, int32_t row_begin, int32_t row_end) {
    (void)run;
    int32_t width = step->out[0].width > step->out[1].width ? step->out[0].width : step->out[1].width;
    return chunks_of_rows(row_begin, row_end, rows_per_chunk(width));
}
VF_INLINE row_range rows_of(const ggfw_step *step, int32_t row_begin, int32_t row_end, int32_t chunk) {
    int32_t width = step->out[0].width > step->out[1].width ? step->out[0].width : step->out[1].width;
    return rows_of_chunk(row_begin, row_end, rows_per_chunk(width), chunk);
}

#endif
