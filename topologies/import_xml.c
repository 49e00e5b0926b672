/*
 * NCCL's topology (NCCL_TOPO_DUMP_FILE, NCCL_TOPO_FILE).
 *
 *     <system version="1">
 *       <cpu numaid="0" host_hash="...">                       a socket (NUMA node) of a host
 *         <pci busid="..." class="0x060400" link_speed="32.0 GT/s PCIe" link_width="16">  a switch
 *           <pci busid="..." class="0x030200" ...>             a GPU's slot
 *             <gpu dev="0" sm="90" rank="0">
 *               <nvlink target="..." count="5" tclass="0x068000"/>   to an NVSwitch (0x068000) or
 *             </gpu>                                                 another GPU (0x0302..)
 *           </pci>
 *           <pci busid="..." class="0x020000" ...><nic><net name="mlx5_0" speed="400000"/></nic>
 *
 * Files that vendors ship hold PCI and NUMA only, NCCL adds <gpu> and <nvlink> when it runs. GPUs
 * are then told by their PCI class, and NVLink is not told at all: a base must say what the machine
 * is, or the file is refused.
 */
#include "topologies/import_source.h"

#include "core/mem.h"
#include "core/xml.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_GPUS 1024  /* an NVL72 rack has 72 */
#define MAX_NVLINKS 32 /* elements, not links, of one GPU */

typedef enum element { SYSTEM, CPU, PCI, GPU, NVLINK, NET, OTHER } element;

typedef struct node {
    element what;
    int parent; /* index, -1 for the root */
    int64_t line;
    char id[48];        /* busid of a PCI device, target of an NVLink, host_hash of a CPU */
    char product[48];   /* "vendor:device" of a PCI device */
    bool is_gpu_slot;   /* its class is that of a display or 3D controller */
    double bytes_per_s; /* of a PCI slot or a network port; 0: not told */
    bool direct;        /* a network port that GPUs reach directly */
    int64_t rank, sm;   /* of a GPU; -1: not told */
    int count;          /* NVLinks */
    bool to_switch, to_gpu;
} node;

typedef struct gpu {
    int slot;    /* its <pci>, -1 when <gpu> stands outside of one */
    int element; /* its <gpu>; the slot again where there is none */
    int64_t rank;
} gpu;

typedef struct tree {
    node *nodes;
    size_t n, capacity;
    int path[BL_XML_MAX_DEPTH]; /* the last node of each depth */
    gpu *gpus;
    int n_gpus;
    int self_links, other_links; /* NVLinks to the GPU itself, to things that are no GPU */
} tree;

/* ---- elements ----------------------------------------------------------------------------- */

static void keep(const char *value, char *out, size_t room) {
    snprintf(out, room, "%s", value != NULL ? value : "");
}

static bl_status attribute_int(const bl_xml_element *e, const char *name, int64_t fallback,
                               int64_t *out, bl_error *err) {
    const char *text = bl_xml_get(e, name);
    *out = fallback;
    if (text == NULL || *text == '\0')
        return BL_OK;
    char *end;
    const long long value = strtoll(text, &end, 10);
    if (*end != '\0' || value < -1 || value > INT32_MAX)
        return bl_fail_at(err, BL_ERR_PARSE, bl_at_line(e->file, e->line),
                          "%s of <%.24s> is no number: \"%.24s\"", name, e->name, text);
    *out = value;
    return BL_OK;
}

/* "32.0 GT/s PCIe" x "16": transfers of one bit per lane, less the line code (8 of 10 bits up to
 * 5 GT/s, 128 of 130 above). 0 when either is not told. */
static double pcie_rate(const char *speed, int64_t width) {
    char *end;
    const double transfers = speed != NULL ? strtod(speed, &end) : 0;
    if (!(transfers > 0 && transfers <= 1000) || width <= 0 || width > 32 ||
        strncmp(end, " GT/s", 5) != 0)
        return 0;
    return transfers * 1e9 / 8 * (double)width * (transfers <= 5 ? 0.8 : 128.0 / 130);
}

