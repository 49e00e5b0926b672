/*
 * import_topk_csv.c: expert ids of single tokens as CSV, one line for each token and layer:
 *
 *     pos,layer,n,e0,e1,e2,e3,e4,e5,w0,w1,w2,w3,w4,w5
 *     154,3,6,64,97,154,90,240,108,0.378,0.307,0.212,0.196,0.232,0.172
 *     154,4,6,97,80,28,221,8,217,0.341,...
 *
 * Columns are found by their names and may stand in any order:
 *
 *     layer         decoder layer
 *     e0, e1, ...   ids; k is how many columns there are; negative: missing
 *     pos           position of the token; without it, a layer that does not ascend begins a token
 *     n             how many of the ids count; without it, all
 *     seq           whose token it is; without it, a position that goes back begins a sequence
 *     w0, w1, ...   routing weights, all or none; kept as binary16
 *
 * Others are left out and named. Lines are ordered by token, then layer, and every token lists the
 * same layers. A file begins a sequence.
 */
#include "tracer/import_sink.h"

#include "core/csv.h"
#include "core/half.h"
#include "core/mem.h"

#include <stdlib.h>
#include <string.h>

enum { NO_COLUMN = -1 };

typedef struct columns {
    size_t n; /* of the header; 0 before it */
    int pos, layer, n_ids, seq;
    int id[BL_MAX_TOP_K], weight[BL_MAX_TOP_K];
    size_t n_weights;
} columns;

typedef struct dump {
    bl_import_sink *sink;
    columns columns; /* of the file being read */
    size_t k;
    bool has_weights;
    int32_t *ids;      /* [n_lines][k] */
    uint16_t *weights; /* [n_lines][k] when there are some */
    size_t n_lines, ids_capacity, weights_capacity;
    size_t *begin; /* [n_sequences] first line */
    size_t n_sequences, begin_capacity;
    int layers[BL_MAX_LAYERS]; /* those the first token lists */
    size_t n_layers;
    bool layers_known; /* the first token has ended */
    /* the token being read */
    size_t at; /* layers seen */
    int64_t pos;
    char seq[128];
} dump;

/* ---- header -------------------------------------------------------------------------------- */

/* "e12" -> 12; -1 when the name is not the letter and a number below BL_MAX_TOP_K. */
static int number_behind(char letter, const char *name) {
    int number = 0;
    if (name[0] != letter || name[1] == '\0')
        return -1;
    for (const char *c = name + 1; *c != '\0'; c++) {
        if (*c < '0' || *c > '9' || number >= BL_MAX_TOP_K)
            return -1;
        number = number * 10 + (*c - '0');
    }
    return number < BL_MAX_TOP_K ? number : -1;
}

/* Where the column of this name is noted; NULL for others. */
static int *place_of(columns *c, const char *name) {
    const int id = number_behind('e', name), weight = number_behind('w', name);
    if (id >= 0)
        return &c->id[id];
    if (weight >= 0)
        return &c->weight[weight];
    if (strcmp(name, "pos") == 0)
        return &c->pos;
    if (strcmp(name, "layer") == 0)
        return &c->layer;
    if (strcmp(name, "n") == 0)
        return &c->n_ids;
    return strcmp(name, "seq") == 0 ? &c->seq : NULL;
}

static bl_status check_header(dump *d, const bl_csv_row *row, size_t n_ids, size_t n_weights,
                              bl_error *err) {
    const columns *c = &d->columns;
    size_t k = 0, weights = 0;
    while (k < n_ids && c->id[k] != NO_COLUMN)
        k++;
    while (weights < n_weights && c->weight[weights] != NO_COLUMN)
        weights++;
    if (c->layer == NO_COLUMN || k == 0 || k < n_ids)
        return bl_fail_at(
            err, BL_ERR_PARSE, bl_at_line(row->file, row->line),
            "the header needs a column \"layer\" and columns e0, e1, ... without gaps");
    if (weights < n_weights || (n_weights > 0 && n_weights != k))
        return bl_fail_at(err, BL_ERR_PARSE, bl_at_line(row->file, row->line),
                          "weights w0, w1, ... for all of the %zu ids, or for none", k);
    if (d->k > 0 && (k != d->k || (n_weights > 0) != d->has_weights))
        return bl_fail_at(err, BL_ERR_SHAPE, bl_at_line(row->file, row->line),
                          "%zu ids and %zu weights, unlike the file before", k, n_weights);
    d->k = k;
    d->has_weights = n_weights > 0;
    return BL_OK;
}

