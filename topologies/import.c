#include "topologies/import_source.h"

#include "core/io.h"
#include "core/mem.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAMES(...) ((const char *const[]){__VA_ARGS__, NULL})

const char *const bl_topology_format_names[] = {"nvidia-smi",  "nccl-xml",    "nccl-tests",
                                                "nvbandwidth", "cost-matrix", NULL};

static const struct {
    bl_status (*read)(bl_import *in, bl_topology *out, bl_error *err);
    const char *what;
} FORMATS[] = {[BL_FROM_NVIDIA_SMI] = {bl_import_nvidia_smi, "nvidia-smi topo -m"},
               [BL_FROM_NCCL_XML] = {bl_import_nccl_xml, "an NCCL topology in XML"},
               [BL_FROM_NCCL_TESTS] = {bl_import_nccl_tests, "a log of nccl-tests"},
               [BL_FROM_NVBANDWIDTH] = {bl_import_nvbandwidth, "a log of nvbandwidth"},
               [BL_FROM_COST_MATRIX] = {bl_import_cost_matrix, "a rank_cost_matrix"}};

/* ---- notes -------------------------------------------------------------------------------- */

void bl_import_note(bl_import *in, const char *format, ...) {
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    for (char *at = text; *at != '\0'; at++)
        *at = *at >= ' ' && *at <= '~' ? *at : '?';
    json_array_append_new(in->sources, json_string(text));
}

/* ---- the base ----------------------------------------------------------------------------- */

/* GPUs whose figures the catalogue has, by PCI device id of NVIDIA and by product name. */
static const struct {
    const char *pci, *name, *base;
} DEVICES[] = {{"0x20b2", "A100-SXM4-80GB", "dgx-a100"}, {"0x2330", "H100 80GB HBM3", "hgx-h100"},
               {"0x2335", "H200", "hgx-h200"},           {"0x2901", "B200", "hgx-b200"},
               {NULL, "B300 SXM6 AC", "hgx-b300"},       {"0x26b9", "L40S", "pcie-8"}};

static const char *base_of_device(const char *device) {
    static const char maker[] = "NVIDIA ", vendor[] = "0x10de:";
    if (device == NULL)
        return NULL;
    if (strncmp(device, maker, sizeof maker - 1) == 0)
        device += sizeof maker - 1;
    else if (strncmp(device, vendor, sizeof vendor - 1) == 0)
        device += sizeof vendor - 1;
    for (size_t d = 0; d < sizeof DEVICES / sizeof *DEVICES; d++) {
        const char *pci = DEVICES[d].pci;
        if ((pci != NULL && strcmp(device, pci) == 0) || strcmp(device, DEVICES[d].name) == 0)
            return DEVICES[d].base;
    }
    return NULL;
}

static void assume_level(bl_level *level) {
    level->latency_s.source = level->message_s.source = level->ports.source = BL_ASSUMED;
    level->out_bytes_per_s.source = level->in_bytes_per_s.source = BL_ASSUMED;
}

static void assume_all(bl_topology *topology) {
    for (int k = 1; k <= topology->n_levels; k++)
        assume_level(&topology->levels[k]);
    for (int d = 0; d < topology->n_devices; d++) {
        bl_device *device = &topology->devices[d];
        char name[sizeof device->name];
        memcpy(name, device->name, sizeof name);
        snprintf(device->name, sizeof device->name, "GPU, as %.40s (assumed)", name);
        device->memory_bytes.source = device->memory_bytes_per_s.source = BL_ASSUMED;
        device->expert_share.source = BL_ASSUMED;
        for (int f = 0; f < BL_N_WEIGHT_FORMATS; f++)
            device->flop_per_s[f].source = BL_ASSUMED;
    }
}

