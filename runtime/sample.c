#include "runtime/sample.h"

#include "core/mem.h"
#include "core/rng.h"
#include "runtime/kernels.h"

#include <stdlib.h>

typedef struct bl_candidate {
    double weight; /* exp((logit - largest) / temperature) */
    int32_t id;
} bl_candidate;

bl_status bl_sampler_create(const bl_sampling *how, int vocab, bl_sampler *out, bl_error *err) {
    *out = (bl_sampler){.how = *how, .vocab = vocab};
    return BL_CALLOC(out->candidates, vocab, err);
}

void bl_sampler_free(bl_sampler *sampler) {
    free(sampler->candidates);
    *sampler = (bl_sampler){0};
}

static int32_t largest(const float *logits, int n) {
    int32_t best = 0;
    for (int32_t i = 1; i < n; i++) {
        if (logits[i] > logits[best])
            best = i;
    }
    return best;
}

static int likelier_first(const void *a, const void *b) {
    const bl_candidate *x = a, *y = b;
    if (x->weight != y->weight)
        return x->weight > y->weight ? -1 : 1;
    return x->id < y->id ? -1 : 1;
}

/* Candidates that make up the nucleus, likeliest first, and their weight. */
static int cut_to_nucleus(bl_sampler *sampler, double *total) {
    bl_candidate *candidate = sampler->candidates;
    const double wanted = sampler->how.top_p * *total;
    qsort(candidate, (size_t)sampler->vocab, sizeof *candidate, likelier_first);
    double sum = 0;
    int n = 0;
    while (n < sampler->vocab && (n == 0 || sum < wanted))
        sum += candidate[n++].weight;
    *total = sum;
    return n;
}

static double unit_of(const bl_sampler *sampler, int request, int position) {
    const uint64_t where = (uint64_t)(uint32_t)request << 32 | (uint32_t)position;
    uint64_t mix = sampler->how.seed;
    mix = bl_splitmix64(&mix) ^ where;
    bl_rng rng;
    bl_rng_seed(&rng, mix);
    return bl_rng_unit(&rng);
}

int32_t bl_sample(bl_sampler *sampler, const float *logits, int request, int position) {
    bl_candidate *candidate = sampler->candidates;
    const int32_t top = largest(logits, sampler->vocab);
    if (sampler->how.temperature <= 0)
        return top;
    double total = 0;
    for (int32_t i = 0; i < sampler->vocab; i++) {
        const double below = (double)logits[i] - (double)logits[top];
        candidate[i] = (bl_candidate){(double)bl_exp((float)(below / sampler->how.temperature)), i};
        total += candidate[i].weight;
    }
    const int n = sampler->how.top_p < 1 ? cut_to_nucleus(sampler, &total) : sampler->vocab;
    double at = unit_of(sampler, request, position) * total;
    for (int i = 0; i < n; i++) {
        at -= candidate[i].weight;
        if (at < 0)
            return candidate[i].id;
    }
    return top; /* rounding took the last step */
}
