/* same_logits MODEL TOKENS.npy LOGITS.npy FIRST LAST HOSTS: one rank, of those that torchrun's or
 * mpirun's variables tell of, serves TOKENS under one random plan after another and compares each byte
 * of its logits with LOGITS.npy, which one process computed (ballast run -n 1 --tokens --logits).
 *
 * Everything is drawn from the plan's number, FIRST to LAST: rule and dispatch mode (18 in a row are all
 * pairs), where the copies live, their shares, how many of the tokens each rank serves and in what
 * pieces. Rank r is on host r mod HOSTS. Rank 0 prints what was compared. Exits 1 when anything differs.
 */
#include "core/mem.h"
#include "core/npy.h"
#include "core/rng.h"
#include "tests/support/cluster.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEADLINE_S 60.0
#define MAX_RANKS 64

/* What stays from plan to plan. */
typedef struct rank_state {
    bl_qwen3 *model;
    const bl_qwen3_config *config;
    bl_transport *transport;
    bl_exchange exchange;
    int rank, n_ranks;
    int site[MAX_RANKS];
    int32_t *tokens; /* [n_tokens] */
    int n_tokens;
    float *want, *logits; /* [n_tokens][vocab] */
    uint64_t n_rows;      /* of logits that were compared */
} rank_state;

/* One plan and how it is served. */
typedef struct trial {
    uint64_t seed;
    bl_placement placement;
    double **share; /* [n_layers][n_slots] */
    bl_sharing_rule rule;
    bl_dispatch dispatch;
    int n_mine; /* tokens of this rank */
    int piece;  /* tokens fed per step */
} trial;

static bl_status load_inputs(char **args, rank_state *s, bl_error *err) {
    bl_npy tokens, logits;
    BL_TRY(bl_npy_load(args[1], &tokens, err));
    s->n_tokens = (int)tokens.n_items;
    bl_status st = BL_CALLOC(s->tokens, tokens.n_items, err);
    for (size_t i = 0; st >= 0 && i < tokens.n_items; i++)
        s->tokens[i] = (int32_t)bl_npy_int(&tokens, i);
    bl_npy_free(&tokens);
    BL_TRY(st);
    BL_TRY(bl_npy_load(args[2], &logits, err));
    const size_t n = (size_t)s->n_tokens * (size_t)s->config->vocab;
    if (logits.kind != 'f' || logits.item_bytes != sizeof *s->want || logits.n_items != n)
        st = bl_fail_at(err, BL_ERR_SHAPE, bl_at(args[2]), "is not f4 [%d, %d]", s->n_tokens,
                        s->config->vocab);
    if (st >= 0)
        st = BL_CALLOC(s->want, n, err);
    if (st >= 0)
        st = BL_CALLOC(s->logits, n, err);
    if (st >= 0)
        memcpy(s->want, logits.data, n * sizeof *s->want);
    bl_npy_free(&logits);
    return st;
}

/* A fifth of the ranks has no tokens at all. */
static int draw_length(const rank_state *s, bl_rng *rng) {
    return bl_rng_below(rng, 5) == 0 ? 0 : 1 + (int)bl_rng_below(rng, (uint32_t)s->n_tokens);
}

static bl_status draw(rank_state *s, uint64_t seed, trial *t, bl_error *err) {
    bl_rng rng;
    *t = (trial){.seed = seed, .dispatch = (bl_dispatch)(seed / 6 % 3)};
    bl_rng_seed(&rng, seed);
    BL_TRY(bl_test_random_placement(s->model, s->n_ranks, seed, &t->placement, err));
    BL_TRY(BL_CALLOC(t->share, t->placement.n_layers, err));
    BL_TRY(bl_test_random_shares(&t->placement, &rng, t->share, err));
    t->rule = (bl_sharing_rule){.rule = (bl_rule)(seed % 6),
                                .host = s->site,
                                .node = s->site,
                                .share = (const double *const *)t->share};
    t->piece = 1 + (int)bl_rng_below(&rng, (uint32_t)s->n_tokens);
    if (bl_rng_below(&rng, 2) == 0)
        t->piece = s->n_tokens;
    if (t->piece < s->n_tokens / 4)
        t->piece = s->n_tokens / 4;
    for (int rank = 0; rank < s->n_ranks; rank++) { /* the same draws on every rank */
        const int n = draw_length(s, &rng);
        if (rank == s->rank)
            t->n_mine = n;
    }
    return BL_OK;
}

static void release(trial *t) {
    for (int l = 0; t->share != NULL && l < t->placement.n_layers; l++)
        free(t->share[l]);
    free(t->share);
    bl_placement_free(&t->placement);
}

