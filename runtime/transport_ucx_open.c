/* How the UCX back end comes to life: configuration, worker, listener, meeting, endpoints. */
#include "runtime/transport_ucx.h"

#include "core/mem.h"
#include "core/progress.h"
#include "core/rng.h"
#include "runtime/descriptors.h"
#include "runtime/rendezvous.h"

#include <netinet/in.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <ucs/config/global_opts.h>
#include <ucs/debug/debug.h>
#include <ucs/type/status.h>

static bl_status ucx_failed(ucs_status_t status, const char *doing, bl_error *err) {
    return bl_fail(err, status == UCS_ERR_NO_MEMORY ? BL_ERR_NOMEM : BL_ERR_IO, "UCX cannot %s: %s",
                   doing, ucs_status_string(status));
}

#define UCX_TRY(call, doing, err)                       \
    do {                                                \
        const ucs_status_t ucx_st_ = (call);            \
        if (ucx_st_ != UCS_OK)                          \
            return ucx_failed(ucx_st_, (doing), (err)); \
    } while (0)

/* ---- signals -------------------------------------------------------------------------------- */

void bl_ucx_leave_hangup(void) {
    struct sigaction now;
    if (ucs_global_opts.debug_signo == SIGHUP && sigaction(SIGHUP, NULL, &now) == 0 &&
        now.sa_handler != SIG_DFL && now.sa_handler != SIG_IGN)
        ucs_debug_disable_signal(SIGHUP);
}

/* ---- context, worker, listener -------------------------------------------------------------- */

/* The user's own UCX_ variables win over what is set here. TCP alone, because UCX's shared memory
 * has no notice of a peer's death. The log is silent, because UCX reports as errors what is normal
 * for us: peers that go. */
static bl_status open_context(bl_ucx *ucx, bl_error *err) {
    ucp_config_t *config;
    UCX_TRY(ucp_config_read(NULL, NULL, &config), "read its configuration", err);
    ucs_status_t status = UCS_OK;
    if (getenv("UCX_TLS") == NULL)
        status = ucp_config_modify(config, "TLS", "tcp,self");
    if (status == UCS_OK && getenv("UCX_LOG_LEVEL") == NULL)
        status = ucs_global_opts_set_value("LOG_LEVEL", "fatal");
    const ucp_params_t params = {
        .field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_MT_WORKERS_SHARED |
                      UCP_PARAM_FIELD_ESTIMATED_NUM_EPS,
        .features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP,
        .mt_workers_shared = 0,
        .estimated_num_eps = (size_t)ucx->base.n_ranks,
    };
    if (status == UCS_OK)
        status = ucp_init(&params, config, &ucx->context);
    ucp_config_release(config);
    UCX_TRY(status, "start", err);
    return BL_OK;
}

/* By what a rank shows that it belongs to this run, when it knocks. */
uint64_t bl_ucx_client_id(const bl_ucx *ucx, int rank) {
    uint64_t state = ucx->job + (uint64_t)rank;
    return bl_splitmix64(&state);
}

bl_status bl_ucx_open_worker(bl_ucx *ucx, uint64_t client_id, bl_error *err) {
    BL_TRY(open_context(ucx, err));
    const ucp_worker_params_t params = {
        .field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE | UCP_WORKER_PARAM_FIELD_CLIENT_ID,
        .thread_mode = UCS_THREAD_MODE_SINGLE,
        .client_id = client_id,
    };
    UCX_TRY(ucp_worker_create(ucx->context, &params, &ucx->worker), "create a worker", err);
    UCX_TRY(ucp_worker_get_efd(ucx->worker, &ucx->event_fd), "wake sleepers up", err);
    const ucp_am_handler_param_t handler = {
        .field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                      UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG,
        .id = BL_UCX_MESSAGE_ID,
        .flags = UCP_AM_FLAG_WHOLE_MSG,
        .cb = bl_ucx_on_message,
        .arg = ucx,
    };
    UCX_TRY(ucp_worker_set_am_recv_handler(ucx->worker, &handler), "take messages", err);
    return BL_OK;
}

/* Whose knock this is, when it may be let in: a higher rank of this run at the start, any lost one later. */
static bl_ucx_peer *find_knocker(bl_ucx *ucx, uint64_t client_id) {
    for (int rank = 0; rank < ucx->base.n_ranks; rank++) {
        bl_ucx_peer *peer = &ucx->peers[rank];
        if (rank == ucx->base.rank || peer->endpoint != NULL || peer->request != NULL)
            continue;
        if (rank > ucx->base.rank && client_id == bl_ucx_client_id(ucx, rank) && !peer->has_failed)
            return peer;
        if (client_id == bl_ucx_return_id(ucx, rank) && bl_ucx_may_return(peer))
            return peer;
    }
    return NULL;
}

