#include "planner/nodes_place.h"

#include "core/mem.h"
#include "planner/solve.h"

#include <stdlib.h>

/* Without an anchor nothing is in force that a gain could be asked of. */
#define ANY_GAIN 0.999
#define ANCHORED_GAIN 0.005

/* One node as a problem of its own. */
typedef struct small {
    int *expert;         /* [n] of the layer */
    double *load;        /* [n_folds][n] */
    int *slots_per_rank; /* [n_ranks] of the node */
    int *rank;           /* [n_ranks] of the layer */
    int *left;           /* [n_experts of the layer] copies that have no slot yet */
    bl_layer_placement current;
    bl_problem problem;
} small;

static void small_free(small *s) {
    free(s->expert);
    free(s->load);
    free(s->slots_per_rank);
    free(s->rank);
    free(s->left);
    bl_layer_placement_free(&s->current);
}

static bl_status small_of(const bl_problem *problem, const int *rank_node, int n_nodes, int node,
                          const int *count, const double *rows, int n_folds, small *s,
                          bl_error *err) {
    const size_t cells = (size_t)problem->n_experts * (size_t)n_nodes;
    int n = 0, n_ranks = 0;
    BL_TRY(BL_CALLOC(s->expert, problem->n_experts, err));
    BL_TRY(BL_CALLOC(s->load, n_folds * problem->n_experts, err));
    BL_TRY(BL_CALLOC(s->slots_per_rank, problem->n_ranks, err));
    BL_TRY(BL_CALLOC(s->rank, problem->n_ranks, err));
    for (int e = 0; e < problem->n_experts; e++) {
        if (count[(size_t)e * (size_t)n_nodes + (size_t)node] > 0)
            s->expert[n++] = e;
    }
    for (int i = 0; i < n_folds * n; i++)
        s->load[i] = rows[(size_t)(i / n) * cells + (size_t)s->expert[i % n] * (size_t)n_nodes +
                          (size_t)node];
    for (int rank = 0; rank < problem->n_ranks; rank++) {
        if (rank_node[rank] != node || problem->slots_per_rank[rank] == 0)
            continue;
        s->rank[n_ranks] = rank;
        s->slots_per_rank[n_ranks++] = problem->slots_per_rank[rank];
    }
    s->problem = (bl_problem){.layer = problem->layer,
                              .n_experts = n,
                              .n_ranks = n_ranks,
                              .n_scenarios = n_folds,
                              .load = s->load,
                              .slots_per_rank = s->slots_per_rank,
                              .rule = BL_RULE_EVEN,
                              .max_moves = -1,
                              .min_gain = ANY_GAIN};
    return BL_OK;
}

/* The hottest expert without a slot that the rank does not hold, or -1. */
static int missing_on(const small *s, int rank) {
    int found = -1;
    double most = -1.0;
    for (int e = 0; e < s->problem.n_experts; e++) {
        if (s->left[e] == 0 || bl_layer_find(&s->current, rank, e) >= 0)
            continue;
        double rows = 0.0;
        for (int fold = 0; fold < s->problem.n_scenarios; fold++)
            rows += s->load[fold * s->problem.n_experts + e];
        if (rows > most) {
            most = rows;
            found = e;
        }
    }
    return found;
}

/* What stays of the anchor, completed; false when what is left fits nowhere. */
static bool complete(small *s, const bl_layer_placement *anchor) {
    for (int r = 0; r < s->problem.n_ranks; r++) {
        const int from = anchor->begin[s->rank[r]], begin = s->current.begin[r];
        for (int i = 0; i < s->slots_per_rank[r]; i++) {
            for (int e = 0; e < s->problem.n_experts; e++) {
                if (s->expert[e] != anchor->expert[from + i] || s->left[e] == 0)
                    continue;
                s->current.expert[begin + i] = e;
                s->left[e]--;
            }
        }
    }
    for (int r = 0; r < s->problem.n_ranks; r++) {
        for (int slot = s->current.begin[r]; slot < s->current.begin[r + 1]; slot++) {
            const int e = s->current.expert[slot] == BL_NO_EXPERT ? missing_on(s, r) : -1;
            if (e >= 0) {
                s->current.expert[slot] = e;
                s->left[e]--;
            }
            if (s->current.expert[slot] == BL_NO_EXPERT)
                return false;
        }
    }
    return true;
}

static bl_status anchor_node(small *s, const int *count, int n_nodes, int node,
                             const bl_layer_placement *anchor, bl_error *err) {
    if (anchor == NULL || s->problem.n_ranks == 0 || s->problem.n_experts == 0)
        return BL_OK;
    BL_TRY(BL_CALLOC(s->left, s->problem.n_experts, err));
    BL_TRY(bl_problem_empty_placement(&s->problem, &s->current, err));
    for (int e = 0; e < s->problem.n_experts; e++)
        s->left[e] = count[(size_t)s->expert[e] * (size_t)n_nodes + (size_t)node];
    if (complete(s, anchor)) {
        s->problem.current = &s->current;
        s->problem.min_gain = ANCHORED_GAIN;
    }
    return BL_OK;
}

static bl_status place_node(const small *s, uint64_t seed, bl_layer_placement *placement,
                            bl_error *err) {
    if (s->problem.n_ranks == 0 || s->problem.n_experts == 0)
        return BL_OK;
    bl_solve_options options = BL_SOLVE_OPTIONS_INIT;
    options.algorithm = BL_ALG_SEARCH;
    options.seed = seed;
    bl_solution solution = {0};
    BL_TRY(bl_solve(&s->problem, &options, &solution, err));
    for (int r = 0; r < s->problem.n_ranks; r++) {
        const int from = solution.placement.begin[r], n = solution.placement.begin[r + 1] - from;
        for (int i = 0; i < n; i++)
            placement->expert[placement->begin[s->rank[r]] + i] =
                (int32_t)s->expert[solution.placement.expert[from + i]];
    }
    bl_solution_free(&solution);
    return BL_OK;
}

bl_status bl_nodes_place(const bl_problem *problem, const int *rank_node, int n_nodes,
                         const int *count, const double *rows, int n_folds, uint64_t seed,
                         const bl_layer_placement *anchor, bl_layer_placement *out, bl_error *err) {
    bl_layer_placement placement;
    BL_TRY(bl_problem_empty_placement(problem, &placement, err));
    bl_status st = BL_OK;
    for (int node = 0; node < n_nodes && st >= 0; node++) {
        small s = {0};
        st = small_of(problem, rank_node, n_nodes, node, count, rows, n_folds, &s, err);
        if (st >= 0)
            st = anchor_node(&s, count, n_nodes, node, anchor, err);
        if (st >= 0)
            st = place_node(&s, seed, &placement, err);
        small_free(&s);
    }
    if (st >= 0)
        st = bl_layer_placement_check(&placement, NULL, err);
    if (st < 0)
        bl_layer_placement_free(&placement);
    else
        *out = placement;
    return st;
}
