/* Row 13: what a move does to the steps beside it. Two ranks (threads) in lockstep, each step a fixed
 * piece of work; the same steps with and without experts on their way, taken in turns in one run. */
#include "core/mem.h"
#include "core/progress.h"
#include "rebalancer/agent.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    RANKS = 2,
    EXPERTS = 16,
    SLOTS = 8,
    BUNDLE = 1 << 20,
    BUDGET = 256 << 10,
    STEPS = 4000,
    BATCH = 100
};

typedef struct rank {
    bl_store *store;
    bl_agent *agent;
    bl_transport *transport;
    pthread_t thread;
} rank;

static rank ranks[RANKS];
static atomic_bool over;
static pthread_barrier_t gate;
static volatile double sink;

static void check(bl_status st, const bl_error *err) {
    if (st >= 0)
        return;
    fprintf(stderr, "bench_moves: %s\n", err->text);
    exit(1);
}

/* About a millisecond of arithmetic in registers. */
static void work(void) {
    double x = 1;
    for (int i = 0; i < 300000; i++)
        x = x * 1.0000001 + 1e-9;
    sink = x;
}

static void step(int r, uint64_t number) {
    bl_error err = BL_ERROR_INIT;
    pthread_barrier_wait(&gate);
    check(bl_agent_at_step(ranks[r].agent, number, &err), &err);
    work();
}

static void *other_rank(void *user) {
    (void)user;
    for (uint64_t number = 1; !atomic_load(&over); number++)
        step(1, number);
    return NULL;
}

static bl_placement placement(int shift) {
    bl_error err = BL_ERROR_INIT;
    bl_placement made;
    const int layer = 0, slots[] = {SLOTS, SLOTS};
    check(bl_placement_create(RANKS, EXPERTS, &layer, 1, slots, &made, &err), &err);
    for (int slot = 0; slot < EXPERTS; slot++)
        made.layers[0].expert[slot] = (slot + shift) % EXPERTS;
    return made;
}

static int compare(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double quantile(double *us, size_t n, double p) {
    qsort(us, n, sizeof *us, compare);
    return us[(size_t)(p * (double)(n - 1) + 0.5)];
}

static void print(const char *name, double value, const char *unit, size_t n) {
    printf("%s,%.6g,%s,%zu,,,\n", name, value, unit, n);
}

static double copy_us(void) {
    unsigned char *from = bl_calloc(BUNDLE, 1), *to = bl_calloc(BUNDLE, 1);
    double best = 1e9;
    for (int i = 0; from != NULL && to != NULL && i < 50; i++) {
        const uint64_t start = bl_now_ns();
        memcpy(to, from, BUNDLE);
        from[0] = to[BUNDLE - 1];
        const double took = (double)(bl_now_ns() - start) * 1e-3;
        best = took < best ? took : best;
    }
    free(from);
    free(to);
    return best;
}

static void set_up(const bl_placement *start) {
    bl_error err = BL_ERROR_INIT;
    bl_transport *handles[RANKS];
    const int layer = 0;
    bl_agent_options options = BL_AGENT_OPTIONS_INIT;
    options.step_bytes = BUDGET;
    check(bl_transport_local_open(RANKS, handles, &err), &err);
    pthread_barrier_init(&gate, NULL, RANKS);
    for (int r = 0; r < RANKS; r++) {
        ranks[r].transport = handles[r];
        check(bl_store_create(start, r, BUNDLE, 2, &ranks[r].store, &err), &err);
        check(
            bl_agent_create(ranks[r].store, handles[r], &layer, 1, &options, &ranks[r].agent, &err),
            &err);
    }
}

int main(void) {
    bl_error err = BL_ERROR_INIT;
    static double still[STEPS], moving[STEPS];
    size_t n_still = 0, n_moving = 0;
    uint64_t number = 1;
    bl_placement goals[2] = {placement(0), placement(SLOTS)};
    bl_agent_status status;
    set_up(&goals[0]);
    pthread_create(&ranks[1].thread, NULL, other_rank, NULL);
    for (int turn = 1; n_still < STEPS || n_moving < STEPS; turn++) {
        for (int i = 0; i < BATCH; i++) { /* without */
            const uint64_t start = bl_now_ns();
            step(0, number++);
            if (n_still < STEPS)
                still[n_still++] = (double)(bl_now_ns() - start) * 1e-3;
        }
        int n;
        check(bl_agent_apply(ranks[0].agent, &goals[turn % 2], &n, &err), &err);
        while (bl_agent_is_busy(ranks[0].agent)) { /* with */
            const uint64_t start = bl_now_ns();
            step(0, number++);
            if (n_moving < STEPS)
                moving[n_moving++] = (double)(bl_now_ns() - start) * 1e-3;
        }
    }
    bl_agent_get_status(ranks[0].agent, &status);
    atomic_store(&over, true);
    step(0, number);
    pthread_join(ranks[1].thread, NULL);
    const double a = quantile(still, n_still, 0.999), b = quantile(moving, n_moving, 0.999);
    print("moves.step_bytes_most", (double)status.max_step_bytes, "bytes", n_moving);
    print("moves.step_bytes_budget", BUDGET, "bytes", 1);
    print("moves.step_p50_still", quantile(still, n_still, 0.5), "us", n_still);
    print("moves.step_p50_moving", quantile(moving, n_moving, 0.5), "us", n_moving);
    print("moves.step_p999_still", a, "us", n_still);
    print("moves.step_p999_moving", b, "us", n_moving);
    print("moves.step_p999_difference", b - a, "us", n_moving);
    print("moves.bundle_copy", copy_us(), "us", 50);
    for (int r = 0; r < RANKS; r++) {
        bl_agent_free(ranks[r].agent);
        bl_store_free(ranks[r].store);
        bl_transport_close(ranks[r].transport);
    }
    bl_placement_free(&goals[0]);
    bl_placement_free(&goals[1]);
    return status.max_step_bytes <= BUDGET ? 0 : 1;
}