bl_status bl_import_open_base(bl_import *in, const char *device, bool *named, bl_error *err) {
    const char *known = base_of_device(device);
    *named = in->options->base != NULL || known != NULL;
    if (in->options->base != NULL) {
        BL_TRY(bl_topology_open(in->options->base, &in->base, err));
        bl_import_note(in, "What the file does not tell is as in the base, %s.", in->options->base);
        return BL_OK;
    }
    BL_TRY(bl_topology_open(known != NULL ? known : "hgx-h100", &in->base, err));
    if (known != NULL) {
        bl_import_note(in, "The file names the GPU, %s; what it does not tell is as in %s.", device,
                       known);
        return BL_OK;
    }
    assume_all(&in->base);
    bl_import_note(in,
                   "%s%s: figures of GPUs are those of hgx-h100, assumed; name a base for "
                   "others.",
                   device != NULL ? "The catalogue does not know the GPU, " : "No base was named",
                   device != NULL ? device : "");
    return BL_OK;
}

static bool find_level(const bl_topology *topology, const char *const *names, bl_level *out) {
    for (; *names != NULL; names++) {
        for (int k = 1; k <= topology->n_levels; k++) {
            if (strcmp(topology->levels[k].name, *names) == 0) {
                *out = topology->levels[k];
                return true;
            }
        }
    }
    return false;
}

bl_status bl_import_level(bl_import *in, const char *const *names, bl_level *out, bl_error *err) {
    static const char *const fallbacks[] = {"pcie-8", "hgx-h100"};
    bool found = find_level(&in->base, names, out);
    for (size_t f = 0; f < 2 && !found; f++) {
        bl_topology other;
        BL_TRY(bl_topology_open(fallbacks[f], &other, err));
        found = find_level(&other, names, out);
        bl_topology_free(&other);
        if (!found)
            continue;
        assume_level(out);
        bl_import_note(in, "Figures of level %s are those of %s, assumed.", names[0], fallbacks[f]);
    }
    if (!found)
        return bl_fail(err, BL_ERR_INTERNAL, "no figures for level %s", names[0]);
    snprintf(out->name, sizeof out->name, "%s", names[0]);
    return BL_OK;
}

bl_status bl_import_network(bl_import *in, bl_level *out, bl_error *err) {
    BL_TRY(bl_import_level(in, NAMES("cluster", "rail", "rack"), out, err));
    if (in->adapter_bytes_per_s.value > 0 && out->out_bytes_per_s.source != BL_MEASURED)
        out->out_bytes_per_s = out->in_bytes_per_s = in->adapter_bytes_per_s;
    if (in->n_adapters > 0) {
        out->ports = (bl_figure){in->n_adapters, BL_ASSUMED};
        bl_import_note(in, "Ports into the network: %d, the adapters near a host's GPUs.",
                       in->n_adapters);
    }
    return BL_OK;
}

/* ---- making topologies -------------------------------------------------------------------- */

bl_status bl_import_make(const bl_import *in, int n, int n_levels, bl_topology *out,
                         bl_error *err) {
    const bl_topology *base = &in->base;
    *out = (bl_topology){.n_ranks = n, .n_hosts = 1, .n_levels = n_levels};
    BL_TRY(BL_CALLOC(out->devices, base->n_devices, err));
    out->n_devices = base->n_devices;
    memcpy(out->devices, base->devices, (size_t)base->n_devices * sizeof *out->devices);
    BL_TRY(BL_CALLOC(out->device, n, err));
    BL_TRY(BL_CALLOC(out->host, n, err));
    BL_TRY(BL_CALLOC(out->host_names, 1, err));
    BL_TRY(BL_CALLOC(out->domain, (size_t)(n_levels + 1) * (size_t)n, err));
    snprintf(out->host_names[0], sizeof *out->host_names, "host0");
    out->levels[0] = base->levels[0];
    out->levels[0].n_domains = n;
    for (int rank = 0; rank < n; rank++) {
        out->device[rank] = rank < base->n_ranks ? base->device[rank] : base->device[0];
        out->domain[rank] = rank;
    }
    for (int k = 1; k <= n_levels; k++)
        out->levels[k].n_domains = 1;
    return BL_OK;
}

