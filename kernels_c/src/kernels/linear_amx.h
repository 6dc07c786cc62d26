/* linear_amx.h: GGFW_OP_LINEAR and GGFW_OP_MOE_LINEAR of prompt rows in tiles of bf16, sums in f32. LINEAR has two regions:
 * the activations become tiles in memory that all chunks share, then chunks multiply. A chunk of MOE_LINEAR makes tiles of
 * the rows that chose its expert.
 *
 * Chunk = (block of 256 rows) x (group of panel pairs). For every piece of columns (about 288, so that the weights' tiles
 * stay in the first cache) and every pair of panels: the panels become tiles, meet all tiles of the row block, and the sums
 * rest in scratch until the next piece. Tiles are 2 x 2: four sums, two of activations, two of weights.
 *
 * Planes (linear_bf16.h) per kernel, activations x weights, and products of them:
 *     Q8    1 x 1, 1 product: relative error about 2e-3, a fifth of what rounding activations to int8 made before
 *     Q16   2 x 2, 3 products: about 1e-5, as good as the 15 bits
 *     BF16 weights, F32 activations   3 x 1, 3 products: nothing is rounded but sums
 * F32 and F16 weights, and F32 activations of quantised weights, stay with the kernels of other units.
 *
 * A row's sums depend on its own activations and the weights only: tiles treat rows by themselves, and pieces of columns
 * are added in order wherever they end.
 */
#ifndef GGFW_LINEAR_AMX_H
#define GGFW_LINEAR_AMX_H

#include "linear_bf16.h"
#include "linear_experts.h"
#include "linear_finish.h"

enum {
    AMX_ROWS = 256,      /* rows of a block; twice 16 of them make a step */
    AMX_STEP = 32,
    AMX_PAIRS = 8,       /* panel pairs of a chunk at most */
    AMX_PIECE = 10,      /* column blocks of a piece at most, for one plane of weights */
    AMX_FEW_PIECE = 4,   /* the same for few rows: short enough for vector and tile units to overlap */
    AMX_SUMS = 4 * TILE_BYTES
};

/* What the loops need to know of a kernel. */
typedef struct amx_ops {
    int activation;
    int x_planes;
    int w_planes;
    int64_t (*panel_bytes)(int64_t n_in);
    /* tiles of n column blocks of one panel from column block `first` on, 2 * w_planes tiles apart */
    void (*unpack)(const uint8_t *panel, int64_t n_in, int64_t first, int n, uint8_t *tiles);
    /* sums (+)= n column blocks; two: bit 0 = both row halves, bit 1 = both panels */
    void (*multiply)(const uint8_t *x, const uint8_t *w, int n, int two, int begin, float *sums);
    void (*pack_row)(const uint8_t *row, int64_t n, int r, uint8_t *tiles);
} amx_ops;

static const amx_ops *amx_ops_of(int32_t format, int32_t activation);

LINEAR_INLINE const amx_ops *amx_ops_for(const ggfw_step *step)
{
    return amx_ops_of(step->weight[0]->format, step->in[0].type);
}

LINEAR_INLINE int64_t amx_blocks(const ggfw_step *step) /* of 32 columns */
{
    return (step->weight[0]->n_in + LINEAR_BLOCK - 1) / LINEAR_BLOCK;
}

/* Bytes of the tiles of 32 rows. */
LINEAR_INLINE int64_t amx_step_bytes(const ggfw_step *step)
{
    return amx_blocks(step) * amx_ops_for(step)->x_planes * 2 * TILE_BYTES;
}

/* ---- first region: activations to tiles --------------------------------------------------------------------------- */

static int64_t amx_shared_size(const ggfw_step *step, const ggfw_run *run)
{
    const int64_t rows = step->domain == GGFW_DOMAIN_OUTPUTS ? run->max_outputs : run->max_rows;
    return (rows + AMX_STEP - 1) / AMX_STEP * amx_step_bytes(step);
}

static int32_t amx_pack_chunks(const ggfw_step *step, const ggfw_run *run, int32_t row_begin, int32_t row_end)
{
    (void)step, (void)run;
    return (row_end - row_begin + AMX_STEP - 1) / AMX_STEP;
}

