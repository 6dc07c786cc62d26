/* linear.h: the matrix products of one unit: GGFW_OP_LINEAR, GGFW_OP_MOE_LINEAR and the row look-ups of GGFW_OP_EMBED,
 * for every format of linear_format.h.
 *
 * A unit defines GGFW_UNIT_NAME (a string) and what linear_vector.h asks for, and includes this file;
 * GGFW_LINEAR_KERNELS are the entries of its table. With GGFW_UNIT_PRODUCTS they are the integer products alone, for a
 * unit that has a better instruction for them than another unit, which has the rest.
 *
 *     linear_format.h   formats and the packed layout        linear_vector*.h  vector operations per instruction set
 *     dequant.h         blocks of a file                     linear_unpack.h   packed blocks to vectors
 *     pack.h            file rows to packed rows and back    linear_tile.h     quantised panel times rows
 *     linear_exact.h    quantised panel times f32 rows       linear_float.h    float panel times rows
 *     linear_words.h    the same with words                  linear_panels.h   the loops that formats share
 *     linear_finish.h   bias, scale, soft cap, residual
 *     linear_run.h, linear_moe.h   the two ops
 *
 * Kernels of quantised formats come with each type of activations: GGFW_Q8 (fastest), GGFW_Q16, GGFW_F32 (exact). All
 * read the same packed weights.
 *
 * The arithmetic of a row depends on its weight's format, the type of the activations and the unit only: not on the number of rows beside it, the
 * chunk or the thread. So one kernel serves decode and prompt rows.
 */
#ifndef GGFW_LINEAR_H
#define GGFW_LINEAR_H

#include "linear_moe.h"
#include "linear_run.h"

/* ---- functions per format ------------------------------------------------------------------------------------------------ */

#if defined(GGFW_UNIT_PRODUCTS)
#define LINEAR_WHOLE(...)
#else
#define LINEAR_WHOLE(...) __VA_ARGS__
#endif

/* F_X: a format with an activation type. */
#define LINEAR_TILE_RUN(F, X, R, call)                                                                                  \
    static void linear_run_##F##_##X##_##R(const uint8_t *panel, const uint8_t *const *x, int64_t n_in,                 \
                                           float *const *out, int64_t prefetch)                                         \
    {                                                                                                                   \
        call;                                                                                                           \
    }
#define LINEAR_QUANT_RUN(F, X, R) LINEAR_TILE_RUN(F, X, R, linear_tile_run(TYPE_##F, GGFW_##X, R, panel, x[0], n_in, out, prefetch))
#define LINEAR_EXACT_RUN(F, R)                                                                                          \
    LINEAR_TILE_RUN(F, EXACT, R, linear_exact_tile_run(TYPE_##F, R, panel, (const float *const *)x, n_in, out, prefetch))
#define LINEAR_FLOAT_RUN(F, R)                                                                                          \
    LINEAR_TILE_RUN(F, EXACT, R, linear_float_tile_run(TYPE_##F, R, panel, (const float *const *)x, n_in, out, prefetch))

#define LINEAR_COMMON(F, infix)                                                                                         \
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
    static void linear_panel_of_file_##F(const uint8_t *file_rows, int64_t n_out, int64_t n_in, int64_t panel,          \
                                         uint8_t *to)                                                                   \
    {                                                                                                                   \
        const int64_t first = panel * LINEAR_PANEL;                                                                     \
        linear_pack_##F(file_rows + first * dequant_file_##infix##row_bytes(TYPE_##F, n_in), n_out - first, n_in, 0,    \
                        LINEAR_PANEL, to);                                                                              \
    }                                                                                                                   \
    static void linear_unpack_rows_##F(const void *data, int64_t n_out, int64_t n_in, const int32_t *ids, int64_t n,    \
                                       float *out, int64_t stride)                                                      \
    {                                                                                                                   \
        pack_unpack_##infix##rows(TYPE_##F, data, n_out, n_in, ids, n, out, stride);                                    \
    }
#define LINEAR_FILE_ROWS(F, infix)                                                                                      \
    static void linear_file_rows_##F(const void *data, int64_t n_out, int64_t n_in, const int32_t *ids, int64_t n,      \
                                     float *out, int64_t stride)                                                        \
    {                                                                                                                   \
        dequant_file_##infix##rows(TYPE_##F, data, n_out, n_in, ids, n, out, stride);                                   \
    }

