/*
 * run_output.h: what `ballast run` prints: the texts, or one JSON object with all figures.
 *
 * Figures over ranks: a step took as long as its slowest rank; the imbalance of one (step, layer)
 * is the busiest rank's rows over the mean of all ranks' rows, layers without rows left out; a
 * stage's time is the mean over steps and ranks.
 *
 *     {"model","ranks","transport","pids":[...],"resident_bytes":[...],
 *      "texts":[...],"tokens":[[...]],"stopped":false,      when prompts were served
 *      "decoded_tokens":N,"cached_tokens":N,"tokens_per_s":X,
 *      "latency":{"first_token_us":{...},"between_tokens_us":{...},"per_token_us":{...}},
 *      "steps":N,"step_us":{"mean","p50","p95","p99","max"},"imbalance":{...},
 *      "stage_us":{"route",...},"sent":{"bytes","rows","messages"},
 *      "rule":"even","traffic":{"dispatch":{"bytes":[[...]],"domains":{...}},"combine":{...}},
 *      "per_step":[{"step","tokens","us","imbalance","moving","predicted_us"}, ...],
 *      "predicted":{...}                                    run_predict.h
 *      "around_moves":{"before":{"steps","step_us","imbalance"},"during":{...},"after":{...}},
 *      "trace":{"pushed","written","dropped","rejected"}}     when routing was recorded
 *
 * A request's time begins when it arrives, or, in a list without arrival times, when it gets its
 * place. first_token_us (TTFT) is its first token's; between_tokens_us (ITL) are the gaps between
 * one token and the next, of all requests; per_token_us (TPOT) is the mean gap of each request.
 *
 * traffic: bytes from rank to rank (row: sender) and, with a topology, by the level they cross.
 *
 * Of a long run ("sampled":{"steps","every"}) the figures over steps are of a sample (runtime/serve.h), but
 * for `steps`, `sent` and `traffic`.
 *
 * A step is `moving` when a move of experts was under way on some rank. around_moves is there when
 * any was: "during" reaches from the first moving step to the last.
 *
 * Texts are the tokens' bytes as UTF-8, with U+FFFD for bytes that are not; `tokens` is exact.
 */
#ifndef BL_CLI_RUN_OUTPUT_H
#define BL_CLI_RUN_OUTPUT_H

#include "cli/run_rank.h"

/* All texts, separated like the prompts by lines that hold ---. */
bl_status bl_run_print_texts(const bl_run_job *job, const bl_run_report *reports, bl_error *err);

bl_status bl_run_print_json(const bl_run_job *job, const char *transport,
                            const bl_run_report *reports, const bl_recorder_totals *trace,
                            bl_error *err);

/* Predicted beside measured step time, on standard error; nothing of a short run. */
bl_status bl_run_print_prediction(const bl_run_job *job, const bl_run_report *reports,
                                  bl_error *err);

/* Requests whose continuation is complete: how many of how many. */
void bl_run_count_complete(const bl_run_job *job, const bl_run_report *reports, int *complete,
                           int *requests);

#endif