static void amx_pack_run(const ggfw_step *step, const ggfw_run *run, int32_t row_begin, int32_t row_end, int32_t chunk,
                         void *scratch)
{
    (void)scratch;
    const amx_ops *ops = amx_ops_for(step);
    uint8_t *tiles = run->shared + chunk * amx_step_bytes(step);
    for (int r = 0; r < AMX_STEP; r++) {
        const int32_t row = row_begin + chunk * AMX_STEP + r;
        const uint8_t *at = run->arena + step->in[0].offset + (int64_t)row * step->in[0].stride;
        ops->pack_row(row < row_end ? at : NULL, step->weight[0]->n_in, r, tiles);
    }
}

/* ---- second region: products ------------------------------------------------------------------------------------------ */

#define AMX_LOAD_PAIR(low, high, at, both)                                                                              \
    TILE_LOAD(low, at);                                                                                                 \
    if (both) TILE_LOAD(high, (at) + TILE_BYTES);

/* 32 rows x 2 panels: sums [row half][panel][16][16]. Loads stand between products, which take longer. */
LINEAR_INLINE void amx_multiply(int x_planes, int w_planes, const uint8_t *x, const uint8_t *w, int n, int rows, int panels,
                                int begin, float *sums)
{
    uint8_t *c = (uint8_t *)sums;
    const int most = x_planes > w_planes ? x_planes : w_planes;
    if (begin) {
        TILE_ZERO(0);
        TILE_ZERO(1);
        TILE_ZERO(2);
        TILE_ZERO(3);
    } else {
        AMX_LOAD_PAIR(0, 1, c, panels)
        if (rows) {
            AMX_LOAD_PAIR(2, 3, c + 2 * TILE_BYTES, panels)
        }
    }
    for (int k = 0; k < n; k++, x += x_planes * 2 * TILE_BYTES, w += w_planes * 2 * TILE_BYTES) {
        for (int i = 0; i < x_planes; i++) {
            for (int j = 0; j < w_planes && i + j < most; j++) {
                const uint8_t *a = x + i * 2 * TILE_BYTES, *b = w + j * 2 * TILE_BYTES;
                TILE_LOAD(4, a);
                TILE_LOAD(6, b);
                TILE_DP(0, 4, 6);
                if (panels) {
                    TILE_LOAD(7, b + TILE_BYTES);
                    TILE_DP(1, 4, 7);
                }
                if (rows) {
                    TILE_LOAD(5, a + TILE_BYTES);
                    TILE_DP(2, 5, 6);
                    if (panels) TILE_DP(3, 5, 7);
                }
            }
        }
    }
    TILE_STORE(0, c);
    if (panels) TILE_STORE(1, c + TILE_BYTES);
    if (rows) {
        TILE_STORE(2, c + 2 * TILE_BYTES);
        if (panels) TILE_STORE(3, c + 3 * TILE_BYTES);
    }
}

/* ---- cutting ------------------------------------------------------------------------------------------------------------ */

typedef struct amx_geometry {
    int64_t pairs; /* of all parts */
    int32_t row_blocks;
    int32_t groups;
} amx_geometry;

LINEAR_INLINE int64_t amx_part_pairs(const ggfw_step *step, int part)
{
    return (step->weight[part]->n_out + 2 * LINEAR_PANEL - 1) / (2 * LINEAR_PANEL);
}

/* At least 4 chunks per thread where there are pairs enough. */
LINEAR_INLINE amx_geometry amx_cut(const ggfw_step *step, const ggfw_run *run, int32_t rows)
{
    amx_geometry g = { 0, (rows + AMX_ROWS - 1) / AMX_ROWS, 0 };
    for (int p = 0; p < step->params.linear.n_parts; p++) g.pairs += amx_part_pairs(step, p);
    int64_t groups = (g.pairs + AMX_PAIRS - 1) / AMX_PAIRS;
    const int64_t least = (4 * run->n_threads + g.row_blocks - 1) / g.row_blocks;
    if (groups < least) groups = least < g.pairs ? least : g.pairs;
    g.groups = (int32_t)groups;
    return g;
}

static int32_t amx_n_chunks(const ggfw_step *step, const ggfw_run *run, int32_t row_begin, int32_t row_end)
{
    if (row_end <= row_begin) return 0;
    const amx_geometry g = amx_cut(step, run, row_end - row_begin);
    return g.groups * g.row_blocks;
}

