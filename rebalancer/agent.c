#include "rebalancer/agent_parts.h"

#include "core/mem.h"
#include "core/progress.h"
#include "rebalancer/messages.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HOLD_WAIT_S 0.0005

/* ---- life ------------------------------------------------------------------------------------ */

static bl_status fill(bl_agent *agent, const int *layers, bl_error *err) {
    BL_TRY(BL_CALLOC(agent->layers, agent->n_layers, err));
    BL_TRY(BL_CALLOC(agent->spares, agent->n_ranks, err));
    BL_TRY(BL_CALLOC(agent->gone, agent->n_ranks, err));
    BL_TRY(BL_CALLOC(agent->to_peer, agent->n_ranks, err));
    BL_TRY(BL_CALLOC(agent->piece, BL_WIRE_CHUNK_BYTES + BL_AGENT_PIECE_BYTES, err));
    for (int l = 0; l < agent->n_layers; l++) {
        if (bl_store_map(agent->store, layers[l]) == NULL)
            return bl_fail_at(err, BL_ERR_SHAPE, bl_at_layer(NULL, layers[l]),
                              "the store of rank %d does not hold this layer", agent->rank);
        agent->layers[l] = layers[l];
    }
    for (int rank = 0; rank < agent->n_ranks; rank++)
        agent->spares[rank] = agent->n_spares;
    const size_t n_pairs = (size_t)agent->n_ranks * (size_t)agent->n_ranks;
    if (agent->options.distance != NULL) {
        BL_TRY(BL_CALLOC(agent->distance, n_pairs, err));
        memcpy(agent->distance, agent->options.distance, sizeof *agent->distance * n_pairs);
        agent->options.distance = agent->distance;
    }
    return BL_OK;
}

bl_status bl_agent_create(bl_store *store, bl_transport *transport, const int *layers, int n_layers,
                          const bl_agent_options *options, bl_agent **out, bl_error *err) {
    const int n_ranks = bl_transport_n_ranks(transport);
    if (options->step_bytes < BL_AGENT_MIN_STEP_BYTES)
        return bl_fail(err, BL_ERR_RANGE,
                       "%lld bytes per step are too few to move anything; at "
                       "least %d are needed",
                       (long long)options->step_bytes, BL_AGENT_MIN_STEP_BYTES);
    if (n_ranks > BL_TX_MAX_RANKS)
        return bl_fail(err, BL_ERR_RANGE, "%d ranks; at most %d can be rebalanced", n_ranks,
                       BL_TX_MAX_RANKS);
    bl_agent *agent;
    BL_TRY(BL_CALLOC(agent, 1, err));
    agent->store = store;
    agent->transport = transport;
    agent->options = *options;
    agent->rank = bl_transport_rank(transport);
    agent->n_ranks = n_ranks;
    agent->n_spares = bl_store_spares_free(store);
    agent->n_layers = n_layers;
    bl_tx_init(&agent->tx, agent->rank, n_ranks, &options->transaction);
    bl_status st = fill(agent, layers, err);
    if (st >= 0)
        st = bl_agent_rounds_open(agent, err);
    if (st < 0) {
        bl_agent_free(agent);
        return st;
    }
    *out = agent;
    return BL_OK;
}

/* A spare that something still writes into is never given out again. */
static void give_back(bl_agent *agent) {
    const bool over = agent->tx.outcome == BL_TX_MOVED || bl_agent_rounds_leave(agent);
    for (int i = 0; i < agent->n_landings && over; i++)
        bl_store_unreserve(agent->store, agent->landings[i].spare);
    agent->n_landings = 0;
    agent->n_streams = 0;
}

void bl_agent_free(bl_agent *agent) {
    if (agent == NULL)
        return;
    give_back(agent);
    bl_agent_rounds_close(agent);
    bl_schedule_free(&agent->schedule);
    free(agent->layers);
    free(agent->spares);
    free(agent->goal);
    free(agent->gone);
    free(agent->streams);
    free(agent->piece);
    free(agent->to_peer);
    free(agent->distance);
    free(agent);
}

/* ---- schedules ------------------------------------------------------------------------------- */

