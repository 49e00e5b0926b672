#include "planner/nodes.h"

#include "core/mem.h"
#include "core/split_local.h"
#include "core/progress.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MOST_NODES BL_LOCAL_MAX_NODES
#define MOST_K BL_LOCAL_MAX_TOP_K

/* ---- checks ---------------------------------------------------------------------------------- */

static size_t at(const bl_nodes_problem *p, int expert, int node) {
    return (size_t)expert * (size_t)p->n_nodes + (size_t)node;
}

bl_status bl_nodes_check(const bl_nodes_problem *p, const int *count, bl_error *err) {
    if (p->n_nodes < 1 || p->n_nodes > MOST_NODES || p->k < 1 || p->k > MOST_K)
        return bl_fail(err, BL_ERR_UNSUPPORTED,
                       "%d nodes and top-%d: at most %d nodes and top-%d can be planned",
                       p->n_nodes, p->k, MOST_NODES, MOST_K);
    for (int node = 0; node < p->n_nodes; node++) {
        int held = 0;
        for (int e = 0; e < p->n_experts; e++) {
            const int copies = count[at(p, e, node)];
            held += copies;
            if (copies < 0 || copies > p->ranks[node])
                return bl_fail(err, BL_ERR_RANGE, "%d copies of expert %d on %d ranks of node %d",
                               copies, e, p->ranks[node], node);
        }
        if (held != p->slots[node])
            return bl_fail(err, BL_ERR_SHAPE, "node %d holds %d copies in %d slots", node, held,
                           p->slots[node]);
    }
    for (int e = 0; e < p->n_experts; e++) {
        int copies = 0;
        for (int node = 0; node < p->n_nodes; node++)
            copies += count[at(p, e, node)];
        if (copies == 0)
            return bl_fail(err, BL_ERR_INFEASIBLE, "expert %d is on no node", e);
    }
    return BL_OK;
}

/* ---- one token ------------------------------------------------------------------------------- */

/* A token's visits, and the node that serves each of its experts: node[k]. */
static int serve(const bl_nodes_problem *p, const uint64_t *mask, size_t token, signed char *node) {
    const int32_t *id = p->id + token * (size_t)p->k;
    const uint64_t own = UINT64_C(1) << p->own[token];
    uint64_t need[MOST_K];
    int n = 0;
    for (int i = 0; i < p->k; i++) {
        if (id[i] >= 0 && !(mask[id[i]] & own))
            need[n++] = mask[id[i]];
    }
    const int from = (int)(token % (size_t)p->n_nodes);
    uint64_t others;
    const int visits = bl_local_cover(need, n, from, &others);
    for (int i = 0; i < p->k; i++) {
        if (id[i] < 0)
            node[i] = -1;
        else if (mask[id[i]] & own)
            node[i] = (signed char)p->own[token];
        else
            node[i] = (signed char)bl_local_first(mask[id[i]] & others, from);
    }
    return visits;
}

/* ---- the state of a search ------------------------------------------------------------------- */

typedef struct state {
    const bl_nodes_problem *p;
    uint64_t *mask;    /* [n_experts] nodes with a copy */
    int *count;        /* [n_experts][n_nodes] */
    int *copies;       /* [n_experts] over all nodes */
    int32_t *slot;     /* [all slots] expert; node n has begin[n] .. begin[n + 1] - 1 */
    int *begin, *node; /* [n_nodes + 1], [all slots] */
    int n_slots;
    int moves;    /* copies that a node has beyond those in force */
    double *rows; /* [n_experts][n_nodes] */
    int n_folds;
    double *node_rows;          /* [n_folds][n_nodes] */
    signed char *served;        /* [n_tokens][k] node */
    signed char *visits;        /* [n_tokens] */
    size_t *first, *token_of;   /* tokens of expert e: token_of[first[e] .. first[e + 1] - 1] */
    double remote, total, mean; /* mean rows of a rank */
    /* a proposal under trial: what the tokens it touches would do */
    size_t *touched;
    signed char *new_served, *new_visits; /* by index in touched */
    size_t n_touched;
    unsigned *stamp, now; /* [n_tokens] */
    double *new_rows;     /* [n_folds][n_nodes] */
} state;

static void state_free(state *s) {
    free(s->mask);
    free(s->count);
    free(s->copies);
    free(s->slot);
    free(s->begin);
    free(s->node);
    free(s->rows);
    free(s->node_rows);
    free(s->served);
    free(s->visits);
    free(s->first);
    free(s->token_of);
    free(s->touched);
    free(s->new_served);
    free(s->new_visits);
    free(s->stamp);
    free(s->new_rows);
}

