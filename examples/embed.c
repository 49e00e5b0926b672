/*
 * embed.c: an engine that is not Ballast's, with Ballast in it.
 *
 * A small expert-parallel engine as engines are: each rank is a process that holds the experts of its
 * slots in quantised tensors; per step its tokens are routed, sent to the slots that hold their experts,
 * computed there and sent back. The network between the ranks is its own, a file they all map. All that
 * concerns Ballast is between the lines "ballast {" and "} ballast": declare the tensors, call bl_step()
 * in every step, route by bl_map(), reload weights under bl_drain(), and bl_repair() when a rank is lost.
 *
 *     embed [--pointers] NETWORK SOCKET     rank and rendezvous from the environment, as torchrun sets it
 *
 *     for r in 0 1 2 3; do
 *         RANK=$r WORLD_SIZE=4 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 embed /dev/shm/net s &
 *     done
 *     ballast apply plan.json --socket s --wait     while they serve
 *     kill -USR1 %1                                 reload weights: another version of all experts
 *     kill -KILL %3                                 the others go on with that rank's experts
 *     kill -TERM %1                                 stop
 *
 * --pointers: experts are found by tables of pointers, and a move changes these; else they lie in one
 * tensor per layer, and a move copies into it.
 *
 * It is its own judge: what an expert computes is a function of layer, expert and version, so every row
 * that comes back is compared, bit for bit, with what that expert must give. A slot that holds other
 * weights than the map says, an old version, or a scale that stayed behind ends in exit status 1.
 */
#include "ballast_embed.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum {
    N_LAYERS = 2, /* decoder layers 3 and 4 have experts */
    FIRST_LAYER = 3,
    N_EXPERTS = 8,
    TOP_K = 2,
    N_RANKS = 4,
    SLOTS = 3, /* per rank */
    N_SLOTS = SLOTS * N_RANKS,
    SPARES = 1,
    HIDDEN = 64,
    OUT = 32,
    TOKENS = 4 /* per rank and step at most */
};

/* ---- the engine's own network: a file that all ranks map ------------------------------------------ */

typedef struct row {
    int slot; /* over all ranks, -1: none */
    float in[HIDDEN], out[OUT];
} row;

typedef struct network {
    atomic_ulong arrived[N_RANKS]; /* barriers that each rank has come to */
    int stop, version;             /* what the first rank has decided for the step */
    row rows[N_RANKS][TOKENS * TOP_K];
} network;

/* A rank that lives holds a lock on its byte of the file. */
static struct flock lock_of(int rank) {
    return (struct flock){.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = rank, .l_len = 1};
}

