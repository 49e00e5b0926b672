/*
 * nodes.h: which nodes hold a copy of which expert, so that tokens visit few nodes.
 *
 * Where domains differ in cost, a layer is planned in two storeys: first nodes (this header), then
 * the ranks within each node. A node has the slots of its ranks; copies within a node are alike.
 *
 *     visits(token)   nodes other than its own that it must be sent to under the rule local
 *                     (core/split_local.h): experts with a copy at home are served there, the others
 *                     on as few nodes as hold them all
 *     remote          sum of weight x visits over the tokens; this is minimised
 *     rows(e, n)      rows of expert e that node n serves
 *     balance         max over nodes of   max( rows of n / ranks of n,
 *                                              max over e rows(e, n) / copies(e, n) )
 *                     over the mean rows of a rank: no packing of the node's ranks beats it. It must
 *                     not exceed the problem's limit.
 *
 * A sample may be cut into *folds* (quarters of its steps). Then the search also counts how unlevel each
 * fold is by itself, in its own price:
 *
 *     scatter        mean over folds of (max over nodes of rows / ranks of the node), over the mean, - 1
 *     cost           remote / (remote at first) + spread x scatter
 *
 * since what scatters within the sample will on other texts, and experts that are picked together, which
 * short ways put together, scatter together.
 *
 * A token is k experts with a weight. Deduplicated dispatch is planned on a sample of real tokens;
 * dispatch by assignment on made-up ones of a single expert each, one for every (source node,
 * expert), weighted with the rows between them: then `remote` is the number of rows that cross.
 *
 * Two ways, one evaluator: simulated annealing over swaps and replacements of copies, where a
 * proposal is scored exactly by the tokens that hold one of its two experts; and a MIP behind
 * planner/milp.h (nodes_exact.c) where it fits, which also proves. Nodes are not alike, since each has
 * its own tokens, so GLPK can cope with them where equal ranks defeat it.
 */
#ifndef BL_PLANNER_NODES_H
#define BL_PLANNER_NODES_H

#include "core/rng.h"
#include "core/status.h"
#include "planner/milp.h"

#include <stddef.h>

typedef struct bl_nodes_problem {
    int n_nodes, n_experts; /* at most 64 nodes */
    const int *slots;       /* [n_nodes] */
    const int *ranks;       /* [n_nodes] with slots: an expert has at most so many copies there */
    size_t n_tokens;
    int k;
    const int32_t *id;    /* [n_tokens][k] distinct experts, or -1 */
    const int *own;       /* [n_tokens] node where it is born */
    const double *weight; /* [n_tokens] > 0 */
    const int *fold;      /* [n_tokens] below n_folds: parts of the sample; NULL: one */
    int n_folds;
    double spread;     /* what one unit of scatter costs, in parts of the first `remote` */
    double limit;      /* of balance; 1 is perfect. INFINITY: none */
    const int *home;   /* [n_experts][n_nodes] copies in force, or NULL */
    double move_price; /* with it: what a copy brought to a node must save, in parts of the first
                          `remote` */
    int max_moves;     /* with it: so many such copies at most; -1: no limit */
} bl_nodes_problem;

typedef struct bl_nodes_score {
    double remote, balance;
} bl_nodes_score;

/* Every expert somewhere, slots and ranks respected, all slots filled; names what is wrong.
 * count[n_experts][n_nodes] copies. */
bl_status bl_nodes_check(const bl_nodes_problem *problem, const int *count, bl_error *err);

/* Between equally good nodes a token chooses by its number, so that many tokens spread evenly.
 * rows[folds][n_experts][n_nodes] may be NULL; there is one fold when the problem has none. */
bl_status bl_nodes_evaluate(const bl_nodes_problem *problem, const int *count, double *rows,
                            bl_nodes_score *out, bl_error *err);

typedef struct bl_nodes_options {
    uint64_t seed;
    int64_t proposals; /* 0: BL_NODES_PROPOSALS */
} bl_nodes_options;

#define BL_NODES_PROPOSALS 20000

/* Improve `count`, which keeps bl_nodes_check(), in place. The result is the least `remote` seen
 * within the limit, or, if there was none, the best balance. BL_LIMIT when interrupted. */
bl_status bl_nodes_search(const bl_nodes_problem *problem, const bl_nodes_options *options,
                          int *count, bl_nodes_score *out, bl_error *err);

typedef struct bl_nodes_exact_result {
    bool improved; /* `count` was replaced by something better */
    bool proven;   /* nothing within the limit is better than `count` */
    double bound;  /* no `remote` within the limit is lower */
} bl_nodes_exact_result;

/* Binary columns that the MIP would have (x, and y per token of several experts). */
size_t bl_nodes_exact_size(const bl_nodes_problem *problem);

/* Ask the solver for something better than `count`. Its answer is scored by bl_nodes_evaluate() and
 * taken only if it is better and within the limit. Where copies outnumber experts the MIP splits
 * remote rows as it likes, so its bound holds for every tie-break of the rule.
 * BL_ERR_UNSUPPORTED without a solver. */
bl_status bl_nodes_exact(const bl_nodes_problem *problem, const bl_milp_limits *limits, int *count,
                         bl_nodes_exact_result *out, bl_error *err);

#endif
