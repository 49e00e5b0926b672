#include "runtime/requests.h"

#include "core/csv.h"
#include "core/mem.h"

#include <stdlib.h>
#include <string.h>

#define MAX_DUE_S 1e9

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

/* ---- requests ------------------------------------------------------------------------------ */

bl_status bl_requests_repeat(const bl_prompt *prompts, int n_prompts, int64_t repeat,
                             int max_tokens, bl_requests *out, bl_error *err) {
    if (repeat > INT32_MAX / n_prompts)
        return bl_fail(err, BL_ERR_RANGE, "%lld times %d prompts are too many requests",
                       (long long)repeat, n_prompts);
    *out = (bl_requests){.prompts = prompts,
                         .n_prompts = n_prompts,
                         .n = (int)repeat * n_prompts,
                         .max_tokens = max_tokens};
    return BL_OK;
}

/* An arrival trace while it is read. */
typedef struct arrivals {
    bl_requests *to;
    size_t capacity;
    bool has_header;
} arrivals;

static bl_status check_header(const bl_csv_row *row, bl_error *err) {
    static const char *const names[] = {"seconds", "prompt", "max_tokens"};
    bool fits = row->n_fields == 2 || row->n_fields == 3;
    for (size_t i = 0; fits && i < row->n_fields; i++)
        fits = strcmp(row->fields[i], names[i]) == 0;
    if (!fits)
        return bl_fail_at(err, BL_ERR_PARSE, bl_at_line(row->file, row->line),
                          "the header must be seconds,prompt or seconds,prompt,max_tokens");
    return BL_OK;
}

static bl_status take_arrival(const bl_csv_row *row, void *user, bl_error *err) {
    arrivals *reading = user;
    bl_requests *to = reading->to;
    if (!reading->has_header) {
        reading->has_header = true;
        return check_header(row, err);
    }
    int64_t prompt, max_tokens = to->max_tokens;
    double due_s;
    if (row->n_fields != 2 && row->n_fields != 3)
        return bl_fail_at(err, BL_ERR_PARSE, bl_at_line(row->file, row->line),
                          "%zu fields, not seconds, prompt and max_tokens", row->n_fields);
    BL_TRY(bl_csv_real(row, 0, &due_s, err));
    BL_TRY(bl_csv_int(row, 1, 0, to->n_prompts - 1, &prompt, err));
    if (row->n_fields == 3)
        BL_TRY(bl_csv_int(row, 2, 1, 1 << 24, &max_tokens, err));
    const double before = to->n > 0 ? to->arrivals[to->n - 1].due_s : 0;
    if (due_s > MAX_DUE_S)
        return bl_fail_at(err, BL_ERR_RANGE, bl_at_line(row->file, row->line),
                          "it arrives at %g s, but must within %g s", due_s, MAX_DUE_S);
    if (!(due_s >= before))
        return bl_fail_at(err, BL_ERR_RANGE, bl_at_line(row->file, row->line),
                          "it arrives at %g s, after one at %g s; times ascend from 0", due_s,
                          before);
    if (to->n == INT32_MAX)
        return bl_fail_at(err, BL_ERR_RANGE, bl_at_line(row->file, row->line), "too many requests");
    void *items = to->arrivals;
    const bl_status st =
        bl_grow(&items, &reading->capacity, (size_t)to->n + 1, sizeof *to->arrivals, err);
    to->arrivals = items;
    BL_TRY(st);
    to->arrivals[to->n++] = (bl_request){due_s, (int)prompt, (int)max_tokens};
    return BL_OK;
}

bl_status bl_requests_read(const char *path, const bl_prompt *prompts, int n_prompts,
                           int max_tokens, bl_requests *out, bl_error *err) {
    bl_requests made = {.prompts = prompts, .n_prompts = n_prompts, .max_tokens = max_tokens};
    arrivals reading = {.to = &made};
    bl_status st = bl_csv_read(path, take_arrival, &reading, err);
    if (st >= 0 && made.n == 0)
        st = bl_fail_at(err, BL_ERR_PARSE, bl_at(path), "no request arrives");
    if (st < 0) {
        bl_requests_free(&made);
        return st;
    }
    *out = made;
    return BL_OK;
}

void bl_requests_free(bl_requests *requests) {
    free(requests->arrivals);
    *requests = (bl_requests){0};
}

bl_request bl_requests_at(const bl_requests *requests, int request) {
    if (requests->arrivals != NULL)
        return requests->arrivals[request];
    return (bl_request){.prompt = request % requests->n_prompts,
                        .max_tokens = requests->max_tokens};
}

int bl_requests_length(const bl_requests *requests, int request, const bl_qwen3_config *config) {
    const bl_request asked = bl_requests_at(requests, request);
    const int room = config->max_positions - (int)requests->prompts[asked.prompt].bytes + 1;
    return room < asked.max_tokens ? room : asked.max_tokens;
}
