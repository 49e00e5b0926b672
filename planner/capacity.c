#include "planner/capacity.h"

#include "core/mem.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#define MAX_SLOTS (1 << 24)

static int active_ranks(const bl_capacity_request *request) {
    int active = 0;
    for (int rank = 0; rank < request->n_ranks; rank++)
        active += request->masked == NULL || !request->masked[rank];
    return active;
}

/* How many slots over all ranks, masked ones included; -1 when nothing tells. */
static int64_t slots_wanted(const bl_capacity_request *request, int n_active) {
    const int experts = request->n_experts, ranks = request->n_ranks;
    if (request->slots >= 0)
        return request->slots;
    if (request->redundant >= 0)
        return experts + request->redundant;
    if (request->redundant_auto) {
        const int each = experts / n_active + 1;
        return (int64_t)(each < experts ? each : experts) * ranks;
    }
    return -1;
}

static bl_status check_request(const bl_capacity_request *request, bl_error *err) {
    const int given = (request->slots >= 0) + (request->redundant >= 0) + request->redundant_auto;
    if (given > 1)
        return bl_fail(err, BL_ERR_USAGE, "give one of --slots and --redundant, not both");
    if (given == 0 && request->list == NULL)
        return bl_fail(err, BL_ERR_USAGE,
                       "say how many slots there are: --slots S, --redundant R|auto or "
                       "--slots-per-rank LIST");
    if (request->list != NULL && request->n_list != request->n_ranks)
        return bl_fail(err, BL_ERR_USAGE, "--slots-per-rank names %d ranks, but there are %d",
                       request->n_list, request->n_ranks);
    if (active_ranks(request) == 0)
        return bl_fail(err, BL_ERR_INFEASIBLE, "all %d ranks are masked", request->n_ranks);
    return BL_OK;
}

static bl_status lay_out_list(const bl_capacity_request *request, int64_t wanted,
                              bl_capacity *capacity, bl_error *err) {
    int64_t sum = 0;
    for (int rank = 0; rank < request->n_ranks; rank++) {
        capacity->slots_per_rank[rank] = request->list[rank];
        sum += request->list[rank];
    }
    if (wanted >= 0 && sum != wanted)
        return bl_fail(err, BL_ERR_USAGE, "--slots-per-rank adds up to %lld slots, not to %lld",
                       (long long)sum, (long long)wanted);
    return BL_OK;
}

static void lay_out(const bl_capacity_request *request, int64_t wanted, bl_capacity *capacity) {
    const int64_t ranks = request->n_ranks, more = wanted % ranks;
    for (int rank = 0; rank < request->n_ranks; rank++)
        capacity->slots_per_rank[rank] = (int)(wanted / ranks + (rank < more));
    capacity->uneven = more != 0;
    capacity->even_redundant = (int)((wanted + ranks - 1) / ranks * ranks - request->n_experts);
}

/* Take the masked ranks' slots away, then see whether the experts fit. */
static bl_status settle(const bl_capacity_request *request, bl_capacity *capacity, bl_error *err) {
    const int experts = request->n_experts;
    int64_t n_slots = 0;
    for (int rank = 0; rank < request->n_ranks; rank++) {
        if (request->masked != NULL && request->masked[rank])
            capacity->slots_per_rank[rank] = 0;
        const int slots = capacity->slots_per_rank[rank];
        if (slots > experts)
            return bl_fail(err, BL_ERR_INFEASIBLE,
                           "rank %d would have %d slots, but there are only %d experts, and a "
                           "second copy on one rank gains nothing; use at most %d slots per rank",
                           rank, slots, experts, experts);
        n_slots += slots;
    }
    if (n_slots > MAX_SLOTS)
        return bl_fail(err, BL_ERR_RANGE, "%lld slots per layer are too many", (long long)n_slots);
    capacity->n_slots = (int)n_slots;
    if (capacity->n_slots < experts) {
        const int each = (experts + capacity->n_active - 1) / capacity->n_active;
        const int others = experts - capacity->n_slots - 1;
        const bl_where where = {NULL, -1, -1, -1, capacity->n_slots};
        char beside[48] = "";
        if (others > 0)
            snprintf(beside, sizeof beside, ", nor %s %d other%s", others == 1 ? "has" : "have",
                     others, others == 1 ? "" : "s");
        return bl_fail_at(err, BL_ERR_INFEASIBLE, where,
                          "has no slot%s: %d slots on the %d ranks that serve cannot hold %d "
                          "experts; %d slots on each rank (--redundant %d) can",
                          beside, capacity->n_slots, capacity->n_active, experts, each,
                          each * request->n_ranks - experts);
    }
    return BL_OK;
}

