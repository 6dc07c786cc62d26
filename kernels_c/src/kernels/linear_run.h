/* linear_run.h: GGFW_OP_LINEAR: one activation, up to GGFW_MAX_OUTPUTS weights of one format.
 *
 * Chunk = (group of panels) x (block of rows); panels are numbered through all parts. Scratch: the panel that is made of
 * file rows (where weights are not packed), then the tiles. Chunks write disjoint columns or
 * rows. Where a residual view is the memory of the result, running a chunk twice would add it twice: such steps are not
 * re-executable.
 */
#ifndef GGFW_LINEAR_RUN_H
#define GGFW_LINEAR_RUN_H

#include "linear_panels.h"

typedef struct linear_geometry {
    int64_t panels; /* of all parts */
    int block_rows;
    int row_blocks;
    int32_t groups;
} linear_geometry;

LINEAR_INLINE int64_t linear_part_panels(const ggfw_step *step, int part)
{
    return (step->weight[part]->n_out + LINEAR_PANEL - 1) / LINEAR_PANEL;
}

LINEAR_INLINE linear_geometry linear_cut(const ggfw_step *step, const ggfw_run *run, int32_t rows)
{
    const linear_ops *ops = linear_ops_of(step->weight[0]->format, step->in[0].type);
    const int64_t n_in = step->weight[0]->n_in;
    linear_geometry g = { 0, 0, 0, 0 };
    for (int p = 0; p < step->params.linear.n_parts; p++) g.panels += linear_part_panels(step, p);
    g.block_rows = linear_block_rows(ops, n_in, rows);
    g.row_blocks = (rows + g.block_rows - 1) / g.block_rows;
    g.groups = linear_panel_groups(g.panels, ops->panel_bytes(n_in), rows, g.row_blocks, run->n_threads);
    return g;
}

static int32_t linear_n_chunks(const ggfw_step *step, const ggfw_run *run, int32_t row_begin, int32_t row_end)
{
    if (row_end <= row_begin) return 0;
    const linear_geometry g = linear_cut(step, run, row_end - row_begin);
    return g.groups * g.row_blocks;
}

static int64_t linear_scratch_size(const ggfw_step *step, const ggfw_run *run)
{
    const int64_t rows = run->max_rows > run->max_outputs ? run->max_rows : run->max_outputs;
    const linear_ops *ops = linear_ops_of(step->weight[0]->format, step->in[0].type);
    return linear_made_bytes(ops, step->weight[0]) + linear_tiles_bytes(ops, step->weight[0]->n_in, rows);
}

static void linear_run(const ggfw_step *step, const ggfw_run *run, int32_t row_begin, int32_t row_end, int32_t chunk,
                       void *scratch)
{
    const linear_geometry g = linear_cut(step, run, row_end - row_begin);
    const linear_ops *ops = linear_ops_of(step->weight[0]->format, step->in[0].type);
    const ggfw_linear *params = &step->params.linear;
    const int64_t n_in = step->weight[0]->n_in;
    const int32_t group = chunk / g.row_blocks;
    const int32_t row = row_begin + chunk % g.row_blocks * g.block_rows;
    const int n = row_end - row < g.block_rows ? row_end - row : g.block_rows;

    linear_rows x = { .n = n };
    for (int r = 0; r < n; r++) x.at[r] = run->arena + step->in[0].offset + (int64_t)(row + r) * step->in[0].stride;
    const int64_t made_bytes = linear_made_bytes(ops, step->weight[0]); /* all parts are in one layout */
    uint8_t *const made = made_bytes ? scratch : NULL;
    linear_build_tiles(ops, &x, n_in, (uint8_t *)scratch + made_bytes);

    int64_t first = g.panels * group / g.groups;
    int64_t end = g.panels * (group + 1) / g.groups;
    for (int p = 0; p < params->n_parts && end > 0; p++) {
        const ggfw_weight *weight = step->weight[p];
        const int64_t panels = linear_part_panels(step, p);
        if (first < panels) {
            const ggfw_view *to = &step->out[p], *add = &step->in[1 + p];
            const linear_finish finish = { params->bias[p], params->scale, params->softcap };
            float *out[LINEAR_MAX_ROWS];
            const float *residual[LINEAR_MAX_ROWS];
            for (int r = 0; r < n; r++) {
                out[r] = (float *)(run->arena + to->offset + (int64_t)(row + r) * to->stride);
                residual[r] = (const float *)(run->arena + add->offset + (int64_t)(row + r) * add->stride);
            }
            linear_run_panels(ops, weight->data, made, first, end < panels ? end : panels, n_in, weight->n_out, &x, out,
                              add->width ? residual : NULL, &finish, run->prefetch);
        }
        first = first > panels ? first - panels : 0;
        end -= panels;
    }
}

#endif
