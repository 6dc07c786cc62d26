/* executor.h: the executor's own state, shared by executor.c (running), plan_check.c (checking a plan) and batch.c
 * (checking and copying a batch). */
#ifndef GGFW_EXECUTOR_INTERNAL_H
#define GGFW_EXECUTOR_INTERNAL_H

#include "ggfw_executor.h"

#include <stdatomic.h>

/* What the plan asks of a batch; found once from the steps. */
typedef struct batch_rules {
    int64_t n_token_rows;    /* rows of the table that is read by token; 0 = none or unknown */
    int64_t n_position_rows; /* rows of the table that is read by position; 0 = none */
    int32_t embedding_width; /* columns of the token embedding; 0 = the plan has none */
    int32_t by_sequence;     /* some step works on SEQUENCES */
    int32_t stores[GGFW_MAX_POOLS];  /* K and V are written to this pool */
    int32_t attends[GGFW_MAX_POOLS]; /* the pool is read */
    int32_t window[GGFW_MAX_POOLS];  /* widest window of its readers; 0 = everything */
} batch_rules;

/* The part of a region that one kernel does: rows of one class, or all rows. */
typedef struct region_part {
    const ggfw_kernel *kernel; /* NULL = nothing (left) to do */
    ggfw_run run;
    int32_t row_begin;
    int32_t row_end;
    int32_t n_chunks;
} region_part;

struct ggfw_executor {
    ggfw_step *steps;
    int32_t n_steps;
    int32_t n_pools;
    int32_t n_states;
    ggfw_pool *pools;
    ggfw_state *states;
    uint8_t *arena;
    int64_t arena_bytes;
    ggfw_run run; /* template of the parts' */
    batch_rules rules;
    _Atomic int32_t abort;

    /* memory of chunks */
    uint8_t *scratch;
    int64_t scratch_bytes; /* per thread */
    int32_t scratch_threads;
    uint8_t *shared;
    int64_t shared_bytes;
    int64_t *prompt_shared; /* [n_steps] offset of the prompt kernel's part of shared */

    /* the batch being run, all arrays owned */
    ggfw_batch batch;
    int32_t n_decode_segments;
    int32_t *control; /* one block: tokens, positions, row_segment, output_rows, sampled */
    ggfw_segment *segments;
    struct ggfw_sampler **samplers;
    float *embeddings; /* [max_rows, embedding_width], made at first use */
    int32_t *pages;
    int64_t pages_capacity;

    /* where the job is; touched by the thread that opens regions */
    int32_t first;
    int32_t current;
    int32_t last;
    region_part parts[2]; /* prompt rows first: their chunks are the long ones */
    int32_t profile;
    int64_t started_ns;
    int64_t *timings;
};

/* Whether a plan and what it stands on can be run without touching foreign memory (plan_check.c). */
int step_is_good(const ggfw_executor *executor, const ggfw_step *step);
int pools_are_good(const ggfw_pool *pools, int32_t n);
int states_are_good(const ggfw_state *states, int32_t n);

void batch_rules_of(const ggfw_step *steps, int32_t n_steps, batch_rules *rules);
/* Check a batch against capacities and rules and copy it into executor->batch. Returns enum ggfw_status. */
int32_t batch_take(ggfw_executor *executor, const ggfw_batch *batch);

#endif
