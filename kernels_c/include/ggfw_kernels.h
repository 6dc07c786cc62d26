/* ggfw_kernels.h: the public C contract between a plan, the executor and the kernel libraries.
 *
 * A *plan* is a flat list of steps, made once per model in Python (ggfw.graph.plan). The *executor* runs all steps of
 * the plan for one ragged batch in one call. A *kernel* is one entry of a library's table: (op, format, row classes)
 * -> functions. Third parties may ship further libraries (kernel backends) or single kernels (ops of their own).
 *
 * The text between the two markers is read by cffi as it stands: declarations only, no macros with arguments.
 */
#ifndef GGFW_KERNELS_H
#define GGFW_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#pragma GCC visibility push(default)
#endif

/* cffi: begin */

#define GGFW_KERNELS_ABI 2

#define GGFW_MAX_INPUTS 6
#define GGFW_MAX_OUTPUTS 4
#define GGFW_MAX_WEIGHTS 4
#define GGFW_MAX_POOLS 4
#define GGFW_FORMAT_NONE -1

/* ---- views: where a tensor of the plan lives ---------------------------------------------------------------- */

enum ggfw_type {
    GGFW_F32 = 0,
    GGFW_I32 = 1,
    /* Activations quantised to int8, one float scale per 16 columns. A row of n columns (n % 32 == 0) is
     *   int8_t  q[n]            padded to a multiple of 64 bytes
     *   float   d[n / 16]       value = d * q
     *   int32_t sum[n / 16]     sum of q
     *   float   total[n / 32]   sum of the values d * q of 32 columns (the two products added in double)
     * d, sum and total follow each other without padding; the whole row is padded to a multiple of 64 bytes.
     * d = max|x| / 127 (0 for a block of zeros), q = round to nearest even of x / d. */
    GGFW_Q8 = 2,
    /* Activations of 15 bits in two int8 planes, one float scale per 32 columns. A row of n columns (n % 32 == 0) is
     *   int8_t  q[n / 32][2][32]  of every 32 columns the high parts h, then the low parts l
     *   float   d[n / 32]         value = d * (128 * h + l)
     *   int32_t sum[n / 16]       sum of 128 * h + l
     *   float   total[n / 32]     sum of the values: d times both sums, rounded once
     * without padding between them; the whole row is padded to a multiple of 64 bytes.
     * d = max|x| / 16256 (0 for a block of zeros), 128 * h + l = round to nearest even of x / d, -64 <= l < 64. */
    GGFW_Q16 = 3
};

typedef struct ggfw_view {
    int64_t offset; /* bytes from the arena's base to row 0 */
    int32_t stride; /* bytes from one row to the next; a multiple of 64 except where the view is a column range */
    int32_t width;  /* elements per row; 0 = this view is absent */
    int32_t type;   /* enum ggfw_type */
    int32_t reserved;
} ggfw_view;

/* Which rows a step works on. */
enum ggfw_domain {
    GGFW_DOMAIN_ROWS = 0,     /* every token row of the batch */
    GGFW_DOMAIN_OUTPUTS = 1,  /* the gathered rows that want logits or hidden states */
    GGFW_DOMAIN_SEQUENCES = 2 /* one row per segment (pooling); capacity: max_outputs */
};

/* Rows of a batch are ordered: all decode rows first, then prompt rows. The route belongs to the kind of row. */
enum ggfw_row_class { GGFW_ROWS_DECODE = 1, GGFW_ROWS_PROMPT = 2, GGFW_ROWS_ANY = 3 };

/* ---- weights ---------------------------------------------------------------------------------------------- */

enum ggfw_layout {
    GGFW_LAYOUT_FILE = 0,  /* rows as they stand in the GGUF file */
    GGFW_LAYOUT_PACKED = 1 /* whatever the kernel's pack() wrote */
};

struct ggfw_kernel;

typedef struct ggfw_weight {
    const void *data;
    int32_t format; /* ggml type id */
    int32_t layout; /* enum ggfw_layout */
    int64_t n_out;  /* rows */
    int64_t n_in;   /* columns */
    int64_t n_expert;      /* 1, or the number of experts stored one after the other */
    int64_t expert_stride; /* bytes from one expert to the next */
    const struct ggfw_kernel *kernel; /* the linear kernel whose pack() wrote data (also serves row look-ups) */
} ggfw_weight;

