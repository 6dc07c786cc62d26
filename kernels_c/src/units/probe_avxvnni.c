/* probe_avxvnni.c: see unit_avxvnni.c. */
#include "kernels/cpu_x86.h"

static const char *unit_missing(void) {
#if defined(GGFW_VNNI_OF_AVX512)
    const cpu_need needs[] = {CPU_NEEDS_AVX2, CPU_NEEDS_AVX512};
#else
    const cpu_need needs[] = {CPU_NEEDS_AVX2, CPU_NEEDS_AVX_VNNI};
#endif
    return NEEDS_MISSING(needs);
}
