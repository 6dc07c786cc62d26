/* pool.c: see pool.h.
 *
 * One 64-bit ticket holds (epoch of the region, next unclaimed piece); a thread claims a piece by compare-and-swap, so
 * a late thread can never claim from a region that is over. Regions live in two slots that alternate by epoch: a slot
 * is rewritten only after the region that follows its old one was opened, that is, when nobody can hold a piece of the
 * old one. Epochs have 44 bits in the ticket: at 200,000 regions a second they come round after 2.8 years, and only a
 * thread that stood still for exactly that long between its load and its swap would be deceived.
 *
 * Idle threads spin for a while (waking a sleeping processor takes 70 us), then sleep on one word. Whoever opens a
 * region looks at the count of sleepers; both sides write before they read (sequentially consistent), so that either
 * the opener sees the sleeper or the sleeper sees the region. */
#include "pool.h"

#include "denormals.h"
#include "ggfw_executor.h"
#include "platform.h"

#include <stddef.h>

#define MAX_THREADS 256
#define PIECE_BITS 20
#define PIECE_MASK (((uint64_t)1 << PIECE_BITS) - 1)
#define CACHE_LINE 64

typedef struct slot {
    _Alignas(CACHE_LINE) _Atomic uint32_t n_pieces; /* read before the claim, hence atomic; the rest after it */
    pool_region region;
    int32_t stride; /* chunks per piece; 1 unless a region has more chunks than the ticket can count */
    _Alignas(CACHE_LINE) _Atomic int32_t left; /* pieces not finished */
} slot;

static struct {
    _Alignas(CACHE_LINE) _Atomic uint64_t ticket;
    slot slots[2];
    _Alignas(CACHE_LINE) _Atomic int32_t done; /* the job is over */
    _Alignas(CACHE_LINE) _Atomic int32_t n_sleepers; /* workers asleep on sleep_word */
    _Atomic uint32_t sleep_word;
    _Atomic int32_t caller_sleeps; /* the caller has a word of its own: only it must know that a job is over */
    _Atomic uint32_t caller_word;
    _Atomic int32_t stop; /* workers leave */
    pool_job job;

    /* below: only with the turn */
    platform_thread *workers[MAX_THREADS];
    int32_t n_threads;    /* wanted */
    int32_t n_started;    /* running workers + 1, or 0 when none was started yet */
    _Atomic int32_t spin_ns;
    _Atomic int32_t crowded; /* more threads than processors: spinning must let others run */
    int32_t fork_hook;

    /* the queue of callers */
    _Alignas(CACHE_LINE) _Atomic uint32_t queue_next;
    _Atomic uint32_t queue_serving;
    _Atomic int32_t n_queue_sleepers;
} pool = {.n_threads = 1, .spin_ns = 100000};

/* ---- the queue of callers ------------------------------------------------------------------------------------ */

/* Spin for about ns nanoseconds while *word == value; returns 1 when it changed. */
static int spin_while(_Atomic uint32_t *word, uint32_t value, int64_t ns) {
    int64_t start = platform_now_ns();
    do {
        for (int i = 0; i < 32; i++) {
            if (atomic_load_explicit(word, memory_order_acquire) != value) return 1;
            cpu_pause();
        }
        if (atomic_load_explicit(&pool.crowded, memory_order_relaxed)) platform_yield();
    } while (platform_now_ns() - start < ns);
    return 0;
}

void pool_enter(void) {
    uint32_t mine = atomic_fetch_add(&pool.queue_next, 1);
    for (;;) {
        uint32_t serving = atomic_load(&pool.queue_serving);
        if (serving == mine) return;
        if (spin_while(&pool.queue_serving, serving, 5000)) continue;
        atomic_fetch_add(&pool.n_queue_sleepers, 1);
        if (atomic_load(&pool.queue_serving) == serving) platform_wait(&pool.queue_serving, serving);
        atomic_fetch_sub(&pool.n_queue_sleepers, 1);
    }
}

