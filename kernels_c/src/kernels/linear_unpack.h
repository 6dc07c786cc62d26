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

/* Codes of quad i of a sub-block, for the rows of one part. */
LINEAR_INLINE lv_bytes linear_code(int type, const uint8_t *sub, int part, int i)
{
    const int planes = LINEAR_TRAITS[type].planes, codebook = LINEAR_TRAITS[type].codebook;
    const uint8_t *plane = sub + part * (int)sizeof(lv_bytes);
    const int nibble = planes & PLANE_NIBBLE;
    lv_bytes w;
    if (nibble) {
        const lv_bytes v = lv_load(plane + 64 * (i / 2));
        w = i % 2 ? linear_bits(v, 15 << 4, -4) : lv_and(v, 15);
        plane += 256;
    }
    if (planes & PLANE_CRUMB) {
        const int s = i % 4;
        const lv_bytes crumb = linear_bits(lv_load(plane + 64 * (i / 4)), 3 << (2 * s), (nibble ? 4 : 0) - 2 * s);
        w = nibble ? lv_or(w, crumb) : crumb;
        plane += 128;
    }
    if (planes & PLANE_BIT) w = lv_or(w, linear_bits(lv_load(plane), 1 << i, (nibble ? 4 : 2) - i));
    if (planes & PLANE_BYTE) w = lv_load(plane + 64 * i);
    return codebook ? lv_lookup(LINEAR_CODEBOOK[codebook], w) : w;
}

/* The same of quads 0..7. */
LINEAR_INLINE void linear_codes(int type, const uint8_t *sub, int part, lv_bytes w[8])
{
    LV_UNROLL
    for (int i = 0; i < 8; i++) w[i] = linear_code(type, sub, part, i);
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
