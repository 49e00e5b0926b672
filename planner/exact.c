#include "planner/exact.h"

#include "core/mem.h"
#include "planner/evaluate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct model {
    const bl_problem *problem;
    int n_experts, n_ranks; /* ranks with slots only */
    int *order;             /* [n_experts] experts, hottest first; rows of z and y follow it */
    int *rank;              /* [n_ranks] the problem's rank */
    int *twin;              /* [n_ranks] previous rank that is like it, or -1 */
    int *place_in_class;    /* [n_ranks] equally large ranks before it */
    double *sum;            /* [n_experts] load over scenarios, in the same order */
    int *least, *most;      /* [n_experts] copies worth looking at, in the same order */
    int width;              /* largest `most` */
    double unit;            /* objective of score 1 */
    int *y;                 /* [n_experts][n_ranks][width] column, or -1 */
    int *z;                 /* [n_experts][width] column, or -1 */
    int *peak;              /* [n_scenarios] column of T */
    bl_milp milp;
} model;

static int *y_of(const model *m, int e, int g, int k) {
    return &m->y[((size_t)e * (size_t)m->n_ranks + (size_t)g) * (size_t)m->width + (size_t)(k - 1)];
}

static int *z_of(const model *m, int e, int k) {
    return &m->z[(size_t)e * (size_t)m->width + (size_t)(k - 1)];
}

static void model_free(model *m) {
    free(m->order);
    free(m->rank);
    free(m->twin);
    free(m->place_in_class);
    free(m->sum);
    free(m->least);
    free(m->most);
    free(m->y);
    free(m->z);
    free(m->peak);
    bl_milp_free(&m->milp);
}

/* ---- what is worth looking at --------------------------------------------------------------- */

static void sort_experts(model *m, const double *sum) {
    for (int e = 0; e < m->n_experts; e++) {
        int at = e;
        for (; at > 0 && sum[m->order[at - 1]] < sum[e]; at--)
            m->order[at] = m->order[at - 1];
        m->order[at] = e;
    }
    for (int e = 0; e < m->n_experts; e++)
        m->sum[e] = sum[m->order[e]];
}

/* Ranks differ by what they hold now where moves are counted. */
static bool is_anchored(const bl_problem *problem) {
    return problem->current != NULL && problem->max_moves >= 0;
}

static void list_ranks(model *m) {
    const int *slots = m->problem->slots_per_rank;
    int n = 0;
    for (int rank = 0; rank < m->problem->n_ranks; rank++) {
        if (slots[rank] == 0)
            continue;
        m->rank[n] = rank;
        m->twin[n] = -1;
        for (int before = n - 1; before >= 0 && m->twin[n] < 0; before--) {
            if (!is_anchored(m->problem) && bl_rules_alike(m->problem, m->rank[before], rank))
                m->twin[n] = before;
        }
        m->place_in_class[n] = m->twin[n] < 0 ? 0 : m->place_in_class[m->twin[n]] + 1;
        n++;
    }
}

/* Copies so few that one of them outweighs `ceiling` (an objective) cannot be part of anything
 * better, and nobody can have the slots that the others need at least. */
static void limit_copies(model *m, double ceiling) {
    const int n_slots = bl_problem_n_slots(m->problem);
    int needed = 0;
    for (int e = 0; e < m->n_experts; e++) {
        int k = bl_rules_least(m->problem->rules, m->order[e]);
        while (k < m->n_ranks && m->sum[e] / k >= ceiling)
            k++;
        m->least[e] = k;
        needed += k;
    }
    m->width = 1;
    for (int e = 0; e < m->n_experts; e++) {
        const int room = n_slots - (needed - m->least[e]);
        m->most[e] = room < m->n_ranks ? room : m->n_ranks;
        if (m->most[e] < m->least[e])
            m->most[e] = m->least[e]; /* no solution: the slots row will say so */
        m->width = m->most[e] > m->width ? m->most[e] : m->width;
    }
}

static bl_status survey(model *m, const bl_problem *problem, double known, bl_error *err) {
    m->problem = problem;
    m->n_experts = problem->n_experts;
    m->n_ranks = bl_problem_active_ranks(problem);
    m->unit = bl_problem_total_load(problem) / m->n_ranks;
    BL_TRY(BL_CALLOC(m->order, m->n_experts, err));
    BL_TRY(BL_CALLOC(m->rank, m->n_ranks, err));
    BL_TRY(BL_CALLOC(m->twin, m->n_ranks, err));
    BL_TRY(BL_CALLOC(m->place_in_class, m->n_ranks, err));
    BL_TRY(BL_CALLOC(m->sum, m->n_experts, err));
    BL_TRY(BL_CALLOC(m->least, m->n_experts, err));
    BL_TRY(BL_CALLOC(m->most, m->n_experts, err));
    double *sum;
    BL_TRY(BL_CALLOC(sum, m->n_experts, err));
    bl_problem_sum_load(problem, sum);
    sort_experts(m, sum);
    free(sum);
    list_ranks(m);
    limit_copies(m, known * m->unit);
    return BL_OK;
}

