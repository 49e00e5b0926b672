/* ggml-backend.h: see ggml.h beside it. */
#ifndef BL_FAKE_GGML_BACKEND_H
#define BL_FAKE_GGML_BACKEND_H

#include "ggml.h"

#include <stdbool.h>

typedef bool (*ggml_backend_sched_eval_callback)(struct ggml_tensor *t, bool ask, void *user_data);

bool ggml_backend_buffer_is_host(struct ggml_backend_buffer *buffer);
void ggml_backend_tensor_get(const struct ggml_tensor *tensor, void *data, size_t offset,
                             size_t size);

#endif