static bool any_lost(const bl_agent *agent) {
    for (int rank = 0; rank < agent->n_ranks; rank++) {
        if (agent->tx.lost[rank])
            return true;
    }
    return false;
}

/* One layer of a goal on the slots of the one in force: those of lost ranks stay empty, whether the
 * plan knows them as empty or, made with a mask, not at all. */
static bl_status fit_layer(const bl_agent *agent, const bl_layer_placement *now,
                           const bl_layer_placement *goal, bl_layer_placement *out, bl_error *err) {
    bl_layer_placement fitted;
    BL_TRY(bl_layer_placement_copy(now, &fitted, err));
    bl_status st = BL_OK;
    for (int rank = 0; rank < now->n_ranks && st >= 0; rank++) {
        const bool lost = agent->tx.lost[rank];
        const int has = now->begin[rank + 1] - now->begin[rank];
        const int wants = goal->begin[rank + 1] - goal->begin[rank];
        int32_t *to = fitted.expert + now->begin[rank];
        const int32_t *from = goal->expert + goal->begin[rank];
        if (!lost && has != wants)
            st = bl_fail_at(err, BL_ERR_SHAPE, bl_at_layer(NULL, now->layer),
                            "rank %d has %d slots, the plan fills %d", rank, has, wants);
        for (int slot = 0; slot < wants && st >= 0; slot++) {
            if (lost && from[slot] != BL_NO_EXPERT)
                st = bl_fail_at(err, BL_ERR_SHAPE, bl_at_expert(NULL, now->layer, from[slot]),
                                "the plan puts it on rank %d, which was lost; plan with --mask %d",
                                rank, rank);
            else if (!lost)
                to[slot] = from[slot];
        }
        for (int slot = 0; lost && slot < has; slot++)
            to[slot] = BL_NO_EXPERT;
    }
    fitted.epoch = goal->epoch;
    if (st < 0)
        bl_layer_placement_free(&fitted);
    else
        *out = fitted;
    return st;
}

/* A goal for a cluster that has lost ranks. */
static bl_status fit_goal(const bl_agent *agent, const bl_placement *goal, bl_placement *out,
                          bl_error *err) {
    bl_placement fitted = {.n_ranks = agent->n_ranks, .n_experts = goal->n_experts};
    if (goal->n_ranks != agent->n_ranks)
        return bl_fail(err, BL_ERR_SHAPE, "the plan is for %d ranks, %d were started",
                       goal->n_ranks, agent->n_ranks);
    BL_TRY(BL_CALLOC(fitted.layers, goal->n_layers, err));
    bl_status st = BL_OK;
    for (int l = 0; l < goal->n_layers && st >= 0; l++) {
        const bl_layer_placement *now = bl_store_map(agent->store, goal->layers[l].layer);
        if (now == NULL)
            st = bl_fail_at(err, BL_ERR_SHAPE, bl_at_layer(NULL, goal->layers[l].layer),
                            "the plan places a layer that has no experts in the running model");
        else
            st = fit_layer(agent, now, &goal->layers[l], &fitted.layers[l], err);
        fitted.n_layers += st >= 0;
    }
    if (st < 0)
        bl_placement_free(&fitted);
    else
        *out = fitted;
    return st;
}

bl_status bl_agent_preview(const bl_agent *agent, const bl_placement *goal, bl_schedule *out,
                           bl_error *err) {
    bl_placement now = {.n_ranks = agent->n_ranks, .n_layers = agent->n_layers};
    BL_TRY(BL_CALLOC(now.layers, agent->n_layers, err));
    for (int l = 0; l < agent->n_layers; l++)
        now.layers[l] = *bl_store_map(agent->store, agent->layers[l]);
    now.n_experts = now.layers[0].n_experts;
    bl_placement fitted = {0};
    bl_status st = any_lost(agent) ? fit_goal(agent, goal, &fitted, err) : BL_OK;
    if (st >= 0)
        st = bl_schedule_make(&now, any_lost(agent) ? &fitted : goal, agent->spares,
                              agent->distance, out, err);
    if (st >= 0 && agent->options.form != 0) {
        const uint64_t both[] = {out->hash, agent->options.form};
        out->hash = bl_hash64(both, sizeof both);
    }
    if (st >= 0)
        out->hash = bl_agent_rounds_agree(agent, out->hash);
    bl_placement_free(&fitted);
    free(now.layers); /* the layers themselves are the store's */
    return st;
}

