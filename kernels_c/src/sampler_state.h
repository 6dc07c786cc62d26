/* sampler_state.h (internal): what one sampler owns, and the stages over its candidates. */
#ifndef GGFW_SAMPLER_STATE_H
#define GGFW_SAMPLER_STATE_H

#include <stdint.h>

#include "../include/ggfw_sampler.h"
#include "sampler_dry.h"
#include "sampler_rng.h"
#include "sampler_select.h"
#include "sampler_window.h"

typedef struct ggfw_bias {
    int32_t id;
    float value;
} ggfw_bias;

#define GGFW_NOTES 8 /* picks that may come before somebody takes the log-probabilities: a step's drafts among them */

typedef struct ggfw_note {
    int32_t id, n_top;
    double logprob;
} ggfw_note;

struct ggfw_sampler {
    ggfw_sampler_params params; /* its pointers are NULL: copies stand below */
    ggfw_bias *bias;            /* [n_bias] ids rising */
    int32_t *end_ids;           /* [n_end] ids rising */
    int32_t n_accepted;
    int32_t held; /* accept does nothing */
    ggfw_rng rng;
    ggfw_window window;
    ggfw_dry dry;
    int penalises;
    int only_lowers; /* no edit can raise a logit */
    ggfw_note notes[GGFW_NOTES];
    int32_t first_note, n_notes;
    int32_t *note_ids;      /* [GGFW_NOTES][n_logprobs] */
    double *note_logprobs;
    /* Work memory, grown when needed. The n_candidates are best first. */
    ggfw_select_scratch select;
    int32_t capacity, n_candidates;
    int32_t *ids;
    float *logits;
    float *probabilities;
    double *terms;    /* exp of the differences to the best logit */
    double *distance; /* typical-p only: from the entropy */
    float *edited_row;
    int32_t edited_row_capacity;
    float *masked_row;
    int32_t masked_row_capacity;
};

/* Fill s->probabilities. */
void ggfw_sampler_softmax(ggfw_sampler *s);

/* The least logit that top-n-sigma keeps of n values whose largest is `best`. */
float ggfw_top_n_sigma_bound(const float *logits, int32_t n, float best, float n_sigma);

/* Run stages [first, n_stages) over the candidates. */
void ggfw_sampler_run_stages(ggfw_sampler *s, int32_t first);

/* Note the log-probabilities of a row for the picked id. 0 or GGFW_SAMPLE_MEMORY. */
int32_t ggfw_sampler_note(ggfw_sampler *s, const float *row, int32_t n, int32_t id);

#endif
