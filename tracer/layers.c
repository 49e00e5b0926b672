#include "tracer/layers.h"

#include "core/mem.h"
#include "tracer/trace.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct request {
    const char *spec;
    const int *stated;
    int n_rows;
    const bl_model *model;
    const char *file;
} request;

static bl_status not_these_rows(const request *q, const char *said, bl_error *err) {
    if (q->model == NULL)
        return bl_fail_at(err, BL_ERR_MODEL, bl_at(q->file),
                          "%d rows: which decoder layers are they? Give --model, or say --layers "
                          "dense=N or a list such as 3-60",
                          q->n_rows);
    char mtp[64] = "";
    if (q->model->n_mtp_layers > 0)
        snprintf(mtp, sizeof mtp, " (%d with MTP)", q->model->n_layers + q->model->n_mtp_layers);
    return bl_fail_at(err, BL_ERR_MODEL, bl_at(q->file),
                      "%d rows%s, but model \"%s\" has %d MoE layers and %d decoder layers%s; say "
                      "--layers all, moe, dense=N or a list such as 3-60",
                      q->n_rows, said, q->model->name, q->model->n_moe_layers, q->model->n_layers,
                      mtp);
}

static bl_status need_model(const request *q, bl_error *err) {
    if (q->model != NULL)
        return BL_OK;
    return bl_fail_at(err, BL_ERR_MODEL, bl_at(q->file),
                      "--layers %s needs --model, which tells the MoE layers from the dense ones",
                      q->spec);
}

/* Row r is decoder layer r; rows behind the last one are MTP layers. */
static void fill_all(const request *q, bl_layer_rows *out) {
    for (int row = 0; row < q->n_rows; row++)
        out->layer[row] = row;
}

static void fill_moe(const request *q, bl_layer_rows *out) {
    for (int row = 0; row < q->n_rows; row++)
        out->layer[row] = q->model->moe_layers[row];
}

static bool is_all_rows(const request *q) {
    return q->n_rows == q->model->n_layers ||
           q->n_rows == q->model->n_layers + q->model->n_mtp_layers;
}

static bl_status by_dense(const request *q, const char *number, bl_layer_rows *out, bl_error *err) {
    char *end;
    errno = 0;
    const long n = strtol(number, &end, 10);
    if (end == number || *end != '\0' || errno != 0 || n < 0 || n > BL_MAX_LAYERS)
        return bl_fail(err, BL_ERR_USAGE, "--layers dense=%s is not a number of layers", number);
    const bl_model *model = q->model;
    for (int layer = 0; model != NULL && layer < model->n_layers; layer++) {
        const bool dense = bl_model_moe_index(model, layer) < 0;
        if (dense != (layer < n))
            return bl_fail_at(err, BL_ERR_MODEL, bl_at_layer(q->file, layer),
                              "is %s in model \"%s\", which --layers dense=%ld contradicts",
                              dense ? "dense" : "MoE", model->name, n);
    }
    if (model != NULL && is_all_rows(q)) {
        fill_all(q, out);
        return BL_OK;
    }
    if (model != NULL && q->n_rows != model->n_layers - (int)n)
        return not_these_rows(q, "", err);
    for (int row = 0; row < q->n_rows; row++)
        out->layer[row] = (int)n + row;
    return BL_OK;
}

/* "3,4,9" and "3-60" and mixtures of them. */
static bl_status by_list(const request *q, bl_layer_rows *out, bl_error *err) {
    int row = 0;
    long last = -1;
    for (const char *at = q->spec;; at++) {
        char *end;
        errno = 0;
        const long first = strtol(at, &end, 10);
        long to = first;
        bool good = end != at && *at >= '0' && *at <= '9' && errno == 0;
        if (good && *end == '-') {
            at = end + 1;
            to = strtol(at, &end, 10);
            good = end != at && *at >= '0' && *at <= '9' && errno == 0;
        }
        if (!good || (*end != '\0' && *end != ',') || first <= last || to < first || to > 1000000)
            return bl_fail(err, BL_ERR_USAGE,
                           "--layers \"%s\" is not all, moe, dense=N or an ascending list such as "
                           "3,4,9 or 3-60",
                           q->spec);
        for (long layer = first; layer <= to; layer++, row++) {
            if (row < q->n_rows)
                out->layer[row] = (int)layer;
        }
        last = to;
        at = end;
        if (*end == '\0')
            break;
    }
    if (row != q->n_rows)
        return bl_fail_at(err, BL_ERR_MODEL, bl_at(q->file),
                          "%d rows, but --layers lists %d layers", q->n_rows, row);
    return BL_OK;
}

