/*
 * layers.h: which decoder layer a row of a file is.
 *
 * Engines write their statistics with one row per layer, and count layers in four ways. A row index
 * never crosses an importer's border, and nothing is guessed: a 61-layer model with 3 dense layers
 * and one multi-token-prediction (MTP) layer behind may come as
 *
 *     58 rows   its MoE layers           --layers moe, or a model with 58 MoE layers
 *     61 rows   all decoder layers       --layers all, or a model with 61 decoder layers
 *     62 rows   all, and the MTP layer   --layers all only
 *     any       what the user lists      --layers 3-60 or --layers 3,4,9
 *     58 rows   3 dense ones come first  --layers dense=3 (row 0 is decoder layer 3; needs no
 *                                        model)
 *
 * or a file lists its layer ids itself. Rows of dense layers hold no routing and are left out. So
 * is an MTP layer's row: a draft model is traced as a model of its own.
 */
#ifndef BL_TRACER_LAYERS_H
#define BL_TRACER_LAYERS_H

#include "core/model.h"

#define BL_ROW_LEFT_OUT (-1)

typedef struct bl_layer_rows {
    int n_rows;
    int *layer;  /* [n_rows] decoder-layer id or BL_ROW_LEFT_OUT; ids ascend; owned */
    int n_dense; /* rows left out because their layer is dense */
    int n_mtp;   /* rows left out because they are MTP layers */
} bl_layer_rows;

/* `spec` is the --layers argument or NULL; `stated` [n_rows] the ids a file gives itself, or NULL;
 * `model` may be NULL. BL_ERR_MODEL names what the rows could be and how to say it. */
bl_status bl_layer_rows_find(const char *spec, const int *stated, int n_rows, const bl_model *model,
                             const char *file, bl_layer_rows *out, bl_error *err);
void bl_layer_rows_free(bl_layer_rows *rows);

#endif
