/* From stage times to the constants of the cost model: times made by known constants give these
 * constants back, and the topology they are put into predicts those times. */
#include "tests/support/traces.h"

#include "cli/topo_calibrate.h"
#include "core/rng.h"
#include "planner/calibrate.h"
#include "tracer/stages.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define F(value) "{\"value\":" value ",\"source\":\"assumed\"}"
#define LEVEL(name, latency, message, rate)                                                \
    "{\"name\":\"" name                                                                    \
    "\",\"latency_s\":" F(latency) ",\"message_s\":" F(message) ",\"out_bytes_per_s\":" F( \
        rate) ",\"in_bytes_per_s\":" F(rate) ",\"ports\":" F("1") "}"
#define DEVICE(name)                                                                  \
    "{\"name\":\"" name "\",\"memory_bytes\":" F("1e9") ",\"memory_bytes_per_s\":" F( \
        "1e9") ",\"expert_share\":" F("0.5") ",\"flop_per_s\":{\"bf16\":" F("1e9") "}}"

/* Two boxes of two ranks; the second rank of each is of another kind. */
static const char *const BOXES =
    "{\"format\":\"ballast-topology\",\"version\":1,\"name\":\"boxes\",\"devices\":"
    "[" DEVICE("slow") "," DEVICE("fast") "],\"levels\":[" LEVEL(
        "node", "1e-5", "0",
        "1e8") "," LEVEL("net", "4e-5", "1e-6",
                         "1e7") "],\"ranks\":[{\"path\":\"a\",\"device\":\"slow\"},{"
                                "\"path\":\"a\",\"device\":"
                                "\"fast\"},{\"path\":\"b\",\"device\":\"slow\"},{"
                                "\"path\":\"b\",\"device\":"
                                "\"fast\"}]}";

static const char *const MODEL =
    "{\"name\":\"boat\",\"num_hidden_layers\":2,\"moe_layers\":[0,1],\"num_experts\":8,"
    "\"num_experts_per_tok\":2,\"hidden_size\":16,\"moe_intermediate_size\":8}";

#define N_RANKS 4
/* The law, us: row, expert in use, layer, of the slow kind and the fast one; and of exchanges. */
static const double LAW[2][3] = {{4, 20, 3}, {1, 9, 2}};
static const double LATENCY = 70, WIRE = 3;

static bool near(double value, double expected, double part) {
    return fabs(value - expected) <= part * fabs(expected);
}

static void open_boxes(bl_model *model, bl_topology *topology, bl_cost **cost) {
    bl_error err;
    assert_ok(bl_model_load(bl_test_write("model.json", MODEL), model, &err));
    assert_ok(bl_topology_open(bl_test_write("boxes.json", BOXES), topology, &err));
    assert_ok(bl_cost_create(model, topology, N_RANKS, cost, &err));
}

static double experts_us(int device, double rows, double active) {
    return LAW[device][0] * rows + LAW[device][1] * active + LAW[device][2];
}

/* A sample of the law; whoever comes last waits for nobody, the others wait. */
static void sample(bl_rng *rng, const bl_cost *cost, const bl_topology *topology, int most_rows,
                   bl_rank_times *ranks) {
    double rows[N_RANKS];
    for (int g = 0; g < N_RANKS; g++) {
        ranks[g].rows = rows[g] = 1 + bl_rng_below(rng, (uint32_t)most_rows);
        ranks[g].active = 1 + floor((fmin(8, rows[g]) - 1) * bl_rng_unit(rng));
        ranks[g].experts_s = 1e-6 * experts_us(topology->device[g], rows[g], ranks[g].active);
    }
    const double exchange_s = 1e-6 * LATENCY + WIRE * bl_cost_wire_s(cost, rows);
    const int last[2] = {(int)bl_rng_below(rng, N_RANKS), (int)bl_rng_below(rng, N_RANKS)};
    for (int g = 0; g < N_RANKS; g++) {
        ranks[g].dispatch_s = exchange_s / 3 + (g == last[0] ? 0 : 1e-3 * bl_rng_unit(rng));
        ranks[g].combine_s = exchange_s * 2 / 3 + (g == last[1] ? 0 : 1e-3 * bl_rng_unit(rng));
    }
}

