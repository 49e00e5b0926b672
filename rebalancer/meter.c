#include "rebalancer/meter.h"

#include "core/mem.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define HEADER_BYTES ((size_t)40)
#define OPEN_WINDOWS 2 /* ranks are at most one step apart */

static const char MAGIC[4] = {'B', 'L', 'L', '1'};

/* A window of the leader: being added up, or whole. */
typedef struct tally {
    uint64_t number;
    uint64_t tokens, experts_ns;
    uint32_t *count, *rows;
    bool *told;
} tally;

/* What only the leader's own clock knows, kept until the window is whole. */
typedef struct span {
    uint64_t number, first_step, last_step, step_ns, longest_ns;
    bool moving;
} span;

struct bl_meter {
    int rank, n_ranks, n_layers, n_experts, window_steps;
    int *layers;
    /* this rank's open window */
    int n_steps;
    uint64_t number, tokens, experts_ns;
    span now;
    uint32_t *count; /* [n_layers][n_experts] */
    uint32_t *rows;  /* [n_layers] */
    unsigned char *report;
    size_t report_bytes;
    /* as leader */
    span spans[OPEN_WINDOWS]; /* of the latest closed windows, by number */
    tally open[OPEN_WINDOWS], whole;
    span whole_span;
};

static uint32_t add(uint32_t a, uint64_t b) {
    const uint64_t sum = (uint64_t)a + b;
    return sum > UINT32_MAX ? UINT32_MAX : (uint32_t)sum;
}

static void put(unsigned char *at, uint64_t value, int n_bytes) {
    for (int i = 0; i < n_bytes; i++)
        at[i] = (unsigned char)(value >> (8 * i));
}

static uint64_t get(const unsigned char *at, int n_bytes) {
    uint64_t value = 0;
    for (int i = 0; i < n_bytes; i++)
        value |= (uint64_t)at[i] << (8 * i);
    return value;
}

/* ---- life ------------------------------------------------------------------------------------ */

static bl_status open_tally(const bl_meter *m, tally *out, bl_error *err) {
    BL_TRY(BL_CALLOC(out->count, (size_t)m->n_layers * (size_t)m->n_experts, err));
    BL_TRY(BL_CALLOC(out->rows, (size_t)m->n_layers * (size_t)m->n_ranks, err));
    return BL_CALLOC(out->told, m->n_ranks, err);
}

static void free_tally(tally *t) {
    free(t->count);
    free(t->rows);
    free(t->told);
}

static bl_status fill(bl_meter *m, const int *layers, bl_error *err) {
    const size_t n_counts = (size_t)m->n_layers * (size_t)m->n_experts;
    m->report_bytes = HEADER_BYTES + 4 * (n_counts + (size_t)m->n_layers);
    BL_TRY(BL_CALLOC(m->layers, m->n_layers, err));
    memcpy(m->layers, layers, sizeof *layers * (size_t)m->n_layers);
    BL_TRY(BL_CALLOC(m->count, n_counts, err));
    BL_TRY(BL_CALLOC(m->rows, m->n_layers, err));
    BL_TRY(BL_CALLOC(m->report, m->report_bytes, err));
    for (int i = 0; i < OPEN_WINDOWS; i++)
        BL_TRY(open_tally(m, &m->open[i], err));
    return open_tally(m, &m->whole, err);
}

bl_status bl_meter_create(int rank, int n_ranks, const int *layers, int n_layers, int n_experts,
                          int window_steps, bl_meter **out, bl_error *err) {
    assert(n_layers > 0 && n_experts > 0 && window_steps > 0);
    bl_meter *m;
    size_t cells;
    if (!bl_size_mul((size_t)n_layers, (size_t)n_experts + (size_t)n_ranks, &cells) ||
        cells > SIZE_MAX / 16)
        return bl_fail(err, BL_ERR_RANGE, "%d layers of %d experts are too many to count", n_layers,
                       n_experts);
    BL_TRY(BL_CALLOC(m, 1, err));
    *m = (bl_meter){.rank = rank,
                    .n_ranks = n_ranks,
                    .n_layers = n_layers,
                    .n_experts = n_experts,
                    .window_steps = window_steps,
                    .number = 1};
    const bl_status st = fill(m, layers, err);
    if (st < 0) {
        bl_meter_free(m);
        return st;
    }
    *out = m;
    return BL_OK;
}

