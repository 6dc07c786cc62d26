/* vmath.h: exp, tanh, sigmoid, erfc, sin and cos of 16 floats, to about one unit in the last place. Polynomials are
 * weighted minimax fits of our own (Lawson iteration on Chebyshev nodes, errors below 2e-8 before rounding). NaN stays
 * NaN, infinities give the limits. */
#ifndef GGFW_VMATH_H
#define GGFW_VMATH_H

#include "simd.h"

/* e^x = 2^n e^r with |r| <= ln 2 / 2. */
VF_INLINE vf vf_exp(vf x) {
    x = vf_max(vf_set(-110.0f), vf_min(vf_set(90.0f), x)); /* beyond: 0 and infinity all the same */
    vf n = vf_round(vf_mul(x, vf_set(1.44269504f)));
    vf r = vf_fma(n, vf_set(-0.693359375f), x); /* ln 2 in two parts, the first with few bits */
    r = vf_fma(n, vf_set(2.12194440e-4f), r);
    vf p = vf_set(1.381459638e-03f);
    p = vf_fma(p, r, vf_set(8.368717091e-03f));
    p = vf_fma(p, r, vf_set(4.166838809e-02f));
    p = vf_fma(p, r, vf_set(1.666652063e-01f));
    p = vf_fma(p, r, vf_set(4.999999345e-01f));
    p = vf_fma(vf_mul(r, r), p, r);
    return vf_scale2(vf_add(p, vf_set(1.0f)), n);
}

VF_INLINE vf vf_sigmoid(vf x) {
    vf one = vf_set(1.0f);
    return vf_div(one, vf_add(one, vf_exp(vf_sub(vf_zero(), x))));
}

/* Odd polynomial near zero, 1 - 2 / (e^2x + 1) elsewhere. */
VF_INLINE vf vf_tanh(vf x) {
    vf u = vf_mul(x, x), one = vf_set(1.0f);
    vf p = vf_set(-5.717036560e-03f);
    p = vf_fma(p, u, vf_set(2.065057900e-02f));
    p = vf_fma(p, u, vf_set(-5.374349526e-02f));
    p = vf_fma(p, u, vf_set(1.333149125e-01f));
    p = vf_fma(p, u, vf_set(-3.333328392e-01f));
    vf near = vf_fma(vf_mul(u, x), p, x);
    vf far = vf_sub(one, vf_div(vf_set(2.0f), vf_add(vf_exp(vf_add(x, x)), one)));
    return vf_select(vf_less(vf_abs(x), vf_set(0.625f)), near, far);
}

/* e^(z^2) (1 - erf(z)) for z >= 0: P((z - 2) / (z + 2)) / (1 + 2 z). */
VF_INLINE vf vf_erfc_scaled(vf z) {
    z = vf_min(vf_set(10.0f), z); /* beyond, e^-(z^2) is zero */
    vf two = vf_set(2.0f);
    vf t = vf_div(vf_sub(z, two), vf_add(z, two));
    vf p = vf_set(-4.017179105e-04f);
    p = vf_fma(p, t, vf_set(-1.231880538e-03f));
    p = vf_fma(p, t, vf_set(1.313725045e-03f));
    p = vf_fma(p, t, vf_set(8.633274287e-03f));
    p = vf_fma(p, t, vf_set(-8.059599912e-03f));
    p = vf_fma(p, t, vf_set(-5.420471211e-02f));
    p = vf_fma(p, t, vf_set(1.640552671e-01f));
    p = vf_fma(p, t, vf_set(-1.660313896e-01f));
    p = vf_fma(p, t, vf_set(-9.276397667e-02f));
    p = vf_fma(p, t, vf_set(1.276978393e+00f));
    return vf_div(p, vf_fma(two, z, vf_set(1.0f)));
}

/* e^(-x^2 / 2) for 0 <= x: x = a + b with a short, x^2 = a^2 + b (a + x), of which a^2 is exact; e^-(rounded x^2) would
 * lose digits. */
VF_INLINE vf vf_bell(vf x) {
    x = vf_min(vf_set(15.0f), x);
    vf a = vf_mul(vf_round(vf_mul(x, vf_set(256.0f))), vf_set(0.00390625f)), half = vf_set(-0.5f);
    vf rest = vf_mul(vf_sub(x, a), vf_add(a, x));
    return vf_mul(vf_exp(vf_mul(half, vf_mul(a, a))), vf_exp(vf_mul(half, rest)));
}

VF_INLINE vf vf_silu(vf x) { return vf_div(x, vf_add(vf_set(1.0f), vf_exp(vf_sub(vf_zero(), x)))); }

/* x / 2 (1 + tanh(u)) = x sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3). */
VF_INLINE vf vf_gelu_tanh(vf x) {
    vf u2 = vf_mul(vf_mul(x, vf_set(1.5957691216057308f)), vf_fma(vf_mul(x, x), vf_set(0.044715f), vf_set(1.0f)));
    return vf_div(x, vf_add(vf_set(1.0f), vf_exp(vf_sub(vf_zero(), u2))));
}

/* x / 2 (1 + erf(x / sqrt 2)), by 1 - erf so that the left tail keeps its digits. */
VF_INLINE vf vf_gelu_erf(vf x) {
    vf positive = vf_abs(x);
    vf tail = vf_mul(vf_mul(vf_set(0.5f), vf_bell(positive)),
                     vf_erfc_scaled(vf_mul(positive, vf_set(0.70710678118654752f))));
    vf phi = vf_select(vf_less(x, vf_zero()), tail, vf_sub(vf_set(1.0f), tail));
    return vf_mul(x, phi);
}

/* sin and cos for |x| <= pi / 4 (a little more does no harm). */
VF_INLINE vf vf_sin_quarter(vf x) {
    vf u = vf_mul(x, x);
    vf p = vf_fma(vf_set(-1.951083814e-04f), u, vf_set(8.332131488e-03f));
    p = vf_fma(p, u, vf_set(-1.666665423e-01f));
    return vf_fma(vf_mul(u, x), p, x);
}
VF_INLINE vf vf_cos_quarter(vf x) {
    vf u = vf_mul(x, x);
    vf p = vf_fma(vf_set(2.443120315e-05f), u, vf_set(-1.388730602e-03f));
    p = vf_fma(p, u, vf_set(4.166664565e-02f));
    return vf_fma(vf_mul(u, u), p, vf_fma(vf_set(-0.5f), u, vf_set(1.0f)));
}

#endif
