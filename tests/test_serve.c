/* Serving: prompts in, greedy continuations out, whatever the ranks, batches and commits. */
#include "tests/support/cluster.h"
#include "tests/support/support.h"

#include "core/io.h"
#include "core/json.h"
#include "core/npy.h"
#include "core/rng.h"
#include "runtime/serve.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MODEL "examples/tiny-moe"
#define N_PROMPTS 8
#define N_TOKENS 64

static bl_qwen3 *model;
static const bl_qwen3_config *config;
static char *prompts_text;
static bl_prompt *prompts;
static int n_prompts;
static json_t *greedy;

static int open_model(void **state) {
    (void)state;
    bl_error err;
    size_t bytes;
    assert_ok(bl_qwen3_open(MODEL, &model, &err));
    config = bl_qwen3_config_of(model);
    assert_ok(bl_read_file(MODEL "/reference/prompts.txt", 1 << 20, &prompts_text, &bytes, &err));
    assert_ok(bl_prompts_split(prompts_text, bytes, "prompts.txt", &prompts, &n_prompts, &err));
    assert_ok(bl_json_load(MODEL "/reference/greedy.json", &greedy, &err));
    return 0;
}

static int close_model(void **state) {
    (void)state;
    json_decref(greedy);
    free(prompts);
    free(prompts_text);
    bl_qwen3_free(model);
    return 0;
}

/* ---- prompts ------------------------------------------------------------------------------- */

static void prompts_are_the_reference_tokens(void **state) {
    (void)state;
    bl_error err;
    assert_int_equal(n_prompts, N_PROMPTS);
    for (int i = 0; i < n_prompts; i++) {
        char path[128];
        bl_npy npy;
        snprintf(path, sizeof path, MODEL "/reference/%d.tokens.npy", i);
        assert_ok(bl_npy_load(path, &npy, &err));
        assert_int_equal(prompts[i].bytes, npy.n_items);
        for (size_t t = 0; t < npy.n_items; t++)
            assert_int_equal(prompts[i].text[t], bl_npy_int(&npy, t));
        bl_npy_free(&npy);
    }
}

static void prompts_split_at_lines_of_three_dashes(void **state) {
    (void)state;
    static const struct {
        const char *text;
        int n;
        const char *parts[3];
    } cases[] = {
        {"one", 1, {"one"}},
        {"one\n\n", 1, {"one"}},
        {"one\n---\n two \n\n---\nthree\n", 3, {"one", " two ", "three"}},
        {"a --- b\n----\n--- \n---\nc\n", 2, {"a --- b\n----\n--- ", "c"}},
        {"\n\none\n---\n", 1, {"\n\none"}},
        {"one\n---", 1, {"one"}},
        {"one\n---\n\n\n", 1, {"one"}},
        {"one\r\n---\r\ntwo\r\n", 2, {"one", "two"}},
    };
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        bl_error err;
        bl_prompt *got;
        int n;
        assert_ok(bl_prompts_split(cases[c].text, strlen(cases[c].text), "p", &got, &n, &err));
        assert_int_equal(n, cases[c].n);
        for (int i = 0; i < n; i++) {
            assert_int_equal(got[i].bytes, strlen(cases[c].parts[i]));
            assert_memory_equal(got[i].text, cases[c].parts[i], got[i].bytes);
        }
        free(got);
    }
}

