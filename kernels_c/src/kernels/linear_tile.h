/* linear_tile.h: quantised weights times a tile of activation rows.
 *
 * A *tile* is R rows of int8 activations (R = 1, 2, 4, 8), interleaved block by block so that the product reads it as
 * one stream. Per 32 columns:
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

/* rows[0..n): Q8 rows; the other R - n rows of the tile are zero. */
LINEAR_INLINE void linear_tile_build(int type, int R, const uint8_t *const *rows, int n, int64_t n_in, uint8_t *tile)
{
    const int halves = linear_halves(type), step = linear_tile_block(type, R);
    const int offset = LV_SIGNED && LINEAR_TRAITS[type].offset == 128 ? 0 : LINEAR_TRAITS[type].offset;
    for (int r = 0; r < R; r++) {
        uint8_t *at = tile + 32 * r, *scale_at = tile + 32 * R + 4 * r, *sum_at = scale_at + 4 * R;
        if (r >= n) {
            for (int64_t b = 0; b < n_in / 32; b++, at += step, scale_at += step, sum_at += step) {
                memset(at, 0, 32);
                memset(scale_at, 0, 4);
                for (int h = 0; h < halves; h++) memset(sum_at + 4 * h * R, 0, 4);
            }
            continue;
        }
        const uint8_t *q = rows[r];
        const float *d = (const float *)(q + linear_q8_scales(n_in));
        const int32_t *sum = (const int32_t *)(q + linear_q8_sums(n_in));
        for (int64_t b = 0; b < n_in / 32; b++, at += step, scale_at += step, sum_at += step) {
            memcpy(at, q + 32 * b, 32);
            memcpy(scale_at, &d[b], 4);
            for (int h = 0; h < halves; h++) {
                const int32_t total = halves == 2 ? sum[2 * b + h] : sum[2 * b] + sum[2 * b + 1];
                const int32_t start = -offset * total;
                const float ds = d[b] * (float)total;
                memcpy(sum_at + 4 * h * R, linear_has_min(type) ? (const void *)&ds : (const void *)&start, 4);
            }
        }
    }
}

/* ---- panel times tile ----------------------------------------------------------------------------------------------- */

LINEAR_INLINE float linear_tile_float(const uint8_t *at)
{
    float value;
    memcpy(&value, at, 4);
    return value;
}

/* The R sums of one sub-block, for the rows of one part. */
LINEAR_INLINE void linear_tile_sub(int type, int R, const uint8_t *header, int sub, const uint8_t *planes,
                                   const uint8_t *tile, int part, lv_floats *sum)
{
    const int halves = linear_halves(type), has_min = linear_has_min(type), max_code = LINEAR_TRAITS[type].max_code;
    lv_bytes w[8];
    lv_floats d[2], m[2];
    linear_codes(type, planes, part, w);
    linear_scale(type, header, sub, 0, part, &d[0], &m[0]);
    if (halves == 2) linear_scale(type, header, sub, 1, part, &d[1], &m[1]);
    LV_UNROLL
    for (int r = 0; r < R; r++) {
        const int8_t *q = (const int8_t *)tile + 32 * r;
        const uint8_t *scale = tile + 32 * R + 4 * r, *start = scale + 4 * R;
        int32_t init[2] = { 0, 0 };
        if (!has_min) {
            init[0] = (int32_t)linear_load32(start);
            if (halves == 2) init[1] = (int32_t)linear_load32(start + 4 * R);
        }
        lv_floats y;
        if (halves == 1) {
            y = lv_mul(lv_convert(lv_dot(w, 8, q, init[0], max_code)), d[0]);
        } else {
            y = lv_mul(lv_convert(lv_dot(w, 4, q, init[0], max_code)), d[0]);
            y = lv_fma(lv_convert(lv_dot(w + 4, 4, q + 16, init[1], max_code)), d[1], y);
        }
        sum[r] = lv_fma(y, lv_set(linear_tile_float(scale)), sum[r]);
        if (has_min) {
            sum[r] = lv_fma(m[0], lv_set(linear_tile_float(start)), sum[r]);
            if (halves == 2) sum[r] = lv_fma(m[1], lv_set(linear_tile_float(start + 4 * R)), sum[r]);
        }
    }
}

/* out[r][0..16) = panel times row r of the tile. prefetch: distance in bytes, 0 = none. */
LINEAR_INLINE void linear_tile_run(int type, int R, const uint8_t *panel, const uint8_t *tile, int64_t n_in,
                                   float *const *out, int64_t prefetch)
{
    const int subs = LINEAR_TRAITS[type].block / LINEAR_BLOCK;
    const int header_bytes = linear_header_bytes(type), sub_bytes = linear_sub_bytes(type);
    const int share = linear_block_bytes(type) / subs; /* bytes read per sub-block */
    lv_floats sum[LV_PARTS][LINEAR_MAX_TILE];
    LV_UNROLL
    for (int p = 0; p < LV_PARTS; p++) {
        LV_UNROLL
        for (int r = 0; r < R; r++) sum[p][r] = lv_zero();
    }
    const uint8_t *block = panel;
    for (int64_t b = n_in / LINEAR_TRAITS[type].block; b > 0; b--, block += linear_block_bytes(type)) {
        for (int s = 0; s < subs; s++, tile += linear_tile_block(type, R)) {
            const uint8_t *planes = block + header_bytes + s * sub_bytes;
            if (prefetch) {
                LV_UNROLL
                for (int line = 0; line < share; line += 64) __builtin_prefetch(block + s * share + prefetch + line, 0, 3);
            }
            LV_UNROLL
            for (int p = 0; p < LV_PARTS; p++) linear_tile_sub(type, R, block, s, planes, tile, p, sum[p]);
        }
    }
    LV_UNROLL
    for (int p = 0; p < LV_PARTS; p++) {
        LV_UNROLL
        for (int r = 0; r < R; r++) lv_store(out[r] + p * LV_LANES, sum[p][r]);
    }
}

#endif