bl_status bl_import_set_domains(bl_topology *out, int level, const int *labels, bl_error *err) {
    const int n = out->n_ranks;
    int most = 0, *numbers;
    for (int rank = 0; rank < n; rank++)
        most = labels[rank] > most ? labels[rank] : most;
    BL_TRY(BL_CALLOC(numbers, most + 1, err));
    int used = 0;
    for (int rank = 0; rank < n; rank++) {
        if (numbers[labels[rank]] == 0)
            numbers[labels[rank]] = ++used;
        out->domain[(size_t)level * (size_t)n + (size_t)rank] = numbers[labels[rank]] - 1;
    }
    out->levels[level].n_domains = used;
    free(numbers);
    return BL_OK;
}

bl_status bl_import_set_hosts(bl_topology *out, const int *host, int n_hosts, bl_error *err) {
    free(out->host_names);
    out->host_names = NULL;
    out->n_hosts = n_hosts;
    BL_TRY(BL_CALLOC(out->host_names, n_hosts, err));
    for (int h = 0; h < n_hosts; h++)
        snprintf(out->host_names[h], sizeof *out->host_names, "host%d", h);
    for (int rank = 0; rank < out->n_ranks; rank++)
        out->host[rank] = host[rank];
    return BL_OK;
}

void bl_import_close(const unsigned char *how, int n, int most, int *labels, int *queue) {
    for (int rank = 0; rank < n; rank++)
        labels[rank] = -1;
    for (int first = 0; first < n; first++) {
        if (labels[first] >= 0)
            continue;
        int used = 0;
        labels[first] = first;
        queue[used++] = first;
        for (int i = 0; i < used; i++) {
            const unsigned char *row = how + (size_t)queue[i] * (size_t)n;
            for (int to = 0; to < n; to++) {
                if (labels[to] < 0 && row[to] <= most) {
                    labels[to] = first;
                    queue[used++] = to;
                }
            }
        }
    }
}

bl_status bl_import_make_pairs(int n, double **out, bl_error *err) {
    const size_t cells = (size_t)n * (size_t)n;
    BL_TRY(BL_CALLOC(*out, cells, err));
    for (size_t cell = 0; cell < cells; cell++)
        (*out)[cell] = (double)NAN;
    return BL_OK;
}

/* ---- several machines of one kind --------------------------------------------------------- */

static bl_status repeat_pairs(const double *from, int n, int nodes, double **out, bl_error *err) {
    if (from == NULL)
        return BL_OK;
    const size_t total = (size_t)n * (size_t)nodes;
    BL_TRY(bl_import_make_pairs((int)total, out, err));
    for (size_t row = 0; row < total; row++)
        memcpy(*out + row * total + row / (size_t)n * (size_t)n, from + row % (size_t)n * (size_t)n,
               (size_t)n * sizeof *from);
    return BL_OK;
}

static bl_status repeat_ranks(const bl_topology *one, int nodes, bl_topology *out, bl_error *err) {
    const int n = one->n_ranks;
    int *host;
    BL_TRY(BL_CALLOC(host, out->n_ranks, err));
    for (int rank = 0; rank < out->n_ranks; rank++) {
        const int node = rank / n, twin = rank % n;
        host[rank] = node;
        out->device[rank] = one->device[twin];
        for (int k = 1; k <= one->n_levels; k++)
            out->domain[(size_t)k * (size_t)out->n_ranks + (size_t)rank] =
                node * one->levels[k].n_domains + bl_topology_domain(one, k, twin);
    }
    const bl_status st = bl_import_set_hosts(out, host, nodes, err);
    free(host);
    BL_TRY(st);
    BL_TRY(repeat_pairs(one->pair_latency_s, n, nodes, &out->pair_latency_s, err));
    return repeat_pairs(one->pair_bytes_per_s, n, nodes, &out->pair_bytes_per_s, err);
}

