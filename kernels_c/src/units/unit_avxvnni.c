/* unit_avxvnni.c: products of quantised weights for x86-64 with AVX2 and AVX-VNNI; the rest is the AVX2 unit's. */
#define GGFW_UNIT_NAME "avxvnni"
#define GGFW_UNIT_AVX2 1
#define GGFW_UNIT_AVXVNNI 1
#define GGFW_UNIT_PRODUCTS 1

#include "kernels/linear.h"
#include "kernels/unit.h"

GGFW_UNIT_TABLE(GGFW_LINEAR_KERNELS)
