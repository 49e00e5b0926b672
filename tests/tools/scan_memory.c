/*
 * scan_memory PID DIR: which experts of the checkpoint in DIR does process PID have in memory?
 *
 * Looks for samples of every expert's bytes in everything the process maps, files included, through
 * /proc/PID/mem, and prints one line for each layer:
 *
 *     layer 0: 0 1 2 3
 *
 * An expert counts as held when all of its samples are found; one of which only some are found is
 * printed with a question mark. Exit 77 when the memory cannot be read (no such process, no
 * permission), so that a test can skip.
 */
#include "core/mem.h"
#include "runtime/qwen3.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SAMPLES 6       /* per expert, spread over its bundle */
#define SAMPLE_BYTES 32 /* long enough to be unique among trained weights */
#define CHUNK ((size_t)1 << 20)
/* A larger mapping is a piece of a sanitizer's shadow, of which there are some of 40 GB: reserved, never
 * read by the program itself. */
#define MAX_MAPPING (UINT64_C(1) << 32)

typedef struct sample {
    uint64_t key; /* its first 8 bytes */
    unsigned char bytes[SAMPLE_BYTES];
    int expert; /* layer * n_experts + expert */
    bool found;
} sample;

typedef struct scan {
    const bl_qwen3_config *config;
    sample *samples; /* ascending by key */
    size_t n_samples;
    unsigned char filter[1 << 16]; /* by the key's low 16 bits: is there such a sample? */
} scan;

static int by_key(const void *a, const void *b) {
    const sample *x = a, *y = b;
    return x->key < y->key ? -1 : x->key > y->key;
}

static bl_status take_samples(const bl_qwen3 *model, scan *scan_p, bl_error *err) {
    const bl_qwen3_config *c = bl_qwen3_config_of(model);
    const size_t bytes = bl_qwen3_bundle_bytes(c);
    unsigned char *bundle;
    scan_p->config = c;
    BL_TRY(BL_CALLOC(bundle, bytes, err));
    BL_TRY(BL_CALLOC(scan_p->samples, c->n_layers * c->n_experts * SAMPLES, err));
    for (int i = 0; i < c->n_layers * c->n_experts; i++) {
        BL_TRY(bl_qwen3_read_expert(model, i / c->n_experts, i % c->n_experts, bundle, err));
        for (size_t s = 0; s < SAMPLES; s++) {
            sample *to = &scan_p->samples[scan_p->n_samples++];
            const size_t at = (bytes / SAMPLES * s + 2 * SAMPLE_BYTES) & ~(size_t)7;
            memcpy(to->bytes, bundle + at, SAMPLE_BYTES);
            memcpy(&to->key, to->bytes, sizeof to->key);
            to->expert = i;
            scan_p->filter[to->key & 0xffff] = 1;
        }
    }
    free(bundle);
    qsort(scan_p->samples, scan_p->n_samples, sizeof *scan_p->samples, by_key);
    return BL_OK;
}

/* Samples that begin at `at`; SAMPLE_BYTES are readable there. */
static void match(scan *scan_p, const unsigned char *at) {
    uint64_t key;
    memcpy(&key, at, sizeof key);
    if (scan_p->filter[key & 0xffff] == 0)
        return;
    size_t low = 0, high = scan_p->n_samples;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (scan_p->samples[middle].key < key)
            low = middle + 1;
        else
            high = middle;
    }
    for (; low < scan_p->n_samples && scan_p->samples[low].key == key; low++)
        if (memcmp(scan_p->samples[low].bytes, at, SAMPLE_BYTES) == 0)
            scan_p->samples[low].found = true;
}

/* One mapping, in overlapping chunks; weights are 2 bytes wide, so every even place is tried. */
static size_t scan_mapping(scan *scan_p, int fd, uint64_t begin, uint64_t end,
                           unsigned char *buffer) {
    size_t total = 0;
    for (uint64_t at = begin; at < end; at += CHUNK) {
        const uint64_t left = end - at;
        const size_t want = left < CHUNK + SAMPLE_BYTES ? (size_t)left : CHUNK + SAMPLE_BYTES;
        const ssize_t got = pread(fd, buffer, want, (off_t)at);
        for (ssize_t i = 0; i + SAMPLE_BYTES <= got; i += 2)
            match(scan_p, buffer + i);
        total += got > 0 ? (size_t)got : 0;
    }
    return total;
}

/* Bytes scanned; 0 when nothing could be read. */
static size_t scan_process(scan *scan_p, const char *pid) {
    char path[64], line[4096];
    size_t total = 0;
    snprintf(path, sizeof path, "/proc/%s/mem", pid);
    const int fd = open(path, O_RDONLY);
    snprintf(path, sizeof path, "/proc/%s/maps", pid);
    FILE *maps = fopen(path, "r");
    unsigned char *buffer = malloc(CHUNK + SAMPLE_BYTES);
    while (fd >= 0 && maps != NULL && buffer != NULL && fgets(line, sizeof line, maps) != NULL) {
        uint64_t begin, end;
        char readable;
        if (sscanf(line, "%" SCNx64 "-%" SCNx64 " %c", &begin, &end, &readable) == 3 &&
            readable == 'r' && end - begin <= MAX_MAPPING)
            total += scan_mapping(scan_p, fd, begin, end, buffer);
    }
    free(buffer);
    if (maps != NULL)
        fclose(maps);
    if (fd >= 0)
        close(fd);
    return total;
}

static void print(const scan *scan_p) {
    const bl_qwen3_config *c = scan_p->config;
    int *found = calloc((size_t)(c->n_layers * c->n_experts), sizeof *found);
    if (found == NULL)
        return;
    for (size_t s = 0; s < scan_p->n_samples; s++)
        found[scan_p->samples[s].expert] += scan_p->samples[s].found;
    for (int layer = 0; layer < c->n_layers; layer++) {
        printf("layer %d:", layer);
        for (int expert = 0; expert < c->n_experts; expert++) {
            const int n = found[layer * c->n_experts + expert];
            if (n > 0)
                printf(" %d%s", expert, n < SAMPLES ? "?" : "");
        }
        putchar('\n');
    }
    free(found);
}

int main(int argc, char **argv) {
    static scan scanned;
    bl_error err = BL_ERROR_INIT;
    bl_qwen3 *model;
    if (argc != 3) {
        fprintf(stderr, "usage: scan_memory PID DIR\n");
        return 2;
    }
    if (bl_qwen3_open(argv[2], &model, &err) < 0 || take_samples(model, &scanned, &err) < 0) {
        fprintf(stderr, "scan_memory: %s\n", err.text);
        return 1;
    }
    if (scan_process(&scanned, argv[1]) == 0) {
        fprintf(stderr, "scan_memory: cannot read the memory of process %s\n", argv[1]);
        return 77;
    }
    print(&scanned);
    free(scanned.samples);
    bl_qwen3_free(model);
    return 0;
}
