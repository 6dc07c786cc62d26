/* unit_dotprod.c: products of quantised weights for arm64 with SDOT; the rest is the NEON unit's. */
#define GGFW_UNIT_NAME "dotprod"
#define GGFW_UNIT_NEON 1
#define GGFW_UNIT_DOTPROD 1
#define GGFW_UNIT_PRODUCTS 1

#include "kernels/linear.h"
#include "kernels/unit.h"

GGFW_UNIT_TABLE(GGFW_LINEAR_KERNELS)