#define LINEAR_TILES(F, X)                                                                                              \
    LINEAR_QUANT_RUN(F, X, 1)                                                                                           \
    LINEAR_QUANT_RUN(F, X, 2)                                                                                           \
    LINEAR_QUANT_RUN(F, X, 4)                                                                                           \
    LINEAR_QUANT_RUN(F, X, 8)                                                                                           \
    static int64_t linear_tile_bytes_##F##_##X(int R, int64_t n_in)                                                     \
    {                                                                                                                   \
        return linear_tile_bytes(TYPE_##F, GGFW_##X, R, n_in);                                                          \
    }                                                                                                                   \
    static void linear_tile_build_##F##_##X(int R, const uint8_t *const *rows, int n, int64_t n_in, uint8_t *tile)      \
    {                                                                                                                   \
        linear_tile_build(TYPE_##F, GGFW_##X, R, rows, n, n_in, tile);                                                  \
    }
#define LINEAR_QUANT(F)                                                                                                 \
    LINEAR_COMMON(F, )                                                                                                  \
    LINEAR_TILES(F, Q8)                                                                                                 \
    LINEAR_TILES(F, Q16)                                                                                                \
    LINEAR_WHOLE(LINEAR_FILE_ROWS(F, ) LINEAR_EXACT_RUN(F, 1) LINEAR_EXACT_RUN(F, 2) LINEAR_EXACT_RUN(F, 4))
#define LINEAR_FLOAT(F)                                                                                                 \
    LINEAR_COMMON(F, float_)                                                                                            \
    LINEAR_FILE_ROWS(F, float_)                                                                                         \
    LINEAR_FLOAT_RUN(F, 1)                                                                                              \
    LINEAR_FLOAT_RUN(F, 2)                                                                                              \
    LINEAR_FLOAT_RUN(F, 4)                                                                                              \
    LINEAR_FLOAT_RUN(F, 8)

LINEAR_QUANT_FORMATS(LINEAR_QUANT)
LINEAR_WHOLE(LINEAR_FLOAT_FORMATS(LINEAR_FLOAT))

/* ---- what the shared loops look up ------------------------------------------------------------------------------------- */

#define LINEAR_TILE_OPS(F, X)                                                                                           \
    { linear_panel_bytes_##F,                                                                                           \
      linear_panel_of_file_##F,                                                                                         \
      linear_tile_bytes_##F##_##X,                                                                                      \
      linear_tile_build_##F##_##X,                                                                                      \
      { linear_run_##F##_##X##_1, linear_run_##F##_##X##_2, linear_run_##F##_##X##_4, linear_run_##F##_##X##_8 },       \
      LINEAR_MAX_TILE }
#define LINEAR_EXACT_OPS(F, eight, most)                                                                                \
    { linear_panel_bytes_##F, linear_panel_of_file_##F, NULL, NULL, { linear_run_##F##_EXACT_1, linear_run_##F##_EXACT_2, linear_run_##F##_EXACT_4, eight }, \
      LV_FLOAT_TILE < most ? LV_FLOAT_TILE : most }
#define LINEAR_QUANT_OPS(F)                                                                                             \
    [TYPE_##F] = { LINEAR_WHOLE([GGFW_F32] = LINEAR_EXACT_OPS(F, NULL, 4),) [GGFW_Q8] = LINEAR_TILE_OPS(F, Q8),                       \
                   [GGFW_Q16] = LINEAR_TILE_OPS(F, Q16) },
#define LINEAR_FLOAT_OPS(F) [TYPE_##F] = { [GGFW_F32] = LINEAR_EXACT_OPS(F, linear_run_##F##_EXACT_8, 8) },

static const linear_ops *linear_ops_of(int32_t format, int32_t activation)
{
    static const linear_ops table[40][GGFW_Q16 + 1] = {
        LINEAR_QUANT_FORMATS(LINEAR_QUANT_OPS) LINEAR_WHOLE(LINEAR_FLOAT_FORMATS(LINEAR_FLOAT_OPS))
    };
    return &table[format][activation];
}

/* ---- the table ------------------------------------------------------------------------------------------------------------ */

#define LINEAR_PRODUCTS(F, X, wants, multiple)                                                                          \
    { .name = "linear_" #F "_" #X "_" GGFW_UNIT_NAME, .op = GGFW_OP_LINEAR, .format = TYPE_##F,                         \
      .row_classes = GGFW_ROWS_ANY, .activation = wants, .flags = GGFW_KERNEL_R16 | GGFW_KERNEL_FILE,                  \
      .n_in_multiple = multiple,                                                                                        \
      .pack_size = linear_pack_size_##F, .pack = linear_pack_##F, .unpack_rows = linear_unpack_rows_##F,                \
      .scratch_size = linear_scratch_size, .n_chunks = linear_n_chunks, .run = linear_run },                            \
    { .name = "moe_linear_" #F "_" #X "_" GGFW_UNIT_NAME, .op = GGFW_OP_MOE_LINEAR, .format = TYPE_##F,                 \
      .row_classes = GGFW_ROWS_ANY, .activation = wants, .flags = GGFW_KERNEL_R16 | GGFW_KERNEL_FILE,                  \
      .n_in_multiple = multiple,                                                                                        \
      .pack_size = linear_pack_size_##F, .pack = linear_pack_##F, .unpack_rows = linear_unpack_rows_##F,                \
      .scratch_size = linear_moe_scratch_size, .n_chunks = linear_moe_n_chunks, .run = linear_moe_run },
#define LINEAR_EMBED(F, multiple)                                                                                       \
    { .name = "embed_" #F "_" GGFW_UNIT_NAME, .op = GGFW_OP_EMBED, .format = TYPE_##F,                                  \
      .row_classes = GGFW_ROWS_ANY, .activation = GGFW_F32, .n_in_multiple = multiple,                                  \
      .unpack_rows = linear_file_rows_##F },
#define LINEAR_QUANT_ENTRIES(F)                                                                                         \
    LINEAR_PRODUCTS(F, Q8, GGFW_Q8, LINEAR_TRAITS_BLOCK_##F)                                                            \
    LINEAR_PRODUCTS(F, Q16, GGFW_Q16, LINEAR_TRAITS_BLOCK_##F)                                                          \
    LINEAR_WHOLE(LINEAR_PRODUCTS(F, F32, GGFW_F32, LINEAR_TRAITS_BLOCK_##F) LINEAR_EMBED(F, LINEAR_TRAITS_BLOCK_##F))
#define LINEAR_FLOAT_ENTRIES(F) LINEAR_PRODUCTS(F, F32, GGFW_F32, 1) LINEAR_EMBED(F, 1)

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

#define GGFW_LINEAR_KERNELS                                                                                             \
    LINEAR_QUANT_FORMATS(LINEAR_QUANT_ENTRIES) LINEAR_WHOLE(LINEAR_FLOAT_FORMATS(LINEAR_FLOAT_ENTRIES))

#endif
