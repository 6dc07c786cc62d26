/* probe_dotprod.c: see unit_dotprod.c. */
#include "kernels/cpu_arm.h"

static const char *unit_missing(void) {
    const cpu_need needs[] = {CPU_NEEDS_DOTPROD};
    return NEEDS_MISSING(needs);
}