/* ---- the batch of one step ---------------------------------------------------------------------------------- */

typedef struct ggfw_segment { /* consecutive rows of one sequence */
    int32_t row;         /* first row */
    int32_t n_rows;
    int32_t position;    /* position of the first row in its sequence; rows follow each other */
    int32_t row_class;   /* GGFW_ROWS_DECODE or GGFW_ROWS_PROMPT */
    int32_t state_read;  /* recurrent state slot to read, -1 = start from zero */
    int32_t state_write; /* recurrent state slot to write */
    int32_t output;      /* index of its first output row, -1 = none */
    int32_t n_outputs;   /* its last n_outputs rows are outputs */
    int32_t table[GGFW_MAX_POOLS]; /* per pool: index into pages[] of the page that holds position 0 */
} ggfw_segment;

enum ggfw_wants { GGFW_WANT_LOGITS = 1, GGFW_WANT_HIDDEN = 2, GGFW_WANT_POOLED = 4 };

struct ggfw_sampler;

typedef struct ggfw_batch {
    int32_t n_rows;
    int32_t n_decode_rows; /* the first n_decode_rows rows are decode rows, the others prompt rows */
    int32_t n_segments;
    int32_t n_outputs;
    int32_t n_decode_outputs; /* outputs of decode rows come first as well */
    int32_t wants;            /* enum ggfw_wants, or-ed */
    const int32_t *tokens;    /* [n_rows] token ids, or NULL when embeddings are given */
    const float *embeddings;  /* [n_rows, n_embd] or NULL */
    const int32_t *positions; /* [n_rows] */
    const int32_t *row_segment; /* [n_rows] index of the row's segment */
    const ggfw_segment *segments; /* [n_segments] */
    const int32_t *pages;         /* page tables of all segments and pools; -1 = given back (outside the window) */
    const int32_t *output_rows;   /* [n_outputs] row of each output */
    struct ggfw_sampler *const *samplers; /* [n_outputs] or NULL; a NULL entry is a host row. A sampler with further
                                             outputs of its segment behind it verifies their tokens as drafts: it draws
                                             from row after row, as long as it draws the token of the next one. */
    int32_t *sampled; /* [n_outputs] result: token id, or a negative sampler status; untouched for host rows, and for
                         drafts that the walk did not reach */
    int64_t n_pages;  /* entries of pages */
} ggfw_batch;

/* ---- cache pools ---------------------------------------------------------------------------------------------- */

/* Pages of the layers of one kind. A page holds page_size positions of K and of V of every layer of the pool:
 *   K of (layer l, page p): k + (l * n_pages + p) * k_page_bytes, as [n_head_kv][page_size][d_k]
 *   V likewise with d_v; v = NULL: V is the first d_v columns of K. Element type: enum ggfw_kv_type.
 *
 * Q8_0 and Q4_0 are quantised in blocks of 32 columns of one head at one position, the last block of a row filled up
 * with zeros (n blocks for d columns). 16 positions make a group, [n_head_kv][page_size / 16][group] to the page:
 *   group: 16 rows of n * 32 int8 (Q8_0), or of n * 16 bytes (Q4_0: low nibbles are columns 0-15 of a block, high ones
 *   16-31, 8 stands for zero), then scales [n][16 positions] as f16. Value = scale * number. */
enum ggfw_kv_type { GGFW_KV_F32 = 0, GGFW_KV_F16 = 1, GGFW_KV_BF16 = 2, GGFW_KV_Q8_0 = 3, GGFW_KV_Q4_0 = 4 };

typedef struct ggfw_pool {
    uint8_t *k;
    uint8_t *v;
    int64_t k_page_bytes;
    int64_t v_page_bytes;
    int32_t n_layers;
    int32_t n_pages;
    int32_t page_size; /* positions, a multiple of 16 */
    int32_t type;      /* enum ggfw_kv_type */
    int32_t n_head_kv;
    int32_t d_k;
    int32_t d_v;
    int32_t reserved;
} ggfw_pool;

