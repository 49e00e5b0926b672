/* Rows between ranks: by hand, by enumerating every choice of copies, and on interleaved nodes. */
#include "tests/support/support.h"

#include "core/rng.h"
#include "core/split_local.h"
#include "planner/traffic.h"
#include "tests/support/traces.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define assert_near(got, want, by)                                                      \
    do {                                                                                \
        if (!(fabs((double)(got) - (want)) <= (by)))                                    \
            fail_msg("%s is %.12g, wanted %.12g", #got, (double)(got), (double)(want)); \
    } while (0)

/* ---- building -------------------------------------------------------------------------------- */

/* A topology of n_ranks ranks, rank r on host and node of_node[r] (host of_host[r] if given). */
static bl_topology cluster(int n_ranks, const int *of_node, const int *of_host) {
    bl_error err;
    bl_topology topology;
    char text[8192];
    size_t n = (size_t)snprintf(
        text, sizeof text,
        "{\"format\":\"ballast-topology\",\"version\":1,\"name\":\"t\",\"description\":\"d\","
        "\"devices\":[{\"name\":\"x\",\"memory_bytes\":{\"value\":1e10,\"source\":\"assumed\"},"
        "\"memory_bytes_per_s\":{\"value\":1e12,\"source\":\"assumed\"},\"expert_share\":"
        "{\"value\":0.5,\"source\":\"assumed\"},\"flop_per_s\":{\"bf16\":{\"value\":1e14,"
        "\"source\":\"assumed\"}}}],\"levels\":[");
    for (int level = 0; level < 2; level++)
        n += (size_t)snprintf(
            text + n, sizeof text - n,
            "%s{\"name\":\"%s\",\"latency_s\":{\"value\":1e-6,\"source\":\"assumed\"},"
            "\"message_s\":{\"value\":1e-7,\"source\":\"assumed\"},\"out_bytes_per_s\":{\"value\":"
            "%s,\"source\":\"assumed\"},\"in_bytes_per_s\":{\"value\":%s,\"source\":\"assumed\"},"
            "\"ports\":{\"value\":%d,\"source\":\"assumed\"}}",
            level > 0 ? "," : "", level > 0 ? "cluster" : "nvlink", level > 0 ? "1e10" : "1e11",
            level > 0 ? "1e10" : "1e11", level > 0 ? 2 : 1);
    n += (size_t)snprintf(text + n, sizeof text - n, "],\"ranks\":[");
    for (int rank = 0; rank < n_ranks; rank++)
        n += (size_t)snprintf(text + n, sizeof text - n, "%s{\"path\":\"n%d\",\"host\":\"h%d\"}",
                              rank > 0 ? "," : "", of_node[rank],
                              of_host != NULL ? of_host[rank] : of_node[rank]);
    snprintf(text + n, sizeof text - n, "]}");
    json_t *root = json_loads(text, 0, NULL);
    assert_non_null(root);
    assert_ok(bl_topology_from_json(root, NULL, NULL, "t", &topology, &err));
    json_decref(root);
    return topology;
}

/* One layer; slots[rank] lists are separated by -2. */
static bl_layer_placement placed(int n_ranks, int n_experts, const int *slots_per_rank,
                                 const int32_t *expert) {
    bl_error err;
    bl_placement placement;
    bl_layer_placement layer;
    const int id = 3;
    assert_ok(bl_placement_create(n_ranks, n_experts, &id, 1, slots_per_rank, &placement, &err));
    memcpy(placement.layers[0].expert, expert,
           (size_t)bl_layer_n_slots(&placement.layers[0]) * sizeof *expert);
    assert_ok(bl_placement_check(&placement, NULL, &err));
    assert_ok(bl_layer_placement_copy(&placement.layers[0], &layer, &err));
    bl_placement_free(&placement);
    return layer;
}

/* Sources of tokens given one by one: ids[n][k], born on source[n], all in one group and step. */
static bl_sources sources_of(int n, int k, const int32_t *ids, const int32_t *source, int n_sources,
                             int n_experts, const char *name) {
    bl_error err;
    bl_sources sources;
    bl_loads loads = {0};
    const char *path = bl_test_temp(name);
    bl_trace_info info = bl_test_info(1, (int[]){3}, n_experts, k);
    int present[64];
    for (int rank = 0; rank < n_sources; rank++)
        present[rank] = rank;
    assert_ok(bl_trace_info_set_ranks(&info, n_sources, present, n_sources, &err));
    bl_blt_writer *writer = bl_test_create(path, &info);
    for (int i = 0; i < n; i++)
        bl_test_put(writer, bl_test_record(0, 3, source[i], n_experts, k, 1, ids + i * k));
    bl_test_close(writer);
    bl_trace_info_free(&info);
    bl_loads_options options = BL_LOADS_OPTIONS_INIT;
    options.sources = BL_SOURCES_REQUIRED;
    options.most_tokens = 1000;
    assert_ok(bl_loads_read(&path, 1, NULL, &options, &loads, &err));
    const int group = 0;
    assert_ok(bl_sources_of(&loads, 0, &group, 1, NULL, n_sources, &sources, &err));
    assert_true(sources.whole);
    bl_loads_free(&loads);
    return sources;
}

typedef struct metered {
    bl_sites sites;
    bl_traffic traffic;
    double *slot_rows; /* owned */
} metered;

static metered meter(const bl_topology *topology, const bl_layer_placement *placement, bl_rule rule,
                     bl_dispatch dispatch, bl_dispatch combine, const bl_sources *sources) {
    bl_error err;
    static metered m; /* sites are borrowed by the traffic: one at a time */
    bl_source_split *split;
    m.slot_rows = calloc((size_t)bl_layer_n_slots(placement), sizeof *m.slot_rows);
    assert_ok(bl_sites_of(topology, placement->n_ranks, &m.sites, &err));
    assert_ok(bl_traffic_create(topology, &m.sites, dispatch, combine, &m.traffic, &err));
    assert_ok(
        bl_source_split_create(placement, rule, NULL, &m.sites, sources->n_sources, &split, &err));
    assert_ok(bl_source_split_rows(split, sources, 0, m.slot_rows, &m.traffic, &err));
    bl_source_split_free(split);
    return m;
}

static void metered_free(metered *m) {
    bl_traffic_free(&m->traffic);
    bl_sites_free(&m->sites);
    free(m->slot_rows);
}

static void check_matrix(const double *got, const double *want, int n) {
    for (int i = 0; i < n * n; i++) {
        if (fabs(got[i] - want[i]) > 1e-9)
            fail_msg("%d -> %d: %.9f rows, wanted %.9f", i / n, i % n, got[i], want[i]);
    }
}

/* ---- by hand --------------------------------------------------------------------------------- */

/* Two ranks, experts 0 and 1 on rank 0, 2 and 3 on rank 1. Rank 0 bears {0,1}, {0,2}, {2,3}, rank 1
 * bears {0,3}. */
static const int32_t four_tokens[] = {0, 1, 0, 2, 2, 3, 0, 3};
static const int32_t four_sources[] = {0, 0, 0, 1};

static void a_pair_of_ranks(void **state) {
    (void)state;
    bl_topology topology = cluster(2, (int[]){0, 1}, NULL);
    bl_layer_placement placement = placed(2, 4, (int[]){2, 2}, (int32_t[]){0, 1, 2, 3});
    bl_sources sources = sources_of(4, 2, four_tokens, four_sources, 2, 4, "pair.blt");
    metered m = meter(&topology, &placement, BL_RULE_EVEN, BL_DISPATCH_ASSIGNMENT,
                      BL_DISPATCH_ASSIGNMENT, &sources);
    check_matrix(m.traffic.dispatch, (double[]){3, 3, 1, 1}, 2);
    check_matrix(m.traffic.combine, (double[]){3, 1, 3, 1}, 2);
    assert_near(m.traffic.tokens, 4, 1e-12);
    assert_near(m.traffic.remote_nodes, 3, 1e-12); /* {0,2}, {2,3}; {0,3} */
    double dispatch[BL_MAX_LEVELS + 1], combine[BL_MAX_LEVELS + 1];
    bl_traffic_levels(&m.traffic, dispatch, combine);
    assert_near(dispatch[0], 4, 1e-12);
    assert_near(dispatch[1], 0, 1e-12);
    assert_near(dispatch[2], 4, 1e-12);
    /* 3 rows of 1000 bytes leave node 0 over 2 ports of 1e10 bytes/s */
    bl_error err;
    bl_port port;
    assert_ok(bl_traffic_busiest(&m.traffic, m.traffic.dispatch, 1000, &port, &err));
    assert_int_equal(port.level, 2);
    assert_int_equal(port.domain, 0);
    assert_near(port.rows, 3, 1e-12);
    assert_near(port.seconds, 3 * 1000 / 2e10, 1e-18);
    metered_free(&m);
    m = meter(&topology, &placement, BL_RULE_EVEN, BL_DISPATCH_DEDUP_RANK, BL_DISPATCH_DEDUP_NODE,
              &sources);
    check_matrix(m.traffic.dispatch, (double[]){2, 2, 1, 1}, 2); /* {2,3} goes once */
    check_matrix(m.traffic.combine, (double[]){2, 1, 2, 1}, 2);
    metered_free(&m);
    m = meter(&topology, &placement, BL_RULE_EVEN, BL_DISPATCH_ALLGATHER, BL_DISPATCH_ASSIGNMENT,
              &sources);
    check_matrix(m.traffic.dispatch, (double[]){0, 3, 1, 0}, 2); /* every token, wherever it goes */
    metered_free(&m);
    bl_sources_free(&sources);
    bl_layer_placement_free(&placement);
    bl_topology_free(&topology);
}

/* One token of rank 0 (node A = ranks 0, 1), experts on ranks 2 and 3 of node B: it crosses once, to
 * rank 2, which stands in B where 0 stands in A; 2 passes it on to 3. A token of rank 1 goes to rank
 * 3 and from there to 2. */
static void a_node_is_entered_once(void **state) {
    (void)state;
    bl_topology topology = cluster(4, (int[]){0, 0, 1, 1}, NULL);
    bl_layer_placement placement = placed(4, 4, (int[]){1, 1, 1, 1}, (int32_t[]){0, 1, 2, 3});
    bl_sources sources =
        sources_of(2, 2, (int32_t[]){2, 3, 2, 1}, (int32_t[]){0, 1}, 2, 4, "node.blt");
    metered m = meter(&topology, &placement, BL_RULE_EVEN, BL_DISPATCH_DEDUP_NODE,
                      BL_DISPATCH_DEDUP_NODE, &sources);
    double want[16] = {0};
    want[0 * 4 + 2] = 1; /* {2,3} */
    want[2 * 4 + 3] = 1;
    want[1 * 4 + 3] = 1; /* {2,1}: over 3 to 2; 1 is at home */
    want[3 * 4 + 2] = 1;
    want[1 * 4 + 1] = 1;
    check_matrix(m.traffic.dispatch, want, 4);
    double back[16];
    for (int i = 0; i < 16; i++)
        back[i] = want[i % 4 * 4 + i / 4];
    check_matrix(m.traffic.combine, back, 4);
    assert_near(m.traffic.remote_nodes, 2, 1e-12);
    metered_free(&m);
    bl_sources_free(&sources);
    bl_layer_placement_free(&placement);
    bl_topology_free(&topology);
}

static double crossing(const bl_topology *topology, const bl_layer_placement *placement,
                       const bl_sources *sources) {
    double dispatch[BL_MAX_LEVELS + 1], combine[BL_MAX_LEVELS + 1];
    metered m = meter(topology, placement, BL_RULE_EVEN, BL_DISPATCH_ASSIGNMENT,
                      BL_DISPATCH_ASSIGNMENT, sources);
    bl_traffic_levels(&m.traffic, dispatch, combine);
    metered_free(&m);
    return dispatch[2];
}

/* The same placement and tokens; ranks 0,1 | 2,3 share nodes, or 0,2 | 1,3. */
static void interleaved_nodes_change_what_crosses(void **state) {
    (void)state;
    bl_topology blocks = cluster(4, (int[]){0, 0, 1, 1}, NULL);
    bl_topology interleaved = cluster(4, (int[]){0, 1, 0, 1}, NULL);
    bl_layer_placement placement = placed(4, 4, (int[]){1, 1, 1, 1}, (int32_t[]){0, 1, 2, 3});
    bl_sources sources =
        sources_of(2, 2, (int32_t[]){0, 1, 3, 2}, (int32_t[]){0, 3}, 4, 4, "maps.blt");
    assert_near(crossing(&blocks, &placement, &sources), 0, 1e-12);
    assert_near(crossing(&interleaved, &placement, &sources), 2, 1e-12);
    bl_sources_free(&sources);
    bl_layer_placement_free(&placement);
    bl_topology_free(&blocks);
    bl_topology_free(&interleaved);
}

/* 18 hosts of 4 ranks in one NVLink domain are one node: nothing is remote. */
static void a_rack_of_one_nvlink_domain_is_one_node(void **state) {
    (void)state;
    bl_error err;
    bl_topology rack;
    bl_sites sites;
    assert_ok(bl_topology_open("gb200-nvl72", &rack, &err));
    assert_int_equal(rack.n_ranks, 72);
    assert_int_equal(rack.n_hosts, 18);
    assert_ok(bl_sites_of(&rack, 72, &sites, &err));
    assert_int_equal(sites.n_nodes, 1);
    assert_int_equal(sites.host[71], 17);
    bl_sites_free(&sites);
    bl_topology_free(&rack);
    /* and a box whose host holds two domains of the lowest level is one node, too */
    bl_topology box = cluster(4, (int[]){0, 0, 1, 1}, (int[]){0, 0, 0, 0});
    assert_ok(bl_sites_of(&box, 4, &sites, &err));
    assert_int_equal(sites.n_nodes, 1);
    assert_int_equal(sites.level, 2);
    bl_sites_free(&sites);
    bl_topology_free(&box);
}

/* ---- rules by source ------------------------------------------------------------------------- */

/* Expert 0 on ranks 1, 2, 3 of two hosts (0, 1 | 2, 3), expert 1 on rank 0 alone, expert 2 on ranks 2
 * and 3. */
static void shares_by_source(void **state) {
    (void)state;
    bl_error err;
    const int host[] = {0, 0, 1, 1};
    bl_layer_placement placement = placed(4, 3, (int[]){1, 1, 2, 2}, (int32_t[]){1, 0, 0, 2, 0, 2});
    bl_copies copies;
    double share[6];
    assert_ok(bl_copies_of(&placement, &copies, &err));
    const double third = 1.0 / 3,
                 nearest[4][6] = {{1, 1, 0, 0.5, 0, 0.5}, /* own host; expert 2 is elsewhere */
                                  {1, 1, 0, 0.5, 0, 0.5}, /* own rank */
                                  {1, 0, 1, 1, 0, 0},     /* own rank, twice */
                                  {1, 0, 0, 0, 1, 1}};
    const double fixed[4][6] = {{1, 1, 0, 1, 0, 0}, /* 0 mod 2 copies */
                                {1, 1, 0, 0, 0, 1}, /* 1 mod 2 copies */
                                {1, 0, 1, 1, 0, 0},
                                {1, 0, 0, 0, 1, 1}};
    for (int source = 0; source < 4; source++) {
        bl_split_source_shares(BL_RULE_NEAREST, &placement, &copies, host, source, share);
        assert_memory_equal(share, nearest[source], sizeof share);
        bl_split_source_shares(BL_RULE_FIXED, &placement, &copies, host, source, share);
        assert_memory_equal(share, fixed[source], sizeof share);
    }
    /* One host: nothing is nearer than anything else, so copies are drawn. */
    bl_split_source_shares(BL_RULE_NEAREST, &placement, &copies, (int[]){0, 0, 0, 0}, 0, share);
    assert_near(share[1], third, 1e-12);
    bl_copies_free(&copies);
    bl_layer_placement_free(&placement);
}

static void least_cover(const uint64_t *masks, int n, int own, int *size) {
    *size = 99;
    for (uint64_t set = 0; set < 64; set++) {
        int bits = 0, left = 0;
        for (int b = 0; b < 6; b++)
            bits += (int)(set >> b & 1);
        for (int i = 0; i < n; i++)
            left += (masks[i] & (set | UINT64_C(1) << own)) == 0;
        if (left == 0 && !(set >> own & 1) && bits < *size)
            *size = bits;
    }
}

/* Up to two nodes are found exactly; beyond, a cover, and on four nodes never one too many. */
static void few_nodes_are_found(void **state) {
    (void)state;
    bl_rng rng;
    bl_rng_seed(&rng, 5);
    for (int round = 0; round < 4000; round++) {
        const int n_nodes = round % 2 == 0 ? 4 : 6, n = 1 + (int)bl_rng_below(&rng, 6);
        uint64_t masks[6], need[6], set;
        int n_need = 0;
        for (int i = 0; i < n; i++)
            masks[i] = 1 + bl_rng_below(&rng, (1u << n_nodes) - 1);
        const int own = (int)bl_rng_below(&rng, (uint32_t)n_nodes);
        int best;
        least_cover(masks, n, own, &best);
        for (int i = 0; i < n; i++) {
            if (!(masks[i] >> own & 1))
                need[n_need++] = masks[i];
        }
        const int got = bl_local_cover(need, n_need, (int)bl_rng_below(&rng, 6), &set);
        for (int i = 0; i < n; i++)
            assert_true((masks[i] & (set | UINT64_C(1) << own)) != 0);
        if (best <= 2 || n_nodes == 4)
            assert_int_equal(got, best);
        else
            assert_in_range(got, best, best + 1);
    }
}

/* Tokens of rank 0 on node A (0, 1): expert 0 has copies on ranks 0 and 1, 1 on nodes B and C, 2 on B
 * alone. */
static void local_reuses_nodes_and_spreads(void **state) {
    (void)state;
    bl_error err;
    const int node[] = {0, 0, 1, 1, 2};
    bl_layer_placement placement = placed(5, 3, (int[]){1, 1, 1, 1, 1}, (int32_t[]){0, 0, 1, 2, 1});
    bl_local_split *split;
    int slot[3];
    assert_ok(bl_local_split_create(&placement, node, &split, &err));
    bl_local_split_begin(split, 0);
    assert_int_equal(bl_local_split_token(split, (int32_t[]){0, 1, 2}, 3, slot), 1);
    assert_int_equal(slot[0], 0); /* at home, on the source itself */
    assert_int_equal(slot[1], 2); /* B is visited anyway */
    assert_int_equal(slot[2], 3);
    assert_int_equal(bl_local_split_token(split, (int32_t[]){0, 1, -1}, 3, slot), 1);
    assert_int_equal(slot[0], 1); /* rank 0 has one row already */
    assert_int_equal(slot[1], 2); /* the second token counts from node B on */
    assert_int_equal(slot[2], -1);
    assert_int_equal(bl_local_split_token(split, (int32_t[]){1, -1, -1}, 3, slot), 1);
    assert_int_equal(slot[0], 4); /* the third from C on */
    bl_local_split_begin(split, 1);
    assert_int_equal(bl_local_split_token(split, (int32_t[]){0, -1, -1}, 3, slot), 0);
    assert_int_equal(slot[0], 1); /* the first from the source on */
    bl_local_split_free(split);
    bl_layer_placement_free(&placement);
}

/* ---- by enumeration -------------------------------------------------------------------------- */

/* Expected rows of all modes by going through every choice of copies for every token. */
typedef struct enumerated {
    const bl_sites *sites;
    const bl_copies *copies;
    const double *share;
    int n_ranks, source, k;
    const int32_t *ids;
    double *rank_rows, *node_rows; /* [n_ranks] tokens to each rank; [n_nodes] */
} enumerated;

static void enumerate(enumerated *e, int at, double chance, unsigned ranks) {
    if (at == e->k) {
        unsigned nodes = 0;
        for (int rank = 0; rank < e->n_ranks; rank++) {
            if (ranks >> rank & 1) {
                e->rank_rows[rank] += chance;
                nodes |= 1u << e->sites->node[rank];
            }
        }
        for (int node = 0; node < e->sites->n_nodes; node++)
            e->node_rows[node] += nodes >> node & 1 ? chance : 0.0;
        return;
    }
    for (int i = e->copies->first[e->ids[at]]; i < e->copies->first[e->ids[at] + 1]; i++) {
        const double share = e->share[e->copies->slot[i]];
        if (share > 0.0)
            enumerate(e, at + 1, chance * share, ranks | 1u << e->copies->rank[i]);
    }
}

static void compare_with_enumeration(bl_rng *rng, bl_rule rule, int round) {
    enum { RANKS = 5, EXPERTS = 6, K = 3, TOKENS = 12 };
    bl_error err;
    int of_node[RANKS];
    int32_t expert[2 * RANKS] = {0, 1, 1, 2, 2, 3, 3, 4, 4, 5}, ids[TOKENS * K], source[TOKENS];
    of_node[0] = 0;
    for (int rank = 1; rank < RANKS; rank++)
        of_node[rank] = (int)bl_rng_below(rng, 3);
    for (int rank = 0; rank < RANKS; rank++) { /* second slots change places */
        const int other = (int)bl_rng_below(rng, RANKS);
        const int32_t mine = expert[2 * rank + 1], theirs = expert[2 * other + 1];
        if (mine == expert[2 * other] || theirs == expert[2 * rank])
            continue;
        expert[2 * rank + 1] = theirs;
        expert[2 * other + 1] = mine;
    }
    for (int i = 0; i < TOKENS; i++) {
        source[i] = (int32_t)bl_rng_below(rng, RANKS);
        ids[i * K] = (int32_t)bl_rng_below(rng, 2);
        ids[i * K + 1] = 2 + (int32_t)bl_rng_below(rng, 2);
        ids[i * K + 2] = 4 + (int32_t)bl_rng_below(rng, 2);
    }
    bl_topology topology = cluster(RANKS, of_node, NULL);
    bl_layer_placement placement = placed(RANKS, EXPERTS, (int[]){2, 2, 2, 2, 2}, expert);
    bl_sources sources = sources_of(TOKENS, K, ids, source, RANKS, EXPERTS, "random.blt");
    metered m = meter(&topology, &placement, rule, BL_DISPATCH_DEDUP_RANK, BL_DISPATCH_DEDUP_NODE,
                      &sources);
    bl_copies copies;
    double share[2 * RANKS], want[RANKS * RANKS] = {0}, remote = 0.0, crossed = 0.0;
    assert_ok(bl_copies_of(&placement, &copies, &err));
    for (int i = 0; i < TOKENS; i++) {
        double rank_rows[RANKS] = {0}, node_rows[RANKS] = {0};
        bl_split_source_shares(rule, &placement, &copies, m.sites.host, source[i], share);
        enumerated e = {&m.sites, &copies,     share,     RANKS,    source[i],
                        K,        ids + i * K, rank_rows, node_rows};
        enumerate(&e, 0, 1.0, 0);
        for (int rank = 0; rank < RANKS; rank++)
            want[source[i] * RANKS + rank] += rank_rows[rank];
        for (int node = 0; node < m.sites.n_nodes; node++)
            remote += node == m.sites.node[source[i]] ? 0.0 : node_rows[node];
    }
    check_matrix(m.traffic.dispatch, want, RANKS);
    assert_near(m.traffic.remote_nodes, remote, 1e-9);
    for (int from = 0; from < RANKS; from++) {
        for (int to = 0; to < RANKS; to++)
            crossed +=
                m.sites.node[from] != m.sites.node[to] ? m.traffic.combine[from * RANKS + to] : 0.0;
    }
    assert_near(crossed, remote, 1e-9); /* a node is entered once for each visit */
    double rows = 0.0;
    for (int slot = 0; slot < 2 * RANKS; slot++)
        rows += m.slot_rows[slot];
    assert_near(rows, TOKENS * K, 1e-9);
    (void)round;
    metered_free(&m);
    bl_copies_free(&copies);
    bl_sources_free(&sources);
    bl_layer_placement_free(&placement);
    bl_topology_free(&topology);
}

static void expectations_equal_enumeration(void **state) {
    (void)state;
    bl_rng rng;
    bl_rng_seed(&rng, 11);
    for (int round = 0; round < 60; round++) {
        compare_with_enumeration(&rng, BL_RULE_EVEN, round);
        compare_with_enumeration(&rng, BL_RULE_NEAREST, round);
        compare_with_enumeration(&rng, BL_RULE_FIXED, round);
    }
}

/* Renaming ranks within and between equal nodes renames the figures and changes no sum. */
static void equal_nodes_may_change_names(void **state) {
    (void)state;
    const int there[] = {2, 3, 0, 1};
    bl_topology topology = cluster(4, (int[]){0, 0, 1, 1}, NULL);
    const int32_t expert[] = {0, 1, 2, 3}, source[] = {0, 1, 2, 0, 3};
    const int32_t ids[] = {0, 1, 0, 2, 3, 1, 2, 3, 0, 3};
    int32_t moved[4], born[5];
    for (int rank = 0; rank < 4; rank++)
        moved[there[rank]] = expert[rank];
    for (int i = 0; i < 5; i++)
        born[i] = there[source[i]];
    bl_layer_placement before = placed(4, 4, (int[]){1, 1, 1, 1}, expert);
    bl_layer_placement after = placed(4, 4, (int[]){1, 1, 1, 1}, moved);
    bl_sources a = sources_of(5, 2, ids, source, 4, 4, "a.blt");
    bl_sources b = sources_of(5, 2, ids, born, 4, 4, "b.blt");
    const bl_rule rules[] = {BL_RULE_EVEN, BL_RULE_NEAREST, BL_RULE_FIXED, BL_RULE_LOCAL};
    for (int r = 0; r < 4; r++) {
        double rows[16], remote;
        metered m =
            meter(&topology, &before, rules[r], BL_DISPATCH_ASSIGNMENT, BL_DISPATCH_DEDUP_NODE, &a);
        memcpy(rows, m.traffic.dispatch, sizeof rows);
        remote = m.traffic.remote_nodes;
        metered_free(&m);
        m = meter(&topology, &after, rules[r], BL_DISPATCH_ASSIGNMENT, BL_DISPATCH_DEDUP_NODE, &b);
        for (int from = 0; from < 4; from++) {
            for (int to = 0; to < 4; to++)
                assert_near(m.traffic.dispatch[there[from] * 4 + there[to]], rows[from * 4 + to],
                            1e-12);
        }
        assert_near(m.traffic.remote_nodes, remote, 1e-12);
        metered_free(&m);
    }
    bl_sources_free(&a);
    bl_sources_free(&b);
    bl_layer_placement_free(&before);
    bl_layer_placement_free(&after);
    bl_topology_free(&topology);
}

static void refusals(void **state) {
    (void)state;
    bl_error err;
    bl_topology topology = cluster(2, (int[]){0, 1}, NULL);
    bl_sites sites;
    bl_traffic traffic;
    assert_ok(bl_sites_of(&topology, 2, &sites, &err));
    assert_fails(bl_traffic_create(&topology, &sites, BL_DISPATCH_ASSIGNMENT, BL_DISPATCH_ALLGATHER,
                                   &traffic, &err),
                 BL_ERR_USAGE, "no combine by allgather");
    bl_sources sources = sources_of(4, 2, four_tokens, four_sources, 2, 4, "few.blt");
    sources.n_tokens = 0; /* as if the trace had counts only */
    assert_fails(bl_sources_need_tokens(&sources, &err), BL_ERR_UNSUPPORTED, "counts only");
    assert_int_equal(err.layer, 3);
    bl_sources_free(&sources);
    bl_loads loads = {.n_layers = 1};
    bl_sources none;
    const int group = 0;
    assert_fails(bl_sources_of(&loads, 0, &group, 1, NULL, 2, &none, &err), BL_ERR_UNSUPPORTED,
                 "where tokens come from");
    assert_fails(bl_sites_of(&topology, 3, &sites, &err), BL_ERR_SHAPE, "has 2 ranks, but 3");
    bl_sites_free(&sites);
    bl_topology_free(&topology);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_pair_of_ranks),
        cmocka_unit_test(a_node_is_entered_once),
        cmocka_unit_test(interleaved_nodes_change_what_crosses),
        cmocka_unit_test(a_rack_of_one_nvlink_domain_is_one_node),
        cmocka_unit_test(shares_by_source),
        cmocka_unit_test(few_nodes_are_found),
        cmocka_unit_test(local_reuses_nodes_and_spreads),
        cmocka_unit_test(expectations_equal_enumeration),
        cmocka_unit_test(equal_nodes_may_change_names),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
