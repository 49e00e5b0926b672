/* stat_text.c: `ballast stat` for people: a page that is read from top to bottom, each section a
 * few lines. */
#include "cli/stat_output.h"

#include <math.h>
#include <stdio.h>

#define WORST_COPIES 5
#define STRONGEST 5

/* ---- head and layers ------------------------------------------------------------------------ */

static void print_head(const bl_stat *stat) {
    printf("%s: top-%d of %d experts, %d MoE layers, from %s%s\n", stat->info.model,
           stat->info.top_k, stat->info.n_experts, stat->info.n_layers, stat->info.source,
           stat->composed ? " (steps composed)" : "");
    printf("%llu steps, %llu tokens", (unsigned long long)stat->steps,
           (unsigned long long)stat->tokens);
    if (stat->info.n_ranks > 0)
        printf(", %d of %d ranks", stat->info.n_present, stat->info.n_ranks);
    printf(", %llu records dropped, %llu dummy\n", (unsigned long long)stat->dropped,
           (unsigned long long)stat->dummy_records);
    for (int phase = 0; phase < BL_N_PHASES; phase++) {
        if (stat->phases[phase].tokens > 0)
            printf("  %-8s %llu tokens\n", bl_phase_names[phase],
                   (unsigned long long)stat->phases[phase].tokens);
    }
}

static void print_layer(const bl_stat *stat, int l) {
    const bl_stat_layer *layer = &stat->layers[l];
    const bl_expert_figures *f = &layer->experts;
    printf("%5d %12llu %9llu %9s %8.2f", layer->layer, (unsigned long long)f->assignments,
           (unsigned long long)f->empty, layer->conserved ? "yes" : "NO", f->max_over_mean);
    if (f->assignments > 0)
        printf(" %9.1f %5d  ", f->effective, f->n_idle);
    else
        printf(" %9s %5d  ", "-", f->n_idle);
    if (stat->predicted.layers != NULL) {
        const bl_quantile_figures *r = &stat->predicted.layers[l];
        if (r->n > 0)
            printf("%6.3f %6.3f %6.3f  ", r->mean, r->p95, r->max);
        else
            printf("%6s %6s %6s  ", "-", "-", "-");
    }
    for (int i = 0; i < f->n_hottest && i < 3; i++)
        printf(" %d (%.1f%%)", f->hottest[i],
               100.0 * (double)bl_stat_count(stat, l, f->hottest[i]) / (double)f->assignments);
    putchar('\n');
}

static void print_layers(const bl_stat *stat) {
    const bool ranks = stat->predicted.layers != NULL;
    printf("\n%5s %12s %9s %9s %8s %9s %5s  %s %s\n", "layer", "assignments", "empty", "conserved",
           "max/mean", "effective", "idle", ranks ? "ranks mean p95 max   " : "",
           "hottest experts");
    for (int l = 0; l < stat->info.n_layers; l++)
        print_layer(stat, l);
    puts("max/mean over experts, whole trace; effective: as many equally popular experts spread as "
         "evenly");
}

/* Rows that are no load, over all layers. */
static void print_apart(const bl_stat *stat) {
    uint64_t padding = 0, dummies = 0;
    for (int l = 0; l < stat->info.n_layers; l++) {
        padding += stat->layers[l].experts.padding_rows;
        dummies += stat->layers[l].dummy_tokens;
    }
    if (padding + dummies > 0)
        printf("no load: %llu padding rows and %llu rows of dummy steps (summed over layers)\n",
               (unsigned long long)padding, (unsigned long long)dummies);
}

/* ---- ranks ---------------------------------------------------------------------------------- */

static void print_figures(const char *name, const bl_quantile_figures *f) {
    printf("%-22s mean %.3f  p50 %.3f  p95 %.3f  p99 %.3f  max %.3f  balancedness %.3f%s\n", name,
           f->mean, f->p50, f->p95, f->p99, f->max, f->balancedness,
           f->exact ? "" : "  (percentiles within 0.1%)");
}

typedef struct worst_copy {
    int layer, slot, rank, expert;
    double share, fair;
} worst_copy;

static void offer_copy(worst_copy worst[WORST_COPIES], int *n, worst_copy item) {
    const double far = item.share - item.fair;
    if (*n == WORST_COPIES && far <= worst[*n - 1].share - worst[*n - 1].fair)
        return;
    int at = *n < WORST_COPIES ? (*n)++ : WORST_COPIES - 1;
    for (; at > 0 && worst[at - 1].share - worst[at - 1].fair < far; at--)
        worst[at] = worst[at - 1];
    worst[at] = item;
}

