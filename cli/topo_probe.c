#include "cli/topo_probe.h"

#include "cli/run_join.h"
#include "core/mem.h"
#include "runtime/probe.h"
#include "topologies/topology.h"

#include <stdlib.h>
#include <string.h>

#define DEADLINE_S 60.0
#define MAX_DOCUMENT_BYTES ((size_t)64 << 20)

/* The first device of the base, else this machine. */
static bl_status find_devices(const bl_topo_probe *probe, int ranks_here, json_t **devices_p,
                              bl_error *err) {
    bl_topology base;
    if (probe->base == NULL)
        return bl_probe_this_device(ranks_here, devices_p, err);
    BL_TRY(bl_topology_open(probe->base, &base, err));
    json_t *root = bl_topology_to_json(&base);
    bl_topology_free(&base);
    *devices_p = json_incref(json_object_get(root, "devices"));
    json_decref(root);
    return *devices_p != NULL ? BL_OK : bl_fail(err, BL_ERR_NOMEM, "out of memory");
}

static int ranks_on_host(const bl_probe *figures, int host) {
    int n = 0;
    for (int rank = 0; rank < figures->n_ranks; rank++)
        n += figures->host[rank] == host;
    return n;
}

/* One rank, whoever started it; *root_p stays NULL on all but rank 0. */
static bl_status be_rank(const bl_topo_probe *probe, const bl_ucx_options *options, json_t **root_p,
                         bl_error *err) {
    const bl_probe_options how = {probe->seconds, DEADLINE_S};
    bl_transport *transport;
    bl_probe figures = {0};
    json_t *devices = NULL;
    *root_p = NULL;
    BL_TRY(bl_transport_ucx_open(options, &transport, err));
    bl_status st = bl_probe_run(transport, &how, &figures, err);
    if (st >= 0 && options->rank == 0) {
        st = find_devices(probe, ranks_on_host(&figures, 0), &devices, err);
        if (st >= 0)
            st = bl_probe_to_json(&figures, bl_transport_name(transport), devices, root_p, err);
        json_decref(devices);
    }
    bl_probe_free(&figures);
    bl_transport_close(transport);
    return st;
}

static bl_status started_rank(const bl_seat *seat, void *user, bl_error *err) {
    const bl_ucx_options options = bl_seat_ucx_options(seat, DEADLINE_S);
    json_t *root;
    BL_TRY(be_rank(user, &options, &root, err));
    if (root == NULL)
        return BL_OK;
    char *text = json_dumps(root, JSON_COMPACT | JSON_REAL_PRECISION(17));
    json_decref(root);
    if (text == NULL)
        return bl_fail(err, BL_ERR_NOMEM, "out of memory");
    const bl_status st = bl_seat_put(seat, text, strlen(text), err);
    free(text);
    return st;
}

static bl_status start_ranks(const bl_topo_probe *probe, json_t **root_p, bl_error *err) {
    bl_launch_options options = BL_LAUNCH_OPTIONS_INIT;
    bl_rank_end *ends;
    options.max_result_bytes = MAX_DOCUMENT_BYTES;
    BL_TRY(BL_CALLOC(ends, probe->n_ranks, err));
    bl_status st = bl_launch_ranks(probe->n_ranks, started_rank, (void *)(uintptr_t)probe, &options,
                                   ends, err);
    if (st >= 0) {
        *root_p = json_loadb((const char *)ends[0].result, ends[0].result_bytes, 0, NULL);
        if (*root_p == NULL)
            st = bl_fail(err, BL_ERR_INTERNAL, "rank 0 reported no topology");
    }
    bl_rank_ends_free(ends, probe->n_ranks);
    free(ends);
    return st;
}

bl_status bl_topo_probe_run(const bl_topo_probe *probe, json_t **root_p, bl_error *err) {
    bl_run_join join;
    BL_TRY(bl_run_join_find(probe->n_ranks, &join, err));
    if (join.found)
        return be_rank(probe, &join.options, root_p, err);
    if (probe->n_ranks == 0)
        return bl_fail(err, BL_ERR_USAGE,
                       "probe needs -n N, or to be started by torchrun, mpirun or mpiexec");
    return start_ranks(probe, root_p, err);
}
