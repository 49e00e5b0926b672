#include "runtime/probe.h"

#include "core/hash.h"
#include "core/mem.h"
#include "core/progress.h"
#include "runtime/exchange.h"
#include "runtime/rendezvous.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MARK UINT64_C(0x50524f4245) /* "PROBE"; the order of messages needs no other */
#define WARM_UP 10
#define ROUND_TRIPS 50
#define BURST 200
#define FIRST_VOLUME ((uint64_t)1 << 20)
#define LAST_VOLUME ((uint64_t)1 << 32)
#define REPEAT_VOLUME 3
#define LARGEST_MESSAGE ((uint64_t)4 << 20)
#define FIRST_LOAD ((size_t)256 << 10)
#define REPEAT_LOAD 3

typedef struct fact {
    uint64_t host;
    char name[64];
} fact;

/* From rank 0: measure with `peer`, as the one that drives or the one that follows; or stop. */
typedef struct order {
    int32_t peer, drives; /* peer -1: stop */
} order;

typedef struct report {
    int32_t from, to;
    double latency_s, message_s, out_bytes_per_s, in_bytes_per_s;
} report;

/* Ahead of a volume of messages; none: that was all, and the rate it came to. */
typedef struct volume {
    uint64_t n_messages, message_bytes;
    double bytes_per_s;
} volume;

typedef struct prober {
    bl_transport *transport;
    int rank, n_ranks;
    double seconds, deadline_s;
    unsigned char *buffer; /* of LARGEST_MESSAGE */
    bl_exchange exchange;
} prober;

/* ---- one pair ------------------------------------------------------------------------------- */

static bl_status give(const prober *p, int peer, const void *data, size_t bytes, bl_error *err) {
    return bl_transport_send(p->transport, peer, BL_CHANNEL_MOVE, MARK, data, bytes, err);
}

/* The next message of a peer, of exactly this size; `data` NULL: its content does not matter. */
static bl_status take(const prober *p, int peer, bl_channel channel, void *data, size_t bytes,
                      bl_error *err) {
    bl_message message;
    BL_TRY(bl_transport_receive(p->transport, peer, channel, MARK, p->deadline_s, &message, err));
    const size_t got = message.bytes;
    if (got == bytes && data != NULL)
        memcpy(data, message.data, bytes);
    bl_message_free(&message);
    if (got != bytes)
        return bl_fail(err, BL_ERR_STATE, "rank %d sent %zu bytes where %zu are due", peer, got,
                       bytes);
    return BL_OK;
}

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static bl_status drive_latency(const prober *p, int peer, double *latency_s, bl_error *err) {
    double trips_s[ROUND_TRIPS];
    uint64_t token = 0;
    for (int i = -WARM_UP; i < ROUND_TRIPS; i++) {
        const double start_s = bl_now_s();
        BL_TRY(give(p, peer, &token, sizeof token, err));
        BL_TRY(take(p, peer, BL_CHANNEL_MOVE, &token, sizeof token, err));
        if (i >= 0)
            trips_s[i] = bl_now_s() - start_s;
    }
    qsort(trips_s, ROUND_TRIPS, sizeof *trips_s, by_value);
    *latency_s = trips_s[ROUND_TRIPS / 2] / 2;
    return BL_OK;
}

static bl_status follow_latency(const prober *p, int peer, bl_error *err) {
    uint64_t token;
    for (int i = -WARM_UP; i < ROUND_TRIPS; i++) {
        BL_TRY(take(p, peer, BL_CHANNEL_MOVE, &token, sizeof token, err));
        BL_TRY(give(p, peer, &token, sizeof token, err));
    }
    return BL_OK;
}

