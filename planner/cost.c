#include "planner/cost.h"

#include "core/mem.h"
#include "planner/diff.h"

#include <math.h>
#include <stdlib.h>

struct bl_cost {
    const bl_topology *topology;
    bl_cost_rates rates;
    /* what rates borrows */
    double *weights_s, *row_s, *in_s, *out_s;
    int *port_of;
    bool *apart;
    double dispatch_bytes, combine_bytes; /* of one row */
    double *attention_read_s;             /* [n_ranks] reading a layer's attention */
    double *attention_token_s;            /* [n_ranks] multiplying one token with it */
    double evenly_s; /* of a byte of every rank to every rank: as many rows as ranks on each */
};

/* Rows come evenly from all ranks, so a byte that rank g receives costs the mean over the senders
 * of one over the pair's bandwidth; nothing to itself. */
static void price_ranks(bl_cost *cost, const bl_model *model) {
    const bl_topology *t = cost->topology;
    const int n_ranks = cost->rates.n_ranks;
    const double flop = 6.0 * model->hidden_size * model->moe_intermediate_size;
    double fixed_s = 0.0;
    for (int g = 0; g < n_ranks; g++) {
        const bl_device *device = bl_topology_device(t, g);
        cost->weights_s[g] = (double)model->expert_bytes / device->memory_bytes_per_s.value;
        cost->row_s[g] = flop / bl_device_flop_per_s(device, model->weight_format);
        cost->apart[g] = device->reads_apart;
        double latency = 0.0, messages = 0.0;
        for (int s = 0; s < n_ranks; s++) {
            if (s == g)
                continue;
            cost->in_s[g] += 1.0 / bl_topology_bytes_per_s(t, s, g) / n_ranks;
            cost->out_s[g] += 1.0 / bl_topology_bytes_per_s(t, g, s) / n_ranks;
            latency = fmax(latency, bl_topology_latency_s(t, g, s));
            messages += t->levels[bl_topology_level(t, g, s)].message_s.value;
        }
        fixed_s = fmax(fixed_s, latency + messages);
    }
    cost->rates.fixed_s = 2.0 * fixed_s;
}

/* Attention as its weights, one layer's part of them: bytes as planner/size.h assumes them. */
static void price_attention(bl_cost *cost, const bl_model *model) {
    const double weights = model->n_layers > 0 ? model->parameters.attention / model->n_layers : 0;
    const double bytes =
        model->weight_format == BL_WEIGHTS_F32 ? 4.0
        : model->weight_format == BL_WEIGHTS_FP8 || model->weight_format == BL_WEIGHTS_FP8_BLOCK
            ? 1.0
            : 2.0;
    for (int g = 0; g < cost->rates.n_ranks; g++) {
        const bl_device *device = bl_topology_device(cost->topology, g);
        const bl_weight_format format = bytes == 1.0 ? model->weight_format : BL_WEIGHTS_BF16;
        cost->attention_read_s[g] = weights * bytes / device->memory_bytes_per_s.value;
        cost->attention_token_s[g] = 2.0 * weights / bl_device_flop_per_s(device, format);
    }
}

/* Of the rows of a domain d inside D, those born in D outside d cross the ports of d. A domain that
 * is a rank by itself shares the rank's own port: the slower of the two counts. */
