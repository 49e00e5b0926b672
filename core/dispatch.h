/*
 * dispatch.h: what travels for one token to the ranks that serve its k experts.
 *
 *     assignment   one row for each of the k experts
 *     dedup-rank   one row for each rank, with the list of its experts there
 *     dedup-node   one row for each other node, to the rank that stands there where the sender
 *                  stands in its own, which passes it on within the node
 *     allgather    every row to every other rank; for dispatch only
 *
 * Combine has the first three; it pre-sums where it deduplicates, which changes the order of
 * summation.
 */
#ifndef BL_CORE_DISPATCH_H
#define BL_CORE_DISPATCH_H

typedef enum bl_dispatch {
    BL_DISPATCH_ASSIGNMENT,
    BL_DISPATCH_DEDUP_RANK,
    BL_DISPATCH_DEDUP_NODE,
    BL_DISPATCH_ALLGATHER /* not for combine */
} bl_dispatch;

extern const char *const bl_dispatch_names[]; /* NULL-terminated, indexed by bl_dispatch */
extern const char *const bl_combine_names[];  /* the first three */

/* Under dedup-node: the rank through which `source` reaches node `target` of node[n_ranks]: the one
 * that stands there where the source stands among the ranks of its own, counted around; the source
 * itself for its own node, and -1 for a node without ranks. O(n_ranks). */
int bl_dispatch_gateway(const int *node, int n_ranks, int source, int target);

#endif