static bl_status send_volume(const prober *p, int peer, const volume *v, double *took_s,
                             bl_error *err) {
    uint64_t token;
    BL_TRY(give(p, peer, v, sizeof *v, err));
    BL_TRY(take(p, peer, BL_CHANNEL_MOVE, &token, sizeof token, err)); /* it is ready */
    const double start_s = bl_now_s();
    for (uint64_t i = 0; i < v->n_messages; i++)
        BL_TRY(give(p, peer, p->buffer, (size_t)v->message_bytes, err));
    BL_TRY(take(p, peer, BL_CHANNEL_MOVE, &token, sizeof token, err));
    *took_s = bl_now_s() - start_s;
    return BL_OK;
}

/* Larger and larger volumes, until one takes long enough, and that one three times: the best counts, as
 * a busy machine only ever slows one down. */
static bl_status drive_bandwidth(const prober *p, int peer, double latency_s, double *bytes_per_s,
                                 bl_error *err) {
    uint64_t bytes = FIRST_VOLUME;
    *bytes_per_s = 0;
    for (int n_long = 0; n_long < REPEAT_VOLUME;) {
        volume v = {.message_bytes = bytes / 4 < LARGEST_MESSAGE ? bytes / 4 : LARGEST_MESSAGE};
        v.n_messages = bytes / v.message_bytes;
        double took_s;
        BL_TRY(send_volume(p, peer, &v, &took_s, err));
        const double moving_s = took_s > 10 * latency_s ? took_s - latency_s : took_s;
        const double rate = (double)(v.n_messages * v.message_bytes) / moving_s;
        if (took_s >= p->seconds || bytes >= LAST_VOLUME || n_long > 0) {
            *bytes_per_s = rate > *bytes_per_s ? rate : *bytes_per_s;
            n_long++;
            continue;
        }
        const double factor = 1.25 * p->seconds / took_s;
        bytes = (uint64_t)((double)bytes * (factor < 2 ? 2 : factor > 16 ? 16 : factor));
    }
    const volume end = {.bytes_per_s = *bytes_per_s};
    return give(p, peer, &end, sizeof end, err);
}

/* Until the end; *bytes_per_s: as the driver says. */
static bl_status follow_volumes(const prober *p, int peer, double *bytes_per_s, bl_error *err) {
    const uint64_t token = 1;
    for (;;) {
        volume v;
        BL_TRY(take(p, peer, BL_CHANNEL_MOVE, &v, sizeof v, err));
        if (v.n_messages == 0) {
            *bytes_per_s = v.bytes_per_s;
            return BL_OK;
        }
        BL_TRY(give(p, peer, &token, sizeof token, err));
        for (uint64_t i = 0; i < v.n_messages; i++)
            BL_TRY(take(p, peer, BL_CHANNEL_MOVE, NULL, (size_t)v.message_bytes, err));
        BL_TRY(give(p, peer, &token, sizeof token, err));
    }
}

static bl_status drive_pair(const prober *p, int peer, report *out, bl_error *err) {
    const volume burst = {.n_messages = BURST, .message_bytes = 8}, end = {0};
    double burst_s;
    *out = (report){.from = p->rank, .to = peer};
    BL_TRY(drive_latency(p, peer, &out->latency_s, err));
    BL_TRY(send_volume(p, peer, &burst, &burst_s, err));
    BL_TRY(give(p, peer, &end, sizeof end, err));
    out->message_s = burst_s > 2 * out->latency_s ? (burst_s - 2 * out->latency_s) / BURST : 0;
    BL_TRY(drive_bandwidth(p, peer, out->latency_s, &out->out_bytes_per_s, err));
    return follow_volumes(p, peer, &out->in_bytes_per_s, err);
}

static bl_status follow_pair(const prober *p, int peer, bl_error *err) {
    double ignored;
    BL_TRY(follow_latency(p, peer, err));
    BL_TRY(follow_volumes(p, peer, &ignored, err)); /* the burst */
    BL_TRY(follow_volumes(p, peer, &ignored, err));
    return drive_bandwidth(p, peer, 0, &ignored, err);
}

/* ---- all pairs ------------------------------------------------------------------------------ */

