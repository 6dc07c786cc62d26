/* search.h: scales of 16 blocks at once, one block per lane, so that nothing is summed across lanes.
 *
 * A block is n vectors: lane l of x[i] is element i of block l. Both searches try rounding the block on a handful of
 * grids and give each grid the scale (and offset) that fits its integers best: weighted least squares. The idea is that
 * of ggml's make_qx_quants and make_qkx2_quants (ggml-quants.c); grids, refinement and order are ours. */
#ifndef GGFW_ENCODE_SEARCH_H
#define GGFW_ENCODE_SEARCH_H

#include "../kernels/simd.h"

#include <math.h>

enum { LANES = VF_LANES, MAX_BLOCK = 32 };

VF_INLINE vf vf_clamp(vf a, float low, float high) { return vf_min(vf_max(a, vf_set(low)), vf_set(high)); }

/* a / b, and zero where b is not above `least`. */
VF_INLINE vf vf_ratio(vf a, vf b, float least) {
    vm usable = vf_less(vf_set(least), b);
    return vf_select(usable, vf_div(a, vf_select(usable, b, vf_set(1.0f))), vf_zero());
}

/* 1 / a, and zero where a is (nearly) zero. */
VF_INLINE vf vf_inverse(vf a) {
    vm usable = vf_less(vf_set(1e-30f), vf_abs(a));
    return vf_select(usable, vf_div(vf_set(1.0f), vf_select(usable, a, vf_set(1.0f))), vf_zero());
}

/* The element of largest magnitude, with its sign. */
VF_INLINE vf largest_signed(int n, const vf *x) {
    vf top = x[0];
    for (int i = 1; i < n; i++) top = vf_select(vf_less(vf_abs(top), vf_abs(x[i])), x[i], top);
    return top;
}

/* One grid of search_scale: round with `grid * step`, fit the scale, and keep it in the lanes where it gains most. */
VF_INLINE void try_scale(int n, const vf *x, const vf *w, float low, float high, vf grid, vf step, vf *best, vf *d,
                         vf *at) {
    vf inverse = vf_mul(grid, step), wxq = vf_zero(), wqq = vf_zero();
    for (int i = 0; i < n; i++) {
        vf q = vf_clamp(vf_round(vf_mul(x[i], inverse)), low, high), wq = vf_mul(w[i], q);
        wxq = vf_fma(wq, x[i], wxq);
        wqq = vf_fma(wq, q, wqq);
    }
    vf fit = vf_ratio(wxq, wqq, 0.0f), gain = vf_mul(fit, wxq); /* by how much d q lessens the error */
    vm better = vf_less(*best, gain);
    *best = vf_select(better, gain, *best);
    *d = vf_select(better, fit, *d);
    *at = vf_select(better, grid, *at);
}

/* Scale d for x ~ d q, low <= q <= high (low = -high - 1): the largest element lies near `low`, so d has the sign
 * opposite to its own. Grids three steps apart are tried first, then the neighbours of each lane's best: 9 grids find
 * what 25 at even distances find, for the error as a function of the grid is rough but not without shape. */
VF_INLINE vf search_scale(int n, const vf *x, const vf *w, float low, float high) {
    const float width = 0.13f; /* of a step, in units of the largest element's integer */
    vf step = vf_mul(vf_set(width), vf_inverse(largest_signed(n, x)));
    vf best = vf_zero(), d = vf_zero(), at = vf_set(low / width);
    for (int k = -9; k <= 9; k += 3)
        try_scale(n, x, w, low, high, vf_set(low / width + (float)k), step, &best, &d, &at);
    vf middle = at;
    for (int k = -1; k <= 1; k += 2)
        try_scale(n, x, w, low, high, vf_add(middle, vf_set((float)k)), step, &best, &d, &at);
    return d;
}

/* Weighted squared error of x ~ d q + m with q rounded to 0 ... high. */
VF_INLINE vf affine_error(int n, const vf *x, const vf *w, vf d, vf m, float high) {
    vf inverse = vf_inverse(d), error = vf_zero();
    for (int i = 0; i < n; i++) {
        vf q = vf_clamp(vf_round(vf_mul(vf_sub(x[i], m), inverse)), 0.0f, high);
        vf off = vf_sub(vf_fma(d, q, m), x[i]);
        error = vf_fma(vf_mul(w[i], off), off, error);
    }
    return error;
}

/* The scale and the offset that fit integers best which (d, m) rounds to; the offset stays <= 0 if asked. */
VF_INLINE void refit_affine(int n, const vf *x, const vf *w, float high, int below_zero, vf *d, vf *m) {
    vf inverse = vf_inverse(*d), sw = vf_zero(), sx = vf_zero(), sq = vf_zero(), sqq = vf_zero(), sxq = vf_zero();
    for (int i = 0; i < n; i++) {
        vf q = vf_clamp(vf_round(vf_mul(vf_sub(x[i], *m), inverse)), 0.0f, high), wq = vf_mul(w[i], q);
        sw = vf_add(sw, w[i]);
        sx = vf_fma(w[i], x[i], sx);
        sq = vf_add(sq, wq);
        sqq = vf_fma(wq, q, sqq);
        sxq = vf_fma(wq, x[i], sxq);
    }
    vf determinant = vf_sub(vf_mul(sw, sqq), vf_mul(sq, sq));
    vf fit = vf_ratio(vf_sub(vf_mul(sw, sxq), vf_mul(sq, sx)), determinant, 0.0f);
    vf offset = vf_ratio(vf_sub(vf_mul(sqq, sx), vf_mul(sq, sxq)), determinant, 0.0f);
    if (below_zero) {
        vm above = vf_less(vf_zero(), offset);
        fit = vf_select(above, vf_ratio(sxq, sqq, 0.0f), fit);
        offset = vf_select(above, vf_zero(), offset);
    }
    vm usable = vf_less(vf_zero(), determinant);
    *d = vf_select(usable, fit, *d);
    *m = vf_select(usable, offset, *m);
}

/* Scale *d >= 0 and offset *m for x ~ d q + m, 0 <= q <= high. Of grids that all fit but for rounding, as those of a
 * block that lay on one before do, the first counts, which is the coarsest and has the offset nearest to the values. */
VF_INLINE void search_affine(int n, const vf *x, const vf *w, float high, int below_zero, vf *d, vf *m) {
    vf low = x[0], top = x[0], rounding = vf_zero();
    for (int i = 0; i < n; i++) {
        low = vf_min(low, x[i]);
        top = vf_max(top, x[i]);
        rounding = vf_fma(vf_mul(w[i], x[i]), x[i], rounding);
    }
    rounding = vf_mul(rounding, vf_set(1e-10f));
    if (below_zero) low = vf_min(low, vf_zero());
    vf range = vf_sub(top, low), best = vf_set(INFINITY);
    *d = vf_zero();
    *m = low;
    for (int k = -9; k <= 11; k++) {
        vf scale = vf_mul(range, vf_set(1.0f / (high + 0.1f * (float)k))), offset = low;
        refit_affine(n, x, w, high, below_zero, &scale, &offset);
        refit_affine(n, x, w, high, below_zero, &scale, &offset);
        vf error = vf_max(affine_error(n, x, w, scale, offset, high), rounding);
        vm better = vf_less(error, best);
        best = vf_select(better, error, best);
        *d = vf_select(better, scale, *d);
        *m = vf_select(better, offset, *m);
    }
}

#endif