void pool_leave(void) {
    atomic_fetch_add(&pool.queue_serving, 1);
    if (atomic_load(&pool.n_queue_sleepers) > 0) platform_wake(&pool.queue_serving, INT32_MAX);
}

/* ---- regions ------------------------------------------------------------------------------------------------- */

static void wake_workers(int32_t n) {
    if (atomic_load(&pool.n_sleepers) == 0) return;
    atomic_fetch_add(&pool.sleep_word, 1);
    platform_wake(&pool.sleep_word, n);
}

static void wake_caller(void) {
    if (!atomic_load(&pool.caller_sleeps)) return;
    atomic_fetch_add(&pool.caller_word, 1);
    platform_wake(&pool.caller_word, 1);
}

static int aborted(void) {
    return pool.job.abort != NULL && atomic_load_explicit(pool.job.abort, memory_order_relaxed);
}

/* Open regions until one is left for the others to help with, or the job is over. One thread at a time gets here: the
 * caller at the start, then whoever finished the last piece. Regions of one chunk never leave this thread. */
static void open_next(int32_t thread) {
    pool_region region;
    for (;;) {
        if (aborted() || !pool.job.next(pool.job.context, &region)) {
            atomic_store(&pool.done, 1);
            wake_caller();
            return;
        }
        if (region.n_chunks > 1 && pool.n_started > 1) break;
        for (int32_t chunk = 0; chunk < region.n_chunks && !aborted(); chunk++)
            region.run(region.context, chunk, thread);
    }
    uint64_t epoch = (atomic_load_explicit(&pool.ticket, memory_order_relaxed) >> PIECE_BITS) + 1;
    slot *s = &pool.slots[epoch & 1];
    int32_t stride = (int32_t)((region.n_chunks - 1) / (int32_t)PIECE_MASK) + 1;
    int32_t n_pieces = (region.n_chunks - 1) / stride + 1;
    s->region = region;
    s->stride = stride;
    atomic_store_explicit(&s->left, n_pieces, memory_order_relaxed);
    atomic_store_explicit(&s->n_pieces, (uint32_t)n_pieces, memory_order_relaxed);
    atomic_store(&pool.ticket, epoch << PIECE_BITS);
    wake_caller();
    wake_workers(n_pieces - 1);
}

/* Claim and run one piece; 0 when there is none. */
static int run_one(int32_t thread) {
    uint64_t ticket = atomic_load_explicit(&pool.ticket, memory_order_acquire);
    slot *s;
    for (;;) {
        s = &pool.slots[(ticket >> PIECE_BITS) & 1];
        if ((ticket & PIECE_MASK) >= atomic_load_explicit(&s->n_pieces, memory_order_relaxed)) return 0;
        if (atomic_compare_exchange_weak_explicit(&pool.ticket, &ticket, ticket + 1, memory_order_acq_rel,
                                                  memory_order_acquire))
            break;
    }
    int32_t chunk = (int32_t)(ticket & PIECE_MASK) * s->stride;
    int32_t end = s->region.n_chunks - chunk > s->stride ? chunk + s->stride : s->region.n_chunks;
    for (; chunk < end && !aborted(); chunk++) s->region.run(s->region.context, chunk, thread);
    if (atomic_fetch_sub_explicit(&s->left, 1, memory_order_acq_rel) == 1) open_next(thread);
    return 1;
}

static int work_waits(void) {
    uint64_t ticket = atomic_load(&pool.ticket);
    slot *s = &pool.slots[(ticket >> PIECE_BITS) & 1];
    return (ticket & PIECE_MASK) < atomic_load_explicit(&s->n_pieces, memory_order_relaxed);
}

