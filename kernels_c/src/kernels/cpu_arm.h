/* cpu_arm.h: what processor and operating system of arm64 allow, as the system tells. NEON is always there. */
#ifndef GGFW_CPU_ARM_H
#define GGFW_CPU_ARM_H

#include "probe.h"

#if defined(__linux__)
#include <sys/auxv.h>

/* AT_HWCAP bit 20 is ASIMDDP, AT_HWCAP2 bit 13 is I8MM. */
static inline int cpu_has_dotprod(void) { return getauxval(AT_HWCAP) >> 20 & 1; }
static inline int cpu_has_i8mm(void) { return getauxval(AT_HWCAP2) >> 13 & 1; }

#elif defined(__APPLE__)
#include <sys/sysctl.h>

static inline int cpu_feature(const char *name) {
    int there = 0;
    size_t size = sizeof there;
    return sysctlbyname(name, &there, &size, NULL, 0) == 0 && there != 0;
}
static inline int cpu_has_dotprod(void) { return cpu_feature("hw.optional.arm.FEAT_DotProd"); }
static inline int cpu_has_i8mm(void) { return cpu_feature("hw.optional.arm.FEAT_I8MM"); }

#elif defined(_WIN32)
#include <windows.h>

#ifndef PF_ARM_V82_DP_INSTRUCTIONS_AVAILABLE
#define PF_ARM_V82_DP_INSTRUCTIONS_AVAILABLE 43
#endif
#ifndef PF_ARM_V82_I8MM_INSTRUCTIONS_AVAILABLE
#define PF_ARM_V82_I8MM_INSTRUCTIONS_AVAILABLE 66
#endif
static inline int cpu_has_dotprod(void) { return IsProcessorFeaturePresent(PF_ARM_V82_DP_INSTRUCTIONS_AVAILABLE) != 0; }
static inline int cpu_has_i8mm(void) { return IsProcessorFeaturePresent(PF_ARM_V82_I8MM_INSTRUCTIONS_AVAILABLE) != 0; }

#else
static inline int cpu_has_dotprod(void) { return 0; }
static inline int cpu_has_i8mm(void) { return 0; }
#endif

#define CPU_NEEDS_DOTPROD {"the dot product instructions (FEAT_DotProd)", cpu_has_dotprod()}
#define CPU_NEEDS_I8MM {"the int8 matrix instructions (FEAT_I8MM)", cpu_has_i8mm()}

#endif
