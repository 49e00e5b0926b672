#include "planner/traffic.h"

#include "core/mem.h"
#include "core/split_local.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- the meter ------------------------------------------------------------------------------- */

/* As bl_dispatch_gateway() has it, for all sources at once: clusters of thousands of ranks. */
static bl_status find_gateways(bl_traffic *t, bl_error *err) {
    const int *node = t->sites->node, n_nodes = t->sites->n_nodes;
    int *size, *place = NULL, *first = NULL, *member = NULL;
    bl_status st;
    BL_TRY(BL_CALLOC(size, n_nodes, err));
    BL_TRY_GOTO(st, BL_CALLOC(first, n_nodes + 1, err), done);
    BL_TRY_GOTO(st, BL_CALLOC(place, t->n_ranks, err), done);
    BL_TRY_GOTO(st, BL_CALLOC(member, t->n_ranks, err), done);
    for (int rank = 0; rank < t->n_ranks; rank++)
        place[rank] = size[node[rank]]++;
    for (int n = 0; n < n_nodes; n++)
        first[n + 1] = first[n] + size[n];
    for (int rank = 0; rank < t->n_ranks; rank++)
        member[first[node[rank]] + place[rank]] = rank;
    for (int rank = 0; rank < t->n_ranks; rank++) {
        int *gateway = t->gateway + (size_t)rank * (size_t)n_nodes;
        for (int n = 0; n < n_nodes; n++)
            gateway[n] = n == node[rank] ? rank : member[first[n] + place[rank] % size[n]];
    }
done:
    free(size);
    free(first);
    free(place);
    free(member);
    return st;
}

bl_status bl_traffic_create(const bl_topology *topology, const bl_sites *sites,
                            bl_dispatch dispatch, bl_dispatch combine, bl_traffic *out,
                            bl_error *err) {
    const size_t n = (size_t)sites->n_ranks, nodes = (size_t)sites->n_nodes;
    bl_traffic made = {.topology = topology,
                       .sites = sites,
                       .dispatch_mode = dispatch,
                       .combine_mode = combine,
                       .n_ranks = sites->n_ranks};
    if (combine == BL_DISPATCH_ALLGATHER)
        return bl_fail(err, BL_ERR_USAGE, "there is no combine by allgather");
    if (BL_CALLOC(made.dispatch, n * n, err) < 0 || BL_CALLOC(made.combine, n * n, err) < 0 ||
        BL_CALLOC(made.gateway, n * nodes, err) < 0 ||
        BL_CALLOC(made.scratch, n + nodes + nodes, err) < 0) {
        bl_traffic_free(&made);
        return BL_ERR_NOMEM;
    }
    const bl_status st = find_gateways(&made, err);
    if (st < 0) {
        bl_traffic_free(&made);
        return st;
    }
    *out = made;
    return BL_OK;
}

void bl_traffic_free(bl_traffic *traffic) {
    free(traffic->dispatch);
    free(traffic->combine);
    free(traffic->gateway);
    free(traffic->scratch);
    *traffic = (bl_traffic){0};
}

void bl_traffic_clear(bl_traffic *traffic) {
    const size_t cells = (size_t)traffic->n_ranks * (size_t)traffic->n_ranks;
    memset(traffic->dispatch, 0, cells * sizeof *traffic->dispatch);
    memset(traffic->combine, 0, cells * sizeof *traffic->combine);
    traffic->tokens = traffic->remote_nodes = 0.0;
}

bool bl_traffic_needs_tokens(bl_dispatch dispatch, bl_dispatch combine) {
    return dispatch == BL_DISPATCH_DEDUP_RANK || dispatch == BL_DISPATCH_DEDUP_NODE ||
           combine != BL_DISPATCH_ASSIGNMENT;
}

void bl_traffic_levels(const bl_traffic *traffic, double dispatch[BL_MAX_LEVELS + 1],
                       double combine[BL_MAX_LEVELS + 1]) {
    for (int level = 0; level <= BL_MAX_LEVELS; level++)
        dispatch[level] = combine[level] = 0.0;
    for (int from = 0; from < traffic->n_ranks; from++) {
        for (int to = 0; to < traffic->n_ranks; to++) {
            const int level = bl_topology_level(traffic->topology, from, to);
            const size_t cell = (size_t)from * (size_t)traffic->n_ranks + (size_t)to;
            dispatch[level] += traffic->dispatch[cell];
            combine[level] += traffic->combine[cell];
        }
    }
}

/* Rows and seconds of every port at one level: [domain of level - 1][sends, receives]. A rank's own port
 * carries one pair after another, each at the pair's bandwidth. */
