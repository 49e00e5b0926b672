#include "planner/groups.h"

#include "core/mem.h"
#include "planner/milp.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Deterministic, and far more than equal groups on a few nodes need. */
#define MAX_NODES 5000
/* Ten times the solver's tolerance. */
#define BETTER 1e-6

typedef struct choice {
    const bl_problem *problem;
    int n_groups, n_nodes, n_scenarios;
    int *size;          /* [n_groups] experts */
    double *load;       /* [n_scenarios][n_groups] */
    int *ranks, *slots; /* [n_nodes] with slots; over them */
    int *largest;       /* [n_nodes] slots of the rank that has most */
    int *travel;        /* [n_groups][n_nodes] experts of which the node holds no copy now */
    double price;       /* of one of these, in load */
    int *node_of;       /* [n_groups]; -1: not yet */
    int *column;        /* [n_groups][n_nodes] */
} choice;

static void choice_free(choice *c) {
    free(c->size);
    free(c->load);
    free(c->ranks);
    free(c->slots);
    free(c->largest);
    free(c->travel);
    free(c->node_of);
    free(c->column);
}

static int group_of(const bl_problem *problem, int expert) {
    return (int)((int64_t)expert * problem->n_groups / problem->n_experts);
}

static bl_status allocate(const bl_problem *problem, choice *c, bl_error *err) {
    c->problem = problem;
    c->n_groups = problem->n_groups;
    c->n_scenarios = problem->n_scenarios;
    for (int rank = 0; rank < problem->n_ranks; rank++)
        c->n_nodes = problem->node[rank] >= c->n_nodes ? problem->node[rank] + 1 : c->n_nodes;
    const size_t pairs = (size_t)c->n_groups * (size_t)c->n_nodes;
    BL_TRY(BL_CALLOC(c->size, c->n_groups, err));
    BL_TRY(BL_CALLOC(c->load, (size_t)c->n_scenarios * (size_t)c->n_groups, err));
    BL_TRY(BL_CALLOC(c->ranks, c->n_nodes, err));
    BL_TRY(BL_CALLOC(c->slots, c->n_nodes, err));
    BL_TRY(BL_CALLOC(c->largest, c->n_nodes, err));
    BL_TRY(BL_CALLOC(c->travel, pairs, err));
    BL_TRY(BL_CALLOC(c->node_of, c->n_groups, err));
    return BL_CALLOC(c->column, pairs, err);
}

static bool node_holds(const bl_problem *problem, int node, int expert) {
    for (int rank = 0; rank < problem->n_ranks; rank++) {
        if (problem->node[rank] == node && bl_layer_find(problem->current, rank, expert) >= 0)
            return true;
    }
    return false;
}

static void survey(choice *c) {
    const bl_problem *problem = c->problem;
    for (int expert = 0; expert < problem->n_experts; expert++) {
        const int group = group_of(problem, expert);
        c->size[group]++;
        for (int s = 0; s < c->n_scenarios; s++)
            c->load[s * c->n_groups + group] +=
                problem->load[(size_t)s * (size_t)problem->n_experts + (size_t)expert];
        for (int node = 0; problem->current != NULL && node < c->n_nodes; node++)
            c->travel[group * c->n_nodes + node] += !node_holds(problem, node, expert);
    }
    for (int rank = 0; rank < problem->n_ranks; rank++) {
        const int slots = problem->slots_per_rank[rank], node = problem->node[rank];
        c->ranks[node] += slots > 0;
        c->slots[node] += slots;
        c->largest[node] = slots > c->largest[node] ? slots : c->largest[node];
    }
    if (problem->current != NULL)
        c->price =
            BL_MOVE_PRICE * bl_problem_total_load(problem) / bl_problem_active_ranks(problem);
}

/* ---- what a choice is worth -------------------------------------------------------------------*/

static bool fits(const choice *c, const int *node_of) {
    for (int node = 0; node < c->n_nodes; node++) {
        int experts = 0;
        for (int group = 0; group < c->n_groups; group++)
            experts += node_of[group] == node ? c->size[group] : 0;
        if (experts > c->slots[node] || experts < c->largest[node])
            return false;
    }
    return true;
}

/* What the MILP minimises. */
static double cost(const choice *c, const int *node_of) {
    double sum = 0.0;
    for (int s = 0; s < c->n_scenarios; s++) {
        double most = 0.0;
        for (int node = 0; node < c->n_nodes; node++) {
            double load = 0.0;
            for (int group = 0; group < c->n_groups; group++)
                load += node_of[group] == node ? c->load[s * c->n_groups + group] : 0.0;
            if (c->ranks[node] > 0)
                most = fmax(most, load / c->ranks[node]);
        }
        sum += most;
    }
    for (int group = 0; group < c->n_groups; group++)
        sum += c->price * c->travel[group * c->n_nodes + node_of[group]];
    return sum;
}

/* ---- without a solver -------------------------------------------------------------------------*/