/* Column blocks of a piece. */
LINEAR_INLINE int amx_piece(const amx_ops *ops, int64_t blocks, int32_t rows)
{
    const int most = (rows > AMX_STEP ? AMX_PIECE : AMX_FEW_PIECE) / ops->w_planes;
    const int64_t pieces = (blocks + most - 1) / most;
    return (int)((blocks + pieces - 1) / pieces);
}

/* A pair of panels, and where its sums go. */
typedef struct amx_pair {
    const uint8_t *panel; /* the first of the two */
    int64_t column;
    int64_t n_out;
    int both; /* whether there is a second */
    linear_finish finish;
    float *const *out;             /* rows of the result, from column 0 on */
    const float *const *residual; /* or NULL */
} amx_pair;

/* Bytes of scratch for the sums of all pairs of a chunk, then the weights' tiles of one pair and piece. */
LINEAR_INLINE int64_t amx_work_bytes(const amx_ops *ops)
{
    return (int64_t)AMX_PAIRS * (AMX_ROWS / AMX_STEP) * AMX_SUMS + (int64_t)AMX_PIECE * ops->w_planes * 2 * TILE_BYTES;
}

/* Sums of one pair to the rows of the result. */
static void amx_finish(const amx_pair *pair, int n, const float *sums)
{
    const linear_finish *f = &pair->finish;
    const int plain = !f->bias && f->scale == 1 && f->softcap == 0 && !pair->residual;
    for (int r = 0; r < n; r++) {
        for (int h = 0; h <= pair->both; h++) {
            const float *y = sums + r / AMX_STEP * (AMX_SUMS / 4) + (r / TILE_ROWS % 2 * 2 + h) * 256 + r % TILE_ROWS * 16;
            const int64_t column = pair->column + h * LINEAR_PANEL;
            const int columns = pair->n_out - column < LINEAR_PANEL ? (int)(pair->n_out - column) : LINEAR_PANEL;
            if (plain && columns == LINEAR_PANEL) _mm512_storeu_ps(pair->out[r] + column, _mm512_loadu_ps(y));
            else linear_finish_row(f, y, column, columns, pair->residual ? pair->residual[r] : NULL, pair->out[r]);
        }
    }
}

/* n rows (at most AMX_ROWS), as tiles in x, times panel pairs (at most AMX_PAIRS). */
static void amx_block(const amx_ops *ops, const amx_pair *pairs, int n_pairs, const uint8_t *x, int n, int64_t n_in, int piece,
                      void *scratch)
{
    const int64_t blocks = (n_in + LINEAR_BLOCK - 1) / LINEAR_BLOCK, panel_bytes = ops->panel_bytes(n_in);
    const int64_t column_bytes = ops->x_planes * 2 * TILE_BYTES; /* of the tiles of 32 rows and columns */
    float *const sums = scratch;
    uint8_t *const w = (uint8_t *)scratch + (int64_t)AMX_PAIRS * (AMX_ROWS / AMX_STEP) * AMX_SUMS;
    tiles_begin();
    for (int64_t k = 0; k < blocks; k += piece) {
        const int here = blocks - k < piece ? (int)(blocks - k) : piece;
        for (int i = 0; i < n_pairs; i++) {
            const amx_pair *pair = &pairs[i];
            float *pair_sums = sums + i * (AMX_ROWS / AMX_STEP) * (AMX_SUMS / 4);
            for (int h = 0; h <= pair->both; h++)
                ops->unpack(pair->panel + h * panel_bytes, n_in, k, here, w + h * TILE_BYTES);
            for (int r = 0; r < n; r += AMX_STEP)
                ops->multiply(x + (r / AMX_STEP * blocks + k) * column_bytes, w, here,
                              (n - r > TILE_ROWS) | pair->both << 1, k == 0, pair_sums + r / AMX_STEP * (AMX_SUMS / 4));
            if (k + here == blocks) amx_finish(pair, n, pair_sums);
        }
    }
    tiles_end();
}

/* ---- GGFW_OP_LINEAR --------------------------------------------------------------------------------------------------- */

