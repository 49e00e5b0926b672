/*
 * cluster.h: an engine on several ranks inside a test, each rank a thread of this process.
 *
 * bl_test_cluster() gives every rank its store (experts loaded), exchange and engine and runs `fn`
 * on each. A rank must not use cmocka's assertions, which belong to the main thread: it returns its
 * status, and the first error that is not the echo of another rank's comes back.
 */
#ifndef BL_TESTS_CLUSTER_H
#define BL_TESTS_CLUSTER_H

#include "core/rng.h"
#include "runtime/engine.h"
#include "runtime/transport_sim.h"

typedef struct bl_test_rank {
    int rank, n_ranks;
    const bl_qwen3 *model;
    bl_transport *transport;
    bl_store *store;
    bl_engine *engine;
    void *user;
} bl_test_rank;

typedef bl_status bl_test_rank_fn(bl_test_rank *rank, bl_error *err);

typedef struct bl_test_cluster_options {
    int max_sequences;
    int n_spares;
    const bl_sharing_rule *rule; /* NULL: even */
    bl_dispatch dispatch;
    const bl_sim_options *sim; /* on a simulated network; NULL: over the local transport */
    /* Optional: this rank's hooks; called on its thread before its engine is made. */
    bl_engine_hooks (*hooks)(bl_test_rank *rank);
} bl_test_cluster_options;

bl_status bl_test_cluster(const bl_qwen3 *model, const bl_placement *placement,
                          const bl_test_cluster_options *options, bl_test_rank_fn *fn, void *user,
                          bl_error *err);

/* A placement of the model's experts on n_ranks ranks, slots_per_rank slots each, contiguous. */
bl_status bl_test_contiguous(const bl_qwen3 *model, int n_ranks, int slots_per_rank,
                             bl_placement *out, bl_error *err);

/* A random one with copies and uneven slots, valid by the hard rules. */
bl_status bl_test_random_placement(const bl_qwen3 *model, int n_ranks, uint64_t seed,
                                   bl_placement *out, bl_error *err);

/* share[n_layers], each [n_slots] and freed by the caller: random shares of each expert's copies, some
 * of them 0. On failure those made so far are there, the others as they were. */
bl_status bl_test_random_shares(const bl_placement *placement, bl_rng *rng, double **share,
                                bl_error *err);

#endif
