/* table.h: the table of a unit that has every op. */
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
#include "unit.h"

GGFW_UNIT_TABLE(GGFW_QUANTIZE_KERNELS GGFW_NORM_KERNELS GGFW_ROPE_KERNELS GGFW_ATTENTION_DECODE_KERNELS
                GGFW_ATTENTION_PROMPT_KERNELS GGFW_ELEMENTWISE_KERNELS GGFW_EMBED_KERNELS GGFW_MOE_KERNELS
                GGFW_POOLING_KERNELS GGFW_REDUCE_KERNELS GGFW_SHORT_CONV_KERNELS GGFW_SSM_SCAN_KERNELS
                GGFW_DELTA_RULE_KERNELS GGFW_LINEAR_KERNELS)

#endif
