/* platform_windows.c: threads, address waits and memory on Windows (link with synchronization). */
#if defined(_WIN32)

#ifndef _WIN32_WINNT
#define _WIN32_WINNT 0x0602 /* WaitOnAddress */
#endif
#include "platform.h"

#include <stdlib.h>
#include <windows.h>

struct platform_thread {
    HANDLE handle;
    void (*function)(void *);
    void *argument;
};

static DWORD WINAPI enter(void *opaque) {
    platform_thread *thread = opaque;
    thread->function(thread->argument);
    return 0;
}

platform_thread *platform_thread_start(void (*function)(void *), void *argument) {
    platform_thread *thread = malloc(sizeof *thread);
    if (thread == NULL) return NULL;
    thread->function = function;
    thread->argument = argument;
    thread->handle = CreateThread(NULL, 0, enter, thread, 0, NULL);
    if (thread->handle == NULL) {
        free(thread);
        return NULL;
    }
    return thread;
}

void platform_thread_join(platform_thread *thread) {
    WaitForSingleObject(thread->handle, INFINITE);
    CloseHandle(thread->handle);
    free(thread);
}

void platform_thread_forget(platform_thread *thread) { free(thread); }

void platform_wait(_Atomic uint32_t *word, uint32_t expected) {
    WaitOnAddress((volatile void *)word, &expected, sizeof expected, INFINITE);
}

void platform_wake(_Atomic uint32_t *word, int32_t n) {
    if (n == 1) WakeByAddressSingle((void *)word);
    else WakeByAddressAll((void *)word);
}

void platform_yield(void) { SwitchToThread(); }

int64_t platform_now_ns(void) {
    static LARGE_INTEGER frequency;
    LARGE_INTEGER now;
    if (frequency.QuadPart == 0) QueryPerformanceFrequency(&frequency);
    QueryPerformanceCounter(&now);
    int64_t seconds = now.QuadPart / frequency.QuadPart;
    return seconds * 1000000000 + now.QuadPart % frequency.QuadPart * 1000000000 / frequency.QuadPart;
}

int32_t platform_processors(void) {
    DWORD_PTR process, system;
    int32_t n = 0;
    if (GetProcessAffinityMask(GetCurrentProcess(), &process, &system))
        for (; process != 0; process &= process - 1) n++;
    return n > 0 ? n : 1;
}

void platform_at_fork_child(void (*function)(void)) { (void)function; } /* there is no fork */

void *platform_map(int64_t bytes, int huge) {
    (void)huge;
    return VirtualAlloc(NULL, (SIZE_T)bytes, MEM_RESERVE | MEM_COMMIT, PAGE_READWRITE);
}

void platform_unmap(void *memory, int64_t bytes) {
    (void)bytes;
    VirtualFree(memory, 0, MEM_RELEASE);
}

int64_t platform_settle(const void *mapped, int64_t bytes) {
    (void)mapped;
    (void)bytes;
    return 0;
}

void platform_read_ahead(const void *mapped, int64_t bytes) {
    WIN32_MEMORY_RANGE_ENTRY range = {(void *)mapped, (SIZE_T)bytes};
    PrefetchVirtualMemory(GetCurrentProcess(), 1, &range, 0);
}

void platform_release(const void *mapped, int64_t bytes) {
    VirtualUnlock((void *)mapped, (SIZE_T)bytes); /* drops unlocked pages from the working set */
}

#else
typedef int ggfw_not_windows; /* an empty translation unit is not C */
#endif