/* `one` nodes times, joined by the base's network. */
static bl_status repeat(bl_import *in, const bl_topology *one, bl_topology *out, bl_error *err) {
    const int nodes = in->options->nodes;
    if (one->n_hosts > 1)
        return bl_fail_at(err, BL_ERR_USAGE, bl_at(in->file),
                          "%d nodes are asked for, but the file tells of %d hosts already", nodes,
                          one->n_hosts);
    if (one->n_levels == BL_MAX_LEVELS || nodes > BL_IMPORT_MAX_RANKS / one->n_ranks)
        return bl_fail(err, BL_ERR_RANGE, "%d nodes of %d ranks are more than %d ranks", nodes,
                       one->n_ranks, BL_IMPORT_MAX_RANKS);
    bl_level network;
    BL_TRY(bl_import_network(in, &network, err));
    BL_TRY(bl_import_make(in, one->n_ranks * nodes, one->n_levels + 1, out, err));
    for (int k = 1; k <= one->n_levels; k++) {
        out->levels[k] = one->levels[k];
        out->levels[k].n_domains = one->levels[k].n_domains * nodes;
    }
    network.n_domains = 1;
    out->levels[one->n_levels + 1] = network;
    out->pair_latency_source = one->pair_latency_source;
    out->pair_bytes_source = one->pair_bytes_source;
    BL_TRY(repeat_ranks(one, nodes, out, err));
    bl_import_note(in, "%d nodes of this kind were asked for.", nodes);
    return BL_OK;
}

/* ---- the whole ---------------------------------------------------------------------------- */

static const char *base_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash != NULL ? slash + 1 : path;
}

/* "dir/topo.txt" -> "topo", printable. */
static void name_topology(const char *file, bl_topology *out) {
    const char *name = base_name(file);
    const char *dot = strrchr(name, '.');
    size_t length = dot != NULL && dot != name ? (size_t)(dot - name) : strlen(name);
    length = length < sizeof out->name ? length : sizeof out->name - 1;
    for (size_t i = 0; i < length; i++)
        out->name[i] = name[i] >= ' ' && name[i] <= '~' ? name[i] : '?';
    out->name[length] = '\0';
}

/* The document, proven to be one that can be read again. */
static bl_status finish(bl_import *in, const char *what, bl_topology *topology, json_t **root_p,
                        bl_error *err) {
    char description[256];
    name_topology(in->file, topology);
    snprintf(description, sizeof description, "imported from %s", what);
    json_t *root = bl_topology_to_json(topology);
    if (root == NULL)
        return bl_fail(err, BL_ERR_NOMEM, "out of memory");
    json_object_set_new(root, "description", json_string(description));
    json_object_set(root, "sources", in->sources);
    bl_topology again;
    const bl_status st = bl_topology_from_json(root, NULL, NULL, in->file, &again, err);
    if (st < 0) {
        json_decref(root);
        return st;
    }
    bl_topology_free(&again);
    *root_p = root;
    return BL_OK;
}

bl_status bl_topology_import_text(bl_topology_format format, char *text, size_t bytes,
                                  const char *file, const bl_topology_import *options,
                                  json_t **root_p, bl_error *err) {
    bl_import in = {.file = file, .text = text, .bytes = bytes, .options = options};
    bl_topology one = {0}, many = {0};
    in.sources = json_array();
    bl_import_note(&in, "Imported from %s, %s.", FORMATS[format].what, base_name(file));
    bl_status st = FORMATS[format].read(&in, &one, err);
    if (st >= 0 && options->nodes > 1) {
        st = repeat(&in, &one, &many, err);
        if (st >= 0)
            st = finish(&in, FORMATS[format].what, &many, root_p, err);
    } else if (st >= 0) {
        st = finish(&in, FORMATS[format].what, &one, root_p, err);
    }
    bl_topology_free(&one);
    bl_topology_free(&many);
    bl_topology_free(&in.base);
    json_decref(in.sources);
    return st;
}

bl_status bl_topology_import_file(bl_topology_format format, const char *path,
                                  const bl_topology_import *options, json_t **root_p,
                                  bl_error *err) {
    char *text;
    size_t bytes;
    BL_TRY(bl_read_file(path, BL_IMPORT_MAX_BYTES, &text, &bytes, err));
    const char *file = strcmp(path, "-") == 0 ? "standard input" : path;
    const bl_status st = bl_topology_import_text(format, text, bytes, file, options, root_p, err);
    free(text);
    return st;
}
