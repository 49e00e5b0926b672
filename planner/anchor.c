#include "planner/anchor.h"

#include "planner/align.h"
#include "planner/holds.h"

#include <string.h>

typedef struct repair {
    const bl_problem *problem;
    double *load;        /* [n_experts] over all scenarios */
    const bl_holds *now; /* what the current placement holds: putting that back is no move */
    bl_layer_placement *placement;
    int *copies; /* [n_experts] */
    bl_holds holds;
    int moves;
} repair;

/* Take over what a rank holds and may hold, without doubles. */
static void take_over(repair *r, int rank) {
    const bl_layer_placement *current = r->problem->current;
    for (int slot = current->begin[rank]; slot < current->begin[rank + 1]; slot++) {
        const int32_t expert = current->expert[slot];
        if (expert != BL_NO_EXPERT && !bl_holds_has(&r->holds, rank, expert) &&
            bl_rules_may(r->problem->rules, rank, expert)) {
            bl_holds_set(&r->holds, rank, expert);
            r->copies[expert]++;
        }
    }
}

/* The held expert that is missed least: one with other copies if there is any, then the coldest. */
static int least_missed(const repair *r, int rank) {
    int best = -1;
    for (int expert = 0; expert < r->problem->n_experts; expert++) {
        if (!bl_holds_has(&r->holds, rank, expert))
            continue;
        const bool spare = r->copies[expert] > 1;
        const bool best_spare = best >= 0 && r->copies[best] > 1;
        if (best < 0 || (spare && !best_spare) ||
            (spare == best_spare &&
             r->load[expert] * r->copies[best] < r->load[best] * r->copies[expert]))
            best = expert;
    }
    return best;
}

/* Cut a rank to its slots and lay what is left into them. */
static void cut(repair *r, int rank) {
    bl_layer_placement *pl = r->placement;
    const int slots = pl->begin[rank + 1] - pl->begin[rank];
    int held = 0;
    for (int expert = 0; expert < r->problem->n_experts; expert++)
        held += bl_holds_has(&r->holds, rank, expert);
    for (; held > slots; held--) {
        const int expert = least_missed(r, rank);
        bl_holds_unset(&r->holds, rank, expert);
        r->copies[expert]--;
    }
    int at = pl->begin[rank];
    for (int expert = 0; expert < r->problem->n_experts; expert++) {
        if (bl_holds_has(&r->holds, rank, expert))
            pl->expert[at++] = expert;
    }
}

static double rank_load(const repair *r, int rank) {
    double sum = 0.0;
    for (int slot = r->placement->begin[rank]; slot < r->placement->begin[rank + 1]; slot++) {
        const int32_t expert = r->placement->expert[slot];
        if (expert != BL_NO_EXPERT)
            sum += r->load[expert] / r->copies[expert];
    }
    return sum;
}

static void put(repair *r, int slot, int rank, int expert) {
    const int32_t old = r->placement->expert[slot];
    if (old != BL_NO_EXPERT) {
        bl_holds_unset(&r->holds, rank, old);
        r->copies[old]--;
        r->moves -= !bl_holds_has(r->now, rank, old);
    }
    r->placement->expert[slot] = expert;
    bl_holds_set(&r->holds, rank, expert);
    r->copies[expert]++;
    r->moves += !bl_holds_has(r->now, rank, expert);
}

/* Give a lost expert a copy: where it lived before if it can, else in a hole, else in the place of
 * a copy whose expert has others; each time on the least loaded rank. Slots suffice, so one exists.
 */
static void cover(repair *r, int expert) {
    const bl_layer_placement *pl = r->placement;
    int best_slot = -1, best_rank = -1, best_class = 0;
    double best_load = 0.0;
    for (int rank = 0; rank < pl->n_ranks; rank++) {
        const double load = rank_load(r, rank);
        for (int slot = pl->begin[rank]; slot < pl->begin[rank + 1]; slot++) {
            const int32_t old = pl->expert[slot];
            if (old != BL_NO_EXPERT && r->copies[old] < 2)
                continue;
            const double rest = old == BL_NO_EXPERT ? load : load - r->load[old] / r->copies[old];
            const int class = 2 * bl_holds_has(r->now, rank, expert) + (old == BL_NO_EXPERT);
            if (best_slot < 0 || class > best_class || (class == best_class && rest < best_load)) {
                best_slot = slot;
                best_rank = rank;
                best_class = class;
                best_load = rest;
            }
        }
    }
    put(r, best_slot, best_rank, expert);
}

