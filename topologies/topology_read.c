/*
 * Reading a topology. The document is hostile until proven otherwise: every size is bounded, every
 * figure has a source, every label a meaning.
 */
#include "topologies/topology.h"

#include "core/mem.h"
#include "core/opt.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_PARAMETERS 8
#define MAX_DEVICES 64
#define MAX_PAIR_RANKS 4096
#define MAX_PATH 256

typedef struct parameter {
    const char *name; /* borrowed from the document */
    int64_t value;
    bool given;
} parameter;

typedef struct reader {
    const json_t *root;
    const char *file;
    int n_parameters;
    parameter parameters[MAX_PARAMETERS];
} reader;

/* Copy a name that goes to terminals and files: 1 to room-1 printable ASCII characters. */
static bl_status copy_label(const reader *in, const char *text, const char *what, char *out,
                            size_t room, bl_error *err) {
    const size_t length = strlen(text);
    bool plain = length > 0 && length < room;
    for (size_t i = 0; plain && i < length; i++)
        plain = text[i] >= ' ' && text[i] <= '~';
    if (!plain)
        return bl_fail_at(err, BL_ERR_PARSE, bl_at(in->file),
                          "%s must have 1 to %zu printable characters", what, room - 1);
    memcpy(out, text, length + 1);
    return BL_OK;
}

/* ---- parameters --------------------------------------------------------------------------- */

static bl_status declare_parameters(reader *in, bl_error *err) {
    const json_t *declared = json_object_get(in->root, "parameters");
    if (declared == NULL)
        return BL_OK;
    if (!json_is_object(declared) || json_object_size(declared) > MAX_PARAMETERS)
        return bl_fail_at(err, BL_ERR_PARSE, bl_at(in->file),
                          "\"parameters\" must be an object of at most %d", MAX_PARAMETERS);
    const char *name;
    json_t *range;
    json_object_foreach ((json_t *)declared, name, range) {
        parameter *p = &in->parameters[in->n_parameters++];
        int64_t min, max;
        p->name = name;
        BL_TRY(bl_json_int(range, "min", 1, BL_MAX_RANKS, in->file, &min, err));
        BL_TRY(bl_json_int(range, "max", min, BL_MAX_RANKS, in->file, &max, err));
        BL_TRY(bl_json_int(range, "default", min, max, in->file, &p->value, err));
    }
    return BL_OK;
}

static bl_status unknown_parameter(const reader *in, const char *name, bl_error *err) {
    const char *names[MAX_PARAMETERS];
    for (int i = 0; i < in->n_parameters; i++)
        names[i] = in->parameters[i].name;
    const char *hint = bl_nearest_name(name, names, (size_t)in->n_parameters);
    return bl_fail_at(err, BL_ERR_USAGE, bl_at(in->file), "no parameter \"%s\"%s%s%s", name,
                      hint != NULL           ? "; did you mean "
                      : in->n_parameters > 0 ? "; it has "
                                             : "; it takes none",
                      hint != NULL           ? hint
                      : in->n_parameters > 0 ? names[0]
                                             : "",
                      hint != NULL ? "?" : "");
}

static bl_status set_parameter(reader *in, const char *name, const char *text, bl_error *err) {
    parameter *p = NULL;
    for (int i = 0; i < in->n_parameters; i++) {
        if (strcmp(in->parameters[i].name, name) == 0)
            p = &in->parameters[i];
    }
    if (p == NULL)
        return unknown_parameter(in, name, err);
    if (p->given)
        return bl_fail_at(err, BL_ERR_USAGE, bl_at(in->file), "%s is given twice", name);
    const json_t *range = json_object_get(json_object_get(in->root, "parameters"), name);
    const long long min = json_integer_value(json_object_get(range, "min"));
    const long long max = json_integer_value(json_object_get(range, "max"));
    char *end;
    const long long value = strtoll(text, &end, 10);
    if (end == text || *end != '\0' || value < min || value > max)
        return bl_fail_at(err, BL_ERR_USAGE, bl_at(in->file),
                          "%s is \"%.24s\", but must be a whole number in [%lld, %lld]", name, text,
                          min, max);
    p->value = value;
    p->given = true;
    return BL_OK;
}