void bl_meter_free(bl_meter *m) {
    if (m == NULL)
        return;
    free(m->layers);
    free(m->count);
    free(m->rows);
    free(m->report);
    for (int i = 0; i < OPEN_WINDOWS; i++)
        free_tally(&m->open[i]);
    free_tally(&m->whole);
    free(m);
}

/* ---- counting -------------------------------------------------------------------------------- */

static int index_of(const bl_meter *m, int layer) {
    int low = 0, high = m->n_layers;
    while (low < high) {
        const int middle = (low + high) / 2;
        if (m->layers[middle] < layer)
            low = middle + 1;
        else
            high = middle;
    }
    return low < m->n_layers && m->layers[low] == layer ? low : -1;
}

void bl_meter_route(bl_meter *m, int layer, const int32_t *ids, size_t n) {
    const int l = index_of(m, layer);
    if (l < 0)
        return;
    uint32_t *count = m->count + (size_t)l * (size_t)m->n_experts;
    for (size_t i = 0; i < n; i++) {
        if (ids[i] >= 0 && ids[i] < m->n_experts)
            count[ids[i]] = add(count[ids[i]], 1);
    }
}

static void write_report(bl_meter *m) {
    const size_t n_counts = (size_t)m->n_layers * (size_t)m->n_experts;
    unsigned char *at = m->report;
    memcpy(at, MAGIC, sizeof MAGIC);
    put(at + 4, (uint64_t)m->n_layers, 4);
    put(at + 8, m->number, 8);
    put(at + 16, m->tokens, 8);
    put(at + 24, m->experts_ns, 8);
    put(at + 32, (uint64_t)m->n_experts, 4);
    put(at + 36, 0, 4);
    at += HEADER_BYTES;
    for (size_t i = 0; i < n_counts; i++, at += 4)
        put(at, m->count[i], 4);
    for (int l = 0; l < m->n_layers; l++, at += 4)
        put(at, m->rows[l], 4);
}

/* The next window starts from nothing. */
static void begin_window(bl_meter *m) {
    m->spans[m->number % OPEN_WINDOWS] = m->now;
    m->number++;
    m->n_steps = 0;
    m->tokens = m->experts_ns = 0;
    m->now = (span){0};
    memset(m->count, 0, sizeof *m->count * (size_t)m->n_layers * (size_t)m->n_experts);
    memset(m->rows, 0, sizeof *m->rows * (size_t)m->n_layers);
}

void bl_meter_restart(bl_meter *m, uint64_t step) {
    begin_window(m);
    m->number = step;
}

bool bl_meter_end_step(bl_meter *m, const bl_meter_step *step, const unsigned char **data_p,
                       size_t *bytes) {
    if (step->all_tokens == 0)
        return false;
    if (m->n_steps == 0)
        m->now = (span){.number = m->number, .first_step = step->step};
    m->now.last_step = step->step;
    m->now.step_ns += step->step_ns;
    m->now.moving = m->now.moving || step->moving;
    if (step->step_ns > m->now.longest_ns)
        m->now.longest_ns = step->step_ns;
    m->tokens += step->tokens;
    m->experts_ns += step->experts_ns;
    for (int l = 0; l < m->n_layers; l++)
        m->rows[l] = add(m->rows[l], step->rows[l] > 0 ? (uint64_t)step->rows[l] : 0);
    if (++m->n_steps < m->window_steps)
        return false;
    write_report(m);
    begin_window(m);
    *data_p = m->report;
    *bytes = m->report_bytes;
    return true;
}

/* ---- adding up ------------------------------------------------------------------------------- */

bool bl_meter_is_report(const void *data, size_t bytes) {
    return bytes >= HEADER_BYTES && memcmp(data, MAGIC, sizeof MAGIC) == 0;
}