static bl_status read_header(dump *d, const bl_csv_row *row, bl_error *err) {
    columns *c = &d->columns;
    size_t n_ids = 0, n_weights = 0;
    *c = (columns){.n = row->n_fields,
                   .pos = NO_COLUMN,
                   .layer = NO_COLUMN,
                   .n_ids = NO_COLUMN,
                   .seq = NO_COLUMN};
    for (size_t j = 0; j < BL_MAX_TOP_K; j++)
        c->id[j] = c->weight[j] = NO_COLUMN;
    for (size_t f = 0; f < row->n_fields; f++) {
        int *place = place_of(c, row->fields[f]);
        if (place == NULL) {
            bl_sink_note(d->sink, "column \"%.40s\" left out", row->fields[f]);
            continue;
        }
        if (*place != NO_COLUMN)
            return bl_fail_at(err, BL_ERR_PARSE, bl_at_line(row->file, row->line),
                              "two columns \"%.40s\"", row->fields[f]);
        *place = (int)f;
        n_ids += number_behind('e', row->fields[f]) >= 0;
        n_weights += number_behind('w', row->fields[f]) >= 0;
    }
    return check_header(d, row, n_ids, n_weights, err);
}

/* ---- tokens -------------------------------------------------------------------------------- */

static bl_status begin_sequence(dump *d, bl_error *err) {
    void *begin = d->begin;
    if (d->n_sequences > 0 && d->begin[d->n_sequences - 1] == d->n_lines)
        return BL_OK; /* one that has no token yet */
    const bl_status st =
        bl_grow(&begin, &d->begin_capacity, d->n_sequences + 1, sizeof *d->begin, err);
    d->begin = begin;
    BL_TRY(st);
    d->begin[d->n_sequences++] = d->n_lines;
    return BL_OK;
}

static bl_status end_token(dump *d, const char *file, int64_t line, bl_error *err) {
    if (d->at == 0)
        return BL_OK;
    if (!d->layers_known) {
        d->layers_known = true;
        d->n_layers = d->at;
    }
    if (d->at != d->n_layers)
        return bl_fail_at(
            err, BL_ERR_SHAPE, bl_at_line(file, line),
            "the token before has %zu layers, but the first one %zu; every token must "
            "list the same layers, token by token",
            d->at, d->n_layers);
    d->at = 0;
    return BL_OK;
}

/* The next layer of the token: the first token says which there are. */
static bl_status take_layer(dump *d, const bl_csv_row *row, int layer, bl_error *err) {
    if (!d->layers_known) {
        if (d->at == BL_MAX_LAYERS || (d->at > 0 && layer <= d->layers[d->at - 1]))
            return bl_fail_at(err, BL_ERR_SHAPE, bl_at_line(row->file, row->line),
                              "layer %d after layer %d: the layers of a token must ascend", layer,
                              d->layers[d->at > 0 ? d->at - 1 : 0]);
        d->layers[d->at] = layer;
    } else if (d->at == d->n_layers || d->layers[d->at] != layer) {
        return bl_fail_at(err, BL_ERR_SHAPE, bl_at_line(row->file, row->line),
                          "layer %d, where the first token %s%d; every token must list the same "
                          "layers, token by token",
                          layer, d->at == d->n_layers ? "ends with layer " : "lists layer ",
                          d->layers[d->at == d->n_layers ? d->n_layers - 1 : d->at]);
    }
    d->at++;
    return BL_OK;
}

/* Does the line begin a token, and a sequence with it? */
static bl_status begin_token(dump *d, const bl_csv_row *row, int layer, bl_error *err) {
    const columns *c = &d->columns;
    const char *seq = c->seq != NO_COLUMN ? row->fields[c->seq] : "";
    int64_t pos = 0;
    if (strlen(seq) >= sizeof d->seq)
        return bl_fail_at(err, BL_ERR_RANGE, bl_at_line(row->file, row->line),
                          "a \"seq\" of %zu characters", strlen(seq));
    if (c->pos != NO_COLUMN)
        BL_TRY(bl_csv_int(row, (size_t)c->pos, 0, INT64_MAX, &pos, err));
    const bool other = strcmp(seq, d->seq) != 0;
    const bool starts = d->at == 0 || other || pos != d->pos ||
                        (c->pos == NO_COLUMN && layer <= d->layers[d->at - 1]);
    if (!starts)
        return BL_OK;
    BL_TRY(end_token(d, row->file, row->line, err));
    if (other || pos < d->pos)
        BL_TRY(begin_sequence(d, err));
    d->pos = pos;
    memcpy(d->seq, seq, strlen(seq) + 1);
    return BL_OK;
}

/* ---- lines --------------------------------------------------------------------------------- */

