/* probe_generic.c: see unit_generic.c. */
#include "kernels/probe.h"

static const char *unit_missing(void) { return ""; }