/* Fill one rank's holes with the hottest experts it lacks, while moves last. */
static void fill(repair *r, int rank) {
    const bl_layer_placement *pl = r->placement;
    for (int slot = pl->begin[rank]; slot < pl->begin[rank + 1]; slot++) {
        if (pl->expert[slot] != BL_NO_EXPERT)
            continue;
        const bool may_move = r->problem->max_moves < 0 || r->moves < r->problem->max_moves;
        int best = -1;
        for (int expert = 0; expert < pl->n_experts; expert++) {
            if (!bl_holds_has(&r->holds, rank, expert) &&
                bl_rules_may(r->problem->rules, rank, expert) &&
                (may_move || bl_holds_has(r->now, rank, expert)) &&
                (best < 0 || r->load[expert] * r->copies[best] > r->load[best] * r->copies[expert]))
                best = expert;
        }
        if (best >= 0)
            put(r, slot, rank, best);
    }
}

/* Cover every expert as the rules want it, and count anew. */
static bl_status keep_rules(repair *r, bl_error *err) {
    const bl_layer_placement *pl = r->placement;
    BL_TRY(bl_rules_repair(r->problem, r->load, r->placement, err));
    memset(r->holds.bits, 0, r->holds.words * (size_t)pl->n_ranks * sizeof *r->holds.bits);
    bl_holds_add(&r->holds, pl);
    for (int expert = 0; expert < pl->n_experts; expert++)
        r->copies[expert] = 0;
    r->moves = 0;
    for (int rank = 0; rank < pl->n_ranks; rank++) {
        for (int slot = pl->begin[rank]; slot < pl->begin[rank + 1]; slot++) {
            const int32_t expert = pl->expert[slot];
            if (expert == BL_NO_EXPERT)
                continue;
            r->copies[expert]++;
            r->moves += !bl_holds_has(r->now, rank, expert);
        }
    }
    return BL_OK;
}

static bl_status make_servable(repair *r, bl_error *err) {
    const bl_problem *problem = r->problem;
    for (int rank = 0; rank < problem->n_ranks; rank++)
        take_over(r, rank);
    for (int rank = 0; rank < problem->n_ranks; rank++)
        cut(r, rank);
    if (problem->rules != NULL)
        BL_TRY(keep_rules(r, err));
    for (int expert = 0; expert < problem->n_experts; expert++) {
        if (r->copies[expert] == 0)
            cover(r, expert);
    }
    if (problem->max_moves >= 0 && r->moves > problem->max_moves)
        return bl_fail_at(err, BL_ERR_INFEASIBLE, bl_at_layer(NULL, problem->layer),
                          "covering every expert from the current placement takes %d moves, more "
                          "than the %d allowed",
                          r->moves, problem->max_moves);
    for (int rank = 0; rank < problem->n_ranks; rank++)
        fill(r, rank);
    return bl_align_slots(problem, r->placement, err);
}

bl_status bl_anchor_start(const bl_problem *problem, bl_layer_placement *out, bl_error *err) {
    if (bl_problem_current_fits(problem))
        return bl_layer_placement_copy(problem->current, out, err);
    bl_layer_placement made = {0};
    BL_TRY(bl_problem_empty_placement(problem, &made, err));
    bl_holds now = {0};
    repair r = {.problem = problem, .now = &now, .placement = &made};
    bl_status st;
    BL_TRY_GOTO(st, bl_holds_create(problem->n_ranks, problem->n_experts, &now, err), done);
    BL_TRY_GOTO(st, bl_holds_create(problem->n_ranks, problem->n_experts, &r.holds, err), done);
    BL_TRY_GOTO(st, BL_CALLOC(r.copies, problem->n_experts, err), done);
    BL_TRY_GOTO(st, BL_CALLOC(r.load, problem->n_experts, err), done);
    bl_problem_sum_load(problem, r.load);
    bl_holds_add(&now, problem->current);
    BL_TRY_GOTO(st, make_servable(&r, err), done);
    *out = made;
    made = (bl_layer_placement){0};
done:
    free(r.load);
    free(r.copies);
    bl_holds_free(&r.holds);
    bl_holds_free(&now);
    bl_layer_placement_free(&made);
    return st;
}
