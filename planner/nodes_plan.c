#include "planner/nodes_plan.h"

#include "core/mem.h"
#include "planner/align.h"
#include "planner/evaluate.h"
#include "planner/nodes_place.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Experts that tokens pick together also run hot together, and where they share a node it runs hot with
 * them on other texts. So the busiest node of each quarter of the steps counts, too; a price of 1 gave
 * 3 per cent of held-out balance away on DeepSeek-V2-Lite, one of 3 gave 0.5. */
#define FOLDS 4
#define SPREAD 1.8

/* What the node problem borrows. */
typedef struct arrays {
    int *slots, *ranks, *own, *fold, *count, *home;
    int32_t *id;
    double *weight, *rows;
} arrays;

static void arrays_free(arrays *a) {
    free(a->slots);
    free(a->ranks);
    free(a->own);
    free(a->fold);
    free(a->count);
    free(a->home);
    free(a->id);
    free(a->weight);
    free(a->rows);
}

static bl_status room(arrays *a, size_t n_tokens, int k, const bl_nodes_problem *p, bl_error *err) {
    size_t ids;
    if (!bl_size_mul(n_tokens, (size_t)k, &ids))
        return bl_fail(err, BL_ERR_NOMEM, "out of memory");
    const size_t cells = (size_t)p->n_experts * (size_t)p->n_nodes;
    BL_TRY(BL_CALLOC(a->id, ids, err));
    BL_TRY(BL_CALLOC(a->own, n_tokens, err));
    BL_TRY(BL_CALLOC(a->fold, n_tokens, err));
    BL_TRY(BL_CALLOC(a->weight, n_tokens, err));
    BL_TRY(BL_CALLOC(a->slots, p->n_nodes, err));
    BL_TRY(BL_CALLOC(a->ranks, p->n_nodes, err));
    BL_TRY(BL_CALLOC(a->count, cells, err));
    BL_TRY(BL_CALLOC(a->home, cells, err));
    return BL_CALLOC(a->rows, FOLDS * cells, err);
}

/* More tokens than these make the search slower and no better; every so many-th is taken. */
#define MOST_TOKENS 16384

static size_t stride_of(const bl_sources *s) {
    return (s->n_tokens + MOST_TOKENS - 1) / MOST_TOKENS;
}

static size_t take_tokens(const bl_problem *problem, arrays *a) {
    const bl_sources *s = problem->sources;
    const size_t k = (size_t)s->k, stride = stride_of(s);
    size_t n = 0;
    uint64_t last = 0;
    for (size_t i = 0; i < s->n_tokens; i++)
        last = s->step[i] > last ? s->step[i] : last;
    for (int group = 0; group < s->n_groups; group++) {
        for (size_t i = s->first[group]; i < s->first[group + 1]; i++) {
            if (i % stride != 0)
                continue;
            memcpy(a->id + n * k, s->id + i * k, k * sizeof *a->id);
            a->fold[n] = (int)(s->step[i] * FOLDS / (last + 1));
            a->own[n] = problem->sites->node[s->source[i]];
            a->weight[n++] = s->weight * s->scale[group];
        }
    }
    return n;
}

/* One made-up token for every (source node, expert) with rows. */
static size_t make_tokens(const bl_problem *problem, arrays *a) {
    const bl_sources *s = problem->sources;
    size_t n = 0;
    for (int node = 0; node < problem->sites->n_nodes; node++) {
        for (int e = 0; e < s->n_experts; e++) {
            double rows = 0.0;
            for (int group = 0; group < s->n_groups; group++) {
                for (int source = 0; source < s->n_sources; source++) {
                    if (problem->sites->node[source] == node)
                        rows += bl_sources_load(s, group, source)[e];
                }
            }
            if (rows <= 0.0)
                continue;
            a->id[n] = e;
            a->own[n] = node;
            a->weight[n++] = rows;
        }
    }
    return n;
}

