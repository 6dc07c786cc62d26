/* rope.h: cos and sin of positions, rotation of heads, and K and V on their way into the cache. */
#ifndef GGFW_ROPE_H
#define GGFW_ROPE_H

#include "cache.h"
#include "norm.h"
#include "vmath.h"

/* ---- the table --------------------------------------------------------------------------------------------------- */

/* cos and sin of 16 angles position * inv_freq. The product of a 24-bit and a 31-bit number and the reduction by
 * multiples of pi / 2 are done in double, the rest in float. */
VF_INLINE void rope_angles(double position, const float *inv_freq, int32_t n, float magnitude, float *out) {
    float reduced[16], quarter[16];
    for (int i = 0; i < 16; i++) {
        double angle = position * (double)(i < n ? inv_freq[i] : 0.0f);
        double k = (angle * 0.63661977236758134 + 6755399441055744.0) - 6755399441055744.0; /* round to integer */
        double r = (angle - k * 1.5707963267341256) - k * 6.0771005065061922e-11; /* pi / 2 in two parts */
        reduced[i] = (float)r;
        quarter[i] = (float)(k - 4.0 * ((k * 0.25 + 6755399441055744.0) - 6755399441055744.0)); /* -2 .. 2 */
    }
    vf x = vf_load(reduced), q = vf_load(quarter), zero = vf_zero(), half = vf_set(0.5f), m = vf_set(magnitude);
    vf s = vf_mul(vf_sin_quarter(x), m), c = vf_mul(vf_cos_quarter(x), m);
    vf odd = vf_abs(q); /* 1: sin and cos change places */
    vm swap = vf_less(vf_abs(vf_sub(odd, vf_set(1.0f))), half);
    vf sine = vf_select(swap, c, s), cosine = vf_select(swap, s, c);
    /* quarter turns: 0 (c, s), 1 (-s, c), 2 and -2 (-c, -s), -1 (s, -c) */
    vm opposite = vf_less(vf_set(1.5f), odd);
    vm sine_turns = vf_less(q, vf_set(-0.5f)), cosine_turns = vf_less(half, q);
    vf minus_sine = vf_sub(zero, sine), minus_cosine = vf_sub(zero, cosine);
    sine = vf_select(opposite, minus_sine, vf_select(sine_turns, minus_sine, sine));
    cosine = vf_select(opposite, minus_cosine, vf_select(cosine_turns, minus_cosine, cosine));
    vf_store(reduced, cosine);
    vf_store(quarter, sine);
    for (int i = 0; i < n && i < 16; i++) {
        out[2 * i] = reduced[i];
        out[2 * i + 1] = quarter[i];
    }
}

static void rope_table_run(const ggfw_step *step, const ggfw_run *run, int32_t row_begin, int32_t row_end,
                           int32_t chunk, void *scratch) {
    (void)scratch;
    const ggfw_rope *p = &step->params.rope;
    row_range r = rows_of(step, row_begin, row_end, chunk);
    for (int32_t row = r.begin; row < r.end; row++) {
        float *out = floats_of(run, &step->out[0], row);
        for (int32_t i = 0; i < p->n_rot / 2; i += 16)
            rope_angles((double)run->batch->positions[row], p->inv_freq + i, p->n_rot / 2 - i, p->magnitude,
                        out + 2 * i);
    }
}

/* ---- rotation ---------------------------------------------------------------------------------------------------- */

/* y = x rotated; x and y must not overlap. Columns from n_rot on pass unchanged. Pairs are (2i, 2i + 1) or
 * (i, i + n_rot / 2); table holds cos and sin of pair i at 2i. */
static void rotate_head(const float *restrict x, int32_t d, int32_t n_rot, int32_t pairing, const float *restrict table,
                        float *restrict y) {
    int32_t half = n_rot / 2;
    if (pairing == GGFW_ROPE_NORM) {
        for (int32_t i = 0; i < half; i++) {
            float c = table[2 * i], s = table[2 * i + 1], a = x[2 * i], b = x[2 * i + 1];
            y[2 * i] = a * c - b * s;
            y[2 * i + 1] = a * s + b * c;
        }
    } else {
        for (int32_t i = 0; i < half; i++) {
            float c = table[2 * i], s = table[2 * i + 1], a = x[i], b = x[i + half];
            y[i] = a * c - b * s;
            y[i + half] = a * s + b * c;
        }
    }
    if (d > n_rot) memcpy(y + n_rot, x + n_rot, (size_t)(d - n_rot) * sizeof *x);
}

/* Norm (where flagged) and rotation (where there is a table) of one head; the result is in scratch a or b (d floats
 * each), or x itself. */
