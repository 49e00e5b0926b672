/*
 * nodes_exact.c: copies on nodes as a MIP.
 *
 *   x[e][n]    binary     node n holds expert e
 *   y[t][n]    binary     token t visits node n (not its own); tokens of several experts only
 *   z[t][i][n] >= 0       part of the token's i-th expert served on node n, if not at home
 *
 *   minimise   sum_t weight(t) sum_n y[t][n]
 *   with       sum_n x[e][n] >= 1
 *              slots(n) / ranks(n) <= sum_e x[e][n] <= slots(n)      second copies fill the rest
 *              x[e][own] + sum_n z[t][i][n] = 1                      e is the i-th expert of t
 *              z[t][i][n] <= x[e][n],  z[t][i][n] <= y[t][n]
 *              sum over t, i served on n of weight <= limit x mean x ranks(n)
 *              objective <= what is known, less a little
 *
 * A token of one expert needs no y: it visits a node unless x[e][own], so the objective has
 * weight x (1 - x[e][own]). With as many experts as slots every expert has one home, which serves all
 * of its rows: then there is no z either, and x alone carries the balance.
 */
#include "planner/nodes.h"

#include "core/mem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct model {
    const bl_nodes_problem *p;
    bool single; /* tokens of one expert each */
    bool homes;  /* every expert has exactly one copy */
    bool limited;
    int *order;     /* [n_experts] heaviest first: columns are branched on in this order */
    double *weight; /* [n_experts] rows */
    int *x;         /* [n_experts][n_nodes] column */
    bl_milp milp;
    double constant; /* of the objective */
    double total;    /* rows */
    int n_ranks;
    /* entries of the balance rows, collected until the rows are written */
    int *load_column;
    int *load_node;
    double *load_value;
    size_t n_loads, room[3];
} model;

static void model_free(model *m) {
    free(m->order);
    free(m->weight);
    free(m->x);
    free(m->load_column);
    free(m->load_node);
    free(m->load_value);
    bl_milp_free(&m->milp);
}

static int x_of(const model *m, int expert, int node) {
    return m->x[(size_t)expert * (size_t)m->p->n_nodes + (size_t)node];
}

static bool is_single(const bl_nodes_problem *p) {
    for (size_t t = 0; t < p->n_tokens; t++) {
        int n = 0;
        for (int i = 0; i < p->k; i++)
            n += p->id[t * (size_t)p->k + (size_t)i] >= 0;
        if (n > 1)
            return false;
    }
    return true;
}

static bool has_homes(const bl_nodes_problem *p) {
    int slots = 0;
    for (int n = 0; n < p->n_nodes; n++)
        slots += p->slots[n];
    return slots == p->n_experts;
}

size_t bl_nodes_exact_size(const bl_nodes_problem *p) {
    const size_t x = (size_t)p->n_experts * (size_t)p->n_nodes;
    return is_single(p) ? x : x + p->n_tokens * (size_t)(p->n_nodes - 1);
}

/* ---- columns --------------------------------------------------------------------------------- */

static bl_status order_experts(model *m, bl_error *err) {
    const bl_nodes_problem *p = m->p;
    BL_TRY(BL_CALLOC(m->order, p->n_experts, err));
    BL_TRY(BL_CALLOC(m->weight, p->n_experts, err));
    for (size_t i = 0; i < p->n_tokens * (size_t)p->k; i++) {
        if (p->id[i] < 0)
            continue;
        m->weight[p->id[i]] += p->weight[i / (size_t)p->k];
        m->total += p->weight[i / (size_t)p->k];
    }
    for (int e = 0; e < p->n_experts; e++) {
        int place = e;
        for (; place > 0 && m->weight[m->order[place - 1]] < m->weight[e]; place--)
            m->order[place] = m->order[place - 1];
        m->order[place] = e;
    }
    for (int n = 0; n < p->n_nodes; n++)
        m->n_ranks += p->ranks[n];
    return BL_OK;
}