static void empty_and_too_long_prompts_are_named(void **state) {
    (void)state;
    bl_error err;
    bl_prompt *got = NULL;
    int n;
    assert_fails(bl_prompts_split("", 0, "p", &got, &n, &err), BL_ERR_PARSE, "prompt 1 is empty");
    assert_fails(bl_prompts_split("\n\n", 2, "p", &got, &n, &err), BL_ERR_PARSE,
                 "prompt 1 is empty");
    assert_fails(bl_prompts_split("a\n---\n\n---\nb\n", 13, "p", &got, &n, &err), BL_ERR_PARSE,
                 "prompt 2 is empty");
    assert_int_equal(err.line, 3);
    assert_fails(bl_prompts_split("a\n---\n---\n", 10, "p", &got, &n, &err), BL_ERR_PARSE,
                 "prompt 2 is empty");
    assert_null(got);
    char *text = malloc(513);
    memset(text, 'x', 513);
    bl_prompt both[2] = {{(unsigned char *)text, 512}, {(unsigned char *)text, 513}};
    assert_ok(bl_prompts_check(both, 1, config, "p", &err));
    assert_fails(bl_prompts_check(both, 2, config, "p", &err), BL_ERR_RANGE,
                 "prompt 2 has 513 tokens, the model's max_position_embeddings is 512");
    free(text);
}

/* ---- greedy continuations ------------------------------------------------------------------ */

typedef struct serving {
    const bl_prompt *prompts;
    int n_prompts, repeat, max_tokens;
    const char *arrivals; /* path, or NULL: each prompt `repeat` times */
    bl_serve_options options;
    bl_serve_log logs[8]; /* per rank */
    uint64_t seed;        /* of the commits, 0: none */
    uint64_t stop_at;     /* step at which rank 1's hook says stop */
    int n_commits;        /* of rank 0 */
    int n_heard;          /* steps rank 1's hook was in */
} serving;

static bl_status serve(bl_test_rank *rank, bl_error *err) {
    serving *s = rank->user;
    bl_requests requests;
    BL_TRY(s->arrivals != NULL ? bl_requests_read(s->arrivals, s->prompts, s->n_prompts,
                                                  s->max_tokens, &requests, err)
                               : bl_requests_repeat(s->prompts, s->n_prompts, s->repeat,
                                                    s->max_tokens, &requests, err));
    const bl_status st = bl_serve(rank->engine, config, rank->rank, rank->n_ranks, &requests,
                                  &s->options, &s->logs[rank->rank], err);
    bl_requests_free(&requests);
    return st;
}

static void run_serving(const bl_placement *placement, const bl_test_cluster_options *options,
                        serving *s) {
    bl_error err;
    assert_ok(bl_test_cluster(model, placement, options, serve, s, &err));
}

static void free_logs(serving *s) {
    for (int r = 0; r < 8; r++)
        bl_serve_log_free(&s->logs[r]);
}

/* Every request's tokens equal the reference; returns how many requests were answered. */
static int assert_greedy(const serving *s, int n_ranks) {
    int answered = 0;
    for (int r = 0; r < n_ranks; r++) {
        for (int i = 0; i < s->logs[r].n_completions; i++, answered++) {
            const bl_completion *c = &s->logs[r].completions[i];
            const json_t *want = json_array_get(greedy, (size_t)(c->request % s->n_prompts));
            assert_int_equal(c->request % n_ranks, r);
            assert_true(json_real_value(json_object_get(want, "smallest_margin")) > 1e-3);
            assert_int_equal(c->n_tokens, s->max_tokens);
            const json_t *tokens = json_object_get(want, "tokens");
            for (int t = 0; t < c->n_tokens; t++)
                assert_int_equal(c->tokens[t],
                                 json_integer_value(json_array_get(tokens, (size_t)t)));
        }
    }
    return answered;
}

static void greedy_text_is_the_reference(void **state) {
    (void)state;
    static const struct {
        int n_ranks, batch, repeat;
    } cases[] = {{1, 1, 1}, {1, 8, 1}, {2, 3, 2}, {4, 2, 1}, {3, 1, 1}};
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        bl_error err;
        bl_placement placement;
        serving s = {.prompts = prompts,
                     .n_prompts = n_prompts,
                     .repeat = cases[c].repeat,
                     .max_tokens = N_TOKENS,
                     .options = {.batch = cases[c].batch, .sampling = BL_SAMPLING_GREEDY}};
        const bl_test_cluster_options options = {.max_sequences = cases[c].batch};
        assert_ok(bl_test_random_placement(model, cases[c].n_ranks, 100 + c, &placement, &err));
        run_serving(&placement, &options, &s);
        assert_int_equal(assert_greedy(&s, cases[c].n_ranks), N_PROMPTS * cases[c].repeat);
        free_logs(&s);
        bl_placement_free(&placement);
    }
}

