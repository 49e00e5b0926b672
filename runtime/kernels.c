#include "runtime/kernels.h"

#include <assert.h>
#include <math.h>

/* Eight partial sums are what a plain loop needs to keep two 4-wide (or one 8-wide) vector units
 * busy; with more, gcc spills them. */
static float dot(const uint16_t *w, const float *x, size_t n) {
    float lane[BL_LANES] = {0};
    size_t i = 0;
    for (; i + BL_LANES <= n; i += BL_LANES)
        for (size_t j = 0; j < BL_LANES; j++)
            lane[j] += bl_bf16_to_float(w[i + j]) * x[i + j];
    for (size_t j = 0; i + j < n; j++)
        lane[j] += bl_bf16_to_float(w[i + j]) * x[i + j];
    for (size_t half = BL_LANES / 2; half > 0; half /= 2)
        for (size_t j = 0; j < half; j++)
            lane[j] += lane[j + half];
    return lane[0];
}

/* The same order for two float32 vectors. */
static float dot_f32(const float *w, const float *x, size_t n) {
    float lane[BL_LANES] = {0};
    size_t i = 0;
    for (; i + BL_LANES <= n; i += BL_LANES)
        for (size_t j = 0; j < BL_LANES; j++)
            lane[j] += w[i + j] * x[i + j];
    for (size_t j = 0; i + j < n; j++)
        lane[j] += w[i + j] * x[i + j];
    for (size_t half = BL_LANES / 2; half > 0; half /= 2)
        for (size_t j = 0; j < half; j++)
            lane[j] += lane[j + half];
    return lane[0];
}

/* e^x = 2^n * e^r with n = round(x / ln 2), |r| <= ln(2) / 2; e^r by its Taylor series to r^9, in
 * double so that one rounding remains. */
float bl_exp(float x) {
    if (!(x > -104.0f))
        return x != x ? x : 0.0f;
    if (x > 89.0f)
        return INFINITY;
    const double n = (double)(int)(x * 1.44269504f + (x < 0 ? -0.5f : 0.5f));
    const double r = (double)x - n * 0.69314718055994531;
    double sum = 1.0 / 362880;
    sum = sum * r + 1.0 / 40320;
    sum = sum * r + 1.0 / 5040;
    sum = sum * r + 1.0 / 720;
    sum = sum * r + 1.0 / 120;
    sum = sum * r + 1.0 / 24;
    sum = sum * r + 1.0 / 6;
    sum = sum * r + 0.5;
    sum = sum * r + 1.0;
    sum = sum * r + 1.0;
    const uint64_t bits = (uint64_t)((int64_t)n + 1023) << 52;
    double scale;
    memcpy(&scale, &bits, sizeof scale);
    return (float)(sum * scale);
}

void bl_matmul(const uint16_t *w, size_t n_out, size_t n_in, const float *x, size_t n_rows,
               float *y) {
    for (size_t row = 0; row < n_rows; row++)
        for (size_t o = 0; o < n_out; o++)
            y[row * n_out + o] = dot(w + o * n_in, x + row * n_in, n_in);
}

void bl_rms_norm(const float *x, const uint16_t *weight, size_t n, float eps, float *out) {
    const float mean = dot_f32(x, x, n) / (float)n;
    const float scale = 1.0f / sqrtf(mean + eps);
    for (size_t i = 0; i < n; i++)
        out[i] = x[i] * scale * bl_bf16_to_float(weight[i]);
}

void bl_rope_angles(double theta, size_t head_dim, size_t position, float *cos_sin) {
    const size_t half = head_dim / 2;
    for (size_t i = 0; i < half; i++) {
        const double angle = (double)position * pow(theta, -(double)i / (double)half);
        cos_sin[i] = (float)cos(angle);
        cos_sin[half + i] = (float)sin(angle);
    }
}

void bl_rope(float *head, size_t head_dim, const float *cos_sin) {
    const size_t half = head_dim / 2;
    for (size_t i = 0; i < half; i++) {
        const float low = head[i], high = head[i + half];
        head[i] = low * cos_sin[i] - high * cos_sin[half + i];
        head[i + half] = high * cos_sin[i] + low * cos_sin[half + i];
    }
}

/* Softmax in place without the final division; returns the sum. */
static float exponentials(float *value, size_t n) {
    float max = value[0], sum = 0;
    for (size_t i = 1; i < n; i++)
        if (value[i] > max)
            max = value[i];
    for (size_t i = 0; i < n; i++) {
        value[i] = bl_exp(value[i] - max);
        sum += value[i];
    }
    return sum;
}

void bl_attend(const float *query, const float *keys, const float *values, size_t n_positions,
               size_t stride, size_t head_dim, float *scratch, float *out) {
    const float scale = 1.0f / sqrtf((float)head_dim);
    for (size_t p = 0; p < n_positions; p++)
        scratch[p] = dot_f32(query, keys + p * stride, head_dim) * scale;
    const float sum = exponentials(scratch, n_positions);
    for (size_t i = 0; i < head_dim; i++)
        out[i] = 0;
    for (size_t p = 0; p < n_positions; p++)
        bl_add_scaled(out, values + p * stride, scratch[p] / sum, head_dim);
}

/* Position of the best expert behind `last` in (logit descending, id ascending) order. */
static int next_best(const float *logits, int n, int last) {
    int best = -1;
    for (int e = 0; e < n; e++) {
        const bool taken =
            last >= 0 && (logits[e] > logits[last] || (e <= last && logits[e] == logits[last]));
        if (!taken && (best < 0 || logits[e] > logits[best]))
            best = e;
    }
    return best;
}

bool bl_route(const float *logits, int n, int k, bool renormalise, int32_t *ids, float *weights) {
    assert(k > 0 && k <= n);
    bool finite = true;
    for (int e = 0; e < n; e++)
        finite = finite && isfinite(logits[e]);
    for (int j = 0; j < k; j++) {
        ids[j] = finite ? next_best(logits, n, j > 0 ? ids[j - 1] : -1) : j;
        weights[j] = finite ? bl_exp(logits[ids[j]] - logits[ids[0]]) : 0;
    }
    if (!finite)
        return false;
    float sum = 0;
    if (renormalise) {
        for (int j = 0; j < k; j++)
            sum += weights[j];
    } else {
        for (int e = 0; e < n; e++)
            sum += bl_exp(logits[e] - logits[ids[0]]);
    }
    for (int j = 0; j < k; j++)
        weights[j] /= sum;
    return true;
}

void bl_expert(const uint16_t *bundle, size_t hidden, size_t inner, const float *x, float *scratch,
               float *y) {
    const uint16_t *up_w = bundle + inner * hidden;
    float *gate = scratch, *up = scratch + inner;
    bl_matmul(bundle, inner, hidden, x, 1, gate);
    bl_matmul(up_w, inner, hidden, x, 1, up);
    for (size_t i = 0; i < inner; i++)
        gate[i] = gate[i] / (1.0f + bl_exp(-gate[i])) * up[i];
    bl_matmul(up_w + inner * hidden, hidden, inner, gate, 1, y);
}

void bl_add_scaled(float *to, const float *from, float weight, size_t n) {
    for (size_t i = 0; i < n; i++)
        to[i] += weight * from[i];
}
