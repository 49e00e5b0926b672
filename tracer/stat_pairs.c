#include "tracer/stat_pairs.h"

#include "core/mem.h"
#include "core/rng.h"
#include "tracer/stat_lined_up.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct bl_stat_pairs {
    const bl_trace_info *info;
    uint64_t every;
    size_t n_experts, triangle; /* counters of one layer's pairs */
    uint32_t *together;         /* [n_layers][triangle], or NULL: too large */
    uint32_t *next;             /* [n_layers - 1][n_experts][n_experts], or NULL */
    uint64_t *picks;            /* [n_layers][n_experts] of the tokens looked at */
    uint64_t *tokens;           /* [n_layers] looked at */
    uint64_t *next_tokens;      /* [n_layers - 1] lined up */
    uint32_t *row_start;        /* [n_experts] of pair (a, b), a < b: row_start[a] + b */
    bool any_pairs, any_ids;
    bl_lined_up lined_up;
};

void bl_stat_pairs_free(bl_stat_pairs *p) {
    if (p == NULL)
        return;
    free(p->together);
    free(p->next);
    free(p->picks);
    free(p->tokens);
    free(p->next_tokens);
    free(p->row_start);
    bl_lined_up_free(&p->lined_up);
    free(p);
}

/* Counters for n cells in each of n_tables, or NULL when that is beyond the limit. */
static bl_status counters(size_t n_tables, size_t n, uint32_t **out, bl_error *err) {
    size_t cells;
    *out = NULL;
    if (!bl_size_mul(n_tables, n, &cells) || cells > BL_PAIRS_MAX_BYTES / sizeof **out)
        return BL_OK;
    return BL_CALLOC(*out, cells, err);
}

static bl_status create(bl_stat_pairs *p, bl_error *err) {
    const size_t n_layers = (size_t)p->info->n_layers, n = p->n_experts;
    BL_TRY(BL_CALLOC(p->tokens, n_layers, err));
    BL_TRY(BL_CALLOC(p->next_tokens, n_layers, err));
    BL_TRY(BL_CALLOC(p->picks, n_layers * n, err));
    BL_TRY(BL_CALLOC(p->row_start, n, err));
    BL_TRY(counters(n_layers, p->triangle, &p->together, err));
    BL_TRY(counters(n_layers - 1, n * n, &p->next, err));
    for (size_t a = 0; p->together != NULL && a < n; a++) /* wraps for a = 0, and b > a mends it */
        p->row_start[a] = (uint32_t)(a * n - a * (a + 1) / 2 - a - 1);
    return BL_OK;
}

bl_status bl_stat_pairs_create(const bl_trace_info *info, uint64_t every, bl_stat_pairs **out_p,
                               bl_error *err) {
    bl_stat_pairs *p = NULL;
    BL_TRY(BL_CALLOC(p, 1, err));
    p->info = info;
    p->every = every > 0 ? every : 1;
    p->n_experts = (size_t)info->n_experts;
    p->triangle = p->n_experts * (p->n_experts - 1) / 2;
    const bl_status st = create(p, err);
    if (st < 0)
        bl_stat_pairs_free(p);
    else
        *out_p = p;
    return st;
}

/* ---- counting ------------------------------------------------------------------------------ */

static bool is_sampled(const bl_stat_pairs *p, const bl_record *record) {
    uint64_t state = record->step + ((uint64_t)record->run << 48);
    return p->every == 1 || bl_splitmix64(&state) % p->every == 0;
}

/* One pick of a token with those before it in its row. False when it is there twice: no writer lets
 * that pass, but a file may come from anywhere. */
static bool count_pick(bl_stat_pairs *p, const int32_t *row, int i, uint32_t *together) {
    for (int j = 0; j < i; j++) {
        if (row[j] == BL_EMPTY_SLOT)
            continue;
        if (row[j] == row[i])
            return false;
        const uint32_t a = (uint32_t)(row[i] < row[j] ? row[i] : row[j]),
                       b = (uint32_t)(row[i] < row[j] ? row[j] : row[i]);
        if (together != NULL)
            together[(uint32_t)(p->row_start[a] + b)]++;
        p->any_pairs = true;
    }
    return true;
}

static bl_status count_together(bl_stat_pairs *p, const bl_record *record, size_t l,
                                bl_error *err) {
    uint64_t *picks = p->picks + l * p->n_experts;
    uint32_t *together = p->together != NULL ? p->together + l * p->triangle : NULL;
    const int k = record->k;
    for (uint64_t token = 0; token < record->n_tokens; token++) {
        const int32_t *row = record->ids + token * (uint64_t)k;
        bool any = false;
        for (int i = 0; i < k; i++) {
            if (row[i] == BL_EMPTY_SLOT)
                continue;
            any = true;
            picks[row[i]]++;
            if (!count_pick(p, row, i, together))
                return bl_fail_at(err, BL_ERR_RANGE, bl_at_expert(NULL, record->layer, (int)row[i]),
                                  "a token picked this expert twice");
        }
        p->tokens[l] += any;
    }
    return BL_OK;
}

