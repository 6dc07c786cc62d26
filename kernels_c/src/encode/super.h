/* super.h: super-blocks of 256 whose sub-blocks have integer scales. Scales are found as floats, rounded, moved by one
 * where that lessens the error, and the super-block's own scale is fitted anew to what came of it, as long as it pays. */
#ifndef GGFW_ENCODE_SUPER_H
#define GGFW_ENCODE_SUPER_H

#include "lanes.h"
#include "levels.h"

enum { SUPER = 256, SIGNED_ROUNDS = 2, AFFINE_ROUNDS = 3 }; /* of fitting; more lessen no error that was measured */

/* Sums over the lanes [begin, begin + count) that make up a super-block, and one value for all of them. */
static float sum_of(vf all, int begin, int count) {
    float lanes[LANES], sum = 0.0f;
    vf_store(lanes, all);
    for (int lane = begin; lane < begin + count; lane++) sum += lanes[lane];
    return sum;
}

static float top_of(vf all, int begin, int count) {
    float lanes[LANES], top = 0.0f;
    vf_store(lanes, all);
    for (int lane = begin; lane < begin + count; lane++) top = fabsf(lanes[lane]) > fabsf(top) ? lanes[lane] : top;
    return top;
}

static void spread(float *all, int begin, int count, float value) {
    for (int lane = begin; lane < begin + count; lane++) all[lane] = value;
}

static void copy_lanes(float *to, vf from, int begin, int count) {
    float lanes[LANES];
    vf_store(lanes, from);
    memcpy(to + begin, lanes + begin, (size_t)count * sizeof *to);
}

static float as_half(float value) {
    uint8_t bytes[2];
    return put_half(bytes, value);
}

/* ---- x ~ own * scale * q: Q3_K, Q6_K, IQ4_XS ------------------------------------------------------------------------ */

typedef struct signed_form {
    float low, high;             /* of q; with levels, q is one of the uneven levels instead */
    int levels;
    float scale_low, scale_high; /* of the integer scales */
} signed_form;

VF_INLINE vf signed_q(const signed_form *f, vf a) {
    vf number;
    return f->levels ? nearest_level(a, &number) : vf_clamp(vf_round(a), f->low, f->high);
}

VF_INLINE vf signed_error(const signed_form *f, int n, const group *g, vf d) {
    vf inverse = vf_inverse(d), error = vf_zero();
    for (int i = 0; i < n; i++) {
        vf off = vf_sub(vf_mul(d, signed_q(f, vf_mul(g->x[i], inverse))), g->x[i]);
        error = vf_fma(vf_mul(g->w[i], off), off, error);
    }
    return error;
}

/* own: per lane the float16 scale of its super-block; scale: per lane its integer scale. */
VF_INLINE void search_signed(const signed_form *f, int n, const group *g, float *own, float *scale) {
    int count = SUPER / n;
    vf wanted = f->levels ? search_levels(n, g->x, g->w) : search_scale(n, g->x, g->w, f->low, f->high);
    float trial[LANES], least[LANES / 8];
    for (int begin = 0; begin < LANES; begin += count) {
        spread(trial, begin, count, as_half(top_of(wanted, begin, count) / f->scale_low));
        least[begin / count] = INFINITY;
    }
    memset(own, 0, LANES * sizeof *own); /* what stays where no error is a number */
    memset(scale, 0, LANES * sizeof *scale);
    for (int round = 0; round < SIGNED_ROUNDS; round++) {
        vf base = vf_load(trial), chosen = vf_zero(), error = vf_set(INFINITY);
        vf middle = vf_round(vf_mul(wanted, vf_inverse(base)));
        for (int move = -1; move <= 1; move++) {
            vf candidate = vf_clamp(vf_add(middle, vf_set((float)move)), f->scale_low, f->scale_high);
            vf now = signed_error(f, n, g, vf_mul(base, candidate));
            vm better = vf_less(now, error);
            error = vf_select(better, now, error);
            chosen = vf_select(better, candidate, chosen);
        }
        vf inverse = vf_inverse(vf_mul(base, chosen)), product = vf_zero(), square = vf_zero();
        for (int i = 0; i < n; i++) {
            vf q = vf_mul(signed_q(f, vf_mul(g->x[i], inverse)), chosen), wq = vf_mul(g->w[i], q);
            product = vf_fma(wq, g->x[i], product);
            square = vf_fma(wq, q, square);
        }
        for (int begin = 0; begin < LANES; begin += count) {
            float now = sum_of(error, begin, count), all = sum_of(square, begin, count);
            if (!(now < least[begin / count])) continue;
            least[begin / count] = now;
            copy_lanes(own, base, begin, count);
            copy_lanes(scale, chosen, begin, count);
            if (all > 0.0f) spread(trial, begin, count, as_half(sum_of(product, begin, count) / all));
        }
    }
}

