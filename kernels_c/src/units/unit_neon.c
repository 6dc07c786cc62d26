/* unit_neon.c: arm64, which always has NEON. */
#define GGFW_UNIT_NAME "neon"
#define GGFW_UNIT_NEON 1

#include "kernels/table.h"
