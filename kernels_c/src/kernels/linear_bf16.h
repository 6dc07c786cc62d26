/* linear_bf16.h: rows of activations and packed panels of weights as tiles of bf16; AVX-512 BF16.
 *
 * A number is split into *planes*: its bf16, the bf16 of what that leaves, and so on, 8 bits each. The product of numbers of
 * several planes is the sum of the products of their planes, the smallest of which are left out (linear_amx.h).
 *
 *     activations   per 32 rows and 32 columns, [plane][2]: tiles of 16 rows x 32 columns
 *     weights       per 2 panels and 32 columns, [plane][2]: tiles of 16 pairs of columns x 16 rows of the panel
 *
 * bf16 conversion rounds to nearest even and takes denormals for zero, as the tile products do.
 */
#ifndef GGFW_LINEAR_BF16_H
#define GGFW_LINEAR_BF16_H

#include "activation.h"
#include "linear_unpack.h"
#include "tiles.h"

enum { BF16_MAX_PLANES = 3 };

/* The floats of 16 bf16, of the lower (0) or upper (1) half. */
LINEAR_INLINE __m512 bf16_half(__m512i v, int upper)
{
    const __m256i half = upper ? _mm512_extracti64x4_epi64(v, 1) : _mm512_castsi512_si256(v);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

/* ---- activations --------------------------------------------------------------------------------------------------- */

/* Columns [32 k, 32 k + 32) of a row of activation type x and n columns; zeros behind the last. */
LINEAR_INLINE void bf16_columns(int x, const uint8_t *row, int64_t n, int64_t k, __m512 v[2])
{
    if (x == GGFW_F32) {
        const float *at = (const float *)row + LINEAR_BLOCK * k;
        const int64_t left = n - LINEAR_BLOCK * k;
        const uint32_t mask = left >= 32 ? UINT32_MAX : (1u << left) - 1;
        v[0] = _mm512_maskz_loadu_ps((__mmask16)mask, at);
        v[1] = _mm512_maskz_loadu_ps((__mmask16)(mask >> 16), at + 16);
        return;
    }
    const uint8_t *q = row + (x == GGFW_Q16 ? 64 : 32) * k;
    for (int h = 0; h < 2; h++) {
        __m512i code = _mm512_cvtepi8_epi32(_mm_loadu_si128((const void *)(q + 16 * h)));
        const int64_t scale = x == GGFW_Q16 ? k : 2 * k + h;
        if (x == GGFW_Q16)
            code = _mm512_add_epi32(_mm512_slli_epi32(code, 7),
                                    _mm512_cvtepi8_epi32(_mm_loadu_si128((const void *)(q + 32 + 16 * h))));
        const float d = linear_float_of_bits(linear_load32(row + activation_scales(x, n) + 4 * scale));
        v[h] = _mm512_mul_ps(_mm512_cvtepi32_ps(code), _mm512_set1_ps(d));
    }
}

/* Row r (of 32) of all column blocks of a block of activation tiles; row NULL: zeros. */
LINEAR_INLINE void bf16_pack_row(int x, int planes, const uint8_t *row, int64_t n, int r, uint8_t *tiles)
{
    uint8_t *at = tiles + r / TILE_ROWS * TILE_BYTES + r % TILE_ROWS * 64;
    for (int64_t k = 0; k < (n + LINEAR_BLOCK - 1) / LINEAR_BLOCK; k++) {
        __m512 v[2] = { _mm512_setzero_ps(), _mm512_setzero_ps() };
        if (row) bf16_columns(x, row, n, k, v);
        LV_UNROLL
        for (int p = 0; p < planes; p++, at += 2 * TILE_BYTES) {
            const __m512i pairs = (__m512i)_mm512_cvtne2ps_pbh(v[1], v[0]);
            _mm512_store_si512(at, pairs);
            v[0] = _mm512_sub_ps(v[0], bf16_half(pairs, 0));
            v[1] = _mm512_sub_ps(v[1], bf16_half(pairs, 1));
        }
    }
}

/* ---- weights ------------------------------------------------------------------------------------------------------- */

/* Where a vector of 16 even and 16 odd numbers has its pairs. */
static const uint16_t bf16_pairs[32] __attribute__((aligned(64))) = {
    0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
};

LINEAR_INLINE void bf16_store_pairs(int planes, __m512 even, __m512 odd, uint8_t *at)
{
    LV_UNROLL
    for (int p = 0; p < planes; p++, at += 2 * TILE_BYTES) {
        const __m512i both = (__m512i)_mm512_cvtne2ps_pbh(odd, even);
        _mm512_store_si512(at, _mm512_permutexvar_epi16(_mm512_load_si512(bf16_pairs), both));
        if (p + 1 == planes) break;
        even = _mm512_sub_ps(even, bf16_half(both, 0));
        odd = _mm512_sub_ps(odd, bf16_half(both, 1));
    }
}

/* Code t of every quad as 1 + code / 256: its bits are put where the mantissa of 1.0 begins. */
LINEAR_INLINE __m512 bf16_code(__m512i v, int t)
{
    const __m512i moved = t < 2 ? _mm512_slli_epi32(v, (unsigned)(15 - 8 * t)) : _mm512_srli_epi32(v, (unsigned)(8 * t - 15));
    return _mm512_castsi512_ps(
        _mm512_ternarylogic_epi32(moved, _mm512_set1_epi32(255 << 15), _mm512_set1_epi32(0x3f800000), 0xea));
}

/* One tile (and its planes, 2 * TILE_BYTES apart): sub-block `sub` of a quantised panel. */
LINEAR_INLINE void bf16_quant_tile(int type, int planes, const uint8_t *panel, int64_t sub, uint8_t *tile)
{
    const int subs = LINEAR_TRAITS[type].block / LINEAR_BLOCK, halves = linear_halves(type), s = (int)(sub % subs);
    const uint8_t *header = panel + sub / subs * linear_block_bytes(type);
    __m512i w[8];
    __m512 d[2], m[2];
    linear_codes(type, header + linear_header_bytes(type) + s * linear_sub_bytes(type), 0, w);
    LV_UNROLL
    for (int h = 0; h < halves; h++) { /* d (code - offset) + m = 256 d (1 + code / 256) + (m - (256 + offset) d) */
        linear_scale(type, header, s, h, 0, &d[h], &m[h]);
        m[h] = _mm512_fmadd_ps(d[h], _mm512_set1_ps(-256.0f - (float)LINEAR_TRAITS[type].offset), m[h]);
        d[h] = _mm512_mul_ps(d[h], _mm512_set1_ps(256.0f));
    }
    LV_UNROLL
    for (int j = 0; j < TILE_ROWS; j++) {
        const int h = halves == 2 ? j / 8 : 0, t = 2 * (j % 2);
        const __m512 even = _mm512_fmadd_ps(bf16_code(w[j / 2], t), d[h], m[h]);
        const __m512 odd = _mm512_fmadd_ps(bf16_code(w[j / 2], t + 1), d[h], m[h]);
        bf16_store_pairs(planes, even, odd, tile + 64 * j);
    }
}

/* The same of a BF16 panel of n columns; columns behind the last are zero. */
LINEAR_INLINE void bf16_plain_tile(const uint8_t *panel, int64_t n, int64_t sub, uint8_t *tile)
{
    const __m512i pairs = _mm512_load_si512(bf16_pairs);
    for (int j = 0; j < TILE_ROWS; j++) {
        const int64_t k = LINEAR_BLOCK * sub + 2 * j;
        const __mmask16 mask = k + 1 < n ? 0xffff : k < n ? 0x00ff : 0;
        const __m512i both = _mm512_maskz_loadu_epi32(mask, panel + 32 * k);
        _mm512_store_si512(tile + 64 * j, _mm512_permutexvar_epi16(pairs, both));
    }
}

#endif
