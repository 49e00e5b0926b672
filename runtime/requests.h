/*
 * requests.h: what a run is asked to serve: prompts, and when they arrive.
 *
 * A list of prompts is served as often as wanted, all requests there from the start. Or an arrival
 * trace says which prompt arrives when, as CSV, ascending by time:
 *
 *     seconds,prompt,max_tokens        0-based prompt; max_tokens may be left out: the run's own
 *     0.00,3,64
 *     0.25,0,16
 *
 * All ranks hold the whole list; request i belongs to rank i mod n_ranks.
 */
#ifndef BL_RUNTIME_REQUESTS_H
#define BL_RUNTIME_REQUESTS_H

#include "runtime/qwen3.h"

typedef struct bl_prompt {
    const unsigned char *text; /* borrowed from the file's text */
    size_t bytes;              /* > 0 */
} bl_prompt;

typedef struct bl_request {
    double due_s; /* after the start of serving */
    int prompt;
    int max_tokens; /* decoded at most, > 0 */
} bl_request;

typedef struct bl_requests {
    const bl_prompt *prompts; /* [n_prompts]; borrowed */
    int n_prompts;
    int n;                /* requests */
    int max_tokens;       /* without arrivals: of every request */
    bl_request *arrivals; /* [n], or NULL: request i is prompt i mod n_prompts, due at once */
} bl_requests;

/* Split `text` into prompts: separated by lines that hold only ---, trailing newlines stripped;
 * lines may end in CR LF. A separator at the very end is allowed; an empty prompt is BL_ERR_PARSE
 * with its line. The array is the caller's (free), its texts point into `text`. */
bl_status bl_prompts_split(const char *text, size_t bytes, const char *file, bl_prompt **out,
                           int *n_prompts, bl_error *err);

/* Can this model serve them: bytes as tokens, each prompt within max_position_embeddings? */
bl_status bl_prompts_check(const bl_prompt *prompts, int n_prompts, const bl_qwen3_config *config,
                           const char *file, bl_error *err);

/* Each prompt `repeat` times. BL_ERR_RANGE when that is too many. */
bl_status bl_requests_repeat(const bl_prompt *prompts, int n_prompts, int64_t repeat,
                             int max_tokens, bl_requests *out, bl_error *err);
/* As an arrival trace says. */
bl_status bl_requests_read(const char *path, const bl_prompt *prompts, int n_prompts,
                           int max_tokens, bl_requests *out, bl_error *err);
void bl_requests_free(bl_requests *requests); /* safe on a zeroed struct; not the prompts */

bl_request bl_requests_at(const bl_requests *requests, int request);
/* Tokens that request will have decoded at the end: it also ends where the model's positions do. */
int bl_requests_length(const bl_requests *requests, int request, const bl_qwen3_config *config);

#endif
