/* pack.h: file rows to layout R16 (see linear_format.h) and single rows back. */
#ifndef GGFW_PACK_H
#define GGFW_PACK_H

#include "dequant.h"

LINEAR_INLINE int64_t pack_panel_bytes(int type, int64_t n_in)
{
    return n_in / LINEAR_TRAITS[type].block * linear_block_bytes(type);
}

LINEAR_INLINE int64_t pack_float_panel_bytes(int type, int64_t n_in)
{
    /* rounded up so that every panel begins at a cache line */
    return (n_in * LINEAR_PANEL * linear_float_bytes(type) + 63) / 64 * 64;
}

/* ---- headers ------------------------------------------------------------------------------------------------------ */

LINEAR_INLINE void pack_store16(uint8_t *at, uint16_t value) { memcpy(at, &value, sizeof value); }

LINEAR_INLINE void pack_header(int type, const dequant_codes c[LINEAR_PANEL], uint8_t *header)
{
    const int scales = LINEAR_TRAITS[type].scales;
    if (scales == SCALE_E8M0) {
        for (int r = 0; r < LINEAR_PANEL; r++) header[r] = (uint8_t)c[r].d;
        return;
    }
    for (int r = 0; r < LINEAR_PANEL; r++) pack_store16(header + 2 * r, c[r].d);
    uint8_t *tail = header + 32;
    if (linear_has_min(type)) {
        for (int r = 0; r < LINEAR_PANEL; r++) pack_store16(header + 32 + 2 * r, c[r].m);
        tail += 32;
    }
    if (scales == SCALE_D || scales == SCALE_DM) return;
    const int n = linear_halves(type) == 2 ? 16 : 8;
    for (int i = 0; i < n; i++)
        for (int r = 0; r < LINEAR_PANEL; r++) tail[16 * i + r] = c[r].scale[i];
    if (scales == SCALE_K32_DM)
        for (int i = 0; i < n; i++)
            for (int r = 0; r < LINEAR_PANEL; r++) tail[128 + 16 * i + r] = c[r].min[i];
}

LINEAR_INLINE void pack_read_header(int type, const uint8_t *header, int r, dequant_codes *c)
{
    const int scales = LINEAR_TRAITS[type].scales;
    if (scales == SCALE_E8M0) {
        c->d = header[r];
        return;
    }
    c->d = linear_load16(header + 2 * r);
    const uint8_t *tail = header + 32;
    if (linear_has_min(type)) {
        c->m = linear_load16(header + 32 + 2 * r);
        tail += 32;
    }
    if (scales == SCALE_D || scales == SCALE_DM) return;
    const int n = linear_halves(type) == 2 ? 16 : 8;
    for (int i = 0; i < n; i++) c->scale[i] = tail[16 * i + r];
    if (scales == SCALE_K32_DM)
        for (int i = 0; i < n; i++) c->min[i] = tail[128 + 16 * i + r];
}

/* ---- planes ------------------------------------------------------------------------------------------------------- */

/* quads[i] is quad i of the 16 rows (64 bytes), codes unsigned, one per byte. */
LINEAR_INLINE void pack_planes(int type, uint8_t quads[8][64], uint8_t *sub)
{
    const int planes = LINEAR_TRAITS[type].planes;
    const int nibble = planes & PLANE_NIBBLE;
    if (nibble) {
        for (int j = 0; j < 4; j++)
            for (int x = 0; x < 64; x++)
                sub[64 * j + x] = (uint8_t)((quads[2 * j][x] & 15) | (quads[2 * j + 1][x] & 15) << 4);
        sub += 256;
    }
    if (planes & PLANE_CRUMB) {
        const int shift = nibble ? 4 : 0;
        for (int h = 0; h < 2; h++)
            for (int x = 0; x < 64; x++)
                sub[64 * h + x] =
                    (uint8_t)((quads[4 * h][x] >> shift & 3) | (quads[4 * h + 1][x] >> shift & 3) << 2
                              | (quads[4 * h + 2][x] >> shift & 3) << 4 | (quads[4 * h + 3][x] >> shift & 3) << 6);
        sub += 128;
    }
    if (planes & PLANE_BIT) {
        const int shift = nibble ? 4 : 2;
        for (int x = 0; x < 64; x++) {
            int bits = 0;
            for (int i = 0; i < 8; i++) bits |= (quads[i][x] >> shift & 1) << i;
            sub[x] = (uint8_t)bits;
        }
    }
    if (planes & PLANE_BYTE) memcpy(sub, quads, 512);
}

/* The 32 codes of row r of a sub-block. */
LINEAR_INLINE void pack_read_planes(int type, const uint8_t *sub, int r, uint8_t *q)
{
    const int planes = LINEAR_TRAITS[type].planes;
    const int nibble = planes & PLANE_NIBBLE;
    for (int k = 0; k < LINEAR_BLOCK; k++) q[k] = 0;
    if (nibble) {
        for (int k = 0; k < LINEAR_BLOCK; k++) q[k] = sub[64 * (k / 8) + 4 * r + k % 4] >> (k & 4) & 15;
        sub += 256;
    }
    if (planes & PLANE_CRUMB) {
        for (int k = 0; k < LINEAR_BLOCK; k++)
            q[k] |= (uint8_t)((sub[64 * (k / 16) + 4 * r + k % 4] >> (2 * (k / 4 % 4)) & 3) << (nibble ? 4 : 0));
        sub += 128;
    }
    if (planes & PLANE_BIT)
        for (int k = 0; k < LINEAR_BLOCK; k++)
            q[k] |= (uint8_t)((sub[4 * r + k % 4] >> (k / 4) & 1) << (nibble ? 4 : 2));
    if (planes & PLANE_BYTE)
        for (int k = 0; k < LINEAR_BLOCK; k++) q[k] = sub[64 * (k / 4) + 4 * r + k % 4];
}

