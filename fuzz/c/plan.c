/* plan.c: plans and batches with numbers that lie. They are refused, or run without touching foreign memory.
 *
 * A small plan with every op is made, some of its numbers are changed, then some of a batch. Pointers stay what they are,
 * and what stands behind them is as long as the largest view: lengths of weights and vectors are not known to C. */
#include "ggfw_executor.h"

#include "choices.h"

enum { ROWS = 8, OUTPUTS = 8, N = 32, VOCAB = 48, HEADS = 2, D = 16, EXPERTS = 4, STEPS = 64, PAGE = 16, PAGES = 6 };
enum { ROW = 512, VIEWS = 40, ARENA = ROW * ROWS * VIEWS, LONG = ARENA / 4 };

typedef struct plan {
    ggfw_step steps[STEPS];
    int32_t n;
    int32_t n_views;
} plan;

static float *constants;
static int must_run; /* nothing is spoilt: the plan has to be taken, and the batch to run */
static ggfw_weight square, table, wide, experts, quantised;

static const ggfw_kernel *kernel_of(int32_t op, int32_t format, int32_t activation) {
    const ggfw_kernel_table *t = ggfw_kernels();
    for (int32_t i = 0; i < t->n_kernels; i++) {
        const ggfw_kernel *k = &t->kernels[i];
        if (k->op == op && (format == GGFW_FORMAT_NONE || (k->format == format && k->activation == activation))) return k;
    }
    abort();
}

static ggfw_weight weight_of(int64_t n_out, int64_t n_in, int64_t n_expert, int32_t format, int32_t activation) {
    const ggfw_kernel *k = kernel_of(n_expert > 1 ? GGFW_OP_MOE_LINEAR : GGFW_OP_LINEAR, format, activation);
    int64_t bytes = k->pack_size(n_out, n_in);
    uint8_t *packed = exactly(bytes * n_expert, 1);
    uint8_t *file = exactly(n_out * n_in * 4, 1);
    for (int64_t e = 0; e < n_expert; e++) k->pack(file, n_out, n_in, 0, n_out, packed + e * bytes);
    free(file);
    return (ggfw_weight){packed, format, GGFW_LAYOUT_PACKED, n_out, n_in, n_expert, bytes, k};
}

static ggfw_view view(plan *p, int32_t width, int32_t type) {
    return (ggfw_view){(int64_t)ROW * ROWS * p->n_views++, ROW, width, type, 0};
}

static ggfw_step *add(plan *p, int32_t op, ggfw_view in, ggfw_view out, int32_t domain) {
    ggfw_step *s = &p->steps[p->n++];
    s->op = op;
    s->domain = domain;
    s->in[0] = in;
    s->out[0] = out;
    if (op != GGFW_OP_SAMPLE && op != GGFW_OP_LINEAR && op != GGFW_OP_MOE_LINEAR)
        s->decode = s->prompt = kernel_of(op, GGFW_FORMAT_NONE, 0);
    return s;
}

static ggfw_view linear(plan *p, ggfw_view x, const ggfw_weight *w, int32_t domain) {
    ggfw_view y = view(p, (int32_t)w->n_out, GGFW_F32);
    ggfw_step *s = add(p, GGFW_OP_LINEAR, x, y, domain);
    s->weight[0] = w;
    s->decode = s->prompt = w->kernel;
    s->params.linear = (ggfw_linear){.n_parts = 1, .scale = 1.0f};
    return y;
}

