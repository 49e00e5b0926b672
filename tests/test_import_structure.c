/* Topologies from nvidia-smi and from NCCL's XML: trees, figures, pairs by hand; what is refused. */
#include "tests/support/support.h"

#include "tests/support/imports.h"

#include <math.h>
#include <string.h>

#define US 1e-6

static bl_topology smi(const char *text, const char *base) {
    bl_topology_import options = BL_TOPOLOGY_IMPORT_INIT;
    bl_topology topology;
    bl_error err;
    options.base = base;
    assert_ok(bl_test_import(BL_FROM_NVIDIA_SMI, text, &options, &topology, NULL, 0, &err));
    return topology;
}

/* ---- nvidia-smi --------------------------------------------------------------------------- */

/* Two NVLink pairs of different width, a terminal's colours and carriage returns, a legend. */
static void pairs_of_nvlink(void **state) {
    (void)state;
    static const char text[] =
        "\x1b[4m\tGPU0\tGPU1\tGPU2\tGPU3\tCPU Affinity\tNUMA Affinity\x1b[0m\r\n"
        "GPU0\t X \tNV4\tSYS\tSYS\t0-7\t0\r\n"
        "GPU1\tNV4\t X \tSYS\tSYS\t0-7\t0\r\n"
        "GPU2\tSYS\tSYS\t X \tNV2\t8-15\t1\r\n"
        "GPU3\tSYS\tSYS\tNV2\t X \t8-15\t1\r\n"
        "\r\nLegend:\r\n\r\n  X    = Self\r\n";
    char sources[1024];
    bl_topology t;
    bl_error err;
    assert_ok(bl_test_import(BL_FROM_NVIDIA_SMI, text, NULL, &t, sources, sizeof sources, &err));
    assert_string_equal(bl_test_levels(&t), "nvlink 2, node 1");
    assert_int_equal(t.n_ranks, 4);
    assert_int_equal(t.n_hosts, 1);
    assert_int_equal(bl_topology_level(&t, 0, 1), 1);
    assert_int_equal(bl_topology_level(&t, 1, 2), 2);
    /* 4 links of 25 GB/s; the pair of 2 links is an exception to its level. */
    assert_true(t.levels[1].out_bytes_per_s.value == 100e9);
    assert_int_equal(t.levels[1].out_bytes_per_s.source, BL_ASSUMED);
    assert_true(bl_topology_bytes_per_s(&t, 0, 1) == 100e9);
    assert_true(bl_topology_bytes_per_s(&t, 3, 2) == 50e9);
    assert_true(bl_topology_bytes_per_s(&t, 0, 3) == 20e9); /* pcie-8 between sockets */
    /* Both GPUs of a pair have a PCIe link of their own to the other pair. */
    assert_true(t.levels[2].ports.value == 2);
    assert_int_equal(t.devices[0].memory_bytes.source, BL_ASSUMED);
    bl_test_has(sources, "25 GB/s each way");
    bl_test_has(sources, "No base was named");
    bl_test_has(sources, "1 pairs");
    bl_topology_free(&t);
}

/* A ring of four: neighbours share NVLinks, the diagonals go over the sockets. */
static void a_ring_is_one_domain_with_slower_pairs(void **state) {
    (void)state;
    bl_topology t = smi("      GPU0 GPU1 GPU2 GPU3\n"
                        "GPU0   X   NV1  SYS  NV2\n"
                        "GPU1  NV1   X   NV2  SYS\n"
                        "GPU2  SYS  NV2   X   NV1\n"
                        "GPU3  NV2  SYS  NV1   X\n",
                        NULL);
    assert_string_equal(bl_test_levels(&t), "nvlink 1");
    assert_true(bl_topology_bytes_per_s(&t, 0, 3) == 50e9);
    assert_true(bl_topology_bytes_per_s(&t, 2, 3) == 25e9);
    assert_true(bl_topology_bytes_per_s(&t, 0, 2) == 20e9);
    assert_true(bl_topology_latency_s(&t, 0, 2) == 6 * US);
    assert_true(bl_topology_latency_s(&t, 0, 3) == 2 * US);
    bl_topology_free(&t);
}

