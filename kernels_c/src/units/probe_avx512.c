/* probe_avx512.c: see unit_avx512.c. */
#include "kernels/cpu_x86.h"

static const char *unit_missing(void) {
    const cpu_need needs[] = {CPU_NEEDS_AVX2, CPU_NEEDS_AVX512};
    return NEEDS_MISSING(needs);
}
