/* plan_check.c: a plan is refused before it runs if a step could touch memory outside of the arena, a pool or a state.
 *
 * Views are compared with the arena's size, and widths with what the op's kernels read and write: a kernel computes its
 * extents from one view or from the parameters and trusts the others. What C cannot know are the lengths of weights,
 * vectors and caches behind pointers; whoever allocates them answers for them. */
#include "executor.h"

#include "activation.h"

/* ---- views ------------------------------------------------------------------------------------------------------- */

static int64_t domain_rows(const ggfw_run *run, int32_t domain) {
    return domain == GGFW_DOMAIN_ROWS ? run->max_rows : run->max_outputs;
}

/* The rows [0, n_rows) of `bytes` bytes each from a view's place on lie in the arena. */
static int rows_fit(const ggfw_executor *e, const ggfw_view *v, int64_t n_rows, int64_t bytes) {
    /* The limits first, else the sum could wrap. */
    if (v->offset < 0 || v->stride < 0 || v->offset > e->arena_bytes || v->stride > e->arena_bytes || bytes < 0 ||
        bytes > e->arena_bytes || v->offset % 4 != 0 || v->stride % 4 != 0)
        return 0;
    return n_rows == 0 || v->offset + (n_rows - 1) * v->stride + bytes <= e->arena_bytes;
}

static int view_fits(const ggfw_executor *e, const ggfw_view *v, int64_t n_rows) {
    if (v->width == 0) return rows_fit(e, v, n_rows, 0); /* absent: its rows are not touched, but their places computed */
    if (v->width < 0 || v->type < GGFW_F32 || v->type > GGFW_Q16) return 0;
    return rows_fit(e, v, n_rows, activation_row_bytes(v->type, v->width));
}

/* Two views are one place, or share no byte: rows that overlap in part are nobody's intention, and copies between them
 * would be undefined. Column ranges of the same rows share none. */
static int same_or_apart(const ggfw_view *a, int64_t n_a, const ggfw_view *b, int64_t n_b) {
    if (a->width == 0 || b->width == 0 || n_a == 0 || n_b == 0 || (a->offset == b->offset && a->stride == b->stride))
        return 1;
    int64_t bytes_a = activation_row_bytes(a->type, a->width), bytes_b = activation_row_bytes(b->type, b->width);
    if (a->offset + (n_a - 1) * a->stride + bytes_a <= b->offset ||
        b->offset + (n_b - 1) * b->stride + bytes_b <= a->offset)
        return 1;
    if (a->stride != b->stride || a->stride == 0) return 0;
    int64_t distance = (b->offset - a->offset) % a->stride;
    if (distance < 0) distance += a->stride;
    return distance >= bytes_a && a->stride - distance >= bytes_b;
}

static int is_floats(const ggfw_view *v, int64_t n) { return n > 0 && v->width == n && v->type == GGFW_F32; }
static int absent_or_floats(const ggfw_view *v, int64_t n) { return v->width == 0 || is_floats(v, n); }
static int is_integers(const ggfw_view *v, int64_t n) { return n > 0 && v->width == n && v->type == GGFW_I32; }

static int is_quantised(const ggfw_view *v) { return v->type == GGFW_Q8 || v->type == GGFW_Q16; }
/* The second result of norms, functions and attention: a quantised copy. */
static int absent_or_quantised(const ggfw_view *v, int64_t n) {
    return v->width == 0 || (v->width == n && n % 32 == 0 && is_quantised(v));
}

/* ---- caches ------------------------------------------------------------------------------------------------------ */

static int cache_fits(const ggfw_executor *e, int32_t pool, int32_t layer, int32_t n_head_kv, int32_t d_k,
                      int32_t d_v) {
    return pool >= 0 && pool < e->n_pools && layer >= 0 && layer < e->pools[pool].n_layers && n_head_kv > 0 &&
           n_head_kv == e->pools[pool].n_head_kv && d_k == e->pools[pool].d_k && d_v == e->pools[pool].d_v;
}

static int state_fits(const ggfw_executor *e, int32_t state, int64_t floats) {
    return state >= 0 && state < e->n_states && floats > 0 && e->states[state].slot_floats == floats;
}

