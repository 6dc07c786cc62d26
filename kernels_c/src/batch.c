/* batch.c: nothing that Python hands over is trusted by kernels: every index is checked here, then copied, so that the
 * tables stay as they are until the last worker has left the step. */
#include "executor.h"

#include "platform.h"

#include <stdlib.h>
#include <string.h>

void batch_rules_of(const ggfw_step *steps, int32_t n_steps, batch_rules *rules) {
    memset(rules, 0, sizeof *rules);
    for (int32_t i = 0; i < n_steps; i++) {
        const ggfw_step *s = &steps[i];
        if (s->domain == GGFW_DOMAIN_SEQUENCES) rules->by_sequence = 1;
        if (s->op == GGFW_OP_EMBED && s->weight[0] != NULL && s->params.embed.by != 3) {
            int64_t *limit = s->params.embed.by == 1 ? &rules->n_position_rows : &rules->n_token_rows;
            if (*limit == 0 || s->weight[0]->n_out < *limit) *limit = s->weight[0]->n_out;
        }
        if (s->op == GGFW_OP_EMBED && s->params.embed.by == 0 && rules->embedding_width == 0)
            rules->embedding_width = s->out[0].width;
        if (s->op == GGFW_OP_ROPE_STORE && s->in[1].width > 0) rules->stores[s->params.rope_store.pool] = 1;
        if (s->op == GGFW_OP_ATTENTION) {
            const ggfw_attention *a = &s->params.attention;
            if (!rules->attends[a->pool]) rules->window[a->pool] = a->window;
            else if (a->window == 0 || rules->window[a->pool] == 0) rules->window[a->pool] = 0;
            else if (a->window > rules->window[a->pool]) rules->window[a->pool] = a->window;
            rules->attends[a->pool] = 1;
        }
    }
}

static int counts_are_good(const ggfw_executor *e, const ggfw_batch *b) {
    return b->n_rows >= 0 && b->n_rows <= e->run.max_rows && b->n_decode_rows >= 0 && b->n_decode_rows <= b->n_rows &&
           b->n_segments >= 0 && b->n_segments <= b->n_rows && b->n_outputs >= 0 &&
           b->n_outputs <= e->run.max_outputs && b->n_decode_outputs >= 0 && b->n_decode_outputs <= b->n_outputs &&
           !(e->rules.by_sequence && b->n_segments > e->run.max_outputs) &&
           (b->n_rows == 0 || (b->positions && b->row_segment && b->segments)) &&
           (b->n_outputs == 0 || b->output_rows) && (b->samplers == NULL || b->sampled != NULL);
}

/* Segments follow each other without gaps, decode ones first; rows carry their positions. */
static int segments_are_good(const ggfw_executor *e, const ggfw_batch *b, int32_t *n_decode_segments) {
    int32_t row = 0;
    *n_decode_segments = 0;
    for (int32_t i = 0; i < b->n_segments; i++) {
        const ggfw_segment *s = &b->segments[i];
        if (s->row != row || s->n_rows < 1 || s->n_rows > b->n_rows - row || s->position < 0 ||
            s->position > INT32_MAX - s->n_rows)
            return 0;
        int decode = row < b->n_decode_rows;
        if (s->row_class != (decode ? GGFW_ROWS_DECODE : GGFW_ROWS_PROMPT)) return 0;
        *n_decode_segments += decode;
        for (int32_t r = 0; r < s->n_rows; r++)
            if (b->row_segment[row + r] != i || b->positions[row + r] != s->position + r) return 0;
        row += s->n_rows;
        if (decode && row > b->n_decode_rows) return 0;
        if (s->n_outputs < 0 || s->n_outputs > s->n_rows) return 0;
        if (s->n_outputs > 0) {
            if (s->output < 0 || s->output > b->n_outputs - s->n_outputs) return 0;
            for (int32_t o = 0; o < s->n_outputs; o++)
                if (b->output_rows[s->output + o] != row - s->n_outputs + o) return 0;
        }
        for (int32_t p = 0; p < e->n_states; p++)
            if (s->state_read < -1 || s->state_read >= e->states[p].n_slots || s->state_write < 0 ||
                s->state_write >= e->states[p].n_slots)
                return 0;
    }
    return row == b->n_rows;
}

static int outputs_are_good(const ggfw_batch *b) {
    for (int32_t i = 0; i < b->n_outputs; i++) {
        int32_t row = b->output_rows[i];
        if (row < 0 || row >= b->n_rows || (row < b->n_decode_rows) != (i < b->n_decode_outputs)) return 0;
    }
    return 1;
}

