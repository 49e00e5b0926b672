#include "runtime/serve.h"

#include "core/mem.h"
#include "core/progress.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- log ----------------------------------------------------------------------------------- */

bl_status bl_serve_log_create(int n_layers, int n_ranks, bl_serve_log *out, bl_error *err) {
    *out = (bl_serve_log){.n_layers = n_layers, .n_ranks = n_ranks, .every = 1};
    return BL_CALLOC(out->bytes_to, 2 * (size_t)n_ranks, err);
}

static uint32_t short_ns(uint64_t ns) {
    return ns < UINT32_MAX ? (uint32_t)ns : UINT32_MAX;
}

static bl_status log_layers(bl_serve_log *log, const bl_step_result *result, bl_error *err) {
    const size_t n_layers = (size_t)log->n_layers, at = log->n_steps * n_layers;
    bl_status st;
    BL_GROW(st, log->rows, log->row_capacity, at + n_layers, err);
    if (st >= 0)
        BL_GROW(st, log->active, log->active_capacity, at + n_layers, err);
    if (st >= 0 && log->n_steps < BL_SERVE_TIMED)
        BL_GROW(st, log->times, log->time_capacity, at + n_layers, err);
    BL_TRY(st);
    memcpy(log->rows + at, result->rows, n_layers * sizeof *log->rows);
    memcpy(log->active + at, result->active, n_layers * sizeof *log->active);
    if (log->n_steps >= BL_SERVE_TIMED)
        return BL_OK;
    for (size_t layer = 0; layer < n_layers; layer++) {
        const uint64_t *ns = result->layer_ns + layer * BL_N_STAGES;
        log->times[at + layer] = (bl_layer_times){.dispatch_ns = short_ns(ns[BL_STAGE_DISPATCH]),
                                                  .experts_ns = short_ns(ns[BL_STAGE_EXPERTS]),
                                                  .combine_ns = short_ns(ns[BL_STAGE_COMBINE])};
    }
    log->n_timed = log->n_steps + 1;
    return BL_OK;
}

/* Every second of the steps behind the timed ones goes, and of those to come. */
static void thin_out(bl_serve_log *log) {
    const size_t n_layers = (size_t)log->n_layers, row_bytes = n_layers * sizeof *log->rows;
    size_t to = BL_SERVE_TIMED;
    for (size_t from = to; from < log->n_steps; from += 2, to++) {
        log->steps[to] = log->steps[from];
        memmove(log->rows + to * n_layers, log->rows + from * n_layers, row_bytes);
        memmove(log->active + to * n_layers, log->active + from * n_layers, row_bytes);
    }
    log->n_steps = to;
    log->every *= 2;
}

static bool is_kept(const bl_serve_log *log, uint64_t number) {
    return number < BL_SERVE_TIMED || (number - BL_SERVE_TIMED) % log->every == 0;
}

static bl_status keep(bl_serve_log *log, const bl_step_result *result, bl_error *err) {
    bl_status st;
    BL_GROW(st, log->steps, log->step_capacity, log->n_steps + 1, err);
    BL_TRY(st);
    BL_TRY(log_layers(log, result, err));
    bl_step_record *record = &log->steps[log->n_steps];
    *record = (bl_step_record){.step = result->step,
                               .flags = result->flags,
                               .n_tokens = result->n_tokens,
                               .attended = result->attended,
                               .total_ns = result->total_ns,
                               .layers_ns = result->layers_ns,
                               .sent_bytes = result->sent_bytes,
                               .sent_rows = result->sent_rows,
                               .n_messages = result->n_messages};
    memcpy(record->stage_ns, result->stage_ns, sizeof record->stage_ns);
    log->n_steps++;
    return BL_OK;
}

bl_status bl_serve_log_step(bl_serve_log *log, const bl_step_result *result, bl_error *err) {
    if (is_kept(log, log->n_all) && log->n_steps == BL_SERVE_MOST_STEPS)
        thin_out(log);
    if (is_kept(log, log->n_all))
        BL_TRY(keep(log, result, err));
    log->n_all++;
    log->sent_bytes += result->sent_bytes;
    log->sent_rows += result->sent_rows;
    log->n_messages += result->n_messages;
    for (size_t i = 0; i < 2 * (size_t)log->n_ranks; i++)
        log->bytes_to[i] += result->bytes_to[i];
    return BL_OK;
}

void bl_serve_log_free(bl_serve_log *log) {
    for (int i = 0; i < log->n_completions; i++) {
        free(log->completions[i].tokens);
        free(log->completions[i].ready_ns);
    }
    free(log->completions);
    free(log->steps);
    free(log->bytes_to);
    free(log->rows);
    free(log->active);
    free(log->times);
    *log = (bl_serve_log){0};
}

/* ---- serving ------------------------------------------------------------------------------- */

