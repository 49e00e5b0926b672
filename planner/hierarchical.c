#include "planner/hierarchical.h"

#include "core/mem.h"
#include "planner/greedy.h"

#include <stdlib.h>

typedef struct hierarchy {
    const bl_problem *problem;
    int n_nodes, group_size;
    double *sum;        /* [n_experts] load over scenarios */
    double *group_load; /* [n_groups] */
    int *order;         /* [n_groups] heaviest first */
    int *node_of;       /* [n_groups] */
    double *node_load;  /* [n_nodes] */
    int *node_groups;   /* [n_nodes] */
    /* one node at a time */
    int *expert; /* [n_experts] the problem's expert */
    int *rank;   /* [n_ranks] the problem's rank */
    int *slots;  /* [n_ranks] */
    double *load;
} hierarchy;

static int count_nodes(const bl_problem *problem) {
    int n = 0;
    for (int rank = 0; rank < problem->n_ranks; rank++)
        n = problem->node[rank] >= n ? problem->node[rank] + 1 : n;
    return n;
}

static void hierarchy_free(hierarchy *h) {
    free(h->sum);
    free(h->group_load);
    free(h->order);
    free(h->node_of);
    free(h->node_load);
    free(h->node_groups);
    free(h->expert);
    free(h->rank);
    free(h->slots);
    free(h->load);
}

static bl_status hierarchy_create(const bl_problem *problem, hierarchy *h, bl_error *err) {
    h->problem = problem;
    h->n_nodes = count_nodes(problem);
    h->group_size = problem->n_experts / problem->n_groups;
    BL_TRY(BL_CALLOC(h->sum, problem->n_experts, err));
    BL_TRY(BL_CALLOC(h->group_load, problem->n_groups, err));
    BL_TRY(BL_CALLOC(h->order, problem->n_groups, err));
    BL_TRY(BL_CALLOC(h->node_of, problem->n_groups, err));
    BL_TRY(BL_CALLOC(h->node_load, h->n_nodes, err));
    BL_TRY(BL_CALLOC(h->node_groups, h->n_nodes, err));
    BL_TRY(BL_CALLOC(h->expert, problem->n_experts, err));
    BL_TRY(BL_CALLOC(h->rank, problem->n_ranks, err));
    BL_TRY(BL_CALLOC(h->slots, problem->n_ranks, err));
    return BL_CALLOC(h->load, problem->n_experts, err);
}

/* Step 1. */
static void groups_to_nodes(hierarchy *h) {
    const int n_groups = h->problem->n_groups;
    bl_problem_sum_load(h->problem, h->sum);
    for (int expert = 0; expert < h->problem->n_experts; expert++)
        h->group_load[expert / h->group_size] += h->sum[expert];
    for (int group = 0; group < n_groups; group++) {
        int at = group;
        for (; at > 0 && h->group_load[h->order[at - 1]] < h->group_load[group]; at--)
            h->order[at] = h->order[at - 1];
        h->order[at] = group;
    }
    for (int i = 0; i < n_groups; i++) {
        int best = -1;
        for (int node = 0; node < h->n_nodes; node++) {
            if (h->node_groups[node] < n_groups / h->n_nodes &&
                (best < 0 || h->node_load[node] < h->node_load[best]))
                best = node;
        }
        h->node_of[h->order[i]] = best;
        h->node_groups[best]++;
        h->node_load[best] += h->group_load[h->order[i]];
    }
}

/* The node's experts, ranks and slots; false when its experts do not fit. */
static bool take_node(hierarchy *h, int node, bl_problem *sub) {
    const bl_problem *problem = h->problem;
    int n_experts = 0, n_ranks = 0, n_slots = 0, largest = 0;
    for (int expert = 0; expert < problem->n_experts; expert++) {
        if (h->node_of[expert / h->group_size] != node)
            continue;
        h->load[n_experts] = h->sum[expert];
        h->expert[n_experts++] = expert;
    }
    for (int rank = 0; rank < problem->n_ranks; rank++) {
        if (problem->node[rank] != node)
            continue;
        h->slots[n_ranks] = problem->slots_per_rank[rank];
        n_slots += h->slots[n_ranks];
        largest = h->slots[n_ranks] > largest ? h->slots[n_ranks] : largest;
        h->rank[n_ranks++] = rank;
    }
    *sub = (bl_problem){.layer = problem->layer,
                        .n_experts = n_experts,
                        .n_ranks = n_ranks,
                        .n_scenarios = 1,
                        .load = h->load,
                        .slots_per_rank = h->slots,
                        .rule = problem->rule,
                        .max_moves = -1};
    return n_experts <= n_slots && largest <= n_experts;
}

/* Steps 2 and 3 for every node. */
static bl_status fill_nodes(hierarchy *h, bl_layer_placement *out, bl_error *err) {
    for (int node = 0; node < h->n_nodes; node++) {
        bl_problem sub;
        bl_layer_placement part = {0};
        if (!take_node(h, node, &sub))
            return BL_ERR_INFEASIBLE; /* the caller plans globally */
        BL_TRY(bl_greedy(&sub, &part, err));
        for (int rank = 0; rank < sub.n_ranks; rank++) {
            int to = out->begin[h->rank[rank]];
            for (int slot = part.begin[rank]; slot < part.begin[rank + 1]; slot++)
                out->expert[to++] = h->expert[part.expert[slot]];
        }
        bl_layer_placement_free(&part);
    }
    return BL_OK;
}

bl_status bl_greedy_hierarchical(const bl_problem *problem, bl_layer_placement *out,
                                 bl_error *err) {
    if (problem->node == NULL || problem->n_groups < 1 ||
        problem->n_experts % problem->n_groups != 0 ||
        problem->n_groups % count_nodes(problem) != 0)
        return bl_greedy(problem, out, err);
    hierarchy h = {0};
    bl_layer_placement made = {0};
    bl_status st;
    BL_TRY_GOTO(st, hierarchy_create(problem, &h, err), done);
    BL_TRY_GOTO(st, bl_problem_empty_placement(problem, &made, err), done);
    groups_to_nodes(&h);
    st = fill_nodes(&h, &made, err);
    if (st == BL_OK) {
        *out = made;
        made = (bl_layer_placement){0};
    } else if (st == BL_ERR_INFEASIBLE) {
        st = bl_greedy(problem, out, err);
    }
done:
    bl_layer_placement_free(&made);
    hierarchy_free(&h);
    return st;
}
