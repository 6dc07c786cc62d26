/* unit_avx2.c: x86-64 with AVX2, FMA and F16C. */
#define GGFW_UNIT_NAME "avx2"
#define GGFW_UNIT_AVX2 1

#include "kernels/table.h"
