/*
 * plan.h: a plan: where copies live in every MoE layer, how that was found and how good it is.
 *
 * A plan is what `ballast plan` writes, what replay, diff and export read and what a rebalance
 * carries out. Its file (.plan.json) is one JSON object:
 *
 *   {"format":"ballast-plan","version":1,
 *    "model":{"name","experts","top_k", ...},         the other keys are those of a model.json
 *    "ranks":G,"epoch":N,
 *    "layers":[{"layer":id,                           ascending decoder-layer ids
 *               "slots":[[expert ids] per rank],      -1 is an empty slot
 *               "split":{"rule","fractions"?},        fractions mirror slots, sum to 1 per expert
 *               "score":{"max_over_mean","worst"},    of the load planned on
 *               "bound":{"max_over_mean","kind"},"gap","declined"?,
 *               "time":{"step_us","bound_us","kind","modelled":true}}],
 *    "provenance":{"objective","rule","algorithm","seed","steps","trace","traces"?,"topology",...},
 *    "predicted":{<phase>:{"steps","imbalance":{"mean","p50","p95","p99","worst"},"step_us",
 *                          "modelled","layers":[{"layer","mean","p50","p95","p99","worst"}]}},
 *    "digest":"xxh3-128 hex"}
 *
 * Readers ignore keys they do not know, refuse a version they do not know, and check everything
 * else: the hard rules first, so that a faulty plan is refused by layer and expert, then the
 * digest. score, bound and gap may be absent (a placement taken over from an engine was never
 * scored), and so may the digest of a plan that was written by hand; a digest that is there must
 * match.
 *
 * The *digest* names what the plan does: model (name, experts, top-k), rank sets and split. Two
 * plans that put the same experts on the same ranks have the same digest, whatever their epoch,
 * slot order or history. It is the xxh3-128 of: the text "ballast-plan 1"; then as little-endian
 * int64 the length of the model's name, its bytes, experts, top-k, ranks, number of layers, rule;
 * then per layer its id and per rank the number of experts and the experts in ascending order, and
 * under the fractions rule behind each expert its share, printed by "%.12g" and ended by a zero
 * byte.
 *
 * provenance.traces is there when several traces were planned on as one: [{"trace":digest,
 * "steps":[A,B]}], where each stands among the steps that provenance.steps counts. replay knows a
 * trace again by its own digest, alone or among others.
 *
 * The *epoch* is 0 for a plan made from nothing; a plan made from a current one carries that one's
 * epoch, plus one when it moves anything.
 */
#ifndef BL_PLANNER_PLAN_H
#define BL_PLANNER_PLAN_H

#include "core/json.h"
#include "core/model.h"
#include "planner/solve.h"

typedef struct bl_plan_layer {
    bool scored;        /* false: score, bound and gap are not known */
    bl_score score;     /* of the load planned on */
    bl_layer_time time; /* 0 where it was not modelled */
    bl_bound bound;     /* kind "idle": the layer had no load, so there was nothing to score */
    double gap;
    double
        declined;  /* gain forgone by keeping the placement it was made from (problem.h); 0: none */
    double *share; /* [n_slots] of BL_RULE_FRACTIONS, else NULL; owned */
} bl_plan_layer;

typedef struct bl_plan {
    char model_name[128];
    int n_experts, top_k;
    bl_model model; /* owned; n_layers is 0 when the plan tells no more than the three above */
    uint64_t epoch;
    bl_placement placement; /* owned */
    bl_rule rule;           /* one for all layers */
    bl_plan_layer *layers;  /* [placement.n_layers]; owned */
    json_t *provenance;     /* object, owned reference */
    json_t *predicted;      /* object by phase (planner/predict.h), or NULL; owned reference */
    bl_digest digest;
} bl_plan;

/* A plan around `placement`, which is taken over on success (and zeroed) and must satisfy the hard
 * rules; unscored, with the rule even and an empty provenance. `model` is copied. */
bl_status bl_plan_create(const bl_model *model, bl_placement *placement, bl_plan *out,
                         bl_error *err);
void bl_plan_free(bl_plan *plan); /* safe on a zeroed struct */

/* Read and check a file ("-": standard input). Free with bl_plan_free(). */
bl_status bl_plan_load(const char *path, bl_plan *out, bl_error *err);
bl_status bl_plan_from_json(const json_t *root, const char *file, bl_plan *out, bl_error *err);

/* Recomputes the digest into the file; the same plan gives the same bytes, one layer per line. */
bl_status bl_plan_save(const bl_plan *plan, const char *path, bl_error *err);
json_t *bl_plan_to_json(const bl_plan *plan); /* new reference or NULL */

/* What the digest of this content is; an empty text when out of memory. */
bl_digest bl_plan_digest(const bl_plan *plan);

/* A plan that knows its model holds exactly that model's MoE layers (loaded plans do). `file` is for
 * the message and may be NULL. */
bl_status bl_plan_check_layers(const bl_plan *plan, const char *file, bl_error *err);

/* Do two plans speak of the same model and number of ranks? BL_ERR_MODEL or BL_ERR_SHAPE names the
 * difference; the names are for the message. */
bl_status bl_plan_comparable(const bl_plan *a, const char *a_name, const bl_plan *b,
                             const char *b_name, bl_error *err);

/* The first step and the end of the steps planned on; false when provenance does not tell. */
bool bl_plan_steps(const bl_plan *plan, int64_t *first, int64_t *end);

#endif
