#include "tracer/stat_noise.h"

#include <math.h>

/* e^-x (I0(x) + I1(x)) by Abramowitz and Stegun 9.8.1 to 9.8.4; error below 1e-6. */
static double scaled_bessel_sum(double x) {
    if (x < 3.75) {
        const double t = (x / 3.75) * (x / 3.75);
        const double i0 =
            1.0 + t * (3.5156229 +
                       t * (3.0899424 +
                            t * (1.2067492 + t * (0.2659732 + t * (0.0360768 + t * 0.0045813)))));
        const double i1 =
            x *
            (0.5 +
             t * (0.87890594 +
                  t * (0.51498869 +
                       t * (0.15084934 + t * (0.02658733 + t * (0.00301532 + t * 0.00032411))))));
        return exp(-x) * (i0 + i1);
    }
    const double t = 3.75 / x;
    const double i0 =
        0.39894228 +
        t * (0.01328592 +
             t * (0.00225319 +
                  t * (-0.00157565 +
                       t * (0.00916281 +
                            t * (-0.02057706 +
                                 t * (0.02635537 + t * (-0.01647633 + t * 0.00392377)))))));
    const double i1 =
        0.39894228 +
        t * (-0.03988024 +
             t * (-0.00362018 +
                  t * (0.00163801 +
                       t * (-0.01031555 +
                            t * (0.02282967 +
                                 t * (-0.02895312 + t * (0.01787654 - t * 0.00420059)))))));
    return (i0 + i1) / sqrt(x);
}

double bl_noise_difference(double v) {
    return v > 0.0 ? 2.0 * v * scaled_bessel_sum(2.0 * v) : 0.0;
}

double bl_noise_distance(const uint64_t *count, int n, double all_tokens, double tokens) {
    double sum = 0.0, difference = 0.0;
    for (int expert = 0; expert < n; expert++) {
        const double q = (double)count[expert] / all_tokens;
        sum += q * tokens;
        if (q > 0.0 && q < 1.0)
            difference += bl_noise_difference(tokens * q * (1.0 - q));
    }
    return sum > 0.0 ? difference / sum / 2.0 : NAN;
}

double bl_noise_variance(const uint64_t *count, int n, double all_tokens, double tokens) {
    double sum = 0.0, variance = 0.0;
    for (int expert = 0; expert < n; expert++) {
        const double q = (double)count[expert] / all_tokens;
        sum += q * tokens;
        if (q > 0.0 && q < 1.0)
            variance += tokens * q * (1.0 - q);
    }
    return sum > 0.0 ? variance / (sum * sum) : NAN;
}