/* Only while the transaction borrows no schedule. */
static void replace_schedule(bl_agent *agent, const bl_schedule *schedule) {
    bl_schedule_free(&agent->schedule);
    agent->schedule = *schedule;
}

/* ---- actions --------------------------------------------------------------------------------- */

void bl_agent_fail(bl_agent *agent, const bl_error *err) {
    if (agent->failed)
        return;
    agent->failed = true;
    char text[BL_TX_REASON + 64];
    bl_error_format(err, text, sizeof text);
    snprintf(agent->reason, sizeof agent->reason, "%.*s", BL_TX_REASON - 1, text);
}

void bl_agent_send(bl_agent *agent, int to, bl_channel channel, const void *data, size_t bytes) {
    bl_error err = BL_ERROR_INIT;
    const bl_status st = bl_transport_send(agent->transport, to, channel, 0, data, bytes, &err);
    if (st == BL_ERR_PEER)
        agent->gone[to] = agent->any_gone = true;
    else if (st < 0)
        bl_agent_fail(agent, &err);
}

static void send_message(bl_agent *agent, const bl_tx_action *action) {
    const bool prepare = action->message.type == BL_TX_PREPARE;
    bl_error err = BL_ERROR_INIT;
    unsigned char *data;
    size_t bytes;
    if (bl_wire_encode(&action->message, prepare ? agent->goal : NULL,
                       prepare ? agent->goal_bytes : 0, &data, &bytes, &err) < 0) {
        bl_agent_fail(agent, &err);
        return;
    }
    for (int to = 0; to < agent->n_ranks; to++) {
        if (action->to == to || (action->to == BL_TX_ALL && !agent->tx.lost[to]))
            bl_agent_send(agent, to, BL_CHANNEL_CONTROL, data, bytes);
    }
    free(data);
}

static void reserve(bl_agent *agent, int move) {
    bl_error err = BL_ERROR_INIT;
    int spare;
    if (bl_store_reserve(agent->store, &spare, &err) < 0)
        bl_agent_fail(agent, &err);
    else
        agent->landings[agent->n_landings++] = (bl_incoming){.move = move, .spare = spare};
}

static void commit(bl_agent *agent) {
    const bl_wave *wave = &agent->tx.schedule->waves[agent->tx.wave];
    bl_arrival arrivals[BL_WAVE_MAX_ARRIVALS];
    bl_error err = BL_ERROR_INIT;
    bl_agent_rounds_settle(agent);
    for (int i = 0; i < agent->n_landings; i++)
        arrivals[i] = (bl_arrival){.expert = wave->moves[agent->landings[i].move].expert,
                                   .spare = agent->landings[i].spare};
    if (bl_store_commit(agent->store, &wave->after, arrivals, agent->n_landings, &err) < 0) {
        bl_agent_fail(agent, &err);
        return;
    }
    agent->n_landings = 0; /* they are slots now */
    agent->n_streams = 0;
}

static void act(bl_agent *agent, const bl_tx_action *action) {
    switch (action->kind) {
    case BL_TX_ACT_SEND:
        send_message(agent, action);
        break;
    case BL_TX_ACT_RESERVE:
        reserve(agent, action->move);
        break;
    case BL_TX_ACT_STREAM:
        bl_agent_stream(agent, action);
        break;
    case BL_TX_ACT_RELEASE:
        give_back(agent);
        break;
    case BL_TX_ACT_COMMIT:
        commit(agent);
        break;
    case BL_TX_ACT_RETIRE:
        bl_store_retire(agent->store, action->move);
        break;
    case BL_TX_ACT_HOLD:
        agent->held = true;
        break;
    case BL_TX_ACT_HALT: /* bl_agent_check() says so before the next step */
        bl_agent_rounds_leave(agent);
        break;
    }
}

/* Deadlines run on the transport's clock, which may be virtual. */
static uint64_t now_ns(const bl_agent *agent) {
    return (uint64_t)(bl_transport_now_s(agent->transport) * 1e9);
}

