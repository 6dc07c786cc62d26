/* pool.h: the process's one thread pool.
 *
 * A job is a row of regions; a region is n_chunks calls of one function, in any order, by any thread. The next region
 * starts when all chunks of the one before are done; whoever does the last of them opens it (there is no master). */
#ifndef GGFW_POOL_H
#define GGFW_POOL_H

#include <stdatomic.h>
#include <stdint.h>

typedef struct pool_region {
    void (*run)(void *context, int32_t chunk, int32_t thread);
    void *context;
    int32_t n_chunks;
} pool_region;

typedef struct pool_job {
    /* Fill in the next region and return 1, or return 0 when the job is over. Called by one thread at a time. */
    int32_t (*next)(void *context, pool_region *region);
    void *context;
    const _Atomic int32_t *abort; /* looked at before each chunk: when set, the chunks left are skipped; may be NULL */
} pool_job;

/* Wait for this caller's turn; first come, first served. All of pool_threads, pool_run need the turn. */
void pool_enter(void);
void pool_leave(void);
/* Threads the next job will run on (this caller is thread 0); starts them where they do not exist yet. */
int32_t pool_threads(void);
/* Run a job to its end, with denormals flushed to zero. */
void pool_run(const pool_job *job);

#endif
