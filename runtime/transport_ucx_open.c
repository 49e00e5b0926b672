/* How the UCX back end comes to life: configuration, worker, listener, meeting, endpoints. */
#include "runtime/transport_ucx.h"

#include "core/mem.h"
#include "core/progress.h"
#include "core/rng.h"
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
static uint64_t client_id(const bl_ucx *ucx, int rank) {
    uint64_t state = ucx->job + (uint64_t)rank;
    return bl_splitmix64(&state);
}

static bl_status open_worker(bl_ucx *ucx, bl_error *err) {
    const ucp_worker_params_t params = {
        .field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE | UCP_WORKER_PARAM_FIELD_CLIENT_ID,
        .thread_mode = UCS_THREAD_MODE_SINGLE,
        .client_id = client_id(ucx, ucx->base.rank),
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

/* Somebody knocks: note it for settle() when it is a higher rank of this run. */
static void on_knock(ucp_conn_request_h request, void *arg) {
    bl_ucx *ucx = arg;
    ucp_conn_request_attr_t who = {.field_mask = UCP_CONN_REQUEST_ATTR_FIELD_CLIENT_ID};
    if (!ucx->is_closing && ucp_conn_request_query(request, &who) == UCS_OK) {
        for (int rank = ucx->base.rank + 1; rank < ucx->base.n_ranks; rank++) {
            bl_ucx_peer *peer = &ucx->peers[rank];
            if (who.client_id == client_id(ucx, rank) && peer->endpoint == NULL &&
                peer->request == NULL && !peer->has_failed) {
                peer->request = request;
                ucx->unsettled = true;
                return;
            }
        }
    }
    ucp_listener_reject(ucx->listener, request);
}

static bl_status open_listener(bl_ucx *ucx, const bl_rendezvous *meeting, uint16_t *port,
                               bl_error *err) {
    const ucp_listener_params_t params = {
        .field_mask = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR | UCP_LISTENER_PARAM_FIELD_CONN_HANDLER,
        .sockaddr = {(const struct sockaddr *)&meeting->local, meeting->local_bytes},
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
    bl_ucx_say(peer, BL_UCX_HELLO, BL_CHANNEL_CONTROL, 0);
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

static bl_status connect_to(bl_ucx_peer *peer, const struct sockaddr_storage *address,
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

/* Every rank knocks at all lower ones, then waits until all have spoken. */
static bl_status connect_all(bl_ucx *ucx, const bl_peer_card *cards, double until_s,
                             bl_error *err) {
    for (int rank = 0; rank < ucx->base.rank; rank++)
        BL_TRY(connect_to(&ucx->peers[rank], &cards[rank].address, err));
    for (int rank = 0; rank < ucx->base.n_ranks; rank++) {
        while (rank != ucx->base.rank && !ucx->peers[rank].has_spoken) {
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

/* ---- open ----------------------------------------------------------------------------------- */

/* Which peers' memory can be read, and where their heartbeats go. */
static bl_status use_cards(bl_ucx *ucx, const bl_peer_card *cards, bl_error *err) {
    const bl_peer_card *mine = &cards[ucx->base.rank];
    struct sockaddr_storage *pulses;
    for (int rank = 0; rank < ucx->base.n_ranks; rank++) {
        ucx->peers[rank].near.pid = cards[rank].pid;
        ucx->peers[rank].near.is_usable = mine->host != 0 && cards[rank].host == mine->host;
    }
    if (ucx->pulse == NULL)
        return BL_OK;
    BL_TRY(BL_CALLOC(pulses, ucx->base.n_ranks, err));
    for (int rank = 0; rank < ucx->base.n_ranks; rank++) {
        pulses[rank] = cards[rank].address;
        bl_address_set_port(&pulses[rank], cards[rank].pulse_port);
    }
    const bl_status st = bl_pulse_start(ucx->pulse, pulses, err);
    free(pulses);
    return st;
}

static bl_status meet_and_connect(bl_ucx *ucx, bl_rendezvous *meeting, bl_error *err) {
    bl_peer_card *cards;
    uint16_t port = 0, pulse_port = 0;
    BL_TRY(open_listener(ucx, meeting, &port, err));
    if (ucx->base.silence_s > 0)
        BL_TRY(bl_pulse_open(ucx->base.rank, ucx->base.n_ranks, ucx->job, ucx->base.silence_s,
                             &meeting->local, &ucx->pulse, &pulse_port, err));
    BL_TRY(BL_CALLOC(cards, ucx->base.n_ranks, err));
    bl_status st = bl_rendezvous_exchange(meeting, port, pulse_port, cards, err);
    if (st == BL_OK)
        st = use_cards(ucx, cards, err);
    if (st == BL_OK)
        st = connect_all(ucx, cards, meeting->until_s, err);
    free(cards);
    return st;
}

static bl_status start(bl_ucx *ucx, const bl_ucx_options *options, bl_error *err) {
    BL_TRY(bl_mailroom_create(options->n_ranks, &ucx->room, err));
    ucx->base.room = &ucx->room;
    BL_TRY(BL_CALLOC(ucx->peers, options->n_ranks, err));
    for (int rank = 0; rank < options->n_ranks; rank++) {
        ucx->peers[rank].owner = ucx;
        ucx->peers[rank].rank = rank;
    }
    BL_TRY(open_context(ucx, err));
    BL_TRY(open_worker(ucx, err));
    bl_rendezvous meeting;
    BL_TRY(bl_rendezvous_open(options, &meeting, err));
    const bl_status st = meet_and_connect(ucx, &meeting, err);
    bl_rendezvous_close(&meeting);
    return st;
}

bl_status bl_transport_ucx_open(const bl_ucx_options *options, bl_transport **out, bl_error *err) {
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
    ucx->job = options->job;
    ucx->last_fetch = &ucx->fetches;
    const bl_status st = start(ucx, options, err);
    if (st < 0) {
        bl_ucx_destroy(ucx);
        return st;
    }
    *out = &ucx->base;
    return BL_OK;
}
