/*
 * capacity.h: how many expert slots each rank has.
 *
 * Experts and slots need not divide: slots per rank are a vector. What is asked for may be
 *
 *     slots S         over all ranks, per MoE layer
 *     redundant R     the same with S = experts + R
 *     redundant auto  the smallest number of slots per rank that is the same on all ranks and
 *                     leaves at least one spare copy over the ranks that serve (E = 256 on 3
 *                     ranks: 86 each, R = 2; on 32 ranks: 9 each, R = 32)
 *     a list          slots of each rank; with S given too, it must add up to it
 *
 * S that does not divide is laid out unevenly, the first ranks taking one more (30 slots on 8
 * ranks: 4,4,4,4,4,4,3,3). Nothing is rounded quietly: `uneven` says so and even_redundant names
 * the R that would make all ranks equal. A masked rank keeps its place and loses its slots: they
 * are gone, as the memory of a dead GPU is, and are not laid on the others.
 */
#ifndef BL_PLANNER_CAPACITY_H
#define BL_PLANNER_CAPACITY_H

#include "core/status.h"

#include <stdbool.h>

typedef struct bl_capacity_request {
    int n_experts, n_ranks;
    int64_t slots;     /* -1: not given */
    int64_t redundant; /* -1: not given */
    bool redundant_auto;
    const int *list; /* [n_list] or NULL; borrowed */
    int n_list;
    const bool *masked; /* [n_ranks] or NULL: none; borrowed */
} bl_capacity_request;

typedef struct bl_capacity {
    int *slots_per_rank; /* [n_ranks], 0 on a masked rank; owned */
    int n_slots;         /* their sum */
    int n_active;        /* ranks that are not masked */
    bool uneven;         /* not the same on all ranks that serve, and not asked for by a list */
    int even_redundant;  /* the next R at which it would be; R itself when it is */
} bl_capacity;

/* BL_ERR_USAGE for contradictions, BL_ERR_INFEASIBLE with the remedy in numbers when the experts do
 * not fit or a rank would have more slots than there are experts. Free with bl_capacity_free(). */
bl_status bl_capacity_of(const bl_capacity_request *request, bl_capacity *out, bl_error *err);
void bl_capacity_free(bl_capacity *capacity); /* safe on a zeroed struct */

/* "0,3,5-7" -> marks[0 .. n-1]; BL_ERR_USAGE names what is wrong. `what` names the option. */
bl_status bl_parse_marks(const char *text, const char *what, bool *marks, int n, bl_error *err);

/* "9,9,8" -> values (the caller frees) and their number. */
bl_status bl_parse_counts(const char *text, const char *what, int **values_p, int *n,
                          bl_error *err);

#endif
