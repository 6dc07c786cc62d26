/* platform_macos.c: threads, sleeping and memory on macOS (and other POSIX systems without futexes). */
#if !defined(__linux__) && !defined(_WIN32)

#include "platform.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/mman.h>
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

/* One condition for all words: sleepers are few, and whoever wakes for nothing looks and sleeps again. */
static pthread_mutex_t sleep_mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t sleep_condition = PTHREAD_COND_INITIALIZER;

void platform_wait(_Atomic uint32_t *word, uint32_t expected) {
    pthread_mutex_lock(&sleep_mutex);
    if (atomic_load(word) == expected) pthread_cond_wait(&sleep_condition, &sleep_mutex);
    pthread_mutex_unlock(&sleep_mutex);
}

void platform_wake(_Atomic uint32_t *word, int32_t n) {
    (void)word;
    (void)n;
    pthread_mutex_lock(&sleep_mutex);
    pthread_cond_broadcast(&sleep_condition);
    pthread_mutex_unlock(&sleep_mutex);
}

void platform_yield(void) { sched_yield(); }

int64_t platform_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

int32_t platform_processors(void) {
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n > 0 ? (int32_t)n : 1;
}

static void (*user_child)(void);

static void child(void) { /* the mutex may have been held by a thread that does not exist here */
    pthread_mutex_init(&sleep_mutex, NULL);
    pthread_cond_init(&sleep_condition, NULL);
    user_child();
}

void platform_at_fork_child(void (*function)(void)) {
    user_child = function;
    pthread_atfork(NULL, NULL, child);
}

void *platform_map(int64_t bytes, int huge) {
    (void)huge;
    void *memory = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANON, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

void platform_unmap(void *memory, int64_t bytes) { munmap(memory, (size_t)bytes); }

int64_t platform_settle(const void *mapped, int64_t bytes) {
    (void)mapped;
    (void)bytes;
    return 0;
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
typedef int ggfw_not_macos; /* an empty translation unit is not C */
#endif