static void step_once(bl_agent *agent, const bl_tx_event *event) {
    bl_tx_step(&agent->tx, event, now_ns(agent), &agent->actions);
    for (int i = 0; i < agent->actions.n; i++)
        act(agent, &agent->actions.items[i]);
}

/* An event and everything that follows from carrying out its actions. */
void bl_agent_feed(bl_agent *agent, const bl_tx_event *event) {
    step_once(agent, event);
    while (agent->failed || agent->any_gone) {
        if (agent->failed) {
            char reason[BL_TX_REASON];
            memcpy(reason, agent->reason, sizeof reason);
            agent->failed = false;
            step_once(agent, &(bl_tx_event){.kind = BL_TX_EV_FAILED, .reason = reason});
            continue;
        }
        agent->any_gone = false;
        for (int rank = 0; rank < agent->n_ranks; rank++) {
            if (agent->gone[rank] && !agent->tx.lost[rank])
                step_once(agent, &(bl_tx_event){.kind = BL_TX_EV_LOST, .rank = rank});
        }
    }
}

/* ---- what arrives ---------------------------------------------------------------------------- */

/* The schedule of a PREPARE, as this rank sees it; NULL with the reason in err. */
static const bl_schedule *prepare(bl_agent *agent, const bl_tx_message *message,
                                  const unsigned char *payload, size_t payload_bytes,
                                  bl_error *err) {
    const unsigned char *name;
    if (agent->refusal != NULL) {
        bl_fail(err, BL_ERR_STATE, "%s", agent->refusal);
        return NULL;
    }
    if (bl_agent_rounds_cut(agent, payload, &payload_bytes, &name, err) < 0)
        return NULL;
    if (message->from == agent->rank)
        return bl_agent_rounds_join(agent, message, name, err) >= 0 ? agent->tx.lead.schedule
                                                                    : NULL;
    if (!bl_tx_is_idle(&agent->tx) || agent->recovering) {
        bl_fail(err, BL_ERR_STATE,
                agent->recovering ? "it recovers from a loss" : "it is busy with another move");
        return NULL;
    }
    bl_placement goal;
    bl_schedule schedule;
    if (bl_wire_decode_goal(payload, payload_bytes, &goal, err) < 0)
        return NULL;
    bl_status st = bl_agent_preview(agent, &goal, &schedule, err);
    bl_placement_free(&goal);
    if (st >= 0) {
        st = bl_agent_rounds_join(agent, message, name, err);
        if (st < 0)
            bl_schedule_free(&schedule);
    }
    if (st < 0)
        return NULL;
    replace_schedule(agent, &schedule);
    return &agent->schedule;
}

void bl_agent_on_told(bl_agent *agent, bl_agent_hear_fn *hear, void *user) {
    agent->hear = hear;
    agent->hear_user = user;
}

bl_status bl_agent_tell(bl_agent *agent, int to, const void *data, size_t bytes, bl_error *err) {
    if (to != agent->rank)
        return bl_transport_send(agent->transport, to, BL_CHANNEL_CONTROL, 0, data, bytes, err);
    if (agent->hear != NULL)
        agent->hear(agent->hear_user, to, data, bytes);
    return BL_OK;
}

static void take_message(bl_agent *agent, const bl_message *arrived) {
    bl_error err = BL_ERROR_INIT;
    bl_tx_message message;
    const unsigned char *payload;
    size_t payload_bytes;
    if (agent->hear != NULL && !bl_wire_is_message(arrived->data, arrived->bytes)) {
        agent->hear(agent->hear_user, arrived->from, arrived->data, arrived->bytes);
        return;
    }
    if (bl_wire_decode(arrived->data, arrived->bytes, arrived->from, &message, &payload,
                       &payload_bytes, &err) < 0) {
        agent->stats.stray++;
        return;
    }
    bl_tx_event event = {.kind = BL_TX_EV_MESSAGE, .message = &message};
    if (message.type == BL_TX_PREPARE) {
        event.schedule = prepare(agent, &message, payload, payload_bytes, &err);
        event.reason = err.text;
    }
    bl_agent_feed(agent, &event);
}

