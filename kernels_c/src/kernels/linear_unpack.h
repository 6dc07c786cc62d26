/* linear_unpack.h: packed planes and headers (linear_format.h) to vectors of codes and scales. */
#ifndef GGFW_LINEAR_UNPACK_H
#define GGFW_LINEAR_UNPACK_H

#include "linear_vector.h"

/* The bits of v under `mask` shifted left by n (right when n < 0), kept under mask << n. */
LINEAR_INLINE lv_bytes linear_bits(lv_bytes v, int mask, int n)
{
    if (n > 0) v = lv_left(v, n);
    if (n < 0) v = lv_right(v, -n);
    return lv_and(v, n > 0 ? mask << n : mask >> -n);
}

/* Codes of one sub-block, quads 0..7, for the rows of one part. */
LINEAR_INLINE void linear_codes(int type, const uint8_t *sub, int part, lv_bytes w[8])
{
    const int planes = LINEAR_TRAITS[type].planes, codebook = LINEAR_TRAITS[type].codebook;
    const uint8_t *plane = sub + part * (int)sizeof(lv_bytes);
    const int nibble = planes & PLANE_NIBBLE;
    if (nibble) {
        LV_UNROLL
        for (int j = 0; j < 4; j++) {
            const lv_bytes v = lv_load(plane + 64 * j);
            w[2 * j] = lv_and(v, 15);
            w[2 * j + 1] = linear_bits(v, 15 << 4, -4);
        }
        plane += 256;
    }
    if (planes & PLANE_CRUMB) {
        LV_UNROLL
        for (int c = 0; c < 2; c++) {
            const lv_bytes v = lv_load(plane + 64 * c);
            LV_UNROLL
            for (int s = 0; s < 4; s++) {
                const lv_bytes crumb = linear_bits(v, 3 << (2 * s), (nibble ? 4 : 0) - 2 * s);
                w[4 * c + s] = nibble ? lv_or(w[4 * c + s], crumb) : crumb;
            }
        }
        plane += 128;
    }
    if (planes & PLANE_BIT) {
        const lv_bytes v = lv_load(plane);
        LV_UNROLL
        for (int i = 0; i < 8; i++) w[i] = lv_or(w[i], linear_bits(v, 1 << i, (nibble ? 4 : 2) - i));
    }
    if (planes & PLANE_BYTE) {
        LV_UNROLL
        for (int i = 0; i < 8; i++) w[i] = lv_load(plane + 64 * i);
    }
    if (codebook) {
        LV_UNROLL
        for (int i = 0; i < 8; i++) w[i] = lv_lookup(LINEAR_CODEBOOK[codebook], w[i]);
    }
}

/* d and m of one half (16 columns; halves are equal where linear_halves() is 1) of sub-block `sub` of a block:
 * weight = d * (code - offset) + m. */
LINEAR_INLINE void linear_scale(int type, const uint8_t *header, int sub, int half, int part, lv_floats *d, lv_floats *m)
{
    const int row = part * LV_LANES;
    *m = lv_zero();
    if (LINEAR_TRAITS[type].scales == SCALE_E8M0) {
        *d = lv_load_e8m0(header + row);
        return;
    }
    *d = lv_load_f16(header + 2 * row);
    if (linear_has_min(type)) *m = lv_load_f16(header + 32 + 2 * row);
    switch (LINEAR_TRAITS[type].scales) {
    case SCALE_K16:
        *d = lv_mul(*d, lv_convert(lv_load_i8(header + 32 + 16 * (2 * sub + half) + row)));
        break;
    case SCALE_K32:
        *d = lv_mul(*d, lv_convert(lv_load_i8(header + 32 + 16 * sub + row)));
        break;
    case SCALE_K16_DM: {
        const lv_ints both = lv_load_u8(header + 64 + 16 * (2 * sub + half) + row);
        *d = lv_mul(*d, lv_convert(lv_low_nibbles(both)));
        *m = lv_negate(lv_mul(*m, lv_convert(lv_high_nibbles(both))));
        break;
    }
    case SCALE_K32_DM:
        *d = lv_mul(*d, lv_convert(lv_load_u8(header + 64 + 16 * sub + row)));
        *m = lv_negate(lv_mul(*m, lv_convert(lv_load_u8(header + 64 + 128 + 16 * sub + row))));
        break;
    }
}

#endif
