#include "tracer/stat_sources.h"

#include "core/mem.h"
#include "tracer/stat_noise.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct source {
    int rank;
    uint64_t *count;  /* [n_layers][n_experts]; owned */
    uint64_t *tokens; /* [n_layers]; owned */
} source;

struct bl_stat_sources {
    const bl_trace_info *info;
    size_t cells; /* n_layers * n_experts */
    source *sources;
    size_t n, capacity, last;
    bl_sources_state state;
};

bl_status bl_stat_sources_create(const bl_trace_info *info, bl_stat_sources **out_p,
                                 bl_error *err) {
    bl_stat_sources *s = NULL;
    BL_TRY(BL_CALLOC(s, 1, err));
    s->info = info;
    s->cells = (size_t)info->n_layers * (size_t)info->n_experts;
    *out_p = s;
    return BL_OK;
}

static void forget(bl_stat_sources *s) {
    for (size_t i = 0; i < s->n; i++) {
        free(s->sources[i].count);
        free(s->sources[i].tokens);
    }
    s->n = 0;
}

void bl_stat_sources_free(bl_stat_sources *s) {
    if (s == NULL)
        return;
    forget(s);
    free(s->sources);
    free(s);
}

static bl_status add_source(bl_stat_sources *s, int rank, bl_error *err) {
    void *sources = s->sources;
    const bl_status st = bl_grow(&sources, &s->capacity, s->n + 1, sizeof *s->sources, err);
    s->sources = sources;
    BL_TRY(st);
    source *fresh = &s->sources[s->n];
    *fresh = (source){.rank = rank};
    s->n++;
    BL_TRY(BL_CALLOC(fresh->count, s->cells, err));
    return BL_CALLOC(fresh->tokens, s->info->n_layers, err);
}

bl_status bl_stat_sources_row(bl_stat_sources *s, const bl_record *record, int layer_index,
                              uint64_t **row_p, bl_error *err) {
    *row_p = NULL;
    if (record->rank == BL_ALL_RANKS) {
        forget(s);
        s->state = BL_SOURCES_UNKNOWN;
    }
    if (s->state != BL_SOURCES_KNOWN)
        return BL_OK;
    if (s->last >= s->n || s->sources[s->last].rank != record->rank) {
        s->last = 0;
        while (s->last < s->n && s->sources[s->last].rank != record->rank)
            s->last++;
    }
    if (s->last == s->n && (s->n + 1) > BL_SOURCES_MAX_BYTES / sizeof(uint64_t) / s->cells) {
        forget(s);
        s->state = BL_SOURCES_TOO_LARGE;
        return BL_OK;
    }
    if (s->last == s->n)
        BL_TRY(add_source(s, record->rank, err));
    s->sources[s->last].tokens[layer_index] += record->n_tokens;
    *row_p = s->sources[s->last].count + (size_t)layer_index * (size_t)s->info->n_experts;
    return BL_OK;
}

/* ---- figures ------------------------------------------------------------------------------- */

static int by_rank(const void *a, const void *b) {
    const source *x = a, *y = b;
    return (x->rank > y->rank) - (x->rank < y->rank);
}

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Sum over pairs of |x - y|, by sorting: the i-th smallest of n is added i times and taken away
 * n - 1 - i times. */
static double sum_of_differences(double *values, size_t n) {
    double sum = 0.0;
    qsort(values, n, sizeof *values, by_value);
    for (size_t i = 0; i < n; i++)
        sum += values[i] * ((double)i - (double)(n - 1 - i));
    return sum;
}

/* Figures of one layer; sum[n_experts] and share[n] are scratch. */
static bl_source_figures judge_layer(const bl_stat_sources *s, size_t l, uint64_t *sum,
                                     double *share) {
    const size_t n_experts = (size_t)s->info->n_experts, at = l * n_experts;
    double inverse = 0.0, tokens = 0.0, differences = 0.0;
    size_t n = 0;
    memset(sum, 0, n_experts * sizeof *sum);
    for (size_t i = 0; i < s->n; i++) {
        for (size_t e = 0; e < n_experts; e++)
            sum[e] += s->sources[i].count[at + e];
        if (s->sources[i].tokens[l] == 0)
            continue;
        n++;
        tokens += (double)s->sources[i].tokens[l];
        inverse += 1.0 / (double)s->sources[i].tokens[l];
    }
    if (n < 2)
        return (bl_source_figures){NAN, NAN};
    double *total = share + s->n; /* of each source, in the order of the shares */
    for (size_t i = 0; i < s->n; i++) {
        total[i] = 0.0;
        for (size_t e = 0; e < n_experts; e++)
            total[i] += (double)s->sources[i].count[at + e];
    }
    for (size_t e = 0; e < n_experts; e++) {
        size_t m = 0;
        for (size_t i = 0; i < s->n; i++) {
            if (total[i] > 0.0)
                share[m++] = (double)s->sources[i].count[at + e] / total[i];
        }
        differences += sum_of_differences(share, m);
    }
    const double pairs = (double)n * (double)(n - 1) / 2.0;
    return (bl_source_figures){
        .distance = differences / 2.0 / pairs,
        .noise = bl_noise_distance(sum, (int)n_experts, tokens, (double)n / inverse)};
}

