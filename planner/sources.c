#include "planner/sources.h"

#include "core/mem.h"
#include "planner/diff.h"

#include <stdlib.h>
#include <string.h>

/* ---- sites ----------------------------------------------------------------------------------- */

/* Do all ranks of every host lie in one domain of this level? */
static bool splits_no_host(const bl_topology *t, int level, int n_ranks) {
    for (int a = 0; a < n_ranks; a++) {
        for (int b = a + 1; b < n_ranks; b++) {
            if (bl_topology_same_host(t, a, b) &&
                bl_topology_domain(t, level, a) != bl_topology_domain(t, level, b))
                return false;
        }
    }
    return true;
}

bl_status bl_sites_of(const bl_topology *topology, int n_ranks, bl_sites *out, bl_error *err) {
    BL_TRY(bl_ranks_fit(topology, n_ranks, err));
    bl_sites made = {.n_ranks = n_ranks, .level = 1};
    if (BL_CALLOC(made.host, n_ranks, err) < 0 || BL_CALLOC(made.node, n_ranks, err) < 0) {
        bl_sites_free(&made);
        return BL_ERR_NOMEM;
    }
    while (made.level < topology->n_levels && !splits_no_host(topology, made.level, n_ranks))
        made.level++;
    for (int rank = 0; rank < n_ranks; rank++) {
        made.host[rank] = topology->host[rank];
        made.node[rank] = bl_topology_domain(topology, made.level, rank);
        if (made.node[rank] >= made.n_nodes)
            made.n_nodes = made.node[rank] + 1;
    }
    *out = made;
    return BL_OK;
}

void bl_sites_free(bl_sites *sites) {
    free(sites->host);
    free(sites->node);
    *sites = (bl_sites){0};
}

/* ---- loads ----------------------------------------------------------------------------------- */

static bl_status check(const bl_loads *loads, int row, int n_ranks, bl_error *err) {
    if (loads->source_count == NULL)
        return bl_fail(err, BL_ERR_UNSUPPORTED, "%s",
                       loads->sources_why[0] != '\0'
                           ? loads->sources_why
                           : "where tokens come from was not read from the trace");
    if (loads->n_sources <= n_ranks)
        return BL_OK;
    for (size_t step = 0; step < loads->n_steps; step++) {
        for (int source = n_ranks; source < loads->n_sources; source++) {
            const uint32_t *count = bl_loads_source_row(loads, step, row, source);
            for (int e = 0; e < loads->n_experts; e++) {
                if (count[e] > 0)
                    return bl_fail_at(err, BL_ERR_SHAPE, bl_at_layer(NULL, loads->layers[row]),
                                      "tokens are born on rank %d, but there are only %d ranks",
                                      source, n_ranks);
            }
        }
    }
    return BL_OK;
}

static void fill_load(const bl_loads *loads, int row, const int *group, const double *scale,
                      bl_sources *s) {
    for (size_t step = 0; step < loads->n_steps; step++) {
        const double weight = scale != NULL ? scale[step] : 1.0;
        if (group[step] < 0)
            continue;
        for (int source = 0; source < s->n_sources; source++) {
            const uint32_t *count = bl_loads_source_row(loads, step, row, source);
            double *load = s->load + ((size_t)group[step] * (size_t)s->n_sources + (size_t)source) *
                                         (size_t)s->n_experts;
            for (int e = 0; e < s->n_experts; e++)
                load[e] += weight * (double)count[e];
        }
    }
}

/* ---- tokens ---------------------------------------------------------------------------------- */

/* Calls for every token of a selected step: both run over ascending steps. */
typedef struct walk {
    const bl_loads *loads;
    const bl_token_layer *layer;
    const int *group;
    int n_sources; /* a token without rows may come from a rank that is not among them */
    size_t token, step;
} walk;

static bool walk_next(walk *w, size_t *token, int *group) {
    for (; w->token < w->layer->n; w->token++) {
        const uint64_t position = w->layer->step[w->token];
        while (w->step < w->loads->n_steps && w->loads->step_id[w->step] < position)
            w->step++;
        if (w->step >= w->loads->n_steps || w->loads->step_id[w->step] != position ||
            w->group[w->step] < 0 || w->layer->source[w->token] < 0 ||
            w->layer->source[w->token] >= w->n_sources)
            continue;
        *group = w->group[w->step];
        *token = w->token++;
        return true;
    }
    return false;
}

static walk walk_of(const bl_loads *loads, int row, const int *group, int n_sources) {
    return (walk){.loads = loads,
                  .layer = &loads->sample.layers[row],
                  .group = group,
                  .n_sources = n_sources};
}

static size_t count_tokens(const bl_loads *loads, int row, const int *group, int n_sources) {
    walk w = walk_of(loads, row, group, n_sources);
    size_t n = 0, token;
    int of;
    while (walk_next(&w, &token, &of))
        n++;
    return n;
}