static bl_status state_allocate(state *s, bl_error *err) {
    const bl_nodes_problem *p = s->p;
    const size_t cells = (size_t)p->n_experts * (size_t)p->n_nodes;
    const size_t ids = p->n_tokens * (size_t)p->k;
    BL_TRY(BL_CALLOC(s->mask, p->n_experts, err));
    BL_TRY(BL_CALLOC(s->count, cells, err));
    BL_TRY(BL_CALLOC(s->copies, p->n_experts, err));
    BL_TRY(BL_CALLOC(s->begin, p->n_nodes + 1, err));
    BL_TRY(BL_CALLOC(s->rows, cells, err));
    s->n_folds = p->fold != NULL ? p->n_folds : 1;
    BL_TRY(BL_CALLOC(s->node_rows, s->n_folds * p->n_nodes, err));
    BL_TRY(BL_CALLOC(s->new_rows, s->n_folds * p->n_nodes, err));
    BL_TRY(BL_CALLOC(s->served, ids, err));
    BL_TRY(BL_CALLOC(s->new_served, ids, err));
    BL_TRY(BL_CALLOC(s->visits, p->n_tokens, err));
    BL_TRY(BL_CALLOC(s->new_visits, p->n_tokens, err));
    BL_TRY(BL_CALLOC(s->touched, p->n_tokens, err));
    BL_TRY(BL_CALLOC(s->stamp, p->n_tokens, err));
    BL_TRY(BL_CALLOC(s->first, p->n_experts + 1, err));
    return BL_CALLOC(s->token_of, ids, err);
}

static bl_status set_slots(state *s, const int *count, bl_error *err) {
    const bl_nodes_problem *p = s->p;
    for (int node = 0; node < p->n_nodes; node++)
        s->begin[node + 1] = s->begin[node] + p->slots[node];
    s->n_slots = s->begin[p->n_nodes];
    BL_TRY(BL_CALLOC(s->slot, s->n_slots, err));
    BL_TRY(BL_CALLOC(s->node, s->n_slots, err));
    for (int node = 0, slot = 0; node < p->n_nodes; node++) {
        for (int e = 0; e < p->n_experts; e++) {
            const int copies = count[at(p, e, node)];
            s->count[at(p, e, node)] = copies;
            s->copies[e] += copies;
            if (p->home != NULL && copies > p->home[at(p, e, node)])
                s->moves += copies - p->home[at(p, e, node)];
            if (copies > 0)
                s->mask[e] |= UINT64_C(1) << node;
            for (int c = 0; c < copies; c++) {
                s->node[slot] = node;
                s->slot[slot++] = e;
            }
        }
    }
    return BL_OK;
}

static void index_tokens(state *s) {
    const bl_nodes_problem *p = s->p;
    for (size_t i = 0; i < p->n_tokens * (size_t)p->k; i++) {
        if (p->id[i] >= 0)
            s->first[p->id[i] + 1]++;
    }
    for (int e = 0; e < p->n_experts; e++)
        s->first[e + 1] += s->first[e];
    for (size_t i = 0; i < p->n_tokens * (size_t)p->k; i++) {
        if (p->id[i] >= 0)
            s->token_of[s->first[p->id[i]]++] = i / (size_t)p->k;
    }
    for (int e = p->n_experts; e > 0; e--)
        s->first[e] = s->first[e - 1];
    s->first[0] = 0;
}

static int fold_at(const bl_nodes_problem *p, size_t token) {
    return p->fold != NULL ? p->fold[token] * p->n_nodes : 0;
}

static void serve_all(state *s) {
    const bl_nodes_problem *p = s->p;
    int ranks = 0;
    for (size_t token = 0; token < p->n_tokens; token++) {
        signed char *node = s->served + token * (size_t)p->k;
        s->visits[token] = (signed char)serve(p, s->mask, token, node);
        s->remote += p->weight[token] * s->visits[token];
        for (int i = 0; i < p->k; i++) {
            if (node[i] < 0)
                continue;
            s->rows[at(p, p->id[token * (size_t)p->k + (size_t)i], node[i])] += p->weight[token];
            s->node_rows[fold_at(p, token) + node[i]] += p->weight[token];
            s->total += p->weight[token];
        }
    }
    for (int node = 0; node < p->n_nodes; node++)
        ranks += p->ranks[node];
    s->mean = ranks > 0 ? s->total / ranks : 0.0;
}

