/* sampler.c: the sampling chain of one sequence: a row of logits -> a token.
 *
 * The same arithmetic in the same order as ggfw.sampling (core/sampling), from IEEE basic operations only: float32
 * where it says float32, the exponential as our own polynomial in float64, sums from the first to the last element. So
 * both give the same token for the same row, whatever compiler or mathematics library. No multiply-add may be
 * contracted here: sampler_scan.h says so where the target has one. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "sampler_scan.h"
#include "sampler_state.h"

/* ---- edits: bias, min_tokens, penalties, DRY -------------------------------------------------- */

static const ggfw_bias *bias_of(const ggfw_sampler *s, int32_t id) {
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

static int must_go_on(const ggfw_sampler *s) { return s->params.n_end > 0 && s->n_accepted < s->params.min_tokens; }

static int ends(const ggfw_sampler *s, int32_t id) {
    int32_t i = 0;
    while (i < s->params.n_end && s->end_ids[i] < id) i++; /* there are few */
    return i < s->params.n_end && s->end_ids[i] == id;
}

static float penalised(const ggfw_sampler *s, int32_t id, float logit) {
    const int32_t n = s->penalises ? ggfw_window_count(&s->window, id) : 0;
    if (!n) return logit;
    logit = logit > 0.0f ? logit / s->params.penalty_repeat : logit * s->params.penalty_repeat;
    const float penalty = (float)n * s->params.penalty_freq;
    return logit - (penalty + s->params.penalty_present);
}

static float edited(const ggfw_sampler *s, int32_t id, float logit) {
    const ggfw_bias *bias = s->params.n_bias ? bias_of(s, id) : NULL;
    if (bias) logit += bias->value;
    if (must_go_on(s) && ends(s, id)) logit = -INFINITY;
    const float dry = s->dry.n_penalties ? ggfw_dry_penalty_of(&s->dry, id) : 0.0f;
    if (s->params.dry_first) return penalised(s, id, logit - dry);
    return penalised(s, id, logit) - dry;
}

static int has_edits(const ggfw_sampler *s) {
    return s->params.n_bias > 0 || must_go_on(s) || s->penalises || s->dry.n_penalties > 0;
}

/* At most so many logits are changed. */
static int64_t n_edited(const ggfw_sampler *s) {
    return (int64_t)s->params.n_bias + (must_go_on(s) ? s->params.n_end : 0) + s->window.n_distinct +
           s->dry.n_penalties;
}

/* A copy of the row with the edits in it; NULL: out of memory. */
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
    for (int32_t i = 0; i < s->params.n_end && must_go_on(s); i++)
        if (s->end_ids[i] >= 0 && s->end_ids[i] < n) s->edited_row[s->end_ids[i]] = -INFINITY;
    for (int32_t i = 0; i < s->window.n_slots; i++) {
        const int32_t id = s->window.slots[i].id;
        if (id >= 0 && id < n) s->edited_row[id] = edited(s, id, row[id]);
    }
    for (int32_t i = 0; i < s->dry.n_penalties; i++) {
        const int32_t id = s->dry.penalties[i].id;
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
    if (s->params.typical_p < 1.0f) {
        double *distance = realloc(s->distance, (size_t)larger * sizeof *distance);
        if (!distance) return 0;
        s->distance = distance;
    }
    if (!ids || !logits || !probabilities || !terms) return 0;
    s->capacity = larger;
    return 1;
}

/* Edit the selected entries and drop those that become -inf or NaN; returns how many are left. */
static int32_t edit_selected(ggfw_sampler *s, const float *row, int32_t m) {
    int32_t kept = 0;
    for (int32_t i = 0; i < m; i++) {
        const int32_t id = ggfw_key_id(s->select.keys[i]);
        const float logit = edited(s, id, row[id]);
        if (logit > -INFINITY) s->select.keys[kept++] = ggfw_key_of(logit, id);
    }
    return kept;
}

/* Sort the m selected entries and make the best `width` of them the candidates. */
static int32_t take_selected(ggfw_sampler *s, int32_t m, int64_t width) {
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

/* The best `width` after the edits. */
static int32_t best_candidates(ggfw_sampler *s, const float *row, int32_t n, int64_t width) {
    const int edits = has_edits(s), later = edits && s->only_lowers;
    const float *edited_row = edits && !later ? edit_row(s, row, n) : row;
    if (!edited_row) return GGFW_SAMPLE_MEMORY;
    /* At least `width` of the best width + u entries are untouched, and nothing outside can rise. */
    int32_t m = ggfw_select_best(edited_row, n, later ? width + n_edited(s) : width, &s->select);
    if (m < 0) return m;
    if (later) m = edit_selected(s, row, m);
    return take_selected(s, m, width);
}

/* The largest logit after the edits; -inf when there is none. */
static int32_t best_logit(ggfw_sampler *s, const float *row, int32_t n, int later, float *best) {
    int32_t m = ggfw_select_best(row, n, later ? 1 + n_edited(s) : 1, &s->select);
    if (m < 0) return m;
    if (later) m = edit_selected(s, row, m);
    *best = -INFINITY;
    for (int32_t i = 0; i < m; i++) {
        const float logit = ggfw_key_logit(s->select.keys[i]);
        if (logit > *best) *best = logit;
    }
    return GGFW_SAMPLE_OK;
}

/* When the first stage keeps what reaches a bound (top-n-sigma, min-p): the candidates that do. Returns 1, 0 when this
 * is not so, or a negative status. */
static int32_t candidates_above(ggfw_sampler *s, const float *row, int32_t n) {
    const ggfw_sampler_params *p = &s->params;
    const int32_t first = p->n_stages ? p->stages[0] : 0;
    const int sigma = first == GGFW_STAGE_TOP_N_SIGMA, min_p = first == GGFW_STAGE_MIN_P && p->min_keep <= 1;
    if (p->greedy || !(sigma || min_p)) return 0;
    const int edits = has_edits(s), later = edits && s->only_lowers && min_p;
    const float *edited_row = edits && !later ? edit_row(s, row, n) : row;
    if (!edited_row) return GGFW_SAMPLE_MEMORY;
    float best;
    int32_t status = best_logit(s, edited_row, n, later, &best);
    if (status < 0) return status;
    if (!(best > -INFINITY)) return GGFW_SAMPLE_NONFINITE;
    const float bound = sigma ? ggfw_top_n_sigma_bound(edited_row, n, best, p->top_n_sigma)
                              : best + (float)log((double)p->min_p);
    if (!(bound > -INFINITY)) return 0;
    const int64_t width = p->n_stages > 1 && p->stages[1] == GGFW_STAGE_TOP_K ? p->top_k : n;
    int32_t m = ggfw_select_above(edited_row, n, bound, later ? width + n_edited(s) : width, &s->select);
    if (m < 0) return m;
    if (later) {
        m = edit_selected(s, row, m);
        int32_t kept = 0;
        for (int32_t i = 0; i < m; i++)
            if (ggfw_key_logit(s->select.keys[i]) >= bound) s->select.keys[kept++] = s->select.keys[i];
        m = kept;
    }
    status = take_selected(s, m, width);
    return status < 0 ? status : 1;
}

/* Row -> the candidates that are drawn from. */
static int32_t run_chain(ggfw_sampler *s, const float *row, int32_t n) {
    const ggfw_sampler_params *p = &s->params;
    int32_t done = candidates_above(s, row, n);
    if (done < 0) return done;
    if (!done) {
        const int64_t width = p->greedy ? 1 : p->n_stages && p->stages[0] == GGFW_STAGE_TOP_K ? p->top_k : n;
        const int32_t status = best_candidates(s, row, n, width);
        if (status < 0) return status;
    }
    if (isinf(s->logits[0])) s->n_candidates = 1; /* +inf is certain */
    else if (!p->greedy) ggfw_sampler_run_stages(s, done);
    return GGFW_SAMPLE_OK;
}

/* Greedy: the best raw logit, when no edit touches it and none raises another one. Else a negative number. */
static int32_t untouched_best(const ggfw_sampler *s, const float *row, int32_t n) {
    if (!s->params.greedy || (has_edits(s) && !s->only_lowers)) return -1;
    const int32_t id = ggfw_argmax(row, n);
    return id >= 0 && (!has_edits(s) || edited(s, id, row[id]) == row[id]) ? id : -1;
}

static int32_t drawn(ggfw_sampler *s) {
    int32_t at = 0;
    if (s->n_candidates > 1) { /* one left is certain: no random number */
        ggfw_sampler_softmax(s);
        const float r = (float)ggfw_rng_float64(&s->rng);
        float cumulated = s->probabilities[0];
        while (at < s->n_candidates - 1 && !(r < cumulated)) cumulated += s->probabilities[++at];
    }
    return s->ids[at];
}

int32_t ggfw_sampler_pick(ggfw_sampler *sampler, const float *row, int32_t n_vocab) {
    ggfw_sampler *s = sampler;
    if (!s || n_vocab < 0 || (n_vocab && !row)) return GGFW_SAMPLE_ARGUMENT;
    if (n_vocab == 0) return 0;
    if (!ggfw_dry_update(&s->dry)) return GGFW_SAMPLE_MEMORY;
    const ggfw_float_mode mode = ggfw_float_mode_exact();
    int32_t id = untouched_best(s, row, n_vocab);
    if (id < 0) {
        id = run_chain(s, row, n_vocab);
        if (id == GGFW_SAMPLE_OK) id = drawn(s);
    }
    if (id >= 0 && s->params.n_logprobs >= 0 && ggfw_sampler_note(s, row, n_vocab, id) < 0) id = GGFW_SAMPLE_MEMORY;
    ggfw_float_mode_restore(mode);
    return id;
}

int32_t ggfw_sampler_distribution(ggfw_sampler *sampler, const float *row, int32_t n_vocab, int32_t capacity,
                                  int32_t *ids, float *probabilities) {
    ggfw_sampler *s = sampler;
    if (!s || n_vocab < 0 || (n_vocab && !row) || capacity < 0 || (capacity && (!ids || !probabilities)))
        return GGFW_SAMPLE_ARGUMENT;
    if (n_vocab == 0) return 0;
    if (!ggfw_dry_update(&s->dry)) return GGFW_SAMPLE_MEMORY;
    const ggfw_float_mode mode = ggfw_float_mode_exact();
    const ggfw_rng rng = s->rng; /* XTC draws one, and will draw the same again */
    int32_t n = run_chain(s, row, n_vocab);
    s->rng = rng;
    if (n == GGFW_SAMPLE_OK) {
        n = s->n_candidates;
        if (n > 1)
            ggfw_sampler_softmax(s);
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

static int by_bias_id(const void *a, const void *b) {
    const int32_t x = ((const ggfw_bias *)a)->id, y = ((const ggfw_bias *)b)->id;
    return (x > y) - (x < y);
}

static int by_number(const void *a, const void *b) {
    const int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

static size_t at_least_one(int32_t n) { return n > 0 ? (size_t)n : 1; }

/* Make the arrays whose sizes the parameters say. */
static int make_arrays(ggfw_sampler *s) {
    s->bias = malloc(at_least_one(s->params.n_bias) * sizeof *s->bias);
    s->end_ids = malloc(at_least_one(s->params.n_end) * sizeof *s->end_ids);
    const size_t n_top = at_least_one(s->params.n_logprobs) * GGFW_NOTES;
    s->note_ids = malloc(n_top * sizeof *s->note_ids);
    s->note_logprobs = malloc(n_top * sizeof *s->note_logprobs);
    return s->bias && s->end_ids && s->note_ids && s->note_logprobs;
}

/* Leave out stages whose value switches them off: they would have no candidates, or no memory, to work on. */
static void drop_idle_stages(ggfw_sampler_params *p) {
    int32_t n = p->n_stages < 32 ? p->n_stages : 32;
    p->n_stages = 0;
    for (int32_t i = 0; i < n; i++) {
        int32_t stage = p->stages[i];
        if ((stage == GGFW_STAGE_TOP_K && p->top_k < 1) || (stage == GGFW_STAGE_TYPICAL && !(p->typical_p < 1.0f)))
            continue;
        p->stages[p->n_stages++] = stage;
    }
}

ggfw_sampler *ggfw_sampler_new(const ggfw_sampler_params *params) {
    ggfw_sampler *s = calloc(1, sizeof *s);
    if (!s) return NULL;
    s->params = *params;
    drop_idle_stages(&s->params);
    s->params.bias_ids = s->params.end_ids = s->params.dry_single = s->params.dry_longer = NULL;
    s->params.bias_values = NULL;
    s->rng = ggfw_rng_seeded(params->seed);
    s->penalises = params->penalty_last_n != 0 &&
                   (params->penalty_repeat != 1.0f || params->penalty_freq != 0.0f || params->penalty_present != 0.0f);
    s->only_lowers = !s->penalises || (params->penalty_repeat >= 1.0f && params->penalty_freq >= 0.0f &&
                                       params->penalty_present >= 0.0f);
    ggfw_window_init(&s->window, s->penalises ? params->penalty_last_n : 0);
    if (!make_arrays(s) || !ggfw_dry_init(&s->dry, params)) {
        ggfw_sampler_free(s);
        return NULL;
    }
    for (int32_t i = 0; i < params->n_bias; i++) {
        s->bias[i] = (ggfw_bias){params->bias_ids[i], params->bias_values[i]};
        if (params->bias_values[i] > 0.0f) s->only_lowers = 0;
    }
    if (params->n_bias > 0) qsort(s->bias, (size_t)params->n_bias, sizeof *s->bias, by_bias_id);
    if (params->n_end > 0) {
        memcpy(s->end_ids, params->end_ids, (size_t)params->n_end * sizeof *s->end_ids);
        qsort(s->end_ids, (size_t)params->n_end, sizeof *s->end_ids, by_number);
    }
    return s;
}

void ggfw_sampler_free(ggfw_sampler *sampler) {
    if (!sampler) return;
    ggfw_window_free(&sampler->window);
    ggfw_dry_free(&sampler->dry);
    ggfw_select_scratch_free(&sampler->select);
    free(sampler->bias);
    free(sampler->end_ids);
    free(sampler->note_ids);
    free(sampler->note_logprobs);
    free(sampler->ids);
    free(sampler->logits);
    free(sampler->probabilities);
    free(sampler->terms);
    free(sampler->distance);
    free(sampler->edited_row);
    free(sampler->masked_row);
    free(sampler);
}

ggfw_sampler *ggfw_sampler_clone(const ggfw_sampler *sampler) {
    ggfw_sampler *s = calloc(1, sizeof *s);
    if (!s) return NULL;
    s->params = sampler->params;
    s->rng = sampler->rng;
    s->n_accepted = sampler->n_accepted;
    s->held = sampler->held;
    s->penalises = sampler->penalises;
    s->only_lowers = sampler->only_lowers;
    if (!make_arrays(s) || !ggfw_window_copy(&s->window, &sampler->window) || !ggfw_dry_copy(&s->dry, &sampler->dry)) {
        ggfw_sampler_free(s);
        return NULL;
    }
    memcpy(s->bias, sampler->bias, (size_t)s->params.n_bias * sizeof *s->bias);
    memcpy(s->end_ids, sampler->end_ids, (size_t)s->params.n_end * sizeof *s->end_ids);
    return s;
}

int32_t ggfw_sampler_seed(ggfw_sampler *sampler, const int32_t *ids, int32_t n) {
    for (int32_t i = 0; i < n; i++)
        if (!ggfw_window_push(&sampler->window, ids[i]) || !ggfw_dry_push(&sampler->dry, ids[i]))
            return GGFW_SAMPLE_MEMORY;
    return GGFW_SAMPLE_OK;
}

int32_t ggfw_sampler_accept(ggfw_sampler *sampler, int32_t id) {
    return sampler->held ? GGFW_SAMPLE_OK : ggfw_sampler_settle(sampler, id);
}

int32_t ggfw_sampler_settle(ggfw_sampler *sampler, int32_t id) {
    if (sampler->n_accepted < sampler->params.min_tokens) sampler->n_accepted++;
    return ggfw_sampler_seed(sampler, &id, 1);
}

void ggfw_sampler_rng_get(const ggfw_sampler *sampler, uint64_t *state) {
    state[0] = sampler->rng.high;
    state[1] = sampler->rng.low;
}

void ggfw_sampler_rng_set(ggfw_sampler *sampler, const uint64_t *state) {
    sampler->rng = (ggfw_rng){state[0], state[1]};
}
