/* linear_format.h: the weight formats of the matrix products: what a block of a GGUF file holds, how its rows stand
 * in memory once they are packed.
 *
 * Layout R16. A *panel* is 16 weight rows; the panels of a matrix follow each other. A panel of a quantised format is
 * a sequence of blocks of 32 or 256 columns, each
 *
 *     header                        scales of the 16 rows, see enum linear_scales
 *     sub-block of 32 columns       planes, in the order nibble, crumb, bit, byte (those that the format has)
 *     ...                           8 sub-blocks when the block has 256 columns
 *
 * A plane is made of chunks of 64 bytes; the dword r of a chunk belongs to row r, its byte t to column t of a quad. A
 * *quad* is 4 neighbouring columns: quad i of a sub-block holds its columns 4i .. 4i+3, so that 16 rows times 4 columns
 * meet one broadcast dword of activations in one instruction and no sum ever crosses lanes.
 *
 *     nibble plane  4 chunks   chunk j: low nibble = quad 2j, high nibble = quad 2j + 1
 *     crumb plane   2 chunks   chunk c: bits 2s, 2s+1 = quad 4c + s
 *     bit plane     1 chunk    bit i = quad i
 *     byte plane    8 chunks   chunk i = quad i
 *
 * Codes are unsigned: weight = d * (code - offset) (+ m). The offset costs nothing: the integer sum of a row starts at
 * -offset times the sum of the activations instead of zero.
 *
 * Every instruction set uses this one layout, so a matrix is packed once whatever kernels run on it.
 */
#ifndef GGFW_LINEAR_FORMAT_H
#define GGFW_LINEAR_FORMAT_H

#include <stdint.h>
#include <string.h>

#include "ggfw_kernels.h"

#define LINEAR_INLINE static inline __attribute__((always_inline))
#define LINEAR_UNUSED __attribute__((unused))

enum {
    LINEAR_PANEL = 16,     /* rows of a panel */
    LINEAR_BLOCK = 32,     /* columns of a sub-block */
    LINEAR_MAX_BLOCK = 256 /* columns of the largest block */
};

/* ggml type ids. */
enum linear_type {
    TYPE_F32 = 0,
    TYPE_F16 = 1,
    TYPE_Q4_0 = 2,
    TYPE_Q4_1 = 3,
    TYPE_Q5_0 = 6,
    TYPE_Q5_1 = 7,
    TYPE_Q8_0 = 8,
    TYPE_Q2_K = 10,
    TYPE_Q3_K = 11,
    TYPE_Q4_K = 12,
    TYPE_Q5_K = 13,
    TYPE_Q6_K = 14,
    TYPE_IQ4_NL = 20,
    TYPE_IQ4_XS = 23,
    TYPE_BF16 = 30,
    TYPE_MXFP4 = 39
};

/* The quantised formats and the float ones: X(name). */
#define LINEAR_QUANT_FORMATS(X) \
    X(Q4_0) X(Q4_1) X(Q5_0) X(Q5_1) X(Q8_0) X(Q2_K) X(Q3_K) X(Q4_K) X(Q5_K) X(Q6_K) X(IQ4_NL) X(IQ4_XS) X(MXFP4)
#define LINEAR_FLOAT_FORMATS(X) X(F32) X(F16) X(BF16)

enum linear_planes { PLANE_NIBBLE = 1, PLANE_CRUMB = 2, PLANE_BIT = 4, PLANE_BYTE = 8 };

/* The header of a packed block; [16] runs over the rows of the panel. Products with two factors are those of the file's
 * scales: nothing is rounded anew. */