static void make_plan(plan *p) {
    ggfw_view none = {0, 0, 0, 0, 0}, x = view(p, N, GGFW_F32);
    ggfw_step *s = add(p, GGFW_OP_EMBED, none, x, GGFW_DOMAIN_ROWS);
    s->weight[0] = &table;
    s->params.embed = (ggfw_embed){1.0f, 0};

    ggfw_view normed = view(p, N, GGFW_F32);
    s = add(p, GGFW_OP_NORM, x, normed, GGFW_DOMAIN_ROWS);
    s->out[1] = view(p, N, GGFW_Q8);
    s->out[2] = view(p, N, GGFW_F32);
    s->params.norm = (ggfw_norm){GGFW_NORM_RMS, N, N, 1e-5f, 1.0f, 0, constants, NULL};
    linear(p, s->out[1], &quantised, GGFW_DOMAIN_ROWS);

    ggfw_view q = linear(p, normed, &square, GGFW_DOMAIN_ROWS), k = linear(p, normed, &square, GGFW_DOMAIN_ROWS);
    ggfw_view v = linear(p, normed, &square, GGFW_DOMAIN_ROWS), angles = view(p, D, GGFW_F32);
    s = add(p, GGFW_OP_ROPE_TABLE, none, angles, GGFW_DOMAIN_ROWS);
    s->params.rope = (ggfw_rope){D, 0, 1.0f, 0, constants};
    s = add(p, GGFW_OP_ROPE_STORE, q, q, GGFW_DOMAIN_ROWS);
    s->in[1] = k;
    s->in[2] = v;
    s->in[3] = angles;
    s->params.rope_store = (ggfw_rope_store){HEADS, HEADS, D, D, D, 1, 0, 0, 0, 1e-5f, 1.0f, 0, constants, NULL, NULL};
    ggfw_view mixed = view(p, N, GGFW_F32);
    s = add(p, GGFW_OP_ATTENTION, q, mixed, GGFW_DOMAIN_ROWS);
    s->out[1] = view(p, N, GGFW_Q8);
    s->params.attention = (ggfw_attention){HEADS, HEADS, D, D, 0, 0, 0, 0, 0.25f, 0.0f, NULL, NULL};
    s = add(p, GGFW_OP_ELEMENTWISE, mixed, view(p, N, GGFW_F32), GGFW_DOMAIN_ROWS);
    s->in[1] = x;
    s->out[1] = view(p, N, GGFW_Q8);
    s->params.elementwise = (ggfw_elementwise){GGFW_EW_SILU_MUL, 0, 0, 0, 0, 0, NULL};
    ggfw_view summed = s->out[0];
    s = add(p, GGFW_OP_QUANTIZE, summed, view(p, N, GGFW_Q16), GGFW_DOMAIN_ROWS);
    s->params.quantize.slots = 1;

    ggfw_view scores = view(p, EXPERTS, GGFW_F32), ids = view(p, 2, GGFW_I32), weights = view(p, 2, GGFW_F32);
    s = add(p, GGFW_OP_COPY, summed, scores, GGFW_DOMAIN_ROWS);
    s->in[0].width = EXPERTS;
    s = add(p, GGFW_OP_MOE_ROUTE, scores, ids, GGFW_DOMAIN_ROWS);
    s->out[1] = weights;
    s->params.moe = (ggfw_moe){EXPERTS, 2, 0, 1, 1, 1, 1.0f, 0, NULL, NULL, NULL};
    ggfw_view slots = view(p, 2 * N, GGFW_F32);
    s = add(p, GGFW_OP_MOE_LINEAR, summed, slots, GGFW_DOMAIN_ROWS);
    s->in[1] = ids;
    s->weight[0] = &experts;
    s->decode = s->prompt = experts.kernel;
    s->params.moe = (ggfw_moe){EXPERTS, 2, 0, 0, 0, 0, 1.0f, 0, NULL, NULL, NULL};
    s = add(p, GGFW_OP_MOE_SUM, slots, view(p, N, GGFW_F32), GGFW_DOMAIN_ROWS);
    s->in[1] = weights;
    s->in[2] = x;
    ggfw_view y = s->out[0];
    s = add(p, GGFW_OP_COPY, slots, view(p, N, GGFW_F32), GGFW_DOMAIN_ROWS);
    s->in[0].width = N;
    s->params.copy = (ggfw_copy){2, N, N / 2, 0};
    s = add(p, GGFW_OP_REDUCE, y, view(p, 4, GGFW_F32), GGFW_DOMAIN_ROWS);
    s->params.reduce = (ggfw_reduce){0, N / 4};

    s = add(p, GGFW_OP_SHORT_CONV, y, view(p, N, GGFW_F32), GGFW_DOMAIN_ROWS);
    s->params.short_conv = (ggfw_short_conv){4, 1, 0, 0, constants, NULL};
    ggfw_view convolved = s->out[0];
    s = add(p, GGFW_OP_SSM_SCAN, convolved, view(p, N, GGFW_F32), GGFW_DOMAIN_ROWS);
    s->in[1] = x;
    s->in[1].width = HEADS;
    s->in[2] = s->in[3] = y;
    s->in[2].width = s->in[3].width = 8;
    s->params.ssm_scan = (ggfw_ssm_scan){HEADS, D, 1, 8, 1, 0, constants, constants};
    s = add(p, GGFW_OP_DELTA_RULE, q, view(p, N, GGFW_F32), GGFW_DOMAIN_ROWS);
    s->in[1] = k;
    s->in[2] = v;
    s->in[3] = s->in[4] = x;
    s->in[3].width = s->in[4].width = HEADS;
    s->params.delta_rule = (ggfw_delta_rule){HEADS, HEADS, D, D, 0, 2, 1.0f, 0};

    ggfw_view gathered = view(p, N, GGFW_F32);
    add(p, GGFW_OP_GATHER, y, gathered, GGFW_DOMAIN_OUTPUTS);
    s = add(p, GGFW_OP_POOL, y, view(p, N, GGFW_F32), GGFW_DOMAIN_SEQUENCES);
    s->params.pooling = (ggfw_pooling){0, 0};
    ggfw_view logits = linear(p, gathered, &wide, GGFW_DOMAIN_OUTPUTS);
    add(p, GGFW_OP_SAMPLE, logits, none, GGFW_DOMAIN_OUTPUTS);
}

