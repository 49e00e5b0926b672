#include "runtime/round.h"

#include "runtime/transport_ops.h"

#include <string.h>

bl_group bl_group_first(void) {
    return (bl_group){.first = 0, .last = 0};
}

bool bl_group_next(const bl_part *parts, int n_parts, bl_group *group) {
    const uint64_t chunk = group->chunk + 1;
    for (int part = group->first; part < group->last; part++) {
        if (bl_part_chunk_bytes(&parts[part], chunk) > 0) {
            group->chunk = chunk;
            return true;
        }
    }
    if (group->last >= n_parts)
        return false;
    group->first = group->last;
    group->last = n_parts - group->first < BL_ROUND_PARTS ? n_parts : group->first + BL_ROUND_PARTS;
    group->chunk = 0;
    return true;
}

static bl_status check(const bl_transport *transport, const bl_part *parts, int n_parts,
                       uint64_t mark, bl_error *err) {
    if (mark >= UINT64_C(1) << 16)
        return bl_fail(err, BL_ERR_RANGE, "round %llu is not below 65536",
                       (unsigned long long)mark);
    for (int part = 0; part < n_parts; part++)
        if (parts[part].from < 0 || parts[part].from >= transport->n_ranks || parts[part].to < 0 ||
            parts[part].to >= transport->n_ranks)
            return bl_fail(err, BL_ERR_RANGE, "part %d goes from rank %d to rank %d of %d", part,
                           parts[part].from, parts[part].to, transport->n_ranks);
    return BL_OK;
}

static uint64_t mark_of(uint64_t round, int part, uint64_t chunk) {
    return round << 48 | (uint64_t)(uint32_t)part << 24 | chunk;
}

static bl_status receive_chunk(bl_transport *transport, const bl_part *part, uint64_t chunk,
                               uint64_t mark, bl_error *err) {
    const size_t bytes = bl_part_chunk_bytes(part, chunk);
    bl_message message;
    BL_TRY(bl_transport_receive(transport, part->from, BL_CHANNEL_MOVE, mark, transport->deadline_s,
                                &message, err));
    const size_t got = message.bytes;
    if (got == bytes)
        memcpy((unsigned char *)part->target + chunk * BL_ROUND_CHUNK, message.data, bytes);
    bl_message_free(&message);
    if (got != bytes)
        return bl_fail(err, BL_ERR_STATE,
                       "the ranks are out of step: rank %d sent %zu bytes of a part where rank %d "
                       "expects %zu",
                       part->from, got, transport->rank, bytes);
    return BL_OK;
}

/* Over messages: all of the group's that leave, then all that arrive. */
static bl_status group_by_messages(bl_transport *transport, const bl_part *parts,
                                   const bl_group *group, uint64_t mark, bl_error *err) {
    for (int p = group->first; p < group->last; p++) {
        const size_t bytes = bl_part_chunk_bytes(&parts[p], group->chunk);
        if (parts[p].from == transport->rank && bytes > 0)
            BL_TRY(bl_transport_send(
                transport, parts[p].to, BL_CHANNEL_MOVE, mark_of(mark, p, group->chunk),
                (const unsigned char *)parts[p].source + group->chunk * BL_ROUND_CHUNK, bytes,
                err));
    }
    for (int p = group->first; p < group->last; p++)
        if (parts[p].to == transport->rank && bl_part_chunk_bytes(&parts[p], group->chunk) > 0)
            BL_TRY(receive_chunk(transport, &parts[p], group->chunk, mark_of(mark, p, group->chunk),
                                 err));
    return BL_OK;
}

bl_status bl_transport_round(bl_transport *transport, const bl_part *parts, int n_parts,
                             uint64_t mark, bl_error *err) {
    BL_TRY(check(transport, parts, n_parts, mark, err));
    if (transport->ops->round != NULL)
        return transport->ops->round(transport, parts, n_parts, err);
    bl_group group = bl_group_first();
    while (bl_group_next(parts, n_parts, &group))
        BL_TRY(group_by_messages(transport, parts, &group, mark, err));
    return BL_OK;
}

/* ---- rounds that do not wait ----------------------------------------------------------------- */

bool bl_rounds_are_offered(const bl_transport *transport) {
    return transport->ops->rounds != NULL;
}

static bl_status check_offered(const bl_transport *transport, bl_error *err) {
    return transport->ops->rounds != NULL
               ? BL_OK
               : bl_fail(err, BL_ERR_UNSUPPORTED, "transport %s carries all rounds by messages",
                         transport->ops->name);
}

bl_status bl_rounds_name(bl_transport *transport, const bool *members,
                         unsigned char name[BL_ROUND_NAME_BYTES], bl_error *err) {
    BL_TRY(check_offered(transport, err));
    return transport->ops->rounds->name(transport, members, name, err);
}

bl_status bl_rounds_join(bl_transport *transport, const bool *members,
                         const unsigned char name[BL_ROUND_NAME_BYTES], bl_error *err) {
    BL_TRY(check_offered(transport, err));
    return transport->ops->rounds->join(transport, members, name, err);
}

bl_status bl_rounds_post(bl_transport *transport, const bl_part *parts, int n_parts,
                         bl_error *err) {
    BL_TRY(check_offered(transport, err));
    BL_TRY(check(transport, parts, n_parts, 0, err));
    if (n_parts > BL_ROUND_PARTS)
        return bl_fail(err, BL_ERR_RANGE, "%d parts in a group of at most %d", n_parts,
                       BL_ROUND_PARTS);
    for (int part = 0; part < n_parts; part++)
        if (parts[part].bytes > BL_ROUND_CHUNK)
            return bl_fail(err, BL_ERR_RANGE, "part %d of a group has %zu bytes, more than %zu",
                           part, parts[part].bytes, BL_ROUND_CHUNK);
    return transport->ops->rounds->post(transport, parts, n_parts, err);
}

bl_status bl_rounds_poll(bl_transport *transport, bool *done, bl_error *err) {
    *done = false;
    BL_TRY(check_offered(transport, err));
    return transport->ops->rounds->poll(transport, done, err);
}

bl_status bl_rounds_leave(bl_transport *transport, bl_error *err) {
    return transport->ops->rounds != NULL ? transport->ops->rounds->leave(transport, err) : BL_OK;
}
