/* linear_panels.h: the loops that all formats share: rows into tiles, panels times tiles, results to their rows. */
#ifndef GGFW_LINEAR_PANELS_H
#define GGFW_LINEAR_PANELS_H

#include "linear_finish.h"
#include "linear_exact.h"
#include "linear_float.h"

/* Rows of one row block at most. A block's tiles stay in the second cache while all panels of a chunk pass. */
enum { LINEAR_MAX_ROWS = 256, LINEAR_TILE_BUDGET = 256 * 1024 };

/* What the shared loops need to know of a format. */
typedef struct linear_ops {
    int64_t (*panel_bytes)(int64_t n_in);
    /* Panel `panel` of a matrix in the file's layout, as pack() makes it. */
    void (*panel_of_file)(const uint8_t *file_rows, int64_t n_out, int64_t n_in, int64_t panel, uint8_t *to);
    /* NULL for f32 activations, whose rows are read where they are */
    int64_t (*tile_bytes)(int R, int64_t n_in);
    void (*tile_build)(int R, const uint8_t *const *rows, int n, int64_t n_in, uint8_t *tile);
    /* by log2 of R; x: R rows (f32 activations, or R = 1), else one tile */
    void (*tile_run[4])(const uint8_t *panel, const uint8_t *const *x, int64_t n_in, float *const *out,
                        int64_t prefetch);
    int max_tile;
} linear_ops;

/* activation: enum ggfw_type of the step's input. */
static const linear_ops *linear_ops_of(int32_t format, int32_t activation);

/* The activations of one row block. */
typedef struct linear_rows {
    int n;
    const uint8_t *at[LINEAR_MAX_ROWS]; /* rows as the step's input has them */
    const uint8_t *tiles;               /* the same as tiles, tile_stride apart */
    int64_t tile_stride;
} linear_rows;

/* Rows of a tile for the next `left` rows: as many as fit, or the next power of two. */
LINEAR_INLINE int linear_tile_rows(const linear_ops *ops, int left)
{
    int R = 1;
    while (R < left && R < ops->max_tile) R *= 2;
    return R;
}

LINEAR_INLINE int linear_log2(int R) { return R >= 8 ? 3 : R >= 4 ? 2 : R >= 2 ? 1 : 0; }

/* Make tiles of x->at[0 .. x->n) in memory of linear_tiles_bytes(). */
static void linear_build_tiles(const linear_ops *ops, linear_rows *x, int64_t n_in, uint8_t *tiles)
{
    if (!ops->tile_build) return;
    x->tiles = tiles;
    x->tile_stride = ops->tile_bytes(ops->max_tile, n_in);
    for (int r = 0; r < x->n; tiles += x->tile_stride) {
        const int R = linear_tile_rows(ops, x->n - r);
        const int used = x->n - r < R ? x->n - r : R;
        if (R > 1) ops->tile_build(R, x->at + r, used, n_in, tiles);
        r += used;
    }
}

/* Panels [first, end) of one matrix times the rows. out[r], residual[r]: row r of the result (column 0); residual is
 * NULL where there is none. A panel comes from memory once and is then met in the first cache. made: NULL for a packed
 * matrix; room for one panel where the matrix is in the file's layout, of which each panel is made when its turn comes. */
static void linear_run_panels(const linear_ops *ops, const uint8_t *matrix, uint8_t *made, int64_t first, int64_t end,
                              int64_t n_in, int64_t n_out, const linear_rows *x, float *const *out,
                              const float *const *residual, const linear_finish *finish, int64_t prefetch)
{
    const int64_t panel_bytes = ops->panel_bytes(n_in);
    const int plain = !finish->bias && finish->scale == 1 && finish->softcap == 0 && !residual;
    float y[LINEAR_MAX_TILE][LINEAR_PANEL];
    for (int64_t panel = first; panel < end; panel++) {
        const int64_t column = panel * LINEAR_PANEL;
        const int columns = n_out - column < LINEAR_PANEL ? (int)(n_out - column) : LINEAR_PANEL;
        const int direct = plain && columns == LINEAR_PANEL;
        const uint8_t *const weights = made ? made : matrix + panel * panel_bytes;
        if (made) ops->panel_of_file(matrix, n_out, n_in, panel, made);
        int64_t tile_at = 0;
        for (int r = 0; r < x->n; tile_at += x->tile_stride) {
            const int R = linear_tile_rows(ops, x->n - r);
            const int used = x->n - r < R ? x->n - r : R;
            const uint8_t *rows[LINEAR_MAX_TILE];
            float *to[LINEAR_MAX_TILE];
            for (int i = 0; i < R; i++) {
                rows[i] = x->at[i < used ? r + i : r];
                to[i] = direct && i < used ? out[r + i] + column : y[i];
            }
            if (R > 1 && ops->tile_build) rows[0] = x->tiles + tile_at;
            ops->tile_run[linear_log2(R)](weights, rows, n_in, to, r == 0 && !made ? prefetch : 0);
            if (!direct)
                for (int i = 0; i < used; i++)
                    linear_finish_row(finish, y[i], column, columns, residual ? residual[r + i] : NULL, out[r + i]);
            r += used;
        }
    }
}

