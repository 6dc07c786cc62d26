/* short_conv.h: causal depthwise convolution over the last few rows of a sequence. */
#ifndef GGFW_SHORT_CONV_H
#define GGFW_SHORT_CONV_H

#include "scan.h"

#define CONV_ELEMENTS 32768 /* elements per chunk, so that neighbouring rows find each other's input in L2 */

/* y = sum of `taps` rows x[j] * w[j] (+ bias), perhaps silu of it. Call with a constant number of taps. */
VF_INLINE void conv_columns(const float *const *x, const float *w, int taps, const float *bias, int32_t n, int silu,
                            float *y) {
    for (int32_t i = 0; i < n; i += VF_LANES) {
        int left = n - i, whole = left >= VF_LANES;
        vf sum = bias ? scan_load(bias + i, whole, left) : vf_zero();
        for (int j = 0; j < taps; j++)
            sum = vf_fma(scan_load(x[j] + i, whole, left), scan_load(w + (int64_t)j * n + i, whole, left), sum);
        scan_store(y + i, silu ? vf_silu(sum) : sum, whole, left);
    }
}

/* Row r of the segment as the convolution sees it: before 0 stand the rows of the state; NULL = zeros. */
VF_INLINE const float *conv_input(const ggfw_step *step, const ggfw_run *run, const ggfw_segment *segment,
                                  const float *before, int32_t r) {
    const ggfw_short_conv *p = &step->params.short_conv;
    if (r >= 0) return floats_of(run, &step->in[0], segment->row + r);
    return before ? before + (int64_t)(p->kernel - 1 + r) * step->in[0].width : NULL;
}

/* The state after row r: the last rows up to it, and what it leaves of those before. */
static void conv_keep(const ggfw_step *step, const ggfw_run *run, const ggfw_segment *segment, const float *before,
                      int32_t r, float *after) {
    int32_t kept = step->params.short_conv.kernel - 1, n = step->in[0].width;
    for (int32_t j = 0; j < kept; j++) {
        const float *x = conv_input(step, run, segment, before, r + 1 - kept + j);
        if (x) memcpy(after + (int64_t)j * n, x, (size_t)n * sizeof *x);
        else memset(after + (int64_t)j * n, 0, (size_t)n * sizeof *x);
    }
}

static void conv_row(const ggfw_step *step, const ggfw_run *run, const ggfw_segment *segment, scan_state state,
                     int32_t r) {
    const ggfw_short_conv *p = &step->params.short_conv;
    int32_t n = step->in[0].width;
    const float *x[GGFW_CONV_MAX], *w = p->weight;
    float *y = floats_of(run, &step->out[0], segment->row + r);
    int taps = 0;
    for (int32_t j = 0; j < p->kernel; j++) { /* rows before the sequence's start are zero, and come first */
        const float *input = conv_input(step, run, segment, state.read, r - p->kernel + 1 + j);
        if (input) x[taps++] = input;
        else w += n;
    }
    int silu = p->activation == GGFW_CONV_SILU;
    if (taps == 4 && silu) conv_columns(x, w, 4, p->bias, n, 1, y);
    else if (taps == 3 && !silu) conv_columns(x, w, 3, p->bias, n, 0, y);
    else conv_columns(x, w, taps, p->bias, n, silu, y);
}

VF_INLINE int32_t conv_rows_per_chunk(const ggfw_step *step) {
    int32_t n = step->in[0].width;
    return n >= CONV_ELEMENTS ? 1 : CONV_ELEMENTS / n;
}

static int32_t conv_chunks(const ggfw_step *step, const ggfw_run *run, int32_t row_begin, int32_t row_end) {
    (void)run;
    return chunks_of_rows(row_begin, row_end, conv_rows_per_chunk(step));
}

static void conv_run(const ggfw_step *step, const ggfw_run *run, int32_t row_begin, int32_t row_end, int32_t chunk,
                     void *scratch) {
    (void)scratch;
    row_range rows = rows_of_chunk(row_begin, row_end, conv_rows_per_chunk(step), chunk);
    for (int32_t row = rows.begin; row < rows.end; row++) {
        const ggfw_segment *segment = &run->batch->segments[run->batch->row_segment[row]];
        scan_state state = state_of_segment(run, step->params.short_conv.state, segment);
        int32_t r = row - segment->row;
        conv_row(step, run, segment, state, r);
        float *after = state_after(&state, r);
        if (after) conv_keep(step, run, segment, state.read, r, after);
    }
}

#define GGFW_SHORT_CONV_KERNELS                                                                                        \
    {.name = "short_conv", .op = GGFW_OP_SHORT_CONV, .format = GGFW_FORMAT_NONE, .row_classes = GGFW_ROWS_ANY,         \
     .n_chunks = conv_chunks, .run = conv_run},

#endif