static void pcie_of_three_levels(void **state) {
    (void)state;
    bl_topology t = smi("\tGPU0\tGPU1\tGPU2\tGPU3\tGPU4\tGPU5\tmlx5_0\tmlx5_1\tCPU Affinity\n"
                        "GPU0\t X \tPIX\tPHB\tPHB\tSYS\tSYS\tPIX\tSYS\t0-7\n"
                        "GPU1\tPIX\t X \tPHB\tPHB\tSYS\tSYS\tPIX\tSYS\t0-7\n"
                        "GPU2\tPHB\tPHB\t X \tPXB\tSYS\tSYS\tNODE\tSYS\t0-7\n"
                        "GPU3\tPHB\tPHB\tPXB\t X \tSYS\tSYS\tNODE\tSYS\t0-7\n"
                        "GPU4\tSYS\tSYS\tSYS\tSYS\t X \tNODE\tSYS\tNODE\t8-15\n"
                        "GPU5\tSYS\tSYS\tSYS\tSYS\tNODE\t X \tSYS\tNODE\t8-15\n"
                        "mlx5_0\tPIX\tPIX\tNODE\tNODE\tSYS\tSYS\t X \tSYS\n"
                        "mlx5_1\tSYS\tSYS\tSYS\tSYS\tNODE\tNODE\tSYS\t X\n",
                        "pcie-8");
    /* switches {0,1} {2,3} and 4, 5 by themselves; sockets {0-3} {4,5} */
    assert_string_equal(bl_test_levels(&t), "switch 4, socket 2, node 1");
    assert_int_equal(bl_topology_level(&t, 2, 3), 1);
    assert_int_equal(bl_topology_level(&t, 1, 2), 2);
    assert_int_equal(bl_topology_level(&t, 4, 5), 2);
    assert_int_equal(bl_topology_level(&t, 3, 4), 3);
    assert_true(t.levels[2].ports.value == 1); /* one uplink of a switch */
    assert_true(t.levels[3].ports.value == 2); /* as pcie-8 says */
    assert_true(t.levels[1].out_bytes_per_s.value == 32e9);
    assert_int_equal(t.levels[1].out_bytes_per_s.source, BL_DATASHEET);
    assert_null(t.pair_bytes_per_s);
    bl_topology_free(&t);
}

static void one_gpu(void **state) {
    (void)state;
    bl_topology t = smi("\tGPU0\tCPU Affinity\tNUMA Affinity\nGPU0\t X \t0-7\tN/A\n", NULL);
    assert_int_equal(t.n_ranks, 1);
    assert_string_equal(bl_test_levels(&t), "socket 1");
    bl_topology_free(&t);
}

static void several_machines_of_a_kind(void **state) {
    (void)state;
    bl_topology_import options = BL_TOPOLOGY_IMPORT_INIT;
    bl_topology t;
    bl_error err;
    options.base = "hgx-h200";
    options.nodes = 3;
    static const char text[] = "\tGPU0\tGPU1\tGPU2\tNIC0\tNIC1\tNIC2\n"
                               "GPU0\t X \tNV18\tNV9\tPXB\tSYS\tNODE\n"
                               "GPU1\tNV18\t X \tNV18\tSYS\tPIX\tNODE\n"
                               "GPU2\tNV9\tNV18\t X \tSYS\tSYS\tNODE\n";
    assert_ok(bl_test_import(BL_FROM_NVIDIA_SMI, text, &options, &t, NULL, 0, &err));
    assert_string_equal(bl_test_levels(&t), "nvlink 3, cluster 1");
    assert_int_equal(t.n_ranks, 9);
    assert_int_equal(t.n_hosts, 3);
    assert_true(bl_topology_same_host(&t, 3, 5) && !bl_topology_same_host(&t, 2, 3));
    /* The base's 450 GB/s are those of 18 links; 9 links are half of it, on every node. */
    assert_true(bl_topology_bytes_per_s(&t, 3, 4) == 450e9);
    assert_true(bl_topology_bytes_per_s(&t, 3, 5) == 225e9);
    assert_true(bl_topology_bytes_per_s(&t, 3, 6) == 50e9);
    assert_int_equal(t.levels[1].out_bytes_per_s.source, BL_DATASHEET);
    assert_true(t.levels[2].ports.value == 2); /* two adapters behind a GPU's switch */
    assert_string_equal(t.devices[0].name, "H200 SXM 141GB");
    bl_topology_free(&t);
}

