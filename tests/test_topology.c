/* Topology: trees of any shape, costs by hand, the catalogue, and what is refused. */
#include "tests/support/support.h"

#include "core/rng.h"
#include "topologies/topology.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define F(value) "{\"value\":" value ",\"source\":\"assumed\"}"
#define DEVICE(name)                                                                              \
    "{\"name\":\"" name                                                                           \
    "\",\"memory_bytes\":" F("8e10") ",\"memory_bytes_per_s\":" F("3e12") ",\"expert_share\":" F( \
        "0.5") ",\"flop_per_s\":{\"bf16\":" F("1e15") ",\"fp8\":" F("2e15") "}}"
#define LEVEL(name, latency, message, out, in)                                             \
    "{\"name\":\"" name                                                                    \
    "\",\"latency_s\":" F(latency) ",\"message_s\":" F(message) ",\"out_bytes_per_s\":" F( \
        out) ",\"in_bytes_per_s\":" F(in) ",\"ports\":" F("2") "}"
#define HEAD "{\"format\":\"ballast-topology\",\"version\":1,\"name\":\"t\","
#define DEVICES "\"devices\":[" DEVICE("A") "," DEVICE("B") "],"
#define THREE                                                                                \
    "\"levels\":[" LEVEL("link", "1e-6", "1e-7", "4e11", "4e11") "," LEVEL(                  \
        "rack", "2e-6", "2e-7", "1e11", "5e10") "," LEVEL("cluster", "5e-6", "1e-6", "2e10", \
                                                          "2e10") "],"

/* Seven ranks, interleaved and uneven: link domains {0,2}, {1}, {3,4,6}, {5}; racks {0,1,2,5} and
 * {3,4,6}; one host holds ranks 0, 1 and 2 across two link domains. */
#define UNEVEN                                                                      \
    HEAD DEVICES THREE                                                              \
        "\"ranks\":["                                                               \
        "{\"path\":\"r0/a\",\"host\":\"h0\"},{\"path\":\"r0/b\",\"host\":\"h0\"},"  \
        "{\"path\":\"r0/a\",\"host\":\"h0\",\"device\":\"B\"},{\"path\":\"r1/a\"}," \
        "{\"path\":\"r1/a\"},{\"path\":\"r0/c\"},{\"path\":\"r1/a\",\"device\":\"B\"}]"

static bl_status parse(const char *text, const char *parameters, bl_topology *out, bl_error *err) {
    json_t *root;
    bl_status st = bl_json_parse(text, strlen(text), "test", &root, err);
    if (st < 0)
        return st;
    st = bl_topology_from_json(root, parameters, NULL, "test", out, err);
    json_decref(root);
    return st;
}

static void uneven_interleaved_tree(void **state) {
    (void)state;
    static const int levels[7][7] = {
        {0, 2, 1, 3, 3, 2, 3}, {2, 0, 2, 3, 3, 2, 3}, {1, 2, 0, 3, 3, 2, 3}, {3, 3, 3, 0, 1, 3, 1},
        {3, 3, 3, 1, 0, 3, 1}, {2, 2, 2, 3, 3, 0, 3}, {3, 3, 3, 1, 1, 3, 0}};
    bl_error err;
    bl_topology t;
    assert_ok(parse(UNEVEN "}", NULL, &t, &err));
    assert_int_equal(t.n_ranks, 7);
    assert_int_equal(t.n_levels, 3);
    for (int a = 0; a < 7; a++) {
        for (int b = 0; b < 7; b++)
            assert_int_equal(bl_topology_level(&t, a, b), levels[a][b]);
    }
    assert_int_equal(t.levels[1].n_domains, 4); /* r0/a and r1/a are two domains */
    assert_int_equal(t.levels[2].n_domains, 2);
    assert_int_equal(t.levels[3].n_domains, 1);
    assert_int_equal(t.n_hosts, 3);
    assert_true(bl_topology_same_host(&t, 0, 1));
    assert_false(bl_topology_same_host(&t, 0, 5));
    assert_true(bl_topology_same_host(&t, 3, 6));
    assert_string_equal(t.host_names[0], "h0");
    assert_string_equal(t.host_names[1], "r1/a");
    assert_string_equal(bl_topology_device(&t, 2)->name, "B");
    assert_string_equal(bl_topology_device(&t, 3)->name, "A");
    bl_topology_free(&t);
}

