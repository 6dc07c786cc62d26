/* attention_prompt.h: attention of many rows per sequence. A chunk is (block of rows of a segment, kv head). Keys come
 * in blocks of 64 positions, turned into f32 once per chunk: K transposed (lanes are keys), V as it is (columns). Tiles
 * of a few queries go through scores, softmax and values while they are in L1; hidden keys are left out. */
#ifndef GGFW_ATTENTION_PROMPT_H
#define GGFW_ATTENTION_PROMPT_H

#include "attention.h"

#define PROMPT_KEYS 64
#define PROMPT_QUERIES 96 /* per chunk, about */

/* Queries and vectors of columns in registers. */
#if defined(GGFW_UNIT_AVX512)
#define PROMPT_TILE 6
#define PROMPT_VECTORS 4
#elif defined(GGFW_UNIT_AVX2) || defined(GGFW_UNIT_NEON)
#define PROMPT_TILE 6
#define PROMPT_VECTORS 1
#else
#define PROMPT_TILE 2
#define PROMPT_VECTORS 1
#endif

VF_INLINE int32_t prompt_rows(const ggfw_attention *p) {
    int32_t rows = PROMPT_QUERIES / (p->n_head / p->n_head_kv);
    return rows > 4 ? rows : 4;
}

VF_INLINE int32_t prompt_padded_queries(const ggfw_attention *p) {
    return (prompt_rows(p) * (p->n_head / p->n_head_kv) + PROMPT_TILE - 1) / PROMPT_TILE * PROMPT_TILE;
}

/* How the rows of a step are cut: for the first `whole` kv heads into blocks of as many rows as fit, for the others into
 * smaller ones, until the threads share both evenly. Each chunk turns all keys and values of its head into f32, so few
 * are better. What a row gets does not depend on the cut. */
typedef struct prompt_cut {
    int32_t whole;     /* kv heads */
    int32_t rows;      /* per chunk, of the first ones */
    int32_t rest_rows; /* per chunk, of the others */
} prompt_cut;

static prompt_cut prompt_cut_of(const ggfw_attention *p, const ggfw_run *run, int32_t n) {
    int32_t blocks = chunks_of_rows(0, n, prompt_rows(p)), rows = chunks_of_rows(0, n, blocks);
    for (int32_t rest = 0; rest <= p->n_head_kv; rest++) {
        if ((p->n_head_kv - rest) * blocks % run->n_threads) continue;
        if (!rest) return (prompt_cut){p->n_head_kv, rows, rows};
        for (int32_t b = blocks + 1; b < blocks + run->n_threads && 4 * b <= n; b++)
            if (rest * b % run->n_threads == 0) return (prompt_cut){p->n_head_kv - rest, rows, chunks_of_rows(0, n, b)};
    }
    return (prompt_cut){p->n_head_kv, prompt_rows(p), prompt_rows(p)};
}

/* Blocks of so many rows that the rows of a step make; none reaches from one segment into the next. */
static int32_t prompt_blocks(const ggfw_run *run, int32_t row_begin, int32_t row_end, int32_t per_block) {
    int32_t blocks = 0;
    for (int32_t row = row_begin; row < row_end;) {
        const ggfw_segment *s = &run->batch->segments[run->batch->row_segment[row]];
        int32_t end = smaller(row_end, s->row + s->n_rows);
        blocks += chunks_of_rows(row, end, per_block);
        row = end;
    }
    return blocks;
}

static int32_t prompt_chunks(const ggfw_step *step, const ggfw_run *run, int32_t row_begin, int32_t row_end) {
    const ggfw_attention *p = &step->params.attention;
    prompt_cut cut = prompt_cut_of(p, run, row_end - row_begin);
    return cut.whole * prompt_blocks(run, row_begin, row_end, cut.rows) +
           (p->n_head_kv - cut.whole) * prompt_blocks(run, row_begin, row_end, cut.rest_rows);
}

