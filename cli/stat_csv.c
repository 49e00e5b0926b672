/* stat_csv.c: the tables of `ballast stat --csv`. */
#include "cli/stat_output.h"

#include <math.h>
#include <stdio.h>

/* An unknown figure is an empty field. */
static void print_real(double value, char end) {
    if (!isnan(value))
        printf("%.6g", value);
    putchar(end);
}

static void print_experts(const bl_stat *stat) {
    const size_t n_experts = (size_t)stat->info.n_experts;
    puts("layer,phase,expert,count,share");
    for (size_t l = 0; l < (size_t)stat->info.n_layers; l++) {
        for (int p = 0; p < BL_N_PHASES; p++) {
            const bl_stat_phase *phase = &stat->phases[p];
            if (phase->count == NULL)
                continue;
            const double sum = (double)phase->layers[l].assignments;
            for (size_t e = 0; e < n_experts; e++) {
                const uint64_t count = phase->count[l * n_experts + e];
                printf("%d,%s,%zu,%llu,", stat->info.layers[l], bl_phase_names[p], e,
                       (unsigned long long)count);
                print_real(sum > 0.0 ? (double)count / sum : NAN, '\n');
            }
        }
    }
}

static void print_layers(const bl_stat *stat) {
    puts("layer,tokens,assignments,empty,conserved,max_over_mean_experts,hottest_expert,"
         "idle_experts,entropy,effective_experts,padding_rows,dummy_tokens");
    for (int l = 0; l < stat->info.n_layers; l++) {
        const bl_stat_layer *layer = &stat->layers[l];
        const bl_expert_figures *f = &layer->experts;
        printf("%d,%llu,%llu,%llu,%s,%.6g,%d,%d,", layer->layer, (unsigned long long)f->tokens,
               (unsigned long long)f->assignments, (unsigned long long)f->empty,
               layer->conserved ? "true" : "false", f->max_over_mean, f->hottest[0], f->n_idle);
        print_real(f->entropy, ',');
        print_real(f->effective, ',');
        printf("%llu,%llu\n", (unsigned long long)f->padding_rows,
               (unsigned long long)layer->dummy_tokens);
    }
}

static void print_figures(const char *kind, const bl_quantile_figures *f) {
    printf("%s,%llu,", kind, (unsigned long long)f->n);
    print_real(f->mean, ',');
    print_real(f->p50, ',');
    print_real(f->p95, ',');
    print_real(f->p99, ',');
    print_real(f->max, ',');
    print_real(f->balancedness, '\n');
}

static void print_ranks_of(const bl_stat *stat, const char *kind, const bl_rank_figures *ranks) {
    if (ranks->layers == NULL)
        return;
    for (int l = 0; l < stat->info.n_layers; l++) {
        printf("%d,", stat->info.layers[l]);
        print_figures(kind, &ranks->layers[l]);
    }
    printf("all,");
    print_figures(kind, &ranks->all);
}

static void print_slots_of(const bl_stat *stat, const char *kind, const bl_rank_figures *ranks) {
    for (int l = 0; ranks->slots != NULL && l < stat->info.n_layers; l++) {
        const bl_slot_loads *slots = &ranks->slots[l];
        for (int rank = 0; rank < slots->map.n_ranks; rank++) {
            for (int slot = slots->map.begin[rank]; slot < slots->map.begin[rank + 1]; slot++) {
                printf("%d,%s,%d,%d,%d,%.10g,", stat->info.layers[l], kind, slot, rank,
                       slots->map.expert[slot], slots->load[slot]);
                print_real(bl_slot_share(slots, slot), '\n');
            }
        }
    }
}

static void print_pairs(const bl_stat *stat) {
    puts("layer,a,b,tokens,lift");
    for (int l = 0; stat->pairs.coactivation != NULL && l < stat->info.n_layers; l++) {
        const bl_pair_figures *f = &stat->pairs.coactivation[l];
        for (int i = 0; i < f->n_top; i++)
            printf("%d,%d,%d,%llu,%.6g\n", stat->info.layers[l], f->top[i].a, f->top[i].b,
                   (unsigned long long)f->top[i].count, f->top[i].lift);
    }
}

static void print_transitions(const bl_stat *stat) {
    puts("layer,next,a,b,count,lift");
    for (int l = 0; stat->pairs.transition != NULL && l + 1 < stat->info.n_layers; l++) {
        const bl_pair_figures *f = &stat->pairs.transition[l];
        for (int i = 0; i < f->n_top; i++)
            printf("%d,%d,%d,%d,%llu,%.6g\n", stat->info.layers[l], stat->info.layers[l + 1],
                   f->top[i].a, f->top[i].b, (unsigned long long)f->top[i].count, f->top[i].lift);
    }
}

static void print_sources(const bl_stat *stat) {
    const bl_sources_result *sources = &stat->sources;
    const uint64_t *count = sources->count;
    puts("layer,source,expert,count");
    for (int l = 0; l < stat->info.n_layers; l++) {
        for (int i = 0; i < sources->n_sources; i++) {
            const size_t row = (size_t)i * (size_t)stat->info.n_layers + (size_t)l;
            for (int e = 0; e < stat->info.n_experts; e++)
                printf("%d,%d,%d,%llu\n", stat->info.layers[l], sources->rank[i], e,
                       (unsigned long long)count[row * (size_t)stat->info.n_experts + (size_t)e]);
        }
    }
}

static void print_traffic(const bl_stat *stat) {
    const bl_sources_result *sources = &stat->sources;
    puts("source,destination,assignments");
    for (int i = 0; i < sources->n_sources; i++) {
        for (int to = 0; to < sources->n_destinations; to++)
            printf("%d,%d,%.10g\n", sources->rank[i], to,
                   sources->traffic[(size_t)i * (size_t)sources->n_destinations + (size_t)to]);
    }
}

static void print_drift(const bl_stat *stat) {
    puts("steps,distance,noise");
    for (int i = 0; i < stat->drift.n_lags; i++) {
        printf("%llu,", (unsigned long long)stat->drift.lags[i].steps);
        print_real(stat->drift.lags[i].distance, ',');
        print_real(stat->drift.lags[i].noise, '\n');
    }
}

void bl_stat_print_csv(const bl_stat_report *report, bl_stat_table table) {
    const bl_stat *stat = report->stat;
    switch (table) {
    case BL_STAT_LAYERS:
        print_layers(stat);
        return;
    case BL_STAT_RANKS:
        puts("layer,kind,n,mean,p50,p95,p99,max,balancedness");
        print_ranks_of(stat, "predicted", &stat->predicted);
        print_ranks_of(stat, "realised", &stat->realised);
        return;
    case BL_STAT_SLOTS:
        puts("layer,kind,slot,rank,expert,load,share");
        print_slots_of(stat, "predicted", &stat->predicted);
        print_slots_of(stat, "realised", &stat->realised);
        return;
    case BL_STAT_PAIRS:
        print_pairs(stat);
        return;
    case BL_STAT_TRANSITIONS:
        print_transitions(stat);
        return;
    case BL_STAT_SOURCES:
        print_sources(stat);
        return;
    case BL_STAT_TRAFFIC:
        print_traffic(stat);
        return;
    case BL_STAT_DRIFT:
        print_drift(stat);
        return;
    case BL_STAT_EXPERTS:
    case BL_N_STAT_TABLES:
        break;
    }
    print_experts(stat);
}