static void costs_by_hand(void **state) {
    (void)state;
    bl_error err;
    bl_topology t;
    assert_ok(parse(UNEVEN "}", NULL, &t, &err));
    /* link: 1 us + 0.1 us + 4e6 / 4e11 = 11.1 us */
    assert_true(fabs(bl_topology_move_s(&t, 0, 2, 4e6) - 11.1e-6) < 1e-15);
    /* rack: the slower direction counts: 2 us + 0.2 us + 4e6 / 5e10 = 82.2 us */
    assert_true(fabs(bl_topology_move_s(&t, 0, 5, 4e6) - 82.2e-6) < 1e-15);
    assert_true(bl_topology_latency_s(&t, 0, 3) == 5e-6);
    assert_true(bl_topology_bytes_per_s(&t, 0, 3) == 2e10);
    assert_true(bl_topology_move_s(&t, 4, 4, 1e12) == 0);
    assert_true(bl_topology_latency_s(&t, 4, 4) == 0);
    assert_true(isinf(bl_topology_bytes_per_s(&t, 4, 4)));
    const bl_device *device = bl_topology_device(&t, 0);
    assert_true(bl_device_flop_per_s(device, BL_WEIGHTS_FP8) == 2e15);
    assert_true(bl_device_flop_per_s(device, BL_WEIGHTS_MXFP4) == 1e15); /* unpacked to bf16 */
    bl_topology_free(&t);
}

static void measured_pairs_override_the_tree(void **state) {
    (void)state;
    bl_error err;
    bl_topology t;
    assert_ok(parse(
        HEAD DEVICES "\"levels\":[" LEVEL(
            "link", "1e-6", "1e-7", "4e11",
            "4e11") "],\"shape\":[3],\"pairs\":{\"latency_s\":{\"source\":\"measured\",\"values\":"
                    "[[0,7e-6,null],[null,0,null],[null,null,0]]},\"bytes_per_s\":{\"source\":"
                    "\"measured\",\"values\":[[null,null,1e9],[null,null,null],[2e9,null,null]]}}}",
        NULL, &t, &err));
    assert_true(bl_topology_latency_s(&t, 0, 1) == 7e-6);
    assert_true(bl_topology_latency_s(&t, 1, 0) == 1e-6); /* one direction only */
    assert_true(bl_topology_bytes_per_s(&t, 0, 2) == 1e9);
    assert_true(bl_topology_bytes_per_s(&t, 2, 0) == 2e9);
    assert_true(bl_topology_bytes_per_s(&t, 1, 2) == 4e11);
    assert_int_equal(t.pair_latency_source, BL_MEASURED);
    bl_topology part;
    assert_ok(bl_topology_take(&t, 2, &part, &err));
    assert_true(bl_topology_latency_s(&part, 0, 1) == 7e-6);
    assert_true(bl_topology_latency_s(&part, 1, 0) == 1e-6);
    bl_topology_free(&part);
    bl_topology_free(&t);
}

static void shapes_are_mixed_radix(void **state) {
    (void)state;
    bl_error err;
    bl_topology t;
    const char *text =
        HEAD DEVICES THREE "\"parameters\":{\"racks\":{\"default\":2,\"min\":1,\"max\":5},"
                           "\"host\":{\"default\":4,\"min\":1,\"max\":8}},"
                           "\"shape\":[4,3,\"racks\"],\"ranks_per_host\":\"host\"}";
    assert_ok(parse(text, "racks=3,host=5", &t, &err));
    assert_int_equal(t.n_ranks, 36);
    assert_int_equal(t.levels[1].n_domains, 9);
    assert_int_equal(t.levels[2].n_domains, 3);
    assert_int_equal(bl_topology_level(&t, 0, 3), 1);
    assert_int_equal(bl_topology_level(&t, 3, 4), 2);
    assert_int_equal(bl_topology_level(&t, 11, 12), 3);
    assert_int_equal(t.n_hosts, 8); /* ceil(36 / 5) */
    assert_true(bl_topology_same_host(&t, 3, 4));
    bl_topology part; /* 14 ranks: 3 whole domains and half of the fourth */
    assert_ok(bl_topology_take(&t, 14, &part, &err));
    assert_int_equal(part.n_ranks, 14);
    assert_int_equal(part.levels[1].n_domains, 4);
    assert_int_equal(part.levels[2].n_domains, 2);
    assert_int_equal(part.n_hosts, 3);
    for (int a = 0; a < 14; a++) {
        for (int b = 0; b < 14; b++)
            assert_int_equal(bl_topology_level(&part, a, b), bl_topology_level(&t, a, b));
    }
    bl_topology_free(&part);
    assert_fails(bl_topology_take(&t, 37, &part, &err), BL_ERR_RANGE, "has 36");
    assert_fails(bl_topology_take(&t, 0, &part, &err), BL_ERR_RANGE, "0 ranks");
    bl_topology_free(&t);
}