/* Bytes of 16 positions of one head: see ggfw_pool. */
static int64_t group_bytes(int32_t type, int64_t d) {
    int64_t blocks = (d + 31) / 32;
    switch (type) {
    case GGFW_KV_F32: return 64 * d;
    case GGFW_KV_Q8_0: return 16 * blocks * 34;
    case GGFW_KV_Q4_0: return 16 * blocks * 18;
    default: return 32 * d;
    }
}

int pools_are_good(const ggfw_pool *pools, int32_t n) {
    for (int32_t i = 0; i < n; i++) {
        const ggfw_pool *p = &pools[i];
        if (p->page_size < 16 || p->page_size % 16 != 0 || p->n_pages < 0 || p->n_layers < 0 || p->n_head_kv < 1 ||
            p->d_k < 1 || p->d_v < 0 || p->type < GGFW_KV_F32 || p->type > GGFW_KV_Q4_0 ||
            (p->v == NULL && p->d_v > p->d_k))
            return 0;
        int64_t groups = (int64_t)p->n_head_kv * (p->page_size / 16);
        if (p->k_page_bytes < groups * group_bytes(p->type, p->d_k) ||
            (p->v != NULL && p->v_page_bytes < groups * group_bytes(p->type, p->d_v)))
            return 0;
    }
    return 1;
}

int states_are_good(const ggfw_state *states, int32_t n) {
    for (int32_t i = 0; i < n; i++)
        if (states[i].n_slots < 0 || states[i].n_ring < 0 ||
            (states[i].n_ring > 0 && states[i].n_slots % states[i].n_ring != 0))
            return 0;
    return 1;
}

/* ---- products ---------------------------------------------------------------------------------------------------- */

/* Whether a kernel reads the layout that a weight is in. One without a pack() reads the file's, or (R16) what others packed. */
static int reads_layout(const ggfw_kernel *k, int32_t layout) {
    if (layout == GGFW_LAYOUT_PACKED) return k->pack != NULL || k->flags & GGFW_KERNEL_R16;
    return k->flags & GGFW_KERNEL_FILE || (k->pack == NULL && !(k->flags & GGFW_KERNEL_R16));
}

/* Both kernels of a step are for its op, and take weights of this format and layout and activations of this type. */
static int kernels_take(const ggfw_step *s, const ggfw_weight *w) {
    const ggfw_kernel *kernels[2] = {s->decode, s->prompt};
    for (int i = 0; i < 2; i++) {
        const ggfw_kernel *k = kernels[i];
        if (k->op != s->op || k->format != w->format || k->activation != s->in[0].type ||
            (k->n_in_multiple > 1 && w->n_in % k->n_in_multiple != 0) || !reads_layout(k, w->layout))
            return 0;
    }
    return 1;
}

static int weight_is_good(const ggfw_weight *w) {
    return w != NULL && w->data != NULL && w->n_out > 0 && w->n_in > 0 && w->n_out <= INT32_MAX &&
           w->n_in <= INT32_MAX && w->n_expert > 0;
}

static int linear_is_good(const ggfw_step *s) {
    const ggfw_linear *p = &s->params.linear;
    if (p->n_parts < 1 || p->n_parts > GGFW_MAX_OUTPUTS || p->n_parts > GGFW_MAX_WEIGHTS) return 0;
    const ggfw_weight *first = s->weight[0];
    for (int i = 0; i < p->n_parts; i++) {
        const ggfw_weight *w = s->weight[i];
        if (!weight_is_good(w) || w->n_in != first->n_in || w->format != first->format || w->layout != first->layout ||
            !is_floats(&s->out[i], w->n_out) || !absent_or_floats(&s->in[1 + i], w->n_out))
            return 0;
    }
    return s->in[0].width == first->n_in && s->in[0].type != GGFW_I32 && kernels_take(s, first);
}

static int moe_linear_is_good(const ggfw_executor *e, const ggfw_step *s) {
    const ggfw_moe *p = &s->params.moe;
    const ggfw_weight *w = s->weight[0];
    int64_t k = p->n_used;
    if (!weight_is_good(w) || k < 1 || k > w->n_expert || w->n_expert > INT32_MAX ||
        !is_floats(&s->out[0], k * w->n_out) || s->in[0].type == GGFW_I32 ||
        s->in[0].width != (p->per_slot_input ? k : 1) * w->n_in || !kernels_take(s, w))
        return 0;
    if (s->in[1].width != 0 && !is_integers(&s->in[1], k)) return 0;
    /* Rows of slots are padded one by one, so they may be longer than one row of that width. */
    int64_t bytes = activation_row_bytes(s->in[0].type, w->n_in) * (p->per_slot_input ? k : 1);
    return rows_fit(e, &s->in[0], domain_rows(&e->run, s->domain), bytes);
}