/* Recurrent state of one op: n_slots slots of slot_floats floats. */
typedef struct ggfw_state {
    float *data;
    int64_t slot_floats;
    int32_t n_slots;
    int32_t n_ring; /* slots of one sequence, which follow each other as a ring; a divisor of n_slots; 0 = 1 */
} ggfw_state;

/* ---- steps ---------------------------------------------------------------------------------------------------- */

enum ggfw_op {
    /* in: -; weight[0]: table, read through its kernel's unpack_rows; out[0] = row of the token (or the given
     * embedding) * scale. A kernel with op EMBED, a format and NULL pack brings unpack_rows for the file layout. */
    GGFW_OP_EMBED = 1,
    GGFW_OP_LINEAR = 2,     /* in[0]: x (F32, Q8 or Q16, as the kernel's activation says); parts: see ggfw_linear */
    GGFW_OP_QUANTIZE = 3,   /* in[0]: F32 -> out[0]: Q8 or Q16; see ggfw_quantize */
    GGFW_OP_NORM = 4,       /* in[0] (+ in[1] residual); see ggfw_norm */
    GGFW_OP_ROPE_TABLE = 5, /* out[0]: [n_rot / 2][2] cos, sin of each row's position; see ggfw_rope */
    GGFW_OP_ROPE_STORE = 6, /* rope on q and k, and k, v into the cache; see ggfw_rope_store */
    GGFW_OP_ATTENTION = 7,  /* in[0]: q; out[0]: [n_head * d_v] (+ out[1]: the same quantised); see ggfw_attention */
    GGFW_OP_ELEMENTWISE = 8,  /* in[0] (, in[1]) -> out[0] (+ out[1]: quantised); see ggfw_elementwise */
    GGFW_OP_GATHER = 9,       /* in[0]: ROWS -> out[0]: OUTPUTS */
    GGFW_OP_COPY = 10,        /* in[0] -> out[0] (column range of a concatenation, or of slots); see ggfw_copy */
    GGFW_OP_MOE_ROUTE = 11,   /* in[0]: router logits -> out[0]: I32 [k] ids, out[1]: F32 [k] weights; ggfw_moe */
    /* in[0]: x ([n_in] or [k, n_in]), in[1]: ids; weight[0]: experts; out[0]: [k, n_out]. Without ids slot s uses
     * matrix s, and k is their number. */
    GGFW_OP_MOE_LINEAR = 12,
    GGFW_OP_MOE_SUM = 13,     /* in[0]: [k, n], in[1]: weights [k] (+ in[2] residual) -> out[0]: [n] */
    GGFW_OP_POOL = 14,        /* in[0]: ROWS or OUTPUTS -> out[0]: SEQUENCES; see ggfw_pooling */
    GGFW_OP_SAMPLE = 15,      /* in[0]: logits (OUTPUTS); runs batch->samplers into batch->sampled */
    GGFW_OP_SHORT_CONV = 16,  /* in[0]: [n] -> out[0]: [n], other memory; see ggfw_short_conv */
    GGFW_OP_SSM_SCAN = 17,    /* in[0]: x, in[1]: dt, in[2]: b, in[3]: c -> out[0]: [n_head * head_dim]; ggfw_ssm_scan */
    GGFW_OP_DELTA_RULE = 18,  /* in[0]: q, in[1]: k, in[2]: v, in[3]: decay, in[4]: beta -> out[0]; ggfw_delta_rule */
    GGFW_OP_REDUCE = 19,      /* in[0]: [n * group] -> out[0]: [n]; see ggfw_reduce */
    GGFW_OP_CUSTOM = 64       /* a third party's kernel; params: custom */
};

/* One activation, several weights: parts share in[0]; part i writes out[i] of n_out_i columns.
 * y = W x (+ bias) (* scale), then out = y, or out = y + in[1 + i] where that residual view is present
 * (it may be the same memory as out[i]). */
typedef struct ggfw_linear {
    int32_t n_parts;
    int32_t reserved;
    const float *bias[GGFW_MAX_OUTPUTS]; /* [n_out_i] or NULL */
    float scale;  /* 1 unless the graph scales the product */
    float softcap; /* 0 = none, else cap * tanh(y / cap): after scale, before the residual */
} ggfw_linear;