enum linear_scales {
    SCALE_D,      /* f16 d[16]                                             d                       32 bytes */
    SCALE_DM,     /* f16 d[16], m[16]                                      d, m                    64 */
    SCALE_E8M0,   /* u8 e[16]                                              2^(e-128)               16 */
    SCALE_K16,    /* f16 d[16]; i8 s[16][16]                               d*s[i]                  288, i = column / 16 */
    SCALE_K16_DM, /* f16 d[16], dmin[16]; u8 sm[16][16]                    d*(sm&15), -dmin*(sm>>4)  320 */
    SCALE_K32,    /* f16 d[16]; i8 s[8][16]                                d*s[i]                  160, i = column / 32 */
    SCALE_K32_DM  /* f16 d[16], dmin[16]; u8 s[8][16], u8 m[8][16]         d*s[i], -dmin*m[i]      320 */
};

enum linear_codebook { CODEBOOK_NONE, CODEBOOK_IQ4, CODEBOOK_FP4 };

typedef struct linear_traits {
    int block;      /* columns of a block: 32 or 256 */
    int file_bytes; /* bytes of one row's block in the file */
    int planes;     /* enum linear_planes, or-ed */
    int scales;     /* enum linear_scales */
    int offset;     /* weight = code - offset */
    int max_code;
    int codebook; /* the stored nibble is an index into it; the code is what it gives */
} linear_traits;

/* Bytes beside the file's size come from scales of 6 bits (Q3_K, Q4_K, Q5_K, IQ4_XS) that are stored as bytes. */
static const linear_traits LINEAR_TRAITS[40] = {
    /*                block file  planes                      scales        offset max */
    [TYPE_Q4_0] =   { 32,   18,  PLANE_NIBBLE,               SCALE_D,        8,   15, CODEBOOK_NONE },
    [TYPE_Q4_1] =   { 32,   20,  PLANE_NIBBLE,               SCALE_DM,       0,   15, CODEBOOK_NONE },
    [TYPE_Q5_0] =   { 32,   22,  PLANE_NIBBLE | PLANE_BIT,   SCALE_D,       16,   31, CODEBOOK_NONE },
    [TYPE_Q5_1] =   { 32,   24,  PLANE_NIBBLE | PLANE_BIT,   SCALE_DM,       0,   31, CODEBOOK_NONE },
    [TYPE_Q8_0] =   { 32,   34,  PLANE_BYTE,                 SCALE_D,      128,  255, CODEBOOK_NONE },
    [TYPE_Q2_K] =   { 256,  84,  PLANE_CRUMB,                SCALE_K16_DM,   0,    3, CODEBOOK_NONE },
    [TYPE_Q3_K] =   { 256, 110,  PLANE_CRUMB | PLANE_BIT,    SCALE_K16,      4,    7, CODEBOOK_NONE },
    [TYPE_Q4_K] =   { 256, 144,  PLANE_NIBBLE,               SCALE_K32_DM,   0,   15, CODEBOOK_NONE },
    [TYPE_Q5_K] =   { 256, 176,  PLANE_NIBBLE | PLANE_BIT,   SCALE_K32_DM,   0,   31, CODEBOOK_NONE },
    [TYPE_Q6_K] =   { 256, 210,  PLANE_NIBBLE | PLANE_CRUMB, SCALE_K16,     32,   63, CODEBOOK_NONE },
    [TYPE_IQ4_NL] = { 32,   18,  PLANE_NIBBLE,               SCALE_D,      128,  255, CODEBOOK_IQ4 },
    [TYPE_IQ4_XS] = { 256, 136,  PLANE_NIBBLE,               SCALE_K32,    128,  255, CODEBOOK_IQ4 },
    [TYPE_MXFP4] =  { 32,   17,  PLANE_NIBBLE,               SCALE_E8M0,    12,   24, CODEBOOK_FP4 },
};

/* Codes of the codebook formats: the signed value plus the format's offset. */
static const uint8_t LINEAR_CODEBOOK[3][16] = {
    [CODEBOOK_IQ4] = { 128 - 127, 128 - 104, 128 - 83, 128 - 65, 128 - 49, 128 - 35, 128 - 22, 128 - 10,
                       128 + 1, 128 + 13, 128 + 25, 128 + 38, 128 + 53, 128 + 69, 128 + 89, 128 + 113 },
    /* twice the values of FP4 (E2M1); the scale is halved */
    [CODEBOOK_FP4] = { 12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0 },
};