/* Integers at the front of an op's parameters, before any pointer or float. */
static int n_integers(int32_t op) {
    switch (op) {
    case GGFW_OP_LINEAR: return 1;
    case GGFW_OP_NORM: return 3;
    case GGFW_OP_ROPE_TABLE: return 1;
    case GGFW_OP_ROPE_STORE: return 9;
    case GGFW_OP_ATTENTION: return 8;
    case GGFW_OP_ELEMENTWISE: return 2;
    case GGFW_OP_COPY: return 3;
    case GGFW_OP_REDUCE: return 2;
    case GGFW_OP_MOE_ROUTE:
    case GGFW_OP_MOE_LINEAR: return 6;
    case GGFW_OP_POOL: return 2;
    case GGFW_OP_QUANTIZE: return 1;
    case GGFW_OP_SHORT_CONV: return 3;
    case GGFW_OP_SSM_SCAN: return 5;
    case GGFW_OP_DELTA_RULE: return 6;
    default: return 0;
    }
}

static void spoil_step(choices *c, ggfw_step *s) {
    switch (below(c, 8)) {
    case 0:
    case 1:
    case 2: {
        int n = n_integers(s->op);
        if (n > 0) ((int32_t *)&s->params)[below(c, (uint32_t)n)] = (int32_t)edge(c);
        break;
    }
    case 3: s->domain = (int32_t)edge(c); break;
    case 4: s->needed_for = (int32_t)below(c, 8); break;
    default: {
        ggfw_view *v = below(c, 2) ? &s->in[below(c, GGFW_MAX_INPUTS)] : &s->out[below(c, GGFW_MAX_OUTPUTS)];
        switch (below(c, 4)) {
        case 0: v->offset = below(c, 2) ? edge(c) : ARENA - (int64_t)below(c, 2 * ROW * ROWS); break;
        case 1: v->stride = (int32_t)edge(c); break;
        case 2: v->width = (int32_t)edge(c); break;
        default: v->type = (int32_t)below(c, 6) - 1;
        }
    }
    }
}

