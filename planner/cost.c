#include "planner/cost.h"

#include "core/mem.h"
#include "planner/diff.h"

#include <math.h>
#include <stdlib.h>

struct bl_cost {
    const bl_topology *topology;
    int n_ranks;
    double dispatch_bytes, combine_bytes; /* of one row */
    double fixed_s;                       /* latency and messages of one exchange */
    double *weights_s;                    /* [n_ranks] reading one expert */
    double *row_s;                        /* [n_ranks] multiplying one row */
    double *in_s, *out_s;                 /* [n_ranks] per byte of a rank's rows, at its own port */
    /* [n_levels + 1][n_ranks] per byte of a domain's rows, at the ports of the domain of level - 1
     * into `level`; 0 where nothing crosses */
    double *domain_in_s, *domain_out_s;
    double *rows;   /* [n_ranks] scratch: rows of each domain */
    double *evenly; /* [n_ranks] n_ranks each: as many rows as ranks, one from each */
};

static size_t domain_at(const bl_cost *cost, int level, int domain) {
    return (size_t)level * (size_t)cost->n_ranks + (size_t)domain;
}

/* Rows come evenly from all ranks, so a byte that rank g receives costs the mean over the senders
 * of one over the pair's bandwidth; nothing to itself. */
static void price_ranks(bl_cost *cost, const bl_model *model) {
    const bl_topology *t = cost->topology;
    const double flop = 6.0 * model->hidden_size * model->moe_intermediate_size;
    for (int g = 0; g < cost->n_ranks; g++) {
        const bl_device *device = bl_topology_device(t, g);
        cost->weights_s[g] = (double)model->expert_bytes / device->memory_bytes_per_s.value;
        cost->row_s[g] = flop / bl_device_flop_per_s(device, model->weight_format);
        double latency = 0.0, messages = 0.0;
        for (int s = 0; s < cost->n_ranks; s++) {
            if (s == g)
                continue;
            cost->in_s[g] += 1.0 / bl_topology_bytes_per_s(t, s, g) / cost->n_ranks;
            cost->out_s[g] += 1.0 / bl_topology_bytes_per_s(t, g, s) / cost->n_ranks;
            latency = fmax(latency, bl_topology_latency_s(t, g, s));
            messages += t->levels[bl_topology_level(t, g, s)].message_s.value;
        }
        cost->fixed_s = fmax(cost->fixed_s, latency + messages);
    }
}

/* Of the rows of a domain d inside D, those born in D outside d cross the ports of d. */
static bl_status price_domains(bl_cost *cost, bl_error *err) {
    const bl_topology *t = cost->topology;
    int *inner, *outer;
    BL_TRY(BL_CALLOC(inner, cost->n_ranks, err));
    if (BL_CALLOC(outer, cost->n_ranks, err) < 0) {
        free(inner);
        return BL_ERR_NOMEM;
    }
    for (int level = 1; level <= t->n_levels; level++) {
        const bl_level *costs = &t->levels[level];
        for (int g = 0; g < cost->n_ranks; g++)
            inner[g] = outer[g] = 0;
        for (int g = 0; g < cost->n_ranks; g++) {
            inner[bl_topology_domain(t, level - 1, g)]++;
            outer[bl_topology_domain(t, level, g)]++;
        }
        for (int g = 0; g < cost->n_ranks; g++) {
            const int d = bl_topology_domain(t, level - 1, g);
            const double born_outside = outer[bl_topology_domain(t, level, g)] - inner[d];
            const double per_port = born_outside / cost->n_ranks / costs->ports.value;
            cost->domain_in_s[domain_at(cost, level, d)] = per_port / costs->in_bytes_per_s.value;
            cost->domain_out_s[domain_at(cost, level, d)] = per_port / costs->out_bytes_per_s.value;
        }
    }
    free(inner);
    free(outer);
    return BL_OK;
}