/* One kernel for the norms: group = columns that are normalised together (width for the whole row, head_dim for
 * per head). x = in[0] (+ in[1] when present; the sum goes to out[2] when present: the residual stream).
 *   RMS:   y = x / sqrt(mean(x^2) + eps) * weight
 *   LAYER: y = (x - mean) / sqrt(var + eps) * weight + bias
 *   L2:    y = x / sqrt(sum(x^2) + eps)
 * weight has weight_width entries (group, or the whole width), NULL = 1. out[0]: F32 (may be absent),
 * out[1]: Q8 or Q16 (may be absent). */
enum ggfw_norm_kind { GGFW_NORM_RMS = 0, GGFW_NORM_LAYER = 1, GGFW_NORM_L2 = 2 };

typedef struct ggfw_norm {
    int32_t kind;
    int32_t group;
    int32_t weight_width;
    float eps;
    float scale; /* y is multiplied by it; 1 normally */
    int32_t reserved;
    const float *weight;
    const float *bias;
} ggfw_norm;

typedef struct ggfw_rope {
    int32_t n_rot; /* rotated columns, even */
    int32_t section_width; /* reserved */
    float magnitude;       /* cos and sin are multiplied by it (yarn) */
    int32_t reserved;
    const float *inv_freq; /* [n_rot / 2] radians per position, all scalings and factors applied */
} ggfw_rope;

/* in[0]: q, in[1]: k, in[2]: v, in[3]: rope table of q and k (absent = no rotation); q is written to out[0] (may be
 * in[0]), k and v go to the cache of (pool, layer) at the row's position. Absent k (width 0): q only; absent q: k and v
 * only; absent v: K only.
 * q and k may be RMS-normalised per head before the rotation (q_norm, k_norm: [d] or NULL with norm_flags bit set for
 * a norm without weight), and q is multiplied by q_scale after it. v_norm likewise (bit 4), without rotation. */
enum ggfw_rope_pairing { GGFW_ROPE_NORM = 0, GGFW_ROPE_NEOX = 1 };
enum ggfw_norm_flags { GGFW_NORM_Q = 1, GGFW_NORM_K = 2, GGFW_NORM_V = 4 };

typedef struct ggfw_rope_store {
    int32_t n_head;
    int32_t n_head_kv;
    int32_t d_k;
    int32_t d_v;
    int32_t n_rot;
    int32_t pairing;
    int32_t norm_flags;
    int32_t pool;
    int32_t layer; /* index within the pool */
    float eps;
    float q_scale;
    int32_t reserved;
    const float *q_norm;
    const float *k_norm;
    const float *v_norm;
} ggfw_rope_store;

/* softmax(scale * q k^T, masked) v over the cache of (pool, layer); GQA: head h reads kv head h / (n_head / n_head_kv).
 * Key p0 is visible to query p1 iff p0 <= p1 (unless bidirectional) and, with window > 0, p1 - p0 < window.
 * Bidirectional: all keys of the segment but those that the window hides; with GGFW_BOTH_SIDES the window is on both
 * sides: |p1 - p0| <= window / 2. softcap: cap * tanh(s / cap) before the mask. sinks: a logit per head that
 * joins max and denominator only. alibi: slope per head, adds slope * (p0 - p1). Sums are kept in f32. */
enum ggfw_direction { GGFW_CAUSAL = 0, GGFW_BIDIRECTIONAL = 1, GGFW_BOTH_SIDES = 2 };

typedef struct ggfw_attention {
    int32_t n_head;
    int32_t n_head_kv;
    int32_t d_k;
    int32_t d_v;
    int32_t pool;
    int32_t layer;
    int32_t window;
    int32_t bidirectional; /* enum ggfw_direction */
    float scale;
    float softcap;
    const float *sinks;
    const float *alibi;
} ggfw_attention;

/* a = in[0], b = in[1]; alpha, beta, gamma: scalars. out[0] may be the memory of in[0] or in[1]. The b of a binary op may have width 1 per row (broadcast), or be a
 * constant vector (vector != NULL, [vector_width], repeated over the width). */
