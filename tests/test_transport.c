/* One conformance suite over all back ends of runtime/transport.h, and the exchanges on top. A case
 * is the body of a rank; every rank of a cluster runs it, as a thread or as a process. */
#include "runtime/exchange.h"
#include "runtime/launch.h"
#include "runtime/round.h"
#include "runtime/transport_sim.h"

#include "core/hash.h"
#include "core/progress.h"
#include "core/rng.h"
#include "tests/fake/fake_nccl.h"
#include "tests/support/support.h"
#include "tests/support/transport_body.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* What a body returns to die on the spot, without a word to its peers. */
#define DIE BL_ERR_ABORTED

typedef bl_status body_fn(bl_transport *t, bl_error *err);

/* ---- cases --------------------------------------------------------------------------------- */

static bl_status body_order(bl_transport *t, bl_error *err) {
    enum { N = 500 };
    const int n_ranks = bl_transport_n_ranks(t);
    for (uint64_t mark = 0; mark < N; mark++)
        for (int peer = 0; peer < n_ranks; peer++)
            for (int channel = 0; channel < BL_N_CHANNELS; channel++)
                BL_TRY(bl_test_send(t, peer, (bl_channel)channel, mark, mark % 97, err));
    for (int channel = BL_N_CHANNELS - 1; channel >= 0; channel--)
        for (int peer = n_ranks - 1; peer >= 0; peer--)
            for (uint64_t mark = 0; mark < N; mark++)
                BL_TRY(bl_test_receive(t, peer, (bl_channel)channel, mark, mark % 97, err));
    return BL_OK;
}

static bl_status body_marks(bl_transport *t, bl_error *err) {
    if (bl_transport_rank(t) == 0) {
        BL_TRY(bl_test_send(t, 1, BL_CHANNEL_STEP, 7, 10, err));
        BL_TRY(bl_test_send(t, 1, BL_CHANNEL_STEP, UINT64_MAX, 10, err));
        return BL_OK;
    }
    bl_message message = {0};
    REQUIRE_FAILS(bl_transport_receive(t, 0, BL_CHANNEL_STEP, 8, WAIT_S, &message, &seen),
                  BL_ERR_STATE, "expected message 8 of rank 0 on channel step and got 7");
    REQUIRE(message.data == NULL);
    BL_TRY(bl_test_receive(t, 0, BL_CHANNEL_STEP, 7, 10, err)); /* it stayed */
    return bl_test_receive(t, 0, BL_CHANNEL_STEP, UINT64_MAX, 10, err);
}

static bl_status body_channels(bl_transport *t, bl_error *err) {
    if (bl_transport_rank(t) == 0) {
        BL_TRY(bl_test_send(t, 1, BL_CHANNEL_MOVE, 1, 3 * MIB, err));
        BL_TRY(bl_test_send(t, 1, BL_CHANNEL_CONTROL, 2, 20, err));
        return bl_test_send(t, 1, BL_CHANNEL_STEP, 3, 30, err);
    }
    BL_TRY(bl_test_receive(t, 0, BL_CHANNEL_STEP, 3, 30, err));
    BL_TRY(bl_test_receive(t, 0, BL_CHANNEL_CONTROL, 2, 20, err));
    return bl_test_receive(t, 0, BL_CHANNEL_MOVE, 1, 3 * MIB, err);
}

/* Both ranks send to each other at once, and to themselves. */
static bl_status body_sizes(bl_transport *t, bl_error *err) {
    static const size_t sizes[] = {0,     1,     15,      16,      17,   4095, 8192,      65535,
                                   65536, 65537, MIB - 1, MIB + 3, 8191, 0,    20000003U, 64 * MIB};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        for (int peer = 0; peer < 2; peer++)
            BL_TRY(bl_test_send(t, peer, BL_CHANNEL_MOVE, i, sizes[i], err));
        for (int peer = 0; peer < 2; peer++)
            BL_TRY(bl_test_receive(t, peer, BL_CHANNEL_MOVE, i, sizes[i], err));
    }
    return BL_OK;
}

