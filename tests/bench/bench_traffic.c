/*
 * bench_traffic.c: remote nodes per token on 4 nodes of 2 ranks (docs/benchmarks.md, "Traffic").
 *
 * Tokens of DeepSeek-V2-Lite (three texts) and gpt-oss-20b (eight benchmarks): sequence i of a set is
 * born on rank i mod 8; plans are made on the even sequences of all sets and scored on the odd ones.
 * A rank brings 256 tokens to a step. Dispatch sends a token once to each node.
 *
 *     greedy_even    what engines do today: greedy's placement, copies by a hash of the token
 *     greedy_local   the same placement under the rule local (core/split_local.h)
 *     plan_local     copies assigned to nodes for that rule (planner/nodes_plan.h)
 *
 * Rows: remote nodes per token (mean over layers; the least and largest layer beside it), max/mean of
 * token rows over all scored tokens (the same), and the milliseconds that one layer takes.
 *
 * The figures are the evaluator's. BALLAST_BENCH_LAYERS=N looks at every Nth layer only; the rows in
 * the documentation are of all. Without the data a note on standard error says so.
 */
#include "core/json.h"
#include "core/mem.h"
#include "core/npy.h"
#include "core/progress.h"
#include "planner/evaluate.h"
#include "planner/greedy.h"
#include "planner/nodes_plan.h"
#include "planner/traffic_plan.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RANKS 8
#define TOKENS_PER_STEP 256
#define MOST_SETS 8

/* Figures do not matter here, only who is where. */
static const char CLUSTER[] =
    "{\"format\":\"ballast-topology\",\"version\":1,\"name\":\"4 x 2\",\"description\":\"\","
    "\"devices\":[{\"name\":\"any\",\"memory_bytes\":{\"value\":8e10,\"source\":\"assumed\"},"
    "\"memory_bytes_per_s\":{\"value\":3e12,\"source\":\"assumed\"},\"expert_share\":{\"value\":0."
    "5,"
    "\"source\":\"assumed\"},\"flop_per_s\":{\"bf16\":{\"value\":1e15,\"source\":\"assumed\"}}}],"
    "\"levels\":[{\"name\":\"node\",\"latency_s\":{\"value\":1e-6,\"source\":\"assumed\"},"
    "\"message_s\":"
    "{\"value\":1e-7,\"source\":\"assumed\"},\"out_bytes_per_s\":{\"value\":4e11,\"source\":"
    "\"assumed\"},"
    "\"in_bytes_per_s\":{\"value\":4e11,\"source\":\"assumed\"},\"ports\":{\"value\":1,\"source\":"
    "\"assumed\"}},{\"name\":\"cluster\",\"latency_s\":{\"value\":5e-6,\"source\":\"assumed\"},"
    "\"message_s\":{\"value\":1e-6,\"source\":\"assumed\"},\"out_bytes_per_s\":{\"value\":5e10,"
    "\"source\":"
    "\"assumed\"},\"in_bytes_per_s\":{\"value\":5e10,\"source\":\"assumed\"},\"ports\":{\"value\":"
    "2,"
    "\"source\":\"assumed\"}}],\"shape\":[2,4],\"ranks_per_host\":2}";

typedef struct set {
    bl_npy ids;      /* [token][layer][k] */
    json_t *lengths; /* of its sequences */
    size_t *first;   /* their first tokens; owned */
} set;

typedef struct bench {
    const char *name;
    int n_experts, k, slots;
    size_t n_layers;
    set sets[MOST_SETS];
    int n_sets;
    size_t most_sequences; /* of any set */
    bl_topology topology;
    bl_sites sites;
    int slots_per_rank[RANKS];
} bench;

typedef struct tally {
    double sum, least, most;
    int n;
} tally;

static void add(tally *t, double value) {
    t->least = t->n == 0 || value < t->least ? value : t->least;
    t->most = t->n == 0 || value > t->most ? value : t->most;
    t->sum += value;
    t->n++;
}

