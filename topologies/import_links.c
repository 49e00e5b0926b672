/*
 * From a matrix of links to a tree of domains.
 *
 * For each kind of link, from best to worst, ranks that are joined at least that well (directly or
 * over others) share a domain; a kind that joins nothing new makes no level. The level's figures
 * are those of its kind, and a pair that is joined worse than its domain gets figures of its own.
 */
#include "topologies/import_source.h"

#include "core/mem.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAMES(...) ((const char *const[]){__VA_ARGS__, NULL})

/* ---- the matrix --------------------------------------------------------------------------- */

bl_status bl_links_create(int n, bl_links *out, bl_error *err) {
    bl_links links = {.n = n};
    bl_status st = BL_CALLOC(links.how, (size_t)n * (size_t)n, err);
    if (st >= 0)
        st = BL_CALLOC(links.nvlinks, (size_t)n * (size_t)n, err);
    if (st < 0) {
        bl_links_free(&links);
        return st;
    }
    *out = links;
    return BL_OK;
}

void bl_links_free(bl_links *links) {
    free(links->how);
    free(links->nvlinks);
    free(links->host);
    *links = (bl_links){0};
}

static size_t pair_at(const bl_links *links, int a, int b) {
    return (size_t)a * (size_t)links->n + (size_t)b;
}

void bl_links_join(bl_links *links, int a, int b, bl_link how, int nvlinks) {
    links->how[pair_at(links, a, b)] = links->how[pair_at(links, b, a)] = (unsigned char)how;
    links->nvlinks[pair_at(links, a, b)] = links->nvlinks[pair_at(links, b, a)] = nvlinks;
}

static int most_nvlinks(const bl_links *links) {
    int most = 0;
    for (size_t i = 0; i < (size_t)links->n * (size_t)links->n; i++)
        most = links->nvlinks[i] > most ? links->nvlinks[i] : most;
    return most;
}

/* ---- figures of each kind of link --------------------------------------------------------- */

typedef struct maker {
    bl_import *in;
    const bl_links *links;
    bool base_named;
    bool has[BL_N_LINKS];
    bl_level figures[BL_N_LINKS];
    double per_nvlink; /* bytes/s of one link, one way; 0: the level's figure holds as it is */
} maker;

static bool has_level(const bl_topology *topology, const char *name) {
    for (int k = 1; k <= topology->n_levels; k++) {
        if (strcmp(topology->levels[k].name, name) == 0)
            return true;
    }
    return false;
}

static void set_bandwidth(bl_level *level, double value, bl_figure_source source) {
    level->out_bytes_per_s = level->in_bytes_per_s = (bl_figure){value, source};
}

/* One NVLink moves 14, 20, 25 or 50 GB/s each way, by its generation. */
static bool is_nvlink_rate(double bytes_per_s) {
    static const double rates[] = {14.0625e9, 20e9, 25e9, 50e9};
    for (size_t r = 0; r < sizeof rates / sizeof *rates; r++) {
        if (fabs(bytes_per_s / rates[r] - 1) < 0.03)
            return true;
    }
    return false;
}

/* The level's figure is that of the pair with most links; the base's, the file's or an assumed one.
 */