/* Random paths against the plain definition: the first level, from inside, with equal prefixes. */
static void random_trees_against_paths(void **state) {
    (void)state;
    bl_rng rng;
    bl_rng_seed(&rng, 7);
    for (int round = 0; round < 40; round++) {
        const int n = 1 + (int)bl_rng_below(&rng, 30);
        int path[30][2];
        char text[8192];
        size_t used = (size_t)snprintf(text, sizeof text, "%s", HEAD DEVICES THREE "\"ranks\":[");
        for (int rank = 0; rank < n; rank++) {
            path[rank][0] = (int)bl_rng_below(&rng, 3);
            path[rank][1] = (int)bl_rng_below(&rng, 12); /* 10 and 1 share a prefix in text only */
            used += (size_t)snprintf(text + used, sizeof text - used, "%s{\"path\":\"%d/%d\"}",
                                     rank > 0 ? "," : "", path[rank][0], path[rank][1]);
        }
        snprintf(text + used, sizeof text - used, "]}");
        bl_error err;
        bl_topology t;
        assert_ok(parse(text, NULL, &t, &err));
        for (int a = 0; a < n; a++) {
            for (int b = 0; b < n; b++) {
                const int want = a == b                     ? 0
                                 : path[a][0] != path[b][0] ? 3
                                 : path[a][1] != path[b][1] ? 2
                                                            : 1;
                assert_int_equal(bl_topology_level(&t, a, b), want);
            }
        }
        bl_topology_free(&t);
    }
}

static void json_form_round_trips(void **state) {
    (void)state;
    static const char *const specs[] = {"hgx-h100:nodes=3", "pcie-8:nodes=2", "local:ranks=5",
                                        "gb200-nvl72"};
    bl_error err;
    for (size_t i = 0; i <= sizeof specs / sizeof *specs; i++) {
        bl_topology t, again;
        if (i < sizeof specs / sizeof *specs)
            assert_ok(bl_topology_open(specs[i], &t, &err));
        else
            assert_ok(parse(UNEVEN ",\"pairs\":{\"latency_s\":{\"source\":\"datasheet\",\"values\":"
                                   "[[0,1,1,1,1,1,1],[1,0,1,1,1,1,1],[1,1,0,1,1,1,1],"
                                   "[1,1,1,0,1,1,1],[1,1,1,1,0,1,1],[1,1,1,1,1,0,null],"
                                   "[1,1,1,1,1,1,0]]}}}",
                            NULL, &t, &err));
        json_t *root = bl_topology_to_json(&t);
        assert_non_null(root);
        assert_ok(bl_topology_from_json(root, NULL, NULL, "again", &again, &err));
        json_decref(root);
        assert_string_equal(again.name, t.name);
        assert_int_equal(again.n_hosts, t.n_hosts);
        assert_memory_equal(again.domain, t.domain,
                            (size_t)(t.n_levels + 1) * (size_t)t.n_ranks * sizeof *t.domain);
        assert_memory_equal(again.host, t.host, (size_t)t.n_ranks * sizeof *t.host);
        assert_string_equal(again.host_names[t.n_hosts - 1], t.host_names[t.n_hosts - 1]);
        for (int a = 0; a < t.n_ranks; a++)
            assert_true(bl_topology_move_s(&t, 0, a, 1e6) == bl_topology_move_s(&again, 0, a, 1e6));
        assert_string_equal(bl_topology_digest(&again).hex, bl_topology_digest(&t).hex);
        bl_topology_free(&again);
        bl_topology_free(&t);
    }
}

static void digest_sees_costs_not_names(void **state) {
    (void)state;
    bl_error err;
    bl_topology a, b, c;
    assert_ok(bl_topology_open("hgx-h100:nodes=2", &a, &err));
    assert_ok(bl_topology_open("hgx-h100:nodes=2", &b, &err));
    assert_ok(bl_topology_open("hgx-h200:nodes=2", &c, &err));
    snprintf(b.name, sizeof b.name, "other");
    assert_string_equal(bl_topology_digest(&a).hex, bl_topology_digest(&b).hex);
    b.levels[1].latency_s.value *= 2;
    assert_string_not_equal(bl_topology_digest(&a).hex, bl_topology_digest(&b).hex);
    assert_string_not_equal(bl_topology_digest(&a).hex, bl_topology_digest(&c).hex);
    bl_topology_free(&a);
    bl_topology_free(&b);
    bl_topology_free(&c);
}