static void print(const bench *b, const char *how, const char *what, const char *unit,
                  const tally *t) {
    printf("traffic_%s_%s_%s,%.4f,%s,%d,%.4f,%.4f,%.4f\n", b->name, how, what, t->sum / t->n, unit,
           t->n, t->least, t->sum / t->n, t->most);
}

/* ---- data ------------------------------------------------------------------------------------ */

static void path_of(char *path, size_t size, const char *folder, const char *name,
                    const char *ext) {
    const char *root = getenv("BALLAST_TEST_DATA");
    snprintf(path, size, "%s/routing/%s/%s%s", root != NULL ? root : "../shared/data", folder, name,
             ext);
}

static bl_status load_set(bench *b, const char *folder, const char *name, bl_error *err) {
    char path[512];
    json_t *root;
    set *s = &b->sets[b->n_sets];
    path_of(path, sizeof path, folder, name, ".npy");
    BL_TRY(bl_npy_load(path, &s->ids, err));
    b->n_sets++;
    b->n_layers = s->ids.shape[1];
    path_of(path, sizeof path, folder, name, ".json");
    BL_TRY(bl_json_load(path, &root, err));
    b->n_experts = (int)json_integer_value(json_object_get(root, "num_experts"));
    b->k = (int)json_integer_value(json_object_get(root, "top_k"));
    s->lengths = json_incref(json_object_get(root, "sequence_lengths"));
    json_decref(root);
    const size_t n = json_array_size(s->lengths);
    BL_TRY(BL_CALLOC(s->first, n + 1, err));
    for (size_t i = 0; i < n; i++)
        s->first[i + 1] = s->first[i] + (size_t)json_integer_value(json_array_get(s->lengths, i));
    b->most_sequences = n > b->most_sequences ? n : b->most_sequences;
    return BL_OK;
}

static void bench_free(bench *b) {
    for (int i = 0; i < b->n_sets; i++) {
        bl_npy_free(&b->sets[i].ids);
        json_decref(b->sets[i].lengths);
        free(b->sets[i].first);
    }
    bl_sites_free(&b->sites);
    bl_topology_free(&b->topology);
}

/* The tokens of one sequence of a set, which begins at first[sequence]. */
static void take_sequence(const bench *b, const set *from, size_t sequence, size_t layer, int rank,
                          size_t *of_rank, bl_sources *s) {
    const size_t k = (size_t)b->k;
    if (sequence >= json_array_size(from->lengths))
        return;
    const size_t length = (size_t)json_integer_value(json_array_get(from->lengths, sequence));
    for (size_t token = from->first[sequence]; token < from->first[sequence] + length; token++) {
        for (size_t j = 0; j < k; j++) {
            const int id = (int)bl_npy_int(&from->ids, (token * b->n_layers + layer) * k + j);
            s->id[s->n_tokens * k + j] = id;
            s->load[(size_t)rank * (size_t)b->n_experts + (size_t)id] += 1.0;
        }
        s->source[s->n_tokens] = rank;
        s->step[s->n_tokens++] = (*of_rank)++ / TOKENS_PER_STEP;
    }
}

/* Tokens of the even or odd sequences of one layer, rank after rank, the sets in turn, as one group
 * of steps. */
