/* linear_panels.h: the loops that all formats share: rows into tiles, panels times tiles, results to their rows. */
#ifndef GGFW_LINEAR_PANELS_H
#define GGFW_LINEAR_PANELS_H

#include "linear_finish.h"
#include "linear_float.h"

/* Rows of one row block at most. A block's tiles stay in the second cache while all panels of a chunk pass. */
enum { LINEAR_MAX_ROWS = 256, LINEAR_TILE_BUDGET = 256 * 1024 };

/* What the shared loops need to know of a format. */
typedef struct linear_ops {
    int64_t (*panel_bytes)(int64_t n_in);
    int64_t (*tile_bytes)(int R, int64_t n_in);
    void (*tile_build)(int R, const uint8_t *const *rows, int n, int64_t n_in, uint8_t *tile);
    /* by log2 of R */
    void (*tile_run[4])(const uint8_t *panel, const uint8_t *tile, int64_t n_in, float *const *out, int64_t prefetch);
    int max_tile;
} linear_ops;

static const linear_ops *linear_ops_of(int32_t format);

/* Rows of a tile for the next `left` rows: as many as fit, or the next power of two. */
LINEAR_INLINE int linear_tile_rows(const linear_ops *ops, int left)
{
    int R = 1;
    while (R < left && R < ops->max_tile) R *= 2;
    return R;
}

LINEAR_INLINE int linear_log2(int R) { return R >= 8 ? 3 : R >= 4 ? 2 : R >= 2 ? 1 : 0; }

/* Rows [0, n) at rows[] into tiles, tile_bytes(max_tile) apart. */
static void linear_build_tiles(const linear_ops *ops, const uint8_t *const *rows, int n, int64_t n_in, uint8_t *tiles)
{
    const int64_t stride = ops->tile_bytes(ops->max_tile, n_in);
    for (int r = 0; r < n; tiles += stride) {
        const int R = linear_tile_rows(ops, n - r);
        const int used = n - r < R ? n - r : R;
        ops->tile_build(R, rows + r, used, n_in, tiles);
        r += used;
    }
}

/* Panels [first, end) of one matrix times n rows in tiles. out[r], residual[r]: row r of the result (column 0);
 * residual is NULL where there is none. A panel is read from memory once and then met in the first cache. */
static void linear_run_panels(const linear_ops *ops, const uint8_t *matrix, int64_t first, int64_t end, int64_t n_in,
                              int64_t n_out, const uint8_t *tiles, int n, float *const *out,
                              const float *const *residual, const linear_finish *finish, int64_t prefetch)
{
    const int64_t panel_bytes = ops->panel_bytes(n_in), stride = ops->tile_bytes(ops->max_tile, n_in);
    const int plain = !finish->bias && finish->scale == 1 && finish->softcap == 0 && !residual;
    float y[LINEAR_MAX_TILE][LINEAR_PANEL];
    for (int64_t panel = first; panel < end; panel++) {
        const int64_t column = panel * LINEAR_PANEL;
        const int columns = n_out - column < LINEAR_PANEL ? (int)(n_out - column) : LINEAR_PANEL;
        const int direct = plain && columns == LINEAR_PANEL;
        const uint8_t *tile = tiles;
        for (int r = 0; r < n; tile += stride) {
            const int R = linear_tile_rows(ops, n - r);
            const int used = n - r < R ? n - r : R;
            float *to[LINEAR_MAX_TILE];
            for (int i = 0; i < R; i++) to[i] = direct && i < used ? out[r + i] + column : y[i];
            ops->tile_run[linear_log2(R)](matrix + panel * panel_bytes, tile, n_in, to, r == 0 ? prefetch : 0);
            if (!direct)
                for (int i = 0; i < used; i++)
                    linear_finish_row(finish, y[i], column, columns, residual ? residual[r + i] : NULL, out[r + i]);
            r += used;
        }
    }
}

/* Rows per row block for a batch of n rows: within the budget, a multiple of the largest tile. */
LINEAR_INLINE int linear_block_rows(const linear_ops *ops, int64_t n_in, int64_t n)
{
    const int64_t bytes = ops->tile_bytes(LINEAR_MAX_TILE, n_in) / LINEAR_MAX_TILE + 1;
    int64_t rows = LINEAR_TILE_BUDGET / bytes / LINEAR_MAX_TILE * LINEAR_MAX_TILE;
    if (rows > LINEAR_MAX_ROWS) rows = LINEAR_MAX_ROWS;
    if (rows < LINEAR_MAX_TILE) rows = LINEAR_MAX_TILE;
    const int64_t blocks = n > rows ? (n + rows - 1) / rows : 1;
    rows = (n + blocks - 1) / blocks;
    return (int)((rows + LINEAR_MAX_TILE - 1) / LINEAR_MAX_TILE * LINEAR_MAX_TILE);
}

/* Groups of panels: about 80 KB of weights each, at least `least` of them where there are that many panels, and a
 * multiple of the threads while there are few. */
LINEAR_INLINE int32_t linear_panel_groups(int64_t panels, int64_t panel_bytes, int64_t least, int32_t n_threads)
{
    enum { GROUP_BYTES = 80 * 1024 };
    int64_t groups = (panels * panel_bytes + GROUP_BYTES / 2) / GROUP_BYTES;
    if (groups < least) groups = least;
    if (groups < 8 * n_threads) groups = (groups + n_threads - 1) / n_threads * n_threads;
    if (groups > panels) groups = panels;
    return groups < 1 ? 1 : (int32_t)groups;
}

/* Bytes of scratch for one row block of the largest batch. */
LINEAR_INLINE int64_t linear_tiles_bytes(const linear_ops *ops, int64_t n_in, int64_t max_rows)
{
    /* a smaller batch may be cut into larger blocks, so ask for the largest block there can be */
    const int64_t bytes = ops->tile_bytes(ops->max_tile, n_in);
    int64_t rows = LINEAR_TILE_BUDGET / (ops->tile_bytes(LINEAR_MAX_TILE, n_in) / LINEAR_MAX_TILE + 1);
    if (rows > LINEAR_MAX_ROWS) rows = LINEAR_MAX_ROWS;
    if (rows > max_rows) rows = max_rows;
    return (rows / ops->max_tile + LINEAR_MAX_TILE) * bytes;
}

#endif