/* Somebody knocks: note it for settle(), or turn it away. */
static void on_knock(ucp_conn_request_h request, void *arg) {
    bl_ucx *ucx = arg;
    ucp_conn_request_attr_t who = {.field_mask = UCP_CONN_REQUEST_ATTR_FIELD_CLIENT_ID};
    bl_ucx_peer *peer = NULL;
    if (!ucx->is_closing && ucp_conn_request_query(request, &who) == UCS_OK)
        peer = find_knocker(ucx, who.client_id);
    if (peer == NULL) {
        ucp_listener_reject(ucx->listener, request);
        return;
    }
    if (who.client_id == bl_ucx_return_id(ucx, peer->rank))
        bl_ucx_renew_peer(peer);
    peer->request = request;
    ucx->unsettled = true;
}

bl_status bl_ucx_listen(bl_ucx *ucx, const struct sockaddr_storage *local, socklen_t local_bytes,
                        uint16_t *port, bl_error *err) {
    const ucp_listener_params_t params = {
        .field_mask = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR | UCP_LISTENER_PARAM_FIELD_CONN_HANDLER,
        .sockaddr = {(const struct sockaddr *)local, local_bytes},
        .conn_handler = {on_knock, ucx},
    };
    UCX_TRY(ucp_listener_create(ucx->worker, &params, &ucx->listener), "listen for peers", err);
    ucp_listener_attr_t attr = {.field_mask = UCP_LISTENER_ATTR_FIELD_SOCKADDR};
    UCX_TRY(ucp_listener_query(ucx->listener, &attr), "tell its port", err);
    *port = bl_address_port(&attr.sockaddr);
    return BL_OK;
}

/* ---- endpoints ------------------------------------------------------------------------------ */

static bl_status fail_connect(const bl_ucx_peer *peer, const char *why, bl_error *err) {
    const char *tls = getenv("UCX_TLS");
    return bl_fail(err, BL_ERR_PEER,
                   tls == NULL ? "rank %d and rank %d cannot connect through UCX: %s"
                               : "rank %d and rank %d cannot connect through UCX: %s; UCX_TLS=%s "
                                 "must hold a transport that notices the loss of a peer, like tcp",
                   peer->owner->base.rank, peer->rank, why, tls);
}

/* Open an endpoint and be the first to speak on it. `params` says to whom. */
static bl_status open_endpoint(bl_ucx_peer *peer, ucp_ep_params_t *params, bl_error *err) {
    params->field_mask |= UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER |
                          UCP_EP_PARAM_FIELD_FLAGS;
    params->err_mode = UCP_ERR_HANDLING_MODE_PEER;
    params->err_handler.cb = bl_ucx_on_failure;
    params->err_handler.arg = peer;
    const ucs_status_t status = ucp_ep_create(peer->owner->worker, params, &peer->endpoint);
    if (status != UCS_OK)
        return fail_connect(peer, ucs_status_string(status), err);
    const bl_ucx_return *mine = &peer->owner->mine;
    bl_ucx_say_with(peer, BL_UCX_HELLO, mine, mine->incarnation != 0 ? sizeof *mine : 0);
    return BL_OK;
}

bl_status bl_ucx_accept(bl_ucx_peer *peer, bl_error *err) {
    ucp_ep_params_t params = {
        .field_mask = UCP_EP_PARAM_FIELD_CONN_REQUEST,
        .conn_request = peer->request,
    };
    peer->request = NULL;
    return open_endpoint(peer, &params, err);
}

bl_status bl_ucx_connect_to(bl_ucx_peer *peer, const struct sockaddr_storage *address,
                            bl_error *err) {
    const bool is_v6 = address->ss_family == AF_INET6;
    ucp_ep_params_t params = {
        .field_mask = UCP_EP_PARAM_FIELD_SOCK_ADDR,
        .flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER | UCP_EP_PARAMS_FLAGS_SEND_CLIENT_ID,
        .sockaddr = {(const struct sockaddr *)address, is_v6
                                                           ? (socklen_t)sizeof(struct sockaddr_in6)
                                                           : (socklen_t)sizeof(struct sockaddr_in)},
    };
    return open_endpoint(peer, &params, err);
}

bl_status bl_ucx_await_hellos(bl_ucx *ucx, double until_s, bl_error *err) {
    for (int rank = 0; rank < ucx->base.n_ranks; rank++) {
        while (rank != ucx->base.rank && !ucx->peers[rank].has_spoken &&
               !ucx->room.forgiven[rank]) {
            if (ucx->room.peers[rank] != BL_PEER_LIVE)
                return fail_connect(&ucx->peers[rank], "it went away or cannot be reached", err);
            if (bl_now_s() >= until_s)
                return bl_fail(err, BL_ERR_TIMEOUT, "rank %d waited %g s for rank %d to connect",
                               ucx->base.rank, ucx->base.deadline_s, rank);
            bl_ucx_sleep(ucx, until_s);
        }
    }
    return BL_OK;
}

/* Every rank knocks at all lower ones, then waits until all have spoken. */
static bl_status connect_all(bl_ucx *ucx, double until_s, bl_error *err) {
    for (int rank = 0; rank < ucx->base.rank; rank++)
        BL_TRY(bl_ucx_connect_to(&ucx->peers[rank], &ucx->peers[rank].card.address, err));
    return bl_ucx_await_hellos(ucx, until_s, err);
}

