#include "tests/support/transport_body.h"

#include <stdlib.h>
#include <string.h>

unsigned char *bl_test_content(int from, uint64_t mark, size_t bytes) {
    unsigned char *data = malloc(bytes > 0 ? bytes : 1);
    uint64_t word = ((uint64_t)(unsigned)from << 56) ^ (mark << 20) ^ bytes;
    for (size_t at = 0; at < bytes; at += sizeof word) {
        const size_t n = bytes - at < sizeof word ? bytes - at : sizeof word;
        word = word * UINT64_C(6364136223846793005) + 1442695040888963407U;
        memcpy(data + at, &word, n);
    }
    return data;
}

bl_status bl_test_send(bl_transport *t, int peer, bl_channel channel, uint64_t mark, size_t bytes,
                       bl_error *err) {
    unsigned char *data = bl_test_content(bl_transport_rank(t), mark, bytes);
    const bl_status st = bl_transport_send(t, peer, channel, mark, data, bytes, err);
    memset(data, 0xee, bytes);
    free(data);
    return st;
}

bl_status bl_test_check(const bl_message *message, int from, uint64_t mark, size_t bytes,
                        bl_error *err) {
    REQUIRE(message->from == from && message->mark == mark);
    REQUIRE(message->bytes == bytes);
    REQUIRE(message->data != NULL && (uintptr_t)message->data % 64 == 0);
    unsigned char *expected = bl_test_content(from, mark, bytes);
    const bool same = memcmp(expected, message->data, bytes) == 0;
    free(expected);
    REQUIRE(same);
    return BL_OK;
}

bl_status bl_test_receive(bl_transport *t, int peer, bl_channel channel, uint64_t mark,
                          size_t bytes, bl_error *err) {
    bl_message message;
    BL_TRY(bl_transport_receive(t, peer, channel, mark, WAIT_S, &message, err));
    const bl_status st = bl_test_check(&message, peer, mark, bytes, err);
    bl_message_free(&message);
    return st;
}

bl_status bl_test_meet(bl_transport *t, uint64_t mark, bl_error *err) {
    for (int peer = 0; peer < bl_transport_n_ranks(t); peer++)
        BL_TRY(bl_transport_send(t, peer, BL_CHANNEL_CONTROL, mark, NULL, 0, err));
    for (int peer = 0; peer < bl_transport_n_ranks(t); peer++)
        BL_TRY(bl_test_receive(t, peer, BL_CHANNEL_CONTROL, mark, 0, err));
    return BL_OK;
}
