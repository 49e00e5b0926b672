#include "planner/diff.h"

#include "core/mem.h"
#include "core/split.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

/* What every port has to carry. Domain figures are indexed [level * n_ranks + domain]: the domain
 * of level - 1 whose members meet others at `level`. */
typedef struct traffic {
    const bl_topology *topology;
    double *rank_out_s, *rank_in_s;             /* [n_ranks of the topology] */
    double *domain_out_bytes, *domain_in_bytes; /* [n_levels + 1][n_ranks] */
    double latency_s;                           /* the largest of any pair in use */
} traffic;

static void traffic_free(traffic *t) {
    free(t->rank_out_s);
    free(t->rank_in_s);
    free(t->domain_out_bytes);
    free(t->domain_in_bytes);
}

static bl_status traffic_create(const bl_topology *topology, traffic *out, bl_error *err) {
    traffic t = {.topology = topology};
    const size_t ranks = (size_t)topology->n_ranks, levels = (size_t)topology->n_levels + 1;
    bl_status st = BL_CALLOC(t.rank_out_s, ranks, err);
    if (st >= 0)
        st = BL_CALLOC(t.rank_in_s, ranks, err);
    if (st >= 0)
        st = BL_CALLOC(t.domain_out_bytes, ranks * levels, err);
    if (st >= 0)
        st = BL_CALLOC(t.domain_in_bytes, ranks * levels, err);
    if (st < 0)
        traffic_free(&t);
    else
        *out = t;
    return st;
}

static void traffic_add(traffic *t, int from, int to, double bytes) {
    const bl_topology *topology = t->topology;
    const int level = bl_topology_level(topology, from, to);
    const double seconds = bytes / bl_topology_bytes_per_s(topology, from, to);
    const double latency = bl_topology_latency_s(topology, from, to);
    t->rank_out_s[from] += seconds + topology->levels[level].message_s.value;
    t->rank_in_s[to] += seconds;
    t->latency_s = latency > t->latency_s ? latency : t->latency_s;
    if (level == 0)
        return;
    const size_t row = (size_t)level * (size_t)topology->n_ranks;
    t->domain_out_bytes[row + (size_t)bl_topology_domain(topology, level - 1, from)] += bytes;
    t->domain_in_bytes[row + (size_t)bl_topology_domain(topology, level - 1, to)] += bytes;
}

static double traffic_seconds(const traffic *t) {
    const bl_topology *topology = t->topology;
    double slowest = 0.0;
    for (int rank = 0; rank < topology->n_ranks; rank++)
        slowest = fmax(slowest, fmax(t->rank_out_s[rank], t->rank_in_s[rank]));
    for (int level = 1; level <= topology->n_levels; level++) {
        const bl_level *costs = &topology->levels[level];
        const size_t row = (size_t)level * (size_t)topology->n_ranks;
        for (size_t d = 0; d < (size_t)topology->levels[level - 1].n_domains; d++) {
            const double ports = costs->ports.value;
            slowest = fmax(slowest,
                           t->domain_out_bytes[row + d] / (ports * costs->out_bytes_per_s.value));
            slowest =
                fmax(slowest, t->domain_in_bytes[row + d] / (ports * costs->in_bytes_per_s.value));
        }
    }
    return slowest > 0.0 ? slowest + t->latency_s : 0.0;
}

/* Is source a better than b for a bundle to `rank`? */
static bool better_source(const traffic *t, const bl_layer_placement *to, int a, int b, int rank) {
    const bool a_leaves = to->begin[a + 1] == to->begin[a];
    const bool b_leaves = to->begin[b + 1] == to->begin[b];
    if (a_leaves != b_leaves)
        return b_leaves;
    const double a_rate = bl_topology_bytes_per_s(t->topology, a, rank);
    const double b_rate = bl_topology_bytes_per_s(t->topology, b, rank);
    if (a_rate != b_rate)
        return a_rate > b_rate;
    return t->rank_out_s[a] < t->rank_out_s[b];
}

static bl_status add_layer(traffic *t, const bl_layer_placement *from, const bl_layer_placement *to,
                           double bytes, bl_error *err) {
    bl_copies copies;
    BL_TRY(bl_copies_of(from, &copies, err));
    for (int rank = 0; rank < to->n_ranks; rank++) {
        for (int slot = to->begin[rank]; slot < to->begin[rank + 1]; slot++) {
            const int expert = to->expert[slot];
            if (expert == BL_NO_EXPERT || bl_layer_find(from, rank, expert) >= 0)
                continue;
            int source = -1;
            for (int c = copies.first[expert]; c < copies.first[expert + 1]; c++) {
                if (source < 0 || better_source(t, to, copies.rank[c], source, rank))
                    source = copies.rank[c];
            }
            if (source >= 0)
                traffic_add(t, source, rank, bytes);
        }
    }
    bl_copies_free(&copies);
    return BL_OK;
}

static bl_status price(const bl_placement *from, const bl_placement *to, size_t expert_bytes,
                       const bl_topology *topology, double *seconds, bl_error *err) {
    traffic t;
    BL_TRY(bl_ranks_fit(topology, to->n_ranks, err));
    BL_TRY(traffic_create(topology, &t, err));
    bl_status st = BL_OK;
    for (int l = 0; l < to->n_layers && st >= 0; l++)
        st = add_layer(&t, &from->layers[l], &to->layers[l], (double)expert_bytes, err);
    if (st >= 0)
        *seconds = traffic_seconds(&t);
    traffic_free(&t);
    return st;
}

bl_status bl_ranks_fit(const bl_topology *topology, int n_ranks, bl_error *err) {
    if (topology->n_ranks < n_ranks)
        return bl_fail(err, BL_ERR_SHAPE, "topology %s has %d ranks, but %d are needed",
                       topology->name, topology->n_ranks, n_ranks);
    return BL_OK;
}

bl_status bl_diff_of(const bl_placement *from, const bl_placement *to, size_t expert_bytes,
                     const bl_topology *topology, bl_diff *out, bl_error *err) {
    assert(from->n_layers == to->n_layers && from->n_ranks == to->n_ranks &&
           from->n_experts == to->n_experts);
    bl_diff made = {.n_layers = to->n_layers, .seconds = NAN};
    bl_status st = BL_CALLOC(made.layer, to->n_layers, err);
    if (st >= 0)
        st = BL_CALLOC(made.layer_moves, to->n_layers, err);
    for (int l = 0; l < to->n_layers && st >= 0; l++) {
        made.layer[l] = to->layers[l].layer;
        made.layer_moves[l] = bl_layer_moves(&from->layers[l], &to->layers[l]);
        made.moves += made.layer_moves[l];
    }
    made.bytes = (uint64_t)made.moves * expert_bytes;
    if (st >= 0 && topology != NULL && expert_bytes > 0)
        st = price(from, to, expert_bytes, topology, &made.seconds, err);
    if (st < 0)
        bl_diff_free(&made);
    else
        *out = made;
    return st;
}

void bl_diff_free(bl_diff *diff) {
    free(diff->layer);
    free(diff->layer_moves);
    *diff = (bl_diff){0};
}