/* ---- x ~ own * scale * q - own_low * low: Q2_K, Q4_K, Q5_K ----------------------------------------------------------- */

typedef struct affine {
    float own[LANES], own_low[LANES]; /* float16 scales of each lane's super-block */
    float scale[LANES], low[LANES];   /* integers, 0 ... top */
} affine;

VF_INLINE void search_affine_super(int n, const group *g, float high, float top, affine *found) {
    int count = SUPER / n;
    vf wanted, offset;
    search_affine(n, g->x, g->w, high, 1, &wanted, &offset);
    vf wanted_low = vf_sub(vf_zero(), offset);
    float trial[LANES], trial_low[LANES], least[LANES / 8];
    for (int begin = 0; begin < LANES; begin += count) {
        spread(trial, begin, count, as_half(top_of(wanted, begin, count) / top));
        spread(trial_low, begin, count, as_half(top_of(wanted_low, begin, count) / top));
        least[begin / count] = INFINITY;
    }
    memset(found, 0, sizeof *found); /* what stays where no error is a number */
    for (int round = 0; round < AFFINE_ROUNDS; round++) {
        vf base = vf_load(trial), base_low = vf_load(trial_low);
        vf chosen = vf_zero(), chosen_low = vf_zero(), error = vf_set(INFINITY);
        vf middle = vf_round(vf_mul(wanted, vf_inverse(base)));
        vf middle_low = vf_round(vf_mul(wanted_low, vf_inverse(base_low)));
        for (int move = -1; move <= 1; move++)
            for (int move_low = -1; move_low <= 1; move_low++) {
                vf candidate = vf_clamp(vf_add(middle, vf_set((float)move)), 0.0f, top);
                vf candidate_low = vf_clamp(vf_add(middle_low, vf_set((float)move_low)), 0.0f, top);
                vf m = vf_sub(vf_zero(), vf_mul(base_low, candidate_low));
                vf now = affine_error(n, g->x, g->w, vf_mul(base, candidate), m, high);
                vm better = vf_less(now, error);
                error = vf_select(better, now, error);
                chosen = vf_select(better, candidate, chosen);
                chosen_low = vf_select(better, candidate_low, chosen_low);
            }
        /* Least squares in (own, own_low) over all of a super-block. */
        vf inverse = vf_inverse(vf_mul(base, chosen)), m = vf_sub(vf_zero(), vf_mul(base_low, chosen_low));
        vf aa = vf_zero(), ab = vf_zero(), bb = vf_zero(), ax = vf_zero(), bx = vf_zero();
        for (int i = 0; i < n; i++) {
            vf q = vf_clamp(vf_round(vf_mul(vf_sub(g->x[i], m), inverse)), 0.0f, high);
            vf a = vf_mul(chosen, q), b = vf_sub(vf_zero(), chosen_low);
            vf wa = vf_mul(g->w[i], a), wb = vf_mul(g->w[i], b);
            aa = vf_fma(wa, a, aa);
            ab = vf_fma(wa, b, ab);
            bb = vf_fma(wb, b, bb);
            ax = vf_fma(wa, g->x[i], ax);
            bx = vf_fma(wb, g->x[i], bx);
        }
        for (int begin = 0; begin < LANES; begin += count) {
            float now = sum_of(error, begin, count);
            if (!(now < least[begin / count])) continue;
            least[begin / count] = now;
            copy_lanes(found->own, base, begin, count);
            copy_lanes(found->own_low, base_low, begin, count);
            copy_lanes(found->scale, chosen, begin, count);
            copy_lanes(found->low, chosen_low, begin, count);
            double paa = sum_of(aa, begin, count), pab = sum_of(ab, begin, count), pbb = sum_of(bb, begin, count);
            double pax = sum_of(ax, begin, count), pbx = sum_of(bx, begin, count), both = paa * pbb - pab * pab;
            double own = paa > 0.0 ? pax / paa : 0.0, own_low = 0.0;
            if (both > 1e-6 * paa * pbb) {
                own = (pbb * pax - pab * pbx) / both;
                own_low = (paa * pbx - pab * pax) / both;
            }
            if (own <= 0.0 || own_low < 0.0) continue; /* the formats have no such scales: what was found stays */
            spread(trial, begin, count, as_half((float)own));
            spread(trial_low, begin, count, as_half((float)own_low));
        }
    }
}

#endif
