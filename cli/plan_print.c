/*
 * plan_print.c: telling what a plan is worth.
 */
#include "cli/plan_print.h"

#include "cli/plan_phases.h"

static int largest_rank(const bl_capacity *capacity, int n_ranks) {
    int most = 0;
    for (int rank = 0; rank < n_ranks; rank++)
        most = capacity->slots_per_rank[rank] > most ? capacity->slots_per_rank[rank] : most;
    return most;
}

static void warn_layers(const bl_planning_summary *s, const bl_plan *plan) {
    if (s->n_idle == 0)
        return;
    const json_t *idle = json_object_get(plan->provenance, "idle_layers");
    const json_t *missing = json_object_get(plan->provenance, "missing_layers");
    const json_t *first = json_array_get(s->n_missing > 0 ? missing : idle, 0);
    fprintf(
        stderr,
        "%d of %d MoE layers have no load in the trace (layer %lld%s) and keep their placement; "
        "--strict refuses that\n",
        s->n_idle, s->n_layers, (long long)json_integer_value(first),
        s->n_idle > 1 ? " and others" : "");
}

static void print_figure(const char *name, const bl_planning_figure *f) {
    fprintf(stderr, "  %-18s %8.4f   %8.4f (layer %d)\n", name, f->mean, f->worst, f->worst_layer);
}

/* What keeping to them costs. */
static void print_rules(const bl_plan_options *o, const bl_plan_inputs *in,
                        const bl_planning_summary *s) {
    fprintf(stderr, "  %-18s", "rules");
    if (o->keep_groups)
        fprintf(stderr, " %d groups whole on a %s (nodes proven best in %d layers)",
                in->model.n_groups, o->node, s->n_groups_proven);
    if (o->min_copies > 1)
        fprintf(stderr, "%s in %d %ss at least", o->keep_groups ? "," : "", (int)o->min_copies,
                o->fault_domain);
    if (o->objective == BL_OBJECTIVE_TIME)
        fprintf(stderr, ": step %+.2f %%\n", 100.0 * (s->score_us / s->free_us - 1.0));
    else
        fprintf(stderr, ": max/mean %+.2f %%\n", 100.0 * (s->score.mean / s->free.mean - 1.0));
}

static double remote_nodes(const bl_planning_traffic *t) {
    return t->tokens > 0.0 ? t->remote_nodes / t->tokens : 0.0;
}

static void print_traffic(const bl_plan_options *o, const bl_plan_inputs *in, const char *before,
                          const bl_planning_summary *s) {
    if (!s->has_traffic && in->loads.sources_why[0] != '\0' &&
        o->dispatch != BL_DISPATCH_ASSIGNMENT)
        fprintf(stderr, "  %-18s left out: %s\n", "traffic", in->loads.sources_why);
    if (!s->has_traffic)
        return;
    if (s->traffic.tokens > 0.0)
        fprintf(stderr, "  %-18s %.3f per token, %s %.3f\n", "remote nodes",
                remote_nodes(&s->traffic), before, remote_nodes(&s->traffic_before));
    if (o->dispatch == BL_DISPATCH_ALLGATHER)
        fprintf(stderr,
                "  %-18s dispatch by allgather sends every token to every rank: where experts "
                "live changes nothing, and locality gains 0\n",
                "traffic");
    else
        fprintf(stderr, "  %-18s dispatch by %s: %.1f %% fewer rows between nodes than the %s\n",
                "traffic", bl_dispatch_names[o->dispatch], 100.0 * s->locality_gain, before);
}

