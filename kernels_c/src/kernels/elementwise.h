/* elementwise.h: functions of one tensor or of two, gates among them; float and quantised results. */
#ifndef GGFW_ELEMENTWISE_H
#define GGFW_ELEMENTWISE_H

#include "quantize.h"
#include "vmath.h"

#include <math.h>

#define EW_COLUMNS 4096 /* columns per chunk; a multiple of 32, so that chunks quantise whole blocks */

/* One function of 16 columns. Call with a constant kind. */
VF_INLINE vf ew_apply(int32_t kind, vf a, vf b, float alpha, float beta) {
    vf zero = vf_zero();
    switch (kind) {
    case GGFW_EW_ADD: return vf_add(a, b);
    case GGFW_EW_MUL: return vf_mul(a, b);
    case GGFW_EW_SCALE: return vf_fma(a, vf_set(alpha), vf_set(beta));
    case GGFW_EW_SILU: return vf_silu(a);
    case GGFW_EW_GELU_TANH: return vf_gelu_tanh(a);
    case GGFW_EW_GELU_ERF: return vf_gelu_erf(a);
    case GGFW_EW_RELU: return vf_max(zero, a);
    case GGFW_EW_RELU2: a = vf_max(zero, a); return vf_mul(a, a);
    case GGFW_EW_SIGMOID: return vf_sigmoid(a);
    case GGFW_EW_EXP: return vf_exp(a);
    case GGFW_EW_TANH: return vf_tanh(a);
    case GGFW_EW_SOFTCAP: return vf_mul(vf_set(alpha), vf_tanh(vf_div(a, vf_set(alpha))));
    case GGFW_EW_CLAMP: return vf_min(vf_set(beta), vf_max(vf_set(alpha), a));
    case GGFW_EW_SILU_MUL: return vf_mul(vf_silu(a), b);
    case GGFW_EW_GELU_TANH_MUL: return vf_mul(vf_gelu_tanh(a), b);
    case GGFW_EW_GELU_ERF_MUL: return vf_mul(vf_gelu_erf(a), b);
    case GGFW_EW_RELU2_MUL: a = vf_max(zero, a); return vf_mul(vf_mul(a, a), b);
    case GGFW_EW_SIGMOID_MUL: return vf_mul(vf_sigmoid(a), b);
    case GGFW_EW_GPT_OSS: {
        vf g = vf_min(vf_set(beta), a), u = vf_max(vf_set(-beta), vf_min(vf_set(beta), b));
        return vf_mul(vf_mul(g, vf_sigmoid(vf_mul(vf_set(alpha), g))), vf_add(u, vf_set(1.0f)));
    }
    default: return a;
    }
}

/* n columns of one row; b_step 0: b is one value. */
VF_INLINE void ew_row(int32_t kind, const float *a, const float *b, int32_t b_step, int32_t n, float alpha, float beta,
                      float *y) {
    vf vb = b && !b_step ? vf_set(*b) : vf_zero();
    for (int32_t i = 0; i < n; i += 16) {
        int32_t left = n - i;
        if (left >= 16) {
            if (b_step) vb = vf_load(b + i);
            vf_store(y + i, ew_apply(kind, vf_load(a + i), vb, alpha, beta));
        } else {
            if (b_step) vb = vf_load_n(b + i, left);
            vf_store_n(y + i, ew_apply(kind, vf_load_n(a + i, left), vb, alpha, beta), left);
        }
    }
}

static void ew_softplus(const float *a, int32_t n, float *y) { /* rare and narrow (step sizes of state spaces) */
    for (int32_t i = 0; i < n; i++) y[i] = a[i] > 20.0f ? a[i] : log1pf(expf(a[i]));
}

