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
    GGFW_SAMPLE_ARGUMENT = -3,
    GGFW_SAMPLE_NOT_DRAWN = -4 /* an executor did not come to this row: a draft before it was not kept */
};

/* The stages that take candidates. Bias, penalties and DRY come before all of them. */
enum ggfw_sample_stage {
    GGFW_STAGE_TOP_N_SIGMA = 1,
    GGFW_STAGE_TOP_K = 2,
    GGFW_STAGE_TYPICAL = 3,
    GGFW_STAGE_TOP_P = 4,
    GGFW_STAGE_MIN_P = 5,
    GGFW_STAGE_XTC = 6,
    GGFW_STAGE_TEMPERATURE = 7,
    GGFW_STAGE_DYNAMIC_TEMPERATURE = 8
};

/* The fields mean what those of ggfw.sampling.Params mean; values are taken as checked. Arrays are copied. */
typedef struct ggfw_sampler_params {
    uint64_t seed;
    int32_t greedy;         /* the best after bias, penalties and DRY; no stage runs, nothing is drawn */
    int32_t n_stages;
    int32_t stages[32];     /* the ggfw_sample_stage that are on, in their order; one may occur more than once */
    int32_t min_keep;
    float temperature;
    float dynatemp_range;
    float dynatemp_exponent;
    int32_t top_k;
    float top_p;
    float min_p;
    float typical_p;
    float top_n_sigma;
    float xtc_probability;
    float xtc_threshold;
    int32_t penalty_last_n; /* 0: off, < 0: the whole conversation */
    float penalty_repeat;   /* > 0; 1: off */
    float penalty_freq;
    float penalty_present;
    float dry_multiplier;   /* 0: off */
    float dry_base;
    int32_t dry_allowed_length;
    int32_t dry_last_n;
    int32_t dry_first;      /* DRY comes before the penalties */
    int32_t n_dry_single;
    int32_t n_dry_longer;
    const int32_t *dry_single; /* [n_dry_single] ids >= 0 whose text contains a sequence breaker */
    const int32_t *dry_longer; /* [n_dry_longer] breakers of several tokens: first id >= 0 (rising), number of tokens that
                                  follow, those tokens; and so on */
    int32_t n_bias;
    int32_t n_end;
    int32_t min_tokens;     /* accepted tokens before one of end_ids may come */
    int32_t n_logprobs;     /* tokens whose log-probabilities are noted with each pick; < 0: nothing is noted */
    const int32_t *bias_ids;  /* [n_bias] distinct */
    const float *bias_values; /* [n_bias] finite or -inf */
    const int32_t *end_ids;   /* [n_end] distinct */
} ggfw_sampler_params;

typedef struct ggfw_sampler ggfw_sampler;

/* NULL: out of memory. */
ggfw_sampler *ggfw_sampler_new(const ggfw_sampler_params *params);
void ggfw_sampler_free(ggfw_sampler *sampler);
/* An independent sampler that goes on exactly like this one; NULL: out of memory. */
ggfw_sampler *ggfw_sampler_clone(const ggfw_sampler *sampler);

/* Push n ids (the prompt) into the penalty window and into DRY's history. 0 or GGFW_SAMPLE_MEMORY. */
int32_t ggfw_sampler_seed(ggfw_sampler *sampler, const int32_t *ids, int32_t n);
/* Say that a token entered the text. 0 or GGFW_SAMPLE_MEMORY. */
int32_t ggfw_sampler_accept(ggfw_sampler *sampler, int32_t id);

/* One token id >= 0, or a negative status. An empty row gives 0. Does not accept the token. */
int32_t ggfw_sampler_pick(ggfw_sampler *sampler, const float *row, int32_t n_vocab);

/* A held sampler's picks may still be refused: ggfw_sampler_accept, which an executor calls with each pick, does nothing
 * for it, and ggfw_sampler_settle takes the token in. */
void ggfw_sampler_hold(ggfw_sampler *sampler);
int32_t ggfw_sampler_held(const ggfw_sampler *sampler);
int32_t ggfw_sampler_settle(ggfw_sampler *sampler, int32_t id);
/* Pick as if the logits of all ids were -inf whose bit (id % 32 of word id / 32) is not set in mask [n_words]; ids beyond
 * it are refused too. GGFW_SAMPLE_NONFINITE: nothing above -inf is left. */
int32_t ggfw_sampler_pick_masked(ggfw_sampler *sampler, const float *row, int32_t n_vocab, const uint32_t *mask,
                                 int32_t n_words);

/* What pick draws from: at most `capacity` of the candidates, best first, with their probabilities. Returns the
 * number of all candidates or a negative status; draws no random number. */
int32_t ggfw_sampler_distribution(ggfw_sampler *sampler, const float *row, int32_t n_vocab, int32_t capacity,
                                  int32_t *ids, float *probabilities);

/* With n_logprobs >= 0 every pick notes the natural logarithms of probabilities in the row as the model gave it, before
 * bias and everything else: of the picked token, and of the n_logprobs likeliest ones, best first. Take the oldest note;
 * at most eight are kept, the oldest goes first. `ids` and `logprobs` have n_logprobs places. Returns how many of them were
 * filled (fewer when fewer are above -inf), or GGFW_SAMPLE_ARGUMENT when there is no note. */
int32_t ggfw_sampler_take_logprobs(ggfw_sampler *sampler, int32_t *id, double *logprob, int32_t *ids, double *logprobs);

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