static bl_status add_x(model *m, bl_error *err) {
    const bl_nodes_problem *p = m->p;
    BL_TRY(BL_CALLOC(m->x, (size_t)p->n_experts * (size_t)p->n_nodes, err));
    for (int i = 0; i < p->n_experts; i++) {
        for (int n = 0; n < p->n_nodes; n++)
            BL_TRY(bl_milp_add_column(
                &m->milp, (bl_milp_column){0.0, p->slots[n] > 0 ? 1.0 : 0.0, 0.0, true},
                &m->x[(size_t)m->order[i] * (size_t)p->n_nodes + (size_t)n], err));
    }
    return BL_OK;
}

static bl_status add_load(model *m, int node, int column, double value, bl_error *err) {
    const size_t needed = m->n_loads + 1;
    BL_TRY(bl_grow((void **)&m->load_column, &m->room[0], needed, sizeof *m->load_column, err));
    BL_TRY(bl_grow((void **)&m->load_node, &m->room[1], needed, sizeof *m->load_node, err));
    BL_TRY(bl_grow((void **)&m->load_value, &m->room[2], needed, sizeof *m->load_value, err));
    m->load_column[m->n_loads] = column;
    m->load_node[m->n_loads] = node;
    m->load_value[m->n_loads++] = value;
    return BL_OK;
}

/* ---- rows ------------------------------------------------------------------------------------ */

static bl_status add_places(model *m, bl_error *err) {
    const bl_nodes_problem *p = m->p;
    for (int e = 0; e < p->n_experts; e++) {
        BL_TRY(bl_milp_add_row(&m->milp, 1.0, m->homes ? 1.0 : INFINITY, err));
        for (int n = 0; n < p->n_nodes; n++)
            BL_TRY(bl_milp_add_entry(&m->milp, x_of(m, e, n), 1.0, err));
    }
    for (int n = 0; n < p->n_nodes; n++) {
        const int least = p->ranks[n] > 0 ? (p->slots[n] + p->ranks[n] - 1) / p->ranks[n] : 0;
        BL_TRY(bl_milp_add_row(&m->milp, m->homes ? p->slots[n] : least, p->slots[n], err));
        for (int e = 0; e < p->n_experts; e++)
            BL_TRY(bl_milp_add_entry(&m->milp, x_of(m, e, n), 1.0, err));
    }
    return BL_OK;
}

/* z of one expert of one token, bounded by x and, where it has them, by y[n_nodes] (-1: own). */
static bl_status add_flow(model *m, int expert, int own, double weight, const int *y,
                          bl_error *err) {
    const bl_nodes_problem *p = m->p;
    int z[64];
    for (int n = 0; n < p->n_nodes; n++) {
        if (n == own)
            continue;
        BL_TRY(bl_milp_add_column(&m->milp, (bl_milp_column){0.0, 1.0, 0.0, false}, &z[n], err));
        BL_TRY(bl_milp_add_row(&m->milp, -INFINITY, 0.0, err));
        BL_TRY(bl_milp_add_entry(&m->milp, z[n], 1.0, err));
        BL_TRY(bl_milp_add_entry(&m->milp, x_of(m, expert, n), -1.0, err));
        if (y == NULL)
            continue;
        BL_TRY(bl_milp_add_row(&m->milp, -INFINITY, 0.0, err));
        BL_TRY(bl_milp_add_entry(&m->milp, z[n], 1.0, err));
        BL_TRY(bl_milp_add_entry(&m->milp, y[n], -1.0, err));
    }
    BL_TRY(bl_milp_add_row(&m->milp, 1.0, 1.0, err));
    BL_TRY(bl_milp_add_entry(&m->milp, x_of(m, expert, own), 1.0, err));
    for (int n = 0; n < p->n_nodes; n++) {
        if (n != own)
            BL_TRY(bl_milp_add_entry(&m->milp, z[n], 1.0, err));
    }
    for (int n = 0; m->limited && n < p->n_nodes; n++)
        BL_TRY(add_load(m, n, n == own ? x_of(m, expert, own) : z[n], weight, err));
    return BL_OK;
}

