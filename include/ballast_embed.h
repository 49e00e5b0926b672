/*
 * ballast_embed.h: hot rebalancing inside an engine.
 *
 * An engine that serves a Mixture-of-Experts model by its own means, each rank holding the experts
 * of its slots, links libballast, and from then on `ballast apply` moves its experts while it
 * serves. The engine keeps its tensors, its kernels and its own network. What it does:
 *
 *     bl_embed *embed = NULL;
 *     bl_embed_options options = BL_EMBED_OPTIONS_INIT;
 *     options.model = "my-model"; options.n_experts = 256; options.top_k = 8; options.spares = 2;
 *     bl_embed_open(&options, &embed, text, sizeof text);
 *     for each MoE layer:                        what an expert consists of, and where it lies now
 *         bl_embed_add_layer(embed, &layer);
 *     bl_embed_start(embed);                     meets the other ranks and compares with them
 *     for each step, also those without tokens:
 *         bl_step(embed, &news);                 a placement changes here and nowhere else
 *         if (news.layer >= 0)
 *             bl_map(embed, news.layer, &map);   which expert sits in which slot from now on
 *         route by the map, compute
 *     bl_embed_close(embed);
 *
 * Bundles. What belongs to an expert moves with it, all of it: weights, scales, zero points, biases.
 * So an expert is declared, tensor by tensor, with its leading dimension, its strides and a tag for
 * the layout that the engine's kernels want:
 *
 *     scope        leading dimension         when an expert moves
 *     LOCAL        slots of this rank        its row goes along, to another slot or rank
 *     SLOT         slots of all ranks        every rank puts its table into the new order
 *     EXPERT       experts of the layer      nothing: it is found by the expert's own number
 *     LAYER        none                      nothing: it is the same for all experts
 *
 * A tensor that follows from others (packed copies, sums, tables of pointers) does not travel: it is
 * declared as recomputed, and the engine is asked to do that for the slots that changed, before the
 * step that serves from them. Refused by name before the first byte moves: a tensor that the engine
 * has and did not declare (bl_layer.inventory), a leading dimension that its scope does not have,
 * strides by which rows overlap, one that another rank does not declare, declares in another shape or
 * keeps in another layout, and a SLOT, EXPERT or LAYER tensor that is not the same on all ranks.
 *
 * Time. Incoming bundles are staged in a pool of `spares` buffers, the only memory of any size that
 * Ballast takes. At a step on which all ranks have agreed, bl_step() copies them into the tensors,
 * and map and weights of that layer change together. Nothing of an earlier step may read the tensors
 * of this rank any more when bl_step() is called: on a GPU, work of earlier steps is on the stream
 * that `copy` waits for. bl_step() takes and sends at most step_bytes and waits only for a commit that
 * is being decided. Steps must go on while news.busy, also without tokens.
 *
 * Pointers. An engine whose kernels find each expert by an address (pointer arrays of grouped GEMMs)
 * declares tables of pointers instead: for every tensor that moves, one address per slot, and behind
 * them the addresses of spare entries, which the engine has allocated as it has the others:
 *
 *     w.pointers    [slot 0][slot 1][slot 2][spare]     before: 7 is to come to slot 1
 *                      e0      e4      e1      ..
 *     w.pointers    [slot 0][slot 1][slot 2]            after: slot 1 points to what was the spare, and
 *                      e0      e7      e1               the memory of e4 is the spare
 *
 * Incoming bundles are written into spares while serving goes on, and a commit is a few stores into
 * the tables: no copy on the rank. Spares are shared by all layers, so their experts have one shape, and
 * the engine says in one layer or in several what memory the pool consists of (bl_layer.n_spares;
 * options.spares is not looked at). A rank's layers are all by pointers or none is; ranks may differ.
 * The engine frees its memory by its own list of what it has allocated.
 *
 *     A pointer is good for the step it was read in. What a bl_step() has displaced stays as it was
 *     until the next call of bl_step(), bl_drain() or bl_repair(): so when bl_step() is called the step
 *     before may still be computing, by pointers it has read, but no older one.
 *
 * Reloading weights while it serves (reinforcement learning, adapters): bl_drain() on all ranks ends
 * what is under way and holds the placement still; then each rank writes into each of its slots the
 * weights of the expert that bl_map() names; bl_resume() on all ranks compares again and lets moves
 * start.
 *
 * Maps. An engine that does not ask bl_map() for a map it was told of serves by an old one, and its text
 * turns to garbage. So the first step names a layer although nothing has moved: a rank that does not
 * ask for that map by its next step takes part in no move, and whoever wants one is told why. A rank
 * that has not asked when experts have moved is told by BL_ERR_ABORTED in the next step.
 *
 * Failures. A move that fails leaves the placement in force serving; bl_step() returns BL_OK and
 * bl_embed_read_status() says why. There is one status by which bl_step() asks a rank not to serve on:
 * BL_ERR_ABORTED, when it cannot know whether the others have carried out a commit that it had promised,
 * or has served by an old map.
 *
 * Losses. When a rank dies, the placement stays as it is, with the slots of the dead in it, and nothing
 * moves: bl_step() goes on returning BL_OK and news.lost names the rank. An engine whose own network
 * outlives that breaks its step off, and all survivors call bl_repair(): it makes the slots of the lost
 * empty, gives every expert that only they held a slot of a living rank, and asks that rank's engine for
 * its weights (bl_embed_options.fetch: from host memory, a checkpoint, another replica). Then the maps
 * are new, the step is taken again, and balancing goes on without the lost. Where an expert cannot be
 * had or has no slot, all survivors are told the same expert, and nothing has changed.
 *
 * The control socket is opened by the lowest rank that lives. When that one dies, the next one opens it
 * at its bl_step() or bl_repair(), under the same name, on its own host.
 *
 * Statuses are those of ballast_status.h: 0, or negative with one line of text in
 * bl_embed_error(). Structs begin with their size, which the _INIT macros fill in: a program built
 * against an older header goes on working. One call at a time on a handle, from whichever thread, and
 * none from inside a callback: another one is BL_ERR_STATE at once, changes nothing and leaves the text
 * of bl_embed_error() alone. NULL where something is needed is BL_ERR_USAGE.
 *
 * Link with -lballast, which needs UCX, jansson and xxHash; no GLPK, and no server but the control
 * socket (a Unix socket of mode 0600) on the rank that leads.
 */