/* Tokens of layer l and of the next, row by row. */
static void count_next(bl_stat_pairs *p, size_t l) {
    const bl_lined_up *u = &p->lined_up;
    uint32_t *next = p->next + l * p->n_experts * p->n_experts;
    const size_t k_a = (size_t)u->before.k, k_b = (size_t)u->now.k;
    for (size_t token = 0; token < u->now.n_tokens; token++) {
        const int32_t *a = u->before.ids + token * k_a, *b = u->now.ids + token * k_b;
        for (size_t i = 0; i < k_a; i++) {
            if (a[i] == BL_EMPTY_SLOT)
                continue;
            uint32_t *row = next + (size_t)a[i] * p->n_experts;
            for (size_t j = 0; j < k_b; j++) {
                if (b[j] != BL_EMPTY_SLOT)
                    row[b[j]]++;
            }
        }
    }
    p->next_tokens[l] += u->now.n_tokens;
}

/* The layer that is being read is over. */
static void pair_up(bl_stat_pairs *p) {
    if (p->next != NULL && bl_lined_up_match(&p->lined_up))
        count_next(p, (size_t)p->lined_up.before.layer_index);
}

bl_status bl_stat_pairs_add(bl_stat_pairs *p, const bl_record *record, int layer_index,
                            bl_error *err) {
    const size_t l = (size_t)layer_index;
    if (!is_sampled(p, record))
        return BL_OK;
    if (record->n_tokens > UINT32_MAX - p->tokens[l]) /* a counter holds 32 bits */
        return BL_OK;
    if (record->ids != NULL) {
        p->any_ids = true;
        BL_TRY(count_together(p, record, l, err));
    }
    if (p->next == NULL)
        return BL_OK;
    if (!bl_lined_up_same(&p->lined_up, record, layer_index)) {
        pair_up(p);
        bl_lined_up_turn(&p->lined_up, record, layer_index);
    }
    return bl_lined_up_append(&p->lined_up, record, err);
}

/* ---- figures ------------------------------------------------------------------------------- */

typedef struct ranked {
    bl_expert_pair pair;
    double excess;
} ranked;

/* Keep the BL_PAIRS_TOP pairs with the largest excess, in descending order. */
static void offer(ranked top[BL_PAIRS_TOP], int *n, ranked item) {
    if (*n == BL_PAIRS_TOP && item.excess <= top[*n - 1].excess)
        return;
    int at = *n < BL_PAIRS_TOP ? (*n)++ : BL_PAIRS_TOP - 1;
    while (at > 0 && top[at - 1].excess < item.excess) {
        top[at] = top[at - 1];
        at--;
    }
    top[at] = item;
}

static void tell_top(const ranked top[BL_PAIRS_TOP], int n, bl_pair_figures *out) {
    out->n_top = n;
    for (int i = 0; i < n; i++)
        out->top[i] = top[i].pair;
}

static void judge_together(const bl_stat_pairs *p, size_t l, bl_pair_figures *out) {
    const uint64_t *picks = p->picks + l * p->n_experts;
    const uint32_t *together = p->together + l * p->triangle;
    const double tokens = (double)p->tokens[l];
    double seen = 0.0, expected = 0.0, sum = 0.0, squares = 0.0;
    *out = (bl_pair_figures){
        .tokens = p->tokens[l], .chance = NAN, .information = NAN, .normalised = NAN};
    for (size_t e = 0; e < p->n_experts; e++) {
        sum += (double)picks[e];
        squares += (double)picks[e] * (double)picks[e];
    }
    for (size_t i = 0; i < p->triangle; i++)
        seen += together[i];
    if (!(seen > 0.0))
        return;
    expected = (sum * sum - squares) / 2.0 / tokens;
    out->chance = seen / expected;
    ranked top[BL_PAIRS_TOP];
    int n = 0;
    for (size_t a = 0; a + 1 < p->n_experts; a++) {
        for (size_t b = a + 1; b < p->n_experts; b++) {
            const uint32_t count = together[(uint32_t)(p->row_start[a] + (uint32_t)b)];
            if (count == 0)
                continue;
            const double independent = (double)picks[a] * (double)picks[b] / tokens;
            const bl_expert_pair pair = {(int)a, (int)b, count, count / independent};
            offer(top, &n, (ranked){pair, count - out->chance * independent});
        }
    }
    tell_top(top, n, out);
}

