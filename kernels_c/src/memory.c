/* memory.c: big page-aligned memory, for arenas, caches and packed weights. */
#include "ggfw_executor.h"

#include "platform.h"

void *ggfw_memory_new(int64_t bytes, int32_t huge) { return bytes > 0 ? platform_map(bytes, huge) : NULL; }

void ggfw_memory_free(void *memory, int64_t bytes) {
    if (memory != NULL && bytes > 0) platform_unmap(memory, bytes);
}

int64_t ggfw_memory_settle(const void *mapped, int64_t bytes) {
    return mapped != NULL && bytes > 0 ? platform_settle(mapped, bytes) : 0;
}

void ggfw_memory_read_ahead(const void *mapped, int64_t bytes) {
    if (mapped != NULL && bytes > 0) platform_read_ahead(mapped, bytes);
}

void ggfw_memory_release(const void *mapped, int64_t bytes) {
    if (mapped != NULL && bytes > 0) platform_release(mapped, bytes);
}
