/* unit_i8mm.c: products of quantised weights for arm64 with USDOT and USMMLA; the rest is the NEON unit's. */
#define GGFW_UNIT_NAME "i8mm"
#define GGFW_UNIT_NEON 1
#define GGFW_UNIT_I8MM 1
#define GGFW_UNIT_PRODUCTS 1

#include "kernels/linear.h"
#include "kernels/unit.h"

GGFW_UNIT_TABLE(GGFW_LINEAR_KERNELS)
