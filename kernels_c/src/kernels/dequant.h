/* dequant.h: one block of one row, as a GGUF file stores it, taken apart into codes and scales; and its values.
 *
 * All layouts are ggml's, little endian. What differs between formats is in dequant_file() alone: packing, look-ups in
 * file layout and look-ups in packed layout share the rest.
 */
#ifndef GGFW_DEQUANT_H
#define GGFW_DEQUANT_H

#include "linear_format.h"

/* A block of one row in the form that all formats share. Codes of codebook formats are still indices. */
typedef struct dequant_codes {
    uint16_t d;         /* f16, or the exponent byte of MXFP4 */
    uint16_t m;         /* f16: m or dmin */
    uint8_t scale[16];  /* per 16 or 32 columns; signed where enum linear_scales says i8 */
    uint8_t min[16];    /* SCALE_K32_DM only; SCALE_K16_DM keeps both nibbles in scale */
    uint8_t q[LINEAR_MAX_BLOCK];
} dequant_codes;

/* 16 bytes: low nibbles are columns 0..15, high nibbles columns 16..31. */
LINEAR_INLINE void dequant_nibbles(const uint8_t *qs, uint8_t *q)
{
    for (int half = 0; half < 16; half += 8) { /* 8 bytes at a time in one word */
        uint64_t both;
        memcpy(&both, qs + half, 8);
        const uint64_t low = both & 0x0f0f0f0f0f0f0f0fu, high = both >> 4 & 0x0f0f0f0f0f0f0f0fu;
        memcpy(q + half, &low, 8);
        memcpy(q + 16 + half, &high, 8);
    }
}

/* qh: bit j is the fifth bit of column j. */
LINEAR_INLINE void dequant_fifth_bits(const uint8_t *at, uint8_t *q)
{
    for (int j = 0; j < 4; j++) { /* 8 bits to 8 bytes: bit i alone in byte i, to its top bit if not zero, to bit 4 */
        const uint64_t spread = at[j] * 0x0101010101010101u & 0x8040201008040201u;
        const uint64_t top = ((spread & 0x7f7f7f7f7f7f7f7fu) + 0x7f7f7f7f7f7f7f7fu) | spread;
        uint64_t eight;
        memcpy(&eight, q + 8 * j, 8);
        eight |= top >> 3 & 0x1010101010101010u;
        memcpy(q + 8 * j, &eight, 8);
    }
}

/* The 6-bit scales and mins of Q4_K and Q5_K: 12 bytes for 8 of each. */
LINEAR_INLINE void dequant_k_scales(const uint8_t *s, uint8_t *scale, uint8_t *min)
{
    for (int j = 0; j < 4; j++) {
        scale[j] = s[j] & 63;
        min[j] = s[j + 4] & 63;
        scale[j + 4] = (uint8_t)((s[j + 8] & 15) | (s[j] >> 6) << 4);
        min[j + 4] = (uint8_t)((s[j + 8] >> 4) | (s[j + 4] >> 6) << 4);
    }
}

/* 64 columns per 32 bytes, low nibbles first (Q4_K, Q5_K). */
LINEAR_INLINE void dequant_k_nibbles(const uint8_t *qs, uint8_t *q)
{
    for (int g = 0; g < 4; g++)
        for (int l = 0; l < 32; l++) {
            q[64 * g + l] = qs[32 * g + l] & 15;
            q[64 * g + 32 + l] = qs[32 * g + l] >> 4;
        }
}

/* 2-bit planes: per 128 columns 32 bytes, shifts 0, 2, 4, 6 (Q2_K, Q3_K). */
LINEAR_INLINE void dequant_k_crumbs(const uint8_t *qs, uint8_t *q)
{
    for (int h = 0; h < 2; h++)
        for (int s = 0; s < 4; s++)
            for (int l = 0; l < 32; l++) q[128 * h + 32 * s + l] = (qs[32 * h + l] >> (2 * s)) & 3;
}

