/*
 * llama_capture.h: trace the routing of llama.cpp through its eval callback. C only, no change to llama.cpp.
 *
 *     struct llama_context_params params = llama_context_default_params();
 *     bl_trace_options options = BL_TRACE_OPTIONS_INIT;
 *     ballast_llama *trace = NULL;
 *     options.model = "my-model";
 *     ballast_llama_open("my-model.0", &options, model, &params, &trace);      sets params.cb_eval
 *     ctx = llama_init_from_model(model, params);
 *     ballast_llama_decode(trace, ctx, batch, BL_PHASE_DECODE);                instead of llama_decode()
 *     ballast_llama_close(trace);                                              after llama_free(ctx)
 *
 * A call of decode is one step. llama.cpp cuts a batch into ubatches and runs the graph once for each, so
 * a layer is pushed once per ubatch and its pushes add up. The router's node is "ffn_moe_topk-<layer>",
 * by the numbers of decoder layers: a view into the full ranking of all experts, so its rows lie
 * n_experts ids apart.
 *
 * What is recorded is what is computed: in its last layer llama.cpp routes only the tokens whose logits
 * are asked for (batch.logits). The others are recorded there as tokens with empty slots.
 *
 * Cost: a stop of the scheduler, and on a GPU a wait for it, once per MoE layer and ubatch. On CUDA the
 * stop also splits llama.cpp's fused kernel for top-k. To trace lightly, decode some steps through
 * llama_decode() itself: outside of ballast_llama_decode() nothing is asked for.
 *
 * Written down from, and run against, llama.cpp v0.4.0 (ggml_backend_sched_eval_callback).
 */
#ifndef BALLAST_LLAMA_H
#define BALLAST_LLAMA_H

#include "ballast.h"

#include <llama.h>

typedef struct ballast_llama ballast_llama;

/* Opens the tracer and puts its callback into `params`, in front of one that is there already. What
 * `options` leaves empty (n_experts, top_k, layers) is read from the model's metadata; a model without
 * experts is BL_ERR_MODEL. Statuses are those of ballast.h. */
int ballast_llama_open(const char *ring, const bl_trace_options *options,
                       const struct llama_model *model, struct llama_context_params *params,
                       ballast_llama **trace_p);

/* llama_decode() as one traced step, which counts as dropped when that fails; returns what it returned. Tracing never fails it. Steps are
 * numbered from 0. A NULL trace only decodes. */
int32_t ballast_llama_decode(ballast_llama *trace, struct llama_context *ctx,
                             struct llama_batch batch, int phase);

/* The first thing that could not be traced, 0 when there was none, and the layer it happened in: rows of
 * another width than top_k (a warm-up graph runs all experts), a layer that was not named. */
int ballast_llama_fault(const ballast_llama *trace, int *layer_p);

int ballast_llama_read_counters(const ballast_llama *trace, bl_trace_counters *counters);

void ballast_llama_close(ballast_llama *trace);

#endif
