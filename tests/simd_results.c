/* simd_results.c: what the vector operations of simd_*.h and vmath.h give for fixed inputs, as 32-bit words on stdout: first
 * those that are the same in every unit, then, after a line's worth of marks, functions that may differ in the last places.
 * Compiled with one of GGFW_UNIT_*. */
#include <stdio.h>
#include <stdlib.h>

#include "kernels/quantize.h"
#include "kernels/vmath.h"

#define N 4096

static float inputs[N + 32], others[N + 32];
static uint32_t state = 1;

static uint32_t next(void) {
    state = state * 1664525u + 1013904223u;
    return state >> 8;
}

static float any(int spread) { /* sign * 2^-spread .. 2^spread */
    float mantissa = 1.0f + (float)next() * 0x1p-24f;
    int exponent = (int)(next() % (2 * (uint32_t)spread + 1)) - spread;
    return ldexpf(next() >> 12 & 1 ? mantissa : -mantissa, exponent);
}

static void put(const void *p, size_t words) { fwrite(p, 4, words, stdout); }
static void put_vf(vf a) {
    float all[16];
    vf_store(all, a);
    put(all, 16);
}

static void exact(void) {
    for (int i = 0; i < N; i += 16) {
        vf a = vf_load(inputs + i), b = vf_load(others + i);
        vf small = vf_mul(a, vf_set(0x1p-2f));
        put_vf(vf_add(a, b));
        put_vf(vf_sub(a, b));
        put_vf(vf_mul(a, b));
        put_vf(vf_div(a, b));
        put_vf(vf_max(a, b));
        put_vf(vf_min(a, b));
        put_vf(vf_add(vf_round(small), vf_zero())); /* -0.3 may become -0 or 0 */
        put_vf(vf_scale2(a, vf_round(vf_mul(b, vf_set(0x1p-6f)))));
        put_vf(vf_select(vf_less(a, b), a, b));
        put_vf(vf_first(a, i / 16 % 17));
        put_vf(vf_load_n(inputs + i, i / 16 % 17));
        float some[16] = {0}, one = vf_sum(a);
        vf_store_n(some, a, i / 16 % 17);
        put(some, 16);
        put(&one, 1);
        one = vf_largest(a);
        put(&one, 1);
        uint32_t bits = vf_largest_bits16(inputs + i);
        put(&bits, 1);
        int8_t q[16];
        int32_t sum = vf_quantize16(inputs + i, quantize_scale(bits, 127.0f), q);
        put(q, 4);
        put(&sum, 1);
        uint8_t row[128] = {0}; /* of 32 columns: planes, scale, sums, total */
        quantize_row(GGFW_Q16, inputs + i, 32, row);
        put(row, 20);
        uint16_t halves[32];
        vf_store_f16(halves, a);
        vf_store_bf16(halves + 16, a);
        put(halves, 16);
        put_vf(vf_load_i8((const uint8_t *)(inputs + i)));
        put_vf(vf_load_nibbles((const uint8_t *)(inputs + i), 0));
        put_vf(vf_load_nibbles((const uint8_t *)(inputs + i), 1));
    }
    for (int i = 0; i + 256 <= N; i += 256) {
        vf rows[16];
        for (int r = 0; r < 16; r++) rows[r] = vf_load(inputs + i + 16 * r);
        put_vf(vf_sum16(rows));
        vf_transpose16(rows);
        for (int r = 0; r < 16; r++) put_vf(rows[r]);
    }
    const float odd[16] = {NAN, 1, INFINITY, -INFINITY, 0, -0.0f, 65504, 65519.99f, 65520, 1e-8f, 6e-8f, 3e-5f, 1e-40f,
                           3.4e38f, -65520, 2};
    const float even[16] = {1, NAN, 1, 1, -0.0f, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, NAN};
    vf a = vf_load(odd), b = vf_load(even);
    uint16_t halves[32];
    put_vf(vf_max(a, b));
    put_vf(vf_min(a, b));
    put_vf(vf_select(vf_less(a, b), a, b));
    a = vf_select(vf_less(a, vf_set(INFINITY)), a, vf_set(7)); /* a NaN may have any payload */
    vf_store_f16(halves, a);
    vf_store_bf16(halves + 16, a);
    put(halves, 16);
    for (int h = 0; h < 65536; h += 16) {
        float wide[16];
        for (int i = 0; i < 16; i++) halves[i] = (uint16_t)(h + i);
        put_vf(vf_load_bf16(halves));
        vf_store(wide, vf_load_f16(halves));
        for (int i = 0; i < 16; i++) {
            uint32_t bits;
            memcpy(&bits, wide + i, 4);
            if (wide[i] != wide[i]) bits = 0x7fc00000;
            put(&bits, 1);
        }
    }
}

static void close_to(void) {
    for (int i = 0; i < N; i += 16) {
        vf a = vf_load(inputs + i), b = vf_load(others + i);
        put_vf(vf_fma(vf_abs(a), vf_abs(b), vf_abs(a))); /* no cancellation: one rounding or two */
        put_vf(vf_exp(a));
        put_vf(vf_tanh(a));
        put_vf(vf_sigmoid(a));
        put_vf(vf_silu(a));
        put_vf(vf_gelu_tanh(a));
        put_vf(vf_gelu_erf(a));
        put_vf(vf_sin_quarter(vf_mul(a, vf_set(0x1p-8f))));
        put_vf(vf_cos_quarter(vf_mul(a, vf_set(0x1p-8f))));
    }
}

int main(void) {
    for (int i = 0; i < N + 32; i++) {
        inputs[i] = any(6);
        others[i] = any(6);
    }
    exact();
    for (uint32_t i = 0, mark = 0xdeadbeef; i < 16; i++) put(&mark, 1);
    close_to();
    return 0;
}
