/* unit_avx512.c: x86-64 with AVX-512 F, DQ, BW, VL and VNNI. */
#define GGFW_UNIT_NAME "avx512"
#define GGFW_UNIT_AVX512 1

#include "kernels/table.h"
