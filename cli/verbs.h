/*
 * verbs.h: the program's verbs, one file each (cli/<verb>.c), in the order --help lists them.
 */
#ifndef BL_CLI_VERBS_H
#define BL_CLI_VERBS_H

#include "core/opt.h"

/* Add a verb here and nowhere else. */
/* clang-format off */
#define BL_VERBS(X)                             \
    X(import) X(synth) X(record) X(stat) X(live) \
    X(topo) X(size)                             \
    X(plan) X(replay) X(report) X(diff) X(export)         \
    X(run) X(apply) X(rebalance)                \
    X(status) X(abort) X(drain) X(metrics)
/* clang-format on */

#define BL_VERB_DECLARE(name) extern const bl_verb bl_verb_##name;
BL_VERBS(BL_VERB_DECLARE)
#undef BL_VERB_DECLARE

#endif
