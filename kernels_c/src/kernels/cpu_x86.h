/* cpu_x86.h: what processor and operating system allow: CPUID says what there is, XGETBV what the system saves. */
#ifndef GGFW_CPU_X86_H
#define GGFW_CPU_X86_H

#include <cpuid.h>
#include <stdint.h>

#include "probe.h"

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

static inline int cpu_saves(uint64_t states) { return (cpu_saved_states() & states) == states; }

/* Leaf 7.1, where there is one. */
static inline cpu_leaf cpu_ask_seven_one(void) {
    cpu_leaf none = {0, 0, 0, 0};
    return cpu_ask(7, 0).eax >= 1 ? cpu_ask(7, 1) : none;
}

#define CPU_BIT(leaf, sub, word, bit) ((cpu_ask(leaf, sub).word >> (bit) & 1) != 0)

/* Entries of an array of cpu_need. */
#define CPU_NEEDS_AVX2                                                                                                 \
    {"AVX2", CPU_BIT(7, 0, ebx, 5)}, {"FMA", CPU_BIT(1, 0, ecx, 12)}, {"F16C", CPU_BIT(1, 0, ecx, 29)},                \
    {"an operating system that saves AVX registers", cpu_saves(0x6)}
#define CPU_NEEDS_AVX_VNNI {"AVX-VNNI", (cpu_ask_seven_one().eax >> 4 & 1) != 0}
#define CPU_NEEDS_AVX512                                                                                               \
    {"AVX-512 F", CPU_BIT(7, 0, ebx, 16)}, {"AVX-512 DQ", CPU_BIT(7, 0, ebx, 17)},                                     \
    {"AVX-512 BW", CPU_BIT(7, 0, ebx, 30)}, {"AVX-512 VL", CPU_BIT(7, 0, ebx, 31)},                                    \
    {"AVX-512 VNNI", CPU_BIT(7, 0, ecx, 11)}, {"an operating system that saves AVX-512 registers", cpu_saves(0xe6)}
#define CPU_NEEDS_AVX512_BF16 {"AVX-512 BF16", (cpu_ask_seven_one().eax >> 5 & 1) != 0}
#define CPU_HAS_AMX (CPU_BIT(7, 0, edx, 24) && CPU_BIT(7, 0, edx, 22) && cpu_saves(0x60000))
#define CPU_NEEDS_AMX                                                                                                  \
    {"AMX-TILE", CPU_BIT(7, 0, edx, 24)}, {"AMX-BF16", CPU_BIT(7, 0, edx, 22)},                                        \
    {"an operating system that saves tile registers", cpu_saves(0x60000)}

#endif
