/* linear_experts.h: which rows go through which expert.
 *
 * A *pair* is (row, slot); pair i = row i / k, slot i % k. All pairs of one expert are multiplied together, so that its
 * weights are read and unpacked once; experts that nobody chose are not touched. Chunk counts must not depend on the
 * choice, so there are min(pairs, experts) candidates: with few pairs a candidate is a pair, and it answers for its expert
 * if no earlier pair has the same; with many it is the expert itself.
 *
 * Without ids there is no choice: slot s goes through matrix s (products by head). k is the number of matrices then.
 */
#ifndef GGFW_LINEAR_EXPERTS_H
#define GGFW_LINEAR_EXPERTS_H

#include "linear_format.h"

LINEAR_INLINE int32_t linear_moe_candidates(const ggfw_step *step, int32_t rows)
{
    const int64_t pairs = (int64_t)rows * step->params.moe.n_used;
    return pairs < step->weight[0]->n_expert ? (int32_t)pairs : (int32_t)step->weight[0]->n_expert;
}

LINEAR_INLINE int32_t linear_moe_expert(const ggfw_step *step, const ggfw_run *run, int32_t row, int32_t slot)
{
    const ggfw_view *ids = &step->in[1];
    if (ids->width == 0) return slot;
    return ((const int32_t *)(run->arena + ids->offset + (int64_t)row * ids->stride))[slot];
}

/* The expert that a candidate answers for, or -1; the first pair that may have it, and the distance from one such pair to
 * the next. */
LINEAR_INLINE int32_t linear_moe_first(const ggfw_step *step, const ggfw_run *run, int32_t row_begin, int32_t row_end,
                                       int32_t candidate, int64_t *pair, int64_t *next)
{
    const int32_t k = step->params.moe.n_used;
    int32_t expert = candidate;
    *pair = 0; /* no pair before it has this expert */
    *next = 1;
    if (step->in[1].width == 0) {
        *pair = expert;
        *next = k;
    }
    if ((int64_t)(row_end - row_begin) * k < step->weight[0]->n_expert) {
        expert = linear_moe_expert(step, run, row_begin + candidate / k, candidate % k);
        for (*pair = 0; *pair < candidate; ++*pair)
            if (linear_moe_expert(step, run, row_begin + (int32_t)(*pair / k), (int32_t)(*pair % k)) == expert) return -1;
    }
    return expert;
}

#endif