static bl_status price_nvlink(maker *m, bl_error *err) {
    bl_level *level = &m->figures[BL_LINK_NVLINK];
    const int most = most_nvlinks(m->links);
    const bool in_base = m->base_named && has_level(&m->in->base, "nvlink");
    BL_TRY(bl_import_level(m->in, NAMES("nvlink"), level, err));
    if (most == 0) /* as the base says */
        return BL_OK;
    const bl_figure told = m->links->nvlink_bytes_per_s;
    if (told.value > 0 && !(in_base && level->out_bytes_per_s.source == BL_MEASURED)) {
        m->per_nvlink = told.value;
        set_bandwidth(level, most * told.value, told.source);
        bl_import_note(m->in, "%d NVLinks of %.3g GB/s each way join a pair at most.", most,
                       told.value / 1e9);
        return BL_OK;
    }
    if (!in_base) {
        m->per_nvlink = 25e9;
        set_bandwidth(level, most * m->per_nvlink, BL_ASSUMED);
        bl_import_note(m->in, "One NVLink is assumed to move 25 GB/s each way, as of generations 2 "
                              "to 4; those of generation 5 move 50: name a base for them.");
        return BL_OK;
    }
    m->per_nvlink = level->out_bytes_per_s.value / most;
    if (level->out_bytes_per_s.source != BL_MEASURED && !is_nvlink_rate(m->per_nvlink))
        return bl_fail_at(err, BL_ERR_USAGE, bl_at(m->in->file),
                          "%d NVLinks join a pair; with the %.4g GB/s of the base each would move "
                          "%.3g GB/s, but NVLinks move 14, 20, 25 or 50: is %s the right --base?",
                          most, level->out_bytes_per_s.value / 1e9, m->per_nvlink / 1e9,
                          m->in->options->base != NULL ? m->in->options->base : m->in->base.name);
    bl_import_note(m->in, "%d NVLinks join a pair at most: %.3g GB/s each by the base.", most,
                   m->per_nvlink / 1e9);
    return BL_OK;
}

static bl_status price_pcie(maker *m, bl_link how, const char *const *names, bl_error *err) {
    bl_level *level = &m->figures[how];
    BL_TRY(bl_import_level(m->in, names, level, err));
    const bl_figure told = m->links->pcie_bytes_per_s;
    if (told.value > 0 && level->out_bytes_per_s.source != BL_MEASURED)
        set_bandwidth(level, told.value, told.source);
    return BL_OK;
}

static bl_status price(maker *m, bl_error *err) {
    const bl_links *links = m->links;
    for (size_t i = 0; i < (size_t)links->n * (size_t)links->n; i++)
        m->has[links->how[i]] = true;
    if (m->has[BL_LINK_NVLINK])
        BL_TRY(price_nvlink(m, err));
    if (m->has[BL_LINK_SWITCH])
        BL_TRY(price_pcie(m, BL_LINK_SWITCH, NAMES("switch", "socket"), err));
    if (m->has[BL_LINK_SOCKET] || links->n == 1)
        BL_TRY(price_pcie(m, BL_LINK_SOCKET, NAMES("socket", "switch"), err));
    if (m->has[BL_LINK_NODE])
        BL_TRY(bl_import_level(m->in, NAMES("node"), &m->figures[BL_LINK_NODE], err));
    if (m->has[BL_LINK_CLUSTER])
        BL_TRY(bl_import_network(m->in, &m->figures[BL_LINK_CLUSTER], err));
    return BL_OK;
}

/* ---- domains ------------------------------------------------------------------------------ */

/* Ports of a domain of the level below into this one: one link of its own for a single rank, one
 * uplink for a PCIe switch, one PCIe link for each of several ranks joined by NVLink; elsewhere
 * what the base says. */
static bl_figure ports_into(const bl_topology *out, int level, bl_link below, bl_link how,
                            bl_figure base) {
    if (below == BL_LINK_SELF || (below == BL_LINK_SWITCH && how == BL_LINK_SOCKET))
        return (bl_figure){1, BL_ASSUMED};
    if (below == BL_LINK_NVLINK && how < BL_LINK_CLUSTER) {
        int most = 0;
        for (int first = 0; first < out->n_ranks; first++) {
            int size = 0;
            for (int rank = 0; rank < out->n_ranks; rank++)
                size += bl_topology_domain(out, level - 1, rank) ==
                        bl_topology_domain(out, level - 1, first);
            most = size > most ? size : most;
        }
        return (bl_figure){most, BL_ASSUMED};
    }
    return base;
}

static bl_status add_level(maker *m, bl_topology *out, bl_link how, bl_link below,
                           const int *labels, bl_error *err) {
    const int level = ++out->n_levels;
    out->levels[level] = m->figures[how];
    BL_TRY(bl_import_set_domains(out, level, labels, err));
    out->levels[level].ports = ports_into(out, level, below, how, m->figures[how].ports);
    return BL_OK;
}

