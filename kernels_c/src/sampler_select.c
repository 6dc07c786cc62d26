/* sampler_select.c: exact top-k and argmax.
 *
 * The k-th largest maximum of blocks is a lower bound of the k-th best entry: k blocks have an entry not below it.
 * Only blocks whose maximum reaches the bound are looked into, only entries that reach it are kept, and of those that
 * equal it only the first k. So at most k * block entries remain (usually hardly more than k), also when half the
 * vocabulary shares one logit; every later step is linear in them. */
#include "sampler_select.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>

#include "../include/ggfw_sampler.h"
#include "sampler_scan.h"

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

#define LARGEST_BLOCK 256
#define SMALLEST_BLOCK 16
#define ARGMAX_BLOCK 1024
#define ARGMAX_GROUP 64    /* blocks whose maxima stand on the stack together */
#define INSERTION_LIMIT 96 /* up to here insertion sort beats radix sort */

ggfw_float_mode ggfw_float_mode_exact(void) {
#if defined(__SSE__)
    unsigned mode = _mm_getcsr();
    _mm_setcsr(mode & ~0x8040u); /* flush-to-zero and denormals-are-zero off */
    return mode;
#elif defined(__aarch64__) && defined(__GNUC__)
    uint64_t mode;
    __asm__ volatile("mrs %0, fpcr" : "=r"(mode));
    __asm__ volatile("msr fpcr, %0" : : "r"(mode & ~(1ull << 24)));
    return mode;
#else
    return 0;
#endif
}

void ggfw_float_mode_restore(ggfw_float_mode mode) {
#if defined(__SSE__)
    _mm_setcsr((unsigned)mode);
#elif defined(__aarch64__) && defined(__GNUC__)
    __asm__ volatile("msr fpcr, %0" : : "r"(mode));
#else
    (void)mode;
#endif
}

static int reserve(ggfw_key **array, int64_t *capacity, int64_t wanted) {
    if (wanted <= *capacity) return 1;
    int64_t larger = *capacity * 2 > wanted ? *capacity * 2 : wanted;
    ggfw_key *grown = realloc(*array, (size_t)larger * sizeof **array);
    if (!grown) return 0;
    *array = grown;
    *capacity = larger;
    return 1;
}

void ggfw_select_scratch_free(ggfw_select_scratch *scratch) {
    free(scratch->keys);
    free(scratch->other);
    memset(scratch, 0, sizeof *scratch);
}

/* The k-th smallest (k >= 1) of m unique keys by radix selection; `work` [m] may be `keys` itself, which is then
 * destroyed. Eight bits per pass, beginning at the highest bit in which two keys differ. */
static ggfw_key kth_smallest(const ggfw_key *keys, int64_t m, int64_t k, ggfw_key *work) {
    const ggfw_key *from = keys;
    for (;;) {
        ggfw_key all_or = 0, all_and = ~(ggfw_key)0;
        for (int64_t i = 0; i < m; i++) {
            all_or |= from[i];
            all_and &= from[i];
        }
        ggfw_key differing = all_or ^ all_and;
        if (!differing) return from[0];
        int top = 63 - __builtin_clzll(differing);
        int shift = top >= 7 ? top - 7 : 0;
        int32_t counts[256] = {0};
        for (int64_t i = 0; i < m; i++) counts[(from[i] >> shift) & 0xff]++;
        uint32_t digit = 0;
        while (k > counts[digit]) k -= counts[digit++];
        int64_t left = 0;
        for (int64_t i = 0; i < m; i++) {
            ggfw_key key = from[i];
            work[left] = key; /* left <= i: safe in place */
            left += ((key >> shift) & 0xff) == digit;
        }
        from = work;
        m = left;
    }
}