static void add_pairs(const bl_traffic *t, const double *rows, double row_bytes, int level,
                      bl_port *ports) {
    const bl_level *costs = &t->topology->levels[level];
    const double sent_s = row_bytes / (costs->out_bytes_per_s.value * costs->ports.value);
    const double received_s = row_bytes / (costs->in_bytes_per_s.value * costs->ports.value);
    for (int from = 0; from < t->n_ranks; from++) {
        for (int to = 0; to < t->n_ranks; to++) {
            const double moved = rows[(size_t)from * (size_t)t->n_ranks + (size_t)to];
            if (moved <= 0.0 || bl_topology_level(t->topology, from, to) != level)
                continue;
            const double pair_s =
                level == 1 ? row_bytes / bl_topology_bytes_per_s(t->topology, from, to) : 0.0;
            bl_port *out = &ports[2 * bl_topology_domain(t->topology, level - 1, from)];
            bl_port *in = &ports[2 * bl_topology_domain(t->topology, level - 1, to) + 1];
            out->rows += moved;
            out->seconds += moved * (level == 1 ? pair_s : sent_s);
            in->rows += moved;
            in->seconds += moved * (level == 1 ? pair_s : received_s);
        }
    }
}

bl_status bl_traffic_busiest(const bl_traffic *traffic, const double *rows, double row_bytes,
                             bl_port *out, bl_error *err) {
    bl_port busiest = {.level = 1}, *ports;
    BL_TRY(BL_CALLOC(ports, 2 * (size_t)traffic->n_ranks, err));
    for (int level = 1; level <= traffic->topology->n_levels; level++) {
        for (int i = 0; i < 2 * traffic->n_ranks; i++)
            ports[i] = (bl_port){.level = level, .domain = i / 2, .receives = i % 2 != 0};
        add_pairs(traffic, rows, row_bytes, level, ports);
        for (int i = 0; i < 2 * traffic->n_ranks; i++) {
            if (ports[i].seconds > busiest.seconds)
                busiest = ports[i];
        }
    }
    free(ports);
    *out = busiest;
    return BL_OK;
}

/* ---- one token ------------------------------------------------------------------------------- */

/* A token's experts are served on ranks with certain probabilities: what its modes send. */
typedef struct served {
    int source;
    double weight;
    double *miss;      /* [n_ranks] chance that a rank does not serve it */
    double *miss_node; /* [n_nodes] the same for nodes */
    double *on_node;   /* [n_nodes] one expert's share */
} served;

static void token_begin(bl_traffic *t, int source, double weight, served *out) {
    *out = (served){.source = source,
                    .weight = weight,
                    .miss = t->scratch,
                    .miss_node = t->scratch + t->n_ranks,
                    .on_node = t->scratch + t->n_ranks + t->sites->n_nodes};
    for (int rank = 0; rank < t->n_ranks; rank++)
        out->miss[rank] = 1.0;
    for (int node = 0; node < t->sites->n_nodes; node++)
        out->miss_node[node] = 1.0;
}

/* Rows of one expert by assignment. */
static void add_pair(bl_traffic *t, int source, int rank, double rows) {
    const size_t there = (size_t)source * (size_t)t->n_ranks + (size_t)rank;
    const size_t back = (size_t)rank * (size_t)t->n_ranks + (size_t)source;
    if (t->dispatch_mode == BL_DISPATCH_ASSIGNMENT)
        t->dispatch[there] += rows;
    if (t->combine_mode == BL_DISPATCH_ASSIGNMENT)
        t->combine[back] += rows;
}

static void add_matrix(const bl_traffic *t, double *matrix, bool back, int from, int to,
                       double rows) {
    const int sender = back ? to : from, receiver = back ? from : to;
    matrix[(size_t)sender * (size_t)t->n_ranks + (size_t)receiver] += rows;
}

static void add_dedup_rank(const bl_traffic *t, const served *token, double *matrix, bool back) {
    for (int rank = 0; rank < t->n_ranks; rank++)
        add_matrix(t, matrix, back, token->source, rank, token->weight * (1.0 - token->miss[rank]));
}

static void add_dedup_node(const bl_traffic *t, const served *token, double *matrix, bool back) {
    const int own = t->sites->node[token->source], n_nodes = t->sites->n_nodes;
    const int *gateway = t->gateway + (size_t)token->source * (size_t)n_nodes;
    for (int node = 0; node < n_nodes; node++) {
        if (node != own)
            add_matrix(t, matrix, back, token->source, gateway[node],
                       token->weight * (1.0 - token->miss_node[node]));
    }
    for (int rank = 0; rank < t->n_ranks; rank++) {
        const int node = t->sites->node[rank];
        if (rank != gateway[node] || node == own)
            add_matrix(t, matrix, back, gateway[node], rank,
                       token->weight * (1.0 - token->miss[rank]));
    }
}

