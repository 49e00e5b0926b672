#include "core/dispatch.h"

#include <stddef.h>

const char *const bl_dispatch_names[] = {"assignment", "dedup-rank", "dedup-node", "allgather",
                                         NULL};
const char *const bl_combine_names[] = {"assignment", "dedup-rank", "dedup-node", NULL};
