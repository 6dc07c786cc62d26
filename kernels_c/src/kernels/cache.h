/* cache.h: positions in the paged K/V cache, and its element types (see ggfw_pool in ggfw_kernels.h). */
#ifndef GGFW_CACHE_H
#define GGFW_CACHE_H

#include "rows.h"

#include <math.h>

#define KV_GROUP 16 /* positions that share a group; pages and blocks of keys are whole groups */
#define KV_BLOCK 32 /* columns that share a scale */

VF_INLINE int kv_quantised(int32_t type) { return type >= GGFW_KV_Q8_0; }
VF_INLINE int32_t kv_blocks(int32_t d) { return (d + KV_BLOCK - 1) / KV_BLOCK; }

/* Bytes from the numbers of one position to those of the next in its group. */
VF_INLINE int64_t kv_row_bytes(int32_t type, int32_t d) {
    if (type == GGFW_KV_F32) return (int64_t)d * 4;
    if (type == GGFW_KV_Q8_0) return (int64_t)kv_blocks(d) * KV_BLOCK;
    if (type == GGFW_KV_Q4_0) return (int64_t)kv_blocks(d) * (KV_BLOCK / 2);
    return (int64_t)d * 2;
}

VF_INLINE int64_t kv_group_bytes(int32_t type, int32_t d) {
    return KV_GROUP * (kv_row_bytes(type, d) + (kv_quantised(type) ? kv_blocks(d) * 2 : 0));
}

/* Page that holds a position of a segment's sequence. */
VF_INLINE int32_t page_of(const ggfw_run *run, const ggfw_segment *segment, int32_t pool, int32_t position) {
    return run->batch->pages[segment->table[pool] + position / run->pools[pool].page_size];
}

/* Where rows of d elements of (kv head, slot) lie in a page; those of a group follow each other. */
VF_INLINE int64_t kv_in_page(const ggfw_pool *pool, int32_t d, int32_t head, int32_t slot) {
    return (int64_t)(head * (pool->page_size / KV_GROUP) + slot / KV_GROUP) * kv_group_bytes(pool->type, d) +
           slot % KV_GROUP * kv_row_bytes(pool->type, d);
}

/* K or V of (layer, page, kv head) at a slot of the page. */
VF_INLINE uint8_t *k_at(const ggfw_pool *pool, int32_t layer, int32_t page, int32_t head, int32_t slot) {
    return pool->k + ((int64_t)layer * pool->n_pages + page) * pool->k_page_bytes +
           kv_in_page(pool, pool->d_k, head, slot);
}
VF_INLINE uint8_t *v_at(const ggfw_pool *pool, int32_t layer, int32_t page, int32_t head, int32_t slot) {
    if (pool->v == NULL) return k_at(pool, layer, page, head, slot);
    return pool->v + ((int64_t)layer * pool->n_pages + page) * pool->v_page_bytes +
           kv_in_page(pool, pool->d_v, head, slot);
}

/* Columns of the rows in which V lies. */
VF_INLINE int32_t v_columns(const ggfw_pool *pool) { return pool->v == NULL ? pool->d_k : pool->d_v; }

/* The f16 scales of a group, [blocks][KV_GROUP]; row is that of a slot of the group, of d columns. */
VF_INLINE uint16_t *kv_scales_of(const uint8_t *row, int32_t type, int32_t d, int32_t slot) {
    return (uint16_t *)(row + (KV_GROUP - slot % KV_GROUP) * kv_row_bytes(type, d));
}

/* Scales of the first `blocks` blocks as floats [blocks][KV_GROUP]; nothing for types without. */
VF_INLINE void kv_load_scales(const uint8_t *row, int32_t type, int32_t d, int32_t slot, int32_t blocks, float *to) {
    if (!kv_quantised(type)) return;
    const uint16_t *from = kv_scales_of(row, type, d, slot);
    for (int32_t i = 0; i < blocks * KV_GROUP; i += 16) vf_store(to + i, vf_load_f16(from + i));
}

/* Columns [c, c + 16) of a row, c a multiple of 16, as floats. scales: the position's in kv_load_scales' array. Call
 * with a constant type. */
VF_INLINE vf kv_load(const uint8_t *row, int32_t c, int32_t type, const float *scales) {
    if (type == GGFW_KV_F32) return vf_load((const float *)row + c);
    if (type == GGFW_KV_F16) return vf_load_f16((const uint16_t *)row + c);
    if (type == GGFW_KV_BF16) return vf_load_bf16((const uint16_t *)row + c);
    vf scale = vf_set(scales[c / KV_BLOCK * KV_GROUP]);
    if (type == GGFW_KV_Q8_0) return vf_mul(vf_load_i8(row + c), scale);
    return vf_mul(vf_load_nibbles(row + c / KV_BLOCK * (KV_BLOCK / 2), c % KV_BLOCK != 0), scale);
}