static void add_allgather(bl_traffic *t, int source, double tokens) {
    for (int rank = 0; rank < t->n_ranks; rank++) {
        if (rank != source)
            t->dispatch[(size_t)source * (size_t)t->n_ranks + (size_t)rank] += tokens;
    }
}

static void token_end(bl_traffic *t, const served *token) {
    for (int direction = 0; direction < 2; direction++) {
        const bl_dispatch mode = direction == 0 ? t->dispatch_mode : t->combine_mode;
        double *matrix = direction == 0 ? t->dispatch : t->combine;
        if (mode == BL_DISPATCH_DEDUP_RANK)
            add_dedup_rank(t, token, matrix, direction == 1);
        else if (mode == BL_DISPATCH_DEDUP_NODE)
            add_dedup_node(t, token, matrix, direction == 1);
    }
    t->tokens += token->weight;
    for (int node = 0; node < t->sites->n_nodes; node++) {
        if (node != t->sites->node[token->source])
            t->remote_nodes += token->weight * (1.0 - token->miss_node[node]);
    }
}

/* ---- rules at work --------------------------------------------------------------------------- */

struct bl_source_split {
    const bl_layer_placement *placement;
    const bl_sites *sites;
    bl_rule rule;
    int n_sources, n_slots;
    bl_copies copies;
    double *share; /* [n_sources][n_slots], or [n_slots] where all sources are alike */
    bool alike;
    bl_local_split *local; /* of BL_RULE_LOCAL, else NULL */
};

static const double *shares_of(const bl_source_split *split, int source) {
    return split->share + (split->alike ? 0 : (size_t)source * (size_t)split->n_slots);
}

static bl_status set_rule(bl_source_split *split, const double *share, bl_error *err) {
    if (split->rule == BL_RULE_LOCAL)
        return bl_local_split_create(split->placement, split->sites->node, &split->local, err);
    split->alike = split->rule != BL_RULE_NEAREST && split->rule != BL_RULE_FIXED;
    size_t cells;
    if (!bl_size_mul((size_t)split->n_slots, split->alike ? 1 : (size_t)split->n_sources, &cells))
        return bl_fail(err, BL_ERR_NOMEM, "out of memory");
    BL_TRY(BL_CALLOC(split->share, cells, err));
    if (split->rule == BL_RULE_EVEN)
        bl_split_even_shares(split->placement, &split->copies, split->share);
    else if (!split->alike)
        for (int source = 0; source < split->n_sources; source++)
            bl_split_source_shares(split->rule, split->placement, &split->copies,
                                   split->sites->host, source,
                                   split->share + (size_t)source * (size_t)split->n_slots);
    else if (share != NULL)
        bl_source_split_set_shares(split, share);
    return BL_OK;
}

bl_status bl_source_split_create(const bl_layer_placement *placement, bl_rule rule,
                                 const double *share, const bl_sites *sites, int n_sources,
                                 bl_source_split **out, bl_error *err) {
    bl_source_split *split;
    BL_TRY(BL_CALLOC(split, 1, err));
    split->placement = placement;
    split->sites = sites;
    split->rule = rule;
    split->n_sources = n_sources;
    split->n_slots = bl_layer_n_slots(placement);
    bl_status st = bl_copies_of(placement, &split->copies, err);
    if (st >= 0)
        st = set_rule(split, share, err);
    if (st < 0)
        bl_source_split_free(split);
    else
        *out = split;
    return st;
}

void bl_source_split_free(bl_source_split *split) {
    if (split == NULL)
        return;
    bl_copies_free(&split->copies);
    free(split->share);
    bl_local_split_free(split->local);
    free(split);
}

void bl_source_split_set_shares(bl_source_split *split, const double *share) {
    memcpy(split->share, share, (size_t)split->n_slots * sizeof *share);
}

/* Rows by assignment, from counts. */
static void rows_from_counts(const bl_source_split *split, const bl_sources *sources, int group,
                             double *slot_rows, bl_traffic *traffic) {
    const bl_copies *copies = &split->copies;
    for (int source = 0; source < sources->n_sources; source++) {
        const double *load = bl_sources_load(sources, group, source);
        const double *share = shares_of(split, source);
        double all = 0.0;
        for (int e = 0; e < sources->n_experts; e++) {
            all += load[e];
            for (int i = copies->first[e]; load[e] > 0.0 && i < copies->first[e + 1]; i++) {
                const double rows = share[copies->slot[i]] * load[e];
                slot_rows[copies->slot[i]] += rows;
                if (traffic != NULL)
                    add_pair(traffic, source, copies->rank[i], rows);
            }
        }
        if (traffic != NULL && traffic->dispatch_mode == BL_DISPATCH_ALLGATHER)
            add_allgather(traffic, source, all / sources->k);
    }
}

