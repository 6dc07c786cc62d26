/* levels.h: rounding to the 16 uneven levels of the IQ4 formats (ggml's kvalues_iq4nl). */
#ifndef GGFW_ENCODE_LEVELS_H
#define GGFW_ENCODE_LEVELS_H

#include "lanes.h"

static const float iq4_levels[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

/* The nearest level, and its number. */
VF_INLINE vf nearest_level(vf a, vf *number) {
    vf level = vf_set(iq4_levels[0]), at = vf_zero();
    VF_UNROLL
    for (int i = 1; i < 16; i++) {
        vm above = vf_less(vf_set(0.5f * (iq4_levels[i - 1] + iq4_levels[i])), a);
        level = vf_select(above, vf_set(iq4_levels[i]), level);
        at = vf_select(above, vf_set((float)i), at);
    }
    *number = at;
    return level;
}

/* Scale d for x ~ d * level; both signs are tried, since the levels reach further down than up. */
VF_INLINE vf search_levels(int n, const vf *x, const vf *w) {
    vf top = largest_signed(n, x), inverse_top = vf_inverse(top), best = vf_zero(), d = vf_zero();
    for (int k = -7; k <= 7; k++)
        for (int end = 0; end < 2; end++) {
            vf inverse = vf_mul(vf_set((end ? 113.0f : -127.0f) * (1.0f + 0.02f * (float)k)), inverse_top);
            vf wxl = vf_zero(), wll = vf_zero(), number;
            for (int i = 0; i < n; i++) {
                vf level = nearest_level(vf_mul(x[i], inverse), &number), wl = vf_mul(w[i], level);
                wxl = vf_fma(wl, x[i], wxl);
                wll = vf_fma(wl, level, wll);
            }
            vf fit = vf_ratio(wxl, wll, 0.0f), gain = vf_mul(fit, wxl);
            vm better = vf_less(best, gain);
            best = vf_select(better, gain, best);
            d = vf_select(better, fit, d);
        }
    return d;
}

static void number_levels(group *g, int n, vf d) {
    vf inverse = vf_inverse(d);
    for (int i = 0; i < n; i++) {
        float q[LANES];
        vf number;
        nearest_level(vf_mul(g->x[i], inverse), &number);
        vf_store(q, number);
        for (int lane = 0; lane < LANES; lane++) g->q[lane * n + i] = (uint8_t)q[lane];
    }
}

#endif