/* ---- columns -------------------------------------------------------------------------------- */

/* Can expert e (by order) be on rank g? The ranks of a class before g hold a lower expert each. */
static bool may_hold(const model *m, int e, int g) {
    if (!bl_rules_may(m->problem->rules, m->rank[g], m->order[e]))
        return false;
    int copies = 0;
    for (int before = 0; before <= e; before++)
        copies += m->most[before];
    return copies > m->place_in_class[g];
}

static bl_status add_columns(model *m, double bound, bl_error *err) {
    const bl_milp_column binary = {0.0, 1.0, 0.0, true};
    const size_t cells = (size_t)m->n_experts * (size_t)m->width;
    BL_TRY(BL_CALLOC(m->z, cells, err));
    BL_TRY(BL_CALLOC(m->y, cells * (size_t)m->n_ranks, err));
    BL_TRY(BL_CALLOC(m->peak, m->problem->n_scenarios, err));
    for (int s = 0; s < m->problem->n_scenarios; s++) {
        const bl_milp_column peak = {m->problem->n_scenarios == 1 ? bound : 0.0, INFINITY, 1.0,
                                     false};
        BL_TRY(bl_milp_add_column(&m->milp, peak, &m->peak[s], err));
    }
    for (int e = 0; e < m->n_experts; e++) {
        for (int k = 1; k <= m->width; k++) {
            const bool used = k >= m->least[e] && k <= m->most[e];
            *z_of(m, e, k) = -1;
            if (used)
                BL_TRY(bl_milp_add_column(&m->milp, binary, z_of(m, e, k), err));
            for (int g = 0; g < m->n_ranks; g++) {
                *y_of(m, e, g, k) = -1;
                if (used && may_hold(m, e, g))
                    BL_TRY(bl_milp_add_column(&m->milp, binary, y_of(m, e, g, k), err));
            }
        }
    }
    return BL_OK;
}

/* ---- rows ----------------------------------------------------------------------------------- */

static bl_status add_copies_of(model *m, int e, int g, double value, bl_error *err) {
    for (int k = m->least[e]; k <= m->most[e]; k++) {
        if (*y_of(m, e, g, k) >= 0)
            BL_TRY(bl_milp_add_entry(&m->milp, *y_of(m, e, g, k), value, err));
    }
    return BL_OK;
}

static bl_status add_copy_rows(model *m, bl_error *err) {
    for (int e = 0; e < m->n_experts; e++) {
        BL_TRY(bl_milp_add_row(&m->milp, 1.0, 1.0, err));
        for (int k = m->least[e]; k <= m->most[e]; k++)
            BL_TRY(bl_milp_add_entry(&m->milp, *z_of(m, e, k), 1.0, err));
        for (int k = m->least[e]; k <= m->most[e]; k++) {
            BL_TRY(bl_milp_add_row(&m->milp, 0.0, 0.0, err));
            BL_TRY(bl_milp_add_entry(&m->milp, *z_of(m, e, k), -k, err));
            for (int g = 0; g < m->n_ranks; g++) {
                if (*y_of(m, e, g, k) >= 0)
                    BL_TRY(bl_milp_add_entry(&m->milp, *y_of(m, e, g, k), 1.0, err));
            }
        }
    }
    return BL_OK;
}

static bl_status add_rank_rows(model *m, bl_error *err) {
    const bl_problem *problem = m->problem;
    const bool holes = bl_problem_may_have_holes(problem);
    for (int g = 0; g < m->n_ranks; g++) {
        const double slots = problem->slots_per_rank[m->rank[g]];
        BL_TRY(bl_milp_add_row(&m->milp, holes ? -INFINITY : slots, slots, err));
        for (int e = 0; e < m->n_experts; e++)
            BL_TRY(add_copies_of(m, e, g, 1.0, err));
        for (int s = 0; s < problem->n_scenarios; s++) {
            const double *load = problem->load + (size_t)s * (size_t)problem->n_experts;
            BL_TRY(bl_milp_add_row(&m->milp, -INFINITY, 0.0, err));
            BL_TRY(bl_milp_add_entry(&m->milp, m->peak[s], -1.0, err));
            for (int e = 0; e < m->n_experts; e++) {
                for (int k = m->least[e]; k <= m->most[e]; k++) {
                    if (*y_of(m, e, g, k) >= 0)
                        BL_TRY(bl_milp_add_entry(&m->milp, *y_of(m, e, g, k),
                                                 load[m->order[e]] / m->unit / k, err));
                }
            }
        }
    }
    return BL_OK;
}

