/* The lower bound of timed.h. */
#include "planner/timed.h"

#include "core/mem.h"
#include "planner/bounds.h"
#include "planner/sources.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct bounder {
    const bl_problem *problem;
    const bl_cost_rates *rates;
    bool copies_are_even; /* every slot is filled, and copies share evenly */
    bool apart;           /* reading and multiplying add up on every rank */
    int active;           /* ranks with slots */
    double *rows;         /* [n_experts] of one step of the scenario in hand */
    double *sorted;       /* [n_experts] scratch */
    int *laid;            /* [n_ranks] scratch */
    double total;
} bounder;

static int ascending(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* 1 / sum of 1 / price over ranks with slots: what a unit, spread best, costs the dearest of them.
 * 0 when one takes it for nothing. */
static double spread(const bounder *b, const double *price) {
    double sum = 0.0;
    for (int g = 0; g < b->rates->n_ranks; g++) {
        if (b->problem->slots_per_rank[g] > 0)
            sum += 1.0 / price[g];
    }
    return isfinite(sum) && sum > 0.0 ? 1.0 / sum : 0.0;
}

/* The same over the shared ports of one level. */
static double spread_ports(const bounder *b, int level, const double *price) {
    const bl_cost_rates *r = b->rates;
    const int *port_of = r->port_of + (size_t)level * (size_t)r->n_ranks;
    double sum = 0.0;
    for (int g = 0; g < r->n_ranks; g++) {
        bool counted = b->problem->slots_per_rank[g] == 0;
        for (int h = 0; h < g && !counted; h++)
            counted = port_of[h] == port_of[g] && b->problem->slots_per_rank[h] > 0;
        if (!counted)
            sum += 1.0 / price[port_of[g]];
    }
    return isfinite(sum) && sum > 0.0 ? 1.0 / sum : 0.0;
}

static double least(const bounder *b, const double *price) {
    double found = INFINITY;
    for (int g = 0; g < b->rates->n_ranks; g++) {
        if (b->problem->slots_per_rank[g] > 0)
            found = fmin(found, price[g]);
    }
    return found;
}

/* Dispatch or combine: the dearest port. */
static double exchange_s(const bounder *b, const double *price, double hottest) {
    double bound = fmax(b->total * spread(b, price), hottest * least(b, price));
    for (int level = 0; level < b->rates->n_groupings; level++)
        bound = fmax(bound, b->total * spread_ports(b, level, price));
    return bound;
}

/* Rows of scenario s that are born on the ranks first .. of one domain of `level` and that no placement serves
 * there: all but those of as many experts as the domain has slots, the ones it asks for most. */
static double leaving(const bounder *b, int s, int level, int first) {
    const bl_problem *p = b->problem;
    const bl_topology *t = p->timed->topology;
    double all = 0.0, stay = 0.0;
    int slots = 0;
    memset(b->sorted, 0, (size_t)p->n_experts * sizeof *b->sorted);
    for (int g = first; g < (level == 0 ? first + 1 : p->n_ranks); g++) {
        if (level > 0 && bl_topology_domain(t, level, g) != bl_topology_domain(t, level, first))
            continue;
        slots += p->slots_per_rank[g];
        for (int e = 0; g < p->sources->n_sources && e < p->n_experts; e++)
            b->sorted[e] += bl_sources_load(p->sources, s, g)[e];
    }
    qsort(b->sorted, (size_t)p->n_experts, sizeof *b->sorted, ascending);
    for (int e = 0; e < p->n_experts; e++) {
        all += b->sorted[e];
        stay += e >= p->n_experts - slots ? b->sorted[e] : 0.0;
    }
    return fmax(all - stay, 0.0) * p->timed->scale[s] * (1.0 - 1e-9);
}

/* The same where it is known where rows come from: what ranks, and domains at the top, must send away. Rows
 * sent once for several experts are told by no loads. */
static double real_exchange_s(const bounder *b, int s, bool back) {
    const bl_problem *p = b->problem;
    const int top = p->timed->topology->n_levels;
    double bound = 0.0;
    if ((back ? p->timed->combine : p->timed->dispatch) != BL_DISPATCH_ASSIGNMENT ||
        p->rule == BL_RULE_LOCAL) /* whose rows are those of a sample */
        return 0.0;
    for (int g = 0; g < p->n_ranks; g++) {
        bound = fmax(bound, leaving(b, s, 0, g) * bl_cost_leave_rank_s(p->timed->cost, g, back));
        bool seen = top < 2;
        for (int h = 0; h < g && !seen; h++)
            seen = bl_topology_domain(p->timed->topology, top - 1, h) ==
                   bl_topology_domain(p->timed->topology, top - 1, g);
        if (!seen)
            bound = fmax(bound,
                         leaving(b, s, top - 1, g) * bl_cost_leave_domain_s(p->timed->cost, back));
    }
    return bound;
}

/* A rank's time of a row in units of its weights_s, the least and the most of all ranks. */
static void row_ratios(const bounder *b, double *least_ratio, double *most_ratio) {
    const bl_cost_rates *r = b->rates;
    *least_ratio = INFINITY;
    *most_ratio = 0.0;
    for (int g = 0; g < r->n_ranks; g++) {
        if (b->problem->slots_per_rank[g] == 0)
            continue;
        *least_ratio = fmin(*least_ratio, r->row_s[g] / r->weights_s[g]);
        *most_ratio = fmax(*most_ratio, r->row_s[g] / r->weights_s[g]);
    }
}

/* Sum over ranks of time, in units of weights_s and of row_s, spread best. */
static double mean_s(const bounder *b) {
    const bl_cost_rates *r = b->rates;
    double least_ratio, most_ratio, reading = 0.0, multiplying = 0.0;
    row_ratios(b, &least_ratio, &most_ratio);
    for (int e = 0; e < b->problem->n_experts; e++) {
        const double used = fmin(1.0, b->rows[e]), rows = b->rows[e];
        reading += b->apart ? used + rows * least_ratio : fmax(used, rows * least_ratio);
        multiplying += b->apart ? used / most_ratio + rows : fmax(used / most_ratio, rows);
    }
    return fmax(reading * spread(b, r->weights_s), multiplying * spread(b, r->row_s));
}

/* Copies that are active at all: all ranks together, and the rank with most slots. */
static double active_s(const bounder *b) {
    const bl_problem *p = b->problem;
    const int spare = bl_problem_n_slots(p) - p->n_experts;
    double used = 0.0, fullest = 0.0, least_ratio, most_ratio;
    for (int e = 0; e < p->n_experts; e++) {
        const double once = fmin(1.0, b->rows[e]);
        used += once;
        b->sorted[e] = b->active > 1 ? (fmin(b->active, b->rows[e]) - once) / (b->active - 1) : 0.0;
    }
    qsort(b->sorted, (size_t)p->n_experts, sizeof *b->sorted, ascending);
    int left = spare;
    for (int e = 0; e < p->n_experts && left > 0; e++) {
        const int taken = left < b->active - 1 ? left : b->active - 1;
        used += taken * b->sorted[e];
        left -= taken;
    }
    for (int e = 0; e < p->n_experts; e++)
        b->sorted[e] = fmin(1.0, b->rows[e] / b->active);
    qsort(b->sorted, (size_t)p->n_experts, sizeof *b->sorted, ascending);
    for (int g = 0; g < p->n_ranks; g++) {
        double sum = 0.0;
        for (int i = 0; i < p->slots_per_rank[g]; i++)
            sum += b->sorted[i];
        fullest = fmax(fullest, sum * b->rates->weights_s[g]);
    }
    row_ratios(b, &least_ratio, &most_ratio);
    used += b->apart ? b->total * least_ratio : 0.0;
    return fmax(used * spread(b, b->rates->weights_s), fullest);
}

/* Experts with rows for every copy there could be are read whole wherever they are: laid one by one
 * where the next costs least, which no other way of laying them beats. */
static double whole_s(const bounder *b) {
    const bl_problem *p = b->problem;
    double last = 0.0;
    for (int g = 0; g < p->n_ranks; g++)
        b->laid[g] = 0;
    for (int e = 0; e < p->n_experts; e++) {
        if (b->rows[e] < b->active)
            continue;
        int best = -1;
        double least_s = INFINITY;
        for (int g = 0; g < p->n_ranks; g++) {
            const double after = (b->laid[g] + 1) * b->rates->weights_s[g];
            if (b->laid[g] < p->slots_per_rank[g] && after < least_s) {
                least_s = after;
                best = g;
            }
        }
        assert(best >= 0); /* there is a slot for every expert */
        b->laid[best]++;
        last = fmax(last, least_s);
    }
    return last;
}

/* The hottest copy, where it costs least. */
static double hottest_s(const bounder *b, double hottest) {
    double found = INFINITY;
    for (int g = 0; g < b->rates->n_ranks; g++) {
        if (b->problem->slots_per_rank[g] > 0)
            found = fmin(found, bl_cost_copy_s(b->rates, g, hottest));
    }
    return found;
}

static double least_attention_s(const bounder *b) {
    const bl_cost *cost = b->problem->timed->cost;
    const double tokens = b->rates->overlap ? b->total / b->rates->top_k / b->rates->n_ranks : 0.0;
    double found = INFINITY;
    for (int g = 0; g < b->rates->n_ranks; g++)
        found = fmin(found, bl_cost_attention_s(cost, g, tokens));
    return found;
}

static bl_status scenario(bounder *b, int s, bl_timed_bound *out, bl_error *err) {
    const bl_problem *p = b->problem;
    bl_load_bounds tokens;
    b->total = 0.0;
    for (int e = 0; e < p->n_experts; e++) {
        b->rows[e] = p->load[(size_t)s * (size_t)p->n_experts + (size_t)e] * p->timed->scale[s];
        b->total += b->rows[e];
    }
    BL_TRY(bl_bounds_of_load(b->rows, p->n_experts, p->slots_per_rank, p->n_ranks, NULL, p->rule,
                             &tokens, err));
    /* Up to rounding: a bound must not exceed what it bounds. */
    const double hottest = tokens.slot * (1.0 - 1e-12);
    bl_timed_bound experts = {mean_s(b), "mean"};
    const double active = b->copies_are_even ? fmax(active_s(b), whole_s(b)) : 0.0;
    const double slot = hottest_s(b, hottest);
    if (active > experts.seconds)
        experts = (bl_timed_bound){active, "active"};
    if (slot > experts.seconds)
        experts = (bl_timed_bound){slot, "slot"};
    const bool real = bl_timed_knows_sources(p);
    const double in_s =
        real ? real_exchange_s(b, s, false) : exchange_s(b, b->rates->in_s, hottest);
    const double out_s =
        real ? real_exchange_s(b, s, true) : exchange_s(b, b->rates->out_s, hottest);
    *out = (bl_timed_bound){
        bl_cost_total_s(b->rates, in_s, out_s, least_attention_s(b) + experts.seconds),
        experts.kind};
    return BL_OK;
}

static bool has_hole(const bl_layer_placement *placement) {
    for (int slot = 0; slot < bl_layer_n_slots(placement); slot++) {
        if (placement->expert[slot] == BL_NO_EXPERT)
            return true;
    }
    return false;
}

bl_status bl_timed_bound_of(const bl_problem *problem, bl_timed_bound *out, bl_error *err) {
    bounder b = {.problem = problem,
                 .rates = bl_cost_rates_of(problem->timed->cost),
                 .active = bl_problem_active_ranks(problem),
                 .apart = true};
    for (int g = 0; g < b.rates->n_ranks; g++)
        b.apart = b.apart && b.rates->apart[g];
    b.copies_are_even =
        problem->rule == BL_RULE_EVEN && (problem->current == NULL || !has_hole(problem->current));
    bl_timed_bound all = {0.0, "mean"};
    double heaviest = -1.0;
    bl_status st = BL_CALLOC(b.rows, problem->n_experts, err);
    if (st >= 0)
        st = BL_CALLOC(b.sorted, problem->n_experts, err);
    if (st >= 0)
        st = BL_CALLOC(b.laid, problem->n_ranks, err);
    for (int s = 0; s < problem->n_scenarios && st >= 0; s++) {
        bl_timed_bound one = {0.0, "mean"};
        st = scenario(&b, s, &one, err);
        const double part = problem->timed->weight[s] * one.seconds;
        all.seconds += part;
        if (part > heaviest) {
            heaviest = part;
            all.kind = one.kind;
        }
    }
    free(b.rows);
    free(b.sorted);
    free(b.laid);
    if (st >= 0)
        *out = all;
    return st;
}