static int64_t amx_scratch_size(const ggfw_step *step, const ggfw_run *run)
{
    (void)run;
    return amx_work_bytes(amx_ops_for(step));
}

static void amx_run(const ggfw_step *step, const ggfw_run *run, int32_t row_begin, int32_t row_end, int32_t chunk,
                    void *scratch)
{
    const amx_ops *ops = amx_ops_for(step);
    const amx_geometry g = amx_cut(step, run, row_end - row_begin);
    const ggfw_linear *params = &step->params.linear;
    const int64_t n_in = step->weight[0]->n_in;
    const int32_t group = chunk / g.row_blocks, block = chunk % g.row_blocks;
    const int32_t row = row_begin + block * AMX_ROWS;
    const int n = row_end - row < AMX_ROWS ? row_end - row : AMX_ROWS;
    const int64_t end = g.pairs * (group + 1) / g.groups;
    float *out[GGFW_MAX_OUTPUTS][AMX_ROWS];
    const float *residual[GGFW_MAX_OUTPUTS][AMX_ROWS];
    amx_pair pairs[AMX_PAIRS];
    int n_pairs = 0, filled = 0;
    for (int64_t i = g.pairs * group / g.groups; i < end; i++) {
        int part = 0;
        int64_t pair = i;
        while (pair >= amx_part_pairs(step, part)) pair -= amx_part_pairs(step, part++);
        const ggfw_weight *weight = step->weight[part];
        const ggfw_view *to = &step->out[part], *add = &step->in[1 + part];
        for (int r = 0; !(filled >> part & 1) && r < n; r++) {
            out[part][r] = (float *)(run->arena + to->offset + (int64_t)(row + r) * to->stride);
            residual[part][r] = (const float *)(run->arena + add->offset + (int64_t)(row + r) * add->stride);
        }
        filled |= 1 << part;
        pairs[n_pairs++] = (amx_pair){ (const uint8_t *)weight->data + 2 * pair * ops->panel_bytes(n_in),
                                       2 * pair * LINEAR_PANEL,
                                       weight->n_out,
                                       (2 * pair + 1) * LINEAR_PANEL < weight->n_out,
                                       { params->bias[part], params->scale, params->softcap },
                                       out[part],
                                       add->width ? residual[part] : NULL };
    }
    amx_block(ops, pairs, n_pairs, run->shared + (int64_t)block * (AMX_ROWS / AMX_STEP) * amx_step_bytes(step), n, n_in,
              amx_piece(ops, amx_blocks(step), row_end - row_begin), scratch);
}

/* ---- GGFW_OP_MOE_LINEAR: chunk = (candidate) x (group of panel pairs) ------------------------------------------------- */

enum { AMX_MOE_ROWS = 64 }; /* rows that become tiles at once, in scratch */

LINEAR_INLINE int32_t amx_moe_groups(const ggfw_step *step, const ggfw_run *run, int32_t candidates)
{
    const int64_t pairs = amx_part_pairs(step, 0), least = (4 * run->n_threads + candidates - 1) / candidates;
    const int64_t groups = (pairs + AMX_PAIRS - 1) / AMX_PAIRS;
    return (int32_t)(groups >= least ? groups : least < pairs ? least : pairs);
}

static int32_t amx_moe_n_chunks(const ggfw_step *step, const ggfw_run *run, int32_t row_begin, int32_t row_end)
{
    if (row_end <= row_begin) return 0;
    const int32_t candidates = linear_moe_candidates(step, row_end - row_begin);
    return candidates * amx_moe_groups(step, run, candidates);
}

static int64_t amx_moe_scratch_size(const ggfw_step *step, const ggfw_run *run)
{
    (void)run;
    return amx_work_bytes(amx_ops_for(step)) + AMX_MOE_ROWS / AMX_STEP * amx_step_bytes(step);
}

