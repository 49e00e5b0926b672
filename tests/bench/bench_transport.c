/* Ping-pong between two ranks over each back end, and memcpy beside it in the same run; and bundles one
 * after another, as moves send them, beside UCX's own benchmark (ucx_perftest, with the transports it
 * chooses for two processes of one host, and over TCP alone), the two taking turns.
 *
 * Latency is half a round trip; bandwidth is bytes over that. A round trip includes all a user of the
 * transport pays: the copies, the memory of the message and its release. Output, one line per
 * figure: name,value,unit,n,min,median,max where value is the median of n repeats. */
#include "core/progress.h"
#include "runtime/launch.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIB ((size_t)1 << 20)
#define WAIT_S 60.0
#define MAX_REPEATS 2000

typedef struct size_case {
    const char *name; /* of the size */
    size_t bytes;
    int repeats, warmup;
} size_case;

static const size_case figures[] = {
    {"8B", 8, 2000, 200},
    {"64KiB", (size_t)64 << 10, 500, 50},
    {"1MiB", MIB, 200, 20},
    {"44MiB", 44 * MIB, 15, 3},
};
#define N_FIGURES (sizeof figures / sizeof *figures)

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* seconds[n] of moving `bytes` one way: latency in us for small sizes, else GB/s. */
static void print(const char *what, const size_case *figure, double *seconds) {
    const int n = figure->repeats;
    const bool is_latency = figure->bytes < 1024;
    for (int i = 0; i < n; i++)
        seconds[i] = is_latency ? seconds[i] * 1e6 : (double)figure->bytes / seconds[i] * 1e-9;
    qsort(seconds, (size_t)n, sizeof *seconds, by_value);
    const double median = (seconds[(n - 1) / 2] + seconds[n / 2]) / 2;
    printf("transport.%s.%s,%.3f,%s,%d,%.3f,%.3f,%.3f\n", what, figure->name, median,
           is_latency ? "us" : "GB/s", n, seconds[0], median, seconds[n - 1]);
    fflush(stdout);
}

static bl_status bounce(bl_transport *transport, uint64_t mark, const void *data, size_t bytes,
                        bool first, bl_error *err) {
    const int peer = 1 - bl_transport_rank(transport);
    bl_message message;
    if (first)
        BL_TRY(bl_transport_send(transport, peer, BL_CHANNEL_MOVE, mark, data, bytes, err));
    BL_TRY(bl_transport_receive(transport, peer, BL_CHANNEL_MOVE, mark, WAIT_S, &message, err));
    bl_status st = BL_OK;
    if (!first)
        st = bl_transport_send(transport, peer, BL_CHANNEL_MOVE, mark, message.data, message.bytes,
                               err);
    bl_message_free(&message);
    return st;
}

/* Both ranks run this; rank 0 measures and prints. */
static bl_status ping_pong(bl_transport *transport, bl_error *err) {
    static double seconds[2][MAX_REPEATS];
    const int rank = bl_transport_rank(transport);
    uint64_t mark = 0;
    for (size_t f = 0; f < N_FIGURES; f++) {
        unsigned char *data = malloc(figures[f].bytes);
        if (data == NULL)
            return bl_fail(err, BL_ERR_NOMEM, "out of memory");
        memset(data, 1, figures[f].bytes);
        bl_status st = BL_OK;
        for (int i = -figures[f].warmup; st == BL_OK && i < figures[f].repeats; i++) {
            const double start_s = bl_now_s();
            st = bounce(transport, mark++, data, figures[f].bytes, rank == 0, err);
            if (i >= 0)
                seconds[rank][i] = (bl_now_s() - start_s) / 2;
        }
        free(data);
        BL_TRY(st);
        if (rank == 0)
            print(bl_transport_name(transport), &figures[f], seconds[0]);
    }
    return BL_OK;
}