static void spoil_batch(choices *c, ggfw_batch *b, ggfw_segment *segments, int32_t *const *rows, int32_t *pages) {
    int32_t value = (int32_t)edge(c);
    switch (below(c, 6)) {
    case 0: (&b->n_rows)[below(c, 6)] = value; break;
    case 1: ((int32_t *)&segments[below(c, 2)])[below(c, sizeof *segments / 4)] = value; break;
    case 2: rows[below(c, 4)][below(c, ROWS)] = value; break;
    case 3: pages[below(c, PAGES)] = value; break;
    case 4: b->n_pages = below(c, PAGES); break;
    default: b->tokens = NULL;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc;
    (void)argv;
    constants = exactly(LONG, sizeof *constants);
    for (int i = 0; i < LONG; i++) constants[i] = 0.5f;
    square = weight_of(N, N, 1, 0, GGFW_F32);
    table = weight_of(VOCAB, N, 1, 0, GGFW_F32);
    wide = weight_of(VOCAB, N, 1, 0, GGFW_F32);
    experts = weight_of(N, N, EXPERTS, 0, GGFW_F32);
    quantised = weight_of(N, N, 1, 8, GGFW_Q8);
    ggfw_threads_set(1, 0);
    must_run = 1;
    LLVMFuzzerTestOneInput((const uint8_t *)"", 0);
    must_run = 0;
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    choices c = {data, size};
    plan *p = exactly(1, sizeof *p);
    make_plan(p);
    ggfw_pool pool = {.n_layers = 1, .n_pages = PAGES, .page_size = PAGE, .n_head_kv = HEADS, .d_k = D, .d_v = D};
    pool.type = (int32_t)below(&c, 5);
    pool.k_page_bytes = pool.v_page_bytes = HEADS * PAGE * D * 4;
    pool.k = exactly(pool.k_page_bytes * PAGES, 1);
    pool.v = exactly(pool.v_page_bytes * PAGES, 1);
    ggfw_state states[3] = {{NULL, 3 * N, 4, 0}, {NULL, N * 8, 4, 0}, {NULL, N * D, 4, 2}};
    for (int i = 0; i < 3; i++) states[i].data = exactly(states[i].slot_floats * states[i].n_slots, sizeof(float));
    for (uint32_t n = below(&c, 4); n > 0; n--) spoil_step(&c, &p->steps[below(&c, (uint32_t)p->n)]);
    ggfw_executor *e = ggfw_executor_new(p->steps, p->n, ARENA, ROWS, OUTPUTS, &pool, 1, states, 3, 2048);
    if (must_run && e == NULL) abort();
    if (e != NULL) {
        /* two segments: one decode row, and a prompt of four rows */
        int32_t *rows[4];
        for (int i = 0; i < 4; i++) rows[i] = exactly(ROWS, sizeof(int32_t));
        int32_t *pages = exactly(PAGES, sizeof *pages), *sampled = exactly(OUTPUTS, sizeof *sampled);
        ggfw_segment *segments = exactly(ROWS, sizeof *segments);
        ggfw_batch b = {.n_rows = 5, .n_decode_rows = 1, .n_segments = 2, .n_outputs = 2, .n_decode_outputs = 1,
                        .wants = 7, .tokens = rows[0], .positions = rows[1], .row_segment = rows[2],
                        .segments = segments, .pages = pages, .output_rows = rows[3], .sampled = sampled,
                        .n_pages = PAGES};
        segments[0] = (ggfw_segment){0, 1, 17, GGFW_ROWS_DECODE, 0, 1, 0, 1, {0, 0, 0, 0}};
        segments[1] = (ggfw_segment){1, 4, 0, GGFW_ROWS_PROMPT, -1, 2, 1, 1, {3, 0, 0, 0}};
        for (int i = 0; i < 5; i++) {
            rows[0][i] = i;
            rows[1][i] = i == 0 ? 17 : i - 1;
            rows[2][i] = i > 0;
        }
        rows[3][1] = 4;
        for (int i = 0; i < PAGES; i++) pages[i] = i;
        for (uint32_t n = below(&c, 4); n > 0; n--) spoil_batch(&c, &b, segments, rows, pages);
        int32_t status = ggfw_executor_run(e, &b, 0, -1);
        if (must_run && status != GGFW_OK) abort();
        ggfw_executor_free(e);
        for (int i = 0; i < 4; i++) free(rows[i]);
        free(pages);
        free(sampled);
        free(segments);
    }
    for (int i = 0; i < 3; i++) free(states[i].data);
    free(pool.k);
    free(pool.v);
    free(p);
    return 0;
}
