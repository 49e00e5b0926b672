#include "cli/metrics_text.h"

#include "core/base64.h"
#include "core/mem.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Text that grows; `failed` once memory was short. */
typedef struct text {
    char *data;
    size_t used, capacity;
    bool failed;
} text;

static void say(text *t, const char *format, ...) BL_PRINTF(2, 3);
static void say(text *t, const char *format, ...) {
    char line[512];
    va_list args;
    va_start(args, format);
    const int n = vsnprintf(line, sizeof line, format, args);
    va_end(args);
    void *data = t->data;
    if (n < 0 || (size_t)n >= sizeof line ||
        bl_grow(&data, &t->capacity, t->used + (size_t)n + 1, 1, NULL) < 0) {
        t->failed = true;
        return;
    }
    t->data = data;
    memcpy(t->data + t->used, line, (size_t)n + 1);
    t->used += (size_t)n;
}

static void head(text *t, const char *name, const char *type, const char *help) {
    say(t, "# HELP ballast_%s %s\n# TYPE ballast_%s %s\n", name, help, name, type);
}

static double number(const json_t *object, const char *key) {
    return json_number_value(json_object_get(object, key));
}

static void gauge(text *t, const char *name, const char *help, double value) {
    head(t, name, "gauge", help);
    say(t, "ballast_%s %.9g\n", name, value);
}

static void counter(text *t, const char *name, const char *help, double value) {
    head(t, name, "counter", help);
    say(t, "ballast_%s %.17g\n", name, value);
}

/* As Prometheus wants it between quotes. */
static void escape(const char *from, char *to, size_t bytes) {
    size_t at = 0;
    for (; *from != '\0' && at + 3 < bytes; from++) {
        if (*from == '"' || *from == '\\' || *from == '\n')
            to[at++] = '\\';
        to[at++] = *from == '\n' ? 'n' : *from;
    }
    to[at] = '\0';
}

/* ---- parts ----------------------------------------------------------------------------------- */

static void say_state(text *t, const json_t *s) {
    static const char *const states[] = {"stable",   "agreed",    "copying",
                                         "verified", "committed", "halted"};
    head(t, "state", "gauge", "1 for the state of the transaction.");
    for (size_t i = 0; i < sizeof states / sizeof *states; i++)
        say(t, "ballast_state{state=\"%s\"} %d\n", states[i],
            strcmp(bl_text_of(s, "state"), states[i]) == 0);
    gauge(t, "epoch", "Epoch of the plan in force.", number(s, "epoch"));
    counter(t, "step", "Last step begun.", number(s, "step"));
    gauge(t, "drained", "1 while no move may start.", json_is_true(json_object_get(s, "drained")));
    head(t, "ranks", "gauge", "Ranks that serve, and ranks that were lost.");
    say(t, "ballast_ranks{state=\"living\"} %zu\nballast_ranks{state=\"lost\"} %zu\n",
        json_array_size(json_object_get(s, "living")), json_array_size(json_object_get(s, "lost")));
}

static void say_move(text *t, const json_t *s) {
    static const char *const outcomes[] = {"none", "running", "moved", "aborted"};
    static const char *const parts[][2] = {{"layers", "layers_done"},
                                           {"waves", "waves_done"},
                                           {"moves", "moves_done"},
                                           {"bytes", "bytes_done"}};
    const bool aborted = strcmp(bl_text_of(s, "outcome"), "aborted") == 0;
    char reason[400], name[64];
    counter(t, "move", "Number of the last move.", number(s, "move"));
    head(t, "move_outcome", "gauge", "1 for how the last move went.");
    for (size_t i = 0; i < sizeof outcomes / sizeof *outcomes; i++)
        say(t, "ballast_move_outcome{outcome=\"%s\"} %d\n", outcomes[i],
            strcmp(bl_text_of(s, "outcome"), outcomes[i]) == 0);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        snprintf(name, sizeof name, "move_%s", parts[i][0]);
        head(t, name, "gauge", "Of the last move, done and all.");
        say(t, "ballast_%s{part=\"done\"} %.17g\nballast_%s{part=\"all\"} %.17g\n", name,
            number(s, parts[i][1]), name, number(s, parts[i][0]));
    }
    gauge(t, "move_elapsed_seconds", "Age of the last move while it ran.", number(s, "elapsed_s"));
    gauge(t, "move_longest_step_seconds", "Longest step while it ran.",
          number(s, "longest_step_us") * 1e-6);
    gauge(t, "move_bytes_per_second", "Its rate.", number(s, "rate"));
    head(t, "last_error", "gauge", "1 while the last move is an aborted one.");
    escape(bl_text_of(s, "reason"), reason, sizeof reason);
    say(t, "ballast_last_error{reason=\"%s\"} %d\n", aborted ? reason : "", aborted);
}