static void amx_moe_run(const ggfw_step *step, const ggfw_run *run, int32_t row_begin, int32_t row_end, int32_t chunk,
                        void *scratch)
{
    const ggfw_moe *params = &step->params.moe;
    const ggfw_weight *weight = step->weight[0];
    const amx_ops *ops = amx_ops_for(step);
    const int32_t k = params->n_used, candidates = linear_moe_candidates(step, row_end - row_begin);
    const int32_t groups = amx_moe_groups(step, run, candidates), group = chunk % groups;
    const int64_t n_in = weight->n_in, all = (int64_t)(row_end - row_begin) * k;
    int64_t pair, next;
    const int32_t expert = linear_moe_first(step, run, row_begin, row_end, chunk / groups, &pair, &next);
    if (expert < 0) return;
    const uint8_t *matrix = (const uint8_t *)weight->data + expert * weight->expert_stride;
    const int64_t slot_bytes = params->per_slot_input ? activation_row_bytes(step->in[0].type, n_in) : 0;
    uint8_t *const x = (uint8_t *)scratch + amx_work_bytes(ops);
    const int64_t first = amx_part_pairs(step, 0) * group / groups, end = amx_part_pairs(step, 0) * (group + 1) / groups;
    float *out[AMX_MOE_ROWS];
    amx_pair pairs[AMX_PAIRS];
    for (int64_t i = first; i < end; i++)
        pairs[i - first] = (amx_pair){ matrix + 2 * i * ops->panel_bytes(n_in),
                                       2 * i * LINEAR_PANEL,
                                       weight->n_out,
                                       (2 * i + 1) * LINEAR_PANEL < weight->n_out,
                                       { params->bias ? params->bias + expert * weight->n_out : NULL,
                                         params->expert_scale ? params->expert_scale[expert] : 1, 0 },
                                       out,
                                       NULL };
    while (pair < all) {
        int n = 0;
        for (; pair < all && n < AMX_MOE_ROWS; pair += next) {
            const int32_t row = row_begin + (int32_t)(pair / k), slot = (int32_t)(pair % k);
            if (linear_moe_expert(step, run, row, slot) != expert) continue;
            const uint8_t *at =
                run->arena + step->in[0].offset + (int64_t)row * step->in[0].stride + slot * slot_bytes;
            ops->pack_row(at, n_in, n % AMX_STEP, x + n / AMX_STEP * amx_step_bytes(step));
            out[n++] = (float *)(run->arena + step->out[0].offset + (int64_t)row * step->out[0].stride)
                       + slot * weight->n_out;
        }
        if (n == 0) return;
        for (int r = n; r % AMX_STEP; r++) ops->pack_row(NULL, n_in, r % AMX_STEP, x + r / AMX_STEP * amx_step_bytes(step));
        amx_block(ops, pairs, (int)(end - first), x, n, n_in, amx_piece(ops, amx_blocks(step), n), scratch);
    }
}

/* ---- per format ----------------------------------------------------------------------------------------------------- */

/* F_X: a weight format with an activation type. */
#define AMX_FUNCTIONS(F, X, x_planes, w_planes, unpack_tile)                                                            \
    static void amx_unpack_##F##_##X(const uint8_t *panel, int64_t n_in, int64_t first, int n, uint8_t *tiles)          \
    {                                                                                                                   \
        (void)n_in;                                                                                                     \
        for (int i = 0; i < n; i++, tiles += (w_planes) * 2 * TILE_BYTES) unpack_tile;                                  \
    }                                                                                                                   \
    static const ggfw_kernel amx_product_##F##_##X = {                                                                  \
        .name = "linear_product_" #F "_" #X "_" GGFW_UNIT_NAME, .op = GGFW_OP_LINEAR, .format = TYPE_##F,               \
        .row_classes = GGFW_ROWS_PROMPT, .activation = GGFW_##X, .scratch_size = amx_scratch_size,                      \
        .n_chunks = amx_n_chunks, .run = amx_run };