static bl_status read_pci(const bl_xml_element *e, node *out, bl_error *err) {
    const char *class = bl_xml_get(e, "class"), *vendor = bl_xml_get(e, "vendor");
    const char *device = bl_xml_get(e, "device");
    int64_t width;
    keep(bl_xml_get(e, "busid"), out->id, sizeof out->id);
    if (vendor != NULL && device != NULL)
        snprintf(out->product, sizeof out->product, "%.20s:%.20s", vendor, device);
    out->is_gpu_slot =
        class != NULL && (strncmp(class, "0x0302", 6) == 0 || strncmp(class, "0x0300", 6) == 0);
    BL_TRY(attribute_int(e, "link_width", 0, &width, err));
    out->bytes_per_s = pcie_rate(bl_xml_get(e, "link_speed"), width);
    return BL_OK;
}

static bl_status read_nvlink(const bl_xml_element *e, node *out, bl_error *err) {
    const char *class = bl_xml_get(e, "tclass"), *target = bl_xml_get(e, "target");
    int64_t count;
    BL_TRY(attribute_int(e, "count", 1, &count, err));
    if (count < 1 || count > 1000 || target == NULL)
        return bl_fail_at(err, BL_ERR_PARSE, bl_at_line(e->file, e->line),
                          "an <nvlink> needs a target and a count in [1, 1000]");
    keep(target, out->id, sizeof out->id);
    out->count = (int)count;
    out->to_switch = class != NULL && strcmp(class, "0x068000") == 0;
    out->to_gpu = class != NULL && strncmp(class, "0x0302", 6) == 0;
    return BL_OK;
}

static bl_status read_net(const bl_xml_element *e, node *out, bl_error *err) {
    int64_t speed, direct;
    BL_TRY(attribute_int(e, "speed", 0, &speed, err));
    BL_TRY(attribute_int(e, "gdr", 0, &direct, err));
    out->bytes_per_s = speed > 0 ? (double)speed * 1e6 / 8 : 0;
    out->direct = direct == 1;
    return BL_OK;
}

static bl_status read_element(const bl_xml_element *e, node *out, bl_error *err) {
    static const char *const names[] = {"system", "cpu", "pci", "gpu", "nvlink", "net"};
    out->what = OTHER;
    for (int w = SYSTEM; w < OTHER; w++) {
        if (strcmp(e->name, names[w]) == 0)
            out->what = (element)w;
    }
    switch (out->what) {
    case CPU:
        keep(bl_xml_get(e, "host_hash"), out->id, sizeof out->id);
        return BL_OK;
    case PCI:
        return read_pci(e, out, err);
    case GPU:
        BL_TRY(attribute_int(e, "rank", -1, &out->rank, err));
        return attribute_int(e, "sm", -1, &out->sm, err);
    case NVLINK:
        return read_nvlink(e, out, err);
    case NET:
        return read_net(e, out, err);
    default:
        return BL_OK;
    }
}

static bl_status on_open(const bl_xml_element *e, void *user, bl_error *err) {
    tree *t = user;
    node made = {.line = e->line, .parent = e->depth > 0 ? t->path[e->depth - 1] : -1};
    if (e->depth == 0 && strcmp(e->name, "graphs") == 0)
        return bl_fail_at(err, BL_ERR_PARSE, bl_at_line(e->file, e->line),
                          "this is NCCL's search graph, not a topology: dump one with "
                          "NCCL_TOPO_DUMP_FILE");
    if (e->depth == 0 && strcmp(e->name, "system") != 0)
        return bl_fail_at(err, BL_ERR_PARSE, bl_at_line(e->file, e->line),
                          "not an NCCL topology: the root is <%.24s>, not <system>", e->name);
    BL_TRY(read_element(e, &made, err));
    if (made.what == NVLINK && made.parent >= 0 && ++t->nodes[made.parent].count > MAX_NVLINKS)
        return bl_fail_at(err, BL_ERR_RANGE, bl_at_line(e->file, e->line),
                          "more than %d <nvlink> of one GPU", MAX_NVLINKS);
    void *grown = t->nodes;
    const bl_status st = bl_grow(&grown, &t->capacity, t->n + 1, sizeof made, err);
    t->nodes = grown;
    BL_TRY(st);
    t->path[e->depth] = (int)t->n;
    t->nodes[t->n++] = made;
    return BL_OK;
}