static void measure_memcpy(void) {
    static double seconds[MAX_REPEATS];
    unsigned char *from = malloc(44 * MIB), *to = malloc(44 * MIB);
    if (from == NULL || to == NULL)
        exit(EXIT_FAILURE);
    memset(from, 1, 44 * MIB);
    memset(to, 2, 44 * MIB);
    for (size_t f = 1; f < N_FIGURES; f++) {
        for (int i = -figures[f].warmup; i < figures[f].repeats; i++) {
            const double start_s = bl_now_s();
            memcpy(to, from, figures[f].bytes);
            from[0] = to[figures[f].bytes - 1]; /* or the copy could be left out */
            if (i >= 0)
                seconds[i] = bl_now_s() - start_s;
        }
        print("memcpy", &figures[f], seconds);
    }
    free(from);
    free(to);
}

static void *run_thread(void *transport) {
    bl_error err = BL_ERROR_INIT;
    if (ping_pong(transport, &err) < 0)
        fprintf(stderr, "bench_transport: %s\n", err.text);
    bl_transport_close(transport);
    return NULL;
}

static bl_status measure_local(bl_error *err) {
    bl_transport *handles[2];
    pthread_t threads[2];
    BL_TRY(bl_transport_local_open(2, handles, err));
    for (int rank = 0; rank < 2; rank++)
        pthread_create(&threads[rank], NULL, run_thread, handles[rank]);
    for (int rank = 0; rank < 2; rank++)
        pthread_join(threads[rank], NULL);
    return BL_OK;
}

static bl_status run_process(const bl_seat *seat, void *user, bl_error *err) {
    const bl_ucx_options options = bl_seat_ucx_options(seat, WAIT_S);
    bl_transport *transport;
    (void)user;
    BL_TRY(bl_transport_ucx_open(&options, &transport, err));
    const bl_status st = ping_pong(transport, err);
    bl_transport_close(transport);
    return st;
}

/* ---- bundles one after another ---------------------------------------------------------------- */

#define TURNS 7

static const size_case streams[] = {{"1MiB", MIB, 1500, 50}, {"44MiB", 44 * MIB, 30, 3}};

/* Rank 0 sends all of them, rank 1 takes them and says so at the end; rank 0 reports GB/s. */
static bl_status stream(bl_transport *transport, const size_case *figure, double *gb_per_s,
                        bl_error *err) {
    unsigned char *data = malloc(figure->bytes);
    bl_message message;
    bl_status st = data != NULL ? BL_OK : bl_fail(err, BL_ERR_NOMEM, "out of memory");
    double start_s = 0;
    if (data != NULL)
        memset(data, 1, figure->bytes);
    for (int i = -figure->warmup; st == BL_OK && i < figure->repeats; i++) {
        if (i == 0)
            start_s = bl_now_s();
        if (bl_transport_rank(transport) == 0) {
            st = bl_transport_send(transport, 1, BL_CHANNEL_MOVE, 0, data, figure->bytes, err);
        } else {
            st = bl_transport_receive(transport, 0, BL_CHANNEL_MOVE, 0, WAIT_S, &message, err);
            if (st == BL_OK)
                bl_message_free(&message);
        }
    }
    free(data);
    BL_TRY(st);
    if (bl_transport_rank(transport) == 1)
        return bl_transport_send(transport, 0, BL_CHANNEL_STEP, 0, NULL, 0, err);
    BL_TRY(bl_transport_receive(transport, 1, BL_CHANNEL_STEP, 0, WAIT_S, &message, err));
    bl_message_free(&message);
    *gb_per_s = (double)figure->bytes * figure->repeats / (bl_now_s() - start_s) * 1e-9;
    return BL_OK;
}

static bl_status stream_process(const bl_seat *seat, void *user, bl_error *err) {
    const bl_ucx_options options = bl_seat_ucx_options(seat, WAIT_S);
    bl_transport *transport;
    double gb_per_s = 0;
    BL_TRY(bl_transport_ucx_open(&options, &transport, err));
    bl_status st = stream(transport, user, &gb_per_s, err);
    if (st == BL_OK && seat->rank == 0)
        st = bl_seat_put(seat, &gb_per_s, sizeof gb_per_s, err);
    bl_transport_close(transport);
    return st;
}

