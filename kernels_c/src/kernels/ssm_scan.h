/* ssm_scan.h: the selective state space of Mamba-2, row by row. */
#ifndef GGFW_SSM_SCAN_H
#define GGFW_SSM_SCAN_H

#include "scan.h"

VF_INLINE scan_shape ssm_shape(const ggfw_step *step) {
    const ggfw_ssm_scan *p = &step->params.ssm_scan;
    return (scan_shape){p->n_head, p->n_state, p->head_dim};
}

VF_INLINE void ssm_block(const ggfw_step *step, const ggfw_run *run, const ggfw_segment *segment, int32_t head,
                         int32_t column, int left, float *scratch, int vectors) {
    const ggfw_ssm_scan *p = &step->params.ssm_scan;
    int32_t n_rows = p->n_state, block = vectors * VF_LANES, at = head * p->head_dim + column;
    int32_t group = head / (p->n_head / p->n_group) * n_rows;
    int whole = left >= VF_LANES;
    scan_state state = state_of_segment(run, p->state, segment);
    int64_t place = (int64_t)head * n_rows * p->head_dim + column;
    if (state.read == NULL) memset(scratch, 0, (size_t)n_rows * block * sizeof *scratch);
    float rate = p->a[head], skip = p->d[head];
    for (int32_t r = 0; r < segment->n_rows; r++) {
        int32_t row = segment->row + r;
        const float *x = floats_of(run, &step->in[0], row) + at;
        float dt = floats_of(run, &step->in[1], row)[head], *y = floats_of(run, &step->out[0], row) + at;
        vf input[SCAN_SUMS], taken[SCAN_SUMS], sum[SCAN_SUMS];
        for (int j = 0; j < vectors; j++) {
            input[j] = scan_load(x + 16 * j, whole, left);
            taken[j] = vf_mul(vf_set(dt), input[j]);
        }
        scan_step s = scan_place(&state, place, scratch, p->head_dim, block, r);
        scan_update(&s, n_rows, scan_exp(dt * rate), floats_of(run, &step->in[2], row) + group, taken,
                    floats_of(run, &step->in[3], row) + group, vectors, left, sum);
        for (int j = 0; j < vectors; j++)
            scan_store(y + 16 * j, vf_fma(vf_set(skip), input[j], sum[j]), whole, left);
    }
}

static void ssm_wide(const ggfw_step *step, const ggfw_run *run, const ggfw_segment *segment, int32_t head,
                     int32_t column, int left, float *scratch) {
    (void)left;
    ssm_block(step, run, segment, head, column, VF_LANES, scratch, SCAN_BLOCK / VF_LANES);
}

static void ssm_narrow(const ggfw_step *step, const ggfw_run *run, const ggfw_segment *segment, int32_t head,
                       int32_t column, int left, float *scratch) {
    ssm_block(step, run, segment, head, column, left, scratch, 1);
}

static int32_t ssm_chunks(const ggfw_step *step, const ggfw_run *run, int32_t row_begin, int32_t row_end) {
    scan_shape shape = ssm_shape(step);
    return scan_chunks(&shape, run, row_begin, row_end);
}

static void ssm_run(const ggfw_step *step, const ggfw_run *run, int32_t row_begin, int32_t row_end, int32_t chunk,
                    void *scratch) {
    (void)row_end;
    scan_shape shape = ssm_shape(step);
    scan_run(&shape, step, run, row_begin, chunk, scratch, ssm_wide, ssm_narrow);
}

static int64_t ssm_scratch(const ggfw_step *step, const ggfw_run *run) {
    (void)run;
    scan_shape shape = ssm_shape(step);
    return scan_scratch(&shape);
}

#define GGFW_SSM_SCAN_KERNELS                                                                                          \
    {.name = "ssm_scan", .op = GGFW_OP_SSM_SCAN, .format = GGFW_FORMAT_NONE, .row_classes = GGFW_ROWS_ANY,             \
     .scratch_size = ssm_scratch, .n_chunks = ssm_chunks, .run = ssm_run},

#endif