static void constants_come_back(void **state) {
    (void)state;
    bl_error err;
    bl_model model;
    bl_topology topology;
    bl_cost *cost;
    bl_samples samples;
    bl_rank_times ranks[N_RANKS];
    bl_rng rng;
    bl_calibration c;
    open_boxes(&model, &topology, &cost);
    bl_samples_init(cost, N_RANKS, &samples);
    bl_rng_seed(&rng, 5);
    for (int i = 0; i < 400; i++) {
        sample(&rng, cost, &topology, i % 10 == 0 ? 900 : 30, ranks);
        if (i % 7 == 3 && i < 200) /* the processor was taken away: only what is fitted to is hit */
            ranks[i % N_RANKS].experts_s += 0.004;
        assert_ok(bl_samples_add(&samples, (uint64_t)i / 2, ranks, &err));
    }
    for (int g = 0; g < N_RANKS; g++) /* no sample: nothing was done */
        ranks[g] = (bl_rank_times){.experts_s = 1};
    assert_ok(bl_samples_add(&samples, 200, ranks, &err));
    assert_int_equal(samples.n, 400);
    assert_ok(bl_calibrate(&samples, &topology, &c, &err));
    assert_int_equal(c.n_fitted, 200);
    assert_int_equal(c.from, 100);
    for (int d = 0; d < 2; d++)
        for (int t = 0; t < BL_N_EXPERT_TERMS; t++)
            assert_true(near(c.experts[d].term[t].value, 1e-6 * LAW[d][t], 1e-4));
    assert_true(near(c.exchange.term[BL_TERM_LATENCY].value, 1e-6 * LATENCY, 1e-4));
    assert_true(near(c.exchange.term[BL_TERM_WIRE].value, WIRE, 1e-4));
    assert_int_equal(c.layer.n, 200);
    assert_int_equal(c.step.n, 100);
    assert_true(c.layer.p95_error < 1e-3 && c.step.p95_error < 1e-3);

    /* 2 rates of each kind of device, and latency, message and both bandwidths of both levels. */
    const double before = topology.levels[2].latency_s.value;
    assert_int_equal(bl_calibration_apply(&c, &model, cost, &topology), 12);
    const double flop = 6.0 * 16 * 8, bytes = (double)model.expert_bytes;
    for (int d = 0; d < 2; d++) {
        const bl_device *device = &topology.devices[d];
        assert_true(
            near(bl_device_flop_per_s(device, model.weight_format), flop / LAW[d][0] * 1e6, 1e-3));
        assert_true(near(device->memory_bytes_per_s.value, bytes / LAW[d][1] * 1e6, 1e-3));
        assert_int_equal(device->memory_bytes_per_s.source, BL_MEASURED);
        assert_true(device->reads_apart);
    }
    /* 2 x (4e-5 + 2 x 1e-6) s were both exchanges: two ranks of the other box. */
    assert_true(near(topology.levels[2].latency_s.value, before * 70e-6 / 84e-6, 1e-3));
    assert_true(near(topology.levels[1].out_bytes_per_s.value, 1e8 / 3, 1e-3));
    assert_int_equal(topology.levels[2].in_bytes_per_s.source, BL_MEASURED);

    /* What a plan is made with now is what was measured, but for what every plan pays. */
    bl_cost *fitted;
    bl_layer_placement placement;
    assert_ok(bl_cost_create(&model, &topology, N_RANKS, &fitted, &err));
    bl_placement all;
    const int slots[N_RANKS] = {2, 2, 2, 2}, layers[1] = {0};
    assert_ok(bl_placement_create(N_RANKS, 8, layers, 1, slots, &all, &err));
    bl_placement_fill_contiguous(&all);
    placement = all.layers[0];
    const double slot_rows[8] = {40, 0, 3, 5, 8, 2, 6, 0}, rank_rows[4] = {40, 8, 10, 6};
    double slowest = 0;
    for (int g = 0; g < N_RANKS; g++) {
        const double active = g == 0 || g == 3 ? 1 : 2;
        slowest = fmax(slowest, experts_us(topology.device[g], rank_rows[g], active) -
                                    LAW[topology.device[g]][2]);
    }
    const double expected = 1e-6 * (slowest + LATENCY) + WIRE * bl_cost_wire_s(cost, rank_rows);
    assert_true(near(bl_cost_layer_s(fitted, &placement, slot_rows, rank_rows), expected, 1e-3));
    bl_placement_free(&all);
    bl_cost_free(fitted);
    bl_calibration_free(&c);
    bl_samples_free(&samples);
    bl_cost_free(cost);
    bl_topology_free(&topology);
    bl_model_free(&model);
}

