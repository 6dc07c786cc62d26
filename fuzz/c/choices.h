/* choices.h: bytes as decisions; behind their end every decision is zero. */
#ifndef FUZZ_CHOICES_H
#define FUZZ_CHOICES_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct choices {
    const uint8_t *at;
    size_t left;
} choices;

static inline uint64_t number(choices *c, size_t bytes) {
    uint64_t value = 0;
    if (bytes > c->left) bytes = c->left;
    memcpy(&value, c->at, bytes);
    c->at += bytes;
    c->left -= bytes;
    return value;
}

static inline uint32_t below(choices *c, uint32_t n) { return n == 0 ? 0 : (uint32_t)(number(c, n <= 256 ? 1 : 4) % n); }

/* A number at which lengths and offsets go wrong, or a small one. */
static inline int64_t edge(choices *c) {
    static const int64_t edges[] = {0, 1, -1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 127, 128, 255, 256, 4095, 4096, 65535,
                                    65536, INT32_MAX, INT32_MIN, INT32_MAX - 1, 1LL << 32, INT64_MAX, INT64_MIN};
    uint32_t kind = below(c, 4);
    if (kind == 0) return edges[below(c, sizeof edges / sizeof *edges)];
    if (kind == 1) return (int64_t)number(c, 8);
    if (kind == 2) return (int32_t)number(c, 4);
    return (int64_t)below(c, 200);
}

/* A float from its bits, or an ordinary one. */
static inline float any_float(choices *c) {
    uint32_t bits;
    float value;
    if (below(c, 4) != 0) return ((float)(int32_t)below(c, 255) - 127.0f) / 16.0f;
    bits = (uint32_t)number(c, 4);
    memcpy(&value, &bits, 4);
    return value;
}

/* n values of exactly n * size bytes, so that the sanitizer sees one more. */
static inline void *exactly(int64_t n, size_t size) {
    void *p = NULL;
    if (posix_memalign(&p, 64, (size_t)n * size > 0 ? (size_t)n * size : 1) != 0) abort();
    memset(p, 0, (size_t)n * size > 0 ? (size_t)n * size : 1);
    return p;
}

#endif
