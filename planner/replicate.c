#include "planner/replicate.h"

#include "core/mem.h"

#include <stdlib.h>

typedef struct queue {
    const double *load;
    const int *copies;
    int *heap; /* experts, the hottest per copy at the root */
    int n;
} queue;

/* Does expert a come before b? */
static bool hotter(const queue *q, int a, int b) {
    const double per_a = q->load[a] / q->copies[a], per_b = q->load[b] / q->copies[b];
    if (per_a != per_b)
        return per_a > per_b;
    if (q->copies[a] != q->copies[b])
        return q->copies[a] < q->copies[b];
    return a < b;
}

static void sift_down(queue *q, int at) {
    const int expert = q->heap[at];
    for (;;) {
        int child = 2 * at + 1;
        if (child >= q->n)
            break;
        if (child + 1 < q->n && hotter(q, q->heap[child + 1], q->heap[child]))
            child++;
        if (!hotter(q, q->heap[child], expert))
            break;
        q->heap[at] = q->heap[child];
        at = child;
    }
    q->heap[at] = expert;
}

bl_status bl_replicate(const double *load, int n_experts, int n_slots, const int *least,
                       int max_copies, int *copies, double *hottest, bool *hottest_is_widest,
                       bl_error *err) {
    queue q = {.load = load, .copies = copies, .n = n_experts};
    BL_TRY(BL_CALLOC(q.heap, n_experts, err));
    int spare = n_slots;
    for (int expert = 0; expert < n_experts; expert++) {
        copies[expert] = least != NULL ? least[expert] : 1;
        spare -= copies[expert];
        q.heap[expert] = expert;
    }
    for (int at = n_experts / 2; at-- > 0;)
        sift_down(&q, at);

    double most = 0.0;
    bool widest = false;
    while (spare > 0 && q.n > 0) {
        const int expert = q.heap[0];
        if (copies[expert] < max_copies) {
            copies[expert]++;
            spare--;
        } else {
            /* As wide as it gets: what follows can only cool the others. */
            if (load[expert] / copies[expert] > most) {
                most = load[expert] / copies[expert];
                widest = true;
            }
            q.heap[0] = q.heap[--q.n];
        }
        if (q.n > 0)
            sift_down(&q, 0);
    }
    if (q.n > 0 && load[q.heap[0]] / copies[q.heap[0]] > most) {
        most = load[q.heap[0]] / copies[q.heap[0]];
        widest = copies[q.heap[0]] == max_copies;
    }
    free(q.heap);
    if (hottest != NULL)
        *hottest = most;
    if (hottest_is_widest != NULL)
        *hottest_is_widest = widest;
    return BL_OK;
}