/* Loads and steps add up: in every step and layer the ranks' rows are its tokens times k. */
static void logged_rows_add_up(void **state) {
    (void)state;
    bl_error err;
    bl_placement placement;
    serving s = {.prompts = prompts,
                 .n_prompts = n_prompts,
                 .repeat = 1,
                 .max_tokens = 8,
                 .options = {.batch = 4, .sampling = BL_SAMPLING_GREEDY}};
    const bl_test_cluster_options options = {.max_sequences = 4};
    assert_ok(bl_test_contiguous(model, 3, 12, &placement, &err));
    run_serving(&placement, &options, &s);
    assert_true(s.logs[0].n_steps >= 8);
    assert_int_equal(s.logs[0].steps[0].n_tokens, /* prefill of prompts 0, 3, 6 */
                     prompts[0].bytes + prompts[3].bytes + prompts[6].bytes);
    assert_int_equal(s.logs[0].steps[1].n_tokens, 3);
    for (size_t step = 0; step < s.logs[0].n_steps; step++) {
        int64_t tokens = 0;
        for (int r = 0; r < 3; r++) {
            assert_int_equal(s.logs[r].n_steps, s.logs[0].n_steps);
            tokens += s.logs[r].steps[step].n_tokens;
        }
        for (int layer = 0; layer < config->n_layers; layer++) {
            int64_t rows = 0;
            for (int r = 0; r < 3; r++)
                rows += s.logs[r].rows[step * (size_t)config->n_layers + (size_t)layer];
            assert_int_equal(rows, tokens * config->top_k);
        }
    }
    free_logs(&s);
    bl_placement_free(&placement);
}

/* A sequence ends where the model's positions end: 512 tokens fed, one more decoded. */
static void stops_at_the_last_position(void **state) {
    (void)state;
    bl_error err;
    bl_placement placement;
    unsigned char text[510];
    memset(text, 'a', sizeof text);
    const bl_prompt prompt = {text, sizeof text};
    serving s = {.prompts = &prompt,
                 .n_prompts = 1,
                 .repeat = 1,
                 .max_tokens = 100,
                 .options = {.batch = 1, .sampling = BL_SAMPLING_GREEDY}};
    const bl_test_cluster_options options = {.max_sequences = 1};
    assert_ok(bl_test_contiguous(model, 1, 32, &placement, &err));
    run_serving(&placement, &options, &s);
    assert_int_equal(s.logs[0].completions[0].n_tokens, 3);
    free_logs(&s);
    bl_placement_free(&placement);
}

/* ---- pieces, prefixes, arrivals, draws ------------------------------------------------------ */

/* Prompts fed in pieces, requests that begin as an ended one did, and arrival times change when
 * things happen and nothing else. */
