#include "tracer/stat_imbalance.h"

#include "core/mem.h"

#include <math.h>
#include <stdlib.h>

bl_status bl_imbalance_create(int n_layers, bl_imbalance_sums *out, bl_error *err) {
    *out = (bl_imbalance_sums){.n_layers = n_layers};
    bl_status st = BL_CALLOC(out->layers, n_layers, err);
    if (st == BL_OK)
        st = BL_CALLOC(out->inverse, n_layers, err);
    if (st < 0)
        bl_imbalance_free(out);
    return st;
}

void bl_imbalance_free(bl_imbalance_sums *sums) {
    for (int l = 0; sums->layers != NULL && l < sums->n_layers; l++)
        bl_quantiles_free(&sums->layers[l]);
    bl_quantiles_free(&sums->all);
    free(sums->layers);
    free(sums->inverse);
    *sums = (bl_imbalance_sums){0};
}

bl_status bl_imbalance_add(bl_imbalance_sums *sums, int layer_index, double ratio, bl_error *err) {
    sums->all_inverse += 1.0 / ratio;
    sums->inverse[layer_index] += 1.0 / ratio;
    BL_TRY(bl_quantiles_add(&sums->all, ratio, err));
    return bl_quantiles_add(&sums->layers[layer_index], ratio, err);
}

static bl_quantile_figures figures_of(bl_quantiles *q, double inverse) {
    if (q->n == 0)
        return (bl_quantile_figures){0, NAN, NAN, NAN, NAN, NAN, NAN, true};
    return (bl_quantile_figures){.n = q->n,
                                 .mean = q->sum / (double)q->n,
                                 .p50 = bl_quantiles_at(q, 0.5),
                                 .p95 = bl_quantiles_at(q, 0.95),
                                 .p99 = bl_quantiles_at(q, 0.99),
                                 .max = q->max,
                                 .balancedness = inverse / (double)q->n,
                                 .exact = q->bins == NULL};
}

bl_status bl_imbalance_figures(bl_imbalance_sums *sums, bl_rank_figures *out, bl_error *err) {
    out->n_layers = sums->n_layers;
    BL_TRY(BL_CALLOC(out->layers, sums->n_layers, err));
    out->all = figures_of(&sums->all, sums->all_inverse);
    for (int l = 0; l < sums->n_layers; l++)
        out->layers[l] = figures_of(&sums->layers[l], sums->inverse[l]);
    return BL_OK;
}

double bl_slot_share(const bl_slot_loads *slots, int slot) {
    const int expert = slots->map.expert[slot];
    double sum = 0.0;
    for (int other = 0; expert != BL_NO_EXPERT && other < bl_layer_n_slots(&slots->map); other++) {
        if (slots->map.expert[other] == expert)
            sum += slots->load[other];
    }
    return sum > 0.0 ? slots->load[slot] / sum : NAN;
}

int bl_slot_copies(const bl_slot_loads *slots, int slot) {
    const int expert = slots->map.expert[slot];
    int n = 0;
    for (int other = 0; expert != BL_NO_EXPERT && other < bl_layer_n_slots(&slots->map); other++)
        n += slots->map.expert[other] == expert;
    return n;
}

void bl_rank_figures_free(bl_rank_figures *figures) {
    for (int l = 0; figures->slots != NULL && l < figures->n_layers; l++) {
        bl_layer_placement_free(&figures->slots[l].map);
        free(figures->slots[l].load);
    }
    free(figures->slots);
    free(figures->layers);
    *figures = (bl_rank_figures){0};
}
