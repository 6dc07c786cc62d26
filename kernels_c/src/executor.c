/* executor.c: runs a plan. Per step: which rows, which kernels, how many chunks; the pool does the rest. */
#include "executor.h"

#include "activation.h"
#include "ggfw_sampler.h"
#include "platform.h"
#include "pool.h"

#include <stdlib.h>
#include <string.h>

static int64_t align_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

int32_t ggfw_executor_abi(void) { return GGFW_KERNELS_ABI; }

/* ---- life ------------------------------------------------------------------------------------------------------ */

static int64_t kernel_shared(const ggfw_kernel *k, const ggfw_step *s, const ggfw_run *run) {
    int64_t most = 0;
    for (; k != NULL; k = k->then) {
        int64_t n = k->shared_size ? align_up(k->shared_size(s, run), 64) : 0;
        if (n > most) most = n;
    }
    return most;
}

static int64_t kernel_scratch(const ggfw_kernel *k, const ggfw_step *s, const ggfw_run *run) {
    int64_t most = 0;
    for (; k != NULL; k = k->then) {
        int64_t n = k->scratch_size ? align_up(k->scratch_size(s, run), 64) : 0;
        if (n > most) most = n;
    }
    return most;
}

static void measure_memory(ggfw_executor *e) {
    for (int32_t i = 0; i < e->n_steps; i++) {
        const ggfw_step *s = &e->steps[i];
        if (s->op == GGFW_OP_SAMPLE) continue;
        const ggfw_kernel *kernels[2] = {s->decode, s->prompt};
        for (int j = 0; j < 2; j++) {
            int64_t n = kernel_scratch(kernels[j], s, &e->run);
            if (n > e->scratch_bytes) e->scratch_bytes = n;
        }
        e->prompt_shared[i] = s->decode == s->prompt ? 0 : kernel_shared(s->decode, s, &e->run);
        int64_t shared = e->prompt_shared[i] + kernel_shared(s->prompt, s, &e->run);
        if (shared > e->shared_bytes) e->shared_bytes = shared;
    }
    e->scratch_bytes = align_up(e->scratch_bytes, 4096) + 64; /* + 64: threads' scratch must not alias in L1 */
}

static void *duplicate(const void *from, int64_t n, size_t size) {
    void *to = malloc((size_t)n * size + 1);
    if (to != NULL && n > 0) memcpy(to, from, (size_t)n * size);
    return to;
}

ggfw_executor *ggfw_executor_new(const ggfw_step *steps, int32_t n_steps, int64_t arena_bytes, int32_t max_rows,
                                 int32_t max_outputs, const ggfw_pool *pools, int32_t n_pools,
                                 const ggfw_state *states, int32_t n_states, int32_t prefetch) {
    if (n_steps < 0 || arena_bytes < 0 || max_rows < 1 || max_outputs < 0 || n_pools < 0 ||
        n_pools > GGFW_MAX_POOLS || n_states < 0 || !pools_are_good(pools, n_pools) ||
        !states_are_good(states, n_states))
        return NULL;
    ggfw_executor *e = calloc(1, sizeof *e);
    if (e == NULL) return NULL;
    e->n_steps = n_steps;
    e->n_pools = n_pools;
    e->n_states = n_states;
    e->arena_bytes = arena_bytes;
    e->steps = duplicate(steps, n_steps, sizeof *steps);
    e->pools = duplicate(pools, n_pools, sizeof *pools);
    e->states = duplicate(states, n_states, sizeof *states);
    e->arena = platform_map(arena_bytes > 0 ? arena_bytes : 1, 0);
    e->control = calloc((size_t)(3 * (int64_t)max_rows + 2 * (int64_t)max_outputs), sizeof(int32_t));
    e->segments = calloc((size_t)max_rows, sizeof *e->segments);
    e->samplers = calloc((size_t)max_outputs + 1, sizeof *e->samplers);
    e->timings = calloc((size_t)n_steps + 1, sizeof *e->timings);
    e->prompt_shared = calloc((size_t)n_steps + 1, sizeof *e->prompt_shared);
    e->run = (ggfw_run){.arena = e->arena,
                        .batch = &e->batch,
                        .pools = e->pools,
                        .states = e->states,
                        .n_threads = 1,
                        .max_rows = max_rows,
                        .max_outputs = max_outputs,
                        .prefetch = prefetch};
    int good = e->steps && e->pools && e->states && e->arena && e->control && e->segments && e->samplers &&
               e->timings && e->prompt_shared;
    for (int32_t i = 0; good && i < n_steps; i++) good = step_is_good(e, &e->steps[i]);
    if (good) {
        batch_rules_of(e->steps, n_steps, &e->rules);
        measure_memory(e);
        if (e->shared_bytes > 0) e->shared = platform_map(e->shared_bytes, 0);
        good = e->shared_bytes == 0 || e->shared != NULL;
    }
    if (!good) {
        ggfw_executor_free(e);
        return NULL;
    }
    return e;
}