static bl_status add_single(model *m, int expert, int own, double weight, bl_error *err) {
    m->constant += weight;
    m->milp.columns[x_of(m, expert, own)].objective -= weight;
    if (!m->limited || m->homes)
        return BL_OK;
    return add_flow(m, expert, own, weight, NULL, err);
}

static bl_status add_token(model *m, size_t token, bl_error *err) {
    const bl_nodes_problem *p = m->p;
    const int32_t *id = p->id + token * (size_t)p->k;
    int y[64];
    for (int i = 0; m->single && i < p->k; i++) {
        if (id[i] >= 0)
            return add_single(m, id[i], p->own[token], p->weight[token], err);
    }
    if (m->single)
        return BL_OK;
    for (int n = 0; n < p->n_nodes; n++) {
        y[n] = -1;
        if (n != p->own[token])
            BL_TRY(bl_milp_add_column(&m->milp, (bl_milp_column){0.0, 1.0, p->weight[token], true},
                                      &y[n], err));
    }
    for (int i = 0; i < p->k; i++) {
        if (id[i] >= 0)
            BL_TRY(add_flow(m, id[i], p->own[token], p->weight[token], y, err));
    }
    return BL_OK;
}

/* Entries of one column that come from several tokens are added up: a row names a column once. */
static bl_status add_balance(model *m, bl_error *err) {
    const bl_nodes_problem *p = m->p;
    double *value;
    if (!m->limited)
        return BL_OK;
    if (m->homes) {
        m->n_loads = 0;
        for (int n = 0; n < p->n_nodes; n++) {
            for (int e = 0; e < p->n_experts; e++)
                BL_TRY(add_load(m, n, x_of(m, e, n), m->weight[e], err));
        }
    }
    BL_TRY(BL_CALLOC(value, m->milp.n_columns, err));
    bl_status st = BL_OK;
    for (int n = 0; n < p->n_nodes && st >= 0; n++) {
        memset(value, 0, m->milp.n_columns * sizeof *value);
        for (size_t i = 0; i < m->n_loads; i++) {
            if (m->load_node[i] == n)
                value[m->load_column[i]] += m->load_value[i] / m->total;
        }
        st = bl_milp_add_row(&m->milp, -INFINITY, p->limit * p->ranks[n] / m->n_ranks, err);
        for (size_t c = 0; c < m->milp.n_columns && st >= 0; c++) {
            if (value[c] != 0.0)
                st = bl_milp_add_entry(&m->milp, (int)c, value[c], err);
        }
    }
    free(value);
    return st;
}

static bl_status add_cutoff(model *m, double below, bl_error *err) {
    BL_TRY(bl_milp_add_row(&m->milp, -INFINITY, below - m->constant, err));
    for (size_t c = 0; c < m->milp.n_columns; c++) {
        if (m->milp.columns[c].objective != 0.0)
            BL_TRY(bl_milp_add_entry(&m->milp, (int)c, m->milp.columns[c].objective, err));
    }
    return BL_OK;
}

static bl_status build(model *m, double below, bl_error *err) {
    BL_TRY(order_experts(m, err));
    BL_TRY(add_x(m, err));
    BL_TRY(add_places(m, err));
    for (size_t t = 0; t < m->p->n_tokens; t++)
        BL_TRY(add_token(m, t, err));
    BL_TRY(add_balance(m, err));
    return isfinite(below) ? add_cutoff(m, below, err) : BL_OK;
}

/* ---- the answer ------------------------------------------------------------------------------ */