static void real_matrices(void **state) {
    (void)state;
    static const struct {
        const char *file, *base;
        int part, n_ranks;
        const char *levels;
        double bytes_per_s;
    } cases[] = {{"dgx_a100_8gpu_12nic.txt", "dgx-a100", 0, 8, "nvlink 1", 300e9},
                 {"dgx_h200_8gpu_12nic.txt", "hgx-h200", 0, 8, "nvlink 1", 450e9},
                 {"hgx_a100_8gpu_4nic_onesocket.txt", "dgx-a100", 0, 8, "nvlink 1", 300e9},
                 {"hgx_b200_8gpu_16nic.txt", "hgx-b200", 0, 8, "nvlink 1", 900e9},
                 {"pcie_8gpu_2socket.txt", "pcie-8", 0, 8, "socket 2, node 1", 32e9},
                 {"stas00_a100_h100.txt", "dgx-a100", 1, 8, "nvlink 1", 300e9},
                 {"stas00_a100_h100.txt", "hgx-h100", 2, 8, "nvlink 1", 450e9}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char relative[128];
        bl_topology_import options = BL_TOPOLOGY_IMPORT_INIT;
        bl_topology t;
        bl_error err;
        snprintf(relative, sizeof relative, "topology/nvidia-smi-topo/%s", cases[i].file);
        options.base = cases[i].base;
        options.part = cases[i].part;
        assert_ok(bl_test_import_data(BL_FROM_NVIDIA_SMI, relative, &options, &t, &err));
        assert_int_equal(t.n_ranks, cases[i].n_ranks);
        assert_string_equal(bl_test_levels(&t), cases[i].levels);
        assert_true(bl_topology_bytes_per_s(&t, 0, 1) == cases[i].bytes_per_s);
        bl_topology_free(&t);
    }
}

