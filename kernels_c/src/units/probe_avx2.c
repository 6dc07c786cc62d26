/* probe_avx2.c: see unit_avx2.c. */
#include "kernels/cpu_x86.h"

static const char *unit_missing(void) {
    const cpu_need needs[] = {CPU_NEEDS_AVX2};
    return NEEDS_MISSING(needs);
}
