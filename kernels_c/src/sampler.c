/* sampler.c: the sampling chain of one sequence: a row of logits -> a token.
 *
 * The same arithmetic in the same order as ggfw.sampling (core/sampling), from IEEE basic operations only: float32
 * where it says float32, the exponential as our own polynomial in float64, sums from the first to the last element. So
 * both give the same token for the same row, whatever compiler or mathematics library. No multiply-add may be
 * contracted here: sampler_scan.h says so where the target has one. */
#include "../include/ggfw_sampler.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "sampler_scan.h"
#include "sampler_select.h"
#include "sampler_window.h"

typedef struct bias_entry {
    int32_t id;
    float value;
} bias_entry;

struct ggfw_sampler {
    ggfw_sampler_params params; /* bias_ids and bias_values are NULL: `bias` holds them, sorted by id */
    bias_entry *bias;
    uint64_t rng_high, rng_low;
    ggfw_window window;
    int penalises;
    int only_lowers; /* neither bias nor penalties can raise a logit */
    /* Work memory, grown when needed. The n_candidates are best first. */
    ggfw_select_scratch select;
    int32_t capacity, n_candidates;
    int32_t *ids;
    float *logits;
    float *probabilities;
    double *terms;    /* exp of the differences to the best logit */
    double *distance; /* typical-p only: from the entropy */
    float *edited_row;
    int32_t edited_row_capacity;
};

/* ---- random numbers: PCG-DXSM, constants and seeding of Go's math/rand/v2 -------------------- */

#define PCG_MULTIPLIER_HIGH 2549297995355413924u
#define PCG_MULTIPLIER_LOW 4865540595714422341u
#define PCG_INCREMENT_HIGH 6364136223846793005u
#define PCG_INCREMENT_LOW 1442695040888963407u
#define PCG_CHEAP_MULTIPLIER 0xda942042e4dd58b5u
#define PCG_SEED_MIX 0x9e3779b97f4a7c15u

/* High word of a 64 x 64 bit product, without a 128-bit type. */
static uint64_t multiply_high(uint64_t a, uint64_t b) {
    const uint64_t a0 = (uint32_t)a, a1 = a >> 32, b0 = (uint32_t)b, b1 = b >> 32;
    const uint64_t middle = a1 * b0 + (a0 * b0 >> 32);
    return a1 * b1 + (middle >> 32) + ((a0 * b1 + (uint32_t)middle) >> 32);
}

static uint64_t rng_next(ggfw_sampler *s) {
    uint64_t low = s->rng_low * PCG_MULTIPLIER_LOW;
    uint64_t high = multiply_high(s->rng_low, PCG_MULTIPLIER_LOW) + s->rng_high * PCG_MULTIPLIER_LOW +
                    s->rng_low * PCG_MULTIPLIER_HIGH;
    low += PCG_INCREMENT_LOW;
    high += PCG_INCREMENT_HIGH + (low < PCG_INCREMENT_LOW);
    s->rng_low = low;
    s->rng_high = high;
    high ^= high >> 32;
    high *= PCG_CHEAP_MULTIPLIER;
    high ^= high >> 48;
    return high * (low | 1);
}

static double rng_float64(ggfw_sampler *s) {
    return (double)(rng_next(s) & 0x1fffffffffffffu) / 9007199254740992.0; /* low 53 bits over 2^53 */
}

/* ---- exponential and softmax ----------------------------------------------------------------- */

/* Fill terms with exp(logit - best) and return their sum. */
static double softmax_terms(ggfw_sampler *s) {
    const int32_t n = s->n_candidates;
    ggfw_scan_get()->exp_differences(s->logits, n, s->logits[0], s->terms);
    double total = 0.0;
    for (int32_t i = 0; i < n; i++) total += s->terms[i];
    return total;
}

static void softmax(ggfw_sampler *s) {
    const double total = softmax_terms(s);
    for (int32_t i = 0; i < s->n_candidates; i++) s->probabilities[i] = (float)(s->terms[i] / total);
}

/* ---- bias and penalties ---------------------------------------------------------------------- */

static const bias_entry *bias_of(const ggfw_sampler *s, int32_t id) {
    int32_t low = 0, high = s->params.n_bias;
    while (low < high) {
        const int32_t middle = low + (high - low) / 2;
        if (s->bias[middle].id < id)
            low = middle + 1;
        else
            high = middle;
    }
    return low < s->params.n_bias && s->bias[low].id == id ? &s->bias[low] : NULL;
}

static float edited(const ggfw_sampler *s, int32_t id, float logit) {
    const bias_entry *bias = s->params.n_bias ? bias_of(s, id) : NULL;
    if (bias) logit += bias->value;
    const int32_t n = s->penalises ? ggfw_window_count(&s->window, id) : 0;
    if (n) {
        logit = logit > 0.0f ? logit / s->params.penalty_repeat : logit * s->params.penalty_repeat;
        const float penalty = (float)n * s->params.penalty_freq;
        logit -= penalty + s->params.penalty_present;
    }
    return logit;
}

