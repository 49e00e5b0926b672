/* llama.h: see ggml.h beside it. */
#ifndef BL_FAKE_LLAMA_H
#define BL_FAKE_LLAMA_H

#include "ggml-backend.h"

struct llama_model;
struct llama_context;

struct llama_context_params {
    ggml_backend_sched_eval_callback cb_eval;
    void *cb_eval_user_data;
};

struct llama_batch {
    int32_t n_tokens;
    int8_t *logits;
};

int32_t llama_model_meta_val_str(const struct llama_model *model, const char *key, char *buf,
                                 size_t buf_size);
int32_t llama_decode(struct llama_context *ctx, struct llama_batch batch);
void llama_synchronize(struct llama_context *ctx);

#endif
