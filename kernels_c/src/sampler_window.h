/* sampler_window.h (internal): the penalty window, a ring of the last ids with a count per distinct id. */
#ifndef GGFW_SAMPLER_WINDOW_H
#define GGFW_SAMPLER_WINDOW_H

#include <stdint.h>

typedef struct ggfw_window_slot {
    int32_t id; /* < 0: empty */
    int32_t count;
} ggfw_window_slot;

typedef struct ggfw_window {
    int32_t last_n;   /* length; 0: nothing is kept, < 0: nothing ever leaves */
    int32_t *recent;  /* ring, only for last_n > 0; grows up to last_n */
    int32_t capacity; /* of recent */
    int32_t n_recent;
    int32_t oldest;
    ggfw_window_slot *slots; /* open addressing, a power of two, at most half full */
    int32_t n_slots;
    int32_t n_distinct;
} ggfw_window;

void ggfw_window_init(ggfw_window *window, int32_t last_n);
void ggfw_window_free(ggfw_window *window);
/* Make `copy` an independent equal of `window`; 0 = out of memory (copy is then empty). */
int ggfw_window_copy(ggfw_window *copy, const ggfw_window *window);
/* Take an id in and let the oldest go when full; negative ids are ignored; 0 = out of memory, nothing changed. */
int ggfw_window_push(ggfw_window *window, int32_t id);
/* How often the id stands in the window. */
int32_t ggfw_window_count(const ggfw_window *window, int32_t id);

#endif
