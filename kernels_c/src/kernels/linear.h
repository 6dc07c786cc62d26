/* linear.h: the matrix products of one unit: GGFW_OP_LINEAR, GGFW_OP_MOE_LINEAR and the row look-ups of GGFW_OP_EMBED,
 * for every format of linear_format.h.
 *
 * A unit defines GGFW_UNIT_NAME (a string) and one of GGFW_UNIT_GENERIC, GGFW_UNIT_AVX2, GGFW_UNIT_AVX512 and includes this file;
 * it gets ggfw_linear_kernels[GGFW_N_LINEAR_KERNELS].
 *
 *     linear_format.h   formats and the packed layout        linear_vector*.h  vector operations per instruction set
 *     dequant.h         blocks of a file                     linear_unpack.h   packed blocks to vectors
 *     pack.h            file rows to packed rows and back    linear_tile.h     quantised panel times rows
 *     linear_float.h    float panel times rows               linear_finish.h   bias, scale, soft cap, residual
 *     linear_panels.h   the loops that formats share         linear_run.h, linear_moe.h   the two ops
 *
 * The arithmetic of a row depends on its weight's format and on the unit only: not on the number of rows beside it, the
 * chunk or the thread. So one kernel serves decode and prompt rows.
 */
#ifndef GGFW_LINEAR_H
#define GGFW_LINEAR_H

#include "linear_moe.h"
#include "linear_run.h"

/* ---- functions per format ------------------------------------------------------------------------------------------------ */

#define LINEAR_TILE_RUN(F, family, x_of, R)                                                                             \
    static void linear_run_##F##_##R(const uint8_t *panel, const uint8_t *const *x, int64_t n_in, float *const *out,    \
                                     int64_t prefetch)                                                                  \
    {                                                                                                                   \
        family##_tile_run(TYPE_##F, R, panel, x_of, n_in, out, prefetch);                                               \
    }

#define LINEAR_COMMON(F, family, infix, x_of)                                                                           \
    LINEAR_TILE_RUN(F, family, x_of, 1)                                                                                 \
    LINEAR_TILE_RUN(F, family, x_of, 2)                                                                                 \
    LINEAR_TILE_RUN(F, family, x_of, 4)                                                                                 \
    LINEAR_TILE_RUN(F, family, x_of, 8)                                                                                 \
    static int64_t linear_panel_bytes_##F(int64_t n_in) { return pack_##infix##panel_bytes(TYPE_##F, n_in); }           \
    static int64_t linear_pack_size_##F(int64_t n_out, int64_t n_in)                                                    \
    {                                                                                                                   \
        return (n_out + LINEAR_PANEL - 1) / LINEAR_PANEL * linear_panel_bytes_##F(n_in);                                \
    }                                                                                                                   \
    static void linear_pack_##F(const void *file_rows, int64_t n_out, int64_t n_in, int64_t first, int64_t n,           \
                                void *packed)                                                                           \
    {                                                                                                                   \
        pack_##infix##rows(TYPE_##F, file_rows, n_out, n_in, first, n, packed);                                         \
    }                                                                                                                   \
    static void linear_unpack_rows_##F(const void *data, int64_t n_out, int64_t n_in, const int32_t *ids, int64_t n,    \
                                       float *out, int64_t stride)                                                      \
    {                                                                                                                   \
        pack_unpack_##infix##rows(TYPE_##F, data, n_out, n_in, ids, n, out, stride);                                    \
    }                                                                                                                   \
    static void linear_file_rows_##F(const void *data, int64_t n_out, int64_t n_in, const int32_t *ids, int64_t n,      \
                                     float *out, int64_t stride)                                                        \
    {                                                                                                                   \
        dequant_file_##infix##rows(TYPE_##F, data, n_out, n_in, ids, n, out, stride);                                   \
    }

