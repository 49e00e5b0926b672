/*
 * plan_explain.c: `ballast plan --explain` in words; the figures are the ones of --json.
 */
#include "cli/plan_print.h"

static double real_at(const json_t *object, const char *key) {
    return json_number_value(json_object_get(object, key));
}

static long long int_at(const json_t *object, const char *key) {
    return (long long)json_integer_value(json_object_get(object, key));
}

static void explain_whole(const json_t *explain) {
    const json_t *phases = json_object_get(explain, "phases");
    const json_t *glpk = json_object_get(explain, "glpk");
    const json_t *solver = json_object_get(explain, "solver");
    if (int_at(phases, "layers") > 0)
        fprintf(
            stderr,
            "  %-18s start %.4f, search %.4f, pairs of ranks %.4f, plan %.4f (max/mean, mean of "
            "%lld layers)\n",
            "phases", real_at(phases, "start"), real_at(phases, "search"), real_at(phases, "pairs"),
            real_at(phases, "plan"), int_at(phases, "layers"));
    fprintf(stderr, "  %-18s", "binding bound");
    const char *kind, *comma = "";
    json_t *n;
    json_object_foreach (json_object_get(explain, "bounds"), kind, n) {
        fprintf(stderr, "%s %s in %lld", comma, kind, (long long)json_integer_value(n));
        comma = ",";
    }
    fprintf(stderr, " layers\n  %-18s", "solver");
    if (!json_is_string(solver)) {
        fprintf(stderr, " none in this program\n");
        return;
    }
    fprintf(stderr,
            " %s improved %lld layers and proved %lld; %lld pairs of ranks in %lld layers: %lld "
            "improved, %lld proven; %lld whole layers in %lld nodes\n",
            json_string_value(solver), int_at(glpk, "improved_layers"),
            int_at(glpk, "proven_layers"), int_at(glpk, "pairs_asked"), int_at(glpk, "pair_layers"),
            int_at(glpk, "pairs_improved"), int_at(glpk, "pairs_proven"),
            int_at(glpk, "exact_layers"), int_at(glpk, "exact_nodes"));
}

static void explain_layer(const json_t *layer) {
    if (json_is_true(json_object_get(layer, "idle"))) {
        fprintf(stderr, "  layer %lld has no load and keeps its placement\n",
                int_at(layer, "layer"));
        return;
    }
    const json_t *bound = json_object_get(layer, "bound");
    fprintf(stderr, "  layer %lld: before %.4f", int_at(layer, "layer"), real_at(layer, "before"));
    static const char *const steps[] = {"start", "search", "pairs", "plan"};
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        if (json_object_get(layer, steps[i]) != NULL)
            fprintf(stderr, ", %s %.4f", steps[i], real_at(layer, steps[i]));
    }
    fprintf(stderr, ", %s bound %.4f, %lld moves%s",
            json_string_value(json_object_get(bound, "kind")), real_at(bound, "max_over_mean"),
            int_at(layer, "moves"),
            json_is_true(json_object_get(layer, "kept_current")) ? " (kept as it is)" : "");
    const char *separator = "; copies of";
    const json_t *copies = json_object_get(layer, "copies");
    for (size_t i = 0; i < json_array_size(copies); i++) {
        const json_t *copied = json_array_get(copies, i);
        fprintf(stderr, "%s %lld x%lld (%.1f %%)", separator, int_at(copied, "expert"),
                int_at(copied, "copies"), 100.0 * real_at(copied, "share"));
        separator = ",";
    }
    fputc('\n', stderr);
}

void bl_plan_print_explain(const json_t *explain) {
    const json_t *layers = json_object_get(explain, "layers");
    explain_whole(explain);
    for (size_t i = 0; i < json_array_size(layers); i++)
        explain_layer(json_array_get(layers, i));
}