/* Columns [c, d), fewer than 16, zeros after them (quantised: what the last block holds); never reads beyond a row. */
VF_INLINE vf kv_load_rest(const uint8_t *row, int32_t c, int32_t d, int32_t type, const float *scales) {
    if (kv_quantised(type)) return kv_load(row, c, type, scales);
    uint8_t padded[64] = {0};
    int64_t element = type == GGFW_KV_F32 ? 4 : 2;
    memcpy(padded, row + c * element, (size_t)((d - c) * element));
    return kv_load(padded, 0, type, scales);
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */

/* Quantise 32 columns to numbers in [least, most] and return the scale: x = scale * number. Numbers are made with the
 * scale as it is kept. A block with an infinity or a NaN gets the scale NaN, so that it is seen downstream. */
VF_INLINE uint16_t kv_quantize_block(const float *x, float largest, float divisor, float least, float most,
                                     int8_t *numbers) {
    uint16_t half[16];
    float scale[16];
    vf_store_f16(half, vf_set(largest / divisor));
    vf_store(scale, vf_load_f16(half));
    for (int i = 0; i < KV_BLOCK; i += 16) {
        if (scale[0] == 0.0f) {
            memset(numbers + i, 0, 16);
            continue;
        }
        vf t = vf_div(vf_load(x + i), vf_set(scale[0]));
        float bounded[16];
        vf_store(bounded, vf_min(vf_max(t, vf_set(least)), vf_set(most)));
        vf_quantize16(bounded, 1.0f, numbers + i);
    }
    return half[0];
}

static void kv_store_quantised(uint8_t *row, int32_t type, const float *x, int32_t d, int32_t slot) {
    uint16_t *scales = kv_scales_of(row, type, d, slot) + slot % KV_GROUP;
    for (int32_t c = 0; c < d; c += KV_BLOCK, scales += KV_GROUP) {
        float block[KV_BLOCK] = {0}, largest = 0.0f;
        int8_t numbers[KV_BLOCK] = {0};
        memcpy(block, x + c, (size_t)(d - c < KV_BLOCK ? d - c : KV_BLOCK) * sizeof *x);
        uint32_t first = vf_largest_bits16(block), second = vf_largest_bits16(block + 16);
        uint32_t bits = first > second ? first : second;
        memcpy(&largest, &bits, 4);
        if (bits >= 0x7f800000u) {
            *scales = 0x7e00;
        } else if (type == GGFW_KV_Q8_0) {
            *scales = kv_quantize_block(block, largest, 127.0f, -127.0f, 127.0f, numbers);
        } else { /* the first column of the largest magnitude becomes exactly -8 */
            int at = 0;
            while (fabsf(block[at]) < largest) at++;
            *scales = kv_quantize_block(block, block[at], -8.0f, -8.0f, 7.0f, numbers);
        }
        if (type == GGFW_KV_Q8_0) {
            memcpy(row + c, numbers, KV_BLOCK);
        } else {
            for (int i = 0; i < 16; i++)
                row[c / 2 + i] = (uint8_t)((numbers[i] + 8) | (numbers[i + 16] + 8) << 4);
        }
    }
}

/* Round one row of n columns into the cache; p is its place at `slot` of a page. */
VF_INLINE void kv_store_row(uint8_t *p, int32_t type, const float *x, int32_t n, int32_t slot) {
    if (kv_quantised(type)) {
        kv_store_quantised(p, type, x, n, slot);
        return;
    }
    if (type == GGFW_KV_F32) {
        memcpy(p, x, (size_t)n * 4);
        return;
    }
    uint16_t *to = (uint16_t *)p;
    int32_t i = 0;
    for (; i + 16 <= n; i += 16) {
        if (type == GGFW_KV_F16) vf_store_f16(to + i, vf_load(x + i));
        else vf_store_bf16(to + i, vf_load(x + i));
    }
    if (i < n) {
        uint16_t last[16];
        if (type == GGFW_KV_F16) vf_store_f16(last, vf_load_n(x + i, n - i));
        else vf_store_bf16(last, vf_load_n(x + i, n - i));
        memcpy(to + i, last, (size_t)(n - i) * 2);
    }
}

#endif