LINEAR_INLINE void dequant_file(int type, const uint8_t *b, dequant_codes *c)
{
    switch (type) {
    case TYPE_Q4_0: /* d f16; qs[16] */
    case TYPE_IQ4_NL:
        c->d = linear_load16(b);
        dequant_nibbles(b + 2, c->q);
        break;
    case TYPE_Q4_1: /* d f16; m f16; qs[16] */
        c->d = linear_load16(b);
        c->m = linear_load16(b + 2);
        dequant_nibbles(b + 4, c->q);
        break;
    case TYPE_Q5_0: /* d f16; qh u32; qs[16] */
        c->d = linear_load16(b);
        dequant_nibbles(b + 6, c->q);
        dequant_fifth_bits(b + 2, c->q);
        break;
    case TYPE_Q5_1: /* d f16; m f16; qh u32; qs[16] */
        c->d = linear_load16(b);
        c->m = linear_load16(b + 2);
        dequant_nibbles(b + 8, c->q);
        dequant_fifth_bits(b + 4, c->q);
        break;
    case TYPE_Q8_0: /* d f16; i8 q[32] */
        c->d = linear_load16(b);
        for (int j = 0; j < 32; j++) c->q[j] = b[2 + j] ^ 0x80;
        break;
    case TYPE_Q2_K: /* scale | min << 4 [16]; qs[64]; d f16; dmin f16 */
        memcpy(c->scale, b, 16);
        dequant_k_crumbs(b + 16, c->q);
        c->d = linear_load16(b + 80);
        c->m = linear_load16(b + 82);
        break;
    case TYPE_Q3_K: { /* hmask[32]; qs[64]; scales[12]; d f16 */
        const uint8_t *s = b + 96;
        dequant_k_crumbs(b + 32, c->q);
        for (int g = 0; g < 8; g++) /* bit g of hmask[l]: third bit of column 32 g + l */
            for (int l = 0; l < 32; l++) c->q[32 * g + l] |= (uint8_t)((b[l] >> g & 1) << 2);
        for (int i = 0; i < 16; i++) {
            const int low = i < 8 ? s[i] & 15 : s[i - 8] >> 4;
            const int high = s[8 + i % 4] >> (2 * (i / 4)) & 3;
            c->scale[i] = (uint8_t)((low | high << 4) - 32);
        }
        c->d = linear_load16(b + 108);
        break;
    }
    case TYPE_Q4_K: /* d f16; dmin f16; scales[12]; qs[128] */
        c->d = linear_load16(b);
        c->m = linear_load16(b + 2);
        dequant_k_scales(b + 4, c->scale, c->min);
        dequant_k_nibbles(b + 16, c->q);
        break;
    case TYPE_Q5_K: /* d f16; dmin f16; scales[12]; qh[32]; qs[128] */
        c->d = linear_load16(b);
        c->m = linear_load16(b + 2);
        dequant_k_scales(b + 4, c->scale, c->min);
        dequant_k_nibbles(b + 48, c->q);
        for (int g = 0; g < 8; g++) /* bit g of qh[l]: fifth bit of column 32 g + l */
            for (int l = 0; l < 32; l++) c->q[32 * g + l] |= (uint8_t)((b[16 + l] >> g & 1) << 4);
        break;
    case TYPE_Q6_K: /* ql[128]; qh[64]; scales i8[16]; d f16 */
        for (int h = 0; h < 2; h++) {
            const uint8_t *ql = b + 64 * h, *qh = b + 128 + 32 * h;
            uint8_t *q = c->q + 128 * h;
            for (int l = 0; l < 32; l++) {
                q[l] = (uint8_t)((ql[l] & 15) | (qh[l] & 3) << 4);
                q[32 + l] = (uint8_t)((ql[32 + l] & 15) | (qh[l] >> 2 & 3) << 4);
                q[64 + l] = (uint8_t)((ql[l] >> 4) | (qh[l] >> 4 & 3) << 4);
                q[96 + l] = (uint8_t)((ql[32 + l] >> 4) | (qh[l] >> 6) << 4);
            }
        }
        memcpy(c->scale, b + 192, 16);
        c->d = linear_load16(b + 208);
        break;
    case TYPE_IQ4_XS: { /* d f16; scales_h u16; scales_l[4]; qs[128] */
        const uint16_t high = linear_load16(b + 2);
        c->d = linear_load16(b);
        for (int g = 0; g < 8; g++) {
            const int low = b[4 + g / 2] >> (4 * (g % 2)) & 15;
            c->scale[g] = (uint8_t)((low | (high >> (2 * g) & 3) << 4) - 32);
            dequant_nibbles(b + 8 + 16 * g, c->q + 32 * g);
        }
        break;
    }
    case TYPE_MXFP4: /* e u8; qs[16] */
        c->d = b[0];
        dequant_nibbles(b + 1, c->q);
        break;
    }
}

