/* half.h: IEEE 754 binary16, which routing weights and some arrays are stored in. */
#ifndef BL_CORE_HALF_H
#define BL_CORE_HALF_H

#include <stdint.h>

double bl_half_to_real(uint16_t bits);

/* The nearest half, ties to even; what is too large becomes infinite. */
uint16_t bl_half_from_real(double value);

#endif
