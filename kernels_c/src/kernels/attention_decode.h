/* attention_decode.h: attention of few rows per sequence. A chunk is (rows of a segment, kv head, parts of the context):
 * K and V are read once for all heads of the group. Contexts of several parts are put together by a second region.
 *
 * Memory is the limit, so it has to be busy all the time: while a block's keys are multiplied its values are prefetched,
 * and while its values are, the keys of the next block. */
#ifndef GGFW_ATTENTION_DECODE_H
#define GGFW_ATTENTION_DECODE_H

#include "attention.h"

#define DECODE_BLOCK 256 /* keys whose scores are held at once; parts are multiples of it */
#define DECODE_MAX_PARTS 16
#define DECODE_CHUNKS 12 /* per thread, about, before a chunk takes several parts */
#define DECODE_HEAD_BYTES 256 /* of a page's keys: once they are asked for, the processor reads on by itself */
#define DECODE_HEADS 4 /* queries that share a load of K and V */

/* Accumulators that fit the registers. */
#if defined(GGFW_UNIT_AVX512)
#define DECODE_ACCUMULATORS 16
#elif defined(GGFW_UNIT_AVX2) || defined(GGFW_UNIT_NEON)
#define DECODE_ACCUMULATORS 4
#else
#define DECODE_ACCUMULATORS 2
#endif

/* Length of the parts for a query at a position: 256, and doubling from 4096 on, so that there are at most 16. */
VF_INLINE int32_t decode_part_length(int32_t position) {
    int32_t length = DECODE_BLOCK;
    while (position / length >= DECODE_MAX_PARTS) length *= 2;
    return length;
}

/* Consecutive rows of a segment whose parts have the same length. */
typedef struct decode_group {
    const ggfw_segment *segment;
    int32_t row_begin;
    int32_t row_end;
    int32_t part_length;
    int32_t part_begin; /* first part that any row sees */
    int32_t part_end;
} decode_group;

/* The group that starts at a row. */
static decode_group decode_group_at(const ggfw_step *step, const ggfw_run *run, int32_t row, int32_t row_end) {
    const ggfw_attention *p = &step->params.attention;
    const ggfw_batch *b = run->batch;
    const ggfw_segment *s = &b->segments[b->row_segment[row]];
    decode_group g = {.segment = s, .row_begin = row, .row_end = row + 1};
    int32_t last_position = s->position + s->n_rows - 1; /* bidirectional rows see all of the segment */
    g.part_length = decode_part_length(p->bidirectional ? last_position : b->positions[row]);
    int32_t end = smaller(row_end, s->row + s->n_rows);
    while (g.row_end < end &&
           (p->bidirectional || decode_part_length(b->positions[g.row_end]) == g.part_length))
        g.row_end++;
    g.part_begin = visible_keys(p, s, b->positions[row]).begin / g.part_length;
    g.part_end = (visible_keys(p, s, b->positions[g.row_end - 1]).end - 1) / g.part_length + 1;
    return g;
}

/* Parts of one group that a chunk takes: several where there are many, for keys are prefetched within a chunk only. What
 * a row gets does not depend on it. */
static int32_t decode_parts_per_chunk(const ggfw_step *step, const ggfw_run *run, int32_t row_begin, int32_t row_end) {
    int32_t parts = 0;
    for (int32_t row = row_begin; row < row_end;) {
        decode_group g = decode_group_at(step, run, row, row_end);
        parts += g.part_end - g.part_begin;
        row = g.row_end;
    }
    int32_t share = parts * step->params.attention.n_head_kv / (DECODE_CHUNKS * run->n_threads);
    return larger(1, smaller(share, DECODE_MAX_PARTS));
}

VF_INLINE int32_t decode_chunks_of(const decode_group *g, int32_t per_chunk) {
    return chunks_of_rows(g->part_begin, g->part_end, per_chunk);
}

static int32_t decode_chunks(const ggfw_step *step, const ggfw_run *run, int32_t row_begin, int32_t row_end) {
    int32_t chunks = 0, per_chunk = decode_parts_per_chunk(step, run, row_begin, row_end);
    for (int32_t row = row_begin; row < row_end;) {
        decode_group g = decode_group_at(step, run, row, row_end);
        chunks += decode_chunks_of(&g, per_chunk);
        row = g.row_end;
    }
    return chunks * step->params.attention.n_head_kv;
}

