/*
 * split_local.h: the rule `local`: one token's copies chosen together, so that it visits few nodes.
 *
 * A *node* is a set of ranks between which bytes are cheap. A token pays for every other node that it
 * must be sent to, once where dispatch sends one copy per node. So its k experts are not looked at
 * one by one:
 *
 *     1. an expert with a copy on the token's own node is served there
 *     2. the others are served on as few other nodes as hold them all:
 *
 *            born on node A, expert     0      1      2           B alone holds 1 and 2: visit B
 *            copies on nodes          A, C    B, C   B, D         (not C and D)
 *
 *        One node, else two, are found exactly; from three on, the node that holds most of what is
 *        left is taken again and again. Between equally good ones, the first at or behind node
 *        (tokens before this one in the source's step) mod nodes, and around: over many tokens equal
 *        choices share evenly, and the planner can foresee how much goes where.
 *     3. an expert is served on its own node, else on the first of those nodes, counted in the same
 *        way, that has a copy; there by the copy on the rank to which this source has sent the fewest
 *        rows in this step; of equals, the first at or behind the source itself in rank order.
 *
 * Every source rank decides alone and knows only what it has sent: no communication. The planner
 * scores plans with this very code, token by token.
 */
#ifndef BL_CORE_SPLIT_LOCAL_H
#define BL_CORE_SPLIT_LOCAL_H

#include "core/split.h"

#define BL_LOCAL_MAX_NODES 64
#define BL_LOCAL_MAX_TOP_K 64

typedef struct bl_local_split bl_local_split;

/* For one layer; node[n_ranks] numbers the node of every rank from 0. The placement must satisfy the
 * hard rules and outlive the handle, as must `node`. BL_ERR_UNSUPPORTED beyond the limits above. */
bl_status bl_local_split_create(const bl_layer_placement *layer, const int *node,
                                bl_local_split **out, bl_error *err);
void bl_local_split_free(bl_local_split *split); /* NULL is fine */

/* A source rank begins a step: nothing has been sent. */
void bl_local_split_begin(bl_local_split *split, int source);

/* Slots for one token of the source begun last: slot[k], -1 where id is empty; 1 <= k <= 64. Returns
 * the number of other nodes the token visits. */
int bl_local_split_token(bl_local_split *split, const int32_t *ids, int k, int *slot);

/* Index of the first member of a non-empty set at or behind `from` (0 .. 63), and around. */
int bl_local_first(uint64_t set, int from);

/* The fewest nodes that hold all of need[n] (sets of nodes, none empty; n = 0: none), as step 2 finds
 * them, and how many they are. */
int bl_local_cover(const uint64_t *need, int n, int from, uint64_t *nodes);

#endif