/* One loop per kind, so that the choice is made once per row. */
static void ew_columns(const ggfw_elementwise *p, const float *a, const float *b, int32_t b_step, int32_t n,
                       int32_t position, float *y) {
#define EW_CASE(kind)                                                                                                  \
    case kind: ew_row(kind, a, b, b_step, n, p->alpha, p->beta, y); break
    switch (p->kind) {
        EW_CASE(GGFW_EW_ADD);
        EW_CASE(GGFW_EW_MUL);
        EW_CASE(GGFW_EW_SCALE);
        EW_CASE(GGFW_EW_SILU);
        EW_CASE(GGFW_EW_GELU_TANH);
        EW_CASE(GGFW_EW_GELU_ERF);
        EW_CASE(GGFW_EW_RELU);
        EW_CASE(GGFW_EW_RELU2);
        EW_CASE(GGFW_EW_SIGMOID);
        EW_CASE(GGFW_EW_EXP);
        EW_CASE(GGFW_EW_TANH);
        EW_CASE(GGFW_EW_SOFTCAP);
        EW_CASE(GGFW_EW_CLAMP);
        EW_CASE(GGFW_EW_SILU_MUL);
        EW_CASE(GGFW_EW_GELU_TANH_MUL);
        EW_CASE(GGFW_EW_GELU_ERF_MUL);
        EW_CASE(GGFW_EW_RELU2_MUL);
        EW_CASE(GGFW_EW_SIGMOID_MUL);
        EW_CASE(GGFW_EW_GPT_OSS);
    case GGFW_EW_SOFTPLUS: ew_softplus(a, n, y); break;
    case GGFW_EW_POSITION_SCALE: {
        double periods = floor(((double)position + (double)p->gamma) / (double)p->alpha);
        float factor = (float)(1.0 + (double)p->beta * log1p(periods));
        ew_row(GGFW_EW_SCALE, a, NULL, 0, n, factor, 0.0f, y);
        break;
    }
    }
#undef EW_CASE
}

VF_INLINE int32_t ew_width(const ggfw_step *step) { return step->in[0].width; }
VF_INLINE int32_t ew_column_blocks(const ggfw_step *step) { return (ew_width(step) + EW_COLUMNS - 1) / EW_COLUMNS; }
VF_INLINE int32_t ew_rows(const ggfw_step *step) {
    return ew_width(step) >= EW_COLUMNS ? 1 : EW_COLUMNS / (ew_width(step) > 0 ? ew_width(step) : 1);
}

static int32_t ew_chunks(const ggfw_step *step, const ggfw_run *run, int32_t row_begin, int32_t row_end) {
    (void)run;
    return chunks_of_rows(row_begin, row_end, ew_rows(step)) * ew_column_blocks(step);
}

/* Position of a row of the step's domain. */
VF_INLINE int32_t ew_position(const ggfw_step *step, const ggfw_run *run, int32_t row) {
    if (step->domain == GGFW_DOMAIN_ROWS) return run->batch->positions[row];
    return step->domain == GGFW_DOMAIN_OUTPUTS ? run->batch->positions[run->batch->output_rows[row]] : 0;
}

static void ew_run(const ggfw_step *step, const ggfw_run *run, int32_t row_begin, int32_t row_end, int32_t chunk,
                   void *scratch) {
    const ggfw_elementwise *p = &step->params.elementwise;
    int32_t width = ew_width(step), blocks = ew_column_blocks(step);
    int32_t begin = chunk % blocks * EW_COLUMNS, end = width - begin > EW_COLUMNS ? begin + EW_COLUMNS : width;
    row_range r = rows_of_chunk(row_begin, row_end, ew_rows(step), chunk / blocks);
    for (int32_t row = r.begin; row < r.end; row++) {
        const float *a = floats_of(run, &step->in[0], row) + begin;
        float *y = step->out[0].width > 0 ? floats_of(run, &step->out[0], row) + begin : scratch;
        int32_t position = ew_position(step, run, row);
        if (p->vector && p->vector_width == 1) {
            ew_columns(p, a, p->vector, 0, end - begin, position, y);
        } else if (p->vector) { /* repeated over the width */
            for (int32_t at = begin; at < end;) {
                int32_t from = at % p->vector_width, n = p->vector_width - from;
                if (n > end - at) n = end - at;
                ew_columns(p, a + (at - begin), p->vector + from, 1, n, position, y + (at - begin));
                at += n;
            }
        } else {
            int one = step->in[1].width == 1 && width != 1;
            const float *b = step->in[1].width > 0 ? floats_of(run, &step->in[1], row) + (one ? 0 : begin) : NULL;
            ew_columns(p, a, b, b && !one, end - begin, position, y);
        }
        if (step->out[1].width > 0)
            quantize_columns(step->out[1].type, y, width, begin, end, row_of(run, &step->out[1], row));
    }
}

static int64_t ew_scratch(const ggfw_step *step, const ggfw_run *run) {
    (void)step;
    (void)run;
    return EW_COLUMNS * (int64_t)sizeof(float);
}

#define GGFW_ELEMENTWISE_KERNELS                                                                                       \
    {.name = "elementwise", .op = GGFW_OP_ELEMENTWISE, .format = GGFW_FORMAT_NONE, .row_classes = GGFW_ROWS_ANY,       \
     .scratch_size = ew_scratch, .n_chunks = ew_chunks, .run = ew_run},

#endif