/* What a rank sends itself is never held back: nobody else could make room. */
static bl_status body_self(bl_transport *t, bl_error *err) {
    const int rank = bl_transport_rank(t);
    for (uint64_t mark = 0; mark < 3; mark++)
        BL_TRY(bl_test_send(t, rank, BL_CHANNEL_STEP, mark, 2 * BL_LINK_BYTES / 3, err));
    for (uint64_t mark = 0; mark < 3; mark++)
        BL_TRY(bl_test_receive(t, rank, BL_CHANNEL_STEP, mark, 2 * BL_LINK_BYTES / 3, err));
    REQUIRE(bl_transport_sent_bytes(t, -1) == 0);
    REQUIRE(bl_transport_sent_messages(t, -1) == 0);
    return BL_OK;
}

static bl_status body_many_to_one(bl_transport *t, bl_error *err) {
    enum { N = 300 };
    const int n_ranks = bl_transport_n_ranks(t);
    if (bl_transport_rank(t) != 0) {
        for (uint64_t mark = 0; mark < N; mark++)
            BL_TRY(bl_test_send(t, 0, BL_CHANNEL_MOVE, mark, (mark * 37) % 5000, err));
        return bl_test_meet(t, N, err);
    }
    uint64_t next[8] = {0};
    bl_message message;
    bool got;
    for (int n = 0; n < N * (n_ranks - 1); n++) {
        BL_TRY(bl_transport_await(t, BL_CHANNEL_MOVE, WAIT_S, &message, &got, err));
        REQUIRE(got && message.from > 0 && message.from < n_ranks);
        const uint64_t mark = next[message.from]++;
        const bl_status st = bl_test_check(&message, message.from, mark, (mark * 37) % 5000, err);
        bl_message_free(&message);
        BL_TRY(st);
    }
    BL_TRY(bl_transport_poll(t, BL_CHANNEL_STEP, &message, &got, err));
    REQUIRE(!got);
    return bl_test_meet(t, N, err);
}

/* When all have sent, a poll takes from one peer after the other. */
static bl_status body_poll_takes_turns(bl_transport *t, bl_error *err) {
    for (uint64_t mark = 0; mark < 4; mark++)
        BL_TRY(bl_test_send(t, 0, BL_CHANNEL_MOVE, mark, 8, err));
    BL_TRY(bl_test_meet(t, 0, err));
    bl_message none;
    bool any; /* what was said later on another channel may have come sooner */
    BL_TRY(bl_transport_await(t, BL_CHANNEL_STEP, 0.2, &none, &any, err));
    for (int n = 0; bl_transport_rank(t) == 0 && n < 4 * bl_transport_n_ranks(t); n++) {
        bl_message message;
        bool got;
        BL_TRY(bl_transport_await(t, BL_CHANNEL_MOVE, WAIT_S, &message, &got, err));
        REQUIRE(got && message.from == n % bl_transport_n_ranks(t));
        bl_message_free(&message);
    }
    return bl_test_meet(t, 1, err);
}

static size_t size_in_round(uint64_t round, int from, int to) {
    bl_rng rng;
    bl_rng_seed(&rng, round * 1000 + (uint64_t)from * 10 + (uint64_t)to);
    switch (bl_rng_below(&rng, 4)) {
    case 0:
        return 0;
    case 1:
        return bl_rng_below(&rng, 64);
    case 2:
        return bl_rng_below(&rng, 20000);
    default:
        return bl_rng_below(&rng, 300000);
    }
}

static bl_status one_alltoallv(bl_exchange *exchange, uint64_t round, bl_error *err) {
    const int rank = bl_transport_rank(exchange->transport);
    const int n_ranks = bl_transport_n_ranks(exchange->transport);
    bl_outgoing outgoing[8];
    bl_message incoming[8];
    for (int peer = 0; peer < n_ranks; peer++) {
        outgoing[peer].bytes = size_in_round(round, rank, peer);
        outgoing[peer].data = bl_test_content(rank, round, outgoing[peer].bytes);
    }
    bl_status st = bl_exchange_alltoallv(exchange, outgoing, incoming, err);
    for (int peer = 0; peer < n_ranks; peer++) {
        free((void *)(uintptr_t)outgoing[peer].data);
        if (st == BL_OK) {
            incoming[peer].mark = round;
            st = bl_test_check(&incoming[peer], peer, round, size_in_round(round, peer, rank), err);
        }
    }
    bl_exchange_release(incoming, n_ranks);
    return st;
}

