#include "tracer/ledger.h"

#include "core/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_CELLS ((size_t)1 << 24) /* ranks * layers: bounds memory to 512 MiB */

/* What one layer did in the open step of one rank. */
typedef struct cell {
    uint64_t tokens, slots, empty, assignments;
} cell;

typedef struct open_step {
    int rank;
    uint32_t run;
    uint64_t step;
    bl_phase phase; /* of its first record */
    bool open;
    cell *cells; /* [n_layers]; owned */
} open_step;

struct bl_ledger {
    const bl_trace_info *info;
    open_step *ranks; /* [n_ranks] in order of appearance */
    size_t n_ranks, capacity, last;
    char **why;        /* [n_layers], NULL: conserves */
    bool *seen;        /* [n_layers] */
    uint64_t *scratch; /* [n_layers] */
    uint64_t tokens[BL_N_PHASES];
};

bl_status bl_ledger_create(const bl_trace_info *info, bl_ledger **ledger_p, bl_error *err) {
    bl_ledger *ledger = NULL;
    BL_TRY(BL_CALLOC(ledger, 1, err));
    ledger->info = info;
    bl_status st = BL_CALLOC(ledger->why, info->n_layers, err);
    if (st == BL_OK)
        st = BL_CALLOC(ledger->seen, info->n_layers, err);
    if (st == BL_OK)
        st = BL_CALLOC(ledger->scratch, info->n_layers, err);
    if (st < 0)
        bl_ledger_free(ledger);
    else
        *ledger_p = ledger;
    return st;
}

void bl_ledger_free(bl_ledger *ledger) {
    if (ledger == NULL)
        return;
    for (size_t i = 0; i < ledger->n_ranks; i++)
        free(ledger->ranks[i].cells);
    for (int l = 0; ledger->why != NULL && l < ledger->info->n_layers; l++)
        free(ledger->why[l]);
    free(ledger->ranks);
    free(ledger->why);
    free(ledger->seen);
    free(ledger->scratch);
    free(ledger);
}

static void blame(bl_ledger *ledger, int layer_index, const char *text) {
    if (ledger->why[layer_index] == NULL)
        ledger->why[layer_index] = strdup(text);
}

