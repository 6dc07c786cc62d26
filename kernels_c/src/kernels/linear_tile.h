/* linear_tile.h: quantised weights times a tile of activation rows.
 *
 * A *tile* is R rows of int8 activations (R = 2, 4, 8), interleaved block by block so that the product reads it as one
 * stream; a single row is read where it is. Per 32 columns:
 *
 *     int8   q[R][32]
 *     float  d[R]                 activation scale
 *     i32    start[halves][R]     -offset * sum of q: where the integer sum starts
 *  or float  ds[halves][R]        d * sum of q: what the minimum of the weights is multiplied by
 *
 * For one panel and one row, with S = the integer sum of a block (start included):
 *
 *     y += (S * d_weight) * d_activation  [ + m_weight * ds ]        one block after the other
 *
 * The integers are exact and the floats are summed in the order of the columns, so neither R nor the place of a row in
 * its tile changes a bit.
 */
#ifndef GGFW_LINEAR_TILE_H
#define GGFW_LINEAR_TILE_H

#include "linear_unpack.h"
#include "pack.h"

enum { LINEAR_MAX_TILE = 8 };

/* ---- GGFW_Q8 rows ---------------------------------------------------------------------------------------------------- */

LINEAR_INLINE int64_t linear_round64(int64_t n) { return (n + 63) / 64 * 64; }

/* Byte offsets of d and sum in a row of n columns, and its length. */
LINEAR_INLINE int64_t linear_q8_scales(int64_t n) { return linear_round64(n); }
LINEAR_INLINE int64_t linear_q8_sums(int64_t n) { return linear_round64(n) + n / 32 * 4; }
LINEAR_INLINE int64_t linear_q8_bytes(int64_t n) { return linear_round64(linear_q8_sums(n) + n / 16 * 4); }

/* ---- building a tile --------------------------------------------------------------------------------------------------- */

LINEAR_INLINE int linear_tile_block(int type, int R) { return R * (32 + 4 + 4 * linear_halves(type)); }

LINEAR_INLINE int64_t linear_tile_bytes(int type, int R, int64_t n_in)
{
    return linear_round64(n_in / LINEAR_BLOCK * linear_tile_block(type, R));
}

/* Offset of the codes as lv_dot sees them. */
LINEAR_INLINE int linear_offset(int type)
{
    return LV_SIGNED && LINEAR_TRAITS[type].offset == 128 ? 0 : LINEAR_TRAITS[type].offset;
}

/* Sum of q over half h of block b (over the whole block where the format has one half). */
LINEAR_INLINE int32_t linear_q8_sum(int type, const uint8_t *sums, int64_t b, int h)
{
    if (linear_halves(type) == 2) return (int32_t)linear_load32(sums + 8 * b + 4 * h);
    return (int32_t)(linear_load32(sums + 8 * b) + linear_load32(sums + 8 * b + 4));
}

/* rows[0..n): Q8 rows; the other R - n rows of the tile are zero. */
LINEAR_INLINE void linear_tile_build(int type, int R, const uint8_t *const *rows, int n, int64_t n_in, uint8_t *tile)
{
    const int64_t scales = linear_q8_scales(n_in), sums = linear_q8_sums(n_in);
    if (n < R) memset(tile, 0, (size_t)linear_tile_bytes(type, R, n_in));
    for (int64_t b = 0; b < n_in / LINEAR_BLOCK; b++, tile += linear_tile_block(type, R)) {
        uint8_t *scale_at = tile + 32 * R, *sum_at = scale_at + 4 * R;
        for (int r = 0; r < n; r++) {
            const float d = linear_float_of_bits(linear_load32(rows[r] + scales + 4 * b));
            memcpy(tile + 32 * r, rows[r] + 32 * b, 32);
            memcpy(scale_at + 4 * r, &d, 4);
            for (int h = 0; h < linear_halves(type); h++) {
                const int32_t total = linear_q8_sum(type, rows[r] + sums, b, h);
                const int32_t start = -linear_offset(type) * total;
                const float ds = d * (float)total;
                memcpy(sum_at + 4 * (h * R + r), linear_has_min(type) ? (const void *)&ds : (const void *)&start, 4);
            }
        }
    }
}

/* ---- panel times tile ----------------------------------------------------------------------------------------------- */

/* Where the activations of one sub-block are: in a tile, or in a single Q8 row (R = 1). */
typedef struct linear_activations {
    const uint8_t *q;      /* [R][32] */
    const uint8_t *scales; /* [R] */
    const uint8_t *sums;   /* [halves][R] of the tile; [2] sums over 16 of the row */
} linear_activations;