static bl_status body_exchanges(bl_transport *t, bl_error *err) {
    const int rank = bl_transport_rank(t), n_ranks = bl_transport_n_ranks(t);
    bl_exchange exchange = bl_exchange_over(t, WAIT_S);
    for (uint64_t round = 0; round < 200; round++) {
        BL_TRY(one_alltoallv(&exchange, round, err));
        uint64_t all[8][3] = {{0}};
        const uint64_t mine[3] = {round, (uint64_t)rank, round * 7 + (uint64_t)rank};
        BL_TRY(bl_exchange_allgather(&exchange, mine, sizeof mine, all, err));
        for (int peer = 0; peer < n_ranks; peer++)
            REQUIRE(all[peer][0] == round && all[peer][1] == (uint64_t)peer &&
                    all[peer][2] == round * 7 + (uint64_t)peer);
    }
    BL_TRY(bl_exchange_allgather(&exchange, NULL, 0, NULL, err)); /* a barrier */
    REQUIRE(exchange.sequence == 401);
    return BL_OK;
}

/* Ranks that are out of step find out at once. */
static bl_status body_exchange_out_of_step(bl_transport *t, bl_error *err) {
    const int rank = bl_transport_rank(t);
    bl_exchange exchange = bl_exchange_over(t, WAIT_S);
    uint64_t all[2][2] = {{0}};
    REQUIRE_FAILS(bl_exchange_allgather(&exchange, all, rank == 0 ? 8 : 16, all, &seen),
                  BL_ERR_SHAPE, rank == 0 ? "of 8 bytes and rank 1 sent 16" : "rank 0 sent 8");
    BL_TRY(bl_test_meet(t, 0, err));
    bl_message incoming[2];
    const bl_outgoing outgoing[2] = {{NULL, 0}, {NULL, 0}};
    if (rank == 0)
        REQUIRE_FAILS(bl_exchange_allgather(&exchange, all, 8, all, &seen), BL_ERR_STATE,
                      "out of step");
    else
        REQUIRE_FAILS(bl_exchange_alltoallv(&exchange, outgoing, incoming, &seen), BL_ERR_STATE,
                      "out of step");
    return bl_test_meet(t, 1, err);
}

static bl_status body_deadline(bl_transport *t, bl_error *err) {
    if (bl_transport_rank(t) == 0) {
        BL_TRY(bl_test_receive(t, 1, BL_CHANNEL_CONTROL, 1, 5, err)); /* only now send */
        return bl_test_send(t, 1, BL_CHANNEL_MOVE, 9, 100, err);
    }
    bl_message message = {0};
    const double start_s = bl_transport_now_s(t);
    REQUIRE_FAILS(bl_transport_receive(t, 0, BL_CHANNEL_MOVE, 9, 0.1, &message, &seen),
                  BL_ERR_TIMEOUT, "waited 0.1 s for message 9 of rank 0 on channel move");
    REQUIRE(bl_transport_now_s(t) - start_s >= 0.1);
    REQUIRE_FAILS(bl_transport_receive(t, 0, BL_CHANNEL_MOVE, 9, 0, &message, &seen),
                  BL_ERR_TIMEOUT, "rank 0");
    REQUIRE_FAILS(bl_transport_receive(t, 1, BL_CHANNEL_MOVE, 9, 0.01, &message, &seen),
                  BL_ERR_TIMEOUT, "rank 1"); /* nothing from itself either */
    bool got = true;
    BL_TRY(bl_transport_await(t, BL_CHANNEL_MOVE, 0.05, &message, &got, err));
    REQUIRE(!got && bl_transport_now_s(t) - start_s >= 0.15);
    BL_TRY(bl_test_send(t, 0, BL_CHANNEL_CONTROL, 1, 5, err));
    return bl_test_receive(t, 0, BL_CHANNEL_MOVE, 9, 100, err);
}

/* A rank that waits sleeps: its thread uses next to no processor time. */
static bl_status body_sleep(bl_transport *t, bl_error *err) {
    BL_TRY(bl_test_meet(t, 0, err));
    if (bl_transport_rank(t) == 0) {
        struct timespec before, after;
        bl_message message;
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &before);
        REQUIRE_FAILS(bl_transport_receive(t, 1, BL_CHANNEL_STEP, 0, 0.5, &message, &seen),
                      BL_ERR_TIMEOUT, "rank 1");
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &after);
        const double used_s = (double)(after.tv_sec - before.tv_sec) +
                              (double)(after.tv_nsec - before.tv_nsec) * 1e-9;
        REQUIRE(used_s < 0.1);
        return bl_test_send(t, 1, BL_CHANNEL_STEP, 1, 8, err);
    }
    return bl_test_receive(t, 0, BL_CHANNEL_STEP, 1, 8, err);
}