static void say_rank(text *t, const json_t *rank) {
    counter(t, "rank_sent_bytes_total", "Bytes of experts sent.", number(rank, "sent_bytes"));
    counter(t, "rank_received_bytes_total", "Bytes of experts received.",
            number(rank, "received_bytes"));
    counter(t, "rank_holds_total", "Steps held for a decision.", number(rank, "holds"));
    counter(t, "rank_stray_total", "Messages dropped that belonged to nothing.",
            number(rank, "stray"));
    gauge(t, "rank_max_step_bytes", "Most bytes sent in one step.", number(rank, "max_step_bytes"));
    gauge(t, "rank_max_step_seconds", "Longest pause between steps.",
          number(rank, "max_step_us") * 1e-6);
    gauge(t, "rank_max_hold_seconds", "Longest hold.", number(rank, "max_hold_us") * 1e-6);
}

static void say_imbalance(text *t, const json_t *imbalance) {
    static const char *const whens[] = {"now", "before", "predicted"};
    head(t, "imbalance", "gauge", "Busiest rank over mean, in rows; mean over layers.");
    for (size_t i = 0; i < sizeof whens / sizeof *whens; i++) {
        const json_t *value = json_object_get(imbalance, whens[i]);
        if (json_is_number(value))
            say(t, "ballast_imbalance{when=\"%s\"} %.6g\n", whens[i], json_number_value(value));
    }
}

/* max / mean of the living ranks' rows of one layer; 0 without rows. */
static double imbalance_of(const unsigned char *rows, const json_t *living) {
    double most = 0, sum = 0;
    size_t n = 0;
    for (size_t rank = 0; rank < json_array_size(living); rank++) {
        const unsigned char *at = rows + 4 * rank;
        const double row = (double)((uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 |
                                    (uint32_t)at[3] << 24);
        if (!json_is_true(json_array_get(living, rank)))
            continue;
        n++;
        sum += row;
        most = row > most ? row : most;
    }
    return sum > 0 ? most * (double)n / sum : 0;
}

static void say_layers(text *t, const json_t *look, const json_t *window) {
    const json_t *layers = json_object_get(json_object_get(look, "model"), "moe_layers");
    const json_t *living = json_object_get(look, "living");
    const char *coded = bl_text_of(window, "rows");
    unsigned char *rows;
    size_t bytes;
    if (bl_base64_decode(coded, strlen(coded), "look", &rows, &bytes, NULL) < 0)
        return;
    head(t, "layer_imbalance", "gauge", "Of the latest window, per decoder layer.");
    const size_t row = 4 * json_array_size(living);
    for (size_t l = 0; l < json_array_size(layers) && (l + 1) * row <= bytes; l++) {
        const double value = imbalance_of(rows + l * row, living);
        if (value > 0)
            say(t, "ballast_layer_imbalance{layer=\"%lld\"} %.6g\n",
                (long long)json_integer_value(json_array_get(layers, l)), value);
    }
    free(rows);
}

static void say_window(text *t, const json_t *look) {
    const json_t *window = json_object_get(look, "window");
    if (!json_is_object(window))
        return;
    head(t, "window", "gauge", "The latest window of load.");
    say(t,
        "ballast_window{what=\"number\"} %.17g\nballast_window{what=\"tokens\"} %.17g\n"
        "ballast_window{what=\"steps\"} %.17g\n",
        number(window, "number"), number(window, "tokens"), number(window, "steps"));
    gauge(t, "step_seconds", "Mean step of the latest window.", number(window, "step_us") * 1e-6);
    gauge(t, "longest_step_seconds", "Longest step of the latest window.",
          number(window, "longest_us") * 1e-6);
    gauge(t, "experts_seconds", "Time in experts of its mean step.",
          number(window, "experts_us") * 1e-6);
    say_layers(t, look, window);
}

bl_status bl_metrics_text(const char *socket, char **text_p, bl_error *err) {
    text t = {0};
    json_t *status = NULL, *look = NULL;
    const bool up = bl_operator_ask(socket, "status", &status, NULL) >= 0 &&
                    bl_operator_ask(socket, "look", &look, NULL) >= 0;
    gauge(&t, "up", "1 when the cluster answers.", up);
    if (up) {
        say_state(&t, status);
        say_move(&t, status);
        say_imbalance(&t, json_object_get(status, "imbalance"));
        say_rank(&t, json_object_get(status, "rank"));
        say_window(&t, look);
    }
    json_decref(status);
    json_decref(look);
    if (t.failed) {
        free(t.data);
        return bl_fail(err, BL_ERR_NOMEM, "out of memory");
    }
    *text_p = t.data;
    return BL_OK;
}
