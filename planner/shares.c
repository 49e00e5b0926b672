#include "planner/shares.h"

#include "core/mem.h"

#include <math.h>
#include <stdlib.h>

/* Turns after which levelling stops even if it still gains; each turn is one pass over the experts
 * with copies. In practice a handful to a few dozen suffice. */
#define MAX_TURNS 1000
/* A turn that moves less than this part of the mean rank load is the last one. */
#define SETTLED 1e-9

/* Pour `amount` onto `n` vessels that already hold base[i] so that the highest level is lowest:
 * fills the lowest ones up to a common level. `order` is scratch for n ints. */
static void pour(double amount, const double *base, int n, int *order, double *poured) {
    for (int i = 0; i < n; i++) {
        int at = i;
        for (; at > 0 && base[order[at - 1]] > base[i]; at--)
            order[at] = order[at - 1];
        order[at] = i;
        poured[i] = 0.0;
    }
    double sum = amount, level = 0.0;
    int filled = 0;
    while (filled < n && (filled == 0 || base[order[filled]] < level)) {
        sum += base[order[filled]];
        filled++;
        level = sum / filled;
    }
    for (int i = 0; i < filled; i++) {
        const double part = level - base[order[i]];
        poured[order[i]] = part > 0.0 ? part : 0.0;
    }
}

typedef struct levelling {
    const bl_copies *copies;
    const double *load;
    double *share, *rank_load;
    double *base, *poured; /* [most copies of an expert] */
    int *order;
} levelling;

/* One turn for one expert; returns how much load changed its rank. */
static double level_expert(levelling *lv, int expert) {
    const int first = lv->copies->first[expert];
    const int n = lv->copies->first[expert + 1] - first;
    const double load = lv->load[expert];
    if (n < 2 || load <= 0.0)
        return 0.0;
    for (int i = 0; i < n; i++)
        lv->base[i] = lv->rank_load[lv->copies->rank[first + i]] -
                      lv->share[lv->copies->slot[first + i]] * load;
    pour(load, lv->base, n, lv->order, lv->poured);
    double moved = 0.0, sum = 0.0;
    for (int i = 0; i < n; i++)
        sum += lv->poured[i];
    for (int i = 0; i < n; i++) {
        const double share = lv->poured[i] / sum;
        const int slot = lv->copies->slot[first + i];
        moved += fabs(share - lv->share[slot]) * load;
        lv->share[slot] = share;
        lv->rank_load[lv->copies->rank[first + i]] = lv->base[i] + share * load;
    }
    return moved;
}

static void level(levelling *lv, int n_ranks) {
    const bl_copies *copies = lv->copies;
    double total = 0.0;
    for (int expert = 0; expert < copies->n_experts; expert++) {
        total += lv->load[expert];
        for (int i = copies->first[expert]; i < copies->first[expert + 1]; i++)
            lv->rank_load[copies->rank[i]] += lv->share[copies->slot[i]] * lv->load[expert];
    }
    for (int turn = 0; turn < MAX_TURNS; turn++) {
        double moved = 0.0;
        for (int expert = 0; expert < copies->n_experts; expert++)
            moved += level_expert(lv, expert);
        if (moved <= SETTLED * total / n_ranks)
            break;
    }
}

bl_status bl_shares_level(const bl_layer_placement *placement, const double *load, double *share,
                          bl_error *err) {
    bl_copies copies;
    BL_TRY(bl_copies_of(placement, &copies, err));
    bl_split_even_shares(placement, &copies, share);
    int most = 1;
    for (int expert = 0; expert < copies.n_experts; expert++) {
        const int n = copies.first[expert + 1] - copies.first[expert];
        most = n > most ? n : most;
    }
    levelling lv = {.copies = &copies, .load = load, .share = share};
    bl_status st;
    BL_TRY_GOTO(st, BL_CALLOC(lv.rank_load, placement->n_ranks, err), done);
    BL_TRY_GOTO(st, BL_CALLOC(lv.base, most, err), done);
    BL_TRY_GOTO(st, BL_CALLOC(lv.poured, most, err), done);
    BL_TRY_GOTO(st, BL_CALLOC(lv.order, most, err), done);
    level(&lv, placement->n_ranks);
done:
    free(lv.order);
    free(lv.poured);
    free(lv.base);
    free(lv.rank_load);
    bl_copies_free(&copies);
    return st;
}

static bl_status level_on_sum(const bl_problem *problem, const bl_layer_placement *placement,
                              double *share, bl_error *err) {
    double *sum;
    BL_TRY(BL_CALLOC(sum, problem->n_experts, err));
    bl_problem_sum_load(problem, sum);
    const bl_status st = bl_shares_level(placement, sum, share, err);
    free(sum);
    return st;
}

bl_status bl_shares_unsupported(const bl_problem *problem, bl_error *err) {
    return bl_fail_at(
        err, BL_ERR_UNSUPPORTED, bl_at_layer(NULL, problem->layer),
        "the split rule '%s' looks at the rank a token is born on, which loads alone do "
        "not tell; plan with --rule even or fractions",
        bl_rule_names[problem->rule]);
}

bl_status bl_shares_of(const bl_problem *problem, const bl_layer_placement *placement,
                       double *share, bl_error *err) {
    if (problem->rule == BL_RULE_FRACTIONS)
        return level_on_sum(problem, placement, share, err);
    if (problem->rule != BL_RULE_EVEN)
        return bl_shares_unsupported(problem, err);
    bl_copies copies;
    BL_TRY(bl_copies_of(placement, &copies, err));
    bl_split_even_shares(placement, &copies, share);
    bl_copies_free(&copies);
    return BL_OK;
}
