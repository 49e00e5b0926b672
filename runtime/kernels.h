/*
 * kernels.h: the arithmetic of the reference engine.
 *
 * Activations are float32, weights are the checkpoint's bfloat16 and are widened on the fly (exact:
 * a bfloat16 is the upper half of a float32). What every function promises is an order of
 * summation:
 *
 *     dot(w, x)   lane j of BL_LANES sums w[i] * x[i] over i = j, j + BL_LANES, ... ascending;
 *                 then the lanes are added pairwise, upper half onto lower half
 *
 * The order depends on the length only, never on how many rows are computed in one call, on threads
 * or on vector width (and -ffp-contract=off keeps the compiler from fusing). So a token's result is
 * the same bits on any rank, in any batch, under any placement. exp() is our own for the same
 * reason: the C library picks another variant on another CPU.
 *
 * All arrays are row-major. Nothing here allocates or fails.
 */
#ifndef BL_RUNTIME_KERNELS_H
#define BL_RUNTIME_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define BL_LANES 8

static inline float bl_bf16_to_float(uint16_t bf16) {
    const uint32_t bits = (uint32_t)bf16 << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* e^x within 1 unit in the last place; 0 below -104, infinity above 89, NaN for NaN. */
float bl_exp(float x);

/* y[r][o] = dot(w[o], x[r]) for n_rows rows of x; w is [n_out][n_in]. */
void bl_matmul(const uint16_t *w, size_t n_out, size_t n_in, const float *x, size_t n_rows,
               float *y);

/* out[i] = x[i] / sqrt(mean(x^2) + eps) * weight[i]; out may be x. */
void bl_rms_norm(const float *x, const uint16_t *weight, size_t n, float eps, float *out);

/* Rotation angles of one position: cos_sin[0 .. half-1] cosines, [half .. 2*half-1] sines of
 * position * theta^(-i / half), half = head_dim / 2. */
void bl_rope_angles(double theta, size_t head_dim, size_t position, float *cos_sin);
/* Rotate the pairs (i, i + half) of one head in place. */
void bl_rope(float *head, size_t head_dim, const float *cos_sin);

/* One query head over n_positions cached positions (causal: the caller passes those up to its own).
 * Keys and values of position p start at p * stride. scratch: n_positions floats. */
void bl_attend(const float *query, const float *keys, const float *values, size_t n_positions,
               size_t stride, size_t head_dim, float *scratch, float *out);

/* The k largest of n logits, descending, ties to the lower id, with their softmax over all n;
 * `renormalise` makes the k weights sum to 1. False when the logits are not all finite numbers
 * (ids are then still distinct and in range). k <= n. */
bool bl_route(const float *logits, int n, int k, bool renormalise, int32_t *ids, float *weights);

/* One expert on one row: y = down * (silu(gate * x) .* (up * x)). The bundle is gate
 * [inner][hidden], up [inner][hidden], down [hidden][inner] back to back, bfloat16. scratch: 2 *
 * inner floats. */
void bl_expert(const uint16_t *bundle, size_t hidden, size_t inner, const float *x, float *scratch,
               float *y);

/* to[i] += weight * from[i] */
void bl_add_scaled(float *to, const float *from, float weight, size_t n);

#endif
