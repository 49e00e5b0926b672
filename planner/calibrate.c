#include "planner/calibrate.h"

#include "core/mem.h"

#include <math.h>
#include <stdlib.h>

/* A fit of more measurements gets slower and not better. */
#define MAX_FITTED 16384
/* A part of multiplying a row: what is told to cost nothing must still have a rate. */
#define LEAST_READING 1e-3

const char *const bl_expert_term_names[] = {"row", "expert", "layer", NULL};
const char *const bl_exchange_term_names[] = {"latency", "wire", NULL};

/* ---- samples ------------------------------------------------------------------------------- */

void bl_samples_init(const bl_cost *cost, int n_ranks, bl_samples *out) {
    *out = (bl_samples){.cost = cost, .n_ranks = n_ranks};
}

void bl_samples_free(bl_samples *samples) {
    free(samples->step);
    free(samples->rows);
    free(samples->active);
    free(samples->seconds);
    free(samples->exchange_s);
    free(samples->wire_s);
    *samples = (bl_samples){0};
}

static bl_status grow(bl_samples *s, bl_error *err) {
    const size_t n = s->n + 1, all = n * (size_t)s->n_ranks;
    size_t *room = s->capacities;
    bl_status st;
    BL_GROW(st, s->step, room[0], n, err);
    if (st >= 0)
        BL_GROW(st, s->rows, room[1], all, err);
    if (st >= 0)
        BL_GROW(st, s->active, room[2], all, err);
    if (st >= 0)
        BL_GROW(st, s->seconds, room[3], all, err);
    if (st >= 0)
        BL_GROW(st, s->exchange_s, room[4], n, err);
    if (st >= 0)
        BL_GROW(st, s->wire_s, room[5], n, err);
    return st;
}

bl_status bl_samples_add(bl_samples *s, uint64_t step, const bl_rank_times *ranks, bl_error *err) {
    const size_t at = s->n * (size_t)s->n_ranks;
    double rows = 0.0, dispatch_s = INFINITY, combine_s = INFINITY;
    BL_TRY(grow(s, err));
    for (int g = 0; g < s->n_ranks; g++) {
        s->rows[at + (size_t)g] = ranks[g].rows;
        s->active[at + (size_t)g] = ranks[g].active;
        s->seconds[at + (size_t)g] = ranks[g].experts_s;
        dispatch_s = fmin(dispatch_s, ranks[g].dispatch_s);
        combine_s = fmin(combine_s, ranks[g].combine_s);
        rows += ranks[g].rows;
    }
    if (!(rows > 0.0))
        return BL_OK;
    s->step[s->n] = step;
    s->exchange_s[s->n] = dispatch_s + combine_s;
    s->wire_s[s->n] = bl_cost_wire_s(s->cost, s->rows + at);
    s->n++;
    return BL_OK;
}

/* ---- fitting ------------------------------------------------------------------------------- */

/* The first sample of the second half of the steps, as many of which as different numbers. */
static size_t second_half(const bl_samples *s) {
    size_t n_steps = 0, seen = 0;
    for (size_t i = 0; i < s->n; i++)
        n_steps += i == 0 || s->step[i] != s->step[i - 1];
    for (size_t i = 0; i < s->n; i++) {
        seen += i == 0 || s->step[i] != s->step[i - 1];
        if (seen > n_steps / 2)
            return i;
    }
    return s->n;
}

static bl_status fit_exchange(const bl_samples *s, size_t n, bl_fit *out, bl_error *err) {
    const size_t stride = n / MAX_FITTED + 1;
    double *x, *y;
    size_t kept = 0;
    BL_TRY(BL_CALLOC(x, (n / stride + 1) * (BL_N_EXCHANGE_TERMS + 1), err));
    y = x + (n / stride + 1) * BL_N_EXCHANGE_TERMS;
    for (size_t i = 0; i < n; i += stride, kept++) {
        x[kept * BL_N_EXCHANGE_TERMS + BL_TERM_LATENCY] = 1.0;
        x[kept * BL_N_EXCHANGE_TERMS + BL_TERM_WIRE] = s->wire_s[i];
        y[kept] = s->exchange_s[i];
    }
    const bl_status st = bl_fit_costs(x, y, kept, BL_N_EXCHANGE_TERMS, out, err);
    free(x);
    return st;
}

static int ranks_with(const bl_topology *topology, int n_ranks, int device) {
    int n = 0;
    for (int g = 0; g < n_ranks; g++)
        n += topology->device[g] == device;
    return n;
}

