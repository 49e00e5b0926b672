/*
 * stat_imbalance.h: the figures of stat_ranks.h as they build up: one set of ratios for each layer
 * and one for all. Internal to the two that fill it, predicted and realised.
 */
#ifndef BL_TRACER_STAT_IMBALANCE_H
#define BL_TRACER_STAT_IMBALANCE_H

#include "tracer/stat_ranks.h"

typedef struct bl_imbalance_sums {
    int n_layers;
    bl_quantiles all;
    double all_inverse;
    bl_quantiles *layers; /* [n_layers]; owned */
    double *inverse;      /* [n_layers] sums of mean / max; owned */
} bl_imbalance_sums;

bl_status bl_imbalance_create(int n_layers, bl_imbalance_sums *out, bl_error *err);
void bl_imbalance_free(bl_imbalance_sums *sums); /* safe on a zeroed struct */
bl_status bl_imbalance_add(bl_imbalance_sums *sums, int layer_index, double ratio, bl_error *err);
/* Fills out->all and out->layers. */
bl_status bl_imbalance_figures(bl_imbalance_sums *sums, bl_rank_figures *out, bl_error *err);

#endif