/* A link takes what it holds, then holds its sender back, and only that link. */
static bl_status body_full_link(bl_transport *t, bl_error *err) {
    const size_t bytes = BL_LINK_BYTES / 8 - 1000;
    if (bl_transport_rank(t) == 1) {
        uint64_t n;
        bl_message message;
        BL_TRY(bl_transport_receive(t, 0, BL_CHANNEL_STEP, 0, WAIT_S, &message, err));
        memcpy(&n, message.data, sizeof n);
        bl_message_free(&message);
        for (uint64_t mark = 0; mark <= n; mark++)
            BL_TRY(bl_test_receive(t, 0, BL_CHANNEL_MOVE, mark, bytes, err));
        return BL_OK;
    }
    bl_transport_set_deadline(t, 0.3);
    uint64_t n = 0;
    for (;; n++) {
        bl_error seen = BL_ERROR_INIT;
        const bl_status st = bl_test_send(t, 1, BL_CHANNEL_MOVE, n, bytes, &seen);
        if (st == BL_ERR_TIMEOUT) {
            REQUIRE(strstr(seen.text, "rank 1 took nothing from rank 0 on channel move") != NULL);
            break;
        }
        REQUIRE(st == BL_OK && n < 100);
    }
    REQUIRE(n == 8);
    REQUIRE(bl_transport_sent_messages(t, BL_CHANNEL_MOVE) == 8);
    BL_TRY(bl_transport_send(t, 1, BL_CHANNEL_STEP, 0, &n, sizeof n, err));
    bl_transport_set_deadline(t, WAIT_S);
    return bl_test_send(t, 1, BL_CHANNEL_MOVE, n, bytes, err); /* waits for room */
}

/* Rank 2 of 4 dies. Everyone learns it in receive and in send, and the others talk on. */
static bl_status body_loss(bl_transport *t, bl_error *err) {
    const int rank = bl_transport_rank(t);
    REQUIRE(bl_transport_lost(t) == -1);
    BL_TRY(bl_test_meet(t, 0, err));
    if (rank == 2)
        return DIE;
    bl_message message;
    const double start_s = bl_transport_now_s(t);
    REQUIRE_FAILS(bl_transport_receive(t, 2, BL_CHANNEL_STEP, 0, WAIT_S, &message, &seen),
                  BL_ERR_PEER, "rank 2 is lost");
    REQUIRE_FAILS(bl_transport_receive(t, 2, BL_CHANNEL_MOVE, 0, WAIT_S, &message, &seen),
                  BL_ERR_PEER, "rank 2 is lost");
    REQUIRE(bl_transport_now_s(t) - start_s < WAIT_S / 2); /* by notice, not by deadline */
    REQUIRE(bl_transport_lost(t) == 2);
    REQUIRE_FAILS(bl_test_send(t, 2, BL_CHANNEL_STEP, 0, 10, &seen), BL_ERR_PEER, "rank 2 is lost");
    REQUIRE_FAILS(bl_test_send(t, 2, BL_CHANNEL_STEP, 0, MIB, &seen), BL_ERR_PEER, "rank 2");
    for (uint64_t mark = 0; mark < 50; mark++) {
        for (int peer = 0; peer < 4; peer++)
            if (peer != 2)
                BL_TRY(bl_test_send(t, peer, BL_CHANNEL_STEP, mark, mark * 1000, err));
        for (int peer = 0; peer < 4; peer++)
            if (peer != 2)
                BL_TRY(bl_test_receive(t, peer, BL_CHANNEL_STEP, mark, mark * 1000, err));
    }
    return BL_OK;
}

