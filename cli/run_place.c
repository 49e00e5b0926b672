#include "cli/run_place.h"

#include "core/mem.h"
#include "planner/capacity.h"

#include <stdlib.h>

static bl_status contiguous(bl_run_job *job, int64_t slots, bl_error *err) {
    const bl_qwen3_config *c = &job->config;
    const bl_capacity_request request = {.n_experts = c->n_experts,
                                         .n_ranks = job->n_ranks,
                                         .slots = slots >= 0 ? slots : c->n_experts,
                                         .redundant = -1};
    bl_capacity capacity;
    int *layers;
    BL_TRY(bl_capacity_of(&request, &capacity, err));
    bl_status st = BL_CALLOC(layers, c->n_layers, err);
    for (int layer = 0; st >= 0 && layer < c->n_layers; layer++)
        layers[layer] = layer;
    if (st >= 0)
        st = bl_placement_create(job->n_ranks, c->n_experts, layers, c->n_layers,
                                 capacity.slots_per_rank, &job->placement, err);
    if (st >= 0)
        bl_placement_fill_contiguous(&job->placement);
    free(layers);
    bl_capacity_free(&capacity);
    return st;
}

/* Is this plan for this model, these ranks and this rule? */
static bl_status check_plan(const bl_run_job *job, const bl_run_place *place, bl_error *err) {
    const bl_qwen3_config *c = &job->config;
    const bl_plan *plan = &job->plan;
    if (plan->n_experts != c->n_experts || plan->top_k != c->top_k)
        return bl_fail_at(err, BL_ERR_MODEL, bl_at(place->plan),
                          "the plan is for %d experts, top-%d; the model has %d, top-%d",
                          plan->n_experts, plan->top_k, c->n_experts, c->top_k);
    if (plan->placement.n_ranks != job->n_ranks)
        return bl_fail_at(err, BL_ERR_SHAPE, bl_at(place->plan),
                          "the plan is for %d ranks; run it with -n %d", plan->placement.n_ranks,
                          plan->placement.n_ranks);
    if (place->rule >= 0 && place->rule != (int)plan->rule)
        return bl_fail_at(err, BL_ERR_UNSUPPORTED, bl_at(place->plan),
                          "the plan was made for the rule %s, not %s; plan with --rule %s",
                          bl_rule_names[plan->rule], bl_rule_names[place->rule],
                          bl_rule_names[place->rule]);
    for (int layer = 0; layer < c->n_layers; layer++)
        if (bl_placement_layer(&plan->placement, layer) == NULL)
            return bl_fail_at(err, BL_ERR_MODEL, bl_at_layer(place->plan, layer),
                              "the plan does not have this layer of the model");
    return bl_placement_check(&plan->placement, place->plan, err);
}

/* A plan's fractions are those of its slots: they say nothing about any other placement. */
static bl_status take_fractions(const bl_run_place *place, bl_run_job *job, bl_error *err) {
    if (place->plan == NULL)
        return bl_fail(err, BL_ERR_USAGE, "the rule fractions needs a --plan that holds them");
    if (job->n_spares > 0 || job->socket != NULL)
        return bl_fail_at(err, BL_ERR_UNSUPPORTED, bl_at(place->plan),
                          "experts cannot move while the plan's fractions are in force; plan with "
                          "--rule even or per-step, or run without --spares and --socket");
    BL_TRY(BL_CALLOC(job->shares, job->config.n_layers, err));
    for (int l = 0; l < job->plan.placement.n_layers; l++) {
        const int layer = job->plan.placement.layers[l].layer;
        if (layer < job->config.n_layers)
            job->shares[layer] = job->plan.layers[l].share;
    }
    job->sharing.share = job->shares;
    return BL_OK;
}

static bl_status place_ranks(const char *topology, bl_run_job *job, bl_error *err) {
    if (topology == NULL && job->dispatch == BL_DISPATCH_DEDUP_NODE)
        return bl_fail(err, BL_ERR_USAGE, "--dispatch dedup-node needs --topology to tell nodes");
    if (topology == NULL)
        return BL_OK;
    BL_TRY(bl_topology_open(topology, &job->topology, err));
    job->has_topology = true;
    BL_TRY(bl_sites_of(&job->topology, job->n_ranks, &job->sites, err));
    job->sharing.host = job->sites.host;
    job->sharing.node = job->sites.node;
    return BL_OK;
}

bl_status bl_run_place_experts(const bl_run_place *place, bl_run_job *job, bl_error *err) {
    BL_TRY(place_ranks(place->topology, job, err));
    job->sharing.rule = place->rule >= 0 ? (bl_rule)place->rule : BL_RULE_EVEN;
    if (place->plan == NULL) {
        BL_TRY(contiguous(job, place->slots, err));
    } else {
        if (place->slots >= 0)
            return bl_fail(err, BL_ERR_USAGE, "--slots is for runs without --plan");
        BL_TRY(bl_plan_load(place->plan, &job->plan, err));
        BL_TRY(check_plan(job, place, err));
        job->plan_epoch = job->plan.epoch;
        job->sharing.rule = job->plan.rule;
        BL_TRY(bl_placement_copy(&job->plan.placement, &job->placement, err));
    }
    return job->sharing.rule == BL_RULE_FRACTIONS ? take_fractions(place, job, err) : BL_OK;
}
