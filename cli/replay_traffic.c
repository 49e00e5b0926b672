/*
 * replay_traffic.c: telling how many rows and bytes travelled.
 */
#include "cli/replay_traffic.h"

#include <math.h>

static void print_remote(const bl_replay_score *s, int n_levels) {
    double crossing = 0.0;
    for (int level = 2; level <= n_levels; level++)
        crossing += s->traffic.dispatch[level];
    printf("%-28.28s %12.4f %16.6g %16.6g\n", s->name, s->traffic.remote_nodes,
           s->traffic.dispatch[1], crossing);
}

void bl_replay_print_traffic(const bl_replay_request *o, const bl_replay *replay) {
    const int n_levels = replay->baseline.traffic.n_levels;
    if (n_levels == 0)
        return;
    printf("%-28s %12s %16s %16s\n", "rows dispatched", "remote nodes", "innermost domain",
           "beyond it");
    print_remote(&replay->baseline, n_levels);
    for (int p = 0; p < replay->n_plans; p++)
        print_remote(&replay->plans[p], n_levels);
    printf("dispatch by %s; remote nodes per token and layer\n", bl_dispatch_names[o->dispatch]);
}

static const bl_level *level_of(const bl_replay_inputs *in, int level) {
    return &in->topology.levels[level];
}

/* Bytes of all scored steps and layers by level of the topology, dispatch and combine together. */
json_t *bl_replay_bytes_to_json(const bl_replay_inputs *in, const bl_replay_traffic *t) {
    const bl_model *model = in->has_model ? &in->model : &in->plans[0].model;
    const bool has_sizes = model->dispatch_bytes_per_row > 0;
    json_t *bytes = json_object();
    for (int level = 1; level <= t->n_levels; level++) {
        if (has_sizes)
            json_object_set_new(bytes, level_of(in, level)->name, json_real(t->bytes[level]));
    }
    return bytes;
}

static json_t *pairs_to_json(const double *rows, int n) {
    json_t *matrix = json_array();
    for (int from = 0; from < n; from++) {
        json_t *row = json_array();
        for (int to = 0; to < n; to++)
            json_array_append_new(row, json_real(rows[from * n + to]));
        json_array_append_new(matrix, row);
    }
    return matrix;
}

static json_t *port_to_json(const bl_replay_inputs *in, const bl_port *port) {
    return json_pack("{s:s, s:i, s:s, s:f}", "level", level_of(in, port->level)->name, "domain",
                     port->domain, "direction", port->receives ? "in" : "out", "rows", port->rows);
}

/* A matrix of more ranks is for a program that knows what it does with it. */
#define PAIRS_UP_TO 64

json_t *bl_replay_traffic_to_json(const bl_replay_request *o, const bl_replay_inputs *in,
                                  const bl_replay_traffic *t) {
    json_t *there = json_object(), *back = json_object();
    for (int level = 0; level <= t->n_levels; level++) {
        const char *name = level > 0 ? level_of(in, level)->name : "own rank";
        json_object_set_new(there, name, json_real(t->dispatch[level]));
        json_object_set_new(back, name, json_real(t->combine[level]));
    }
    json_t *root = json_pack(
        "{s:s, s:s, s:o, s:{s:o, s:o}, s:{s:o, s:o}}", "dispatch", bl_dispatch_names[o->dispatch],
        "combine", bl_combine_names[o->combine], "remote_nodes_per_token",
        isfinite(t->remote_nodes) ? json_real(t->remote_nodes) : json_null(), "rows", "dispatch",
        there, "combine", back, "busiest", "dispatch", port_to_json(in, &t->busiest_dispatch),
        "combine", port_to_json(in, &t->busiest_combine));
    if (t->n_ranks <= PAIRS_UP_TO)
        json_object_set_new(root, "pairs",
                            json_pack("{s:o, s:o}", "dispatch",
                                      pairs_to_json(t->dispatch_pairs, t->n_ranks), "combine",
                                      pairs_to_json(t->combine_pairs, t->n_ranks)));
    return root;
}
