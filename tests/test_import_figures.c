/* Figures from logs of nccl-tests and nvbandwidth and from cost matrices: fits, medians and ratios
 * by hand; what is refused. */
#include "tests/support/support.h"

#include "planner/cost.h"
#include "tests/support/imports.h"

#include <math.h>
#include <string.h>

#define GB 1e9

static void assert_near(double value, double want, double tolerance) {
    if (!(fabs(value / want - 1) <= tolerance))
        fail_msg("%.9g, wanted %.9g", value, want);
}

static bl_topology_import with(const char *base) {
    bl_topology_import options = BL_TOPOLOGY_IMPORT_INIT;
    options.base = base;
    return options;
}

/* ---- nccl-tests --------------------------------------------------------------------------- */

/* A log of an exchange among n ranks that takes a + b * size, with busbw = factor * algbw; head
 * lists the ranks. */
static const char *make_log(const char *head, double a_us, double ns_per_kb, double factor) {
    static char text[8192];
    size_t used = (size_t)snprintf(
        text, sizeof text, "%s#       size  count type redop root time algbw busbw #wrong\n", head);
    for (int64_t size = 1024; size <= (int64_t)1 << 30; size *= 4) {
        const double us = a_us + ns_per_kb * 1e-6 * (double)size;
        const double algbw = (double)size / us / 1e3;
        used += (size_t)snprintf(text + used, sizeof text - used,
                                 "0: %lld %lld float none -1 %.6f %.4f %.4f 0 9 9 9 0\n",
                                 (long long)size, (long long)size / 4, us, algbw, factor * algbw);
    }
    return text;
}

static const char *make_head(int n, int per_host, const char *device) {
    static char text[4096];
    size_t used = 0;
    text[0] = '\0';
    for (int rank = 0; rank < n; rank++)
        used += (size_t)snprintf(text + used, sizeof text - used,
                                 "#  Rank %2d Group  0 Pid 7 on  node%d device %2d [0000:0f] %s\n",
                                 rank, rank / per_host, rank % per_host, device);
    return text;
}

static bl_topology measure(const char *text, const char *base, int op, char *sources, size_t room) {
    bl_topology_import options = with(base);
    bl_topology t;
    bl_error err;
    options.op = op;
    assert_ok(bl_test_import(BL_FROM_NCCL_TESTS, text, &options, &t, sources, room, &err));
    return t;
}

enum { ALLTOALL, SENDRECV, ALL_GATHER, REDUCE_SCATTER, ALL_REDUCE };

/* 8 ranks of one host, 20 us and 200 GB/s: 7/8 of the bytes leave a rank, so 4.375 ps a byte. */
static void exchange_in_one_domain(void **state) {
    (void)state;
    char sources[2048];
    const char *log = make_log(make_head(8, 8, "NVIDIA H100 80GB HBM3"), 20, 4.375, 7.0 / 8);
    bl_topology t = measure(log, NULL, ALLTOALL, sources, sizeof sources);
    assert_int_equal(t.n_ranks, 8);
    assert_string_equal(bl_test_levels(&t), "nvlink 1");
    assert_string_equal(t.host_names[0], "node0");
    assert_near(t.levels[1].out_bytes_per_s.value, 200 * GB, 1e-4);
    assert_near(t.levels[1].in_bytes_per_s.value, 200 * GB, 1e-4);
    assert_int_equal(t.levels[1].out_bytes_per_s.source, BL_MEASURED);
    /* Seven messages of 0.2 us are counted apart. */
    assert_near(t.levels[1].latency_s.value, 18.6e-6, 1e-3);
    assert_int_equal(t.levels[1].latency_s.source, BL_MEASURED);
    assert_int_equal(t.levels[1].message_s.source, BL_ASSUMED);
    assert_int_equal(t.devices[0].memory_bytes.source, BL_DATASHEET); /* the log names the GPU */
    bl_test_has(sources, "as in hgx-h100");
    bl_topology_free(&t);
}

/* Two hosts of 8, 450 GB/s inside: of a byte 7/16 stay in the host, 8/16 cross it. With 50 GB/s
 * between them that is 7/16/450 + 8/16/50 = 10.97 ps. */