static void count_copies(const bl_problem *problem, const bl_layer_placement *placement,
                         int *count) {
    for (int rank = 0; rank < placement->n_ranks; rank++) {
        for (int slot = placement->begin[rank]; slot < placement->begin[rank + 1]; slot++) {
            if (placement->expert[slot] != BL_NO_EXPERT)
                count[(size_t)placement->expert[slot] * (size_t)problem->sites->n_nodes +
                      (size_t)problem->sites->node[rank]]++;
        }
    }
}

static bl_status make_problem(const bl_problem *problem, const bl_nodes_plan_options *options,
                              arrays *a, bl_nodes_problem *p, bl_error *err) {
    const bl_sources *s = problem->sources;
    const bool single = options->dispatch == BL_DISPATCH_ASSIGNMENT;
    *p = (bl_nodes_problem){.n_nodes = problem->sites->n_nodes,
                            .n_experts = problem->n_experts,
                            .k = single ? 1 : s->k};
    if (!single)
        BL_TRY(bl_sources_need_tokens(s, err));
    BL_TRY(room(a, single ? (size_t)p->n_nodes * (size_t)p->n_experts : s->n_tokens, p->k, p, err));
    p->n_tokens = single ? make_tokens(problem, a) : take_tokens(problem, a);
    for (int rank = 0; rank < problem->n_ranks; rank++) {
        a->slots[problem->sites->node[rank]] += problem->slots_per_rank[rank];
        a->ranks[problem->sites->node[rank]] += problem->slots_per_rank[rank] > 0;
    }
    if (problem->current != NULL) {
        count_copies(problem, problem->current, a->home);
        p->home = a->home;
        p->move_price = options->move_price;
        p->max_moves = problem->max_moves;
    }
    p->slots = a->slots;
    p->ranks = a->ranks;
    p->id = a->id;
    p->own = a->own;
    p->weight = a->weight;
    if (!single) {
        p->fold = a->fold;
        p->n_folds = FOLDS;
        p->spread = SPREAD;
    }
    return BL_OK;
}

/* ---- search, solver, placing ----------------------------------------------------------------- */

/* What a tree of so many binaries and nodes takes is a second or so. */
#define MILP_BINARIES 1500
#define MILP_NODES 300
#define MILP_SECONDS 30.0 /* a net far below which the node limit stops */
/* Few changes are worth their moves. */
#define ANCHORED_PROPOSALS (BL_NODES_PROPOSALS / 4)

static bl_status assign_nodes(const bl_nodes_problem *p, const bl_nodes_plan_options *options,
                              int *count, bl_nodes_plan_result *out, bl_error *err) {
    int64_t proposals = options->proposals;
    if (proposals == 0 && p->home != NULL)
        proposals = ANCHORED_PROPOSALS;
    const bl_nodes_options search = {.seed = options->seed, .proposals = proposals};
    bl_nodes_score score;
    const bl_status st = bl_nodes_search(p, &search, count, &score, err);
    if (st != BL_OK || !options->use_milp || p->home != NULL || bl_milp_solver() == NULL ||
        bl_nodes_exact_size(p) > MILP_BINARIES)
        return st;
    const bl_milp_limits limits = {.max_nodes = MILP_NODES, .time_s = MILP_SECONDS};
    bl_nodes_exact_result exact;
    BL_TRY(bl_nodes_exact(p, &limits, count, &exact, err));
    out->improved_by_milp = exact.improved;
    out->proven = exact.proven;
    return BL_OK;
}

static double total_weight(const bl_nodes_problem *p) {
    double sum = 0.0;
    for (size_t i = 0; i < p->n_tokens; i++)
        sum += p->weight[i];
    return sum > 0.0 ? sum : 1.0;
}

