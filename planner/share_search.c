#include "planner/share_search.h"

#include "core/mem.h"
#include "core/progress.h"
#include "core/rng.h"
#include "planner/rules.h"
#include "planner/sources.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct state {
    const bl_problem *p;
    int n_slots, n_ranks, n_scenarios, n_sources, n_active;
    int32_t *slot;     /* [n_slots] expert */
    int *rank;         /* [n_slots] */
    int *n_copies;     /* [n_experts] */
    int *copy;         /* [n_experts][n_ranks] ranks that hold it, ascending, n_copies of them */
    double *load;      /* [n_experts][n_scenarios][n_sources] */
    double *load_sum;  /* [n_experts][n_sources] */
    double *all;       /* [n_experts][n_scenarios] over sources */
    double *rank_load; /* [n_scenarios][n_ranks] */
    double *saved;     /* the same, before a proposal */
    int *choice;       /* [n_sources] scratch: rank that serves a source, or -1: all copies alike */
    double crossing;   /* rows */
    double total;
    bl_holds home; /* of the placement in force */
    int moves, max_moves;
} state;

static void state_free(state *s) {
    free(s->slot);
    free(s->rank);
    free(s->n_copies);
    free(s->copy);
    free(s->load);
    free(s->load_sum);
    free(s->all);
    free(s->rank_load);
    free(s->saved);
    free(s->choice);
    bl_holds_free(&s->home);
}

static size_t n_cells(const state *s) {
    return (size_t)s->n_scenarios * (size_t)s->n_ranks;
}

/* ---- one expert ------------------------------------------------------------------------------ */

static const int *copies_of(const state *s, int expert) {
    return s->copy + (size_t)expert * (size_t)s->n_ranks;
}

/* As core/split.c settles it, on ranks. */
static int settle(const state *s, int expert, int source) {
    const int *copy = copies_of(s, expert), n = s->n_copies[expert];
    const int *host = s->p->sites->host;
    int on_host = 0, first_on_host = -1;
    if (s->p->rule == BL_RULE_EVEN)
        return -1;
    for (int i = n - 1; i >= 0; i--) {
        if (copy[i] == source)
            return source;
        if (host[copy[i]] == host[source]) {
            on_host++;
            first_on_host = copy[i];
        }
    }
    if (s->p->rule == BL_RULE_FIXED)
        return on_host > 0 ? first_on_host : copy[source % n];
    return on_host > 0 && on_host < n ? first_on_host : -1;
}

static void add_loads(state *s, int expert, double sign) {
    const int *copy = copies_of(s, expert), n = s->n_copies[expert];
    const double *load = s->load + (size_t)expert * (size_t)s->n_scenarios * (size_t)s->n_sources;
    const double *all = s->all + (size_t)expert * (size_t)s->n_scenarios;
    for (int scenario = 0; scenario < s->n_scenarios; scenario++) {
        double *to = s->rank_load + (size_t)scenario * (size_t)s->n_ranks;
        double shared = all[scenario];
        for (int source = 0; s->p->rule != BL_RULE_EVEN && source < s->n_sources; source++) {
            const double rows = load[(size_t)scenario * (size_t)s->n_sources + (size_t)source];
            if (s->choice[source] < 0)
                continue;
            to[s->choice[source]] += sign * rows;
            shared -= rows;
        }
        for (int i = 0; i < n; i++)
            to[copy[i]] += sign * shared / n;
    }
}

static double crossing_of(const state *s, int expert) {
    const int *copy = copies_of(s, expert), n = s->n_copies[expert];
    const int *node = s->p->sites->node;
    const double *load = s->load_sum + (size_t)expert * (size_t)s->n_sources;
    double sum = 0.0;
    for (int source = 0; source < s->n_sources; source++) {
        int away = 0;
        if (s->choice[source] >= 0) {
            sum += node[s->choice[source]] != node[source] ? load[source] : 0.0;
            continue;
        }
        for (int i = 0; i < n; i++)
            away += node[copy[i]] != node[source];
        sum += load[source] * away / n;
    }
    return sum;
}

/* Take an expert's rows out of the books (-1) or enter them (+1), where its copies are now. */
static void enter(state *s, int expert, double sign) {
    for (int source = 0; source < s->n_sources; source++)
        s->choice[source] = settle(s, expert, source);
    add_loads(s, expert, sign);
    s->crossing += sign * crossing_of(s, expert);
}

