/* sampler_mask.c: drawing again among the tokens that a constraint allows. */
#include <math.h>
#include <stdlib.h>

#include "sampler_state.h"

void ggfw_sampler_hold(ggfw_sampler *sampler) { sampler->held = 1; }

int32_t ggfw_sampler_held(const ggfw_sampler *sampler) { return sampler->held; }

/* Copy a row with everything at -inf whose bit is not set. Words without any bit, most of them where a grammar leaves
 * little choice, are filled without looking at the row. */
static void mask_row(float *out, const float *row, int32_t n, const uint32_t *mask, int32_t n_words) {
    for (int32_t word = 0, first = 0; first < n; word++, first += 32) {
        const uint32_t bits = word < n_words ? mask[word] : 0;
        const int32_t m = n - first < 32 ? n - first : 32;
        if (bits == 0)
            for (int32_t i = 0; i < m; i++) out[first + i] = -INFINITY;
        else
            for (int32_t i = 0; i < m; i++) out[first + i] = bits >> i & 1 ? row[first + i] : -INFINITY;
    }
}

int32_t ggfw_sampler_pick_masked(ggfw_sampler *s, const float *row, int32_t n_vocab, const uint32_t *mask,
                                 int32_t n_words) {
    if (n_vocab > s->masked_row_capacity) {
        float *grown = realloc(s->masked_row, (size_t)n_vocab * sizeof *grown);
        if (!grown) return GGFW_SAMPLE_MEMORY;
        s->masked_row = grown;
        s->masked_row_capacity = n_vocab;
    }
    mask_row(s->masked_row, row, n_vocab, mask, n_words);
    return ggfw_sampler_pick(s, s->masked_row, n_vocab);
}