static bool same_rules(const bl_problem *problem, int e, int f) {
    if (is_anchored(problem) ||
        bl_rules_least(problem->rules, e) != bl_rules_least(problem->rules, f))
        return false;
    for (int rank = 0; rank < problem->n_ranks; rank++) {
        if (bl_rules_may(problem->rules, rank, e) != bl_rules_may(problem->rules, rank, f))
            return false;
    }
    return true;
}

/* Can two experts (by order) change names? */
static bool same_expert(const model *m, int e, int f) {
    const bl_problem *problem = m->problem;
    for (int s = 0; s < problem->n_scenarios; s++) {
        const double *load = problem->load + (size_t)s * (size_t)problem->n_experts;
        if (load[m->order[e]] != load[m->order[f]])
            return false;
    }
    return same_rules(problem, m->order[e], m->order[f]);
}

static bl_status add_symmetry_rows(model *m, bl_error *err) {
    /* Rank g holds e only if its twin before holds e or a hotter one. */
    for (int g = 0; g < m->n_ranks; g++) {
        for (int e = 0; e < m->n_experts && m->twin[g] >= 0; e++) {
            BL_TRY(bl_milp_add_row(&m->milp, -INFINITY, 0.0, err));
            BL_TRY(add_copies_of(m, e, g, 1.0, err));
            for (int before = 0; before <= e; before++)
                BL_TRY(add_copies_of(m, before, m->twin[g], -1.0, err));
        }
    }
    for (int e = 0; e + 1 < m->n_experts; e++) {
        if (!same_expert(m, e, e + 1))
            continue;
        BL_TRY(bl_milp_add_row(&m->milp, 0.0, INFINITY, err));
        for (int k = m->least[e]; k <= m->most[e]; k++)
            BL_TRY(bl_milp_add_entry(&m->milp, *z_of(m, e, k), k, err));
        for (int k = m->least[e + 1]; k <= m->most[e + 1]; k++)
            BL_TRY(bl_milp_add_entry(&m->milp, *z_of(m, e + 1, k), -k, err));
    }
    return BL_OK;
}

/* The expert is in a domain as far as one of the domain's ranks holds it, and in `least` of them. */
static bl_status add_domain_rows_of(model *m, int e, int n_domains, bl_error *err) {
    const bl_rules *rules = m->problem->rules;
    const int least = bl_rules_least(rules, m->order[e]);
    const bl_milp_column part = {0.0, 1.0, 0.0, false};
    int *in;
    BL_TRY(BL_CALLOC(in, n_domains, err));
    bl_status st = BL_OK;
    for (int d = 0; d < n_domains && st == BL_OK; d++) {
        st = bl_milp_add_column(&m->milp, part, &in[d], err);
        if (st == BL_OK)
            st = bl_milp_add_row(&m->milp, -INFINITY, 0.0, err);
        if (st == BL_OK)
            st = bl_milp_add_entry(&m->milp, in[d], 1.0, err);
        for (int g = 0; g < m->n_ranks && st == BL_OK; g++) {
            if (rules->domain[m->rank[g]] == d)
                st = add_copies_of(m, e, g, -1.0, err);
        }
    }
    if (st == BL_OK)
        st = bl_milp_add_row(&m->milp, least, INFINITY, err);
    for (int d = 0; d < n_domains && st == BL_OK; d++)
        st = bl_milp_add_entry(&m->milp, in[d], 1.0, err);
    free(in);
    return st;
}

static bl_status add_domain_rows(model *m, bl_error *err) {
    const bl_rules *rules = m->problem->rules;
    int n_domains = 0;
    for (int g = 0; rules != NULL && rules->domain != NULL && g < m->n_ranks; g++)
        n_domains =
            rules->domain[m->rank[g]] >= n_domains ? rules->domain[m->rank[g]] + 1 : n_domains;
    for (int e = 0; e < m->n_experts && n_domains > 0; e++) {
        if (bl_rules_least(rules, m->order[e]) > 1)
            BL_TRY(add_domain_rows_of(m, e, n_domains, err));
    }
    return BL_OK;
}

