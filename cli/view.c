#include "cli/view.h"

#include "core/base64.h"
#include "core/mem.h"
#include "core/progress.h"
#include "planner/align.h"
#include "planner/evaluate.h"

#include <stdlib.h>
#include <string.h>

/* What moving a byte takes where nothing has been moved yet: two copies in memory at 4 GB/s. */
#define ASSUMED_NS_PER_BYTE 0.5
#define MEASURED_FROM_BYTES (1 << 16)
/* Steps that a wave takes beside its bytes: agreeing on a step, and reaching it. */
#define WAVE_STEPS 6

/* ---- reading --------------------------------------------------------------------------------- */

static bl_status read_counts(const json_t *window, size_t n, uint32_t **out, bl_error *err) {
    const char *text;
    unsigned char *bytes;
    size_t n_bytes;
    BL_TRY(bl_json_string(window, "count", NULL, &text, err));
    BL_TRY(bl_base64_decode(text, strlen(text), "look", &bytes, &n_bytes, err));
    bl_status st = n_bytes == 4 * n
                       ? BL_CALLOC(*out, n, err)
                       : bl_fail(err, BL_ERR_SHAPE, "%zu bytes of counts for %zu", n_bytes, n);
    for (size_t i = 0; st >= 0 && i < n; i++)
        (*out)[i] = (uint32_t)bytes[4 * i] | (uint32_t)bytes[4 * i + 1] << 8 |
                    (uint32_t)bytes[4 * i + 2] << 16 | (uint32_t)bytes[4 * i + 3] << 24;
    free(bytes);
    return st;
}

static bl_status read_window(const json_t *root, const bl_model *model, bl_view_window *out,
                             bl_error *err) {
    const json_t *window = json_object_get(root, "window");
    int64_t number, tokens, steps;
    if (!json_is_object(window))
        return BL_OK;
    BL_TRY(bl_json_int(window, "number", 1, INT64_MAX, NULL, &number, err));
    BL_TRY(bl_json_int(window, "tokens", 0, INT64_MAX, NULL, &tokens, err));
    BL_TRY(bl_json_int(window, "steps", 1, INT32_MAX, NULL, &steps, err));
    BL_TRY(bl_json_real(window, "step_us", 0, 1e15, NULL, &out->step_s, err));
    BL_TRY(bl_json_real(window, "longest_us", 0, 1e15, NULL, &out->longest_s, err));
    BL_TRY(bl_json_real(window, "experts_us", 0, 1e15, NULL, &out->experts_s, err));
    BL_TRY(bl_json_real(window, "imbalance", 0, 1e9, NULL, &out->imbalance, err));
    BL_TRY(bl_json_bool_or(window, "moving", false, NULL, &out->moving, err));
    out->number = (uint64_t)number;
    out->tokens = (uint64_t)tokens;
    out->n_steps = (int)steps;
    out->step_s *= 1e-6;
    out->longest_s *= 1e-6;
    out->experts_s *= 1e-6;
    return read_counts(window, (size_t)model->n_moe_layers * (size_t)model->n_experts, &out->count,
                       err);
}

static bl_status read_placement(const json_t *root, bl_view *out, bl_error *err) {
    const json_t *layers;
    if (json_object_get(root, "layers") == NULL)
        return BL_OK;
    BL_TRY(bl_json_array(root, "layers", NULL, &layers, err));
    BL_TRY(bl_placement_from_json(layers, out->n_ranks, out->model.n_experts, out->epoch, NULL,
                                  &out->placement, err));
    if (out->placement.n_layers != out->model.n_moe_layers)
        return bl_fail(err, BL_ERR_SHAPE, "the cluster places %d layers of %d",
                       out->placement.n_layers, out->model.n_moe_layers);
    return BL_OK;
}

static bl_status read_living(const json_t *root, bl_view *out, bl_error *err) {
    const json_t *living;
    BL_TRY(BL_CALLOC(out->living, out->n_ranks, err));
    BL_TRY(bl_json_array(root, "living", NULL, &living, err));
    for (int rank = 0; rank < out->n_ranks; rank++)
        out->living[rank] = json_is_true(json_array_get(living, (size_t)rank));
    return BL_OK;
}