static bl_status judge(bl_stat_sources *s, bl_sources_result *out, bl_error *err) {
    uint64_t *sum = NULL;
    double *share = NULL;
    bl_status st = BL_CALLOC(out->layers, s->info->n_layers, err);
    if (st == BL_OK)
        st = BL_CALLOC(sum, s->info->n_experts, err);
    if (st == BL_OK)
        st = BL_CALLOC(share, 2 * s->n, err);
    for (int l = 0; st == BL_OK && l < s->info->n_layers; l++)
        out->layers[l] = judge_layer(s, (size_t)l, sum, share);
    free(sum);
    free(share);
    return st;
}

/* Rows of one source and layer over the slots, by the share of its expert's load each slot has. */
static void add_traffic(const bl_slot_loads *slots, const double *expert_load,
                        const uint64_t *count, double *to) {
    for (int rank = 0; rank < slots->map.n_ranks; rank++) {
        for (int slot = slots->map.begin[rank]; slot < slots->map.begin[rank + 1]; slot++) {
            const int expert = slots->map.expert[slot];
            if (expert != BL_NO_EXPERT && expert_load[expert] > 0.0)
                to[rank] += (double)count[expert] * slots->load[slot] / expert_load[expert];
        }
    }
}

static bl_status set_traffic(const bl_stat_sources *s, const bl_rank_figures *predicted,
                             bl_sources_result *out, bl_error *err) {
    const size_t n_experts = (size_t)s->info->n_experts;
    double *expert_load = NULL;
    out->n_destinations = predicted->slots[0].map.n_ranks;
    BL_TRY(BL_CALLOC(out->traffic, s->n * (size_t)out->n_destinations, err));
    BL_TRY(BL_CALLOC(expert_load, n_experts, err));
    for (int l = 0; l < s->info->n_layers; l++) {
        const bl_slot_loads *slots = &predicted->slots[l];
        memset(expert_load, 0, n_experts * sizeof *expert_load);
        for (int slot = 0; slot < bl_layer_n_slots(&slots->map); slot++) {
            if (slots->map.expert[slot] != BL_NO_EXPERT)
                expert_load[slots->map.expert[slot]] += slots->load[slot];
        }
        for (size_t i = 0; i < s->n; i++)
            add_traffic(slots, expert_load, s->sources[i].count + (size_t)l * n_experts,
                        out->traffic + i * (size_t)out->n_destinations);
    }
    free(expert_load);
    return BL_OK;
}

static bl_status hand_over(bl_stat_sources *s, bl_sources_result *out, bl_error *err) {
    BL_TRY(BL_CALLOC(out->rank, s->n, err));
    BL_TRY(BL_CALLOC(out->count, s->n * s->cells, err));
    for (size_t i = 0; i < s->n; i++) {
        out->rank[i] = s->sources[i].rank;
        memcpy(out->count + i * s->cells, s->sources[i].count, s->cells * sizeof *out->count);
    }
    out->n_sources = (int)s->n;
    return BL_OK;
}

bl_status bl_stat_sources_finish(bl_stat_sources *s, const bl_rank_figures *predicted,
                                 bl_sources_result *out, bl_error *err) {
    out->state = s->state;
    if (s->state != BL_SOURCES_KNOWN || s->n == 0)
        return BL_OK;
    qsort(s->sources, s->n, sizeof *s->sources, by_rank);
    BL_TRY(judge(s, out, err));
    if (predicted != NULL)
        BL_TRY(set_traffic(s, predicted, out, err));
    return hand_over(s, out, err);
}

void bl_sources_result_free(bl_sources_result *result) {
    free(result->rank);
    free(result->count);
    free(result->layers);
    free(result->traffic);
    *result = (bl_sources_result){0};
}
