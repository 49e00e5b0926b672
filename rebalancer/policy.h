/*
 * policy.h: when to move experts, and when to leave them alone.
 *
 * A pure function, like the transaction: (state, what is known, time) -> (state, decision). It reads
 * no clock, plans nothing and moves nothing; whoever drives it (cli/controller.h, the simulator of
 * tests/test_policy.c) does. Each decision carries one line that says it with its figures.
 *
 *     a window of load       bl_policy_window()  ->  WAIT, or PLAN: worth looking for something better
 *     a plan and its price   bl_policy_weigh()   ->  WAIT, or MOVE
 *     a move has ended       bl_policy_moved()
 *     windows after it       bl_policy_window()  ->  ROLL_BACK when it turned out markedly worse
 *
 * The rule is one line:
 *
 *     trust x (now - after) / now x experts_s  x  steps in dwell   >   margin x cost_s
 *     \_______ what a step gets shorter _____/
 *
 *     now, after   imbalance (max/mean) of the placement in force and of the plan, on the same loads
 *     experts_s    time in experts of one step: the part of a step that imbalance stretches
 *     dwell        for how long a plan is expected to stay good
 *     cost_s       time that serving loses to the move
 *
 * What keeps it from swinging, since what it sees is late and noisy:
 *
 *     evidence     nothing is planned before `min_windows` windows in a row were over the trigger, nor
 *                  moved before they reach back as far as the move takes: a burst shorter than a move is
 *                  over before it could be served
 *     noise        max/mean of few rows is above 1 by chance; a gain smaller than that chance does
 *                  not count (sqrt(2 ln ranks / rows per rank))
 *     hysteresis   the trigger is above the level that a plan must reach; margin > 1
 *     damping      `trust` is the part of promised gains that came true, a moving average: promises
 *                  that do not hold make it act less and less
 *     dwell        a moving average of how long plans did stay good, so that a load that swings
 *                  faster than a move pays for itself is left alone
 *     rate limit   `rest_s` between two moves
 *
 * A move is taken back when windows after it show, `patience` of them in a row, an imbalance above the
 * one before the move and by `worse` above the promised one; or, twice as many since clocks are noisier
 * than counts, steps that take `slower` longer than the slowest of the windows before the move that had
 * about as many tokens per step.
 *
 * Time is in seconds on any clock that goes forward.
 */
#ifndef BL_REBALANCER_POLICY_H
#define BL_REBALANCER_POLICY_H

#include <stdbool.h>
#include <stdint.h>

#define BL_POLICY_LINE 240

typedef struct bl_policy_options {
    double trigger;  /* imbalance below which nothing is planned */
    int min_windows; /* in a row over the trigger */
    double margin;   /* gain over cost, at least; >= 1 */
    double dwell_s;  /* until experience says otherwise, and the most it may say */
    double rest_s;   /* between two moves */
    double worse;    /* realised over predicted imbalance from which a move has failed: 0.15 */
    int patience;    /* windows in a row of that before it is taken back */
    double slower;   /* step time over the longest before, from which a move has failed: 0.5 */
} bl_policy_options;

#define BL_POLICY_OPTIONS_INIT ((bl_policy_options){1.05, 2, 1.5, 600.0, 5.0, 0.15, 3, 0.5})

/* One window of load, under the placement in force. */
typedef struct bl_policy_window_in {
    double seconds;       /* it lasted */
    double imbalance;     /* realised */
    double rows_per_rank; /* mean over ranks and layers: what the imbalance was measured on */
    int n_ranks;
    bool moving;           /* experts were on their way: says nothing about a placement */
    double step_s, tokens; /* of one step, means; 0: not known */
} bl_policy_window_in;

/* A plan that could be moved to. */
typedef struct bl_policy_offer {
    double now, after; /* imbalance on loads that the plan was not made from */
    double experts_s;  /* time in experts of one step */
    double step_s;     /* time of one step */
    int moves;
    double bytes;
    double cost_s;     /* what serving loses to the move */
    double duration_s; /* from its begin to its end */
} bl_policy_offer;

typedef enum bl_policy_verdict {
    BL_POLICY_WAIT,
    BL_POLICY_PLAN,
    BL_POLICY_MOVE,
    BL_POLICY_ROLL_BACK
} bl_policy_verdict;

typedef struct bl_policy_decision {
    bl_policy_verdict verdict;
    double gain_s; /* of bl_policy_weigh(): over the dwell, before the margin */
    char line[BL_POLICY_LINE];
} bl_policy_decision;

/* How long steps took in one window. */
typedef struct bl_policy_pace {
    double step_s, tokens;
} bl_policy_pace;

#define BL_POLICY_PACES 8

typedef struct bl_policy {
    bl_policy_options options;
    double trust;      /* 0 .. 1 */
    double dwell_s;    /* expected */
    int n_over;        /* windows in a row over the trigger */
    double over_s;     /* they lasted */
    double last_noise; /* of the last window */
    /* the last move */
    bool has_moved, watching;
    double moved_at_s, before, predicted;
    int n_watched, n_worse, n_slow;
    double realised; /* mean since the move */
    /* the latest windows that were not watched; [n % BL_POLICY_PACES] is the next to be replaced */
    bl_policy_pace paces[BL_POLICY_PACES];
    uint64_t n_paces;
} bl_policy;

void bl_policy_init(bl_policy *policy, const bl_policy_options *options);

bl_policy_decision bl_policy_window(bl_policy *policy, const bl_policy_window_in *window,
                                    double now_s);
bl_policy_decision bl_policy_weigh(bl_policy *policy, const bl_policy_offer *offer, double now_s);

/* A move that was decided has ended: in place or not. */
void bl_policy_moved(bl_policy *policy, const bl_policy_offer *offer, bool in_place, double now_s);
/* Somebody else has moved since: what comes now says nothing about the last move. */
void bl_policy_overtaken(bl_policy *policy);
/* The last move was taken back. */
void bl_policy_rolled_back(bl_policy *policy, double now_s);

/* Does an offer pay for itself over `dwell_s`, by the figures alone? What `apply` asks before it
 * moves; *gain_s is what would be saved. */
bool bl_policy_pays(const bl_policy_offer *offer, double dwell_s, double margin, double *gain_s);

/* By how much max/mean lies above 1 by chance, when `rows` rows fall on each of n ranks. */
double bl_policy_noise(int n_ranks, double rows);

#endif
