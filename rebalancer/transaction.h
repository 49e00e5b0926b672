/*
 * transaction.h: moving experts without ever serving a mixed layer.
 *
 * A pure function: (state, event, time) -> (state, actions). It does no I/O, reads no clock and
 * allocates nothing, so the same object file runs on the ranks (rebalancer/agent.h), and under a
 * simulator that reorders messages, kills ranks and damages bundles (tests/support/cluster_sim.h).
 *
 * Every rank has one bl_transaction. The lowest living rank also *leads*: it takes the operator's
 * orders and decides. It speaks to itself by messages like to everybody else.
 *
 *   leader                          every rank                                rank's state
 *   ------                          ----------                                ------------
 *   PREPARE (the goal)  ----->      compute the schedule                      stable -> agreed
 *                       <-----      AGREE (hash of the schedule) or FAILED
 *   for each wave:
 *   BEGIN               ----->      reserve spares; FETCH from the sources    -> copying
 *                       <-----      ARRIVED (each bundle verified)
 *                       <-----      VERIFIED (all of mine; my step)           -> verified
 *   PROPOSE (step c)    ----->      may I still promise not to begin step c
 *                                   without a decision?
 *                       <-----      PROMISE, or LATE: I have begun it         -> promised
 *   COMMIT (step c)     ----->                                                -> decided
 *                                   begin of step c: map and weights change   -> committed
 *                       <-----      BEGUN: no step older than c runs here
 *   RETIRE              ----->      displaced buffers become spares           -> agreed
 *                       <-----      RETIRED
 *   DONE                ----->                                                -> stable
 *
 * Why no rank serves another epoch than the others in the same step: COMMIT is sent only when every
 * rank has promised. A rank that reaches step c with a promise and without a decision *holds*: it
 * does not begin the step until the leader's word is there.
 *
 * Why nobody holds for long: a rank that has not heard of the proposal begins step c unawares, waits
 * in it for those that hold, and answers nothing meanwhile. So the leader never waits for answers
 * beyond its own step c - decide_steps. When it is about to begin that one and not all have promised,
 * it proposes a later step, twice as far ahead, which releases whoever reaches c. Its word, COMMIT or
 * another PROPOSE, is thus on its way decide_steps before anybody can need it: ranks are in step, so
 * a rank holds at most for what a message takes longer than these steps. The leader chooses c so far
 * ahead (margin_steps) that a question and its answer usually fit in between.
 *
 * Why no step reads a buffer that was given away: a step pins the epoch it began with. Displaced
 * buffers are freed on RETIRE, sent when every rank has said BEGUN: `oldest`, the oldest step still
 * running on it, is c or later.
 *
 * Abort: until the leader has decided COMMIT, an abort takes the wave back: the spares return, the
 * old placement serves on. Afterwards the wave is finished and no further one is begun; waves that
 * were committed stay. A rank may give up by itself (FAILED) until it has promised, never after.
 *
 * Deadlines: each phase of the leader has one (options); past it the move aborts and `reason` says
 * which rank was silent. A rank that hears nothing from the leader for orphan_ns gives up by
 * itself, unless it has promised. A rank that holds for hold_ns halts: it cannot know the decision,
 * and serving on could serve a mixed layer.
 *
 * Which messages count: each carries view, term, wave and the epoch of the wave's layer. The *view*
 * counts changes of membership, the *term* counts migrations, so that two operators cannot
 * interleave: a message of an older term or view is rejected, as is one of another wave, and a
 * PREPARE while busy is refused. Repeated messages change nothing.
 *
 * Loss of a rank (the transport says so on every survivor):
 *   - not the leader: the leader aborts, or finishes the wave it has decided with those that live.
 *   - the leader: the survivors tell each other what was decided (RESOLVE). Who knows of a COMMIT
 *     has it carried out by all; if nobody does, none was carried out, and all take the wave back.
 *     Displaced buffers are freed when all survivors have said BEGUN to each other. The lowest
 *     survivor leads the next view.
 *   - only a majority of the last view goes on (half of it: the half with its lowest rank); others
 *     halt. Survivors that have all told each other the same losses are the last view from then on
 *     (bl_tx_regroup()): whoever counts on them must be of them, since none of them hears a lost rank
 *     again. A second loss while a promised rank waits for the survivors' word halts that rank.
 *
 * Coming back: a lost rank that is let in again (rebalancer/recovery.h) makes a new view, between two
 * moves. It is *expected* from the step in which all have seen it knock, and *readmitted* when all have
 * stepped with it. In between a loss must leave a majority of both views, since some may be in the one
 * and some in the other; whoever hears too late that the rank is in says RESOLVE again, for words of
 * an older view do not count.
 */
