#include "core/dispatch.h"

#include <stddef.h>

const char *const bl_dispatch_names[] = {"assignment", "dedup-rank", "dedup-node", "allgather",
                                         NULL};
const char *const bl_combine_names[] = {"assignment", "dedup-rank", "dedup-node", NULL};

int bl_dispatch_gateway(const int *node, int n_ranks, int source, int target) {
    int place = 0, size = 0;
    if (node[source] == target)
        return source;
    for (int rank = 0; rank < n_ranks; rank++) {
        place += rank < source && node[rank] == node[source];
        size += node[rank] == target;
    }
    for (int rank = 0, at = 0; rank < n_ranks; rank++) {
        if (node[rank] == target && at++ == place % size)
            return rank;
    }
    return -1;
}
