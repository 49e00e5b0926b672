#include "cli/report_page.h"

#include "cli/html.h"
#include "cli/replay_print.h"
#include "core/mem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *base_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash != NULL && slash[1] != '\0' ? slash + 1 : path;
}

static const bl_replay_score *best_of(const bl_report *r) {
    return &r->answer->all.plans[r->answer->all.best];
}

/* ---- head -------------------------------------------------------------------------------------*/

static void write_head(const bl_report *r, FILE *out) {
    const bl_replay *all = &r->answer->all;
    const bl_plan *plan = &r->in->plans[all->best];
    const char *class = all->verdict == BL_VERDICT_RECOMMEND      ? "recommend"
                        : all->verdict == BL_VERDICT_NOT_WORTH_IT ? "not"
                                                                  : "unsure";
    fputs("<h1>", out);
    bl_html_text(out, plan->model_name);
    fprintf(out, " on %d ranks</h1>\n<p class=\"soft\">%d experts, top-%d, %d MoE layers, ",
            plan->placement.n_ranks, plan->n_experts, plan->top_k, r->in->loads.n_layers);
    fputs("rule ", out);
    bl_html_text(out, bl_rule_names[plan->rule]);
    fputs("; topology ", out);
    bl_html_text(out, r->in->topology.name);
    fprintf(out,
            "; %zu steps scored, %zu left out because a plan was made from them; trace %s%s</p>\n",
            all->n_steps, all->n_left_out, r->in->loads.digest,
            r->in->loads.composed ? ", steps composed by an importer" : "");
    if (r->in->loads.notes[0] != '\0') {
        fputs("<p class=\"soft\">", out);
        bl_html_text(out, r->in->loads.notes);
        fputs("</p>\n", out);
    }
    fprintf(out, "<div class=\"verdict %s\"><b>", class);
    bl_html_text(out, base_name(best_of(r)->name));
    fprintf(out, ": %s</b>", bl_verdict_names[all->verdict]);
    bl_report_next(r, out);
    fputs("</div>\n", out);
}

/* ---- the table --------------------------------------------------------------------------------*/

static void write_cell(FILE *out, double value) {
    fputs("<td>", out);
    bl_html_number(out, value);
    fputs("</td>", out);
}

static void write_time(FILE *out, double us) {
    fputs("<td>", out);
    bl_html_seconds(out, 1e-6 * us);
    fputs("</td>", out);
}

static void write_row(const bl_replay *replay, const bl_replay_score *s, bool is_plan, FILE *out) {
    fputs("<tr><td class=\"name\">", out);
    bl_html_text(out, base_name(s->name));
    fputs("</td>", out);
    const double figures[] = {s->mean, s->p50, s->p95, s->p99, s->max, s->balancedness};
    for (size_t i = 0; i < sizeof figures / sizeof *figures; i++)
        write_cell(out, figures[i]);
    if (replay->modelled) {
        write_time(out, s->step_us_mean);
        write_time(out, s->step_us_p95);
    }
    if (replay->modelled && is_plan) {
        write_time(out, s->saved_us);
        write_time(out, s->saved_us_low);
    } else if (replay->modelled) {
        fputs("<td></td><td></td>", out);
    }
    fprintf(out, "<td>%s</td></tr>\n", is_plan ? bl_verdict_names[s->verdict] : "");
}

static void write_table(const bl_replay *replay, FILE *out) {
    fputs("<div class=\"wide\"><table><tr><th>max/mean of a layer</th><th>mean</th><th>p50</th>"
          "<th>p95</th><th>p99</th><th>max</th><th>balance</th>",
          out);
    if (replay->modelled)
        fputs("<th>step *</th><th>p95 *</th><th>saved *</th><th>95 % low *</th>", out);
    fputs("<th>verdict</th></tr>\n", out);
    write_row(replay, &replay->baseline, false, out);
    for (int p = 0; p < replay->n_plans; p++)
        write_row(replay, &replay->plans[p], true, out);
    fputs("</table></div>\n", out);
    if (replay->noise_mean > 0.0)
        fprintf(out,
                "<p class=\"soft\">Noise floor %.4g (p95 %.4g): what steps that vary as these do "
                "leave of a plan that is level on what is to be expected. A statistic of the "
                "trace, not a "
                "bound.</p>\n",
                replay->noise_mean, replay->noise_p95);
}

static void write_requests(const bl_demand *demand, const bl_demand_phase *phase, FILE *out) {
    if (phase->known)
        fprintf(out,
                "<p class=\"soft\">Requests over %d ranks: max/mean of tokens %.4g, p95 %.4g, max "
                "%.4g. That is attention; no placement of experts changes it.</p>\n",
                demand->n_ranks, phase->mean, phase->p95, phase->max);
}

static void write_figures(const bl_report *r, FILE *out) {
    const bl_replay_answer *answer = r->answer;
    fputs("<h2>Plans side by side</h2>\n", out);
    write_table(&answer->all, out);
    if (answer->n_phases == 1)
        write_requests(&r->in->demand, &r->in->demand.phases[answer->phases[0]], out);
    for (int p = 0; p < answer->n_phases && answer->n_phases > 1; p++) {
        fprintf(out, "<h3>%s alone: %zu steps</h3>\n", bl_phase_names[answer->phases[p]],
                answer->apart[p].n_steps);
        write_table(&answer->apart[p], out);
        write_requests(&r->in->demand, &r->in->demand.phases[answer->phases[p]], out);
    }
    if (answer->all.modelled)
        fprintf(out,
                "<p class=\"soft\">* modelled from the topology's figures, MoE layers only; saved "
                "against the baseline in the first row, for %.0f steps to come.</p>\n",
                r->request->dwell);
}