static bl_status state_create(const bl_nodes_problem *p, const int *count, state *s,
                              bl_error *err) {
    *s = (state){.p = p};
    BL_TRY(bl_nodes_check(p, count, err));
    BL_TRY(state_allocate(s, err));
    BL_TRY(set_slots(s, count, err));
    index_tokens(s);
    serve_all(s);
    return BL_OK;
}

static double balance_of(const state *s, const double *node_rows) {
    const bl_nodes_problem *p = s->p;
    double most = 0.0;
    if (s->mean <= 0.0)
        return 1.0;
    for (int node = 0; node < p->n_nodes; node++) {
        double rows = 0.0;
        for (int fold = 0; fold < s->n_folds; fold++)
            rows += node_rows[fold * p->n_nodes + node];
        if (p->ranks[node] > 0)
            most = fmax(most, rows / p->ranks[node]);
    }
    return most / s->mean;
}

/* How far the busiest node of each fold is above the mean, over all folds. */
static double scatter_of(const state *s, const double *node_rows) {
    const bl_nodes_problem *p = s->p;
    double sum = 0.0;
    if (s->mean <= 0.0)
        return 0.0;
    for (int fold = 0; fold < s->n_folds; fold++) {
        double most = 0.0;
        for (int node = 0; node < p->n_nodes; node++) {
            if (p->ranks[node] > 0)
                most = fmax(most, node_rows[fold * p->n_nodes + node] / p->ranks[node]);
        }
        sum += most;
    }
    return sum / s->mean - 1.0;
}

/* The heaviest copy, over the mean rows of a rank. */
static double heaviest(const state *s) {
    const bl_nodes_problem *p = s->p;
    double most = 0.0;
    for (size_t i = 0; s->mean > 0.0 && i < (size_t)p->n_experts * (size_t)p->n_nodes; i++) {
        if (s->count[i] > 0)
            most = fmax(most, s->rows[i] / s->count[i]);
    }
    return s->mean > 0.0 ? most / s->mean : 0.0;
}

/* Rows of every fold apart. */
static void add_fold_rows(const state *s, double *rows) {
    const bl_nodes_problem *p = s->p;
    const size_t cells = (size_t)p->n_experts * (size_t)p->n_nodes;
    memset(rows, 0, (size_t)s->n_folds * cells * sizeof *rows);
    for (size_t i = 0; i < p->n_tokens * (size_t)p->k; i++) {
        const size_t token = i / (size_t)p->k;
        const size_t fold = p->fold != NULL ? (size_t)p->fold[token] : 0;
        if (s->served[i] >= 0)
            rows[fold * cells + at(p, p->id[i], s->served[i])] += p->weight[token];
    }
}

bl_status bl_nodes_evaluate(const bl_nodes_problem *problem, const int *count, double *rows,
                            bl_nodes_score *out, bl_error *err) {
    state s;
    const bl_status st = state_create(problem, count, &s, err);
    if (st >= 0) {
        *out = (bl_nodes_score){s.remote, fmax(balance_of(&s, s.node_rows), heaviest(&s))};
        if (rows != NULL)
            add_fold_rows(&s, rows);
    }
    state_free(&s);
    return st;
}

/* ---- proposals ------------------------------------------------------------------------------- */

/* Put `expert` in a slot in place of another, in the books but for the tokens. */
static void put(state *s, int slot, int expert) {
    const bl_nodes_problem *p = s->p;
    const int node = s->node[slot], old = s->slot[slot];
    if (p->home != NULL)
        s->moves += (s->count[at(p, expert, node)] >= p->home[at(p, expert, node)]) -
                    (s->count[at(p, old, node)] > p->home[at(p, old, node)]);
    s->copies[old]--;
    s->copies[expert]++;
    if (--s->count[at(p, old, node)] == 0)
        s->mask[old] &= ~(UINT64_C(1) << node);
    if (s->count[at(p, expert, node)]++ == 0)
        s->mask[expert] |= UINT64_C(1) << node;
    s->slot[slot] = expert;
}

static void touch(state *s, int expert, double *remote) {
    const bl_nodes_problem *p = s->p;
    const size_t k = (size_t)p->k;
    for (size_t i = s->first[expert]; i < s->first[expert + 1]; i++) {
        const size_t token = s->token_of[i];
        if (s->stamp[token] == s->now)
            continue;
        s->stamp[token] = s->now;
        const size_t n = s->n_touched++;
        const int fold = fold_at(p, token);
        signed char *now = s->new_served + n * k;
        const signed char *before = s->served + token * k;
        s->touched[n] = token;
        s->new_visits[n] = (signed char)serve(p, s->mask, token, now);
        *remote += p->weight[token] * (s->new_visits[n] - s->visits[token]);
        for (size_t j = 0; j < k; j++) {
            if (now[j] == before[j])
                continue;
            s->new_rows[fold + before[j]] -= p->weight[token];
            s->new_rows[fold + now[j]] += p->weight[token];
        }
    }
}

