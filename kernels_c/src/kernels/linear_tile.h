/* linear_tile.h: quantised weights times a tile of quantised activation rows.
 *
 * A *tile* is R rows (R = 2, 4, 8) of GGFW_Q8 or GGFW_Q16 activations, interleaved block by block so that the product
 * reads it as one stream; a single row is read where it is. Per 32 columns:
 *
 *     int8   q[R][32], of Q16 [R][2][32]; or int16, as linear_words.h has them
 *     float  d[2][R], of Q16 [1][R]     activation scales
 *     i32    start[starts][R]           -offset * sum of q: where an integer sum starts; one per 16 columns, or per 32
 *  or float  total[halves][R]           sum of d * q: what the minimum of the weights is multiplied by
 *
 * For one panel and one row, with S0 and S1 = the integer sums of 16 columns (start included), Q8:
 *
 *     y += (S0 * d0 + S1 * d1) * d_weight  [ + m_weight * total ]    where the format has a scale per 32 columns
 *     y += (S0 * d0) * d_weight0 + (S1 * d1) * d_weight1  [ ... ]    where it has one per 16
 *
 * Q16, whose integer sums are 128 times that of the high parts plus that of the low parts (below 2^31: 32 columns of at
 * most 255 * 16256):
 *
 *     y += S * d * d_weight  [ + m_weight * total ]
 *     y += (S0 * d_weight0 + S1 * d_weight1) * d  [ ... ]
 *
 * The integers are exact and the floats are summed in the order of the columns, so neither R nor the place of a row in
 * its tile changes a bit.
 */
#ifndef GGFW_LINEAR_TILE_H
#define GGFW_LINEAR_TILE_H

#include "activation.h"
#include "linear_unpack.h"
#include "linear_words.h"
#include "pack.h"

enum { LINEAR_MAX_TILE = 8 };

LINEAR_INLINE int64_t linear_round64(int64_t n) { return (n + 63) / 64 * 64; }

/* ---- building a tile --------------------------------------------------------------------------------------------------- */

/* Of the activation type `x`: bytes of q, and scales, per 32 columns. */
LINEAR_INLINE int linear_x_bytes(int x) { return x == GGFW_Q16 ? 64 : 32; }
LINEAR_INLINE int linear_x_scales(int x) { return x == GGFW_Q16 ? 1 : 2; }

/* Integer sums per 32 columns: one where neither weights nor activations have a scale per 16. */
LINEAR_INLINE int linear_sums(int type, int x) { return x == GGFW_Q16 ? linear_halves(type) : 2; }

/* Numbers beside the scales: starts of the integer sums, or totals. */
LINEAR_INLINE int linear_tile_extras(int type, int x) { return linear_has_min(type) ? linear_halves(type) : linear_sums(type, x); }

LINEAR_INLINE int linear_tile_block(int type, int x, int R)
{
    return R * (linear_x_bytes(x) + 4 * linear_x_scales(x) + 4 * linear_tile_extras(type, x));
}

LINEAR_INLINE int64_t linear_tile_bytes(int type, int x, int R, int64_t n_in)
{
    return linear_round64(n_in / LINEAR_BLOCK * linear_tile_block(type, x, R));
}

/* Offset of the codes as lv_dot sees them. */
LINEAR_INLINE int linear_offset(int type)
{
    return LV_SIGNED && LINEAR_TRAITS[type].offset == 128 ? 0 : LINEAR_TRAITS[type].offset;
}

LINEAR_INLINE float linear_load_float(const uint8_t *at) { return linear_float_of_bits(linear_load32(at)); }

/* The start of an integer sum, from the sums of q over its columns (16, or 32: sums == 1). */
LINEAR_INLINE int32_t linear_start(int type, int sums, const uint8_t *sum)
{
    const int32_t q = (int32_t)linear_load32(sum) + (sums == 1 ? (int32_t)linear_load32(sum + 4) : 0);
    return -linear_offset(type) * q;
}

/* Sum of d * q over 16 columns. */
LINEAR_INLINE float linear_half_total(const uint8_t *d, const uint8_t *sum)
{
    return linear_load_float(d) * (float)(int32_t)linear_load32(sum);
}