/* A rank that waits for a healthy one in a collective gives up when a third dies. */
static bl_status body_loss_of_a_third(bl_transport *t, bl_error *err) {
    const int rank = bl_transport_rank(t);
    BL_TRY(bl_test_meet(t, 0, err));
    if (rank == 2)
        return DIE;
    if (rank == 0) {
        bl_exchange exchange = bl_exchange_over(t, WAIT_S);
        uint64_t all[3] = {0};
        REQUIRE_FAILS(bl_exchange_allgather(&exchange, all, sizeof *all, all, &seen), BL_ERR_PEER,
                      "rank 2 is lost");
        return bl_test_send(t, 1, BL_CHANNEL_CONTROL, 5, 5, err);
    }
    return bl_test_receive(t, 0, BL_CHANNEL_CONTROL, 5, 5, err); /* never exchanges */
}

/* A sender that waits on a full link, or in the middle of a large message, learns of the death. */
static bl_status body_loss_while_sending(bl_transport *t, bl_error *err) {
    BL_TRY(bl_test_meet(t, 0, err));
    if (bl_transport_rank(t) == 1)
        return DIE;
    for (uint64_t mark = 0; mark < 20; mark++) {
        bl_error seen = BL_ERROR_INIT;
        const bl_status st = bl_test_send(t, 1, BL_CHANNEL_MOVE, mark, 8 * MIB, &seen);
        if (st < 0) {
            REQUIRE(st == BL_ERR_PEER && strstr(seen.text, "rank 1 is lost") != NULL);
            REQUIRE(bl_transport_lost(t) == 1);
            return BL_OK;
        }
    }
    return bl_fail(err, BL_ERR_INTERNAL, "160 MiB went to a dead rank");
}

/* All that was sent before a close arrives; then the peer is closed, which is not a loss. */
static bl_status body_close(bl_transport *t, bl_error *err) {
    BL_TRY(bl_test_meet(t, 0, err));
    if (bl_transport_rank(t) == 1) {
        for (uint64_t mark = 0; mark < 100; mark++)
            BL_TRY(bl_test_send(t, 0, BL_CHANNEL_STEP, mark, mark * 999, err));
        return bl_test_send(t, 0, BL_CHANNEL_MOVE, 0, 10 * MIB, err);
    }
    if (bl_transport_rank(t) == 2)
        return BL_OK;
    bl_message message;
    REQUIRE_FAILS(bl_transport_receive(t, 2, BL_CHANNEL_STEP, 0, WAIT_S, &message, &seen),
                  BL_ERR_PEER, "rank 2 has closed its connection to rank 0");
    for (uint64_t mark = 0; mark < 100; mark++)
        BL_TRY(bl_test_receive(t, 1, BL_CHANNEL_STEP, mark, mark * 999, err));
    BL_TRY(bl_test_receive(t, 1, BL_CHANNEL_MOVE, 0, 10 * MIB, err));
    for (int peer = 1; peer <= 2; peer++)
        REQUIRE_FAILS(bl_transport_receive(t, peer, BL_CHANNEL_MOVE, 0, WAIT_S, &message, &seen),
                      BL_ERR_PEER, "has closed");
    REQUIRE_FAILS(bl_test_send(t, 1, BL_CHANNEL_STEP, 0, 10, &seen), BL_ERR_PEER, "has closed");
    REQUIRE(bl_transport_lost(t) == -1);
    return BL_OK;
}

static bl_status body_counters_and_arguments(bl_transport *t, bl_error *err) {
    const int rank = bl_transport_rank(t), peer = 1 - rank;
    BL_TRY(bl_test_send(t, peer, BL_CHANNEL_STEP, 0, 100, err));
    BL_TRY(bl_test_send(t, peer, BL_CHANNEL_STEP, 1, 0, err));
    BL_TRY(bl_test_send(t, peer, BL_CHANNEL_MOVE, 0, 2 * MIB, err));
    BL_TRY(bl_test_send(t, rank, BL_CHANNEL_MOVE, 0, 7, err));
    REQUIRE(bl_transport_sent_bytes(t, BL_CHANNEL_STEP) == 100);
    REQUIRE(bl_transport_sent_messages(t, BL_CHANNEL_STEP) == 2);
    REQUIRE(bl_transport_sent_bytes(t, BL_CHANNEL_MOVE) == 2 * MIB);
    REQUIRE(bl_transport_sent_bytes(t, BL_CHANNEL_CONTROL) == 0);
    REQUIRE(bl_transport_sent_bytes(t, -1) == 2 * MIB + 100);
    REQUIRE(bl_transport_sent_messages(t, -1) == 3);
    bl_message message;
    REQUIRE_FAILS(bl_test_send(t, 2, BL_CHANNEL_STEP, 0, 1, &seen), BL_ERR_RANGE, "rank 2");
    REQUIRE_FAILS(bl_test_send(t, -1, BL_CHANNEL_STEP, 0, 1, &seen), BL_ERR_RANGE, "rank -1");
    REQUIRE_FAILS(bl_test_send(t, 0, BL_N_CHANNELS, 0, 1, &seen), BL_ERR_RANGE, "channel 3");
    REQUIRE_FAILS(bl_transport_receive(t, 2, BL_CHANNEL_STEP, 0, 1, &message, &seen), BL_ERR_RANGE,
                  "rank 2");
    return bl_test_meet(t, 0, err); /* leaves messages behind: a close must cope */
}