static void pieces_prefixes_and_arrivals_change_no_token(void **state) {
    (void)state;
    bl_error err;
    bl_placement placement;
    const bl_test_cluster_options options = {.max_sequences = 2};
    const char *arrivals =
        bl_test_write("arrivals.csv", "seconds,prompt,max_tokens\n"
                                      "0,0,64\n0,1,64\n0.01,2,64\n0.01,3,64\n"
                                      "0.05,4,64\n0.05,5,64\n0.2,6,64\n0.2,7,64\n");
    assert_ok(bl_test_random_placement(model, 2, 7, &placement, &err));
    for (int how = 0; how < 4; how++) {
        serving s = {.prompts = prompts,
                     .n_prompts = n_prompts,
                     .repeat = 2,
                     .max_tokens = N_TOKENS,
                     .arrivals = how == 3 ? arrivals : NULL,
                     .options = {.batch = how == 1 ? 1 : 2,
                                 .prefill_tokens = how == 2 ? 0 : 7,
                                 .keep_prefixes = how != 0,
                                 .sampling = BL_SAMPLING_GREEDY}};
        run_serving(&placement, &options, &s);
        assert_int_equal(assert_greedy(&s, 2), how == 3 ? 8 : 16);
        for (int r = 0; r < 2; r++) {
            for (int i = 0; i < s.logs[r].n_completions; i++) {
                const bl_completion *c = &s.logs[r].completions[i];
                for (int t = 1; t < c->n_tokens; t++)
                    assert_true(c->ready_ns[t] >= c->ready_ns[t - 1]);
            }
        }
        free_logs(&s);
    }
    bl_placement_free(&placement);
}

/* One place, the same prompt twice: the second time all but its last token are there. */
static void a_prefix_is_fed_once(void **state) {
    (void)state;
    bl_error err;
    bl_placement placement;
    const bl_test_cluster_options options = {.max_sequences = 1};
    const int bytes = (int)prompts[0].bytes;
    assert_ok(bl_test_contiguous(model, 1, 32, &placement, &err));
    for (int keep = 0; keep < 2; keep++) {
        serving s = {
            .prompts = prompts,
            .n_prompts = 1,
            .repeat = 2,
            .max_tokens = N_TOKENS,
            .options = {.batch = 1, .keep_prefixes = keep != 0, .sampling = BL_SAMPLING_GREEDY}};
        run_serving(&placement, &options, &s);
        assert_int_equal(assert_greedy(&s, 1), 2);
        assert_int_equal(s.logs[0].completions[0].n_cached, 0);
        assert_int_equal(s.logs[0].completions[1].n_cached, keep != 0 ? bytes - 1 : 0);
        int64_t fed = 0;
        for (size_t step = 0; step < s.logs[0].n_steps; step++)
            fed += s.logs[0].steps[step].n_tokens;
        assert_int_equal(fed, 2 * (bytes + N_TOKENS - 1) - (keep != 0 ? bytes - 1 : 0));
        free_logs(&s);
    }
    bl_placement_free(&placement);
}

/* Drawn text depends on the seed, and not on ranks, placement or batch. */
static void drawn_text_depends_on_the_seed_alone(void **state) {
    (void)state;
    bl_error err;
    int32_t first[N_PROMPTS][N_TOKENS] = {{0}};
    int differ = 0;
    for (int how = 0; how < 4; how++) {
        bl_placement placement;
        const int n_ranks = how + 1;
        serving s = {.prompts = prompts,
                     .n_prompts = n_prompts,
                     .repeat = 1,
                     .max_tokens = N_TOKENS,
                     .options = {.batch = 1 + how % 3, .sampling = {0.8, 0.95, how < 3 ? 5 : 6}}};
        const bl_test_cluster_options options = {.max_sequences = 3};
        assert_ok(bl_test_random_placement(model, n_ranks, 40 + (uint64_t)how, &placement, &err));
        run_serving(&placement, &options, &s);
        for (int request = 0; request < N_PROMPTS; request++) {
            const bl_completion *c = &s.logs[request % n_ranks].completions[request / n_ranks];
            assert_int_equal(c->n_tokens, N_TOKENS);
            if (how == 0)
                memcpy(first[request], c->tokens, sizeof first[request]);
            else if (how < 3)
                assert_memory_equal(first[request], c->tokens, sizeof first[request]);
            else
                differ += memcmp(first[request], c->tokens, sizeof first[request]) != 0;
        }
        free_logs(&s);
        bl_placement_free(&placement);
    }
    assert_int_equal(differ, N_PROMPTS);
}