/* ---- charts -----------------------------------------------------------------------------------*/

static void write_steps(const bl_report *r, FILE *out) {
    const bl_replay *all = &r->answer->all;
    bl_chart_series series[1 + BL_REPORT_PLANS] = {
        {base_name(all->baseline.name), all->baseline.step_imbalance}};
    int n = 1;
    for (int p = 0; p < all->n_plans && p < BL_REPORT_PLANS; p++)
        series[n++] =
            (bl_chart_series){base_name(all->plans[p].name), all->plans[p].step_imbalance};
    const bl_chart chart = {.title = "Imbalance step by step",
                            .x = "step scored, in order",
                            .y = "max/mean of ranks",
                            .least = 1.0,
                            .line = all->noise_mean,
                            .line_name = "noise floor (statistic)"};
    fputs("<h2>Step by step</h2>\n<p>The busiest rank's tokens against the mean rank's, mean over "
          "layers. 1 is level.</p>\n",
          out);
    bl_chart_lines(out, &chart, series, n, all->n_steps);
}

static void write_heat(const bl_report *r, FILE *out) {
    const bl_replay *all = &r->answer->all;
    const bl_loads *loads = &r->in->loads;
    fputs(
        "<h2>Layers and ranks, before and after</h2>\n<p>Tokens of a rank against the mean of its "
        "layer, mean over the steps scored. Warm cells are what others wait for.</p>\n",
        out);
    bl_chart_heat_legend(out);
    char title[160];
    snprintf(title, sizeof title, "Before: %s", base_name(all->baseline.name));
    bl_chart_heat(out, title, "decoder layer", "rank", all->baseline.rank_load, loads->layers,
                  (size_t)loads->n_layers, (size_t)all->baseline.n_ranks);
    for (int p = 0; p < all->n_plans && p < BL_REPORT_PLANS; p++) {
        snprintf(title, sizeof title, "After: %s", base_name(all->plans[p].name));
        bl_chart_heat(out, title, "decoder layer", "rank", all->plans[p].rank_load, loads->layers,
                      (size_t)loads->n_layers, (size_t)all->plans[p].n_ranks);
    }
}

/* Gap of each layer in per cent, on the loads planned on. */
static bl_status write_gap(const bl_report *r, FILE *out, bl_error *err) {
    const bl_plan *plan = &r->in->plans[r->answer->all.best];
    const size_t n = (size_t)plan->placement.n_layers;
    const char *objective = json_string_value(json_object_get(plan->provenance, "objective"));
    double *gap;
    int *label = NULL;
    BL_TRY(BL_CALLOC(gap, n, err));
    const bl_status st = BL_CALLOC(label, n, err);
    bool scored = false;
    for (size_t l = 0; l < n && st >= 0; l++) {
        gap[l] = plan->layers[l].scored ? 100.0 * plan->layers[l].gap : NAN;
        label[l] = plan->placement.layers[l].layer;
        scored = scored || plan->layers[l].scored;
    }
    fputs("<h2>How far from the best possible</h2>\n", out);
    if (!scored) {
        fputs(
            "<p class=\"soft\">This plan carries no scores: it was not made by ballast plan.</p>\n",
            out);
    } else if (st >= 0) {
        const bl_chart chart = {.title = "Gap to the proven bound",
                                .x = "decoder layer",
                                .y = "gap, %",
                                .x_label = label,
                                .first_colour = 1,
                                .least = 0.0,
                                .line = NAN};
        const bl_chart_series series = {base_name(best_of(r)->name), gap};
        fputs("<p>Score against a bound that no placement can beat, on the loads planned on, in ",
              out);
        bl_html_text(out, objective != NULL && strcmp(objective, "time") == 0
                              ? "modelled time"
                              : "tokens of the busiest rank");
        fputs(".</p>\n", out);
        bl_chart_bars(out, &chart, &series, 1, n);
    }
    free(gap);
    free(label);
    return st;
}

static void write_moves(const bl_report *r, FILE *out) {
    const bl_replay_score *best = best_of(r);
    fputs("<h2>Migration</h2>\n<p>", out);
    fprintf(out, "%lld copies travel", (long long)best->moves);
    if (best->move_bytes > 0) {
        fputs(", ", out);
        bl_html_bytes(out, (double)best->move_bytes);
        fputs(" in all; over all links at once that takes ", out);
        bl_html_seconds(out, best->migration_s);
        fputs(" (modelled, without a byte budget per step)", out);
    }
    fputs(".</p>\n", out);
    const bl_chart chart = {.title = "Copies that travel, by layer",
                            .x = "decoder layer",
                            .y = "copies",
                            .x_label = r->in->loads.layers,
                            .first_colour = 1,
                            .least = 0.0,
                            .line = NAN};
    const bl_chart_series series = {base_name(best->name), best->layer_moves};
    bl_chart_bars(out, &chart, &series, 1, (size_t)r->in->loads.n_layers);
}

bl_status bl_report_write(const bl_report *r, FILE *out, bl_error *err) {
    char title[200];
    snprintf(title, sizeof title, "Ballast: %s on %d ranks", r->in->plans[0].model_name,
             r->in->plans[0].placement.n_ranks);
    bl_html_begin(out, title);
    write_head(r, out);
    write_figures(r, out);
    if (r->answer->all.n_steps > 0) {
        write_steps(r, out);
        write_heat(r, out);
    }
    BL_TRY(write_gap(r, out, err));
    BL_TRY(bl_report_memory(r, out, err));
    write_moves(r, out);
    bl_report_traffic(r, out);
    fputs("<p class=\"soft\">Written by ballast " BL_VERSION ".</p>\n", out);
    bl_html_end(out);
    return BL_OK;
}