/* Scratch of one chunk. */
typedef struct prompt_work {
    float *q;       /* [queries][pad16(d_k)] */
    float *out;     /* [queries][pad16(d_v)] */
    float *keys;    /* [pad16(d_k)][PROMPT_KEYS] */
    float *values;  /* [PROMPT_KEYS][pad16(d_v)] */
    float *scales;  /* of one group, [kv_blocks][KV_GROUP] */
    float *scores;  /* [PROMPT_TILE][PROMPT_KEYS] */
    float *sums;    /* [queries][16] */
    float *tops;    /* [queries] */
    float *slopes;  /* [queries] */
    int32_t *positions;  /* [queries] */
    key_range *visible;  /* [queries] */
} prompt_work;

static int64_t prompt_layout(const ggfw_attention *p, uint8_t *base, prompt_work *w) {
    int64_t queries = prompt_padded_queries(p), at = 0;
#define PROMPT_PLACE(field, count)                                                                                     \
    w->field = (void *)(base + at);                                                                                    \
    at += ((int64_t)(count) * (int64_t)sizeof *w->field + 63) / 64 * 64
    PROMPT_PLACE(q, queries * pad16(p->d_k));
    PROMPT_PLACE(out, queries * pad16(p->d_v));
    PROMPT_PLACE(keys, pad16(p->d_k) * PROMPT_KEYS);
    PROMPT_PLACE(values, pad16(p->d_v) * PROMPT_KEYS);
    PROMPT_PLACE(scales, kv_blocks(larger(p->d_k, p->d_v)) * KV_GROUP);
    PROMPT_PLACE(scores, PROMPT_TILE * PROMPT_KEYS);
    PROMPT_PLACE(sums, queries * 16);
    PROMPT_PLACE(tops, queries);
    PROMPT_PLACE(slopes, queries);
    PROMPT_PLACE(positions, queries);
    PROMPT_PLACE(visible, queries);
#undef PROMPT_PLACE
    return at;
}

static int64_t prompt_scratch(const ggfw_step *step, const ggfw_run *run) {
    (void)run;
    prompt_work w;
    static uint8_t nowhere[1];
    return prompt_layout(&step->params.attention, nowhere, &w);
}

/* ---- blocks of keys as floats ------------------------------------------------------------------------------------ */

/* 16 keys of d elements to columns [0, 16) of to[d][PROMPT_KEYS]. Constant type. */
VF_INLINE void prompt_load_keys(const uint8_t *from, int32_t d, float *to, float *scales, const int32_t type) {
    const int64_t row = kv_row_bytes(type, d);
    kv_load_scales(from, type, d, 0, kv_blocks(d), scales);
    for (int32_t c = 0; c < d; c += 16) {
        vf v[16];
        if (d - c >= 16) {
            VF_UNROLL
            for (int k = 0; k < 16; k++) v[k] = kv_load(from + k * row, c, type, scales + k);
        } else {
            for (int k = 0; k < 16; k++) v[k] = kv_load_rest(from + k * row, c, d, type, scales + k);
        }
        vf_transpose16(v);
        VF_UNROLL
        for (int i = 0; i < 16; i++) vf_store(to + (c + i) * PROMPT_KEYS, v[i]);
    }
}

/* 16 values, the first d of `columns` elements, to 16 rows of to[.][pad16(d)]. Constant type. */
VF_INLINE void prompt_load_values(const uint8_t *from, int32_t columns, int32_t d, float *to, float *scales,
                                  const int32_t type) {
    const int64_t row = kv_row_bytes(type, columns);
    kv_load_scales(from, type, columns, 0, kv_blocks(d), scales);
    for (int k = 0; k < 16; k++)
        for (int32_t c = 0; c < d; c += 16)
            vf_store(to + k * pad16(d) + c, d - c >= 16 ? kv_load(from + k * row, c, type, scales + k)
                                                        : kv_load_rest(from + k * row, c, d, type, scales + k));
}

#define PROMPT_LOAD(type)                                                                                              \
    static void prompt_load_##type(const uint8_t *k, const uint8_t *v, int32_t v_of, int32_t d_k, int32_t d_v,         \
                                   float *keys, float *values, float *scales) {                                        \
        prompt_load_keys(k, d_k, keys, scales, type);                                                                  \
        prompt_load_values(v, v_of, d_v, values, scales, type);                                                        \
    }