static bl_status price_domains(bl_cost *cost, bl_error *err) {
    const bl_topology *t = cost->topology;
    const int n_ranks = cost->rates.n_ranks;
    int *inner, *outer;
    BL_TRY(BL_CALLOC(inner, n_ranks, err));
    if (BL_CALLOC(outer, n_ranks, err) < 0) {
        free(inner);
        return BL_ERR_NOMEM;
    }
    for (int level = 1; level <= t->n_levels; level++) {
        const bl_level *costs = &t->levels[level];
        const int first = level == 1 ? 0 : cost->rates.n_ports;
        for (int g = 0; g < n_ranks; g++)
            inner[g] = outer[g] = 0;
        for (int g = 0; g < n_ranks; g++) {
            inner[bl_topology_domain(t, level - 1, g)]++;
            outer[bl_topology_domain(t, level, g)]++;
        }
        int n_domains = 0;
        for (int g = 0; g < n_ranks; g++) {
            const int d = level == 1 ? g : bl_topology_domain(t, level - 1, g);
            const double crossing =
                outer[bl_topology_domain(t, level, g)] - inner[bl_topology_domain(t, level - 1, g)];
            const double per_port = crossing / n_ranks / costs->ports.value;
            double *in_s = &cost->in_s[first + d], *out_s = &cost->out_s[first + d];
            *in_s = fmax(*in_s, per_port / costs->in_bytes_per_s.value);
            *out_s = fmax(*out_s, per_port / costs->out_bytes_per_s.value);
            n_domains = d + 1 > n_domains ? d + 1 : n_domains;
            if (level > 1)
                cost->port_of[(size_t)(level - 2) * (size_t)n_ranks + (size_t)g] = first + d;
        }
        cost->rates.n_ports = first + n_domains;
    }
    free(inner);
    free(outer);
    return BL_OK;
}

static bl_status allocate(bl_cost *cost, bl_error *err) {
    const int n = cost->rates.n_ranks, n_levels = cost->topology->n_levels;
    const size_t ports = (size_t)n * (size_t)(n_levels + 1);
    BL_TRY(BL_CALLOC(cost->weights_s, n, err));
    BL_TRY(BL_CALLOC(cost->row_s, n, err));
    BL_TRY(BL_CALLOC(cost->apart, n, err));
    BL_TRY(BL_CALLOC(cost->in_s, ports, err));
    BL_TRY(BL_CALLOC(cost->out_s, ports, err));
    BL_TRY(BL_CALLOC(cost->port_of, ports, err));
    BL_TRY(BL_CALLOC(cost->attention_read_s, n, err));
    BL_TRY(BL_CALLOC(cost->attention_token_s, n, err));
    cost->rates.weights_s = cost->weights_s;
    cost->rates.row_s = cost->row_s;
    cost->rates.apart = cost->apart;
    cost->rates.in_s = cost->in_s;
    cost->rates.out_s = cost->out_s;
    cost->rates.port_of = cost->port_of;
    cost->rates.n_ports = n;
    cost->rates.n_groupings = n_levels > 1 ? n_levels - 1 : 0;
    return BL_OK;
}

/* From seconds per byte to seconds per row. */
static void price_rows(bl_cost *cost) {
    double in_s = 0.0, out_s = 0.0;
    const bl_cost_rates *r = &cost->rates;
    for (int port = 0; port < r->n_ports; port++) {
        int ranks = port < r->n_ranks;
        for (int i = 0; i < r->n_groupings * r->n_ranks; i++)
            ranks += r->port_of[i] == port;
        in_s = fmax(in_s, cost->in_s[port] * ranks * r->n_ranks);
        out_s = fmax(out_s, cost->out_s[port] * ranks * r->n_ranks);
        cost->in_s[port] *= cost->dispatch_bytes;
        cost->out_s[port] *= cost->combine_bytes;
    }
    cost->evenly_s = fmax(in_s, out_s);
}

bl_status bl_cost_create(const bl_model *model, const bl_topology *topology, int n_ranks,
                         bl_cost **out, bl_error *err) {
    BL_TRY(bl_ranks_fit(topology, n_ranks, err));
    if (model->expert_bytes == 0 || model->hidden_size <= 0 || model->moe_intermediate_size <= 0)
        return bl_fail(err, BL_ERR_MODEL,
                       "the sizes of %s are not known, so no time can be modelled", model->name);
    bl_cost *cost;
    BL_TRY(BL_CALLOC(cost, 1, err));
    cost->topology = topology;
    cost->rates.n_ranks = n_ranks;
    cost->rates.top_k = model->top_k;
    cost->dispatch_bytes = (double)model->dispatch_bytes_per_row;
    cost->combine_bytes = (double)model->combine_bytes_per_row;
    bl_status st = allocate(cost, err);
    if (st >= 0) {
        price_ranks(cost, model);
        price_attention(cost, model);
        st = price_domains(cost, err);
    }
    if (st < 0) {
        bl_cost_free(cost);
        return st;
    }
    price_rows(cost);
    *out = cost;
    return BL_OK;
}