/* The node in force of every group, where all are whole. */
static bool read_current(const choice *c, int *node_of) {
    for (int group = 0; c->problem->current != NULL && group < c->n_groups; group++) {
        node_of[group] = -1;
        for (int node = 0; node < c->n_nodes; node++) {
            if (c->travel[group * c->n_nodes + node] < c->size[group] && node_of[group] >= 0)
                return false; /* on two nodes */
            if (c->travel[group * c->n_nodes + node] == 0)
                node_of[group] = node;
        }
        if (node_of[group] < 0)
            return false;
    }
    return c->problem->current != NULL && fits(c, node_of);
}

/* Nodes take turns, filling up in the order of their slots per expert; then exchange and move groups
 * as long as that helps. False when this finds nothing that fits. */
static bool construct(const choice *c, int *node_of) {
    int *room = c->column; /* not in use yet */
    for (int node = 0; node < c->n_nodes; node++)
        room[node] = c->slots[node];
    for (int group = 0; group < c->n_groups; group++) {
        int best = -1;
        for (int node = 0; node < c->n_nodes; node++) {
            if (room[node] >= c->size[group] && (best < 0 || room[node] > room[best]))
                best = node;
        }
        if (best < 0)
            return false;
        room[best] -= c->size[group];
        node_of[group] = best;
    }
    return fits(c, node_of);
}

/* Try node `node` for a group, or an exchange with group `other`; keep what is better. */
static bool try_change(const choice *c, int *node_of, int group, int other, int node,
                       double *best) {
    const int before = node_of[group];
    node_of[group] = node;
    if (other >= 0)
        node_of[other] = before;
    const double now = fits(c, node_of) ? cost(c, node_of) : INFINITY;
    if (now < *best * (1.0 - BETTER)) {
        *best = now;
        return true;
    }
    node_of[group] = before;
    if (other >= 0)
        node_of[other] = node;
    return false;
}

static void improve(const choice *c, int *node_of) {
    double best = cost(c, node_of);
    for (bool better = true; better;) {
        better = false;
        for (int group = 0; group < c->n_groups; group++) {
            for (int node = 0; node < c->n_nodes; node++) {
                if (node != node_of[group])
                    better = try_change(c, node_of, group, -1, node, &best) || better;
            }
            for (int other = 0; other < group; other++) {
                if (node_of[other] != node_of[group])
                    better = try_change(c, node_of, group, other, node_of[other], &best) || better;
            }
        }
    }
}

/* ---- by GLPK ----------------------------------------------------------------------------------*/

static bl_status add_columns(choice *c, bl_milp *milp, int *peak, bl_error *err) {
    const bl_milp_column free_column = {0.0, INFINITY, 1.0, false};
    for (int s = 0; s < c->n_scenarios; s++)
        BL_TRY(bl_milp_add_column(milp, free_column, &peak[s], err));
    for (int at = 0; at < c->n_groups * c->n_nodes; at++) {
        const bl_milp_column binary = {0.0, 1.0, c->price * c->travel[at], true};
        BL_TRY(bl_milp_add_column(milp, binary, &c->column[at], err));
    }
    return BL_OK;
}

static bl_status add_rows(choice *c, bl_milp *milp, const int *peak, bl_error *err) {
    for (int group = 0; group < c->n_groups; group++) {
        BL_TRY(bl_milp_add_row(milp, 1.0, 1.0, err));
        for (int node = 0; node < c->n_nodes; node++)
            BL_TRY(bl_milp_add_entry(milp, c->column[group * c->n_nodes + node], 1.0, err));
    }
    for (int node = 0; node < c->n_nodes; node++) {
        BL_TRY(bl_milp_add_row(milp, c->largest[node], c->slots[node], err));
        for (int group = 0; group < c->n_groups; group++)
            BL_TRY(
                bl_milp_add_entry(milp, c->column[group * c->n_nodes + node], c->size[group], err));
        for (int s = 0; s < c->n_scenarios && c->ranks[node] > 0; s++) {
            BL_TRY(bl_milp_add_row(milp, -INFINITY, 0.0, err));
            BL_TRY(bl_milp_add_entry(milp, peak[s], -1.0, err));
            for (int group = 0; group < c->n_groups; group++)
                BL_TRY(bl_milp_add_entry(milp, c->column[group * c->n_nodes + node],
                                         c->load[s * c->n_groups + group] / c->ranks[node], err));
        }
    }
    return BL_OK;
}

