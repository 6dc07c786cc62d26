/* linear_tile.h: quantised weights times a tile of activation rows.
 *
 * A *tile* is R rows of int8 activations (R = 2, 4, 8), interleaved block by block so that the product reads it as one
 * stream; a single row is read where it is. Per 32 columns:
 *
 *     int8   q[R][32]
 *     float  d[2][R]              activation scale of 16 columns
 *     i32    start[2][R]          -offset * sum of q: where the integer sum of 16 columns starts
 *  or float  total[halves][R]     sum of d * q: what the minimum of the weights is multiplied by
 *
 * For one panel and one row, with S0 and S1 = the integer sums of 16 columns (start included):
 *
 *     y += (S0 * d0 + S1 * d1) * d_weight  [ + m_weight * total ]    where the format has a scale per 32 columns
 *     y += (S0 * d0) * d_weight0 + (S1 * d1) * d_weight1  [ ... ]    where it has one per 16
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

/* Byte offsets of d, sum and total in a row of n columns, and its length. */
LINEAR_INLINE int64_t linear_q8_scales(int64_t n) { return linear_round64(n); }
LINEAR_INLINE int64_t linear_q8_sums(int64_t n) { return linear_round64(n) + n / 16 * 4; }
LINEAR_INLINE int64_t linear_q8_totals(int64_t n) { return linear_q8_sums(n) + n / 16 * 4; }
LINEAR_INLINE int64_t linear_q8_bytes(int64_t n) { return linear_round64(linear_q8_totals(n) + n / 32 * 4); }

/* ---- building a tile --------------------------------------------------------------------------------------------------- */

/* Numbers beside the scales: starts of both halves, or totals. */
LINEAR_INLINE int linear_tile_extras(int type) { return linear_has_min(type) ? linear_halves(type) : 2; }

LINEAR_INLINE int linear_tile_block(int type, int R) { return R * (32 + 8 + 4 * linear_tile_extras(type)); }

LINEAR_INLINE int64_t linear_tile_bytes(int type, int R, int64_t n_in)
{
    return linear_round64(n_in / LINEAR_BLOCK * linear_tile_block(type, R));
}

/* Offset of the codes as lv_dot sees them. */
LINEAR_INLINE int linear_offset(int type)
{
    return LV_SIGNED && LINEAR_TRAITS[type].offset == 128 ? 0 : LINEAR_TRAITS[type].offset;
}

LINEAR_INLINE float linear_load_float(const uint8_t *at) { return linear_float_of_bits(linear_load32(at)); }

/* The start of an integer sum, from the sum of q over its 16 columns. */
LINEAR_INLINE int32_t linear_start(int type, const uint8_t *sum)
{
    return -linear_offset(type) * (int32_t)linear_load32(sum);
}

/* Sum of d * q over 16 columns. */
LINEAR_INLINE float linear_half_total(const uint8_t *d, const uint8_t *sum)
{
    return linear_load_float(d) * (float)(int32_t)linear_load32(sum);
}

/* rows[0..n): Q8 rows; the other R - n rows of the tile are zero. */
LINEAR_INLINE void linear_tile_build(int type, int R, const uint8_t *const *rows, int n, int64_t n_in, uint8_t *tile)
{
    const int64_t scales = linear_q8_scales(n_in), sums = linear_q8_sums(n_in), totals = linear_q8_totals(n_in);
    if (n < R) memset(tile, 0, (size_t)linear_tile_bytes(type, R, n_in));
    for (int64_t b = 0; b < n_in / LINEAR_BLOCK; b++, tile += linear_tile_block(type, R)) {
        uint8_t *scale_at = tile + 32 * R, *extra_at = scale_at + 8 * R;
        for (int r = 0; r < n; r++) {
            const uint8_t *d = rows[r] + scales + 8 * b, *sum = rows[r] + sums + 8 * b;
            memcpy(tile + 32 * r, rows[r] + 32 * b, 32);
            for (int h = 0; h < 2; h++) {
                const int32_t start = linear_start(type, sum + 4 * h);
                const float total = linear_half_total(d + 4 * h, sum + 4 * h);
                memcpy(scale_at + 4 * (h * R + r), d + 4 * h, 4);
                if (!linear_has_min(type))
                    memcpy(extra_at + 4 * (h * R + r), &start, 4);
                else if (linear_halves(type) == 2)
                    memcpy(extra_at + 4 * (h * R + r), &total, 4);
            }
            if (linear_has_min(type) && linear_halves(type) == 1)
                memcpy(extra_at + 4 * r, rows[r] + totals + 4 * b, 4);
        }
    }
}

