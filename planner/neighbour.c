#include "planner/neighbour.h"

#include "core/mem.h"
#include "core/progress.h"
#include "planner/evaluate.h"
#include "planner/milp.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Ten times the solver's tolerance. */
#define BETTER 1e-6
/* Experts from elsewhere that may get a copy on the two ranks. */
#define GUESTS 8

/* Bit 0: on g, bit 1: on h. */
enum { NONE = 0, ON_G = 1, ON_H = 2, BOTH = 3, CONFIGURATIONS = 4 };

typedef struct pair {
    const bl_problem *problem;
    const bl_neighbour_options *options;
    bl_layer_placement *placement;
    bl_holds now, home; /* what ranks hold; what they hold in the current placement */
    int *copies;        /* [n_experts] */
    double *rank_load;  /* [n_ranks][n_scenarios] */
    double unit;        /* objective of score 1 */
    int moves;
    double objective; /* and the price of the moves */
    int g, h;
    int n;        /* experts in question */
    int *expert;  /* [n] of them; hottest first */
    bool *chosen; /* [n_experts] among them */
    int *column;  /* [n][CONFIGURATIONS], or -1 */
    int *peak;    /* [n_scenarios] */
    int *tried;   /* [n_ranks] with which g has been asked about since the last change */
    bl_milp milp;
    double *x;
} pair;

static void pair_free(pair *p) {
    bl_holds_free(&p->now);
    bl_holds_free(&p->home);
    free(p->copies);
    free(p->rank_load);
    free(p->expert);
    free(p->chosen);
    free(p->column);
    free(p->peak);
    free(p->tried);
    free(p->x);
    bl_milp_free(&p->milp);
}

static bl_status pair_create(const bl_problem *problem, bl_layer_placement *placement, pair *p,
                             bl_error *err) {
    const size_t ranks = (size_t)problem->n_ranks, scenarios = (size_t)problem->n_scenarios;
    p->problem = problem;
    p->placement = placement;
    p->unit = bl_problem_total_load(problem) / bl_problem_active_ranks(problem);
    BL_TRY(bl_holds_create(problem->n_ranks, problem->n_experts, &p->now, err));
    BL_TRY(bl_holds_create(problem->n_ranks, problem->n_experts, &p->home, err));
    BL_TRY(BL_CALLOC(p->copies, problem->n_experts, err));
    BL_TRY(BL_CALLOC(p->rank_load, ranks * scenarios, err));
    BL_TRY(BL_CALLOC(p->expert, problem->n_experts, err));
    BL_TRY(BL_CALLOC(p->chosen, problem->n_experts, err));
    BL_TRY(BL_CALLOC(p->column, (size_t)problem->n_experts * CONFIGURATIONS, err));
    BL_TRY(BL_CALLOC(p->peak, problem->n_scenarios, err));
    BL_TRY(BL_CALLOC(p->tried, problem->n_ranks, err));
    if (problem->current != NULL)
        bl_holds_add(&p->home, problem->current);
    return BL_OK;
}

static const double *load_in(const pair *p, int scenario) {
    return p->problem->load + (size_t)scenario * (size_t)p->problem->n_experts;
}

static double *rank_load(const pair *p, int rank, int scenario) {
    return &p->rank_load[(size_t)rank * (size_t)p->problem->n_scenarios + (size_t)scenario];
}

static double peak_of(const pair *p, int scenario) {
    double most = 0.0;
    for (int rank = 0; rank < p->problem->n_ranks; rank++)
        most = fmax(most, *rank_load(p, rank, scenario));
    return most;
}

static int is_move(const pair *p, int rank, int expert) {
    return p->problem->current != NULL && !bl_holds_has(&p->home, rank, expert);
}

