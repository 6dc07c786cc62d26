/* cpu_x86.h: what processor and operating system allow: CPUID says what there is, XGETBV what the system saves. */
#ifndef GGFW_CPU_X86_H
#define GGFW_CPU_X86_H

#include <cpuid.h>
#include <stdint.h>

typedef struct cpu_leaf {
    unsigned int eax, ebx, ecx, edx;
} cpu_leaf;

static inline cpu_leaf cpu_ask(unsigned int leaf, unsigned int sub) {
    cpu_leaf r = {0, 0, 0, 0};
    if (__get_cpuid_max(0, NULL) >= leaf) __cpuid_count(leaf, sub, r.eax, r.ebx, r.ecx, r.edx);
    return r;
}

/* Register states the operating system saves; 0 without XSAVE. */
static inline uint64_t cpu_saved_states(void) {
    if (!(cpu_ask(1, 0).ecx & (1u << 27))) return 0; /* OSXSAVE */
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

static inline int cpu_has_avx2(void) { /* with FMA and F16C */
    unsigned int ecx = cpu_ask(1, 0).ecx;
    int basic = (ecx & (1u << 28)) && (ecx & (1u << 12)) && (ecx & (1u << 29));
    return basic && (cpu_ask(7, 0).ebx & (1u << 5)) && (cpu_saved_states() & 0x6) == 0x6;
}

static inline int cpu_has_avx512(void) { /* F, DQ, BW, VL and VNNI */
    cpu_leaf seven = cpu_ask(7, 0);
    unsigned int wanted = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31;
    return cpu_has_avx2() && (seven.ebx & wanted) == wanted && (seven.ecx & (1u << 11)) &&
           (cpu_saved_states() & 0xe6) == 0xe6;
}

#endif