/* Ranks with fewer tokens than others go on with empty steps. */
static bl_status feed(rank_state *s, const trial *t, bl_engine *engine, bl_error *err) {
    for (int start = 0; start < s->n_tokens; start += t->piece) {
        const int left = t->n_mine - start;
        const bl_chunk chunk = {.tokens = s->tokens + start,
                                .n_tokens = left < t->piece ? left : t->piece,
                                .every_token = true,
                                .logits = s->logits + (size_t)start * (size_t)s->config->vocab};
        bl_step_result result;
        BL_TRY(bl_engine_step(engine, &chunk, left > 0, left > 0, &result, err));
    }
    return BL_OK;
}

static bl_status compare(rank_state *s, const trial *t, bl_error *err) {
    const size_t n = (size_t)t->n_mine * (size_t)s->config->vocab;
    s->n_rows += (uint64_t)t->n_mine;
    for (size_t i = 0; i < n; i++) {
        if (memcmp(&s->logits[i], &s->want[i], sizeof *s->want) != 0)
            return bl_fail(err, BL_ERR_INTERNAL,
                           "rank %d of %d, plan %llu, rule %s, dispatch %s: logit %zu of token %zu "
                           "is %.9g, one process says %.9g",
                           s->rank, s->n_ranks, (unsigned long long)t->seed,
                           bl_rule_names[t->rule.rule], bl_combine_names[t->dispatch],
                           i % (size_t)s->config->vocab, i / (size_t)s->config->vocab,
                           (double)s->logits[i], (double)s->want[i]);
    }
    return BL_OK;
}

static bl_status serve(rank_state *s, const trial *t, bl_error *err) {
    bl_store *store;
    bl_engine *engine = NULL;
    const bl_engine_hooks hooks = {0};
    BL_TRY(
        bl_store_create(&t->placement, s->rank, bl_qwen3_bundle_bytes(s->config), 0, &store, err));
    bl_status st = bl_engine_load_experts(s->model, store, err);
    if (st >= 0)
        st = bl_engine_create(s->model, store, &s->exchange, 1, &hooks, &engine, err);
    if (st >= 0) {
        bl_engine_share_by(engine, &t->rule);
        bl_engine_dispatch_by(engine, t->dispatch, t->rule.node);
        st = feed(s, t, engine, err);
    }
    if (st >= 0)
        st = compare(s, t, err);
    bl_engine_free(engine);
    bl_store_free(store);
    return st;
}

static bl_status serve_all(rank_state *s, uint64_t first, uint64_t last, bl_error *err) {
    s->exchange = bl_exchange_over(s->transport, DEADLINE_S);
    for (uint64_t seed = first; seed <= last; seed++) {
        trial t;
        bl_status st = draw(s, seed, &t, err);
        if (st >= 0)
            st = serve(s, &t, err);
        release(&t);
        BL_TRY(st);
    }
    if (s->rank == 0)
        printf("%d ranks: plans %llu to %llu, %llu of rank 0's rows of logits are one process's\n",
               s->n_ranks, (unsigned long long)first, (unsigned long long)last,
               (unsigned long long)s->n_rows);
    return BL_OK;
}

static bl_status run(char **args, rank_state *s, bl_error *err) {
    bl_ucx_options options = BL_UCX_OPTIONS_INIT;
    char text[300];
    bool found;
    const int n_hosts = atoi(args[5]);
    options.deadline_s = DEADLINE_S;
    BL_TRY(bl_ucx_options_from_env(&options, text, sizeof text, &found, err));
    if (!found || options.n_ranks > MAX_RANKS || n_hosts < 1)
        return bl_fail(err, BL_ERR_USAGE, "needs a launcher's variables, of %d ranks at most",
                       MAX_RANKS);
    s->rank = options.rank;
    s->n_ranks = options.n_ranks;
    for (int rank = 0; rank < s->n_ranks; rank++)
        s->site[rank] = rank % n_hosts;
    BL_TRY(bl_qwen3_open(args[0], &s->model, err));
    s->config = bl_qwen3_config_of(s->model);
    BL_TRY(load_inputs(args, s, err));
    BL_TRY(bl_transport_ucx_open(&options, &s->transport, err));
    return serve_all(s, strtoull(args[3], NULL, 10), strtoull(args[4], NULL, 10), err);
}

int main(int argc, char **argv) {
    rank_state s = {0};
    bl_error err = BL_ERROR_INIT;
    if (argc != 7) {
        fprintf(stderr, "usage: same_logits MODEL TOKENS.npy LOGITS.npy FIRST LAST HOSTS\n");
        return 2;
    }
    const bl_status st = run(argv + 1, &s, &err);
    if (st < 0)
        bl_transport_abandon(s.transport);
    else
        bl_transport_close(s.transport);
    bl_qwen3_free(s.model);
    free(s.tokens);
    free(s.want);
    free(s.logits);
    if (st >= 0)
        return 0;
    fprintf(stderr, "same_logits: %s\n", err.text);
    return 1;
}
