/* scan.h: what the recurrent ops share: chunks of (segment, head, columns), and the step of a state that decays and
 * takes up an outer product.
 *
 * A head's state is a matrix of n_rows rows (keys, state dimensions) and n_columns columns (values). Columns never
 * meet, so a chunk takes a block of them through all rows of its segment. Between rows the block stands in scratch, in
 * L1; the first row reads the slot of the last step, the last row writes the slot of this one, and so do the rows that
 * may turn out to be the last (drafts), each its own slot of the sequence's ring. Every row does the same arithmetic
 * wherever a segment begins or ends. */
#ifndef GGFW_SCAN_H
#define GGFW_SCAN_H

#include "rows.h"
#include "vmath.h"

#define SCAN_BLOCK 64       /* columns of a wide block */
#define SCAN_CHUNK 2048     /* floats of state that make a chunk: small heads go together */

typedef struct scan_shape {
    int32_t n_heads;
    int32_t n_rows;    /* of a head's state */
    int32_t n_columns;
} scan_shape;

/* Blocks are wide, or one vector where the columns do not divide by a wide block. */
VF_INLINE int32_t scan_block(const scan_shape *s) { return s->n_columns % SCAN_BLOCK == 0 ? SCAN_BLOCK : VF_LANES; }

VF_INLINE int32_t scan_blocks(const scan_shape *s) {
    int32_t block = scan_block(s);
    return s->n_heads * ((s->n_columns + block - 1) / block);
}

VF_INLINE int32_t scan_per_chunk(const scan_shape *s) {
    int64_t floats = (int64_t)s->n_rows * scan_block(s);
    int32_t most = scan_blocks(s);
    return floats >= SCAN_CHUNK ? 1 : SCAN_CHUNK / floats < most ? (int32_t)(SCAN_CHUNK / floats) : most;
}

VF_INLINE int32_t scan_chunks_of_segment(const scan_shape *s) {
    int32_t per_chunk = scan_per_chunk(s);
    return (scan_blocks(s) + per_chunk - 1) / per_chunk;
}

VF_INLINE int32_t scan_chunks(const scan_shape *s, const ggfw_run *run, int32_t row_begin, int32_t row_end) {
    const int32_t *segment = run->batch->row_segment;
    return row_begin < row_end ? (segment[row_end - 1] - segment[row_begin] + 1) * scan_chunks_of_segment(s) : 0;
}

/* Where the state of a segment's sequence stands; read is NULL at the sequence's start. */
typedef struct scan_state {
    const float *read;
    float *ring; /* the sequence's slots */
    int64_t slot_floats;
    int32_t n_ring;
    int32_t last;   /* slot of the ring for the state after the last row */
    int32_t n_rows; /* of the segment */
    int32_t n_kept; /* that many of its last rows leave their state behind */
} scan_state;

VF_INLINE scan_state state_of_segment(const ggfw_run *run, int32_t state, const ggfw_segment *segment) {
    const ggfw_state *s = &run->states[state];
    int32_t n_ring = s->n_ring > 0 ? s->n_ring : 1, read = segment->state_read, write = segment->state_write;
    int32_t first = write / n_ring * n_ring, kept = 1;
    if (segment->row_class == GGFW_ROWS_DECODE && read >= first && read < first + n_ring && read != write) {
        kept = (write - read + n_ring) % n_ring;
        if (kept > segment->n_rows) kept = segment->n_rows;
    }
    return (scan_state){read < 0 ? NULL : s->data + read * s->slot_floats,
                        s->data + first * s->slot_floats,
                        s->slot_floats,
                        n_ring,
                        write - first,
                        segment->n_rows,
                        kept};
}

/* Where the state after row r of the segment belongs; NULL = nowhere, it is only a step on the way. */
VF_INLINE float *state_after(const scan_state *s, int32_t r) {
    int32_t back = s->n_rows - 1 - r;
    if (back >= s->n_kept) return NULL;
    return s->ring + (s->last - back + (s->last < back ? s->n_ring : 0)) * s->slot_floats;
}

/* A block of columns of one head's state, before and after one row. */
typedef struct scan_step {
    const float *from;
    float *to;
    int32_t from_stride;
    int32_t to_stride;
} scan_step;

/* The block's place (`place` floats from the state's begin) for row r: in slots where they are, else in scratch. */
VF_INLINE scan_step scan_place(const scan_state *s, int64_t place, float *scratch, int32_t stride, int32_t block,
                               int32_t r) {
    const float *from = r == 0 ? s->read : state_after(s, r - 1);
    float *to = state_after(s, r);
    return (scan_step){from ? from + place : scratch, to ? to + place : scratch, from ? stride : block,
                       to ? stride : block};
}

/* Four accumulators in any case: vectors of a wide block, or every fourth row of a narrow one. */
#define SCAN_SUMS 4

VF_INLINE vf scan_load(const float *p, int whole, int left) { return whole ? vf_load(p) : vf_load_n(p, left); }
VF_INLINE void scan_store(float *p, vf v, int whole, int left) {
    if (whole) vf_store(p, v);
    else vf_store_n(p, v, left);
}