static bl_calibration calibrate(const bl_cost *law, const bl_cost *cost,
                                const bl_topology *topology) {
    bl_error err;
    bl_samples samples;
    bl_rank_times ranks[N_RANKS];
    bl_rng rng;
    bl_calibration c;
    bl_samples_init(cost, N_RANKS, &samples);
    bl_rng_seed(&rng, 9);
    for (int i = 0; i < 200; i++) {
        sample(&rng, law, topology, i % 10 == 0 ? 900 : 30, ranks);
        assert_ok(bl_samples_add(&samples, (uint64_t)i, ranks, &err));
    }
    assert_ok(bl_calibrate(&samples, topology, &c, &err));
    bl_samples_free(&samples);
    return c;
}

/* On a base that is calibrated already there is nothing left to scale; one without any latency gets it. */
static void a_calibrated_base_stays(void **state) {
    (void)state;
    bl_error err;
    bl_model model;
    bl_topology topology;
    bl_cost *law, *fitted;
    open_boxes(&model, &topology, &law);
    bl_calibration c = calibrate(law, law, &topology);
    bl_calibration_apply(&c, &model, law, &topology);
    bl_calibration_free(&c);
    assert_ok(bl_cost_create(&model, &topology, N_RANKS, &fitted, &err));
    assert_true(near(bl_cost_rates_of(fitted)->fixed_s, 1e-6 * LATENCY, 1e-3));
    c = calibrate(law, fitted, &topology);
    assert_true(near(c.exchange.term[BL_TERM_WIRE].value, 1, 1e-3));
    for (int k = 1; k <= 2; k++)
        topology.levels[k].latency_s.value = topology.levels[k].message_s.value = 0;
    bl_cost_free(fitted);
    assert_ok(bl_cost_create(&model, &topology, N_RANKS, &fitted, &err));
    assert_true(bl_cost_rates_of(fitted)->fixed_s == 0);
    bl_calibration_apply(&c, &model, fitted, &topology);
    bl_cost_free(fitted);
    assert_ok(bl_cost_create(&model, &topology, N_RANKS, &fitted, &err));
    assert_true(near(bl_cost_rates_of(fitted)->fixed_s, 1e-6 * LATENCY, 1e-3));
    bl_calibration_free(&c);
    bl_cost_free(fitted);
    bl_cost_free(law);
    bl_topology_free(&topology);
    bl_model_free(&model);
}

/* The same batch in every step, one row to an expert: experts cannot be told from rows, nor bytes from
 * latency. What is known is their sum, and it predicts; what is not told stays as it was. */
static void what_is_not_told_stays(void **state) {
    (void)state;
    bl_error err;
    bl_model model;
    bl_topology topology;
    bl_cost *cost;
    bl_samples samples;
    bl_rank_times ranks[N_RANKS];
    bl_calibration c;
    open_boxes(&model, &topology, &cost);
    bl_samples_init(cost, N_RANKS, &samples);
    for (int i = 0; i < 100; i++) {
        for (int g = 0; g < N_RANKS; g++) {
            const double n = 1 + (i + g) % 3 + (g < 2 ? 0 : 3);
            ranks[g] =
                (bl_rank_times){n, n, 40e-6, 1e-6 * experts_us(topology.device[g], n, n), 30e-6};
        }
        ranks[3].rows = ranks[3].active = 9; /* the busiest port: always the same bytes */
        ranks[3].experts_s = 1e-6 * experts_us(1, 9, 9);
        ranks[2].rows = ranks[2].active = 9;
        ranks[2].experts_s = 1e-6 * experts_us(0, 9, 9);
        assert_ok(bl_samples_add(&samples, (uint64_t)i, ranks, &err));
    }
    assert_ok(bl_calibrate(&samples, &topology, &c, &err));
    assert_int_equal(c.experts[0].term[BL_TERM_ACTIVE].verdict, BL_FIT_TIED);
    assert_true(near(c.experts[0].term[BL_TERM_ROW].value, 24e-6, 1e-4));
    assert_int_equal(c.exchange.term[BL_TERM_WIRE].verdict, BL_FIT_TIED);
    assert_true(near(c.exchange.term[BL_TERM_LATENCY].value, 70e-6, 1e-4));
    assert_true(c.layer.p95_error < 1e-3);
    bl_calibration_apply(&c, &model, cost, &topology);
    assert_true(topology.devices[0].memory_bytes_per_s.value == 1e9);
    assert_int_equal(topology.devices[0].memory_bytes_per_s.source, BL_ASSUMED);
    assert_false(topology.devices[0].reads_apart);
    assert_int_equal(topology.levels[1].out_bytes_per_s.source, BL_ASSUMED);
    assert_int_equal(topology.levels[1].latency_s.source, BL_MEASURED);
    bl_calibration_free(&c);
    bl_samples_free(&samples);
    bl_cost_free(cost);
    bl_topology_free(&topology);
    bl_model_free(&model);
}