static void exchange_between_hosts(void **state) {
    (void)state;
    const double ps = 7.0 / 16 / 0.450 + 8.0 / 16 / 0.050;
    const char *log = make_log(make_head(16, 8, "x"), 100, ps, 15.0 / 16);
    bl_topology t = measure(log, NULL, ALLTOALL, NULL, 0);
    assert_string_equal(bl_test_levels(&t), "nvlink 2, cluster 1");
    assert_int_equal(t.n_hosts, 2);
    assert_string_equal(t.host_names[1], "node1");
    assert_near(t.levels[2].out_bytes_per_s.value, 50 * GB, 1e-4);
    assert_int_equal(t.levels[1].out_bytes_per_s.source, BL_ASSUMED);
    /* 7 messages of 0.2 us inside and 8 of 1 us between. */
    assert_near(t.levels[2].latency_s.value, 90.6e-6, 1e-3);
    bl_topology_free(&t);
}

/* The rest of a base stays, also ranks that did not take part. */
static void a_base_keeps_what_was_not_measured(void **state) {
    (void)state;
    const char *log = make_log(make_head(8, 8, "NVIDIA H100 80GB HBM3"), 20, 4.375, 7.0 / 8);
    bl_topology t = measure(log, "hgx-h100:nodes=4", ALLTOALL, NULL, 0);
    assert_int_equal(t.n_ranks, 32);
    assert_string_equal(bl_test_levels(&t), "nvlink 4, cluster 1");
    assert_near(t.levels[1].out_bytes_per_s.value, 200 * GB, 1e-4);
    assert_true(t.levels[2].out_bytes_per_s.value == 50 * GB);
    assert_int_equal(t.levels[2].out_bytes_per_s.source, BL_ASSUMED);
    bl_topology_free(&t);
    /* Few ports: 8 ranks of a host share 4, so the domain binds: 8 x 1/2 / 4 / 25 GB/s a byte. */
    bl_topology_import options = with("dgx-a100");
    bl_error err;
    static const char four[] = "\tGPU0\tGPU1\tNIC0\nGPU0\t X \tNV12\tPIX\nGPU1\tNV12\t X \tPIX\n";
    options.nodes = 2;
    assert_ok(bl_test_import(BL_FROM_NVIDIA_SMI, four, &options, &t, NULL, 0, &err));
    assert_true(t.levels[2].ports.value == 1);
    json_t *form = bl_topology_to_json(&t);
    const char *path = bl_test_temp("pair.json");
    assert_ok(bl_json_write(path, form, 0, &err));
    json_decref(form);
    bl_topology_free(&t);
    /* 2 + 2 ranks: 1/4 of a byte stays inside, 2/4 cross; both ranks of a host share one port, so
     * it carries 2 x 2/4 of a byte: 1 / 25 GB/s = 40 ps, more than a rank's own 1/4/300 + 2/4/25. */
    t = measure(make_log(make_head(4, 2, "x"), 50, 40, 3.0 / 4), path, ALLTOALL, NULL, 0);
    assert_near(t.levels[2].out_bytes_per_s.value, 25 * GB, 1e-4);
    bl_topology_free(&t);
}

/* planner/cost.c, given the imported figures, says what the log said: an exchange of `size` bytes
 * from each rank takes a + b * size, once out and once back. */
static void the_cost_model_gives_the_times_back(void **state) {
    (void)state;
    static const struct {
        int n, per_host;
        const char *base;
        double a_us, ps;
    } cases[] = {{8, 8, NULL, 30, 4},
                 {16, 4, NULL, 90, 12},
                 {32, 8, "hgx-h100:nodes=4", 120, 20},
                 {16, 8, "pcie-8:nodes=2", 150, 200}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const int n = cases[i].n;
        bl_topology t = measure(make_log(make_head(n, cases[i].per_host, "x"), cases[i].a_us,
                                         cases[i].ps, (n - 1.0) / n),
                                cases[i].base, ALLTOALL, NULL, 0);
        int moe_layers[1] = {0}, begin[33] = {0};
        const bl_model model = {.n_experts = 2,
                                .hidden_size = 1,
                                .moe_intermediate_size = 1,
                                .expert_bytes = 1,
                                .moe_layers = moe_layers,
                                .dispatch_bytes_per_row = 1000,
                                .combine_bytes_per_row = 1000};
        const bl_layer_placement nothing = {.begin = begin};
        double rows[32];
        for (int g = 0; g < n; g++)
            rows[g] = 5e4; /* 50 MB */
        bl_cost *cost;
        bl_error err;
        assert_ok(bl_cost_create(&model, &t, n, &cost, &err));
        assert_near(bl_cost_layer_s(cost, &nothing, rows, rows),
                    2 * (cases[i].a_us * 1e-6 + cases[i].ps * 1e-12 * 5e7), 1e-3);
        bl_cost_free(cost);
        bl_topology_free(&t);
    }
}