/* Copies that served much more than an even part of their expert's load. */
static void print_copies(const bl_stat *stat) {
    worst_copy worst[WORST_COPIES];
    int n = 0;
    for (int l = 0; l < stat->info.n_layers; l++) {
        const bl_slot_loads *slots = &stat->realised.slots[l];
        for (int rank = 0; rank < slots->map.n_ranks; rank++) {
            for (int slot = slots->map.begin[rank]; slot < slots->map.begin[rank + 1]; slot++) {
                const int copies = bl_slot_copies(slots, slot);
                const double share = bl_slot_share(slots, slot);
                if (copies > 1 && !isnan(share))
                    offer_copy(worst, &n,
                               (worst_copy){stat->info.layers[l], slot, rank,
                                            slots->map.expert[slot], share, 1.0 / copies});
            }
        }
    }
    for (int i = 0; i < n; i++)
        printf("  layer %d, expert %d: slot %d on rank %d served %.0f%%, an even part is %.0f%%\n",
               worst[i].layer, worst[i].expert, worst[i].slot, worst[i].rank,
               100.0 * worst[i].share, 100.0 * worst[i].fair);
}

static void print_ranks(const bl_stat_report *report) {
    const bl_stat *stat = report->stat;
    if (stat->predicted.layers == NULL && stat->realised.layers == NULL)
        return;
    puts("\nranks: max over mean of assignments, for each step and layer");
    if (stat->predicted.layers != NULL) {
        char name[32];
        snprintf(name, sizeof name, "  plan, %s", bl_rule_names[report->plan->rule]);
        print_figures(name, &stat->predicted.all);
        const double gap = bl_stat_plan_gap(report->plan, -1);
        if (!isnan(gap))
            printf("  the plan's gap to its bound, on the load it was made from: %.2f%%\n",
                   100.0 * gap);
    }
    if (stat->realised.layers != NULL) {
        print_figures("  as recorded", &stat->realised.all);
        print_copies(stat);
    }
}

/* ---- experts that go together ---------------------------------------------------------------- */

typedef struct strong_pair {
    int layer_index;
    bl_expert_pair pair;
} strong_pair;

/* The strongest pairs over layers, by lift. */
static int strongest(const bl_pair_figures *figures, int n_layers, strong_pair out[STRONGEST]) {
    int n = 0;
    for (int l = 0; l < n_layers; l++) {
        for (int i = 0; i < figures[l].n_top; i++) {
            const strong_pair item = {l, figures[l].top[i]};
            if (n == STRONGEST && item.pair.lift <= out[n - 1].pair.lift)
                continue;
            int at = n < STRONGEST ? n++ : STRONGEST - 1;
            for (; at > 0 && out[at - 1].pair.lift < item.pair.lift; at--)
                out[at] = out[at - 1];
            out[at] = item;
        }
    }
    return n;
}

static void print_coactivation(const bl_stat *stat) {
    strong_pair top[STRONGEST];
    if (stat->pairs.coactivation_state != BL_PAIRS_KNOWN) {
        printf("experts picked together: %s\n",
               bl_pairs_state_text(stat->pairs.coactivation_state));
        return;
    }
    puts("experts picked together more often than by chance:");
    const int n = strongest(stat->pairs.coactivation, stat->info.n_layers, top);
    for (int i = 0; i < n; i++)
        printf("  layer %d: %d and %d by %llu tokens, lift %.2f (chance %.2f)\n",
               stat->info.layers[top[i].layer_index], top[i].pair.a, top[i].pair.b,
               (unsigned long long)top[i].pair.count, top[i].pair.lift,
               stat->pairs.coactivation[top[i].layer_index].chance);
}

static void print_transitions(const bl_stat *stat) {
    if (stat->info.n_layers < 2)
        return;
    if (stat->pairs.transition_state != BL_PAIRS_KNOWN) {
        printf("from layer to layer: %s\n", bl_pairs_state_text(stat->pairs.transition_state));
        return;
    }
    strong_pair top[STRONGEST];
    double sum = 0.0, n_known = 0.0;
    for (int l = 0; l + 1 < stat->info.n_layers; l++) {
        if (!isnan(stat->pairs.transition[l].normalised)) {
            sum += stat->pairs.transition[l].normalised;
            n_known += 1.0;
        }
    }
    printf("from layer to layer: an expert tells %.1f%% of the next layer's; strongest:\n",
           n_known > 0.0 ? 100.0 * sum / n_known : 0.0);
    const int n = strongest(stat->pairs.transition, stat->info.n_layers - 1, top);
    for (int i = 0; i < n; i++)
        printf("  layer %d expert %d to layer %d expert %d: %llu times, lift %.2f\n",
               stat->info.layers[top[i].layer_index], top[i].pair.a,
               stat->info.layers[top[i].layer_index + 1], top[i].pair.b,
               (unsigned long long)top[i].pair.count, top[i].pair.lift);
}