#ifndef BL_REBALANCER_TRANSACTION_H
#define BL_REBALANCER_TRANSACTION_H

#include "rebalancer/schedule.h"

#define BL_TX_MAX_RANKS 1024
#define BL_TX_REASON 160
#define BL_TX_ALL (-1) /* as receiver: every living rank, the sender too */
#define BL_TX_MAX_ACTIONS (2 * BL_WAVE_MAX_ARRIVALS + 8)

/* ---- messages -------------------------------------------------------------------------------- */

/* name, whose part it is: R a rank's, L the leader's */
#define BL_TX_MESSAGES(X)                                                       \
    X(PREPARE)  /* to all; the goal travels with it as payload */               \
    X(AGREE)    /* hash: of the schedule */                                     \
    X(FAILED)   /* reason: this rank refuses or gave up */                      \
    X(BEGIN)    /* wave */                                                      \
    X(FETCH)    /* move, attempt: destination asks source for a bundle */       \
    X(ARRIVED)  /* move: bundles of this wave verified here so far */           \
    X(VERIFIED) /* step: last begun here */                                     \
    X(PROPOSE)  /* attempt, step: the commit step */                            \
    X(PROMISE)  /* attempt, step: last begun here */                            \
    X(LATE)     /* attempt, step: last begun here, the proposed one or later */ \
    X(COMMIT)   /* attempt, step: the commit step */                            \
    X(BEGUN)    /* no step older than the commit step runs here */              \
    X(RETIRE)                                                                   \
    X(RETIRED)                                                                  \
    X(DONE)                                                                     \
    X(ABORT)   /* reason */                                                     \
    X(RESOLVE) /* move: the leader followed now; wave: waves decided; attempt: 1 \
                  when the last of them has BEGUN here */

typedef enum bl_tx_message_type {
#define BL_TX_ENUM(name) BL_TX_##name,
    BL_TX_MESSAGES(BL_TX_ENUM)
#undef BL_TX_ENUM
        BL_TX_N_MESSAGES
} bl_tx_message_type;

const char *bl_tx_message_name(bl_tx_message_type type); /* "PREPARE" */

typedef struct bl_tx_message {
    bl_tx_message_type type;
    int32_t from;
    uint64_t view, term;
    int32_t wave;
    uint64_t epoch; /* of the wave's layer before the wave commits */
    int32_t move, attempt;
    uint64_t step, hash;
    char reason[BL_TX_REASON]; /* "" when there is none */
} bl_tx_message;

/* ---- events and actions ---------------------------------------------------------------------- */

typedef enum bl_tx_event_kind {
    BL_TX_EV_APPLY,   /* leader: carry out `schedule`; ignored unless bl_tx_can_apply() */
    BL_TX_EV_STOP,    /* leader: the operator aborts; `reason` */
    BL_TX_EV_MESSAGE, /* `message`. With PREPARE: `schedule` as this rank computes it from its own
                         placement and the goal, or NULL and the `reason` why it cannot */
    BL_TX_EV_STEP,    /* the rank wants to begin `step`; `oldest`: oldest step still running, `step`
                         when none is. Answered by HOLD when it must not yet: ask again later */
    BL_TX_EV_BUNDLE,  /* bundle of `move`, fetched in `attempt`, is complete in its spare */
    BL_TX_EV_FAILED,  /* an action could not be carried out; `reason` */
    BL_TX_EV_TICK,    /* time has passed */
    BL_TX_EV_LOST     /* `rank` is dead */
} bl_tx_event_kind;