#define AMX_QUANT_FUNCTIONS(F)                                                                                          \
    static int64_t amx_panel_bytes_##F(int64_t n_in)                                                                    \
    {                                                                                                                   \
        return n_in / LINEAR_TRAITS[TYPE_##F].block * linear_block_bytes(TYPE_##F);                                     \
    }                                                                                                                   \
    AMX_FUNCTIONS(F, Q8, AMX_Q8_PLANES, AMX_Q8_PLANES, bf16_quant_tile(TYPE_##F, AMX_Q8_PLANES, panel, first + i, tiles)) \
    AMX_FUNCTIONS(F, Q16, AMX_Q16_PLANES, AMX_Q16_PLANES, bf16_quant_tile(TYPE_##F, AMX_Q16_PLANES, panel, first + i, tiles))

#define AMX_MULTIPLY(X, x_planes, w_planes)                                                                             \
    static void amx_multiply_##X(const uint8_t *x, const uint8_t *w, int n, int two, int begin, float *sums)            \
    {                                                                                                                   \
        switch (two) {                                                                                                  \
        case 0: amx_multiply(x_planes, w_planes, x, w, n, 0, 0, begin, sums); break;                                    \
        case 1: amx_multiply(x_planes, w_planes, x, w, n, 1, 0, begin, sums); break;                                    \
        case 2: amx_multiply(x_planes, w_planes, x, w, n, 0, 1, begin, sums); break;                                    \
        default: amx_multiply(x_planes, w_planes, x, w, n, 1, 1, begin, sums); break;                                   \
        }                                                                                                               \
    }                                                                                                                   \
    static void amx_pack_row_##X(const uint8_t *row, int64_t n, int r, uint8_t *tiles)                                  \
    {                                                                                                                   \
        bf16_pack_row(GGFW_##X, x_planes, row, n, r, tiles);                                                            \
    }

enum { AMX_Q8_PLANES = 1, AMX_Q16_PLANES = 2, AMX_F32_PLANES = 3 };

AMX_MULTIPLY(Q8, AMX_Q8_PLANES, AMX_Q8_PLANES)
AMX_MULTIPLY(Q16, AMX_Q16_PLANES, AMX_Q16_PLANES)
AMX_MULTIPLY(F32, AMX_F32_PLANES, 1)
LINEAR_QUANT_FORMATS(AMX_QUANT_FUNCTIONS)

static int64_t amx_panel_bytes_BF16(int64_t n_in) { return (n_in * LINEAR_PANEL * 2 + 63) / 64 * 64; }
AMX_FUNCTIONS(BF16, F32, AMX_F32_PLANES, 1, bf16_plain_tile(panel, n_in, first + i, tiles))

#define AMX_OPS(F, X, x_planes, w_planes)                                                                               \
    [TYPE_##F][GGFW_##X] = { GGFW_##X, x_planes, w_planes, amx_panel_bytes_##F, amx_unpack_##F##_##X, amx_multiply_##X, \
                             amx_pack_row_##X },
#define AMX_QUANT_OPS(F) AMX_OPS(F, Q8, AMX_Q8_PLANES, AMX_Q8_PLANES) AMX_OPS(F, Q16, AMX_Q16_PLANES, AMX_Q16_PLANES)

static const amx_ops *amx_ops_of(int32_t format, int32_t activation)
{
    static const amx_ops table[40][GGFW_Q16 + 1] = { LINEAR_QUANT_FORMATS(AMX_QUANT_OPS) AMX_OPS(BF16, F32, AMX_F32_PLANES, 1) };
    return &table[format][activation];
}

/* Without a pack of their own: they read what the other units' kernels packed (GGFW_KERNEL_R16). */
#define AMX_ENTRY(F, X)                                                                                                 \
    { .name = "linear_" #F "_" #X "_" GGFW_UNIT_NAME, .op = GGFW_OP_LINEAR, .format = TYPE_##F,                         \
      .row_classes = GGFW_ROWS_PROMPT, .activation = GGFW_##X, .flags = GGFW_KERNEL_R16, .n_chunks = amx_pack_chunks,   \
      .run = amx_pack_run, .shared_size = amx_shared_size, .then = &amx_product_##F##_##X },                           \
    { .name = "moe_linear_" #F "_" #X "_" GGFW_UNIT_NAME, .op = GGFW_OP_MOE_LINEAR, .format = TYPE_##F,                 \
      .row_classes = GGFW_ROWS_PROMPT, .activation = GGFW_##X, .flags = GGFW_KERNEL_R16,                                \
      .scratch_size = amx_moe_scratch_size, .n_chunks = amx_moe_n_chunks, .run = amx_moe_run },
#define AMX_QUANT_ENTRIES(F) AMX_ENTRY(F, Q8) AMX_ENTRY(F, Q16)

#define GGFW_LINEAR_AMX_KERNELS LINEAR_QUANT_FORMATS(AMX_QUANT_ENTRIES) AMX_ENTRY(BF16, F32)

#endif
