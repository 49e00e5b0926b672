/*
 * bench_trace.c: size and decoding speed of .blt files (docs/benchmarks.md).
 *
 * Size: bytes of the whole file per token and layer, in the router's order and as sets, beside what
 * no code for independent picks could go below ("floor"): log2 of the number of sequences (sets) of
 * k of E for even picks, and for real routing the entropy of each layer's picks, k times, which
 * leaves out that a token's picks are distinct and hang together.
 *
 *     even      top-8 of 256, every expert equally likely: the worst there is
 *     zipf      the same, popularity r^-0.5 in another order in each layer (ballast synth)
 *     glm       top-8 of 256, 75 layers, drawn by the loads that GLM-5.2's shards recorded
 *     v2-lite, gpt-oss   recorded tokens, composed into steps of 4 ranks x 64 tokens
 *
 * Decoding: bl_blt_next() over a file of top-8 of 256 in the page cache, checksums included, in GB/s
 * of ids; beside it what zstd alone makes of the same chunks, and memcpy, in the same run. One thread,
 * by the time of its processor, so that a busy machine distorts less.
 */
#include "core/npy.h"
#include "core/rng.h"
#include "tracer/blt.h"
#include "tracer/blt_format.h"
#include "tracer/import.h"
#include "tracer/le.h"
#include "tracer/synth.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <zstd.h>

#define EXPERTS 256
#define TOP_K 8
#define LAYERS 75
#define RANKS 4
#define TOKENS 64 /* per rank and step */
#define STEPS 48
#define REPEATS 7

static char folder[] = "/tmp/bench_trace.XXXXXX";

