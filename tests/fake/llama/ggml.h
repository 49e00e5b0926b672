/* ggml.h: what examples/capture/llama_capture.c uses of ggml, in the shapes of llama.cpp v0.4.0. */
#ifndef BL_FAKE_GGML_H
#define BL_FAKE_GGML_H

#include <stddef.h>
#include <stdint.h>

enum ggml_type { GGML_TYPE_F32 = 0, GGML_TYPE_I32 = 26 };

struct ggml_backend_buffer;

struct ggml_tensor {
    enum ggml_type type;
    struct ggml_backend_buffer *buffer;
    int64_t ne[4];
    size_t nb[4]; /* bytes */
    struct ggml_tensor *view_src;
    size_t view_offs;
    void *data;
    char name[64];
};

#endif
