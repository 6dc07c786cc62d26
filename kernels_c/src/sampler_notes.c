/* sampler_notes.c: log-probabilities of the model's own distribution, noted with each pick. */
#include <math.h>

#include "sampler_scan.h"
#include "sampler_state.h"

/* ln of the sum over the row of e^(logit - best). */
static double log_sum(const float *row, int32_t n, float best) {
    if (best < INFINITY) return log(ggfw_scan_get()->sum_exp(row, n, best));
    int32_t n_certain = 0; /* entries of +inf share everything */
    for (int32_t i = 0; i < n; i++) n_certain += row[i] == INFINITY;
    return log((double)n_certain);
}

static double logprob_of(float logit, float best, double total) {
    return logit == best ? -total : (double)logit - (double)best - total;
}

int32_t ggfw_sampler_note(ggfw_sampler *s, const float *row, int32_t n, int32_t id) {
    const int32_t n_top = s->params.n_logprobs;
    const int32_t m = ggfw_select_best(row, n, n_top > 1 ? n_top : 1, &s->select);
    if (m < 0 || ggfw_sort_best(&s->select, m) < 0) return GGFW_SAMPLE_MEMORY;
    const float best = ggfw_key_logit(s->select.keys[0]);
    const double total = log_sum(row, n, best);
    if (s->n_notes == GGFW_NOTES) {
        s->first_note = (s->first_note + 1) % GGFW_NOTES;
        s->n_notes--;
    }
    const int32_t at = (s->first_note + s->n_notes++) % GGFW_NOTES;
    ggfw_note *note = &s->notes[at];
    note->id = id;
    note->logprob = isnan(row[id]) ? -INFINITY : logprob_of(row[id], best, total);
    note->n_top = m < n_top ? m : n_top;
    for (int32_t i = 0; i < note->n_top; i++) {
        const ggfw_key key = s->select.keys[i];
        s->note_ids[at * n_top + i] = ggfw_key_id(key);
        s->note_logprobs[at * n_top + i] = logprob_of(ggfw_key_logit(key), best, total);
    }
    return GGFW_SAMPLE_OK;
}

int32_t ggfw_sampler_take_logprobs(ggfw_sampler *s, int32_t *id, double *logprob, int32_t *ids, double *logprobs) {
    if (!s || !id || !logprob || s->n_notes == 0) return GGFW_SAMPLE_ARGUMENT;
    const int32_t at = s->first_note, n_top = s->params.n_logprobs;
    s->first_note = (at + 1) % GGFW_NOTES;
    s->n_notes--;
    *id = s->notes[at].id;
    *logprob = s->notes[at].logprob;
    for (int32_t i = 0; i < s->notes[at].n_top; i++) {
        ids[i] = s->note_ids[at * n_top + i];
        logprobs[i] = s->note_logprobs[at * n_top + i];
    }
    return s->notes[at].n_top;
}