/* Of other operations the bandwidth is taken: 2 x 7/8 of the bytes at 210 GB/s. */
static void other_operations(void **state) {
    (void)state;
    char sources[2048];
    const char *log = make_log(make_head(8, 8, "x"), 60, 1.75 / 0.210, 1.75);
    bl_topology t = measure(log, NULL, ALL_REDUCE, sources, sizeof sources);
    assert_near(t.levels[1].out_bytes_per_s.value, 210 * GB, 1e-3);
    assert_int_equal(t.levels[1].latency_s.source, BL_ASSUMED);
    bl_test_has(sources, "Latency stays as it was");
    bl_topology_free(&t);
    /* Between hosts only neighbours' transfers tell a port's bandwidth. */
    t = measure(make_log(make_head(4, 2, "x"), 30, 1 / 0.024, 1), NULL, SENDRECV, NULL, 0);
    assert_near(t.levels[2].out_bytes_per_s.value, 24 * GB, 1e-3);
    assert_near(t.levels[2].latency_s.value, 29e-6, 1e-3);
    bl_topology_free(&t);
}

/* The name of the operation: from a command, from new logs' own line, from the file's name. */
static void operation_names(void **state) {
    (void)state;
    char text[8192], sources[2048];
    const char *log = make_log(make_head(8, 8, "x"), 20, 4.375, 7.0 / 8);
    snprintf(text, sizeof text, "$ mpirun -np 8 ./build/alltoall_perf -b 1K -e 1G\n%s", log);
    bl_topology t = measure(text, NULL, -1, sources, sizeof sources);
    bl_test_has(sources, "Operation alltoall, by the log");
    bl_topology_free(&t);
    snprintf(text, sizeof text, "# Collective test starting: all_gather_perf\n%s", log);
    t = measure(text, NULL, -1, sources, sizeof sources);
    bl_test_has(sources, "Operation all_gather, by the log");
    bl_topology_free(&t);
    bl_topology_import options = BL_TOPOLOGY_IMPORT_INIT;
    bl_error err;
    assert_fails(bl_test_import(BL_FROM_NCCL_TESTS, log, &options, &t, NULL, 0, &err), BL_ERR_USAGE,
                 "name it with --op");
    snprintf(text, sizeof text, "$ run all_gather_perf and alltoall_perf\n%s", log);
    assert_fails(bl_test_import(BL_FROM_NCCL_TESTS, text, &options, &t, NULL, 0, &err),
                 BL_ERR_USAGE, "name it with --op");
    options.op = ALL_REDUCE;
    assert_fails(bl_test_import(BL_FROM_NCCL_TESTS, log, &options, &t, NULL, 0, &err), BL_ERR_USAGE,
                 "0.875, but would be 1.750 for all_reduce among 8 ranks");
}