/* Everything about the placement as it is now. */
static void take_stock(pair *p) {
    const bl_problem *problem = p->problem;
    const bl_layer_placement *pl = p->placement;
    memset(p->now.bits, 0, p->now.words * (size_t)problem->n_ranks * sizeof *p->now.bits);
    memset(p->copies, 0, (size_t)problem->n_experts * sizeof *p->copies);
    bl_holds_add(&p->now, pl);
    p->moves = 0;
    for (int slot = 0; slot < bl_layer_n_slots(pl); slot++) {
        if (pl->expert[slot] != BL_NO_EXPERT)
            p->copies[pl->expert[slot]]++;
    }
    for (int rank = 0; rank < problem->n_ranks; rank++) {
        for (int s = 0; s < problem->n_scenarios; s++)
            *rank_load(p, rank, s) = 0.0;
        for (int slot = pl->begin[rank]; slot < pl->begin[rank + 1]; slot++) {
            const int32_t expert = pl->expert[slot];
            if (expert == BL_NO_EXPERT)
                continue;
            p->moves += is_move(p, rank, expert);
            for (int s = 0; s < problem->n_scenarios; s++)
                *rank_load(p, rank, s) += load_in(p, s)[expert] / p->copies[expert];
        }
    }
    p->objective = p->options->move_price * p->unit * p->moves;
    for (int s = 0; s < problem->n_scenarios; s++)
        p->objective += peak_of(p, s);
}

/* ---- which experts, which configurations ------------------------------------------------------*/

static bool here(const pair *p, int expert) {
    return bl_holds_has(&p->now, p->g, expert) || bl_holds_has(&p->now, p->h, expert);
}

static int elsewhere(const pair *p, int expert) {
    return p->copies[expert] - bl_holds_has(&p->now, p->g, expert) -
           bl_holds_has(&p->now, p->h, expert);
}

static double sum_load(const pair *p, int expert) {
    double sum = 0.0;
    for (int s = 0; s < p->problem->n_scenarios; s++)
        sum += load_in(p, s)[expert];
    return sum;
}

/* The experts of both ranks, and those elsewhere whose copies weigh most. */
static void choose_experts(pair *p) {
    const int n_experts = p->problem->n_experts;
    p->n = 0;
    for (int expert = 0; expert < n_experts; expert++)
        p->chosen[expert] = here(p, expert);
    for (int guest = 0; guest < GUESTS; guest++) {
        int best = -1;
        double most = -1.0;
        for (int expert = 0; expert < n_experts; expert++) {
            const double weight = sum_load(p, expert) / p->copies[expert];
            if (!p->chosen[expert] && weight > most) {
                best = expert;
                most = weight;
            }
        }
        if (best >= 0)
            p->chosen[best] = true;
    }
    for (int expert = 0; expert < n_experts; expert++) {
        if (!p->chosen[expert])
            continue;
        int at = p->n++;
        for (; at > 0 && sum_load(p, p->expert[at - 1]) < sum_load(p, expert); at--)
            p->expert[at] = p->expert[at - 1];
        p->expert[at] = expert;
    }
}

static int n_here(int configuration) {
    return (configuration & ON_G) + (configuration >> 1);
}

static bool domains_suffice(const pair *p, int expert, int configuration) {
    const bl_rules *rules = p->problem->rules;
    bl_domain_count count = {.least = bl_rules_least(rules, expert)};
    if (count.least < 2)
        return true;
    for (int rank = 0; rank < p->problem->n_ranks; rank++) {
        const bool held = rank == p->g   ? (configuration & ON_G) != 0
                          : rank == p->h ? (configuration & ON_H) != 0
                                         : bl_holds_has(&p->now, rank, expert);
        if (held)
            bl_domain_count_add(&count, rules->domain[rank]);
    }
    return count.n >= count.least;
}

static bool is_possible(const pair *p, int expert, int configuration) {
    const bl_rules *rules = p->problem->rules;
    return elsewhere(p, expert) + n_here(configuration) > 0 &&
           (!(configuration & ON_G) || bl_rules_may(rules, p->g, expert)) &&
           (!(configuration & ON_H) || bl_rules_may(rules, p->h, expert)) &&
           domains_suffice(p, expert, configuration);
}

