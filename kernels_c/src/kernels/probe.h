/* probe.h: what every library of kernels exports, for a probe_NAME.c, which defines unit_missing(): the names of what
 * processor and system lack, "" when nothing. It is asked once, when the library is opened. */
#ifndef GGFW_PROBE_H
#define GGFW_PROBE_H

#include "unit.h"

#include <string.h>

typedef struct cpu_need {
    const char *name;
    int there;
} cpu_need;

static const char *unit_missing(void);
static const char *missing_here = "";

__attribute__((constructor)) static void ask_what_is_missing(void) { missing_here = unit_missing(); }

int32_t unit_usable(void) { return missing_here[0] == '\0'; }
int32_t ggfw_kernels_abi(void) { return GGFW_KERNELS_ABI; }
const ggfw_kernel_table *ggfw_kernels(void) { return &unit_table; }
const char *ggfw_kernels_missing(void) { return missing_here; }

/* Names of what is not there, with commas between them. */
__attribute__((unused)) static const char *needs_missing(const cpu_need *needs, size_t n) {
    static char text[320];
    size_t used = 0;
    for (size_t i = 0; i < n; i++) {
        size_t length = strlen(needs[i].name);
        if (needs[i].there || used + length + 3 > sizeof text) continue;
        if (used > 0) {
            memcpy(text + used, ", ", 2);
            used += 2;
        }
        memcpy(text + used, needs[i].name, length + 1);
        used += length;
    }
    return text;
}

#define NEEDS_MISSING(needs) needs_missing(needs, sizeof(needs) / sizeof *(needs))

#endif
