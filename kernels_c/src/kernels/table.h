/* table.h: the unit's table of kernels, put together when the library is loaded. */
#ifndef GGFW_TABLE_H
#define GGFW_TABLE_H

#include "attention_decode.h"
#include "attention_prompt.h"
#include "delta_rule.h"
#include "elementwise.h"
#include "embed.h"
#include "linear.h"
#include "moe.h"
#include "norm.h"
#include "pooling.h"
#include "quantize.h"
#include "reduce.h"
#include "rope.h"
#include "short_conv.h"
#include "ssm_scan.h"

static const ggfw_kernel other_kernels[] = {
    GGFW_QUANTIZE_KERNELS GGFW_NORM_KERNELS GGFW_ROPE_KERNELS GGFW_ATTENTION_DECODE_KERNELS
    GGFW_ATTENTION_PROMPT_KERNELS GGFW_ELEMENTWISE_KERNELS GGFW_EMBED_KERNELS GGFW_MOE_KERNELS GGFW_POOLING_KERNELS
    GGFW_REDUCE_KERNELS
    GGFW_SHORT_CONV_KERNELS GGFW_SSM_SCAN_KERNELS GGFW_DELTA_RULE_KERNELS
};
#define N_OTHER_KERNELS (sizeof other_kernels / sizeof *other_kernels)
#define N_LINEAR_KERNELS (sizeof ggfw_linear_kernels / sizeof *ggfw_linear_kernels)

static ggfw_kernel all_kernels[N_OTHER_KERNELS + N_LINEAR_KERNELS];

static int32_t unit_usable(void);

static const ggfw_kernel_table unit_table = {
    .name = GGFW_UNIT_NAME,
    .abi = GGFW_KERNELS_ABI,
    .n_kernels = N_OTHER_KERNELS + N_LINEAR_KERNELS,
    .kernels = all_kernels,
    .usable = unit_usable,
};

/* Runs when the library is loaded, before anybody can ask for the table. */
__attribute__((constructor)) static void fill_table(void) {
    memcpy(all_kernels, other_kernels, sizeof other_kernels);
    memcpy(all_kernels + N_OTHER_KERNELS, ggfw_linear_kernels, sizeof ggfw_linear_kernels);
}

int32_t ggfw_kernels_abi(void) { return GGFW_KERNELS_ABI; }
const ggfw_kernel_table *ggfw_kernels(void) { return &unit_table; }

#endif