static bl_status sources_of(const bench *b, size_t layer, size_t parity, bl_sources *out,
                            bl_error *err) {
    bl_sources s = {.layer = (int)layer,
                    .n_groups = 1,
                    .n_sources = RANKS,
                    .n_experts = b->n_experts,
                    .k = b->k,
                    .whole = true,
                    .weight = 1.0};
    const size_t k = (size_t)b->k;
    size_t all = 0;
    for (int i = 0; i < b->n_sets; i++)
        all += b->sets[i].ids.shape[0];
    BL_TRY(BL_CALLOC(s.load, RANKS * (size_t)b->n_experts, err));
    BL_TRY(BL_CALLOC(s.first, 2, err));
    BL_TRY(BL_CALLOC(s.scale, 1, err));
    BL_TRY(BL_CALLOC(s.source, all, err));
    BL_TRY(BL_CALLOC(s.step, all, err));
    BL_TRY(BL_CALLOC(s.id, all * k, err));
    for (int rank = 0; rank < RANKS; rank++) {
        size_t of_rank = 0;
        for (size_t sequence = (size_t)rank; sequence < b->most_sequences; sequence += RANKS) {
            for (int i = 0; i < b->n_sets && sequence % 2 == parity; i++)
                take_sequence(b, &b->sets[i], sequence, layer, rank, &of_rank, &s);
        }
    }
    s.first[1] = s.n_tokens;
    s.scale[0] = 1.0;
    *out = s;
    return BL_OK;
}

/* ---- scores ---------------------------------------------------------------------------------- */

typedef struct column {
    const char *name;
    tally remote, balance, ms;
} column;

static bl_status score(const bench *b, const bl_layer_placement *placement, bl_rule rule,
                       const bl_sources *held, column *into, bl_error *err) {
    bl_traffic traffic = {0};
    bl_source_split *split = NULL;
    double *slot_rows = NULL, rank_rows[RANKS];
    bl_status st;
    BL_TRY_GOTO(st, BL_CALLOC(slot_rows, bl_layer_n_slots(placement), err), done);
    BL_TRY_GOTO(st,
                bl_traffic_create(&b->topology, &b->sites, BL_DISPATCH_DEDUP_NODE,
                                  BL_DISPATCH_DEDUP_NODE, &traffic, err),
                done);
    BL_TRY_GOTO(st, bl_source_split_create(placement, rule, NULL, &b->sites, RANKS, &split, err),
                done);
    BL_TRY_GOTO(st, bl_source_split_rows(split, held, 0, slot_rows, &traffic, err), done);
    for (int rank = 0; rank < RANKS; rank++) {
        rank_rows[rank] = 0.0;
        for (int slot = placement->begin[rank]; slot < placement->begin[rank + 1]; slot++)
            rank_rows[rank] += slot_rows[slot];
    }
    add(&into->remote, traffic.remote_nodes / traffic.tokens);
    add(&into->balance, bl_imbalance(rank_rows, b->slots_per_rank, RANKS));
done:
    bl_source_split_free(split);
    bl_traffic_free(&traffic);
    free(slot_rows);
    return st;
}

enum { GREEDY_EVEN, GREEDY_LOCAL, PLAN_LOCAL, N_COLUMNS };

static bl_status run_layer(const bench *b, size_t layer, column *columns, bl_error *err) {
    bl_sources plan = {0}, held = {0};
    bl_layer_placement placement = {0};
    bl_nodes_plan_result result;
    double *load = NULL;
    bl_status st;
    BL_TRY_GOTO(st, sources_of(b, layer, 0, &plan, err), done);
    BL_TRY_GOTO(st, sources_of(b, layer, 1, &held, err), done);
    BL_TRY_GOTO(st, BL_CALLOC(load, b->n_experts, err), done);
    for (int rank = 0; rank < RANKS; rank++) {
        for (int e = 0; e < b->n_experts; e++)
            load[e] += bl_sources_load(&plan, 0, rank)[e];
    }
    bl_problem problem = {.layer = (int)layer,
                          .n_experts = b->n_experts,
                          .n_ranks = RANKS,
                          .n_scenarios = 1,
                          .load = load,
                          .slots_per_rank = b->slots_per_rank,
                          .rule = BL_RULE_EVEN,
                          .max_moves = -1,
                          .sources = &plan,
                          .sites = &b->sites};
    const double start = bl_now_s();
    BL_TRY_GOTO(st, bl_greedy(&problem, &placement, err), done);
    add(&columns[GREEDY_EVEN].ms, 1e3 * (bl_now_s() - start));
    BL_TRY_GOTO(st, score(b, &placement, BL_RULE_EVEN, &held, &columns[GREEDY_EVEN], err), done);
    BL_TRY_GOTO(st, score(b, &placement, BL_RULE_LOCAL, &held, &columns[GREEDY_LOCAL], err), done);
    problem.rule = BL_RULE_LOCAL;
    const bl_nodes_plan_options options = {
        .dispatch = BL_DISPATCH_DEDUP_NODE, .slack = BL_TRAFFIC_SLACK, .seed = 1, .use_milp = true};
    const double begun = bl_now_s();
    BL_TRY_GOTO(st, bl_nodes_plan(&problem, &options, &placement, &result, err), done);
    add(&columns[PLAN_LOCAL].ms, 1e3 * (bl_now_s() - begun));
    BL_TRY_GOTO(st, score(b, &placement, BL_RULE_LOCAL, &held, &columns[PLAN_LOCAL], err), done);
done:
    bl_layer_placement_free(&placement);
    bl_sources_free(&plan);
    bl_sources_free(&held);
    free(load);
    return st;
}

