/* Row 13: what a move does to the steps beside it. Two ranks (threads) in lockstep, each step a fixed
 * piece of work. A block of steps without a move, the steps of one move, another block without, and so
 * on: what the machine does to both, it does to both at about the same time. Where there are cores
 * enough each rank has one to itself and waits there without sleeping, so that the scheduler is not what
 * is measured; the rows say whether that was so.
 *
 * Steps are taken in rounds, and each figure is the median over the rounds, with the least and the
 * greatest. "noise" is what the same difference comes to between the even and the odd blocks without a
 * move, which differ in nothing: a difference below it says nothing. */
#define _GNU_SOURCE /* pthread_setaffinity_np() */
#include "core/mem.h"
#include "core/progress.h"
#include "rebalancer/agent.h"

#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    RANKS = 2,
    EXPERTS = 16,
    SLOTS = 8,
    BUNDLE = 1 << 20,
    BUDGET = 256 << 10,
    ROUNDS = 5,
    STEPS = 4000, /* of a round and kind: four are above the p99.9 */
    BATCH = 50,
    COLD = 64 /* bundles, more than caches hold */
};

typedef struct rank {
    bl_store *store;
    bl_agent *agent;
    bl_transport *transport;
    pthread_t thread;
} rank;

static rank ranks[RANKS];
static atomic_bool over;
static bool pinned;
static pthread_barrier_t gate;
static atomic_uint arrived, opened; /* the gate of pinned ranks */
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

static void wait_at_gate(void) {
    if (!pinned) {
        pthread_barrier_wait(&gate);
        return;
    }
    const unsigned turn = atomic_load(&opened);
    if (atomic_fetch_add(&arrived, 1) + 1 == RANKS) {
        atomic_store(&arrived, 0);
        atomic_fetch_add(&opened, 1);
    }
    while (atomic_load(&opened) == turn)
        ;
}

/* The rank's own core, the r-th of those this process may use; core 0 is left to the machine if there
 * are others enough. */
static void pin(int r) {
    cpu_set_t may, mine;
    int at = -1;
    if (!pinned || sched_getaffinity(0, sizeof may, &may) != 0)
        return;
    for (int left = r + (CPU_COUNT(&may) > RANKS); left >= 0; left--) {
        do
            at++;
        while (!CPU_ISSET((size_t)at, &may));
    }
    CPU_ZERO(&mine);
    CPU_SET((size_t)at, &mine);
    pthread_setaffinity_np(pthread_self(), sizeof mine, &mine);
}

static bool has_cores(void) {
    cpu_set_t may;
    return sched_getaffinity(0, sizeof may, &may) == 0 && CPU_COUNT(&may) >= RANKS;
}

static void step(int r, uint64_t number) {
    bl_error err = BL_ERROR_INIT;
    wait_at_gate();
    check(bl_agent_at_step(ranks[r].agent, number, &err), &err);
    work();
}

static void *other_rank(void *user) {
    (void)user;
    pin(1);
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

/* The median of the rounds, the least and the greatest. */
static void print(const char *name, double *values, const char *unit, size_t n) {
    qsort(values, ROUNDS, sizeof *values, compare);
    printf("%s,%.6g,%s,%zu,%.6g,%.6g,%.6g\n", name, values[ROUNDS / 2], unit, n, values[0],
           values[ROUNDS / 2], values[ROUNDS - 1]);
}

static void print_exact(const char *name, double value, const char *unit) {
    printf("%s,%.6g,%s,1,,,\n", name, value, unit);
}

/* Of one bundle after another, none of which is in a cache, as the store meets them; and of the same one
 * again and again. */
static void time_copies(double *cold_us, double *warm_us) {
    unsigned char *from = bl_calloc(COLD, BUNDLE), *to = bl_calloc(COLD, BUNDLE);
    double cold[COLD], warm[COLD];
    if (from == NULL || to == NULL)
        exit(1);
    memset(from, 1, (size_t)COLD * BUNDLE); /* pages of their own */
    memset(to, 2, (size_t)COLD * BUNDLE);
    for (int i = 0; i < 2 * COLD; i++) {
        const size_t at = i < COLD ? (size_t)i * BUNDLE : 0;
        const uint64_t start = bl_now_ns();
        memcpy(to + at, from + at, BUNDLE);
        from[at] = to[at + BUNDLE - 1];
        *(i < COLD ? &cold[i] : &warm[i - COLD]) = (double)(bl_now_ns() - start) * 1e-3;
    }
    *cold_us = quantile(cold, COLD, 0.5);
    *warm_us = quantile(warm, COLD, 0.5);
    free(from);
    free(to);
}

static unsigned char *bundle_of(int expert) {
    static unsigned char bundle[BUNDLE];
    for (size_t i = 0; i < BUNDLE; i++)
        bundle[i] = (unsigned char)(i * 31 + (size_t)expert * 7 + (i >> 12));
    return bundle;
}

/* Experts that are not where the map says, byte by byte: speed is worth nothing without. */
static int wrong_experts(void) {
    int n = 0;
    for (int r = 0; r < RANKS; r++) {
        const bl_layer_placement *map = bl_store_map(ranks[r].store, 0);
        for (int slot = map->begin[r]; slot < map->begin[r + 1]; slot++) {
            const void *held = bl_store_expert(ranks[r].store, 0, map->expert[slot]);
            n += held == NULL || memcmp(held, bundle_of(map->expert[slot]), BUNDLE) != 0;
        }
    }
    return n;
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
        for (int slot = r * SLOTS; slot < (r + 1) * SLOTS; slot++)
            memcpy(bl_store_slot(ranks[r].store, 0, slot), bundle_of(start->layers[0].expert[slot]),
                   BUNDLE);
        check(
            bl_agent_create(ranks[r].store, handles[r], &layer, 1, &options, &ranks[r].agent, &err),
            &err);
    }
}