/* ---- books ----------------------------------------------------------------------------------- */

static void add_copy(state *s, int expert, int rank) {
    int *copy = s->copy + (size_t)expert * (size_t)s->n_ranks;
    int at = s->n_copies[expert]++;
    for (; at > 0 && copy[at - 1] > rank; at--)
        copy[at] = copy[at - 1];
    copy[at] = rank;
}

static void drop_copy(state *s, int expert, int rank) {
    int *copy = s->copy + (size_t)expert * (size_t)s->n_ranks;
    const int n = --s->n_copies[expert];
    int at = 0;
    while (copy[at] != rank)
        at++;
    for (; at < n; at++)
        copy[at] = copy[at + 1];
}

static bool holds(const state *s, int expert, int rank) {
    const int *copy = copies_of(s, expert);
    for (int i = 0; i < s->n_copies[expert]; i++) {
        if (copy[i] == rank)
            return true;
    }
    return false;
}

static int is_move(const state *s, int rank, int expert) {
    return s->home.bits != NULL && !bl_holds_has(&s->home, rank, expert);
}

static void put(state *s, int slot, int expert) {
    const int rank = s->rank[slot], old = s->slot[slot];
    drop_copy(s, old, rank);
    add_copy(s, expert, rank);
    s->moves += is_move(s, rank, expert) - is_move(s, rank, old);
    s->slot[slot] = expert;
}

/* Are the copies of an expert in as many fault domains as the rules ask for? */
static bool keeps_domains(const state *s, int expert) {
    const bl_rules *rules = s->p->rules;
    bl_domain_count count = {.least = bl_rules_least(rules, expert)};
    if (count.least <= 1)
        return true;
    for (int i = 0; i < s->n_copies[expert]; i++)
        bl_domain_count_add(&count, rules->domain[copies_of(s, expert)[i]]);
    return count.n >= count.least;
}

static bl_status allocate(state *s, bl_error *err) {
    const bl_problem *p = s->p;
    const size_t experts = (size_t)p->n_experts, sources = (size_t)s->n_sources;
    size_t cells;
    if (!bl_size_mul(experts * sources, (size_t)s->n_scenarios, &cells))
        return bl_fail(err, BL_ERR_NOMEM, "out of memory");
    BL_TRY(BL_CALLOC(s->slot, s->n_slots, err));
    BL_TRY(BL_CALLOC(s->rank, s->n_slots, err));
    BL_TRY(BL_CALLOC(s->n_copies, experts, err));
    BL_TRY(BL_CALLOC(s->copy, experts * (size_t)s->n_ranks, err));
    BL_TRY(BL_CALLOC(s->load, cells, err));
    BL_TRY(BL_CALLOC(s->load_sum, experts * sources, err));
    BL_TRY(BL_CALLOC(s->all, experts * (size_t)s->n_scenarios, err));
    BL_TRY(BL_CALLOC(s->rank_load, n_cells(s), err));
    BL_TRY(BL_CALLOC(s->saved, n_cells(s), err));
    return BL_CALLOC(s->choice, sources, err);
}

static void take_loads(state *s) {
    const bl_sources *sources = s->p->sources;
    for (int scenario = 0; scenario < s->n_scenarios; scenario++) {
        for (int source = 0; source < s->n_sources; source++) {
            const double *from = bl_sources_load(sources, scenario, source);
            for (int e = 0; e < s->p->n_experts; e++) {
                const size_t row = (size_t)e * (size_t)s->n_scenarios + (size_t)scenario;
                s->load[row * (size_t)s->n_sources + (size_t)source] = from[e];
                s->load_sum[(size_t)e * (size_t)s->n_sources + (size_t)source] += from[e];
                s->all[row] += from[e];
                s->total += from[e];
            }
        }
    }
}

static bl_status take_home(state *s, bl_error *err) {
    const bl_layer_placement *current = s->p->current;
    if (current == NULL)
        return BL_OK;
    BL_TRY(bl_holds_create(s->n_ranks, s->p->n_experts, &s->home, err));
    for (int rank = 0; rank < current->n_ranks; rank++) {
        for (int slot = current->begin[rank]; slot < current->begin[rank + 1]; slot++) {
            if (current->expert[slot] != BL_NO_EXPERT)
                bl_holds_set(&s->home, rank, current->expert[slot]);
        }
    }
    return BL_OK;
}