/* "nodes=4,ranks=8" */
static bl_status set_parameters(reader *in, const char *text, bl_error *err) {
    while (text != NULL && *text != '\0') {
        char item[128];
        const size_t length = strcspn(text, ",");
        if (length >= sizeof item)
            return bl_fail_at(err, BL_ERR_USAGE, bl_at(in->file), "a parameter is too long");
        memcpy(item, text, length);
        item[length] = '\0';
        char *equals = strchr(item, '=');
        if (equals == NULL)
            return bl_fail_at(err, BL_ERR_USAGE, bl_at(in->file),
                              "parameter \"%s\" has no value; write name=value", item);
        *equals = '\0';
        BL_TRY(set_parameter(in, item, equals + 1, err));
        text += length;
        text += *text == ',';
    }
    return BL_OK;
}

/* An integer, or the name of a parameter. */
static bl_status read_size(const reader *in, const json_t *value, const char *what, int64_t *out,
                           bl_error *err) {
    const char *name = json_string_value(value);
    for (int i = 0; name != NULL && i < in->n_parameters; i++) {
        if (strcmp(in->parameters[i].name, name) == 0) {
            *out = in->parameters[i].value;
            return BL_OK;
        }
    }
    if (!json_is_integer(value) || json_integer_value(value) < 1 ||
        json_integer_value(value) > BL_MAX_RANKS)
        return bl_fail_at(err, BL_ERR_PARSE, bl_at(in->file),
                          "%s must be a whole number in [1, %d] or the name of a parameter", what,
                          BL_MAX_RANKS);
    *out = json_integer_value(value);
    return BL_OK;
}

/* ---- figures ------------------------------------------------------------------------------ */

static bl_status read_source(const reader *in, const json_t *object, const char *key,
                             bl_figure_source *out, bl_error *err) {
    const char *name;
    BL_TRY(bl_json_string_or(object, "source", "", in->file, &name, err));
    for (int s = BL_MEASURED; s <= BL_ASSUMED; s++) {
        if (strcmp(name, bl_figure_source_name((bl_figure_source)s)) == 0) {
            *out = (bl_figure_source)s;
            return BL_OK;
        }
    }
    return bl_fail_at(err, BL_ERR_PARSE, bl_at(in->file),
                      "%s needs a \"source\": measured, datasheet or assumed", key);
}

static bl_status read_figure(const reader *in, const json_t *object, const char *key, double min,
                             double max, bl_figure *out, bl_error *err) {
    const json_t *figure;
    bl_figure read;
    BL_TRY(bl_json_object(object, key, in->file, &figure, err));
    if (json_object_get(figure, "value") == NULL)
        return bl_fail_at(err, BL_ERR_PARSE, bl_at(in->file), "%s has no \"value\"", key);
    BL_TRY(bl_json_real(figure, "value", -HUGE_VAL, HUGE_VAL, in->file, &read.value, err));
    if (!(read.value >= min && read.value <= max))
        return bl_fail_at(err, BL_ERR_RANGE, bl_at(in->file), "%s is %g, but must be in [%g, %g]",
                          key, read.value, min, max);
    BL_TRY(read_source(in, figure, key, &read.source, err));
    *out = read;
    return BL_OK;
}

static bl_status read_rates(const reader *in, const json_t *object, bl_device *device,
                            bl_error *err) {
    const json_t *rates;
    BL_TRY(bl_json_object(object, "flop_per_s", in->file, &rates, err));
    const char *name;
    json_t *ignored;
    json_object_foreach ((json_t *)rates, name, ignored) {
        bl_weight_format format;
        if (!bl_weight_format_parse(name, &format))
            return bl_fail_at(err, BL_ERR_PARSE, bl_at(in->file),
                              "flop_per_s: \"%.32s\" is no weight format", name);
        BL_TRY(read_figure(in, rates, name, 1, 1e21, &device->flop_per_s[format], err));
    }
    if (!(device->flop_per_s[BL_WEIGHTS_BF16].value > 0))
        return bl_fail_at(err, BL_ERR_PARSE, bl_at(in->file), "flop_per_s needs \"bf16\"");
    return BL_OK;
}