static int quantize_is_good(const ggfw_executor *e, const ggfw_step *s) {
    int64_t slots = s->params.quantize.slots > 1 ? s->params.quantize.slots : 1, n = s->in[0].width / slots;
    return is_floats(&s->in[0], n * slots) && n % 32 == 0 && s->out[0].width == s->in[0].width &&
           is_quantised(&s->out[0]) &&
           rows_fit(e, &s->out[0], domain_rows(&e->run, s->domain), slots * activation_row_bytes(s->out[0].type, n));
}

static int moe_route_is_good(const ggfw_step *s) {
    const ggfw_moe *p = &s->params.moe;
    return p->n_used > 0 && p->n_used <= p->n_expert && p->n_expert <= INT32_MAX / 16 &&
           is_floats(&s->in[0], p->n_expert) && is_integers(&s->out[0], p->n_used) &&
           is_floats(&s->out[1], p->n_used) && p->n_group >= 0 && (p->n_group < 2 || p->n_expert % p->n_group == 0);
}

static int moe_sum_is_good(const ggfw_step *s) {
    int64_t n = s->out[0].width, k = s->in[1].width;
    return is_floats(&s->out[0], n) && is_floats(&s->in[1], k) && is_floats(&s->in[0], n * k) &&
           absent_or_floats(&s->in[2], n);
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

static int embed_is_good(const ggfw_step *s) {
    const ggfw_weight *w = s->weight[0];
    return weight_is_good(w) && w->kernel != NULL && w->kernel->unpack_rows != NULL &&
           is_floats(&s->out[0], w->n_in) && s->params.embed.by >= 0 && s->params.embed.by <= 3;
}

static int norm_is_good(const ggfw_step *s) {
    const ggfw_norm *p = &s->params.norm;
    int64_t n = s->in[0].width;
    int with_vectors = p->weight != NULL || p->bias != NULL;
    return is_floats(&s->in[0], n) && p->group > 0 && n % p->group == 0 && absent_or_floats(&s->in[1], n) &&
           absent_or_floats(&s->out[0], n) && absent_or_quantised(&s->out[1], n) && absent_or_floats(&s->out[2], n) &&
           p->weight_width >= 0 && (!with_vectors || p->weight_width % p->group == 0);
}

static int elementwise_is_good(const ggfw_step *s) {
    const ggfw_elementwise *p = &s->params.elementwise;
    int64_t n = s->in[0].width;
    return is_floats(&s->in[0], n) && (absent_or_floats(&s->in[1], n) || is_floats(&s->in[1], 1)) &&
           absent_or_floats(&s->out[0], n) && absent_or_quantised(&s->out[1], n) &&
           (p->vector == NULL || p->vector_width > 0) && (s->out[0].width > 0 || s->out[1].width > 0);
}

static int copy_is_good(const ggfw_executor *e, const ggfw_step *s) {
    const ggfw_copy *p = &s->params.copy;
    if (p->slots <= 1)
        return s->in[0].width > 0 && s->in[0].width == s->out[0].width && s->in[0].type == s->out[0].type;
    int64_t n = s->out[0].width / p->slots, last = p->slots - 1, rows = domain_rows(&e->run, s->domain);
    /* What slots reach over, which widths do not tell; nothing is moved within one place. */
    ggfw_view from = s->in[0], to = s->out[0];
    int64_t reach = last * (p->from > p->to ? p->from : p->to) + n;
    if (reach > INT32_MAX || (from.offset == to.offset && from.stride == to.stride)) return 0;
    from.width = (int32_t)(last * p->from + n);
    to.width = (int32_t)(last * p->to + n);
    if (!same_or_apart(&from, rows, &to, rows)) return 0;
    return is_floats(&s->out[0], n * p->slots) && s->in[0].width > 0 && s->in[0].type == GGFW_F32 && p->from >= 0 &&
           p->to >= 0 && rows_fit(e, &s->in[0], rows, (last * p->from + n) * (int64_t)sizeof(float)) &&
           rows_fit(e, &s->out[0], rows, (last * p->to + n) * (int64_t)sizeof(float));
}

static int reduce_is_good(const ggfw_step *s) {
    return s->params.reduce.group > 0 && s->out[0].width > 0 && s->out[0].type == GGFW_F32 &&
           is_floats(&s->in[0], (int64_t)s->out[0].width * s->params.reduce.group);
}

/* ---- sequences --------------------------------------------------------------------------------------------------- */

static int rope_table_is_good(const ggfw_step *s) {
    const ggfw_rope *p = &s->params.rope;
    return p->n_rot > 0 && p->n_rot % 2 == 0 && is_floats(&s->out[0], p->n_rot) && p->inv_freq != NULL;
}

static int rope_store_is_good(const ggfw_executor *e, const ggfw_step *s) {
    const ggfw_rope_store *p = &s->params.rope_store;
    int with_q = s->in[0].width > 0, with_k = s->in[1].width > 0, with_v = s->in[2].width > 0;
    if (p->d_k < 1 || p->d_v < 0 || p->n_rot < 0 || p->n_rot % 2 != 0 || p->n_rot > p->d_k) return 0;
    if (s->in[3].width > 0 && (s->in[3].type != GGFW_F32 || s->in[3].width < p->n_rot)) return 0;
    int64_t q = (int64_t)p->n_head * p->d_k;
    if (with_q && (!is_floats(&s->in[0], q) || !is_floats(&s->out[0], q))) return 0;
    if (!with_k) return !with_v;
    return cache_fits(e, p->pool, p->layer, p->n_head_kv, p->d_k, p->d_v) &&
           is_floats(&s->in[1], (int64_t)p->n_head_kv * p->d_k) &&
           absent_or_floats(&s->in[2], (int64_t)p->n_head_kv * p->d_v);
}

static int attention_is_good(const ggfw_executor *e, const ggfw_step *s) {
    const ggfw_attention *p = &s->params.attention;
    int64_t n = (int64_t)p->n_head * p->d_v;
    return cache_fits(e, p->pool, p->layer, p->n_head_kv, p->d_k, p->d_v) && p->n_head > 0 &&
           p->n_head % p->n_head_kv == 0 && p->window >= 0 && is_floats(&s->in[0], (int64_t)p->n_head * p->d_k) &&
           absent_or_floats(&s->out[0], n) && absent_or_quantised(&s->out[1], n) &&
           (s->out[0].width > 0 || s->out[1].width > 0);
}

static int short_conv_is_good(const ggfw_executor *e, const ggfw_step *s) {
    const ggfw_short_conv *p = &s->params.short_conv;
    int64_t n = s->in[0].width;
    return p->kernel >= 2 && p->kernel <= GGFW_CONV_MAX && p->weight != NULL && is_floats(&s->in[0], n) &&
           is_floats(&s->out[0], n) && state_fits(e, p->state, (p->kernel - 1) * n);
}

static int ssm_scan_is_good(const ggfw_executor *e, const ggfw_step *s) {
    const ggfw_ssm_scan *p = &s->params.ssm_scan;
    int64_t n = (int64_t)p->n_head * p->head_dim, group = (int64_t)p->n_group * p->n_state;
    return p->n_head > 0 && p->head_dim > 0 && p->n_state > 0 && p->n_group > 0 && p->n_head % p->n_group == 0 &&
           p->a != NULL && p->d != NULL && is_floats(&s->in[0], n) && is_floats(&s->out[0], n) &&
           is_floats(&s->in[1], p->n_head) && is_floats(&s->in[2], group) && is_floats(&s->in[3], group) &&
           state_fits(e, p->state, n * p->n_state);
}

static int delta_rule_is_good(const ggfw_executor *e, const ggfw_step *s) {
    const ggfw_delta_rule *p = &s->params.delta_rule;
    int64_t n = (int64_t)p->n_head_v * p->d_v, key = (int64_t)p->n_head_k * p->d_k;
    return p->n_head_k > 0 && p->n_head_v > 0 && p->d_k > 0 && p->d_v > 0 && p->n_head_v % p->n_head_k == 0 &&
           is_floats(&s->in[0], key) && is_floats(&s->in[1], key) && is_floats(&s->in[2], n) &&
           is_floats(&s->out[0], n) && is_floats(&s->in[3], p->n_head_v) && is_floats(&s->in[4], p->n_head_v) &&
           state_fits(e, p->state, n * p->d_k);
}

/* ---- a step ------------------------------------------------------------------------------------------------------ */

/* Ops that look rows up in the batch by their number in ROWS. */
static int needs_rows(int32_t op) {
    return op == GGFW_OP_EMBED || op == GGFW_OP_ROPE_TABLE || op == GGFW_OP_ROPE_STORE || op == GGFW_OP_ATTENTION ||
           op == GGFW_OP_SHORT_CONV || op == GGFW_OP_SSM_SCAN || op == GGFW_OP_DELTA_RULE;
}

static int op_is_good(const ggfw_executor *e, const ggfw_step *s) {
    switch (s->op) {
    case GGFW_OP_EMBED: return embed_is_good(s);
    case GGFW_OP_LINEAR: return linear_is_good(s);
    case GGFW_OP_QUANTIZE: return quantize_is_good(e, s);
    case GGFW_OP_NORM: return norm_is_good(s);
    case GGFW_OP_ROPE_TABLE: return rope_table_is_good(s);
    case GGFW_OP_ROPE_STORE: return rope_store_is_good(e, s);
    case GGFW_OP_ATTENTION: return attention_is_good(e, s);
    case GGFW_OP_ELEMENTWISE: return elementwise_is_good(s);
    case GGFW_OP_GATHER:
        return s->domain == GGFW_DOMAIN_OUTPUTS && s->in[0].width > 0 && s->in[0].width == s->out[0].width &&
               s->in[0].type == s->out[0].type;
    case GGFW_OP_COPY: return copy_is_good(e, s);
    case GGFW_OP_MOE_ROUTE: return moe_route_is_good(s);
    case GGFW_OP_MOE_LINEAR: return moe_linear_is_good(e, s);
    case GGFW_OP_MOE_SUM: return moe_sum_is_good(s);
    case GGFW_OP_POOL:
        return s->domain == GGFW_DOMAIN_SEQUENCES && s->params.pooling.input_domain >= GGFW_DOMAIN_ROWS &&
               s->params.pooling.input_domain <= GGFW_DOMAIN_OUTPUTS && is_floats(&s->in[0], s->in[0].width) &&
               is_floats(&s->out[0], s->in[0].width);
    case GGFW_OP_SAMPLE: return s->domain == GGFW_DOMAIN_OUTPUTS && is_floats(&s->in[0], s->in[0].width);
    case GGFW_OP_SHORT_CONV: return short_conv_is_good(e, s);
    case GGFW_OP_SSM_SCAN: return ssm_scan_is_good(e, s);
    case GGFW_OP_DELTA_RULE: return delta_rule_is_good(e, s);
    case GGFW_OP_REDUCE: return reduce_is_good(s);
    case GGFW_OP_CUSTOM: return s->params.custom.state >= -1 && s->params.custom.state < e->n_states;
    default: return 0;
    }
}

int step_is_good(const ggfw_executor *e, const ggfw_step *s) {
    if (s->op != GGFW_OP_SAMPLE && (s->decode == NULL || s->prompt == NULL)) return 0;
    if (s->domain < GGFW_DOMAIN_ROWS || s->domain > GGFW_DOMAIN_SEQUENCES) return 0;
    if (needs_rows(s->op) && s->domain != GGFW_DOMAIN_ROWS) return 0;
    int32_t from = s->op == GGFW_OP_GATHER ? GGFW_DOMAIN_ROWS
                   : s->op == GGFW_OP_POOL ? s->params.pooling.input_domain
                                           : s->domain;
    for (int i = 0; i < GGFW_MAX_INPUTS; i++)
        if (!view_fits(e, &s->in[i], domain_rows(&e->run, from))) return 0;
    for (int i = 0; i < GGFW_MAX_OUTPUTS; i++)
        if (!view_fits(e, &s->out[i], domain_rows(&e->run, s->domain))) return 0;
    for (int i = 0; i < GGFW_MAX_INPUTS; i++)
        for (int o = 0; o < GGFW_MAX_OUTPUTS; o++)
            if (!same_or_apart(&s->in[i], domain_rows(&e->run, from), &s->out[o], domain_rows(&e->run, s->domain)))
                return 0;
    return op_is_good(e, s);
}
