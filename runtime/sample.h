/*
 * sample.h: from a token's logits to the next token.
 *
 * Temperature 0 takes the largest logit, ties to the lower id. Otherwise the next token is drawn
 * from softmax(logits / temperature), cut to the *nucleus*: the fewest most likely tokens that
 * together have at least the probability top_p (Holtzman et al., 2020).
 *
 * The draw depends on (seed, request, position) and the logits alone. Those are the same whatever
 * the placement, the number of ranks and the batch, so sampled text is too, and a step that is done
 * again draws the same token.
 */
#ifndef BL_RUNTIME_SAMPLE_H
#define BL_RUNTIME_SAMPLE_H

#include "core/status.h"

#include <stdint.h>

typedef struct bl_sampling {
    double temperature; /* 0: greedy */
    double top_p;       /* 0 < top_p <= 1 */
    uint64_t seed;
} bl_sampling;

#define BL_SAMPLING_GREEDY ((bl_sampling){.top_p = 1.0})

/* Working memory for one vocabulary; zero-initialise, free with bl_sampler_free(). */
typedef struct bl_sampler {
    bl_sampling how;
    int vocab;
    struct bl_candidate *candidates; /* [vocab] */
} bl_sampler;

bl_status bl_sampler_create(const bl_sampling *how, int vocab, bl_sampler *out, bl_error *err);
void bl_sampler_free(bl_sampler *sampler); /* safe on a zeroed struct */

/* The token at `position` of the sequence of `request`. Logits are finite: logits[vocab]. */
int32_t bl_sample(bl_sampler *sampler, const float *logits, int request, int position);

#endif
