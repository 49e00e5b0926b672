#include "planner/scatter.h"

#include "core/mem.h"

#include <math.h>
#include <stdlib.h>

typedef struct scatter {
    const double *load, *weight;
    int n_experts, n_scenarios;
    int *like;      /* [n_scenarios] the scenario most like it, or -1 */
    double *spread; /* [n_experts] v_e */
    double *growth; /* [n_experts] mean of m_e(s)^(3/2) */
} scatter;

static double at(const scatter *sc, int expert, int scenario) {
    return sc->load[(size_t)expert * (size_t)sc->n_scenarios + (size_t)scenario];
}

static double distance(const scatter *sc, int s, int t) {
    double sum = 0.0;
    for (int e = 0; e < sc->n_experts; e++) {
        const double d = at(sc, e, s) - at(sc, e, t);
        sum += d * d;
    }
    return sum;
}

static int most_like(const scatter *sc, int s) {
    int found = -1;
    double least = INFINITY;
    for (int t = 0; t < sc->n_scenarios; t++) {
        if (t == s || sc->weight[t] <= 0.0)
            continue;
        const double d = distance(sc, s, t);
        if (d < least) {
            least = d;
            found = t;
        }
    }
    return found;
}

/* m_e(s)^(3/2) */
static double growth_of(const scatter *sc, int expert, int s) {
    const double mean = (at(sc, expert, s) + at(sc, expert, sc->like[s])) / 2.0;
    return mean * sqrt(mean);
}

static void look_at_pairs(scatter *sc) {
    for (int s = 0; s < sc->n_scenarios; s++) {
        sc->like[s] = sc->weight[s] > 0.0 ? most_like(sc, s) : -1;
        for (int e = 0; e < sc->n_experts && sc->like[s] >= 0; e++) {
            const double d = at(sc, e, s) - at(sc, e, sc->like[s]);
            sc->spread[e] += sc->weight[s] * d * d / 2.0;
            sc->growth[e] += sc->weight[s] * growth_of(sc, e, s);
        }
    }
}

static double ratio(double a, double b) {
    return b > 0.0 ? a / b : 0.0;
}

static void estimate(const scatter *sc, double *variance) {
    double spread = 0.0, growth = 0.0;
    for (int e = 0; e < sc->n_experts; e++) {
        spread += sc->spread[e];
        growth += sc->growth[e];
    }
    for (int e = 0; e < sc->n_experts; e++) {
        const double slope = ratio(spread, growth) + ratio(sc->spread[e], sc->growth[e]);
        double *of = variance + (size_t)e * (size_t)sc->n_scenarios;
        for (int s = 0; s < sc->n_scenarios; s++)
            of[s] = sc->like[s] < 0 ? 0.0 : sc->spread[e] / 2.0 + slope / 4.0 * growth_of(sc, e, s);
    }
}

bl_status bl_scatter(const double *load, const double *weight, int n_experts, int n_scenarios,
                     double *variance, bl_error *err) {
    scatter sc = {load, weight, n_experts, n_scenarios, NULL, NULL, NULL};
    bl_status st = BL_CALLOC(sc.like, n_scenarios, err);
    if (st >= 0)
        st = BL_CALLOC(sc.spread, n_experts, err);
    if (st >= 0)
        st = BL_CALLOC(sc.growth, n_experts, err);
    if (st >= 0) {
        look_at_pairs(&sc);
        estimate(&sc, variance);
    }
    free(sc.like);
    free(sc.spread);
    free(sc.growth);
    return st;
}
