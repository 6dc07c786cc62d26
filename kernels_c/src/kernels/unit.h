/* unit.h: what the two files of a unit have of each other. unit_NAME.c is compiled for its instruction set and has the
 * kernels; probe_NAME.c is compiled for every processor of the family and has what a library exports, since that is called
 * before anybody knows whether the kernels can run. */
#ifndef GGFW_UNIT_H
#define GGFW_UNIT_H

#include "ggfw_kernels.h"

extern const ggfw_kernel_table unit_table; /* of unit_NAME.c; constant data */
int32_t unit_usable(void);                 /* of probe_NAME.c */

/* unit_table, from GGFW_UNIT_NAME and the entries of its kernels. */
#define GGFW_UNIT_TABLE(...)                                                                                           \
    static const ggfw_kernel unit_kernels[] = {__VA_ARGS__};                                                           \
    const ggfw_kernel_table unit_table = {                                                                             \
        .name = GGFW_UNIT_NAME,                                                                                        \
        .abi = GGFW_KERNELS_ABI,                                                                                       \
        .n_kernels = (int32_t)(sizeof unit_kernels / sizeof *unit_kernels),                                            \
        .kernels = unit_kernels,                                                                                       \
        .usable = unit_usable,                                                                                         \
    };

#endif