/* ---- partial results in run->shared: [row][head][part] of {maximum, sum, pad, accumulators} ---------------------- */

#define PARTIAL_HEADER 16

VF_INLINE int64_t partial_floats(const ggfw_attention *p) { return PARTIAL_HEADER + pad16(p->d_v); }

VF_INLINE float *partial_at(const ggfw_step *step, const ggfw_run *run, int32_t row, int32_t head, int32_t part) {
    const ggfw_attention *p = &step->params.attention;
    float *base = (float *)(run->shared + attention_rows_bytes(step, run));
    return base + (((int64_t)row * p->n_head + head) * DECODE_MAX_PARTS + part) * partial_floats(p);
}

static int64_t decode_shared(const ggfw_step *step, const ggfw_run *run) {
    const ggfw_attention *p = &step->params.attention;
    return attention_rows_bytes(step, run) +
           (int64_t)run->max_rows * p->n_head * DECODE_MAX_PARTS * partial_floats(p) * (int64_t)sizeof(float);
}

/* ---- one block of keys ------------------------------------------------------------------------------------------- */

/* Queries that go through the cache together. */
typedef struct decode_tile {
    const float *q[DECODE_HEADS]; /* [pad16(d_k)] */
    float *accumulators[DECODE_HEADS]; /* [pad16(d_v)] */
    float *scores[DECODE_HEADS];       /* [DECODE_BLOCK] */
    key_range visible[DECODE_HEADS];
    int32_t position[DECODE_HEADS];
    float slope[DECODE_HEADS];
    float top[DECODE_HEADS];
    vf sum[DECODE_HEADS];
    float *scales; /* of a group of keys or values, [kv_blocks][KV_GROUP] */
    int32_t fetched; /* keys before it were prefetched */
    int32_t next_end; /* keys before it are read by this chunk, and prefetched a block ahead */
} decode_tile;

/* Dot products of 16 keys (rows of d elements) with `heads` queries. Constant type and heads. */
VF_INLINE void decode_dots(const uint8_t *keys, int32_t type, int32_t d, const decode_tile *t, const int heads,
                           float (*dots)[16]) {
    const int lanes = heads == 3 ? 4 : heads, keys_per_sum = 16 / lanes;
    const int step = DECODE_ACCUMULATORS / lanes > 0 ? DECODE_ACCUMULATORS / lanes : 1; /* keys in registers */
    const int64_t row = kv_row_bytes(type, d);
    for (int key = 0; key < 16; key += keys_per_sum) {
        vf sums[16];
        if (heads == 3)
            for (int k = 0; k < 4; k++) sums[12 + k] = vf_zero();
        for (int k = 0; k < keys_per_sum; k += step) {
            vf a[16];
            VF_UNROLL
            for (int i = 0; i < step * heads; i++) a[i] = vf_zero();
            const uint8_t *at = keys + (key + k) * row;
            const float *scales = t->scales + key + k;
            for (int32_t c = 0; c + 16 <= d; c += 16) {
                VF_UNROLL
                for (int j = 0; j < step; j++) {
                    vf x = kv_load(at + j * row, c, type, scales + j);
                    VF_UNROLL
                    for (int h = 0; h < heads; h++) a[h * step + j] = vf_fma(x, vf_load(t->q[h] + c), a[h * step + j]);
                }
            }
            if (d % 16 != 0) {
                int32_t c = d / 16 * 16;
                for (int j = 0; j < step; j++) {
                    vf x = kv_load_rest(at + j * row, c, d, type, scales + j);
                    for (int h = 0; h < heads; h++) a[h * step + j] = vf_fma(x, vf_load(t->q[h] + c), a[h * step + j]);
                }
            }
            VF_UNROLL
            for (int h = 0; h < heads; h++)
                VF_UNROLL
                for (int j = 0; j < step; j++) sums[h * keys_per_sum + k + j] = a[h * step + j];
        }
        float all[16];
        vf_store(all, vf_sum16(sums));
        for (int h = 0; h < heads; h++)
            memcpy(&dots[h][key], all + h * keys_per_sum, (size_t)keys_per_sum * sizeof(float));
    }
}

/* accumulators += p V for n_keys keys of one page (quantised: of one group), `row` bytes apart; scores[h][first] is the
 * weight of the first, and scales[0] its first scale. */
