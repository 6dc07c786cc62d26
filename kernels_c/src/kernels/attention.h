/* attention.h: what decode and prompt attention share: visible keys, scores, finishing a row, quantised results.
 *
 * Both cut the keys at fixed positions and treat every query by itself, in an order that depends on its own position
 * only: hidden keys in a block add exact zeros. So a row's bits do not depend on its company, its chunk or threads. */
#ifndef GGFW_ATTENTION_H
#define GGFW_ATTENTION_H

#include "cache.h"
#include "quantize.h"
#include "vmath.h"

#include <math.h>

/* Start of a running maximum: far below every score, but finite, so that differences stay numbers. */
#define ATTENTION_LOWEST (-3.0e38f)

VF_INLINE int32_t pad16(int32_t n) { return (n + 15) / 16 * 16; }
VF_INLINE int32_t smaller(int32_t a, int32_t b) { return a < b ? a : b; }
VF_INLINE int32_t larger(int32_t a, int32_t b) { return a > b ? a : b; }

/* Keys [begin, end) that a query sees. */
typedef struct key_range {
    int32_t begin;
    int32_t end;
} key_range;

VF_INLINE key_range visible_keys(const ggfw_attention *p, const ggfw_segment *segment, int32_t position) {
    int32_t end = p->bidirectional ? segment->position + segment->n_rows : position + 1;
    if (p->bidirectional == GGFW_BOTH_SIDES) {
        int32_t side = p->window / 2;
        return (key_range){larger(position - side, 0), smaller(end, position + 1 + side)};
    }
    int32_t begin = p->window > 0 && position >= p->window ? position - p->window + 1 : 0;
    return (key_range){begin, end};
}

/* 16 dot products of keys key .. key + 15 with a query to scores; keys out of range get -infinity. */
VF_INLINE vf finish_scores(const ggfw_attention *p, vf dots, int32_t key, key_range visible, int32_t position,
                           float slope) {
    vf s = vf_mul(dots, vf_set(p->scale));
    if (p->softcap > 0.0f) s = vf_mul(vf_set(p->softcap), vf_tanh(vf_div(s, vf_set(p->softcap))));
    if (slope != 0.0f) {
        static const float counting[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
        vf distance = vf_add(vf_load(counting), vf_set((float)(key - position)));
        s = vf_fma(vf_set(slope), distance, s);
    }
    if (key + 16 > visible.end) s = vf_select(vf_lanes_below(larger(visible.end - key, 0)), s, vf_set(-INFINITY));
    if (key < visible.begin) s = vf_select(vf_lanes_below(visible.begin - key), vf_set(-INFINITY), s);
    return s;
}

/* What a row's accumulators are multiplied by at the end: 1 / denominator, the sink joining maximum and sum. */
VF_INLINE float finish_factor(float top, float sum, const float *sink) {
    if (sink == NULL) return 1.0f / sum;
    float with_sink = top > *sink ? top : *sink;
    vf e = vf_exp(vf_sub(vf_load_n((const float[2]){top, *sink}, 2), vf_set(with_sink)));
    float parts[16];
    vf_store(parts, e);
    return parts[0] / (sum * parts[0] + parts[1]);
}

/* Pages lie anywhere, so the processor cannot guess what comes next. Level 1: into the first cache, else the second. */
VF_INLINE void prefetch_rows(const uint8_t *at, int64_t bytes, const int level) {
    for (int64_t i = 0; i < bytes; i += 64) {
        if (level == 1) __builtin_prefetch(at + i, 0, 3);
        else __builtin_prefetch(at + i, 0, 2);
    }
}

/* ---- where results go -------------------------------------------------------------------------------------------- */

/* Bytes at the start of run->shared for float rows that the plan has no place for. */
VF_INLINE int64_t attention_rows_bytes(const ggfw_step *step, const ggfw_run *run) {
    if (step->out[0].width > 0) return 0;
    return (int64_t)run->max_rows * pad16(step->out[1].width) * (int64_t)sizeof(float);
}

VF_INLINE float *attention_out(const ggfw_step *step, const ggfw_run *run, int32_t row) {
    if (step->out[0].width > 0) return floats_of(run, &step->out[0], row);
    return (float *)run->shared + (int64_t)row * pad16(step->out[1].width);
}

/* Whether a chunk (all heads of one kv head) makes whole Q8 blocks; otherwise rows are quantised when they are
 * complete. */
VF_INLINE int quantises_by_chunk(const ggfw_attention *p) { return p->n_head / p->n_head_kv * p->d_v % 32 == 0; }

VF_INLINE void attention_quantize_heads(const ggfw_step *step, const ggfw_run *run, int32_t row, int32_t kv_head) {
    const ggfw_attention *p = &step->params.attention;
    int32_t columns = p->n_head / p->n_head_kv * p->d_v, begin = kv_head * columns;
    quantize_columns(step->out[1].type, attention_out(step, run, row) + begin, p->n_head * p->d_v, begin, begin + columns,
                     row_of(run, &step->out[1], row));
}

#endif
