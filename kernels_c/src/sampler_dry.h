/* sampler_dry.h (internal): DRY, the penalty on tokens that would continue a verbatim repetition. */
#ifndef GGFW_SAMPLER_DRY_H
#define GGFW_SAMPLER_DRY_H

#include <stdint.h>

#include "../include/ggfw_sampler.h"

typedef struct ggfw_dry_penalty {
    int32_t id;
    int32_t length; /* of the longest repetition that the token would continue */
    float value;    /* to be subtracted from its logit */
} ggfw_dry_penalty;

typedef struct ggfw_dry {
    int on;
    float multiplier, base;
    int32_t allowed_length;
    int32_t last_n; /* < 0: all */
    uint32_t *single; /* one bit per id: its text contains a breaker */
    uint32_t *heads;  /* one bit per id: `longer` has it */
    int32_t n_bits;   /* of both */
    int32_t *longer;  /* id, number of tokens that follow, those tokens; again and again, ids rising */
    int32_t n_longer;
    int32_t *history; /* oldest first; at least the last last_n */
    int32_t n_history, capacity;
    int current; /* whether `penalties` belong to this history */
    ggfw_dry_penalty *penalties; /* ids rising */
    int32_t n_penalties;
    int32_t *prefixes; /* work memory */
    int32_t work_capacity;
} ggfw_dry;

/* 0: out of memory (dry is then empty). */
int ggfw_dry_init(ggfw_dry *dry, const ggfw_sampler_params *params);
int ggfw_dry_copy(ggfw_dry *copy, const ggfw_dry *dry);
void ggfw_dry_free(ggfw_dry *dry);
/* Take an id in; 0: out of memory. */
int ggfw_dry_push(ggfw_dry *dry, int32_t id);
/* Bring `penalties` up to date; 0: out of memory. */
int ggfw_dry_update(ggfw_dry *dry);
/* What is subtracted from the logit of an id. */
float ggfw_dry_penalty_of(const ggfw_dry *dry, int32_t id);

#endif