static bl_status make_room(dump *d, bl_error *err) {
    void *ids = d->ids, *weights = d->weights;
    const size_t needed = (d->n_lines + 1) * d->k;
    bl_status st = bl_grow(&ids, &d->ids_capacity, needed, sizeof *d->ids, err);
    d->ids = ids;
    if (st == BL_OK && d->has_weights)
        st = bl_grow(&weights, &d->weights_capacity, needed, sizeof *d->weights, err);
    d->weights = weights;
    return st;
}

static bl_status read_ids(dump *d, const bl_csv_row *row, bl_error *err) {
    const columns *c = &d->columns;
    int64_t n = (int64_t)d->k, id = 0;
    double weight = 0;
    if (c->n_ids != NO_COLUMN)
        BL_TRY(bl_csv_int(row, (size_t)c->n_ids, 0, (int64_t)d->k, &n, err));
    BL_TRY(make_room(d, err));
    for (size_t j = 0; j < d->k; j++) {
        const size_t at = d->n_lines * d->k + j;
        d->ids[at] = BL_EMPTY_SLOT;
        if (d->has_weights)
            d->weights[at] = 0;
        if ((int64_t)j >= n)
            continue;
        BL_TRY(bl_csv_int(row, (size_t)c->id[j], INT32_MIN, INT32_MAX, &id, err));
        d->ids[at] = id < 0 ? BL_EMPTY_SLOT : (int32_t)id;
        if (d->has_weights) {
            BL_TRY(bl_csv_real(row, (size_t)c->weight[j], &weight, err));
            d->weights[at] = bl_half_from_real(weight);
        }
    }
    d->n_lines++;
    return BL_OK;
}

static bl_status on_row(const bl_csv_row *row, void *user, bl_error *err) {
    dump *d = user;
    int64_t layer = 0;
    if (d->columns.n == 0)
        return read_header(d, row, err);
    if (row->n_fields != d->columns.n)
        return bl_fail_at(err, BL_ERR_SHAPE, bl_at_line(row->file, row->line),
                          "%zu fields, but the header has %zu", row->n_fields, d->columns.n);
    BL_TRY(bl_csv_int(row, (size_t)d->columns.layer, 0, INT32_MAX, &layer, err));
    BL_TRY(begin_token(d, row, (int)layer, err));
    BL_TRY(take_layer(d, row, (int)layer, err));
    return read_ids(d, row, err);
}

/* ---- files --------------------------------------------------------------------------------- */

static bl_status read_file(dump *d, const char *path, bl_error *err) {
    const size_t before = d->n_lines;
    d->columns.n = 0;
    d->pos = 0;
    d->seq[0] = '\0';
    BL_TRY(begin_sequence(d, err));
    BL_TRY(bl_csv_read(path, on_row, d, err));
    if (d->n_lines == before)
        return bl_fail_at(err, BL_ERR_PARSE, bl_at(path), "no line with ids");
    return end_token(d, path, -1, err);
}

static bl_status put_tokens(dump *d, const char *path, bl_error *err) {
    const bl_source_shape shape = {.file = path,
                                   .n_rows = (int)d->n_layers,
                                   .layers = d->layers,
                                   .top_k = (int)d->k,
                                   .phase = -1};
    BL_TRY(bl_sink_begin(d->sink, &shape, err));
    const size_t n_tokens = d->n_lines / d->n_layers;
    size_t *begin = NULL;
    BL_TRY(BL_CALLOC(begin, d->n_sequences + 1, err));
    for (size_t i = 0; i < d->n_sequences; i++)
        begin[i] = d->begin[i] / d->n_layers;
    begin[d->n_sequences] = n_tokens;
    const bl_npy ids = bl_token_array(d->ids, n_tokens, d->n_layers, d->k);
    const bl_token_ids tokens = {&ids, begin, d->n_sequences, d->has_weights ? d->weights : NULL};
    const bl_status st = bl_sink_tokens(d->sink, &tokens, err);
    free(begin);
    return st;
}

bl_status bl_import_topk_csv(bl_import_sink *sink, const char *const *paths, int n_paths,
                             bl_error *err) {
    dump *d = NULL;
    BL_TRY(BL_CALLOC(d, 1, err));
    d->sink = sink;
    bl_status st = BL_OK;
    for (int i = 0; st == BL_OK && i < n_paths; i++) {
        st = read_file(d, paths[i], err);
        if (st < 0)
            bl_error_set_file(err, paths[i]);
    }
    if (st == BL_OK)
        st = put_tokens(d, paths[0], err);
    free(d->ids);
    free(d->weights);
    free(d->begin);
    free(d);
    return st;
}