static int has_edits(const ggfw_sampler *s) { return s->params.n_bias > 0 || s->penalises; }

/* A copy of the row with bias and penalties in it; NULL: out of memory. */
static const float *edit_row(ggfw_sampler *s, const float *row, int32_t n) {
    if (n > s->edited_row_capacity) {
        float *grown = realloc(s->edited_row, (size_t)n * sizeof *grown);
        if (!grown) return NULL;
        s->edited_row = grown;
        s->edited_row_capacity = n;
    }
    memcpy(s->edited_row, row, (size_t)n * sizeof *row);
    for (int32_t i = 0; i < s->params.n_bias; i++) {
        const int32_t id = s->bias[i].id;
        if (id < n) s->edited_row[id] = edited(s, id, row[id]);
    }
    for (int32_t i = 0; i < s->window.n_slots; i++) {
        const int32_t id = s->window.slots[i].id;
        if (id >= 0 && id < n) s->edited_row[id] = edited(s, id, row[id]);
    }
    return s->edited_row;
}

/* ---- the head of the chain: from the row to the sorted candidates that the first stage needs - */

static int reserve(ggfw_sampler *s, int32_t n) {
    if (n <= s->capacity) return 1;
    const int32_t larger = n < 64 ? 64 : n;
    int32_t *ids = realloc(s->ids, (size_t)larger * sizeof *ids);
    if (ids) s->ids = ids;
    float *logits = realloc(s->logits, (size_t)larger * sizeof *logits);
    if (logits) s->logits = logits;
    float *probabilities = realloc(s->probabilities, (size_t)larger * sizeof *probabilities);
    if (probabilities) s->probabilities = probabilities;
    double *terms = realloc(s->terms, (size_t)larger * sizeof *terms);
    if (terms) s->terms = terms;
    double *distance = NULL;
    if (s->params.typical_p < 1.0f) {
        distance = realloc(s->distance, (size_t)larger * sizeof *distance);
        if (!distance) return 0;
        s->distance = distance;
    }
    if (!ids || !logits || !probabilities || !terms) return 0;
    s->capacity = larger;
    return 1;
}

static int32_t candidates_from_row(ggfw_sampler *s, const float *row, int32_t n) {
    const int64_t width = s->params.temperature <= 0.0f ? 1 : s->params.top_k > 0 ? s->params.top_k : n;
    int64_t looked_at = width;
    int edit_later = 0;
    if (has_edits(s)) {
        if (s->only_lowers) {
            /* At least `width` of the best width + u entries are untouched, and nothing outside can rise. */
            looked_at = width + s->params.n_bias + s->window.n_distinct;
            edit_later = 1;
        } else {
            row = edit_row(s, row, n);
            if (!row) return GGFW_SAMPLE_MEMORY;
        }
    }
    int32_t m = ggfw_select_best(row, n, looked_at, &s->select);
    if (m < 0) return m;
    if (edit_later) {
        int32_t kept = 0;
        for (int32_t i = 0; i < m; i++) {
            const int32_t id = ggfw_key_id(s->select.keys[i]);
            const float logit = edited(s, id, row[id]);
            if (logit > -INFINITY) s->select.keys[kept++] = ggfw_key_of(logit, id);
        }
        m = kept;
    }
    if (m == 0) return GGFW_SAMPLE_NONFINITE;
    if (ggfw_sort_best(&s->select, m) < 0) return GGFW_SAMPLE_MEMORY;
    if (m > width) m = (int32_t)width;
    if (!reserve(s, m)) return GGFW_SAMPLE_MEMORY;
    for (int32_t i = 0; i < m; i++) {
        s->ids[i] = ggfw_key_id(s->select.keys[i]);
        s->logits[i] = ggfw_key_logit(s->select.keys[i]);
    }
    s->n_candidates = m;
    return GGFW_SAMPLE_OK;
}

/* ---- the stages ------------------------------------------------------------------------------ */

/* Sort positions 0..n-1 by rising distance, equal ones by position: bottom-up merge sort between two arrays. Returns
 * the one that holds the result. */
static int32_t *sort_by_distance(const double *distance, int32_t n, int32_t *from, int32_t *to) {
    for (int32_t i = 0; i < n; i++) from[i] = i;
    for (int64_t run = 1; run < n; run *= 2) {
        for (int64_t begin = 0; begin < n; begin += 2 * run) {
            const int64_t middle = begin + run < n ? begin + run : n;
            const int64_t end = begin + 2 * run < n ? begin + 2 * run : n;
            int64_t a = begin, b = middle;
            for (int64_t i = begin; i < end; i++)
                to[i] = b >= end || (a < middle && distance[from[a]] <= distance[from[b]]) ? from[a++] : from[b++];
        }
        int32_t *swap = from;
        from = to;
        to = swap;
    }
    return from;
}

