#include "tests/support/cluster.h"

#include "core/mem.h"

#include <pthread.h>
#include <stdlib.h>

#define DEADLINE_S 60

typedef struct cluster_rank {
    bl_test_rank rank;
    const bl_placement *placement;
    const bl_test_cluster_options *options;
    bl_test_rank_fn *fn;
    pthread_t thread;
    bl_status status;
    bl_error error;
} cluster_rank;

static bl_status run(cluster_rank *job, bl_exchange *exchange) {
    bl_test_rank *rank = &job->rank;
    bl_error *err = &job->error;
    bl_engine_hooks hooks = {0};
    BL_TRY(bl_store_create(job->placement, rank->rank,
                           bl_qwen3_bundle_bytes(bl_qwen3_config_of(rank->model)),
                           job->options->n_spares, &rank->store, err));
    BL_TRY(bl_engine_load_experts(rank->model, rank->store, err));
    if (job->options->hooks != NULL)
        hooks = job->options->hooks(rank);
    BL_TRY(bl_engine_create(rank->model, rank->store, exchange, job->options->max_sequences, &hooks,
                            &rank->engine, err));
    if (job->options->rule != NULL)
        bl_engine_share_by(rank->engine, job->options->rule);
    bl_engine_dispatch_by(rank->engine, job->options->dispatch,
                          job->options->rule != NULL ? job->options->rule->node : NULL);
    return job->fn(rank, err);
}

static void *rank_main(void *user) {
    cluster_rank *job = user;
    bl_exchange exchange = bl_exchange_over(job->rank.transport, DEADLINE_S);
    job->status = run(job, &exchange);
    bl_engine_free(job->rank.engine);
    bl_store_free(job->rank.store);
    bl_transport_close(job->rank.transport);
    return NULL;
}

bl_status bl_test_cluster(const bl_qwen3 *model, const bl_placement *placement,
                          const bl_test_cluster_options *options, bl_test_rank_fn *fn, void *user,
                          bl_error *err) {
    const int n_ranks = placement->n_ranks;
    bl_transport **handles = calloc((size_t)n_ranks, sizeof *handles);
    cluster_rank *jobs = calloc((size_t)n_ranks, sizeof *jobs);
    if (handles == NULL || jobs == NULL)
        abort();
    BL_TRY(options->sim != NULL ? bl_transport_sim_open(n_ranks, options->sim, handles, err)
                                : bl_transport_local_open(n_ranks, handles, err));
    for (int r = 0; r < n_ranks; r++) {
        jobs[r] = (cluster_rank){.rank = {.rank = r,
                                          .n_ranks = n_ranks,
                                          .model = model,
                                          .transport = handles[r],
                                          .user = user},
                                 .placement = placement,
                                 .options = options,
                                 .fn = fn,
                                 .error = BL_ERROR_INIT};
        if (pthread_create(&jobs[r].thread, NULL, rank_main, &jobs[r]) != 0)
            abort();
    }
    int first = -1;
    for (int r = 0; r < n_ranks; r++) {
        pthread_join(jobs[r].thread, NULL);
        const bl_status st = jobs[r].status;
        if (st < 0 && (first < 0 || jobs[first].status == BL_ERR_PEER))
            first = r;
    }
    const bl_status st = first < 0 ? BL_OK : jobs[first].status;
    if (first >= 0 && err != NULL)
        *err = jobs[first].error;
    free(handles);
    free(jobs);
    return st;
}

static bl_status create(const bl_qwen3 *model, int n_ranks, const int *slots, bl_placement *out,
                        bl_error *err) {
    const bl_qwen3_config *c = bl_qwen3_config_of(model);
    int *layers;
    BL_TRY(BL_CALLOC(layers, c->n_layers, err));
    for (int layer = 0; layer < c->n_layers; layer++)
        layers[layer] = layer;
    const bl_status st =
        bl_placement_create(n_ranks, c->n_experts, layers, c->n_layers, slots, out, err);
    free(layers);
    return st;
}

bl_status bl_test_contiguous(const bl_qwen3 *model, int n_ranks, int slots_per_rank,
                             bl_placement *out, bl_error *err) {
    int slots[64];
    for (int r = 0; r < n_ranks; r++)
        slots[r] = slots_per_rank;
    BL_TRY(create(model, n_ranks, slots, out, err));
    bl_placement_fill_contiguous(out);
    return BL_OK;
}

/* One copy of each expert on random ranks, then copies wherever a rank has room and no copy yet. */
static void fill_randomly(bl_layer_placement *layer, bl_rng *rng) {
    const int n_slots = bl_layer_n_slots(layer);
    for (int expert = 0; expert < layer->n_experts; expert++) {
        int slot;
        do {
            slot = (int)bl_rng_below(rng, (uint32_t)n_slots);
        } while (layer->expert[slot] != BL_NO_EXPERT);
        layer->expert[slot] = expert;
    }
    for (int slot = 0; slot < n_slots; slot++) {
        const int expert = (int)bl_rng_below(rng, (uint32_t)layer->n_experts);
        if (layer->expert[slot] == BL_NO_EXPERT &&
            bl_layer_find(layer, bl_layer_rank_of(layer, slot), expert) < 0)
            layer->expert[slot] = expert;
    }
}

bl_status bl_test_random_placement(const bl_qwen3 *model, int n_ranks, uint64_t seed,
                                   bl_placement *out, bl_error *err) {
    const int n_experts = bl_qwen3_config_of(model)->n_experts;
    bl_rng rng;
    bl_rng_seed(&rng, seed);
    int slots[64], left = n_experts;
    for (int r = 0; r < n_ranks; r++) {
        slots[r] = (int)bl_rng_below(&rng, (uint32_t)n_experts);
        left -= slots[r];
    }
    for (; left > 0; left--) { /* enough for every expert, at most one of each on a rank */
        int r;
        do {
            r = (int)bl_rng_below(&rng, (uint32_t)n_ranks);
        } while (slots[r] == n_experts);
        slots[r]++;
    }
    BL_TRY(create(model, n_ranks, slots, out, err));
    for (int layer = 0; layer < out->n_layers; layer++)
        fill_randomly(&out->layers[layer], &rng);
    return bl_placement_check(out, NULL, err);
}

bl_status bl_test_random_shares(const bl_placement *placement, bl_rng *rng, double **share,
                                bl_error *err) {
    for (int l = 0; l < placement->n_layers; l++) {
        bl_copies copies;
        const bl_layer_placement *layer = &placement->layers[l];
        BL_TRY(BL_CALLOC(share[l], bl_layer_n_slots(layer), err));
        BL_TRY(bl_copies_of(layer, &copies, err));
        for (int expert = 0; expert < layer->n_experts; expert++) {
            double left = 1;
            for (int i = copies.first[expert]; i < copies.first[expert + 1]; i++) {
                const bool last = i + 1 == copies.first[expert + 1];
                const double part = last ? left : left * bl_rng_below(rng, 4) / 4;
                share[l][copies.slot[i]] = part;
                left -= part;
            }
        }
        bl_copies_free(&copies);
    }
    return BL_OK;
}