enum ggfw_elementwise_kind {
    GGFW_EW_ADD = 0,        /* a + b */
    GGFW_EW_MUL = 1,        /* a * b */
    GGFW_EW_SCALE = 2,      /* a * alpha + beta */
    GGFW_EW_SILU = 3,       /* a * sigmoid(a) */
    GGFW_EW_GELU_TANH = 4,
    GGFW_EW_GELU_ERF = 5,
    GGFW_EW_RELU = 6,
    GGFW_EW_RELU2 = 7,      /* max(a, 0)^2 */
    GGFW_EW_SIGMOID = 8,
    GGFW_EW_SOFTPLUS = 9,   /* identity above 20 */
    GGFW_EW_EXP = 10,
    GGFW_EW_TANH = 11,
    GGFW_EW_SOFTCAP = 12,   /* alpha * tanh(a / alpha) */
    GGFW_EW_CLAMP = 13,     /* min(max(a, alpha), beta) */
    GGFW_EW_POSITION_SCALE = 14, /* a * (1 + beta * ln(1 + floor((position + gamma) / alpha))): attention temperature */
    GGFW_EW_SILU_MUL = 32,      /* silu(a) * b: gates, fused by a pass */
    GGFW_EW_GELU_TANH_MUL = 33,
    GGFW_EW_GELU_ERF_MUL = 34,
    GGFW_EW_RELU2_MUL = 35,
    GGFW_EW_SIGMOID_MUL = 36,
    GGFW_EW_GPT_OSS = 37        /* g = min(a, beta); u = clamp(b, -beta, beta); g * sigmoid(alpha * g) * (u + 1) */
};

typedef struct ggfw_elementwise {
    int32_t kind;
    int32_t vector_width;
    float alpha;
    float beta;
    float gamma;
    int32_t reserved;
    const float *vector;
} ggfw_elementwise;

/* One value for each group of columns. MEAN: their mean; NORM: sqrt of the sum of their squares. */
enum ggfw_reduce_kind { GGFW_REDUCE_MEAN = 0, GGFW_REDUCE_NORM = 1 };

typedef struct ggfw_reduce {
    int32_t kind;
    int32_t group;
} ggfw_reduce;

/* With slots > 1 a row is slots blocks of width / slots columns, `from` columns apart in in[0] and `to` apart in
 * out[0], whose widths count the columns that move. With from = 0 in[0] is one block, which goes to every slot. Without
 * slots a row is one block. */
typedef struct ggfw_copy {
    int32_t slots;
    int32_t from;
    int32_t to;
    int32_t reserved;
} ggfw_copy;

/* A row of slots * n columns becomes slots quantised rows of n columns each, one after the other (experts' inputs); the width
 * of out[0] is slots * n as well. */
typedef struct ggfw_quantize {
    int32_t slots; /* 1 normally */
    int32_t reserved;
} ggfw_quantize;

/* Gate function -> (selection += bias) -> top-k (ties to the lower id) -> optional renormalisation -> scale. */
enum ggfw_gate { GGFW_GATE_SOFTMAX = 0, GGFW_GATE_SIGMOID = 1, GGFW_GATE_SOFTMAX_WEIGHT = 2 };

typedef struct ggfw_moe {
    int32_t n_expert;
    int32_t n_used;
    int32_t gate;
    int32_t renormalise; /* divide by the sum, clamped to at least 6.103515625e-5 */
    int32_t n_group;
    int32_t n_group_used;
    float scale;
    int32_t per_slot_input;     /* MOE_LINEAR: 1 = in[0] is [k, n_in], 0 = the same x for all k */
    const float *selection_bias; /* [n_expert] or NULL */
    const float *bias;           /* MOE_LINEAR: [n_expert, n_out] or NULL */
    const float *expert_scale;   /* MOE_LINEAR: result of expert e times expert_scale[e], or NULL */
} ggfw_moe;

enum ggfw_pooling_kind { GGFW_POOL_MEAN = 0, GGFW_POOL_FIRST = 1, GGFW_POOL_LAST = 2 };

typedef struct ggfw_pooling {
    int32_t kind;
    int32_t input_domain; /* enum ggfw_domain of in[0]: ROWS, or OUTPUTS (the segment's output rows) */
} ggfw_pooling;

/* Recurrent ops scan the rows of a segment in order. The state before its first row stands in slot state_read of
 * run->states[state] (-1: zeros), the state after its last row goes to slot state_write; every step writes it. Where
 * both are slots of one ring, n places apart, and the rows are decode rows, the states after the last n of them (or all)
 * go to the slots up to state_write, one each: of drafts, any may turn out to be the last that counts. */