/* ---- GPUs --------------------------------------------------------------------------------- */

/* The nearest element of a kind above (or at) a node, -1 when there is none. */
static int above(const tree *t, int at, element what) {
    while (at >= 0 && t->nodes[at].what != what)
        at = t->nodes[at].parent;
    return at;
}

static int compare_ranks(const void *a, const void *b) {
    const gpu *x = a, *y = b;
    if (x->rank != y->rank)
        return x->rank < y->rank ? -1 : 1;
    return x->element < y->element ? -1 : x->element > y->element;
}

/* By <gpu>; where there is none, by PCI class. *told: by <gpu>. */
static bl_status find_gpus(tree *t, bool *told, bl_error *err) {
    *told = false;
    for (size_t i = 0; i < t->n; i++)
        *told = *told || t->nodes[i].what == GPU;
    BL_TRY(BL_CALLOC(t->gpus, t->n, err));
    for (size_t i = 0; i < t->n; i++) {
        const node *at = &t->nodes[i];
        if (*told ? at->what != GPU : !at->is_gpu_slot)
            continue;
        t->gpus[t->n_gpus++] = (gpu){above(t, (int)i, PCI), (int)i, *told ? at->rank : 0};
    }
    return BL_OK;
}

/* In the order of their ranks, where all have different ones; else in that of the file. */
static bool sort_gpus(tree *t) {
    gpu *gpus = t->gpus;
    qsort(gpus, (size_t)t->n_gpus, sizeof *gpus, compare_ranks);
    bool ranked = t->n_gpus > 0 && gpus[0].rank >= 0;
    for (int g = 1; g < t->n_gpus; g++)
        ranked = ranked && gpus[g].rank != gpus[g - 1].rank;
    for (int g = 0; g < t->n_gpus && !ranked; g++)
        gpus[g].rank = 0;
    if (!ranked)
        qsort(gpus, (size_t)t->n_gpus, sizeof *gpus, compare_ranks);
    return ranked;
}

/* ---- links -------------------------------------------------------------------------------- */

/* Over PCIe: by the lowest element above both; parents come before their children. */
static bl_link pcie_link(const tree *t, int a, int b) {
    a = t->nodes[a].parent;
    b = t->nodes[b].parent;
    while (a != b && a >= 0 && b >= 0) {
        if (a > b)
            a = t->nodes[a].parent;
        else
            b = t->nodes[b].parent;
    }
    if (a != b || a < 0 || t->nodes[a].what == SYSTEM)
        return BL_LINK_NODE;
    return t->nodes[a].what == CPU ? BL_LINK_SOCKET : BL_LINK_SWITCH;
}

static bool same_host(const tree *t, const gpu *a, const gpu *b) {
    const int x = above(t, a->element, CPU), y = above(t, b->element, CPU);
    return x < 0 || y < 0 || strcmp(t->nodes[x].id, t->nodes[y].id) == 0;
}

/* NVLinks of one GPU to what `want` says: to switches, or to the GPU at a bus id. */
static int count_nvlinks(const tree *t, const gpu *from, const char *to_gpu) {
    int n = 0;
    for (size_t i = (size_t)from->element + 1; i < t->n; i++) {
        const node *at = &t->nodes[i];
        if (at->parent < from->element)
            break; /* elements of one parent are contiguous */
        if (at->what == NVLINK && at->parent == from->element &&
            (to_gpu != NULL ? at->to_gpu && strcmp(at->id, to_gpu) == 0 : at->to_switch))
            n += at->count;
    }
    return n;
}

static bool share_switch(const tree *t, const gpu *a, const gpu *b) {
    for (size_t i = (size_t)a->element + 1; i < t->n && t->nodes[i].parent >= a->element; i++) {
        const node *x = &t->nodes[i];
        if (x->what != NVLINK || !x->to_switch || x->parent != a->element)
            continue;
        for (size_t k = (size_t)b->element + 1; k < t->n && t->nodes[k].parent >= b->element; k++) {
            const node *y = &t->nodes[k];
            if (y->what == NVLINK && y->to_switch && y->parent == b->element &&
                strcmp(x->id, y->id) == 0)
                return true;
        }
    }
    return false;
}