/* Something that costs less than `known`, or the proof that there is nothing. */
static bl_status ask(choice *c, double known, int *node_of, bool *proven, bl_error *err) {
    bl_milp milp = {0};
    int *peak = NULL;
    double *x = NULL;
    bl_status st;
    bl_milp_result result;
    const bl_milp_limits limits = {.max_nodes = MAX_NODES};
    BL_TRY_GOTO(st, BL_CALLOC(peak, c->n_scenarios, err), done);
    BL_TRY_GOTO(st, add_columns(c, &milp, peak, err), done);
    BL_TRY_GOTO(st, add_rows(c, &milp, peak, err), done);
    if (isfinite(known)) {
        BL_TRY_GOTO(st, bl_milp_add_row(&milp, -INFINITY, known * (1.0 - BETTER), err), done);
        for (size_t j = 0; j < milp.n_columns; j++)
            BL_TRY_GOTO(st, bl_milp_add_entry(&milp, (int)j, milp.columns[j].objective, err), done);
    }
    BL_TRY_GOTO(st, BL_CALLOC(x, milp.n_columns, err), done);
    BL_TRY_GOTO(st, bl_milp_solve(&milp, &limits, x, &result, err), done);
    *proven = result.outcome == BL_MILP_OPTIMAL || result.outcome == BL_MILP_INFEASIBLE;
    if (result.outcome == BL_MILP_OPTIMAL || result.outcome == BL_MILP_FEASIBLE) {
        int found[BL_MAX_GROUPS] = {0};
        for (int at = 0; at < c->n_groups * c->n_nodes; at++) {
            if (x[c->column[at]] > 0.5)
                found[at / c->n_nodes] = at % c->n_nodes;
        }
        if (fits(c, found) && cost(c, found) < known)
            memcpy(node_of, found, (size_t)c->n_groups * sizeof *node_of);
    }
done:
    free(x);
    free(peak);
    bl_milp_free(&milp);
    return st;
}

/* ---- all together -----------------------------------------------------------------------------*/

static bl_status refuse(const choice *c, bl_error *err) {
    const bl_where where = bl_at_layer(NULL, c->problem->layer);
    int active = 0, largest = 0, smallest = c->n_nodes > 0 ? c->slots[0] : 0;
    for (int node = 0; node < c->n_nodes; node++) {
        active += c->ranks[node] > 0;
        smallest = c->slots[node] < smallest ? c->slots[node] : smallest;
    }
    for (int group = 0; group < c->n_groups; group++)
        largest = c->size[group] > largest ? c->size[group] : largest;
    if (active > c->n_groups)
        return bl_fail_at(err, BL_ERR_INFEASIBLE, where,
                          "%d groups of experts cannot be kept whole on %d nodes: %d nodes would "
                          "hold nothing",
                          c->n_groups, active, active - c->n_groups);
    return bl_fail_at(err, BL_ERR_INFEASIBLE, where,
                      "%d groups of up to %d experts do not fit whole on %d nodes, the smallest of "
                      "which has %d slots; %d more slots on every node would do",
                      c->n_groups, largest, active, smallest,
                      (c->n_groups + active - 1) / active * largest - smallest);
}

static bl_status choose(choice *c, bl_groups *out, bl_error *err) {
    int now[BL_MAX_GROUPS];
    const bool whole = read_current(c, now);
    double known = INFINITY;
    if (whole)
        memcpy(out->node_of, now, sizeof now);
    else if (construct(c, out->node_of))
        improve(c, out->node_of);
    if (whole || fits(c, out->node_of))
        known = cost(c, out->node_of);
    const double asked = whole ? known * (1.0 - c->problem->min_gain) : known;
    if (bl_milp_solver() != NULL) {
        BL_TRY(ask(c, asked, out->node_of, &out->proven, err));
    } else if (whole) {
        improve(c, now);
        if (cost(c, now) < asked)
            memcpy(out->node_of, now, sizeof now);
    }
    return fits(c, out->node_of) ? BL_OK : refuse(c, err);
}

bl_status bl_groups_choose(const bl_problem *problem, bl_groups *out, bl_error *err) {
    if (problem->n_groups < 1 || problem->n_groups > BL_MAX_GROUPS || problem->node == NULL)
        return bl_fail_at(err, BL_ERR_UNSUPPORTED, bl_at_layer(NULL, problem->layer),
                          "%d groups of experts cannot be kept whole: 1 to %d can",
                          problem->n_groups, BL_MAX_GROUPS);
    choice c = {0};
    bl_groups made = {.n_groups = problem->n_groups};
    bl_status st = allocate(problem, &c, err);
    if (st == BL_OK) {
        survey(&c);
        made.n_nodes = c.n_nodes;
        st = choose(&c, &made, err);
    }
    choice_free(&c);
    if (st == BL_OK)
        *out = made;
    return st;
}

bl_status bl_groups_rule(const bl_problem *problem, const bl_groups *groups, bl_holds *may,
                         bl_error *err) {
    BL_TRY(bl_holds_create(problem->n_ranks, problem->n_experts, may, err));
    for (int rank = 0; rank < problem->n_ranks; rank++) {
        for (int expert = 0; expert < problem->n_experts; expert++) {
            if (groups->node_of[group_of(problem, expert)] == problem->node[rank])
                bl_holds_set(may, rank, expert);
        }
    }
    return BL_OK;
}