static bl_status state_create(const bl_problem *p, const bl_layer_placement *placement, state *s,
                              bl_error *err) {
    *s = (state){.p = p,
                 .n_slots = bl_layer_n_slots(placement),
                 .n_ranks = p->n_ranks,
                 .n_scenarios = p->n_scenarios,
                 .n_sources = p->sources->n_sources,
                 .n_active = bl_problem_active_ranks(p),
                 .max_moves = p->current != NULL && p->max_moves >= 0 ? p->max_moves : INT_MAX};
    BL_TRY(allocate(s, err));
    BL_TRY(take_home(s, err));
    take_loads(s);
    for (int rank = 0; rank < s->n_ranks; rank++) {
        for (int slot = placement->begin[rank]; slot < placement->begin[rank + 1]; slot++) {
            s->rank[slot] = rank;
            s->slot[slot] = placement->expert[slot];
            if (placement->expert[slot] == BL_NO_EXPERT)
                continue;
            add_copy(s, placement->expert[slot], rank);
            s->moves += is_move(s, rank, placement->expert[slot]);
        }
    }
    for (int e = 0; e < p->n_experts; e++)
        enter(s, e, 1.0);
    return BL_OK;
}

static double balance_of(const state *s) {
    double sum = 0.0;
    for (int scenario = 0; scenario < s->n_scenarios; scenario++) {
        const double *load = s->rank_load + (size_t)scenario * (size_t)s->n_ranks;
        double most = 0.0;
        for (int rank = 0; rank < s->n_ranks; rank++)
            most = load[rank] > most ? load[rank] : most;
        sum += most;
    }
    return s->total > 0.0 ? sum * s->n_active / s->total : 1.0;
}

/* ---- annealing ------------------------------------------------------------------------------- */

/* What one unit of balance above the limit costs, in parts of the rows that cross: at first placements
 * far out of balance may be gone through, at the end none of it pays. */
#define EXCESS_CHEAP 0.5
#define EXCESS_DEAR 20.0
/* Temperatures, in what a proposal usually costs here. */
#define PROBES 128
#define HOTTEST 0.3
#define COLDEST 2e-2
#define LOOK_EVERY 64

typedef struct annealer {
    state s;
    const bl_share_options *options;
    bl_rng rng;
    double unit; /* rows that crossed at first */
    double cost, temperature, excess_price;
    int32_t *best; /* least excess, then least value */
    double best_excess, best_value;
} annealer;

/* What is minimised, apart from the limit. */
static double value_of(const annealer *a) {
    const state *s = &a->s;
    return (a->options->aim == BL_AIM_BALANCE ? balance_of(s) : s->crossing / a->unit) +
           a->options->move_price * s->moves;
}

static double excess_of(const annealer *a) {
    return a->options->aim == BL_AIM_BALANCE
               ? 0.0
               : fmax(balance_of(&a->s) - a->options->limit * (1.0 + 1e-9), 0.0);
}

static double cost_of(const annealer *a) {
    return value_of(a) + a->excess_price * excess_of(a);
}

static void remember(annealer *a) {
    const double excess = excess_of(a), value = value_of(a);
    if (excess > a->best_excess || (excess == a->best_excess && value >= a->best_value - 1e-12))
        return;
    a->best_excess = excess;
    a->best_value = value;
    memcpy(a->best, a->s.slot, (size_t)a->s.n_slots * sizeof *a->best);
}

static bool draw(annealer *a, int *p, int *q, int *expert) {
    state *s = &a->s;
    *p = (int)bl_rng_below(&a->rng, (uint32_t)s->n_slots);
    const int mine = s->slot[*p];
    if (mine == BL_NO_EXPERT)
        return false;
    if (s->n_copies[mine] > 1 && bl_rng_below(&a->rng, 4) == 0) {
        *q = -1;
        *expert = (int)bl_rng_below(&a->rng, (uint32_t)s->p->n_experts);
        return bl_rules_may(s->p->rules, s->rank[*p], *expert) && !holds(s, *expert, s->rank[*p]);
    }
    *q = (int)bl_rng_below(&a->rng, (uint32_t)s->n_slots);
    *expert = s->slot[*q];
    return *expert != BL_NO_EXPERT && s->rank[*q] != s->rank[*p] &&
           bl_rules_may(s->p->rules, s->rank[*p], *expert) &&
           bl_rules_may(s->p->rules, s->rank[*q], mine) && !holds(s, *expert, s->rank[*p]) &&
           !holds(s, mine, s->rank[*q]);
}

