/* platform_linux.c: threads, futexes and memory on Linux. */
#if defined(__linux__)

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "platform.h"

#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

struct platform_thread {
    pthread_t id;
    void (*function)(void *);
    void *argument;
};

static void *enter(void *opaque) {
    platform_thread *thread = opaque;
    thread->function(thread->argument);
    return NULL;
}

platform_thread *platform_thread_start(void (*function)(void *), void *argument) {
    platform_thread *thread = malloc(sizeof *thread);
    if (thread == NULL) return NULL;
    thread->function = function;
    thread->argument = argument;
    if (pthread_create(&thread->id, NULL, enter, thread) != 0) {
        free(thread);
        return NULL;
    }
    return thread;
}

void platform_thread_join(platform_thread *thread) {
    pthread_join(thread->id, NULL);
    free(thread);
}

void platform_thread_forget(platform_thread *thread) { free(thread); }

void platform_wait(_Atomic uint32_t *word, uint32_t expected) {
    syscall(SYS_futex, (uint32_t *)word, FUTEX_WAIT_PRIVATE, expected, NULL, NULL, 0);
}

void platform_wake(_Atomic uint32_t *word, int32_t n) {
    syscall(SYS_futex, (uint32_t *)word, FUTEX_WAKE_PRIVATE, n, NULL, NULL, 0);
}

void platform_yield(void) { sched_yield(); }

int64_t platform_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

int32_t platform_processors(void) {
    cpu_set_t set; /* 1024 processors; larger machines fall back to the count of all */
    if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0) return CPU_COUNT(&set);
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n > 0 ? (int32_t)n : 1;
}

void platform_at_fork_child(void (*function)(void)) { pthread_atfork(NULL, NULL, function); }

void *platform_map(int64_t bytes, int huge) {
    void *memory = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return NULL;
    if (huge) madvise(memory, (size_t)bytes, MADV_HUGEPAGE); /* a wish: small pages work as well */
    return memory;
}

void platform_unmap(void *memory, int64_t bytes) { munmap(memory, (size_t)bytes); }

#define HUGE_PAGE ((uintptr_t)2 << 20)
#define SETTLE_BYTES (2 * HUGE_PAGE) /* at once: what it takes of memory besides */

/* mremap puts the copy in place of the mapping in one go: a reader finds the one or the other, with the same bytes. */
int64_t platform_settle(const void *mapped, int64_t bytes) {
    uintptr_t at = ((uintptr_t)mapped + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
    uintptr_t end = ((uintptr_t)mapped + (uintptr_t)bytes) / HUGE_PAGE * HUGE_PAGE;
    int64_t moved = 0;
    while (at < end) {
        size_t n = end - at < SETTLE_BYTES ? end - at : SETTLE_BYTES;
        char *memory = mmap(NULL, n + HUGE_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED) break;
        size_t lead = (HUGE_PAGE - (uintptr_t)memory % HUGE_PAGE) % HUGE_PAGE;
        char *copy = memory + lead;
        if (lead > 0) munmap(memory, lead);
        if (lead < HUGE_PAGE) munmap(copy + n, HUGE_PAGE - lead);
        madvise(copy, n, MADV_HUGEPAGE);
        memcpy(copy, (const void *)at, n);
        mprotect(copy, n, PROT_READ);
        if (mremap(copy, n, n, MREMAP_MAYMOVE | MREMAP_FIXED, (void *)at) == MAP_FAILED) {
            munmap(copy, n);
            break;
        }
        at += n;
        moved += (int64_t)n;
    }
    return moved;
}

/* In pieces: one call reads no more than the device's read-ahead allows. */
void platform_read_ahead(const void *mapped, int64_t bytes) {
    enum { PIECE = 128 << 10 };
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), end = (uintptr_t)mapped + (uintptr_t)bytes;
    for (uintptr_t at = (uintptr_t)mapped / page * page; at < end; at += PIECE)
        madvise((void *)at, end - at < PIECE ? end - at : PIECE, MADV_WILLNEED);
}

void platform_release(const void *mapped, int64_t bytes) {
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t begin = ((uintptr_t)mapped + page - 1) / page * page;
    uintptr_t end = ((uintptr_t)mapped + (uintptr_t)bytes) / page * page;
    if (end > begin) madvise((void *)begin, end - begin, MADV_DONTNEED);
}

#else
typedef int ggfw_not_linux; /* an empty translation unit is not C */
#endif