/* The R sums of one sub-block, for the rows of one part. */
LINEAR_INLINE void linear_tile_sub(int type, int R, const uint8_t *header, int sub, const uint8_t *planes,
                                   linear_activations x, int part, lv_floats *sum)
{
    const int halves = linear_halves(type), has_min = linear_has_min(type), max_code = LINEAR_TRAITS[type].max_code;
    lv_bytes w[8];
    lv_floats d[2], m[2];
    linear_codes(type, planes, part, w);
    linear_scale(type, header, sub, 0, part, &d[0], &m[0]);
    if (halves == 2) linear_scale(type, header, sub, 1, part, &d[1], &m[1]);
    LV_UNROLL
    for (int r = 0; r < R; r++) {
        const int8_t *q = (const int8_t *)x.q + 32 * r;
        const float scale = linear_float_of_bits(linear_load32(x.scales + 4 * r));
        int32_t start[2] = { 0, 0 };
        float ds[2] = { 0, 0 };
        LV_UNROLL
        for (int h = 0; h < halves; h++) {
            const int32_t total = R == 1 ? linear_q8_sum(type, x.sums, 0, h) : 0;
            const uint32_t stored = R == 1 ? 0 : linear_load32(x.sums + 4 * (h * R + r));
            if (has_min)
                ds[h] = R == 1 ? scale * (float)total : linear_float_of_bits(stored);
            else
                start[h] = R == 1 ? -linear_offset(type) * total : (int32_t)stored;
        }
        lv_floats y;
        if (halves == 1) {
            y = lv_mul(lv_convert(lv_dot(w, 8, q, start[0], max_code)), d[0]);
        } else {
            y = lv_mul(lv_convert(lv_dot(w, 4, q, start[0], max_code)), d[0]);
            y = lv_fma(lv_convert(lv_dot(w + 4, 4, q + 16, start[1], max_code)), d[1], y);
        }
        sum[r] = lv_fma(y, lv_set(scale), sum[r]);
        if (has_min) sum[r] = lv_fma(m[0], lv_set(ds[0]), sum[r]);
        if (has_min && halves == 2) sum[r] = lv_fma(m[1], lv_set(ds[1]), sum[r]);
    }
}

/* out[r][0..16) = panel times row r. x: a tile, or a Q8 row (R = 1). prefetch: distance in bytes, 0 = none. */
LINEAR_INLINE void linear_tile_run(int type, int R, const uint8_t *panel, const uint8_t *x, int64_t n_in,
                                   float *const *out, int64_t prefetch)
{
    const int subs = LINEAR_TRAITS[type].block / LINEAR_BLOCK;
    const int header_bytes = linear_header_bytes(type), sub_bytes = linear_sub_bytes(type);
    const int share = linear_block_bytes(type) / subs; /* bytes read per sub-block */
    linear_activations at = R == 1 ? (linear_activations){ x, x + linear_q8_scales(n_in), x + linear_q8_sums(n_in) }
                                   : (linear_activations){ x, x + 32 * R, x + 36 * R };
    lv_floats sum[LV_PARTS][LINEAR_MAX_TILE];
    LV_UNROLL
    for (int p = 0; p < LV_PARTS; p++) {
        LV_UNROLL
        for (int r = 0; r < R; r++) sum[p][r] = lv_zero();
    }
    const uint8_t *block = panel;
    for (int64_t b = n_in / LINEAR_TRAITS[type].block; b > 0; b--, block += linear_block_bytes(type)) {
        for (int s = 0; s < subs; s++) {
            const uint8_t *planes = block + header_bytes + s * sub_bytes;
            if (prefetch) {
                LV_UNROLL
                for (int line = 0; line < share; line += 64) __builtin_prefetch(block + s * share + prefetch + line, 0, 3);
            }
            LV_UNROLL_PARTS
            for (int p = 0; p < LV_PARTS; p++) linear_tile_sub(type, R, block, s, planes, at, p, sum[p]);
            at.q += R == 1 ? 32 : linear_tile_block(type, R);
            at.scales += R == 1 ? 4 : linear_tile_block(type, R);
            at.sums += R == 1 ? 8 : linear_tile_block(type, R);
        }
    }
    LV_UNROLL
    for (int p = 0; p < LV_PARTS; p++) {
        LV_UNROLL
        for (int r = 0; r < R; r++) lv_store(out[r] + p * LV_LANES, sum[p][r]);
    }
}

#endif
