/*
 * embed.c: an engine that is not Ballast's, with Ballast in it.
 *
 * A small expert-parallel engine as engines are: each rank is a process that holds the experts of its
 * slots in contiguous, quantised tensors; per step its tokens are routed, sent to the slots that hold
 * their experts, computed there and sent back. The network between the ranks is its own, a file they
 * all map. All that concerns Ballast is between the lines "ballast {" and "} ballast": declare the
 * tensors, call bl_step() in every step, route by bl_map(), and reload weights under bl_drain().
 *
 *     embed NETWORK SOCKET          rank and rendezvous from the environment, as torchrun sets it
 *
 *     for r in 0 1 2 3; do
 *         RANK=$r WORLD_SIZE=4 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 embed /dev/shm/net s &
 *     done
 *     ballast apply plan.json --socket s --wait     while they serve
 *     kill -USR1 %1                                 reload weights: another version of all experts
 *     kill -TERM %1                                 stop
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
    atomic_uint arrived, generation; /* of the barrier */
    int stop, version;               /* what rank 0 has decided for the step */
    row rows[N_RANKS][TOKENS * TOP_K];
} network;

static network *join_network(const char *path) {
    const int fd = open(path, O_RDWR | O_CREAT, 0600);
    if (fd < 0 || ftruncate(fd, (off_t)sizeof(network)) != 0)
        return NULL;
    void *mapped = mmap(NULL, sizeof(network), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    return mapped != MAP_FAILED ? mapped : NULL;
}

/* Until all ranks are here. A rank that is alone for a minute gives up. */
static void barrier(network *net) {
    const unsigned generation = atomic_load(&net->generation);
    if (atomic_fetch_add(&net->arrived, 1) + 1 == N_RANKS) {
        atomic_store(&net->arrived, 0);
        atomic_fetch_add(&net->generation, 1);
        return;
    }
    const time_t until = time(NULL) + 60;
    for (unsigned n = 1; atomic_load(&net->generation) == generation; n++) {
        sched_yield();
        if (n % 4096 == 0 && time(NULL) > until) {
            fprintf(stderr, "embed: the other ranks do not come\n");
            exit(1);
        }
    }
}

/* ---- experts -------------------------------------------------------------------------------------- */

/* Quantised as engines do it: int8 weights, one scale per output row, and the sums of the rows of
 * weights, which kernels want for asymmetric inputs and which follow from the weights. */
typedef struct layer_tensors {
    int8_t w[SLOTS][OUT][HIDDEN];
    float scale[SLOTS][OUT];
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

static void sum_rows(layer_tensors *t, int slot) {
    for (int out = 0; out < OUT; out++) {
        t->row_sum[slot][out] = 0;
        for (int in = 0; in < HIDDEN; in++)
            t->row_sum[slot][out] += t->w[slot][out][in];
    }
}

/* Load what a map says into the slots of a rank. */
static void load_layer(layer_tensors *t, int layer, int version, const int32_t *expert, int rank) {
    for (int slot = 0; slot < N_SLOTS; slot++)
        t->bias[slot] = expert[slot] >= 0 ? true_bias(layer, expert[slot], version) : 0.0f;
    for (int slot = 0; slot < SLOTS; slot++) {
        const int32_t e = expert[rank * SLOTS + slot];
        for (int out = 0; e >= 0 && out < OUT; out++) {
            t->scale[slot][out] = true_scale(layer, e, version, out);
            for (int in = 0; in < HIDDEN; in++)
                t->w[slot][out][in] = true_weight(layer, e, version, out, in);
        }
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
        r->out[out] = dot(t->w[slot][out], t->scale[slot][out], t->row_sum[slot][out],
                          t->bias[r->slot], r->in);
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
    int rank, version, n_reloads;
    network *net;
    layer_tensors layers[N_LAYERS];
    bl_trace_map maps[N_LAYERS];
    unsigned long n_rows, n_wrong;
    bl_embed *ballast;
} engine;

/* ballast { */

static int recompute(void *user, int layer, const char *const *tensors, int n_tensors,
                     const int *slots, int n_slots) {
    engine *e = user;
    (void)tensors, (void)n_tensors; /* there is only "row_sum" */
    for (int i = 0; i < n_slots; i++)
        sum_rows(&e->layers[layer - FIRST_LAYER], slots[i]);
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
    options.spares = 1;
    options.step_bytes = 4096; /* so little that a move takes many steps */
    options.socket = socket;
    options.recompute = recompute;
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
    barrier(e->net); /* dispatched */
    const uint64_t begin_ns = now_ns();
    for (int from = 0; from < N_RANKS; from++) {
        for (int i = 0; i < TOKENS * TOP_K; i++) {
            row *r = &e->net->rows[from][i];
            if (r->slot < 0 || r->slot / SLOTS != e->rank)
                continue;
            compute(&e->layers[l], e->rank, r);
            n_computed++;
        }
    }
    const uint64_t took_ns = now_ns() - begin_ns;
    barrier(e->net); /* combined */
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

/* Rank 0 decides what happens in the next step, so that all do the same. */
static void decide(engine *e) {
    if (e->rank == 0) {
        e->net->stop = wants_stop;
        e->net->version = e->version + wants_reload;
        wants_reload = 0;
    }
    barrier(e->net);
}

static int serve(engine *e) {
    for (unsigned long step = 0;; step++) {
        int st = 0;
        decide(e);
        if (e->net->stop)
            return 0;
        if (e->net->version != e->version)
            st = reload(e, e->net->version);
        if (st >= 0)
            st = begin_step(e);
        for (int l = 0; l < N_LAYERS && st >= 0; l++)
            st = run_layer(e, step, l);
        if (st < 0)
            return st;
        if (e->rank == 0 && step == 0)
            fprintf(stderr, "embed: serving\n");
    }
}

static void report(const engine *e) {
    bl_embed_status status = BL_EMBED_STATUS_INIT;
    bl_embed_read_status(e->ballast, &status);
    printf("rank %d: %lu rows, %lu wrong; %llu moves, %llu commits, %d reloads\n", e->rank,
           e->n_rows, e->n_wrong, (unsigned long long)status.moves,
           (unsigned long long)status.commits, e->n_reloads);
    for (int l = 0; e->rank == 0 && l < N_LAYERS; l++) {
        printf("layer %d:", FIRST_LAYER + l);
        for (int slot = 0; slot < N_SLOTS; slot++)
            printf(" %d", (int)e->maps[l].expert[slot]);
        printf("\n");
    }
}

int main(int argc, char **argv) {
    static engine e;
    static const int32_t expert[N_SLOTS] = {0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3};
    if (argc != 3 || getenv("RANK") == NULL || (e.net = join_network(argv[1])) == NULL) {
        fprintf(stderr, "usage: RANK=.. WORLD_SIZE=%d .. embed NETWORK SOCKET\n", N_RANKS);
        return 2;
    }
    e.rank = atoi(getenv("RANK"));
    e.version = 1;
    const struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGUSR1, &action, NULL);
    for (int l = 0; l < N_LAYERS; l++)
        load_layer(&e.layers[l], FIRST_LAYER + l, e.version, expert, e.rank);
    int st = start(&e, argv[2], expert);
    if (st >= 0)
        st = serve(&e);
    if (st < 0 && e.ballast != NULL)
        fprintf(stderr, "embed: rank %d: %s\n", e.rank, bl_embed_error(e.ballast));
    else if (st >= 0)
        report(&e);
    bl_embed_close(e.ballast);
    return st < 0 || e.n_wrong > 0;
}
