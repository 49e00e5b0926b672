/*
 * ballast stat: what a trace holds, and whether it adds up.
 */
#include "cli/verbs.h"
#include "core/json.h"
#include "tracer/stat.h"

#include <stdio.h>
#include <string.h>

typedef struct stat_options {
    int phase;
    bool json, csv;
} stat_options;

static const char *const PHASES[] = {"prefill", "midfill", "decode", "mixed", "verify",
                                     "idle",    "unknown", "all",    NULL};

static void set_defaults(void *options) {
    ((stat_options *)options)->phase = BL_N_PHASES;
}

static const bl_opt OPTIONS[] = {{.name = "phase",
                                  .type = BL_OPT_CHOICE,
                                  .offset = offsetof(stat_options, phase),
                                  .choices = PHASES,
                                  .help = "only the steps of one phase"},
                                 {.name = "json",
                                  .type = BL_OPT_FLAG,
                                  .offset = offsetof(stat_options, json),
                                  .help = "answer in JSON"},
                                 {.name = "csv",
                                  .type = BL_OPT_FLAG,
                                  .offset = offsetof(stat_options, csv),
                                  .help = "one line for each layer as CSV"},
                                 {0}};

/* ---- JSON ---------------------------------------------------------------------------------- */

static json_t *layers_to_json(const bl_stat *stat) {
    json_t *layers = json_array();
    for (int l = 0; l < stat->info.n_layers; l++) {
        const bl_stat_layer *layer = &stat->layers[l];
        json_t *item =
            json_pack("{s:i, s:I, s:I, s:I, s:b, s:f, s:i, s:i}", "layer", layer->layer, "tokens",
                      (json_int_t)layer->tokens, "assignments", (json_int_t)layer->assignments,
                      "empty", (json_int_t)layer->empty, "conserved", layer->conserved,
                      "max_over_mean_experts", layer->max_over_mean_experts, "hottest_expert",
                      layer->hottest, "idle_experts", layer->n_idle);
        if (layer->why != NULL)
            json_object_set_new(item, "why", json_string(layer->why));
        json_array_append_new(layers, item);
    }
    return layers;
}

static json_t *phases_to_json(const bl_stat *stat) {
    json_t *phases = json_object();
    for (int phase = 0; phase < BL_N_PHASES; phase++) {
        if (stat->phase_tokens[phase] > 0)
            json_object_set_new(phases, bl_phase_names[phase],
                                json_integer((json_int_t)stat->phase_tokens[phase]));
    }
    return phases;
}

static bl_status print_json(const bl_stat *stat, bl_error *err) {
    json_t *root = json_pack(
        "{s:{s:s, s:i, s:i}, s:s, s:I, s:I, s:o, s:i, s:I, s:I, s:I, s:b, s:b, s:s, s:s, s:o}",
        "model", "name", stat->info.model, "experts", stat->info.n_experts, "top_k",
        stat->info.top_k, "source", stat->info.source, "tokens", (json_int_t)stat->tokens, "steps",
        (json_int_t)stat->steps, "phases", phases_to_json(stat), "ranks", stat->info.n_ranks,
        "records", (json_int_t)stat->records, "dummy", (json_int_t)stat->dummy_records, "dropped",
        (json_int_t)stat->dropped, "composed", stat->composed, "complete", stat->complete, "notes",
        stat->notes, "digest", stat->digest, "layers", layers_to_json(stat));
    const bl_status st = root != NULL ? bl_json_write("-", root, 2, err)
                                      : bl_fail(err, BL_ERR_NOMEM, "out of memory");
    json_decref(root);
    return st;
}

/* ---- CSV and text --------------------------------------------------------------------------- */

static void print_csv(const bl_stat *stat) {
    puts("layer,tokens,assignments,empty,conserved,max_over_mean_experts,hottest_expert,"
         "idle_experts");
    for (int l = 0; l < stat->info.n_layers; l++) {
        const bl_stat_layer *layer = &stat->layers[l];
        printf("%d,%llu,%llu,%llu,%s,%.6g,%d,%d\n", layer->layer, (unsigned long long)layer->tokens,
               (unsigned long long)layer->assignments, (unsigned long long)layer->empty,
               layer->conserved ? "true" : "false", layer->max_over_mean_experts, layer->hottest,
               layer->n_idle);
    }
}

/* A bar of up to 30 characters; the longest is the most uneven layer. */
static void print_bar(double value, double most) {
    const int length = most > 1 ? (int)((value - 1) / (most - 1) * 30 + 0.5) : 0;
    for (int i = 0; i < length; i++)
        putchar('#');
}

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
        if (stat->phase_tokens[phase] > 0)
            printf("  %-8s %llu tokens\n", bl_phase_names[phase],
                   (unsigned long long)stat->phase_tokens[phase]);
    }
}

static void print_text(const bl_stat *stat) {
    double most = 1;
    for (int l = 0; l < stat->info.n_layers; l++) {
        if (stat->layers[l].max_over_mean_experts > most)
            most = stat->layers[l].max_over_mean_experts;
    }
    print_head(stat);
    printf("\n%5s %12s %10s %9s %8s %5s  %s\n", "layer", "assignments", "empty", "conserved",
           "hottest", "idle", "max/mean over experts");
    for (int l = 0; l < stat->info.n_layers; l++) {
        const bl_stat_layer *layer = &stat->layers[l];
        printf("%5d %12llu %10llu %9s %8d %5d  %6.2f ", layer->layer,
               (unsigned long long)layer->assignments, (unsigned long long)layer->empty,
               layer->conserved ? "yes" : "NO", layer->hottest, layer->n_idle,
               layer->max_over_mean_experts);
        print_bar(layer->max_over_mean_experts, most);
        putchar('\n');
    }
}

/* What must not be overlooked goes to standard error in every format. */
static void warn(const bl_stat *stat) {
    int n_bad = 0;
    if (stat->notes[0] != '\0')
        fprintf(stderr, "ballast stat: %s\n", stat->notes);
    for (int l = 0; l < stat->info.n_layers; l++) {
        const bl_stat_layer *layer = &stat->layers[l];
        if (!layer->conserved && n_bad++ < 8)
            fprintf(stderr, "ballast stat: layer %d is unusable: %s\n", layer->layer, layer->why);
    }
    if (n_bad > 8)
        fprintf(stderr, "ballast stat: %d layers are unusable in all\n", n_bad);
}

static bl_status run(void *user, int n_args, char **args, bl_error *err) {
    const stat_options *options = user;
    (void)n_args;
    if (options->json && options->csv)
        return bl_fail(err, BL_ERR_USAGE, "--json or --csv, not both");
    bl_stat stat;
    BL_TRY(bl_stat_read(args[0], options->phase < BL_N_PHASES ? options->phase : -1, &stat, err));
    bl_status st = BL_OK;
    if (options->json)
        st = print_json(&stat, err);
    else if (options->csv)
        print_csv(&stat);
    else
        print_text(&stat);
    warn(&stat);
    bl_stat_free(&stat);
    return st;
}

const bl_verb bl_verb_stat = {
    .name = "stat",
    .arguments = "TRACE",
    .summary = "say what a trace holds and whether it adds up",
    .details = "A layer is conserved when in each step it saw the tokens the other layers saw and "
               "its counts sum to tokens * k - empty; one that is not is unusable for planning.",
    .options = OPTIONS,
    .options_bytes = sizeof(stat_options),
    .set_defaults = set_defaults,
    .min_args = 1,
    .max_args = 1,
    .run = run};