#ifndef BALLAST_EMBED_H
#define BALLAST_EMBED_H

#include "ballast.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct bl_embed bl_embed;

/* ---- bundles --------------------------------------------------------------------------------- */

enum {
    BL_SCOPE_LOCAL = 0,  /* per slot of this rank ("local expert") */
    BL_SCOPE_SLOT = 1,   /* per slot of all ranks ("global physical expert"); whole on every rank */
    BL_SCOPE_EXPERT = 2, /* per logical expert; whole on every rank */
    BL_SCOPE_LAYER = 3   /* one for the layer */
};

#define BL_TENSOR_NAME_BYTES 128  /* of a name, with its terminator */
#define BL_TENSOR_LAYOUT_BYTES 64 /* of a layout tag */

/* entries x rows x row_bytes; what lies in a row lies together:
 *
 *     base + entry * entry_stride + row * row_stride + byte,   byte < row_bytes
 *
 * For a matrix per expert, [experts, n, k], rows = n and row_bytes = k * element size. A view with
 * gaps is fine, one with overlaps is not. */
typedef struct bl_tensor {
    size_t size;
    const char *name; /* unique in its layer */
    void *base;       /* in memory that `copy` of the options reaches; the engine's */
    int scope;        /* BL_SCOPE_... */
    size_t entries;   /* the leading dimension; 1 for a LAYER tensor */
    size_t rows;      /* per entry */
    size_t row_bytes;
    size_t entry_stride; /* bytes; 0: rows * row_stride */
    size_t row_stride;   /* bytes; 0: row_bytes */
    const char *layout;  /* e.g. "int8 k-major", "e4m3 swizzled 128x4"; NULL: plain */
    int recomputed;      /* 1: does not move, bl_embed_options.recompute makes it anew */
    /* In place of base, for a LOCAL tensor that moves: [entries + n_spares of the layer] where each
     * slot's entry lies, then memory for experts to come. The first `entries` are rewritten at a commit;
     * what is behind them is read once. See Pointers above */
    void **pointers;
} bl_tensor;