/* ---- panel times tile ----------------------------------------------------------------------------------------------- */

/* Where the activations of one sub-block are: in a tile, or in a single Q8 row (R = 1). */
typedef struct linear_activations {
    const uint8_t *q;      /* [R][32] */
    const uint8_t *scales; /* [2][R] */
    const uint8_t *extras; /* of a tile: starts or totals, [2 or halves][R]; of a row: sums over 16, [2] */
    const uint8_t *totals; /* of a row: total over 32 */
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
        lv_floats scale[2], y[2];
        LV_UNROLL
        for (int h = 0; h < 2; h++) {
            const uint8_t *extra = x.extras + 4 * (h * R + r);
            const int32_t start = has_min ? 0 : R == 1 ? linear_start(type, extra) : (int32_t)linear_load32(extra);
            scale[h] = lv_set(linear_load_float(x.scales + 4 * (h * R + r)));
            y[h] = lv_convert(lv_dot(w + 4 * h, 4, q + 16 * h, start, max_code));
        }
        if (halves == 1) {
            sum[r] = lv_fma(lv_fma(y[1], scale[1], lv_mul(y[0], scale[0])), d[0], sum[r]);
        } else {
            sum[r] = lv_fma(lv_mul(y[0], scale[0]), d[0], sum[r]);
            sum[r] = lv_fma(lv_mul(y[1], scale[1]), d[1], sum[r]);
        }
        LV_UNROLL
        for (int h = 0; has_min && h < halves; h++) {
            const float total = R > 1           ? linear_load_float(x.extras + 4 * (h * R + r))
                                : halves == 2 ? linear_half_total(x.scales + 4 * h, x.extras + 4 * h)
                                              : linear_load_float(x.totals);
            sum[r] = lv_fma(m[h], lv_set(total), sum[r]);
        }
    }
}

/* out[r][0..16) = panel times row r. x: a tile, or a Q8 row (R = 1). prefetch: distance in bytes, 0 = none. */
LINEAR_INLINE void linear_tile_run(int type, int R, const uint8_t *panel, const uint8_t *x, int64_t n_in,
                                   float *const *out, int64_t prefetch)
{
    const int subs = LINEAR_TRAITS[type].block / LINEAR_BLOCK;
    const int header_bytes = linear_header_bytes(type), sub_bytes = linear_sub_bytes(type);
    const int share = linear_block_bytes(type) / subs; /* bytes read per sub-block */
    linear_activations at = { x, x + 32 * R, x + 40 * R, x };
    if (R == 1)
        at = (linear_activations){ x, x + linear_q8_scales(n_in), x + linear_q8_sums(n_in), x + linear_q8_totals(n_in) };
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
            at.scales += R == 1 ? 8 : linear_tile_block(type, R);
            at.extras += R == 1 ? 8 : linear_tile_block(type, R);
            at.totals += R == 1 ? 4 : 0;
        }
    }
    LV_UNROLL
    for (int p = 0; p < LV_PARTS; p++) {
        LV_UNROLL
        for (int r = 0; r < R; r++) lv_store(out[r] + p * LV_LANES, sum[p][r]);
    }
}

#endif
