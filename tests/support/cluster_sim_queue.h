/*
 * cluster_sim_queue.h: what is going to happen in a simulated cluster (cluster_sim.c), in order of virtual
 * time: a binary heap; events of the same time come in the order in which they were pushed.
 */
#ifndef BL_TESTS_CLUSTER_SIM_QUEUE_H
#define BL_TESTS_CLUSTER_SIM_QUEUE_H

#include "core/mem.h"
#include "rebalancer/transaction.h"

#include <stdlib.h>

/* Those before DIE are what a rank does. */
typedef enum kind {
    DELIVER,
    STEP,
    FINISH,
    TICK,
    BUNDLE,
    APPLY,
    STOP,
    NOTICE,
    SHORT,
    DIE,
    BEGIN_FAULT,
    END_FAULT
} kind;

typedef struct event {
    uint64_t at, order;
    kind kind;
    int rank, other, move, attempt, wave;
    uint64_t term, step, hash;
    bl_tx_message message;
} event;

typedef struct bl_sim_queue {
    event *items;
    size_t n, capacity;
    uint64_t order;
} bl_sim_queue;

static inline bool bl_sim_earlier(const event *a, const event *b) {
    return a->at != b->at ? a->at < b->at : a->order < b->order;
}

static inline void bl_sim_push(bl_sim_queue *q, event e) {
    void *items = q->items;
    if (bl_grow(&items, &q->capacity, q->n + 1, sizeof e, NULL) < 0)
        abort();
    q->items = items;
    e.order = q->order++;
    size_t at = q->n++;
    while (at > 0 && bl_sim_earlier(&e, &q->items[(at - 1) / 2])) {
        q->items[at] = q->items[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    q->items[at] = e;
}

static inline event bl_sim_pop(bl_sim_queue *q) {
    const event top = q->items[0], last = q->items[--q->n];
    size_t at = 0;
    for (size_t child = 1; child < q->n; child = 2 * at + 1) {
        if (child + 1 < q->n && bl_sim_earlier(&q->items[child + 1], &q->items[child]))
            child++;
        if (!bl_sim_earlier(&q->items[child], &last))
            break;
        q->items[at] = q->items[child];
        at = child;
    }
    q->items[at] = last;
    return top;
}

#endif
