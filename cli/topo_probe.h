/*
 * topo_probe.h: `ballast topo probe`: start ranks, or be one that was started, and measure.
 *
 * Ranks of this host are forked, and rank 0 reports its document to the launcher; ranks that torchrun,
 * mpirun or mpiexec started are processes of their own, and the one of rank 0 has the document.
 */
#ifndef BL_CLI_TOPO_PROBE_H
#define BL_CLI_TOPO_PROBE_H

#include "core/json.h"
#include "runtime/launch.h"

typedef struct bl_topo_probe {
    int n_ranks; /* 0: as the launcher said */
    double seconds;
    const char *base; /* for the device; NULL: this machine */
} bl_topo_probe;

/* *root_p: a topology document, new reference; NULL on the other ranks that a launcher started. */
bl_status bl_topo_probe_run(const bl_topo_probe *probe, json_t **root_p, bl_error *err);

#endif