#define BL_TENSOR_INIT \
    { sizeof(bl_tensor), NULL, NULL, BL_SCOPE_LOCAL, 0, 1, 0, 0, 0, NULL, 0, NULL }

typedef struct bl_layer {
    size_t size;
    int layer;                /* decoder-layer id */
    int n_slots;              /* over all ranks */
    const int *slots_of_rank; /* [n_ranks], or NULL: n_slots / n_ranks each */
    const int32_t *expert;    /* [n_slots] logical expert in each slot at the start, -1: empty */
    const bl_tensor *tensors; /* [n_tensors] */
    int n_tensors;
    const char *const
        *inventory;  /* optional: names of all tensors the layer's experts have, as the */
    int n_inventory; /* engine lists them; one that is not declared is refused */
    size_t n_spares; /* by pointers: how many spare bundles this layer's tables bring to the pool */
} bl_layer;

#define BL_LAYER_INIT \
    { sizeof(bl_layer), 0, 0, NULL, NULL, NULL, 0, NULL, 0, 0 }

/* Copy `rows` rows of row_bytes each, and return 0 when they are there; called from bl_step() and
 * from what compares at the start. One side is a tensor, the other is host memory or also a tensor.
 * What the engine had put on its streams before comes first. cudaMemcpy2D() has these arguments. */
typedef int bl_copy_fn(void *user, void *to, size_t to_stride, const void *from, size_t from_stride,
                       size_t row_bytes, size_t rows);

/* Make the tensors named anew in these slots (of this rank, 0 .. own slots - 1), whose experts have
 * changed. 0, or anything else when that cannot be done: the rank then must not serve on. */
typedef int bl_recompute_fn(void *user, int layer, const char *const *tensors, int n_tensors,
                            const int *slots, int n_slots);

/* A tensor of an expert that only lost ranks held, as this rank's own copy of it would be (the same
 * version, the layout of the tag): `bytes` = rows x row_bytes into host memory, rows together. 0 when it
 * is there. `to` NULL: write nothing, only say by 0 that it can be had; asked for every expert before
 * the first is written. A rank that has said so and then fails must not serve on. */
typedef int bl_fetch_fn(void *user, int layer, int expert, const char *tensor, void *to,
                        size_t bytes);

/* ---- life ------------------------------------------------------------------------------------ */

typedef struct bl_embed_options {
    size_t size;
    /* As torchrun, mpirun or srun say in the environment, when rank is -1. They must not be the ports
     * of the engine's own network: BALLAST_RENDEZVOUS=host:port names another meeting point. */
    int rank, n_ranks;
    const char *rendezvous; /* "host:port" on the host of rank 0; NULL: as the environment says */
    uint64_t job;           /* a number all ranks agree on; others are turned away */
    void
        *transport; /* a bl_transport that is open already (runtime/transport.h), for programs built
                         from Ballast's sources: rank and n_ranks are then its own. Borrowed */
    const char *model; /* name, for messages and for planning */
    int n_experts, top_k;
    const char *rule;   /* how the engine shares copies: "even", "nearest", ...; NULL: "even" */
    int spares;         /* staging buffers, each one expert of one layer; 0: nothing can move */
    size_t spare_bytes; /* they take at most this much; 0: no limit */
    size_t step_bytes;  /* a rank sends at most this much per step; 0: 4 MiB */
    double deadline_s;  /* of meeting, of comparing, and of each phase of a move; 0: defaults */
    const char *socket; /* where `ballast apply` finds the leading rank; NULL: $BALLAST_SOCKET or
                              the usual place; "": nowhere */
    /* For whoever plans: config.json or model.json of the model; NULL: sizes are guessed from the
     * bundles */
    const char *config;
    int window_steps; /* steps of a window of load (bl_count()); the same on all ranks; 0: 64 */
    bl_copy_fn *copy; /* NULL: tensors are in host memory */
    bl_recompute_fn *recompute; /* needed when a tensor is recomputed */
    void *user;                 /* for all callbacks */
    bl_fetch_fn *fetch;         /* NULL: an expert that only lost ranks held is lost */
    /* This rank's GPU, as CUDA numbers them: the pool lies in its memory, which `copy` must reach, and
     * bundles go over NCCL, with a communicator of Ballast's own; all ranks or none. While news.busy
     * nothing may wait for the whole device (docs/embed.md). Needs a build with CUDA. -1: the pool is host memory and bundles go with all other messages. */
    int gpu;
} bl_embed_options;