PROMPT_LOAD(GGFW_KV_F32)
PROMPT_LOAD(GGFW_KV_F16)
PROMPT_LOAD(GGFW_KV_BF16)
PROMPT_LOAD(GGFW_KV_Q8_0)
PROMPT_LOAD(GGFW_KV_Q4_0)

/* Keys and values at [begin, end) of the block that starts at `block`, in groups of 16 (which lie within a page). */
static void prompt_load_block(const ggfw_step *step, const ggfw_run *run, const ggfw_segment *segment, int32_t kv_head,
                              int32_t block, int32_t begin, int32_t end, prompt_work *w) {
    const ggfw_attention *p = &step->params.attention;
    const ggfw_pool *pool = &run->pools[p->pool];
    for (int32_t key = begin / 16 * 16; key < end; key += 16) {
        int32_t page = page_of(run, segment, p->pool, key), slot = key % pool->page_size;
        const uint8_t *k = k_at(pool, p->layer, page, kv_head, slot), *v = v_at(pool, p->layer, page, kv_head, slot);
        const int32_t v_of = v_columns(pool);
        float *keys = w->keys + (key - block), *values = w->values + (int64_t)(key - block) * pad16(p->d_v);
        switch (pool->type) {
        case GGFW_KV_F32: prompt_load_GGFW_KV_F32(k, v, v_of, p->d_k, p->d_v, keys, values, w->scales); break;
        case GGFW_KV_F16: prompt_load_GGFW_KV_F16(k, v, v_of, p->d_k, p->d_v, keys, values, w->scales); break;
        case GGFW_KV_Q8_0: prompt_load_GGFW_KV_Q8_0(k, v, v_of, p->d_k, p->d_v, keys, values, w->scales); break;
        case GGFW_KV_Q4_0: prompt_load_GGFW_KV_Q4_0(k, v, v_of, p->d_k, p->d_v, keys, values, w->scales); break;
        default: prompt_load_GGFW_KV_BF16(k, v, v_of, p->d_k, p->d_v, keys, values, w->scales); break;
        }
    }
}

/* Ask for the group of keys and values at `key` of the next block, which come from memory while this one is multiplied. */
VF_INLINE void prompt_prefetch(const ggfw_step *step, const ggfw_run *run, const ggfw_segment *segment, int32_t kv_head,
                               int32_t key) {
    const ggfw_attention *p = &step->params.attention;
    const ggfw_pool *pool = &run->pools[p->pool];
    int32_t page = page_of(run, segment, p->pool, key), slot = key % pool->page_size;
    prefetch_rows(k_at(pool, p->layer, page, kv_head, slot), kv_group_bytes(pool->type, pool->d_k), 2);
    if (pool->v != NULL)
        prefetch_rows(v_at(pool, p->layer, page, kv_head, slot), kv_group_bytes(pool->type, pool->d_v), 2);
}

/* ---- a tile of queries against a block of keys ------------------------------------------------------------------- */

/* scores[PROMPT_TILE][16 vectors] = q keys. Constant vectors. */
VF_INLINE void prompt_dots(const float *q, int32_t d, const float *keys, float *scores, const int vectors) {
    vf a[PROMPT_TILE][PROMPT_VECTORS];
    VF_UNROLL
    for (int r = 0; r < PROMPT_TILE; r++)
        VF_UNROLL
        for (int v = 0; v < vectors; v++) a[r][v] = vf_zero();
    int32_t stride = pad16(d);
    for (int32_t c = 0; c < d; c++) {
        vf k[PROMPT_VECTORS];
        VF_UNROLL
        for (int v = 0; v < vectors; v++) k[v] = vf_load(keys + c * PROMPT_KEYS + 16 * v);
        VF_UNROLL
        for (int r = 0; r < PROMPT_TILE; r++) {
            vf x = vf_set(q[r * stride + c]);
            VF_UNROLL
            for (int v = 0; v < vectors; v++) a[r][v] = vf_fma(x, k[v], a[r][v]);
        }
    }
    VF_UNROLL
    for (int r = 0; r < PROMPT_TILE; r++)
        VF_UNROLL
        for (int v = 0; v < vectors; v++) vf_store(scores + r * PROMPT_KEYS + 16 * v, a[r][v]);
}