/* Scale and minimum of the 16 columns that begin at column 16 i of the block: value = d * (code - offset) + m. Each
 * product of two file scales is exact in float. */
LINEAR_INLINE void dequant_scale(int type, const dequant_codes *c, int i, float *d, float *m)
{
    *m = 0;
    switch (LINEAR_TRAITS[type].scales) {
    case SCALE_D:
        *d = linear_f16(c->d);
        break;
    case SCALE_DM:
        *d = linear_f16(c->d);
        *m = linear_f16(c->m);
        break;
    case SCALE_E8M0:
        *d = linear_e8m0((uint8_t)c->d);
        break;
    case SCALE_K16:
        *d = linear_f16(c->d) * (float)(int8_t)c->scale[i];
        break;
    case SCALE_K16_DM:
        *d = linear_f16(c->d) * (float)(c->scale[i] & 15);
        *m = -(linear_f16(c->m) * (float)(c->scale[i] >> 4));
        break;
    case SCALE_K32:
        *d = linear_f16(c->d) * (float)(int8_t)c->scale[i / 2];
        break;
    default: /* SCALE_K32_DM */
        *d = linear_f16(c->d) * (float)c->scale[i / 2];
        *m = -(linear_f16(c->m) * (float)c->min[i / 2]);
        break;
    }
}

/* The values of one block, in ggml's float32 arithmetic. */
LINEAR_INLINE void dequant_values(int type, const dequant_codes *c, float *out)
{
    const linear_traits *t = &LINEAR_TRAITS[type];
    for (int i = 0; i < t->block / 16; i++) {
        float d, m;
        dequant_scale(type, c, i, &d, &m);
        for (int k = 16 * i; k < 16 * i + 16; k++) {
            const int code = t->codebook ? LINEAR_CODEBOOK[t->codebook][c->q[k]] : c->q[k];
            const float product = d * (float)(code - t->offset);
            out[k] = linear_has_min(type) ? product + m : product;
        }
    }
}

/* Bytes of a row in the file. */
LINEAR_INLINE int64_t dequant_file_row_bytes(int type, int64_t n_in)
{
    return n_in / LINEAR_TRAITS[type].block * LINEAR_TRAITS[type].file_bytes;
}

LINEAR_INLINE int64_t dequant_file_float_row_bytes(int type, int64_t n_in) { return n_in * linear_float_bytes(type); }

/* unpack_rows of the EMBED kernels: the table stands as in the file. */
LINEAR_INLINE void dequant_file_rows(int type, const void *data, int64_t n_out, int64_t n_in, const int32_t *ids,
                                     int64_t n, float *out, int64_t out_stride_bytes)
{
    (void)n_out;
    const linear_traits *t = &LINEAR_TRAITS[type];
    const int64_t row_bytes = dequant_file_row_bytes(type, n_in);
    for (int64_t i = 0; i < n; i++) {
        const uint8_t *b = (const uint8_t *)data + ids[i] * row_bytes;
        float *y = (float *)((uint8_t *)out + i * out_stride_bytes);
        for (int64_t k = 0; k < n_in; k += t->block, b += t->file_bytes) {
            dequant_codes c;
            dequant_file(type, b, &c);
            dequant_values(type, &c, y + k);
        }
    }
}

LINEAR_INLINE void dequant_file_float_rows(int type, const void *data, int64_t n_out, int64_t n_in, const int32_t *ids,
                                           int64_t n, float *out, int64_t out_stride_bytes)
{
    (void)n_out;
    const int bytes = linear_float_bytes(type);
    for (int64_t i = 0; i < n; i++) {
        const uint8_t *w = (const uint8_t *)data + ids[i] * n_in * bytes;
        float *y = (float *)((uint8_t *)out + i * out_stride_bytes);
        for (int64_t k = 0; k < n_in; k++) y[k] = linear_float_weight(type, w + k * bytes);
    }
}

#endif
