/* ggfw_sampler.h: the native sampling chain, the twin of ggfw.sampling: token for token the same.
 *
 * One sampler belongs to one sequence; different samplers may be used by different threads at the same time. Rows are
 * float32 logits [n_vocab] of any alignment and are never written. NaN counts as -inf, -inf is never chosen, of equal
 * logits (+0 and -0 are equal) the lower id comes first. The floating-point mode of the calling thread (flushing of
 * denormals) does not matter. Read by cffi like ggfw_kernels.h.
 */
#ifndef GGFW_SAMPLER_H
#define GGFW_SAMPLER_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#pragma GCC visibility push(default)
#endif

/* cffi: begin */

enum ggfw_sample_status {
    GGFW_SAMPLE_OK = 0,
    GGFW_SAMPLE_NONFINITE = -1, /* no logit is above -inf (after bias and penalties) */
    GGFW_SAMPLE_MEMORY = -2,
    GGFW_SAMPLE_ARGUMENT = -3
};

/* The fields mean what those of ggfw.sampling.Params mean; values are taken as checked. */
typedef struct ggfw_sampler_params {
    uint64_t seed;
    float temperature;      /* <= 0: greedy */
    int32_t top_k;          /* <= 0: all */
    float top_p;            /* >= 1: off */
    float min_p;            /* <= 0: off */
    float typical_p;        /* >= 1: off */
    int32_t penalty_last_n; /* 0: off, < 0: the whole conversation */
    float penalty_repeat;   /* > 0; 1: off */
    float penalty_freq;
    float penalty_present;
    int32_t n_bias;
    const int32_t *bias_ids; /* [n_bias] distinct, copied */
    const float *bias_values; /* [n_bias] finite or -inf, copied */
} ggfw_sampler_params;

typedef struct ggfw_sampler ggfw_sampler;

/* NULL: out of memory. */
ggfw_sampler *ggfw_sampler_new(const ggfw_sampler_params *params);
void ggfw_sampler_free(ggfw_sampler *sampler);
/* An independent sampler that goes on exactly like this one; NULL: out of memory. */
ggfw_sampler *ggfw_sampler_clone(const ggfw_sampler *sampler);

/* Push n ids (the prompt) into the penalty window. 0 or GGFW_SAMPLE_MEMORY. */
int32_t ggfw_sampler_seed(ggfw_sampler *sampler, const int32_t *ids, int32_t n);
/* Say that a token entered the text. 0 or GGFW_SAMPLE_MEMORY. */
int32_t ggfw_sampler_accept(ggfw_sampler *sampler, int32_t id);

/* One token id >= 0, or a negative status. An empty row gives 0. Does not accept the token. */
int32_t ggfw_sampler_pick(ggfw_sampler *sampler, const float *row, int32_t n_vocab);

/* What pick draws from: at most `capacity` of the candidates, best first, with their probabilities. Returns the
 * number of all candidates or a negative status; draws no random number. */
int32_t ggfw_sampler_distribution(ggfw_sampler *sampler, const float *row, int32_t n_vocab, int32_t capacity,
                                  int32_t *ids, float *probabilities);

/* The generator's state {high, low}, e.g. to go on in Python with ggfw.sampling.Pcg. */
void ggfw_sampler_rng_get(const ggfw_sampler *sampler, uint64_t *state);
void ggfw_sampler_rng_set(ggfw_sampler *sampler, const uint64_t *state);

/* Id of the best logit or GGFW_SAMPLE_NONFINITE. */
int32_t ggfw_argmax(const float *row, int32_t n);

/* The k best entries above -inf, best first, into ids [k] and values [k] (either may be NULL). Returns how many were
 * found (fewer than k when the row has fewer), or a negative status. */
int32_t ggfw_top_k(const float *row, int32_t n, int32_t k, int32_t *ids, float *values);

/* Which instruction set the scans use: 0 plain C, 1 AVX2, 2 AVX-512. A limit >= 0 forbids better ones from now on (for
 * tests and comparisons), a negative one removes the limit. Returns what is used now. */
int32_t ggfw_sampler_isa(int32_t limit);

/* cffi: end */

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif

#ifdef __cplusplus
}
#endif
#endif