/* The q of 32 columns of one row. */
LINEAR_INLINE void linear_tile_q(int x, const uint8_t *q, uint8_t *to)
{
#if LV_WORDS
    if (x == GGFW_Q16) {
        lv_pairs(q, to);
        return;
    }
#endif
    memcpy(to, q, (size_t)linear_x_bytes(x));
}

/* rows[0..n): rows of activation type x; the other R - n rows of the tile are zero. */
LINEAR_INLINE void linear_tile_build(int type, int x, int R, const uint8_t *const *rows, int n, int64_t n_in, uint8_t *tile)
{
    const int64_t scales = activation_scales(x, n_in), sums = activation_sums(x, n_in);
    const int64_t totals = activation_totals(x, n_in);
    const int q_bytes = linear_x_bytes(x), n_scales = linear_x_scales(x), n_sums = linear_sums(type, x);
    if (n < R) memset(tile, 0, (size_t)linear_tile_bytes(type, x, R, n_in));
    for (int64_t b = 0; b < n_in / LINEAR_BLOCK; b++, tile += linear_tile_block(type, x, R)) {
        uint8_t *scale_at = tile + q_bytes * R, *extra_at = scale_at + 4 * n_scales * R;
        for (int r = 0; r < n; r++) {
            const uint8_t *d = rows[r] + scales + 4 * n_scales * b, *sum = rows[r] + sums + 8 * b;
            linear_tile_q(x, rows[r] + q_bytes * b, tile + q_bytes * r);
            for (int h = 0; h < n_scales; h++) memcpy(scale_at + 4 * (h * R + r), d + 4 * h, 4);
            for (int h = 0; !linear_has_min(type) && h < n_sums; h++) {
                const int32_t start = linear_start(type, n_sums, sum + 4 * h);
                memcpy(extra_at + 4 * (h * R + r), &start, 4);
            }
            for (int h = 0; linear_has_min(type) && linear_halves(type) == 2 && h < 2; h++) {
                const float total = linear_half_total(d + 4 * (n_scales == 2 ? h : 0), sum + 4 * h);
                memcpy(extra_at + 4 * (h * R + r), &total, 4);
            }
            if (linear_has_min(type) && linear_halves(type) == 1)
                memcpy(extra_at + 4 * r, rows[r] + totals + 4 * b, 4);
        }
    }
}

/* ---- panel times tile ----------------------------------------------------------------------------------------------- */

/* Where the activations of one sub-block are: in a tile, or in a single row (R = 1). */
typedef struct linear_activations {
    const uint8_t *q;      /* [R][32], of Q16 [R][2][32] */
    const uint8_t *scales; /* [2][R], of Q16 [1][R] */
    const uint8_t *extras; /* of a tile: starts or totals, [n][R]; of a row: sums over 16, [2] */
    const uint8_t *totals; /* of a row: total over 32 */
} linear_activations;

/* Integer sum h (of `sums` per 32 columns) of the codes w with a row's q. */
LINEAR_INLINE lv_floats linear_tile_dot(int x, int sums, int h, const lv_bytes w[8], const uint8_t *q, int32_t start,
                                        int max_code)
{
    const int quads = 8 / sums;
    const int8_t *at = (const int8_t *)q + 4 * quads * h;
    if (x == GGFW_Q8) return lv_convert(lv_dot(w + quads * h, quads, at, start, max_code));
    const lv_ints high = lv_dot(w + quads * h, quads, at, 0, max_code);
    return lv_convert(lv_join(high, lv_dot(w + quads * h, quads, at + 32, start, max_code)));
}

#if LV_PAIRS
/* The same with two rows' q, linear_x_bytes(x) apart: integers, so the same bits. */
LINEAR_INLINE void linear_tile_dot_pair(int x, int sums, int h, const lv_bytes w[8], const uint8_t *q,
                                        const int32_t start[2], lv_floats y[2])
{
    const int quads = 8 / sums;
    const int8_t *at = (const int8_t *)q + 4 * quads * h;
    const int32_t zeros[2] = { 0, 0 };
    lv_ints high[2], low[2];
    lv_dot_pair(w + quads * h, quads, at + (x == GGFW_Q16 ? 32 : 0), linear_x_bytes(x), start, low);
    if (x == GGFW_Q16) lv_dot_pair(w + quads * h, quads, at, linear_x_bytes(x), zeros, high);
    for (int i = 0; i < 2; i++) y[i] = lv_convert(x == GGFW_Q16 ? lv_join(high[i], low[i]) : low[i]);
}
#endif