static int nvlinks_between(const tree *t, const gpu *a, const gpu *b) {
    const char *id_a = a->slot >= 0 ? t->nodes[a->slot].id : "";
    const char *id_b = b->slot >= 0 ? t->nodes[b->slot].id : "";
    const int there = *id_b != '\0' ? count_nvlinks(t, a, id_b) : 0;
    const int back = *id_a != '\0' ? count_nvlinks(t, b, id_a) : 0;
    const int direct = there > back ? there : back;
    if (direct > 0 || !share_switch(t, a, b))
        return direct;
    const int from = count_nvlinks(t, a, NULL), to = count_nvlinks(t, b, NULL);
    return from < to ? from : to;
}

/* NVLinks that lead nowhere we know: some vendors' files have links of a GPU to itself. */
static void note_lost_links(bl_import *in, const tree *t) {
    int lost = 0;
    for (size_t i = 0; i < t->n; i++) {
        const node *at = &t->nodes[i];
        if (at->what != NVLINK || at->to_switch)
            continue;
        const int slot = above(t, (int)i, PCI);
        lost += !at->to_gpu || (slot >= 0 && strcmp(t->nodes[slot].id, at->id) == 0);
    }
    if (lost > 0)
        bl_import_note(in, "%d <nvlink> lead to the GPU itself or to no GPU and are left out.",
                       lost);
}

static bl_status join_gpus(const tree *t, bool by_base, bl_links *links, bl_error *err) {
    for (int a = 0; a < t->n_gpus; a++) {
        for (int b = 0; b < a; b++) {
            const gpu *x = &t->gpus[a], *y = &t->gpus[b];
            const int nvlinks = nvlinks_between(t, x, y);
            bl_link how = nvlinks > 0 || by_base ? BL_LINK_NVLINK
                          : !same_host(t, x, y)  ? BL_LINK_CLUSTER
                                                 : pcie_link(t, x->element, y->element);
            bl_links_join(links, a, b, how, nvlinks);
        }
    }
    BL_TRY(BL_CALLOC(links->host, t->n_gpus, err));
    for (int a = 0; a < t->n_gpus; a++) {
        int twin = 0;
        while (twin < a && !same_host(t, &t->gpus[a], &t->gpus[twin]))
            twin++;
        links->host[a] = twin < a ? links->host[twin] : links->n_hosts++;
    }
    return BL_OK;
}

/* ---- figures ------------------------------------------------------------------------------ */

/* One NVLink by the GPUs' compute capability: generations 2 to 4 with sm 70 to 90 (slower on the
 * workstation's sm 86), 5 from sm 100. */
static double nvlink_rate(const tree *t) {
    double rate = 0;
    for (int g = 0; g < t->n_gpus; g++) {
        const int64_t sm = t->nodes[t->gpus[g].element].sm;
        const double one = sm >= 100  ? 50e9
                           : sm == 86 ? 14.0625e9
                           : sm >= 70 ? 25e9
                           : sm >= 60 ? 20e9
                                      : 0;
        if (one == 0 || (rate != 0 && one != rate))
            return 0;
        rate = one;
    }
    return rate;
}

static double slowest_slot(const tree *t) {
    double rate = 0;
    for (int g = 0; g < t->n_gpus; g++) {
        const int slot = t->gpus[g].slot;
        const double one = slot >= 0 ? t->nodes[slot].bytes_per_s : 0;
        if (one == 0)
            return 0;
        rate = rate == 0 || one < rate ? one : rate;
    }
    return rate;
}

/* Ports that GPUs reach directly, where there are such: the slowest's rate, how many a host has. */
static void read_network(bl_import *in, const tree *t, int n_hosts) {
    bool any_direct = false;
    double rate = 0;
    int n = 0;
    for (size_t i = 0; i < t->n; i++)
        any_direct = any_direct || (t->nodes[i].what == NET && t->nodes[i].direct);
    for (size_t i = 0; i < t->n; i++) {
        const node *at = &t->nodes[i];
        if (at->what != NET || at->bytes_per_s == 0 || (any_direct && !at->direct))
            continue;
        rate = rate == 0 || at->bytes_per_s < rate ? at->bytes_per_s : rate;
        n++;
    }
    if (n == 0)
        return;
    in->n_adapters = n >= n_hosts ? n / n_hosts : 1;
    in->adapter_bytes_per_s = (bl_figure){rate, BL_DATASHEET};
}