/* One attempt within a limit on the nodes; *fits says whether the ranks are balanced as well. */
static bl_status attempt(const bl_problem *problem, const bl_nodes_plan_options *options,
                         const bl_nodes_problem *p, arrays *a, double wanted,
                         const bl_layer_placement *anchor, bl_layer_placement *made, bool *fits,
                         bl_nodes_plan_result *out, bl_error *err) {
    bl_nodes_score score;
    bl_score ranks;
    const bl_status st = assign_nodes(p, options, a->count, out, err);
    BL_TRY(st);
    BL_TRY(bl_nodes_evaluate(p, a->count, a->rows, &score, err));
    out->after = score.remote / total_weight(p);
    BL_TRY(bl_nodes_place(problem, problem->sites->node, p->n_nodes, a->count, a->rows,
                          p->fold != NULL ? p->n_folds : 1, options->seed, anchor, made, err));
    if (problem->current != NULL)
        BL_TRY(bl_align_slots(problem, made, err));
    BL_TRY(bl_evaluate(problem, made, &ranks, err));
    *fits = ranks.max_over_mean <= wanted;
    return st;
}

#define ATTEMPTS 3

static bl_status plan(const bl_problem *problem, const bl_nodes_plan_options *options,
                      bl_layer_placement *placement, bl_nodes_plan_result *out, arrays *a,
                      bl_error *err) {
    bl_nodes_problem p;
    bl_score given, even_given;
    bl_nodes_score score;
    BL_TRY(make_problem(problem, options, a, &p, err));
    bl_problem even = *problem; /* the split under which what was given is balanced */
    even.rule = BL_RULE_EVEN;
    BL_TRY(bl_evaluate(&even, placement, &even_given, err));
    BL_TRY(bl_evaluate(problem, placement, &given, err));
    /* A placement in force is as balanced as the rule in force makes it. */
    const bool in_force =
        problem->current != NULL && bl_layer_moves(problem->current, placement) == 0;
    const double wanted = in_force ? given.max_over_mean * (1.0 + 1e-9)
                                   : even_given.max_over_mean * (1.0 + options->slack);
    bl_status st = BL_OK;
    /* The ranks will be a little less level than the nodes: begin with half of what may be given up. */
    double allowed = fmax(0.5 * (wanted - 1.0), 1e-4);
    for (int i = 0; i < ATTEMPTS && st == BL_OK && !out->changed; i++, allowed /= 3.0) {
        bl_layer_placement made = {0};
        bool fits = false;
        memset(a->count, 0, (size_t)p.n_experts * (size_t)p.n_nodes * sizeof *a->count);
        count_copies(problem, placement, a->count);
        p.limit = INFINITY;
        BL_TRY(bl_nodes_evaluate(&p, a->count, NULL, &score, err));
        out->before = out->after = score.remote / total_weight(&p);
        p.limit = 1.0 + allowed;
        bl_error cause = BL_ERROR_INIT;
        /* If all else fails, what is no worse than the given placement is under this rule. */
        const double bar = i + 1 < ATTEMPTS ? wanted : fmax(wanted, given.max_over_mean);
        st = attempt(problem, options, &p, a, bar, problem->current != NULL ? placement : NULL,
                     &made, &fits, out, &cause);
        if (st >= 0 && fits && out->after < out->before) {
            bl_layer_placement_free(placement);
            *placement = made;
            out->changed = true;
        } else {
            bl_layer_placement_free(&made);
        }
        if (st == BL_ERR_INFEASIBLE)
            st = BL_OK; /* a node's copies that its ranks cannot hold: try again */
        else if (st < 0)
            return bl_fail(err, st, "%s", cause.text);
    }
    if (!out->changed)
        out->after = out->before;
    return st;
}

bl_status bl_nodes_plan(const bl_problem *problem, const bl_nodes_plan_options *options,
                        bl_layer_placement *placement, bl_nodes_plan_result *out, bl_error *err) {
    arrays a = {0};
    bl_nodes_plan_result result = {0};
    bl_status st = BL_OK;
    if (problem->sites->n_nodes > 1)
        st = plan(problem, options, placement, &result, &a, err);
    arrays_free(&a);
    if (st >= 0)
        *out = result;
    return st;
}