static double entropy_bits(const double *count, size_t n, double total) {
    double sum = 0.0;
    for (size_t i = 0; i < n; i++) {
        if (count[i] > 0.0)
            sum -= count[i] / total * log2(count[i] / total);
    }
    return sum;
}

/* from[n_experts] and to[n_experts] are scratch for the margins. */
static void judge_next(const bl_stat_pairs *p, size_t l, double *from, double *to,
                       bl_pair_figures *out) {
    const size_t n = p->n_experts;
    const uint32_t *next = p->next + l * n * n;
    double total = 0.0;
    *out = (bl_pair_figures){
        .tokens = p->next_tokens[l], .chance = NAN, .information = NAN, .normalised = NAN};
    memset(from, 0, n * sizeof *from);
    memset(to, 0, n * sizeof *to);
    for (size_t a = 0; a < n; a++) {
        for (size_t b = 0; b < n; b++) {
            from[a] += next[a * n + b];
            to[b] += next[a * n + b];
        }
        total += from[a];
    }
    if (!(total > 0.0))
        return;
    ranked top[BL_PAIRS_TOP];
    int n_top = 0;
    double information = 0.0, cells = 0.0, rows = 0.0, columns = 0.0;
    for (size_t a = 0; a < n; a++) {
        rows += from[a] > 0.0;
        columns += to[a] > 0.0;
        for (size_t b = 0; b < n; b++) {
            const double count = next[a * n + b];
            if (!(count > 0.0))
                continue;
            const double independent = from[a] * to[b] / total;
            cells += 1.0;
            information += count / total * log2(count / independent);
            const bl_expert_pair pair = {(int)a, (int)b, next[a * n + b], count / independent};
            offer(top, &n_top, (ranked){pair, count - independent});
        }
    }
    /* Miller and Madow: an entropy of m cells seen is short by (m - 1) / 2N nats, here in bits. */
    const double short_by = 1.0 / (2.0 * total * log(2.0));
    const double h_from = entropy_bits(from, n, total) + (rows - 1.0) * short_by,
                 h_to = entropy_bits(to, n, total) + (columns - 1.0) * short_by;
    const double least = h_from < h_to ? h_from : h_to;
    information -= (cells - rows - columns + 1.0) * short_by;
    out->information = information > 0.0 ? information : 0.0;
    out->normalised = least > 0.0 ? out->information / least : 0.0;
    tell_top(top, n_top, out);
}

static bl_status judge_transitions(const bl_stat_pairs *p, bl_pairs_result *out, bl_error *err) {
    const size_t n_pairs = (size_t)p->info->n_layers - 1;
    double *margins = NULL;
    BL_TRY(BL_CALLOC(out->transition, n_pairs, err));
    BL_TRY(BL_CALLOC(margins, 2 * p->n_experts, err));
    for (size_t l = 0; l < n_pairs; l++)
        judge_next(p, l, margins, margins + p->n_experts, &out->transition[l]);
    free(margins);
    return BL_OK;
}

bl_status bl_stat_pairs_finish(bl_stat_pairs *p, bl_pairs_result *out, bl_error *err) {
    const size_t n_layers = (size_t)p->info->n_layers;
    pair_up(p);
    bool aligned = false;
    for (size_t l = 0; l + 1 < n_layers; l++)
        aligned = aligned || p->next_tokens[l] > 0;
    *out = (bl_pairs_result){.every = p->every};
    out->coactivation_state = p->together == NULL ? BL_PAIRS_TOO_LARGE
                              : !p->any_pairs     ? BL_PAIRS_NO_IDS
                                                  : BL_PAIRS_KNOWN;
    out->transition_state = !p->any_ids       ? BL_PAIRS_NO_IDS
                            : p->next == NULL ? BL_PAIRS_TOO_LARGE
                            : !aligned        ? BL_PAIRS_NOT_ALIGNED
                                              : BL_PAIRS_KNOWN;
    if (out->coactivation_state == BL_PAIRS_KNOWN) {
        BL_TRY(BL_CALLOC(out->coactivation, n_layers, err));
        for (size_t l = 0; l < n_layers; l++)
            judge_together(p, l, &out->coactivation[l]);
    }
    return out->transition_state == BL_PAIRS_KNOWN ? judge_transitions(p, out, err) : BL_OK;
}

void bl_pairs_result_free(bl_pairs_result *result) {
    free(result->coactivation);
    free(result->transition);
    *result = (bl_pairs_result){0};
}