bl_status bl_capacity_of(const bl_capacity_request *request, bl_capacity *out, bl_error *err) {
    BL_TRY(check_request(request, err));
    bl_capacity made = {.n_active = active_ranks(request)};
    const int64_t wanted = slots_wanted(request, made.n_active);
    if (wanted > MAX_SLOTS)
        return bl_fail(err, BL_ERR_RANGE, "%lld slots per layer are too many", (long long)wanted);
    BL_TRY(BL_CALLOC(made.slots_per_rank, request->n_ranks, err));
    bl_status st = BL_OK;
    if (request->list != NULL)
        st = lay_out_list(request, wanted, &made, err);
    else
        lay_out(request, wanted, &made);
    if (st >= 0)
        st = settle(request, &made, err);
    if (st < 0)
        bl_capacity_free(&made);
    else
        *out = made;
    return st;
}

void bl_capacity_free(bl_capacity *capacity) {
    free(capacity->slots_per_rank);
    *capacity = (bl_capacity){0};
}

/* ---- lists on the command line ----------------------------------------------------------------*/

/* A decimal number in [0, max] at *text, which moves behind it. */
static bool take_number(const char **text, long max, int *out) {
    if (**text < '0' || **text > '9')
        return false;
    char *end;
    errno = 0;
    const long value = strtol(*text, &end, 10);
    if (errno != 0 || value > max)
        return false;
    *out = (int)value;
    *text = end;
    return true;
}

bl_status bl_parse_marks(const char *text, const char *what, bool *marks, int n, bl_error *err) {
    for (const char *at = text;; at++) {
        int first, last;
        if (!take_number(&at, n - 1, &first))
            return bl_fail(err, BL_ERR_USAGE, "%s: \"%s\" is not a list of ranks in 0 to %d", what,
                           text, n - 1);
        last = first;
        if (*at == '-') {
            at++;
            if (!take_number(&at, n - 1, &last) || last < first)
                return bl_fail(err, BL_ERR_USAGE, "%s: \"%s\" holds a range that is not in 0 to %d",
                               what, text, n - 1);
        }
        for (int i = first; i <= last; i++)
            marks[i] = true;
        if (*at == '\0')
            return BL_OK;
        if (*at != ',')
            return bl_fail(err, BL_ERR_USAGE, "%s: \"%s\" is not a list like 0,3,5-7", what, text);
    }
}

bl_status bl_parse_counts(const char *text, const char *what, int **values_p, int *n,
                          bl_error *err) {
    int *values = NULL;
    size_t capacity = 0, used = 0;
    bl_status st = BL_OK;
    for (const char *at = text; st >= 0; at++) {
        void *grown = values;
        st = bl_grow(&grown, &capacity, used + 1, sizeof *values, err);
        values = grown;
        if (st < 0)
            break;
        if (!take_number(&at, MAX_SLOTS, &values[used]) || (*at != ',' && *at != '\0'))
            st = bl_fail(err, BL_ERR_USAGE, "%s: \"%s\" is not a list of numbers like 9,9,8", what,
                         text);
        used++;
        if (*at == '\0')
            break;
    }
    if (st < 0) {
        free(values);
        return st;
    }
    *values_p = values;
    *n = (int)used;
    return BL_OK;
}