VF_INLINE void decode_values(const uint8_t *values, int64_t row, int32_t type, int32_t d, int32_t n_keys,
                             decode_tile *t, int32_t first, const float *scales, const int heads) {
    const int columns = heads * 4 <= DECODE_ACCUMULATORS ? 4 : 1; /* vectors of V in registers */
    int32_t c = 0;
    for (; columns > 1 && c + 16 * columns <= d; c += 16 * columns) {
        vf a[16];
        VF_UNROLL
        for (int h = 0; h < heads; h++)
            VF_UNROLL
            for (int j = 0; j < columns; j++) a[h * columns + j] = vf_load(t->accumulators[h] + c + 16 * j);
        const uint8_t *at = values;
        for (int32_t key = 0; key < n_keys; key++, at += row) {
            vf x[4];
            VF_UNROLL
            for (int j = 0; j < columns; j++) x[j] = kv_load(at, c + 16 * j, type, scales + key);
            VF_UNROLL
            for (int h = 0; h < heads; h++) {
                vf w = vf_set(t->scores[h][first + key]);
                VF_UNROLL
                for (int j = 0; j < columns; j++) a[h * columns + j] = vf_fma(w, x[j], a[h * columns + j]);
            }
        }
        VF_UNROLL
        for (int h = 0; h < heads; h++)
            VF_UNROLL
            for (int j = 0; j < columns; j++) vf_store(t->accumulators[h] + c + 16 * j, a[h * columns + j]);
    }
    for (; c < d; c += 16) {
        vf a[DECODE_HEADS];
        VF_UNROLL
        for (int h = 0; h < heads; h++) a[h] = vf_load(t->accumulators[h] + c);
        const uint8_t *at = values;
        for (int32_t key = 0; key < n_keys; key++, at += row) {
            vf x = c + 16 <= d ? kv_load(at, c, type, scales + key) : kv_load_rest(at, c, d, type, scales + key);
            VF_UNROLL
            for (int h = 0; h < heads; h++) a[h] = vf_fma(vf_set(t->scores[h][first + key]), x, a[h]);
        }
        VF_UNROLL
        for (int h = 0; h < heads; h++) vf_store(t->accumulators[h] + c, a[h]);
    }
}

/* Keys [block, block + DECODE_BLOCK) of the part; block is a multiple of it. Constant type and heads. */
VF_INLINE void decode_block(const ggfw_step *step, const ggfw_run *run, const ggfw_segment *segment, int32_t kv_head,
                            int32_t block, key_range part, decode_tile *t, const int32_t type, const int heads) {
    const ggfw_attention *p = &step->params.attention;
    const ggfw_pool *pool = &run->pools[p->pool];
    int32_t begin = larger(part.begin, block), end = smaller(part.end, block + DECODE_BLOCK);
    int32_t first = begin / 16 * 16; /* groups of 16 keys lie within a page */
    vf top[DECODE_HEADS];
    for (int h = 0; h < heads; h++) top[h] = vf_set(t->top[h]);
    for (int32_t key = first; key < end; key += 16) {
        int32_t page = page_of(run, segment, p->pool, key);
        float dots[DECODE_HEADS][16];
        if (key >= t->fetched && key % pool->page_size == 0 && key + pool->page_size < end)
            prefetch_rows(k_at(pool, p->layer, page_of(run, segment, p->pool, key + pool->page_size), kv_head, 0),
                          DECODE_HEAD_BYTES, 1);
        if (pool->v != NULL)
            prefetch_rows(v_at(pool, p->layer, page, kv_head, key % pool->page_size),
                          kv_group_bytes(type, pool->d_v), 2);
        const uint8_t *keys = k_at(pool, p->layer, page, kv_head, key % pool->page_size);
        kv_load_scales(keys, type, pool->d_k, 0, kv_blocks(pool->d_k), t->scales);
        decode_dots(keys, type, pool->d_k, t, heads, dots);
        for (int h = 0; h < heads; h++) {
            vf s = finish_scores(p, vf_load(dots[h]), key, t->visible[h], t->position[h], t->slope[h]);
            vf_store(t->scores[h] + (key - block), s);
            top[h] = vf_max(top[h], s);
        }
    }
    for (int h = 0; h < heads; h++) {
        float new_top = vf_largest(top[h]);
        float old[16];
        vf shrink = vf_exp(vf_set(t->top[h] - new_top)), m = vf_set(new_top);
        vf_store(old, shrink);
        if (old[0] != 1.0f) {
            t->sum[h] = vf_mul(t->sum[h], shrink);
            for (int32_t c = 0; c < pad16(p->d_v); c += 16)
                vf_store(t->accumulators[h] + c, vf_mul(vf_load(t->accumulators[h] + c), shrink));
        }
        t->top[h] = new_top;
        for (int32_t key = first; key < end; key += 16) {
            vf e = vf_exp(vf_sub(vf_load(t->scores[h] + (key - block)), m));
            vf_store(t->scores[h] + (key - block), e);
            t->sum[h] = vf_add(t->sum[h], e);
        }
    }
    for (int32_t key = begin; key < end;) {
        int32_t slot = key % pool->page_size, page = page_of(run, segment, p->pool, key);
        int32_t n = smaller(kv_quantised(type) ? KV_GROUP - slot % KV_GROUP : pool->page_size - slot, end - key);
        if (key + DECODE_BLOCK < t->next_end) {
            int32_t next = (key + DECODE_BLOCK) / KV_GROUP * KV_GROUP, groups = (n + KV_GROUP - 1) / KV_GROUP;
            for (int32_t g = 0; g < groups && next < t->next_end; g++, next += KV_GROUP)
                prefetch_rows(k_at(pool, p->layer, page_of(run, segment, p->pool, next), kv_head,
                                   next % pool->page_size),
                              kv_group_bytes(type, pool->d_k), 2);
            t->fetched = next;
        }
        const uint8_t *values = v_at(pool, p->layer, page, kv_head, slot);
        kv_load_scales(values, type, v_columns(pool), slot, kv_blocks(pool->d_v), t->scales);
        decode_values(values, kv_row_bytes(type, v_columns(pool)), type, pool->d_v, n, t, key - block,
                      t->scales + slot % KV_GROUP, heads);
        key += n;
    }
}

