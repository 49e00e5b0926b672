/*
 * SGLang's {"rank_cost_matrix": [[0, 1, 4], [1, 0, 4], [4, 4, 0]]}: what it costs to send from one
 * rank (row) to another (column), without a unit.
 *
 * Without a unit a matrix tells order and ratios, and nothing else. The order makes the domains;
 * the ratios are taken as ratios of time, with the base's innermost level for the cheapest pair. A
 * cost of 0 between two ranks has no ratio: then only the order is used, and the base must have a
 * level for each cost that joins domains. The matrix does not tell hosts; each innermost domain is
 * assumed to be one.
 */
#include "topologies/import_source.h"

#include "core/mem.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct costs {
    int n;
    double *cost; /* [n][n], row = sender */
    int n_levels; /* distinct costs of pairs, ascending, the dearer direction counting */
    double level_cost[BL_MAX_LEVELS];
} costs;

static double cost_of(const costs *c, int from, int to) {
    return c->cost[(size_t)from * (size_t)c->n + (size_t)to];
}

static double pair_cost(const costs *c, int a, int b) {
    return fmax(cost_of(c, a, b), cost_of(c, b, a));
}

/* ---- the file ----------------------------------------------------------------------------- */

static bl_status read_rows(const bl_import *in, const json_t *rows, costs *c, bl_error *err) {
    const size_t n = json_array_size(rows);
    if (n < 2 || n > BL_IMPORT_MAX_RANKS)
        return bl_fail_at(err, BL_ERR_RANGE, bl_at(in->file),
                          "rank_cost_matrix has %zu rows, but must have 2 to %d", n,
                          BL_IMPORT_MAX_RANKS);
    c->n = (int)n;
    BL_TRY(BL_CALLOC(c->cost, n * n, err));
    for (size_t from = 0; from < n; from++) {
        const json_t *row = json_array_get(rows, from);
        if (!json_is_array(row) || json_array_size(row) != n)
            return bl_fail_at(err, BL_ERR_SHAPE, bl_at(in->file),
                              "rank_cost_matrix: row %zu has %zu entries for %zu ranks", from,
                              json_array_size(row), n);
        for (size_t to = 0; to < n; to++) {
            const json_t *item = json_array_get(row, to);
            const double cost = json_is_number(item) ? json_number_value(item) : (double)NAN;
            if (!(cost >= 0 && cost <= 1e12))
                return bl_fail_at(err, BL_ERR_RANGE, bl_at(in->file),
                                  "rank_cost_matrix: from rank %zu to %zu must be a number in "
                                  "[0, 1e12]",
                                  from, to);
            c->cost[from * n + to] = cost;
        }
    }
    for (int rank = 0; rank < c->n; rank++) {
        for (int to = 0; to < c->n; to++) {
            if (to != rank && cost_of(c, rank, rank) > cost_of(c, rank, to))
                return bl_fail_at(err, BL_ERR_RANGE, bl_at(in->file),
                                  "rank_cost_matrix: rank %d reaches rank %d for %g, but itself "
                                  "for %g; is it a matrix of bandwidths?",
                                  rank, to, cost_of(c, rank, to), cost_of(c, rank, rank));
        }
    }
    return BL_OK;
}

static bl_status read_file(const bl_import *in, costs *c, bl_error *err) {
    json_t *root;
    const json_t *rows;
    BL_TRY(bl_json_parse(in->text, in->bytes, in->file, &root, err));
    bl_status st = bl_json_array(root, "rank_cost_matrix", in->file, &rows, err);
    if (st >= 0)
        st = read_rows(in, rows, c, err);
    json_decref(root);
    return st;
}

/* ---- levels ------------------------------------------------------------------------------- */