/* A proposal carried out, with what it takes to undo it. */
typedef struct trial {
    int p, q, mine, theirs;
    double crossing;
} trial;

static bool carry_out(annealer *a, trial *t) {
    state *s = &a->s;
    if (!draw(a, &t->p, &t->q, &t->theirs))
        return false;
    t->mine = s->slot[t->p];
    t->crossing = s->crossing;
    memcpy(s->saved, s->rank_load, n_cells(s) * sizeof *s->saved);
    enter(s, t->mine, -1.0);
    enter(s, t->theirs, -1.0);
    put(s, t->p, t->theirs);
    if (t->q >= 0)
        put(s, t->q, t->mine);
    enter(s, t->mine, 1.0);
    enter(s, t->theirs, 1.0);
    return true;
}

static void take_back(annealer *a, const trial *t) {
    state *s = &a->s;
    double *swap = s->rank_load;
    if (t->q >= 0)
        put(s, t->q, t->theirs);
    put(s, t->p, t->mine);
    s->crossing = t->crossing;
    s->rank_load = s->saved;
    s->saved = swap;
}

static void propose(annealer *a) {
    const state *s = &a->s;
    trial t;
    if (!carry_out(a, &t))
        return;
    const double cost = cost_of(a), worse = cost - a->cost;
    const bool allowed =
        s->moves <= s->max_moves && keeps_domains(s, t.mine) && keeps_domains(s, t.theirs);
    if (!allowed || (worse > 0.0 && bl_rng_unit(&a->rng) >= exp(-worse / a->temperature))) {
        take_back(a, &t);
        return;
    }
    a->cost = cost;
    remember(a);
}

/* Mean of what proposals add, where they add something. */
static double usual_cost(annealer *a) {
    const double before = value_of(a);
    double sum = 0.0;
    int n = 0;
    for (int i = 0; i < PROBES; i++) {
        trial t;
        if (!carry_out(a, &t))
            continue;
        const double worse = value_of(a) - before;
        take_back(a, &t);
        sum += worse > 0.0 ? worse : 0.0;
        n += worse > 0.0;
    }
    return n > 0 ? sum / n : 1e-3;
}

static bl_status anneal(annealer *a) {
    const bl_share_options *o = a->options;
    const double unit = usual_cost(a), cooling = log(COLDEST / HOTTEST);
    const double rising = log(EXCESS_DEAR / EXCESS_CHEAP);
    const int64_t proposals = o->proposals > 0 ? o->proposals : BL_SHARE_PROPOSALS;
    const double start = bl_now_s();
    double done = 0.0;
    for (int64_t i = 0; done < 1.0; i++) {
        if (i % LOOK_EVERY == 0) {
            if (bl_interrupted())
                return BL_LIMIT;
            done =
                o->time_s > 0.0 ? (bl_now_s() - start) / o->time_s : (double)i / (double)proposals;
            a->temperature = unit * HOTTEST * exp(cooling * done);
            a->excess_price = EXCESS_CHEAP * exp(rising * done);
            a->cost = cost_of(a);
        }
        propose(a);
    }
    return BL_OK;
}

bl_status bl_share_crossing(const bl_problem *problem, const bl_layer_placement *placement,
                            double *out, bl_error *err) {
    state s;
    const bl_status st = state_create(problem, placement, &s, err);
    if (st >= 0)
        *out = s.total > 0.0 ? s.crossing / s.total : 0.0;
    state_free(&s);
    return st;
}

bl_status bl_share_search(const bl_problem *problem, const bl_share_options *options,
                          bl_layer_placement *placement, bl_error *err) {
    annealer a = {.options = options};
    bl_rng_seed(&a.rng, options->seed);
    bl_status st = state_create(problem, placement, &a.s, err);
    if (st >= 0)
        st = BL_CALLOC(a.best, a.s.n_slots, err);
    if (st >= 0 && a.s.total > 0.0) {
        a.unit = a.s.crossing > 0.0 ? a.s.crossing : 1.0;
        a.best_excess = a.best_value = INFINITY;
        remember(&a);
        st = anneal(&a);
        memcpy(placement->expert, a.best, (size_t)a.s.n_slots * sizeof *a.best);
    }
    free(a.best);
    state_free(&a.s);
    return st;
}
