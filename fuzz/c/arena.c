/* arena.c: stands in for the executor's mapped memory: a block of its own for the sanitizer, of just the size that was
 * asked for. The system's file is compiled with its functions renamed. */
#include "platform.h"

#include "choices.h"

void *platform_map(int64_t bytes, int huge) {
    (void)huge;
    return bytes <= 0 || bytes > (1LL << 28) ? NULL : exactly(bytes, 1);
}
void platform_unmap(void *memory, int64_t bytes) {
    (void)bytes;
    free(memory);
}
void platform_release(const void *mapped, int64_t bytes) {
    (void)mapped;
    (void)bytes;
}
