#include "planner/pairs.h"

#include "core/mem.h"
#include "planner/greedy.h"
#include "planner/replicate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Temperatures of what fold() returns, as parts of the target and per slot. */
#define HOTTEST_PER_SLOT 0.6
#define COLDEST_PER_SLOT 6e-4

typedef struct folding {
    const double *load;
    int n_experts, n_slots, most_copies;
    double target;
    int *copies;      /* [n_experts] */
    int *spare;       /* [n_slots - n_experts] whose copies beyond the first they are */
    double *copy;     /* [n_slots] loads of the copies, descending */
    double *trial;    /* [n_slots] the same after a proposal */
    int *best_copies; /* [n_experts] */
    double cost, best_peak;
} folding;

static int descending(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x < y) - (x > y);
}

static void list_copies(folding *f) {
    int n = 0, n_spare = 0;
    for (int expert = 0; expert < f->n_experts; expert++) {
        for (int i = 0; i < f->copies[expert]; i++) {
            f->copy[n++] = f->load[expert] / f->copies[expert];
            if (i > 0)
                f->spare[n_spare++] = expert;
        }
    }
    qsort(f->copy, (size_t)f->n_slots, sizeof *f->copy, descending);
}

/* trial = copy without `n_out` entries of value out[i] each, with n_in[i] entries of value in[i];
 * two of each. One pass: both lists descend. */
static void merge(folding *f, const double *out, int *n_out, const double *in, int *n_in) {
    const int first = in[0] >= in[1] ? 0 : 1;
    const int order[2] = {first, 1 - first};
    int at = 0, next = 0;
    for (int i = 0; i < f->n_slots; i++) {
        const double value = f->copy[i];
        if (n_out[0] > 0 && value == out[0]) {
            n_out[0]--;
            continue;
        }
        if (n_out[1] > 0 && value == out[1]) {
            n_out[1]--;
            continue;
        }
        for (; next < 2 && in[order[next]] >= value; next++) {
            while (n_in[order[next]]-- > 0)
                f->trial[at++] = in[order[next]];
        }
        f->trial[at++] = value;
    }
    for (; next < 2; next++) {
        while (n_in[order[next]]-- > 0)
            f->trial[at++] = in[order[next]];
    }
}

/* How far the folded pairs exceed the target: their 4-norm, close to the largest excess but with a
 * slope where the second largest improves. *peak is the heaviest pair. */
static double fold(const folding *f, const double *copy, double *peak) {
    double powers = 0.0, most = 0.0;
    for (int i = 0; 2 * i < f->n_slots; i++) {
        const double pair = copy[i] + copy[f->n_slots - 1 - i];
        const double over = pair - f->target;
        if (over > 0.0)
            powers += over * over * over * over;
        most = pair > most ? pair : most;
    }
    *peak = most;
    return sqrt(sqrt(powers));
}

static void remember(folding *f, double peak) {
    if (peak >= f->best_peak)
        return;
    f->best_peak = peak;
    memcpy(f->best_copies, f->copies, (size_t)f->n_experts * sizeof *f->copies);
}

static void propose(folding *f, bl_rng *rng, double temperature) {
    const int i = (int)bl_rng_below(rng, (uint32_t)(f->n_slots - f->n_experts));
    const int from = f->spare[i], to = (int)bl_rng_below(rng, (uint32_t)f->n_experts);
    const int had = f->copies[from], has = f->copies[to];
    if (from == to || has >= f->most_copies)
        return;
    const double out[2] = {f->load[from] / had, f->load[to] / has};
    const double in[2] = {f->load[from] / (had - 1), f->load[to] / (has + 1)};
    int n_out[2] = {had, has}, n_in[2] = {had - 1, has + 1};
    merge(f, out, n_out, in, n_in);
    double peak;
    const double cost = fold(f, f->trial, &peak);
    if (cost > f->cost && bl_rng_unit(rng) >= exp((f->cost - cost) / temperature))
        return;
    double *swap = f->copy;
    f->copy = f->trial;
    f->trial = swap;
    f->copies[from]--;
    f->copies[to]++;
    f->spare[i] = to;
    f->cost = cost;
    remember(f, peak);
}

static bl_status anneal(folding *f, int64_t proposals, bl_rng *rng, bl_error *err) {
    BL_TRY(bl_replicate(f->load, f->n_experts, f->n_slots, NULL, f->most_copies, f->copies, NULL,
                        NULL, err));
    list_copies(f);
    double peak;
    f->cost = fold(f, f->copy, &peak);
    f->best_peak = INFINITY;
    remember(f, peak);
    const double hottest = f->target * HOTTEST_PER_SLOT / f->n_slots;
    const double cooling = log(COLDEST_PER_SLOT / HOTTEST_PER_SLOT);
    for (int64_t i = 0; i < proposals && f->best_peak > f->target; i++)
        propose(f, rng, hottest * exp(cooling * (double)i / (double)proposals));
    return BL_OK;
}

bool bl_pairs_applies(const bl_problem *problem) {
    if (problem->rules != NULL)
        return false;
    for (int rank = 0; rank < problem->n_ranks; rank++) {
        if (problem->slots_per_rank[rank] != 0 && problem->slots_per_rank[rank] != 2)
            return false;
    }
    return bl_problem_n_slots(problem) > problem->n_experts;
}

bl_status bl_pairs(const bl_problem *problem, double target, int64_t proposals, bl_rng *rng,
                   bl_layer_placement *out, bl_error *err) {
    folding f = {.n_experts = problem->n_experts,
                 .n_slots = bl_problem_n_slots(problem),
                 .most_copies = bl_problem_active_ranks(problem),
                 .target = target};
    double *sum = NULL;
    bl_status st;
    BL_TRY_GOTO(st, BL_CALLOC(sum, f.n_experts, err), done);
    BL_TRY_GOTO(st, BL_CALLOC(f.copies, f.n_experts, err), done);
    BL_TRY_GOTO(st, BL_CALLOC(f.best_copies, f.n_experts, err), done);
    BL_TRY_GOTO(st, BL_CALLOC(f.spare, f.n_slots - f.n_experts, err), done);
    BL_TRY_GOTO(st, BL_CALLOC(f.copy, f.n_slots, err), done);
    BL_TRY_GOTO(st, BL_CALLOC(f.trial, f.n_slots, err), done);
    bl_problem_sum_load(problem, sum);
    f.load = sum;
    BL_TRY_GOTO(st, anneal(&f, proposals, rng, err), done);
    BL_TRY_GOTO(st, bl_pack(problem, sum, f.best_copies, out, err), done);
done:
    free(f.trial);
    free(f.copy);
    free(f.spare);
    free(f.best_copies);
    free(f.copies);
    free(sum);
    return st;
}
