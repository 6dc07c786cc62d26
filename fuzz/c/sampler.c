/* sampler.c: rows of any floats through chains of any parameters; the id is one of the row's, the scans agree. */
#include "ggfw_sampler.h"

#include "choices.h"

#include <math.h>

static float between(choices *c, float low, float high) { return low + (high - low) * (float)below(c, 256) / 255.0f; }

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    choices c = {data, size};
    int32_t isa = (int32_t)below(&c, 3), n = (int32_t)below(&c, 600);
    int32_t bias_ids[4], end_ids[2], breakers[2], longer[8];
    float bias[4];
    ggfw_sampler_params p = {.seed = number(&c, 8), .greedy = below(&c, 8) == 0, .n_stages = (int32_t)below(&c, 9)};
    for (int i = 0; i < p.n_stages; i++) p.stages[i] = 1 + (int32_t)below(&c, 8);
    p.min_keep = (int32_t)below(&c, 4);
    p.temperature = between(&c, 0.0f, 3.0f);
    p.dynatemp_range = between(&c, 0.0f, 2.0f);
    p.dynatemp_exponent = between(&c, 0.0f, 2.0f);
    p.top_k = (int32_t)below(&c, 700);
    p.top_p = between(&c, 0.0f, 1.0f);
    p.min_p = between(&c, 0.0f, 1.0f);
    p.typical_p = between(&c, 0.0f, 1.0f);
    p.top_n_sigma = between(&c, -1.0f, 4.0f);
    p.xtc_probability = between(&c, 0.0f, 1.0f);
    p.xtc_threshold = between(&c, 0.0f, 0.6f);
    p.penalty_last_n = (int32_t)below(&c, 80) - 1;
    p.penalty_repeat = between(&c, 0.5f, 2.0f);
    p.penalty_freq = between(&c, -2.0f, 2.0f);
    p.penalty_present = between(&c, -2.0f, 2.0f);
    p.dry_multiplier = below(&c, 2) ? between(&c, 0.0f, 3.0f) : 0.0f;
    p.dry_base = between(&c, 1.0f, 3.0f);
    p.dry_allowed_length = (int32_t)below(&c, 5);
    p.dry_last_n = (int32_t)below(&c, 80) - 1;
    p.dry_first = (int32_t)below(&c, 2);
    p.n_dry_single = (int32_t)below(&c, 3);
    for (int i = 0; i < 2; i++) breakers[i] = (int32_t)below(&c, 20);
    p.dry_single = breakers;
    p.n_dry_longer = 4 * (int32_t)below(&c, 3); /* places, of which each breaker takes four */
    for (int i = 0; i < 2; i++) {
        longer[4 * i] = i * 10;
        longer[4 * i + 1] = 2;
        longer[4 * i + 2] = (int32_t)below(&c, 20);
        longer[4 * i + 3] = (int32_t)below(&c, 20);
    }
    p.dry_longer = longer;
    p.n_bias = (int32_t)below(&c, 5);
    for (int i = 0; i < 4; i++) {
        bias_ids[i] = i * 37;
        bias[i] = below(&c, 4) ? between(&c, -9.0f, 9.0f) : -INFINITY;
    }
    p.bias_ids = bias_ids;
    p.bias_values = bias;
    p.n_end = (int32_t)below(&c, 3);
    end_ids[0] = 2;
    end_ids[1] = (int32_t)below(&c, 600) + 3;
    p.end_ids = end_ids;
    p.min_tokens = (int32_t)below(&c, 4);
    p.n_logprobs = (int32_t)below(&c, 8) - 1;
    float *row = exactly(n, sizeof *row);
    for (int i = 0; i < n; i++) row[i] = c.left ? any_float(&c) : (float)((i * 7919) % 101) / 10.0f;
    int32_t n_words = (n + 31) / 32;
    uint32_t *mask = exactly(n_words, sizeof *mask);
    for (int i = 0; i < n_words; i++) mask[i] = below(&c, 2) ? 0xffffffffu : (uint32_t)number(&c, 4);

    ggfw_sampler_isa(isa);
    ggfw_sampler *s = ggfw_sampler_new(&p);
    if (s == NULL) abort();
    int32_t prompt[] = {1, 2, 3, 1, 2, 3, 1, 2};
    ggfw_sampler_seed(s, prompt, 8);
    for (int round = 0; round < 4; round++) {
        ggfw_sampler *twin = ggfw_sampler_clone(s);
        int32_t masked = (int32_t)below(&c, 2);
        int32_t id = masked ? ggfw_sampler_pick_masked(s, row, n, mask, n_words) : ggfw_sampler_pick(s, row, n);
        if (id >= (n > 0 ? n : 1) || id < GGFW_SAMPLE_NONFINITE) abort();
        if (masked && id >= 0 && n > 0 && !(mask[id / 32] >> (id % 32) & 1)) abort();
        ggfw_sampler_isa(0); /* plain C says the same */
        int32_t again = masked ? ggfw_sampler_pick_masked(twin, row, n, mask, n_words) : ggfw_sampler_pick(twin, row, n);
        if (again != id) abort();
        ggfw_sampler_isa(isa);
        int32_t taken, ids[8], found[4];
        double logprob, logprobs[8];
        float probabilities[4];
        ggfw_sampler_take_logprobs(s, &taken, &logprob, ids, logprobs);
        ggfw_sampler_distribution(s, row, n, 4, found, probabilities);
        ggfw_sampler_free(twin);
        if (id >= 0) ggfw_sampler_accept(s, id);
    }
    int32_t best[10];
    float values[10];
    int32_t k = (int32_t)below(&c, 11), got = ggfw_top_k(row, n, k, best, values);
    if (got > k || (got > 0 && k > 0 && best[0] != ggfw_argmax(row, n))) abort();
    ggfw_sampler_free(s);
    ggfw_sampler_isa(-1);
    free(row);
    free(mask);
    return 0;
}
