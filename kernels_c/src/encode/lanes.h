/* lanes.h: floats into lanes, weights of columns, integers out of lanes. */
#ifndef GGFW_ENCODE_LANES_H
#define GGFW_ENCODE_LANES_H

#include "search.h"

/* 16 blocks of n floats each, the weight of every element, and the integers that stand for them. */
typedef struct group {
    vf x[MAX_BLOCK], w[MAX_BLOCK];
    uint8_t q[LANES][MAX_BLOCK];
} group;

/* What is encoded: where block b of n elements starts, and its columns' importance. */
typedef struct source {
    const float *x, *importance; /* importance may be NULL */
    int64_t n_blocks, blocks_per_row;
} source;

/* Load 16 blocks of n elements from block `first` on; lanes past the end are zero. `share`: neighbouring blocks whose
 * common root mean square sets the floor of the weights: without it a block's small elements would count for nothing. */
static void load_group(group *g, const source *s, int64_t first, int n, int share) {
    float x[MAX_BLOCK][LANES], w[MAX_BLOCK][LANES], square[LANES];
    for (int lane = 0; lane < LANES; lane++) {
        const float *from = s->x + (first + lane) * n;
        square[lane] = 0.0f;
        for (int i = 0; i < n; i++) {
            float value = first + lane < s->n_blocks ? from[i] : 0.0f;
            x[i][lane] = value;
            square[lane] += value * value;
        }
    }
    for (int lane = 0; lane < LANES; lane++) {
        float mean = 0.0f;
        int begin = lane / share * share;
        for (int other = begin; other < begin + share; other++) mean += square[other];
        mean /= (float)(n * share);
        const float *importance =
            s->importance ? s->importance + (first + lane) % s->blocks_per_row * n : NULL;
        float root = sqrtf(mean);
        for (int i = 0; i < n; i++) {
            float value = x[i][lane];
            w[i][lane] = importance ? importance[i] * sqrtf(mean + value * value) : root + fabsf(value);
        }
    }
    for (int i = 0; i < n; i++) {
        g->x[i] = vf_load(x[i]);
        g->w[i] = vf_load(w[i]);
    }
}

/* Round to integers low ... high with scale d and offset m per lane, and keep them less `low`, so from 0 on. */
static void round_group(group *g, int n, vf d, vf m, float low, float high) {
    vf inverse = vf_inverse(d);
    for (int i = 0; i < n; i++) {
        float q[LANES];
        vf_store(q, vf_sub(vf_clamp(vf_round(vf_mul(vf_sub(g->x[i], m), inverse)), low, high), vf_set(low)));
        for (int lane = 0; lane < LANES; lane++) g->q[lane][i] = (uint8_t)q[lane];
    }
}

/* A float16 as bytes, and the float it stands for. */
VF_INLINE float put_half(uint8_t *to, float value) {
    uint16_t half[16] = {0};
    float all[16] = {value};
    vf_store_f16(half, vf_load(all));
    memcpy(to, half, 2);
    vf_store(all, vf_load_f16(half));
    return all[0];
}

#endif
