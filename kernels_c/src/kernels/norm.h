/* norm.h: RMS, layer and L2 norm over groups of columns, with residual, float and quantised results. */
#ifndef GGFW_NORM_H
#define GGFW_NORM_H

#include "quantize.h"

#include <math.h>

VF_INLINE float sum_of(const float *x, int32_t n) {
    vf a = vf_zero(), b = vf_zero();
    int32_t i = 0;
    for (; i + 32 <= n; i += 32) {
        a = vf_add(a, vf_load(x + i));
        b = vf_add(b, vf_load(x + i + 16));
    }
    for (; i < n; i += 16) a = vf_add(a, vf_load_n(x + i, n - i));
    return vf_sum(vf_add(a, b));
}

/* Sum of (x - mean)^2. */
VF_INLINE float square_sum_of(const float *x, int32_t n, float mean) {
    vf a = vf_zero(), b = vf_zero(), m = vf_set(mean);
    int32_t i = 0;
    for (; i + 32 <= n; i += 32) {
        vf p = vf_sub(vf_load(x + i), m), q = vf_sub(vf_load(x + i + 16), m);
        a = vf_fma(p, p, a);
        b = vf_fma(q, q, b);
    }
    for (; i < n; i += 16) {
        vf p = vf_first(vf_sub(vf_load_n(x + i, n - i), m), n - i);
        a = vf_fma(p, p, a);
    }
    return vf_sum(vf_add(a, b));
}

/* y = (x - mean) * factor (* weight) (+ bias); y may be x. */
VF_INLINE void scale_row(const float *x, int32_t n, float mean, float factor, const float *weight, const float *bias,
                         float *y) {
    vf m = vf_set(mean), f = vf_set(factor);
    for (int32_t i = 0; i < n; i += 16) {
        int32_t left = n - i;
        vf v = vf_mul(vf_sub(left >= 16 ? vf_load(x + i) : vf_load_n(x + i, left), m), f);
        if (weight) v = vf_mul(v, left >= 16 ? vf_load(weight + i) : vf_load_n(weight + i, left));
        if (bias) v = vf_add(v, left >= 16 ? vf_load(bias + i) : vf_load_n(bias + i, left));
        if (left >= 16) vf_store(y + i, v);
        else vf_store_n(y + i, v, left);
    }
}

VF_INLINE void add_row(const float *a, const float *b, int32_t n, float *sum) {
    int32_t i = 0;
    for (; i + 16 <= n; i += 16) vf_store(sum + i, vf_add(vf_load(a + i), vf_load(b + i)));
    if (i < n) vf_store_n(sum + i, vf_add(vf_load_n(a + i, n - i), vf_load_n(b + i, n - i)), n - i);
}

/* RMS norm of one head, also used by rope_store; y may be x. */
VF_INLINE void rms_row(const float *x, int32_t n, float eps, const float *weight, float *y) {
    float factor = 1.0f / sqrtf(square_sum_of(x, n, 0.0f) / (float)n + eps);
    scale_row(x, n, 0.0f, factor, weight, NULL, y);
}

static void norm_group(const ggfw_norm *p, const float *x, int32_t at, float *y) {
    int32_t n = p->group, w = p->weight_width > 0 ? at % p->weight_width : 0;
    float mean = p->kind == GGFW_NORM_LAYER ? sum_of(x, n) / (float)n : 0.0f;
    float squares = square_sum_of(x, n, mean);
    float factor = 1.0f / sqrtf((p->kind == GGFW_NORM_L2 ? squares : squares / (float)n) + p->eps);
    const float *weight = p->weight ? p->weight + w : NULL, *bias = p->bias ? p->bias + w : NULL;
    if (p->scale == 1.0f) {
        scale_row(x, n, mean, factor, weight, bias, y);
        return;
    }
    scale_row(x, n, mean, factor, weight, bias, y);
    scale_row(y, n, 0.0f, p->scale, NULL, NULL, y);
}

static void norm_run(const ggfw_step *step, const ggfw_run *run, int32_t row_begin, int32_t row_end, int32_t chunk,
                     void *scratch) {
    const ggfw_norm *p = &step->params.norm;
    int32_t width = step->in[0].width;
    int with_residual = step->in[1].width > 0, keeps_sum = step->out[2].width > 0;
    float *spare = scratch; /* two rows: the sum and the result, where the plan wants neither */
    row_range r = rows_of(step, row_begin, row_end, chunk);
    for (int32_t row = r.begin; row < r.end; row++) {
        const float *x = floats_of(run, &step->in[0], row);
        float *y = step->out[0].width > 0 ? floats_of(run, &step->out[0], row) : spare + (width + 15) / 16 * 16;
        if (with_residual) {
            float *sum = keeps_sum ? floats_of(run, &step->out[2], row) : spare;
            add_row(x, floats_of(run, &step->in[1], row), width, sum);
            x = sum;
        } else if (keeps_sum) {
            float *sum = floats_of(run, &step->out[2], row);
            if (sum != x) memcpy(sum, x, (size_t)width * sizeof *x);
        }
        for (int32_t at = 0; at < width; at += p->group) norm_group(p, x + at, at, y + at);
        if (step->out[1].width > 0) quantize_row(step->out[1].type, y, width, row_of(run, &step->out[1], row));
    }
}

static int64_t norm_scratch(const ggfw_step *step, const ggfw_run *run) {
    (void)run;
    return 2 * ((int64_t)step->in[0].width + 16) * (int64_t)sizeof(float);
}

#define GGFW_NORM_KERNELS                                                                                              \
    {.name = "norm", .op = GGFW_OP_NORM, .format = GGFW_FORMAT_NONE, .row_classes = GGFW_ROWS_ANY,                     \
     .scratch_size = norm_scratch, .n_chunks = row_chunks, .run = norm_run},

#endif