void ggfw_executor_free(ggfw_executor *e) {
    if (e == NULL) return;
    pool_enter(); /* a step that still runs ends first */
    if (e->arena) platform_unmap(e->arena, e->arena_bytes > 0 ? e->arena_bytes : 1);
    if (e->scratch) platform_unmap(e->scratch, e->scratch_bytes * e->scratch_threads);
    if (e->shared) platform_unmap(e->shared, e->shared_bytes);
    if (e->embeddings)
        platform_unmap(e->embeddings, e->run.max_rows * (int64_t)e->rules.embedding_width * (int64_t)sizeof(float));
    pool_leave();
    free(e->steps);
    free(e->pools);
    free(e->states);
    free(e->control);
    free(e->segments);
    free(e->samplers);
    free(e->timings);
    free(e->prompt_shared);
    free(e->pages);
    free(e);
}

uint8_t *ggfw_executor_arena(ggfw_executor *e) { return e->arena; }

void ggfw_executor_abort(ggfw_executor *e) { atomic_store(&e->abort, 1); }

/* ---- regions of a step ----------------------------------------------------------------------------------------- */

static void run_chunk(void *context, int32_t chunk, int32_t thread) {
    ggfw_executor *e = context;
    const region_part *p = &e->parts[0];
    if (chunk >= p->n_chunks) {
        chunk -= p->n_chunks;
        p = &e->parts[1];
    }
    const ggfw_step *step = &e->steps[e->current];
    void *scratch = e->scratch + e->scratch_bytes * thread;
    p->kernel->run(step, &p->run, p->row_begin, p->row_end, chunk, scratch);
    if (p->kernel->commit) p->kernel->commit(step, &p->run, p->row_begin, p->row_end, chunk, scratch);
}

/* Draw with the sampler of an output row. Where the segment goes on with further output rows, their tokens are drafts:
 * each is kept if it is what its predecessor's row draws, and the next row is looked at then; the first that differs
 * takes its place and ends the walk. So every token is drawn from its own row, with the state it would have had anyway. */
static void sample_row(void *context, int32_t output, int32_t thread) {
    (void)thread;
    ggfw_executor *e = context;
    const ggfw_batch *b = &e->batch;
    struct ggfw_sampler *sampler = b->samplers[output];
    if (sampler == NULL) return; /* a host row: Python picks; or a draft of a row before */
    const ggfw_view *logits = &e->steps[e->current].in[0];
    const ggfw_segment *segment = &b->segments[b->row_segment[b->output_rows[output]]];
    int32_t end = segment->output + segment->n_outputs;
    for (;; output++) {
        const float *row = (const float *)(e->arena + logits->offset + (int64_t)output * logits->stride);
        int32_t id = ggfw_sampler_pick(sampler, row, logits->width);
        if (id >= 0) {
            int32_t status = ggfw_sampler_accept(sampler, id);
            if (status < 0) id = status;
        }
        b->sampled[output] = id;
        if (output + 1 >= end || b->samplers[output + 1] != NULL || b->tokens == NULL ||
            b->tokens[b->output_rows[output + 1]] != id)
            return;
        if (ggfw_sampler_held(sampler)) return; /* what may still be refused decides nothing */
    }
}

static void set_part(ggfw_executor *e, region_part *p, const ggfw_kernel *kernel, int32_t begin, int32_t end,
                     int64_t shared_offset) {
    p->kernel = begin < end ? kernel : NULL;
    p->row_begin = begin;
    p->row_end = end;
    p->run = e->run;
    p->run.shared = e->shared ? e->shared + shared_offset : NULL;
}

static void begin_step(ggfw_executor *e) {
    const ggfw_step *s = &e->steps[e->current];
    const ggfw_batch *b = &e->batch;
    int32_t n = s->domain == GGFW_DOMAIN_ROWS      ? b->n_rows
                : s->domain == GGFW_DOMAIN_OUTPUTS ? b->n_outputs
                                                   : b->n_segments;
    int32_t n_decode = s->domain == GGFW_DOMAIN_ROWS      ? b->n_decode_rows
                       : s->domain == GGFW_DOMAIN_OUTPUTS ? b->n_decode_outputs
                                                          : e->n_decode_segments;
    if (s->decode == s->prompt) n_decode = 0; /* one part serves all rows */
    set_part(e, &e->parts[0], s->prompt, n_decode, n, e->prompt_shared[e->current]);
    set_part(e, &e->parts[1], s->decode, 0, n_decode, 0);
}