/* ---- pack, unpack_rows ---------------------------------------------------------------------------------------------- */

/* ggfw_kernel.pack: rows that a panel lacks at the end of the matrix are zero. */
LINEAR_INLINE void pack_rows(int type, const void *file_rows, int64_t n_out, int64_t n_in, int64_t first, int64_t n,
                             void *packed)
{
    const linear_traits *t = &LINEAR_TRAITS[type];
    const int64_t n_blocks = n_in / t->block, row_bytes = n_blocks * t->file_bytes;
    const int64_t panel_bytes = pack_panel_bytes(type, n_in);
    const int64_t end = first + n < n_out ? first + n : n_out;
    for (int64_t row = first; row < end; row += LINEAR_PANEL) {
        const int rows = end - row < LINEAR_PANEL ? (int)(end - row) : LINEAR_PANEL;
        const uint8_t *source = (const uint8_t *)file_rows + row * row_bytes;
        uint8_t *block = (uint8_t *)packed + row / LINEAR_PANEL * panel_bytes;
        dequant_codes c[LINEAR_PANEL];
        memset(c, 0, sizeof c);
        for (int64_t b = 0; b < n_blocks; b++, source += t->file_bytes, block += linear_block_bytes(type)) {
            for (int r = 0; r < rows; r++) dequant_file(type, source + r * row_bytes, &c[r]);
            pack_header(type, c, block);
            for (int s = 0; s < t->block / LINEAR_BLOCK; s++) {
                uint8_t quads[8][64];
                for (int r = 0; r < LINEAR_PANEL; r++)
                    for (int i = 0; i < 8; i++) memcpy(quads[i] + 4 * r, c[r].q + LINEAR_BLOCK * s + 4 * i, 4);
                pack_planes(type, quads, block + linear_header_bytes(type) + s * linear_sub_bytes(type));
            }
        }
    }
}

/* ggfw_kernel.unpack_rows. */
LINEAR_INLINE void pack_unpack_rows(int type, const void *data, int64_t n_out, int64_t n_in, const int32_t *ids,
                                    int64_t n, float *out, int64_t out_stride_bytes)
{
    (void)n_out;
    const linear_traits *t = &LINEAR_TRAITS[type];
    for (int64_t i = 0; i < n; i++) {
        const uint8_t *block = (const uint8_t *)data + ids[i] / LINEAR_PANEL * pack_panel_bytes(type, n_in);
        float *y = (float *)((uint8_t *)out + i * out_stride_bytes);
        for (int64_t k = 0; k < n_in; k += t->block, block += linear_block_bytes(type)) {
            dequant_codes c;
            pack_read_header(type, block, ids[i] % LINEAR_PANEL, &c);
            for (int s = 0; s < t->block / LINEAR_BLOCK; s++)
                pack_read_planes(type, block + linear_header_bytes(type) + s * linear_sub_bytes(type),
                                 ids[i] % LINEAR_PANEL, c.q + LINEAR_BLOCK * s);
            dequant_values(type, &c, y + k);
        }
    }
}

/* Float formats: column k of a panel is 16 neighbouring weights. */
LINEAR_INLINE void pack_float_rows(int type, const void *file_rows, int64_t n_out, int64_t n_in, int64_t first,
                                   int64_t n, void *packed)
{
    const int bytes = linear_float_bytes(type);
    const int64_t panel_bytes = pack_float_panel_bytes(type, n_in);
    const int64_t end = first + n < n_out ? first + n : n_out;
    for (int64_t row = first; row < end; row += LINEAR_PANEL) {
        const int rows = end - row < LINEAR_PANEL ? (int)(end - row) : LINEAR_PANEL;
        const uint8_t *source = (const uint8_t *)file_rows + row * n_in * bytes;
        uint8_t *panel = (uint8_t *)packed + row / LINEAR_PANEL * panel_bytes;
        if (rows < LINEAR_PANEL) memset(panel, 0, (size_t)panel_bytes);
        enum { STRIP = 16 }; /* columns at a time, so that reads and writes both stay within a few lines */
        for (int64_t k0 = 0; k0 < n_in; k0 += STRIP) {
            const int64_t k1 = k0 + STRIP < n_in ? k0 + STRIP : n_in;
            for (int r = 0; r < rows; r++)
                for (int64_t k = k0; k < k1; k++)
                    memcpy(panel + (k * LINEAR_PANEL + r) * bytes, source + (r * n_in + k) * bytes, (size_t)bytes);
        }
    }
}

LINEAR_INLINE void pack_unpack_float_rows(int type, const void *data, int64_t n_out, int64_t n_in, const int32_t *ids,
                                          int64_t n, float *out, int64_t out_stride_bytes)
{
    (void)n_out;
    const int bytes = linear_float_bytes(type);
    for (int64_t i = 0; i < n; i++) {
        const uint8_t *panel = (const uint8_t *)data + ids[i] / LINEAR_PANEL * pack_float_panel_bytes(type, n_in);
        const uint8_t *w = panel + ids[i] % LINEAR_PANEL * bytes;
        float *y = (float *)((uint8_t *)out + i * out_stride_bytes);
        for (int64_t k = 0; k < n_in; k++) y[k] = linear_float_weight(type, w + k * LINEAR_PANEL * bytes);
    }
}

#endif
