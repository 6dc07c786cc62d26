/* executor_stalls.c: the runs of executor_stress.c while signals stop one thread or another for up to some milliseconds,
 * wherever it is just then: between two chunks, in one, at the border of a step, while it falls asleep or is woken.
 *
 *     executor_stalls [SECONDS]
 *
 * Pools of 1 to 8 threads in turn. Prints "good" when every sum is right, and how many stalls there were. */
#define main stress_main
#include "executor_stress.c"
#undef main

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <time.h>

enum { MAX_TASKS = 64 };

static atomic_int done;
static atomic_long stalls;
static long staller;

static void stall(int number) {
    (void)number;
    const int saved = errno;
    const struct timespec lengths[] = {{0, 1000}, {0, 50000}, {0, 300000}, {0, 3000000}};
    nanosleep(&lengths[atomic_fetch_add(&stalls, 1) % 4], NULL);
    errno = saved;
}

/* Send a signal to a thread of this process that is not the caller; which one, chance decides. */
static void stall_somebody(unsigned int *seed) {
    long tasks[MAX_TASKS];
    int n = 0;
    DIR *folder = opendir("/proc/self/task");
    if (folder == NULL) return;
    for (struct dirent *entry; n < MAX_TASKS && (entry = readdir(folder)) != NULL;) {
        const long id = atol(entry->d_name);
        if (id > 0 && id != staller) tasks[n++] = id;
    }
    closedir(folder);
    if (n > 0) syscall(SYS_tgkill, getpid(), tasks[rand_r(seed) % n], SIGUSR1); /* one that has ended is nobody's loss */
}

static void *stall_all(void *unused) {
    (void)unused;
    unsigned int seed = 1;
    staller = syscall(SYS_gettid);
    while (!atomic_load(&done)) {
        stall_somebody(&seed);
        usleep(rand_r(&seed) % 200);
    }
    return NULL;
}

int main(int argc, char **argv) {
    const double seconds = argc > 1 ? atof(argv[1]) : 5;
    struct sigaction action = {.sa_handler = stall, .sa_flags = SA_RESTART};
    struct timespec begin, now;
    pthread_t stalling;
    sigaction(SIGUSR1, &action, NULL);
    clock_gettime(CLOCK_MONOTONIC, &begin);
    pthread_create(&stalling, NULL, stall_all, NULL);
    intptr_t bad = 0;
    int rounds = 0;
    do {
        ggfw_threads_set(1 + rounds % 8, rounds % 3 * 20);
        bad += (intptr_t)caller((void *)(intptr_t)(1000 + 7 * ROUNDS * rounds));
        if (rounds % 8 == 7) bad += stress_main();
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while (++rounds < 8 || (double)(now.tv_sec - begin.tv_sec) + 1e-9 * (double)(now.tv_nsec - begin.tv_nsec) < seconds);
    atomic_store(&done, 1);
    pthread_join(stalling, NULL);
    printf("%s: %d rounds, %ld stalls\n", bad == 0 ? "good" : "bad", rounds, atomic_load(&stalls));
    return bad != 0;
}
