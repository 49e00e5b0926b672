/* What torchrun says about a run, as options of the UCX back end. */
#include "runtime/transport.h"

#include "core/hash.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bl_status read_number(const char *name, long min, long max, int *out, bl_error *err) {
    const char *text = getenv(name);
    if (text == NULL)
        return bl_fail(err, BL_ERR_USAGE,
                       "%s is not set, though others of torchrun's variables are", name);
    char *end;
    errno = 0;
    const long value = strtol(text, &end, 10);
    if (end == text || *end != '\0' || errno != 0 || value < min || value > max)
        return bl_fail(err, BL_ERR_USAGE, "%s=%s is not a number from %ld to %ld", name, text, min,
                       max);
    *out = (int)value;
    return BL_OK;
}

/* MASTER_ADDR:MASTER_PORT, or the port above it while torchrun's agent holds that one. */
static bl_status meeting_point(char *text, size_t text_bytes, bl_error *err) {
    const char *chosen = getenv("BALLAST_RENDEZVOUS"), *host = getenv("MASTER_ADDR");
    const char *agent = getenv("TORCHELASTIC_USE_AGENT_STORE");
    int length, port;
    if (chosen != NULL) {
        length = snprintf(text, text_bytes, "%s", chosen);
    } else {
        BL_TRY(read_number("MASTER_PORT", 1, 65534, &port, err));
        if (host == NULL)
            return bl_fail(err, BL_ERR_USAGE, "MASTER_ADDR is not set, though RANK is");
        port += agent != NULL && strcmp(agent, "True") == 0;
        length =
            snprintf(text, text_bytes, strchr(host, ':') != NULL ? "[%s]:%d" : "%s:%d", host, port);
    }
    if (length < 0 || (size_t)length >= text_bytes)
        return bl_fail(err, BL_ERR_USAGE, "the ranks' meeting point is longer than %zu bytes",
                       text_bytes - 1);
    return BL_OK;
}

bl_status bl_ucx_options_from_env(bl_ucx_options *options, char *text, size_t text_bytes,
                                  bool *found, bl_error *err) {
    *found = getenv("RANK") != NULL || getenv("WORLD_SIZE") != NULL;
    if (!*found)
        return BL_OK;
    int rank, n_ranks;
    BL_TRY(read_number("WORLD_SIZE", 1, 1000000, &n_ranks, err));
    BL_TRY(read_number("RANK", 0, n_ranks - 1, &rank, err));
    BL_TRY(meeting_point(text, text_bytes, err));
    const char *run = getenv("TORCHELASTIC_RUN_ID");
    options->rank = rank;
    options->n_ranks = n_ranks;
    options->rendezvous = text;
    options->rendezvous_fd = -1;
    options->job = run != NULL ? bl_hash64(run, strlen(run)) : 0;
    return BL_OK;
}
