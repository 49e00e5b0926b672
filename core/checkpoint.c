#include "core/checkpoint.h"

#include "core/json.h"
#include "core/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* More files than any published checkpoint has, and few enough to be open at once. */
#define MAX_FILES 512

typedef struct shard {
    const char *name; /* borrowed from the index */
    bl_safetensors *file;
} shard;

struct bl_checkpoint {
    char path[4096];
    json_t *index;            /* NULL: one file */
    const json_t *weight_map; /* of the index */
    int n_shards;
    shard *shards; /* [n_shards] ascending by name */
    size_t n_tensors;
};

/* ---- one file ------------------------------------------------------------------------------- */

static bl_status open_one(bl_checkpoint *checkpoint, bl_error *err) {
    BL_TRY(BL_CALLOC(checkpoint->shards, 1, err));
    checkpoint->n_shards = 1;
    BL_TRY(bl_safetensors_open(checkpoint->path, &checkpoint->shards[0].file, err));
    checkpoint->n_tensors = bl_safetensors_count(checkpoint->shards[0].file);
    return BL_OK;
}

/* ---- many ----------------------------------------------------------------------------------- */

static int by_name(const void *a, const void *b) {
    return strcmp(((const shard *)a)->name, ((const shard *)b)->name);
}

static shard *find_shard(const bl_checkpoint *checkpoint, const char *name) {
    const shard key = {.name = name};
    return bsearch(&key, checkpoint->shards, (size_t)checkpoint->n_shards, sizeof key, by_name);
}

/* The files that the index names, each once. A name is a file beside the index and nothing else. */
static bl_status list_shards(bl_checkpoint *checkpoint, bl_error *err) {
    const char *tensor;
    json_t *value;
    BL_TRY(BL_CALLOC(checkpoint->shards, MAX_FILES, err));
    json_object_foreach ((json_t *)checkpoint->weight_map, tensor, value) {
        const char *name = json_string_value(value);
        if (name == NULL || name[0] == '\0' || name[0] == '.' || strchr(name, '/') != NULL)
            return bl_fail_at(err, BL_ERR_PARSE, bl_at(checkpoint->path),
                              "tensor %.100s: its file must be named, without a folder", tensor);
        if (find_shard(checkpoint, name) != NULL)
            continue;
        if (checkpoint->n_shards == MAX_FILES)
            return bl_fail_at(err, BL_ERR_RANGE, bl_at(checkpoint->path),
                              "it names more than %d files", MAX_FILES);
        checkpoint->shards[checkpoint->n_shards++].name = name;
        qsort(checkpoint->shards, (size_t)checkpoint->n_shards, sizeof *checkpoint->shards,
              by_name);
    }
    return BL_OK;
}

/* Open a file of the index; its tensors are those the index says it has. */
static bl_status open_shard(bl_checkpoint *checkpoint, const char *dir, shard *one, bl_error *err) {
    char path[4096];
    if (snprintf(path, sizeof path, "%s/%s", dir, one->name) >= (int)sizeof path)
        return bl_fail(err, BL_ERR_RANGE, "the path of %.100s is too long", one->name);
    BL_TRY(bl_safetensors_open(path, &one->file, err));
    const size_t n = bl_safetensors_count(one->file);
    for (size_t i = 0; i < n; i++) {
        const char *tensor = bl_safetensors_at(one->file, i)->name;
        const char *home = json_string_value(json_object_get(checkpoint->weight_map, tensor));
        if (home == NULL || strcmp(home, one->name) != 0)
            return bl_fail_at(err, BL_ERR_MODEL, bl_at(path),
                              "it holds tensor %.100s, which the index gives to %.100s; are these "
                              "files of one export?",
                              tensor, home != NULL ? home : "no file");
    }
    checkpoint->n_tensors += n;
    return BL_OK;
}

