/* What runs here and how its load lies: the answer to {"op":"look"}.
 *
 *   {"ok":true,"model":{model.json},"ranks","experts","top_k","rule","epoch","move","busy",
 *    "drained","spares","bundle_bytes","step_bytes","living":[true, ...],
 *    "host":[0, ...],"node":[0, ...],         of every rank, where it was told
 *    "copy":{"bytes","ns"},                   what moving has cost this rank so far
 *    "window":null | {"number","first_step","last_step","steps","tokens","moving","step_us",
 *                     "longest_us","experts_us","imbalance","count","rows"},
 *    "layers":[{"layer","epoch","slots"}],    if asked for
 *    "started":{...}}                         how the ranks were started, likewise, for one that comes back
 *
 * count [layers][experts] and rows [layers][ranks] are base64 of little-endian 32-bit numbers: a
 * large model's are written in a fraction of a millisecond that way. Layers are in the order of
 * "model"'s. Times are means per step. */
#include "rebalancer/control_parts.h"

#include "core/base64.h"
#include "core/mem.h"

#include <stdlib.h>

json_t *bl_control_who_to_json(const bl_control_who *who) {
    return who->uid < 0
               ? json_null()
               : json_pack("{s:I, s:I}", "uid", (json_int_t)who->uid, "pid", (json_int_t)who->pid);
}

static json_t *numbers(const uint32_t *values, size_t n) {
    unsigned char *bytes = bl_calloc(n, 4);
    if (bytes == NULL)
        return json_null();
    for (size_t i = 0; i < n; i++) {
        for (int b = 0; b < 4; b++)
            bytes[4 * i + (size_t)b] = (unsigned char)(values[i] >> (8 * b));
    }
    char *text = bl_base64_encode(bytes, 4 * n);
    json_t *made = text != NULL ? json_string_nocheck(text) : json_null();
    free(bytes);
    free(text);
    return made;
}

static json_t *window_to_json(const bl_meter *meter) {
    if (meter == NULL)
        return json_null();
    const bl_window w = bl_meter_window(meter);
    if (w.number == 0)
        return json_null();
    const size_t n_layers = (size_t)w.n_layers;
    const double per_step = 1e-3 / w.n_steps;
    return json_pack("{s:I, s:I, s:I, s:i, s:I, s:b, s:f, s:f, s:f, s:f, s:o, s:o}", "number",
                     (json_int_t)w.number, "first_step", (json_int_t)w.first_step, "last_step",
                     (json_int_t)w.last_step, "steps", w.n_steps, "tokens", (json_int_t)w.tokens,
                     "moving", (int)w.moving, "step_us", (double)w.step_ns * per_step, "longest_us",
                     (double)w.longest_ns * 1e-3, "experts_us", (double)w.experts_ns * per_step,
                     "imbalance", bl_window_imbalance(&w), "count",
                     numbers(w.count, n_layers * (size_t)w.n_experts), "rows",
                     numbers(w.rows, n_layers * (size_t)w.n_ranks));
}

json_t *bl_control_map(const bl_agent *agent) {
    json_t *layers = json_array();
    const bl_layer_placement *map;
    for (int l = 0; (map = bl_agent_map(agent, l)) != NULL; l++)
        json_array_append_new(layers, json_pack("{s:i, s:I, s:o}", "layer", map->layer, "epoch",
                                                (json_int_t)map->epoch, "slots",
                                                bl_layer_slots_to_json(map)));
    return layers;
}

static json_t *of_ranks(const int *values, int n) {
    json_t *made = json_array();
    for (int rank = 0; rank < n; rank++)
        json_array_append_new(made, json_integer(values[rank]));
    return made;
}

json_t *bl_control_look(const bl_control_request *request, const bl_control_cluster *cluster,
                        const bl_control_epochs *epochs, const bl_agent *agent) {
    bl_agent_status s;
    json_t *living = json_array();
    bl_agent_get_status(agent, &s);
    for (int rank = 0; rank < cluster->n_ranks; rank++)
        json_array_append_new(living, json_boolean(bl_agent_lives(agent, rank)));
    json_t *made = json_pack(
        "{s:b, s:i, s:i, s:i, s:s, s:I, s:I, s:b, s:b, s:i, s:I, s:I, s:o, s:{s:I, s:I}, s:o}",
        "ok", 1, "ranks", cluster->n_ranks, "experts", cluster->n_experts, "top_k", cluster->top_k,
        "rule", cluster->rule, "epoch", (json_int_t)epochs->in_force, "move", (json_int_t)s.term,
        "busy", (int)s.busy, "drained", (int)epochs->drained, "spares", bl_agent_spares(agent),
        "bundle_bytes", (json_int_t)s.bundle_bytes, "step_bytes",
        (json_int_t)bl_agent_step_bytes(agent), "living", living, "copy", "bytes",
        (json_int_t)(s.sent_bytes + s.received_bytes), "ns", (json_int_t)s.copy_ns, "window",
        window_to_json(cluster->meter));
    if (made == NULL)
        return NULL;
    if (cluster->model != NULL)
        json_object_set(made, "model", cluster->model);
    if (cluster->host != NULL && cluster->node != NULL) {
        json_object_set_new(made, "host", of_ranks(cluster->host, cluster->n_ranks));
        json_object_set_new(made, "node", of_ranks(cluster->node, cluster->n_ranks));
    }
    if (request->placement) {
        json_object_set_new(made, "layers", bl_control_map(agent));
        if (cluster->started != NULL)
            json_object_set(made, "started", cluster->started);
    }
    return made;
}
