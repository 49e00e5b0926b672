/*
 * split_step.h: the per-step split: which copy serves how many of this step's token rows.
 *
 * Under BL_RULE_PER_STEP the ranks agree each step on the rows every expert has got (one allgather)
 * and divide each expert's rows among its copies anew, so that the busiest rank has as little as
 * possible to do. For a fixed placement that is a flow:
 *
 *     expert e, rows w_e  ──▶  its copies  ──▶  rank g, at most T        least T that carries all
 *
 * An expert with one copy has no choice; the others (a few dozen) pour their rows over the ranks
 * they share. Rows are whole, and so is the answer: with whole w_e and T the flow is whole too.
 *
 * *Proof.* Take any set S of ranks. Experts whose copies all lie within S must be served there, so
 *
 *     T >= ceil( rows of the experts wholly within S / |S| )                         (the cut S)
 *
 * and by max-flow = min-cut the largest such cut is reached. The solver works from both sides. It
 * keeps a whole split and a T that some cut proves. While a rank holds more than T it looks for a
 * path of shared experts from there to a rank that holds less, and shifts rows along it. When there
 * is none, the ranks it came by form a cut that forbids T: no row on them can leave them. Then T
 * rises to what that cut demands, and the work goes on with the split at hand. It ends with a split
 * whose busiest rank equals a proven cut.
 *
 * *Slack.* With slack > 0 it ends as soon as the busiest rank is within T (1 + slack), T being
 * proven: an answer that is within `slack` of the best split by proof, in less time. 0.01 is meant
 * for the step of a running engine, 0 for scores.
 *
 * A solver is made once per placement and holds all its scratch: solving allocates nothing, has no
 * randomness, and depends on nothing but placement and counts, so all ranks come to the same split
 * without talking about it. One thread at a time.
 */
#ifndef BL_CORE_SPLIT_STEP_H
#define BL_CORE_SPLIT_STEP_H

#include "core/placement.h"

/* Rows of one expert in one step that a solver takes: below this, no sum overflows. */
#define BL_STEP_SPLIT_MAX_ROWS (UINT64_C(1) << 44)
#define BL_STEP_SPLIT_MAX_EXPERTS 65536

typedef struct bl_step_split bl_step_split;

/* A solver for a placement whose every expert has a copy and no rank holds one twice (checked).
 * Free with bl_step_split_free(). */
bl_status bl_step_split_create(const bl_layer_placement *placement, bl_step_split **out_p,
                               bl_error *err);
void bl_step_split_free(bl_step_split *split); /* NULL is fine */

/* Go on with other experts in the same slots, expert[n_slots]: hard rules kept, which is asserted
 * for range and coverage only. For searches that look at many placements of one shape. */
void bl_step_split_set(bl_step_split *split, const int32_t *expert);

typedef struct bl_step_split_result {
    uint64_t rows;    /* of the step */
    uint64_t busiest; /* rows of the busiest rank under the split found */
    uint64_t bound;   /* no split of this placement has less: busiest == bound when slack is 0 */
} bl_step_split_result;

/* Split count[n_experts] rows. BL_ERR_RANGE: an expert has BL_STEP_SPLIT_MAX_ROWS or more. */
bl_status bl_step_split_solve(bl_step_split *split, const uint64_t *count, double slack,
                              bl_step_split_result *out, bl_error *err);

/* Of the latest solution: rows[n_slots] each slot serves, 0 for an empty one. */
void bl_step_split_rows(const bl_step_split *split, const uint64_t *count, uint64_t *rows);

/* Of the latest solution: the ranks of the cut that proves the bound. Returns how many; they are
 * valid until the next call. */
int bl_step_split_cut(const bl_step_split *split, const int **ranks_p);

#endif