/* Ranks of one host and node get the number of the first of them. */
static bl_status read_sites(const json_t *root, bl_view *out, bl_error *err) {
    const json_t *host, *node;
    if (json_object_get(root, "host") == NULL)
        return BL_OK;
    BL_TRY(bl_json_array(root, "host", NULL, &host, err));
    BL_TRY(bl_json_array(root, "node", NULL, &node, err));
    BL_TRY(BL_CALLOC(out->site, out->n_ranks, err));
    for (int rank = 0; rank < out->n_ranks; rank++) {
        int first = 0;
        while (
            first < rank &&
            !(json_equal(json_array_get(host, (size_t)first), json_array_get(host, (size_t)rank)) &&
              json_equal(json_array_get(node, (size_t)first), json_array_get(node, (size_t)rank))))
            first++;
        out->site[rank] = first;
    }
    return BL_OK;
}

static bl_status read_view(const json_t *root, bl_view *out, bl_error *err) {
    const json_t *model, *copy;
    int64_t ranks, epoch, move, spares, bytes, ns;
    BL_TRY(bl_json_int(root, "ranks", 1, BL_TX_MAX_RANKS, NULL, &ranks, err));
    BL_TRY(bl_json_int(root, "epoch", 0, INT64_MAX, NULL, &epoch, err));
    BL_TRY(bl_json_int(root, "move", 0, INT64_MAX, NULL, &move, err));
    BL_TRY(bl_json_int(root, "spares", 0, INT32_MAX, NULL, &spares, err));
    BL_TRY(bl_json_int(root, "bundle_bytes", 1, INT64_MAX, NULL, &out->bundle_bytes, err));
    BL_TRY(bl_json_int(root, "step_bytes", 1, INT64_MAX, NULL, &out->step_bytes, err));
    BL_TRY(bl_json_bool_or(root, "busy", false, NULL, &out->busy, err));
    BL_TRY(bl_json_bool_or(root, "drained", false, NULL, &out->drained, err));
    BL_TRY(bl_json_object(root, "copy", NULL, &copy, err));
    BL_TRY(bl_json_int(copy, "bytes", 0, INT64_MAX, NULL, &bytes, err));
    BL_TRY(bl_json_int(copy, "ns", 0, INT64_MAX, NULL, &ns, err));
    out->n_ranks = (int)ranks;
    out->epoch = (uint64_t)epoch;
    out->move = (uint64_t)move;
    out->spares = (int)spares;
    out->measured = bytes >= MEASURED_FROM_BYTES && ns > 0;
    out->ns_per_byte = out->measured ? (double)ns / (double)bytes : ASSUMED_NS_PER_BYTE;
    BL_TRY(read_living(root, out, err));
    BL_TRY(read_sites(root, out, err));
    BL_TRY(bl_json_object(root, "model", NULL, &model, err));
    BL_TRY(bl_model_from_json(model, NULL, &out->model, err));
    BL_TRY(read_placement(root, out, err));
    return read_window(root, &out->model, &out->window, err);
}

bl_status bl_view_look(bl_control_client *client, int64_t later_than, bool placement, bl_view *out,
                       bl_error *err) {
    json_t *answer, *request = json_pack("{s:s, s:b, s:b, s:I}", "op", "look", "placement",
                                         (int)placement, "wait", (int)(later_than >= 0), "window",
                                         (json_int_t)(later_than >= 0 ? later_than : 0));
    bl_view view = {0};
    bl_status st = bl_control_ask(client, request, BL_OPERATOR_WAIT_S, &answer, err);
    json_decref(request);
    BL_TRY(st);
    st = read_view(answer, &view, err);
    json_decref(answer);
    if (st < 0)
        bl_view_free(&view);
    else
        *out = view;
    return st;
}

void bl_view_free(bl_view *view) {
    bl_model_free(&view->model);
    bl_placement_free(&view->placement);
    free(view->living);
    free(view->site);
    free(view->window.count);
    *view = (bl_view){0};
}

/* ---- weighing -------------------------------------------------------------------------------- */

static bl_status layer_imbalance(const bl_view *view, const double *load, int *slots,
                                 const bl_layer_placement *layer, double *out, bl_error *err) {
    for (int rank = 0; rank < view->n_ranks; rank++)
        slots[rank] = view->living[rank] ? layer->begin[rank + 1] - layer->begin[rank] : 0;
    const bl_problem problem = {.layer = layer->layer,
                                .n_experts = layer->n_experts,
                                .n_ranks = view->n_ranks,
                                .n_scenarios = 1,
                                .load = load,
                                .slots_per_rank = slots,
                                .rule = BL_RULE_EVEN,
                                .max_moves = -1};
    bl_score score;
    BL_TRY(bl_evaluate(&problem, layer, &score, err));
    *out = score.max_over_mean;
    return BL_OK;
}