/* One of the batch's places. Of its tokens the first bl_engine_length() have been fed: their keys
 * and values are there, also after the sequence has ended. */
typedef struct place {
    int completion;  /* index in log->completions, -1: free */
    int length;      /* tokens its request is to have decoded in the end */
    uint64_t since;  /* when its time began, ns */
    int32_t *tokens; /* [max_positions + 1] the prompt, then what was decoded */
    int n_tokens;
    float *logits; /* [vocab] */
} place;

typedef struct serving {
    bl_engine *engine;
    const bl_qwen3_config *config;
    const bl_requests *requests;
    const bl_serve_options *options;
    bl_serve_log *log;
    bl_sampler sampler;
    place *places;    /* [batch] */
    bl_chunk *chunks; /* [batch] */
    int *place_of;    /* [batch] place of each chunk */
    int rank, n_ranks;
    uint64_t start_ns;
    int n_waiting; /* requests of this rank that have not begun */
    int n_active;
} serving;

static bl_status open_server(serving *server, bl_error *err) {
    const int batch = server->options->batch, n_requests = server->requests->n;
    BL_TRY(bl_sampler_create(&server->options->sampling, server->config->vocab, &server->sampler,
                             err));
    BL_TRY(BL_CALLOC(server->places, batch, err));
    BL_TRY(BL_CALLOC(server->chunks, batch, err));
    BL_TRY(BL_CALLOC(server->place_of, batch, err));
    for (int p = 0; p < batch; p++) {
        server->places[p].completion = -1;
        BL_TRY(BL_CALLOC(server->places[p].tokens, server->config->max_positions + 1, err));
        BL_TRY(BL_CALLOC(server->places[p].logits, server->config->vocab, err));
    }
    if (n_requests > server->rank)
        server->n_waiting = (n_requests - server->rank - 1) / server->n_ranks + 1;
    server->start_ns = bl_now_ns();
    return BL_OK;
}

static void close_server(serving *server) {
    for (int p = 0; server->places != NULL && p < server->options->batch; p++) {
        free(server->places[p].tokens);
        free(server->places[p].logits);
    }
    free(server->places);
    free(server->chunks);
    free(server->place_of);
    bl_sampler_free(&server->sampler);
}

/* A fresh completion for this rank's next request. */
static bl_status begin_completion(serving *server, int request, int length, bl_error *err) {
    bl_serve_log *log = server->log;
    void *items = log->completions;
    const bl_status st = bl_grow(&items, &log->completion_capacity, (size_t)log->n_completions + 1,
                                 sizeof *log->completions, err);
    log->completions = items;
    BL_TRY(st);
    bl_completion *completion = &log->completions[log->n_completions++];
    *completion = (bl_completion){.request = request};
    BL_TRY(BL_CALLOC(completion->tokens, length, err));
    return BL_CALLOC(completion->ready_ns, length, err);
}

/* Tokens at the start of the prompt that `at` has keys and values of. One token is always fed: its
 * logits are wanted. */
static int common_prefix(const serving *server, int p, const bl_prompt *prompt) {
    const int fed = bl_engine_length(server->engine, p);
    int n = 0;
    while (n < fed && (size_t)n + 1 < prompt->bytes &&
           server->places[p].tokens[n] == prompt->text[n])
        n++;
    return n;
}

/* The free place with most of the prompt, else the first free one, else -1. */
static int choose_place(const serving *server, const bl_prompt *prompt, int *n_cached) {
    int best = -1;
    *n_cached = 0;
    for (int p = 0; p < server->options->batch; p++) {
        if (server->places[p].completion >= 0)
            continue;
        const int n = server->options->keep_prefixes ? common_prefix(server, p, prompt) : 0;
        if (best < 0 || n > *n_cached) {
            best = p;
            *n_cached = n;
        }
    }
    return best;
}

/* Give this rank's next request a place; false: none is free, or it has not arrived. */
static bl_status admit_one(serving *server, bool *admitted, bl_error *err) {
    const int request = server->log->n_completions * server->n_ranks + server->rank;
    *admitted = false;
    if (server->n_waiting == 0)
        return BL_OK;
    const bl_request asked = bl_requests_at(server->requests, request);
    const uint64_t now = bl_now_ns(), due = server->start_ns + (uint64_t)(asked.due_s * 1e9);
    const bl_prompt *prompt = &server->requests->prompts[asked.prompt];
    int n_cached;
    const int p = due <= now ? choose_place(server, prompt, &n_cached) : -1;
    if (p < 0)
        return BL_OK;
    place *at = &server->places[p];
    at->length = bl_requests_length(server->requests, request, server->config);
    BL_TRY(begin_completion(server, request, at->length, err));
    at->completion = server->log->n_completions - 1;
    server->log->completions[at->completion].n_cached = n_cached;
    at->since = server->requests->arrivals != NULL ? due : now;
    for (size_t i = 0; i < prompt->bytes; i++)
        at->tokens[i] = prompt->text[i];
    at->n_tokens = (int)prompt->bytes;
    bl_engine_truncate(server->engine, p, n_cached);
    server->n_waiting--;
    server->n_active++;
    *admitted = true;
    return BL_OK;
}