VF_INLINE void decode_part_as(const ggfw_step *step, const ggfw_run *run, const ggfw_segment *segment, int32_t kv_head,
                              key_range part, decode_tile *t, const int32_t type, const int heads) {
    for (int32_t block = part.begin / DECODE_BLOCK * DECODE_BLOCK; block < part.end; block += DECODE_BLOCK)
        decode_block(step, run, segment, kv_head, block, part, t, type, heads);
}

/* One copy of the loops per element type and number of queries. */
#define DECODE_PART(type)                                                                                              \
    static void decode_part_##type(const ggfw_step *step, const ggfw_run *run, const ggfw_segment *segment,            \
                                   int32_t kv_head, key_range part, decode_tile *t, int heads) {                       \
        switch (heads) {                                                                                               \
        case 1: decode_part_as(step, run, segment, kv_head, part, t, type, 1); break;                                  \
        case 2: decode_part_as(step, run, segment, kv_head, part, t, type, 2); break;                                  \
        case 3: decode_part_as(step, run, segment, kv_head, part, t, type, 3); break;                                  \
        default: decode_part_as(step, run, segment, kv_head, part, t, type, 4); break;                                 \
        }                                                                                                              \
    }
DECODE_PART(GGFW_KV_F32)
DECODE_PART(GGFW_KV_F16)
DECODE_PART(GGFW_KV_BF16)
DECODE_PART(GGFW_KV_Q8_0)
DECODE_PART(GGFW_KV_Q4_0)

static void decode_part(const ggfw_step *step, const ggfw_run *run, const ggfw_segment *segment, int32_t kv_head,
                        key_range part, decode_tile *t, int heads) {
    switch (run->pools[step->params.attention.pool].type) {
    case GGFW_KV_F32: decode_part_GGFW_KV_F32(step, run, segment, kv_head, part, t, heads); break;
    case GGFW_KV_F16: decode_part_GGFW_KV_F16(step, run, segment, kv_head, part, t, heads); break;
    case GGFW_KV_Q8_0: decode_part_GGFW_KV_Q8_0(step, run, segment, kv_head, part, t, heads); break;
    case GGFW_KV_Q4_0: decode_part_GGFW_KV_Q4_0(step, run, segment, kv_head, part, t, heads); break;
    default: decode_part_GGFW_KV_BF16(step, run, segment, kv_head, part, t, heads); break;
    }
}

/* ---- chunks ------------------------------------------------------------------------------------------------------ */