static void too_few_are_refused(void **state) {
    (void)state;
    bl_error err;
    bl_model model;
    bl_topology topology;
    bl_cost *cost;
    bl_samples samples;
    bl_calibration c;
    bl_rank_times ranks[N_RANKS] = {
        {1, 1, 1, 1, 1}, {1, 1, 1, 1, 1}, {1, 1, 1, 1, 1}, {1, 1, 1, 1, 1}};
    open_boxes(&model, &topology, &cost);
    bl_samples_init(cost, N_RANKS, &samples);
    assert_fails(bl_calibrate(&samples, &topology, &c, &err), BL_ERR_RANGE, "0 layers");
    for (int i = 0; i < 40; i++)
        assert_ok(bl_samples_add(&samples, (uint64_t)i, ranks, &err));
    assert_fails(bl_calibrate(&samples, &topology, &c, &err), BL_ERR_RANGE, "40 layers");
    bl_samples_free(&samples);
    bl_cost_free(cost);
    bl_topology_free(&topology);
    bl_model_free(&model);
}

/* ---- from a trace -------------------------------------------------------------------------- */

/* Two tokens of each rank in every step and layer, and times by the law for experts where the start
 * layout has them: experts 2 g and 2 g + 1 on rank g. Rank after rank, as recorders write. `with` says
 * which (step, rank) have times. */
static const char *write_trace(const char *name, int n_steps, bool (*with)(int step, int rank)) {
    bl_error err;
    bl_model model;
    bl_topology topology;
    bl_cost *cost;
    const char *path = bl_test_temp(name);
    bl_trace_info info;
    open_boxes(&model, &topology, &cost);
    assert_ok(bl_trace_info_create("boat", (int[]){0, 1}, 2, 8, 2, "test", &info, &err));
    assert_ok(bl_trace_info_set_ranks(&info, N_RANKS, (int[]){0, 1, 2, 3}, N_RANKS, &err));
    bl_blt_writer *writer = bl_test_create(path, &info);
    for (int rank = 0; rank < N_RANKS; rank++) {
        for (int step = 0; step < n_steps; step++) {
            for (int layer = 0; layer < 2; layer++) {
                bl_rng rng;
                int32_t ids[N_RANKS][64];
                double rows[N_RANKS] = {0}, active[N_RANKS] = {0};
                bool seen[8] = {false};
                bl_rng_seed(&rng, (uint64_t)(step * 2 + layer));
                const int n_tokens = step % 5 == 0 ? 32 : 2 + step % 2;
                for (int r = 0; r < N_RANKS; r++) {
                    for (int t = 0; t < n_tokens; t++) {
                        ids[r][2 * t] = (int32_t)bl_rng_below(&rng, 8);
                        ids[r][2 * t + 1] =
                            (ids[r][2 * t] + 1 + (int32_t)bl_rng_below(&rng, 7)) % 8;
                        for (int k = 0; k < 2; k++) {
                            const int32_t e = ids[r][2 * t + k];
                            rows[e / 2] += 1;
                            active[e / 2] += seen[e] ? 0 : 1;
                            seen[e] = true;
                        }
                    }
                }
                const double exchange = 1e9 * (1e-6 * LATENCY + WIRE * bl_cost_wire_s(cost, rows));
                const uint64_t wait = rank == step % N_RANKS ? 0 : 500000;
                const uint64_t ns[BL_N_STAGES] = {
                    [BL_STAGE_DISPATCH] = (uint64_t)(exchange / 2) + wait,
                    [BL_STAGE_EXPERTS] = (uint64_t)(1000 * experts_us(topology.device[rank],
                                                                      rows[rank], active[rank])),
                    [BL_STAGE_COMBINE] = (uint64_t)(exchange / 2) + wait};
                bl_record record = bl_test_record((uint64_t)step, layer, rank, 8, 2,
                                                  (uint64_t)n_tokens, ids[rank]);
                record.stage_ns = with(step, rank) ? ns : NULL;
                bl_test_put(writer, record);
            }
        }
    }
    bl_test_close(writer);
    bl_trace_info_free(&info);
    bl_cost_free(cost);
    bl_topology_free(&topology);
    bl_model_free(&model);
    return path;
}

