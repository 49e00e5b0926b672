/*
 * size.h: what a model weighs on a cluster, and what is left for the KV cache.
 *
 * Before anything is planned the bytes must add up. A rank holds
 *
 *     experts   slots x MoE layers x bundle      ep ranks share the slots of a layer; where there
 *               / (ranks / ep)                   are more ranks than ep, each expert is cut over
 *                                                ranks / ep of them
 *     spares    spare buffers x bundle           the pool through which experts move (one layer's
 *               / (ranks / ep)                   bundle each, not one per layer)
 *     the rest  attention, dense MLPs, shared    cut over tp ranks and repeated dp times; router
 *               experts, embedding               and norms are whole on every rank
 *
 * and what remains of its memory, up to memory_share of it, holds KV cache:
 *
 *     tokens of a replica = min over ranks (memory x memory_share - held) / KV bytes per token
 *
 * where the smallest rank binds, since a token's cache lies on all ranks of its replica and engines
 * give all replicas the same room. KV heads are cut over tp ranks as far as they go; the latent of
 * MLA is whole on each. Activations, graphs and communication buffers are not counted: leave room
 * for them by memory_share.
 *
 * Routed experts are counted tensor by tensor from the model's bundle. Configs do not say how the
 * rest is stored, so that is assumed: one byte per weight of attention, dense MLPs and shared
 * experts where the experts are fp8, two where they are 4-bit or bf16, four where they are f32;
 * router, norms and embedding two (f32: four). Where the config does not tell the number of weights
 * either, nothing is guessed: `rest_told` is false and only expert bytes are given.
 *
 * Experts need not divide over ranks. bl_size_remedy() gives the redundancies that would make all
 * ranks equal, the smallest being R = (-E) mod ep, so that each can be weighed: what a rank holds,
 * how many tokens of cache remain.
 */
#ifndef BL_PLANNER_SIZE_H
#define BL_PLANNER_SIZE_H

#include "core/model.h"
#include "topologies/topology.h"

#define BL_MEMORY_SHARE_DEFAULT 0.9

/* How a model is spread. 0 leaves tp, dp and ep open: tp is then 1, dp what the ranks leave, ep all
 * ranks; the topology gives the ranks where tp x dp does not. */
typedef struct bl_layout {
    int tp, dp, ep;
    int64_t redundant; /* copies per layer beyond one per expert, over all ep ranks */
    bool redundant_auto;
    int spares;          /* spare buffers per rank */
    double memory_share; /* of a rank's memory that weights and cache may fill, in (0, 1] */
} bl_layout;
#define BL_LAYOUT_INIT ((bl_layout){.memory_share = BL_MEMORY_SHARE_DEFAULT})

/* Bytes on one rank. */
typedef struct bl_rank_bytes {
    int rank;
    int slots; /* of one MoE layer */
    double experts, spares;
    double rest;   /* 0 when not told */
    double memory; /* of the device; 0 without a topology */
    double left;   /* for the cache; negative: does not fit; NaN: not told */
} bl_rank_bytes;

typedef struct bl_size {
    int ranks, tp, dp, ep;
    int n_slots; /* of one MoE layer, over all ep ranks */
    int redundant;
    bool uneven;
    int even_redundant; /* (-E) mod ep, or the next above `redundant` */
    int spares;
    bool rest_told;       /* weights other than routed experts are counted */
    double weights_bytes; /* the model once, as in its checkpoint; experts only if not rest_told */
    double resident_parameters; /* on all ranks, copies and spares included; 0 if not rest_told */
    double slot_bytes;          /* one more slot in all MoE layers, on one rank */
    bl_rank_bytes binding;      /* the rank with the least left; without a topology the fullest */
    bl_rank_bytes lightest;     /* the rank that holds the least */
    double kv_bytes_per_token;  /* on one rank; 0 when the config does not tell */
    double kv_tokens;           /* of one replica; NaN when not told */
    bool fits;                  /* left >= 0 on all ranks, as far as told */
    bool over_share; /* a rank's experts exceed the share that the topology leaves for them */
} bl_size;

/* `topology` may be NULL: then bytes per rank are told, and nothing about what is left. The layout
 * must name its ranks then. BL_ERR_USAGE for contradictions, BL_ERR_INFEASIBLE with the remedy for
 * what does not divide and may not be uneven. */
bl_status bl_size_of(const bl_model *model, const bl_topology *topology, const bl_layout *layout,
                     bl_size *out, bl_error *err);

/* The layout's `n`-th even redundancy (0: (-E) mod ep) and what it comes to. BL_ERR_INFEASIBLE when
 * a rank would have more slots than there are experts. */
bl_status bl_size_remedy(const bl_model *model, const bl_topology *topology,
                         const bl_layout *layout, int n, bl_size *out, bl_error *err);

/* Bytes of the model once. */
double bl_model_weights_bytes(const bl_model *model);

#endif
