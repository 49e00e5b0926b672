#include "runtime/serve.h"

#include "core/mem.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- prompts ------------------------------------------------------------------------------- */

/* Start of the next line that holds only --- (a carriage return may follow), or `bytes`; *after:
 * where the text goes on. */
static size_t find_separator(const char *text, size_t bytes, size_t from, size_t *after) {
    for (size_t at = from; at < bytes; at = *after) {
        const char *newline = memchr(text + at, '\n', bytes - at);
        size_t end = newline != NULL ? (size_t)(newline - text) : bytes;
        *after = end < bytes ? end + 1 : bytes;
        end -= end > at && text[end - 1] == '\r';
        if (end - at == 3 && memcmp(text + at, "---", 3) == 0)
            return at;
    }
    *after = bytes;
    return bytes;
}

bl_status bl_prompts_split(const char *text, size_t bytes, const char *file, bl_prompt **out,
                           int *n_prompts, bl_error *err) {
    bl_prompt *prompts = NULL;
    size_t capacity = 0, n = 0, begin = 0;
    int64_t line = 1;
    bl_status st = BL_OK;
    do {
        size_t after;
        const size_t end = find_separator(text, bytes, begin, &after);
        size_t stop = end;
        while (stop > begin && (text[stop - 1] == '\n' || text[stop - 1] == '\r'))
            stop--;
        void *items = prompts;
        st = bl_grow(&items, &capacity, n + 1, sizeof *prompts, err);
        prompts = items;
        if (st >= 0 && stop > begin)
            prompts[n++] = (bl_prompt){(const unsigned char *)text + begin, stop - begin};
        else if (st >= 0 && (end < bytes || n == 0)) /* blank lines at the very end are fine */
            st =
                bl_fail_at(err, BL_ERR_PARSE, bl_at_line(file, line), "prompt %zu is empty", n + 1);
        for (; begin < after; begin++)
            line += text[begin] == '\n';
    } while (st >= 0 && begin < bytes);
    if (st >= 0 && n > INT32_MAX)
        st = bl_fail_at(err, BL_ERR_RANGE, bl_at(file), "%zu prompts are too many", n);
    if (st < 0) {
        free(prompts);
        return st;
    }
    *out = prompts;
    *n_prompts = (int)n;
    return BL_OK;
}

bl_status bl_prompts_check(const bl_prompt *prompts, int n_prompts, const bl_qwen3_config *config,
                           const char *file, bl_error *err) {
    if (config->vocab < 256)
        return bl_fail_at(err, BL_ERR_MODEL, bl_at(file),
                          "prompts are read as bytes, but the model's vocabulary has %d tokens",
                          config->vocab);
    for (int i = 0; i < n_prompts; i++)
        if (prompts[i].bytes > (size_t)config->max_positions)
            return bl_fail_at(err, BL_ERR_RANGE, bl_at(file),
                              "prompt %d has %zu tokens, the model's max_position_embeddings is %d",
                              i + 1, prompts[i].bytes, config->max_positions);
    return BL_OK;
}

/* ---- log ----------------------------------------------------------------------------------- */

bl_status bl_serve_log_step(bl_serve_log *log, const bl_step_result *result, bl_error *err) {
    const size_t n_layers = (size_t)log->n_layers;
    void *steps = log->steps, *rows = log->rows;
    bl_status st = bl_grow(&steps, &log->step_capacity, log->n_steps + 1, sizeof *log->steps, err);
    log->steps = steps;
    if (st >= 0)
        st = bl_grow(&rows, &log->row_capacity, (log->n_steps + 1) * n_layers, sizeof *log->rows,
                     err);
    log->rows = rows;
    BL_TRY(st);
    bl_step_record *record = &log->steps[log->n_steps];
    *record = (bl_step_record){.step = result->step,
                               .flags = result->flags,
                               .n_tokens = result->n_tokens,
                               .total_ns = result->total_ns,
                               .layers_ns = result->layers_ns,
                               .sent_bytes = result->sent_bytes,
                               .sent_rows = result->sent_rows,
                               .n_messages = result->n_messages};
    memcpy(record->stage_ns, result->stage_ns, sizeof record->stage_ns);
    memcpy(log->rows + log->n_steps * n_layers, result->rows, n_layers * sizeof *log->rows);
    log->n_steps++;
    return BL_OK;
}

void bl_serve_log_free(bl_serve_log *log) {
    for (int i = 0; i < log->n_completions; i++)
        free(log->completions[i].tokens);
    free(log->completions);
    free(log->steps);
    free(log->rows);
    *log = (bl_serve_log){0};
}

/* ---- serving ------------------------------------------------------------------------------- */

/* One of the batch's places. */
typedef struct place {
    int completion;  /* index in log->completions, -1: free */
    int32_t *tokens; /* [max_positions] next ones to feed: the prompt, then one */
    int n_next;
    float *logits; /* [vocab] */
} place;

typedef struct serving {
    bl_engine *engine;
    const bl_qwen3_config *config;
    const bl_prompt *prompts;
    int n_prompts;
    const bl_serve_options *options;
    bl_serve_log *log;
    place *places;    /* [batch] */
    bl_chunk *chunks; /* [batch] */
    int *place_of;    /* [batch] place of each chunk */
    int rank, n_ranks;
    int n_waiting; /* requests of this rank that have not begun */
    int n_active;
} serving;