static bool everywhere(int step, int rank) {
    (void)step, (void)rank;
    return true;
}

static bool nowhere(int step, int rank) {
    (void)step, (void)rank;
    return false;
}

static bool but_one(int step, int rank) {
    return step != 7 || rank != 2;
}

static double number(const json_t *root, const char *a, const char *b, const char *c) {
    const json_t *value = json_object_get(json_object_get(json_object_get(root, a), b), c);
    return json_is_object(value) ? json_number_value(json_object_get(value, "us"))
                                 : json_number_value(value);
}

static void a_trace_becomes_a_topology(void **state) {
    (void)state;
    bl_error err;
    json_t *root, *answer;
    const char *model = bl_test_write("model.json", MODEL),
               *base = bl_test_write("boxes.json", BOXES);
    const bl_topo_calibrate how = {
        .trace = write_trace("times.blt", 120, but_one), .model = model, .base = base, .slots = -1};
    assert_ok(bl_topo_calibrate_run(&how, &root, &answer, &err));
    assert_int_equal(json_integer_value(json_object_get(answer, "steps")), 120);
    assert_int_equal(json_integer_value(json_object_get(answer, "whole_steps")), 119);
    assert_true(near(number(answer, "constants", "exchange_us", "latency"), LATENCY, 1e-2));
    const json_t *experts = json_object_get(json_object_get(answer, "constants"), "experts_us");
    for (size_t d = 0; d < 2; d++) {
        const json_t *one = json_array_get(experts, d);
        assert_true(near(json_number_value(json_object_get(json_object_get(one, "row"), "us")),
                         LAW[d][0], 1e-2));
        assert_true(near(json_number_value(json_object_get(json_object_get(one, "expert"), "us")),
                         LAW[d][1], 2e-2));
    }
    assert_true(
        json_number_value(json_object_get(
            json_object_get(json_object_get(json_object_get(answer, "held_out"), "layer"), "error"),
            "p95")) < 0.01);
    bl_topology topology;
    assert_ok(bl_topology_from_json(root, NULL, NULL, "made", &topology, &err));
    assert_true(topology.devices[1].reads_apart);
    assert_int_equal(topology.devices[1].flop_per_s[BL_WEIGHTS_BF16].source, BL_MEASURED);
    bl_topology_free(&topology);
    const json_t *sources = json_object_get(root, "sources");
    bl_test_has(json_string_value(json_array_get(sources, 1)), "1 of 120 steps did not count");
    json_decref(root);
    json_decref(answer);
}

static void traces_that_do_not_tell_are_refused(void **state) {
    (void)state;
    bl_error err;
    json_t *root, *answer;
    bl_topo_calibrate how = {.trace = write_trace("untimed.blt", 20, nowhere),
                             .model = bl_test_write("model.json", MODEL),
                             .base = bl_test_write("boxes.json", BOXES),
                             .slots = -1};
    assert_fails(bl_topo_calibrate_run(&how, &root, &answer, &err), BL_ERR_UNSUPPORTED,
                 "20 of 20 hold none");
    how.trace = write_trace("short.blt", 10, everywhere);
    assert_fails(bl_topo_calibrate_run(&how, &root, &answer, &err), BL_ERR_RANGE, "20 layers");
    how.base = "hgx-h100:nodes=1";
    how.slots = 4;
    assert_fails(bl_topo_calibrate_run(&how, &root, &answer, &err), BL_ERR_INFEASIBLE, "");
}

/* ---- steps out of records ------------------------------------------------------------------ */

typedef struct seen {
    int n, most; /* 0: all */
    uint64_t last;
    double counts, dispatch_ns;
} seen;

static bl_status see(void *user, const bl_stage_step *step, bl_error *err) {
    seen *s = user;
    (void)err;
    s->n++;
    s->last = step->step;
    for (int e = 0; e < 4; e++)
        s->counts += step->counts[e];
    s->dispatch_ns +=
        step->stage_ns[BL_STAGE_DISPATCH] + step->stage_ns[BL_N_STAGES + BL_STAGE_DISPATCH];
    return s->n == s->most ? BL_LIMIT : BL_OK;
}