typedef struct bl_tx_event {
    bl_tx_event_kind kind;
    const bl_schedule *schedule; /* borrowed while the transaction is not idle */
    const bl_tx_message *message;
    const char *reason;
    uint64_t step, oldest;
    int move, attempt, rank;
    uint64_t hash_source, hash_here; /* BUNDLE: xxh3-64 at its source and in the spare */
} bl_tx_event;

typedef enum bl_tx_action_kind {
    BL_TX_ACT_SEND,    /* `message` to rank `to` or BL_TX_ALL */
    BL_TX_ACT_RESERVE, /* take a spare for `move` of the current wave */
    BL_TX_ACT_STREAM,  /* start sending the bundle of `move` to rank `to`, marked `attempt` */
    BL_TX_ACT_RELEASE, /* give back reserved spares, stop sending */
    BL_TX_ACT_COMMIT,  /* the current wave's placement and its arrivals take effect now */
    BL_TX_ACT_RETIRE,  /* free the displaced buffers of `move`: a decoder-layer id */
    BL_TX_ACT_HOLD,    /* answer to STEP: not yet */
    BL_TX_ACT_HALT     /* this rank must not serve any further step; see `reason` of the state */
} bl_tx_action_kind;

typedef struct bl_tx_action {
    bl_tx_action_kind kind;
    int to, move, attempt;
    bl_tx_message message;
} bl_tx_action;

typedef struct bl_tx_actions {
    int n;
    bl_tx_action items[BL_TX_MAX_ACTIONS];
} bl_tx_actions;

/* ---- state ----------------------------------------------------------------------------------- */

typedef struct bl_tx_options {
    uint64_t agree_ns;  /* PREPARE to the last AGREE */
    uint64_t copy_ns;   /* longest time without any bundle arriving anywhere */
    uint64_t commit_ns; /* PROPOSE to the last PROMISE, COMMIT to BEGUN, RETIRE to RETIRED */
    uint64_t orphan_ns; /* silence of the leader */
    uint64_t hold_ns;   /* longest hold of a rank, which then halts */
    int margin_steps;   /* first proposal: this far ahead; doubles with each further one */
    int decide_steps; /* the leader's word is out so long before the proposed step; < margin_steps */
    int max_proposals;
} bl_tx_options;

#define BL_TX_OPTIONS_INIT                                                                \
    ((bl_tx_options){UINT64_C(10000000000), UINT64_C(30000000000), UINT64_C(30000000000), \
                     UINT64_C(300000000000), UINT64_C(10000000000), 4, 1, 8})

typedef enum bl_tx_state {
    BL_TX_STABLE,
    BL_TX_AGREED, /* also between two waves */
    BL_TX_COPYING,
    BL_TX_VERIFIED_HERE,
    BL_TX_PROMISED,
    BL_TX_DECIDED,
    BL_TX_COMMITTED, /* until retired */
    BL_TX_HALTED
} bl_tx_state;

typedef enum bl_tx_phase {
    BL_TX_IDLE,
    BL_TX_AGREEING,
    BL_TX_MOVING,
    BL_TX_PROMISING,
    BL_TX_COMMITTING,
    BL_TX_RETIRING
} bl_tx_phase;

typedef enum bl_tx_outcome { BL_TX_NONE, BL_TX_RUNNING, BL_TX_MOVED, BL_TX_ABORTED } bl_tx_outcome;

/* What the leader knows. */
typedef struct bl_tx_lead {
    bl_tx_phase phase;
    uint64_t term;
    const bl_schedule *schedule;
    int wave, attempt;
    uint64_t commit_step;
    uint64_t top_step;           /* the latest step anybody said to have begun */
    uint64_t deadline;           /* of the phase; UINT64_MAX: none */
    bool abort_wanted;           /* as soon as the wave that was decided is retired */
    bool heard[BL_TX_MAX_RANKS]; /* who has given this phase's answer */
    int n_heard;
    uint8_t arrived[BL_TX_MAX_RANKS]; /* bundles verified per rank in this wave */
    int waves_done, moves_done;       /* moves_done: of waves that are done */
} bl_tx_lead;

