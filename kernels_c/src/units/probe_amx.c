/* probe_amx.c: see unit_amx.c. */
#if defined(__linux__)
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "kernels/cpu_x86.h"

/* Linux wants a process to ask before its first use of tiles, since their registers make its signal frames larger. One
 * request holds for all threads. */
__attribute__((unused)) static int tiles_permitted(void) {
#if defined(__linux__)
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
#else
    return 0; /* unknown ways */
#endif
}

static const char *unit_missing(void) {
    const cpu_need needs[] = {
        CPU_NEEDS_AVX2,
        CPU_NEEDS_AVX512,
        CPU_NEEDS_AVX512_BF16,
#if !defined(GGFW_TILE_MODEL)
        CPU_NEEDS_AMX,
        {"the system's permission to use tiles", !CPU_HAS_AMX || tiles_permitted()},
#endif
    };
    return NEEDS_MISSING(needs);
}
