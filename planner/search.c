#include "planner/search.h"

#include "core/progress.h"
#include "core/rng.h"
#include "planner/anneal.h"
#include "planner/descend.h"
#include "planner/robust.h"

#include <math.h>

#define DEFAULT_STEPS 1500
#define FEW_SLOTS_STEPS 4000
/* Steps of these left for kicks where moves have a price: they rarely pay for their moves, and the
 * bound, which would end them early, is out of reach. */
#define PRICED_KICK_STEPS 100
#define DEFAULT_PROPOSALS_PER_SLOT 700
#define LEAST_DEFAULT_PROPOSALS 10000
/* Changes of one kick: 1 .. this. More undo the descent's work, fewer fall back into the same
 * place. */
#define KICK_CHANGES 4
/* Kicks that find no legal change in so many tries give up: tiny problems may have none. */
#define KICK_TRIES 64
/* Looking for one copy of several. */
#define SPARE_TRIES 32
/* Few slots are annealed again and again, each time from the best so far: that takes milliseconds and
 * gets them out of corners. */
#define FEW_SLOTS 160
#define ROUNDS 4
/* Temperatures of annealing. The fewer slots, the larger the part of the objective that one change
 * makes: temperatures go with 1 / slots. Tuned on 28 shards of GLM-5.2, scored on 28 others. */
#define HOTTEST_PER_SLOT 1.0
#define COLDEST_PER_SLOT 0.03
/* From a current placement: hotter, every copy is moved before its price is felt. */
#define HOTTEST_PRICED_PER_SLOT 0.01
#define COLDEST_PRICED_PER_SLOT 0.002

/* A slot whose expert has other copies, where one is found soon. */
static int spare_slot(const bl_state *state, bl_rng *rng) {
    int slot = 0;
    for (int tries = 0; tries < SPARE_TRIES; tries++) {
        slot = (int)bl_rng_below(rng, (uint32_t)state->n_slots);
        if (state->expert[slot] != BL_NO_EXPERT && state->copies[state->expert[slot]] > 1)
            break;
    }
    return slot;
}

/* A few random changes, the first at the busiest rank. */
static bl_status kick(bl_state *state, bl_rng *rng, bl_change_log *log, bl_error *err) {
    int left = 1 + (int)bl_rng_below(rng, KICK_CHANGES);
    int from = bl_state_busiest(state, 0);
    for (int tries = 0; left > 0 && tries < KICK_TRIES; tries++) {
        const int slots = state->begin[from + 1] - state->begin[from];
        const int p = state->begin[from] + (int)bl_rng_below(rng, (uint32_t)slots);
        if (bl_rng_below(rng, 4) == 0) {
            const int slot = spare_slot(state, rng);
            const int expert = bl_rng_below(rng, 2) == 0
                                   ? state->expert[spare_slot(state, rng)]
                                   : (int)bl_rng_below(rng, (uint32_t)state->n_experts);
            if (expert == BL_NO_EXPERT || !bl_state_may_replace(state, slot, expert))
                continue;
            BL_TRY(bl_change_replace(state, slot, expert, log, err));
        } else {
            const int q = (int)bl_rng_below(rng, (uint32_t)state->n_slots);
            if (!bl_state_may_swap(state, p, q))
                continue;
            BL_TRY(bl_change_swap(state, p, q, log, err));
        }
        from = bl_state_busiest(state, 0);
        left--;
    }
    return BL_OK;
}

static bl_status search_one(bl_state *state, const bl_search_options *options, double target,
                            bl_rng *rng, bl_change_log *log, bl_error *err) {
    const double deadline = options->time_s > 0.0 ? bl_now_s() + options->time_s : INFINITY;
    int64_t steps = state->n_slots <= FEW_SLOTS ? FEW_SLOTS_STEPS : DEFAULT_STEPS;
    if (options->iterations > 0)
        steps = options->iterations;
    if (options->time_s > 0.0)
        steps = INT64_MAX;
    BL_TRY(bl_descend(state, target, &steps, log, err));
    if (state->move_price > 0.0 && options->iterations == 0 && options->time_s <= 0.0 &&
        steps > PRICED_KICK_STEPS)
        steps = PRICED_KICK_STEPS;
    while (state->objective > target && steps > 0) {
        if (bl_interrupted())
            return BL_LIMIT;
        if (options->time_s > 0.0 && bl_now_s() >= deadline)
            break;
        const double cost = bl_state_cost(state);
        log->n = 0;
        steps--;
        BL_TRY(kick(state, rng, log, err));
        BL_TRY(bl_descend(state, target, &steps, log, err));
        if (bl_state_cost(state) > cost)
            bl_change_undo(state, log, 0);
    }
    return BL_OK;
}

static bl_status search_several(bl_state *state, const bl_search_options *options, double target,
                                bl_rng *rng, bl_error *err) {
    int64_t proposals = (int64_t)state->n_slots * DEFAULT_PROPOSALS_PER_SLOT;
    if (options->iterations > 0)
        proposals = options->iterations;
    else if (proposals < LEAST_DEFAULT_PROPOSALS)
        proposals = LEAST_DEFAULT_PROPOSALS;
    const bool priced = state->move_price > 0.0;
    const double hottest = priced ? HOTTEST_PRICED_PER_SLOT : HOTTEST_PER_SLOT;
    const double coldest = priced ? COLDEST_PRICED_PER_SLOT : COLDEST_PER_SLOT;
    const bl_anneal_options anneal = {.proposals = proposals,
                                      .time_s = options->time_s,
                                      .target = target,
                                      .hottest = hottest / state->n_slots,
                                      .coldest = coldest / state->n_slots};
    bl_status st = BL_OK;
    const int rounds =
        state->n_slots <= FEW_SLOTS && options->iterations == 0 && options->time_s <= 0.0 ? ROUNDS
                                                                                          : 1;
    for (int round = 0; round < rounds && st == BL_OK && state->objective > target; round++)
        st = bl_anneal(state, &anneal, rng, err);
    return st;
}

bl_status bl_search(const bl_problem *problem, const bl_search_options *options,
                    bl_layer_placement *placement, bl_error *err) {
    bl_rng rng;
    bl_rng_seed(&rng, options->seed);
    if (problem->tail > 0.0) {
        const bl_robust_options robust = {options->iterations, options->time_s,
                                          options->move_price};
        return bl_robust_search(problem, &robust, &rng, placement, err);
    }
    /* Score 1 as an objective. */
    const double unit = bl_problem_total_load(problem) / bl_problem_active_ranks(problem);
    bl_state state;
    BL_TRY(bl_state_create(problem, placement, &state, err));
    state.move_price = problem->current != NULL ? options->move_price * unit : 0.0;
    bl_change_log log = {0};
    bl_status st;
    if (problem->n_scenarios == 1)
        st = search_one(&state, options, options->target * unit, &rng, &log, err);
    else
        st = search_several(&state, options, options->target * unit, &rng, err);
    if (st >= 0)
        bl_state_store(&state, placement);
    free(log.items);
    bl_state_free(&state);
    return st;
}
