/* import_loads.c: load matrices from JSON, .npy and CSV. */
#include "tracer/import_sink.h"

#include "core/csv.h"
#include "core/mem.h"
#include "core/npy.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* ---- JSON ---------------------------------------------------------------------------------- */

/* One [layer][expert] array into load[]; the first row has fixed how wide rows are. */
static bl_status matrix_from_json(const json_t *matrix, int n_rows, int n_experts, const char *file,
                                  double *load, bl_error *err) {
    if (json_array_size(matrix) != (size_t)n_rows)
        return bl_fail_at(err, BL_ERR_SHAPE, bl_at(file), "a step of %zu layer rows, but %d before",
                          json_array_size(matrix), n_rows);
    for (int row = 0; row < n_rows; row++) {
        const json_t *values = json_array_get(matrix, (size_t)row);
        if (!json_is_array(values) || json_array_size(values) != (size_t)n_experts)
            return bl_fail_at(err, BL_ERR_SHAPE, bl_at(file),
                              "layer row %d holds %zu experts, the first one %d", row,
                              json_array_size(values), n_experts);
        for (int expert = 0; expert < n_experts; expert++) {
            const json_t *value = json_array_get(values, (size_t)expert);
            if (!json_is_number(value) && !json_is_null(value))
                return bl_fail_at(err, BL_ERR_PARSE, bl_at(file),
                                  "layer row %d: the load of expert %d is not a number", row,
                                  expert);
            load[(size_t)row * (size_t)n_experts + (size_t)expert] =
                json_is_null(value) ? (double)NAN : json_number_value(value);
        }
    }
    return BL_OK;
}

/* "tokens": a number for one step, or a list with one for each. */
static bl_status tokens_of(const json_t *tokens, size_t step, size_t n_steps, const char *file,
                           uint64_t *out, bl_error *err) {
    *out = 0;
    if (tokens == NULL || json_is_null(tokens))
        return BL_OK;
    const json_t *value = tokens;
    if (json_is_array(tokens)) {
        if (json_array_size(tokens) != n_steps)
            return bl_fail_at(err, BL_ERR_SHAPE, bl_at(file), "%zu steps, but %zu \"tokens\"",
                              n_steps, json_array_size(tokens));
        value = json_array_get(tokens, step);
    } else if (n_steps != 1) {
        return bl_fail_at(err, BL_ERR_SHAPE, bl_at(file), "%zu steps, but one number of \"tokens\"",
                          n_steps);
    }
    if (!json_is_integer(value) || json_integer_value(value) < 0 ||
        json_integer_value(value) > (json_int_t)1 << 50)
        return bl_fail_at(err, BL_ERR_RANGE, bl_at(file), "\"tokens\" are not whole numbers");
    *out = (uint64_t)json_integer_value(value);
    return BL_OK;
}

static bl_status steps_from_json(bl_import_sink *sink, const json_t *steps, size_t n_steps,
                                 const json_t *tokens, const bl_source_shape *shape,
                                 bl_error *err) {
    double *load = NULL;
    BL_TRY(BL_CALLOC(load, (size_t)shape->n_rows * (size_t)sink->info.n_experts, err));
    bl_status st = BL_OK;
    for (size_t step = 0; st == BL_OK && step < n_steps; step++) {
        const json_t *matrix = steps;
        const json_t *first = json_array_get(steps, 0);
        uint64_t stated = 0;
        if (json_is_array(json_array_get(first, 0)))
            matrix = json_array_get(steps, step);
        st = matrix_from_json(matrix, shape->n_rows, sink->info.n_experts, shape->file, load, err);
        if (st == BL_OK)
            st = tokens_of(tokens, step, n_steps, shape->file, &stated, err);
        if (st == BL_OK)
            st = bl_sink_loads(sink, load, stated, err);
    }
    free(load);
    return st;
}

static bl_status import_json(bl_import_sink *sink, const json_t *root, const char *path,
                             bl_error *err) {
    const json_t *load = root, *tokens = NULL;
    if (json_is_object(root)) {
        load = json_object_get(root, "load");
        if (load == NULL)
            load = json_object_get(root, "logical_count");
        tokens = json_object_get(root, "tokens");
    }
    const json_t *first = json_array_get(load, 0), *second = json_array_get(first, 0);
    if (!json_is_array(load) || !json_is_array(first) || second == NULL)
        return bl_fail_at(err, BL_ERR_PARSE, bl_at(path),
                          "no load matrix: expected [layer][expert], [step][layer][expert], or an "
                          "object with one of them under \"load\"");
    const json_t *matrix = json_is_array(second) ? first : load;
    const size_t n_steps = json_is_array(second) ? json_array_size(load) : 1;
    const size_t n_rows = json_array_size(matrix),
                 n_experts = json_array_size(json_array_get(matrix, 0));
    if (n_rows > BL_MAX_LAYERS || n_experts < 1 || n_experts > BL_MAX_EXPERTS)
        return bl_fail_at(err, BL_ERR_SHAPE, bl_at(path), "%zu layer rows of %zu experts", n_rows,
                          n_experts);
    bl_source_shape shape = {
        .file = path, .n_rows = (int)n_rows, .n_experts = (int)n_experts, .phase = -1};
    int *layers = NULL;
    bl_status st = BL_OK;
    if (json_is_object(root))
        st = bl_sink_shape_from_json(root, &shape, &layers, err);
    if (st == BL_OK)
        st = bl_sink_begin(sink, &shape, err);
    if (st == BL_OK)
        st = steps_from_json(sink, load, n_steps, tokens, &shape, err);
    free(layers);
    return st;
}

