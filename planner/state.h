/*
 * state.h: a placement under search, with everything a local change needs at hand.
 *
 * Even split: a copy of expert e weighs load[e] / copies[e] in every scenario. Two changes reach
 * every placement from every other one:
 *
 *     swap(p, q)         the contents of two slots of different ranks change places; one may be a
 *                        hole. Two ranks change their load.
 *     replace(p, expert) a slot gets another expert. Its old expert has a copy less, so that
 *                        expert's other copies grow heavier, and the new expert's copies lighter:
 *                        every rank that holds either of them changes its load.
 *
 * A change recomputes the loads of the ranks it touches from their slots, so rounding does not pile
 * up over millions of changes. The objective is that of problem.h, sum over scenarios of the
 * largest rank load. Every change can be taken back by another one, which is all that undoing
 * needs.
 */
#ifndef BL_PLANNER_STATE_H
#define BL_PLANNER_STATE_H

#include "planner/holds.h"
#include "planner/problem.h"

typedef struct bl_state {
    int n_experts, n_ranks, n_slots, n_scenarios;
    const int *begin;  /* [n_ranks + 1]; borrowed from the placement it was made of */
    int32_t *expert;   /* [n_slots] or BL_NO_EXPERT */
    int *rank;         /* [n_slots] owner of a slot */
    int *copies;       /* [n_experts] */
    int *head;         /* [n_experts] first slot of an expert's chain, or -1 */
    int *next;         /* [n_slots] next slot of the same expert, or -1 */
    double *load;      /* [n_experts][n_scenarios] of the expert, all copies together */
    double *rank_load; /* [n_ranks][n_scenarios]; the leaves of `most` */
    /* [2 * n_leaves][n_scenarios]: a node has the larger load of its children 2 node and 2 node + 1, ranks
     * are leaves n_leaves and on (-1: no rank), node 1 is the busiest. So a change costs O(log n_ranks). */
    double *most;
    int n_leaves;
    double *weight;        /* [n_slots] of the copy, summed over scenarios; 0 for a hole */
    const bl_rules *rules; /* of the problem; borrowed */
    bl_holds holds;
    bl_holds home;     /* what ranks hold in the current placement; nothing without one */
    int moves;         /* copies whose rank does not hold that expert in `home` */
    int max_moves;     /* INT_MAX: no limit */
    double move_price; /* what one more move must save, in units of the objective */
    double objective;
} bl_state;

/* A state at `placement` (of the problem's shape, hard rules kept). The placement must outlive it.
 * Free with bl_state_free(). */
bl_status bl_state_create(const bl_problem *problem, const bl_layer_placement *placement,
                          bl_state *out, bl_error *err);
void bl_state_free(bl_state *state); /* safe on a zeroed struct */

/* Put the state at other contents of its slots, expert[n_slots]. */
void bl_state_reset(bl_state *state, const int32_t *expert);

/* The rank with the largest load in `scenario`, the first of equals. */
int bl_state_busiest(const bl_state *state, int scenario);

/* The three with the largest, in that order; -1 where there are fewer ranks. */
void bl_state_three_busiest(const bl_state *state, int scenario, int rank[3]);

/* True for a rank that is left out. */
typedef bool (*bl_state_skip)(int rank, const void *context);

/* The largest load in `scenario` among the ranks that are not skipped; 0 if there is none.
 * O(skipped * log n_ranks). */
double bl_state_busiest_but(const bl_state *state, int scenario, bl_state_skip skip,
                            const void *context);

/* Write the slots' experts to a placement of the same shape. */
void bl_state_store(const bl_state *state, bl_layer_placement *placement);

/* Moves that a change adds (or, below 0, takes back). */
int bl_state_swap_moves(const bl_state *state, int p, int q);
int bl_state_replace_moves(const bl_state *state, int p, int expert);

/* What the hard rules and the move limit say about a change; the caller asks before applying. */
bool bl_state_may_swap(const bl_state *state, int p, int q);
bool bl_state_may_replace(const bl_state *state, int p, int expert);

/* Apply. `expert` may be BL_NO_EXPERT only to take back the filling of a hole. */
void bl_state_swap(bl_state *state, int p, int q);
void bl_state_replace(bl_state *state, int p, int expert);

/* What the search minimises: the objective and the price of the moves made so far. */
static inline double bl_state_cost(const bl_state *state) {
    return state->objective + state->move_price * state->moves;
}

#endif