static bl_status run_bench(bench *b, bl_error *err) {
    column columns[N_COLUMNS] = {
        {.name = "greedy_even"}, {.name = "greedy_local"}, {.name = "plan_local"}};
    const char *every = getenv("BALLAST_BENCH_LAYERS");
    const size_t stride = every != NULL && atoi(every) > 0 ? (size_t)atoi(every) : 1;
    for (int rank = 0; rank < RANKS; rank++)
        b->slots_per_rank[rank] = b->slots / RANKS;
    for (size_t layer = 0; layer < b->n_layers; layer += stride)
        BL_TRY(run_layer(b, layer, columns, err));
    for (int c = 0; c < N_COLUMNS; c++) {
        print(b, columns[c].name, "remote", "nodes", &columns[c].remote);
        print(b, columns[c].name, "balance", "max/mean", &columns[c].balance);
        if (columns[c].ms.n > 0)
            print(b, columns[c].name, "layer", "ms", &columns[c].ms);
    }
    return BL_OK;
}

static bl_status cluster(bench *b, bl_error *err) {
    json_t *root;
    BL_TRY(bl_json_parse(CLUSTER, sizeof CLUSTER - 1, "cluster", &root, err));
    const bl_status st = bl_topology_from_json(root, NULL, NULL, "cluster", &b->topology, err);
    json_decref(root);
    BL_TRY(st);
    return bl_sites_of(&b->topology, RANKS, &b->sites, err);
}

static int run_model(const char *name, const char *folder, const char *const *sets, int slots) {
    bl_error err = BL_ERROR_INIT;
    bench b = {.name = name, .slots = slots};
    bl_status st = BL_OK;
    for (int i = 0; sets[i] != NULL && st >= 0; i++)
        st = load_set(&b, folder, sets[i], &err);
    if (st < 0) {
        fprintf(stderr, "traffic_%s: needs the shared data set (%s)\n", name, err.text);
        bench_free(&b);
        return 0;
    }
    st = cluster(&b, &err);
    if (st >= 0)
        st = run_bench(&b, &err);
    if (st < 0)
        fprintf(stderr, "traffic_%s: %s\n", name, err.text);
    bench_free(&b);
    return st < 0;
}

int main(void) {
    static const char *const lite[] = {"intent", "law", "summary", NULL};
    static const char *const oss[] = {"Polyglot-or-Not_Fact-Completion",
                                      "gpqa_extended",
                                      "gpqa_main",
                                      "mmlu_dev",
                                      "mmlu_pro_validation",
                                      "mmlu_test",
                                      "mmlu_validation",
                                      "tulu3_persona_if",
                                      NULL};
    return run_model("deepseek_v2_lite", "deepseek-v2-lite", lite, 80) +
           run_model("gpt_oss_20b", "gpt-oss-20b", oss, 40);
}