static bl_status take_all(bl_agent *agent, bl_channel channel,
                          void (*take)(bl_agent *, const bl_message *), bl_error *err) {
    for (;;) {
        bl_message message = {0};
        bool got = false;
        BL_TRY(bl_transport_poll(agent->transport, channel, &message, &got, err));
        if (!got)
            return BL_OK;
        take(agent, &message);
        bl_message_free(&message);
    }
}

static bl_status take_arrivals(bl_agent *agent, bl_error *err) {
    BL_TRY(take_all(agent, BL_CHANNEL_CONTROL, take_message, err));
    const uint64_t received = agent->stats.received_bytes, start = bl_now_ns();
    BL_TRY(take_all(agent, BL_CHANNEL_MOVE, bl_agent_take_piece, err));
    if (agent->stats.received_bytes > received)
        agent->stats.copy_ns += bl_now_ns() - start;
    bl_agent_rounds_poll(agent);
    /* finished bundles have said so to the leader, which may be this rank */
    BL_TRY(take_all(agent, BL_CHANNEL_CONTROL, take_message, err));
    for (int rank = bl_transport_lost(agent->transport); rank >= 0 && rank < agent->n_ranks;
         rank++) {
        const bool counts = !agent->tx.lost[rank] || agent->tx.expected == rank;
        if (counts && bl_transport_is_lost(agent->transport, rank))
            bl_agent_feed(agent, &(bl_tx_event){.kind = BL_TX_EV_LOST, .rank = rank});
    }
    bl_agent_feed(agent, &(bl_tx_event){.kind = BL_TX_EV_TICK});
    return BL_OK;
}

/* ---- the step -------------------------------------------------------------------------------- */

bl_status bl_agent_await(bl_agent *agent, double wait_s, bl_error *err) {
    bl_message message = {0};
    bool got = false;
    BL_TRY(bl_transport_await(agent->transport, BL_CHANNEL_CONTROL, wait_s, &message, &got, err));
    if (got) {
        take_message(agent, &message);
        bl_message_free(&message);
    }
    return take_arrivals(agent, err);
}

bl_status bl_agent_check(const bl_agent *agent, bl_error *err) {
    if (agent->tx.state != BL_TX_HALTED)
        return BL_OK;
    return bl_fail(err, BL_ERR_ABORTED, "rank %d stops serving: %s", agent->rank, agent->tx.reason);
}

/* Ask until the step may begin; most of the time the first answer is yes. */
static bl_status begin_step(bl_agent *agent, uint64_t step, bl_error *err) {
    uint64_t since = 0;
    for (;;) {
        agent->held = false;
        bl_agent_feed(agent, &(bl_tx_event){.kind = BL_TX_EV_STEP, .step = step, .oldest = step});
        BL_TRY(bl_agent_check(agent, err));
        if (!agent->held)
            break;
        if (since == 0) {
            since = now_ns(agent);
            agent->stats.holds++;
        }
        BL_TRY(bl_agent_await(agent, HOLD_WAIT_S, err));
    }
    if (since != 0 && now_ns(agent) - since > agent->stats.max_hold_ns)
        agent->stats.max_hold_ns = now_ns(agent) - since;
    return BL_OK;
}

/* How long the move takes, and the longest step in it. */
static void clock_step(bl_agent *agent, uint64_t now) {
    const bool busy = bl_agent_is_busy(agent);
    if (busy && agent->began_ns == 0) {
        agent->began_ns = now;
        agent->stats.longest_step_ns = 0;
    } else if (agent->began_ns != 0) {
        const uint64_t took = now - agent->last_begin_ns;
        if (took > agent->stats.longest_step_ns)
            agent->stats.longest_step_ns = took;
        agent->stats.elapsed_ns = now - agent->began_ns;
    }
    if (!busy)
        agent->began_ns = 0;
    agent->last_begin_ns = now;
}

