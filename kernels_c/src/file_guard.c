/* file_guard.c: files that shrink while they are mapped. The handler puts zeros where the file ends, so that the read
 * that faulted comes to an end, and notes it; who reads asks afterwards. */
#if !defined(_GNU_SOURCE)
#define _GNU_SOURCE /* SA_ONSTACK, MAP_ANONYMOUS */
#endif
#include "ggfw_executor.h"

#include <stdatomic.h>
#include <stdint.h>

#if defined(_WIN32)

/* A mapped file cannot be cut short here. */
int32_t ggfw_file_watch(const void *mapped, int64_t bytes) {
    (void)mapped;
    (void)bytes;
    return -1;
}
int32_t ggfw_file_failed(int32_t watch) {
    (void)watch;
    return 0;
}
const int32_t *ggfw_file_faults(void) {
    static const int32_t none = 0;
    return &none;
}
void ggfw_file_unwatch(int32_t watch) { (void)watch; }

#else

#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#if !defined(MAP_ANONYMOUS)
#define MAP_ANONYMOUS MAP_ANON
#endif

#define MAX_WATCHES 1024

typedef struct watch {
    _Atomic int32_t used;
    _Atomic int32_t failed;
    _Atomic uintptr_t begin; /* 0 = not (yet) to be looked at */
    _Atomic uintptr_t end;
} watch;

static watch watches[MAX_WATCHES];
static struct sigaction before;
static _Atomic uintptr_t page_size;
static _Atomic int32_t n_faults; /* in files that are watched */
static _Atomic uintptr_t passed_on; /* the last one that was not ours: a fault's address, a signal's description */
static _Atomic int32_t is_chained; /* whoever came before us came after us, too */

static void handle(int number, siginfo_t *info, void *context);

static int is_ours(const struct sigaction *one) {
    return (one->sa_flags & SA_SIGINFO) && one->sa_sigaction == handle;
}

/* Whether this thread's handler has sent the signal on, as those do that give way to whoever came before them. */
static int is_sent_on(int number) {
#if defined(__linux__)
    const struct timespec now = {0, 0};
    sigset_t only;
    siginfo_t info;
    sigemptyset(&only);
    sigaddset(&only, number);
    while (sigtimedwait(&only, &info, &now) == number)
        if (info.si_pid == getpid()) return 1; /* those of other processes are as good as answered */
    return 0;
#else
    sigset_t pending;
    return sigpending(&pending) == 0 && sigismember(&pending, number) == 1;
#endif
}

static void end_here(int number, int is_sent) { /* a fault happens again when the handler returns */
    signal(number, SIG_DFL);
    if (is_sent) raise(number);
}

/* What is not ours is left to whoever came before; this handler stays in its place. He may have found it there, and
 * give way to it in turn: then it ends here. */
static void pass_on(int number, siginfo_t *info, void *context) {
    int is_sent = info->si_code <= 0;
    struct sigaction now, to = before;
    if (to.sa_handler == SIG_DFL || to.sa_handler == SIG_IGN) {
        if (to.sa_handler == SIG_DFL || !is_sent) end_here(number, is_sent);
        return;
    }
    uintptr_t what = (uintptr_t)(is_sent ? (void *)info : info->si_addr);
    if (atomic_exchange(&passed_on, what) == what && atomic_load(&is_chained)) { /* it came back */
        end_here(number, is_sent);
        return;
    }
    if (to.sa_flags & (int)SA_RESETHAND) before.sa_handler = SIG_DFL;
    if (to.sa_flags & SA_SIGINFO)
        to.sa_sigaction(number, info, context);
    else
        to.sa_handler(number);
    if (is_sent) atomic_store(&passed_on, 0); /* the next one may lie in the same place */
    if (!is_sent_on(number)) return;
    if (sigaction(number, NULL, &now) == 0 && is_ours(&now)) signal(number, SIG_DFL);
    raise(number);
}

static void handle(int number, siginfo_t *info, void *context) {
    if (info->si_code <= 0) { /* sent by a process: there is no address */
        pass_on(number, info, context);
        return;
    }
    uintptr_t at = (uintptr_t)info->si_addr, page = atomic_load(&page_size);
    uintptr_t last = 0; /* the nearest end: a watch may outlive its mapping, and lie over later ones */
    for (int i = 0; i < MAX_WATCHES; i++) {
        uintptr_t begin = atomic_load(&watches[i].begin), end = atomic_load(&watches[i].end);
        if (begin == 0 || at < begin || at >= end) continue;
        atomic_store(&watches[i].failed, 1);
        if (last == 0 || end < last) last = end;
    }
    if (last != 0) {
        atomic_fetch_add(&n_faults, 1); /* the watches are marked by now */
        uintptr_t first = at / page * page;
        size_t n = (size_t)((last - first + page - 1) / page * page);
        if (mmap((void *)first, n, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED) return;
    }
    pass_on(number, info, context);
}

static int install(void) {
    struct sigaction now;
    if (sigaction(SIGBUS, NULL, &now) != 0) return 0;
    if (is_ours(&now)) return 1;
    if (atomic_load(&page_size) != 0) atomic_store(&is_chained, 1);
    before = now;
    memset(&now, 0, sizeof now);
    now.sa_sigaction = handle;
    now.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigemptyset(&now.sa_mask);
    atomic_store(&page_size, (uintptr_t)sysconf(_SC_PAGESIZE));
    return sigaction(SIGBUS, &now, NULL) == 0;
}

int32_t ggfw_file_watch(const void *mapped, int64_t bytes) {
    if (mapped == NULL || bytes <= 0 || !install()) return -1;
    for (int32_t i = 0; i < MAX_WATCHES; i++) {
        int32_t is_free = 0;
        if (!atomic_compare_exchange_strong(&watches[i].used, &is_free, 1)) continue;
        atomic_store(&watches[i].failed, 0);
        atomic_store(&watches[i].end, (uintptr_t)mapped + (uintptr_t)bytes);
        atomic_store(&watches[i].begin, (uintptr_t)mapped);
        return i;
    }
    return -1;
}

int32_t ggfw_file_failed(int32_t i) {
    return i >= 0 && i < MAX_WATCHES ? atomic_load(&watches[i].failed) : 0;
}

const int32_t *ggfw_file_faults(void) { return (const int32_t *)&n_faults; }

void ggfw_file_unwatch(int32_t i) {
    if (i < 0 || i >= MAX_WATCHES) return;
    atomic_store(&watches[i].begin, 0);
    atomic_store(&watches[i].used, 0);
}

#endif