static bl_status open_server(serving *server, bl_error *err) {
    const int batch = server->options->batch;
    const int64_t requests = (int64_t)server->n_prompts * server->options->repeat;
    if (requests > INT32_MAX)
        return bl_fail(err, BL_ERR_RANGE, "%lld requests are too many", (long long)requests);
    BL_TRY(BL_CALLOC(server->places, batch, err));
    BL_TRY(BL_CALLOC(server->chunks, batch, err));
    BL_TRY(BL_CALLOC(server->place_of, batch, err));
    for (int p = 0; p < batch; p++) {
        server->places[p].completion = -1;
        BL_TRY(BL_CALLOC(server->places[p].tokens, server->config->max_positions, err));
        BL_TRY(BL_CALLOC(server->places[p].logits, server->config->vocab, err));
    }
    if (requests > server->rank)
        server->n_waiting = (int)((requests - server->rank - 1) / server->n_ranks + 1);
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
}

/* A fresh completion for this rank's next request. */
static bl_status begin_request(serving *server, bl_completion **out, bl_error *err) {
    bl_serve_log *log = server->log;
    const int limit = server->options->max_tokens < server->config->max_positions
                          ? server->options->max_tokens
                          : server->config->max_positions;
    void *items = log->completions;
    const bl_status st = bl_grow(&items, &log->completion_capacity, (size_t)log->n_completions + 1,
                                 sizeof *log->completions, err);
    log->completions = items;
    BL_TRY(st);
    bl_completion *completion = &log->completions[log->n_completions];
    *completion = (bl_completion){.request = log->n_completions * server->n_ranks + server->rank};
    BL_TRY(BL_CALLOC(completion->tokens, limit, err));
    log->n_completions++;
    *out = completion;
    return BL_OK;
}

/* Give free places to waiting requests. */
static bl_status admit(serving *server, bl_error *err) {
    for (int p = 0; p < server->options->batch && server->n_waiting > 0; p++) {
        place *at = &server->places[p];
        bl_completion *completion;
        if (at->completion >= 0)
            continue;
        BL_TRY(begin_request(server, &completion, err));
        const bl_prompt *prompt = &server->prompts[completion->request % server->n_prompts];
        for (size_t i = 0; i < prompt->bytes; i++)
            at->tokens[i] = prompt->text[i];
        at->n_next = (int)prompt->bytes;
        at->completion = server->log->n_completions - 1;
        bl_engine_reset(server->engine, p);
        server->n_waiting--;
        server->n_active++;
    }
    return BL_OK;
}

static int fill_chunks(serving *server) {
    int n = 0;
    for (int p = 0; p < server->options->batch; p++) {
        const place *at = &server->places[p];
        if (at->completion < 0)
            continue;
        server->place_of[n] = p;
        server->chunks[n++] = (bl_chunk){
            .sequence = p, .n_tokens = at->n_next, .tokens = at->tokens, .logits = at->logits};
    }
    return n;
}

static int32_t largest(const float *logits, int n) {
    int32_t best = 0;
    for (int32_t i = 1; i < n; i++)
        if (logits[i] > logits[best])
            best = i;
    return best;
}

/* Append what the step decoded; sequences that are complete leave their place. */
static void take_tokens(serving *server, int n_chunks) {
    for (int i = 0; i < n_chunks; i++) {
        const int p = server->place_of[i];
        place *at = &server->places[p];
        bl_completion *completion = &server->log->completions[at->completion];
        const int32_t token = largest(at->logits, server->config->vocab);
        completion->tokens[completion->n_tokens++] = token;
        at->tokens[0] = token;
        at->n_next = 1;
        if (completion->n_tokens == server->options->max_tokens ||
            bl_engine_length(server->engine, p) == server->config->max_positions) {
            at->completion = -1;
            server->n_active--;
        }
    }
}

static void rest(void) {
    const struct timespec millisecond = {0, 1000000};
    nanosleep(&millisecond, NULL);
}

static bl_status serve_steps(serving *server, bl_error *err) {
    for (;;) {
        bl_step_result result;
        BL_TRY(admit(server, err));
        const int n_chunks = fill_chunks(server);
        const int64_t left = (int64_t)server->n_active + server->n_waiting;
        BL_TRY(bl_engine_step(server->engine, server->chunks, n_chunks, left, &result, err));
        take_tokens(server, n_chunks);
        if (result.all_tokens > 0)
            BL_TRY(bl_serve_log_step(server->log, &result, err));
        server->log->stopped = (result.flags & BL_NOTE_STOP) != 0;
        if (server->log->stopped || (result.left == 0 && (result.flags & BL_NOTE_BUSY) == 0))
            return BL_OK;
        if (result.left == 0)
            rest();
    }
}

bl_status bl_serve(bl_engine *engine, const bl_qwen3_config *config, int rank, int n_ranks,
                   const bl_prompt *prompts, int n_prompts, const bl_serve_options *options,
                   bl_serve_log *log, bl_error *err) {
    assert(options->batch > 0 && options->max_tokens > 0 && options->repeat > 0);
    *log = (bl_serve_log){.n_layers = config->n_layers};
    serving server = {.engine = engine,
                      .config = config,
                      .prompts = prompts,
                      .n_prompts = n_prompts,
                      .options = options,
                      .rank = rank,
                      .n_ranks = n_ranks,
                      .log = log};
    bl_status st = bl_prompts_check(prompts, n_prompts, config, NULL, err);
    if (st >= 0)
        st = open_server(&server, err);
    if (st >= 0)
        st = serve_steps(&server, err);
    close_server(&server);
    if (st < 0)
        bl_serve_log_free(log);
    return st;
}