static network *join_network(const char *path, int rank, int *fd_p) {
    const int fd = open(path, O_RDWR | O_CREAT, 0600);
    struct flock mine = lock_of(rank);
    if (fd < 0 || ftruncate(fd, (off_t)sizeof(network)) != 0 || fcntl(fd, F_SETLK, &mine) != 0)
        return NULL;
    void *mapped = mmap(NULL, sizeof(network), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    *fd_p = fd;
    return mapped != MAP_FAILED ? mapped : NULL;
}

/* ---- experts -------------------------------------------------------------------------------------- */

/* Quantised as engines do it: int8 weights, one scale per output row, and the sums of the rows of
 * weights, which kernels want for asymmetric inputs and which follow from the weights. */
typedef struct layer_tensors {
    int8_t w[SLOTS][OUT][HIDDEN];
    float scale[SLOTS][OUT];
    void *w_at[SLOTS + SPARES], *scale_at[SLOTS + SPARES]; /* of each slot, then of spares */
    int32_t row_sum[SLOTS][OUT];
    float bias[N_SLOTS]; /* one number per slot of all ranks */
} layer_tensors;

/* The checkpoint. Weights of different experts may well be equal; then only scales tell them apart. */
static int8_t true_weight(int layer, int expert, int version, int out, int in) {
    return (int8_t)((layer * 37 + expert / 2 * 11 + version * 5 + out * 3 + in * 7) % 201 - 100);
}

static float true_scale(int layer, int expert, int version, int out) {
    return 0.001f * (float)(1 + expert + 8 * layer + 64 * version) + 0.0001f * (float)out;
}

static float true_bias(int layer, int expert, int version) {
    return (float)(100 * layer + 10 * version + expert);
}

static int8_t *weights_of(const layer_tensors *t, int slot, int out) {
    return (int8_t *)t->w_at[slot] + out * HIDDEN;
}

static void sum_rows(layer_tensors *t, int slot) {
    for (int out = 0; out < OUT; out++) {
        const int8_t *w = weights_of(t, slot, out);
        t->row_sum[slot][out] = 0;
        for (int in = 0; in < HIDDEN; in++)
            t->row_sum[slot][out] += w[in];
    }
}

static void load_expert(int8_t *w, float *scale, int layer, int expert, int version) {
    for (int out = 0; out < OUT; out++) {
        if (scale != NULL)
            scale[out] = true_scale(layer, expert, version, out);
        for (int in = 0; w != NULL && in < HIDDEN; in++)
            w[out * HIDDEN + in] = true_weight(layer, expert, version, out, in);
    }
}

/* Load what a map says into the slots of a rank. */
static void load_layer(layer_tensors *t, int layer, int version, const int32_t *expert, int rank) {
    for (int slot = 0; slot < N_SLOTS; slot++)
        t->bias[slot] = expert[slot] >= 0 ? true_bias(layer, expert[slot], version) : 0.0f;
    for (int slot = 0; slot < SLOTS; slot++) {
        const int32_t e = expert[rank * SLOTS + slot];
        if (e >= 0)
            load_expert(t->w_at[slot], t->scale_at[slot], layer, e, version);
        sum_rows(t, slot);
    }
}

/* One row of a "kernel"; the expert's tensors are whatever is in its slot. */
static float dot(const int8_t *w, float scale, int32_t row_sum, float bias, const float *in) {
    float sum = 0.0f;
    for (int i = 0; i < HIDDEN; i++)
        sum += (float)w[i] * in[i];
    return scale * (sum + 0.25f * (float)row_sum) + bias;
}

static void compute(const layer_tensors *t, int rank, row *r) {
    const int slot = r->slot - rank * SLOTS;
    for (int out = 0; out < OUT; out++)
        r->out[out] = dot(weights_of(t, slot, out), ((const float *)t->scale_at[slot])[out],
                          t->row_sum[slot][out], t->bias[r->slot], r->in);
}

/* What the expert must give, from the checkpoint. */
static int is_exact(const row *r, int layer, int expert, int version) {
    for (int out = 0; out < OUT; out++) {
        int8_t w[HIDDEN];
        int32_t sum = 0;
        for (int in = 0; in < HIDDEN; in++)
            sum += w[in] = true_weight(layer, expert, version, out, in);
        const float want = dot(w, true_scale(layer, expert, version, out), sum,
                               true_bias(layer, expert, version), r->in);
        if (memcmp(&want, &r->out[out], sizeof want) != 0)
            return 0;
    }
    return 1;
}

/* ---- the engine ----------------------------------------------------------------------------------- */

typedef struct engine {
    int rank, version, n_reloads, n_fetched;
    int by_pointers;
    int is_lost[N_RANKS];
    network *net;
    int net_fd;
    layer_tensors layers[N_LAYERS];
    int8_t spare_w[SPARES][OUT][HIDDEN]; /* by pointers */
    float spare_scale[SPARES][OUT];
    bl_trace_map maps[N_LAYERS];
    unsigned long n_rows, n_wrong;
    bl_embed *ballast;
} engine;

enum { LOST = 1 }; /* a rank died: the step cannot be finished */

static int first_rank(const engine *e) {
    int rank = 0;
    while (e->is_lost[rank])
        rank++;
    return rank;
}

static int has_died(const engine *e, int rank) {
    struct flock lock = lock_of(rank);
    return fcntl(e->net_fd, F_GETLK, &lock) == 0 && lock.l_type == F_UNLCK;
}

/* Until all ranks have come as often as this one. One that died before that is lost to all survivors at
 * the same barrier: they have all come to it, and nobody gets beyond it. */
static int barrier(engine *e) {
    const unsigned long mine = atomic_fetch_add(&e->net->arrived[e->rank], 1) + 1;
    const time_t until = time(NULL) + 60;
    for (int rank = 0; rank < N_RANKS; rank++) {
        for (unsigned n = 1; !e->is_lost[rank] && atomic_load(&e->net->arrived[rank]) < mine; n++) {
            sched_yield();
            if (n % 1024 != 0)
                continue;
            if (has_died(e, rank) && atomic_load(&e->net->arrived[rank]) < mine)
                return LOST;
            if (time(NULL) > until) {
                fprintf(stderr, "embed: rank %d does not come\n", rank);
                exit(1);
            }
        }
    }
    return 0;
}

/* One tensor per layer, or pieces found by pointers: here they happen to lie in the same memory. */
static void place_tensors(engine *e) {
    for (int l = 0; l < N_LAYERS; l++) {
        layer_tensors *t = &e->layers[l];
        for (int slot = 0; slot < SLOTS; slot++) {
            t->w_at[slot] = t->w[slot];
            t->scale_at[slot] = t->scale[slot];
        }
        for (int i = 0; i < SPARES; i++) { /* of use where layer.n_spares says so */
            t->w_at[SLOTS + i] = e->spare_w[i];
            t->scale_at[SLOTS + i] = e->spare_scale[i];
        }
    }
}

/* ballast { */

static int recompute(void *user, int layer, const char *const *tensors, int n_tensors,
                     const int *slots, int n_slots) {
    engine *e = user;
    (void)tensors, (void)n_tensors; /* there is only "row_sum" */
    for (int i = 0; i < n_slots; i++)
        sum_rows(&e->layers[layer - FIRST_LAYER], slots[i]);
    return 0;
}

/* What only lost ranks held, out of the checkpoint. `to` NULL: is it there? */
static int fetch(void *user, int layer, int expert, const char *tensor, void *to, size_t bytes) {
    const engine *e = user;
    const int is_w = strcmp(tensor, "w") == 0;
    if (bytes != (is_w ? sizeof e->spare_w[0] : sizeof e->spare_scale[0]))
        return 1;
    if (to != NULL)
        load_expert(is_w ? to : NULL, is_w ? NULL : to, layer, expert, e->version);
    return 0;
}

static bl_tensor local_tensor(const char *name, void *base, size_t rows, size_t row_bytes) {
    bl_tensor t = BL_TENSOR_INIT;
    t.name = name;
    t.base = base;
    t.entries = SLOTS;
    t.rows = rows;
    t.row_bytes = row_bytes;
    return t;
}

static int declare_layer(engine *e, int l, const int32_t *expert) {
    layer_tensors *t = &e->layers[l];
    static const char *const inventory[] = {"w", "w_scale", "w_row_sum", "bias"};
    bl_tensor tensors[4];
    tensors[0] = local_tensor("w", t->w, OUT, HIDDEN);
    tensors[0].layout = "int8 row-major";
    tensors[1] = local_tensor("w_scale", t->scale, 1, sizeof t->scale[0]);
    if (e->by_pointers) {
        tensors[0].base = tensors[1].base = NULL;
        tensors[0].pointers = t->w_at;
        tensors[1].pointers = t->scale_at;
    }
    tensors[2] = local_tensor("w_row_sum", t->row_sum, 1, sizeof t->row_sum[0]);
    tensors[2].recomputed = 1;
    tensors[3] = local_tensor("bias", t->bias, 1, sizeof t->bias[0]);
    tensors[3].scope = BL_SCOPE_SLOT;
    tensors[3].entries = N_SLOTS;
    bl_layer layer = BL_LAYER_INIT;
    layer.layer = FIRST_LAYER + l;
    layer.n_slots = N_SLOTS;
    layer.expert = expert;
    layer.tensors = tensors;
    layer.n_tensors = 4;
    layer.inventory = inventory;
    layer.n_inventory = 4;
    layer.n_spares = e->by_pointers && l == 0 ? SPARES : 0; /* all layers share them */
    return bl_embed_add_layer(e->ballast, &layer);
}

static int read_map(engine *e, int l) {
    e->maps[l] = (bl_trace_map)BL_TRACE_MAP_INIT;
    return bl_map(e->ballast, FIRST_LAYER + l, &e->maps[l]);
}

static int read_maps(engine *e) {
    int st = 0;
    for (int l = 0; l < N_LAYERS && st >= 0; l++)
        st = read_map(e, l);
    return st;
}

static int start(engine *e, const char *socket, const int32_t *expert) {
    char text[512];
    bl_embed_options options = BL_EMBED_OPTIONS_INIT;
    options.model = "embed";
    options.n_experts = N_EXPERTS;
    options.top_k = TOP_K;
    options.spares = SPARES;   /* Ballast's own; by pointers they are the engine's */
    options.step_bytes = 4096; /* so little that a move takes many steps */
    options.socket = socket;
    options.recompute = recompute;
    options.fetch = fetch;
    options.user = e;
    int st = bl_embed_open(&options, &e->ballast, text, sizeof text);
    if (st < 0) {
        fprintf(stderr, "embed: %s\n", text);
        return st;
    }
    for (int l = 0; l < N_LAYERS && st >= 0; l++)
        st = declare_layer(e, l, expert); /* bl_embed_start() tells the others of a refusal */
    st = bl_embed_start(e->ballast);
    return st >= 0 ? read_maps(e) : st;
}

/* All ranks come here between the same two steps. */
static int reload(engine *e, int version) {
    int st = bl_drain(e->ballast, BL_DRAIN_ABORT);
    if (st >= 0)
        st = read_maps(e);
    for (int l = 0; l < N_LAYERS && st >= 0; l++)
        load_layer(&e->layers[l], FIRST_LAYER + l, version, e->maps[l].expert, e->rank);
    e->version = version;
    e->n_reloads++;
    return st >= 0 ? bl_resume(e->ballast, 1) : st;
}

/* All survivors come here from the same barrier. That a rank is gone may reach Ballast a little later. */
static int repair(engine *e) {
    bl_repaired repaired = BL_REPAIRED_INIT;
    int st = BL_ERR_PEER;
    for (int n = 0; n < 30 && st == BL_ERR_PEER; n++)
        st = bl_repair(e->ballast, &repaired);
    for (int i = 0; st >= 0 && i < repaired.n_lost; i++)
        e->is_lost[repaired.lost[i]] = 1;
    e->n_fetched += repaired.n_fetched_here;
    return st >= 0 ? read_maps(e) : st;
}

/* So that `ballast rebalance --auto` can see for itself where the load lies. */
static int count(engine *e, int l, const int32_t *ids, int n_tokens, int n_rows, uint64_t took_ns) {
    bl_counted counted = BL_COUNTED_INIT;
    counted.layer = FIRST_LAYER + l;
    counted.ids = ids;
    counted.n_tokens = (size_t)n_tokens;
    counted.row_bytes = TOP_K * sizeof *ids;
    counted.n_rows = (size_t)n_rows;
    counted.experts_ns = took_ns;
    return bl_count(e->ballast, &counted);
}

static int begin_step(engine *e) {
    bl_step_news news = BL_STEP_NEWS_INIT;
    const int st = bl_step(e->ballast, &news);
    return st >= 0 && news.layer >= FIRST_LAYER ? read_map(e, news.layer - FIRST_LAYER) : st;
}

/* } ballast */

static int chosen_expert(unsigned long step, int layer, int rank, int token, int k) {
    const unsigned long first = (step * 5 + (unsigned)(layer * 3 + rank * 2 + token)) % N_EXPERTS;
    return (int)((first + (unsigned)k * 3) % N_EXPERTS);
}

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Copies of an expert take turns. */
static int slot_of(const bl_trace_map *map, int expert, int turn) {
    int found[N_SLOTS] = {0}, n = 0;
    for (int slot = 0; slot < N_SLOTS; slot++)
        if (map->expert[slot] == expert)
            found[n++] = slot;
    return n > 0 ? found[turn % n] : -1;
}

static int run_layer(engine *e, unsigned long step, int l) {
    row *mine = e->net->rows[e->rank];
    int32_t ids[TOKENS * TOP_K];
    int n_computed = 0;
    const int layer = FIRST_LAYER + l;
    const int n_tokens = (int)((step + (unsigned)e->rank) % (TOKENS + 1)); /* often none */
    for (int i = 0; i < TOKENS * TOP_K; i++) {
        const int token = i / TOP_K;
        mine[i].slot = -1;
        if (token >= n_tokens)
            continue;
        ids[i] = chosen_expert(step, layer, e->rank, token, i % TOP_K);
        mine[i].slot = slot_of(&e->maps[l], ids[i], token + e->rank);
        for (int in = 0; in < HIDDEN; in++)
            mine[i].in[in] =
                (float)((step * 31 + (unsigned)(token * 7 + in)) % 97) * 0.03125f - 1.5f;
    }
    if (barrier(e) == LOST) /* dispatched */
        return LOST;
    const uint64_t begin_ns = now_ns();
    for (int from = 0; from < N_RANKS; from++) {
        for (int i = 0; i < TOKENS * TOP_K && !e->is_lost[from]; i++) {
            row *r = &e->net->rows[from][i];
            if (r->slot < 0 || r->slot / SLOTS != e->rank)
                continue;
            compute(&e->layers[l], e->rank, r);
            n_computed++;
        }
    }
    const uint64_t took_ns = now_ns() - begin_ns;
    if (barrier(e) == LOST) /* combined */
        return LOST;
    for (int i = 0; i < n_tokens * TOP_K; i++) {
        e->n_rows++;
        if (mine[i].slot < 0 || !is_exact(&mine[i], layer, ids[i], e->version))
            e->n_wrong++;
    }
    return count(e, l, ids, n_tokens, n_computed, took_ns);
}

static volatile sig_atomic_t wants_stop, wants_reload;

static void on_signal(int number) {
    if (number == SIGUSR1)
        wants_reload = 1;
    else
        wants_stop = 1;
}

/* The first rank decides what happens in the next step, so that all do the same. */
static int decide(engine *e) {
    if (e->rank == first_rank(e)) {
        e->net->stop = wants_stop;
        e->net->version = e->version + wants_reload;
        wants_reload = 0;
    }
    return barrier(e);
}

static int run_step(engine *e, unsigned long step) {
    int st = 0;
    if (e->net->version != e->version)
        st = reload(e, e->net->version);
    if (st >= 0)
        st = begin_step(e);
    for (int l = 0; l < N_LAYERS && st == 0; l++)
        st = run_layer(e, step, l);
    return st;
}

/* A step that was broken off by a loss is taken again. */
static int serve(engine *e) {
    for (unsigned long step = 0;;) {
        int st = decide(e);
        if (st == 0 && e->net->stop)
            return 0;
        if (st == 0)
            st = run_step(e, step);
        if (st == LOST)
            st = repair(e);
        else
            step++;
        if (st < 0)
            return st;
        if (e->rank == 0 && step == 1)
            fprintf(stderr, "embed: serving\n");
    }
}

static void report(const engine *e) {
    bl_embed_status status = BL_EMBED_STATUS_INIT;
    bl_embed_read_status(e->ballast, &status);
    printf("rank %d: %lu rows, %lu wrong; %llu moves, %llu commits, %d reloads, %d fetched\n",
           e->rank, e->n_rows, e->n_wrong, (unsigned long long)status.moves,
           (unsigned long long)status.commits, e->n_reloads, e->n_fetched);
    for (int l = 0; e->rank == first_rank(e) && l < N_LAYERS; l++) {
        printf("layer %d:", FIRST_LAYER + l);
        for (int slot = 0; slot < N_SLOTS; slot++)
            printf(" %d", (int)e->maps[l].expert[slot]);
        printf("\n");
    }
}

int main(int argc, char **argv) {
    static engine e;
    static const int32_t expert[N_SLOTS] = {0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3};
    const char *rank = getenv("RANK");
    e.by_pointers = argc > 1 && strcmp(argv[1], "--pointers") == 0;
    if (argc != 3 + e.by_pointers || rank == NULL || atoi(rank) < 0 || atoi(rank) >= N_RANKS) {
        fprintf(stderr, "usage: RANK=.. WORLD_SIZE=%d .. embed [--pointers] NETWORK SOCKET\n",
                N_RANKS);
        return 2;
    }
    e.rank = atoi(rank);
    e.version = 1;
    e.net = join_network(argv[argc - 2], e.rank, &e.net_fd);
    if (e.net == NULL) {
        perror(argv[argc - 2]);
        return 1;
    }
    const struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGUSR1, &action, NULL);
    place_tensors(&e);
    for (int l = 0; l < N_LAYERS; l++)
        load_layer(&e.layers[l], FIRST_LAYER + l, e.version, expert, e.rank);
    int st = start(&e, argv[argc - 1], expert);
    if (st >= 0)
        st = serve(&e);
    if (st < 0 && e.ballast != NULL)
        fprintf(stderr, "embed: rank %d: %s\n", e.rank, bl_embed_error(e.ballast));
    else if (st >= 0)
        report(&e);
    bl_embed_close(e.ballast);
    return st < 0 || e.n_wrong > 0;
}
