/* sampler_select.h (internal): exact selection of the best entries of a row of logits. */
#ifndef GGFW_SAMPLER_SELECT_H
#define GGFW_SAMPLER_SELECT_H

#include <stdint.h>
#include <string.h>

/* An entry of a row as one number: (logit, id), so that rising numbers are falling logits and, among equal logits,
 * rising ids. Unique, hence selection and sorting need not be stable to be exact. */
typedef uint64_t ggfw_key;

static inline ggfw_key ggfw_key_of(float logit, int32_t id) {
    uint32_t bits;
    logit += 0.0f; /* +0 of -0: they are equal */
    memcpy(&bits, &logit, sizeof bits);
    /* Positive floats order like their bits, negative ones backwards; then all inverted: the best comes first. */
    bits = (bits >> 31) ? bits : bits ^ 0x7fffffffu;
    return (ggfw_key)bits << 32 | (uint32_t)id;
}

static inline int32_t ggfw_key_id(ggfw_key key) { return (int32_t)(uint32_t)key; }

static inline float ggfw_key_logit(ggfw_key key) {
    uint32_t bits = (uint32_t)(key >> 32);
    float logit;
    bits = (bits >> 31) ? bits : bits ^ 0x7fffffffu;
    memcpy(&logit, &bits, sizeof logit);
    return logit;
}

/* Growing work memory; zero-initialised = empty. */
typedef struct ggfw_select_scratch {
    ggfw_key *keys;
    ggfw_key *other;
    int64_t keys_capacity;
    int64_t other_capacity;
} ggfw_select_scratch;

void ggfw_select_scratch_free(ggfw_select_scratch *scratch);

/* The k best entries above -inf, into scratch->keys by rising id. Returns their number or GGFW_SAMPLE_MEMORY. */
int32_t ggfw_select_best(const float *row, int32_t n, int64_t k, ggfw_select_scratch *scratch);

/* The k best of the entries from `bound` (> -inf) on, likewise. */
int32_t ggfw_select_above(const float *row, int32_t n, float bound, int64_t k, ggfw_select_scratch *scratch);

/* Sort scratch->keys[0..m), given by rising id, best first. 0 or GGFW_SAMPLE_MEMORY. */
int32_t ggfw_sort_best(ggfw_select_scratch *scratch, int32_t m);

/* Denormals are numbers here, whatever the caller's thread does with them: the mode is set and put back. */
typedef uint64_t ggfw_float_mode;
ggfw_float_mode ggfw_float_mode_exact(void);
void ggfw_float_mode_restore(ggfw_float_mode mode);

#endif
