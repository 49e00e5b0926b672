/*
 * plan.h: a plan: where copies live in every MoE layer, how it was found and how good it is.
 *
 * File: .plan.json (see the format in docs/architecture.md):
 *   {"format":"ballast-plan","version":1,"model":{"name","experts","top_k"},"ranks":G,"epoch":N,
 *    "layers":[{"layer":id,"slots":[[ids] per rank],"split":{"rule","fractions"?},
 *               "score":{"max_over_mean"},"bound":{"max_over_mean","kind"},"gap"}],
 *    "provenance":{"objective","rule","algorithm","seed","steps","trace","topology",...},
 *    "digest":"xxh3-128 hex"}
 * The digest covers model, rank sets and split only: two plans that put the same experts on the same
 * ranks have the same digest, whatever their epoch, slot order or history.
 */
#ifndef BL_PLANNER_PLAN_H
#define BL_PLANNER_PLAN_H

#include "core/model.h"
#include "planner/solve.h"

typedef struct bl_plan_layer {
    bl_score score; /* of the load planned on */
    bl_bound bound;
    double gap;
    double *share;  /* [n_slots] of BL_RULE_FRACTIONS, else NULL; owned */
} bl_plan_layer;

typedef struct bl_plan {
    char model_name[128];
    int n_experts, top_k;
    uint64_t epoch;
    bl_placement placement; /* owned */
    bl_rule rule;
    bl_plan_layer *layers;  /* [placement.n_layers]; owned */
    json_t *provenance;     /* object, owned reference */
    bl_digest digest;
} bl_plan;

bl_status bl_plan_load(const char *path, bl_plan *out, bl_error *err);
bl_status bl_plan_save(const bl_plan *plan, const char *path, bl_error *err);
json_t *bl_plan_to_json(const bl_plan *plan); /* new reference or NULL */
bl_status bl_plan_from_json(const json_t *root, const char *file, bl_plan *out, bl_error *err);
void bl_plan_free(bl_plan *plan); /* safe on a zeroed struct */

/* Recompute the digest from model, rank sets and split. */
bl_digest bl_plan_digest(const bl_plan *plan);

#endif