static void print_summary(const bl_plan_options *o, const bl_plan_inputs *in, const bl_plan *plan,
                          const bl_planning_summary *s) {
    const char *before = s->current_given ? "current placement" : "start layout";
    fprintf(stderr, "%d layers of %d experts on %d ranks, %d slots, from %zu step%s", s->n_layers,
            in->model.n_experts, in->n_ranks, in->capacity.n_slots, s->n_steps,
            s->n_steps == 1 ? "" : "s");
    if (s->steps_per_scenario > 1)
        fprintf(stderr, " in blocks of %zu", s->steps_per_scenario);
    fprintf(stderr, "\n  %-18s %8s   %8s\n", "max/mean", "mean", "worst");
    print_figure(before, &s->before);
    print_figure("greedy", &s->greedy);
    print_figure("this plan", &s->score);
    if (s->has_rules)
        print_figure("without the rules", &s->free);
    fprintf(stderr, "  %-18s %8.4f\n", "bound", s->bound.mean);
    if (s->score_us > 0.0)
        fprintf(stderr,
                "  %-18s %s %.1f, greedy %.1f, this plan %.1f, bound %.1f (modelled, MoE layers)\n",
                "step, us", before, s->before_us, s->greedy_us, s->score_us, s->bound_us);
    fprintf(stderr, "  %-18s %7.3f%%   %7.3f%% (layer %d); optimum proven in %d layers\n",
            o->objective == BL_OBJECTIVE_TIME ? "gap, of time" : "gap", 100.0 * s->gap.mean,
            100.0 * s->gap.worst, s->gap.worst_layer, s->n_proven);
    fprintf(stderr, "  %-18s %lld from the %s (%.1f per layer)\n", "moves", (long long)s->moves,
            before, (double)s->moves / s->n_layers);
    fprintf(stderr, "  %-18s %lld per layer%s", "extra copies", (long long)s->replicas,
            in->replica_budget >= 0 ? " at most" : "");
    if (s->replica_bytes > 0)
        fprintf(stderr, ", %.3g GB in all, %.3g of %.3g GB on a rank",
                1e-9 * (double)s->replica_bytes, 1e-9 * (double)s->rank_bytes,
                1e-9 * (double)s->resident_bytes);
    if (s->spare_bytes > 0)
        fprintf(stderr, ", %.3g GB of spares", 1e-9 * (double)s->spare_bytes);
    if (s->kv_tokens_lost >= 1.0)
        fprintf(stderr, ": KV cache of %.0f tokens", s->kv_tokens_lost);
    fputc('\n', stderr);
    const double gain = o->objective == BL_OBJECTIVE_TIME ? 1.0 - s->score_us / s->before_us
                                                          : 1.0 - s->score.mean / s->before.mean;
    if (in->replica_budget >= 0)
        fprintf(stderr,
                "  %-18s %lld of %lld slots per rank given out, %s; %.3f %% better than the same "
                "in every layer (predicted)\n",
                "replica budget", (long long)s->budget_slots, (long long)in->replica_budget,
                s->budget_proven ? "proven best by GLPK" : "not proven best",
                100.0 * s->budget_gain);
    if (s->has_rules)
        print_rules(o, in, s);
    print_traffic(o, in, before, s);
    if (gain <= 0.01)
        fprintf(stderr, "  the gain over the %s is %.2f %% (at most 1 %%): hardly worth a change\n",
                before, 100.0 * (gain > 0.0 ? gain : 0.0));
    if (s->n_orphans > 0)
        fprintf(
            stderr,
            "  %d experts had no copy but on masked ranks; provenance.orphans names them: their "
            "weights must come from host memory or disk\n",
            s->n_orphans);
    bl_plan_print_phases(o, in, plan, stderr);
    if (s->stopped)
        fprintf(stderr, "  stopped early: this is the best so far\n");
    fprintf(stderr, "wrote %s, digest %s\n", o->output, plan->digest.hex);
}

/* Does what a rank must hold fit into what its device has for experts? */
static void warn_memory(const bl_plan_inputs *in, const bl_planning_summary *s) {
    for (int rank = 0; in->has_topology && rank < in->n_ranks; rank++) {
        const bl_device *device = bl_topology_device(&in->topology, rank);
        const double room = device->memory_bytes.value * device->expert_share.value;
        const double held = (double)s->resident_bytes * in->capacity.slots_per_rank[rank] /
                            largest_rank(&in->capacity, in->n_ranks);
        if (held <= room)
            continue;
        fprintf(stderr,
                "rank %d would hold %.3g GB of experts, but %s has about %.3g GB for them (%s)\n",
                rank, 1e-9 * held, device->name, 1e-9 * room,
                bl_figure_source_name(device->expert_share.source));
        return;
    }
}