static bl_status read_devices(const reader *in, bl_topology *out, bl_error *err) {
    const json_t *list;
    BL_TRY(bl_json_array(in->root, "devices", in->file, &list, err));
    const size_t n = json_array_size(list);
    if (n < 1 || n > MAX_DEVICES)
        return bl_fail_at(err, BL_ERR_RANGE, bl_at(in->file),
                          "%zu devices, but there must be 1 to %d", n, MAX_DEVICES);
    BL_TRY(BL_CALLOC(out->devices, n, err));
    out->n_devices = (int)n;
    for (size_t d = 0; d < n; d++) {
        const json_t *item = json_array_get(list, d);
        bl_device *device = &out->devices[d];
        const char *name;
        BL_TRY(bl_json_string(item, "name", in->file, &name, err));
        BL_TRY(copy_label(in, name, "a device's name", device->name, sizeof device->name, err));
        for (size_t other = 0; other < d; other++) {
            if (strcmp(out->devices[other].name, device->name) == 0)
                return bl_fail_at(err, BL_ERR_PARSE, bl_at(in->file),
                                  "device \"%s\" is there twice", device->name);
        }
        BL_TRY(read_figure(in, item, "memory_bytes", 1, 1e18, &device->memory_bytes, err));
        BL_TRY(
            read_figure(in, item, "memory_bytes_per_s", 1, 1e18, &device->memory_bytes_per_s, err));
        BL_TRY(read_figure(in, item, "expert_share", 1e-6, 1, &device->expert_share, err));
        BL_TRY(read_rates(in, item, device, err));
        const json_t *apart = json_object_get(item, "reads_apart");
        if (apart != NULL && !json_is_boolean(apart))
            return bl_fail_at(err, BL_ERR_PARSE, bl_at(in->file),
                              "device \"%s\": reads_apart must be true or false", device->name);
        device->reads_apart = json_is_true(apart);
    }
    return BL_OK;
}

static bl_status read_levels(const reader *in, bl_topology *out, bl_error *err) {
    const json_t *list;
    BL_TRY(bl_json_array(in->root, "levels", in->file, &list, err));
    const size_t n = json_array_size(list);
    if (n < 1 || n > BL_MAX_LEVELS)
        return bl_fail_at(err, BL_ERR_RANGE, bl_at(in->file),
                          "%zu levels, but there must be 1 to %d", n, BL_MAX_LEVELS);
    out->n_levels = (int)n;
    const bl_figure free_of_cost = {0, BL_ASSUMED}, unlimited = {(double)INFINITY, BL_ASSUMED};
    out->levels[0] =
        (bl_level){"device", 0, free_of_cost, free_of_cost, unlimited, unlimited, {1, BL_ASSUMED}};
    for (size_t k = 1; k <= n; k++) {
        const json_t *item = json_array_get(list, k - 1);
        bl_level *level = &out->levels[k];
        const char *name;
        BL_TRY(bl_json_string(item, "name", in->file, &name, err));
        BL_TRY(copy_label(in, name, "a level's name", level->name, sizeof level->name, err));
        if (strchr(level->name, '/') != NULL)
            return bl_fail_at(err, BL_ERR_PARSE, bl_at(in->file),
                              "level \"%s\": the name must have no '/'", level->name);
        for (size_t other = 0; other < k; other++) {
            if (strcmp(out->levels[other].name, level->name) == 0)
                return bl_fail_at(err, BL_ERR_PARSE, bl_at(in->file),
                                  "level \"%s\" is there twice%s", level->name,
                                  other == 0 ? " (every rank is a device)" : "");
        }
        BL_TRY(read_figure(in, item, "latency_s", 0, 60, &level->latency_s, err));
        BL_TRY(read_figure(in, item, "message_s", 0, 60, &level->message_s, err));
        BL_TRY(read_figure(in, item, "out_bytes_per_s", 1, 1e18, &level->out_bytes_per_s, err));
        BL_TRY(read_figure(in, item, "in_bytes_per_s", 1, 1e18, &level->in_bytes_per_s, err));
        BL_TRY(read_figure(in, item, "ports", 1, 4096, &level->ports, err));
        if (level->ports.value != floor(level->ports.value))
            return bl_fail_at(err, BL_ERR_RANGE, bl_at(in->file),
                              "ports is %g, but must be a whole number", level->ports.value);
    }
    return BL_OK;
}

/* ---- where the ranks are ------------------------------------------------------------------ */

static bl_status make_rank_arrays(int64_t n, bl_topology *out, bl_error *err) {
    out->n_ranks = (int)n;
    BL_TRY(BL_CALLOC(out->device, n, err));
    BL_TRY(BL_CALLOC(out->host, n, err));
    BL_TRY(BL_CALLOC(out->domain, (size_t)(out->n_levels + 1) * (size_t)n, err));
    for (int rank = 0; rank < out->n_ranks; rank++)
        out->domain[rank] = rank;
    out->levels[0].n_domains = out->n_ranks;
    return BL_OK;
}