/* Over many positions a token is drawn as often as its probability says; the nucleus leaves out
 * what it should. Probabilities 1/2, 1/4, 1/8, 1/8. */
static void draws_follow_the_probabilities(void **state) {
    (void)state;
    bl_error err;
    enum { N = 80000 };
    static const float logits[4] = {-0.693147f, -2.079442f, 0.0f, -2.079442f};
    static const struct {
        double temperature, top_p, want[4];
    } cases[] = {{1, 1, {0.25, 0.125 / 2, 0.5, 0.0625}},
                 {1, 0.7, {1.0 / 3, 0, 2.0 / 3, 0}},
                 {1, 0.5, {0, 0, 1, 0}},
                 {0.5, 1, {16. / 82, 1. / 82, 64. / 82, 1. / 82}},
                 {0, 1, {0, 0, 1, 0}}};
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        bl_sampler sampler;
        int n[4] = {0};
        double sum = 0;
        const bl_sampling how = {cases[c].temperature, cases[c].top_p, 9};
        assert_ok(bl_sampler_create(&how, 4, &sampler, &err));
        for (int i = 0; i < N; i++)
            n[bl_sample(&sampler, logits, i / 100, i % 100)]++;
        for (int i = 0; i < 4; i++)
            sum += cases[c].want[i];
        for (int i = 0; i < 4; i++) {
            const double want = cases[c].want[i] / sum;
            assert_true(fabs((double)n[i] / N - want) < 5 * sqrt(want * (1 - want) / N) + 1e-9);
        }
        bl_sampler_free(&sampler);
    }
}

static void arrival_traces_are_checked(void **state) {
    (void)state;
    bl_error err;
    bl_requests requests;
    assert_ok(bl_requests_read(bl_test_write("a.csv", "seconds,prompt\n0,1\n1.5,0\n"), prompts, 2,
                               9, &requests, &err));
    assert_int_equal(requests.n, 2);
    const bl_request second = bl_requests_at(&requests, 1);
    assert_true(second.due_s == 1.5 && second.prompt == 0 && second.max_tokens == 9);
    bl_requests_free(&requests);
    static const struct {
        const char *text;
        bl_status status;
        const char *part;
        int64_t line;
    } cases[] = {
        {"", BL_ERR_PARSE, "no request arrives", 0},
        {"seconds,prompt\n", BL_ERR_PARSE, "no request arrives", 0},
        {"0,1\n", BL_ERR_PARSE, "the header must be", 1},
        {"seconds,prompt\n0,1\n-1,1\n", BL_ERR_RANGE, "times ascend", 3},
        {"seconds,prompt\n2,1\n1,1\n", BL_ERR_RANGE, "times ascend", 3},
        {"seconds,prompt\n0,1\n2e9,1\n", BL_ERR_RANGE, "2e+09 s, but must within 1e+09 s", 3},
        {"seconds,prompt\nnan,1\n", BL_ERR_PARSE, "nan", 2},
        {"seconds,prompt\n0,2\n", BL_ERR_RANGE, "2", 2},
        {"seconds,prompt,max_tokens\n0,1,0\n", BL_ERR_RANGE, "0", 2},
        {"seconds,prompt\n0\n", BL_ERR_PARSE, "1 fields", 2},
    };
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        assert_fails(
            bl_requests_read(bl_test_write("b.csv", cases[c].text), prompts, 2, 9, &requests, &err),
            cases[c].status, cases[c].part);
        if (cases[c].line > 0)
            assert_int_equal(err.line, cases[c].line);
    }
    assert_fails(bl_requests_repeat(prompts, 8, 1 << 28, 9, &requests, &err), BL_ERR_RANGE,
                 "too many requests");
}

/* ---- placements that change under way ------------------------------------------------------ */

typedef struct mover {
    bl_test_rank *rank;
    serving *s;
    bl_rng rng;
} mover;

static _Thread_local mover moving;