/* Multiply the chances of one expert's copies into the token's. */
static void token_expert(const bl_traffic *t, const bl_source_split *split, const double *share,
                         int expert, served *token) {
    const bl_copies *copies = &split->copies;
    const int first = copies->first[expert], end = copies->first[expert + 1];
    for (int i = first; i < end; i++)
        token->on_node[t->sites->node[copies->rank[i]]] = 0.0;
    for (int i = first; i < end; i++) {
        token->miss[copies->rank[i]] *= 1.0 - share[copies->slot[i]];
        token->on_node[t->sites->node[copies->rank[i]]] += share[copies->slot[i]];
    }
    for (int i = first; i < end; i++) {
        const int node = t->sites->node[copies->rank[i]];
        token->miss_node[node] *= 1.0 - fmin(token->on_node[node], 1.0);
        token->on_node[node] = 0.0; /* once per node */
    }
}

static void tokens_by_share(const bl_source_split *split, const bl_sources *sources, int group,
                            bl_traffic *traffic) {
    const double weight = sources->weight * sources->scale[group];
    for (size_t i = sources->first[group]; i < sources->first[group + 1]; i++) {
        served token;
        const int32_t *id = sources->id + i * (size_t)sources->k;
        const double *share = shares_of(split, sources->source[i]);
        token_begin(traffic, sources->source[i], weight, &token);
        for (int slot = 0; slot < sources->k; slot++) {
            if (id[slot] >= 0)
                token_expert(traffic, split, share, id[slot], &token);
        }
        token_end(traffic, &token);
    }
}

/* One token of the rule local: where it is served is certain. */
static void add_served(const bl_source_split *split, bl_traffic *traffic, int source,
                       const int *slot, int k, double weight) {
    served token;
    token_begin(traffic, source, weight, &token);
    for (int i = 0; i < k; i++) {
        if (slot[i] < 0)
            continue;
        const int rank = bl_layer_rank_of(split->placement, slot[i]);
        token.miss[rank] = 0.0;
        token.miss_node[split->sites->node[rank]] = 0.0;
        add_pair(traffic, source, rank, weight);
    }
    token_end(traffic, &token);
    if (traffic->dispatch_mode == BL_DISPATCH_ALLGATHER)
        add_allgather(traffic, source, weight);
}

static void tokens_locally(const bl_source_split *split, const bl_sources *sources, int group,
                           double *slot_rows, bl_traffic *traffic) {
    const double weight = sources->weight * sources->scale[group];
    int slot[BL_LOCAL_MAX_TOP_K];
    for (size_t i = sources->first[group]; i < sources->first[group + 1]; i++) {
        if (i == sources->first[group] || sources->source[i] != sources->source[i - 1] ||
            sources->step[i] != sources->step[i - 1])
            bl_local_split_begin(split->local, sources->source[i]);
        bl_local_split_token(split->local, sources->id + i * (size_t)sources->k, sources->k, slot);
        for (int j = 0; j < sources->k; j++) {
            if (slot[j] >= 0)
                slot_rows[slot[j]] += weight;
        }
        if (traffic != NULL)
            add_served(split, traffic, sources->source[i], slot, sources->k, weight);
    }
}

bl_status bl_source_split_rows(bl_source_split *split, const bl_sources *sources, int group,
                               double *slot_rows, bl_traffic *traffic, bl_error *err) {
    for (int slot = 0; slot < split->n_slots; slot++)
        slot_rows[slot] = 0.0;
    if (split->rule == BL_RULE_LOCAL) {
        if (sources->k > BL_LOCAL_MAX_TOP_K)
            return bl_fail(err, BL_ERR_UNSUPPORTED,
                           "the split rule 'local' is for at most top-%d, not top-%d",
                           BL_LOCAL_MAX_TOP_K, sources->k);
        BL_TRY(bl_sources_need_tokens(sources, err));
        tokens_locally(split, sources, group, slot_rows, traffic);
        return BL_OK;
    }
    if (traffic != NULL && bl_traffic_needs_tokens(traffic->dispatch_mode, traffic->combine_mode))
        BL_TRY(bl_sources_need_tokens(sources, err));
    rows_from_counts(split, sources, group, slot_rows, traffic);
    if (traffic != NULL)
        tokens_by_share(split, sources, group, traffic);
    return BL_OK;
}