static void the_catalogue(void **state) {
    (void)state;
    static const struct {
        const char *spec;
        int ranks, hosts, inner; /* inner: ranks that meet rank 0 at level 1, itself included */
        double bytes, bytes_per_s, bf16, fp8, link; /* data sheets */
    } cases[] = {
        {"hgx-h100:nodes=4", 32, 4, 8, 80e9, 3.35e12, 989e12, 1979e12, 450e9},
        {"hgx-h200", 8, 1, 8, 141e9, 4.8e12, 989e12, 1979e12, 450e9},
        {"dgx-a100:nodes=2", 16, 2, 8, 80e9, 2.039e12, 312e12, 312e12, 300e9},
        {"hgx-b200", 8, 1, 8, 180e9, 7.7e12, 2250e12, 4500e12, 900e9},
        {"hgx-b300", 8, 1, 8, 288e9, 7.75e12, 2250e12, 4500e12, 900e9},
        {"gb300-nvl72", 72, 18, 72, 288e9, 8e12, 2500e12, 5000e12, 900e9},
        /* 18 hosts share one NVLink domain */
        {"gb200-nvl72:racks=2", 144, 36, 72, 186e9, 8e12, 2500e12, 5000e12, 900e9},
        {"pcie-8:nodes=3", 24, 3, 4, 48e9, 864e9, 362.05e12, 733e12, 32e9},
        {"local:ranks=4", 4, 1, 4, 4e9, 1e10, 2e10, 2e10, 2e9},
    };
    bl_error err;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bl_topology t;
        assert_ok(bl_topology_open(cases[i].spec, &t, &err));
        assert_string_equal(t.name, cases[i].spec);
        assert_int_equal(t.n_ranks, cases[i].ranks);
        assert_int_equal(t.n_hosts, cases[i].hosts);
        int inner = 0;
        for (int rank = 0; rank < t.n_ranks; rank++)
            inner += bl_topology_level(&t, 0, rank) <= 1;
        assert_int_equal(inner, cases[i].inner);
        const bl_device *device = bl_topology_device(&t, 0);
        assert_true(device->memory_bytes.value == cases[i].bytes);
        assert_true(device->memory_bytes_per_s.value == cases[i].bytes_per_s);
        assert_true(bl_device_flop_per_s(device, BL_WEIGHTS_BF16) == cases[i].bf16);
        assert_true(bl_device_flop_per_s(device, BL_WEIGHTS_FP8_BLOCK) == cases[i].fp8);
        assert_true(bl_topology_bytes_per_s(&t, 0, 1) == cases[i].link);
        bl_topology_free(&t);
    }
    json_t *list;
    assert_ok(bl_topology_catalogue(&list, &err));
    assert_int_equal(json_array_size(list), sizeof cases / sizeof *cases);
    json_decref(list);
}

static void names_that_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *spec;
        bl_status status;
        const char *part;
    } cases[] = {{"hgx-h10", BL_ERR_USAGE, "did you mean hgx-h100?"},
                 {"hgx-h10:nodes=4", BL_ERR_USAGE, "did you mean hgx-h100?"},
                 {"quantum", BL_ERR_USAGE, "topo list"},
                 {"", BL_ERR_USAGE, "no topology"},
                 {"./none.json", BL_ERR_IO, "no such file"},
                 {"hgx-h100:node=4", BL_ERR_USAGE, "did you mean nodes?"},
                 {"hgx-h100:nodes", BL_ERR_USAGE, "name=value"},
                 {"hgx-h100:nodes=", BL_ERR_USAGE, "whole number"},
                 {"hgx-h100:nodes=0", BL_ERR_USAGE, "[1, 1024]"},
                 {"hgx-h100:nodes=1025", BL_ERR_USAGE, "[1, 1024]"},
                 {"hgx-h100:nodes=4x", BL_ERR_USAGE, "whole number"},
                 {"hgx-h100:nodes=99999999999999999999", BL_ERR_USAGE, "whole number"},
                 {"hgx-h100:nodes=2,nodes=3", BL_ERR_USAGE, "given twice"}};
    bl_error err;
    bl_topology t;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_fails(bl_topology_open(cases[i].spec, &t, &err), cases[i].status, cases[i].part);
    assert_ok(bl_topology_open(bl_test_write("mine.json", HEAD DEVICES THREE "\"shape\":[2,2,1]}"),
                               &t, &err));
    assert_int_equal(t.n_ranks, 4);
    bl_topology_free(&t);
    char spec[600];
    snprintf(spec, sizeof spec, "%s:n=3",
             bl_test_write("par:am.json", HEAD DEVICES THREE
                           "\"parameters\":{\"n\":{\"default\":1,\"min\":1,\"max\":4}},"
                           "\"shape\":[2,\"n\",1]}"));
    assert_ok(bl_topology_open(spec, &t, &err));
    assert_int_equal(t.n_ranks, 6);
    bl_topology_free(&t);
}