/* A layer's next map: the same on every rank, for they draw from the same seed. */
static void redraw(const bl_layer_placement *map, bl_layer_placement *next, bl_rng *rng) {
    const int n_slots = bl_layer_n_slots(map);
    for (int tries = 0; tries < 40; tries++) { /* swap two slots wherever the rules allow it */
        const int a = (int)bl_rng_below(rng, (uint32_t)n_slots);
        const int b = (int)bl_rng_below(rng, (uint32_t)n_slots);
        const int32_t kept = next->expert[a];
        next->expert[a] = next->expert[b];
        next->expert[b] = kept;
        if (bl_layer_placement_check(next, NULL, NULL) < 0) {
            next->expert[b] = next->expert[a];
            next->expert[a] = kept;
        }
    }
    next->epoch = map->epoch + 1;
}

/* Fetch what this rank lacks from the checkpoint, commit, retire. */
static bl_status move_layer(bl_test_rank *rank, int layer, bl_rng *rng, bl_error *err) {
    const bl_layer_placement *map = bl_store_map(rank->store, layer);
    bl_layer_placement next;
    bl_arrival arrivals[32];
    int n = 0;
    BL_TRY(bl_layer_placement_copy(map, &next, err));
    redraw(map, &next, rng);
    for (int slot = next.begin[rank->rank]; slot < next.begin[rank->rank + 1]; slot++) {
        const int expert = next.expert[slot];
        if (expert == BL_NO_EXPERT || bl_layer_find(map, rank->rank, expert) >= 0)
            continue;
        arrivals[n].expert = expert;
        BL_TRY(bl_store_reserve(rank->store, &arrivals[n].spare, err));
        BL_TRY(bl_qwen3_read_expert(rank->model, layer, expert,
                                    bl_store_spare(rank->store, arrivals[n].spare), err));
        n++;
    }
    BL_TRY(bl_store_commit(rank->store, &next, arrivals, n, err));
    bl_store_retire(rank->store, layer);
    bl_layer_placement_free(&next);
    return BL_OK;
}

static bl_status move_at_step(void *user, uint64_t step, const bl_step_note *notes, int n_ranks,
                              bl_error *err) {
    mover *m = &moving;
    (void)user, (void)notes, (void)n_ranks;
    if (step % 3 == 0)
        return BL_OK;
    if (m->rank->rank == 0)
        m->s->n_commits++;
    return move_layer(m->rank, (int)(step % (uint64_t)config->n_layers), &m->rng, err);
}

static bl_engine_hooks moving_hooks(bl_test_rank *rank) {
    moving = (mover){.rank = rank, .s = rank->user};
    bl_rng_seed(&moving.rng, moving.s->seed);
    return (bl_engine_hooks){.at_step = move_at_step};
}

static void text_is_the_same_while_experts_move(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 3; seed++) {
        bl_error err;
        bl_placement placement;
        serving s = {.prompts = prompts,
                     .n_prompts = n_prompts,
                     .repeat = 1,
                     .max_tokens = N_TOKENS,
                     .options = {.batch = 2, .sampling = BL_SAMPLING_GREEDY},
                     .seed = seed};
        const bl_test_cluster_options options = {
            .max_sequences = 2, .n_spares = 32, .hooks = moving_hooks};
        assert_ok(bl_test_random_placement(model, 3, seed, &placement, &err));
        run_serving(&placement, &options, &s);
        assert_int_equal(assert_greedy(&s, 3), N_PROMPTS);
        assert_true(s.n_commits > 80);
        free_logs(&s);
        bl_placement_free(&placement);
    }
}

/* ---- hooks --------------------------------------------------------------------------------- */

static _Thread_local bl_test_rank *hooked;