/* What tokens would do after the books were changed for experts a and b. */
static void try_tokens(state *s, int a, int b, double *remote) {
    *remote = s->remote;
    s->n_touched = 0;
    s->now++;
    memcpy(s->new_rows, s->node_rows, (size_t)(s->n_folds * s->p->n_nodes) * sizeof *s->new_rows);
    touch(s, a, remote);
    touch(s, b, remote);
}

static void accept(state *s, double remote) {
    const bl_nodes_problem *p = s->p;
    const size_t k = (size_t)p->k;
    for (size_t n = 0; n < s->n_touched; n++) {
        const size_t token = s->touched[n];
        signed char *before = s->served + token * k;
        const signed char *now = s->new_served + n * k;
        for (size_t j = 0; j < k; j++) {
            if (now[j] == before[j])
                continue;
            s->rows[at(p, p->id[token * k + j], before[j])] -= p->weight[token];
            s->rows[at(p, p->id[token * k + j], now[j])] += p->weight[token];
        }
        memcpy(before, now, k);
        s->visits[token] = s->new_visits[n];
    }
    memcpy(s->node_rows, s->new_rows, (size_t)(s->n_folds * p->n_nodes) * sizeof *s->node_rows);
    s->remote = remote;
}

/* What one unit of balance above the limit costs, in parts of the rows that are remote. At first
 * placements far out of balance may be crossed, at the end none of it pays. */
#define EXCESS_CHEAP 0.5
#define EXCESS_DEAR 20.0

typedef struct annealer {
    state *s;
    bl_rng rng;
    double unit; /* rows of the first placement: cost 1 */
    double cost;
    double temperature, excess_price;
    /* the best so far */
    int32_t *best; /* [n_slots] */
    double best_value, best_excess;
} annealer;

static double excess_of(const state *s, const double *node_rows, double heavy) {
    const double over = fmax(balance_of(s, node_rows), heavy) - s->p->limit;
    return over > 0.0 ? over : 0.0;
}

static double cost_of(const annealer *a, double remote, const double *node_rows, double heavy) {
    const state *s = a->s;
    const double scatter = s->p->spread > 0.0 ? scatter_of(s, node_rows) : 0.0;
    return remote / a->unit + a->excess_price * excess_of(s, node_rows, heavy) +
           s->p->spread * scatter + s->p->move_price * s->moves;
}

static double cost_now(const annealer *a) {
    return cost_of(a, a->s->remote, a->s->node_rows, heaviest(a->s));
}

static void remember(annealer *a) {
    state *s = a->s;
    const double excess = excess_of(s, s->node_rows, heaviest(s));
    const double value = s->remote / a->unit + s->p->move_price * s->moves +
                         (s->p->spread > 0.0 ? s->p->spread * scatter_of(s, s->node_rows) : 0.0);
    const bool better = excess < a->best_excess - 1e-12 ||
                        (excess <= a->best_excess + 1e-12 && value < a->best_value - 1e-12);
    if (!better)
        return;
    a->best_value = value;
    a->best_excess = excess;
    memcpy(a->best, s->slot, (size_t)s->n_slots * sizeof *a->best);
}

static bool is_accepted(annealer *a, double cost) {
    const double worse = cost - a->cost;
    return worse <= 0.0 || bl_rng_unit(&a->rng) < exp(-worse / a->temperature);
}

/* Copies in two nodes change places, or a spare copy makes room for one of another expert. Returns
 * false when the rules forbid it. */
static bool draw(annealer *a, int *p, int *q, int *to_p, int *to_q) {
    state *s = a->s;
    const bl_nodes_problem *problem = s->p;
    *p = (int)bl_rng_below(&a->rng, (uint32_t)s->n_slots);
    *q = -1;
    const int mine = s->slot[*p], here = s->node[*p];
    if (s->copies[mine] > 1 && bl_rng_below(&a->rng, 3) == 0) {
        *to_p = (int)bl_rng_below(&a->rng, (uint32_t)problem->n_experts);
        return *to_p != mine && s->count[at(problem, *to_p, here)] < problem->ranks[here];
    }
    *q = (int)bl_rng_below(&a->rng, (uint32_t)s->n_slots);
    *to_p = s->slot[*q];
    *to_q = mine;
    const int there = s->node[*q];
    return there != here && *to_p != mine &&
           s->count[at(problem, *to_p, here)] < problem->ranks[here] &&
           s->count[at(problem, mine, there)] < problem->ranks[there];
}