static int moves_of(const pair *p, int expert, int configuration) {
    return ((configuration & ON_G) ? is_move(p, p->g, expert) : 0) +
           ((configuration & ON_H) ? is_move(p, p->h, expert) : 0);
}

static int *column_of(const pair *p, int i, int configuration) {
    return &p->column[i * CONFIGURATIONS + configuration];
}

/* ---- the model --------------------------------------------------------------------------------*/

/* Ranks whose load depends on the experts in question. */
static bool is_affected(const pair *p, int rank) {
    if (rank == p->g || rank == p->h)
        return true;
    for (int i = 0; i < p->n; i++) {
        if (bl_holds_has(&p->now, rank, p->expert[i]))
            return true;
    }
    return false;
}

static bl_status add_columns(pair *p, bl_error *err) {
    const bl_problem *problem = p->problem;
    for (int s = 0; s < problem->n_scenarios; s++) {
        double least = 0.0;
        for (int rank = 0; rank < problem->n_ranks; rank++) {
            if (!is_affected(p, rank))
                least = fmax(least, *rank_load(p, rank, s));
        }
        const bl_milp_column peak = {least / p->unit, INFINITY, 1.0, false};
        BL_TRY(bl_milp_add_column(&p->milp, peak, &p->peak[s], err));
    }
    /* The two ranks are alike: the hottest expert is not on h alone. */
    const bool mirrored = problem->current == NULL && bl_rules_alike(problem, p->g, p->h) &&
                          (problem->rules == NULL || problem->rules->domain == NULL);
    for (int i = 0; i < p->n; i++) {
        for (int c = CONFIGURATIONS; c-- > 0;) {
            *column_of(p, i, c) = -1;
            if (!is_possible(p, p->expert[i], c) || (mirrored && i == 0 && c == ON_H))
                continue;
            const double price = p->options->move_price * moves_of(p, p->expert[i], c);
            const bl_milp_column binary = {0.0, 1.0, price, true};
            BL_TRY(bl_milp_add_column(&p->milp, binary, column_of(p, i, c), err));
        }
    }
    return BL_OK;
}

static bl_status add_entry(pair *p, int i, int c, double value, bl_error *err) {
    const int column = *column_of(p, i, c);
    return column >= 0 && value != 0.0 ? bl_milp_add_entry(&p->milp, column, value, err) : BL_OK;
}

static int filled(const pair *p, int rank) {
    int n = 0;
    for (int slot = p->placement->begin[rank]; slot < p->placement->begin[rank + 1]; slot++)
        n += p->placement->expert[slot] != BL_NO_EXPERT;
    return n;
}

static bl_status add_shape_rows(pair *p, bl_error *err) {
    for (int i = 0; i < p->n; i++) {
        BL_TRY(bl_milp_add_row(&p->milp, 1.0, 1.0, err));
        for (int c = 0; c < CONFIGURATIONS; c++)
            BL_TRY(add_entry(p, i, c, 1.0, err));
    }
    for (int bit = ON_G; bit <= ON_H; bit++) {
        const int n = filled(p, bit == ON_G ? p->g : p->h);
        BL_TRY(bl_milp_add_row(&p->milp, n, n, err));
        for (int i = 0; i < p->n; i++) {
            BL_TRY(add_entry(p, i, bit, 1.0, err));
            BL_TRY(add_entry(p, i, BOTH, 1.0, err));
        }
    }
    if (p->problem->current == NULL || p->problem->max_moves < 0)
        return BL_OK;
    int outside = p->moves;
    for (int i = 0; i < p->n; i++) {
        const int configuration = bl_holds_has(&p->now, p->g, p->expert[i]) +
                                  2 * bl_holds_has(&p->now, p->h, p->expert[i]);
        outside -= moves_of(p, p->expert[i], configuration);
    }
    BL_TRY(bl_milp_add_row(&p->milp, -INFINITY, p->problem->max_moves - outside, err));
    for (int i = 0; i < p->n; i++) {
        for (int c = 0; c < CONFIGURATIONS; c++)
            BL_TRY(add_entry(p, i, c, moves_of(p, p->expert[i], c), err));
    }
    return BL_OK;
}