/* Eight A100 at 300 GB/s by the data sheet. The log's busbw ends at 224 (alltoall) to 235 GB/s. */
static void real_logs(void **state) {
    (void)state;
    static const struct {
        const char *file;
        double low, high;
        bool latency;
    } cases[] = {
        {"nccl_alltoall.log", 210, 226, true},   {"nccl_allgather.log", 210, 236, false},
        {"nccl_allreduce.log", 220, 240, false}, {"nccl_broadcast.log", 215, 240, false},
        {"nccl_reduce.log", 215, 240, false},    {"nccl_reducescatter.log", 215, 240, false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char relative[64];
        bl_topology_import options = with("dgx-a100:nodes=2");
        bl_topology t;
        bl_error err;
        snprintf(relative, sizeof relative, "nccl/superbench/%s", cases[i].file);
        assert_ok(bl_test_import_data(BL_FROM_NCCL_TESTS, relative, &options, &t, &err));
        const bl_level *level = &t.levels[1];
        assert_int_equal(t.n_ranks, 16);
        assert_in_range((uint64_t)(level->out_bytes_per_s.value / GB), (uint64_t)cases[i].low,
                        (uint64_t)cases[i].high);
        assert_int_equal(level->latency_s.source, cases[i].latency ? BL_MEASURED : BL_ASSUMED);
        if (cases[i].latency) /* 85 to 89 us at all small sizes */
            assert_in_range((uint64_t)(level->latency_s.value * 1e6), 83, 88);
        bl_topology_free(&t);
    }
    bl_topology_import options = with(NULL);
    bl_topology t;
    bl_error err;
    static const char aws[] = "nccl/aws/awsome_p4d_p5_allreduce.txt";
    assert_fails(bl_test_import_data(BL_FROM_NCCL_TESTS, aws, &options, &t, &err), BL_ERR_USAGE,
                 "2 tables (lines 38, 73)");
    options.part = 2;
    assert_fails(bl_test_import_data(BL_FROM_NCCL_TESTS, aws, &options, &t, &err), BL_ERR_USAGE,
                 "does not list its ranks");
    options.base = "hgx-h100:nodes=2";
    assert_fails(bl_test_import_data(BL_FROM_NCCL_TESTS, aws, &options, &t, &err), BL_ERR_USAGE,
                 "use alltoall_perf");
}

#define HEADER "# size count type redop root time algbw busbw #wrong\n"
#define RANKS "# Rank 0 Pid 1 on a device 0 [0x00] G\n# Rank 1 Pid 1 on a device 1 [0x00] G\n"

static void refused_logs(void **state) {
    (void)state;
    static const struct {
        const char *text, *base;
        int64_t line;
        bl_status status;
        const char *part;
    } cases[] = {
        {"hello\n", NULL, -1, BL_ERR_PARSE, "no table of nccl-tests"},
        {RANKS HEADER, NULL, 3, BL_ERR_PARSE, "has no rows"},
        {RANKS HEADER "8 2 float none -1 10 1\n", NULL, 4, BL_ERR_SHAPE, "is the line cut off?"},
        {RANKS HEADER "8 2 float none -1 x 1 1 0 1 1 1 0\n", NULL, 4, BL_ERR_PARSE, "no number"},
        {RANKS HEADER "8 2 float none -1 0 1 1 0 1 1 1 0\n", NULL, 4, BL_ERR_RANGE, "in no time"},
        {RANKS HEADER "8 2 float none -1 nan 1 1 0 1 1 1 0\n", NULL, 4, BL_ERR_PARSE, "no number"},
        {RANKS HEADER "8 2 float none -1 9 1 1 5 1 1 1 0\n", NULL, 4, BL_ERR_PARSE,
         "5 wrong results"},
        {RANKS HEADER "8 2 float none -1 9 0 0 0 1 1 1 0\n16 4 float none -1 9 0 0 0 1 1 1 0\n"
                      "32 8 float none -1 9 0 0 0 1 1 1 0\n",
         NULL, 6, BL_ERR_RANGE, "3 sizes up to 32 bytes do not tell a bandwidth"},
        {"# Rank 1 Pid 1 on a device 1 [0x00] G\n" HEADER, NULL, 1, BL_ERR_PARSE,
         "rank 1 is listed where rank 0 should be"},
        {"# Rank 0 Pid 1 on a device 0 [0x00] G\n" HEADER "8 2 float none -1 9 0 0 0 1 1 1 0\n",
         NULL, -1, BL_ERR_USAGE, "one rank exchanges nothing"},
        {RANKS HEADER "8 2 float none -1 9 0 0 0 1 1 1 0\n", "hgx-h100:nodes=0", -1, BL_ERR_USAGE,
         "nodes"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bl_topology_import options = with(cases[i].base);
        bl_topology t;
        bl_error err;
        options.op = ALLTOALL;
        assert_fails(bl_test_import(BL_FROM_NCCL_TESTS, cases[i].text, &options, &t, NULL, 0, &err),
                     cases[i].status, cases[i].part);
        assert_int_equal(err.line, cases[i].line);
    }
    bl_topology_import options = with("hgx-h100");
    bl_topology t;
    bl_error err;
    options.op = ALLTOALL;
    assert_fails(bl_test_import(BL_FROM_NCCL_TESTS, make_log(make_head(8, 4, "x"), 9, 4.375, 0.875),
                                &options, &t, NULL, 0, &err),
                 BL_ERR_USAGE, "ranks 3 and 4 are on two hosts by the log, but not by the base");
    /* 480 GB/s, which all_reduce reaches by reducing in the switch. */
    options.op = ALL_REDUCE;
    assert_fails(bl_test_import(BL_FROM_NCCL_TESTS,
                                make_log(make_head(8, 8, "x"), 9, 1.75 / 0.480, 1.75), &options, &t,
                                NULL, 0, &err),
                 BL_ERR_USAGE, "more than its data sheet's 450");
}

/* ---- nvbandwidth -------------------------------------------------------------------------- */

#define NV_HEAD "nvbandwidth Version: v0.6\n\nDevice 0: NVIDIA H200 (0000:0f:00)\n\n"
#define NV_READ                                                            \
    "Running device_to_device_memcpy_read_ce.\n"                           \
    "memcpy CE GPU(row) <- GPU(column) bandwidth (GB/s)\n"                 \
    "           0         1         2\n"                                   \
    " 0       N/A    100.00    200.00\n 1    300.00       N/A    400.00\n" \
    " 2    500.00    600.00       N/A\n\nSUM device_to_device_memcpy_read_ce 2100.00\n"
#define NV_WRITE                                                           \
    "Running device_to_device_memcpy_write_ce.\n"                          \
    "memcpy CE GPU(row) -> GPU(column) bandwidth (GB/s)\n"                 \
    "           0         1         2\n"                                   \
    " 0       N/A    110.00    220.00\n 1    330.00       N/A    440.00\n" \
    " 2    550.00    660.00       N/A\n\nSUM device_to_device_memcpy_write_ce 2310.00\n"

static void pairs_measured(void **state) {
    (void)state;
    char sources[2048];
    bl_topology_import options = with(NULL);
    bl_topology t;
    bl_error err;
    assert_ok(bl_test_import(BL_FROM_NVBANDWIDTH, NV_HEAD NV_READ, &options, &t, sources,
                             sizeof sources, &err));
    /* A read in row 0, column 1 moves bytes from 1 to 0. */
    assert_true(bl_topology_bytes_per_s(&t, 1, 0) == 100 * GB);
    assert_true(bl_topology_bytes_per_s(&t, 0, 2) == 500 * GB);
    assert_true(t.levels[1].out_bytes_per_s.value == 350 * GB); /* median of 100 ... 600 */
    assert_int_equal(t.levels[1].out_bytes_per_s.source, BL_MEASURED);
    assert_int_equal(t.pair_bytes_source, BL_MEASURED);
    assert_string_equal(t.devices[0].name, "H200 SXM 141GB"); /* the log names it */
    bl_topology_free(&t);

    /* Writes come before reads, wherever they stand; a base of two PCIe sockets keeps its tree. */
    options.base = "pcie-8";
    assert_ok(bl_test_import(BL_FROM_NVBANDWIDTH, NV_HEAD NV_READ NV_WRITE, &options, &t, sources,
                             sizeof sources, &err));
    assert_int_equal(t.n_ranks, 8);
    assert_string_equal(bl_test_levels(&t), "socket 2, node 1, cluster 1");
    assert_true(bl_topology_bytes_per_s(&t, 0, 1) == 110 * GB);
    assert_true(t.levels[1].out_bytes_per_s.value == 385 * GB);
    assert_int_equal(t.levels[2].out_bytes_per_s.source, BL_ASSUMED); /* no pair of it */
    assert_true(bl_topology_bytes_per_s(&t, 0, 4) == 20 * GB);
    bl_test_has(sources, "device_to_device_memcpy_write_ce");
    bl_topology_free(&t);
}

static void refused_nvbandwidth(void **state) {
    (void)state;
#define RUN "Running device_to_device_memcpy_write_ce.\n"
#define TITLE "memcpy CE GPU(row) -> GPU(column) bandwidth (GB/s)\n"
    static const struct {
        const char *text, *base;
        int64_t line;
        bl_status status;
        const char *part;
    } cases[] = {
        {"x\n", NULL, -1, BL_ERR_PARSE, "not a log of nvbandwidth"},
        {"Running host_to_device_memcpy_ce.\n", NULL, -1, BL_ERR_UNSUPPORTED,
         "1 tests of nvbandwidth, but none between GPUs"},
        {RUN, NULL, 1, BL_ERR_SHAPE, "ends here"},
        {RUN "memcpy CE CPU(row) -> GPU(column) bandwidth (GB/s)\n", NULL, 2, BL_ERR_PARSE,
         "expected"},
        {RUN "memory latency SM GPU(row) <-> GPU(column) (ns)\n", NULL, 2, BL_ERR_PARSE,
         "expected"},
        {RUN TITLE " 0 2\n", NULL, 3, BL_ERR_PARSE, "numbered 0, 1, 2"},
        {RUN TITLE " 0 1\n 0 N/A 1\n", NULL, 4, BL_ERR_SHAPE, "ends here"},
        {RUN TITLE " 0 1\n 0 N/A 1\n 2 1 N/A\n", NULL, 5, BL_ERR_SHAPE, "row 1 of 2 is not here"},
        {RUN TITLE " 0 1\n 0 N/A\n 1 1 N/A\n", NULL, 4, BL_ERR_SHAPE, "1 cells for 2 columns"},
        {RUN TITLE " 0 1\n 0 N/A -5\n 1 1 N/A\n", NULL, 4, BL_ERR_PARSE, "\"-5\" is no bandwidth"},
        {RUN TITLE " 0 1\n 0 N/A 0.00\n 1 1 N/A\n", NULL, 4, BL_ERR_PARSE, "is no bandwidth"},
        {RUN TITLE " 0\n 0 N/A\n", NULL, 4, BL_ERR_SHAPE, "no pair was measured"},
        {NV_WRITE NV_WRITE, NULL, 9, BL_ERR_USAGE, "2 runs (lines 1, 9)"},
        {NV_WRITE NV_WRITE NV_WRITE NV_WRITE, NULL, 9, BL_ERR_USAGE,
         "4 runs (lines 1, 9, 17, ...)"},
        {NV_WRITE, "local:ranks=2", -1, BL_ERR_USAGE, "3 GPUs, but the base local:ranks=2 has 2"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bl_topology_import options = with(cases[i].base);
        bl_topology t;
        bl_error err;
        assert_fails(
            bl_test_import(BL_FROM_NVBANDWIDTH, cases[i].text, &options, &t, NULL, 0, &err),
            cases[i].status, cases[i].part);
        assert_int_equal(err.line, cases[i].line);
    }
    bl_topology_import options = with(NULL);
    bl_topology t;
    bl_error err;
    assert_fails(bl_test_import_data(BL_FROM_NVBANDWIDTH, "nccl/superbench/nvbandwidth_results.log",
                                     &options, &t, &err),
                 BL_ERR_UNSUPPORTED, "none between GPUs");
}

/* ---- cost matrices ------------------------------------------------------------------------ */

static void costs_are_ratios(void **state) {
    (void)state;
    char sources[2048];
    bl_topology_import options = with("hgx-h100");
    bl_topology t;
    bl_error err;
    /* {0,1} {2,3}, and from 3 to 1 it costs more than back. */
    assert_ok(bl_test_import(BL_FROM_COST_MATRIX,
                             "{\"rank_cost_matrix\":[[0,2,6,6],[2,0,6,6],[6,6,0,2],[6,8,2,0]]}",
                             &options, &t, sources, sizeof sources, &err));
    assert_string_equal(bl_test_levels(&t), "cost 2 2, cost 6 1");
    assert_true(bl_topology_bytes_per_s(&t, 0, 1) == 450 * GB);
    assert_near(bl_topology_bytes_per_s(&t, 0, 2), 150 * GB, 1e-12);
    assert_near(bl_topology_latency_s(&t, 0, 2), 6e-6, 1e-12);
    assert_near(bl_topology_bytes_per_s(&t, 3, 1), 112.5 * GB, 1e-12);
    assert_near(bl_topology_bytes_per_s(&t, 1, 3), 150 * GB, 1e-12);
    assert_int_equal(t.levels[1].out_bytes_per_s.source, BL_ASSUMED);
    assert_true(t.levels[2].ports.value == 2); /* a matrix of pairs tells no sharing */
    assert_int_equal(t.n_hosts, 2);
    bl_test_has(sources, "Costs have no unit");
    bl_test_has(sources, "does not tell hosts");
    bl_topology_free(&t);
}

/* Costs of 0 have no ratio: the base gives a level for each cost. */
static void free_pairs_need_a_base_of_as_many_levels(void **state) {
    (void)state;
    static const char text[] = "{\"rank_cost_matrix\":[[0,0,1,1],[0,0,1,1],[1,1,0,0],[1,1,0,0]]}";
    bl_topology_import options = with("hgx-h100");
    bl_topology t;
    bl_error err;
    assert_ok(bl_test_import(BL_FROM_COST_MATRIX, text, &options, &t, NULL, 0, &err));
    assert_string_equal(bl_test_levels(&t), "nvlink 2, cluster 1");
    assert_true(bl_topology_bytes_per_s(&t, 0, 2) == 50 * GB);
    bl_topology_free(&t);
    options.base = NULL;
    assert_fails(bl_test_import(BL_FROM_COST_MATRIX, text, &options, &t, NULL, 0, &err),
                 BL_ERR_USAGE, "name a --base with 2 levels");
    options.base = "pcie-8";
    assert_fails(bl_test_import(BL_FROM_COST_MATRIX, text, &options, &t, NULL, 0, &err),
                 BL_ERR_USAGE, "2 levels, one for each cost");
    options.base = "hgx-h100";
    assert_fails(bl_test_import(BL_FROM_COST_MATRIX,
                                "{\"rank_cost_matrix\":[[0,0,1],[0,0,2],[1,2,0]]}", &options, &t,
                                NULL, 0, &err),
                 BL_ERR_UNSUPPORTED, "from rank 1 to 2 costs 2, unlike their domain (1)");
}

static void refused_costs(void **state) {
    (void)state;
    static const struct {
        const char *text;
        bl_status status;
        const char *part;
    } cases[] = {
        {"[", BL_ERR_PARSE, ""},
        {"{}", BL_ERR_PARSE, "rank_cost_matrix"},
        {"{\"rank_cost_matrix\":[[0]]}", BL_ERR_RANGE, "1 rows"},
        {"{\"rank_cost_matrix\":[[0,1],[1]]}", BL_ERR_SHAPE, "row 1 has 1 entries for 2 ranks"},
        {"{\"rank_cost_matrix\":[[0,1],[1,0],[1,1]]}", BL_ERR_SHAPE, "row 0 has 2 entries for 3"},
        {"{\"rank_cost_matrix\":[[0,-1],[1,0]]}", BL_ERR_RANGE, "from rank 0 to 1"},
        {"{\"rank_cost_matrix\":[[0,\"x\"],[1,0]]}", BL_ERR_RANGE, "from rank 0 to 1"},
        {"{\"rank_cost_matrix\":[[0,1e300],[1,0]]}", BL_ERR_RANGE, "from rank 0 to 1"},
        {"{\"rank_cost_matrix\":[[900,450],[450,900]]}", BL_ERR_RANGE, "matrix of bandwidths?"},
        {"{\"rank_cost_matrix\":[[0,0,1],[0,0,2],[1,2,0]]}", BL_ERR_USAGE, "with 2 levels"},
        {"{\"rank_cost_matrix\":[[0,1,2,3,4],[1,0,5,6,7],[2,5,0,8,9],[3,6,8,0,10],"
         "[4,7,9,10,0]]}",
         BL_ERR_UNSUPPORTED, "more than 8 different costs"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bl_topology t;
        bl_error err;
        assert_fails(bl_test_import(BL_FROM_COST_MATRIX, cases[i].text, NULL, &t, NULL, 0, &err),
                     cases[i].status, cases[i].part);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(exchange_in_one_domain),
                                       cmocka_unit_test(exchange_between_hosts),
                                       cmocka_unit_test(a_base_keeps_what_was_not_measured),
                                       cmocka_unit_test(the_cost_model_gives_the_times_back),
                                       cmocka_unit_test(other_operations),
                                       cmocka_unit_test(operation_names),
                                       cmocka_unit_test(real_logs),
                                       cmocka_unit_test(refused_logs),
                                       cmocka_unit_test(pairs_measured),
                                       cmocka_unit_test(refused_nvbandwidth),
                                       cmocka_unit_test(costs_are_ratios),
                                       cmocka_unit_test(free_pairs_need_a_base_of_as_many_levels),
                                       cmocka_unit_test(refused_costs)};
    return cmocka_run_group_tests_name("import_figures", tests, NULL, NULL);
}
