/*
 * descriptors.h: enough open files, or a word about it before anything starts.
 *
 * A process that runs out of descriptors while it meets its peers cannot take their connections:
 * all wait for one another until the deadline, and none can say why. So whoever knows how many it
 * will open asks first. The soft limit (ulimit -Sn) is raised as far as that takes; one that the
 * hard limit (ulimit -Hn) does not allow is an error which names both.
 */
#ifndef BL_RUNTIME_DESCRIPTORS_H
#define BL_RUNTIME_DESCRIPTORS_H

#include "core/status.h"

/* Room, beside what is open, for what a rank that serves with n_ranks opens, most of it while they
 * connect; and for its launcher, which opens less. BL_ERR_IO when the limit is lower. */
bl_status bl_descriptors_want(int n_ranks, bl_error *err);

#endif