/* A bound that at least k entries reach, or -FLT_MAX (all finite entries reach it) when blocks cannot tell. */
static float bound_of(const float *maxima, int32_t n_blocks, int64_t k, ggfw_select_scratch *scratch) {
    if (k > n_blocks) return -FLT_MAX;
    for (int32_t b = 0; b < n_blocks; b++) scratch->keys[b] = ggfw_key_of(maxima[b], b);
    float bound = ggfw_key_logit(kth_smallest(scratch->keys, n_blocks, k, scratch->keys));
    return bound > -FLT_MAX ? bound : -FLT_MAX;
}

/* Keep the k best of scratch->keys[0..m), in their order; returns how many are left. */
static int32_t keep_best(ggfw_select_scratch *scratch, int64_t m, int64_t k) {
    if (m <= k) return (int32_t)m;
    if (!reserve(&scratch->other, &scratch->other_capacity, m)) return GGFW_SAMPLE_MEMORY;
    const ggfw_key last = kth_smallest(scratch->keys, m, k, scratch->other);
    int64_t kept = 0;
    for (int64_t i = 0; i < m; i++) {
        const ggfw_key key = scratch->keys[i];
        scratch->keys[kept] = key;
        kept += key <= last;
    }
    return (int32_t)kept;
}

int32_t ggfw_select_best(const float *row, int32_t n, int64_t k, ggfw_select_scratch *scratch) {
    if (n <= 0 || k <= 0) return 0;
    const ggfw_scan *scan = ggfw_scan_get();
    int32_t block = LARGEST_BLOCK;
    while (block > SMALLEST_BLOCK && n / block < 4 * k) block /= 2;
    const int32_t n_blocks = n / block + (n % block != 0);

    /* `other` holds the maxima during the scan, `keys` first the keys of the maxima, then those of the entries. */
    if (!reserve(&scratch->other, &scratch->other_capacity, n_blocks)) return GGFW_SAMPLE_MEMORY;
    if (!reserve(&scratch->keys, &scratch->keys_capacity, n_blocks)) return GGFW_SAMPLE_MEMORY;
    float *maxima = (float *)(void *)scratch->other;
    scan->block_maxima(row, n, block, maxima);
    float bound = k < n ? bound_of(maxima, n_blocks, k, scratch) : -FLT_MAX;

    float lowest = bound; /* entries from here on are taken */
    int64_t m = 0, n_equal = 0;
    int32_t positions[LARGEST_BLOCK];
    for (int32_t b = 0; b < n_blocks; b++) {
        if (!(maxima[b] >= lowest)) continue;
        if (!reserve(&scratch->keys, &scratch->keys_capacity, m + block)) return GGFW_SAMPLE_MEMORY;
        const int32_t begin = b * block, size = n - begin < block ? n - begin : block;
        const int32_t found = scan->positions_from(row + begin, size, lowest, positions);
        for (int32_t i = 0; i < found; i++) {
            const float logit = row[begin + positions[i]];
            if (logit == bound && n_equal++ >= k) continue;
            scratch->keys[m++] = ggfw_key_of(logit, begin + positions[i]);
        }
        if (n_equal >= k && lowest == bound) {
            if (bound == INFINITY) break;
            lowest = nextafterf(bound, INFINITY); /* enough that equal it; from here on only better ones */
        }
    }
    return keep_best(scratch, m, k);
}

int32_t ggfw_select_above(const float *row, int32_t n, float bound, int64_t k, ggfw_select_scratch *scratch) {
    if (n <= 0 || k <= 0) return 0;
    if (!reserve(&scratch->other, &scratch->other_capacity, (int64_t)n / 2 + 1)) return GGFW_SAMPLE_MEMORY;
    int32_t *positions = (int32_t *)(void *)scratch->other;
    const int32_t m = ggfw_scan_get()->positions_from(row, n, bound, positions);
    if (!reserve(&scratch->keys, &scratch->keys_capacity, m)) return GGFW_SAMPLE_MEMORY;
    for (int32_t i = 0; i < m; i++) scratch->keys[i] = ggfw_key_of(row[positions[i]], positions[i]);
    return keep_best(scratch, m, k);
}