/* Each pair into the first round in which both hosts are free. */
bl_status bl_probe_rounds(const int *host, int n_ranks, int *round, int *n_rounds_p,
                          bl_error *err) {
    const int n_pairs = n_ranks * (n_ranks - 1) / 2;
    int n_rounds = 0, *free_from = NULL; /* per host: it is busy in all rounds before */
    unsigned char *busy = NULL;          /* [n_pairs][n_ranks]: round, host */
    bl_status st = BL_CALLOC(free_from, n_ranks, err);
    if (st == BL_OK)
        st = BL_CALLOC(busy, (size_t)n_pairs * (size_t)n_ranks, err);
    for (int a = 0; st == BL_OK && a < n_ranks; a++) {
        for (int b = a + 1; b < n_ranks; b++) {
            const int x = host[a], y = host[b];
            int r = free_from[x] > free_from[y] ? free_from[x] : free_from[y];
            while (busy[r * n_ranks + x] || busy[r * n_ranks + y])
                r++;
            busy[r * n_ranks + x] = busy[r * n_ranks + y] = 1;
            while (free_from[x] < n_pairs && busy[free_from[x] * n_ranks + x])
                free_from[x]++;
            while (free_from[y] < n_pairs && busy[free_from[y] * n_ranks + y])
                free_from[y]++;
            round[a * n_ranks + b] = r;
            n_rounds = r + 1 > n_rounds ? r + 1 : n_rounds;
        }
    }
    free(busy);
    free(free_from);
    if (st == BL_OK)
        *n_rounds_p = n_rounds;
    return st;
}

static bl_status send_order(const prober *p, int to, int peer, bool drives, bl_error *err) {
    const order o = {peer, drives};
    return bl_transport_send(p->transport, to, BL_CHANNEL_CONTROL, MARK, &o, sizeof o, err);
}

/* Do as rank 0 says, until it says stop. */
static bl_status serve_orders(const prober *p, bl_error *err) {
    for (;;) {
        order o;
        report r;
        BL_TRY(take(p, 0, BL_CHANNEL_CONTROL, &o, sizeof o, err));
        if (o.peer < 0 || o.peer >= p->n_ranks)
            return BL_OK;
        if (!o.drives) {
            BL_TRY(follow_pair(p, o.peer, err));
            continue;
        }
        BL_TRY(drive_pair(p, o.peer, &r, err));
        BL_TRY(bl_transport_send(p->transport, 0, BL_CHANNEL_CONTROL, MARK, &r, sizeof r, err));
    }
}

static void note(bl_probe *out, const report *r) {
    const size_t there = (size_t)r->from * (size_t)out->n_ranks + (size_t)r->to;
    const size_t back = (size_t)r->to * (size_t)out->n_ranks + (size_t)r->from;
    out->latency_s[there] = out->latency_s[back] = r->latency_s;
    out->message_s[there] = out->message_s[back] = r->message_s;
    out->bytes_per_s[there] = r->out_bytes_per_s;
    out->bytes_per_s[back] = r->in_bytes_per_s;
}

/* Rank 0 starts the pairs of a round, measures its own, and hears of the others. */
static bl_status run_round(const prober *p, const int *rounds, int round, bl_probe *out,
                           bl_error *err) {
    int mine = -1;
    report r;
    for (int a = 0; a < p->n_ranks; a++)
        for (int b = a + 1; b < p->n_ranks; b++) {
            if (rounds[a * p->n_ranks + b] != round)
                continue;
            BL_TRY(send_order(p, b, a, false, err));
            if (a == 0)
                mine = b;
            else
                BL_TRY(send_order(p, a, b, true, err));
        }
    if (mine >= 0) {
        BL_TRY(drive_pair(p, mine, &r, err));
        note(out, &r);
    }
    for (int a = 1; a < p->n_ranks; a++)
        for (int b = a + 1; b < p->n_ranks; b++)
            if (rounds[a * p->n_ranks + b] == round) {
                BL_TRY(take(p, a, BL_CHANNEL_CONTROL, &r, sizeof r, err));
                note(out, &r);
            }
    return BL_OK;
}