/* Sums of a narrow block's rows become one. */
VF_INLINE void scan_join(vf *sum, int vectors) {
    if (vectors == 1) sum[0] = vf_add(vf_add(sum[0], sum[1]), vf_add(sum[2], sum[3]));
}

/* out[j] = sum over rows i of S[i, j] * key[i], for `vectors` (4 or 1) vectors of columns; the last one has `left`. */
VF_INLINE void scan_read(const scan_step *s, int32_t n_rows, const float *key, int vectors, int left, vf *out) {
    vf sum[SCAN_SUMS] = {vf_zero(), vf_zero(), vf_zero(), vf_zero()};
    int whole = left >= VF_LANES;
    int32_t i = 0;
    if (vectors == 1)
        for (; i + 4 <= n_rows; i += 4)
            VF_UNROLL
            for (int r = 0; r < 4; r++)
                sum[r] = vf_fma(scan_load(s->from + (int64_t)(i + r) * s->from_stride, whole, left),
                                vf_set(key[i + r]), sum[r]);
    for (; i < n_rows; i++)
        VF_UNROLL
        for (int j = 0; j < vectors; j++)
            sum[j] = vf_fma(scan_load(s->from + (int64_t)i * s->from_stride + 16 * j, whole, left), vf_set(key[i]),
                            sum[j]);
    scan_join(sum, vectors);
    for (int j = 0; j < vectors; j++) out[j] = sum[j];
}

/* S[i, j] = decay * S[i, j] + key[i] * value[j]; out[j] = sum over rows i of the new S[i, j] * query[i]. */
VF_INLINE void scan_update(const scan_step *s, int32_t n_rows, float decay, const float *key, const vf *value,
                           const float *query, int vectors, int left, vf *out) {
    vf sum[SCAN_SUMS] = {vf_zero(), vf_zero(), vf_zero(), vf_zero()}, d = vf_set(decay);
    int whole = left >= VF_LANES;
    int32_t i = 0;
    if (vectors == 1)
        for (; i + 4 <= n_rows; i += 4)
            VF_UNROLL
            for (int r = 0; r < 4; r++) {
                vf old = scan_load(s->from + (int64_t)(i + r) * s->from_stride, whole, left);
                vf next = vf_fma(vf_set(key[i + r]), value[0], vf_mul(d, old));
                scan_store(s->to + (int64_t)(i + r) * s->to_stride, next, whole, left);
                sum[r] = vf_fma(next, vf_set(query[i + r]), sum[r]);
            }
    for (; i < n_rows; i++)
        VF_UNROLL
        for (int j = 0; j < vectors; j++) {
            vf old = scan_load(s->from + (int64_t)i * s->from_stride + 16 * j, whole, left);
            vf next = vf_fma(vf_set(key[i]), value[j], vf_mul(d, old));
            scan_store(s->to + (int64_t)i * s->to_stride + 16 * j, next, whole, left);
            sum[j] = vf_fma(next, vf_set(query[i]), sum[j]);
        }
    scan_join(sum, vectors);
    for (int j = 0; j < vectors; j++) out[j] = sum[j];
}

/* e^x of one value. */
VF_INLINE float scan_exp(float x) {
    float e[VF_LANES];
    vf_store(e, vf_exp(vf_set(x)));
    return e[0];
}

/* One block of columns of one head through all rows of a segment; `left`: columns of the last vector. */
typedef void (*scan_block_fn)(const ggfw_step *step, const ggfw_run *run, const ggfw_segment *segment, int32_t head,
                              int32_t column, int left, float *scratch);

VF_INLINE void scan_run(const scan_shape *shape, const ggfw_step *step, const ggfw_run *run, int32_t row_begin,
                        int32_t chunk, float *scratch, scan_block_fn wide, scan_block_fn narrow) {
    int32_t per_segment = scan_chunks_of_segment(shape), per_chunk = scan_per_chunk(shape);
    const ggfw_segment *segment = &run->batch->segments[run->batch->row_segment[row_begin] + chunk / per_segment];
    int32_t block = scan_block(shape), blocks_of_head = (shape->n_columns + block - 1) / block;
    int32_t begin = chunk % per_segment * per_chunk, end = begin + per_chunk, most = scan_blocks(shape);
    for (int32_t i = begin; i < end && i < most; i++) {
        int32_t head = i / blocks_of_head, column = i % blocks_of_head * block, left = shape->n_columns - column;
        if (block == SCAN_BLOCK) wide(step, run, segment, head, column, VF_LANES, scratch);
        else narrow(step, run, segment, head, column, left < VF_LANES ? left : VF_LANES, scratch);
    }
}

/* Bytes of scratch for one block. */
VF_INLINE int64_t scan_scratch(const scan_shape *s) {
    return (int64_t)s->n_rows * scan_block(s) * (int64_t)sizeof(float);
}

#endif
