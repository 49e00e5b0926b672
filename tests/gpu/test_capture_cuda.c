/* Tracing from a GPU: a captured graph is replayed with changing counts, and what the recorder gets is
 * what a router picked; then the time one push takes at 1, 128 and 4096 tokens. Exits 77 without a GPU. */
#include "tests/support/support.h"

#include "ballast.h"
#include "core/progress.h"
#include "tracer/recorder.h"
#include "tracer/ring.h"
#include "tracer/stream.h"

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { N_LAYERS = 4, K = 8, EXPERTS = 256, MAX_TOKENS = 4096, REPLAYS = 40 };
static const int LAYERS[N_LAYERS] = {3, 4, 5, 9};

#define CUDA(call)                                             \
    do {                                                       \
        const cudaError_t e_ = (call);                         \
        if (e_ != cudaSuccess)                                 \
            fail_msg("%s: %s", #call, cudaGetErrorString(e_)); \
    } while (0)

static const char *ring_name(void) {
    static char name[64];
    snprintf(name, sizeof name, "test-%ld-cuda", (long)getpid());
    return name;
}

static bl_tracer *open_tracer(bl_trace_cuda_block **block) {
    bl_trace_options options = BL_TRACE_OPTIONS_INIT;
    bl_tracer *tracer = NULL;
    options.model = "gpu";
    options.n_experts = EXPERTS;
    options.top_k = K;
    options.layers = LAYERS;
    options.n_layers = N_LAYERS;
    assert_int_equal(bl_trace_open(ring_name(), &options, &tracer), BL_OK);
    assert_int_equal(bl_trace_cuda_open(tracer, block), BL_OK);
    return tracer;
}

static void fill(int32_t *ids, uint64_t step) {
    for (int token = 0; token < MAX_TOKENS; token++) {
        for (int j = 0; j < K; j++)
            ids[token * K + j] =
                (int32_t)((step * 37 + (uint64_t)token * 11 + (uint64_t)j * 31) % EXPERTS);
        if (token % 97 == 5)
            ids[token * K + K - 1] = -1;
    }
}

static uint32_t tokens_of(uint64_t step) {
    static const uint32_t some[] = {1, 128, 0, 4096, 17};
    return some[step % 5];
}

static cudaGraphExec_t capture(bl_tracer *tracer, const int32_t *ids, cudaStream_t stream) {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    assert_int_equal(bl_trace_cuda_step_begin(tracer, stream), BL_OK);
    for (int l = 0; l < N_LAYERS; l++)
        assert_int_equal(bl_trace_push_cuda(tracer, LAYERS[l], ids, 4, MAX_TOKENS, 4 * K, stream),
                         BL_OK);
    assert_int_equal(bl_trace_cuda_step_end(tracer, stream), BL_OK);
    CUDA(cudaStreamEndCapture(stream, &graph));
    CUDA(cudaGraphInstantiate(&exec, graph, 0));
    CUDA(cudaGraphDestroy(graph));
    return exec;
}

/* The later half is recorded as counts, switched from outside while the graph is replayed. */
static bool as_counts(uint64_t step) {
    return step >= REPLAYS / 2;
}

static void assert_counts(const bl_record *record, const int32_t *ids) {
    uint64_t counts[EXPERTS] = {0}, n_empty = 0;
    for (uint64_t i = 0; i < record->n_tokens * K; i++) {
        if (ids[i] < 0)
            n_empty++;
        else
            counts[ids[i]]++;
    }
    assert_null(record->ids);
    assert_int_equal(record->n_empty, n_empty);
    for (int id = 0; id < EXPERTS; id++)
        assert_int_equal(record->counts[id], counts[id]);
}

static void a_graph_is_replayed_with_changing_counts(void **state) {
    (void)state;
    bl_error err;
    bl_trace_cuda_block *block = NULL;
    bl_tracer *tracer = open_tracer(&block);
    bl_recorder *recorder = NULL;
    cudaStream_t stream;
    int32_t *ids, *host = malloc(sizeof *host * MAX_TOKENS * K);
    assert_non_null(host);
    CUDA(cudaStreamCreate(&stream));
    CUDA(cudaMalloc((void **)&ids, sizeof *ids * MAX_TOKENS * K));
    assert_ok(bl_recorder_create(bl_test_temp("gpu.blt"), &recorder, &err));
    assert_ok(bl_recorder_attach(recorder, ring_name(), &err));
    cudaGraphExec_t graph = capture(tracer, ids, stream);
    for (uint64_t step = 0; step < REPLAYS; step++) {
        const bl_trace_cuda_block now = {
            .step = step, .epoch = step / 7, .n_tokens = tokens_of(step), .phase = BL_PHASE_DECODE};
        fill(host, step);
        assert_ok(bl_ring_set_control(
            ring_name(), bl_control_word(1, 1, as_counts(step) ? BL_MODE_COUNTS : BL_MODE_IDS),
            &err));
        CUDA(cudaMemcpyAsync(ids, host, sizeof *ids * MAX_TOKENS * K, cudaMemcpyHostToDevice,
                             stream));
        CUDA(cudaMemcpyAsync(block, &now, sizeof now, cudaMemcpyHostToDevice, stream));
        CUDA(cudaGraphLaunch(graph, stream));
        CUDA(cudaStreamSynchronize(stream)); /* the test's own: `host` is filled again */
        uint64_t n;
        assert_ok(bl_recorder_poll(recorder, &n, &err));
    }
    CUDA(cudaGraphExecDestroy(graph));
    assert_int_equal(bl_trace_cuda_close(tracer), BL_OK);
    bl_trace_close(tracer);
    bl_recorder_totals totals;
    assert_ok(bl_recorder_finish(recorder, &totals, &err));
    assert_int_equal(totals.written, REPLAYS * N_LAYERS);
    bl_stream *stream_of = NULL;
    assert_ok(bl_stream_open(bl_test_temp("gpu.blt"), &stream_of, &err));
    for (uint64_t step = 0; step < REPLAYS; step++) {
        fill(host, step);
        for (int l = 0; l < N_LAYERS; l++) {
            bl_record record;
            bool got;
            assert_ok(bl_stream_next(stream_of, &record, &got, &err));
            assert_true(got);
            assert_int_equal(record.step, step);
            assert_int_equal(record.layer, LAYERS[l]);
            assert_int_equal(record.epoch, step / 7);
            assert_int_equal(record.n_tokens, tokens_of(step));
            if (as_counts(step))
                assert_counts(&record, host);
            else if (record.n_tokens > 0)
                assert_memory_equal(record.ids, host, record.n_tokens * K * sizeof *host);
        }
    }
    bl_stream_free(stream_of);
    CUDA(cudaFree(ids));
    CUDA(cudaStreamDestroy(stream));
    free(host);
}

/* Nobody drains: the ring fills, nothing waits, and everything is counted. */
static void a_full_ring_counts(void **state) {
    (void)state;
    bl_trace_cuda_block *block = NULL;
    bl_tracer *tracer = open_tracer(&block);
    cudaStream_t stream;
    cudaEvent_t begin, end;
    int32_t *ids;
    CUDA(cudaStreamCreate(&stream));
    CUDA(cudaEventCreate(&begin));
    CUDA(cudaEventCreate(&end));
    CUDA(cudaMalloc((void **)&ids, sizeof *ids * MAX_TOKENS * K));
    CUDA(cudaMemset(ids, 0, sizeof *ids * MAX_TOKENS * K));
    static const uint32_t sizes[] = {1, 128, 4096};
    uint64_t step = 0;
    for (int i = 0; i < 3; i++) {
        const bl_trace_cuda_block now = {.step = step++, .n_tokens = sizes[i]};
        float ms = 0;
        CUDA(cudaMemcpyAsync(block, &now, sizeof now, cudaMemcpyHostToDevice, stream));
        bl_trace_cuda_step_begin(tracer, stream);
        CUDA(cudaEventRecord(begin, stream));
        for (int n = 0; n < 200; n++)
            bl_trace_push_cuda(tracer, LAYERS[n % N_LAYERS], ids, 4, MAX_TOKENS, 4 * K, stream);
        CUDA(cudaEventRecord(end, stream));
        bl_trace_cuda_step_end(tracer, stream);
        CUDA(cudaStreamSynchronize(stream));
        CUDA(cudaEventElapsedTime(&ms, begin, end));
        printf("# push of %u tokens x top-8: %.2f us\n", sizes[i], (double)ms * 1000 / 200);
    }
    for (int n = 0; n < 3000; n++) {
        bl_trace_cuda_step_begin(tracer, stream);
        bl_trace_push_cuda(tracer, LAYERS[0], ids, 4, MAX_TOKENS, 4 * K, stream);
        bl_trace_cuda_step_end(tracer, stream);
    }
    CUDA(cudaStreamSynchronize(stream));
    bl_trace_counters counters;
    bl_trace_read_counters(tracer, &counters);
    assert_int_equal(counters.pushed, 3600);
    assert_int_equal(counters.pushed, counters.kept + counters.dropped);
    assert_true(counters.dropped > 0);
    assert_int_equal(bl_trace_cuda_close(tracer), BL_OK);
    bl_trace_close(tracer);
    CUDA(cudaFree(ids));
    CUDA(cudaEventDestroy(begin));
    CUDA(cudaEventDestroy(end));
    CUDA(cudaStreamDestroy(stream));
}

int main(void) {
    int n = 0;
    if (cudaGetDeviceCount(&n) != cudaSuccess || n < 1) {
        puts("# no GPU");
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_graph_is_replayed_with_changing_counts),
        cmocka_unit_test(a_full_ring_counts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