static const char *product_of(const tree *t) {
    const int slot = t->gpus[0].slot;
    return slot >= 0 && t->nodes[slot].product[0] != '\0' ? t->nodes[slot].product : NULL;
}

/* ---- the whole ---------------------------------------------------------------------------- */

static bl_status refuse_without_gpus(const bl_import *in, const tree *t, bl_error *err) {
    int slots = 0;
    for (size_t i = 0; i < t->n; i++)
        slots += t->nodes[i].what == PCI;
    return bl_fail_at(
        err, BL_ERR_UNSUPPORTED, bl_at_line(in->file, t->nodes[0].line),
        "no GPUs: %d PCI devices, none with a <gpu> or the class of one (0x0302..), so "
        "the file tells PCI and NUMA only; dump the whole with NCCL_TOPO_DUMP_FILE",
        slots);
}

/* Files without <gpu> do not tell NVLink; *by_base: the base says that there is. */
static bl_status settle_nvlink(bl_import *in, const tree *t, bool told, bool named, bool *by_base,
                               bl_error *err) {
    *by_base = false;
    if (told)
        return BL_OK;
    if (!named)
        return bl_fail_at(err, BL_ERR_UNSUPPORTED, bl_at_line(in->file, t->nodes[0].line),
                          "the file tells PCI and NUMA only (%d GPUs by their class, no <gpu>, no "
                          "<nvlink>): dump the whole with NCCL_TOPO_DUMP_FILE, or say what the "
                          "machine is with --base",
                          t->n_gpus);
    const bl_level *first = &in->base.levels[1];
    *by_base = strcmp(first->name, "nvlink") == 0;
    bl_import_note(in, "The file tells PCI and NUMA only: GPUs are told by their class, %s.",
                   *by_base ? "NVLink between all of them by the base"
                            : "and that there is no NVLink by the base");
    const int most = in->base.n_ranks / first->n_domains;
    if (*by_base && t->n_gpus > most)
        return bl_fail_at(err, BL_ERR_USAGE, bl_at_line(in->file, t->nodes[0].line),
                          "%d GPUs, but an NVLink domain of the base has %d", t->n_gpus, most);
    return BL_OK;
}

static bl_status use_tree(bl_import *in, tree *t, bl_links *links, bl_topology *out,
                          bl_error *err) {
    bool told, named, by_base;
    BL_TRY(find_gpus(t, &told, err));
    if (t->n_gpus == 0)
        return refuse_without_gpus(in, t, err);
    if (t->n_gpus > MAX_GPUS)
        return bl_fail_at(err, BL_ERR_RANGE, bl_at(in->file), "%d GPUs, but at most %d are read",
                          t->n_gpus, MAX_GPUS);
    const bool ranked = sort_gpus(t);
    BL_TRY(bl_import_open_base(in, product_of(t), &named, err));
    BL_TRY(settle_nvlink(in, t, told, named, &by_base, err));
    BL_TRY(bl_links_create(t->n_gpus, links, err));
    BL_TRY(join_gpus(t, by_base, links, err));
    note_lost_links(in, t);
    read_network(in, t, links->n_hosts);
    links->nvlink_bytes_per_s = (bl_figure){nvlink_rate(t), BL_DATASHEET};
    links->pcie_bytes_per_s = (bl_figure){slowest_slot(t), BL_DATASHEET};
    bl_import_note(in, "%d GPUs in the order of %s.", t->n_gpus,
                   ranked ? "their ranks" : "the file");
    return bl_import_links(in, links, named, out, err);
}

bl_status bl_import_nccl_xml(bl_import *in, bl_topology *out, bl_error *err) {
    tree t = {0};
    bl_links links = {0};
    bl_status st = bl_xml_parse(in->text, in->bytes, in->file, on_open, &t, err);
    if (st >= 0)
        st = use_tree(in, &t, &links, out, err);
    bl_links_free(&links);
    free(t.gpus);
    free(t.nodes);
    return st;
}