int32_t ggfw_sort_best(ggfw_select_scratch *scratch, int32_t m) {
    if (m <= INSERTION_LIMIT) {
        for (int32_t i = 1; i < m; i++) {
            const ggfw_key key = scratch->keys[i];
            int32_t j = i;
            for (; j > 0 && scratch->keys[j - 1] > key; j--) scratch->keys[j] = scratch->keys[j - 1];
            scratch->keys[j] = key;
        }
        return GGFW_SAMPLE_OK;
    }
    if (!reserve(&scratch->other, &scratch->other_capacity, m)) return GGFW_SAMPLE_MEMORY;
    /* Radix sort of the logits, lowest byte first; it is stable, and the ids come in rising order. */
    int32_t counts[4][256] = {{0}};
    for (int32_t i = 0; i < m; i++)
        for (int pass = 0; pass < 4; pass++) counts[pass][(scratch->keys[i] >> (32 + 8 * pass)) & 0xff]++;
    for (int pass = 0; pass < 4; pass++) {
        const int shift = 32 + 8 * pass;
        int32_t *start = counts[pass], sum = 0;
        if (start[(scratch->keys[0] >> shift) & 0xff] == m) continue; /* all alike in this byte */
        for (int digit = 0; digit < 256; digit++) {
            const int32_t count = start[digit];
            start[digit] = sum;
            sum += count;
        }
        for (int32_t i = 0; i < m; i++) {
            const ggfw_key key = scratch->keys[i];
            scratch->other[start[(key >> shift) & 0xff]++] = key;
        }
        ggfw_key *array = scratch->keys;
        int64_t capacity = scratch->keys_capacity;
        scratch->keys = scratch->other;
        scratch->keys_capacity = scratch->other_capacity;
        scratch->other = array;
        scratch->other_capacity = capacity;
    }
    return GGFW_SAMPLE_OK;
}

int32_t ggfw_argmax(const float *row, int32_t n) {
    if (n < 0 || (n && !row)) return GGFW_SAMPLE_ARGUMENT;
    const ggfw_float_mode mode = ggfw_float_mode_exact();
    const ggfw_scan *scan = ggfw_scan_get();
    float best = -INFINITY, maxima[ARGMAX_GROUP];
    int32_t best_begin = 0;
    for (int64_t begin = 0; begin < n; begin += ARGMAX_BLOCK * ARGMAX_GROUP) {
        const int64_t left = n - begin;
        const int32_t size = left < ARGMAX_BLOCK * ARGMAX_GROUP ? (int32_t)left : ARGMAX_BLOCK * ARGMAX_GROUP;
        scan->block_maxima(row + begin, size, ARGMAX_BLOCK, maxima);
        for (int32_t b = 0; b * ARGMAX_BLOCK < size; b++)
            if (maxima[b] > best) {
                best = maxima[b];
                best_begin = (int32_t)begin + b * ARGMAX_BLOCK;
            }
    }
    int32_t id = GGFW_SAMPLE_NONFINITE;
    if (best > -INFINITY)
        for (id = best_begin; row[id] != best; id++) {
        }
    ggfw_float_mode_restore(mode);
    return id;
}

int32_t ggfw_top_k(const float *row, int32_t n, int32_t k, int32_t *ids, float *values) {
    if (n < 0 || k < 0 || (n && !row)) return GGFW_SAMPLE_ARGUMENT;
    const ggfw_float_mode mode = ggfw_float_mode_exact();
    ggfw_select_scratch scratch = {0};
    int32_t m = ggfw_select_best(row, n, k, &scratch);
    if (m > 0) {
        const int32_t status = ggfw_sort_best(&scratch, m);
        if (status < 0) m = status;
    }
    for (int32_t i = 0; i < m; i++) {
        if (ids) ids[i] = ggfw_key_id(scratch.keys[i]);
        if (values) values[i] = ggfw_key_logit(scratch.keys[i]);
    }
    ggfw_select_scratch_free(&scratch);
    ggfw_float_mode_restore(mode);
    return m;
}
