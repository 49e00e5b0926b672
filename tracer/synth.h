/*
 * synth.h: made-up routing with the features that matter to placement, from a seed.
 *
 *   - Experts are unequally popular: in each topic and layer they are ranked at random, and the
 * r-th is picked with weight r^-skew (Zipf).
 *   - Topics differ: their rankings are independent, so the hot experts of one are not those of
 * another.
 *   - Load drifts: over the trace the mix of topics moves on by `drift` topics. At position p (a
 * real number on the circle of topics) tokens belong to topic floor(p) with probability 1 -
 * frac(p), else to the next one. drift 0 stays on topic 0.
 *   - Each token of each rank draws its own topic, and in each layer k distinct experts, one after
 *     another, without replacement.
 *
 * The same seed and options give the same bytes.
 */
#ifndef BL_TRACER_SYNTH_H
#define BL_TRACER_SYNTH_H

#include "core/model.h"
#include "tracer/trace.h"

typedef struct bl_synth_options {
    int n_topics;            /* >= 1 */
    int64_t n_steps;         /* >= 1 */
    int64_t tokens_per_step; /* over all ranks; the first ranks get the remainder */
    int n_ranks;
    double drift; /* topics over the whole trace, >= 0 */
    double skew;  /* exponent of Zipf's law, 0: all equal, at most 4 */
    bl_phase phase;
    uint64_t seed;
} bl_synth_options;

#define BL_SYNTH_OPTIONS_INIT ((bl_synth_options){4, 64, 512, 4, 1.0, 0.5, BL_PHASE_DECODE, 1})

bl_status bl_synth(const bl_model *model, const bl_synth_options *options, const char *out,
                   bl_error *err);

#endif