#define BL_EMBED_OPTIONS_INIT                                                                      \
    {                                                                                              \
        sizeof(bl_embed_options), -1, 0, NULL, 0, NULL, "", 0, 0, NULL, 1, 0, 0, 0, NULL, NULL, 0, \
            NULL, NULL, NULL, NULL, -1                                                             \
    }

/* `text` [text_bytes] gets one line when it fails; may be NULL. Strings of the options are copied. */
int bl_embed_open(const bl_embed_options *options, bl_embed **embed_p, char *text,
                  size_t text_bytes);

/* Declare a layer, ascending. Everything is copied but the tensors themselves, which must stay where
 * they are until bl_embed_close(). After a refusal only bl_embed_start() (which tells the others) and
 * bl_embed_close() are of use. */
int bl_embed_add_layer(bl_embed *embed, const bl_layer *layer);

/* On all ranks: meet, compare what was declared, take the pool's memory, open the control socket.
 * What one rank refuses is refused on all, with the same text. */
int bl_embed_start(bl_embed *embed);

/* NULL is fine. A move under way is given up; the tensors hold what bl_map() last said, and to ranks
 * that serve on this one is lost. Called from inside a callback it does nothing. */
void bl_embed_close(bl_embed *embed);

/* The line of text of the last call that failed on this handle; "" when none has. Borrowed until the
 * next call. */
const char *bl_embed_error(const bl_embed *embed);

/* ---- steps ----------------------------------------------------------------------------------- */

typedef struct bl_step_news {
    size_t size;
    int layer;     /* whose map to ask for now: it is new, or this is the first step; -1: none */
    int busy;      /* a move is under way: go on stepping, also without tokens */
    uint64_t step; /* number of this step, the same on all ranks; the first is 1 */
    int lost;      /* lowest rank that was lost and not repaired; -1: none */
} bl_step_news;

#define BL_STEP_NEWS_INIT \
    { sizeof(bl_step_news), -1, 0, 0, -1 }

/* At one fixed place in each step, on every rank. news may be NULL. */
int bl_step(bl_embed *embed, bl_step_news *news);

/* The placement of a layer in force: the struct that bl_trace_set_map() takes, so that a tracer can
 * be told as well. What it points to is borrowed until the next bl_step() or bl_drain(). This rank's
 * slots are those behind the slots of the ranks before it, in the order of its LOCAL tensors. */
int bl_map(const bl_embed *embed, int layer, bl_trace_map *map);

/* What is in a slot of this rank (0 .. own slots - 1): a hash of all that moves with the expert. Equal
 * for all copies of an expert, on whichever rank, and for as long as nobody reloads it. */
int bl_slot_hash(bl_embed *embed, int layer, int slot, uint64_t *hash);

/* How the load lies, for `ballast rebalance --auto`, and for `ballast apply` to say whether a plan
 * pays. Optional; between two steps, per layer, as often as suits. */