/* ---- open ----------------------------------------------------------------------------------- */

/* Which peers' memory can be read, and where their heartbeats go. */
bl_status bl_ucx_use_cards(bl_ucx *ucx, bl_error *err) {
    const bl_peer_card *mine = &ucx->peers[ucx->base.rank].card;
    struct sockaddr_storage *pulses;
    for (int rank = 0; rank < ucx->base.n_ranks; rank++) {
        bl_ucx_peer *peer = &ucx->peers[rank];
        peer->near.pid = peer->card.pid;
        peer->near.is_usable = mine->host != 0 && peer->card.host == mine->host;
    }
    if (ucx->pulse == NULL)
        return BL_OK;
    BL_TRY(BL_CALLOC(pulses, ucx->base.n_ranks, err));
    for (int rank = 0; rank < ucx->base.n_ranks; rank++) {
        const bl_ucx_peer *peer = &ucx->peers[rank];
        pulses[rank] = peer->card.address;
        bl_address_set_port(&pulses[rank], peer->card.pulse_port);
        bl_pulse_renew(ucx->pulse, rank, &pulses[rank], peer->incarnation);
    }
    const bl_status st = bl_pulse_start(ucx->pulse, pulses, err);
    free(pulses);
    return st;
}

static bl_status meet_and_connect(bl_ucx *ucx, bl_rendezvous *meeting, bl_error *err) {
    bl_peer_card *cards;
    uint16_t port = 0, pulse_port = 0;
    BL_TRY(bl_ucx_listen(ucx, &meeting->local, meeting->local_bytes, &port, err));
    if (ucx->base.silence_s > 0)
        BL_TRY(bl_pulse_open(ucx->base.rank, ucx->base.n_ranks, ucx->job, ucx->base.silence_s,
                             &meeting->local, &ucx->pulse, &pulse_port, err));
    BL_TRY(BL_CALLOC(cards, ucx->base.n_ranks, err));
    bl_status st = bl_rendezvous_exchange(meeting, port, pulse_port, cards, err);
    for (int rank = 0; rank < ucx->base.n_ranks && st == BL_OK; rank++)
        ucx->peers[rank].card = cards[rank];
    if (ucx->base.rank == 0) { /* the others see it by the address they came to */
        ucx->peers[0].card.address = meeting->local;
        bl_address_set_port(&ucx->peers[0].card.address, port);
    }
    free(cards);
    if (st == BL_OK)
        st = bl_ucx_use_cards(ucx, err);
    if (st == BL_OK)
        st = connect_all(ucx, meeting->until_s, err);
    return st;
}

/* A handle with room for its peers, and nothing open yet. */
bl_status bl_ucx_make(const bl_ucx_options *options, bl_ucx **out, bl_error *err) {
    if (options->n_ranks < 1 || options->rank < 0 || options->rank >= options->n_ranks ||
        !(options->deadline_s > 0) || !(options->silence_s >= 0))
        return bl_fail(err, BL_ERR_USAGE,
                       "rank %d of %d with a deadline of %g s, lost after %g s, cannot be",
                       options->rank, options->n_ranks, options->deadline_s, options->silence_s);
    bl_ucx *ucx;
    BL_TRY(BL_CALLOC(ucx, 1, err));
    ucx->base.ops = &bl_ucx_ops;
    ucx->base.rank = options->rank;
    ucx->base.n_ranks = options->n_ranks;
    ucx->base.deadline_s = options->deadline_s;
    ucx->base.silence_s = options->silence_s;
    ucx->base.room = &ucx->room;
    ucx->job = options->job;
    ucx->last_fetch = &ucx->fetches;
    bl_status st = bl_mailroom_create(options->n_ranks, &ucx->room, err);
    if (st == BL_OK)
        st = BL_CALLOC(ucx->peers, options->n_ranks, err);
    for (int rank = 0; st == BL_OK && rank < options->n_ranks; rank++) {
        ucx->peers[rank].owner = ucx;
        ucx->peers[rank].rank = rank;
    }
    if (st < 0) {
        bl_ucx_destroy(ucx);
        return st;
    }
    *out = ucx;
    return BL_OK;
}

static bl_status start(bl_ucx *ucx, const bl_ucx_options *options, bl_error *err) {
    bl_rendezvous meeting;
    BL_TRY(bl_ucx_open_worker(ucx, bl_ucx_client_id(ucx, ucx->base.rank), err));
    BL_TRY(bl_rendezvous_open(options, &meeting, err));
    const bl_status st = meet_and_connect(ucx, &meeting, err);
    bl_rendezvous_close(&meeting);
    return st;
}

bl_status bl_transport_ucx_open(const bl_ucx_options *options, bl_transport **out, bl_error *err) {
    bl_ucx *ucx;
    BL_TRY(bl_ucx_make(options, &ucx, err));
    bl_status st = bl_descriptors_want(options->n_ranks, err);
    if (st >= 0)
        st = start(ucx, options, err);
    if (st < 0) {
        bl_ucx_destroy(ucx);
        return st;
    }
    *out = &ucx->base;
    return BL_OK;
}
