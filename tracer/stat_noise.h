/*
 * stat_noise.h: how far apart two samples of one distribution are by chance.
 *
 * An expert is picked by each of T tokens with probability q. Two such samples differ in their
 * counts, X and Y, by
 *
 *     E|X - Y| = 2 v e^(-2v) (I0(2v) + I1(2v)),   v = T q (1 - q)
 *
 * which is exact for Poisson counts of mean v (Skellam 1946) and tends to 2 sqrt(v / pi) for large
 * v. Tokens of real texts are not independent, so this is a floor: what is at it is noise, what is
 * above may be the texts' own.
 */
#ifndef BL_TRACER_STAT_NOISE_H
#define BL_TRACER_STAT_NOISE_H

#include <stdint.h>

/* E|X - Y| for variance v of each. */
double bl_noise_difference(double v);

/* Expected total-variation distance between two samples of `tokens` tokens each, for an expert
 * distribution given by count[n] picks of `all_tokens` tokens. NaN without tokens. */
double bl_noise_distance(const uint64_t *count, int n, double all_tokens, double tokens);

/* Sum over experts of the variance of the sampled share, for samples of `tokens` tokens. */
double bl_noise_variance(const uint64_t *count, int n, double all_tokens, double tokens);

#endif
