/*
 * The catalogue: topologies that travel inside the program, and the way to name one.
 */
#include "topologies/topology.h"

#include "core/embed.h"
#include "core/opt.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define MAX_SPEC 1024

static const bl_embedded *find_embedded(const char *name, size_t length) {
    for (const bl_embedded *file = bl_catalogue_files; file->name != NULL; file++) {
        if (strlen(file->name) == length && memcmp(file->name, name, length) == 0)
            return file;
    }
    return NULL;
}

static bl_status open_embedded(const bl_embedded *file, const char *parameters, const char *name,
                               bl_topology *out, bl_error *err) {
    json_t *root;
    BL_TRY(bl_json_parse(file->text, strlen(file->text), file->name, &root, err));
    const bl_status st = bl_topology_from_json(root, parameters, name, file->name, out, err);
    json_decref(root);
    return st;
}

static bl_status open_file(const char *path, const char *parameters, bl_topology *out,
                           bl_error *err) {
    json_t *root;
    BL_TRY(bl_json_load(path, &root, err));
    const bl_status st = bl_topology_from_json(root, parameters, NULL, path, out, err);
    json_decref(root);
    return st;
}

static bl_status unknown_name(const char *name, bl_error *err) {
    const char *names[64];
    size_t n = 0;
    for (const bl_embedded *file = bl_catalogue_files; file->name != NULL && n < 64; file++)
        names[n++] = file->name;
    const char *hint = bl_nearest_name(name, names, n);
    return bl_fail(err, BL_ERR_USAGE,
                   "no topology \"%s\" in the catalogue, and no such file%s%s%s; see ballast topo "
                   "list",
                   name, hint != NULL ? "; did you mean " : "", hint != NULL ? hint : "",
                   hint != NULL ? "?" : "");
}

bl_status bl_topology_open(const char *spec, bl_topology *out, bl_error *err) {
    const size_t length = strcspn(spec, ":");
    const char *parameters = spec[length] == ':' ? spec + length + 1 : NULL;
    const bl_embedded *embedded = find_embedded(spec, length);
    if (embedded != NULL)
        return open_embedded(embedded, parameters, spec, out, err);
    if (strcmp(spec, "-") == 0 || access(spec, F_OK) == 0)
        return open_file(spec, NULL, out, err);
    /* A file with parameters: the last colon, as paths may hold others. */
    char path[MAX_SPEC];
    snprintf(path, sizeof path, "%s", spec);
    char *colon = strrchr(path, ':');
    if (colon != NULL && strlen(spec) < sizeof path) {
        *colon = '\0';
        if (access(path, F_OK) == 0)
            return open_file(path, spec + (colon - path) + 1, out, err);
    }
    if (strchr(spec, '/') != NULL)
        return bl_fail_at(err, BL_ERR_IO, bl_at(spec), "no such file");
    snprintf(path, sizeof path, "%.*s", (int)(length < 128 ? length : 128), spec);
    return unknown_name(path, err);
}

bl_status bl_topology_catalogue(json_t **list_p, bl_error *err) {
    json_t *list = json_array();
    for (const bl_embedded *file = bl_catalogue_files; file->name != NULL; file++) {
        json_t *root = NULL;
        bl_topology topology = {0};
        bl_status st = bl_json_parse(file->text, strlen(file->text), file->name, &root, err);
        if (st == BL_OK)
            st = bl_topology_from_json(root, NULL, file->name, file->name, &topology, err);
        if (st < 0) {
            json_decref(root);
            json_decref(list);
            return st;
        }
        json_t *parameters = json_object_get(root, "parameters");
        parameters = parameters != NULL ? json_incref(parameters) : json_object();
        const char *description = json_string_value(json_object_get(root, "description"));
        json_array_append_new(list, json_pack("{s:s, s:s, s:i, s:o}", "name", file->name,
                                              "description", description != NULL ? description : "",
                                              "ranks", topology.n_ranks, "parameters", parameters));
        bl_topology_free(&topology);
        json_decref(root);
    }
    *list_p = list;
    return BL_OK;
}