static bl_status find_levels(const bl_import *in, costs *c, bl_error *err) {
    for (int a = 0; a < c->n; a++) {
        for (int b = 0; b < a; b++) {
            const double cost = pair_cost(c, a, b);
            int at = 0;
            while (at < c->n_levels && c->level_cost[at] < cost)
                at++;
            if (at < c->n_levels && c->level_cost[at] == cost)
                continue;
            if (c->n_levels == BL_MAX_LEVELS)
                return bl_fail_at(err, BL_ERR_UNSUPPORTED, bl_at(in->file),
                                  "more than %d different costs: domains cannot be told; round the "
                                  "costs to those of a kind of link",
                                  BL_MAX_LEVELS);
            memmove(&c->level_cost[at + 1], &c->level_cost[at],
                    (size_t)(c->n_levels - at) * sizeof *c->level_cost);
            c->level_cost[at] = cost;
            c->n_levels++;
        }
    }
    return BL_OK;
}

/* how[n][n]: 0 on the diagonal, else 1 + the index of the pair's level. */
static void rate_pairs(const costs *c, unsigned char *how) {
    for (int a = 0; a < c->n; a++) {
        for (int b = 0; b < c->n; b++) {
            int level = a == b ? 0 : 1;
            while (level > 0 && c->level_cost[level - 1] < pair_cost(c, a, b))
                level++;
            how[(size_t)a * (size_t)c->n + (size_t)b] = (unsigned char)level;
        }
    }
}

/* `cost` over the cheapest: that many times the latency, and as much less bandwidth. */
static bl_level scaled_level(const bl_level *base, double ratio) {
    bl_level level = *base;
    level.latency_s = (bl_figure){base->latency_s.value * ratio, BL_ASSUMED};
    level.out_bytes_per_s = (bl_figure){base->out_bytes_per_s.value / ratio, BL_ASSUMED};
    level.in_bytes_per_s = (bl_figure){base->in_bytes_per_s.value / ratio, BL_ASSUMED};
    level.message_s.source = BL_ASSUMED;
    level.ports = (bl_figure){1, BL_ASSUMED};
    return level;
}

static bl_status price_levels(bl_import *in, const costs *c, bl_topology *out, bl_error *err) {
    const bool zero = c->level_cost[0] == 0;
    if (zero && (in->options->base == NULL || in->base.n_levels != c->n_levels))
        return bl_fail_at(err, BL_ERR_USAGE, bl_at(in->file),
                          "a cost of 0 between different ranks has no ratio to others: name a "
                          "--base with %d level%s, one for each cost",
                          c->n_levels, c->n_levels == 1 ? "" : "s");
    for (int k = 1; k <= c->n_levels; k++) {
        const int n_domains = out->levels[k].n_domains;
        const double cost = c->level_cost[k - 1];
        out->levels[k] =
            zero ? in->base.levels[k] : scaled_level(&in->base.levels[1], cost / c->level_cost[0]);
        if (!zero)
            snprintf(out->levels[k].name, sizeof out->levels[k].name, "cost %.6g", cost);
        out->levels[k].n_domains = n_domains;
    }
    if (zero)
        bl_import_note(in,
                       "Costs have no unit and the cheapest is 0: they tell the domains, figures "
                       "are the base's, level by level.");
    else
        bl_import_note(in,
                       "Costs have no unit: the cheapest pair is given the base's level %s, "
                       "others are slower by the ratio of their costs.",
                       in->base.levels[1].name);
    return BL_OK;
}

static int largest_domain(const bl_topology *t, int level) {
    int most = 0;
    for (int first = 0; first < t->n_ranks; first++) {
        int size = 0;
        for (int rank = 0; rank < t->n_ranks; rank++)
            size += bl_topology_domain(t, level, rank) == bl_topology_domain(t, level, first);
        most = size > most ? size : most;
    }
    return most;
}

/* Every rank keeps a port of its own into all levels: a matrix of pairs does not tell sharing. */
static void set_ports(const costs *c, bl_topology *out) {
    for (int k = 2; k <= c->n_levels && c->level_cost[0] > 0; k++)
        out->levels[k].ports.value = largest_domain(out, k - 1);
}

