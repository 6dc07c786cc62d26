/* checksum.c: sums over blocks of memory, to find files that were damaged; not against forgers. */
#include "ggfw_executor.h"
#include "pool.h"

#include <string.h>

#define LANES 8

typedef struct sum_job {
    const uint8_t *data;
    int64_t n_bytes;
    int64_t block;
    uint64_t *sums;
    int32_t n_blocks;
    int32_t opened;
} sum_job;

/* FNV-1a on 64-bit words, in lanes of their own so that multiplications overlap; the lengths are part of the sum. */
static uint64_t sum_of(const uint8_t *data, int64_t n) {
    const uint64_t prime = 0x100000001b3u;
    uint64_t lane[LANES], word[LANES];
    for (int i = 0; i < LANES; i++) lane[i] = 0xcbf29ce484222325u + (uint64_t)i;
    int64_t at = 0;
    for (; at + (int64_t)sizeof word <= n; at += (int64_t)sizeof word) {
        memcpy(word, data + at, sizeof word);
        for (int i = 0; i < LANES; i++) lane[i] = (lane[i] ^ word[i]) * prime;
    }
    memset(word, 0, sizeof word);
    memcpy(word, data + at, (size_t)(n - at));
    uint64_t sum = (uint64_t)n;
    for (int i = 0; i < LANES; i++) {
        lane[i] = (lane[i] ^ word[i]) * prime;
        sum = (sum ^ lane[i] ^ lane[i] >> 29) * prime;
    }
    return sum ^ sum >> 32;
}

static void sum_chunk(void *context, int32_t chunk, int32_t thread) {
    (void)thread;
    const sum_job *j = context;
    int64_t first = chunk * j->block;
    int64_t n = j->n_bytes - first < j->block ? j->n_bytes - first : j->block;
    j->sums[chunk] = sum_of(j->data + first, n);
}

static int32_t sum_next(void *context, pool_region *region) {
    sum_job *j = context;
    if (j->opened++) return 0;
    *region = (pool_region){sum_chunk, j, j->n_blocks};
    return 1;
}

int32_t ggfw_checksums(const void *data, int64_t n_bytes, int64_t block, uint64_t *sums) {
    if (n_bytes < 0 || block < 1 || (n_bytes + block - 1) / block > INT32_MAX) return GGFW_ERR_ARGUMENT;
    sum_job job = {data, n_bytes, block, sums, (int32_t)((n_bytes + block - 1) / block), 0};
    pool_job pool = {sum_next, &job, NULL};
    if (job.n_blocks == 0) return GGFW_OK;
    pool_enter();
    pool_run(&pool);
    pool_leave();
    return GGFW_OK;
}
