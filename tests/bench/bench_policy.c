/* When to move: never, at every N-th window, or by the policy, on GLM-5.2's windows in order (32 ranks ×
 * 9 slots, windows of 60 s, half of a level step in experts, 0.05 s of serving lost per copy, moves in
 * force half a window after they were decided). Seconds lost to imbalance and moves, mean over layers. */
#include "core/npy.h"
#include "tests/support/policy_sim.h"

#include <stdlib.h>

enum { FIRST_LAYER = 2, LAYER_STRIDE = 12 };

typedef struct way {
    const char *name;
    bl_sim_mode mode;
    int every;
} way;

static void load_layer(const bl_npy *npy, size_t layer, double *loads) {
    const size_t experts = npy->shape[npy->n_dims - 1], layers = npy->shape[npy->n_dims - 2];
    const size_t windows = npy->n_items / (experts * layers);
    for (size_t w = 0; w < windows; w++) {
        for (size_t e = 0; e < experts; e++)
            loads[w * experts + e] = bl_npy_real(npy, (w * layers + layer) * experts + e);
    }
}

static void measure(const bl_npy *npy, const way *how, double *loads) {
    const size_t experts = npy->shape[npy->n_dims - 1], layers = npy->shape[npy->n_dims - 2];
    bl_policy_case c = {.n_experts = (int)experts,
                        .n_ranks = 32,
                        .slots = 288,
                        .load = loads,
                        .n_windows = npy->n_items / (experts * layers),
                        .mode = how->mode,
                        .every = how->every,
                        .policy = BL_POLICY_OPTIONS_INIT,
                        .history = 3,
                        .window_s = 60,
                        .share = 0.5,
                        .cost_per_move_s = 0.05,
                        .duration_s = 30};
    double lost = 0, copies = 0, moves = 0, mean = 0;
    size_t n = 0;
    c.policy.rest_s = 60;
    for (size_t layer = FIRST_LAYER; layer < layers; layer += LAYER_STRIDE, n++) {
        load_layer(npy, layer, loads);
        const bl_policy_result r = bl_policy_simulate(&c);
        lost += r.lost_s;
        copies += (double)r.copies;
        moves += r.moves;
        mean += r.mean;
    }
    const double k = n > 0 ? (double)n : 1;
    printf("policy.%s.lost,%.1f,s,%zu,,,\n", how->name, lost / k, n);
    printf("policy.%s.imbalance,%.4f,max/mean,%zu,,,\n", how->name, mean / k, n);
    printf("policy.%s.plans,%.1f,per layer,%zu,,,\n", how->name, moves / k, n);
    printf("policy.%s.copies,%.1f,per layer,%zu,,,\n", how->name, copies / k, n);
}

int main(void) {
    static const way ways[] = {{"never", BL_SIM_NEVER, 0},
                               {"every_1", BL_SIM_EVERY, 1},
                               {"every_8", BL_SIM_EVERY, 8},
                               {"every_32", BL_SIM_EVERY, 32},
                               {"policy", BL_SIM_POLICY, 0}};
    const char *root = getenv("BALLAST_TEST_DATA");
    char path[1024];
    bl_npy npy;
    snprintf(path, sizeof path, "%s/routing/glm-5.2/windows_plan.npy",
             root != NULL ? root : "../shared/data");
    if (bl_npy_load(path, &npy, NULL) < 0) {
        fprintf(stderr, "bench_policy: no %s\n", path);
        return 0;
    }
    double *loads = calloc(npy.n_items, sizeof *loads);
    for (size_t i = 0; loads != NULL && i < sizeof ways / sizeof *ways; i++)
        measure(&npy, &ways[i], loads);
    free(loads);
    bl_npy_free(&npy);
    return 0;
}
