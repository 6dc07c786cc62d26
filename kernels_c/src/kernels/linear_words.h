/* linear_words.h: integer sums of codes with activations of 16 bits, for a unit whose products of words (two at a time
 * into 32 bits) cost no more than its products of bytes (four into two words). All parts of a panel are summed at once,
 * so that an activation is loaded once for them.
 *
 * Tiles: with two planes of bytes an activation takes two products and their join; as a word it takes one. Codes are widened
 * once per panel and tile, into memory that stays in the first cache, and are met there by the rows of the tile, four at
 * a time, so that neither codes nor activations are loaded for one product only.
 *
 * One row: widening codes would not pay, so its two planes of bytes are multiplied; codes are unpacked quad by quad.
 *
 * A *pair* is two columns of a quad: its even ones (0 and 2) or its odd ones (1 and 3), because the bytes of a dword are
 * widened so with one operation each. The q of a row in a tile is int16 [2][8][2]: the even pairs of quads 0..7, then the odd.
 */
#ifndef GGFW_LINEAR_WORDS_H
#define GGFW_LINEAR_WORDS_H

#include "linear_unpack.h"

#if LV_WORDS

enum { LINEAR_WORDS_ROWS = 4 }; /* rows whose sums are in registers at once */

/* One sub-block: for each part the codes, the even pairs of quads 0..7 and then the odd, and the scales of its halves. */
typedef struct linear_words {
    lv_ints of[LV_PARTS][2][8];
    lv_floats d[LV_PARTS][2], m[LV_PARTS][2];
} linear_words;

/* Scales, and the sums so far, stay in memory until here: before, all registers are for integer sums. */
#define LINEAR_WORDS_BARRIER(words, sum) __asm__ volatile("" : : "r"(words), "r"(sum) : "memory")

LINEAR_INLINE void linear_words_unpack(int type, const uint8_t *header, int sub, const uint8_t *planes, linear_words *words)
{
    const int max_code = LINEAR_TRAITS[type].max_code, halves = linear_halves(type);
    LV_UNROLL_PARTS
    for (int p = 0; p < LV_PARTS; p++) {
        lv_bytes w[8];
        linear_codes(type, planes, p, w);
        LV_UNROLL
        for (int i = 0; i < 8; i++) {
            words->of[p][0][i] = lv_even_words(w[i], max_code);
            words->of[p][1][i] = lv_odd_words(w[i], max_code);
        }
        LV_UNROLL
        for (int h = 0; h < halves; h++) linear_scale(type, header, sub, h, p, &words->d[p][h], &words->m[p][h]);
    }
}

/* y[p][r] = the sums of the quads [first, first + n) of part p with row r of a tile; they start at start[r], or at zero
 * without. */
LINEAR_INLINE void linear_words_dot(const linear_words *words, int first, int n, int rows, const uint8_t *q,
                                    const uint8_t *start, lv_ints y[LV_PARTS][LINEAR_WORDS_ROWS])
{
    LV_UNROLL
    for (int r = 0; r < rows; r++) {
        LV_UNROLL
        for (int p = 0; p < LV_PARTS; p++) y[p][r] = start ? lv_quad(start + 4 * r) : lv_none();
    }
    /* Not unrolled: gcc would multiply everything first, and keep the products in memory. */
    LV_UNROLL_PARTS
    for (int i = first; i < first + n; i++) {
        LV_UNROLL
        for (int odd = 0; odd < 2; odd++) {
            LV_UNROLL
            for (int r = 0; r < rows; r++) {
                const lv_ints a = lv_quad(q + 64 * r + 4 * (8 * odd + i));
                LV_UNROLL
                for (int p = 0; p < LV_PARTS; p++) y[p][r] = lv_word_dot(y[p][r], words->of[p][odd][i], a);
            }
        }
    }
}

/* y[p] = start + the sum of the quads [first, first + n) of part p with a row's q, int8 [2][32]. */
LINEAR_INLINE void linear_row_dot(int type, const uint8_t *planes, int first, int n, const uint8_t *q, int32_t start,
                                  lv_ints y[LV_PARTS])
{
    const int max_code = LINEAR_TRAITS[type].max_code, room = lv_room(max_code);
    lv_ints narrow[2][LV_PARTS], wide[2][LV_PARTS]; /* [high, low]: words, and what did not fit into them */
    LV_UNROLL
    for (int p = 0; p < LV_PARTS; p++) wide[0][p] = wide[1][p] = lv_none();
    LV_UNROLL
    for (int i = 0; i < n; i++) {
        lv_bytes w[LV_PARTS];
        LV_UNROLL
        for (int p = 0; p < LV_PARTS; p++) w[p] = linear_code(type, planes, p, first + i);
        LV_UNROLL
        for (int low = 0; low < 2; low++) {
            const lv_ints quad = lv_quad(q + 32 * low + 4 * (first + i));
            LV_UNROLL
            for (int p = 0; p < LV_PARTS; p++) {
                const lv_ints product = lv_quad_words(w[p], quad, max_code);
                narrow[low][p] = i % room ? lv_add_words(narrow[low][p], product) : product;
                if (i % room == room - 1 || i == n - 1) wide[low][p] = lv_widen(wide[low][p], narrow[low][p]);
            }
        }
    }
    LV_UNROLL
    for (int p = 0; p < LV_PARTS; p++) y[p] = lv_offset(lv_join(wide[0][p], wide[1][p]), start);
}

#endif
#endif