static bl_status admit(serving *server, bl_error *err) {
    bool admitted = true;
    while (admitted)
        BL_TRY(admit_one(server, &admitted, err));
    return BL_OK;
}

/* What has not been fed yet; of a prompt in pieces only the last gives logits. */
static int fill_chunks(serving *server) {
    const int most = server->options->prefill_tokens;
    int n = 0;
    for (int p = 0; p < server->options->batch; p++) {
        const place *at = &server->places[p];
        if (at->completion < 0)
            continue;
        const int fed = bl_engine_length(server->engine, p), left = at->n_tokens - fed;
        const bool cut = most > 0 && left > most;
        server->place_of[n] = p;
        server->chunks[n++] = (bl_chunk){.sequence = p,
                                         .n_tokens = cut ? most : left,
                                         .tokens = at->tokens + fed,
                                         .logits = cut ? NULL : at->logits};
    }
    return n;
}

/* Append what the step decoded; sequences that are complete leave their place. */
static void take_tokens(serving *server, int n_chunks) {
    const uint64_t now = bl_now_ns();
    for (int i = 0; i < n_chunks; i++) {
        place *at = &server->places[server->place_of[i]];
        bl_completion *completion = &server->log->completions[at->completion];
        if (server->chunks[i].logits == NULL)
            continue;
        const int32_t token =
            bl_sample(&server->sampler, at->logits, completion->request, at->n_tokens);
        completion->ready_ns[completion->n_tokens] = now > at->since ? now - at->since : 0;
        completion->tokens[completion->n_tokens++] = token;
        at->tokens[at->n_tokens++] = token;
        if (completion->n_tokens == at->length) {
            at->completion = -1;
            server->n_active--;
        }
    }
}

static void rest(void) {
    const struct timespec millisecond = {0, 1000000};
    nanosleep(&millisecond, NULL);
}

/* A step, taken again without the ranks that were lost in it. */
static bl_status step(serving *server, int n_chunks, int64_t left, bl_step_result *result,
                      bl_error *err) {
    const bl_serve_options *o = server->options;
    for (;;) {
        bl_error why = BL_ERROR_INIT;
        bl_status st = bl_engine_step(server->engine, server->chunks, n_chunks, left, result, &why);
        if (st == BL_ERR_PEER && o->recover != NULL) {
            why = BL_ERROR_INIT;
            st = o->recover(o->recover_user, &why);
            if (st == BL_OK)
                continue;
        }
        if (st < 0 && err != NULL)
            *err = why;
        return st;
    }
}

static bl_status serve_steps(serving *server, bl_error *err) {
    for (;;) {
        bl_step_result result;
        BL_TRY(admit(server, err));
        const int n_chunks = fill_chunks(server);
        const int64_t left = (int64_t)server->n_active + server->n_waiting;
        const bl_status st = step(server, n_chunks, left, &result, err);
        if (st < 0)
            return st;
        if (st == BL_LIMIT) { /* as the others saw it, this step was the last one */
            server->log->stopped = left > 0;
            return BL_OK;
        }
        take_tokens(server, n_chunks);
        if (result.all_tokens > 0)
            BL_TRY(bl_serve_log_step(server->log, &result, err));
        server->log->stopped = (result.flags & BL_NOTE_STOP) != 0;
        if (server->log->stopped || (result.left == 0 && (result.flags & BL_NOTE_BUSY) == 0))
            return BL_OK;
        if (result.all_tokens == 0)
            rest();
    }
}

bl_status bl_serve(bl_engine *engine, const bl_qwen3_config *config, int rank, int n_ranks,
                   const bl_requests *requests, const bl_serve_options *options, bl_serve_log *log,
                   bl_error *err) {
    assert(options->batch > 0 && options->prefill_tokens >= 0 && requests->n > 0);
    BL_TRY(bl_serve_log_create(config->n_layers, n_ranks, log, err));
    serving server = {.engine = engine,
                      .config = config,
                      .requests = requests,
                      .options = options,
                      .rank = rank,
                      .n_ranks = n_ranks,
                      .log = log};
    bl_status st = bl_prompts_check(requests->prompts, requests->n_prompts, config, NULL, err);
    if (st >= 0)
        st = open_server(&server, err);
    if (st >= 0)
        st = serve_steps(&server, err);
    log->serving_ns = bl_now_ns() - server.start_ns;
    close_server(&server);
    if (st < 0)
        bl_serve_log_free(log);
    return st;
}