static void put(bl_blt_writer *writer, uint64_t step, int rank, unsigned flags,
                const uint64_t *times) {
    bl_record record = bl_test_record(step, 0, rank, 4, 1, 2, (int32_t[]){0, rank});
    record.flags = flags;
    record.stage_ns = times;
    bl_test_put(writer, record);
}

/* Ranks one after another: a window of four steps holds no step of eight until its second rank comes,
 * a larger one does. Two records of a step add up; made-up tokens, missing times and ranks count. */
static void steps_are_put_together(void **state) {
    (void)state;
    bl_error err;
    bl_stream *stream;
    bl_stage_totals totals;
    seen s = {0};
    const uint64_t times[BL_N_STAGES] = {[BL_STAGE_DISPATCH] = 10};
    const char *path = bl_test_temp("steps.blt");
    bl_trace_info info;
    assert_ok(bl_trace_info_create("m", (int[]){0}, 1, 4, 1, "test", &info, &err));
    assert_ok(bl_trace_info_set_ranks(&info, 2, (int[]){0, 1}, 2, &err));
    bl_blt_writer *writer = bl_test_create(path, &info);
    for (int rank = 0; rank < 2; rank++) {
        for (uint64_t step = 0; step < 8; step++) {
            if (step == 3 && rank == 1)
                continue;
            put(writer, step, rank, step == 4 ? BL_RECORD_DUMMY : 0, step == 5 ? NULL : times);
            if (step == 6)
                put(writer, step, rank, 0, times);
        }
    }
    bl_test_close(writer);
    assert_ok(bl_stream_open(path, &stream, &err));
    assert_ok(bl_stages_read(stream, 0, see, &s, &totals, &err));
    assert_int_equal(totals.steps, 8);
    assert_int_equal(totals.whole, 5); /* 0 1 2 6 7 */
    assert_int_equal(totals.made_up, 1);
    assert_int_equal(totals.no_times, 1);
    assert_int_equal(s.n, 5);
    assert_true(s.counts == 4 * 5 + 4);
    assert_true(s.dispatch_ns == 20 * 5 + 20);
    bl_stream_free(stream);
    assert_ok(bl_stream_open(path, &stream, &err));
    s = (seen){0};
    assert_ok(bl_stages_read(stream, 1, see, &s, &totals, &err));
    assert_int_equal(totals.whole, 0);
    assert_int_equal(s.n, 0);
    assert_true(totals.steps > 8); /* halves of steps */
    bl_stream_free(stream);
    assert_ok(bl_stream_open(path, &stream, &err));
    s = (seen){.most = 3};
    assert_ok(bl_stages_read(stream, 0, see, &s, &totals, &err));
    assert_true(totals.cut && s.n == 3 && s.last == 2);
    bl_stream_free(stream);
    bl_trace_info_free(&info);
}

/* A header can claim any shape; nothing is allocated for one that no machine ran. */
static void absurd_shapes_are_refused(void **state) {
    (void)state;
    enum { RANKS = 65536, LAYERS = 4096 };
    static int layers[LAYERS], present[RANKS];
    bl_error err;
    bl_stream *stream;
    bl_stage_totals totals;
    bl_trace_info info;
    const char *path = bl_test_temp("absurd.blt");
    for (int i = 0; i < RANKS; i++)
        present[i] = i;
    memcpy(layers, present, sizeof layers);
    assert_ok(bl_trace_info_create("m", layers, LAYERS, 4, 1, "test", &info, &err));
    assert_ok(bl_trace_info_set_ranks(&info, RANKS, present, RANKS, &err));
    bl_blt_writer *writer = bl_test_create(path, &info);
    put(writer, 0, 1, 0, NULL);
    bl_test_close(writer);
    bl_trace_info_free(&info);
    assert_ok(bl_stream_open(path, &stream, &err));
    assert_fails(bl_stages_read(stream, 0, see, &(seen){0}, &totals, &err), BL_ERR_NOMEM,
                 "65536 ranks and 4096 layers");
    bl_stream_free(stream);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(constants_come_back),
        cmocka_unit_test(a_calibrated_base_stays),
        cmocka_unit_test(what_is_not_told_stays),
        cmocka_unit_test(too_few_are_refused),
        cmocka_unit_test(a_trace_becomes_a_topology),
        cmocka_unit_test(traces_that_do_not_tell_are_refused),
        cmocka_unit_test(steps_are_put_together),
        cmocka_unit_test(absurd_shapes_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