/* A proposal under trial: the slots' experts before it, and the cost after it. */
typedef struct trial {
    int p, q, was_p, was_q;
    double remote, cost;
} trial;

static bool try_one(annealer *a, trial *t) {
    state *s = a->s;
    int to_p, to_q = -1;
    if (!draw(a, &t->p, &t->q, &to_p, &to_q))
        return false;
    t->was_p = s->slot[t->p];
    t->was_q = t->q >= 0 ? s->slot[t->q] : -1;
    put(s, t->p, to_p);
    if (t->q >= 0)
        put(s, t->q, to_q);
    try_tokens(s, t->was_p, to_p, &t->remote);
    t->cost = cost_of(a, t->remote, s->new_rows, 0.0);
    return true;
}

static void take_back(state *s, const trial *t) {
    if (t->q >= 0)
        put(s, t->q, t->was_q);
    put(s, t->p, t->was_p);
}

static void propose(annealer *a) {
    state *s = a->s;
    trial t;
    if (!try_one(a, &t))
        return;
    const bool far = s->p->home != NULL && s->p->max_moves >= 0 && s->moves > s->p->max_moves;
    if (far || !is_accepted(a, t.cost)) {
        take_back(s, &t);
        return;
    }
    accept(s, t.remote);
    a->cost = cost_now(a);
    remember(a);
}

/* Temperatures follow what proposals cost here: at first one that is as bad as most is taken now and
 * then, at the end only those that cost next to nothing. */
#define PROBES 128
#define HOTTEST 0.3
#define COLDEST 2e-3
#define LOOK_EVERY 64

/* Mean cost, in remote rows alone, of the proposals that cost something: what being out of balance costs
 * is a wall and no measure. */
static double usual_cost(annealer *a) {
    double sum = 0.0;
    int n = 0;
    for (int i = 0; i < PROBES; i++) {
        trial t;
        if (!try_one(a, &t))
            continue;
        take_back(a->s, &t);
        if (t.remote > a->s->remote) {
            sum += (t.remote - a->s->remote) / a->unit;
            n++;
        }
    }
    return n > 0 ? sum / n : 1e-3;
}

static bl_status anneal(annealer *a, int64_t proposals) {
    const double unit = usual_cost(a), cooling = log(COLDEST / HOTTEST);
    const double rising = log(EXCESS_DEAR / EXCESS_CHEAP);
    for (int64_t i = 0; i < proposals; i++) {
        if (i % LOOK_EVERY == 0) {
            if (bl_interrupted())
                return BL_LIMIT;
            const double done = (double)i / (double)proposals;
            a->temperature = unit * HOTTEST * exp(cooling * done);
            a->excess_price = EXCESS_CHEAP * exp(rising * done);
            a->cost = cost_now(a);
        }
        propose(a);
    }
    return BL_OK;
}

static bl_status search(state *s, const bl_nodes_options *options, int *count, bl_error *err) {
    const bl_nodes_problem *p = s->p;
    annealer a = {.s = s, .best_excess = INFINITY, .best_value = INFINITY};
    bl_rng_seed(&a.rng, options->seed);
    a.unit = s->remote > 0.0 ? s->remote : 1.0;
    a.excess_price = EXCESS_CHEAP;
    a.cost = cost_now(&a);
    BL_TRY(BL_CALLOC(a.best, s->n_slots, err));
    remember(&a);
    const bl_status st = p->n_nodes > 1 ? anneal(&a, options->proposals > 0 ? options->proposals
                                                                            : BL_NODES_PROPOSALS)
                                        : BL_OK;
    memset(count, 0, (size_t)p->n_experts * (size_t)p->n_nodes * sizeof *count);
    for (int slot = 0; slot < s->n_slots; slot++)
        count[at(p, a.best[slot], s->node[slot])]++;
    free(a.best);
    return st;
}

bl_status bl_nodes_search(const bl_nodes_problem *problem, const bl_nodes_options *options,
                          int *count, bl_nodes_score *out, bl_error *err) {
    state s;
    bl_status st = state_create(problem, count, &s, err);
    if (st >= 0)
        st = search(&s, options, count, err);
    state_free(&s);
    if (st < 0)
        return st;
    BL_TRY(bl_nodes_evaluate(problem, count, NULL, out, err));
    return st;
}
