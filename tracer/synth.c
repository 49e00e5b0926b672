/*
 * synth.c: the generator of synth.h. A draw takes one look into an alias table (Walker 1977, as
 * built by Vose 1991); repeated experts are drawn again, which is exactly sampling without
 * replacement.
 */
#include "tracer/synth.h"

#include "core/mem.h"
#include "core/rng.h"
#include "tracer/blt.h"

#include <math.h>
#include <stdlib.h>

#define MAX_TABLE_CELLS ((size_t)1 << 27)

/* One topic and layer: expert e is picked with probability proportional to its weight. */
typedef struct alias_cell {
    float keep;    /* probability to stay at this cell */
    int32_t other; /* else go there */
} alias_cell;

typedef struct generator {
    const bl_model *model;
    const bl_synth_options *options;
    bl_rng rng;
    alias_cell *tables;             /* [n_topics][n_moe_layers][n_experts] */
    double *weight;                 /* [n_experts] scratch */
    int32_t *order, *small, *large; /* [n_experts] scratch */
    uint64_t *used;                 /* [n_experts] number of the row that picked an expert last */
    uint64_t row;
    int *topic;   /* [tokens of a rank] */
    int32_t *ids; /* [tokens of a rank][k] */
} generator;

static bl_status check_options(const bl_synth_options *o, const bl_model *model, bl_error *err) {
    size_t cells;
    if (o->n_topics < 1 || o->n_steps < 1 || o->tokens_per_step < 1 || o->n_ranks < 1 ||
        o->n_ranks > BL_MAX_RANKS || o->tokens_per_step > (int64_t)1 << 30)
        return bl_fail(err, BL_ERR_RANGE, "topics, steps, tokens and ranks must be positive");
    if (!(o->drift >= 0 && o->drift < 1e9) || !(o->skew >= 0 && o->skew <= 4))
        return bl_fail(err, BL_ERR_RANGE, "a drift of %g or a skew of %g (0 to 4 is possible)",
                       o->drift, o->skew);
    if (!bl_size_mul((size_t)o->n_topics, (size_t)model->n_moe_layers, &cells) ||
        !bl_size_mul(cells, (size_t)model->n_experts, &cells) || cells > MAX_TABLE_CELLS)
        return bl_fail(err, BL_ERR_RANGE, "%d topics of %d layers and %d experts are too many",
                       o->n_topics, model->n_moe_layers, model->n_experts);
    return BL_OK;
}

/* ---- tables -------------------------------------------------------------------------------- */

static void rank_experts(generator *g) {
    const int n = g->model->n_experts;
    for (int e = 0; e < n; e++)
        g->order[e] = e;
    for (int e = n - 1; e > 0; e--) {
        const int other = (int)bl_rng_below(&g->rng, (uint32_t)e + 1);
        const int32_t swap = g->order[e];
        g->order[e] = g->order[other];
        g->order[other] = swap;
    }
    for (int r = 0; r < n; r++)
        g->weight[g->order[r]] = pow(r + 1.0, -g->options->skew);
}

static void build_table(generator *g, alias_cell *table) {
    const int n = g->model->n_experts;
    double sum = 0;
    int n_small = 0, n_large = 0;
    for (int e = 0; e < n; e++)
        sum += g->weight[e];
    for (int e = 0; e < n; e++) {
        g->weight[e] *= n / sum;
        table[e] = (alias_cell){1.0f, e};
        if (g->weight[e] < 1.0)
            g->small[n_small++] = e;
        else
            g->large[n_large++] = e;
    }
    while (n_small > 0 && n_large > 0) {
        const int32_t low = g->small[--n_small], high = g->large[n_large - 1];
        table[low] = (alias_cell){(float)g->weight[low], high};
        g->weight[high] -= 1.0 - g->weight[low];
        if (g->weight[high] < 1.0) {
            n_large--;
            g->small[n_small++] = high;
        }
    }
}

static alias_cell *table_of(const generator *g, int topic, int layer_index) {
    return g->tables + ((size_t)topic * (size_t)g->model->n_moe_layers + (size_t)layer_index) *
                           (size_t)g->model->n_experts;
}

/* ---- draws --------------------------------------------------------------------------------- */

static int draw(generator *g, const alias_cell *table) {
    const uint32_t cell = bl_rng_below(&g->rng, (uint32_t)g->model->n_experts);
    return bl_rng_unit(&g->rng) < (double)table[cell].keep ? (int)cell : table[cell].other;
}

/* k distinct experts. With a steep law the last ones may be drawn in vain for long; then the next
 * free expert after a uniform draw is taken. */
static void draw_row(generator *g, const alias_cell *table, int32_t *row) {
    const int n = g->model->n_experts;
    g->row++;
    for (int j = 0; j < g->model->top_k; j++) {
        int expert = draw(g, table);
        for (int tries = 0; g->used[expert] == g->row && tries < 64; tries++)
            expert = draw(g, table);
        if (g->used[expert] == g->row)
            expert = (int)bl_rng_below(&g->rng, (uint32_t)n);
        while (g->used[expert] == g->row)
            expert = (expert + 1) % n;
        g->used[expert] = g->row;
        row[j] = expert;
    }
}