/* ---- rounds -------------------------------------------------------------------------------- */

/* The parts of a round that everybody works out alike: who, how much; `seed` varies it. */
static int make_parts(int n_ranks, uint64_t seed, bl_part *parts) {
    static const size_t sizes[] = {1, 0, 5000, BL_ROUND_CHUNK, BL_ROUND_CHUNK + 1, 9 * MIB + 7};
    bl_rng rng;
    bl_rng_seed(&rng, seed);
    const int n_parts = 1 + (int)bl_rng_below(&rng, 40);
    for (int p = 0; p < n_parts; p++)
        parts[p] = (bl_part){.from = (int)bl_rng_below(&rng, (uint32_t)n_ranks),
                             .to = (int)bl_rng_below(&rng, (uint32_t)n_ranks),
                             .bytes = sizes[bl_rng_below(&rng, p < 3 ? 6 : 3)]};
    return n_parts;
}

static bl_status one_round(bl_transport *t, uint64_t round, bl_error *err) {
    const int rank = bl_transport_rank(t);
    bl_part parts[40];
    unsigned char *sources[40] = {NULL}, *targets[40] = {NULL};
    const int n_parts = make_parts(bl_transport_n_ranks(t), round, parts);
    for (int p = 0; p < n_parts; p++) {
        if (parts[p].from == rank)
            parts[p].source = sources[p] = bl_test_content(rank, (uint64_t)p, parts[p].bytes);
        if (parts[p].to == rank)
            parts[p].target = targets[p] = calloc(1, parts[p].bytes + 1);
    }
    bl_status st = bl_transport_round(t, parts, n_parts, round, err);
    for (int p = 0; p < n_parts; p++) {
        if (st == BL_OK && parts[p].to == rank) {
            unsigned char *want = bl_test_content(parts[p].from, (uint64_t)p, parts[p].bytes);
            if (memcmp(want, targets[p], parts[p].bytes) != 0 || targets[p][parts[p].bytes] != 0)
                st = bl_fail(err, BL_ERR_INTERNAL, "round %llu: part %d is not what was sent",
                             (unsigned long long)round, p);
            free(want);
        }
        free(sources[p]);
        free(targets[p]);
    }
    return st;
}

static bl_status body_rounds(bl_transport *t, bl_error *err) {
    for (uint64_t round = 0; round < 12; round++)
        BL_TRY(one_round(t, round, err));
    const bl_part wrong = {.from = 0, .to = bl_transport_n_ranks(t), .bytes = 1};
    REQUIRE_FAILS(bl_transport_round(t, &wrong, 1, 0, &seen), BL_ERR_RANGE, "part 0 goes from");
    REQUIRE_FAILS(bl_transport_round(t, &wrong, 0, 65536, &seen), BL_ERR_RANGE, "round 65536");
    return bl_test_meet(t, 0, err);
}

/* Who has another list is found out by whoever waits for it. */
static bl_status body_round_mismatch(bl_transport *t, bl_error *err) {
    const int rank = bl_transport_rank(t);
    unsigned char data[2][64] = {{0}};
    bl_part part = {.from = 0, .to = 1, .bytes = 64, .source = data[0], .target = data[1]};
    bl_error seen = BL_ERROR_INIT;
    BL_TRY(bl_test_meet(t, 0, err));
    bl_transport_set_deadline(t, 0.5);
    if (rank == 1)
        part.bytes = 32;
    const bl_status st = bl_transport_round(t, &part, 1, 0, &seen);
    if (rank == 1)
        REQUIRE((st == BL_ERR_STATE || st == BL_ERR_TIMEOUT) &&
                strstr(seen.text, "rank 0") != NULL);
    bl_transport_set_deadline(t, WAIT_S);
    return bl_test_meet(t, 1, err);
}