bl_status bl_view_imbalance(const bl_view *view, const uint32_t *count,
                            const bl_placement *placement, double *out, bl_error *err) {
    const int n_experts = view->model.n_experts;
    double *load, sum = 0;
    int *slots = NULL, n = 0;
    BL_TRY(BL_CALLOC(load, n_experts, err));
    bl_status st = BL_CALLOC(slots, view->n_ranks, err);
    for (int l = 0; l < placement->n_layers && st >= 0; l++) {
        const int row = bl_model_moe_index(&view->model, placement->layers[l].layer);
        double total = 0, imbalance;
        for (int e = 0; e < n_experts && row >= 0; e++)
            total += load[e] = count[(size_t)row * (size_t)n_experts + (size_t)e];
        if (total <= 0)
            continue;
        st = layer_imbalance(view, load, slots, &placement->layers[l], &imbalance, err);
        sum += st >= 0 ? imbalance : 0;
        n++;
    }
    free(load);
    free(slots);
    BL_TRY(st);
    *out = n > 0 ? sum / n : 1.0;
    return BL_OK;
}

/* Bundles that the busiest rank of a layer takes. */
static int most_arrivals(const bl_layer_placement *from, const bl_layer_placement *to) {
    int most = 0;
    for (int rank = 0; rank < to->n_ranks; rank++) {
        int n = 0;
        for (int slot = to->begin[rank]; slot < to->begin[rank + 1]; slot++)
            n +=
                to->expert[slot] != BL_NO_EXPERT && bl_layer_find(from, rank, to->expert[slot]) < 0;
        most = n > most ? n : most;
    }
    return most;
}

/* What a move costs: the busiest rank of each layer sends and takes its bundles between steps. How
 * long it lasts: a wave moves as many as there are spares, within the bytes of a step. */
static void price(const bl_view *view, const bl_placement *goal, bl_policy_offer *offer) {
    const int spares = view->spares > 0 ? view->spares : 1;
    const double bundle = (double)view->bundle_bytes;
    double busiest = 0, steps = 0;
    for (int l = 0; l < goal->n_layers; l++) {
        const bl_layer_placement *to = &goal->layers[l];
        const bl_layer_placement *from = bl_placement_layer(&view->placement, to->layer);
        if (from == NULL || from->n_ranks != to->n_ranks || from->n_experts != to->n_experts)
            continue; /* the cluster will say what is wrong */
        const int most = most_arrivals(from, to), waves = (most + spares - 1) / spares;
        offer->moves += bl_layer_moves(from, to);
        busiest += most * bundle;
        steps += waves * WAVE_STEPS + most * bundle / (double)view->step_bytes;
    }
    offer->bytes = offer->moves * bundle;
    offer->cost_s = 2 * busiest * view->ns_per_byte * 1e-9;
    offer->duration_s = steps * view->window.step_s;
}

bl_status bl_view_offer(const bl_view *view, const bl_placement *goal, bl_policy_offer *out,
                        bl_error *err) {
    bl_policy_offer offer = {.experts_s = view->window.experts_s, .step_s = view->window.step_s};
    BL_TRY(bl_view_imbalance(view, view->window.count, &view->placement, &offer.now, err));
    BL_TRY(bl_view_imbalance(view, view->window.count, goal, &offer.after, err));
    price(view, goal, &offer);
    *out = offer;
    return BL_OK;
}

/* ---- aligning -------------------------------------------------------------------------------- */

/* Does the plan mean the very ranks it names? */
static bool is_tied_to_ranks(const bl_view *view, const bl_plan *plan) {
    return plan->rule == BL_RULE_FRACTIONS ||
           json_object_get(plan->provenance, "fault_domains") != NULL ||
           (view->site == NULL && json_object_get(plan->provenance, "topology") != NULL);
}