/* out[PROMPT_TILE][16 vectors] = out * shrink + weights values, keys [begin, end). Constant vectors. */
VF_INLINE void prompt_values(const float *weights, int32_t begin, int32_t end, const float *values, int32_t stride,
                             const float *shrink, float *out, const int vectors) {
    vf a[PROMPT_TILE][PROMPT_VECTORS];
    VF_UNROLL
    for (int r = 0; r < PROMPT_TILE; r++)
        VF_UNROLL
        for (int v = 0; v < vectors; v++) a[r][v] = vf_mul(vf_load(out + r * stride + 16 * v), vf_set(shrink[r]));
    for (int32_t key = begin; key < end; key++) {
        vf x[PROMPT_VECTORS];
        VF_UNROLL
        for (int v = 0; v < vectors; v++) x[v] = vf_load(values + key * stride + 16 * v);
        VF_UNROLL
        for (int r = 0; r < PROMPT_TILE; r++) {
            vf w = vf_set(weights[r * PROMPT_KEYS + key]);
            VF_UNROLL
            for (int v = 0; v < vectors; v++) a[r][v] = vf_fma(w, x[v], a[r][v]);
        }
    }
    VF_UNROLL
    for (int r = 0; r < PROMPT_TILE; r++)
        VF_UNROLL
        for (int v = 0; v < vectors; v++) vf_store(out + r * stride + 16 * v, a[r][v]);
}

/* n vectors of columns, PROMPT_VECTORS at a time and then the rest. */
#if PROMPT_VECTORS == 4
#define PROMPT_EACH(n, call, i)                                                                                        \
    int32_t i = 0;                                                                                                     \
    for (; i + 4 <= (n); i += 4) call(4);                                                                              \
    switch ((n) - i) {                                                                                                 \
    case 3: call(3); break;                                                                                            \
    case 2: call(2); break;                                                                                            \
    case 1: call(1); break;                                                                                            \
    default: break;                                                                                                    \
    }
#else
#define PROMPT_EACH(n, call, i)                                                                                        \
    for (int32_t i = 0; i < (n); i++) { call(1); }
#endif

/* Scores of a query in the block to weights; returns by what its earlier results shrink. */
VF_INLINE float prompt_softmax(const ggfw_attention *p, prompt_work *w, int32_t query, float *scores, int32_t block,
                               int32_t n_keys) {
    key_range visible = w->visible[query];
    vf top = vf_set(w->tops[query]), scale = vf_set(p->scale);
    int plain = p->softcap <= 0.0f && w->slopes[query] == 0.0f && block >= visible.begin &&
                block + n_keys <= visible.end;
    for (int32_t key = 0; plain && key < n_keys; key += 16) { /* finish_scores without its questions */
        vf s = vf_mul(vf_load(scores + key), scale);
        vf_store(scores + key, s);
        top = vf_max(top, s);
    }
    for (int32_t key = 0; !plain && key < n_keys; key += 16) {
        vf s = finish_scores(p, vf_load(scores + key), block + key, visible, w->positions[query], w->slopes[query]);
        vf_store(scores + key, s);
        top = vf_max(top, s);
    }
    float new_top = vf_largest(top), shrink[16];
    vf m = vf_set(new_top), change = vf_exp(vf_set(w->tops[query] - new_top));
    vf sum = vf_mul(vf_load(w->sums + 16 * query), change);
    for (int32_t key = 0; key < n_keys; key += 16) {
        vf e = vf_exp(vf_sub(vf_load(scores + key), m));
        vf_store(scores + key, e);
        sum = vf_add(sum, e);
    }
    vf_store(w->sums + 16 * query, sum);
    vf_store(shrink, change);
    w->tops[query] = new_top;
    return shrink[0];
}

