/* report_parts.c: what to do next, memory, traffic. */
#include "cli/report_page.h"

#include "cli/html.h"
#include "cli/replay_print.h"
#include "core/mem.h"

#include <math.h>
#include <stdlib.h>

/* ---- what to do next --------------------------------------------------------------------------*/

static void write_command(FILE *out, const char *command, const char *plan, const char *rest) {
    fprintf(out, "<pre><code>ballast %s ", command);
    bl_html_text(out, plan);
    fprintf(out, "%s</code></pre>", rest);
}

static void advise_change(const bl_report *r, const bl_replay_score *best, FILE *out) {
    fprintf(out, "<p>It saves %.3g %% of a modelled step, at least ",
            100.0 * bl_replay_gain(&r->answer->all));
    bl_html_seconds(out, 1e-6 * best->saved_us_low);
    fputs(" with 95 % confidence, against a migration of ", out);
    bl_html_seconds(out, best->migration_s);
    fputs(" (modelled).</p><p>Start an engine with it, or move a running cluster to it:</p>", out);
    write_command(out, "export", best->name, " --to sglang -o placement.json");
    write_command(out, "apply", best->name, " --dry-run");
}

static void advise_stay(const bl_report *r, const bl_replay_score *best, FILE *out) {
    const bl_replay *all = &r->answer->all;
    fprintf(out, "<p>Keep what serves now: the best plan saves %.3g %% of a modelled step, ",
            100.0 * fmax(bl_replay_gain(all), 0.0));
    bl_html_seconds(out, 1e-6 * best->saved_us);
    fputs(", at least ", out);
    bl_html_seconds(out, 1e-6 * best->saved_us_low);
    fprintf(out, " with 95 %% confidence; over %.0f steps that is ", r->request->dwell);
    bl_html_seconds(out, 1e-6 * fmax(best->saved_us_low, 0.0) * r->request->dwell);
    fputs(", and moving takes ", out);
    bl_html_seconds(out, best->migration_s);
    fputs(" (modelled).</p>", out);
    if (all->noise_mean > 0.0 && best->mean < 1.1 * all->noise_mean)
        fputs("<p>The plan is near the noise floor of these steps: a placement that stays can do "
              "little more. An engine that splits tokens anew each step can (--rule per-step).</p>",
              out);
}

static void advise_evidence(const bl_report *r, FILE *out) {
    const bl_replay *all = &r->answer->all;
    if (!all->modelled) {
        fputs(
            "<p>No time could be modelled, because the plan does not know its model's sizes: name "
            "the model with --model.</p>",
            out);
        return;
    }
    fprintf(out,
            "<p>%zu steps that no plan was made from are too few; %d are needed. Record more, or "
            "plan on a part of the trace and score on the rest:</p>"
            "<pre><code>ballast plan --steps 0:N ... -o new.plan.json</code></pre>",
            all->n_steps, BL_REPLAY_MIN_STEPS);
}

void bl_report_next(const bl_report *r, FILE *out) {
    const bl_replay *all = &r->answer->all;
    const bl_replay_score *best = &all->plans[all->best];
    switch (all->verdict) {
    case BL_VERDICT_RECOMMEND:
        advise_change(r, best, out);
        break;
    case BL_VERDICT_NOT_WORTH_IT:
        advise_stay(r, best, out);
        break;
    case BL_VERDICT_NOT_ENOUGH_EVIDENCE:
        advise_evidence(r, out);
        break;
    }
    if (r->in->demand.all.known && r->in->demand.all.mean > 1.1)
        fprintf(out,
                "<p>Requests themselves lie unevenly on the ranks (max/mean %.3g): that is for the "
                "request router, and no placement of experts mends it.</p>",
                r->in->demand.all.mean);
}

/* ---- memory -----------------------------------------------------------------------------------*/

typedef struct memory {
    double *held, *copies; /* [n_ranks] GB of experts; of those, beyond an even part of one each */
    double smallest;       /* memory of a device, GB */
    int fullest;
} memory;

static void weigh(const bl_report *r, const bl_plan *plan, double bundle, memory *m) {
    const bl_placement *placement = &plan->placement;
    for (int l = 0; l < placement->n_layers; l++) {
        const bl_layer_placement *layer = &placement->layers[l];
        int active = 0;
        for (int g = 0; g < placement->n_ranks; g++)
            active += layer->begin[g + 1] > layer->begin[g];
        for (int g = 0; g < placement->n_ranks; g++) {
            const int slots = layer->begin[g + 1] - layer->begin[g];
            m->held[g] += 1e-9 * bundle * slots;
            m->copies[g] += 1e-9 * bundle * fmax(0.0, slots - (double)plan->n_experts / active);
        }
    }
    m->smallest = INFINITY;
    for (int g = 0; g < placement->n_ranks; g++) {
        m->fullest = m->held[g] > m->held[m->fullest] ? g : m->fullest;
        m->smallest =
            fmin(m->smallest, 1e-9 * bl_topology_device(&r->in->topology, g)->memory_bytes.value);
    }
}