static bl_status body_round_loss(bl_transport *t, bl_error *err) {
    unsigned char data[64] = {0};
    const bl_part part = {.from = 1, .to = 0, .bytes = 64, .source = data, .target = data};
    BL_TRY(bl_test_meet(t, 0, err));
    if (bl_transport_rank(t) == 1)
        return DIE;
    REQUIRE_FAILS(bl_transport_round(t, &part, 1, 0, &seen), BL_ERR_PEER, "rank 1 is lost");
    return BL_OK;
}

/* ---- running a case on a back end ---------------------------------------------------------- */

typedef struct test_case {
    const char *name;
    int n_ranks;
    body_fn *body;
} test_case;

typedef struct rank_thread {
    pthread_t thread;
    bl_transport *transport;
    body_fn *body;
    bool over_nccl;
    bl_status status;
    bl_error err;
} rank_thread;

static void *run_rank(void *arg) {
    rank_thread *rank = arg;
    if (rank->over_nccl) {
        const bl_nccl_options options = {.device = bl_transport_rank(rank->transport),
                                         .max_ctas = 4};
        rank->status =
            bl_transport_nccl_open(&options, rank->transport, &rank->transport, &rank->err);
        if (rank->status == BL_OK && strcmp(bl_transport_name(rank->transport), "nccl") != 0)
            rank->status = bl_fail(&rank->err, BL_ERR_INTERNAL, "a wrong name");
    }
    if (rank->status == BL_OK)
        rank->status = rank->body(rank->transport, &rank->err);
    if (rank->status == DIE)
        bl_transport_abandon(rank->transport);
    else
        bl_transport_close(rank->transport);
    return NULL;
}

static void run_on_threads(const test_case *test, const char *carrier, bl_transport **handles,
                           bool over_nccl) {
    rank_thread ranks[8];
    for (int rank = 0; rank < test->n_ranks; rank++) {
        assert_int_equal(bl_transport_rank(handles[rank]), rank);
        assert_int_equal(bl_transport_n_ranks(handles[rank]), test->n_ranks);
        assert_string_equal(bl_transport_name(handles[rank]), carrier);
        ranks[rank] = (rank_thread){.transport = handles[rank],
                                    .body = test->body,
                                    .over_nccl = over_nccl,
                                    .err = BL_ERROR_INIT};
        assert_int_equal(pthread_create(&ranks[rank].thread, NULL, run_rank, &ranks[rank]), 0);
    }
    for (int rank = 0; rank < test->n_ranks; rank++)
        pthread_join(ranks[rank].thread, NULL);
    for (int rank = 0; rank < test->n_ranks; rank++)
        if (ranks[rank].status < 0 && ranks[rank].status != DIE)
            fail_msg("rank %d: %s", rank, ranks[rank].err.text);
}

static void run_local(void **state) {
    const test_case *test = *state;
    bl_error err;
    bl_transport *handles[8];
    assert_ok(bl_transport_local_open(test->n_ranks, handles, &err));
    run_on_threads(test, "local", handles, false);
}

/* Over networks of several kinds, none of which may show. */
static void run_sim(void **state) {
    const test_case *test = *state;
    for (uint64_t seed = 0; seed < 3; seed++) {
        bl_sim_options options = BL_SIM_OPTIONS_INIT;
        bl_error err;
        bl_transport *handles[8];
        options.seed = seed;
        options.lose = options.again = 0.15 * (double)seed;
        options.jitter_s = seed == 0 ? 0 : 50e-6;
        assert_ok(bl_transport_sim_open(test->n_ranks, &options, handles, &err));
        run_on_threads(test, "sim", handles, false);
    }
}