static void copy_tokens(const bl_loads *loads, int row, const int *group, bl_sources *s) {
    walk w = walk_of(loads, row, group, s->n_sources);
    const size_t k = (size_t)s->k;
    size_t n = 0, token;
    int of, done = 0;
    while (walk_next(&w, &token, &of)) {
        while (done < of)
            s->first[++done] = n;
        s->source[n] = w.layer->source[token];
        s->step[n] = w.layer->step[token];
        memcpy(s->id + n * k, w.layer->id + token * k, k * sizeof *s->id);
        n++;
    }
    while (done < s->n_groups)
        s->first[++done] = n;
}

static size_t count_rows(const bl_sources *s) {
    size_t rows = 0;
    for (size_t i = 0; i < s->n_tokens * (size_t)s->k; i++)
        rows += s->id[i] >= 0;
    return rows;
}

static double total_rows(const bl_loads *loads, int row, const int *group) {
    double sum = 0.0;
    for (size_t step = 0; step < loads->n_steps; step++) {
        const uint64_t *count = bl_loads_row(loads, step, row);
        for (int e = 0; group[step] >= 0 && e < loads->n_experts; e++)
            sum += (double)count[e];
    }
    return sum;
}

static bl_status take_tokens(const bl_loads *loads, int row, const int *group, bl_sources *s,
                             bl_error *err) {
    if (loads->sample.most == 0)
        return BL_OK;
    s->n_tokens = count_tokens(loads, row, group, s->n_sources);
    BL_TRY(BL_CALLOC(s->source, s->n_tokens, err));
    BL_TRY(BL_CALLOC(s->step, s->n_tokens, err));
    BL_TRY(BL_CALLOC(s->id, s->n_tokens * (size_t)s->k, err));
    copy_tokens(loads, row, group, s);
    const double held = (double)count_rows(s), all = total_rows(loads, row, group);
    s->weight = held > 0.0 ? all / held : 1.0;
    s->whole = held >= all;
    return BL_OK;
}

/* Mean weight of the rows of each group. */
static bl_status set_scale(const bl_loads *loads, int row, const int *group, const double *scale,
                           bl_sources *s, bl_error *err) {
    double *rows;
    BL_TRY(BL_CALLOC(rows, s->n_groups, err));
    for (size_t step = 0; step < loads->n_steps; step++) {
        const uint64_t *count = bl_loads_row(loads, step, row);
        for (int e = 0; group[step] >= 0 && e < loads->n_experts; e++) {
            rows[group[step]] += (double)count[e];
            s->scale[group[step]] += (double)count[e] * (scale != NULL ? scale[step] : 1.0);
        }
    }
    for (int g = 0; g < s->n_groups; g++)
        s->scale[g] = rows[g] > 0.0 ? s->scale[g] / rows[g] : 1.0;
    free(rows);
    return BL_OK;
}

bl_status bl_sources_of(const bl_loads *loads, int row, const int *group, int n_groups,
                        const double *scale, int n_ranks, bl_sources *out, bl_error *err) {
    BL_TRY(check(loads, row, n_ranks, err));
    bl_sources made = {.layer = loads->layers[row],
                       .n_groups = n_groups,
                       .n_sources = loads->n_sources < n_ranks ? loads->n_sources : n_ranks,
                       .n_experts = loads->n_experts,
                       .k = loads->top_k,
                       .weight = 1.0};
    size_t cells;
    if (!bl_size_mul((size_t)n_groups, (size_t)made.n_sources, &cells) ||
        !bl_size_mul(cells, (size_t)made.n_experts, &cells))
        return bl_fail(err, BL_ERR_NOMEM, "out of memory");
    bl_status st;
    BL_TRY_GOTO(st, BL_CALLOC(made.load, cells, err), fail);
    BL_TRY_GOTO(st, BL_CALLOC(made.first, n_groups + 1, err), fail);
    BL_TRY_GOTO(st, BL_CALLOC(made.scale, n_groups, err), fail);
    fill_load(loads, row, group, scale, &made);
    BL_TRY_GOTO(st, set_scale(loads, row, group, scale, &made, err), fail);
    BL_TRY_GOTO(st, take_tokens(loads, row, group, &made, err), fail);
    *out = made;
    return BL_OK;
fail:
    bl_sources_free(&made);
    return st;
}

void bl_sources_free(bl_sources *sources) {
    free(sources->load);
    free(sources->first);
    free(sources->source);
    free(sources->step);
    free(sources->id);
    free(sources->scale);
    *sources = (bl_sources){0};
}

bl_status bl_sources_need_tokens(const bl_sources *sources, bl_error *err) {
    const size_t cells =
        (size_t)sources->n_groups * (size_t)sources->n_sources * (size_t)sources->n_experts;
    double rows = 0.0;
    for (size_t i = 0; i < cells; i++)
        rows += sources->load[i];
    if (sources->n_tokens > 0 || rows <= 0.0)
        return BL_OK;
    return bl_fail_at(err, BL_ERR_UNSUPPORTED, bl_at_layer(NULL, sources->layer),
                      "holds counts only: which experts a token picks together is not known, which "
                      "the rule local and deduplicated dispatch go by");
}
