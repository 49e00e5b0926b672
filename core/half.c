#include "core/half.h"

#include <math.h>

double bl_half_to_real(uint16_t bits) {
    const int sign = bits >> 15 ? -1 : 1;
    const int exponent = bits >> 10 & 31, fraction = bits & 1023;
    if (exponent == 31)
        return fraction != 0 ? NAN : sign * (double)INFINITY;
    if (exponent == 0)
        return sign * ldexp(fraction, -24);
    return sign * ldexp(1024 + fraction, exponent - 25);
}

uint16_t bl_half_from_real(double value) {
    const unsigned sign = signbit(value) ? 0x8000 : 0;
    const double size = fabs(value);
    if (isnan(value))
        return (uint16_t)(sign | 0x7e00);
    if (size >= 65520) /* half way between the largest half and the next power of two */
        return (uint16_t)(sign | 0x7c00);
    if (size < 0x1p-14) /* subnormal: units of 2^-24; 1024 of them are the first normal number */
        return (uint16_t)(sign | (unsigned)nearbyint(ldexp(size, 24)));
    int exponent;
    const double fraction = frexp(size, &exponent); /* in [0.5, 1) */
    /* A fraction that is rounded up to 2048 / 2048 carries into the exponent, as it should. */
    const unsigned units = (unsigned)nearbyint(ldexp(fraction, 11));
    return (uint16_t)(sign | (((unsigned)(exponent + 14) << 10) + units - 1024));
}
