/*
 * ballast run: serve a model on several ranks.
 */
#include "cli/run_back.h"
#include "cli/run_join.h"
#include "cli/run_mover.h"
#include "cli/run_output.h"
#include "cli/run_place.h"
#include "cli/verbs.h"
#include "core/io.h"
#include "core/mem.h"
#include "core/npy.h"
#include "core/progress.h"
#include "rebalancer/policy.h"
#include "runtime/launch.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { TRANSPORT_UCX, TRANSPORT_LOCAL };
static const char *const TRANSPORTS[] = {"ucx", "local", NULL};

#define MAX_PROMPT_FILE ((size_t)1 << 28)
#define DEADLINE_S 60.0
#define LEAST_SILENCE_S 0.05

typedef struct run_options {
    int64_t n_ranks, rank, slots, spares, move_bytes, max_tokens, repeat, batch, prefill_tokens,
        seed, window;
    const char *model, *plan, *topology, *prompts, *arrivals, *tokens, *logits, *topk, *record,
        *socket, *journal, *join;
    double temperature, top_p, silence_s, rest_s;
    int transport, rule, dispatch;
    bool keep_prefixes, json, automatic, stage_times;
} run_options;

#define AT(field) .offset = offsetof(run_options, field)
static const bl_opt OPTIONS[] = {
    {.name = "ranks",
     .short_name = 'n',
     .type = BL_OPT_INT,
     AT(n_ranks),
     .metavar = "N",
     .min = 1,
     .max = BL_LAUNCH_MAX_RANKS,
     .help = "number of ranks; left out by those that mpirun or torchrun started"},
    {.name = "model",
     .type = BL_OPT_STRING,
     AT(model),
     .metavar = "DIR",
     .help =
         "directory of config.json and the weights, model.safetensors or the files of its index",
     .required = true},
    {.name = "plan",
     .type = BL_OPT_STRING,
     AT(plan),
     .metavar = "PLAN",
     .help = "where the experts live; contiguous without one"},
    {.name = "slots",
     .type = BL_OPT_INT,
     AT(slots),
     .metavar = "S",
     .min = -1,
     .max = 1 << 20,
     .help = "without a plan: slots per layer over all ranks, copies included; -1: one per expert"},
    {.name = "topology",
     .type = BL_OPT_STRING,
     AT(topology),
     .metavar = "T",
     .help = "machines and nodes of the ranks, for rules that look at them and bytes by domain; "
             "else all are on one"},
    {.name = "rule",
     .type = BL_OPT_CHOICE,
     AT(rule),
     .choices = bl_rule_names,
     .help = "how copies share their expert's rows; by default as the plan says, else even"},
    {.name = "dispatch",
     .type = BL_OPT_CHOICE,
     AT(dispatch),
     .choices = bl_combine_names, /* all but allgather */
     .help = "what travels for a token: a row for each of its experts, one for each rank, or one "
             "for each node"},
    {.name = "spares",
     .type = BL_OPT_INT,
     AT(spares),
     .metavar = "N",
     .min = 0,
     .max = 1 << 20,
     .help = "expert buffers per rank kept free for moves"},
    {.name = "socket",
     .type = BL_OPT_STRING,
     AT(socket),
     .metavar = "PATH",
     .help = "where to hear ballast apply, status and abort; with --spares there is a usual place"},
    {.name = "join",
     .type = BL_OPT_STRING,
     AT(join),
     .metavar = "SOCKET",
     .help =
         "come back, as --rank, to the running cluster that answers there and has lost that rank"},
    {.name = "rank",
     .type = BL_OPT_INT,
     AT(rank),
     .metavar = "R",
     .min = -1,
     .max = BL_LAUNCH_MAX_RANKS - 1,
     .help = "with --join: which rank this process is"},
    {.name = "move-bytes",
     .type = BL_OPT_BYTES,
     AT(move_bytes),
     .metavar = "B",
     .min = BL_AGENT_MIN_STEP_BYTES,
     .max = 1e12,
     .help = "bytes of experts that a rank sends per step at most while they move"},
    {.name = "auto",
     .type = BL_OPT_FLAG,
     AT(automatic),
     .help = "rebalance when that pays, as ballast rebalance --auto does"},
    {.name = "journal",
     .type = BL_OPT_STRING,
     AT(journal),
     .metavar = "FILE",
     .help = "record every move and who asked for it; without --plan, start where FILE left off"},
    {.name = "rest",
     .type = BL_OPT_DURATION,
     AT(rest_s),
     .metavar = "SECONDS",
     .min = 0,
     .max = 1e9,
     .help = "with --auto: between two moves"},
    {.name = "window",
     .type = BL_OPT_INT,
     AT(window),
     .metavar = "STEPS",
     .min = 1,
     .max = 1 << 20,
     .help = "steps over which the live load is summed"},
    {.name = "prompts",
     .type = BL_OPT_STRING,
     AT(prompts),
     .metavar = "FILE",
     .help = "prompts to continue, separated by lines that hold only ---"},
    {.name = "max-tokens",
     .type = BL_OPT_INT,
     AT(max_tokens),
     .metavar = "M",
     .min = 1,
     .max = 1 << 24,
     .help = "tokens decoded per prompt at most"},
    {.name = "repeat",
     .type = BL_OPT_INT,
     AT(repeat),
     .metavar = "N",
     .min = 1,
     .max = 1e9,
     .help = "serve the list of prompts this many times"},
    {.name = "batch",
     .type = BL_OPT_INT,
     AT(batch),
     .metavar = "B",
     .min = 1,
     .max = 4096,
     .help = "sequences a rank serves at once"},
    {.name = "prefill-tokens",
     .type = BL_OPT_INT,
     AT(prefill_tokens),
     .metavar = "N",
     .min = 0,
     .max = 1 << 24,
     .help = "tokens of one prompt fed per step at most, so that others decode meanwhile; 0: all"},
    {.name = "keep-prefixes",
     .type = BL_OPT_FLAG,
     AT(keep_prefixes),
     .help = "start a prompt from the keys and values of an ended one that began alike"},
    {.name = "arrivals",
     .type = BL_OPT_STRING,
     AT(arrivals),
     .metavar = "FILE",
     .help = "which prompt (0 is the first) arrives when, as CSV with the header "
             "seconds,prompt,max_tokens; else all at once"},
    {.name = "temperature",
     .type = BL_OPT_REAL,
     AT(temperature),
     .metavar = "T",
     .min = 0,
     .max = 100,
     .help = "draw tokens from softmax(logits / T); 0: take the likeliest"},
    {.name = "top-p",
     .type = BL_OPT_REAL,
     AT(top_p),
     .metavar = "P",
     .min = 1e-9,
     .max = 1,
     .help = "draw among the likeliest tokens that together have this probability"},
    {.name = "seed",
     .type = BL_OPT_INT,
     AT(seed),
     .metavar = "N",
     .min = 0,
     .max = 1e15,
     .help = "seed of the draws; the same seed gives the same text on any ranks and plan"},
    {.name = "tokens",
     .type = BL_OPT_STRING,
     AT(tokens),
     .metavar = "IN.npy",
     .help = "token ids, one row, whose logits to compute instead"},
    {.name = "logits",
     .type = BL_OPT_STRING,
     AT(logits),
     .metavar = "OUT.npy",
     .help = "where to write the logits, f4 [tokens, vocab]"},
    {.name = "topk",
     .type = BL_OPT_STRING,
     AT(topk),
     .metavar = "OUT.npy",
     .help = "where to write the chosen experts, u1 or u2 [tokens, layers, k]"},
    {.name = "record",
     .type = BL_OPT_STRING,
     AT(record),
     .metavar = "OUT.blt",
     .help =
         "record the routing of all ranks into this trace; with a launcher's ranks a directory, "
         "in which each makes a file"},
    {.name = "stage-times",
     .type = BL_OPT_FLAG,
     AT(stage_times),
     .help = "with --record: and how long every layer's stages took, for ballast topo calibrate"},
    {.name = "transport",
     .type = BL_OPT_CHOICE,
     AT(transport),
     .choices = TRANSPORTS,
     .help = "ranks as processes (ucx) or as threads (local)"},
    {.name = "silence",
     .type = BL_OPT_DURATION,
     AT(silence_s),
     .metavar = "SECONDS",
     .min = 0,
     .max = 1e6,
     .help = "a rank unheard of for this long, stopped or cut off, is lost; 0: never"},
    {.name = "json", .type = BL_OPT_FLAG, AT(json), .help = "one JSON object with all figures"},
    {0}};