/* ---- sizes ------------------------------------------------------------------------------------------------------ */

/* Bytes of the planes of one sub-block (16 rows x 32 columns). */
LINEAR_INLINE int linear_sub_bytes(int type)
{
    const int planes = LINEAR_TRAITS[type].planes;
    return (planes & PLANE_NIBBLE ? 256 : 0) + (planes & PLANE_CRUMB ? 128 : 0) + (planes & PLANE_BIT ? 64 : 0)
           + (planes & PLANE_BYTE ? 512 : 0);
}

LINEAR_INLINE int linear_header_bytes(int type)
{
    switch (LINEAR_TRAITS[type].scales) {
    case SCALE_D: return 32;
    case SCALE_DM: return 64;
    case SCALE_E8M0: return 16;
    case SCALE_K16: return 32 + 256;
    case SCALE_K32: return 32 + 128;
    default: return 64 + 256; /* SCALE_K16_DM, SCALE_K32_DM */
    }
}

LINEAR_INLINE int linear_block_bytes(int type)
{
    return linear_header_bytes(type) + LINEAR_TRAITS[type].block / LINEAR_BLOCK * linear_sub_bytes(type);
}

/* Scales per 32 columns: 2 where the format has one per 16 columns. */
LINEAR_INLINE int linear_halves(int type)
{
    const int scales = LINEAR_TRAITS[type].scales;
    return scales == SCALE_K16 || scales == SCALE_K16_DM ? 2 : 1;
}

/* Whether a format adds something that does not depend on the code (m, or -dmin * m). */
LINEAR_INLINE int linear_has_min(int type)
{
    const int scales = LINEAR_TRAITS[type].scales;
    return scales == SCALE_DM || scales == SCALE_K16_DM || scales == SCALE_K32_DM;
}

/* Bytes of one weight of a float format. */
LINEAR_INLINE int linear_float_bytes(int type) { return type == TYPE_F32 ? 4 : 2; }

/* ---- scalars ---------------------------------------------------------------------------------------------------- */

LINEAR_INLINE float linear_float_of_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* IEEE half to float. Subnormal halves go through an integer: a thread that treats subnormal floats as zero must
 * still see them. */
LINEAR_INLINE float linear_f16(uint16_t half)
{
    const uint32_t sign = (uint32_t)(half & 0x8000) << 16;
    const uint32_t exponent = (half >> 10) & 31;
    const uint32_t mantissa = half & 0x3ff;
    const float subnormal = (float)(int32_t)mantissa * 0x1p-24f;
    uint32_t small;
    memcpy(&small, &subnormal, sizeof small);
    const uint32_t large = (exponent == 31 ? 255u << 23 : (exponent + 112) << 23) | mantissa << 13;
    return linear_float_of_bits(sign | (exponent == 0 ? small : large));
}

LINEAR_INLINE float linear_bf16(uint16_t bits) { return linear_float_of_bits((uint32_t)bits << 16); }

/* 2^(e - 128): the halved E8M0 scale of MXFP4; e < 2 gives a subnormal float, as in the reference. */
LINEAR_INLINE float linear_e8m0(uint8_t e)
{
    return linear_float_of_bits(e < 2 ? 0x00200000u << e : (uint32_t)(e - 1) << 23);
}

LINEAR_INLINE uint16_t linear_load16(const uint8_t *at)
{
    uint16_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

LINEAR_INLINE uint32_t linear_load32(const uint8_t *at)
{
    uint32_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

/* One weight of a float format. */
LINEAR_INLINE float linear_float_weight(int type, const uint8_t *at)
{
    if (type == TYPE_F32) return linear_float_of_bits(linear_load32(at));
    return type == TYPE_F16 ? linear_f16(linear_load16(at)) : linear_bf16(linear_load16(at));
}

#endif