static bl_status speak(void *user, uint64_t step, bl_step_note *mine, bl_error *err) {
    (void)user, (void)err;
    const serving *s = hooked->user;
    mine->user[0] = (unsigned char)(40 + hooked->rank);
    if (hooked->rank == 1 && s->stop_at > 0 && step == s->stop_at)
        mine->flags |= BL_NOTE_STOP;
    if (hooked->rank == 1 && s->stop_at == 0 && step < 100)
        mine->flags |= BL_NOTE_BUSY;
    return BL_OK;
}

static bl_status hear(void *user, uint64_t step, const bl_step_note *notes, int n_ranks,
                      bl_error *err) {
    serving *s = hooked->user;
    (void)user;
    if (hooked->rank == 1) /* the others must not even touch it */
        s->n_heard++;
    for (int r = 0; r < n_ranks; r++)
        if (notes[r].user[0] != 40 + r)
            return bl_fail(err, BL_ERR_INTERNAL, "step %d: rank %d's note is not here", (int)step,
                           r);
    return BL_OK;
}

static bl_engine_hooks speaking(bl_test_rank *rank) {
    hooked = rank;
    return (bl_engine_hooks){.before_step = speak, .at_step = hear};
}

/* Rank 1 has no request at all and is busy for 100 steps: all ranks stay in step. */
static void idle_ranks_stay_in_step(void **state) {
    (void)state;
    bl_error err;
    bl_placement placement;
    serving s = {.prompts = prompts,
                 .n_prompts = 1,
                 .repeat = 1,
                 .max_tokens = 5,
                 .options = {.batch = 1, .sampling = BL_SAMPLING_GREEDY},
                 .stop_at = 0};
    const bl_test_cluster_options options = {.max_sequences = 1, .hooks = speaking};
    assert_ok(bl_test_contiguous(model, 2, 16, &placement, &err));
    run_serving(&placement, &options, &s);
    assert_int_equal(s.logs[1].n_completions, 0);
    assert_int_equal(s.logs[1].n_steps, 5); /* empty steps leave no record */
    assert_int_equal(s.n_heard, 101);       /* 100 busy ones and the one that ends it */
    assert_int_equal(s.logs[0].completions[0].n_tokens, 5);
    free_logs(&s);
    bl_placement_free(&placement);
}

static void stop_ends_all_ranks_at_one_step(void **state) {
    (void)state;
    bl_error err;
    bl_placement placement;
    serving s = {.prompts = prompts,
                 .n_prompts = n_prompts,
                 .repeat = 1,
                 .max_tokens = N_TOKENS,
                 .options = {.batch = 1, .sampling = BL_SAMPLING_GREEDY},
                 .stop_at = 10};
    const bl_test_cluster_options options = {.max_sequences = 1, .hooks = speaking};
    assert_ok(bl_test_contiguous(model, 2, 16, &placement, &err));
    run_serving(&placement, &options, &s);
    for (int r = 0; r < 2; r++) {
        assert_true(s.logs[r].stopped);
        assert_int_equal(s.logs[r].n_steps, 11);
        assert_int_equal(s.logs[r].completions[0].n_tokens, 11);
        assert_int_equal(s.logs[r].n_completions, 1); /* no other was begun */
    }
    free_logs(&s);
    bl_placement_free(&placement);
}

/* A step that fails leaves the sequences as they were, and can be taken again. */
static _Thread_local int failures_left;

static bl_status fail_in_layer_3(void *user, uint64_t step, int layer, const int32_t *ids,
                                 int n_tokens, int k, bl_error *err) {
    (void)user, (void)step, (void)ids, (void)n_tokens, (void)k;
    if (layer == 3 && failures_left-- > 0)
        return bl_fail(err, BL_ERR_ABORTED, "as asked");
    return BL_OK;
}

static bl_engine_hooks failing(bl_test_rank *rank) {
    (void)rank;
    return (bl_engine_hooks){.on_route = fail_in_layer_3};
}