typedef struct bl_counted {
    size_t size;
    int layer;
    const void *ids; /* logical experts of this rank's own tokens, [n_tokens][top_k]; -1: none */
    int id_bytes;    /* 1 (unsigned), 2, 4 or 8 */
    size_t n_tokens, row_bytes;
    size_t n_rows;       /* rows this rank's experts computed, whoever's tokens they were */
    uint64_t experts_ns; /* time they took; 0: not known */
} bl_counted;

#define BL_COUNTED_INIT \
    { sizeof(bl_counted), 0, NULL, 4, 0, 0, 0, 0 }

int bl_count(bl_embed *embed, const bl_counted *counted);

/* ---- reloading weights ----------------------------------------------------------------------- */

enum {
    BL_DRAIN_ABORT = 0, /* a move stops after the wave that is decided; layers that are done stay */
    BL_DRAIN_FINISH = 1 /* it goes on to its end first */
};

/* On all ranks, between the same two steps: no move is under way when it returns, and none starts
 * before bl_resume(). Maps may have changed: ask for all of them. Ranks that do not drain alike are told
 * (BL_ERR_TIMEOUT, BL_ERR_STATE) and can move experts, but drain no more until they are started again. */
int bl_drain(bl_embed *embed, int how);

/* On all ranks: compare the tensors that must be the same everywhere, and, with check_copies, the
 * hashes of all copies of every expert (reads all weights once). When they differ the text names
 * them, and moves stay held. */
int bl_resume(bl_embed *embed, int check_copies);

/* ---- after a loss ---------------------------------------------------------------------------- */

typedef struct bl_repaired {
    size_t size;
    int n_lost;      /* ranks lost so far */
    const int *lost; /* [n_lost] ascending; borrowed until the next bl_repair() */
    int n_fetched;   /* experts brought back, over all ranks and layers */
    int n_fetched_here;
    uint64_t step; /* steps are counted from here on */
} bl_repaired;

#define BL_REPAIRED_INIT \
    { sizeof(bl_repaired), 0, NULL, 0, 0, 0 }

/* On all survivors of a loss, when none of them is in a step any more; they may have come to different
 * steps. Waits for all of them, up to deadline_s. Afterwards all maps may have changed, also those of
 * layers that no lost rank was in: ask for all of them. `repaired` may be NULL.
 *   BL_ERR_INFEASIBLE  an expert has no source or no slot; named, the same on all; nothing has changed,
 *                      and bl_repair() may be called again
 *   BL_ERR_PEER, BL_ERR_TIMEOUT, BL_ERR_STATE  nobody was lost; a survivor did not come; weights are being
 *                      reloaded
 *   BL_ERR_ABORTED     this rank must not serve on: it is not of the majority, or could not do what it had
 *                      said it could */
int bl_repair(bl_embed *embed, bl_repaired *repaired);

/* ---- looking --------------------------------------------------------------------------------- */

#define BL_EMBED_REASON_BYTES 256

typedef struct bl_embed_status {
    size_t size;
    int leads, busy, drained;
    int is_off;                         /* nothing moves until bl_repair() */
    char reason[BL_EMBED_REASON_BYTES]; /* why the last move was aborted or balancing is off; "" */
    uint64_t moves;                     /* migrations begun, also ones that were aborted */
    uint64_t commits;                   /* of layers, on this rank */
    uint64_t sent_bytes, received_bytes, max_step_bytes;
    uint64_t max_step_ns; /* longest bl_step() */
    size_t bundle_bytes;  /* what moves with one expert of one layer (the largest layer's) */
    size_t pool_bytes;    /* memory of the spares */
    int spares;
} bl_embed_status;

#define BL_EMBED_STATUS_INIT \
    { sizeof(bl_embed_status), 0, 0, 0, 0, "", 0, 0, 0, 0, 0, 0, 0, 0, 0 }

int bl_embed_read_status(const bl_embed *embed, bl_embed_status *status);

#ifdef __cplusplus
}
#endif
#endif
