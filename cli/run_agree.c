#include "cli/run_agree.h"

#include "cli/run_mover.h"
#include "core/hash.h"
#include "core/mem.h"

#include <stdlib.h>
#include <string.h>

/* What is compared, in the order in which differences are told: later ones may follow from earlier. */
enum { CHECKPOINT, PLACEMENT, RULE, HOSTS, MOVES, WINDOW, REQUESTS, SERVING, N_FACTS };

static const char *const KEY[N_FACTS] = {"checkpoint", "placement", "rule",     "hosts",
                                         "moves",      "window",    "requests", "serving"};

static const char *const WHAT[N_FACTS] = {
    "the checkpoint of --model",
    "where the experts live: --plan, --slots or --journal",
    "how rows travel: --rule, --dispatch or the plan's shares",
    "--topology",
    "--spares, or whether experts can move at all",
    "--window",
    "what to serve: --prompts, --arrivals, --repeat, --max-tokens or --tokens",
    "how to serve it: --batch, --prefill-tokens, --keep-prefixes, --temperature, --top-p or --seed",
};

typedef struct facts {
    bl_digest of[N_FACTS];
} facts;

/* 0.0 and -0.0 are one option, and no option is NaN. */
static void add_real(bl_hasher *to, double value) {
    int64_t bits;
    value += 0.0;
    memcpy(&bits, &value, sizeof bits);
    bl_hasher_add_int(to, bits);
}

static void add_checkpoint(bl_hasher *to, const bl_run_job *job, const bl_qwen3 *model) {
    const bl_qwen3_config *c = &job->config;
    const size_t row = (size_t)c->hidden * sizeof(uint16_t);
    const size_t queries = (size_t)c->n_heads * (size_t)c->head_dim,
                 keys = (size_t)c->n_kv_heads * (size_t)c->head_dim,
                 head_row = (size_t)c->head_dim * sizeof(uint16_t);
    const int numbers[] = {c->n_layers, c->hidden, c->n_heads,       c->n_kv_heads,
                           c->head_dim, c->top_k,  c->inner,         c->n_experts,
                           c->vocab,    c->tied,   c->max_positions, c->renormalise};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        bl_hasher_add_int(to, numbers[i]);
    add_real(to, (double)c->norm_eps);
    add_real(to, c->rope_theta);
    bl_hasher_add(to, bl_qwen3_embedding(model), row * (size_t)c->vocab);
    bl_hasher_add(to, bl_qwen3_head(model), row * (size_t)c->vocab);
    bl_hasher_add(to, bl_qwen3_final_norm(model), row);
    for (int layer = 0; layer < c->n_layers; layer++) {
        const bl_qwen3_layer *weights = bl_qwen3_layer_of(model, layer);
        bl_hasher_add(to, weights->input_norm, row);
        bl_hasher_add(to, weights->post_norm, row);
        bl_hasher_add(to, weights->q, row * queries);
        bl_hasher_add(to, weights->k, row * keys);
        bl_hasher_add(to, weights->v, row * keys);
        bl_hasher_add(to, weights->o, row * queries);
        bl_hasher_add(to, weights->q_norm, head_row);
        bl_hasher_add(to, weights->k_norm, head_row);
        bl_hasher_add(to, weights->router, row * (size_t)c->n_experts);
    }
}

static void add_placement(bl_hasher *to, const bl_run_job *job) {
    const bl_placement *p = &job->placement;
    bl_hasher_add_int(to, p->n_ranks);
    for (int l = 0; l < p->n_layers; l++) {
        const bl_layer_placement *layer = &p->layers[l];
        bl_hasher_add_int(to, layer->layer);
        for (int rank = 0; rank <= p->n_ranks; rank++)
            bl_hasher_add_int(to, layer->begin[rank]);
        for (int slot = 0; slot < bl_layer_n_slots(layer); slot++)
            bl_hasher_add_int(to, layer->expert[slot]);
    }
}

static void add_rule(bl_hasher *to, const bl_run_job *job) {
    bl_hasher_add_int(to, job->sharing.rule);
    bl_hasher_add_int(to, job->dispatch);
    for (int l = 0; job->sharing.share != NULL && l < job->placement.n_layers; l++) {
        const bl_layer_placement *layer = &job->placement.layers[l];
        for (int slot = 0; slot < bl_layer_n_slots(layer); slot++)
            add_real(to, job->sharing.share[layer->layer][slot]);
    }
}

static void add_hosts(bl_hasher *to, const bl_run_job *job) {
    for (int rank = 0; rank < job->n_ranks; rank++) {
        bl_hasher_add_int(to, job->sharing.host != NULL ? job->sharing.host[rank] : -1);
        bl_hasher_add_int(to, job->sharing.node != NULL ? job->sharing.node[rank] : -1);
    }
}