/* Bytes that one row takes in the second cache. */
LINEAR_INLINE int64_t linear_row_bytes(const linear_ops *ops, int64_t n_in)
{
    return ops->tile_bytes ? ops->tile_bytes(LINEAR_MAX_TILE, n_in) / LINEAR_MAX_TILE : 4 * n_in;
}

/* Rows per row block for a batch of n rows: within the budget, a multiple of the largest tile. */
LINEAR_INLINE int linear_block_rows(const linear_ops *ops, int64_t n_in, int64_t n)
{
    int64_t rows = LINEAR_TILE_BUDGET / (linear_row_bytes(ops, n_in) + 1) / LINEAR_MAX_TILE * LINEAR_MAX_TILE;
    if (rows > LINEAR_MAX_ROWS) rows = LINEAR_MAX_ROWS;
    if (rows < LINEAR_MAX_TILE) rows = LINEAR_MAX_TILE;
    const int64_t blocks = n > rows ? (n + rows - 1) / rows : 1;
    rows = (n + blocks - 1) / blocks;
    return (int)((rows + LINEAR_MAX_TILE - 1) / LINEAR_MAX_TILE * LINEAR_MAX_TILE);
}

/* Groups of panels for a number of rows that row blocks of equal work share.
 *
 * One row: memory is the limit. A thread that begins a chunk reads slowly at first: of chunks of 320 KB two threads read a
 * fifth more per second than of chunks of 80 KB, but a small matrix has to be shared out in some 8 chunks per thread. More
 * rows: tiles are built anew in every chunk, so a chunk takes enough panels to pay for them; there are at least 4 chunks
 * per thread where that leaves 4 panels for each. While there are few chunks, their number is a multiple of the threads. */
LINEAR_INLINE int32_t linear_panel_groups(int64_t panels, int64_t panel_bytes, int rows, int64_t blocks, int32_t n_threads)
{
    enum { LEAST_BYTES = 80 * 1024, MOST_BYTES = 320 * 1024, GROUP_PANELS = 24, LEAST_PANELS = 4 };
    int64_t bytes = panels * panel_bytes * blocks / (8 * n_threads);
    bytes = bytes < LEAST_BYTES ? LEAST_BYTES : bytes > MOST_BYTES ? MOST_BYTES : bytes;
    int64_t groups = (panels * panel_bytes + bytes / 2) / bytes;
    if (rows > 1) {
        const int64_t per_group = rows < LINEAR_MAX_TILE ? 8 : GROUP_PANELS;
        if (groups > panels / per_group || rows > LINEAR_MAX_TILE) groups = panels / per_group;
        const int64_t least = rows > LINEAR_MAX_TILE ? 4 * n_threads : n_threads;
        if (groups * blocks < least) groups = (least + blocks - 1) / blocks;
        if (groups > panels / LEAST_PANELS) groups = panels / LEAST_PANELS;
    }
    if (groups * blocks < 8 * n_threads)
        while (groups * blocks % n_threads) groups++;
    if (groups > panels) groups = panels;
    return groups < 1 ? 1 : (int32_t)groups;
}

/* Bytes of scratch for a panel that is made of file rows; 0 for packed matrices. */
LINEAR_INLINE int64_t linear_made_bytes(const linear_ops *ops, const ggfw_weight *weight)
{
    return weight->layout == GGFW_LAYOUT_FILE ? (ops->panel_bytes(weight->n_in) + 63) / 64 * 64 : 0;
}

/* Bytes of scratch for the tiles of one row block of a batch of at most max_rows rows. */
LINEAR_INLINE int64_t linear_tiles_bytes(const linear_ops *ops, int64_t n_in, int64_t max_rows)
{
    if (!ops->tile_bytes) return 0;
    /* a smaller batch may be cut into larger blocks, so ask for the largest block there can be */
    const int64_t rows = max_rows < LINEAR_MAX_ROWS ? max_rows : LINEAR_MAX_ROWS;
    const int64_t largest = LINEAR_TILE_BUDGET / (linear_row_bytes(ops, n_in) + 1);
    return ((rows < largest ? rows : largest) / ops->max_tile + 2) * ops->tile_bytes(ops->max_tile, n_in);
}

#endif
