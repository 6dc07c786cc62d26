/* pack.c: packing weights and one-off products with the pool's threads. */
#include "activation.h"
#include "file_rows.h"
#include "ggfw_executor.h"
#include "platform.h"
#include "pool.h"

#include <string.h>

/* ggml type id -> elements and bytes per block (ggml-common.h). */
static const struct {
    int16_t elements;
    int16_t bytes;
} blocks[] = {
    [0] = {1, 4},      [1] = {1, 2},      [2] = {32, 18},    [3] = {32, 20},    [6] = {32, 22},    [7] = {32, 24},
    [8] = {32, 34},    [9] = {32, 36},    [10] = {256, 84},  [11] = {256, 110}, [12] = {256, 144}, [13] = {256, 176},
    [14] = {256, 210}, [15] = {256, 292}, [16] = {256, 66},  [17] = {256, 74},  [18] = {256, 98},  [19] = {256, 50},
    [20] = {32, 18},   [21] = {256, 110}, [22] = {256, 82},  [23] = {256, 136}, [24] = {1, 1},     [25] = {1, 2},
    [26] = {1, 4},     [27] = {1, 8},     [28] = {1, 8},     [29] = {256, 56},  [30] = {1, 2},     [34] = {256, 54},
    [35] = {256, 66},  [39] = {32, 17},   [40] = {64, 36},
};

int64_t file_row_bytes(int32_t format, int64_t n_in) {
    if (format < 0 || format >= (int32_t)(sizeof blocks / sizeof *blocks)) return 0;
    int64_t elements = blocks[format].elements;
    return elements == 0 || n_in % elements != 0 ? 0 : n_in / elements * blocks[format].bytes;
}

enum { CHUNK_BYTES = 256 * 1024, REGION_CHUNKS = 64 };

/* ---- packing --------------------------------------------------------------------------------------------------- */

typedef struct pack_job {
    const ggfw_kernel *kernel;
    const uint8_t *from;
    uint8_t *to;
    int64_t n_out;
    int64_t n_in;
    int64_t n_expert;
    int64_t from_stride; /* bytes from one expert to the next */
    int64_t to_stride;
    int64_t rows_per_chunk;
    int64_t chunks_per_expert;
    int64_t first_chunk; /* of the region that is open, */
    int64_t n_chunks;    /* and how many chunks it has; 0 before the first */
    int64_t most_chunks; /* of a region */
    int32_t release;
} pack_job;

static void pack_chunk(void *context, int32_t chunk, int32_t thread) {
    (void)thread;
    const pack_job *j = context;
    int64_t at = j->first_chunk + chunk;
    int64_t expert = at / j->chunks_per_expert;
    int64_t first = at % j->chunks_per_expert * j->rows_per_chunk;
    int64_t n = j->n_out - first < j->rows_per_chunk ? j->n_out - first : j->rows_per_chunk;
    j->kernel->pack(j->from + expert * j->from_stride, j->n_out, j->n_in, first, n, j->to + expert * j->to_stride);
}

/* Byte of the file's rows at which a chunk begins. */
static int64_t byte_of_chunk(const pack_job *j, int64_t chunk) {
    int64_t row = chunk % j->chunks_per_expert * j->rows_per_chunk;
    return chunk / j->chunks_per_expert * j->from_stride + j->from_stride / j->n_out * row;
}

/* Regions of a few megabytes: what was read of the file is given back after each of them, so that a large matrix does not
 * stand in memory twice. */
static int32_t pack_next(void *context, pool_region *region) {
    pack_job *j = context;
    int64_t total = j->chunks_per_expert * j->n_expert;
    int64_t next = j->first_chunk + j->n_chunks;
    if (j->release && j->n_chunks > 0) {
        int64_t begin = byte_of_chunk(j, j->first_chunk);
        platform_release(j->from + begin, byte_of_chunk(j, next) - begin);
    }
    if (next == total) return 0;
    j->first_chunk = next;
    j->n_chunks = total - next < j->most_chunks ? total - next : j->most_chunks;
    *region = (pool_region){pack_chunk, j, (int32_t)j->n_chunks};
    return 1;
}

static int32_t pack_one(const ggfw_packing *p) {
    const ggfw_kernel *kernel = p->kernel;
    int64_t n_out = p->n_out, n_in = p->n_in, n_expert = p->n_expert;
    if (kernel == NULL || kernel->pack == NULL || kernel->pack_size == NULL || n_out < 1 || n_in < 1 || n_expert < 1)
        return GGFW_ERR_ARGUMENT;
    int64_t row = file_row_bytes(kernel->format, n_in);
    if (row == 0 && n_expert > 1) return GGFW_ERR_ARGUMENT; /* where would the second expert be? */
    int64_t rows = (CHUNK_BYTES / (row > 0 ? row : n_in) + 15) / 16 * 16;
    pack_job job = {
        .kernel = kernel,
        .from = p->file_rows,
        .to = p->packed,
        .n_out = n_out,
        .n_in = n_in,
        .n_expert = n_expert,
        .from_stride = row * n_out,
        .to_stride = kernel->pack_size(n_out, n_in),
        .rows_per_chunk = rows > 0 ? rows : 16,
        .release = p->release,
    };
    job.chunks_per_expert = (n_out + job.rows_per_chunk - 1) / job.rows_per_chunk;
    job.most_chunks = p->release ? REGION_CHUNKS : INT32_MAX;
    pool_job pool = {pack_next, &job, NULL};
    pool_enter();
    pool_run(&pool);
    pool_leave();
    return GGFW_OK;
}