/* y[r] = sum over j < kernel of weight[j] * x[r - kernel + 1 + j] + bias, by column; then the activation.
 * State: the last kernel - 1 rows of x, oldest first, [kernel - 1][n]. */
#define GGFW_CONV_MAX 32 /* largest kernel */
enum ggfw_conv_activation { GGFW_CONV_NONE = 0, GGFW_CONV_SILU = 1 };

typedef struct ggfw_short_conv {
    int32_t kernel; /* 2 .. GGFW_CONV_MAX */
    int32_t activation;
    int32_t state;
    int32_t reserved;
    const float *weight; /* [kernel][n], oldest row first */
    const float *bias;   /* [n] or NULL */
} ggfw_short_conv;

/* Mamba-2: S = exp(dt * a) * S + b (dt * x)^T, y = S^T c + d * x, for each head; b and c are those of group
 * head / (n_head / n_group). State: [n_head][n_state][head_dim]. */
typedef struct ggfw_ssm_scan {
    int32_t n_head;
    int32_t head_dim;
    int32_t n_group;
    int32_t n_state;
    int32_t state;
    int32_t reserved;
    const float *a; /* [n_head], negative */
    const float *d; /* [n_head] */
} ggfw_ssm_scan;

/* S = e^decay * S; delta = beta * (v - S^T k); S = S + k delta^T; y = scale * S^T q, for each value head; q and k are
 * those of key head h / (n_head_v / n_head_k) or h mod n_head_k. State: [n_head_v][d_k][d_v]. */
enum ggfw_head_pairing { GGFW_PAIR_DIV = 0, GGFW_PAIR_MOD = 1 };

typedef struct ggfw_delta_rule {
    int32_t n_head_k;
    int32_t n_head_v;
    int32_t d_k;
    int32_t d_v;
    int32_t pairing;
    int32_t state;
    float scale;
    int32_t reserved;
} ggfw_delta_rule;

typedef struct ggfw_embed {
    float scale;
    int32_t by; /* 0 = token, 1 = position, 2 = token, or row 0 for a batch of embeddings, 3 = row 0 for all */
} ggfw_embed;

typedef struct ggfw_custom {
    int64_t i[8];
    double f[8];
    const float *constant[4];
    int32_t state; /* index into run->states, -1 = none */
    int32_t reserved;
} ggfw_custom;

typedef struct ggfw_step {
    int32_t op;     /* enum ggfw_op */
    int32_t domain; /* enum ggfw_domain of its outputs */
    int32_t needed_for; /* enum ggfw_wants: skipped unless the batch wants one of them; 0 = always needed */
    int32_t flags;      /* enum ggfw_step_flags */
    ggfw_view in[GGFW_MAX_INPUTS];
    ggfw_view out[GGFW_MAX_OUTPUTS];
    const ggfw_weight *weight[GGFW_MAX_WEIGHTS];
    const struct ggfw_kernel *decode; /* kernel for decode rows */
    const struct ggfw_kernel *prompt; /* kernel for prompt rows; when equal to decode, one region serves all rows */
    union {
        ggfw_linear linear;
        ggfw_quantize quantize;
        ggfw_norm norm;
        ggfw_rope rope;
        ggfw_rope_store rope_store;
        ggfw_attention attention;
        ggfw_elementwise elementwise;
        ggfw_copy copy;
        ggfw_reduce reduce;
        ggfw_moe moe;
        ggfw_pooling pooling;
        ggfw_embed embed;
        ggfw_short_conv short_conv;
        ggfw_ssm_scan ssm_scan;
        ggfw_delta_rule delta_rule;
        ggfw_custom custom;
    } params;
} ggfw_step;

enum ggfw_step_flags { GGFW_STEP_REEXECUTABLE = 1 };

/* What a kernel sees while it runs. Immutable for the duration of the step. */
typedef struct ggfw_run {
    uint8_t *arena;
    const ggfw_batch *batch;
    const ggfw_pool *pools;
    const ggfw_state *states;
    int32_t n_threads;
    int32_t max_rows;    /* capacity of the ROWS domain: kernels may size shared tables by it */
    int32_t max_outputs;
    int32_t prefetch;    /* software prefetch distance in bytes */
    uint8_t *shared;     /* memory of this step's kernel, shared by all its chunks and its `then`; see shared_size */
} ggfw_run;