/* The tally of a window: its own, or the one of the oldest window, which is given up. */
static tally *tally_of(bl_meter *m, uint64_t number) {
    tally *oldest = &m->open[0];
    for (int i = 0; i < OPEN_WINDOWS; i++) {
        if (m->open[i].number == number)
            return &m->open[i];
        if (m->open[i].number < oldest->number)
            oldest = &m->open[i];
    }
    if (number < oldest->number)
        return NULL;
    tally kept = *oldest;
    memset(kept.count, 0, sizeof *kept.count * (size_t)m->n_layers * (size_t)m->n_experts);
    memset(kept.rows, 0, sizeof *kept.rows * (size_t)m->n_layers * (size_t)m->n_ranks);
    memset(kept.told, 0, sizeof *kept.told * (size_t)m->n_ranks);
    *oldest = (tally){.number = number, .count = kept.count, .rows = kept.rows, .told = kept.told};
    return oldest;
}

static void add_report(const bl_meter *m, tally *t, int from, const unsigned char *at) {
    const size_t n_counts = (size_t)m->n_layers * (size_t)m->n_experts;
    const uint64_t experts_ns = get(at + 24, 8);
    t->tokens += get(at + 16, 8);
    t->experts_ns = experts_ns > t->experts_ns ? experts_ns : t->experts_ns;
    t->told[from] = true;
    at += HEADER_BYTES;
    for (size_t i = 0; i < n_counts; i++, at += 4)
        t->count[i] = add(t->count[i], get(at, 4));
    for (int l = 0; l < m->n_layers; l++, at += 4)
        t->rows[(size_t)l * (size_t)m->n_ranks + (size_t)from] = (uint32_t)get(at, 4);
}

bl_status bl_meter_hear(bl_meter *m, int from, const void *data, size_t bytes, const bool *living,
                        bl_error *err) {
    const unsigned char *at = data;
    if (!bl_meter_is_report(data, bytes) || bytes != m->report_bytes || from < 0 ||
        from >= m->n_ranks || get(at + 4, 4) != (uint64_t)m->n_layers ||
        get(at + 32, 4) != (uint64_t)m->n_experts)
        return bl_fail(err, BL_ERR_PARSE, "rank %d sent %zu bytes that are no report of its load",
                       from, bytes);
    const uint64_t number = get(at + 8, 8);
    tally *t = number > m->whole.number ? tally_of(m, number) : NULL;
    if (t == NULL || t->told[from])
        return BL_OK; /* of a window that was given up, or twice */
    add_report(m, t, from, at);
    for (int rank = 0; rank < m->n_ranks; rank++) {
        if (living[rank] && !t->told[rank])
            return BL_OK;
    }
    const tally freed = m->whole;
    m->whole = *t;
    *t = freed;
    t->number = 0;
    const span *own = &m->spans[number % OPEN_WINDOWS];
    m->whole_span = own->number == number ? *own : (span){.number = number};
    return BL_OK;
}

bl_window bl_meter_window(const bl_meter *m) {
    return (bl_window){.number = m->whole.number,
                       .first_step = m->whole_span.first_step,
                       .last_step = m->whole_span.last_step,
                       .n_steps = m->window_steps,
                       .n_layers = m->n_layers,
                       .n_experts = m->n_experts,
                       .n_ranks = m->n_ranks,
                       .layers = m->layers,
                       .moving = m->whole_span.moving,
                       .tokens = m->whole.tokens,
                       .step_ns = m->whole_span.step_ns,
                       .longest_ns = m->whole_span.longest_ns,
                       .experts_ns = m->whole.experts_ns,
                       .count = m->whole.count,
                       .rows = m->whole.rows,
                       .told = m->whole.told};
}

double bl_window_imbalance(const bl_window *window) {
    double sum = 0;
    int n = 0;
    for (int l = 0; window->number > 0 && l < window->n_layers; l++) {
        const uint32_t *rows = window->rows + (size_t)l * (size_t)window->n_ranks;
        double most = 0, total = 0;
        int ranks = 0;
        for (int rank = 0; rank < window->n_ranks; rank++) {
            if (!window->told[rank])
                continue;
            ranks++;
            total += rows[rank];
            most = rows[rank] > most ? rows[rank] : most;
        }
        if (total > 0) {
            sum += most * ranks / total;
            n++;
        }
    }
    return n > 0 ? sum / n : 0;
}