int32_t ggfw_pack(const ggfw_packing *packings, int32_t n) {
    for (int32_t i = 0; i < n; i++) {
        int32_t status = pack_one(&packings[i]);
        if (status != GGFW_OK) return status;
    }
    return GGFW_OK;
}

/* ---- one product without a plan -------------------------------------------------------------------------------- */

static int64_t align_up(int64_t n) { return (n + 63) / 64 * 64; }

/* A plan of one or two steps over an arena that holds x, its quantised form and y. */
static int32_t run_linear(const ggfw_weight *weight, const ggfw_kernel *quantize, const float *x, int32_t n_rows,
                          float *y) {
    int32_t n_in = (int32_t)weight->n_in, n_out = (int32_t)weight->n_out;
    int32_t type = weight->kernel->activation;
    int quantised = type != GGFW_F32;
    ggfw_view view_x = {0, (int32_t)align_up(n_in * 4LL), n_in, GGFW_F32, 0};
    ggfw_view view_q = {view_x.offset + (int64_t)view_x.stride * n_rows,
                        (int32_t)activation_row_bytes(type, n_in), n_in, type, 0};
    ggfw_view view_y = {view_q.offset + (int64_t)view_q.stride * n_rows, (int32_t)align_up(n_out * 4LL), n_out,
                        GGFW_F32, 0};
    ggfw_step steps[2];
    memset(steps, 0, sizeof steps);
    steps[0] = (ggfw_step){.op = GGFW_OP_QUANTIZE, .in = {view_x}, .out = {view_q}, .decode = quantize,
                           .prompt = quantize};
    steps[1] = (ggfw_step){.op = GGFW_OP_LINEAR, .in = {quantised ? view_q : view_x}, .out = {view_y}, .weight = {weight},
                           .decode = weight->kernel, .prompt = weight->kernel};
    steps[1].params.linear.n_parts = 1;
    steps[1].params.linear.scale = 1.0f;
    ggfw_executor *e = ggfw_executor_new(steps + !quantised, 1 + quantised, view_y.offset + (int64_t)view_y.stride * n_rows, n_rows,
                                         0, NULL, 0, NULL, 0, 2048);
    int32_t *rows = ggfw_memory_new(2LL * n_rows * (int64_t)sizeof(int32_t), 0); /* positions, row_segment */
    if (e == NULL || rows == NULL) {
        ggfw_executor_free(e);
        ggfw_memory_free(rows, 2LL * n_rows * (int64_t)sizeof(int32_t));
        return GGFW_ERR_MEMORY;
    }
    for (int32_t i = 0; i < n_rows; i++) rows[i] = i;
    ggfw_segment segment = {.n_rows = n_rows, .row_class = GGFW_ROWS_DECODE, .state_read = -1, .output = -1};
    ggfw_batch batch = {.n_rows = n_rows,
                        .n_decode_rows = n_rows,
                        .n_segments = 1,
                        .positions = rows,
                        .row_segment = rows + n_rows,
                        .segments = &segment};
    uint8_t *arena = ggfw_executor_arena(e);
    for (int32_t i = 0; i < n_rows; i++)
        memcpy(arena + (int64_t)i * view_x.stride, x + (int64_t)i * n_in, (size_t)n_in * sizeof *x);
    int32_t status = ggfw_executor_run(e, &batch, 0, -1);
    for (int32_t i = 0; i < n_rows; i++)
        memcpy(y + (int64_t)i * n_out, arena + view_y.offset + (int64_t)i * view_y.stride, (size_t)n_out * sizeof *y);
    ggfw_memory_free(rows, 2LL * n_rows * (int64_t)sizeof(int32_t));
    ggfw_executor_free(e);
    return status;
}

int32_t ggfw_linear_once(const ggfw_kernel *linear, const ggfw_kernel *quantize, const void *file_rows, int64_t n_out,
                         int64_t n_in, const float *x, int32_t n_rows, float *y) {
    if (linear == NULL || linear->op != GGFW_OP_LINEAR || n_out < 1 || n_in < 1 || n_out > INT32_MAX / 8 ||
        n_in > INT32_MAX / 8 || n_rows < 1 || (linear->n_in_multiple > 1 && n_in % linear->n_in_multiple != 0) ||
        (linear->activation != GGFW_F32 && (quantize == NULL || n_in % 32 != 0)))
        return GGFW_ERR_ARGUMENT;
    int64_t packed_bytes = linear->pack ? linear->pack_size(n_out, n_in) : 0;
    void *packed = packed_bytes > 0 ? ggfw_memory_new(packed_bytes, 0) : NULL;
    if (packed_bytes > 0 && packed == NULL) return GGFW_ERR_MEMORY;
    ggfw_packing packing = {linear, file_rows, n_out, n_in, 1, packed, 0, 0};
    int32_t status = linear->pack ? ggfw_pack(&packing, 1) : GGFW_OK;
    if (status == GGFW_OK) {
        ggfw_weight weight = {.data = linear->pack ? packed : file_rows,
                              .format = linear->format,
                              .layout = linear->pack ? GGFW_LAYOUT_PACKED : GGFW_LAYOUT_FILE,
                              .n_out = n_out,
                              .n_in = n_in,
                              .n_expert = 1,
                              .kernel = linear};
        status = run_linear(&weight, quantize, x, n_rows, y);
    }
    ggfw_memory_free(packed, packed_bytes);
    return status;
}