static bl_status fit_device(const bl_samples *s, size_t n, const bl_topology *topology, int device,
                            bl_fit *out, bl_error *err) {
    const size_t all = n * (size_t)ranks_with(topology, s->n_ranks, device);
    const size_t stride = all / MAX_FITTED + 1;
    double *x, *y;
    size_t kept = 0;
    *out = (bl_fit){.n_terms = BL_N_EXPERT_TERMS};
    if (all == 0)
        return BL_OK;
    BL_TRY(BL_CALLOC(x, (all / stride + (size_t)s->n_ranks) * (BL_N_EXPERT_TERMS + 1), err));
    y = x + (all / stride + (size_t)s->n_ranks) * BL_N_EXPERT_TERMS;
    for (size_t i = 0; i < n; i += stride) {
        for (int g = 0; g < s->n_ranks; g++) {
            const size_t at = i * (size_t)s->n_ranks + (size_t)g;
            if (topology->device[g] != device)
                continue;
            double *row = x + kept * BL_N_EXPERT_TERMS;
            row[BL_TERM_ROW] = s->rows[at];
            row[BL_TERM_ACTIVE] = s->active[at];
            row[BL_TERM_LAYER] = 1.0;
            y[kept++] = s->seconds[at];
        }
    }
    const bl_status st = bl_fit_costs(x, y, kept, BL_N_EXPERT_TERMS, out, err);
    free(x);
    return st;
}

double bl_calibration_experts_s(const bl_calibration *calibration, int device, double rows,
                                double active) {
    const double x[BL_N_EXPERT_TERMS] = {
        [BL_TERM_ROW] = rows, [BL_TERM_ACTIVE] = active, [BL_TERM_LAYER] = 1.0};
    return bl_fit_at(&calibration->experts[device], x);
}

static double exchange_s(const bl_calibration *calibration, double wire_s) {
    const double x[BL_N_EXCHANGE_TERMS] = {[BL_TERM_LATENCY] = 1.0, [BL_TERM_WIRE] = wire_s};
    return bl_fit_at(&calibration->exchange, x);
}

static double slowest_s(const bl_calibration *calibration, const bl_topology *topology,
                        const double *rows, const double *active, int n_ranks) {
    double slowest = 0.0;
    for (int g = 0; g < n_ranks; g++)
        slowest = fmax(slowest, bl_calibration_experts_s(calibration, topology->device[g], rows[g],
                                                         active[g]));
    return slowest;
}

double bl_calibration_layer_s(const bl_calibration *calibration, const bl_topology *topology,
                              const double *rows, const double *active, int n_ranks,
                              double wire_s) {
    return exchange_s(calibration, wire_s) +
           slowest_s(calibration, topology, rows, active, n_ranks);
}

/* ---- trying it ----------------------------------------------------------------------------- */

/* Predicted and measured, of layers and summed up to steps. */
typedef struct trial {
    size_t n, n_steps;
    double *experts[2], *exchange[2], *layer[2], *step[2];
} trial;

static void run_trial(const bl_samples *s, size_t from, const bl_topology *topology,
                      const bl_calibration *c, trial *t) {
    for (size_t i = from; i < s->n; i++) {
        const double *rows = s->rows + i * (size_t)s->n_ranks;
        const double *active = s->active + i * (size_t)s->n_ranks;
        const double *seconds = s->seconds + i * (size_t)s->n_ranks;
        const size_t at = t->n++;
        t->experts[0][at] = slowest_s(c, topology, rows, active, s->n_ranks);
        t->exchange[0][at] = exchange_s(c, s->wire_s[i]);
        for (int g = 0; g < s->n_ranks; g++)
            t->experts[1][at] = fmax(t->experts[1][at], seconds[g]);
        t->exchange[1][at] = s->exchange_s[i];
        if (at == 0 || s->step[i] != s->step[i - 1])
            t->n_steps++;
        for (int k = 0; k < 2; k++) {
            t->layer[k][at] = t->experts[k][at] + t->exchange[k][at];
            t->step[k][t->n_steps - 1] += t->layer[k][at];
        }
    }
}

static bl_status try_it(const bl_samples *s, size_t from, const bl_topology *topology,
                        bl_calibration *c, bl_error *err) {
    const size_t n = s->n - from;
    double *all;
    BL_TRY(BL_CALLOC(all, 8 * n, err));
    trial t = {.experts = {all, all + n},
               .exchange = {all + 2 * n, all + 3 * n},
               .layer = {all + 4 * n, all + 5 * n},
               .step = {all + 6 * n, all + 7 * n}};
    run_trial(s, from, topology, c, &t);
    bl_status st = bl_fit_compare(t.experts[0], t.experts[1], n, &c->expert_errors, err);
    if (st >= 0)
        st = bl_fit_compare(t.exchange[0], t.exchange[1], n, &c->exchange_errors, err);
    if (st >= 0)
        st = bl_fit_compare(t.layer[0], t.layer[1], n, &c->layer, err);
    if (st >= 0)
        st = bl_fit_compare(t.step[0], t.step[1], t.n_steps, &c->step, err);
    free(all);
    return st;
}

