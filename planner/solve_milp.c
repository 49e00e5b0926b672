#include "planner/solve_milp.h"

#include "planner/align.h"
#include "planner/exact.h"
#include "planner/neighbour.h"
#include "planner/search.h"

/* ---- neighbourhoods of two ranks --------------------------------------------------------------*/

/* A pair takes some milliseconds. With one load vector and nothing in force the search is rarely
 * improved on; with several, or a price of moves, more often than not. */
#define PAIRS 16
#define PAIRS_OF_ONE 4
#define PAIR_NODES 200

static bool are_pairs_wanted(const bl_problem *problem, const bl_solve_options *options,
                             const bl_solution *solution) {
    const bool asked = options->algorithm == BL_ALG_AUTO || options->algorithm == BL_ALG_EXACT;
    return asked && problem->rule == BL_RULE_EVEN && problem->tail <= 0.0 &&
           options->time_s <= 0.0 && bl_milp_solver() != NULL &&
           solution->phases.searched > solution->bound.max_over_mean * (1.0 + BL_SEARCH_CLOSE);
}

static bl_status improve_pairs(const bl_problem *problem, double move_price, bl_solution *solution,
                               bl_error *err) {
    const bool one = problem->n_scenarios == 1 && problem->current == NULL;
    const bl_neighbour_options options = {
        .pairs = one ? PAIRS_OF_ONE : PAIRS,
        .max_nodes = PAIR_NODES,
        .target = solution->bound.max_over_mean * (1.0 + BL_SEARCH_CLOSE),
        .move_price = problem->current != NULL ? move_price : 0.0};
    bl_solve_phases *phases = &solution->phases;
    const bl_status st =
        bl_neighbours(problem, &options, &solution->placement, &phases->pairs, err);
    BL_TRY(st);
    bl_score score;
    BL_TRY(bl_evaluate(problem, &solution->placement, &score, err));
    phases->after_pairs = score.max_over_mean;
    solution->improved_by_milp = phases->pairs.improved > 0;
    return st;
}

/* ---- exact ------------------------------------------------------------------------------------*/

/* Small enough that a bounded tree often closes it, in a second at the most. Every scenario adds
 * rows to each node's LP and loosens the bound, so binaries count once for each. */
#define AUTO_EXPERTS 32
#define AUTO_BINARIES 1000
#define AUTO_NODES 2000
/* A net under the node limit, too far down to matter on any machine. */
#define AUTO_SECONDS 30.0
/* Beyond this the model alone takes gigabytes and nothing comes of it. */
#define EXACT_BINARIES 20000
#define EXACT_SECONDS 60.0

static bool is_exact_wanted(const bl_problem *problem, const bl_solve_options *options,
                            const bl_solution *solution) {
    const double score = solution->phases.after_pairs, bound = solution->bound.max_over_mean;
    if (options->algorithm == BL_ALG_EXACT)
        return score > bound * (1.0 + BL_EXACT_GAIN);
    return options->algorithm == BL_ALG_AUTO && problem->rule == BL_RULE_EVEN &&
           problem->tail <= 0.0 && bl_milp_solver() != NULL && problem->n_experts <= AUTO_EXPERTS &&
           bl_exact_size(problem) * problem->n_scenarios <= AUTO_BINARIES &&
           score > bound * (1.0 + BL_SEARCH_CLOSE);
}

bl_status bl_solve_check_exact(const bl_problem *problem, bl_error *err) {
    if (problem->rule != BL_RULE_EVEN)
        return bl_fail_at(err, BL_ERR_UNSUPPORTED, bl_at_layer(NULL, problem->layer),
                          "exact plans are made for the split rule 'even' only, not for '%s'; plan "
                          "with --algorithm search",
                          bl_rule_names[problem->rule]);
    const int64_t size = bl_exact_size(problem);
    if (size > EXACT_BINARIES)
        return bl_fail_at(
            err, BL_ERR_UNSUPPORTED, bl_at_layer(NULL, problem->layer),
            "%d experts on %d ranks are too many for an exact plan (%lld binaries, at "
            "most %d); plan with --algorithm search, which proves its gap as well",
            problem->n_experts, problem->n_ranks, (long long)size, EXACT_BINARIES);
    return BL_OK;
}

/* Ask GLPK for something better than the search's placement. Its answer is laid over the current
 * placement and taken only within the move limit. */
static bl_status improve_exactly(const bl_problem *problem, const bl_solve_options *options,
                                 bl_solution *solution, bl_error *err) {
    const bool is_auto = options->algorithm == BL_ALG_AUTO;
    const double seconds = options->time_s > 0.0 ? options->time_s : EXACT_SECONDS;
    const double score = solution->phases.after_pairs;
    const bl_milp_limits limits = {.max_nodes = is_auto ? AUTO_NODES : 0,
                                   .time_s = is_auto ? AUTO_SECONDS : seconds};
    bl_layer_placement found;
    bl_exact_result exact;
    BL_TRY(bl_layer_placement_copy(&solution->placement, &found, err));
    bl_status st =
        bl_exact(problem, score, solution->bound.max_over_mean, &limits, &found, &exact, err);
    if (st >= 0 && exact.improved && problem->current != NULL)
        st = bl_align(problem, &found, err);
    if (st < 0) {
        bl_layer_placement_free(&found);
        return st;
    }
    const bool allowed = problem->current == NULL || problem->max_moves < 0 ||
                         bl_layer_moves(problem->current, &found) <= problem->max_moves;
    solution->phases.exact_nodes = exact.nodes;
    solution->improved_by_milp = solution->improved_by_milp || (exact.improved && allowed);
    solution->proven_by_milp = exact.proven && (!exact.improved || allowed);
    if (exact.bound > solution->bound.max_over_mean)
        solution->bound = (bl_bound){exact.bound, "exact"};
    if (!exact.improved || !allowed) {
        bl_layer_placement_free(&found);
    } else {
        bl_layer_placement_free(&solution->placement);
        solution->placement = found;
    }
    if (solution->proven_by_milp) {
        bl_score best;
        BL_TRY(bl_evaluate(problem, &solution->placement, &best, err));
        solution->bound = (bl_bound){best.max_over_mean, "exact"};
    }
    return exact.proven || is_auto ? BL_OK : BL_LIMIT;
}

bl_status bl_solve_by_milp(const bl_problem *problem, const bl_solve_options *options,
                           double move_price, bl_solution *solution, bl_error *err) {
    bl_status st = BL_OK;
    solution->phases.after_pairs = solution->phases.searched;
    if (are_pairs_wanted(problem, options, solution)) {
        st = improve_pairs(problem, move_price, solution, err);
        BL_TRY(st);
    }
    return st == BL_OK && is_exact_wanted(problem, options, solution)
               ? improve_exactly(problem, options, solution, err)
               : st;
}