bl_status bl_import_load_json(bl_import_sink *sink, const char *path, bl_error *err) {
    json_t *root = NULL;
    BL_TRY(bl_json_load(path, &root, err));
    const bl_status st = import_json(sink, root, path, err);
    json_decref(root);
    return st;
}

/* ---- .npy ---------------------------------------------------------------------------------- */

static bl_status steps_from_npy(bl_import_sink *sink, const bl_npy *npy, const json_t *side,
                                const char *path, bl_error *err) {
    const size_t n_experts = npy->shape[npy->n_dims - 1], n_rows = npy->shape[npy->n_dims - 2];
    bl_source_shape shape = {
        .file = path, .n_rows = (int)n_rows, .n_experts = (int)n_experts, .phase = -1};
    int *layers = NULL;
    bl_status st = side != NULL ? bl_sink_shape_from_json(side, &shape, &layers, err) : BL_OK;
    if (st == BL_OK)
        st = bl_sink_begin(sink, &shape, err);
    free(layers);
    BL_TRY(st);
    const size_t cells = n_rows * n_experts, n_steps = npy->n_items / cells;
    double *load = NULL;
    BL_TRY(BL_CALLOC(load, cells, err));
    for (size_t step = 0; st == BL_OK && step < n_steps; step++) {
        uint64_t tokens = 0;
        for (size_t i = 0; i < cells; i++)
            load[i] = bl_npy_real(npy, step * cells + i);
        if (side != NULL)
            st = tokens_of(json_object_get(side, "tokens"), step, n_steps, path, &tokens, err);
        if (st == BL_OK)
            st = bl_sink_loads(sink, load, tokens, err);
    }
    free(load);
    return st;
}

bl_status bl_import_load_npy(bl_import_sink *sink, const char *path, bl_error *err) {
    bl_npy npy = {0};
    json_t *side = NULL;
    BL_TRY(bl_npy_load(path, &npy, err));
    bl_status st = BL_OK;
    if (npy.n_dims < 2 || npy.n_items == 0 || npy.shape[npy.n_dims - 2] > BL_MAX_LAYERS ||
        npy.shape[npy.n_dims - 1] > BL_MAX_EXPERTS)
        st = bl_fail_at(err, BL_ERR_SHAPE, bl_at(path),
                        "the last two axes must be layer and expert, and there must be something "
                        "in them");
    if (st == BL_OK)
        st = bl_sink_read_side_json(path, &side, err);
    if (st == BL_OK)
        st = steps_from_npy(sink, &npy, side, path, err);
    json_decref(side);
    bl_npy_free(&npy);
    return st;
}

/* ---- CSV ----------------------------------------------------------------------------------- */

/* Lines of a file: [step,][layer,]load of expert 0, 1, ...; the first two only when a header names
 * them. Without them the lines are the layers of one step in order. */
typedef struct csv_rows {
    bool header_seen;
    int step_column, layer_column, first_load; /* -1: no such column */
    size_t n_experts, n_rows;
    double *load;          /* [n_rows][n_experts] */
    int64_t *step, *layer; /* [n_rows] */
    size_t load_capacity, step_capacity, layer_capacity;
} csv_rows;

static bool is_number(const char *text) {
    char *end;
    strtod(text, &end);
    return end != text;
}

static bl_status csv_header(csv_rows *rows, const bl_csv_row *row, bl_error *err) {
    rows->header_seen = true;
    rows->step_column = rows->layer_column = -1;
    int column = 0;
    if (is_number(row->fields[0])) {
        rows->n_experts = row->n_fields;
        return BL_OK;
    }
    if (strcasecmp(row->fields[column], "step") == 0)
        rows->step_column = column++;
    if ((size_t)column < row->n_fields && strcasecmp(row->fields[column], "layer") == 0)
        rows->layer_column = column++;
    rows->first_load = column;
    rows->n_experts = row->n_fields - (size_t)column;
    if (rows->n_experts == 0 || rows->n_experts > BL_MAX_EXPERTS ||
        (rows->step_column >= 0 && rows->layer_column < 0))
        return bl_fail_at(err, BL_ERR_SHAPE, bl_at_line(row->file, row->line),
                          "the header must be [[step,]layer,] and a column for each expert");
    return BL_OK;
}