static bl_status lead_pairs(const prober *p, bl_probe *out, bl_error *err) {
    int *rounds;
    BL_TRY(BL_CALLOC(rounds, (size_t)p->n_ranks * (size_t)p->n_ranks, err));
    bl_status st = bl_probe_rounds(out->host, p->n_ranks, rounds, &out->n_rounds, err);
    for (int round = 0; st == BL_OK && round < out->n_rounds; round++)
        st = run_round(p, rounds, round, out, err);
    for (int rank = 1; st == BL_OK && rank < p->n_ranks; rank++)
        st = send_order(p, rank, -1, false, err);
    free(rounds);
    return st;
}

/* ---- under load ----------------------------------------------------------------------------- */

/* Every rank sends `bytes` to each that `inside` chooses; seconds until it has all of its own. */
static bl_status load_once(prober *p, const int *host, bool inside, size_t bytes,
                           bl_outgoing *outgoing, bl_message *incoming, double *took_s,
                           bl_error *err) {
    for (int peer = 0; peer < p->n_ranks; peer++) {
        const bool chosen = peer != p->rank && (host[peer] == host[p->rank]) == inside;
        outgoing[peer] = (bl_outgoing){p->buffer, chosen ? bytes : 0};
    }
    BL_TRY(bl_exchange_allgather(&p->exchange, NULL, 0, NULL, err));
    const double start_s = bl_now_s();
    BL_TRY(bl_exchange_alltoallv(&p->exchange, outgoing, incoming, err));
    *took_s = bl_now_s() - start_s;
    bl_exchange_release(incoming, p->n_ranks);
    return BL_OK;
}

/* One more load; rates[n_ranks] keeps each rank's best, *slowest_s is the longest any rank took. */
static bl_status load_and_share(prober *p, const int *host, bool inside, size_t bytes,
                                bl_outgoing *outgoing, bl_message *incoming, double *rates,
                                double *slowest_s, bl_error *err) {
    double mine[2], *all = NULL; /* seconds, bytes per second */
    int n_chosen = 0;
    for (int peer = 0; peer < p->n_ranks; peer++)
        n_chosen += peer != p->rank && (host[peer] == host[p->rank]) == inside;
    BL_TRY(load_once(p, host, inside, bytes, outgoing, incoming, &mine[0], err));
    mine[1] = (double)n_chosen * (double)bytes / mine[0];
    BL_TRY(BL_CALLOC(all, 2 * (size_t)p->n_ranks, err));
    const bl_status st = bl_exchange_allgather(&p->exchange, mine, sizeof mine, all, err);
    *slowest_s = 0;
    for (int rank = 0; rank < p->n_ranks; rank++) {
        *slowest_s = all[2 * rank] > *slowest_s ? all[2 * rank] : *slowest_s;
        rates[rank] = all[2 * rank + 1] > rates[rank] ? all[2 * rank + 1] : rates[rank];
    }
    free(all);
    return st;
}

/* More and more at once, until it takes long enough, and then some more: ranks that share processors
 * may miss each other. */
static bl_status load(prober *p, const int *host, bool inside, double *rates, bl_error *err) {
    bl_outgoing *outgoing = NULL;
    bl_message *incoming = NULL;
    bl_status st = BL_CALLOC(outgoing, p->n_ranks, err);
    if (st == BL_OK)
        st = BL_CALLOC(incoming, p->n_ranks, err);
    size_t bytes = FIRST_LOAD;
    double slowest_s = 0;
    for (int n_long = 0; st == BL_OK && n_long < REPEAT_LOAD;) {
        st = load_and_share(p, host, inside, bytes, outgoing, incoming, rates, &slowest_s, err);
        if (slowest_s >= p->seconds || 2 * bytes > LARGEST_MESSAGE)
            n_long++;
        else
            bytes *= 2;
    }
    free(outgoing);
    free(incoming);
    return st;
}

