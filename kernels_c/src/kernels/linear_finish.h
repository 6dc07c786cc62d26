/* linear_finish.h: what happens to a product before it is written: bias, scale, soft cap, residual. */
#ifndef GGFW_LINEAR_FINISH_H
#define GGFW_LINEAR_FINISH_H

#include "linear_vector.h"

typedef struct linear_finish {
    const float *bias; /* [n_out] or NULL */
    float scale;
    float softcap; /* 0 = none */
} linear_finish;

/* exp for |x| <= 88, relative error 2e-7: 2^n * e^r with r = x - n ln 2 in two steps and a polynomial of degree 6. */
LINEAR_INLINE float linear_exp(float x)
{
    const float n = (float)(int32_t)(x * 1.44269504f + (x < 0 ? -0.5f : 0.5f));
    const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    const float p = 1 + r * (1 + r * (1.0f / 2 + r * (1.0f / 6 + r * (1.0f / 24 + r * (1.0f / 120 + r * (1.0f / 720))))));
    return p * linear_float_of_bits((uint32_t)((int32_t)n + 127) << 23);
}

/* tanh: its series below 0.3, where 1 - 2 / (e^2x + 1) would cancel. No branches, so a loop over it is vectorised. */
LINEAR_INLINE float linear_tanh(float x)
{
    const float size = x < 0 ? -x : x;
    const float clamped = size < 10 ? size : 10;
    const float s = x * x;
    const float series =
        size * (1 + s * (-1.0f / 3 + s * (2.0f / 15 + s * (-17.0f / 315 + s * (62.0f / 2835 + s * (-1382.0f / 155925))))));
    const float far = 1 - 2 / (linear_exp(2 * clamped) + 1);
    const float value = size < 0.3f ? series : far;
    return x < 0 ? -value : value;
}

/* n <= 16 results of one row from column `first` on. residual may be the memory of out. */
LINEAR_INLINE void linear_finish_row(const linear_finish *f, const float *y, int64_t first, int n,
                                     const float *residual, float *out)
{
    float value[LINEAR_PANEL];
    for (int i = 0; i < LINEAR_PANEL; i++) value[i] = y[i];
    if (f->bias)
        for (int i = 0; i < n; i++) value[i] += f->bias[first + i];
    if (f->scale != 1)
        for (int i = 0; i < LINEAR_PANEL; i++) value[i] *= f->scale;
    if (f->softcap != 0) {
        const float inverse = 1 / f->softcap;
        for (int i = 0; i < LINEAR_PANEL; i++) value[i] = f->softcap * linear_tanh(value[i] * inverse);
    }
    if (residual)
        for (int i = 0; i < n; i++) value[i] += residual[first + i];
    for (int i = 0; i < n; i++) out[first + i] = value[i];
}

#endif