bl_status bl_agent_at_step(bl_agent *agent, uint64_t step, bl_error *err) {
    const uint64_t start = bl_now_ns();
    clock_step(agent, start);
    BL_TRY(take_arrivals(agent, err));
    bl_agent_rounds_post(agent);
    bl_agent_send_pieces(agent);
    BL_TRY(begin_step(agent, step, err));
    const uint64_t took = bl_now_ns() - start;
    if (took > agent->stats.max_step_ns)
        agent->stats.max_step_ns = took;
    return BL_OK;
}

bl_status bl_agent_hear(bl_agent *agent, bl_error *err) {
    return take_arrivals(agent, err);
}

bool bl_agent_is_busy(const bl_agent *agent) {
    return !bl_tx_is_idle(&agent->tx);
}

void bl_agent_note_leave(bl_agent *agent, int rank) {
    if (!agent->tx.lost[rank])
        bl_agent_feed(agent, &(bl_tx_event){.kind = BL_TX_EV_LOST, .rank = rank});
}

void bl_agent_refuse(bl_agent *agent, const char *why) {
    agent->refusal = why;
    if (bl_agent_is_busy(agent))
        bl_agent_feed(agent, &(bl_tx_event){.kind = BL_TX_EV_FAILED, .reason = why});
}

int bl_agent_leader(const bl_agent *agent) {
    return bl_tx_leader(&agent->tx);
}

bool bl_agent_lives(const bl_agent *agent, int rank) {
    return !agent->tx.lost[rank];
}

const bl_layer_placement *bl_agent_map(const bl_agent *agent, int l) {
    return l < agent->n_layers ? bl_store_map(agent->store, agent->layers[l]) : NULL;
}

const bl_layer_placement *bl_agent_wave(const bl_agent *agent, int wave) {
    return wave < agent->schedule.n_waves ? &agent->schedule.waves[wave].after : NULL;
}

int bl_agent_spares(const bl_agent *agent) {
    return agent->n_spares;
}

int64_t bl_agent_step_bytes(const bl_agent *agent) {
    return agent->options.step_bytes;
}

void bl_agent_regroup(bl_agent *agent) {
    bl_tx_regroup(&agent->tx);
}

void bl_agent_view(const bl_agent *agent, uint64_t *view, uint64_t *term) {
    const bl_transaction *tx = &agent->tx;
    *view = tx->view;
    *term = tx->lead.term > tx->term ? tx->lead.term : tx->term;
}

void bl_agent_expect(bl_agent *agent, int rank) {
    bl_tx_expect(&agent->tx, rank);
    if (rank >= 0)
        agent->gone[rank] = false;
}

void bl_agent_readmit(bl_agent *agent, uint64_t view, uint64_t term, bool late) {
    bl_tx_readmit(&agent->tx, view, term, late, &agent->actions);
    for (int i = 0; i < agent->actions.n; i++)
        act(agent, &agent->actions.items[i]);
}

void bl_agent_join(bl_agent *agent, uint64_t view, uint64_t term, const bool *lost) {
    bl_tx_join(&agent->tx, view, term, lost);
}

bl_status bl_agent_directory(const bl_agent *agent, char **text_p, bl_error *err) {
    return bl_transport_directory(agent->transport, text_p, err);
}

void bl_agent_set_recovering(bl_agent *agent, bool recovering) {
    agent->recovering = recovering;
}

bool bl_agent_is_in_doubt(const bl_agent *agent) {
    const bl_transaction *tx = &agent->tx;
    return tx->state == BL_TX_HALTED ? tx->in_doubt : tx->state > BL_TX_VERIFIED_HERE;
}

const char *bl_agent_state(bl_agent *agent) {
    const bl_transaction *tx = &agent->tx;
    snprintf(agent->reason, sizeof agent->reason,
             "%s in wave %d, leader %d in phase %d, lost leader %d, orphaned %d, begun %d",
             bl_tx_state_name(tx), tx->wave, bl_tx_leader(tx), (int)tx->lead.phase, tx->lost_leader,
             tx->orphaned, tx->begun);
    return agent->reason;
}

bool bl_agent_is_settled(const bl_agent *agent) {
    return bl_tx_is_idle(&agent->tx) && agent->tx.lost_leader < 0;
}

/* ---- leading --------------------------------------------------------------------------------- */

