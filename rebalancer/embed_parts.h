/*
 * embed_parts.h: what the files behind include/ballast_embed.h share: embed.c (life), embed_step.c
 * (steps, drain and resume), embed_repair.c (losses), embed_load.c (what planners are told) and embed_agree.c (what ranks compare before they trust each other).
 */
#ifndef BL_REBALANCER_EMBED_PARTS_H
#define BL_REBALANCER_EMBED_PARTS_H

#include "ballast_embed.h"
#include "rebalancer/control.h"
#include "rebalancer/cover.h"
#include "rebalancer/recovery.h"
#include "runtime/exchange.h"

#include <stdatomic.h>

#define BL_EMBED_HELD_BY_RELOAD "weights are being reloaded"
#define BL_EMBED_HELD_BY_LOSS "a rank was lost, and the survivors have not repaired that"

struct bl_embed {
    atomic_bool in_call;
    bl_embed_options options; /* its strings are the following */
    char *model, *rule, *rendezvous, *socket, *config;
    char meeting_point[256];
    bl_ucx_options ucx;
    int rank, n_ranks;
    bl_error refused;       /* what bl_embed_add_layer() said first */
    char error[1024];       /* text of the last failure */
    bl_placement placement; /* layers declared so far, as they start */
    bl_bundle *bundles;     /* [placement.n_layers] */
    int **slots_of_rank;    /* [placement.n_layers][n_ranks] */
    uint64_t *epochs;       /* [placement.n_layers] last seen */
    size_t layers_capacity, bundles_capacity, slots_capacity;
    int n_spares;
    /* since bl_embed_start() */
    bl_transport *transport;
    bl_exchange exchange;
    bl_memory *memory; /* of the GPU; NULL: the host */
    bl_store *store;
    bl_agent *agent;
    bl_recovery *recovery;
    bl_control *control; /* on the rank that leads, when there is one */
    int64_t server_pid;  /* process that serves it, as far as this rank was told; 0: not */
    double next_try_s;   /* to open it after a loss */
    json_t *described;   /* what planners are told of the model */
    bl_orphan *orphans;  /* [n_experts] scratch of a repair */
    int *lost;           /* [n_ranks] what bl_repair() has said */
    bool was_allowed;    /* the repair at hand: all survivors have said yes */
    bl_meter *meter;
    bool *living;                /* [n_ranks] scratch */
    int32_t *rows;               /* [placement.n_layers] counted since the last step */
    uint64_t tokens, experts_ns; /* the same */
    uint64_t step_began_ns;      /* 0: there was none */
    uint64_t step, commits;
    /* Index of the layer whose map is new and was not asked for yet; -1: none. Apart, since asking
     * changes nothing else. */
    int *told;
    uint64_t max_step_ns;
    bool is_spent; /* bl_embed_start() was called */
    bool is_started, is_drained;
    bool is_off;  /* no moves until a loss is repaired */
    bool is_dead; /* and this rank must not serve */
    char reason[BL_EMBED_REASON_BYTES];
    char deaf[BL_EMBED_REASON_BYTES]; /* why this rank takes part in no move; "": it does */
};

/* One step of this rank; *layer_p is the layer that changed, or -1. */
bl_status bl_embed_take_step(bl_embed *embed, int *layer_p, bl_error *err);

/* What planners are told of the model; a new reference. */
bl_status bl_embed_describe(const bl_embed *embed, json_t **model_p, bl_error *err);
/* Count load, and have the leader add it up. */
bl_status bl_embed_open_meter(bl_embed *embed, bl_error *err);
void bl_embed_listen(bl_embed *embed);
/* What was counted since the last one is this rank's share of a step. */
void bl_embed_end_step(bl_embed *embed, uint64_t now_ns);

/* Names, scopes, shapes and layouts of all that was declared, without where it lies: what must be the
 * same on all ranks, except the contents of tensors that stay. */
bl_status bl_embed_form(const bl_embed *embed, uint64_t *form, bl_error *err);

/* Compare on rank 0 what all ranks have declared, and the contents of what must be the same everywhere;
 * `mine` is what this rank refuses by itself. The same verdict on all ranks. */
bl_status bl_embed_agree(bl_embed *embed, const bl_error *mine, bl_error *err);

/* All ranks say what they refuse; the refusal of the lowest one that does is everybody's. */
bl_status bl_embed_agree_on(bl_embed *embed, const bl_error *mine, bl_error *err);

/* Compare the hashes of all copies of every expert. The same verdict on all ranks. */
bl_status bl_embed_compare_copies(bl_embed *embed, bl_error *err);

/* A struct that a caller has filled in, up to what its header knew of; `least` is as far as the first
 * header did. Larger than any of them is no struct of ours. */
#define BL_EMBED_MAX_STRUCT ((size_t)4096)
bl_status bl_embed_take_struct(void *out, size_t bytes, const void *given, size_t least,
                               const char *what, bl_error *err);

/* Every call on a handle begins with enter: below 0, it may not, and that is its result. It ends with
 * leave, which keeps the text of a failure and returns `st`. */
int bl_embed_enter(bl_embed *embed);
int bl_embed_leave(bl_embed *embed, bl_status st, const bl_error *err);
/* A struct for a caller to read: as much of `made` [bytes] as its header has. */
bl_status bl_embed_give_struct(void *out, const void *made, size_t bytes, size_t least,
                               const char *what, bl_error *err);
bl_status bl_embed_check_started(const bl_embed *embed, bl_error *err);

/* Why no moves start, for whoever asks for one; NULL: they may. */
void bl_embed_hold(bl_embed *embed, const char *why);
/* The rank that leads opens the control socket; after a loss that may be this one. */
bl_status bl_embed_open_socket(bl_embed *embed, bl_error *err);
void bl_embed_take_over(bl_embed *embed);
/* Start what repairs losses. */
bl_status bl_embed_open_recovery(bl_embed *embed, bl_error *err);

/* The lowest living rank; whether a rank is known to be lost and repaired. */
int bl_embed_first(const bl_embed *embed);
bool bl_embed_is_gone(const bl_embed *embed, int rank);

#endif