static int64_t decode_scratch(const ggfw_step *step, const ggfw_run *run) {
    (void)run;
    const ggfw_attention *p = &step->params.attention;
    int64_t scales = (int64_t)kv_blocks(larger(p->d_k, p->d_v)) * KV_GROUP;
    return (DECODE_HEADS * ((int64_t)pad16(p->d_k) + pad16(p->d_v) + DECODE_BLOCK) + scales) * (int64_t)sizeof(float);
}

/* Queries [index, index + heads) of the group: index counts rows of the group times heads of the kv head. */
static void decode_queries(const ggfw_step *step, const ggfw_run *run, const decode_group *g, int32_t kv_head,
                           row_range parts, int32_t part, int32_t index, int heads, float *scratch) {
    const ggfw_attention *p = &step->params.attention;
    int32_t share = p->n_head / p->n_head_kv, single = g->part_end - g->part_begin == 1;
    decode_tile t;
    key_range seen = {INT32_MAX, 0}; /* by any of the queries */
    for (int i = 0; i < heads; i++) {
        int32_t row = g->row_begin + (index + i) / share, head = kv_head * share + (index + i) % share;
        float *q = scratch;
        t.accumulators[i] = q + pad16(p->d_k);
        t.scores[i] = t.accumulators[i] + pad16(p->d_v);
        scratch = t.scores[i] + DECODE_BLOCK;
        t.q[i] = q;
        memset(q, 0, (size_t)(pad16(p->d_k) + pad16(p->d_v)) * sizeof *q);
        memcpy(q, floats_of(run, &step->in[0], row) + head * p->d_k, (size_t)p->d_k * sizeof *q);
        t.position[i] = run->batch->positions[row];
        t.visible[i] = visible_keys(p, g->segment, t.position[i]);
        seen.begin = smaller(seen.begin, t.visible[i].begin);
        seen.end = larger(seen.end, t.visible[i].end);
        t.slope[i] = p->alibi ? p->alibi[head] : 0.0f;
        t.top[i] = ATTENTION_LOWEST;
        t.sum[i] = vf_zero();
    }
    t.scales = scratch;
    key_range range = {larger(seen.begin, part * g->part_length), smaller(seen.end, (part + 1) * g->part_length)};
    t.fetched = part == parts.begin ? 0 : range.end; /* of the first one nothing, else by the part before */
    t.next_end = smaller(seen.end, parts.end * g->part_length);
    if (range.begin < range.end) decode_part(step, run, g->segment, kv_head, range, &t, heads);
    for (int i = 0; i < heads; i++) {
        int32_t row = g->row_begin + (index + i) / share, head = kv_head * share + (index + i) % share;
        if (single) {
            float factor = finish_factor(t.top[i], vf_sum(t.sum[i]), p->sinks ? p->sinks + head : NULL);
            float *out = attention_out(step, run, row) + head * p->d_v;
            for (int32_t c = 0; c < p->d_v; c += 16)
                vf_store_n(out + c, vf_mul(vf_load(t.accumulators[i] + c), vf_set(factor)), p->d_v - c);
        } else {
            float *partial = partial_at(step, run, row, head, part - g->part_begin);
            partial[0] = t.top[i];
            partial[1] = vf_sum(t.sum[i]);
            memcpy(partial + PARTIAL_HEADER, t.accumulators[i], (size_t)pad16(p->d_v) * sizeof(float));
        }
    }
}

static void decode_run(const ggfw_step *step, const ggfw_run *run, int32_t row_begin, int32_t row_end, int32_t chunk,
                       void *scratch) {
    const ggfw_attention *p = &step->params.attention;
    int32_t kv_head = chunk % p->n_head_kv, index = chunk / p->n_head_kv;
    int32_t per_chunk = decode_parts_per_chunk(step, run, row_begin, row_end);
    decode_group g = decode_group_at(step, run, row_begin, row_end);
    while (index >= decode_chunks_of(&g, per_chunk)) {
        index -= decode_chunks_of(&g, per_chunk);
        g = decode_group_at(step, run, g.row_end, row_end);
    }
    int32_t queries = (g.row_end - g.row_begin) * (p->n_head / p->n_head_kv);
    row_range parts = rows_of_chunk(g.part_begin, g.part_end, per_chunk, index);
    for (int32_t part = parts.begin; part < parts.end; part++)
        for (int32_t i = 0; i < queries; i += DECODE_HEADS)
            decode_queries(step, run, &g, kv_head, parts, part, i, smaller(queries - i, DECODE_HEADS), scratch);
    if (g.part_end - g.part_begin == 1 && step->out[1].width > 0 && quantises_by_chunk(p))
        for (int32_t row = g.row_begin; row < g.row_end; row++) attention_quantize_heads(step, run, row, kv_head);
}