static bl_status check_free(const bl_agent *agent, bl_error *err) {
    if (bl_tx_leader(&agent->tx) != agent->rank)
        return bl_fail(err, BL_ERR_STATE, "rank %d does not lead; ask rank %d", agent->rank,
                       bl_tx_leader(&agent->tx));
    if (!bl_tx_can_apply(&agent->tx))
        return bl_fail(err, BL_ERR_STATE, "another move is under way; wait for it or abort it");
    return BL_OK;
}

bl_status bl_agent_start(bl_agent *agent, const bl_placement *goal, bl_schedule *schedule,
                         bl_error *err) {
    unsigned char *wire;
    size_t wire_bytes;
    BL_TRY(check_free(agent, err));
    BL_TRY(bl_wire_encode_goal(goal, &wire, &wire_bytes, err));
    const bl_status named = bl_agent_rounds_name(agent, &wire, &wire_bytes, err);
    if (named < 0) {
        free(wire);
        return named;
    }
    free(agent->goal);
    agent->goal = wire;
    agent->goal_bytes = wire_bytes;
    replace_schedule(agent, schedule);
    *schedule = (bl_schedule){0};
    bl_agent_feed(agent, &(bl_tx_event){.kind = BL_TX_EV_APPLY, .schedule = &agent->schedule});
    return BL_OK;
}

bl_status bl_agent_apply(bl_agent *agent, const bl_placement *goal, int *n_moves, bl_error *err) {
    bl_schedule schedule;
    BL_TRY(check_free(agent, err));
    BL_TRY(bl_agent_preview(agent, goal, &schedule, err));
    *n_moves = schedule.n_moves;
    const bl_status st = schedule.n_waves > 0 ? bl_agent_start(agent, goal, &schedule, err) : BL_OK;
    bl_schedule_free(&schedule);
    return st;
}

bl_status bl_agent_stop(bl_agent *agent, const char *reason, bl_error *err) {
    if (agent->tx.lead.phase == BL_TX_IDLE)
        return bl_fail(err, BL_ERR_STATE, "no move is under way");
    bl_agent_feed(agent, &(bl_tx_event){.kind = BL_TX_EV_STOP, .reason = reason});
    return BL_OK;
}

uint64_t bl_agent_min_steps(const bl_agent *agent, const bl_schedule *schedule) {
    return bl_schedule_min_steps(schedule, bl_store_bundle_bytes(agent->store),
                                 (uint64_t)agent->options.step_bytes);
}

/* Layers whose last wave is done. */
static int layers_done(const bl_schedule *schedule, int waves_done) {
    int n = 0;
    for (int w = 0; w < waves_done && w < schedule->n_waves; w++)
        n += w + 1 == schedule->n_waves ||
             schedule->waves[w + 1].after.layer != schedule->waves[w].after.layer;
    return n;
}

void bl_agent_get_status(const bl_agent *agent, bl_agent_status *out) {
    const bl_transaction *tx = &agent->tx;
    const bl_schedule *schedule = &agent->schedule;
    const uint64_t bundle = bl_store_bundle_bytes(agent->store);
    *out = agent->stats;
    out->leads = bl_tx_leader(tx) == agent->rank;
    out->busy = bl_agent_is_busy(agent);
    out->state = bl_tx_state_name(tx);
    out->outcome = tx->outcome;
    memcpy(out->reason, tx->reason, sizeof out->reason);
    out->term = out->leads && tx->lead.term > tx->term ? tx->lead.term : tx->term;
    out->step = tx->step;
    const int waves_done = out->leads ? tx->lead.waves_done : tx->wave;
    const bool moving = out->busy && waves_done < schedule->n_waves;
    out->layer = moving ? schedule->waves[waves_done].after.layer : -1;
    out->n_layers = schedule->n_layers;
    out->n_waves = schedule->n_waves;
    out->n_moves = schedule->n_moves;
    out->waves_done = waves_done;
    out->layers_done = layers_done(schedule, waves_done);
    out->moves_done = bl_tx_moves_done(tx);
    out->bundle_bytes = bundle;
    out->n_bytes = bundle * (uint64_t)schedule->n_moves;
    out->bytes_done = bundle * (uint64_t)out->moves_done;
}