/* Keep the candidates whose surprise is nearest to the entropy until their probabilities exceed p. */
static void apply_typical(ggfw_sampler *s, float p) {
    const int32_t n = s->n_candidates;
    if (n < 2) return;
    const double total = softmax_terms(s), log_total = log(total);
    double entropy = 0.0;
    for (int32_t i = 0; i < n; i++) {
        const double probability = s->terms[i] / total;
        const double surprise = log_total - (double)(s->logits[i] - s->logits[0]);
        const double part = probability > 0.0 ? probability * surprise : 0.0;
        s->probabilities[i] = (float)probability;
        s->distance[i] = surprise;
        entropy += part;
    }
    for (int32_t i = 0; i < n; i++) s->distance[i] = fabs(s->distance[i] - entropy);
    /* `terms` is free again: it becomes the two arrays of positions. */
    int32_t *order = (int32_t *)(void *)s->terms;
    order = sort_by_distance(s->distance, n, order, order + n);
    float cumulated = 0.0f;
    int32_t kept = 0;
    while (kept < n) {
        cumulated += s->probabilities[order[kept++]];
        if (cumulated > p) break;
    }
    for (int32_t i = kept; i < n; i++) s->ids[order[i]] = -1; /* marked for leaving */
    int32_t left = 0;
    for (int32_t i = 0; i < n; i++) {
        if (s->ids[i] < 0) continue;
        s->ids[left] = s->ids[i];
        s->logits[left++] = s->logits[i];
    }
    s->n_candidates = left;
}

/* Keep the smallest head whose probabilities (without temperature) reach p. */
static void apply_top_p(ggfw_sampler *s, float p) {
    if (s->n_candidates < 2) return;
    softmax(s);
    float cumulated = 0.0f;
    for (int32_t i = 0; i < s->n_candidates; i++) {
        cumulated += s->probabilities[i];
        if (cumulated >= p) {
            s->n_candidates = i + 1;
            break;
        }
    }
}

/* Keep logits >= best + ln p. */
static void apply_min_p(ggfw_sampler *s, float p) {
    const float lowest = s->logits[0] + (float)log((double)p);
    int32_t n = 1;
    while (n < s->n_candidates && s->logits[n] >= lowest) n++;
    s->n_candidates = n;
}

/* Divide by t; when the best overflows only it stays (the limit is greedy); what becomes -inf leaves. */
static void apply_temperature(ggfw_sampler *s, float t) {
    if (s->n_candidates < 2) return;
    int32_t n = 0;
    for (int32_t i = 0; i < s->n_candidates; i++) {
        s->logits[i] /= t;
        n += s->logits[i] > -INFINITY;
    }
    s->n_candidates = isfinite(s->logits[0]) ? n : 1;
}

/* Row -> the candidates that are drawn from. */
static int32_t run_chain(ggfw_sampler *s, const float *row, int32_t n) {
    const ggfw_sampler_params *p = &s->params;
    const int32_t status = candidates_from_row(s, row, n);
    if (status < 0) return status;
    if (isinf(s->logits[0])) s->n_candidates = 1; /* +inf is certain */
    if (p->temperature <= 0.0f) return GGFW_SAMPLE_OK;
    if (p->typical_p < 1.0f) apply_typical(s, p->typical_p);
    if (p->top_p < 1.0f) apply_top_p(s, p->top_p);
    if (p->min_p > 0.0f) apply_min_p(s, p->min_p);
    apply_temperature(s, p->temperature);
    return GGFW_SAMPLE_OK;
}

int32_t ggfw_sampler_pick(ggfw_sampler *sampler, const float *row, int32_t n_vocab) {
    ggfw_sampler *s = sampler;
    if (!s || n_vocab < 0 || (n_vocab && !row)) return GGFW_SAMPLE_ARGUMENT;
    if (n_vocab == 0) return 0;
    if (s->params.temperature <= 0.0f && !has_edits(s)) return ggfw_argmax(row, n_vocab);
    const ggfw_float_mode mode = ggfw_float_mode_exact();
    int32_t id = run_chain(s, row, n_vocab);
    if (id == GGFW_SAMPLE_OK) {
        int32_t at = 0;
        if (s->n_candidates > 1) { /* one left is certain: no random number */
            softmax(s);
            const float r = (float)rng_float64(s);
            float cumulated = s->probabilities[0];
            while (at < s->n_candidates - 1 && !(r < cumulated)) cumulated += s->probabilities[++at];
        }
        id = s->ids[at];
    }
    ggfw_float_mode_restore(mode);
    return id;
}

