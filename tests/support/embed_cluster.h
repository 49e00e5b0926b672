/*
 * embed_cluster.h: a foreign engine on several ranks, for tests: each rank is a thread of this process
 * with tensors of its own (tests/support/foreign.h) and a handle of ballast_embed.h. Ranks step in
 * lockstep, as an engine's own exchanges make them, and after each step every rank checks that all of its
 * slots hold what its map says, dequantised.
 *
 *     ec_cluster *all = ec_new(2, 4, slots, experts);      then set all->options and the like
 *     ec_run(all, body);                                    body(m) on each rank; fails as they complain
 */
#ifndef BL_TESTS_EMBED_CLUSTER_H
#define BL_TESTS_EMBED_CLUSTER_H

#include "rebalancer/embed_parts.h"
#include "tests/support/foreign.h"

#include <pthread.h>

#define EC_PATIENCE_S 60.0 /* of loops that wait for another thread; far more than they need */
enum { EC_MAX_RANKS = 4, EC_LAYERS = 2 };
extern const int ec_layers[EC_LAYERS]; /* 3 and 7 */

typedef struct ec_cluster ec_cluster;

typedef struct ec_member {
    ec_cluster *all;
    int rank;
    bl_transport *transport;
    bl_embed *embed;
    bl_foreign *foreign[EC_LAYERS + 1]; /* NULL at its end */
    int version;
    bool gone;       /* it died */
    bool after_loss; /* it meets survivors only */
    char error[600]; /* "": fine */
} ec_member;

/* What a test does on each rank. */
typedef void ec_body_fn(ec_member *m);

struct ec_cluster {
    int n_ranks;
    bl_placement placement;
    pthread_barrier_t barrier, survivors; /* survivors: of all but one */
    ec_member members[EC_MAX_RANKS];
    uint64_t epochs[EC_MAX_RANKS][EC_LAYERS];
    bl_embed_options options;
    ec_body_fn *body;
    /* spoils what a rank declares */
    void (*spoil)(int rank, int layer, bl_tensor *tensors, int *n_tensors);
    /* changes a rank's options, and its transport, before it opens */
    void (*prepare)(ec_member *m, bl_embed_options *options);
    bool may_fail_to_start;
    bool
        by_pointers[EC_MAX_RANKS]; /* spares: options.spares, half of them in each layer's tables */
};

#define EXPECT(m, what)              \
    do {                             \
        if (!(what))                 \
            ec_complain((m), #what); \
    } while (0)

bool ec_fine(const ec_member *m);
/* The first complaint of a rank is the one that is told. */
void ec_complain(ec_member *m, const char *what);
void ec_succeed(ec_member *m, int status);

/* Both layers start with the same slots; experts [sum of slots]. One cluster at a time. */
ec_cluster *ec_new(int n_ranks, int n_experts, const int *slots, const int32_t *experts);
void ec_run(ec_cluster *all, ec_body_fn *body);

/* Wait for the other ranks. */
void ec_meet(ec_member *m);
/* This rank serves what its map says, and the others serve the same map. */
void ec_check_served(ec_member *m);
/* One step in lockstep; the layer that changed. */
int ec_step(ec_member *m, int *busy);
/* A step of this rank by itself, which asks for the maps; what bl_step() said. */
int ec_step_alone(ec_member *m);
/* Steps until nobody has been busy for a while; the number of layers that changed here. */
int ec_until_stable(ec_member *m);
/* The rank that leads asks for these slots in all layers. */
void ec_apply(ec_member *m, const int32_t *experts);
bool ec_map_is(ec_member *m, int layer, const int32_t *experts);
/* Load `version` of what the maps say into all slots. */
void ec_reload(ec_member *m, int version);
/* Whose callback it is. */
ec_member *ec_of_user(void *user);
/* This rank dies: the others see it as lost. */
void ec_die(ec_member *m);

#endif
