/* linear_vector.h: the few vector operations of which the matrix products are made, once per instruction set.
 *
 *     LV_LANES     rows of a panel that one vector holds; a panel is LV_PARTS vectors wide
 *     LV_SIGNED    1: codes with offset 128 are multiplied as signed bytes (and their sums start at zero)
 *     LV_PAIRS     1: lv_dot_pair() multiplies with two rows of activations at once
 *     LV_WORDS     1: tiles of GGFW_Q16 hold words, and are multiplied by linear_words.h
 *     LV_UNROLL    pragma: unroll a short loop whose arrays have to live in registers
 *
 *     lv_bytes     4 codes (one quad) of each of LV_LANES rows
 *     lv_ints      one 32-bit integer per row
 *     lv_floats    one float per row
 *
 * Products and sums of floats are written as explicit fused operations where the instruction set has them, so that the
 * compiler has no choice to contract one copy of a loop and not the other: a row gives the same bits in every tile size.
 */
#ifndef GGFW_LINEAR_VECTOR_H
#define GGFW_LINEAR_VECTOR_H

#include "linear_format.h"

#if defined(GGFW_UNIT_AVX512)
#include "linear_vector_avx512.h"
#elif defined(GGFW_UNIT_AVX2)
#include "linear_vector_avx2.h"
#elif defined(GGFW_UNIT_NEON)
#include "linear_vector_neon.h"
#else
#include "linear_vector_generic.h"
#endif

#define LV_PARTS (LINEAR_PANEL / LV_LANES)

#endif