static int inputs_are_good(const ggfw_executor *e, const ggfw_batch *b) {
    if (e->rules.embedding_width > 0 && b->n_rows > 0 && b->tokens == NULL && b->embeddings == NULL) return 0;
    if (b->tokens != NULL && e->rules.n_token_rows > 0)
        for (int32_t i = 0; i < b->n_rows; i++)
            if (b->tokens[i] < 0 || b->tokens[i] >= e->rules.n_token_rows) return 0;
    if (e->rules.n_position_rows > 0)
        for (int32_t i = 0; i < b->n_rows; i++)
            if (b->positions[i] >= e->rules.n_position_rows) return 0;
    return 1;
}

/* Every page that a kernel will write or read is there. Sets *n_pages to the used length of b->pages. */
static int pages_are_good(const ggfw_executor *e, const ggfw_batch *b, int64_t *n_pages) {
    *n_pages = 0;
    for (int32_t p = 0; p < e->n_pools; p++) {
        if (!e->rules.stores[p] && !e->rules.attends[p]) continue;
        const ggfw_pool *pool = &e->pools[p];
        for (int32_t i = 0; i < b->n_segments; i++) {
            const ggfw_segment *s = &b->segments[i];
            int64_t first = s->position; /* first position that must be there */
            if (e->rules.attends[p]) {
                int64_t seen = e->rules.window[p] > 0 ? (int64_t)s->position - e->rules.window[p] + 1 : 0;
                first = seen > 0 ? seen : 0;
            }
            int64_t end = ((int64_t)s->position + s->n_rows - 1) / pool->page_size + 1;
            if (s->table[p] < 0 || b->pages == NULL || s->table[p] + end > b->n_pages) return 0;
            for (int64_t page = first / pool->page_size; page < end; page++) {
                int32_t id = b->pages[s->table[p] + page];
                if (id < 0 || id >= pool->n_pages) return 0;
            }
            if (s->table[p] + end > *n_pages) *n_pages = s->table[p] + end;
        }
    }
    return 1;
}

static int grow_pages(ggfw_executor *e, int64_t n) {
    if (n <= e->pages_capacity) return 1;
    int32_t *pages = realloc(e->pages, (size_t)(n * 2) * sizeof *pages);
    if (pages == NULL) return 0;
    e->pages = pages;
    e->pages_capacity = n * 2;
    return 1;
}

static void *copy(void *to, const void *from, int64_t n, size_t size) {
    if (from == NULL) return NULL;
    if (n > 0) memcpy(to, from, (size_t)n * size); /* without rows there may be no memory either */
    return to;
}

int32_t batch_take(ggfw_executor *e, const ggfw_batch *b) {
    int64_t n_pages;
    if (!counts_are_good(e, b) || !segments_are_good(e, b, &e->n_decode_segments) || !outputs_are_good(b) ||
        b->n_pages < 0 || !inputs_are_good(e, b) || !pages_are_good(e, b, &n_pages))
        return GGFW_ERR_BATCH;
    if (!grow_pages(e, n_pages)) return GGFW_ERR_MEMORY;
    int64_t width = e->rules.embedding_width;
    if (b->embeddings != NULL && width > 0 && e->embeddings == NULL) {
        e->embeddings = platform_map(e->run.max_rows * width * (int64_t)sizeof(float), 0);
        if (e->embeddings == NULL) return GGFW_ERR_MEMORY;
    }
    int64_t rows = e->run.max_rows;
    ggfw_batch *own = &e->batch;
    *own = *b;
    own->tokens = copy(e->control, b->tokens, b->n_rows, sizeof(int32_t));
    own->positions = copy(e->control + rows, b->positions, b->n_rows, sizeof(int32_t));
    own->row_segment = copy(e->control + 2 * rows, b->row_segment, b->n_rows, sizeof(int32_t));
    own->output_rows = copy(e->control + 3 * rows, b->output_rows, b->n_outputs, sizeof(int32_t));
    own->sampled = e->control + 3 * rows + e->run.max_outputs;
    own->segments = copy(e->segments, b->segments, b->n_segments, sizeof(ggfw_segment));
    own->samplers = copy(e->samplers, b->samplers, b->n_outputs, sizeof(struct ggfw_sampler *));
    own->embeddings = width > 0 ? copy(e->embeddings, b->embeddings, b->n_rows * width, sizeof(float)) : NULL;
    own->pages = copy(e->pages, b->pages, n_pages, sizeof(int32_t));
    own->n_pages = n_pages;
    return GGFW_OK;
}
