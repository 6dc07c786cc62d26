/* linear_moe.h: GGFW_OP_MOE_LINEAR: every row goes through the k experts that routing chose for it; see
 * linear_experts.h. A chunk is (candidate, group of panels). */
#ifndef GGFW_LINEAR_MOE_H
#define GGFW_LINEAR_MOE_H

#include "linear_experts.h"
#include "linear_panels.h"

LINEAR_INLINE int32_t linear_moe_groups(const ggfw_step *step, const ggfw_run *run, int32_t candidates)
{
    const ggfw_weight *w = step->weight[0];
    const int64_t panels = (w->n_out + LINEAR_PANEL - 1) / LINEAR_PANEL;
    return linear_panel_groups(panels, linear_ops_of(w->format, step->in[0].type)->panel_bytes(w->n_in), 1, candidates, run->n_threads);
}

static int32_t linear_moe_n_chunks(const ggfw_step *step, const ggfw_run *run, int32_t row_begin, int32_t row_end)
{
    if (row_end <= row_begin) return 0;
    const int32_t candidates = linear_moe_candidates(step, row_end - row_begin);
    return candidates * linear_moe_groups(step, run, candidates);
}

static int64_t linear_moe_scratch_size(const ggfw_step *step, const ggfw_run *run)
{
    const int64_t rows = run->max_rows > run->max_outputs ? run->max_rows : run->max_outputs;
    const linear_ops *ops = linear_ops_of(step->weight[0]->format, step->in[0].type);
    return linear_made_bytes(ops, step->weight[0])
           + linear_tiles_bytes(ops, step->weight[0]->n_in, rows * step->params.moe.n_used);
}

static void linear_moe_run(const ggfw_step *step, const ggfw_run *run, int32_t row_begin, int32_t row_end,
                           int32_t chunk, void *scratch)
{
    const ggfw_moe *params = &step->params.moe;
    const ggfw_weight *weight = step->weight[0];
    const linear_ops *ops = linear_ops_of(weight->format, step->in[0].type);
    const int32_t k = params->n_used;
    const int64_t pairs = (int64_t)(row_end - row_begin) * k;
    const int32_t candidates = linear_moe_candidates(step, row_end - row_begin);
    const int32_t groups = linear_moe_groups(step, run, candidates);
    const int32_t candidate = chunk / groups, group = chunk % groups;

    int64_t pair, next;
    const int32_t expert = linear_moe_first(step, run, row_begin, row_end, candidate, &pair, &next);
    if (expert < 0) return;
    const int64_t panels = (weight->n_out + LINEAR_PANEL - 1) / LINEAR_PANEL;
    const int64_t first = panels * group / groups, end = panels * (group + 1) / groups;
    const uint8_t *matrix = (const uint8_t *)weight->data + expert * weight->expert_stride;
    const linear_finish finish = { params->bias ? params->bias + expert * weight->n_out : NULL,
                                   params->expert_scale ? params->expert_scale[expert] : 1, 0 };
    const int64_t slot_bytes = params->per_slot_input ? activation_row_bytes(step->in[0].type, weight->n_in) : 0;
    const int block = linear_block_rows(ops, weight->n_in, LINEAR_MAX_ROWS);
    const int64_t made_bytes = linear_made_bytes(ops, weight);
    while (pair < pairs) {
        linear_rows x = { .n = 0 };
        float *out[LINEAR_MAX_ROWS];
        for (; pair < pairs && x.n < block; pair += next) {
            const int32_t row = row_begin + (int32_t)(pair / k), slot = (int32_t)(pair % k);
            if (linear_moe_expert(step, run, row, slot) != expert) continue;
            x.at[x.n] = run->arena + step->in[0].offset + (int64_t)row * step->in[0].stride + slot * slot_bytes;
            out[x.n] = (float *)(run->arena + step->out[0].offset + (int64_t)row * step->out[0].stride)
                     + slot * weight->n_out;
            x.n++;
        }
        if (x.n == 0) return;
        linear_build_tiles(ops, &x, weight->n_in, (uint8_t *)scratch + made_bytes);
        linear_run_panels(ops, matrix, made_bytes ? scratch : NULL, first, end, weight->n_in, weight->n_out, &x, out, NULL, &finish,
                          run->prefetch);
    }
}

#endif
