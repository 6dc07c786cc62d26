/* probe_i8mm.c: see unit_i8mm.c. */
#include "kernels/cpu_arm.h"

static const char *unit_missing(void) {
    const cpu_need needs[] = {CPU_NEEDS_DOTPROD, CPU_NEEDS_I8MM};
    return NEEDS_MISSING(needs);
}
