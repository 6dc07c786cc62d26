/* denormals.h: flush denormals to zero while kernels run (masked scores become denormals: 5 to 7 times slower). */
#ifndef GGFW_DENORMALS_H
#define GGFW_DENORMALS_H

#include <stdint.h>

#if defined(__x86_64__) || defined(_M_X64)
#include <xmmintrin.h>

static inline uint64_t denormals_off(void) { /* returns what denormals_restore wants */
    unsigned int old = _mm_getcsr();
    _mm_setcsr(old | 0x8040u); /* FTZ | DAZ */
    return old;
}

static inline void denormals_restore(uint64_t old) { _mm_setcsr((unsigned int)old); }
static inline void cpu_pause(void) { _mm_pause(); }

#elif defined(__aarch64__)

static inline uint64_t denormals_off(void) {
    uint64_t old;
    __asm__ volatile("mrs %0, fpcr" : "=r"(old));
    __asm__ volatile("msr fpcr, %0" : : "r"(old | (1u << 24))); /* FZ */
    return old;
}

static inline void denormals_restore(uint64_t old) { __asm__ volatile("msr fpcr, %0" : : "r"(old)); }
static inline void cpu_pause(void) { __asm__ volatile("yield"); }

#else

static inline uint64_t denormals_off(void) { return 0; }
static inline void denormals_restore(uint64_t old) { (void)old; }
static inline void cpu_pause(void) {}

#endif
#endif
