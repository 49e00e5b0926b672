#include "runtime/mailbox.h"

#include "core/mem.h"
#include "runtime/buffer.h"

#include <assert.h>
#include <stdlib.h>

bl_status bl_mailroom_create(int n_ranks, bl_mailroom *out, bl_error *err) {
    bl_mailroom room = {.n_ranks = n_ranks};
    bl_status st = BL_CALLOC(room.boxes, (size_t)n_ranks * BL_N_CHANNELS, err);
    if (st == BL_OK)
        st = BL_CALLOC(room.peers, n_ranks, err);
    if (st == BL_OK)
        st = BL_CALLOC(room.forgiven, n_ranks, err);
    if (st == BL_OK)
        st = BL_CALLOC(room.knocking, n_ranks, err);
    if (st < 0) {
        free(room.boxes);
        free(room.peers);
        free(room.forgiven);
        return st;
    }
    *out = room;
    return BL_OK;
}

static void free_from(bl_envelope *envelope) {
    while (envelope != NULL) {
        bl_envelope *next = envelope->next;
        bl_envelope_free(envelope);
        envelope = next;
    }
}

void bl_mailroom_free(bl_mailroom *room) {
    for (int i = 0; room->boxes != NULL && i < room->n_ranks * BL_N_CHANNELS; i++)
        free_from(room->boxes[i].first);
    free(room->boxes);
    free(room->peers);
    free(room->forgiven);
    free(room->knocking);
    *room = (bl_mailroom){0};
}

void bl_mailroom_clear_peer(bl_mailroom *room, int peer) {
    for (int channel = 0; channel < BL_N_CHANNELS; channel++) {
        bl_mailbox *box = bl_mailroom_box(room, (bl_channel)channel, peer);
        free_from(box->first);
        *box = (bl_mailbox){0};
    }
}

bl_envelope *bl_envelope_new(int from, uint64_t number, uint64_t mark, size_t bytes) {
    bl_envelope *envelope = bl_calloc(1, sizeof *envelope);
    if (envelope == NULL)
        return NULL;
    envelope->number = number;
    envelope->message = (bl_message){from, mark, bytes, bl_buffer_alloc(bytes)};
    if (envelope->message.data == NULL) {
        free(envelope);
        return NULL;
    }
    return envelope;
}

void bl_envelope_free(bl_envelope *envelope) {
    if (envelope == NULL)
        return;
    free(envelope->message.data);
    free(envelope);
}

bool bl_mailbox_put(bl_mailbox *box, bl_envelope *envelope) {
    if (envelope->number < box->next_number)
        return false;
    bl_envelope *before = NULL;
    if (box->last != NULL && box->last->number < envelope->number)
        before = box->last; /* nearly always */
    else
        for (bl_envelope *at = box->first; at != NULL && at->number <= envelope->number;
             at = at->next)
            before = at;
    if (before != NULL && before->number == envelope->number)
        return false;
    bl_envelope **link = before != NULL ? &before->next : &box->first;
    envelope->next = *link;
    *link = envelope;
    if (envelope->next == NULL)
        box->last = envelope;
    box->weight += bl_message_weight(envelope->message.bytes);
    return true;
}

const bl_message *bl_mailbox_peek(const bl_mailbox *box) {
    const bl_envelope *first = box->first;
    return first != NULL && first->complete && first->number == box->next_number ? &first->message
                                                                                 : NULL;
}

size_t bl_mailbox_take(bl_mailbox *box, bl_message *out) {
    assert(bl_mailbox_peek(box) != NULL);
    bl_envelope *first = box->first;
    const size_t weight = bl_message_weight(first->message.bytes);
    box->first = first->next;
    if (box->first == NULL)
        box->last = NULL;
    box->weight -= weight;
    box->next_number++;
    *out = first->message;
    free(first);
    return weight;
}

int bl_mailroom_lost(const bl_mailroom *room) {
    for (int peer = 0; peer < room->n_ranks; peer++) {
        if (bl_peer_is_lost(room->peers[peer]) && !room->forgiven[peer])
            return peer;
    }
    return -1;
}