/* ---- kernels -------------------------------------------------------------------------------------------------- */

/* R16: the kernel reads (and its pack(), if it has one, writes) packed weights in the layout R16 of the built-in units. One
 * for prompt rows alone, without pack(), can stand beside a decode kernel of another library then.
 * FILE: the kernel has a pack(), but reads the file layout as well; ggfw_weight.layout, the same in all parts of a step, says
 * which it is. */
enum ggfw_kernel_flags { GGFW_KERNEL_R16 = 1, GGFW_KERNEL_FILE = 2 };

typedef struct ggfw_kernel {
    const char *name;
    int32_t op;          /* enum ggfw_op */
    int32_t format;      /* ggml type id of weight[0] for LINEAR, MOE_LINEAR and EMBED; GGFW_FORMAT_NONE otherwise */
    int32_t row_classes; /* enum ggfw_row_class, or-ed */
    int32_t activation;  /* type of in[0] it wants: GGFW_F32, GGFW_Q8 or GGFW_Q16 */
    int32_t flags;      /* enum ggfw_kernel_flags, or-ed */
    int32_t n_in_multiple; /* n_in must be a multiple of it */
    /* LINEAR only. pack() converts file rows first .. first + n - 1 (first is a multiple of 16) of an n_out x n_in
     * matrix (file_rows points to its row 0) into packed, which has pack_size() bytes and 64-byte alignment; any n_out is fine (the last group is
     * padded). NULL pack: the kernel reads the file layout. unpack_rows() writes the dequantised rows ids[0..n). */
    int64_t (*pack_size)(int64_t n_out, int64_t n_in);
    void (*pack)(const void *file_rows, int64_t n_out, int64_t n_in, int64_t first, int64_t n, void *packed);
    void (*unpack_rows)(const void *data, int64_t n_out, int64_t n_in, const int32_t *ids, int64_t n, float *out,
                        int64_t out_stride_bytes);
    /* Bytes of scratch per thread (64-byte aligned), for a batch of run->max_rows rows; NULL = none. */
    int64_t (*scratch_size)(const ggfw_step *step, const ggfw_run *run);
    /* Chunks of work for the rows [row_begin, row_end) of the step's domain; must not depend on who calls. */
    int32_t (*n_chunks)(const ggfw_step *step, const ggfw_run *run, int32_t row_begin, int32_t row_end);
    /* Compute one chunk. With commit == NULL the result is written in place, chunks write disjoint memory and running
     * a chunk twice gives the same bytes; else run() writes to scratch and commit() copies it into place. */
    void (*run)(const ggfw_step *step, const ggfw_run *run, int32_t row_begin, int32_t row_end, int32_t chunk,
                void *scratch);
    void (*commit)(const ggfw_step *step, const ggfw_run *run, int32_t row_begin, int32_t row_end, int32_t chunk,
                   void *scratch);
    /* Bytes of run->shared (64-byte aligned, not zeroed) for a batch of max_rows rows; NULL = none. */
    int64_t (*shared_size)(const ggfw_step *step, const ggfw_run *run);
    /* A second region over the same rows after all chunks of this one (reductions over chunks), or NULL. Its n_chunks
     * may return 0 when there is nothing left to do. */
    const struct ggfw_kernel *then;
} ggfw_kernel;

typedef struct ggfw_kernel_table {
    const char *name; /* "avx2" */
    int32_t abi;
    int32_t n_kernels;
    const ggfw_kernel *kernels;
    int32_t (*usable)(void); /* 1 when this processor and operating system can run it */
} ggfw_kernel_table;

/* Every kernel library exports these two. */
int32_t ggfw_kernels_abi(void);
const ggfw_kernel_table *ggfw_kernels(void);

/* A library may export this, too: what is missing where it is not usable ("AMX-TILE, AMX-BF16"), "" where it is. */
const char *ggfw_kernels_missing(void);

/* cffi: end */

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif

#ifdef __cplusplus
}
#endif
#endif