/* Steps of one round: without a move, of even and odd blocks, and of moves. */
typedef struct round_steps {
    double still[2][STEPS], moving[STEPS];
    size_t n_still[2], n_moving;
} round_steps;

static double timed_step(uint64_t *number) {
    const uint64_t start = bl_now_ns();
    step(0, (*number)++);
    return (double)(bl_now_ns() - start) * 1e-3;
}

static void run_round(round_steps *out, const bl_placement *goals, uint64_t *number) {
    bl_error err = BL_ERROR_INIT;
    static int turn;
    out->n_still[0] = out->n_still[1] = out->n_moving = 0;
    while (out->n_still[1] < STEPS || out->n_moving < STEPS) {
        const int half = turn % 2;
        int n;
        for (int i = 0; i < BATCH; i++) {
            const double us = timed_step(number);
            if (out->n_still[half] < STEPS)
                out->still[half][out->n_still[half]++] = us;
        }
        check(bl_agent_apply(ranks[0].agent, &goals[++turn % 2], &n, &err), &err);
        while (bl_agent_is_busy(ranks[0].agent)) {
            const double us = timed_step(number);
            if (out->n_moving < STEPS)
                out->moving[out->n_moving++] = us;
        }
    }
}

int main(void) {
    static round_steps steps;
    static double all[2 * STEPS];
    double still[ROUNDS], moving[ROUNDS], more[ROUNDS], noise[ROUNDS], p50_still[ROUNDS],
        p50_moving[ROUNDS], cold_us, warm_us;
    uint64_t number = 1;
    bl_placement goals[2] = {placement(0), placement(SLOTS)};
    bl_agent_status status;
    pinned = has_cores();
    time_copies(&cold_us, &warm_us);
    set_up(&goals[0]);
    pthread_create(&ranks[1].thread, NULL, other_rank, NULL);
    pin(0);
    for (int round = 0; round < ROUNDS; round++) {
        run_round(&steps, goals, &number);
        memcpy(all, steps.still[0], sizeof steps.still[0]);
        memcpy(all + STEPS, steps.still[1], sizeof steps.still[1]);
        noise[round] =
            fabs(quantile(steps.still[0], STEPS, 0.999) - quantile(steps.still[1], STEPS, 0.999));
        p50_still[round] = quantile(all, 2 * STEPS, 0.5);
        still[round] = quantile(all, 2 * STEPS, 0.999);
        p50_moving[round] = quantile(steps.moving, STEPS, 0.5);
        moving[round] = quantile(steps.moving, STEPS, 0.999);
        more[round] = moving[round] - still[round];
    }
    bl_agent_get_status(ranks[0].agent, &status);
    atomic_store(&over, true);
    step(0, number);
    pthread_join(ranks[1].thread, NULL);
    const int n_wrong = wrong_experts();
    print_exact("moves.wrong_experts", n_wrong, "experts");
    print_exact("moves.ranks_pinned", pinned, "bool");
    print_exact("moves.step_bytes_most", (double)status.max_step_bytes, "bytes");
    print_exact("moves.step_bytes_budget", BUDGET, "bytes");
    print_exact("moves.holds", (double)status.holds, "holds");
    print("moves.step_p50_still", p50_still, "us", 2 * STEPS);
    print("moves.step_p50_moving", p50_moving, "us", STEPS);
    print("moves.step_p999_still", still, "us", 2 * STEPS);
    print("moves.step_p999_moving", moving, "us", STEPS);
    print("moves.step_p999_difference", more, "us", STEPS);
    print("moves.step_p999_noise", noise, "us", STEPS);
    print_exact("moves.bundle_copy", cold_us, "us");
    print_exact("moves.bundle_copy_cached", warm_us, "us");
    for (int r = 0; r < RANKS; r++) {
        bl_agent_free(ranks[r].agent);
        bl_store_free(ranks[r].store);
        bl_transport_close(ranks[r].transport);
    }
    bl_placement_free(&goals[0]);
    bl_placement_free(&goals[1]);
    return status.max_step_bytes <= BUDGET && n_wrong == 0 ? 0 : 1;
}