static void print_pairs(const bl_stat *stat) {
    putchar('\n');
    print_coactivation(stat);
    print_transitions(stat);
    if (stat->pairs.every > 1)
        printf("  (one step in %llu was looked at)\n", (unsigned long long)stat->pairs.every);
}

/* ---- sources and traffic --------------------------------------------------------------------- */

static void print_traffic(const bl_stat_report *report) {
    double sum[BL_MAX_LEVELS + 1], all = 0.0;
    if (report->topology == NULL || report->stat->sources.n_destinations == 0)
        return;
    bl_stat_traffic_levels(report, sum);
    for (int level = 0; level <= report->topology->n_levels; level++)
        all += sum[level];
    printf("under the plan, assignments stay on their rank %.1f%%", 100.0 * sum[0] / all);
    for (int level = 1; level <= report->topology->n_levels; level++) {
        if (sum[level] > 0.0)
            printf(", go over %s %.1f%%", report->topology->levels[level].name,
                   100.0 * sum[level] / all);
    }
    putchar('\n');
}

static void print_sources(const bl_stat_report *report) {
    const bl_sources_result *sources = &report->stat->sources;
    double distance = 0.0, noise = 0.0, n = 0.0;
    if (sources->state != BL_SOURCES_KNOWN) {
        printf("\nsource ranks: %s\n", bl_sources_state_text(sources->state));
        return;
    }
    for (int l = 0; l < report->stat->info.n_layers; l++) {
        if (isnan(sources->layers[l].distance))
            continue;
        distance += sources->layers[l].distance;
        noise += sources->layers[l].noise;
        n += 1.0;
    }
    printf("\nsource ranks: %d", sources->n_sources);
    if (n > 0.0)
        printf("; their experts differ by %.3f (total variation), by chance alone %.3f",
               distance / n, noise / n);
    putchar('\n');
    print_traffic(report);
}

/* ---- drift ----------------------------------------------------------------------------------- */

static void print_half_life(const bl_drift_result *drift) {
    switch (drift->half_life) {
    case BL_HALF_LIFE_MEASURED:
        printf("half-life of deviations from the mean: %.3g steps%s\n", drift->half_life_steps,
               drift->half_life_steps < (double)drift->window_steps ? " (less than a window)" : "");
        return;
    case BL_HALF_LIFE_LONGER:
        printf("half-life of deviations from the mean: more than %.0f steps, longer than the trace "
               "tells\n",
               drift->half_life_steps);
        return;
    case BL_HALF_LIFE_NO_DRIFT:
        puts("half-life: no drift above chance");
        return;
    case BL_HALF_LIFE_NOT_ENOUGH:
        printf("half-life: not enough: %d windows, %d are needed\n", drift->n_windows,
               BL_DRIFT_MIN_WINDOWS);
        return;
    }
}

static void print_drift(const bl_drift_result *drift) {
    if (!drift->known) {
        puts("\ndrift: not measured: too many experts and layers");
        return;
    }
    if (drift->n_windows < 2) {
        puts("\ndrift: not enough steps");
        return;
    }
    printf("\ndrift: %d windows of %llu step%s; distance of experts' shares (by chance alone)\n",
           drift->n_windows, (unsigned long long)drift->window_steps,
           drift->window_steps == 1 ? "" : "s");
    for (int i = 0; i < drift->n_lags; i++)
        printf("  %llu step%s apart %.3f (%.3f)\n", (unsigned long long)drift->lags[i].steps,
               drift->lags[i].steps == 1 ? "" : "s", drift->lags[i].distance, drift->lags[i].noise);
    print_half_life(drift);
    if (!isnan(drift->step_distance))
        printf("from one step to the next %.3f, by chance alone %.3f\n", drift->step_distance,
               drift->step_noise);
}

void bl_stat_print_text(const bl_stat_report *report) {
    print_head(report->stat);
    print_layers(report->stat);
    print_apart(report->stat);
    bl_stat_print_map(report->stat);
    print_ranks(report);
    print_pairs(report->stat);
    print_sources(report);
    print_drift(&report->stat->drift);
}