/* Copies from x; slots that are left take second copies of what is heaviest there. */
static bl_status read_copies(const model *m, const double *value, int *count, bl_error *err) {
    const bl_nodes_problem *p = m->p;
    for (int n = 0; n < p->n_nodes; n++) {
        int held = 0;
        for (int e = 0; e < p->n_experts; e++) {
            int *copies = &count[(size_t)e * (size_t)p->n_nodes + (size_t)n];
            *copies = value[x_of(m, e, n)] > 0.5;
            held += *copies;
        }
        while (held < p->slots[n]) {
            int best = -1;
            double most = -1.0;
            for (int e = 0; e < p->n_experts; e++) {
                const int copies = count[(size_t)e * (size_t)p->n_nodes + (size_t)n];
                if (copies > 0 && copies < p->ranks[n] && m->weight[e] / copies > most) {
                    most = m->weight[e] / copies;
                    best = e;
                }
            }
            if (best < 0)
                return bl_fail(err, BL_ERR_SOLVER, "node %d keeps an empty slot", n);
            count[(size_t)best * (size_t)p->n_nodes + (size_t)n]++;
            held++;
        }
    }
    return BL_OK;
}

/* Is `a` within the limit and better than `b`, or within it where `b` is not? */
static bool is_better(const bl_nodes_problem *p, const bl_nodes_score *a, const bl_nodes_score *b) {
    const double limit = p->limit * (1.0 + 1e-9);
    if (a->balance > limit)
        return false;
    return b->balance > limit || a->remote < b->remote;
}

/* An improvement smaller than this part of the rows is none. */
#define GAIN 1e-6

static bl_status judge(const model *m, const bl_milp_result *result, const double *value,
                       const bl_nodes_score *known, int *count, bl_nodes_exact_result *out,
                       bl_error *err) {
    const bl_nodes_problem *p = m->p;
    const size_t cells = (size_t)p->n_experts * (size_t)p->n_nodes;
    const bool within = known->balance <= p->limit * (1.0 + 1e-9);
    bl_nodes_score score;
    int *made;
    *out = (bl_nodes_exact_result){.bound = result->bound + m->constant};
    if (result->outcome == BL_MILP_INFEASIBLE) {
        out->proven = within;
        out->bound = within ? known->remote : INFINITY;
        return BL_OK;
    }
    if (result->outcome == BL_MILP_UNKNOWN)
        return BL_OK;
    BL_TRY(BL_CALLOC(made, cells, err));
    bl_status st = read_copies(m, value, made, err);
    if (st >= 0)
        st = bl_nodes_evaluate(p, made, NULL, &score, err);
    if (st >= 0 && is_better(p, &score, known)) {
        memcpy(count, made, cells * sizeof *count);
        out->improved = true;
        out->proven = score.remote <= out->bound + 2.0 * GAIN * m->total;
    }
    free(made);
    return st;
}

bl_status bl_nodes_exact(const bl_nodes_problem *problem, const bl_milp_limits *limits, int *count,
                         bl_nodes_exact_result *out, bl_error *err) {
    model m = {.p = problem,
               .single = is_single(problem),
               .homes = has_homes(problem),
               .limited = isfinite(problem->limit)};
    bl_nodes_score known;
    bl_milp_result result;
    double *value = NULL;
    bl_status st;
    BL_TRY(bl_nodes_evaluate(problem, count, NULL, &known, err));
    const bool within = known.balance <= problem->limit * (1.0 + 1e-9);
    double rows = 0.0;
    for (size_t t = 0; t < problem->n_tokens; t++)
        rows += problem->weight[t];
    BL_TRY_GOTO(st, build(&m, within ? known.remote - GAIN * rows : INFINITY, err), done);
    BL_TRY_GOTO(st, BL_CALLOC(value, m.milp.n_columns, err), done);
    BL_TRY_GOTO(st, bl_milp_solve(&m.milp, limits, value, &result, err), done);
    st = judge(&m, &result, value, &known, count, out, err);
done:
    free(value);
    model_free(&m);
    return st;
}