/* Pairs that cost otherwise than their domain's dearest link. */
static bl_status set_pairs(bl_import *in, const costs *c, bl_topology *out, bl_error *err) {
    int differing = 0;
    for (int from = 0; from < c->n; from++) {
        for (int to = 0; to < c->n; to++) {
            const int level = bl_topology_level(out, from, to);
            if (from == to || cost_of(c, from, to) == c->level_cost[level - 1])
                continue;
            if (c->level_cost[0] == 0 || cost_of(c, from, to) == 0)
                return bl_fail_at(err, BL_ERR_UNSUPPORTED, bl_at(in->file),
                                  "from rank %d to %d costs %g, unlike their domain (%g), and as "
                                  "there are costs of 0 it has no figure",
                                  from, to, cost_of(c, from, to), c->level_cost[level - 1]);
            if (out->pair_latency_s == NULL) {
                BL_TRY(bl_import_make_pairs(c->n, &out->pair_latency_s, err));
                BL_TRY(bl_import_make_pairs(c->n, &out->pair_bytes_per_s, err));
                out->pair_latency_source = out->pair_bytes_source = BL_ASSUMED;
            }
            const bl_level scaled =
                scaled_level(&in->base.levels[1], cost_of(c, from, to) / c->level_cost[0]);
            const size_t at = (size_t)from * (size_t)c->n + (size_t)to;
            out->pair_latency_s[at] = scaled.latency_s.value;
            out->pair_bytes_per_s[at] = scaled.out_bytes_per_s.value;
            differing++;
        }
    }
    if (differing > 0)
        bl_import_note(in, "%d directions cost otherwise than their domain.", differing);
    return BL_OK;
}

/* A level for each cost that joins domains; level_cost keeps those. */
static bl_status add_levels(costs *c, const unsigned char *how, int *labels, int *queue,
                            bl_topology *out, bl_error *err) {
    int kept = 0, n_domains = c->n;
    for (int k = 1; k <= c->n_levels; k++) {
        int n = 0;
        bl_import_close(how, c->n, k, labels, queue);
        for (int rank = 0; rank < c->n; rank++)
            n += labels[rank] == rank;
        if (n == n_domains)
            continue;
        n_domains = n;
        c->level_cost[kept++] = c->level_cost[k - 1];
        BL_TRY(bl_import_set_domains(out, kept, labels, err));
    }
    c->n_levels = out->n_levels = kept;
    return BL_OK;
}

static bl_status make(bl_import *in, costs *c, unsigned char *how, int *labels, int *queue,
                      bl_topology *out, bl_error *err) {
    bool named;
    BL_TRY(find_levels(in, c, err));
    rate_pairs(c, how);
    BL_TRY(bl_import_open_base(in, NULL, &named, err));
    BL_TRY(bl_import_make(in, c->n, c->n_levels, out, err));
    BL_TRY(add_levels(c, how, labels, queue, out, err));
    BL_TRY(price_levels(in, c, out, err));
    set_ports(c, out);
    BL_TRY(set_pairs(in, c, out, err));
    bl_import_note(in,
                   "The matrix does not tell hosts: each domain of the cheapest cost is taken as "
                   "one.");
    return bl_import_set_hosts(out, out->domain + c->n, out->levels[1].n_domains, err);
}

bl_status bl_import_cost_matrix(bl_import *in, bl_topology *out, bl_error *err) {
    costs c = {0};
    unsigned char *how = NULL;
    int *labels = NULL, *queue = NULL;
    bl_status st = read_file(in, &c, err);
    if (st >= 0)
        st = BL_CALLOC(how, (size_t)c.n * (size_t)c.n, err);
    if (st >= 0)
        st = BL_CALLOC(labels, c.n, err);
    if (st >= 0)
        st = BL_CALLOC(queue, c.n, err);
    if (st >= 0)
        st = make(in, &c, how, labels, queue, out, err);
    free(how);
    free(labels);
    free(queue);
    free(c.cost);
    return st;
}