static void draw_topics(generator *g, int64_t step, int64_t n_tokens) {
    const bl_synth_options *o = g->options;
    const double along = o->n_steps > 1 ? (double)step / (double)(o->n_steps - 1) : 0.0;
    const double position = o->drift * along, whole = floor(position);
    const int topic = (int)fmod(whole, o->n_topics), next = (topic + 1) % o->n_topics;
    for (int64_t token = 0; token < n_tokens; token++)
        g->topic[token] = bl_rng_unit(&g->rng) < position - whole ? next : topic;
}

static bl_status write_step(generator *g, int64_t step, bl_blt_writer *writer, bl_error *err) {
    const bl_synth_options *o = g->options;
    const size_t k = (size_t)g->model->top_k;
    for (int rank = 0; rank < o->n_ranks; rank++) {
        const int64_t n_tokens =
            o->tokens_per_step / o->n_ranks + (rank < o->tokens_per_step % o->n_ranks ? 1 : 0);
        draw_topics(g, step, n_tokens);
        for (int l = 0; l < g->model->n_moe_layers; l++) {
            for (int64_t token = 0; token < n_tokens; token++)
                draw_row(g, table_of(g, g->topic[token], l), g->ids + (size_t)token * k);
            const bl_record record = {.step = (uint64_t)step,
                                      .layer = g->model->moe_layers[l],
                                      .rank = rank,
                                      .phase = o->phase,
                                      .n_ids = g->model->n_experts,
                                      .n_tokens = (uint64_t)n_tokens,
                                      .k = g->model->top_k,
                                      .ids = g->ids};
            BL_TRY(bl_blt_write(writer, &record, err));
        }
    }
    return BL_OK;
}

/* ---- the whole trace ------------------------------------------------------------------------ */

static bl_status prepare(generator *g, bl_error *err) {
    const bl_synth_options *o = g->options;
    const size_t n_experts = (size_t)g->model->n_experts,
                 cells = (size_t)o->n_topics * (size_t)g->model->n_moe_layers * n_experts,
                 per_rank = (size_t)(o->tokens_per_step / o->n_ranks) + 1;
    BL_TRY(BL_CALLOC(g->tables, cells, err));
    BL_TRY(BL_CALLOC(g->weight, n_experts, err));
    BL_TRY(BL_CALLOC(g->order, n_experts, err));
    BL_TRY(BL_CALLOC(g->small, n_experts, err));
    BL_TRY(BL_CALLOC(g->large, n_experts, err));
    BL_TRY(BL_CALLOC(g->used, n_experts, err));
    BL_TRY(BL_CALLOC(g->topic, per_rank, err));
    BL_TRY(BL_CALLOC(g->ids, per_rank * (size_t)g->model->top_k, err));
    bl_rng_seed(&g->rng, o->seed);
    for (int topic = 0; topic < o->n_topics; topic++) {
        for (int l = 0; l < g->model->n_moe_layers; l++) {
            rank_experts(g);
            build_table(g, table_of(g, topic, l));
        }
    }
    return BL_OK;
}

static bl_status create_file(const generator *g, const char *out, bl_blt_writer **writer_p,
                             bl_error *err) {
    bl_trace_info info;
    int *present = NULL;
    BL_TRY(bl_trace_info_of_model(g->model, "synth", &info, err));
    bl_status st = BL_CALLOC(present, g->options->n_ranks, err);
    for (int rank = 0; st == BL_OK && rank < g->options->n_ranks; rank++)
        present[rank] = rank;
    if (st == BL_OK)
        st = bl_trace_info_set_ranks(&info, g->options->n_ranks, present, g->options->n_ranks, err);
    if (st == BL_OK)
        st = bl_blt_create(out, &info, false, writer_p, err);
    free(present);
    bl_trace_info_free(&info);
    return st;
}

static bl_status generate(generator *g, const char *out, bl_error *err) {
    bl_blt_writer *writer = NULL;
    BL_TRY(prepare(g, err));
    BL_TRY(create_file(g, out, &writer, err));
    for (int64_t step = 0; step < g->options->n_steps; step++) {
        const bl_status st = write_step(g, step, writer, err);
        if (st < 0) {
            bl_blt_abandon(writer);
            return st;
        }
    }
    return bl_blt_close(writer, err);
}

bl_status bl_synth(const bl_model *model, const bl_synth_options *options, const char *out,
                   bl_error *err) {
    BL_TRY(check_options(options, model, err));
    generator g = {.model = model, .options = options};
    const bl_status st = generate(&g, out, err);
    free(g.tables);
    free(g.weight);
    free(g.order);
    free(g.small);
    free(g.large);
    free(g.used);
    free(g.topic);
    free(g.ids);
    return st;
}
