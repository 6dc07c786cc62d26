/* delta_rule.h: the gated delta rule, row by row. */
#ifndef GGFW_DELTA_RULE_H
#define GGFW_DELTA_RULE_H

#include "scan.h"

VF_INLINE scan_shape delta_shape(const ggfw_step *step) {
    const ggfw_delta_rule *p = &step->params.delta_rule;
    return (scan_shape){p->n_head_v, p->d_k, p->d_v};
}

VF_INLINE void delta_block(const ggfw_step *step, const ggfw_run *run, const ggfw_segment *segment, int32_t head,
                           int32_t column, int left, float *scratch, int vectors) {
    const ggfw_delta_rule *p = &step->params.delta_rule;
    int32_t n_rows = p->d_k, block = vectors * VF_LANES, at = head * p->d_v + column;
    int32_t key_head = p->pairing == GGFW_PAIR_MOD ? head % p->n_head_k : head / (p->n_head_v / p->n_head_k);
    int whole = left >= VF_LANES;
    scan_state state = state_of_segment(run, p->state, segment);
    int64_t place = (int64_t)head * n_rows * p->d_v + column;
    if (state.read == NULL) memset(scratch, 0, (size_t)n_rows * block * sizeof *scratch);
    for (int32_t r = 0; r < segment->n_rows; r++) {
        int32_t row = segment->row + r;
        const float *query = floats_of(run, &step->in[0], row) + (int64_t)key_head * n_rows;
        const float *key = floats_of(run, &step->in[1], row) + (int64_t)key_head * n_rows;
        const float *value = floats_of(run, &step->in[2], row) + at;
        float decay = scan_exp(floats_of(run, &step->in[3], row)[head]);
        vf beta = vf_set(floats_of(run, &step->in[4], row)[head]), scale = vf_set(p->scale);
        vf known[SCAN_SUMS], delta[SCAN_SUMS], sum[SCAN_SUMS];
        scan_step s = scan_place(&state, place, scratch, p->d_v, block, r);
        scan_read(&s, n_rows, key, vectors, left, known);
        for (int j = 0; j < vectors; j++) /* what the decayed state knows under this key is taken off */
            delta[j] = vf_mul(beta, vf_sub(scan_load(value + 16 * j, whole, left), vf_mul(vf_set(decay), known[j])));
        scan_update(&s, n_rows, decay, key, delta, query, vectors, left, sum);
        float *y = floats_of(run, &step->out[0], row) + at;
        for (int j = 0; j < vectors; j++) scan_store(y + 16 * j, vf_mul(scale, sum[j]), whole, left);
    }
}

static void delta_wide(const ggfw_step *step, const ggfw_run *run, const ggfw_segment *segment, int32_t head,
                       int32_t column, int left, float *scratch) {
    (void)left;
    delta_block(step, run, segment, head, column, VF_LANES, scratch, SCAN_BLOCK / VF_LANES);
}

static void delta_narrow(const ggfw_step *step, const ggfw_run *run, const ggfw_segment *segment, int32_t head,
                         int32_t column, int left, float *scratch) {
    delta_block(step, run, segment, head, column, left, scratch, 1);
}

static int32_t delta_chunks(const ggfw_step *step, const ggfw_run *run, int32_t row_begin, int32_t row_end) {
    scan_shape shape = delta_shape(step);
    return scan_chunks(&shape, run, row_begin, row_end);
}

static void delta_run(const ggfw_step *step, const ggfw_run *run, int32_t row_begin, int32_t row_end, int32_t chunk,
                      void *scratch) {
    (void)row_end;
    scan_shape shape = delta_shape(step);
    scan_run(&shape, step, run, row_begin, chunk, scratch, delta_wide, delta_narrow);
}

static int64_t delta_scratch(const ggfw_step *step, const ggfw_run *run) {
    (void)run;
    scan_shape shape = delta_shape(step);
    return scan_scratch(&shape);
}

#define GGFW_DELTA_RULE_KERNELS                                                                                        \
    {.name = "delta_rule", .op = GGFW_OP_DELTA_RULE, .format = GGFW_FORMAT_NONE, .row_classes = GGFW_ROWS_ANY,         \
     .scratch_size = delta_scratch, .n_chunks = delta_chunks, .run = delta_run},

#endif