/* sum + what the integer sums y[h] of row r give: scaled by d[h] of the weights and by the row's own scales, and m[h]. */
LINEAR_INLINE lv_floats linear_tile_add(int type, int x, int R, int r, linear_activations a, const lv_floats y[2],
                                        const lv_floats d[2], const lv_floats m[2], lv_floats sum)
{
    const int halves = linear_halves(type), has_min = linear_has_min(type);
    const int sums = linear_sums(type, x), scales = linear_x_scales(x);
    lv_floats scale[2];
    LV_UNROLL
    for (int h = 0; h < scales; h++) scale[h] = lv_set(linear_load_float(a.scales + 4 * (h * R + r)));
    if (sums == 1) {
        sum = lv_fma(lv_mul(y[0], scale[0]), d[0], sum);
    } else if (scales == 1) {
        sum = lv_fma(lv_fma(y[1], d[1], lv_mul(y[0], d[0])), scale[0], sum);
    } else if (halves == 1) {
        sum = lv_fma(lv_fma(y[1], scale[1], lv_mul(y[0], scale[0])), d[0], sum);
    } else {
        sum = lv_fma(lv_mul(y[0], scale[0]), d[0], sum);
        sum = lv_fma(lv_mul(y[1], scale[1]), d[1], sum);
    }
    LV_UNROLL
    for (int h = 0; has_min && h < halves; h++) {
        const float total = R > 1           ? linear_load_float(a.extras + 4 * (h * R + r))
                            : halves == 2 ? linear_half_total(a.scales + 4 * (scales == 2 ? h : 0), a.extras + 4 * h)
                                          : linear_load_float(a.totals);
        sum = lv_fma(m[h], lv_set(total), sum);
    }
    return sum;
}

/* The R sums of one sub-block, for the rows of one part. */
LINEAR_INLINE void linear_tile_sub(int type, int x, int R, const uint8_t *header, int sub, const uint8_t *planes,
                                   linear_activations a, int part, lv_floats *sum)
{
    const int halves = linear_halves(type), has_min = linear_has_min(type), max_code = LINEAR_TRAITS[type].max_code;
    const int sums = linear_sums(type, x);
    lv_bytes w[8];
    lv_floats d[2], m[2];
    linear_codes(type, planes, part, w);
    linear_scale(type, header, sub, 0, part, &d[0], &m[0]);
    if (halves == 2) linear_scale(type, header, sub, 1, part, &d[1], &m[1]);
#if LV_PAIRS
    lv_floats pair[2][2]; /* [h] of rows r and r + 1 */
#endif
    LV_UNROLL
    for (int r = 0; r < R; r++) {
        lv_floats y[2];
        LV_UNROLL
        for (int h = 0; h < sums; h++) {
            const uint8_t *extra = a.extras + 4 * (h * R + r);
            const int32_t start = has_min  ? 0
                                  : R == 1 ? linear_start(type, sums, extra)
                                           : (int32_t)linear_load32(extra);
#if LV_PAIRS
            if (R > 1) {
                const int32_t starts[2] = { start, has_min || r % 2 ? 0 : (int32_t)linear_load32(extra + 4) };
                if (r % 2 == 0) linear_tile_dot_pair(x, sums, h, w, a.q + linear_x_bytes(x) * r, starts, pair[h]);
                y[h] = pair[h][r % 2];
                continue;
            }
#endif
            y[h] = linear_tile_dot(x, sums, h, w, a.q + linear_x_bytes(x) * r, start, max_code);
        }
        sum[r] = linear_tile_add(type, x, R, r, a, y, d, m, sum[r]);
    }
}