/* Return when there may be a piece, or *leave is set. */
static void idle(int32_t thread, const _Atomic int32_t *leave) {
    int64_t start = platform_now_ns();
    int64_t spin_ns = atomic_load_explicit(&pool.spin_ns, memory_order_relaxed);
    do {
        for (int i = 0; i < 32; i++) {
            if (atomic_load_explicit(leave, memory_order_acquire) || work_waits()) return;
            cpu_pause();
        }
        if (atomic_load_explicit(&pool.crowded, memory_order_relaxed)) platform_yield();
    } while (platform_now_ns() - start < spin_ns);
    _Atomic int32_t *sleepers = thread == 0 ? &pool.caller_sleeps : &pool.n_sleepers;
    _Atomic uint32_t *word = thread == 0 ? &pool.caller_word : &pool.sleep_word;
    uint32_t seen = atomic_load(word);
    atomic_fetch_add(sleepers, 1);
    if (!atomic_load(leave) && !work_waits()) platform_wait(word, seen);
    atomic_fetch_sub(sleepers, 1);
}

static void worker(void *opaque) {
    int32_t thread = (int32_t)(intptr_t)opaque;
    denormals_off();
    while (!atomic_load_explicit(&pool.stop, memory_order_acquire))
        if (!run_one(thread)) idle(thread, &pool.stop);
}

void pool_run(const pool_job *job) {
    pool_threads();
    uint64_t denormals = denormals_off();
    pool.job = *job;
    atomic_store(&pool.done, 0);
    open_next(0);
    while (!atomic_load_explicit(&pool.done, memory_order_acquire))
        if (!run_one(0)) idle(0, &pool.done);
    denormals_restore(denormals);
}

/* ---- threads ------------------------------------------------------------------------------------------------- */

static void forget_after_fork(void) { /* the child has none of the threads and nobody in the queue */
    for (int32_t i = 1; i < pool.n_started; i++) platform_thread_forget(pool.workers[i]);
    pool.n_started = 0;
    for (int i = 0; i < 2; i++) atomic_store(&pool.slots[i].n_pieces, 0);
    atomic_store(&pool.n_sleepers, 0);
    atomic_store(&pool.caller_sleeps, 0);
    atomic_store(&pool.stop, 0);
    atomic_store(&pool.queue_next, 0);
    atomic_store(&pool.queue_serving, 0);
    atomic_store(&pool.n_queue_sleepers, 0);
}

static void stop_workers(void) {
    if (pool.n_started > 1) {
        atomic_store(&pool.stop, 1);
        atomic_fetch_add(&pool.sleep_word, 1);
        platform_wake(&pool.sleep_word, INT32_MAX);
        for (int32_t i = 1; i < pool.n_started; i++) platform_thread_join(pool.workers[i]);
        atomic_store(&pool.stop, 0);
    }
    pool.n_started = 0;
}

int32_t pool_threads(void) {
    if (pool.n_started == 0) {
        if (!pool.fork_hook) {
            platform_at_fork_child(forget_after_fork);
            pool.fork_hook = 1;
        }
        int32_t n = 1; /* a system that refuses a thread gets a smaller pool, not a failure */
        while (n < pool.n_threads) {
            pool.workers[n] = platform_thread_start(worker, (void *)(intptr_t)n);
            if (pool.workers[n] == NULL) break;
            n++;
        }
        pool.n_started = n;
        atomic_store(&pool.crowded, n > platform_processors());
    }
    return pool.n_started;
}

int32_t ggfw_threads_set(int32_t n_threads, int32_t spin_us) {
    if (n_threads < 1 || n_threads > MAX_THREADS || spin_us < 0 || spin_us > 1000000) return GGFW_ERR_ARGUMENT;
    pool_enter();
    atomic_store(&pool.spin_ns, spin_us * 1000);
    if (n_threads != pool.n_threads) {
        stop_workers();
        pool.n_threads = n_threads;
    }
    pool_leave();
    return GGFW_OK;
}

int32_t ggfw_threads_get(void) {
    pool_enter();
    int32_t n = pool.n_threads;
    pool_leave();
    return n;
}