static void documents_that_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *text;
        bl_status status;
        const char *part;
    } cases[] = {
        {"[1]", BL_ERR_PARSE, "JSON object"},
        {"{}", BL_ERR_VERSION, "ballast-topology"},
        {"{\"format\":\"ballast-topology\"}", BL_ERR_PARSE, "version"},
        {"{\"format\":\"ballast-topology\",\"version\":2}", BL_ERR_VERSION, "version 2"},
        {HEAD "\"devices\":[]}", BL_ERR_RANGE, "0 devices"},
        {HEAD "\"devices\":[" DEVICE("A") "," DEVICE("A") "]}", BL_ERR_PARSE, "twice"},
        {HEAD "\"devices\":[" DEVICE("a\\u001b") "]}", BL_ERR_PARSE, "printable"},
        {HEAD "\"devices\":[{\"name\":\"A\",\"memory_bytes\":8e10}]}", BL_ERR_PARSE,
         "memory_bytes"},
        {HEAD "\"devices\":[{\"name\":\"A\",\"memory_bytes\":{\"value\":8e10}}]}", BL_ERR_PARSE,
         "memory_bytes needs a \"source\""},
        {HEAD "\"devices\":[{\"name\":\"A\",\"memory_bytes\":{\"source\":\"assumed\"}}]}",
         BL_ERR_PARSE, "has no \"value\""},
        {HEAD
         "\"devices\":[{\"name\":\"A\",\"memory_bytes\":{\"value\":1e10,\"source\":\"rumour\"}}]}",
         BL_ERR_PARSE, "measured, datasheet or assumed"},
        {HEAD "\"devices\":[{\"name\":\"A\",\"memory_bytes\":" F("-1") "}]}", BL_ERR_RANGE,
         "memory_bytes is -1"},
        {HEAD "\"devices\":[{\"name\":\"A\",\"memory_bytes\":" F("1") ",\"memory_bytes_per_s\":" F(
             "1") ",\"expert_share\":" F("1.5") "}]}",
         BL_ERR_RANGE, "expert_share is 1.5"},
        {HEAD "\"devices\":[{\"name\":\"A\",\"memory_bytes\":" F("1") ",\"memory_bytes_per_s\":" F(
             "1") ",\"expert_share\":" F("1") ",\"flop_per_s\":{\"fp8\":" F("1") "}}]}",
         BL_ERR_PARSE, "needs \"bf16\""},
        {HEAD "\"devices\":[{\"name\":\"A\",\"memory_bytes\":" F("1") ",\"memory_bytes_per_s\":" F(
             "1") ",\"expert_share\":" F("1") ",\"flop_per_s\":{\"fp9\":" F("1") "}}]}",
         BL_ERR_PARSE, "\"fp9\""},
        {HEAD DEVICES "\"levels\":[]}", BL_ERR_RANGE, "0 levels"},
        {HEAD DEVICES "\"levels\":[" LEVEL("device", "0", "0", "1", "1") "]}", BL_ERR_PARSE,
         "every rank is a device"},
        {HEAD DEVICES "\"levels\":[" LEVEL("a/b", "0", "0", "1", "1") "]}", BL_ERR_PARSE, "no '/'"},
        {HEAD DEVICES "\"levels\":[" LEVEL("l", "-1", "0", "1", "1") "]}", BL_ERR_RANGE,
         "latency_s is -1"},
        {HEAD DEVICES "\"levels\":[" LEVEL("l", "0", "0", "0", "1") "]}", BL_ERR_RANGE,
         "out_bytes_per_s is 0"},
        {HEAD DEVICES THREE "\"x\":1}", BL_ERR_PARSE, "either \"shape\" or \"ranks\""},
        {HEAD DEVICES THREE "\"shape\":[2,2,1],\"ranks\":[]}", BL_ERR_PARSE, "either"},
        {HEAD DEVICES THREE "\"shape\":[2,2]}", BL_ERR_SHAPE, "2 sizes for 3 levels"},
        {HEAD DEVICES THREE "\"shape\":[0,2,1]}", BL_ERR_PARSE, "shape must be"},
        {HEAD DEVICES THREE "\"shape\":[\"nodes\",2,1]}", BL_ERR_PARSE, "name of a parameter"},
        {HEAD DEVICES THREE "\"shape\":[65536,65536,65536]}", BL_ERR_RANGE, "4294967296 ranks"},
        {HEAD DEVICES THREE "\"shape\":[2,2,1],\"ranks_per_host\":0}", BL_ERR_PARSE,
         "ranks_per_host"},
        {HEAD DEVICES THREE "\"parameters\":{\"n\":{\"default\":9,\"min\":1,\"max\":4}}}",
         BL_ERR_RANGE, "default"},
        {HEAD DEVICES THREE "\"parameters\":{\"n\":{\"default\":0,\"min\":0,\"max\":4}}}",
         BL_ERR_RANGE, "min"},
        {HEAD DEVICES THREE "\"ranks\":[]}", BL_ERR_RANGE, "0 ranks"},
        {HEAD DEVICES THREE "\"ranks\":[{\"path\":\"a\"}]}", BL_ERR_SHAPE, "must have 2 names"},
        {HEAD DEVICES THREE "\"ranks\":[{\"path\":\"a/b/c\"}]}", BL_ERR_SHAPE, "rank 0"},
        {HEAD DEVICES THREE "\"ranks\":[{\"path\":\"a/\"}]}", BL_ERR_SHAPE, "\"a/\""},
        {HEAD DEVICES THREE "\"ranks\":[{\"path\":\"/a\"}]}", BL_ERR_SHAPE, "\"/a\""},
        {HEAD DEVICES THREE "\"ranks\":[{}]}", BL_ERR_SHAPE, "\"\""},
        {HEAD DEVICES THREE "\"ranks\":[7]}", BL_ERR_PARSE, "not an object"},
        {HEAD DEVICES THREE "\"ranks\":[{\"path\":\"a/b\",\"device\":\"C\"}]}", BL_ERR_PARSE,
         "no device \"C\""},
        {HEAD DEVICES THREE "\"ranks\":[{\"path\":\"a/b\",\"host\":\"x\\ny\"}]}", BL_ERR_PARSE,
         "a host's name"},
        {HEAD DEVICES THREE "\"shape\":[2,1,1],\"pairs\":{\"latency_s\":{\"source\":\"measured\","
                            "\"values\":[[0,1]]}}}",
         BL_ERR_SHAPE, "1 rows for 2 ranks"},
        {HEAD DEVICES THREE "\"shape\":[2,1,1],\"pairs\":{\"latency_s\":{\"source\":\"measured\","
                            "\"values\":[[0,1],[1]]}}}",
         BL_ERR_SHAPE, "row 1"},
        {HEAD DEVICES THREE "\"shape\":[2,1,1],\"pairs\":{\"bytes_per_s\":{\"source\":\"measured\","
                            "\"values\":[[0,0],[1,0]]}}}",
         BL_ERR_RANGE, "from rank 0 to 1"},
        {HEAD DEVICES THREE "\"shape\":[2,1,1],\"pairs\":{\"bytes_per_s\":{\"values\":[]}}}",
         BL_ERR_PARSE, "source"},
    };
    bl_error err;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bl_topology t;
        assert_fails(parse(cases[i].text, NULL, &t, &err), cases[i].status, cases[i].part);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(uneven_interleaved_tree),
                                       cmocka_unit_test(costs_by_hand),
                                       cmocka_unit_test(measured_pairs_override_the_tree),
                                       cmocka_unit_test(shapes_are_mixed_radix),
                                       cmocka_unit_test(random_trees_against_paths),
                                       cmocka_unit_test(json_form_round_trips),
                                       cmocka_unit_test(digest_sees_costs_not_names),
                                       cmocka_unit_test(the_catalogue),
                                       cmocka_unit_test(names_that_are_refused),
                                       cmocka_unit_test(documents_that_are_refused)};
    return cmocka_run_group_tests_name("topology", tests, NULL, NULL);
}