/* Messages over threads, rounds over the fake NCCL, which must have nothing to complain of. */
static void run_nccl(void **state) {
    const test_case *test = *state;
    bl_error err;
    bl_transport *handles[8];
    fake_nccl_reset();
    assert_ok(bl_transport_local_open(test->n_ranks, handles, &err));
    run_on_threads(test, "local", handles, true);
    if (fake_nccl_misuse() != NULL)
        fail_msg("misuse of NCCL: %s", fake_nccl_misuse());
    assert_int_equal(fake_nccl_reset(), 0); /* all was given back */
}

static bl_status run_process(const bl_seat *seat, void *user, bl_error *err) {
    const test_case *test = user;
    const bl_ucx_options options = bl_seat_ucx_options(seat, WAIT_S);
    bl_transport *transport;
    BL_TRY(bl_transport_ucx_open(&options, &transport, err));
    REQUIRE(bl_transport_rank(transport) == seat->rank);
    REQUIRE(bl_transport_n_ranks(transport) == test->n_ranks);
    REQUIRE(strcmp(bl_transport_name(transport), "ucx") == 0);
    const bl_status st = test->body(transport, err);
    if (st == DIE)
        raise(SIGKILL);
    bl_transport_close(transport);
    return st;
}

static void run_ucx(void **state) {
    const test_case *test = *state;
    bl_error err = BL_ERROR_INIT;
    bl_rank_end ends[8];
    bl_launch_options options = BL_LAUNCH_OPTIONS_INIT;
    options.others_go_on = true;
    bl_launch_ranks(test->n_ranks, run_process, (void *)(uintptr_t)test, &options, ends, &err);
    for (int rank = 0; rank < test->n_ranks; rank++)
        if (ends[rank].status < 0 && ends[rank].signal != SIGKILL)
            fail_msg("rank %d: %s; %s", rank, bl_status_name(ends[rank].status), err.text);
}

static const test_case cases[] = {
    {"messages arrive in order", 3, body_order},
    {"a wrong mark is seen and takes nothing", 2, body_marks},
    {"channels do not wait for each other", 2, body_channels},
    {"sizes from 0 to 64 MiB, both ways at once", 2, body_sizes},
    {"a rank sends to itself", 2, body_self},
    {"many to one", 4, body_many_to_one},
    {"poll takes turns", 3, body_poll_takes_turns},
    {"200 rounds of exchanges, 1 rank", 1, body_exchanges},
    {"200 rounds of exchanges, 2 ranks", 2, body_exchanges},
    {"200 rounds of exchanges, 3 ranks", 3, body_exchanges},
    {"200 rounds of exchanges, 4 ranks", 4, body_exchanges},
    {"exchanges out of step", 2, body_exchange_out_of_step},
    {"deadlines", 2, body_deadline},
    {"a waiting rank sleeps", 2, body_sleep},
    {"a full link holds its sender back", 2, body_full_link},
    {"a lost rank is named and the others go on", 4, body_loss},
    {"the loss of a third ends a collective", 3, body_loss_of_a_third},
    {"loss while sending", 2, body_loss_while_sending},
    {"close delivers first and is no loss", 3, body_close},
    {"counters and wrong arguments", 2, body_counters_and_arguments},
    {"rounds, 2 ranks", 2, body_rounds},
    {"rounds, 4 ranks", 4, body_rounds},
    {"a round of one rank", 1, body_rounds},
    {"a round of two minds", 2, body_round_mismatch},
    {"loss in a round", 2, body_round_loss},
};
#define N_CASES (sizeof cases / sizeof *cases)

int main(void) {
    static const struct {
        const char *name;
        void (*run)(void **state);
    } back_ends[] = {{"local", run_local}, {"sim", run_sim}, {"ucx", run_ucx}, {"nccl", run_nccl}};
    enum { N_BACK_ENDS = sizeof back_ends / sizeof *back_ends };
    static char names[N_BACK_ENDS * N_CASES][96];
    struct CMUnitTest tests[N_BACK_ENDS * N_CASES];
    for (size_t i = 0; i < N_BACK_ENDS * N_CASES; i++) {
        const test_case *test = &cases[i % N_CASES];
        snprintf(names[i], sizeof names[i], "%s: %s", back_ends[i / N_CASES].name, test->name);
        tests[i] = (struct CMUnitTest){names[i], back_ends[i / N_CASES].run, NULL, NULL,
                                       (void *)(uintptr_t)test};
    }
    return cmocka_run_group_tests_name("transport", tests, NULL, NULL);
}