/* Regular: the rank number in mixed radix. */
static bl_status read_shape(const reader *in, bl_topology *out, bl_error *err) {
    const json_t *shape;
    BL_TRY(bl_json_array(in->root, "shape", in->file, &shape, err));
    if (json_array_size(shape) != (size_t)out->n_levels)
        return bl_fail_at(err, BL_ERR_SHAPE, bl_at(in->file), "shape has %zu sizes for %d levels",
                          json_array_size(shape), out->n_levels);
    int64_t inside[BL_MAX_LEVELS + 1] = {1}; /* ranks of one domain of a level */
    for (int k = 1; k <= out->n_levels; k++) {
        int64_t size;
        BL_TRY(read_size(in, json_array_get(shape, (size_t)k - 1), "shape", &size, err));
        inside[k] = inside[k - 1] * size;
        if (inside[k] < 1 || inside[k] > BL_MAX_RANKS)
            return bl_fail_at(err, BL_ERR_RANGE, bl_at(in->file),
                              "shape makes %lld ranks, but there must be 1 to %d",
                              (long long)inside[k], BL_MAX_RANKS);
    }
    int64_t per_host = inside[1];
    if (json_object_get(in->root, "ranks_per_host") != NULL)
        BL_TRY(read_size(in, json_object_get(in->root, "ranks_per_host"), "ranks_per_host",
                         &per_host, err));
    BL_TRY(make_rank_arrays(inside[out->n_levels], out, err));
    for (int rank = 0; rank < out->n_ranks; rank++) {
        for (int k = 1; k <= out->n_levels; k++)
            out->domain[(size_t)k * (size_t)out->n_ranks + (size_t)rank] = (int)(rank / inside[k]);
        out->host[rank] = (int)(rank / per_host);
    }
    for (int k = 1; k <= out->n_levels; k++)
        out->levels[k].n_domains = (int)(inside[out->n_levels] / inside[k]);
    out->n_hosts = (int)((out->n_ranks + per_host - 1) / per_host);
    BL_TRY(BL_CALLOC(out->host_names, out->n_hosts, err));
    for (int host = 0; host < out->n_hosts; host++)
        snprintf(out->host_names[host], sizeof out->host_names[host], "host%d", host);
    return BL_OK;
}

typedef struct label {
    const char *text; /* borrowed from the document; `length` bytes of it count */
    size_t length;
    int rank;
} label;

static int compare_labels(const void *a, const void *b) {
    const label *x = a, *y = b;
    const size_t shorter = x->length < y->length ? x->length : y->length;
    const int order = memcmp(x->text, y->text, shorter);
    if (order != 0)
        return order;
    if (x->length != y->length)
        return x->length < y->length ? -1 : 1;
    return x->rank < y->rank ? -1 : x->rank > y->rank;
}

/* Number equal labels 0, 1, ... in the order of their first ranks. `labels` is sorted, `first` is
 * scratch of n. Returns how many there are. */
static int number_labels(label *labels, int n, int *first, int *out) {
    qsort(labels, (size_t)n, sizeof *labels, compare_labels);
    for (int i = 0; i < n; i++) {
        const bool same = i > 0 && labels[i].length == labels[i - 1].length &&
                          memcmp(labels[i].text, labels[i - 1].text, labels[i].length) == 0;
        first[labels[i].rank] = same ? first[labels[i - 1].rank] : labels[i].rank;
    }
    int count = 0;
    for (int rank = 0; rank < n; rank++)
        out[rank] = first[rank] == rank ? count++ : out[first[rank]];
    return count;
}

/* Length of the first `parts` components of a path. */
static size_t prefix_length(const char *path, int parts) {
    size_t length = 0;
    for (int part = 0; part < parts; part++) {
        length += part > 0; /* the slash */
        length += strcspn(path + length, "/");
    }
    return length;
}

static bl_status check_path(const reader *in, const char *path, int rank, int n_parts,
                            bl_error *err) {
    int parts = path[0] != '\0';
    bool empty = false;
    for (const char *at = path; *at != '\0'; at++) {
        if (*at == '/') {
            parts++;
            empty = empty || at == path || at[-1] == '/' || at[1] == '\0';
        }
    }
    if (parts != n_parts || empty || strlen(path) > MAX_PATH)
        return bl_fail_at(err, BL_ERR_SHAPE, bl_at(in->file),
                          "rank %d: path \"%.64s\" must have %d name%s, one for each level but the "
                          "outermost",
                          rank, path, n_parts, n_parts == 1 ? "" : "s");
    return BL_OK;
}