void bl_cost_free(bl_cost *cost) {
    if (cost == NULL)
        return;
    free(cost->weights_s);
    free(cost->row_s);
    free(cost->apart);
    free(cost->in_s);
    free(cost->out_s);
    free(cost->port_of);
    free(cost->attention_read_s);
    free(cost->attention_token_s);
    free(cost);
}

void bl_cost_set_overlap(bl_cost *cost) {
    cost->rates.overlap = true;
}

const bl_cost_rates *bl_cost_rates_of(const bl_cost *cost) {
    return &cost->rates;
}

double bl_cost_attention_s(const bl_cost *cost, int rank, double tokens) {
    if (!cost->rates.overlap || !(tokens > 0.0))
        return 0.0;
    return fmax(fmin(1.0, tokens) * cost->attention_read_s[rank],
                tokens * cost->attention_token_s[rank]);
}

double bl_cost_counts_s(const bl_cost *cost, int n_experts) {
    return cost->rates.fixed_s / 2.0 + cost->evenly_s * 4.0 * n_experts;
}

/* The slowest rank's attention and experts. */
static double ranks_s(const bl_cost *cost, const bl_layer_placement *placement,
                      const double *slot_rows, double tokens) {
    double slowest = 0.0;
    for (int g = 0; g < cost->rates.n_ranks; g++) {
        double sum = bl_cost_attention_s(cost, g, tokens);
        for (int slot = placement->begin[g]; slot < placement->begin[g + 1]; slot++)
            sum += bl_cost_copy_s(&cost->rates, g, slot_rows[slot]);
        slowest = fmax(slowest, sum);
    }
    return slowest;
}

size_t bl_cost_scratch(const bl_cost *cost) {
    return 2 * (size_t)(cost->rates.n_ports + cost->rates.n_ranks);
}

/* The port through which a rank reaches those that it meets at a level. */
static int port_at(const bl_cost_rates *r, int level, int rank) {
    return level == 1 ? rank : r->port_of[(size_t)(level - 2) * (size_t)r->n_ranks + (size_t)rank];
}

/* Seconds that the busiest port needs for rows[n_ranks][n_ranks]. scratch: ports out, ports in, then
 * ranks out, ranks in: what each pair's own bandwidth makes of it. */
static double exchange_pairs(const bl_cost *cost, const double *rows, double row_bytes,
                             double *scratch) {
    const bl_cost_rates *r = &cost->rates;
    const bl_topology *t = cost->topology;
    double *out = scratch, *in = out + r->n_ports, *rank_out = in + r->n_ports,
           *rank_in = rank_out + r->n_ranks, busiest = 0.0;
    for (size_t i = 0; i < bl_cost_scratch(cost); i++)
        scratch[i] = 0.0;
    for (int from = 0; from < r->n_ranks; from++) {
        for (int to = 0; to < r->n_ranks; to++) {
            const double bytes = row_bytes * rows[(size_t)from * (size_t)r->n_ranks + (size_t)to];
            if (from == to || !(bytes > 0.0))
                continue;
            const int level = bl_topology_level(t, from, to);
            const bl_level *costs = &t->levels[level];
            const double pair_s = bytes / bl_topology_bytes_per_s(t, from, to);
            rank_out[from] += pair_s;
            rank_in[to] += pair_s;
            out[port_at(r, level, from)] +=
                bytes / costs->ports.value / costs->out_bytes_per_s.value;
            in[port_at(r, level, to)] += bytes / costs->ports.value / costs->in_bytes_per_s.value;
        }
    }
    for (size_t i = 0; i < bl_cost_scratch(cost); i++)
        busiest = fmax(busiest, scratch[i]);
    return busiest;
}

