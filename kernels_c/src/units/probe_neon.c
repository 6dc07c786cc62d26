/* probe_neon.c: see unit_neon.c. */
#include "kernels/probe.h"

static const char *unit_missing(void) { return ""; }
