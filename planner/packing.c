#include "planner/packing.h"

#include "core/mem.h"

#include <math.h>
#include <stdlib.h>

static int ascending(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* ---- lonely experts ----------------------------------------------------------------------- */

/* sorted[n_experts] ascending, before[i] = the sum of the i smallest. */
static double lonely_bound(const double *sorted, const double *before,
                           const bl_packing_shape *shape) {
    const int spare = shape->n_slots - shape->n_experts;
    double best = 0.0;
    for (int expert = 0; expert < shape->n_experts; expert++) {
        double least = INFINITY;
        for (int r = 1; r <= spare + 1 && r <= shape->active_ranks; r++) {
            /* Below n_experts, as spare >= r - 1. */
            const int lonely = shape->least_slots + r - 2 - spare;
            double beside = 0.0;
            if (lonely > 0)
                beside = expert < lonely ? before[lonely + 1] - sorted[expert] : before[lonely];
            least = fmin(least, sorted[expert] / r + beside);
        }
        best = fmax(best, least);
    }
    return best;
}

bl_status bl_packing_lonely(const double *load, const bl_packing_shape *shape, double *out,
                            bl_error *err) {
    const int n_experts = shape->n_experts;
    /* With as many spare slots as a rank has slots, no rank needs to be full of lonely experts. */
    if (shape->n_slots - n_experts >= shape->least_slots) {
        *out = 0.0;
        return BL_OK;
    }
    double *sorted;
    BL_TRY(BL_CALLOC(sorted, 2 * (size_t)n_experts + 1, err));
    double *before = sorted + n_experts;
    for (int expert = 0; expert < n_experts; expert++)
        sorted[expert] = load[expert];
    qsort(sorted, (size_t)n_experts, sizeof *sorted, ascending);
    for (int expert = 0; expert < n_experts; expert++)
        before[expert + 1] = before[expert] + sorted[expert];
    *out = lonely_bound(sorted, before, shape);
    free(sorted);
    return BL_OK;
}

/* ---- untouched ranks ---------------------------------------------------------------------- */

bl_status bl_packing_untouched(const double *load, const bl_packing_shape *shape, double *out,
                               bl_error *err) {
    const int untouched = shape->active_ranks - 2 * (shape->n_slots - shape->n_experts);
    *out = 0.0;
    if (untouched < 1)
        return BL_OK;
    double *sorted;
    BL_TRY(BL_CALLOC(sorted, shape->n_experts, err));
    for (int expert = 0; expert < shape->n_experts; expert++)
        sorted[expert] = load[expert];
    qsort(sorted, (size_t)shape->n_experts, sizeof *sorted, ascending);
    /* They are different experts, so there are as many. */
    for (int i = 0; i < untouched * shape->least_slots; i++)
        *out += sorted[i] / untouched;
    free(sorted);
    return BL_OK;
}

/* ---- crowded ranks ------------------------------------------------------------------------ */

/* More than this: nobody's smallest copy is known well enough. */
#define MOST_SPARE 32

/* Lower each expert's figure in best[] to what it would be with t copies more than it needs. */
static void crowd(const double *load, const int *least, const bl_packing_shape *shape, int spare,
                  int t, double *light, double *best) {
    const int others = shape->least_slots - 1;
    double all = 0.0;
    for (int f = 0; f < shape->n_experts; f++)
        light[f] = load[f] / (least[f] + spare - t);
    qsort(light, (size_t)shape->n_experts, sizeof *light, ascending);
    for (int i = 0; i < others; i++)
        all += light[i];
    for (int e = 0; e < shape->n_experts; e++) {
        const double own = load[e] / (least[e] + spare - t);
        /* One of the smallest itself: the next one takes its place. */
        const double beside = others > 0 && own <= light[others - 1] && others < shape->n_experts
                                  ? all - own + light[others]
                                  : all;
        if (least[e] + t <= shape->active_ranks)
            best[e] = fmin(best[e], load[e] / (least[e] + t) + beside);
    }
}

bl_status bl_packing_crowded(const double *load, const int *least, const bl_packing_shape *shape,
                             double *out, bl_error *err) {
    int spare = shape->n_slots;
    bool several = false;
    for (int e = 0; e < shape->n_experts; e++) {
        spare -= least[e];
        several = several || least[e] > 1;
    }
    *out = 0.0;
    if (!several || spare < 0 || spare > MOST_SPARE)
        return BL_OK;
    double *light;
    BL_TRY(BL_CALLOC(light, 2 * (size_t)shape->n_experts, err));
    double *best = light + shape->n_experts;
    for (int e = 0; e < shape->n_experts; e++)
        best[e] = INFINITY;
    for (int t = 0; t <= spare; t++)
        crowd(load, least, shape, spare, t, light, best);
    for (int e = 0; e < shape->n_experts; e++)
        *out = fmax(*out, isfinite(best[e]) ? best[e] : 0.0);
    free(light);
    return BL_OK;
}

/* ---- big and small copies ----------------------------------------------------------------- */

/* More slots per rank than this: the mean is reached anyway. */
#define FEW_SLOTS 4
/* Thresholds x = T/2, T/2 + h, ..., T - h. */
#define THRESHOLDS 32
#define ROUNDS 120
/* Raise T by parts of the known bound: this first, then twice as much as long as a proof is found,
 * then halve the rest. A proof comes quickly, the lack of one costs all ROUNDS. */
#define FIRST_RAISE 0.002
#define HALVINGS 3
/* Numbers of copies looked at one by one, from the least possible. */
#define OPTIONS 24
/* A proof must not hang on rounding. */
#define MARGIN 1e-9

/* Some number of copies for an expert. The first `big` thresholds call each of them big; those from
 * `not_small` on do not call it small. Thresholds in between: charge 0. */
typedef struct option {
    int copies;
    int big, not_small;
} option;

typedef struct pairing {
    const double *load;
    const bl_packing_shape *shape;
    int *first;      /* [n_experts + 1] into options */
    option *options; /* [n_experts * (OPTIONS + 1)] */
    /* Weight 0 is of sum r_e <= P, weight 1 + t of threshold t. They sum to 1. */
    double weight[THRESHOLDS + 1];
    double charged[THRESHOLDS + 1]; /* left sides under the present choice */
} pairing;

static int clamp_threshold(double t) {
    return t >= THRESHOLDS ? THRESHOLDS : (int)t;
}

static option classify(double load, int copies, double peak) {
    const double step = peak / 2 / THRESHOLDS;
    const double over = (load / copies - peak / 2) / step;
    option o = {copies, 0, 0};
    if (over > 0.0)
        o.big = clamp_threshold(ceil(over)); /* x_t < v; and T - x_t < v for all t */
    else
        o.not_small = clamp_threshold(floor(-over) + 1); /* T - x_t < v */
    return o;
}

/* What each expert can choose from, were T = peak. False when one cannot stay within it at all. */
static bool list_options(pairing *p, double peak) {
    int n = 0;
    for (int expert = 0; expert < p->shape->n_experts; expert++) {
        const double load = p->load[expert];
        int copies = load > peak ? (int)ceil(load / peak) : 1;
        if (copies > p->shape->active_ranks)
            return false;
        p->first[expert] = n;
        for (int i = 0; i < OPTIONS && copies <= p->shape->active_ranks; i++, copies++) {
            p->options[n++] = classify(load, copies, peak);
            if (p->options[n - 1].not_small == THRESHOLDS)
                break; /* small for every threshold: more copies only cost more */
        }
        /* All that is left out costs at least its count. */
        if (p->options[n - 1].not_small < THRESHOLDS && copies <= p->shape->active_ranks)
            p->options[n++] = (option){copies, 0, THRESHOLDS};
    }
    p->first[p->shape->n_experts] = n;
    return true;
}

/* Every expert takes what is cheapest under the present weights. Returns the weighted left side. */
static double choose_all(pairing *p) {
    const double heavy = p->shape->least_slots - 1;
    double before[THRESHOLDS + 1], by_small[THRESHOLDS + 1] = {0}, by_big[THRESHOLDS + 1] = {0};
    before[0] = 0.0;
    for (int t = 0; t < THRESHOLDS; t++)
        before[t + 1] = before[t] + p->weight[t + 1];
    double total = 0.0, count = 0.0;
    for (int expert = 0; expert < p->shape->n_experts; expert++) {
        const option *best = &p->options[p->first[expert]]; /* there is at least one */
        double least = INFINITY;
        for (int i = p->first[expert]; i < p->first[expert + 1]; i++) {
            const option *o = &p->options[i];
            if (o->copies * p->weight[0] >= least)
                break; /* more copies cost more than that by their count alone */
            const double cost = o->copies * (p->weight[0] + before[THRESHOLDS] -
                                             before[o->not_small] + heavy * before[o->big]);
            if (cost < least) {
                least = cost;
                best = o;
            }
        }
        total += least;
        count += best->copies;
        by_small[best->not_small] += best->copies;
        by_big[best->big] += best->copies;
    }
    p->charged[0] = count;
    double not_small = 0.0, big = count;
    for (int t = 0; t < THRESHOLDS; t++) {
        not_small += by_small[t];
        big -= by_big[t];
        p->charged[t + 1] = not_small + heavy * big;
    }
    return total;
}

/* Shift weight to the inequalities that the present choice violates most, by as much as would close
 * the gap to P if the choice stayed (Polyak's step, in the exponents). */
static void reweigh(pairing *p, double total) {
    const double slots = p->shape->n_slots;
    double spread = 0.0, sum = 0.0;
    for (int t = 0; t <= THRESHOLDS; t++)
        spread += p->weight[t] * (p->charged[t] - total) * (p->charged[t] - total);
    const double rate = spread > 0.0 ? (slots * 1.001 - total) / spread : 0.0;
    for (int t = 0; t <= THRESHOLDS; t++) {
        p->weight[t] *= exp(fmin(rate * (p->charged[t] - total), 3.0));
        p->weight[t] = fmax(p->weight[t], 1e-9); /* none is lost for good */
        sum += p->weight[t];
    }
    for (int t = 0; t <= THRESHOLDS; t++)
        p->weight[t] /= sum;
}

static bool is_impossible(pairing *p, double peak) {
    if (!list_options(p, peak))
        return true;
    for (int round = 0; round < ROUNDS; round++) {
        const double total = choose_all(p);
        if (total > p->shape->n_slots * (1.0 + MARGIN))
            return true;
        reweigh(p, total);
    }
    return false;
}

bl_status bl_packing_big_small(const double *load, const bl_packing_shape *shape, double known,
                               double *out, bl_error *err) {
    *out = known;
    if (shape->n_slots > FEW_SLOTS * shape->active_ranks || shape->least_slots < 2 || known <= 0.0)
        return BL_OK;
    pairing p = {.load = load, .shape = shape};
    bl_status st;
    BL_TRY_GOTO(st, BL_CALLOC(p.first, shape->n_experts + 1, err), done);
    BL_TRY_GOTO(st, BL_CALLOC(p.options, (size_t)shape->n_experts * (OPTIONS + 1), err), done);
    for (int t = 0; t <= THRESHOLDS; t++)
        p.weight[t] = 1.0 / (THRESHOLDS + 1);
    double low = known, raise = FIRST_RAISE * known;
    while (is_impossible(&p, known + raise)) {
        low = known + raise;
        raise *= 2;
    }
    double high = known + raise;
    for (int i = 0; i < HALVINGS; i++) {
        const double middle = (low + high) / 2;
        if (is_impossible(&p, middle))
            low = middle;
        else
            high = middle;
    }
    *out = low;
done:
    free(p.options);
    free(p.first);
    return st;
}
