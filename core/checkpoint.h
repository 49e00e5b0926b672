/*
 * checkpoint.h: a model's tensors, whether they are in one file or spread over many.
 *
 *     DIR/model.safetensors                        one file, or
 *     DIR/model.safetensors.index.json             {"weight_map": {tensor: file, ...}}
 *     DIR/model-00001-of-00016.safetensors ...     and the files it names
 *
 * As Hugging Face's own loader does, the one file is preferred where both are there. Opening reads
 * all headers and checks that index and files agree: each tensor of the index is in its file, and
 * no file holds a tensor that the index has not given it, since two files of different exports lie
 * easily side by side. Tensors are then read one by one (core/safetensors.h), so whoever needs a
 * few experts of a model of 600 GB reads the bytes of those experts.
 *
 * Read-only once opened: threads may share one.
 */
#ifndef BL_CORE_CHECKPOINT_H
#define BL_CORE_CHECKPOINT_H

#include "core/safetensors.h"

typedef struct bl_checkpoint bl_checkpoint;

bl_status bl_checkpoint_open(const char *dir, bl_checkpoint **out, bl_error *err);
void bl_checkpoint_free(bl_checkpoint *checkpoint); /* NULL is fine */

/* The file that tells which tensors there are: the index, or the one file. For messages; borrowed. */
const char *bl_checkpoint_path(const bl_checkpoint *checkpoint);
int bl_checkpoint_n_files(const bl_checkpoint *checkpoint);

/* Tensors of all files, file by file. */
size_t bl_checkpoint_count(const bl_checkpoint *checkpoint);
const bl_safetensor *bl_checkpoint_at(const bl_checkpoint *checkpoint, size_t index);

/* As bl_safetensors_read(); O(log files + log tensors). */
bl_status bl_checkpoint_read(const bl_checkpoint *checkpoint, const char *name, const char *dtype,
                             const uint64_t *shape, int n_dims, void *out, bl_error *err);

#endif