int32_t ggfw_sampler_distribution(ggfw_sampler *sampler, const float *row, int32_t n_vocab, int32_t capacity,
                                  int32_t *ids, float *probabilities) {
    ggfw_sampler *s = sampler;
    if (!s || n_vocab < 0 || (n_vocab && !row) || capacity < 0 || (capacity && (!ids || !probabilities)))
        return GGFW_SAMPLE_ARGUMENT;
    if (n_vocab == 0) return 0;
    const ggfw_float_mode mode = ggfw_float_mode_exact();
    int32_t n = run_chain(s, row, n_vocab);
    if (n == GGFW_SAMPLE_OK) {
        n = s->n_candidates;
        if (n > 1)
            softmax(s);
        else
            s->probabilities[0] = 1.0f;
        for (int32_t i = 0; i < n && i < capacity; i++) {
            ids[i] = s->ids[i];
            probabilities[i] = s->probabilities[i];
        }
    }
    ggfw_float_mode_restore(mode);
    return n;
}

/* ---- life ------------------------------------------------------------------------------------ */

static int by_id(const void *a, const void *b) {
    const int32_t x = ((const bias_entry *)a)->id, y = ((const bias_entry *)b)->id;
    return (x > y) - (x < y);
}

ggfw_sampler *ggfw_sampler_new(const ggfw_sampler_params *params) {
    ggfw_sampler *s = calloc(1, sizeof *s);
    if (!s) return NULL;
    s->params = *params;
    s->params.bias_ids = NULL;
    s->params.bias_values = NULL;
    s->rng_high = params->seed;
    s->rng_low = params->seed ^ PCG_SEED_MIX;
    s->penalises = params->penalty_last_n != 0 &&
                   (params->penalty_repeat != 1.0f || params->penalty_freq != 0.0f || params->penalty_present != 0.0f);
    s->only_lowers = !s->penalises || (params->penalty_repeat >= 1.0f && params->penalty_freq >= 0.0f &&
                                       params->penalty_present >= 0.0f);
    ggfw_window_init(&s->window, s->penalises ? params->penalty_last_n : 0);
    if (params->n_bias > 0) {
        s->bias = malloc((size_t)params->n_bias * sizeof *s->bias);
        if (!s->bias) {
            free(s);
            return NULL;
        }
        for (int32_t i = 0; i < params->n_bias; i++) {
            s->bias[i].id = params->bias_ids[i];
            s->bias[i].value = params->bias_values[i];
            if (params->bias_values[i] > 0.0f) s->only_lowers = 0;
        }
        qsort(s->bias, (size_t)params->n_bias, sizeof *s->bias, by_id);
    }
    return s;
}

void ggfw_sampler_free(ggfw_sampler *sampler) {
    if (!sampler) return;
    ggfw_window_free(&sampler->window);
    ggfw_select_scratch_free(&sampler->select);
    free(sampler->bias);
    free(sampler->ids);
    free(sampler->logits);
    free(sampler->probabilities);
    free(sampler->terms);
    free(sampler->distance);
    free(sampler->edited_row);
    free(sampler);
}

ggfw_sampler *ggfw_sampler_clone(const ggfw_sampler *sampler) {
    ggfw_sampler *s = calloc(1, sizeof *s);
    if (!s) return NULL;
    s->params = sampler->params;
    s->rng_high = sampler->rng_high;
    s->rng_low = sampler->rng_low;
    s->penalises = sampler->penalises;
    s->only_lowers = sampler->only_lowers;
    int ok = ggfw_window_copy(&s->window, &sampler->window);
    if (ok && s->params.n_bias > 0) {
        s->bias = malloc((size_t)s->params.n_bias * sizeof *s->bias);
        if (s->bias) memcpy(s->bias, sampler->bias, (size_t)s->params.n_bias * sizeof *s->bias);
        ok = s->bias != NULL;
    }
    if (!ok) {
        ggfw_sampler_free(s);
        return NULL;
    }
    return s;
}

int32_t ggfw_sampler_seed(ggfw_sampler *sampler, const int32_t *ids, int32_t n) {
    for (int32_t i = 0; i < n; i++)
        if (!ggfw_window_push(&sampler->window, ids[i])) return GGFW_SAMPLE_MEMORY;
    return GGFW_SAMPLE_OK;
}

int32_t ggfw_sampler_accept(ggfw_sampler *sampler, int32_t id) { return ggfw_sampler_seed(sampler, &id, 1); }

void ggfw_sampler_rng_get(const ggfw_sampler *sampler, uint64_t *state) {
    state[0] = sampler->rng_high;
    state[1] = sampler->rng_low;
}

void ggfw_sampler_rng_set(ggfw_sampler *sampler, const uint64_t *state) {
    sampler->rng_high = state[0];
    sampler->rng_low = state[1];
}
