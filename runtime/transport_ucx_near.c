/* Large messages between ranks of one host: the receiver copies them straight out of the sender's
 * memory, once, with process_vm_readv().
 *
 *     sender    OFFER {number, bytes, where} ------> receiver
 *               waits                                 reads the bytes, then the stamp
 *               NEAR_DONE or NEAR_REFUSED <---------  the stamp is as offered: they were whole
 *
 * UCX's own shared memory cannot be had: its endpoints refuse peer-error mode. A sender that gives up
 * and wants its buffer back changes the stamp first, so a receiver that was slow never takes what has
 * been written over. Where the kernel refuses to read another process (a container's rules), the
 * first offer finds it out, and that pair goes on through UCX. */
#define _DEFAULT_SOURCE 1 /* process_vm_readv() */
#define _GNU_SOURCE 1
#include "runtime/transport_ucx.h"

#include <stdlib.h>
#include <sys/uio.h>

/* Read all of it, or false. */
static bool read_process(pid_t pid, uint64_t from, void *into, size_t bytes) {
    unsigned char *at = into;
    while (bytes > 0) {
        const struct iovec here = {at, bytes}, there = {(void *)(uintptr_t)from, bytes};
        const ssize_t n = process_vm_readv(pid, &here, 1, &there, 1, 0);
        if (n <= 0)
            return false;
        at += n;
        from += (uint64_t)n;
        bytes -= (size_t)n;
    }
    return true;
}

bl_ucx_offer bl_ucx_near_offer(bl_ucx_peer *peer, const void *data) {
    peer->near.stamp = ++peer->near.last_stamp;
    peer->near.answer = BL_UCX_NEAR_OPEN;
    return (bl_ucx_offer){
        .data = (uint64_t)(uintptr_t)data,
        .stamp_at = (uint64_t)(uintptr_t)&peer->near.stamp,
        .stamp = peer->near.last_stamp,
    };
}

void bl_ucx_near_withdraw(bl_ucx_peer *peer) {
    peer->near.stamp = 0;
}

bool bl_ucx_near_note(bl_ucx_peer *peer, const bl_ucx_head *head, const bl_ucx_offer *offer) {
    bl_ucx_fetch *fetch = malloc(sizeof *fetch);
    if (fetch == NULL)
        return false;
    *fetch = (bl_ucx_fetch){.peer = peer, .head = *head, .offer = *offer};
    *peer->owner->last_fetch = fetch;
    peer->owner->last_fetch = &fetch->next;
    peer->owner->unsettled = true;
    return true;
}

/* An envelope with the bytes offered, or NULL with the reason: out of memory, or not to be read. */
static bl_envelope *take_offered(const bl_ucx_fetch *fetch, bool *out_of_memory) {
    const bl_ucx_head *head = &fetch->head;
    const pid_t pid = fetch->peer->near.pid;
    bl_envelope *envelope =
        bl_envelope_new(fetch->peer->rank, head->number, head->mark, (size_t)head->bytes);
    uint64_t stamp = 0;
    *out_of_memory = envelope == NULL;
    if (envelope == NULL)
        return NULL;
    if (fetch->peer->near.is_usable &&
        read_process(pid, fetch->offer.data, envelope->message.data, (size_t)head->bytes) &&
        read_process(pid, fetch->offer.stamp_at, &stamp, sizeof stamp) &&
        stamp == fetch->offer.stamp)
        return envelope;
    bl_envelope_free(envelope);
    return NULL;
}

static void fetch_one(const bl_ucx_fetch *fetch) {
    bl_ucx_peer *peer = fetch->peer;
    bool out_of_memory;
    if (peer->owner->room.peers[peer->rank] != BL_PEER_LIVE)
        return; /* what it offered may be gone */
    bl_envelope *envelope = take_offered(fetch, &out_of_memory);
    if (out_of_memory)
        peer->owner->out_of_memory = true;
    else
        bl_ucx_say(peer, envelope != NULL ? BL_UCX_NEAR_DONE : BL_UCX_NEAR_REFUSED,
                   (bl_channel)fetch->head.channel, fetch->head.number);
    if (envelope != NULL)
        bl_ucx_deliver(peer, envelope, fetch->head.channel);
}

void bl_ucx_near_fetch_all(bl_ucx *ucx) {
    while (ucx->fetches != NULL) {
        bl_ucx_fetch *fetch = ucx->fetches;
        ucx->fetches = fetch->next;
        if (ucx->fetches == NULL)
            ucx->last_fetch = &ucx->fetches;
        fetch_one(fetch);
        free(fetch);
    }
}

void bl_ucx_near_drop_all(bl_ucx *ucx) {
    while (ucx->fetches != NULL) {
        bl_ucx_fetch *fetch = ucx->fetches;
        ucx->fetches = fetch->next;
        free(fetch);
    }
}