/* With no tensor in a file too many, equal numbers mean that none is missing. */
static bl_status check_complete(const bl_checkpoint *checkpoint, bl_error *err) {
    const char *tensor;
    json_t *value;
    if (checkpoint->n_tensors == json_object_size(checkpoint->weight_map))
        return BL_OK;
    json_object_foreach ((json_t *)checkpoint->weight_map, tensor, value) {
        const shard *home = find_shard(checkpoint, json_string_value(value));
        if (bl_safetensors_find(home->file, tensor) == NULL)
            return bl_fail_at(err, BL_ERR_MODEL, bl_at(checkpoint->path),
                              "tensor %.100s is not in %.100s, where it should be", tensor,
                              home->name);
    }
    return BL_OK;
}

static bl_status open_many(bl_checkpoint *checkpoint, const char *dir, bl_error *err) {
    BL_TRY(bl_json_load(checkpoint->path, &checkpoint->index, err));
    BL_TRY(bl_json_object(checkpoint->index, "weight_map", checkpoint->path,
                          &checkpoint->weight_map, err));
    BL_TRY(list_shards(checkpoint, err));
    for (int s = 0; s < checkpoint->n_shards; s++)
        BL_TRY(open_shard(checkpoint, dir, &checkpoint->shards[s], err));
    return check_complete(checkpoint, err);
}

/* ---- both ----------------------------------------------------------------------------------- */

static bl_status open_parts(bl_checkpoint *checkpoint, const char *dir, bl_error *err) {
    const size_t room = sizeof checkpoint->path;
    const char *suffix = ".index.json";
    if ((size_t)snprintf(checkpoint->path, room, "%s/model.safetensors%s", dir, suffix) >= room)
        return bl_fail(err, BL_ERR_RANGE, "the path of the checkpoint is too long");
    const bool has_index = access(checkpoint->path, F_OK) == 0;
    checkpoint->path[strlen(checkpoint->path) - strlen(suffix)] = '\0';
    if (!has_index || access(checkpoint->path, F_OK) == 0)
        return open_one(checkpoint, err);
    strcat(checkpoint->path, suffix);
    return open_many(checkpoint, dir, err);
}

bl_status bl_checkpoint_open(const char *dir, bl_checkpoint **out, bl_error *err) {
    bl_checkpoint *checkpoint;
    BL_TRY(BL_CALLOC(checkpoint, 1, err));
    const bl_status st = open_parts(checkpoint, dir, err);
    if (st < 0) {
        bl_checkpoint_free(checkpoint);
        return st;
    }
    *out = checkpoint;
    return BL_OK;
}

void bl_checkpoint_free(bl_checkpoint *checkpoint) {
    if (checkpoint == NULL)
        return;
    for (int s = 0; s < checkpoint->n_shards; s++)
        bl_safetensors_free(checkpoint->shards[s].file);
    free(checkpoint->shards);
    json_decref(checkpoint->index);
    free(checkpoint);
}

const char *bl_checkpoint_path(const bl_checkpoint *checkpoint) {
    return checkpoint->path;
}

int bl_checkpoint_n_files(const bl_checkpoint *checkpoint) {
    return checkpoint->n_shards;
}

size_t bl_checkpoint_count(const bl_checkpoint *checkpoint) {
    return checkpoint->n_tensors;
}

const bl_safetensor *bl_checkpoint_at(const bl_checkpoint *checkpoint, size_t index) {
    int s = 0;
    while (index >= bl_safetensors_count(checkpoint->shards[s].file))
        index -= bl_safetensors_count(checkpoint->shards[s++].file);
    return bl_safetensors_at(checkpoint->shards[s].file, index);
}

bl_status bl_checkpoint_read(const bl_checkpoint *checkpoint, const char *name, const char *dtype,
                             const uint64_t *shape, int n_dims, void *out, bl_error *err) {
    const shard *home = &checkpoint->shards[0];
    if (checkpoint->index != NULL) {
        const char *file = json_string_value(json_object_get(checkpoint->weight_map, name));
        if (file == NULL)
            return bl_fail_at(err, BL_ERR_MODEL, bl_at(checkpoint->path), "no tensor %s", name);
        home = find_shard(checkpoint, file);
    }
    return bl_safetensors_read(home->file, name, dtype, shape, n_dims, out, err);
}