double bl_cost_leave_rank_s(const bl_cost *cost, int rank, bool back) {
    double least = INFINITY;
    for (int other = 0; other < cost->rates.n_ranks; other++) {
        if (other != rank)
            least = fmin(least, 1.0 / bl_topology_bytes_per_s(cost->topology, back ? other : rank,
                                                              back ? rank : other));
    }
    return isfinite(least) ? least * (back ? cost->combine_bytes : cost->dispatch_bytes) : 0.0;
}

double bl_cost_leave_domain_s(const bl_cost *cost, bool back) {
    const bl_level *costs = &cost->topology->levels[cost->topology->n_levels];
    return back ? cost->combine_bytes / costs->ports.value / costs->in_bytes_per_s.value
                : cost->dispatch_bytes / costs->ports.value / costs->out_bytes_per_s.value;
}

double bl_cost_traffic_s(const bl_cost *cost, const bl_layer_placement *placement,
                         const double *slot_rows, const double *dispatch, const double *combine,
                         double scale, double *scratch) {
    const bl_cost_rates *r = &cost->rates;
    double rows = 0.0;
    for (int slot = 0; slot < bl_layer_n_slots(placement); slot++)
        rows += slot_rows[slot];
    const double tokens = r->overlap ? rows / r->top_k / r->n_ranks : 0.0;
    const double in_s = exchange_pairs(cost, dispatch, scale * cost->dispatch_bytes, scratch);
    const double out_s = exchange_pairs(cost, combine, scale * cost->combine_bytes, scratch);
    return bl_cost_total_s(r, in_s, out_s, ranks_s(cost, placement, slot_rows, tokens));
}

/* The slowest shared port at one level. Domains are numbered in the order of their first ranks. */
static void slowest_group(const bl_cost_rates *r, const int *port_of, const double *rank_rows,
                          double *in_s, double *out_s) {
    int last = -1;
    for (int g = 0; g < r->n_ranks; g++) {
        double rows = 0.0;
        if (port_of[g] <= last)
            continue;
        last = port_of[g];
        for (int h = g; h < r->n_ranks; h++)
            rows += port_of[h] == port_of[g] ? rank_rows[h] : 0.0;
        *in_s = fmax(*in_s, rows * r->in_s[port_of[g]]);
        *out_s = fmax(*out_s, rows * r->out_s[port_of[g]]);
    }
}

/* The busiest ports' seconds there and back. */
static void exchange_evenly(const bl_cost_rates *r, const double *rank_rows, double *in_s,
                            double *out_s) {
    *in_s = *out_s = 0.0;
    for (int g = 0; g < r->n_ranks; g++) {
        *in_s = fmax(*in_s, rank_rows[g] * r->in_s[g]);
        *out_s = fmax(*out_s, rank_rows[g] * r->out_s[g]);
    }
    for (int level = 0; level < r->n_groupings; level++)
        slowest_group(r, r->port_of + (size_t)level * (size_t)r->n_ranks, rank_rows, in_s, out_s);
}

double bl_cost_wire_s(const bl_cost *cost, const double *rank_rows) {
    double in_s, out_s;
    exchange_evenly(&cost->rates, rank_rows, &in_s, &out_s);
    return in_s + out_s;
}

double bl_cost_layer_s(const bl_cost *cost, const bl_layer_placement *placement,
                       const double *slot_rows, const double *rank_rows) {
    const bl_cost_rates *r = &cost->rates;
    double in_s, out_s, rows = 0.0;
    exchange_evenly(r, rank_rows, &in_s, &out_s);
    for (int g = 0; g < r->n_ranks; g++)
        rows += rank_rows[g];
    const double tokens = r->overlap ? rows / r->top_k / r->n_ranks : 0.0;
    return bl_cost_total_s(r, in_s, out_s, ranks_s(cost, placement, slot_rows, tokens));
}