/* ---- hosts ---------------------------------------------------------------------------------- */

static bl_status learn_hosts(prober *p, bl_probe *out, bl_error *err) {
    fact mine = {.host = bl_host_identity()}, *facts;
    gethostname(mine.name, sizeof mine.name - 8);
    mine.name[sizeof mine.name - 8] = '\0';
    if (mine.host == 0)
        mine.host = bl_hash64(mine.name, strlen(mine.name));
    BL_TRY(BL_CALLOC(facts, p->n_ranks, err));
    const bl_status st = bl_exchange_allgather(&p->exchange, &mine, sizeof mine, facts, err);
    for (int rank = 0; st == BL_OK && rank < p->n_ranks; rank++) {
        int first = 0, namesakes = 0;
        while (facts[first].host != facts[rank].host)
            first++;
        out->host[rank] = first < rank ? out->host[first] : out->n_hosts;
        if (first < rank)
            continue;
        for (int other = 0; other < rank; other++)
            namesakes += strcmp(facts[other].name, facts[rank].name) == 0;
        facts[rank].name[sizeof facts[rank].name - 8] = '\0';
        if (namesakes > 0) /* network namespaces of one machine, say */
            snprintf(out->host_names[out->n_hosts], sizeof *out->host_names, "%.50s-%d",
                     facts[rank].name, rank);
        else
            snprintf(out->host_names[out->n_hosts], sizeof *out->host_names, "%s",
                     facts[rank].name[0] != '\0' ? facts[rank].name : "host");
        out->n_hosts++;
    }
    free(facts);
    return st;
}

static bl_status make(int n_ranks, bl_probe *out, bl_error *err) {
    const size_t n = (size_t)n_ranks;
    out->n_ranks = n_ranks;
    BL_TRY(BL_CALLOC(out->host, n, err));
    BL_TRY(BL_CALLOC(out->host_names, n, err));
    BL_TRY(BL_CALLOC(out->latency_s, n * n, err));
    BL_TRY(BL_CALLOC(out->message_s, n * n, err));
    BL_TRY(BL_CALLOC(out->bytes_per_s, n * n, err));
    BL_TRY(BL_CALLOC(out->inside_bytes_per_s, n, err));
    return BL_CALLOC(out->outside_bytes_per_s, n, err);
}

static bl_status run(prober *p, bl_probe *made, bl_error *err) {
    BL_TRY(make(p->n_ranks, made, err));
    BL_TRY(BL_CALLOC(p->buffer, LARGEST_MESSAGE, err));
    BL_TRY(learn_hosts(p, made, err));
    BL_TRY(p->rank == 0 ? lead_pairs(p, made, err) : serve_orders(p, err));
    if (made->n_hosts < p->n_ranks)
        BL_TRY(load(p, made->host, true, made->inside_bytes_per_s, err));
    if (made->n_hosts > 1)
        BL_TRY(load(p, made->host, false, made->outside_bytes_per_s, err));
    return BL_OK;
}

bl_status bl_probe_run(bl_transport *transport, const bl_probe_options *options, bl_probe *out,
                       bl_error *err) {
    prober p = {.transport = transport,
                .rank = bl_transport_rank(transport),
                .n_ranks = bl_transport_n_ranks(transport),
                .seconds = options->seconds,
                .deadline_s = options->deadline_s,
                .exchange = bl_exchange_over(transport, options->deadline_s)};
    bl_probe made = {0};
    const bl_status st = run(&p, &made, err);
    free(p.buffer);
    if (st < 0 || p.rank != 0)
        bl_probe_free(&made);
    *out = made;
    return st;
}

void bl_probe_free(bl_probe *probe) {
    free(probe->host);
    free(probe->host_names);
    free(probe->latency_s);
    free(probe->message_s);
    free(probe->bytes_per_s);
    free(probe->inside_bytes_per_s);
    free(probe->outside_bytes_per_s);
    *probe = (bl_probe){0};
}