typedef struct bl_tx_arrival {
    int move, attempt;
    bool verified;
} bl_tx_arrival;

/* What a survivor has said about a lost leader's term. */
typedef struct bl_tx_word {
    int follows; /* the leader it follows now; 0: it has said nothing */
    bool begun;
    uint64_t view, term;
    int decided;
} bl_tx_word;

typedef struct bl_transaction {
    int rank, n_ranks;
    bl_tx_options options;
    bl_tx_state state;
    uint64_t view, term;
    const bl_schedule *schedule; /* borrowed; NULL when stable */
    int wave;                    /* in hand, or next */
    int decided;                 /* waves of this term known to be decided */
    uint64_t step, oldest;       /* last begun, oldest running */
    uint64_t commit_step;        /* promised or decided */
    int attempt;                 /* latest proposal answered */
    bool begun;                  /* BEGUN was said for wave `decided - 1` */
    uint64_t heard_ns;           /* last word of the leader */
    uint64_t hold_ns;            /* since when this rank holds; 0: it does not */
    int n_arrivals;
    bl_tx_arrival arrivals[BL_WAVE_MAX_ARRIVALS];
    bl_tx_outcome outcome;
    char reason[BL_TX_REASON]; /* why it aborted or halted; "" otherwise */
    bool in_doubt;     /* halted after a promise, before the wave was retired: maps may differ */
    uint64_t rejected; /* messages that did not count */
    /* membership */
    bool lost[BL_TX_MAX_RANKS];
    int n_members, lowest_member; /* of the view; the living are fewer after a loss */
    bool regrouped;               /* these are members of a view that has no number yet */
    uint64_t admitted_view;       /* in which the last rank came back; 0: none did */
    int expected;                 /* a lost rank that is coming back, or -1 */
    bool expected_lost;           /* and was lost once more */
    int n_joint, lowest_joint;    /* members of the view with it */
    int lost_leader;              /* whose survivors are still to be heard, or -1 */
    bool orphaned;                /* finish the decided wave without a leader */
    bl_tx_word words[BL_TX_MAX_RANKS];
    bl_tx_lead lead;
} bl_transaction;

/* 1 <= n_ranks <= BL_TX_MAX_RANKS. Everybody starts in view 1, term 0. */
void bl_tx_init(bl_transaction *tx, int rank, int n_ranks, const bl_tx_options *options);

/* One event at `now_ns`; `out` is overwritten with what the rank must do, in order. */
void bl_tx_step(bl_transaction *tx, const bl_tx_event *event, uint64_t now_ns, bl_tx_actions *out);

/* All living ranks know the same losses and that all know: from now on they are the view of which a
 * majority is needed. Not an event: what is under way goes on. */
void bl_tx_regroup(bl_transaction *tx);

/* `rank`, which is lost, is about to be one of the members again; -1: after all it is not. */
void bl_tx_expect(bl_transaction *tx, int rank);

/* It is, in a view later than any of the members', and in the latest of their terms. `late`: others have
 * been so for a while. *out as with bl_tx_step(). */
void bl_tx_readmit(bl_transaction *tx, uint64_t view, uint64_t term, bool late, bl_tx_actions *out);

/* On the rank itself, instead: after bl_tx_init(). lost[n_ranks]. */
void bl_tx_join(bl_transaction *tx, uint64_t view, uint64_t term, const bool *lost);

/* ---- questions ------------------------------------------------------------------------------- */

int bl_tx_leader(const bl_transaction *tx); /* lowest living rank */
bool bl_tx_can_apply(const bl_transaction *tx);
/* Nothing under way on this rank, and no schedule borrowed. */
bool bl_tx_is_idle(const bl_transaction *tx);
/* May bytes of this bundle still be written into its spare? Not once it is verified, and not from
 * an earlier attempt: a late byte must not spoil what was checked. */
bool bl_tx_wants(const bl_transaction *tx, uint64_t term, int wave, int move, int attempt);
int bl_tx_moves_done(const bl_transaction *tx);         /* leader: bundles in place or verified */
const char *bl_tx_state_name(const bl_transaction *tx); /* "stable", "agreed", ... */

#endif
