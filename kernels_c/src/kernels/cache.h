/* cache.h: positions in the paged K/V cache, and its element types. */
#ifndef GGFW_CACHE_H
#define GGFW_CACHE_H

#include "rows.h"

VF_INLINE int64_t kv_element_bytes(int32_t type) { return type == GGFW_KV_F32 ? 4 : 2; }

/* Page that holds a position of a segment's sequence. */
VF_INLINE int32_t page_of(const ggfw_run *run, const ggfw_segment *segment, int32_t pool, int32_t position) {
    return run->batch->pages[segment->table[pool] + position / run->pools[pool].page_size];
}

/* K or V of (layer, page, kv head) at a slot of the page; rows of d elements follow each other. */
VF_INLINE uint8_t *k_at(const ggfw_pool *pool, int32_t layer, int32_t page, int32_t head, int32_t slot) {
    return pool->k + ((int64_t)layer * pool->n_pages + page) * pool->k_page_bytes +
           ((int64_t)head * pool->page_size + slot) * pool->d_k * kv_element_bytes(pool->type);
}
VF_INLINE uint8_t *v_at(const ggfw_pool *pool, int32_t layer, int32_t page, int32_t head, int32_t slot) {
    if (pool->v == NULL) return k_at(pool, layer, page, head, slot);
    return pool->v + ((int64_t)layer * pool->n_pages + page) * pool->v_page_bytes +
           ((int64_t)head * pool->page_size + slot) * pool->d_v * kv_element_bytes(pool->type);
}

/* Bytes from V of one position to V of the next. */
VF_INLINE int64_t v_row_bytes(const ggfw_pool *pool) {
    return (pool->v == NULL ? pool->d_k : pool->d_v) * kv_element_bytes(pool->type);
}

/* 16 elements as floats. Call with a constant type. */
VF_INLINE vf kv_load(const uint8_t *p, int32_t type) {
    if (type == GGFW_KV_F32) return vf_load((const float *)p);
    if (type == GGFW_KV_F16) return vf_load_f16((const uint16_t *)p);
    return vf_load_bf16((const uint16_t *)p);
}

/* The first n elements, zeros after them; never reads beyond them. */
VF_INLINE vf kv_load_n(const uint8_t *p, int32_t type, int32_t n) {
    if (n >= 16) return kv_load(p, type);
    uint8_t padded[64] = {0};
    memcpy(padded, p, (size_t)(n * kv_element_bytes(type)));
    return kv_load(padded, type);
}

VF_INLINE void kv_store_row(uint8_t *p, int32_t type, const float *x, int32_t n) {
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