static void set_defaults(void *options) {
    run_options *o = options;
    o->silence_s = BL_TRANSPORT_SILENCE_S;
    o->slots = o->rank = -1;
    o->rule = -1;
    o->move_bytes = (int64_t)4 << 20;
    o->max_tokens = 64;
    o->repeat = 1;
    o->window = 64;
    o->rest_s = ((bl_policy_options)BL_POLICY_OPTIONS_INIT).rest_s;
    o->batch = 8;
    o->top_p = 1;
    o->seed = 1;
}

/* ---- the job ------------------------------------------------------------------------------- */

static bl_status load_config(bl_run_job *job, bl_error *err) {
    char path[4096];
    json_t *root;
    bl_model model = {0};
    snprintf(path, sizeof path, "%s/config.json", job->model_dir);
    BL_TRY(bl_json_load(path, &root, err));
    bl_status st = bl_qwen3_config_from_json(root, path, &job->config, err);
    if (st >= 0)
        st = bl_model_from_json(root, path, &model, err);
    snprintf(job->model_name, sizeof job->model_name, "%s", model.name);
    bl_model_free(&model);
    json_decref(root);
    return st;
}

/* Where the last run with this journal left the experts; and it can be written. */
static bl_status resume(const run_options *o, bl_run_job *job, bl_error *err) {
    bl_journal *journal;
    bl_journal_past past;
    if (o->journal == NULL || o->join != NULL) /* it is the running cluster's */
        return BL_OK;
    BL_TRY(bl_journal_succeed(o->journal, o->plan == NULL ? &job->placement : NULL, &past, &journal,
                              err));
    bl_journal_close(journal);
    if (past.torn_bytes > 0)
        fprintf(stderr, "ballast run: %s: the last record was torn (%zu bytes) and is cut\n",
                o->journal, past.torn_bytes);
    if (o->plan == NULL && past.n_waves > 0)
        fprintf(stderr, "ballast run: %s: going on from move %llu%s\n", o->journal,
                (unsigned long long)past.move, past.ended ? "" : ", which had not ended");
    return BL_OK;
}