static void prompt_tile(const ggfw_attention *p, prompt_work *w, int32_t query, int32_t block, int32_t begin,
                        int32_t end) {
    int32_t n_keys = pad16(end - block), d_v = pad16(p->d_v);
    const float *q = w->q + (int64_t)query * pad16(p->d_k);
    float *scores = w->scores, *out = w->out + (int64_t)query * d_v, shrink[PROMPT_TILE];
#define PROMPT_DOTS(n) prompt_dots(q, p->d_k, w->keys + 16 * vector, scores + 16 * vector, n)
    PROMPT_EACH(n_keys / 16, PROMPT_DOTS, vector)
#undef PROMPT_DOTS
    for (int r = 0; r < PROMPT_TILE; r++)
        shrink[r] = prompt_softmax(p, w, query + r, scores + r * PROMPT_KEYS, block, n_keys);
#define PROMPT_VALUES(n)                                                                                               \
    prompt_values(scores, begin - block, end - block, w->values + 16 * column, d_v, shrink, out + 16 * column, n)
    PROMPT_EACH(d_v / 16, PROMPT_VALUES, column)
#undef PROMPT_VALUES
}

/* ---- chunks ------------------------------------------------------------------------------------------------------ */

/* Queries of rows [row, row + n) and one kv head: (row, head of the group), padded to whole tiles. */
static void prompt_begin(const ggfw_step *step, const ggfw_run *run, const ggfw_segment *segment, int32_t row,
                         int32_t n_queries, int32_t kv_head, prompt_work *w) {
    const ggfw_attention *p = &step->params.attention;
    int32_t share = p->n_head / p->n_head_kv, d = pad16(p->d_k);
    int32_t padded = (n_queries + PROMPT_TILE - 1) / PROMPT_TILE * PROMPT_TILE;
    for (int32_t i = 0; i < padded; i++) {
        int32_t of = smaller(i, n_queries - 1); /* the padding repeats the last query */
        int32_t head = kv_head * share + of % share, position = run->batch->positions[row + of / share];
        memcpy(w->q + (int64_t)i * d, floats_of(run, &step->in[0], row + of / share) + head * p->d_k,
               (size_t)p->d_k * sizeof(float));
        w->tops[i] = ATTENTION_LOWEST;
        w->slopes[i] = p->alibi ? p->alibi[head] : 0.0f;
        w->positions[i] = position;
        w->visible[i] = visible_keys(p, segment, position);
    }
    memset(w->sums, 0, (size_t)padded * 16 * sizeof(float));
    memset(w->out, 0, (size_t)padded * pad16(p->d_v) * sizeof(float));
}

static void prompt_end(const ggfw_step *step, const ggfw_run *run, int32_t row, int32_t n_queries, int32_t kv_head,
                       const prompt_work *w) {
    const ggfw_attention *p = &step->params.attention;
    int32_t share = p->n_head / p->n_head_kv;
    for (int32_t i = 0; i < n_queries; i++) {
        int32_t head = kv_head * share + i % share;
        float factor = finish_factor(w->tops[i], vf_sum(vf_load(w->sums + 16 * i)), p->sinks ? p->sinks + head : NULL);
        const float *from = w->out + (int64_t)i * pad16(p->d_v);
        float *to = attention_out(step, run, row + i / share) + head * p->d_v;
        for (int32_t c = 0; c < p->d_v; c += 16)
            vf_store_n(to + c, vf_mul(vf_load(from + c), vf_set(factor)), p->d_v - c);
    }
    if (step->out[1].width > 0 && quantises_by_chunk(p))
        for (int32_t i = 0; i < n_queries / share; i++) attention_quantize_heads(step, run, row + i, kv_head);
}