/* ---- the second region: several parts become one, rows are quantised --------------------------------------------- */

static int32_t decode_join_chunks(const ggfw_step *step, const ggfw_run *run, int32_t row_begin, int32_t row_end) {
    int needed = step->out[1].width > 0 && !quantises_by_chunk(&step->params.attention);
    for (int32_t row = row_begin; row < row_end && !needed;) {
        decode_group g = decode_group_at(step, run, row, row_end);
        needed = g.part_end - g.part_begin > 1;
        row = g.row_end;
    }
    return needed ? row_chunks(step, run, row_begin, row_end) : 0;
}

/* A row's parts in their order; parts that it does not see have sum 0 and change nothing. */
static void decode_join_row(const ggfw_step *step, const ggfw_run *run, const decode_group *g, int32_t row) {
    const ggfw_attention *p = &step->params.attention;
    int32_t n_parts = g->part_end - g->part_begin;
    for (int32_t head = 0; head < p->n_head; head++) {
        float top = ATTENTION_LOWEST, sum = 0.0f, weight[DECODE_MAX_PARTS + 16];
        for (int32_t i = 0; i < n_parts; i++) {
            weight[i] = partial_at(step, run, row, head, i)[0];
            top = weight[i] > top ? weight[i] : top;
        }
        for (int32_t i = 0; i < n_parts; i += 16)
            vf_store(weight + i, vf_exp(vf_sub(vf_load_n(weight + i, n_parts - i), vf_set(top))));
        for (int32_t i = 0; i < n_parts; i++) sum += weight[i] * partial_at(step, run, row, head, i)[1];
        vf factor = vf_set(finish_factor(top, sum, p->sinks ? p->sinks + head : NULL));
        float *out = attention_out(step, run, row) + head * p->d_v;
        for (int32_t c = 0; c < p->d_v; c += 16) {
            vf a = vf_zero();
            for (int32_t i = 0; i < n_parts; i++)
                a = vf_fma(vf_set(weight[i]), vf_load(partial_at(step, run, row, head, i) + PARTIAL_HEADER + c), a);
            vf_store_n(out + c, vf_mul(a, factor), p->d_v - c);
        }
    }
}

static void decode_join_run(const ggfw_step *step, const ggfw_run *run, int32_t row_begin, int32_t row_end,
                            int32_t chunk, void *scratch) {
    (void)scratch;
    const ggfw_attention *p = &step->params.attention;
    row_range r = rows_of(step, row_begin, row_end, chunk);
    for (int32_t row = row_begin; row < r.end;) { /* groups start where the first region had them start */
        decode_group g = decode_group_at(step, run, row, row_end);
        int joins = g.part_end - g.part_begin > 1;
        for (int32_t i = larger(g.row_begin, r.begin); i < smaller(g.row_end, r.end); i++) {
            if (joins) decode_join_row(step, run, &g, i);
            if (step->out[1].width > 0 && (joins || !quantises_by_chunk(p)))
                quantize_row(step->out[1].type, attention_out(step, run, i), p->n_head * p->d_v,
                             row_of(run, &step->out[1], i));
        }
        row = g.row_end;
    }
}

static const ggfw_kernel decode_join = {.name = "attention_decode_join",
                                        .op = GGFW_OP_ATTENTION,
                                        .format = GGFW_FORMAT_NONE,
                                        .row_classes = GGFW_ROWS_DECODE,
                                        .n_chunks = decode_join_chunks,
                                        .run = decode_join_run};

#define GGFW_ATTENTION_DECODE_KERNELS                                                                                  \
    {.name = "attention_decode", .op = GGFW_OP_ATTENTION, .format = GGFW_FORMAT_NONE, .row_classes = GGFW_ROWS_DECODE, \
     .scratch_size = decode_scratch, .n_chunks = decode_chunks, .run = decode_run, .shared_size = decode_shared,       \
     .then = &decode_join},

#endif