static bl_status load_prompts(const run_options *o, bl_run_job *job, bl_error *err) {
    size_t bytes;
    BL_TRY(bl_read_file(o->prompts, MAX_PROMPT_FILE, &job->prompts_text, &bytes, err));
    BL_TRY(bl_prompts_split(job->prompts_text, bytes, o->prompts, &job->prompts, &job->n_prompts,
                            err));
    BL_TRY(bl_prompts_check(job->prompts, job->n_prompts, &job->config, o->prompts, err));
    job->serve = (bl_serve_options){
        .batch = (int)o->batch,
        .prefill_tokens = (int)o->prefill_tokens,
        .keep_prefixes = o->keep_prefixes,
        .sampling = {.temperature = o->temperature, .top_p = o->top_p, .seed = (uint64_t)o->seed}};
    if (o->arrivals != NULL)
        return bl_requests_read(o->arrivals, job->prompts, job->n_prompts, (int)o->max_tokens,
                                &job->requests, err);
    return bl_requests_repeat(job->prompts, job->n_prompts, o->repeat, (int)o->max_tokens,
                              &job->requests, err);
}

static bl_status take_tokens(const bl_npy *npy, const char *path, bl_run_job *job, bl_error *err) {
    if ((npy->kind != 'i' && npy->kind != 'u') || npy->n_dims != 1 || npy->n_items == 0)
        return bl_fail_at(err, BL_ERR_SHAPE, bl_at(path),
                          "needs one row of integers: i4 [tokens], at least one");
    if (npy->n_items > (size_t)job->config.max_positions)
        return bl_fail_at(err, BL_ERR_RANGE, bl_at(path),
                          "%zu tokens, the model's max_position_embeddings is %d", npy->n_items,
                          job->config.max_positions);
    BL_TRY(BL_CALLOC(job->tokens, npy->n_items, err));
    job->n_tokens = (int)npy->n_items;
    for (size_t i = 0; i < npy->n_items; i++) {
        const int64_t token = bl_npy_int(npy, i);
        if (token < 0 || token >= job->config.vocab)
            return bl_fail_at(err, BL_ERR_RANGE, bl_at(path),
                              "token %zu is %lld, the vocabulary has %d", i, (long long)token,
                              job->config.vocab);
        job->tokens[i] = (int32_t)token;
    }
    return BL_OK;
}