static void prompt_run(const ggfw_step *step, const ggfw_run *run, int32_t row_begin, int32_t row_end, int32_t chunk,
                       void *scratch) {
    const ggfw_attention *p = &step->params.attention;
    prompt_cut cut = prompt_cut_of(p, run, row_end - row_begin);
    int32_t per_chunk = cut.rows, heads = cut.whole, kv_head = 0, row = row_begin, end;
    int32_t blocks_of_all = prompt_blocks(run, row_begin, row_end, per_chunk);
    if (chunk >= heads * blocks_of_all) { /* one of the smaller ones, which come last */
        chunk -= heads * blocks_of_all;
        per_chunk = cut.rest_rows, kv_head = heads, heads = p->n_head_kv - heads;
        blocks_of_all = prompt_blocks(run, row_begin, row_end, per_chunk);
    }
    kv_head += chunk % heads;
    /* Last rows first: they see the most keys, and a long chunk at the end would keep one thread waiting. */
    int32_t block_of_rows = blocks_of_all - 1 - chunk / heads;
    const ggfw_segment *segment;
    for (;;) { /* find the segment of the block */
        segment = &run->batch->segments[run->batch->row_segment[row]];
        end = smaller(row_end, segment->row + segment->n_rows);
        int32_t blocks = chunks_of_rows(row, end, per_chunk);
        if (block_of_rows < blocks) break;
        block_of_rows -= blocks;
        row = end;
    }
    row_range rows = rows_of_chunk(row, end, per_chunk, block_of_rows);
    int32_t n_queries = (rows.end - rows.begin) * (p->n_head / p->n_head_kv);
    prompt_work w;
    prompt_layout(p, scratch, &w);
    prompt_begin(step, run, segment, rows.begin, n_queries, kv_head, &w);
    key_range seen = {w.visible[0].begin, w.visible[n_queries - 1].end}; /* positions ascend */
    for (int32_t block = seen.begin / PROMPT_KEYS * PROMPT_KEYS; block < seen.end; block += PROMPT_KEYS) {
        int32_t block_end = smaller(block + PROMPT_KEYS, seen.end);
        int32_t next = block_end, next_end = smaller(block_end + PROMPT_KEYS, seen.end);
        int32_t tiles = (n_queries + PROMPT_TILE - 1) / PROMPT_TILE;
        int32_t ahead = (PROMPT_KEYS / KV_GROUP + tiles - 1) / tiles * KV_GROUP; /* keys prefetched at each tile */
        prompt_load_block(step, run, segment, kv_head, block, larger(block, seen.begin), block_end, &w);
        for (int32_t i = 0; i < n_queries; i += PROMPT_TILE) {
            for (int32_t end_ahead = smaller(next + ahead, next_end); next < end_ahead; next += KV_GROUP)
                prompt_prefetch(step, run, segment, kv_head, next);
            int32_t last = smaller(i + PROMPT_TILE, n_queries) - 1;
            int32_t tile_begin = larger(w.visible[i].begin, block), tile_end = smaller(w.visible[last].end, block_end);
            if (tile_begin < tile_end) prompt_tile(p, &w, i, block, tile_begin, tile_end);
        }
    }
    prompt_end(step, run, rows.begin, n_queries, kv_head, &w);
}

/* ---- the second region: rows whose chunks make no whole Q8 blocks ------------------------------------------------ */

static int32_t prompt_quantize_chunks(const ggfw_step *step, const ggfw_run *run, int32_t row_begin, int32_t row_end) {
    if (step->out[1].width == 0 || quantises_by_chunk(&step->params.attention)) return 0;
    return row_chunks(step, run, row_begin, row_end);
}

static void prompt_quantize_run(const ggfw_step *step, const ggfw_run *run, int32_t row_begin, int32_t row_end,
                                int32_t chunk, void *scratch) {
    (void)scratch;
    row_range r = rows_of(step, row_begin, row_end, chunk);
    for (int32_t row = r.begin; row < r.end; row++)
        quantize_row(step->out[1].type, attention_out(step, run, row), step->out[1].width,
                     row_of(run, &step->out[1], row));
}

static const ggfw_kernel prompt_quantize = {.name = "attention_prompt_quantize",
                                            .op = GGFW_OP_ATTENTION,
                                            .format = GGFW_FORMAT_NONE,
                                            .row_classes = GGFW_ROWS_PROMPT,
                                            .n_chunks = prompt_quantize_chunks,
                                            .run = prompt_quantize_run};

#define GGFW_ATTENTION_PROMPT_KERNELS                                                                                  \
    {.name = "attention_prompt", .op = GGFW_OP_ATTENTION, .format = GGFW_FORMAT_NONE, .row_classes = GGFW_ROWS_PROMPT, \
     .scratch_size = prompt_scratch, .n_chunks = prompt_chunks, .run = prompt_run, .shared_size = attention_rows,      \
     .then = &prompt_quantize},

static int64_t attention_rows(const ggfw_step *step, const ggfw_run *run) { return attention_rows_bytes(step, run); }

#endif
