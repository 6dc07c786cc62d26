/* moe.h: choosing experts, and adding up what they say. */
#ifndef GGFW_MOE_H
#define GGFW_MOE_H

#include "norm.h"
#include "vmath.h"

#include <math.h>

/* e^(x - max) in place; returns the sum. */
VF_INLINE float exp_row(float *x, int32_t n) {
    float top = x[0];
    for (int32_t i = 1; i < n; i++) top = x[i] > top ? x[i] : top;
    vf sum = vf_zero(), t = vf_set(top);
    for (int32_t i = 0; i < n; i += 16) {
        vf e = vf_first(vf_exp(vf_sub(vf_load_n(x + i, n - i), t)), n - i);
        vf_store_n(x + i, e, n - i);
        sum = vf_add(sum, e);
    }
    return vf_sum(sum);
}

/* Experts of all groups but the n_used best (by the sum of their two best scores) are out. */
static void mask_groups(float *choice, int32_t n_expert, int32_t n_group, int32_t n_used, float *group_score) {
    int32_t size = n_expert / n_group;
    for (int32_t g = 0; g < n_group; g++) {
        float best = -INFINITY, second = -INFINITY;
        for (int32_t i = 0; i < size; i++) {
            float s = choice[g * size + i];
            if (s > best) {
                second = best;
                best = s;
            } else if (s > second) second = s;
        }
        group_score[g] = size > 1 ? best + second : best;
    }
    for (int32_t g = 0; g < n_group; g++) {
        int32_t better = 0; /* ties go to the lower group */
        for (int32_t o = 0; o < n_group; o++)
            better += group_score[o] > group_score[g] || (group_score[o] == group_score[g] && o < g);
        if (better >= n_used)
            for (int32_t i = 0; i < size; i++) choice[g * size + i] = -INFINITY;
    }
}

/* scratch: two rows of n_expert and the groups' scores. */
static void route_row(const ggfw_moe *p, const float *logits, int32_t *ids, float *weights, float *scratch) {
    int32_t n = p->n_expert, k = p->n_used;
    float *score = scratch, *choice = scratch + n;
    memcpy(score, logits, (size_t)n * sizeof *score);
    if (p->gate == GGFW_GATE_SOFTMAX) {
        float sum = exp_row(score, n);
        scale_row(score, n, 0.0f, 1.0f / sum, NULL, NULL, score);
    } else if (p->gate == GGFW_GATE_SIGMOID) {
        for (int32_t i = 0; i < n; i += 16)
            vf_store_n(score + i, vf_sigmoid(vf_load_n(score + i, n - i)), n - i);
    }
    for (int32_t i = 0; i < n; i++) choice[i] = score[i] + (p->selection_bias ? p->selection_bias[i] : 0.0f);
    if (p->n_group > 1) mask_groups(choice, n, p->n_group, p->n_group_used, scratch + 2 * n);
    for (int32_t i = 0; i < n; i++) /* NaN is never better than anything, but a row of NaN needs valid ids, too */
        if (!(choice[i] >= -INFINITY)) choice[i] = -INFINITY;
    for (int32_t j = 0; j < k; j++) {
        int32_t best = -1;
        for (int32_t i = 0; i < n; i++) {
            int taken = 0;
            for (int32_t before = 0; before < j; before++) taken |= ids[before] == i;
            if (!taken && (best < 0 || choice[i] > choice[best])) best = i;
        }
        ids[j] = best;
        weights[j] = score[best];
    }
    if (p->gate == GGFW_GATE_SOFTMAX_WEIGHT) {
        float sum = exp_row(weights, k);
        for (int32_t j = 0; j < k; j++) weights[j] /= sum;
    } else if (p->renormalise) {
        float sum = 0.0f;
        for (int32_t j = 0; j < k; j++) sum += weights[j];
        if (sum < 6.103515625e-5f) sum = 6.103515625e-5f;
        for (int32_t j = 0; j < k; j++) weights[j] /= sum;
    }
    for (int32_t j = 0; j < k; j++) weights[j] *= p->scale;
}

static int32_t route_chunks(const ggfw_step *step, const ggfw_run *run, int32_t row_begin, int32_t row_end) {
    (void)run;
    return chunks_of_rows(row_begin, row_end, rows_per_chunk(8 * step->params.moe.n_expert));
}

static void route_run(const ggfw_step *step, const ggfw_run *run, int32_t row_begin, int32_t row_end, int32_t chunk,
                      void *scratch) {
    const ggfw_moe *p = &step->params.moe;
    row_range r = rows_of_chunk(row_begin, row_end, rows_per_chunk(8 * p->n_expert), chunk);
    for (int32_t row = r.begin; row < r.end; row++)
        route_row(p, floats_of(run, &step->in[0], row), row_of(run, &step->out[0], row),
                  floats_of(run, &step->out[1], row), scratch);
}

static int64_t route_scratch(const ggfw_step *step, const ggfw_run *run) {
    (void)run;
    const ggfw_moe *p = &step->params.moe;
    return (2 * (int64_t)p->n_expert + p->n_group + 16) * (int64_t)sizeof(float);
}

static void moe_sum_run(const ggfw_step *step, const ggfw_run *run, int32_t row_begin, int32_t row_end, int32_t chunk,
                        void *scratch) {
    (void)scratch;
    int32_t n = step->out[0].width, k = step->in[1].width;
    row_range r = rows_of(step, row_begin, row_end, chunk);
    for (int32_t row = r.begin; row < r.end; row++) {
        const float *x = floats_of(run, &step->in[0], row), *weights = floats_of(run, &step->in[1], row);
        const float *residual = step->in[2].width > 0 ? floats_of(run, &step->in[2], row) : NULL;
        float *y = floats_of(run, &step->out[0], row);
        for (int32_t i = 0; i < n; i += 16) {
            int32_t left = n - i;
            vf sum = vf_zero();
            for (int32_t j = 0; j < k; j++)
                sum = vf_fma(vf_load_n(x + (int64_t)j * n + i, left), vf_set(weights[j]), sum);
            if (residual) sum = vf_add(sum, vf_load_n(residual + i, left));
            vf_store_n(y + i, sum, left);
        }
    }
}

#define GGFW_MOE_KERNELS                                                                                               \
    {.name = "moe_route", .op = GGFW_OP_MOE_ROUTE, .format = GGFW_FORMAT_NONE, .row_classes = GGFW_ROWS_ANY,           \
     .scratch_size = route_scratch, .n_chunks = route_chunks, .run = route_run},                                       \
    {.name = "moe_sum", .op = GGFW_OP_MOE_SUM, .format = GGFW_FORMAT_NONE, .row_classes = GGFW_ROWS_ANY,               \
     .n_chunks = row_chunks, .run = moe_sum_run},

#endif