bl_status bl_calibrate(const bl_samples *samples, const bl_topology *topology, bl_calibration *out,
                       bl_error *err) {
    const size_t n_fit = second_half(samples);
    bl_calibration made = {.n_devices = topology->n_devices, .n_fitted = n_fit};
    if (n_fit < BL_N_EXPERT_TERMS * BL_FIT_LEAST || n_fit == samples->n)
        return bl_fail(err, BL_ERR_RANGE,
                       "%zu layers of steps with stage times do not tell what they cost: half of "
                       "them must be %d at least",
                       samples->n, BL_N_EXPERT_TERMS * BL_FIT_LEAST);
    made.from = samples->step[n_fit];
    BL_TRY(BL_CALLOC(made.experts, topology->n_devices, err));
    bl_status st = fit_exchange(samples, n_fit, &made.exchange, err);
    for (int d = 0; d < topology->n_devices && st >= 0; d++)
        st = fit_device(samples, n_fit, topology, d, &made.experts[d], err);
    if (st >= 0)
        st = try_it(samples, n_fit, topology, &made, err);
    if (st < 0) {
        bl_calibration_free(&made);
        return st;
    }
    *out = made;
    return BL_OK;
}

void bl_calibration_free(bl_calibration *calibration) {
    free(calibration->experts);
    *calibration = (bl_calibration){0};
}

/* ---- into a topology ----------------------------------------------------------------------- */

static bool costs(const bl_fit_term *term) {
    return term->verdict == BL_FIT_TOLD && term->value > 0.0;
}

static bl_figure measured(double value) {
    return (bl_figure){value, BL_MEASURED};
}

static int apply_experts(const bl_fit *fit, const bl_model *model, bl_device *device) {
    const bl_fit_term *row = &fit->term[BL_TERM_ROW], *active = &fit->term[BL_TERM_ACTIVE];
    if (fit->n == 0 || !costs(row))
        return 0;
    const double flop = 6.0 * model->hidden_size * model->moe_intermediate_size;
    device->flop_per_s[model->weight_format] = measured(flop / row->value);
    if (active->verdict != BL_FIT_TOLD)
        return 1;
    const double reading_s = fmax(active->value, LEAST_READING * row->value);
    device->memory_bytes_per_s = measured((double)model->expert_bytes / reading_s);
    device->reads_apart = true;
    return 2;
}

/* Do two of the first n_ranks ranks meet at this level? */
static bool is_used(const bl_topology *topology, int level, int n_ranks) {
    for (int a = 0; a < n_ranks; a++) {
        for (int b = a + 1; b < n_ranks; b++) {
            if (bl_topology_level(topology, a, b) == level)
                return true;
        }
    }
    return false;
}

static void scale_pairs(double *pairs, int n_ranks, double factor) {
    for (size_t i = 0; pairs != NULL && i < (size_t)n_ranks * (size_t)n_ranks; i++)
        pairs[i] *= factor;
}

static int apply_wire(const bl_calibration *c, int n_ranks, bl_topology *t) {
    const bl_fit_term *wire = &c->exchange.term[BL_TERM_WIRE];
    int n = 0;
    if (!costs(wire))
        return 0;
    for (int k = 1; k <= t->n_levels; k++) {
        bl_level *level = &t->levels[k];
        if (!is_used(t, k, n_ranks))
            continue;
        level->out_bytes_per_s = measured(level->out_bytes_per_s.value / wire->value);
        level->in_bytes_per_s = measured(level->in_bytes_per_s.value / wire->value);
        n += 2;
    }
    scale_pairs(t->pair_bytes_per_s, t->n_ranks, 1.0 / wire->value);
    t->pair_bytes_source = BL_MEASURED;
    return n;
}

static int apply_latency(const bl_calibration *c, const bl_cost *cost, bl_topology *t) {
    const bl_fit_term *latency = &c->exchange.term[BL_TERM_LATENCY];
    const bl_cost_rates *rates = bl_cost_rates_of(cost);
    const double factor = rates->fixed_s > 0.0 ? latency->value / rates->fixed_s : 0.0;
    int n = 0;
    if (!costs(latency))
        return 0;
    for (int k = 1; k <= t->n_levels; k++) {
        bl_level *level = &t->levels[k];
        if (!is_used(t, k, rates->n_ranks))
            continue;
        const double alone_s = latency->value / 2.0;
        level->latency_s = measured(factor > 0.0 ? level->latency_s.value * factor : alone_s);
        level->message_s = measured(level->message_s.value * factor);
        n += 2;
    }
    scale_pairs(t->pair_latency_s, t->n_ranks, factor > 0.0 ? factor : 1.0);
    t->pair_latency_source = BL_MEASURED;
    return n;
}

int bl_calibration_apply(const bl_calibration *calibration, const bl_model *model,
                         const bl_cost *cost, bl_topology *topology) {
    int n = 0;
    for (int d = 0; d < topology->n_devices; d++)
        n += apply_experts(&calibration->experts[d], model, &topology->devices[d]);
    n += apply_wire(calibration, bl_cost_rates_of(cost)->n_ranks, topology);
    return n + apply_latency(calibration, cost, topology);
}
