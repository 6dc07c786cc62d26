/* tile_model.h: the tile instructions in plain C, with the results of the processor's (Intel, Instruction Set Extensions
 * Programming Reference, TDPBF16PS): even and odd members of pairs are summed apart, with one rounding per product and sum,
 * then added, then added to the tile; denormals count as zero before and after every operation, rounding is to nearest
 * even, and MXCSR plays no part.
 *
 * A fault of the processor (no configuration in this thread) is abort() here.
 */
#ifndef GGFW_TILE_MODEL_H
#define GGFW_TILE_MODEL_H

#include <immintrin.h>
#include <stdlib.h>
#include <string.h>

typedef struct tile_state {
    int configured;
    uint8_t tile[8][TILE_ROWS][64];
} tile_state;

static _Thread_local tile_state tile_model;

static inline void tile_model_check(int t) {
    if (!tile_model.configured || t < 0 || t > 7) abort();
}

static inline void TILE_LOAD(int t, const void *at) {
    tile_model_check(t);
    memcpy(tile_model.tile[t], at, TILE_BYTES);
}

static inline void TILE_STORE(int t, void *at) {
    tile_model_check(t);
    memcpy(at, tile_model.tile[t], TILE_BYTES);
}

static inline void TILE_ZERO(int t) {
    tile_model_check(t);
    memset(tile_model.tile[t], 0, TILE_BYTES);
}

/* Not inlined: it has to stay between the two changes of MXCSR. */
static __attribute__((noinline)) void tile_model_product(uint8_t c[TILE_ROWS][64], uint8_t a[TILE_ROWS][64],
                                                         uint8_t b[TILE_ROWS][64]) {
    float even[TILE_ROWS][16], odd[TILE_ROWS][16]; /* members of b's pairs */
    for (int k = 0; k < TILE_ROWS; k++)
        for (int n = 0; n < 16; n++) {
            uint32_t pair, high;
            memcpy(&pair, b[k] + 4 * n, 4);
            high = pair & 0xffff0000u;
            pair <<= 16;
            memcpy(&even[k][n], &pair, 4);
            memcpy(&odd[k][n], &high, 4);
        }
    for (int m = 0; m < TILE_ROWS; m++) {
        float evens[16] = {0}, odds[16] = {0}, sum[16];
        for (int k = 0; k < TILE_ROWS; k++) {
            uint32_t pair, high;
            float x, y;
            memcpy(&pair, a[m] + 4 * k, 4);
            high = pair & 0xffff0000u;
            pair <<= 16;
            memcpy(&x, &pair, 4);
            memcpy(&y, &high, 4);
            for (int n = 0; n < 16; n++) {
                evens[n] = __builtin_fmaf(x, even[k][n], evens[n]);
                odds[n] = __builtin_fmaf(y, odd[k][n], odds[n]);
            }
        }
        memcpy(sum, c[m], 64);
        for (int n = 0; n < 16; n++) sum[n] += evens[n] + odds[n];
        memcpy(c[m], sum, 64);
    }
}

static inline void TILE_DP(int c, int a, int b) {
    tile_model_check(c), tile_model_check(a), tile_model_check(b);
    if (c == a || c == b || a == b) abort(); /* #UD */
    unsigned int old = _mm_getcsr();
    _mm_setcsr(0x1f80u | 0x8040u); /* nearest even, no exceptions, FTZ, DAZ */
    tile_model_product(tile_model.tile[c], tile_model.tile[a], tile_model.tile[b]);
    _mm_setcsr(old);
}

static inline void tiles_begin(void) {
    if (tile_shape.palette != 1 || tile_shape.start_row != 0) abort();
    for (int t = 0; t < 8; t++)
        if (tile_shape.row_bytes[t] != 64 || tile_shape.rows[t] != 16) abort(); /* the only shape modelled */
    memset(&tile_model, 0, sizeof tile_model);
    tile_model.configured = 1;
}

static inline void tiles_end(void) { tile_model.configured = 0; }

#endif