static const char *path_of(const char *name) {
    static char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void die(const bl_error *err) {
    char text[1024];
    bl_error_format(err, text, sizeof text);
    fprintf(stderr, "bench_trace: %s\n", text);
    exit(1);
}

#define MUST(call)      \
    do {                \
        if ((call) < 0) \
            die(&err);  \
    } while (0)

static void row(const char *name, double value, const char *unit) {
    printf("%s,%.4f,%s,1,%.4f,%.4f,%.4f\n", name, value, unit, value, value, value);
}

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void row_of(const char *name, double *values, int n, const char *unit) {
    qsort(values, (size_t)n, sizeof *values, by_value);
    printf("%s,%.3f,%s,%d,%.3f,%.3f,%.3f\n", name, values[n / 2], unit, n, values[0], values[n / 2],
           values[n - 1]);
}

static double file_bytes(const char *path) {
    struct stat info;
    return stat(path, &info) == 0 ? (double)info.st_size : NAN;
}

/* ---- size ----------------------------------------------------------------------------------- */

/* Copy a trace record by record; returns bytes per token and layer. */
static double copy_as(const char *from, bool sets) {
    bl_error err = BL_ERROR_INIT;
    bl_blt_reader *reader;
    bl_blt_writer *writer;
    char to[256];
    double rows = 0.0;
    snprintf(to, sizeof to, "%s", path_of("copy.blt"));
    MUST(bl_blt_open(from, &reader, &err));
    MUST(bl_blt_create(to, bl_blt_info(reader), false, &writer, &err));
    bl_blt_as_sets(writer, sets);
    for (;;) {
        bl_record record;
        bool got;
        MUST(bl_blt_next(reader, &record, &got, &err));
        if (!got)
            break;
        record.weights = NULL;
        rows += (double)record.n_tokens;
        MUST(bl_blt_write(writer, &record, &err));
    }
    MUST(bl_blt_close(writer, &err));
    bl_blt_reader_free(reader);
    const double bytes = file_bytes(to) / rows;
    unlink(to);
    return bytes;
}

/* Entropy of each layer's picks, k times, in bytes per token and layer. */
static double entropy_of(const char *path) {
    bl_error err = BL_ERROR_INIT;
    bl_blt_reader *reader;
    MUST(bl_blt_open(path, &reader, &err));
    const bl_trace_info *info = bl_blt_info(reader);
    const size_t n = (size_t)info->n_experts;
    double *count = calloc((size_t)info->n_layers * n, sizeof *count), bits = 0.0;
    for (bool got = count != NULL; got;) {
        bl_record record;
        MUST(bl_blt_next(reader, &record, &got, &err));
        double *of_layer =
            got ? count + (size_t)bl_trace_layer_index(info, record.layer) * n : NULL;
        for (size_t i = 0; got && i < (size_t)record.n_tokens * (size_t)record.k; i++)
            of_layer[record.ids[i]] += 1.0;
    }
    for (int l = 0; count != NULL && l < info->n_layers; l++) {
        double sum = 0.0;
        for (size_t e = 0; e < n; e++)
            sum += count[(size_t)l * n + e];
        for (size_t e = 0; e < n; e++) {
            const double p = count[(size_t)l * n + e] / sum;
            bits -= p > 0.0 ? p * log2(p) / info->n_layers : 0.0;
        }
    }
    const double bytes = bits * info->top_k / 8.0;
    free(count);
    bl_blt_reader_free(reader);
    return bytes;
}

static void sizes(const char *name, const char *path) {
    char text[64];
    snprintf(text, sizeof text, "trace_size_%s_order", name);
    row(text, copy_as(path, false), "bytes per token and layer");
    snprintf(text, sizeof text, "trace_size_%s_set", name);
    row(text, copy_as(path, true), "bytes per token and layer");
    snprintf(text, sizeof text, "trace_size_%s_entropy_of_picks", name);
    row(text, entropy_of(path), "bytes per token and layer");
}

static void synth(const char *path, double skew, int64_t n_steps) {
    bl_error err = BL_ERROR_INIT;
    static int moe[LAYERS];
    for (int l = 0; l < LAYERS; l++)
        moe[l] = l + 3;
    const bl_model model = {.name = "bench",
                            .n_layers = LAYERS + 3,
                            .n_moe_layers = LAYERS,
                            .moe_layers = moe,
                            .n_experts = EXPERTS,
                            .top_k = TOP_K};
    bl_synth_options options = BL_SYNTH_OPTIONS_INIT;
    options.n_steps = n_steps;
    options.n_ranks = RANKS;
    options.tokens_per_step = RANKS * TOKENS;
    options.skew = skew;
    MUST(bl_synth(&model, &options, path, &err));
}

static const char *data_path(const char *relative) {
    static char path[512];
    const char *root = getenv("BALLAST_TEST_DATA");
    snprintf(path, sizeof path, "%s/%s", root != NULL ? root : "../shared/data", relative);
    return path;
}

/* k distinct experts of a layer, each drawn by its load. */
static void draw_row(bl_rng *rng, const double *cumulated, int32_t *ids) {
    for (int i = 0; i < TOP_K; i++) {
        bool again = true;
        while (again) {
            const double at = bl_rng_unit(rng) * cumulated[EXPERTS - 1];
            int low = 0, high = EXPERTS - 1;
            while (low < high) {
                const int middle = (low + high) / 2;
                if (cumulated[middle] > at)
                    high = middle;
                else
                    low = middle + 1;
            }
            again = false;
            ids[i] = low;
            for (int j = 0; j < i; j++)
                again = again || ids[j] == low;
        }
    }
}

/* The first shard's loads, summed up along each layer's experts. */
static double *cumulated_loads(const char *npy_path) {
    bl_error err = BL_ERROR_INIT;
    bl_npy npy;
    double *sums = calloc((size_t)LAYERS * EXPERTS, sizeof *sums);
    MUST(bl_npy_load(npy_path, &npy, &err));
    for (size_t i = 0; sums != NULL && i < (size_t)LAYERS * EXPERTS; i++)
        sums[i] = (i % EXPERTS > 0 ? sums[i - 1] : 0.0) + bl_npy_real(&npy, i);
    bl_npy_free(&npy);
    return sums;
}

static void draw_glm(const char *npy_path, const char *out) {
    bl_error err = BL_ERROR_INIT;
    bl_trace_info info;
    bl_blt_writer *writer;
    bl_rng rng;
    static int32_t ids[TOKENS * TOP_K];
    int layers[LAYERS];
    for (int l = 0; l < LAYERS; l++)
        layers[l] = l + 3;
    double *sums = cumulated_loads(npy_path);
    bl_rng_seed(&rng, 1);
    MUST(bl_trace_info_create("GLM-5.2", layers, LAYERS, EXPERTS, TOP_K, "bench", &info, &err));
    MUST(bl_blt_create(out, &info, false, &writer, &err));
    for (int part = 0; sums != NULL && part < STEPS * RANKS; part++) {
        for (int l = 0; l < LAYERS; l++) {
            for (int t = 0; t < TOKENS; t++)
                draw_row(&rng, sums + (size_t)l * EXPERTS, ids + t * TOP_K);
            const bl_record record = {.step = (uint64_t)(part / RANKS),
                                      .rank = part % RANKS,
                                      .layer = layers[l],
                                      .phase = BL_PHASE_DECODE,
                                      .n_ids = EXPERTS,
                                      .n_tokens = TOKENS,
                                      .k = TOP_K,
                                      .ids = ids};
            MUST(bl_blt_write(writer, &record, &err));
        }
    }
    MUST(bl_blt_close(writer, &err));
    bl_trace_info_free(&info);
    free(sums);
}

static void recorded(const char *name, const char *relative) {
    bl_error err = BL_ERROR_INIT;
    char out[256];
    const char *in = data_path(relative);
    if (access(in, R_OK) != 0) {
        printf("# trace_size_%s: skipped, no %s\n", name, in);
        return;
    }
    snprintf(out, sizeof out, "%s", path_of("recorded.blt"));
    bl_import_options options = BL_IMPORT_OPTIONS_INIT;
    options.compose_batch = TOKENS * RANKS;
    options.compose_ranks = RANKS;
    bl_import_result result;
    MUST(bl_import("topk-npy", &in, 1, &options, out, &result, &err));
    sizes(name, out);
    unlink(out);
}

static double log2_choose(int n, int k, bool ordered) {
    double bits = 0.0;
    for (int i = 0; i < k; i++)
        bits += log2(n - i) - (ordered ? 0.0 : log2(i + 1));
    return bits;
}

static void all_sizes(void) {
    char path[256];
    row("trace_size_even_order_floor", log2_choose(EXPERTS, TOP_K, true) / 8.0,
        "bytes per token and layer");
    row("trace_size_even_set_floor", log2_choose(EXPERTS, TOP_K, false) / 8.0,
        "bytes per token and layer");
    snprintf(path, sizeof path, "%s", path_of("made.blt"));
    synth(path, 0.0, STEPS);
    sizes("even", path);
    synth(path, 0.5, STEPS);
    sizes("zipf", path);
    const char *shards = data_path("routing/glm-5.2/shards.npy");
    if (access(shards, R_OK) == 0) {
        draw_glm(shards, path);
        sizes("glm", path);
    } else {
        printf("# trace_size_glm: skipped, no %s\n", shards);
    }
    unlink(path);
    recorded("v2-lite", "routing/deepseek-v2-lite/law.npy");
    recorded("gpt-oss", "routing/gpt-oss-20b/mmlu_test.npy");
}

/* ---- speed ---------------------------------------------------------------------------------- */

static double decode_once(const char *path, double *n_ids) {
    bl_error err = BL_ERROR_INIT;
    bl_blt_reader *reader;
    MUST(bl_blt_open(path, &reader, &err));
    const double from = now_s();
    *n_ids = 0.0;
    for (;;) {
        bl_record record;
        bool got;
        MUST(bl_blt_next(reader, &record, &got, &err));
        if (!got)
            break;
        *n_ids += (double)record.n_tokens * record.k;
    }
    const double seconds = now_s() - from;
    bl_blt_reader_free(reader);
    return seconds;
}

/* The stored bytes of all RECS chunks, as a list of (stored, raw) sizes in front of each. */
typedef struct chunks {
    unsigned char *bytes; /* of the file */
    size_t n;
} chunks;

static chunks read_file(const char *path) {
    chunks all = {NULL, (size_t)file_bytes(path)};
    FILE *in = fopen(path, "rb");
    all.bytes = malloc(all.n);
    if (in == NULL || all.bytes == NULL || fread(all.bytes, 1, all.n, in) != all.n)
        exit(1);
    fclose(in);
    return all;
}

/* Decompress every chunk of records with zstd and nothing else; returns raw bytes. */
static double unzstd(const chunks *all, unsigned char *raw) {
    ZSTD_DCtx *zstd = ZSTD_createDCtx();
    double bytes = 0.0;
    const uint32_t header = bl_get_u32(all->bytes + 12);
    for (size_t at = 16 + (size_t)header + 8; at + BL_BLT_FRAME_BYTES <= all->n;) {
        bl_blt_frame frame;
        if (!bl_blt_frame_unpack(all->bytes + at, &frame) || frame.kind != BL_BLT_RECS)
            break;
        at += BL_BLT_FRAME_BYTES;
        const size_t got = ZSTD_decompressDCtx(zstd, raw, BL_BLT_RAW_MAX, all->bytes + at,
                                               (size_t)frame.stored_bytes);
        if (ZSTD_isError(got))
            exit(1);
        bytes += (double)got;
        at += (size_t)frame.stored_bytes;
    }
    ZSTD_freeDCtx(zstd);
    return bytes;
}

static void speeds(const char *name, const char *path) {
    double decoded[REPEATS], alone[REPEATS], copied[REPEATS];
    char text[64];
    const chunks all = read_file(path);
    unsigned char *raw = malloc(BL_BLT_RAW_MAX), *copy = malloc(all.n);
    if (raw == NULL || copy == NULL)
        exit(1);
    memset(copy, 1, all.n);
    memset(raw, 1, BL_BLT_RAW_MAX);
    for (int i = 0; i < REPEATS; i++) {
        double n_ids, from;
        const double seconds = decode_once(path, &n_ids);
        decoded[i] = n_ids / seconds * 1e-9;
        from = now_s();
        const double bytes = unzstd(&all, raw);
        alone[i] = bytes / (now_s() - from) * 1e-9;
        from = now_s();
        memcpy(copy, all.bytes, all.n);
        copied[i] = (double)all.n / (now_s() - from) * 1e-9;
    }
    snprintf(text, sizeof text, "trace_decode_%s", name);
    row_of(text, decoded, REPEATS, "GB/s of ids");
    snprintf(text, sizeof text, "trace_decode_%s_zstd_alone", name);
    row_of(text, alone, REPEATS, "GB/s");
    snprintf(text, sizeof text, "trace_decode_%s_memcpy", name);
    row_of(text, copied, REPEATS, "GB/s");
    free(raw);
    free(copy);
    free(all.bytes);
}

static void all_speeds(void) {
    char path[256], sets[256];
    bl_error err = BL_ERROR_INIT;
    bl_blt_reader *reader;
    bl_blt_writer *writer;
    snprintf(path, sizeof path, "%s", path_of("speed.blt"));
    snprintf(sets, sizeof sets, "%s", path_of("speed_sets.blt"));
    synth(path, 0.5, 512); /* 79 million ids */
    speeds("order", path);
    MUST(bl_blt_open(path, &reader, &err));
    MUST(bl_blt_create(sets, bl_blt_info(reader), false, &writer, &err));
    bl_blt_as_sets(writer, true);
    for (bool got = true; got;) {
        bl_record record;
        MUST(bl_blt_next(reader, &record, &got, &err));
        if (got)
            MUST(bl_blt_write(writer, &record, &err));
    }
    MUST(bl_blt_close(writer, &err));
    bl_blt_reader_free(reader);
    speeds("set", sets);
    unlink(path);
    unlink(sets);
}

int main(void) {
    if (mkdtemp(folder) == NULL) {
        fprintf(stderr, "bench_trace: cannot make %s\n", folder);
        return 1;
    }
    all_sizes();
    all_speeds();
    rmdir(folder);
    return 0;
}