void bl_plan_print_text(const bl_plan_options *o, const bl_plan_inputs *in, const bl_plan *plan,
                        const bl_planning_summary *s) {
    warn_layers(s, plan);
    warn_memory(in, s);
    print_summary(o, in, plan, s);
    if (s->explain != NULL)
        bl_plan_print_explain(s->explain);
}

static json_t *figure_to_json(const bl_planning_figure *f) {
    return json_pack("{s:f, s:f, s:i}", "mean", f->mean, "worst", f->worst, "worst_layer",
                     f->worst_layer);
}

bl_status bl_plan_print_json(const bl_plan_options *o, const bl_plan_inputs *in,
                             const bl_plan *plan, const bl_planning_summary *s, bl_error *err) {
    json_t *root = json_pack("{s:o, s:s, s:i, s:i, s:i, s:i, s:I, s:I, s:i, s:i, s:b}", "plan",
                             bl_json_text(o->output), "digest", plan->digest.hex, "layers",
                             s->n_layers, "experts", in->model.n_experts, "ranks", in->n_ranks,
                             "slots", in->capacity.n_slots, "steps", (json_int_t)s->n_steps,
                             "steps_per_scenario", (json_int_t)s->steps_per_scenario, "idle_layers",
                             s->n_idle, "missing_layers", s->n_missing, "stopped", s->stopped);
    json_object_set_new(root, "before_is",
                        json_string(s->current_given ? "current" : "contiguous"));
    json_object_set_new(root, "before", figure_to_json(&s->before));
    json_object_set_new(root, "greedy", figure_to_json(&s->greedy));
    json_object_set_new(root, "score", figure_to_json(&s->score));
    json_object_set_new(root, "bound", figure_to_json(&s->bound));
    json_object_set_new(root, "gap", figure_to_json(&s->gap));
    json_object_set_new(root, "objective", json_string(bl_objective_names[o->objective]));
    if (s->score_us > 0.0)
        json_object_set_new(root, "step_us",
                            json_pack("{s:f, s:f, s:f, s:f, s:b}", "before", s->before_us, "greedy",
                                      s->greedy_us, "score", s->score_us, "bound", s->bound_us,
                                      "modelled", 1));
    json_object_set_new(root, "predicted", bl_plan_phases_to_json(plan));
    json_object_set_new(root, "proven_layers", json_integer(s->n_proven));
    json_object_set_new(root, "moves", json_integer((json_int_t)s->moves));
    json_object_set_new(root, "replicas", json_integer((json_int_t)s->replicas));
    json_object_set_new(root, "replica_bytes", json_integer((json_int_t)s->replica_bytes));
    json_object_set_new(root, "resident_bytes", json_integer((json_int_t)s->resident_bytes));
    json_object_set_new(root, "rank_bytes", json_integer((json_int_t)s->rank_bytes));
    json_object_set_new(root, "spare_bytes", json_integer((json_int_t)s->spare_bytes));
    if (s->has_rules) {
        json_object_set_new(root, "without_rules", figure_to_json(&s->free));
        json_object_set_new(root, "groups_proven_layers", json_integer(s->n_groups_proven));
    }
    if (s->has_traffic)
        json_object_set(root, "traffic", json_object_get(plan->provenance, "traffic"));
    json_object_set_new(root, "orphans", json_integer(s->n_orphans));
    if (in->replica_budget >= 0)
        json_object_set_new(root, "replica_budget",
                            json_pack("{s:I, s:I, s:f, s:b}", "slots_per_rank",
                                      (json_int_t)in->replica_budget, "given_out",
                                      (json_int_t)s->budget_slots, "gain_over_even", s->budget_gain,
                                      "proven", s->budget_proven));
    if (s->explain != NULL)
        json_object_set(root, "explain", s->explain);
    json_object_set_new(root, "kv_tokens_lost", json_real(s->kv_tokens_lost));
    const bl_status st = root != NULL ? bl_json_write("-", root, 2, err)
                                      : bl_fail(err, BL_ERR_NOMEM, "out of memory");
    json_decref(root);
    return st;
}
