/* tiles.h: the tile instructions of AMX-BF16 under names of our own, so that a software model can stand in for them
 * (GGFW_TILE_MODEL: tile_model.h, for tests on processors without them).
 *
 *     TILE_LOAD(t, at)    tile t from 16 rows of 64 bytes that follow each other
 *     TILE_STORE(t, at)
 *     TILE_ZERO(t)
 *     TILE_DP(c, a, b)    c += a b: a is 16 rows of 32 bf16, b 16 rows of 16 pairs of bf16, c 16 rows of 16 floats
 *     tiles_begin(), tiles_end()   around them, in every thread and chunk
 */
#ifndef GGFW_TILES_H
#define GGFW_TILES_H

#include <stdint.h>

enum { TILE_ROWS = 16, TILE_BYTES = 1024 };

typedef struct tile_config {
    uint8_t palette;
    uint8_t start_row;
    uint8_t reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} tile_config;

/* All eight tiles at their full size. Static: gcc declares the instruction as reading 8 bytes, and would drop the stores
 * that fill a local one. */
#define TILE_EIGHT(x) { x, x, x, x, x, x, x, x }
static const tile_config tile_shape __attribute__((aligned(64))) = {
    .palette = 1, .row_bytes = TILE_EIGHT(64), .rows = TILE_EIGHT(16)
};

#if defined(GGFW_TILE_MODEL)
#include "tile_model.h"
#else
#include <immintrin.h>

#define TILE_LOAD(t, at) _tile_loadd(t, at, 64)
#define TILE_STORE(t, at) _tile_stored(t, at, 64)
#define TILE_ZERO(t) _tile_zero(t)
#define TILE_DP(c, a, b) _tile_dpbf16ps(c, a, b)

static inline void tiles_begin(void) { _tile_loadconfig(&tile_shape); }
static inline void tiles_end(void) { _tile_release(); } /* live tiles make context switches slower */
#endif

#endif
