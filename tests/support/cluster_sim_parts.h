/*
 * cluster_sim_parts.h: what the files of the simulated cluster share: cluster_sim.c (events and the end),
 * cluster_sim_store.c (buffers, commits, what steps read), cluster_sim_net.c (messages, and what goes
 * wrong between ranks), cluster_sim_setup.c (a cluster and its fault, drawn from the seed).
 */
#ifndef BL_TESTS_CLUSTER_SIM_PARTS_H
#define BL_TESTS_CLUSTER_SIM_PARTS_H

#include "core/rng.h"
#include "tests/support/cluster_sim.h"
#include "tests/support/cluster_sim_queue.h"

enum {
    MAX_RANKS = 6,
    MAX_LAYERS = 3,
    MAX_EXPERTS = 12,
    MAX_SLOTS = 6, /* of one rank in one layer */
    MAX_SPARES = 3,
    MAX_BUFFERS = MAX_LAYERS * MAX_SLOTS + MAX_SPARES,
    MAX_DEPTH = 2,
    MAX_PLANS = 3,
    MAX_STEPS = 1 << 15,
    MAX_EVENTS = 400000
};

#define MS UINT64_C(1000000)
#define SILENCE (30 * MS) /* after which a rank that is not heard is lost */
#define LONGEST_PLAN \
    (10000 * MS)     /* the deadlines of its waves are far shorter, and few are missed */
#define GARBAGE (-1) /* tags of buffers that hold no expert */
#define DAMAGED (-2)

typedef enum use { FREE, RESERVED, IN_SLOT, DISPLACED } use;

typedef struct running_step {
    uint64_t step;
    int buffer[MAX_LAYERS][MAX_EXPERTS]; /* -1: not held */
} running_step;

typedef struct sim_rank {
    bl_transaction tx;
    bool dead, deaf, stopped;
    bl_placement map;
    int table[MAX_LAYERS][MAX_EXPERTS]; /* expert -> buffer, -1: not held */
    int tag[MAX_BUFFERS];
    use use[MAX_BUFFERS];
    int reserved_move[MAX_BUFFERS];
    int n_buffers;
    uint64_t begun;
    uint64_t seen[MAX_RANKS]; /* latest step it knows the others to have begun */
    uint64_t held_since;      /* 0: it does not hold */
    int n_running;
    running_step running[MAX_DEPTH];
    uint64_t epochs[MAX_STEPS][MAX_LAYERS]; /* with which it began each step */
    event *inbox;                           /* arrived, and not listened to yet; in order */
    size_t n_inbox, inbox_capacity;
} sim_rank;

typedef struct sim {
    bl_rng rng;
    bl_sim_fault fault;
    bl_sim_report *report;
    int n_ranks, n_layers, n_experts, n_spares, depth, n_plans, next_plan;
    int victim;         /* rank or move that the fault is about */
    int stop_plan;      /* plan that the operator stopped, from 1 */
    uint64_t slow_ns;   /* longest usual delay of a message */
    bool in_steps_deaf; /* ranks listen between steps only, as an engine's thread does */
    uint64_t fault_at, fault_until;
    unsigned side; /* PARTITION: bit per rank of the one side */
    bool one_way;  /* PARTITION: only what `side` sends is lost */
    uint64_t now, n_events;
    bl_sim_queue queue;
    uint64_t last_delivery[MAX_RANKS][MAX_RANKS];
    sim_rank ranks[MAX_RANKS];
    bl_placement goals[MAX_PLANS];
    bl_schedule *schedules[MAX_PLANS * (MAX_RANKS + 1) * 4];
    int n_schedules;
    bool plan_open;
    uint64_t opened_at;
    bool failed;
} sim;

/* ---- cluster_sim.c --------------------------------------------------------------------------- */

void bl_sim_violate(sim *s, const char *format, ...) BL_PRINTF(2, 3);
bool bl_sim_is_live(const sim *s, int rank); /* neither dead nor halted */

static inline uint64_t below(sim *s, uint64_t n) {
    return bl_rng_below(&s->rng, (uint32_t)n);
}

/* ---- cluster_sim_store.c --------------------------------------------------------------------- */

int bl_sim_tag(int layer, int expert);
uint64_t bl_sim_hash(int tag);
/* The index of a decoder layer in our arrays: layer ids are 1, 3, 5. */
int bl_sim_layer_index(int layer);
int bl_sim_take(sim_rank *r, use as); /* a free buffer, or -1 */
int bl_sim_count(const sim_rank *r, use what);
void bl_sim_fill_store(sim *s, int rank, const bl_placement *initial);
void bl_sim_commit(sim *s, int rank);
void bl_sim_free_buffers(sim_rank *r, use which);
/* A step reads, in every slot of the map it began with, what the map says. */
void bl_sim_check_reads(sim *s, int rank, const running_step *step);
/* Ranks that count on each other begin the step that `rank` has just begun with the same epochs, and
 * its map covers every expert. */
void bl_sim_check_epochs(sim *s, int rank);

/* ---- cluster_sim_net.c ----------------------------------------------------------------------- */

uint64_t bl_sim_delay(sim *s);
/* Does nothing sent from `from` reach `to` now? */
bool bl_sim_is_cut(const sim *s, int from, int to);
/* Is the fault over before anybody is missed? */
bool bl_sim_is_short(const sim *s);
void bl_sim_send(sim *s, int from, int to, const bl_tx_message *message);
/* `rank` has begun another step: whoever it reaches knows. */
void bl_sim_show_step(sim *s, int rank);
void bl_sim_send_bundle(sim *s, event bundle);
void bl_sim_die(sim *s, int rank);
/* `rank` has lost `lost`, which hears of it if it can. */
void bl_sim_break(sim *s, int rank, int lost);
/* The links are cut, or the rank stopped: those who will miss others are told when their patience is over. */
void bl_sim_begin_fault(sim *s);
void bl_sim_end_fault(sim *s);
/* Events of a stopped rank happen when it runs again; true: this one was put off. */
bool bl_sim_put_off(sim *s, const event *e);

/* ---- cluster_sim_setup.c --------------------------------------------------------------------- */

void bl_sim_set_up(sim *s);
void bl_sim_plant_fault(sim *s);

#endif
