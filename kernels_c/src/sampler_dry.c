/* sampler_dry.c: DRY, the same as ggfw.sampling.dry.
 *
 * With the reversed history r, the repetition that token r[k - 1] would continue is as long as the common prefix of r
 * and r[k..] (the Z-algorithm gives all of them in linear time), cut at the last sequence breaker. */
#include "sampler_dry.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "sampler_scan.h" /* no contraction */

#define LOG_F32_MAX 88.7228391

static void *copied(const void *from, size_t n_bytes) {
    void *to = malloc(n_bytes ? n_bytes : 1);
    if (to && n_bytes) memcpy(to, from, n_bytes);
    return to;
}

static size_t n_words(const ggfw_dry *dry) { return (size_t)dry->n_bits / 32 + 1; }

static void set_bit(uint32_t *bits, int32_t id) { bits[id / 32] |= 1u << (id % 32); }

static int has_bit(const ggfw_dry *dry, const uint32_t *bits, int32_t id) {
    return id >= 0 && id < dry->n_bits && bits[id / 32] >> (id % 32) & 1;
}

int ggfw_dry_init(ggfw_dry *dry, const ggfw_sampler_params *params) {
    memset(dry, 0, sizeof *dry);
    dry->on = params->dry_multiplier > 0.0f && params->dry_base >= 1.0f && params->dry_last_n != 0;
    if (!dry->on) return 1;
    dry->multiplier = params->dry_multiplier;
    dry->base = params->dry_base;
    dry->allowed_length = params->dry_allowed_length;
    dry->last_n = params->dry_last_n;
    int32_t last = -1;
    for (int32_t i = 0; i < params->n_dry_single; i++)
        if (params->dry_single[i] > last) last = params->dry_single[i];
    for (int32_t at = 0; at < params->n_dry_longer; at += 2 + params->dry_longer[at + 1])
        if (params->dry_longer[at] > last) last = params->dry_longer[at];
    dry->n_bits = last + 1;
    dry->single = calloc(n_words(dry), sizeof *dry->single);
    dry->heads = calloc(n_words(dry), sizeof *dry->heads);
    dry->longer = copied(params->dry_longer, (size_t)params->n_dry_longer * sizeof *dry->longer);
    dry->n_longer = params->n_dry_longer;
    if (!dry->single || !dry->heads || !dry->longer) {
        ggfw_dry_free(dry);
        return 0;
    }
    for (int32_t i = 0; i < params->n_dry_single; i++) set_bit(dry->single, params->dry_single[i]);
    for (int32_t at = 0; at < params->n_dry_longer; at += 2 + params->dry_longer[at + 1])
        set_bit(dry->heads, params->dry_longer[at]);
    return 1;
}

void ggfw_dry_free(ggfw_dry *dry) {
    free(dry->single);
    free(dry->heads);
    free(dry->longer);
    free(dry->history);
    free(dry->penalties);
    free(dry->prefixes);
    memset(dry, 0, sizeof *dry);
}

int ggfw_dry_copy(ggfw_dry *copy, const ggfw_dry *dry) {
    *copy = *dry;
    copy->penalties = NULL;
    copy->prefixes = NULL;
    copy->n_penalties = copy->work_capacity = 0;
    copy->current = 0;
    if (!dry->on) return 1;
    copy->single = copied(dry->single, n_words(dry) * sizeof *dry->single);
    copy->heads = copied(dry->heads, n_words(dry) * sizeof *dry->heads);
    copy->longer = copied(dry->longer, (size_t)dry->n_longer * sizeof *dry->longer);
    copy->history = copied(dry->history, (size_t)dry->capacity * sizeof *dry->history);
    if (copy->single && copy->heads && copy->longer && copy->history) return 1;
    ggfw_dry_free(copy);
    return 0;
}

int ggfw_dry_push(ggfw_dry *dry, int32_t id) {
    if (!dry->on) return 1;
    if (dry->n_history == dry->capacity) {
        if (dry->last_n > 0 && dry->n_history >= 2 * (int64_t)dry->last_n) { /* the older half is out of reach */
            const int32_t kept = dry->last_n;
            memmove(dry->history, dry->history + dry->n_history - kept, (size_t)kept * sizeof *dry->history);
            dry->n_history = kept;
        } else {
            const int32_t capacity = dry->capacity ? dry->capacity * 2 : 128;
            int32_t *grown = realloc(dry->history, (size_t)capacity * sizeof *grown);
            if (!grown) return 0;
            dry->history = grown;
            dry->capacity = capacity;
        }
    }
    dry->history[dry->n_history++] = id;
    dry->current = 0;
    return 1;
}