static bl_status add_moves_row(model *m, bl_error *err) {
    const bl_problem *problem = m->problem;
    if (!is_anchored(problem))
        return BL_OK;
    BL_TRY(bl_milp_add_row(&m->milp, -INFINITY, problem->max_moves, err));
    for (int g = 0; g < m->n_ranks; g++) {
        for (int e = 0; e < m->n_experts; e++) {
            if (bl_layer_find(problem->current, m->rank[g], m->order[e]) < 0)
                BL_TRY(add_copies_of(m, e, g, 1.0, err));
        }
    }
    return BL_OK;
}

static bl_status add_objective_row(model *m, double bound, double known, bl_error *err) {
    BL_TRY(bl_milp_add_row(&m->milp, bound, known * (1.0 - BL_EXACT_GAIN), err));
    for (int s = 0; s < m->problem->n_scenarios; s++)
        BL_TRY(bl_milp_add_entry(&m->milp, m->peak[s], 1.0, err));
    return BL_OK;
}

static bl_status build(model *m, const bl_problem *problem, double known, double bound,
                       bl_error *err) {
    BL_TRY(survey(m, problem, known, err));
    BL_TRY(add_columns(m, bound, err));
    BL_TRY(add_copy_rows(m, err));
    BL_TRY(add_rank_rows(m, err));
    BL_TRY(add_symmetry_rows(m, err));
    BL_TRY(add_domain_rows(m, err));
    BL_TRY(add_moves_row(m, err));
    return add_objective_row(m, bound, known, err);
}

/* ---- answers -------------------------------------------------------------------------------- */

/* The solver's proposal as a placement. It must be a valid one and score below `known` by our own
 * evaluator; else it is a wrong answer and is dropped. */
static bl_status accept(const model *m, const double *x, double known,
                        bl_layer_placement *placement, bool *improved, bl_error *err) {
    bl_layer_placement made = {0};
    BL_TRY(bl_problem_empty_placement(m->problem, &made, err));
    bool fits = true;
    for (int g = 0; g < m->n_ranks && fits; g++) {
        int slot = made.begin[m->rank[g]];
        for (int e = 0; e < m->n_experts && fits; e++) {
            for (int k = m->least[e]; k <= m->most[e] && fits; k++) {
                if (*y_of(m, e, g, k) < 0 || x[*y_of(m, e, g, k)] < 0.5)
                    continue;
                fits = slot < made.begin[m->rank[g] + 1];
                if (fits)
                    made.expert[slot++] = m->order[e];
            }
        }
    }
    bl_score score = {0};
    bl_problem even = *m->problem;
    even.rule = BL_RULE_EVEN;
    fits = fits && bl_layer_placement_check(&made, NULL, NULL) == BL_OK &&
           bl_rules_check(m->problem, &made, NULL) == BL_OK;
    bl_status st = fits ? bl_evaluate(&even, &made, &score, err) : BL_OK;
    *improved = fits && st == BL_OK && score.max_over_mean < known;
    if (*improved)
        memcpy(placement->expert, made.expert,
               (size_t)bl_layer_n_slots(&made) * sizeof *made.expert);
    bl_layer_placement_free(&made);
    return st;
}

int64_t bl_exact_size(const bl_problem *problem) {
    const int64_t ranks = bl_problem_active_ranks(problem);
    const int64_t spare = bl_problem_n_slots(problem) - problem->n_experts;
    const int64_t copies = spare + 1 < ranks ? spare + 1 : ranks;
    return problem->n_experts * copies * (ranks + 1);
}

bl_status bl_exact(const bl_problem *problem, double known, double bound,
                   const bl_milp_limits *limits, bl_layer_placement *placement,
                   bl_exact_result *out, bl_error *err) {
    *out = (bl_exact_result){.bound = bound};
    if (bound >= known * (1.0 - BL_EXACT_GAIN)) {
        out->proven = true;
        return BL_OK;
    }
    model m = {0};
    double *x = NULL;
    bl_status st;
    bl_milp_result result;
    BL_TRY_GOTO(st, build(&m, problem, known, bound, err), done);
    BL_TRY_GOTO(st, BL_CALLOC(x, m.milp.n_columns, err), done);
    BL_TRY_GOTO(st, bl_milp_solve(&m.milp, limits, x, &result, err), done);
    out->nodes = result.nodes;
    if (result.outcome == BL_MILP_OPTIMAL || result.outcome == BL_MILP_FEASIBLE)
        BL_TRY_GOTO(st, accept(&m, x, known, placement, &out->improved, err), done);
    out->proven = result.outcome == BL_MILP_INFEASIBLE ||
                  (result.outcome == BL_MILP_OPTIMAL && out->improved);
    if (result.bound > bound) /* less the solver's tolerance */
        out->bound = fmax(bound, result.bound * (1.0 - BL_EXACT_GAIN));
done:
    free(x);
    model_free(&m);
    return st;
}