static void add_requests(bl_hasher *to, const bl_run_job *job) {
    const bl_requests *r = &job->requests;
    bl_hasher_add_int(to, job->n_tokens);
    for (int i = 0; i < job->n_tokens; i++)
        bl_hasher_add_int(to, job->tokens[i]);
    bl_hasher_add_int(to, r->n);
    bl_hasher_add_int(to, r->max_tokens);
    for (int i = 0; i < r->n_prompts; i++) {
        bl_hasher_add_int(to, (int64_t)r->prompts[i].bytes);
        bl_hasher_add(to, r->prompts[i].text, r->prompts[i].bytes);
    }
    for (int i = 0; r->arrivals != NULL && i < r->n; i++) {
        add_real(to, r->arrivals[i].due_s);
        bl_hasher_add_int(to, r->arrivals[i].prompt);
        bl_hasher_add_int(to, r->arrivals[i].max_tokens);
    }
}

static void add_serving(bl_hasher *to, const bl_run_job *job) {
    const bl_serve_options *s = &job->serve;
    bl_hasher_add_int(to, s->batch);
    bl_hasher_add_int(to, s->prefill_tokens);
    bl_hasher_add_int(to, s->keep_prefixes);
    add_real(to, s->sampling.temperature);
    add_real(to, s->sampling.top_p);
    bl_hasher_add_int(to, (int64_t)s->sampling.seed);
}

static bl_status take_fact(int fact, const bl_run_job *job, const bl_qwen3 *model, bl_digest *out,
                           bl_error *err) {
    bl_hasher *to = bl_hasher_new();
    if (to == NULL)
        return bl_fail(err, BL_ERR_NOMEM, "out of memory");
    switch (fact) {
    case CHECKPOINT:
        add_checkpoint(to, job, model);
        break;
    case PLACEMENT:
        add_placement(to, job);
        break;
    case RULE:
        add_rule(to, job);
        break;
    case HOSTS:
        add_hosts(to, job);
        break;
    case MOVES:
        bl_hasher_add_int(to, job->n_spares);
        bl_hasher_add_int(to, bl_run_mover_wanted(job));
        break;
    case WINDOW:
        bl_hasher_add_int(to, job->window_steps);
        break;
    case REQUESTS:
        add_requests(to, job);
        break;
    default:
        add_serving(to, job);
        break;
    }
    *out = bl_hasher_finish(to);
    return BL_OK;
}

bl_status bl_run_agree(const bl_run_job *job, const bl_qwen3 *model, bl_exchange *exchange,
                       bl_error *err) {
    facts mine, *all;
    for (int fact = 0; fact < N_FACTS; fact++)
        BL_TRY(take_fact(fact, job, model, &mine.of[fact], err));
    BL_TRY(BL_CALLOC(all, job->n_ranks, err));
    bl_status st = bl_exchange_allgather(exchange, &mine, sizeof mine, all, err);
    for (int fact = 0; st >= 0 && fact < N_FACTS; fact++) {
        for (int rank = 1; st >= 0 && rank < job->n_ranks; rank++) {
            if (strcmp(all[rank].of[fact].hex, all[0].of[fact].hex) != 0)
                st = bl_fail(err, BL_ERR_USAGE,
                             "ranks 0 and %d were started with different options or files: they "
                             "differ in %s",
                             rank, WHAT[fact]);
        }
    }
    free(all);
    return st;
}

bl_status bl_run_facts(const bl_run_job *job, const bl_qwen3 *model, json_t **facts_p,
                       bl_error *err) {
    json_t *made = json_object();
    bl_status st = BL_OK;
    for (int fact = 0; st >= 0 && fact < N_FACTS; fact++) {
        bl_digest digest;
        st = take_fact(fact, job, model, &digest, err);
        if (st >= 0)
            json_object_set_new(made, KEY[fact], json_string(digest.hex));
    }
    if (st < 0)
        json_decref(made);
    else
        *facts_p = made;
    return st;
}

bl_status bl_run_agree_with(const json_t *theirs, const char *socket, const bl_run_job *job,
                            const bl_qwen3 *model, bl_error *err) {
    for (int fact = 0; fact < N_FACTS; fact++) {
        const char *hex;
        bl_digest mine;
        if (fact == PLACEMENT || fact == MOVES) /* the one it is told, the other it was asked */
            continue;
        BL_TRY(bl_json_string(theirs, KEY[fact], socket, &hex, err));
        BL_TRY(take_fact(fact, job, model, &mine, err));
        if (strcmp(hex, mine.hex) != 0)
            return bl_fail(err, BL_ERR_USAGE,
                           "the cluster at %s was started with different options or files: it "
                           "differs in %s",
                           socket, WHAT[fact]);
    }
    return BL_OK;
}