/* The i-th newest token. */
static int32_t recent(const ggfw_dry *dry, int32_t i) { return dry->history[dry->n_history - 1 - i]; }

/* How many of the last n tokens a repetition may have. */
static int32_t reach(const ggfw_dry *dry, int32_t n) {
    for (int32_t i = 0; i < n; i++) {
        const int32_t id = recent(dry, i);
        int32_t longest = has_bit(dry, dry->single, id) ? 0 : -1;
        const int32_t n_longer = has_bit(dry, dry->heads, id) ? dry->n_longer : 0;
        for (int32_t at = 0; at < n_longer; at += 2 + dry->longer[at + 1]) {
            if (dry->longer[at] < id) continue;
            if (dry->longer[at] > id) break;
            const int32_t n_tail = dry->longer[at + 1], *tail = &dry->longer[at + 2];
            if (n_tail <= longest || n_tail > i) continue;
            int32_t j = 0;
            while (j < n_tail && tail[j] == recent(dry, i - 1 - j)) j++;
            if (j == n_tail) longest = n_tail;
        }
        if (longest >= 0) return i - longest;
    }
    return n;
}

static int by_id_then_length(const void *a, const void *b) {
    const ggfw_dry_penalty *x = a, *y = b;
    if (x->id != y->id) return (x->id > y->id) - (x->id < y->id);
    return (x->length < y->length) - (x->length > y->length); /* the longest first */
}

static float penalty(const ggfw_dry *dry, int32_t length) {
    double exponent = (double)(length - dry->allowed_length);
    if ((double)dry->base > 1.000001) {
        const double highest = floor(LOG_F32_MAX / log((double)dry->base));
        if (exponent > highest) exponent = highest;
    }
    return (float)((double)dry->multiplier * pow((double)dry->base, exponent));
}

int ggfw_dry_update(ggfw_dry *dry) {
    if (!dry->on || dry->current) return 1;
    dry->n_penalties = 0;
    dry->current = 1;
    const int32_t n = dry->last_n >= 0 && dry->n_history > dry->last_n ? dry->last_n : dry->n_history;
    if (n <= dry->allowed_length) return 1;
    const int32_t limit = reach(dry, n);
    if (limit < dry->allowed_length) return 1;
    if (n > dry->work_capacity) {
        int32_t *prefixes = realloc(dry->prefixes, (size_t)n * 2 * sizeof *prefixes);
        if (prefixes) dry->prefixes = prefixes;
        ggfw_dry_penalty *penalties = realloc(dry->penalties, (size_t)n * 2 * sizeof *penalties);
        if (penalties) dry->penalties = penalties;
        if (!prefixes || !penalties) {
            dry->current = 0;
            return 0;
        }
        dry->work_capacity = 2 * n;
    }
    int32_t left = 0, right = 0, found = 0; /* the match [left, right) that reaches furthest */
    dry->prefixes[0] = 0;
    for (int32_t k = 1; k < n; k++) {
        int32_t length = 0;
        if (k < right) {
            length = dry->prefixes[k - left];
            if (length > right - k) length = right - k;
        }
        while (k + length < n && recent(dry, length) == recent(dry, k + length)) length++;
        dry->prefixes[k] = length;
        if (k + length > right) {
            left = k;
            right = k + length;
        }
        const int32_t id = recent(dry, k - 1);
        if (length > limit) length = limit;
        if (length >= dry->allowed_length && !has_bit(dry, dry->single, id))
            dry->penalties[found++] = (ggfw_dry_penalty){id, length, 0.0f};
    }
    qsort(dry->penalties, (size_t)found, sizeof *dry->penalties, by_id_then_length);
    for (int32_t i = 0; i < found; i++) {
        ggfw_dry_penalty *next = &dry->penalties[dry->n_penalties];
        if (dry->n_penalties && next[-1].id == dry->penalties[i].id) continue;
        *next = dry->penalties[i];
        next->value = penalty(dry, next->length);
        dry->n_penalties++;
    }
    return 1;
}

float ggfw_dry_penalty_of(const ggfw_dry *dry, int32_t id) {
    int32_t low = 0, high = dry->n_penalties;
    while (low < high) {
        const int32_t middle = low + (high - low) / 2;
        if (dry->penalties[middle].id < id)
            low = middle + 1;
        else
            high = middle;
    }
    return low < dry->n_penalties && dry->penalties[low].id == id ? dry->penalties[low].value : 0.0f;
}
