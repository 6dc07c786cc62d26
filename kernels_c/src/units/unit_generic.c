/* unit_generic.c: plain C, for every processor. */
#define GGFW_UNIT_NAME "generic"
#define GGFW_UNIT_GENERIC 1

#include "kernels/table.h"