#define LINEAR_QUANT(F)                                                                                                 \
    LINEAR_COMMON(F, linear, , x[0])                                                                                    \
    static int64_t linear_tile_bytes_##F(int R, int64_t n_in) { return linear_tile_bytes(TYPE_##F, R, n_in); }          \
    static void linear_tile_build_##F(int R, const uint8_t *const *rows, int n, int64_t n_in, uint8_t *tile)            \
    {                                                                                                                   \
        linear_tile_build(TYPE_##F, R, rows, n, n_in, tile);                                                            \
    }

#define LINEAR_FLOAT(F) LINEAR_COMMON(F, linear_float, float_, (const float *const *)x)

LINEAR_QUANT_FORMATS(LINEAR_QUANT)
LINEAR_FLOAT_FORMATS(LINEAR_FLOAT)

/* ---- what the shared loops look up ------------------------------------------------------------------------------------- */

#define LINEAR_RUNS(F) { linear_run_##F##_1, linear_run_##F##_2, linear_run_##F##_4, linear_run_##F##_8 }
#define LINEAR_QUANT_OPS(F)                                                                                             \
    [TYPE_##F] = { linear_panel_bytes_##F, linear_tile_bytes_##F, linear_tile_build_##F, LINEAR_RUNS(F),                \
                   LINEAR_MAX_TILE },
#define LINEAR_FLOAT_OPS(F) [TYPE_##F] = { linear_panel_bytes_##F, NULL, NULL, LINEAR_RUNS(F), LV_FLOAT_TILE },

static const linear_ops *linear_ops_of(int32_t format)
{
    static const linear_ops table[40] = { LINEAR_QUANT_FORMATS(LINEAR_QUANT_OPS) LINEAR_FLOAT_FORMATS(LINEAR_FLOAT_OPS) };
    return &table[format];
}

/* ---- the table ------------------------------------------------------------------------------------------------------------ */

#define LINEAR_ENTRIES(F, wants, multiple)                                                                              \
    { .name = "linear_" #F "_" GGFW_UNIT_NAME, .op = GGFW_OP_LINEAR, .format = TYPE_##F,                 \
      .row_classes = GGFW_ROWS_ANY, .activation = wants, .n_in_multiple = multiple,                                     \
      .pack_size = linear_pack_size_##F, .pack = linear_pack_##F, .unpack_rows = linear_unpack_rows_##F,                \
      .scratch_size = linear_scratch_size, .n_chunks = linear_n_chunks, .run = linear_run },                            \
    { .name = "moe_linear_" #F "_" GGFW_UNIT_NAME, .op = GGFW_OP_MOE_LINEAR, .format = TYPE_##F,         \
      .row_classes = GGFW_ROWS_ANY, .activation = wants, .n_in_multiple = multiple,                                     \
      .pack_size = linear_pack_size_##F, .pack = linear_pack_##F, .unpack_rows = linear_unpack_rows_##F,                \
      .scratch_size = linear_moe_scratch_size, .n_chunks = linear_moe_n_chunks, .run = linear_moe_run },                \
    { .name = "embed_" #F "_" GGFW_UNIT_NAME, .op = GGFW_OP_EMBED, .format = TYPE_##F,                   \
      .row_classes = GGFW_ROWS_ANY, .activation = GGFW_F32, .n_in_multiple = multiple,                                  \
      .unpack_rows = linear_file_rows_##F },
#define LINEAR_QUANT_ENTRIES(F) LINEAR_ENTRIES(F, GGFW_Q8, LINEAR_TRAITS_BLOCK_##F)
#define LINEAR_FLOAT_ENTRIES(F) LINEAR_ENTRIES(F, GGFW_F32, 1)

/* Columns of a block once more: a constant expression of C11 cannot read LINEAR_TRAITS. */
enum {
    LINEAR_TRAITS_BLOCK_Q4_0 = 32,
    LINEAR_TRAITS_BLOCK_Q4_1 = 32,
    LINEAR_TRAITS_BLOCK_Q5_0 = 32,
    LINEAR_TRAITS_BLOCK_Q5_1 = 32,
    LINEAR_TRAITS_BLOCK_Q8_0 = 32,
    LINEAR_TRAITS_BLOCK_Q2_K = 256,
    LINEAR_TRAITS_BLOCK_Q3_K = 256,
    LINEAR_TRAITS_BLOCK_Q4_K = 256,
    LINEAR_TRAITS_BLOCK_Q5_K = 256,
    LINEAR_TRAITS_BLOCK_Q6_K = 256,
    LINEAR_TRAITS_BLOCK_IQ4_NL = 32,
    LINEAR_TRAITS_BLOCK_IQ4_XS = 256,
    LINEAR_TRAITS_BLOCK_MXFP4 = 32
};

static const ggfw_kernel ggfw_linear_kernels[] = {
    LINEAR_QUANT_FORMATS(LINEAR_QUANT_ENTRIES) LINEAR_FLOAT_FORMATS(LINEAR_FLOAT_ENTRIES)
};
#define GGFW_N_LINEAR_KERNELS ((int32_t)(sizeof ggfw_linear_kernels / sizeof ggfw_linear_kernels[0]))

#endif