static bl_status step_twice(bl_test_rank *rank, bl_error *err) {
    float *logits[2] = {rank->user, (float *)rank->user + config->vocab};
    int32_t tokens[40];
    for (int t = 0; t < 40; t++)
        tokens[t] = prompts[0].text[t];
    failures_left = 0;
    for (int round = 0; round < 2; round++) {
        bl_step_result result;
        bl_chunk chunk = {
            .sequence = round, .n_tokens = 39, .tokens = tokens, .logits = logits[round]};
        BL_TRY(bl_engine_step(rank->engine, &chunk, 1, 1, &result, err));
        chunk.tokens = tokens + 39;
        chunk.n_tokens = 1;
        failures_left = round;
        if (round == 1 &&
            (bl_engine_step(rank->engine, &chunk, 1, 1, &result, NULL) != BL_ERR_ABORTED ||
             bl_engine_length(rank->engine, 1) != 39 || bl_engine_steps(rank->engine) != 3))
            return bl_fail(err, BL_ERR_INTERNAL, "the failed step left a trace");
        BL_TRY(bl_engine_step(rank->engine, &chunk, 1, 1, &result, err));
    }
    return BL_OK;
}

static void failed_step_can_be_repeated(void **state) {
    (void)state;
    bl_error err;
    bl_placement placement;
    float logits[2 * 256];
    const bl_test_cluster_options options = {.max_sequences = 2, .hooks = failing};
    assert_ok(bl_test_contiguous(model, 1, 32, &placement, &err));
    assert_ok(bl_test_cluster(model, &placement, &options, step_twice, logits, &err));
    assert_memory_equal(logits, logits + 256, 256 * sizeof logits[0]);
    bl_placement_free(&placement);
}

/* One rank fails: the others end with an error, they do not hang. */
static bl_status fail_on_rank_2(bl_test_rank *rank, bl_error *err) {
    const int32_t token = 65;
    const bl_chunk chunk = {.sequence = 0, .n_tokens = 1, .tokens = &token};
    bl_step_result result;
    BL_TRY(bl_engine_step(rank->engine, &chunk, 1, 1, &result, err));
    if (rank->rank == 2)
        return bl_fail(err, BL_ERR_ABORTED, "rank 2 gives up");
    return bl_engine_step(rank->engine, &chunk, 1, 1, &result, err);
}

static void lost_rank_ends_the_others(void **state) {
    (void)state;
    bl_error err = BL_ERROR_INIT;
    bl_placement placement;
    const bl_test_cluster_options options = {.max_sequences = 1};
    assert_ok(bl_test_contiguous(model, 3, 11, &placement, &err));
    assert_int_equal(bl_test_cluster(model, &placement, &options, fail_on_rank_2, NULL, &err),
                     BL_ERR_ABORTED);
    bl_test_has(err.text, "rank 2 gives up");
    bl_placement_free(&placement);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prompts_are_the_reference_tokens),
        cmocka_unit_test(prompts_split_at_lines_of_three_dashes),
        cmocka_unit_test(empty_and_too_long_prompts_are_named),
        cmocka_unit_test(greedy_text_is_the_reference),
        cmocka_unit_test(logged_rows_add_up),
        cmocka_unit_test(stops_at_the_last_position),
        cmocka_unit_test(pieces_prefixes_and_arrivals_change_no_token),
        cmocka_unit_test(a_prefix_is_fed_once),
        cmocka_unit_test(drawn_text_depends_on_the_seed_alone),
        cmocka_unit_test(draws_follow_the_probabilities),
        cmocka_unit_test(arrival_traces_are_checked),
        cmocka_unit_test(text_is_the_same_while_experts_move),
        cmocka_unit_test(idle_ranks_stay_in_step),
        cmocka_unit_test(stop_ends_all_ranks_at_one_step),
        cmocka_unit_test(failed_step_can_be_repeated),
        cmocka_unit_test(lost_rank_ends_the_others),
    };
    return cmocka_run_group_tests(tests, open_model, close_model);
}