VF_INLINE const float *prepare_head(const float *x, int32_t d, int with_norm, float eps, const float *weight,
                                    const ggfw_rope_store *p, const float *table, float *a, float *b) {
    if (with_norm) {
        rms_row(x, d, eps, weight, a);
        x = a;
    }
    if (table) {
        rotate_head(x, d, p->n_rot, p->pairing, table, b);
        x = b;
    }
    return x;
}

/* Work per row: all heads of q, k and v. */
VF_INLINE int32_t rope_store_rows(const ggfw_step *step) {
    return rows_per_chunk(step->in[0].width + step->in[1].width + step->in[2].width);
}

static int32_t rope_store_chunks(const ggfw_step *step, const ggfw_run *run, int32_t row_begin, int32_t row_end) {
    (void)run;
    return chunks_of_rows(row_begin, row_end, rope_store_rows(step));
}

static void store_k_v(const ggfw_step *step, const ggfw_run *run, int32_t row, const float *table, float *a, float *b) {
    const ggfw_rope_store *p = &step->params.rope_store;
    const ggfw_pool *pool = &run->pools[p->pool];
    const ggfw_segment *segment = &run->batch->segments[run->batch->row_segment[row]];
    int32_t position = run->batch->positions[row];
    int32_t page = page_of(run, segment, p->pool, position), slot = position % pool->page_size;
    const float *k = floats_of(run, &step->in[1], row);
    for (int32_t h = 0; h < p->n_head_kv; h++) {
        const float *x = prepare_head(k + h * p->d_k, p->d_k, p->k_norm || p->norm_flags & GGFW_NORM_K, p->eps,
                                      p->k_norm, p, table, a, b);
        kv_store_row(k_at(pool, p->layer, page, h, slot), pool->type, x, p->d_k, slot);
    }
    if (step->in[2].width == 0) return;
    const float *v = floats_of(run, &step->in[2], row);
    for (int32_t h = 0; h < p->n_head_kv; h++) {
        const float *x = prepare_head(v + h * p->d_v, p->d_v, p->v_norm || p->norm_flags & GGFW_NORM_V, p->eps,
                                      p->v_norm, p, NULL, a, b);
        kv_store_row(v_at(pool, p->layer, page, h, slot), pool->type, x, p->d_v, slot);
    }
}

static void rope_store_run(const ggfw_step *step, const ggfw_run *run, int32_t row_begin, int32_t row_end,
                           int32_t chunk, void *scratch) {
    const ggfw_rope_store *p = &step->params.rope_store;
    int32_t d = p->d_k > p->d_v ? p->d_k : p->d_v;
    float *a = scratch, *b = a + (d + 15) / 16 * 16;
    row_range r = rows_of_chunk(row_begin, row_end, rope_store_rows(step), chunk);
    for (int32_t row = r.begin; row < r.end; row++) {
        const float *table = step->in[3].width > 0 ? floats_of(run, &step->in[3], row) : NULL;
        const float *q = floats_of(run, &step->in[0], row);
        float *to = floats_of(run, &step->out[0], row);
        for (int32_t h = 0; step->in[0].width > 0 && h < p->n_head; h++) {
            const float *x = prepare_head(q + h * p->d_k, p->d_k, p->q_norm || p->norm_flags & GGFW_NORM_Q, p->eps,
                                          p->q_norm, p, table, a, b);
            if (p->q_scale != 1.0f) scale_row(x, p->d_k, 0.0f, p->q_scale, NULL, NULL, to + h * p->d_k);
            else if (x != to + h * p->d_k) memcpy(to + h * p->d_k, x, (size_t)p->d_k * sizeof *x);
        }
        if (step->in[1].width > 0) store_k_v(step, run, row, table, a, b);
    }
}

static int64_t rope_store_scratch(const ggfw_step *step, const ggfw_run *run) {
    (void)run;
    const ggfw_rope_store *p = &step->params.rope_store;
    return 2 * ((int64_t)(p->d_k > p->d_v ? p->d_k : p->d_v) + 16) * (int64_t)sizeof(float);
}

#define GGFW_ROPE_KERNELS                                                                                              \
    {.name = "rope_table", .op = GGFW_OP_ROPE_TABLE, .format = GGFW_FORMAT_NONE, .row_classes = GGFW_ROWS_ANY,         \
     .n_chunks = row_chunks, .run = rope_table_run},                                                                   \
    {.name = "rope_store", .op = GGFW_OP_ROPE_STORE, .format = GGFW_FORMAT_NONE, .row_classes = GGFW_ROWS_ANY,         \
     .scratch_size = rope_store_scratch, .n_chunks = rope_store_chunks, .run = rope_store_run},

#endif