static bl_status stream_once(const size_case *figure, double *gb_per_s, bl_error *err) {
    const bl_launch_options options = BL_LAUNCH_OPTIONS_INIT;
    bl_rank_end ends[2];
    const bl_status st =
        bl_launch_ranks(2, stream_process, (void *)(uintptr_t)figure, &options, ends, err);
    if (st == BL_OK)
        memcpy(gb_per_s, ends[0].result, sizeof *gb_per_s);
    bl_rank_ends_free(ends, 2);
    return st;
}

/* What ucx_perftest says of the same; 0 where it is not installed. */
static double perftest_once(const size_case *figure, const char *tls) {
    char command[512], line[256];
    double mb_per_s = 0;
    const int port = 20000 + (int)(bl_now_ns() % 20000);
    snprintf(command, sizeof command,
             "export UCX_TLS=%s; t='-t ucp_am_bw -s %zu -n %d -w %d -p %d'; "
             "ucx_perftest $t >/dev/null 2>&1 & sleep 0.3; "
             "ucx_perftest 127.0.0.1 $t -f -v 2>/dev/null; wait",
             tls, figure->bytes, figure->repeats, figure->warmup, port);
    FILE *pipe = popen(command, "r");
    while (pipe != NULL && fgets(line, sizeof line, pipe) != NULL)
        sscanf(line, "%*f,%*f,%*f,%*f,%*f,%lf", &mb_per_s);
    if (pipe != NULL)
        pclose(pipe);
    return mb_per_s * 1048576e-9; /* it counts in MiB */
}

static void print_turns(const char *what, const char *size, const char *unit, double *values) {
    qsort(values, TURNS, sizeof *values, by_value);
    printf("transport.%s.%s,%.3f,%s,%d,%.3f,%.3f,%.3f\n", what, size, values[TURNS / 2], unit,
           TURNS, values[0], values[TURNS / 2], values[TURNS - 1]);
    fflush(stdout);
}

static bl_status measure_streams(bl_error *err) {
    for (size_t f = 0; f < sizeof streams / sizeof *streams; f++) {
        double ours[TURNS], all[TURNS], tcp[TURNS], ratio[TURNS];
        for (int turn = 0; turn < TURNS; turn++) {
            BL_TRY(stream_once(&streams[f], &ours[turn], err));
            all[turn] = perftest_once(&streams[f], "all");
            tcp[turn] = perftest_once(&streams[f], "tcp,self");
            ratio[turn] = all[turn] > tcp[turn] ? ours[turn] / all[turn] : ours[turn] / tcp[turn];
        }
        print_turns("stream", streams[f].name, "GB/s", ours);
        if (all[0] == 0) {
            fprintf(stderr, "bench_transport: ucx_perftest is not installed (ucx-utils)\n");
            continue;
        }
        print_turns("stream.ucx_perftest", streams[f].name, "GB/s", all);
        print_turns("stream.ucx_perftest_tcp", streams[f].name, "GB/s", tcp);
        print_turns("stream.ratio", streams[f].name, "1", ratio); /* to the better; target 0.8 */
    }
    return BL_OK;
}

int main(void) {
    bl_error err = BL_ERROR_INIT;
    bl_rank_end ends[2];
    const bl_launch_options options = BL_LAUNCH_OPTIONS_INIT;
    measure_memcpy();
    bl_status st = bl_launch_ranks(2, run_process, NULL, &options, ends, &err);
    if (st == BL_OK)
        st = measure_local(&err);
    if (st == BL_OK)
        st = measure_streams(&err);
    if (st < 0)
        fprintf(stderr, "bench_transport: %s\n", err.text);
    return st < 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}