static bl_status align_layer(const bl_view *view, const int *class, int *slots,
                             bl_layer_placement *layer, bl_error *err) {
    const bl_layer_placement *now = bl_placement_layer(&view->placement, layer->layer);
    if (now == NULL || now->n_ranks != layer->n_ranks || now->n_experts != layer->n_experts)
        return BL_OK; /* the cluster will say what is wrong */
    for (int rank = 0; rank < layer->n_ranks; rank++)
        slots[rank] = layer->begin[rank + 1] - layer->begin[rank];
    const bl_problem problem = {.layer = layer->layer,
                                .n_experts = layer->n_experts,
                                .n_ranks = layer->n_ranks,
                                .slots_per_rank = slots,
                                .current = now};
    return bl_align_classes(&problem, class, layer, err);
}

bl_status bl_view_align(const bl_view *view, bl_plan *plan, bl_error *err) {
    const int n_ranks = view->n_ranks;
    int *class, *slots = NULL;
    if (is_tied_to_ranks(view, plan) || plan->placement.n_ranks != n_ranks)
        return BL_OK;
    BL_TRY(BL_CALLOC(class, n_ranks, err));
    bl_status st = BL_CALLOC(slots, n_ranks, err);
    for (int rank = 0; rank < n_ranks; rank++) /* a lost rank is like no other */
        class[rank] = !view->living[rank]  ? n_ranks + rank
                      : view->site != NULL ? view->site[rank]
                                           : 0;
    for (int l = 0; l < plan->placement.n_layers && st >= 0; l++)
        st = align_layer(view, class, slots, &plan->placement.layers[l], err);
    free(class);
    free(slots);
    return st;
}

/* ---- applying -------------------------------------------------------------------------------- */

json_t *bl_view_request(const bl_plan *plan, const bl_policy_offer *offer, bool dry_run) {
    json_t *root = bl_plan_to_json(plan);
    if (root == NULL)
        return NULL;
    json_object_del(root, "provenance"); /* the cluster does not read it */
    json_t *request =
        json_pack("{s:s, s:o, s:b}", "op", "apply", "plan", root, "dry_run", (int)dry_run);
    if (offer != NULL)
        json_object_set_new(request, "predicted",
                            json_pack("{s:f, s:f}", "before", offer->now, "after", offer->after));
    return request;
}

static long long number(const json_t *object, const char *key) {
    return (long long)json_integer_value(json_object_get(object, key));
}

static void show(bl_progress *progress, const json_t *status) {
    const json_t *eta = json_object_get(status, "eta_s");
    bl_progress_line(progress, "%s: %lld of %lld moves, wave %lld of %lld, %.1f MB/s, %.1f s left",
                     bl_text_of(status, "state"), number(status, "moves_done"),
                     number(status, "moves"), number(status, "waves_done"), number(status, "waves"),
                     json_number_value(json_object_get(status, "rate")) * 1e-6,
                     json_number_value(eta));
}

bl_status bl_view_wait(bl_control_client *client, bl_progress *progress, json_t **answer,
                       bl_error *err) {
    const long long wanted = number(*answer, "move");
    json_t *ask = json_pack("{s:s, s:b}", "op", "status", "wait", 1);
    static const char waits_no_more[] = "no longer waiting; the move goes on";
    bl_status st = BL_OK;
    for (bool over = false; st >= 0 && !over;) {
        json_t *status;
        bl_error why = BL_ERROR_INIT;
        st = bl_control_ask(client, ask, BL_OPERATOR_WAIT_S, &status, &why);
        if (st == BL_ERR_ABORTED && bl_interrupted())
            bl_fail(err, st, "%s", waits_no_more);
        else if (st < 0 && err != NULL)
            *err = why;
        if (st < 0)
            break;
        json_decref(*answer);
        *answer = status;
        over = strcmp(bl_text_of(status, "outcome"), "running") != 0 ||
               number(status, "move") != wanted;
        show(progress, status);
        if (!over && bl_interrupted())
            st = bl_fail(err, BL_ERR_ABORTED, "%s", waits_no_more);
    }
    json_decref(ask);
    bl_progress_end(progress);
    if (st >= 0 && strcmp(bl_text_of(*answer, "outcome"), "aborted") == 0) {
        const char *partial = bl_text_of(*answer, "partial");
        st = bl_fail(err, BL_ERR_ABORTED, "aborted%s%s%s: %s", partial[0] ? ", partial " : "",
                     partial, partial[0] ? " layers" : "", bl_text_of(*answer, "reason"));
    }
    return st;
}