/* rank's load in a scenario <= T: what stays, and a copy of each expert in question. */
static bl_status add_load_row(pair *p, int rank, int s, bl_error *err) {
    double stays = *rank_load(p, rank, s);
    for (int i = 0; i < p->n; i++) {
        if (bl_holds_has(&p->now, rank, p->expert[i]))
            stays -= load_in(p, s)[p->expert[i]] / p->copies[p->expert[i]];
    }
    const int bit = rank == p->g ? ON_G : rank == p->h ? ON_H : 0;
    BL_TRY(bl_milp_add_row(&p->milp, -INFINITY, bit != 0 ? 0.0 : -stays / p->unit, err));
    BL_TRY(bl_milp_add_entry(&p->milp, p->peak[s], -1.0, err));
    for (int i = 0; i < p->n; i++) {
        const int expert = p->expert[i];
        for (int c = 0; c < CONFIGURATIONS; c++) {
            if (bit != 0 ? (c & bit) != 0 : bl_holds_has(&p->now, rank, expert))
                BL_TRY(add_entry(
                    p, i, c, load_in(p, s)[expert] / p->unit / (elsewhere(p, expert) + n_here(c)),
                    err));
        }
    }
    return BL_OK;
}

static bl_status build(pair *p, bl_error *err) {
    bl_milp_free(&p->milp);
    choose_experts(p);
    BL_TRY(add_columns(p, err));
    BL_TRY(add_shape_rows(p, err));
    for (int rank = 0; rank < p->problem->n_ranks; rank++) {
        for (int s = 0; s < p->problem->n_scenarios && is_affected(p, rank); s++)
            BL_TRY(add_load_row(p, rank, s, err));
    }
    double elsewhere_price = p->options->move_price * p->moves;
    for (int i = 0; i < p->n; i++) {
        const int configuration = bl_holds_has(&p->now, p->g, p->expert[i]) +
                                  2 * bl_holds_has(&p->now, p->h, p->expert[i]);
        elsewhere_price -= p->options->move_price * moves_of(p, p->expert[i], configuration);
    }
    const double known = p->objective / p->unit * (1.0 - BETTER) - elsewhere_price;
    BL_TRY(bl_milp_add_row(&p->milp, -INFINITY, known, err));
    for (size_t j = 0; j < p->milp.n_columns; j++)
        BL_TRY(bl_milp_add_entry(&p->milp, (int)j, p->milp.columns[j].objective, err));
    return BL_OK;
}

/* ---- answers ----------------------------------------------------------------------------------*/

static void write_rank(const pair *p, int rank, int bit) {
    int slot = p->placement->begin[rank];
    for (int i = 0; i < p->n; i++) {
        for (int c = 0; c < CONFIGURATIONS; c++) {
            if ((c & bit) && *column_of(p, i, c) >= 0 && p->x[*column_of(p, i, c)] > 0.5)
                p->placement->expert[slot++] = p->expert[i];
        }
    }
    while (slot < p->placement->begin[rank + 1])
        p->placement->expert[slot++] = BL_NO_EXPERT;
}