static bl_status by_spec(const request *q, bl_layer_rows *out, bl_error *err) {
    if (strcmp(q->spec, "all") == 0) {
        BL_TRY(need_model(q, err));
        if (!is_all_rows(q))
            return not_these_rows(q, " are not all layers", err);
        fill_all(q, out);
        return BL_OK;
    }
    if (strcmp(q->spec, "moe") == 0) {
        BL_TRY(need_model(q, err));
        if (q->n_rows != q->model->n_moe_layers)
            return not_these_rows(q, " are not the MoE layers", err);
        fill_moe(q, out);
        return BL_OK;
    }
    if (strncmp(q->spec, "dense=", 6) == 0)
        return by_dense(q, q->spec + 6, out, err);
    return by_list(q, out, err);
}

static bl_status by_file_or_model(const request *q, bl_layer_rows *out, bl_error *err) {
    if (q->stated != NULL) {
        memcpy(out->layer, q->stated, (size_t)q->n_rows * sizeof *out->layer);
        return BL_OK;
    }
    if (q->model != NULL && q->n_rows == q->model->n_moe_layers)
        fill_moe(q, out);
    else if (q->model != NULL && q->n_rows == q->model->n_layers)
        fill_all(q, out);
    else
        return not_these_rows(q, "", err);
    return BL_OK;
}

/* What --layers says and what the file says itself must be the same. */
static bl_status check_stated(const request *q, const bl_layer_rows *rows, bl_error *err) {
    int last = -1;
    for (int row = 0; q->stated != NULL && row < q->n_rows; row++) {
        if (q->stated[row] <= last)
            return bl_fail_at(err, BL_ERR_MODEL, bl_at(q->file),
                              "its layer ids do not ascend (%d after %d)", q->stated[row], last);
        last = q->stated[row];
        if (rows->layer[row] != q->stated[row])
            return bl_fail_at(
                err, BL_ERR_MODEL, bl_at(q->file),
                "row %d is decoder layer %d by the file itself, but %d by --layers %s", row,
                q->stated[row], rows->layer[row], q->spec);
    }
    return BL_OK;
}

static bl_status leave_out(const request *q, bl_layer_rows *rows, bl_error *err) {
    const bl_model *model = q->model;
    for (int row = 0; model != NULL && row < q->n_rows; row++) {
        const int layer = rows->layer[row];
        if (layer >= model->n_layers + model->n_mtp_layers)
            return bl_fail_at(err, BL_ERR_MODEL, bl_at_layer(q->file, layer),
                              "model \"%s\" has %d decoder layers only", model->name,
                              model->n_layers);
        if (bl_model_moe_index(model, layer) >= 0)
            continue;
        rows->layer[row] = BL_ROW_LEFT_OUT;
        if (layer >= model->n_layers)
            rows->n_mtp++;
        else
            rows->n_dense++;
    }
    if (rows->n_dense + rows->n_mtp == q->n_rows)
        return bl_fail_at(err, BL_ERR_MODEL, bl_at(q->file), "none of the rows is an MoE layer");
    return BL_OK;
}

bl_status bl_layer_rows_find(const char *spec, const int *stated, int n_rows, const bl_model *model,
                             const char *file, bl_layer_rows *out, bl_error *err) {
    const request q = {spec, stated, n_rows, model, file};
    if (n_rows < 1 || n_rows > BL_MAX_LAYERS)
        return bl_fail_at(err, BL_ERR_SHAPE, bl_at(file), "%d layer rows (1 to %d are possible)",
                          n_rows, BL_MAX_LAYERS);
    bl_layer_rows rows = {.n_rows = n_rows};
    BL_TRY(BL_CALLOC(rows.layer, n_rows, err));
    bl_status st = spec != NULL ? by_spec(&q, &rows, err) : by_file_or_model(&q, &rows, err);
    if (st == BL_OK)
        st = check_stated(&q, &rows, err);
    if (st == BL_OK)
        st = leave_out(&q, &rows, err);
    if (st < 0)
        bl_layer_rows_free(&rows);
    else
        *out = rows;
    return st;
}

void bl_layer_rows_free(bl_layer_rows *rows) {
    free(rows->layer);
    *rows = (bl_layer_rows){0};
}