static bl_status csv_row(const bl_csv_row *row, void *user, bl_error *err) {
    csv_rows *rows = user;
    if (!rows->header_seen) {
        BL_TRY(csv_header(rows, row, err));
        if (!is_number(row->fields[0]))
            return BL_OK;
    }
    if (row->n_fields != (size_t)rows->first_load + rows->n_experts)
        return bl_fail_at(err, BL_ERR_SHAPE, bl_at_line(row->file, row->line),
                          "%zu fields, but %zu before", row->n_fields,
                          (size_t)rows->first_load + rows->n_experts);
    const size_t at = rows->n_rows;
    void *load = rows->load, *step = rows->step, *layer = rows->layer;
    bl_status st =
        bl_grow(&load, &rows->load_capacity, (at + 1) * rows->n_experts, sizeof(double), err);
    rows->load = load;
    BL_TRY(st);
    st = bl_grow(&step, &rows->step_capacity, at + 1, sizeof(int64_t), err);
    rows->step = step;
    BL_TRY(st);
    st = bl_grow(&layer, &rows->layer_capacity, at + 1, sizeof(int64_t), err);
    rows->layer = layer;
    BL_TRY(st);
    rows->step[at] = 0;
    rows->layer[at] = (int64_t)at;
    if (rows->step_column >= 0)
        BL_TRY(bl_csv_int(row, 0, 0, INT64_MAX, &rows->step[at], err));
    if (rows->layer_column >= 0)
        BL_TRY(bl_csv_int(row, (size_t)rows->layer_column, 0, INT32_MAX, &rows->layer[at], err));
    for (size_t e = 0; e < rows->n_experts; e++) {
        const size_t column = (size_t)rows->first_load + e;
        double *out = &rows->load[at * rows->n_experts + e];
        if (strcasecmp(row->fields[column], "nan") == 0)
            *out = (double)NAN;
        else
            BL_TRY(bl_csv_real(row, column, out, err));
    }
    rows->n_rows++;
    return BL_OK;
}

/* Every step must list the same layers in the same order. */
static bl_status csv_layers(const csv_rows *rows, const char *path, size_t *per_step,
                            int **layers_p, bl_error *err) {
    size_t n = 0;
    while (n < rows->n_rows && rows->step[n] == rows->step[0])
        n++;
    *per_step = n;
    if (n > BL_MAX_LAYERS)
        return bl_fail_at(err, BL_ERR_SHAPE, bl_at(path), "%zu layer rows", n);
    BL_TRY(BL_CALLOC(*layers_p, n, err));
    for (size_t i = 0; i < rows->n_rows; i++) {
        if (i < n)
            (*layers_p)[i] = (int)rows->layer[i];
        if (rows->n_rows % n != 0 || rows->layer[i] != rows->layer[i % n] ||
            rows->step[i] != rows->step[i - i % n] ||
            (i >= n && i % n == 0 && rows->step[i] <= rows->step[i - 1]))
            return bl_fail_at(err, BL_ERR_SHAPE, bl_at(path),
                              "the steps do not all list the same layers in order (data line %zu)",
                              i + 1);
    }
    return BL_OK;
}

static bl_status import_csv(bl_import_sink *sink, const csv_rows *rows, const char *path,
                            bl_error *err) {
    if (rows->n_rows == 0)
        return bl_fail_at(err, BL_ERR_PARSE, bl_at(path), "no line with loads");
    size_t per_step = 0;
    int *layers = NULL;
    bl_status st = csv_layers(rows, path, &per_step, &layers, err);
    if (st == BL_OK) {
        const bl_source_shape shape = {.file = path,
                                       .n_rows = (int)per_step,
                                       .layers = rows->layer_column >= 0 ? layers : NULL,
                                       .n_experts = (int)rows->n_experts,
                                       .phase = -1};
        st = bl_sink_begin(sink, &shape, err);
    }
    for (size_t at = 0; st == BL_OK && at < rows->n_rows; at += per_step)
        st = bl_sink_loads(sink, rows->load + at * rows->n_experts, 0, err);
    free(layers);
    return st;
}

bl_status bl_import_load_csv(bl_import_sink *sink, const char *path, bl_error *err) {
    csv_rows rows = {0};
    bl_status st = bl_csv_read(path, csv_row, &rows, err);
    if (st == BL_OK)
        st = import_csv(sink, &rows, path, err);
    free(rows.load);
    free(rows.step);
    free(rows.layer);
    return st;
}