static bl_status add_levels(maker *m, bl_topology *out, int *labels, int *queue, bl_error *err) {
    bl_link below = BL_LINK_SELF;
    int n_domains = m->links->n;
    out->n_levels = 0;
    for (bl_link how = BL_LINK_NVLINK; how <= BL_LINK_CLUSTER && n_domains > 1; how++) {
        if (!m->has[how])
            continue;
        bl_import_close(m->links->how, m->links->n, (int)how, labels, queue);
        int n = 0;
        for (int rank = 0; rank < m->links->n; rank++)
            n += labels[rank] == rank;
        if (n == n_domains)
            continue;
        n_domains = n;
        BL_TRY(add_level(m, out, how, below, labels, err));
        below = how;
    }
    if (out->n_levels > 0)
        return BL_OK;
    bl_import_close(m->links->how, 1, BL_LINK_SOCKET, labels, queue); /* a single GPU */
    return add_level(m, out, BL_LINK_SOCKET, BL_LINK_SELF, labels, err);
}

/* ---- pairs that differ from their level --------------------------------------------------- */

static double pair_bandwidth(const maker *m, int a, int b) {
    const bl_link how = (bl_link)m->links->how[pair_at(m->links, a, b)];
    const int nvlinks = m->links->nvlinks[pair_at(m->links, a, b)];
    if (how == BL_LINK_NVLINK && nvlinks > 0)
        return nvlinks * m->per_nvlink;
    return m->figures[how].out_bytes_per_s.value;
}

static bl_status add_pairs(const maker *m, bl_topology *out, bl_error *err) {
    const int n = out->n_ranks;
    int differing = 0;
    for (int a = 0; a < n; a++) {
        for (int b = 0; b < n; b++) {
            const bl_link how = (bl_link)m->links->how[pair_at(m->links, a, b)];
            const bl_level *level = &out->levels[bl_topology_level(out, a, b)];
            if (a == b || (pair_bandwidth(m, a, b) == level->out_bytes_per_s.value &&
                           m->figures[how].latency_s.value == level->latency_s.value))
                continue;
            if (out->pair_bytes_per_s == NULL) {
                BL_TRY(bl_import_make_pairs(n, &out->pair_bytes_per_s, err));
                BL_TRY(bl_import_make_pairs(n, &out->pair_latency_s, err));
                out->pair_bytes_source = out->pair_latency_source = BL_ASSUMED;
            }
            out->pair_bytes_per_s[pair_at(m->links, a, b)] = pair_bandwidth(m, a, b);
            out->pair_latency_s[pair_at(m->links, a, b)] = m->figures[how].latency_s.value;
            differing += a < b;
        }
    }
    if (differing > 0)
        bl_import_note(m->in,
                       "%d pairs are joined by less than their domain's best link and have "
                       "figures of their own.",
                       differing);
    return BL_OK;
}

static bl_status make(maker *m, int *labels, int *queue, bl_topology *out, bl_error *err) {
    BL_TRY(price(m, err));
    BL_TRY(bl_import_make(m->in, m->links->n, BL_N_LINKS, out, err));
    BL_TRY(add_levels(m, out, labels, queue, err));
    if (m->links->host != NULL)
        BL_TRY(bl_import_set_hosts(out, m->links->host, m->links->n_hosts, err));
    return add_pairs(m, out, err);
}

bl_status bl_import_links(bl_import *in, const bl_links *links, bool named, bl_topology *out,
                          bl_error *err) {
    maker m = {.in = in, .links = links, .base_named = named};
    int *labels = NULL, *queue = NULL;
    bl_status st = BL_CALLOC(labels, links->n, err);
    if (st >= 0)
        st = BL_CALLOC(queue, links->n, err);
    if (st >= 0)
        st = make(&m, labels, queue, out, err);
    free(labels);
    free(queue);
    return st;
}