static void refused_matrices(void **state) {
    (void)state;
    static const struct {
        const char *text, *base;
        int64_t line;
        bl_status status;
        const char *part;
    } cases[] = {
        {"nothing here\n", NULL, -1, BL_ERR_PARSE, "no matrix of nvidia-smi topo -m"},
        {"", NULL, -1, BL_ERR_PARSE, "no matrix"},
        {"\tGPU0\tGPU1\nGPU0\t X \tNV4\n", NULL, 1, BL_ERR_SHAPE, "no row for GPU1"},
        {"\tGPU0\tGPU1\nGPU0\t X \tNV4\nGPU1\tNV4\n", NULL, 3, BL_ERR_SHAPE,
         "row GPU1 has 1 cells for 2 columns"},
        {"\tGPU0\tGPU1\nGPU0\t X \tFOO\nGPU1\tFOO\t X\n", NULL, 2, BL_ERR_PARSE,
         "\"FOO\" is none of"},
        {"\tGPU0\tGPU1\nGPU0\t X \tNV0\nGPU1\tNV0\t X\n", NULL, 2, BL_ERR_PARSE,
         "\"NV0\" is none of"},
        {"\tGPU0\tGPU1\nGPU0\t X \tNV4\nGPU1\tNV2\t X\n", NULL, 3, BL_ERR_PARSE,
         "GPUs 0 and 1 are joined otherwise than in line 2"},
        {"\tGPU0\tGPU1\nGPU0\tNV4\t X \nGPU1\tNV4\t X\n", NULL, 2, BL_ERR_PARSE,
         "the X must be in the row's own column"},
        {"\tGPU0\tGPU1\nGPU0\t X \tNV4\nGPU0\t X \tNV4\n", NULL, 3, BL_ERR_PARSE,
         "row GPU0 is there twice, first in line 2"},
        {"\tGPU0\tGPU0\nGPU0\t X \tNV4\n", NULL, 1, BL_ERR_PARSE, "column GPU0 is there twice"},
        {"\tGPU0\tGPU1\nGPU0\t X \tNV12\nGPU1\tNV12\t X\n", "hgx-h100", -1, BL_ERR_USAGE,
         "37.5 GB/s"},
        {"\tGPU0\tGPU1\nGPU0\t X \tPHB\nGPU1\tPHB\t X\n", "hgx-h100", 1, BL_ERR_USAGE,
         "no NVLink in this matrix"},
        {"\tGPU0\tGPU1\nGPU0\t X \tPHB\nGPU1\tPHB\t X\n", "no-such", -1, BL_ERR_USAGE,
         "no topology \"no-such\""},
        {"\tGPU0\nGPU0\t X\n\n\tGPU0\nGPU0\t X\n", NULL, 4, BL_ERR_USAGE,
         "2 matrices (lines 1, 4); choose with --part N"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bl_topology_import options = BL_TOPOLOGY_IMPORT_INIT;
        bl_topology t;
        bl_error err;
        options.base = cases[i].base;
        assert_fails(bl_test_import(BL_FROM_NVIDIA_SMI, cases[i].text, &options, &t, NULL, 0, &err),
                     cases[i].status, cases[i].part);
        assert_int_equal(err.line, cases[i].line);
    }
    bl_topology_import options = BL_TOPOLOGY_IMPORT_INIT;
    bl_topology t;
    bl_error err;
    options.part = 2;
    assert_fails(
        bl_test_import(BL_FROM_NVIDIA_SMI, "\tGPU0\nGPU0\t X\n", &options, &t, NULL, 0, &err),
        BL_ERR_USAGE, "part 2 is wanted, but the file holds 1");
    options.part = 0;
    options.nodes = 4096;
    assert_fails(bl_test_import(BL_FROM_NVIDIA_SMI, "\tGPU0\tGPU1\nGPU0\t X\tSYS\nGPU1\tSYS\t X\n",
                                &options, &t, NULL, 0, &err),
                 BL_ERR_RANGE, "more than 4096 ranks");
}

/* ---- NCCL's XML --------------------------------------------------------------------------- */

#define PCI(id, more) "<pci busid='" id "' " more ">"
#define SLOT "class='0x030200' link_speed='16.0 GT/s PCIe' link_width='16'"

static bl_topology xml(const char *text, const char *base, char *sources, size_t room) {
    bl_topology_import options = BL_TOPOLOGY_IMPORT_INIT;
    bl_topology topology;
    bl_error err;
    options.base = base;
    assert_ok(bl_test_import(BL_FROM_NCCL_XML, text, &options, &topology, sources, room, &err));
    return topology;
}

/* Two GPUs joined directly, a third behind another switch of the same socket, a fourth on the other
 * socket; ranks in reverse. */
static void direct_links_switches_and_sockets(void **state) {
    (void)state;
    static const char text[] = "<system version='1'><cpu numaid='0'>" PCI("s0", "class='0x060400'")
        PCI("a", SLOT) "<gpu dev='0' sm='80' rank='3'><nvlink target='b' count='4' "
                       "tclass='0x030200'/></gpu>"
                       "</pci>" PCI(
                           "b", SLOT) "<gpu dev='1' sm='80' rank='2'>"
                                      "<nvlink target='a' count='4' tclass='0x030200'/></gpu></pci>"
                                      "</pci>" PCI(
                                          "c",
                                          SLOT) "<gpu dev='2' sm='80' rank='1'/></pci></cpu>"
                                                "<cpu numaid='1'>" PCI(
                                                    "d",
                                                    SLOT) "<gpu dev='3' sm='80' rank='0'/></pci>"
                                                          "</cpu></system>";
    char sources[1024];
    bl_topology t = xml(text, NULL, sources, sizeof sources);
    assert_string_equal(bl_test_levels(&t), "nvlink 3, socket 2, node 1");
    assert_int_equal(bl_topology_level(&t, 3, 2), 1);
    assert_int_equal(bl_topology_level(&t, 1, 2), 2);
    assert_int_equal(bl_topology_level(&t, 0, 1), 3);
    assert_true(t.levels[1].out_bytes_per_s.value == 100e9); /* 4 links of sm 80 */
    assert_int_equal(t.levels[1].out_bytes_per_s.source, BL_DATASHEET);
    /* 16 GT/s x 16 lanes, 128 of 130 bits: 31.5 GB/s */
    assert_true(fabs(t.levels[2].out_bytes_per_s.value - 31.507692e9) < 1e3);
    assert_int_equal(t.levels[2].out_bytes_per_s.source, BL_DATASHEET);
    bl_test_has(sources, "in the order of their ranks");
    bl_topology_free(&t);
}

/* Hosts told by host_hash, all GPUs of three hosts on the same NVSwitches but for one host's. */
static void switches_over_hosts(void **state) {
    (void)state;
    char text[2048] = "<system version='1'>";
    for (int host = 0; host < 3; host++) {
        char part[512];
        snprintf(
            part, sizeof part,
            "<cpu numaid='0' host_hash='0x%d'><pci busid='p%d' class='0x030200'>"
            "<gpu dev='0' sm='100' rank='%d'><nvlink target='%s' count='18' tclass='0x068000'/>"
            "</gpu></pci><nic><net name='n' speed='400000' gdr='1'/><net speed='1000'/></nic>"
            "</cpu>",
            host, host, host, host < 2 ? "s0" : "s1");
        strcat(text, part);
    }
    strcat(text, "</system>");
    bl_topology t = xml(text, "gb200-nvl72", NULL, 0);
    assert_string_equal(bl_test_levels(&t), "nvlink 2, cluster 1");
    assert_int_equal(t.n_hosts, 3);
    assert_int_equal(bl_topology_level(&t, 0, 1), 1);
    assert_int_equal(bl_topology_level(&t, 1, 2), 2);
    assert_true(bl_topology_bytes_per_s(&t, 0, 1) == 900e9); /* 18 links of generation 5 */
    assert_true(bl_topology_bytes_per_s(&t, 1, 2) == 50e9);  /* only the port that GPUs reach */
    assert_int_equal(t.levels[2].out_bytes_per_s.source, BL_DATASHEET);
    assert_true(t.levels[2].ports.value == 1);
    bl_topology_free(&t);
}

static void files_without_gpus_need_a_base(void **state) {
    (void)state;
    static const char text[] = "<system version='1'><cpu>" PCI("a", SLOT) "</pci>" PCI(
        "b", SLOT) "</pci></cpu><cpu>" PCI("c", SLOT) "</pci></cpu></system>";
    char sources[1024];
    bl_topology_import options = BL_TOPOLOGY_IMPORT_INIT;
    bl_topology t;
    bl_error err;
    assert_fails(bl_test_import(BL_FROM_NCCL_XML, text, NULL, &t, NULL, 0, &err),
                 BL_ERR_UNSUPPORTED, "PCI and NUMA only (3 GPUs by their class");
    t = xml(text, "pcie-8", sources, sizeof sources);
    assert_string_equal(bl_test_levels(&t), "socket 2, node 1");
    bl_test_has(sources, "no NVLink by the base");
    bl_topology_free(&t);
    t = xml(text, "dgx-a100", sources, sizeof sources);
    assert_string_equal(bl_test_levels(&t), "nvlink 1");
    assert_true(t.levels[1].out_bytes_per_s.value == 300e9);
    bl_test_has(sources, "NVLink between all of them by the base");
    bl_topology_free(&t);
    options.base = bl_test_write(
        "two.json",
        "{\"format\":\"ballast-topology\",\"version\":1,\"devices\":[{\"name\":\"d\","
        "\"memory_bytes\":{\"value\":1,\"source\":\"assumed\"},"
        "\"memory_bytes_per_s\":{\"value\":1,\"source\":\"assumed\"},"
        "\"expert_share\":{\"value\":1,\"source\":\"assumed\"},"
        "\"flop_per_s\":{\"bf16\":{\"value\":1,\"source\":\"assumed\"}}}],"
        "\"levels\":[{\"name\":\"nvlink\",\"latency_s\":{\"value\":0,\"source\":\"assumed\"},"
        "\"message_s\":{\"value\":0,\"source\":\"assumed\"},"
        "\"out_bytes_per_s\":{\"value\":1,\"source\":\"assumed\"},"
        "\"in_bytes_per_s\":{\"value\":1,\"source\":\"assumed\"},"
        "\"ports\":{\"value\":1,\"source\":\"assumed\"}}],\"shape\":[2]}");
    assert_fails(bl_test_import(BL_FROM_NCCL_XML, text, &options, &t, NULL, 0, &err), BL_ERR_USAGE,
                 "3 GPUs, but an NVLink domain of the base has 2");
}

static void real_files(void **state) {
    (void)state;
    static const struct {
        const char *file, *base;
        int n_ranks;
        const char *levels; /* NULL: refused with `refusal` */
        double bytes_per_s;
        const char *refusal;
    } cases[] = {
        {"oci/H100-topology.xml", NULL, 8, "nvlink 1", 450e9, NULL},
        {"azure/nc48v4-topo.xml", NULL, 2, "nvlink 1", 300e9, NULL},
        {"azure/ncv4-topo.xml", NULL, 4, "node 1", 20e9, NULL}, /* links to the GPU itself */
        {"azure/ndv4-topo.xml", "dgx-a100", 8, "nvlink 1", 300e9, NULL},
        {"azure/ndv4-topo.xml", "pcie-8", 8, "switch 4, node 1", 31.507692e9, NULL},
        {"azure/ndv2-topo.xml", "pcie-8", 8, "socket 2, node 1", 31.507692e9, NULL},
        {"oci/topo-flattened-b4.xml", "dgx-a100", 8, "nvlink 1", 300e9, NULL},
        {"aws/p4d-24xl-topo.xml", "pcie-8", 8, "switch 4, socket 2, node 1", 15.753846e9, NULL},
        {"azure/ndv4-topo.xml", NULL, 0, NULL, 0, "PCI and NUMA only (8 GPUs by their class"},
        {"aws/g5.48xl-topo.xml", "pcie-8", 0, NULL, 0, "no GPUs: 9 PCI devices"},
        {"azure/ncv4-graph.xml", NULL, 0, NULL, 0, "search graph"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char relative[128];
        bl_topology_import options = BL_TOPOLOGY_IMPORT_INIT;
        bl_topology t;
        bl_error err = BL_ERROR_INIT;
        snprintf(relative, sizeof relative, "topology/%s", cases[i].file);
        options.base = cases[i].base;
        const bl_status st = bl_test_import_data(BL_FROM_NCCL_XML, relative, &options, &t, &err);
        if (cases[i].levels == NULL) {
            assert_true(st < 0 && err.line > 0);
            bl_test_has(err.text, cases[i].refusal);
            continue;
        }
        if (st < 0)
            fail_msg("%s: %s", cases[i].file, err.text);
        assert_int_equal(t.n_ranks, cases[i].n_ranks);
        assert_string_equal(bl_test_levels(&t), cases[i].levels);
        assert_true(fabs(bl_topology_bytes_per_s(&t, 0, 1) / cases[i].bytes_per_s - 1) < 1e-6);
        bl_topology_free(&t);
    }
}

static void refused_xml(void **state) {
    (void)state;
    static const struct {
        const char *text;
        int64_t line;
        bl_status status;
        const char *part;
    } cases[] = {
        {"", 1, BL_ERR_PARSE, "not XML"},
        {"GPU0 GPU1", 1, BL_ERR_PARSE, "not XML"},
        {"<system>\n<cpu></system>", 2, BL_ERR_PARSE, "mismatched tag"},
        {"<!DOCTYPE system [<!ENTITY a 'b'>]>\n<system/>", 1, BL_ERR_UNSUPPORTED, "DOCTYPE"},
        {"<other/>", 1, BL_ERR_PARSE, "the root is <other>"},
        {"<system/>", 1, BL_ERR_UNSUPPORTED, "no GPUs"},
        {"<system>\n<gpu rank='x'/></system>", 2, BL_ERR_PARSE, "rank of <gpu> is no number"},
        {"<system>\n<gpu>\n<nvlink target='a' count='0'/></gpu></system>", 3, BL_ERR_PARSE,
         "count in [1, 1000]"},
        {"<system>\n<gpu><nvlink count='1'/></gpu></system>", 2, BL_ERR_PARSE, "a target"},
        {"<system>\n<net speed='99999999999999999999'/></system>", 2, BL_ERR_PARSE,
         "speed of <net> is no number"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bl_topology t;
        bl_error err;
        assert_fails(bl_test_import(BL_FROM_NCCL_XML, cases[i].text, NULL, &t, NULL, 0, &err),
                     cases[i].status, cases[i].part);
        assert_int_equal(err.line, cases[i].line);
    }
    char deep[1024] = "<system>";
    bl_topology t;
    bl_error err;
    for (int i = 0; i < 70; i++)
        strcat(deep, "<pci>");
    assert_fails(bl_test_import(BL_FROM_NCCL_XML, deep, NULL, &t, NULL, 0, &err), BL_ERR_RANGE,
                 "nested more than 64 deep");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(pairs_of_nvlink),
                                       cmocka_unit_test(a_ring_is_one_domain_with_slower_pairs),
                                       cmocka_unit_test(pcie_of_three_levels),
                                       cmocka_unit_test(one_gpu),
                                       cmocka_unit_test(several_machines_of_a_kind),
                                       cmocka_unit_test(real_matrices),
                                       cmocka_unit_test(refused_matrices),
                                       cmocka_unit_test(direct_links_switches_and_sockets),
                                       cmocka_unit_test(switches_over_hosts),
                                       cmocka_unit_test(files_without_gpus_need_a_base),
                                       cmocka_unit_test(real_files),
                                       cmocka_unit_test(refused_xml)};
    return cmocka_run_group_tests_name("import_structure", tests, NULL, NULL);
}