#if LV_WORDS
/* The same for tiles of words: all parts at once, since they share what is loaded of the activations. */
LINEAR_INLINE void linear_tile_sub_words(int type, int R, const uint8_t *header, int sub, const uint8_t *planes,
                                         linear_activations a, lv_floats sum[LV_PARTS][LINEAR_MAX_TILE])
{
    const int halves = linear_halves(type), has_min = linear_has_min(type);
    const int rows = R < LINEAR_WORDS_ROWS ? R : LINEAR_WORDS_ROWS;
    linear_words words;
    linear_words_unpack(type, header, sub, planes, &words);
    LV_UNROLL_PARTS
    for (int first = 0; first < R; first += rows) {
        lv_floats y[LV_PARTS][LINEAR_WORDS_ROWS][2];
        LV_UNROLL
        for (int h = 0; h < halves; h++) {
            lv_ints dots[LV_PARTS][LINEAR_WORDS_ROWS];
            linear_words_dot(&words, 8 / halves * h, 8 / halves, rows, a.q + 64 * first,
                             has_min ? NULL : a.extras + 4 * (h * R + first), dots);
            LINEAR_WORDS_BARRIER(&words, sum);
            LV_UNROLL
            for (int p = 0; p < LV_PARTS; p++) {
                LV_UNROLL
                for (int r = 0; r < rows; r++) y[p][r][h] = lv_convert(dots[p][r]);
            }
        }
        LV_UNROLL
        for (int p = 0; p < LV_PARTS; p++) {
            LV_UNROLL
            for (int r = 0; r < rows; r++)
                sum[p][first + r] = linear_tile_add(type, GGFW_Q16, R, first + r, a, y[p][r], words.d[p], words.m[p],
                                                    sum[p][first + r]);
        }
    }
}
#endif

#if LV_WORDS
/* The same for one row, whose q are planes of bytes. */
LINEAR_INLINE void linear_tile_sub_row(int type, const uint8_t *header, int sub, const uint8_t *planes,
                                       linear_activations a, lv_floats sum[LV_PARTS][LINEAR_MAX_TILE])
{
    const int halves = linear_halves(type), has_min = linear_has_min(type), n = 8 / halves;
    lv_floats y[LV_PARTS][2], d[LV_PARTS][2], m[LV_PARTS][2];
    LV_UNROLL
    for (int h = 0; h < halves; h++) {
        lv_ints dots[LV_PARTS];
        linear_row_dot(type, planes, n * h, n, a.q, has_min ? 0 : linear_start(type, halves, a.extras + 4 * h), dots);
        LV_UNROLL
        for (int p = 0; p < LV_PARTS; p++) y[p][h] = lv_convert(dots[p]);
    }
    LV_UNROLL
    for (int p = 0; p < LV_PARTS; p++) {
        LV_UNROLL
        for (int h = 0; h < halves; h++) linear_scale(type, header, sub, h, p, &d[p][h], &m[p][h]);
        sum[p][0] = linear_tile_add(type, GGFW_Q16, 1, 0, a, y[p], d[p], m[p], sum[p][0]);
    }
}
#endif

/* out[r][0..16) = panel times row r. rows: a tile, or a row of type x (R = 1). prefetch: distance in bytes, 0 = none. */
LINEAR_INLINE void linear_tile_run(int type, int x, int R, const uint8_t *panel, const uint8_t *rows, int64_t n_in,
                                   float *const *out, int64_t prefetch)
{
    const int subs = LINEAR_TRAITS[type].block / LINEAR_BLOCK;
    const int header_bytes = linear_header_bytes(type), sub_bytes = linear_sub_bytes(type);
    const int share = linear_block_bytes(type) / subs; /* bytes read per sub-block */
    const int q_bytes = linear_x_bytes(x), scale_bytes = 4 * linear_x_scales(x);
    linear_activations at = { rows, rows + q_bytes * R, rows + (q_bytes + scale_bytes) * R, rows };
    if (R == 1)
        at = (linear_activations){ rows, rows + activation_scales(x, n_in), rows + activation_sums(x, n_in),
                                   rows + activation_totals(x, n_in) };
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
#if LV_WORDS
            if (R > 1 && x == GGFW_Q16)
                linear_tile_sub_words(type, R, block, s, planes, at, sum);
            else if (x == GGFW_Q16)
                linear_tile_sub_row(type, block, s, planes, at, sum);
            else
#endif
            {
                LV_UNROLL_PARTS
                for (int p = 0; p < LV_PARTS; p++) linear_tile_sub(type, x, R, block, s, planes, at, p, sum[p]);
            }
            at.q += R == 1 ? q_bytes : linear_tile_block(type, x, R);
            at.scales += R == 1 ? scale_bytes : linear_tile_block(type, x, R);
            at.extras += R == 1 ? 8 : linear_tile_block(type, x, R);
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