/* Take the solver's proposal over if it is one by our own arithmetic; else put everything back. */
static bl_status take_over(pair *p, bool *improved, bl_error *err) {
    const double before = p->objective;
    int32_t *old;
    const size_t n_slots = (size_t)bl_layer_n_slots(p->placement);
    BL_TRY(BL_CALLOC(old, n_slots, err));
    memcpy(old, p->placement->expert, n_slots * sizeof *old);
    write_rank(p, p->g, ON_G);
    write_rank(p, p->h, ON_H);
    *improved = bl_layer_placement_check(p->placement, NULL, NULL) == BL_OK &&
                bl_rules_check(p->problem, p->placement, NULL) == BL_OK;
    if (*improved) {
        take_stock(p);
        *improved =
            p->objective < before && (p->problem->max_moves < 0 || p->problem->current == NULL ||
                                      p->moves <= p->problem->max_moves);
    }
    if (!*improved) {
        memcpy(p->placement->expert, old, n_slots * sizeof *old);
        take_stock(p);
    }
    free(old);
    return BL_OK;
}

static bl_status ask(pair *p, bl_neighbour_result *out, bool *improved, bl_error *err) {
    const bl_milp_limits limits = {.max_nodes = p->options->max_nodes};
    bl_milp_result result;
    *improved = false;
    BL_TRY(build(p, err));
    free(p->x);
    BL_TRY(BL_CALLOC(p->x, p->milp.n_columns, err));
    BL_TRY(bl_milp_solve(&p->milp, &limits, p->x, &result, err));
    out->asked++;
    if (result.outcome == BL_MILP_OPTIMAL || result.outcome == BL_MILP_FEASIBLE)
        BL_TRY(take_over(p, improved, err));
    out->improved += *improved;
    out->proven += result.outcome == BL_MILP_INFEASIBLE || result.outcome == BL_MILP_OPTIMAL;
    return BL_OK;
}

/* ---- which pairs ------------------------------------------------------------------------------*/

/* The rank that is the busiest for the largest part of the objective. */
static int busiest(const pair *p) {
    int best = 0;
    double most = -1.0;
    for (int rank = 0; rank < p->problem->n_ranks; rank++) {
        double part = 0.0;
        for (int s = 0; s < p->problem->n_scenarios; s++) {
            const double peak = peak_of(p, s), load = *rank_load(p, rank, s);
            part += load >= peak * (1.0 - 1e-12) ? peak : 0.0;
        }
        if (part > most) {
            most = part;
            best = rank;
        }
    }
    return best;
}

/* The least loaded rank that has not been tried with g since the last change, or -1. */
static int partner(const pair *p) {
    int best = -1;
    double least = INFINITY;
    for (int rank = 0; rank < p->problem->n_ranks; rank++) {
        if (rank == p->g || p->tried[rank] || p->problem->slots_per_rank[rank] == 0)
            continue;
        double load = 0.0;
        for (int s = 0; s < p->problem->n_scenarios; s++)
            load += *rank_load(p, rank, s);
        if (load < least) {
            least = load;
            best = rank;
        }
    }
    return best;
}

static bl_status run(pair *p, bl_neighbour_result *out, bl_error *err) {
    take_stock(p);
    p->g = busiest(p);
    while (out->asked < p->options->pairs && p->objective > p->options->target * p->unit) {
        if (bl_interrupted())
            return BL_LIMIT;
        bool improved;
        p->h = partner(p);
        if (p->h < 0)
            return BL_OK;
        BL_TRY(ask(p, out, &improved, err));
        p->tried[p->h] = 1;
        if (!improved)
            continue;
        p->g = busiest(p);
        memset(p->tried, 0, (size_t)p->problem->n_ranks * sizeof *p->tried);
    }
    return BL_OK;
}

bl_status bl_neighbours(const bl_problem *problem, const bl_neighbour_options *options,
                        bl_layer_placement *placement, bl_neighbour_result *out, bl_error *err) {
    *out = (bl_neighbour_result){0};
    if (bl_milp_solver() == NULL || bl_problem_active_ranks(problem) < 2)
        return BL_OK;
    pair p = {.options = options};
    bl_status st = pair_create(problem, placement, &p, err);
    if (st == BL_OK)
        st = run(&p, out, err);
    pair_free(&p);
    return st;
}