static bl_status read_rank_device(const reader *in, const json_t *item, int rank, bl_topology *out,
                                  bl_error *err) {
    const char *name;
    BL_TRY(bl_json_string_or(item, "device", out->devices[0].name, in->file, &name, err));
    for (int d = 0; d < out->n_devices; d++) {
        if (strcmp(out->devices[d].name, name) == 0) {
            out->device[rank] = d;
            return BL_OK;
        }
    }
    return bl_fail_at(err, BL_ERR_PARSE, bl_at(in->file), "rank %d: no device \"%.64s\"", rank,
                      name);
}

/* Host numbers from each rank's "host", or its path where there is none. */
static bl_status number_hosts(const reader *in, const json_t *list, label *labels, int *first,
                              bl_topology *out, bl_error *err) {
    const int n = out->n_ranks;
    for (int rank = 0; rank < n; rank++) {
        const json_t *item = json_array_get(list, (size_t)rank);
        const char *path, *host;
        BL_TRY(bl_json_string_or(item, "path", "", in->file, &path, err));
        BL_TRY(bl_json_string_or(item, "host", path[0] != '\0' ? path : "host0", in->file, &host,
                                 err));
        labels[rank] = (label){host, strlen(host), rank};
    }
    out->n_hosts = number_labels(labels, n, first, out->host);
    BL_TRY(BL_CALLOC(out->host_names, out->n_hosts, err));
    for (int i = 0; i < n; i++) {
        char *name = out->host_names[out->host[labels[i].rank]];
        if (name[0] == '\0')
            BL_TRY(copy_label(in, labels[i].text, "a host's name", name, sizeof out->host_names[0],
                              err));
    }
    return BL_OK;
}

static bl_status number_ranks(const reader *in, const json_t *list, label *labels, int *first,
                              bl_topology *out, bl_error *err) {
    const int n = out->n_ranks;
    for (int rank = 0; rank < n; rank++) {
        const json_t *item = json_array_get(list, (size_t)rank);
        const char *path;
        if (!json_is_object(item))
            return bl_fail_at(err, BL_ERR_PARSE, bl_at(in->file), "rank %d is not an object", rank);
        BL_TRY(bl_json_string_or(item, "path", "", in->file, &path, err));
        BL_TRY(check_path(in, path, rank, out->n_levels - 1, err));
        BL_TRY(read_rank_device(in, item, rank, out, err));
    }
    for (int k = 1; k <= out->n_levels; k++) {
        for (int rank = 0; rank < n; rank++) {
            const json_t *item = json_array_get(list, (size_t)rank);
            const char *path = json_string_value(json_object_get(item, "path"));
            labels[rank] =
                (label){path != NULL ? path : "",
                        prefix_length(path != NULL ? path : "", out->n_levels - k), rank};
        }
        out->levels[k].n_domains =
            number_labels(labels, n, first, out->domain + (size_t)k * (size_t)n);
    }
    return number_hosts(in, list, labels, first, out, err);
}

static bl_status read_ranks(const reader *in, bl_topology *out, bl_error *err) {
    const json_t *list;
    BL_TRY(bl_json_array(in->root, "ranks", in->file, &list, err));
    const size_t n = json_array_size(list);
    if (n < 1 || n > BL_MAX_RANKS)
        return bl_fail_at(err, BL_ERR_RANGE, bl_at(in->file),
                          "%zu ranks, but there must be 1 to %d", n, BL_MAX_RANKS);
    BL_TRY(make_rank_arrays((int64_t)n, out, err));
    label *labels = NULL;
    int *first = NULL;
    bl_status st = BL_CALLOC(labels, n, err);
    if (st == BL_OK)
        st = BL_CALLOC(first, n, err);
    if (st == BL_OK)
        st = number_ranks(in, list, labels, first, out, err);
    free(labels);
    free(first);
    return st;
}

/* ---- measured pairs ----------------------------------------------------------------------- */

static bl_status read_pair_row(const reader *in, const json_t *row, const char *key, int from,
                               int n, double min, double *out, bl_error *err) {
    if (json_array_size(row) != (size_t)n)
        return bl_fail_at(err, BL_ERR_SHAPE, bl_at(in->file),
                          "pairs: row %d of %s has %zu entries for %d ranks", from, key,
                          json_array_size(row), n);
    for (int to = 0; to < n; to++) {
        const json_t *item = json_array_get(row, (size_t)to);
        out[to] = (double)NAN;
        if (from == to || json_is_null(item))
            continue;
        const double value = json_is_number(item) ? json_number_value(item) : (double)NAN;
        if (!(value >= min && value <= 1e18))
            return bl_fail_at(err, BL_ERR_RANGE, bl_at(in->file),
                              "pairs: %s from rank %d to %d must be a number in [%g, 1e18] or null",
                              key, from, to, min);
        out[to] = value;
    }
    return BL_OK;
}

