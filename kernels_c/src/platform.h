/* platform.h: what the executor asks of the operating system. One small file per system implements it. */
#ifndef GGFW_PLATFORM_H
#define GGFW_PLATFORM_H

#include <stdatomic.h>
#include <stdint.h>

/* Start a thread that runs function(argument). Returns 0, or -1 when the system refuses. */
typedef struct platform_thread platform_thread;
platform_thread *platform_thread_start(void (*function)(void *), void *argument);
void platform_thread_join(platform_thread *thread);
/* Forget a thread that does not exist in this process any more (after fork). */
void platform_thread_forget(platform_thread *thread);

/* Sleep while *word == expected; may return early. */
void platform_wait(_Atomic uint32_t *word, uint32_t expected);
/* Wake up to n sleepers on word. */
void platform_wake(_Atomic uint32_t *word, int32_t n);
/* Give the processor to somebody else who wants it. */
void platform_yield(void);
int64_t platform_now_ns(void);
/* Processors this process may run on, at least 1. */
int32_t platform_processors(void);
/* Call function in every forked child. */
void platform_at_fork_child(void (*function)(void));

/* Zeroed page-aligned memory; huge: with huge pages where granted. NULL when short. */
void *platform_map(int64_t bytes, int huge);
void platform_unmap(void *memory, int64_t bytes);
/* Give what a private file mapping holds memory of its own at the same addresses, with huge pages where granted; others
 * may read it meanwhile, nobody may write or unmap it. Returns the bytes moved: whole huge pages, 0 where the system has
 * no way to do it. */
int64_t platform_settle(const void *mapped, int64_t bytes);
/* Have the system read what a file mapping needs, without waiting for it and without taking memory of this process: it comes
 * into the page cache. Touches nothing, so that a file cut short is no harm. */
void platform_read_ahead(const void *mapped, int64_t bytes);
/* Whole pages inside the mapping need not stay in RAM. */
void platform_release(const void *mapped, int64_t bytes);

#endif
