/* ggfw_executor.h: the executor library: thread pool, plan runner, helpers. Read by cffi like ggfw_kernels.h. */
#ifndef GGFW_EXECUTOR_H
#define GGFW_EXECUTOR_H

#include "ggfw_kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#pragma GCC visibility push(default)
#endif

/* cffi: begin */

enum ggfw_status {
    GGFW_OK = 0,
    GGFW_ABORTED = 1,
    GGFW_ERR_MEMORY = -1,
    GGFW_ERR_ARGUMENT = -2,
    GGFW_ERR_BATCH = -3 /* a batch larger than the capacities, or an index out of range */
};

typedef struct ggfw_executor ggfw_executor;

int32_t ggfw_executor_abi(void);

/* The pool is one per process: n threads in all, the caller of a step is one of them. May be called again to resize
 * between steps; rebuilt by itself in a forked child. Threads spin for spin_us microseconds before they sleep. */
int32_t ggfw_threads_set(int32_t n_threads, int32_t spin_us);
int32_t ggfw_threads_get(void);

/* steps are copied; weights, constants, pools and states are borrowed and must outlive the executor. The arena is
 * allocated here (huge pages where the system grants them). Returns NULL when memory is short or a step is malformed
 * (no kernel, a pool or a view out of range). */
ggfw_executor *ggfw_executor_new(const ggfw_step *steps, int32_t n_steps, int64_t arena_bytes, int32_t max_rows,
                                 int32_t max_outputs, const ggfw_pool *pools, int32_t n_pools,
                                 const ggfw_state *states, int32_t n_states, int32_t prefetch);
void ggfw_executor_free(ggfw_executor *executor);

/* Run steps [first, last) for a batch; last < 0 = to the end. Steps of all executors of the process pass through one
 * fair queue. The batch (with its arrays) is copied into executor-owned memory first. Returns enum ggfw_status. */
int32_t ggfw_executor_run(ggfw_executor *executor, const ggfw_batch *batch, int32_t first, int32_t last);

/* Ask a running step to stop; it returns GGFW_ABORTED within one chunk. Cleared by the next run. */
void ggfw_executor_abort(ggfw_executor *executor);

/* The arena's base, e.g. for reading logits: row i of a view is at arena + offset + i * stride. */
uint8_t *ggfw_executor_arena(ggfw_executor *executor);

/* Nanoseconds spent in each step since the last reset, when profiling is on (out: [n_steps]). */
void ggfw_executor_profile(ggfw_executor *executor, int32_t enable);
void ggfw_executor_timings(ggfw_executor *executor, int64_t *out);

/* Weights to be packed with kernel->pack: n_expert matrices of n_out x n_in, their file rows contiguous; packed experts
 * stand pack_size() apart. release: file_rows are a file's mapping, whose memory is given back as soon as it was read. */
typedef struct ggfw_packing {
    const ggfw_kernel *kernel;
    const void *file_rows;
    int64_t n_out;
    int64_t n_in;
    int64_t n_expert;
    void *packed;
    int32_t release;
    int32_t reserved;
} ggfw_packing;

/* Pack n weights, one after the other, each with the pool's threads: one call for a whole model, so that a caller with
 * an interpreter lock is without it all the time. Returns enum ggfw_status; an error leaves the later ones undone. */
int32_t ggfw_pack(const ggfw_packing *packings, int32_t n);

/* y = x W^T once, on the pool's threads, for tests and for callers without a plan: packs file_rows (n_out x n_in in the
 * format of linear) into memory of its own, quantises x [n_rows][n_in] where the kernel wants it (quantize: a kernel of
 * op QUANTIZE, may be NULL otherwise), writes y [n_rows][n_out]. Returns enum ggfw_status. */
int32_t ggfw_linear_once(const ggfw_kernel *linear, const ggfw_kernel *quantize, const void *file_rows, int64_t n_out,
                         int64_t n_in, const float *x, int32_t n_rows, float *y);

/* One 64-bit sum of each block of `block` bytes (the last may be shorter), by the pool's threads: tells a damaged file
 * from a sound one, and has read all of it afterwards. Returns enum ggfw_status. */
int32_t ggfw_checksums(const void *data, int64_t n_bytes, int64_t block, uint64_t *sums);

/* A mapped file may be cut short by others while it is read, which ends a process with SIGBUS. Reads in a watched range
 * give zeros instead from then on, and the range counts as failed. The first call installs the handler; faults elsewhere
 * go to the one before. Returns a number for the next two calls, -1 where too many ranges are watched or files cannot
 * shrink while they are mapped (Windows). ggfw_file_faults: where the faults in all watched ranges are counted, so that
 * who asks after every step need not call anything: while the count stands, no range has failed. */
int32_t ggfw_file_watch(const void *mapped, int64_t bytes);
int32_t ggfw_file_failed(int32_t watch);
void ggfw_file_unwatch(int32_t watch);
const int32_t *ggfw_file_faults(void);

/* Page-aligned anonymous memory, zeroed; NULL when short. huge: with huge pages where granted, for what is read from
 * end to end (weights); without, memory is only used as far as it is touched (caches). */
void *ggfw_memory_new(int64_t bytes, int32_t huge);
void ggfw_memory_free(void *memory, int64_t bytes);
/* Give what a private file mapping holds memory of its own at the same addresses, with huge pages where granted; others
 * may read it meanwhile, nobody may write or unmap it. Returns the bytes moved, 0 where the system cannot do it. */
int64_t ggfw_memory_settle(const void *mapped, int64_t bytes);
/* Have the system read file-mapped memory into its page cache; may return before all of it has come. */
void ggfw_memory_read_ahead(const void *mapped, int64_t bytes);
/* Tell the system that file-mapped memory is not needed in RAM any more (madvise DONTNEED); whole pages inside only. */
void ggfw_memory_release(const void *mapped, int64_t bytes);

/* cffi: end */

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif

#ifdef __cplusplus
}
#endif
#endif