static int compare_u64(const void *a, const void *b) {
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

uint64_t bl_usual_value(uint64_t *values, int n) {
    qsort(values, (size_t)n, sizeof *values, compare_u64);
    uint64_t usual = 0;
    int most = 0;
    for (int from = 0; from < n;) {
        int to = from;
        while (to < n && values[to] == values[from])
            to++;
        if (values[from] != 0 && to - from >= most) {
            most = to - from;
            usual = values[from];
        }
        from = to;
    }
    return usual;
}

static uint64_t usual_tokens(bl_ledger *ledger, const open_step *step) {
    const int n = ledger->info->n_layers;
    bool all_equal = true;
    for (int l = 0; l < n; l++) {
        ledger->scratch[l] = step->cells[l].tokens;
        all_equal = all_equal && step->cells[l].tokens == step->cells[0].tokens;
    }
    return all_equal ? ledger->scratch[0] : bl_usual_value(ledger->scratch, n);
}

static void close_step(bl_ledger *ledger, open_step *step) {
    if (!step->open)
        return;
    step->open = false;
    const uint64_t tokens = usual_tokens(ledger, step);
    ledger->tokens[step->phase] += tokens;
    for (int l = 0; l < ledger->info->n_layers; l++) {
        const cell *c = &step->cells[l];
        char where[64] = "", text[256];
        if (step->rank != BL_ALL_RANKS)
            snprintf(where, sizeof where, ", rank %d", step->rank);
        if (c->tokens != tokens) {
            snprintf(text, sizeof text, "step %llu%s: %llu tokens where other layers saw %llu",
                     (unsigned long long)step->step, where, (unsigned long long)c->tokens,
                     (unsigned long long)tokens);
            blame(ledger, l, text);
        } else if (c->assignments != c->slots - c->empty) {
            snprintf(text, sizeof text,
                     "step %llu%s: counts sum to %llu, but tokens * k - empty is %llu",
                     (unsigned long long)step->step, where, (unsigned long long)c->assignments,
                     (unsigned long long)(c->slots - c->empty));
            blame(ledger, l, text);
        }
    }
    memset(step->cells, 0, (size_t)ledger->info->n_layers * sizeof *step->cells);
}

static bl_status find_rank(bl_ledger *ledger, int rank, open_step **step_p, bl_error *err) {
    if (ledger->last < ledger->n_ranks && ledger->ranks[ledger->last].rank == rank) {
        *step_p = &ledger->ranks[ledger->last];
        return BL_OK;
    }
    for (ledger->last = 0; ledger->last < ledger->n_ranks; ledger->last++) {
        if (ledger->ranks[ledger->last].rank == rank) {
            *step_p = &ledger->ranks[ledger->last];
            return BL_OK;
        }
    }
    if (ledger->n_ranks * (size_t)ledger->info->n_layers >= MAX_CELLS)
        return bl_fail(err, BL_ERR_RANGE, "too many ranks: %zu with %d layers each",
                       ledger->n_ranks, ledger->info->n_layers);
    void *ranks = ledger->ranks;
    const bl_status st =
        bl_grow(&ranks, &ledger->capacity, ledger->n_ranks + 1, sizeof *ledger->ranks, err);
    ledger->ranks = ranks;
    BL_TRY(st);
    open_step *step = &ledger->ranks[ledger->n_ranks];
    *step = (open_step){.rank = rank};
    BL_TRY(BL_CALLOC(step->cells, ledger->info->n_layers, err));
    ledger->n_ranks++;
    *step_p = step;
    return BL_OK;
}

bl_status bl_ledger_add(bl_ledger *ledger, const bl_record *record, uint64_t assignments,
                        bl_error *err) {
    const int l = bl_trace_layer_index(ledger->info, record->layer);
    if (l < 0)
        return bl_fail_at(err, BL_ERR_MODEL, bl_at_layer(NULL, record->layer),
                          "not a layer of the trace");
    if (record->flags & BL_RECORD_DUMMY)
        return BL_OK;
    open_step *step = NULL;
    BL_TRY(find_rank(ledger, record->rank, &step, err));
    if (step->open && (step->run != record->run || step->step != record->step))
        close_step(ledger, step);
    if (!step->open) {
        step->open = true;
        step->run = record->run;
        step->step = record->step;
        step->phase = record->phase;
    }
    cell *c = &step->cells[l];
    const uint64_t slots = record->n_tokens * (uint64_t)record->k; /* below 2^60 each */
    if (c->slots > UINT64_MAX / 2 || c->assignments > UINT64_MAX / 2 ||
        assignments > UINT64_MAX / 2)
        return bl_fail_at(err, BL_ERR_RANGE, bl_at_layer(NULL, record->layer),
                          "counts that do not fit into 64 bits");
    c->tokens += record->n_tokens;
    c->slots += slots;
    c->empty += record->n_empty;
    c->assignments += assignments;
    ledger->seen[l] = true;
    return BL_OK;
}

void bl_ledger_finish(bl_ledger *ledger) {
    for (size_t i = 0; i < ledger->n_ranks; i++)
        close_step(ledger, &ledger->ranks[i]);
    for (int l = 0; l < ledger->info->n_layers; l++) {
        if (!ledger->seen[l]) {
            free(ledger->why[l]);
            ledger->why[l] = strdup("the trace holds no records of it");
        }
    }
}

const char *bl_ledger_why_bad(const bl_ledger *ledger, int layer_index) {
    return ledger->why[layer_index];
}

uint64_t bl_ledger_tokens(const bl_ledger *ledger) {
    uint64_t sum = 0;
    for (int phase = 0; phase < BL_N_PHASES; phase++)
        sum += ledger->tokens[phase];
    return sum;
}

uint64_t bl_ledger_phase_tokens(const bl_ledger *ledger, bl_phase phase) {
    return ledger->tokens[phase];
}

bool bl_record_assignments(const bl_record *record, uint64_t *assignments) {
    if (record->ids != NULL) {
        *assignments = record->n_tokens * (uint64_t)record->k - record->n_empty;
        return true;
    }
    uint64_t sum = 0;
    for (int id = 0; record->counts != NULL && id < record->n_ids; id++) {
        if (record->counts[id] > UINT64_MAX - sum)
            return false;
        sum += record->counts[id];
    }
    *assignments = sum;
    return true;
}

bl_status bl_record_add_counts(const bl_record *record, uint64_t *row, bl_error *err) {
    const size_t slots = record->ids != NULL ? (size_t)record->n_tokens * (size_t)record->k : 0;
    for (size_t i = 0; i < slots; i++) {
        if (record->ids[i] != BL_EMPTY_SLOT)
            row[record->ids[i]]++;
    }
    for (int id = 0; record->counts != NULL && id < record->n_ids; id++) {
        if (record->counts[id] > UINT64_MAX / 2 - row[id])
            return bl_fail_at(err, BL_ERR_RANGE, bl_at_expert(NULL, record->layer, id),
                              "counts that do not fit into 64 bits");
        row[id] += record->counts[id];
    }
    return BL_OK;
}
