/* unit_amx.c: x86-64 with AMX-BF16 and AVX-512 BF16, beside all of the AVX-512 unit. Products of prompt rows only;
 * everything else is that unit's. With GGFW_TILE_MODEL the tile instructions are modelled in C, for tests. */
#if defined(GGFW_TILE_MODEL)
#define GGFW_UNIT_NAME "amx-model"
#else
#define GGFW_UNIT_NAME "amx"
#endif
#define GGFW_UNIT_AVX512 1

#include "kernels/linear_amx.h"
#include "kernels/unit.h"

GGFW_UNIT_TABLE(GGFW_LINEAR_AMX_KERNELS)