static void write_memory(const memory *m, double kv_bytes, int n_ranks, FILE *out) {
    fputs("<p>The fullest rank holds ", out);
    bl_html_bytes(out, 1e9 * m->held[m->fullest]);
    fputs(" of experts, ", out);
    bl_html_bytes(out, 1e9 * m->copies[m->fullest]);
    fputs(" of that for copies", out);
    if (kv_bytes > 0.0)
        fprintf(out, ", which is the KV cache of %.0f tokens",
                1e9 * m->copies[m->fullest] / kv_bytes);
    fputs(". Spare buffers for moving are not counted; attention, activations and cache share the "
          "rest of the device.</p>\n",
          out);
    const bl_chart chart = {.title = "Memory of every rank",
                            .x = "rank",
                            .y = "GB",
                            .first_colour = 1,
                            .least = 0.0,
                            .line = m->smallest,
                            .line_name = "memory of the smallest device"};
    const bl_chart_series series[] = {{"experts", m->held}, {"of that for copies", m->copies}};
    bl_chart_bars(out, &chart, series, 2, (size_t)n_ranks);
}

bl_status bl_report_memory(const bl_report *r, FILE *out, bl_error *err) {
    const bl_plan *plan = &r->in->plans[r->answer->all.best];
    const bl_model *model = r->in->has_model ? &r->in->model : &plan->model;
    memory m = {0};
    fputs("<h2>Memory against KV cache</h2>\n", out);
    if (model->expert_bytes == 0) {
        fputs("<p class=\"soft\">The plan does not know its model's sizes; name the model with "
              "--model.</p>\n",
              out);
        return BL_OK;
    }
    BL_TRY(BL_CALLOC(m.held, plan->placement.n_ranks, err));
    const bl_status st = BL_CALLOC(m.copies, plan->placement.n_ranks, err);
    if (st >= 0) {
        weigh(r, plan, (double)model->expert_bytes, &m);
        write_memory(&m, model->kv_bytes_per_token, plan->placement.n_ranks, out);
    }
    free(m.held);
    free(m.copies);
    return st;
}

/* ---- traffic ----------------------------------------------------------------------------------*/

static void write_levels(const bl_report *r, const bl_replay_score *s, FILE *out) {
    const double steps = (double)r->answer->all.n_steps;
    fputs("<tr><td class=\"name\">", out);
    bl_html_text(out, s->name);
    fputs("</td>", out);
    for (int level = 1; level <= s->traffic.n_levels; level++) {
        fputs("<td>", out);
        bl_html_bytes(out, s->traffic.bytes[level] / steps);
        fputs("</td>", out);
    }
    fputs("<td>", out);
    bl_html_number(out, s->traffic.remote_nodes);
    fputs("</td></tr>\n", out);
}

void bl_report_traffic(const bl_report *r, FILE *out) {
    const bl_replay *all = &r->answer->all;
    const bl_topology *topology = &r->in->topology;
    fputs("<h2>Traffic</h2>\n", out);
    if (all->baseline.traffic.n_levels == 0 || all->n_steps == 0) {
        fputs("<p class=\"soft\">This trace does not tell on which ranks tokens are born, so what "
              "travels between ranks is not known",
              out);
        if (r->in->loads.sources_why[0] != '\0') {
            fputs(": ", out);
            bl_html_text(out, r->in->loads.sources_why);
        }
        fputs(".</p>\n", out);
        return;
    }
    fputs("<p>Bytes of a step in all MoE layers, dispatched and combined, by the innermost domain "
          "that holds both ranks; dispatch ",
          out);
    bl_html_text(out, bl_dispatch_names[r->request->dispatch]);
    fputs(", combine ", out);
    bl_html_text(out, bl_combine_names[r->request->combine]);
    fputs(".</p>\n<div class=\"wide\"><table><tr><th>plan</th>", out);
    for (int level = 1; level <= all->baseline.traffic.n_levels; level++) {
        fputs("<th>within a ", out);
        bl_html_text(out, topology->levels[level].name);
        fputs("</th>", out);
    }
    fputs("<th>other nodes per token</th></tr>\n", out);
    write_levels(r, &all->baseline, out);
    for (int p = 0; p < all->n_plans; p++)
        write_levels(r, &all->plans[p], out);
    fputs("</table></div>\n", out);
}