static bl_status read_pairs(const reader *in, const json_t *pairs, const char *key, double min,
                            int n, double **out, bl_figure_source *source, bl_error *err) {
    const json_t *rows, *object;
    if (json_object_get(pairs, key) == NULL)
        return BL_OK;
    BL_TRY(bl_json_object(pairs, key, in->file, &object, err));
    BL_TRY(read_source(in, object, key, source, err));
    BL_TRY(bl_json_array(object, "values", in->file, &rows, err));
    if (json_array_size(rows) != (size_t)n || n > MAX_PAIR_RANKS)
        return bl_fail_at(err, BL_ERR_SHAPE, bl_at(in->file),
                          "pairs: %s has %zu rows for %d ranks (at most %d)", key,
                          json_array_size(rows), n, MAX_PAIR_RANKS);
    BL_TRY(BL_CALLOC(*out, (size_t)n * (size_t)n, err));
    for (int from = 0; from < n; from++)
        BL_TRY(read_pair_row(in, json_array_get(rows, (size_t)from), key, from, n, min,
                             *out + (size_t)from * (size_t)n, err));
    return BL_OK;
}

/* ---- the whole ---------------------------------------------------------------------------- */

static bl_status read_name(const reader *in, const char *name, bl_topology *out, bl_error *err) {
    if (name == NULL)
        BL_TRY(bl_json_string_or(in->root, "name", in->file != NULL ? in->file : "topology",
                                 in->file, &name, err));
    size_t i = 0;
    for (; i < sizeof out->name - 1 && name[i] != '\0'; i++)
        out->name[i] = name[i] >= ' ' && name[i] <= '~' ? name[i] : '?';
    out->name[i] = '\0';
    return BL_OK;
}

static bl_status check_format(const reader *in, bl_error *err) {
    const char *format;
    int64_t version;
    if (!json_is_object(in->root))
        return bl_fail_at(err, BL_ERR_PARSE, bl_at(in->file), "a topology must be a JSON object");
    BL_TRY(bl_json_string_or(in->root, "format", "", in->file, &format, err));
    if (strcmp(format, "ballast-topology") != 0)
        return bl_fail_at(err, BL_ERR_VERSION, bl_at(in->file),
                          "not a topology: \"format\" is not \"ballast-topology\"");
    BL_TRY(bl_json_int(in->root, "version", 0, INT32_MAX, in->file, &version, err));
    if (version != 1)
        return bl_fail_at(err, BL_ERR_VERSION, bl_at(in->file),
                          "topology version %lld; this program reads version 1",
                          (long long)version);
    return BL_OK;
}

static bl_status read_topology(reader *in, const char *parameters, const char *name,
                               bl_topology *out, bl_error *err) {
    BL_TRY(check_format(in, err));
    BL_TRY(read_name(in, name, out, err));
    BL_TRY(declare_parameters(in, err));
    BL_TRY(set_parameters(in, parameters, err));
    BL_TRY(read_devices(in, out, err));
    BL_TRY(read_levels(in, out, err));
    const bool shaped = json_object_get(in->root, "shape") != NULL;
    if (shaped == (json_object_get(in->root, "ranks") != NULL))
        return bl_fail_at(err, BL_ERR_PARSE, bl_at(in->file),
                          "a topology needs either \"shape\" or \"ranks\"");
    BL_TRY(shaped ? read_shape(in, out, err) : read_ranks(in, out, err));
    const json_t *pairs = json_object_get(in->root, "pairs");
    if (pairs == NULL)
        return BL_OK;
    BL_TRY(read_pairs(in, pairs, "latency_s", 0, out->n_ranks, &out->pair_latency_s,
                      &out->pair_latency_source, err));
    return read_pairs(in, pairs, "bytes_per_s", 1, out->n_ranks, &out->pair_bytes_per_s,
                      &out->pair_bytes_source, err);
}

bl_status bl_topology_from_json(const json_t *root, const char *parameters, const char *name,
                                const char *file, bl_topology *out, bl_error *err) {
    reader in = {.root = root, .file = file};
    bl_topology topology = {0};
    const bl_status st = read_topology(&in, parameters, name, &topology, err);
    if (st < 0)
        bl_topology_free(&topology);
    else
        *out = topology;
    return st;
}