static bl_status allocate(bl_cost *cost, bl_error *err) {
    const int n = cost->n_ranks;
    const size_t domains = (size_t)n * (size_t)(cost->topology->n_levels + 1);
    BL_TRY(BL_CALLOC(cost->weights_s, n, err));
    BL_TRY(BL_CALLOC(cost->row_s, n, err));
    BL_TRY(BL_CALLOC(cost->in_s, n, err));
    BL_TRY(BL_CALLOC(cost->out_s, n, err));
    BL_TRY(BL_CALLOC(cost->domain_in_s, domains, err));
    BL_TRY(BL_CALLOC(cost->domain_out_s, domains, err));
    BL_TRY(BL_CALLOC(cost->evenly, n, err));
    for (int g = 0; g < n; g++)
        cost->evenly[g] = n;
    return BL_CALLOC(cost->rows, n, err);
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
    cost->n_ranks = n_ranks;
    cost->dispatch_bytes = (double)model->dispatch_bytes_per_row;
    cost->combine_bytes = (double)model->combine_bytes_per_row;
    bl_status st = allocate(cost, err);
    if (st >= 0) {
        price_ranks(cost, model);
        st = price_domains(cost, err);
    }
    if (st < 0)
        bl_cost_free(cost);
    else
        *out = cost;
    return st;
}

void bl_cost_free(bl_cost *cost) {
    if (cost == NULL)
        return;
    free(cost->weights_s);
    free(cost->row_s);
    free(cost->in_s);
    free(cost->out_s);
    free(cost->domain_in_s);
    free(cost->domain_out_s);
    free(cost->rows);
    free(cost->evenly);
    free(cost);
}

static double experts_s(const bl_cost *cost, const bl_layer_placement *placement,
                        const double *slot_rows) {
    double slowest = 0.0;
    for (int g = 0; g < cost->n_ranks; g++) {
        double sum = 0.0;
        for (int slot = placement->begin[g]; slot < placement->begin[g + 1]; slot++) {
            const double rows = slot_rows[slot];
            sum += fmax(fmin(1.0, rows) * cost->weights_s[g], rows * cost->row_s[g]);
        }
        slowest = fmax(slowest, sum);
    }
    return slowest;
}

/* The slowest port of one exchange, in seconds per byte of a row. */
static void exchange(bl_cost *cost, const double *rank_rows, double *in_s, double *out_s) {
    const bl_topology *t = cost->topology;
    double in = 0.0, out = 0.0;
    for (int g = 0; g < cost->n_ranks; g++) {
        in = fmax(in, rank_rows[g] * cost->in_s[g]);
        out = fmax(out, rank_rows[g] * cost->out_s[g]);
    }
    for (int level = 1; level <= t->n_levels; level++) {
        for (int d = 0; d < cost->n_ranks; d++)
            cost->rows[d] = 0.0;
        for (int g = 0; g < cost->n_ranks; g++)
            cost->rows[bl_topology_domain(t, level - 1, g)] += rank_rows[g];
        for (int d = 0; d < cost->n_ranks; d++) {
            in = fmax(in, cost->rows[d] * cost->domain_in_s[domain_at(cost, level, d)]);
            out = fmax(out, cost->rows[d] * cost->domain_out_s[domain_at(cost, level, d)]);
        }
    }
    *in_s = in;
    *out_s = out;
}

double bl_cost_counts_s(bl_cost *cost, int n_experts) {
    double in_s, out_s;
    exchange(cost, cost->evenly, &in_s, &out_s);
    return cost->fixed_s + fmax(in_s, out_s) * 4.0 * n_experts;
}

double bl_cost_layer_s(bl_cost *cost, const bl_layer_placement *placement, const double *slot_rows,
                       const double *rank_rows) {
    double in_s, out_s;
    exchange(cost, rank_rows, &in_s, &out_s);
    return 2.0 * cost->fixed_s + in_s * cost->dispatch_bytes + out_s * cost->combine_bytes +
           experts_s(cost, placement, slot_rows);
}
