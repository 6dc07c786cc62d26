/* sampler_stages.c: the stages that shrink or reshape the sorted list of candidates. */
#include <math.h>
#include <string.h>

#include "sampler_scan.h"
#include "sampler_state.h"

/* ---- exponential and softmax ----------------------------------------------------------------- */

/* Fill terms with exp(logit - best) and return their sum. */
static double softmax_terms(ggfw_sampler *s) {
    const int32_t n = s->n_candidates;
    ggfw_scan_get()->exp_differences(s->logits, n, s->logits[0], s->terms);
    double total = 0.0;
    for (int32_t i = 0; i < n; i++) total += s->terms[i];
    return total;
}

void ggfw_sampler_softmax(ggfw_sampler *s) {
    const double total = softmax_terms(s);
    for (int32_t i = 0; i < s->n_candidates; i++) s->probabilities[i] = (float)(s->terms[i] / total);
}

/* ---- the stages ------------------------------------------------------------------------------ */

float ggfw_top_n_sigma_bound(const float *logits, int32_t n, float best, float n_sigma) {
    double mean, variance;
    if (isinf(best)) return best;
    ggfw_scan_get()->moments(logits, n, &mean, &variance);
    return (float)((double)best - (double)n_sigma * sqrt(variance));
}

static void apply_top_n_sigma(ggfw_sampler *s, float n_sigma) {
    if (s->n_candidates < 2) return;
    const float bound = ggfw_top_n_sigma_bound(s->logits, s->n_candidates, s->logits[0], n_sigma);
    int32_t n = 1;
    while (n < s->n_candidates && s->logits[n] >= bound) n++;
    s->n_candidates = n;
}

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
static void apply_typical(ggfw_sampler *s, float p, int32_t min_keep) {
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
        if (cumulated > p && kept >= min_keep) break;
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
static void apply_top_p(ggfw_sampler *s, float p, int32_t min_keep) {
    if (s->n_candidates < 2) return;
    ggfw_sampler_softmax(s);
    float cumulated = 0.0f;
    for (int32_t i = 0; i < s->n_candidates; i++) {
        cumulated += s->probabilities[i];
        if (cumulated >= p && i + 1 >= min_keep) {
            s->n_candidates = i + 1;
            break;
        }
    }
}

/* Keep logits >= best + ln p. */
static void apply_min_p(ggfw_sampler *s, float p, int32_t min_keep) {
    const float lowest = s->logits[0] + (float)log((double)p);
    int32_t n = 1;
    while (n < s->n_candidates && (s->logits[n] >= lowest || n < min_keep)) n++;
    s->n_candidates = n;
}

/* By chance drop all but the least likely of the candidates that reach the threshold. */
static void apply_xtc(ggfw_sampler *s, float probability, float threshold, int32_t min_keep) {
    const int32_t n = s->n_candidates;
    if (n < 2 || (float)ggfw_rng_float64(&s->rng) > probability) return;
    ggfw_sampler_softmax(s);
    int32_t last = -1;
    while (last + 1 < n && s->probabilities[last + 1] >= threshold) last++;
    if (last < 1 || n - last < min_keep) return;
    s->n_candidates = n - last;
    memmove(s->ids, s->ids + last, (size_t)s->n_candidates * sizeof *s->ids);
    memmove(s->logits, s->logits + last, (size_t)s->n_candidates * sizeof *s->logits);
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

/* A temperature that grows with the entropy, as a share of the highest possible one. */
static void apply_dynamic_temperature(ggfw_sampler *s, float t, float range, float exponent) {
    const int32_t n = s->n_candidates;
    if (n < 2) return;
    const double total = softmax_terms(s), log_total = log(total);
    double entropy = 0.0;
    for (int32_t i = 0; i < n; i++) {
        const double probability = s->terms[i] / total;
        const double surprise = log_total - (double)(s->logits[i] - s->logits[0]);
        const double part = probability > 0.0 ? probability * surprise : 0.0;
        entropy += part;
    }
    double share = entropy / log((double)n);
    share = share > 0.0 ? (share < 1.0 ? share : 1.0) : 0.0;
    const float below = t - range, above = t + range;
    const double lowest = below > 0.0f ? (double)below : 0.0, highest = (double)above;
    const double rise = (highest - lowest) * pow(share, (double)exponent);
    const float dynamic = (float)(lowest + rise);
    if (dynamic > 0.0f)
        apply_temperature(s, dynamic);
    else
        s->n_candidates = 1;
}

void ggfw_sampler_run_stages(ggfw_sampler *s, int32_t first) {
    const ggfw_sampler_params *p = &s->params;
    for (int32_t i = first; i < p->n_stages; i++) switch (p->stages[i]) {
            case GGFW_STAGE_TOP_N_SIGMA: apply_top_n_sigma(s, p->top_n_sigma); break;
            case GGFW_STAGE_TOP_K:
                if (p->top_k < s->n_candidates) s->n_candidates = p->top_k;
                break;
            case GGFW_STAGE_TYPICAL: apply_typical(s, p->typical_p, p->min_keep); break;
            case GGFW_STAGE_TOP_P: apply_top_p(s, p->top_p, p->min_keep); break;
            case GGFW_STAGE_MIN_P: apply_min_p(s, p->min_p, p->min_keep); break;
            case GGFW_STAGE_XTC: apply_xtc(s, p->xtc_probability, p->xtc_threshold, p->min_keep); break;
            case GGFW_STAGE_TEMPERATURE: apply_temperature(s, p->temperature); break;
            case GGFW_STAGE_DYNAMIC_TEMPERATURE:
                apply_dynamic_temperature(s, p->temperature, p->dynatemp_range, p->dynatemp_exponent);
                break;
        }
}