static int32_t count_chunks(ggfw_executor *e) {
    const ggfw_step *s = &e->steps[e->current];
    int32_t total = 0;
    for (int i = 0; i < 2; i++) {
        region_part *p = &e->parts[i];
        p->n_chunks = p->kernel ? p->kernel->n_chunks(s, &p->run, p->row_begin, p->row_end) : 0;
        total += p->n_chunks;
    }
    return total;
}

static void stamp(ggfw_executor *e) {
    if (!e->profile) return;
    int64_t now = platform_now_ns();
    if (e->current >= e->first) e->timings[e->current] += now - e->started_ns;
    e->started_ns = now;
}

/* pool_job.next: the next region of this step, or of the next step that the batch wants. */
static int32_t next_region(void *context, pool_region *region) {
    ggfw_executor *e = context;
    for (;;) {
        for (int i = 0; i < 2; i++) /* a kernel's second region comes before the next step */
            if (e->parts[i].kernel) e->parts[i].kernel = e->parts[i].kernel->then;
        if (!e->parts[0].kernel && !e->parts[1].kernel) {
            stamp(e);
            for (e->current++; e->current < e->last; e->current++) {
                int32_t needed_for = e->steps[e->current].needed_for;
                if (needed_for == 0 || needed_for & e->batch.wants) break;
            }
            if (e->current >= e->last) return 0;
            if (e->steps[e->current].op == GGFW_OP_SAMPLE) {
                if (e->batch.samplers == NULL || e->batch.n_outputs == 0) continue;
                *region = (pool_region){sample_row, e, e->batch.n_outputs};
                return 1;
            }
            begin_step(e);
        }
        int32_t n_chunks = count_chunks(e);
        if (n_chunks > 0) {
            *region = (pool_region){run_chunk, e, n_chunks};
            return 1;
        }
    }
}

/* ---- a step of the engine -------------------------------------------------------------------------------------- */

static int make_scratch(ggfw_executor *e, int32_t n_threads) {
    if (n_threads <= e->scratch_threads) return 1;
    if (e->scratch) platform_unmap(e->scratch, e->scratch_bytes * e->scratch_threads);
    e->scratch = platform_map(e->scratch_bytes * n_threads, 0);
    e->scratch_threads = e->scratch ? n_threads : 0;
    return e->scratch != NULL;
}

static int32_t run_locked(ggfw_executor *e, const ggfw_batch *batch, int32_t first, int32_t last) {
    atomic_store(&e->abort, 0);
    int32_t status = batch_take(e, batch);
    if (status != GGFW_OK) return status;
    if (batch->n_rows == 0) return GGFW_OK;
    e->run.n_threads = pool_threads();
    if (!make_scratch(e, e->run.n_threads)) return GGFW_ERR_MEMORY;
    for (int32_t i = 0; i < batch->n_outputs; i++) e->batch.sampled[i] = GGFW_SAMPLE_NOT_DRAWN;
    e->first = first;
    e->current = first - 1;
    e->last = last;
    e->parts[0].kernel = e->parts[1].kernel = NULL;
    e->started_ns = e->profile ? platform_now_ns() : 0;
    pool_job job = {next_region, e, &e->abort};
    pool_run(&job);
    if (atomic_load(&e->abort)) return GGFW_ABORTED;
    int32_t sampled = 0;
    for (int32_t i = first; i < last; i++) {
        const ggfw_step *s = &e->steps[i];
        sampled |= s->op == GGFW_OP_SAMPLE && (s->needed_for == 0 || s->needed_for & batch->wants);
    }
    if (sampled && batch->samplers != NULL)
        for (int32_t i = 0; i < batch->n_outputs; i++)
            if (e->batch.sampled[i] != GGFW_SAMPLE_NOT_DRAWN) batch->sampled[i] = e->batch.sampled[i];
    return GGFW_OK;
}

int32_t ggfw_executor_run(ggfw_executor *e, const ggfw_batch *batch, int32_t first, int32_t last) {
    if (e == NULL || batch == NULL) return GGFW_ERR_ARGUMENT;
    if (last < 0) last = e->n_steps;
    if (first < 0 || first > last || last > e->n_steps) return GGFW_ERR_ARGUMENT;
    pool_enter();
    int32_t status = run_locked(e, batch, first, last);
    pool_leave();
    return status;
}

void ggfw_executor_profile(ggfw_executor *e, int32_t enable) {
    pool_enter();
    e->profile = enable != 0;
    memset(e->timings, 0, (size_t)e->n_steps * sizeof *e->timings);
    pool_leave();
}

void ggfw_executor_timings(ggfw_executor *e, int64_t *out) {
    pool_enter();
    memcpy(out, e->timings, (size_t)e->n_steps * sizeof *out);
    pool_leave();
}