static bl_status load_tokens(const run_options *o, bl_run_job *job, bl_error *err) {
    bl_npy npy;
    BL_TRY(bl_npy_load(o->tokens, &npy, err));
    const bl_status st = take_tokens(&npy, o->tokens, job, err);
    bl_npy_free(&npy);
    return st;
}

/* An option that would change nothing is a mistake, and is not passed over in silence. */
static bl_status check_company(const run_options *o, bl_error *err) {
    run_options standard = {0};
    set_defaults(&standard);
    const bool moves = o->spares > 0 || o->socket != NULL;
    const struct {
        bool alone;
        const char *say;
    } cases[] = {
        {o->rest_s != standard.rest_s && !o->automatic, "--rest goes with --auto"},
        {o->top_p != standard.top_p && !(o->temperature > 0), "--top-p goes with --temperature"},
        {o->window != standard.window && !moves, "--window goes with --spares or --socket"},
        {o->move_bytes != standard.move_bytes && o->spares == 0, "--move-bytes goes with --spares"},
        {o->spares > 0 && o->tokens != NULL, "--spares goes with --prompts"},
        {o->stage_times && o->record == NULL, "--stage-times goes with --record"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        if (cases[i].alone)
            return bl_fail(err, BL_ERR_USAGE, "%s", cases[i].say);
    return BL_OK;
}

static bl_status check_options(const run_options *o, bl_error *err) {
    if ((o->prompts == NULL) == (o->tokens == NULL))
        return bl_fail(err, BL_ERR_USAGE, "give either --prompts or --tokens");
    if (o->tokens != NULL && o->logits == NULL)
        return bl_fail(err, BL_ERR_USAGE, "--tokens needs --logits OUT.npy");
    if ((o->join != NULL) != (o->rank >= 0))
        return bl_fail(err, BL_ERR_USAGE, "--join SOCKET and --rank R go together");
    if (o->join != NULL &&
        (o->tokens != NULL || o->record != NULL || o->automatic || o->transport != TRANSPORT_UCX))
        return bl_fail(err, BL_ERR_USAGE,
                       "--join goes with --prompts, and without --record, --auto and --transport "
                       "local");
    if (o->tokens != NULL && o->socket != NULL)
        return bl_fail(err, BL_ERR_USAGE, "--socket goes with --prompts");
    if (o->arrivals != NULL && (o->tokens != NULL || o->repeat != 1))
        return bl_fail(err, BL_ERR_USAGE, "--arrivals goes with --prompts and without --repeat");
    if (o->automatic && (o->tokens != NULL || o->spares < 1))
        return bl_fail(err, BL_ERR_USAGE,
                       "--auto goes with --prompts and at least one of --spares");
    if (o->silence_s > 0 && o->silence_s < LEAST_SILENCE_S)
        return bl_fail(
            err, BL_ERR_USAGE,
            "--silence is %g s, but must be 0 or at least %g s: ranks that only wait for "
            "a processor would be lost",
            o->silence_s, LEAST_SILENCE_S);
    if (o->prompts != NULL && (o->logits != NULL || o->topk != NULL))
        return bl_fail(err, BL_ERR_USAGE, "--logits and --topk go with --tokens");
    return check_company(o, err);
}

static bl_status make_job(const run_options *o, bl_run_job *job, bl_error *err) {
    job->model_dir = o->model;
    job->dispatch = (bl_dispatch)o->dispatch;
    job->n_spares = (int)o->spares;
    job->socket = o->join != NULL && o->socket == NULL ? o->join : o->socket;
    job->move_bytes = o->move_bytes;
    job->journal = o->journal;
    job->window_steps = (int)o->window;
    job->deadline_s = DEADLINE_S;
    job->silence_s = o->silence_s;
    job->needs_socket = o->automatic;
    BL_TRY(load_config(job, err));
    if (o->spares > job->config.n_experts)
        return bl_fail(
            err, BL_ERR_USAGE,
            "--spares is %lld, but a wave moves experts of one layer, which has %d; more "
            "buffers would never be used",
            (long long)o->spares, job->config.n_experts);
    const bl_run_place place = {o->plan, o->topology, o->slots, o->rule};
    BL_TRY(bl_run_place_experts(&place, job, err));
    BL_TRY(resume(o, job, err));
    return o->prompts != NULL ? load_prompts(o, job, err) : load_tokens(o, job, err);
}

/* -n ranks, those of which a launcher made this process one, or those of the cluster to come back to. */
static bl_status find_ranks(const run_options *o, bl_run_join *join, const bl_run_back *back,
                            int *n_ranks, bl_error *err) {
    *join = (bl_run_join){.found = false};
    if (o->join != NULL) {
        BL_TRY(bl_run_back_find(back, (int)o->spares, n_ranks, err));
        if (o->n_ranks != 0 && o->n_ranks != *n_ranks)
            return bl_fail(err, BL_ERR_USAGE, "the cluster has %d ranks, and -n says %d", *n_ranks,
                           (int)o->n_ranks);
        return BL_OK;
    }
    if (o->transport == TRANSPORT_UCX)
        BL_TRY(bl_run_join_find((int)o->n_ranks, join, err));
    *n_ranks = join->found ? join->options.n_ranks : (int)o->n_ranks;
    if (*n_ranks == 0)
        return bl_fail(err, BL_ERR_USAGE,
                       "run needs -n N, or to be started by torchrun, mpirun or mpiexec");
    return BL_OK;
}

/* ---- ranks as threads ---------------------------------------------------------------------- */

typedef struct rank_thread {
    const bl_run_job *job;
    int rank;
    bl_transport *transport; /* until the rank takes it */
    bl_run_report *report;
    bl_status status;
    bl_error error;
    pthread_t thread;
} rank_thread;

static bl_status take_handle(void *user, bl_transport **out, bl_error *err) {
    rank_thread *rank = user;
    (void)err;
    *out = rank->transport;
    rank->transport = NULL;
    return BL_OK;
}

static void *thread_main(void *user) {
    rank_thread *rank = user;
    rank->status =
        bl_run_rank(rank->job, rank->rank, take_handle, rank, rank->report, &rank->error);
    bl_transport_close(rank->transport); /* a rank that failed before: its peers see it as lost */
    return NULL;
}

static bl_status run_threads(const bl_run_job *job, bl_run_report *reports, bl_error *err) {
    const int n = job->n_ranks;
    rank_thread ranks[BL_LAUNCH_MAX_RANKS] = {{0}};
    bl_transport *handles[BL_LAUNCH_MAX_RANKS];
    const rank_thread *cause = NULL;
    int started = 0;
    BL_TRY(bl_transport_local_open(n, handles, err));
    bl_run_recorder_start(job->recorder);
    bl_run_auto_start(job->automatic);
    for (; started < n; started++) {
        rank_thread *rank = &ranks[started];
        *rank = (rank_thread){.job = job,
                              .rank = started,
                              .transport = handles[started],
                              .report = &reports[started],
                              .error = BL_ERROR_INIT};
        if (pthread_create(&rank->thread, NULL, thread_main, rank) != 0)
            break;
    }
    for (int g = started; g < n; g++) /* its peers see it as lost */
        bl_transport_close(handles[g]);
    for (int g = 0; g < started; g++) {
        pthread_join(ranks[g].thread, NULL);
        if (ranks[g].status < 0 && (cause == NULL || cause->status == BL_ERR_PEER))
            cause = &ranks[g];
    }
    if (started < n)
        return bl_fail(err, BL_ERR_NOMEM, "cannot start a thread for rank %d", started);
    if (cause == NULL)
        return BL_OK;
    if (err != NULL && err->code >= 0)
        *err = cause->error;
    return cause->status;
}

/* ---- ranks as processes -------------------------------------------------------------------- */

typedef struct rank_process {
    const bl_seat *seat;
    double deadline_s, silence_s;
} rank_process;

static bl_status connect_process(void *user, bl_transport **out, bl_error *err) {
    const rank_process *process = user;
    bl_ucx_options options = bl_seat_ucx_options(process->seat, process->deadline_s);
    options.silence_s = process->silence_s;
    return bl_transport_ucx_open(&options, out, err);
}

static bl_status process_main(const bl_seat *seat, void *user, bl_error *err) {
    const bl_run_job *job = user;
    rank_process process = {seat, job->deadline_s, job->silence_s};
    bl_run_report report;
    unsigned char *data;
    size_t bytes;
    bl_interrupts_install();
    bl_run_recorder_forked(job->recorder);
    BL_TRY(bl_run_rank(job, seat->rank, connect_process, &process, &report, err));
    bl_status st = bl_run_report_encode(&report, &data, &bytes, err);
    bl_run_report_free(&report);
    if (st >= 0) {
        st = bl_seat_put(seat, data, bytes, err);
        free(data);
    }
    return st;
}

static void ranks_started(const int *pids, int n_ranks, void *user) {
    const bl_run_job *job = user;
    (void)pids, (void)n_ranks;
    bl_run_recorder_start(job->recorder);
    bl_run_auto_start(job->automatic);
}

/* Ranks that were lost have no report. Their requests are lost with them, the others' are whole. */
static bl_status take_reports(const bl_run_job *job, const bl_rank_end *ends,
                              bl_run_report *reports, bl_error *err) {
    int survivor = -1;
    bl_status st = BL_OK;
    for (int g = 0; g < job->n_ranks && st >= 0; g++) {
        if (ends[g].status < 0)
            continue;
        st = bl_run_report_decode(ends[g].result, ends[g].result_bytes, &reports[g], err);
        survivor = survivor < 0 ? g : survivor;
    }
    for (int g = 0; g < job->n_ranks && st >= 0; g++) {
        if (ends[g].status < 0)
            st = bl_run_report_of_lost(&reports[survivor], &reports[g], err);
    }
    return st;
}

static int n_survivors(const bl_run_job *job, const bl_rank_end *ends) {
    int n = 0;
    for (int g = 0; g < job->n_ranks; g++)
        n += ends[g].status >= 0;
    return n;
}

/* BL_ERR_PEER with reports: some ranks were lost, the others have gone on. */
static bl_status run_processes(bl_run_job *job, bl_run_report *reports, bl_error *err) {
    bl_launch_options options = BL_LAUNCH_OPTIONS_INIT;
    options.started = ranks_started;
    options.others_go_on = bl_run_mover_wanted(job);
    options.max_result_bytes =
        bl_run_report_most_bytes(&job->config, job->n_ranks, &job->requests,
                                 job->tokens != NULL ? (size_t)job->n_tokens : 0);
    bl_rank_end *ends;
    BL_TRY(BL_CALLOC(ends, job->n_ranks, err));
    bl_status st = bl_launch_ranks(job->n_ranks, process_main, job, &options, ends, err);
    if (st < 0 && job->socket != NULL) /* rank 0 may have been killed */
        bl_control_sweep(job->socket);
    const bool some_lost = st < 0 && options.others_go_on && n_survivors(job, ends) > 0;
    if (some_lost || st >= 0) {
        bl_error why = BL_ERROR_INIT;
        const bl_status taken = take_reports(job, ends, reports, &why);
        job->some_lost = some_lost && taken >= 0;
        if (taken < 0 && st >= 0) {
            st = taken;
            if (err != NULL)
                *err = why;
        }
    }
    bl_rank_ends_free(ends, job->n_ranks);
    free(ends);
    return st;
}

/* ---- results ------------------------------------------------------------------------------- */

static bl_status write_topk(const bl_run_job *job, const bl_run_report *report, const char *path,
                            bl_error *err) {
    const bl_qwen3_config *c = &job->config;
    const size_t shape[3] = {(size_t)job->n_tokens, (size_t)c->n_layers, (size_t)c->top_k};
    const bool wide = c->n_experts > 256;
    unsigned char *ids;
    BL_TRY(BL_CALLOC(ids, report->n_topk * (wide ? 2 : 1), err));
    for (size_t i = 0; i < report->n_topk; i++) {
        const uint16_t id = (uint16_t)report->topk[i];
        if (wide)
            memcpy(ids + 2 * i, &id, sizeof id);
        else
            ids[i] = (unsigned char)id;
    }
    const bl_status st = bl_npy_write(path, wide ? "<u2" : "|u1", shape, 3, ids, err);
    free(ids);
    return st;
}

static bl_status write_results(const run_options *o, const bl_run_job *job,
                               const bl_run_report *reports, const bl_recorder_totals *trace,
                               bl_error *err) {
    if (job->tokens != NULL) {
        const size_t shape[2] = {(size_t)job->n_tokens, (size_t)job->config.vocab};
        BL_TRY(bl_npy_write(o->logits, "<f4", shape, 2, reports[0].logits, err));
        if (o->topk != NULL)
            BL_TRY(write_topk(job, &reports[0], o->topk, err));
    }
    if (o->json)
        BL_TRY(bl_run_print_json(job, TRANSPORTS[o->transport], reports, trace, err));
    else if (job->tokens == NULL)
        BL_TRY(bl_run_print_texts(job, reports, err));
    if (!o->json)
        BL_TRY(bl_run_print_prediction(job, reports, err));
    if (trace->dropped + trace->rejected > 0)
        fprintf(stderr, "ballast run: the trace lacks %llu of %llu records\n",
                (unsigned long long)(trace->dropped + trace->rejected),
                (unsigned long long)trace->pushed);
    if (!reports[0].log.stopped)
        return BL_OK;
    int complete, requests;
    bl_run_count_complete(job, reports, &complete, &requests);
    fprintf(stderr, "ballast run: stopped with %d of %d continuations complete\n", complete,
            requests);
    return BL_LIMIT;
}

/* Run the ranks, and the recorder beside them. When it fails while they serve, they serve on, and
 * `trace` says it. */
static bl_status run_ranks(const run_options *o, bl_run_job *job, bl_run_join *join,
                           bl_run_report *reports, bl_run_trace *trace, bl_error *err) {
    bl_run_auto *automatic = NULL;
    if (o->record != NULL && join->found)
        BL_TRY(bl_run_recorder_open_rank(o->record, join->options.rank, &job->recorder, err));
    else if (o->record != NULL)
        BL_TRY(bl_run_recorder_open(o->record, job->n_ranks, &job->recorder, err));
    if (o->stage_times)
        bl_run_recorder_keep_times(job->recorder);
    bl_status st = BL_OK;
    if (o->automatic)
        st = bl_run_auto_open(o->socket, o->rest_s, &automatic, err);
    if (join->found)
        job->led = automatic;
    else
        job->automatic = automatic;
    if (st >= 0)
        st = job->back != NULL                 ? bl_run_back_run(job, reports, err)
             : join->found                     ? bl_run_join_run(job, join, reports, trace, err)
             : o->transport == TRANSPORT_LOCAL ? run_threads(job, reports, err)
                                               : run_processes(job, reports, err);
    bl_run_auto_close(automatic, st >= 0);
    if (job->recorder != NULL)
        trace->status = bl_run_recorder_close(job->recorder, &trace->totals, &trace->error);
    job->recorder = NULL;
    if (trace->status < 0 && st == BL_ERR_PEER) { /* ranks saw only that it was gone */
        *err = trace->error;
        return trace->status;
    }
    return st;
}

static bl_status run(void *options, int n_args, char **args, bl_error *err) {
    const run_options *o = options;
    bl_run_job job = {0};
    bl_run_report *reports = NULL;
    bl_run_trace trace = {.error = BL_ERROR_INIT};
    bl_run_join join;
    (void)n_args, (void)args;
    bl_interrupts_install(); /* the ranks stop, and the recording is closed */
    bl_run_back back = {.socket = o->join, .rank = (int)o->rank};
    BL_TRY(check_options(o, err));
    BL_TRY(find_ranks(o, &join, &back, &job.n_ranks, err));
    job.back = o->join != NULL ? &back : NULL;
    bl_status st = make_job(o, &job, err);
    if (st >= 0)
        st = BL_CALLOC(reports, job.n_ranks, err);
    if (st >= 0)
        st = run_ranks(o, &job, &join, reports, &trace, err);
    const bool lost_trace = st >= 0 && trace.status < 0;
    const bool prints = !join.found || join.collects;
    if (st < 0 && job.some_lost && !o->json) /* of JSON there is one object: the error */
        write_results(o, &job, reports, &trace.totals, NULL);
    if (st >= 0 && prints && !(lost_trace && o->json))
        st = write_results(o, &job, reports, &trace.totals, err);
    if (st >= 0 && lost_trace) {
        *err = trace.error;
        st = trace.status;
    }
    for (int g = 0; reports != NULL && g < job.n_ranks; g++)
        bl_run_report_free(&reports[g]);
    free(reports);
    bl_run_job_free(&job);
    return st;
}

const bl_verb bl_verb_run = {
    .name = "run",
    .arguments = "",
    .summary = "serve a model on several ranks, experts where the plan says",
    .details =
        "Runs a Qwen3-MoE checkpoint: attention data-parallel, experts expert-parallel, each "
        "rank a process that holds the experts the plan gives it and no others. Prompts are "
        "continued byte by byte; request i is served by rank i mod N. The result "
        "does not depend on the plan, the number of ranks or the batch, bit for bit.\n\n"
        "Prints the continuations in the order of the prompts, separated by lines that hold "
        "only ---. Ctrl-C stops at the end of the step and prints what there is. Behind a run of a "
        "hundred steps or more, predicted beside measured time is told on standard error, and in "
        "detail by --json: costs are fitted to the stage times of the first half of the steps, the "
        "second half is predicted; with --topology by its constants as well.\n\n"
        "-n starts the ranks on this host. Started by torchrun, mpirun or mpiexec instead, on any "
        "number of hosts, each process is one rank and rank 0 prints; BALLAST_RENDEZVOUS=HOST:PORT "
        "says where they meet, where the launcher does not. A rank that dies, is stopped or cut "
        "off is named by the others, within --silence at the latest; with --spares or --socket "
        "they "
        "go on without it, and the lowest of them prints.\n\n"
        "A lost rank comes back with --join SOCKET --rank R and the cluster's other options: its "
        "--model, --spares, --prompts and what else says how to serve. The new process is let in "
        "between two moves, serves the lost rank's requests from the first, and holds no experts "
        "until a plan gives it some (ballast apply, rebalance --auto). It prints its own "
        "continuations, in their places.",
    .options = OPTIONS,
    .options_bytes = sizeof(run_options),
    .set_defaults = set_defaults,
    .min_args = 0,
    .max_args = 0,
    .run = run,
};
