/* sampler_window.c: the penalty window. */
#include "sampler_window.h"

#include <stdlib.h>
#include <string.h>

#define FIRST_SLOTS 128
#define FIRST_RECENT 64

void ggfw_window_init(ggfw_window *window, int32_t last_n) {
    memset(window, 0, sizeof *window);
    window->last_n = last_n;
}

void ggfw_window_free(ggfw_window *window) {
    free(window->recent);
    free(window->slots);
    ggfw_window_init(window, window->last_n);
}

int ggfw_window_copy(ggfw_window *copy, const ggfw_window *window) {
    *copy = *window;
    copy->recent = NULL;
    copy->slots = NULL;
    if (window->capacity) copy->recent = malloc((size_t)window->capacity * sizeof *copy->recent);
    if (window->n_slots) copy->slots = malloc((size_t)window->n_slots * sizeof *copy->slots);
    if ((window->capacity && !copy->recent) || (window->n_slots && !copy->slots)) {
        ggfw_window_free(copy);
        return 0;
    }
    if (window->capacity) memcpy(copy->recent, window->recent, (size_t)window->capacity * sizeof *copy->recent);
    if (window->n_slots) memcpy(copy->slots, window->slots, (size_t)window->n_slots * sizeof *copy->slots);
    return 1;
}

/* Fibonacci hashing: neighbouring ids are spread over the table. */
static int32_t home_of(const ggfw_window *window, int32_t id) {
    return (int32_t)(((uint32_t)id * 2654435769u) >> 7) & (window->n_slots - 1);
}

/* The slot of the id, or the empty slot where it belongs. */
static int32_t slot_of(const ggfw_window *window, int32_t id) {
    int32_t at = home_of(window, id);
    while (window->slots[at].id >= 0 && window->slots[at].id != id) at = (at + 1) & (window->n_slots - 1);
    return at;
}

static int grow_slots(ggfw_window *window) {
    ggfw_window larger = *window;
    larger.n_slots = window->n_slots ? window->n_slots * 2 : FIRST_SLOTS;
    larger.slots = malloc((size_t)larger.n_slots * sizeof *larger.slots);
    if (!larger.slots) return 0;
    memset(larger.slots, 0xff, (size_t)larger.n_slots * sizeof *larger.slots); /* every id -1: empty */
    for (int32_t i = 0; i < window->n_slots; i++)
        if (window->slots[i].id >= 0) larger.slots[slot_of(&larger, window->slots[i].id)] = window->slots[i];
    free(window->slots);
    *window = larger;
    return 1;
}

static int grow_recent(ggfw_window *window) {
    int32_t capacity = window->capacity ? window->capacity : FIRST_RECENT / 2;
    capacity = capacity > window->last_n / 2 ? window->last_n : capacity * 2;
    int32_t *grown = realloc(window->recent, (size_t)capacity * sizeof *grown);
    if (!grown) return 0;
    window->recent = grown;
    window->capacity = capacity;
    return 1;
}

/* Empty a slot and move back what had been pushed past it, so that no search stops too early. */
static void remove_slot(ggfw_window *window, int32_t hole) {
    const int32_t mask = window->n_slots - 1;
    for (int32_t at = (hole + 1) & mask; window->slots[at].id >= 0; at = (at + 1) & mask) {
        const int32_t home = home_of(window, window->slots[at].id);
        if (((at - home) & mask) >= ((at - hole) & mask)) { /* its way from home leads over the hole */
            window->slots[hole] = window->slots[at];
            hole = at;
        }
    }
    window->slots[hole].id = -1;
    window->n_distinct--;
}

int ggfw_window_push(ggfw_window *window, int32_t id) {
    if (window->last_n == 0 || id < 0) return 1;
    if (2 * (window->n_distinct + 1) > window->n_slots && !grow_slots(window)) return 0;
    if (window->last_n > 0) {
        if (window->n_recent == window->last_n) {
            const int32_t slot = slot_of(window, window->recent[window->oldest]);
            if (--window->slots[slot].count == 0) remove_slot(window, slot);
            window->recent[window->oldest] = id;
            window->oldest = window->oldest + 1 == window->last_n ? 0 : window->oldest + 1;
        } else {
            if (window->n_recent == window->capacity && !grow_recent(window)) return 0;
            window->recent[window->n_recent++] = id;
        }
    }
    const int32_t slot = slot_of(window, id);
    if (window->slots[slot].id < 0) {
        window->slots[slot].id = id;
        window->slots[slot].count = 0;
        window->n_distinct++;
    }
    window->slots[slot].count++;
    return 1;
}

int32_t ggfw_window_count(const ggfw_window *window, int32_t id) {
    if (!window->n_distinct) return 0;
    const ggfw_window_slot *slot = &window->slots[slot_of(window, id)];
    return slot->id == id ? slot->count : 0;
}
