/*
 * import_source.h: private to topologies/import*.c: what the readers of foreign formats share.
 *
 * A reader gets the file's text, makes a bl_topology and notes in `sources` what it did. Readers of
 * structure (nvidia-smi, NCCL XML) fill bl_links, a matrix of how well each two GPUs are joined;
 * import_links.c makes the tree of domains from it. Readers of measurements start from the base.
 */
#ifndef BL_TOPOLOGIES_IMPORT_SOURCE_H
#define BL_TOPOLOGIES_IMPORT_SOURCE_H

#include "topologies/import.h"
#include "topologies/topology.h"

typedef struct bl_import {
    const char *file;
    char *text; /* worked on in place */
    size_t bytes;
    const bl_topology_import *options;
    bl_topology base; /* open after bl_import_open_base() */
    json_t *sources;  /* array of sentences */
    /* What a reader of structure learnt of one host's network; 0: nothing. */
    bl_figure adapter_bytes_per_s;
    int n_adapters; /* those that serve its GPUs */
} bl_import;

/* Add a sentence to the sources; characters that are not printable ASCII become '?'. */
void bl_import_note(bl_import *in, const char *format, ...) BL_PRINTF(2, 3);

/* Open the named base; else the catalogue's entry for the device that the file names, by PCI id
 * ("0x10de:0x2330") or product name ("NVIDIA H100 80GB HBM3"), NULL or unknown: hgx-h100, assumed.
 * In the last case *named is false. */
bl_status bl_import_open_base(bl_import *in, const char *device, bool *named, bl_error *err);

/* The base's level of one of `names` (NULL-terminated), else pcie-8's or hgx-h100's of that name,
 * assumed. */
bl_status bl_import_level(bl_import *in, const char *const *names, bl_level *out, bl_error *err);

/* The level between hosts: as learnt, else as in the base. */
bl_status bl_import_network(bl_import *in, bl_level *out, bl_error *err);

/* ---- text --------------------------------------------------------------------------------- */

/* Remove terminal colours and carriage returns in place; lines keep their numbers. */
void bl_import_strip(bl_import *in);

typedef struct bl_line {
    const char *text, *end; /* without the newline */
    int64_t number;         /* 1-based; 0 before the first */
} bl_line;

typedef struct bl_word {
    const char *text;
    size_t length;
} bl_word;

/* The line after *line; start with a zeroed one. */
bool bl_import_next_line(const bl_import *in, bl_line *line);
/* The next word between blanks at *at, which moves behind it; false at `end`. */
bool bl_next_word(const char **at, const char *end, bl_word *out);
/* Words of a line, at most `room`; the number of all. */
size_t bl_split_words(const bl_line *line, bl_word *words, size_t room);
bool bl_word_is(bl_word word, const char *text);
/* The whole word as a number. */
bool bl_word_int(bl_word word, int64_t *out);
bool bl_word_real(bl_word word, double *out);
/* A copy for messages, cut and printable. */
const char *bl_word_shown(bl_word word, char *out, size_t room);

/* Which of `n_parts` the user wants, 0-based: the only one, or options->part. Others are an error
 * that says how many `what` there are, and where the first three start. */
bl_status bl_import_choose(const bl_import *in, const char *what, int n_parts,
                           const int64_t *first_lines, int *chosen, bl_error *err);

/* ---- structure ---------------------------------------------------------------------------- */

/* How two GPUs are joined, from best to worst. */
typedef enum bl_link {
    BL_LINK_SELF,
    BL_LINK_NVLINK,
    BL_LINK_SWITCH, /* PCIe switches only (PIX, PXB) */
    BL_LINK_SOCKET, /* over one socket's host bridges (PHB, NODE) */
    BL_LINK_NODE,   /* between sockets (SYS) */
    BL_LINK_CLUSTER /* between hosts */
} bl_link;
#define BL_N_LINKS 6

typedef struct bl_links {
    int n;              /* GPUs */
    unsigned char *how; /* [n][n] bl_link, symmetric */
    int *nvlinks;       /* [n][n] NVLinks between two; 0 on an NVLink pair: as the base says */
    int *host;          /* [n], from 0 in order of first appearance; NULL: all on one */
    int n_hosts;
    /* Figures that the file tells; value 0: it does not. */
    bl_figure nvlink_bytes_per_s; /* one link, one way */
    bl_figure pcie_bytes_per_s;
} bl_links;

bl_status bl_links_create(int n, bl_links *out, bl_error *err);
void bl_links_free(bl_links *links); /* safe on a zeroed struct */
void bl_links_join(bl_links *links, int a, int b, bl_link how, int nvlinks);

/* The tree of domains, its figures from the links and the base. `named`: the base was. */
bl_status bl_import_links(bl_import *in, const bl_links *links, bool named, bl_topology *out,
                          bl_error *err);

/* An empty topology of n ranks on one host and n_levels levels, devices as in the base; every level
 * is one domain of all ranks. Figures are the caller's. */
bl_status bl_import_make(const bl_import *in, int n, int n_levels, bl_topology *out, bl_error *err);

/* Number domains at `level` from any labels [n_ranks] >= 0, in the order of their first ranks. */
bl_status bl_import_set_domains(bl_topology *out, int level, const int *labels, bl_error *err);

/* Host of each rank, from 0 in the order of first ranks; called host0, host1, ... */
bl_status bl_import_set_hosts(bl_topology *out, const int *host, int n_hosts, bl_error *err);

/* labels[rank]: the lowest rank that is reached over pairs with how[n][n] <= most. */
void bl_import_close(const unsigned char *how, int n, int most, int *labels, int *queue);

/* Allocate a pair matrix of NaN. */
bl_status bl_import_make_pairs(int n, double **out, bl_error *err);

/* ---- readers ------------------------------------------------------------------------------ */

bl_status bl_import_nvidia_smi(bl_import *in, bl_topology *out, bl_error *err);
bl_status bl_import_nccl_xml(bl_import *in, bl_topology *out, bl_error *err);
bl_status bl_import_nccl_tests(bl_import *in, bl_topology *out, bl_error *err);
bl_status bl_import_nvbandwidth(bl_import *in, bl_topology *out, bl_error *err);
bl_status bl_import_cost_matrix(bl_import *in, bl_topology *out, bl_error *err);

#endif
