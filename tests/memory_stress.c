/* memory_stress.c: what is mapped and what is drawn, from several threads at once, compiled with a sanitizer by
 * test_executor_sanitizers.py. A file's mapping is summed and read while it moves into memory of its own, and while the
 * file is cut short; samplers and their clones draw from one row. Prints "good" when all of it is as it must be. */
#include "ggfw_executor.h"
#include "ggfw_sampler.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* ThreadSanitizer takes the handler's mmap of zeros for a write to what others read. To them it is one step: they find the
 * file's page or the zeros, and the range counts as failed. */
const char *__tsan_default_suppressions(void);
const char *__tsan_default_suppressions(void) { return "race:^handle$\n"; }

enum { N_BYTES = (13 << 20) + 4097, BLOCK = 1 << 20, N_SUMS = 14, ROUNDS = 6, READERS = 3, VOCABULARY = 3000, DRAWS = 60 };

static uint8_t *mapped;
static uint64_t right[N_SUMS];
static _Atomic int stop, bad;

static void *read_and_sum(void *whether_cut) {
    while (!atomic_load(&stop)) {
        uint64_t sums[N_SUMS];
        if (ggfw_checksums(mapped, N_BYTES, BLOCK, sums) != GGFW_OK) atomic_store(&bad, 1);
        if (whether_cut == NULL && memcmp(sums, right, sizeof sums) != 0) atomic_store(&bad, 2);
    }
    return NULL;
}

/* Move a mapping while others read it; cut: shorten its file meanwhile. */
static void move(int cut) {
    char name[] = "/tmp/ggfw-stress-XXXXXX";
    int file = mkstemp(name);
    uint8_t *content = malloc(N_BYTES);
    for (int i = 0; i < N_BYTES; i++) content[i] = (uint8_t)(i * 2654435761u >> 24);
    if (file < 0 || write(file, content, N_BYTES) != N_BYTES) exit(3);
    if (ggfw_checksums(content, N_BYTES, BLOCK, right) != GGFW_OK) atomic_store(&bad, 3);
    mapped = mmap(NULL, N_BYTES, PROT_READ, MAP_PRIVATE, file, 0);
    int32_t watch = ggfw_file_watch(mapped, N_BYTES);
    if (watch < 0) exit(4);
    pthread_t readers[READERS];
    atomic_store(&stop, 0);
    for (int i = 0; i < READERS; i++) pthread_create(&readers[i], NULL, read_and_sum, cut ? &stop : NULL);
    if (cut && ftruncate(file, 4096) != 0) exit(5);
    int64_t moved = ggfw_memory_settle(mapped, N_BYTES);
    usleep(2000);
    atomic_store(&stop, 1);
    for (int i = 0; i < READERS; i++) pthread_join(readers[i], NULL);
    if (moved < N_BYTES - (4 << 20) || moved > N_BYTES) atomic_store(&bad, 6);
    if (ggfw_file_failed(watch) != cut) atomic_store(&bad, 7);
    if (!cut && memcmp(mapped, content, N_BYTES) != 0) atomic_store(&bad, 8);
    if (cut && mapped[N_BYTES - 1] != 0) atomic_store(&bad, 9);
    ggfw_file_unwatch(watch);
    munmap(mapped, N_BYTES);
    close(file);
    unlink(name);
    free(content);
}

static float row[VOCABULARY];

static void *draw(void *seed) {
    int32_t bias_ids[] = {3, 5}, end_ids[] = {2}, single[] = {7};
    float bias[] = {2.0f, -3.0f};
    ggfw_sampler_params p = {.seed = (uint64_t)(intptr_t)seed, .n_stages = 8, .stages = {1, 2, 3, 4, 5, 6, 7, 8},
                             .min_keep = 1, .temperature = 0.8f, .dynatemp_range = 0.2f, .dynatemp_exponent = 1.0f,
                             .top_k = 200, .top_p = 0.95f, .min_p = 0.01f, .typical_p = 0.97f, .top_n_sigma = 3.0f,
                             .xtc_probability = 0.3f, .xtc_threshold = 0.1f, .penalty_last_n = 64, .penalty_repeat = 1.1f,
                             .dry_multiplier = 0.8f, .dry_base = 1.75f, .dry_allowed_length = 2, .dry_last_n = -1,
                             .n_dry_single = 1, .dry_single = single, .n_bias = 2, .bias_ids = bias_ids,
                             .bias_values = bias, .n_end = 1, .end_ids = end_ids, .min_tokens = 4, .n_logprobs = 5};
    ggfw_sampler *s = ggfw_sampler_new(&p), *twin = NULL;
    int32_t prompt[] = {1, 2, 3, 1, 2, 3, 1, 2};
    if (ggfw_sampler_seed(s, prompt, 8) != 0) atomic_store(&bad, 10);
    for (int i = 0; i < DRAWS; i++) {
        if (i == DRAWS / 2) twin = ggfw_sampler_clone(s);
        int32_t id = ggfw_sampler_pick(s, row, VOCABULARY), ids[5], drawn;
        double logprob, logprobs[5];
        if (id < 0 || id >= VOCABULARY) atomic_store(&bad, 11);
        if (ggfw_sampler_take_logprobs(s, &drawn, &logprob, ids, logprobs) != 5 || drawn != id) atomic_store(&bad, 12);
        ggfw_sampler_accept(s, id);
        if (twin == NULL) continue;
        if (ggfw_sampler_pick(twin, row, VOCABULARY) != id) atomic_store(&bad, 13);
        ggfw_sampler_accept(twin, id);
    }
    ggfw_sampler_free(s);
    ggfw_sampler_free(twin);
    return NULL;
}

int main(void) {
    ggfw_threads_set(3, 20);
    for (int round = 0; round < ROUNDS; round++) move(round % 2);
    for (int i = 0; i < VOCABULARY; i++) row[i] = (float)(i * 7919 % 1009) / 100.0f;
    pthread_t threads[4];
    for (intptr_t i = 0; i < 4; i++) pthread_create(&threads[i], NULL, draw, (void *)i);
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    ggfw_threads_set(1, 0);
    printf(atomic_load(&bad) == 0 ? "good\n" : "bad: %d\n", atomic_load(&bad));
    return atomic_load(&bad) != 0;
}
