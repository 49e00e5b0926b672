/* Messages, goals and chunks from a peer: what decodes must encode to the same bytes. The first byte
 * chooses the reader. */
#include "rebalancer/messages.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(const unsigned char *made, size_t made_bytes, const uint8_t *data, size_t size) {
    if (made_bytes != size || memcmp(made, data, size) != 0)
        abort();
}

static void fuzz_message(const uint8_t *data, size_t size) {
    bl_tx_message message;
    const unsigned char *payload;
    unsigned char *made;
    size_t payload_bytes, made_bytes;
    if (bl_wire_decode(data, size, 3, &message, &payload, &payload_bytes, NULL) < 0)
        return;
    if (bl_wire_encode(&message, payload, payload_bytes, &made, &made_bytes, NULL) < 0)
        abort();
    check(made, made_bytes, data, size);
    free(made);
}

static void fuzz_goal(const uint8_t *data, size_t size) {
    bl_placement goal;
    unsigned char *made;
    size_t made_bytes;
    if (bl_wire_decode_goal(data, size, &goal, NULL) < 0)
        return;
    if (bl_wire_encode_goal(&goal, &made, &made_bytes, NULL) < 0)
        abort();
    check(made, made_bytes, data, size);
    bl_placement_check(&goal, NULL, NULL);
    free(made);
    bl_placement_free(&goal);
}

static void fuzz_chunk(const uint8_t *data, size_t size) {
    bl_wire_chunk chunk;
    unsigned char head[BL_WIRE_CHUNK_BYTES];
    if (bl_wire_decode_chunk(data, size, 100, &chunk, NULL) < 0)
        return;
    bl_wire_encode_chunk(&chunk, head);
    check(head, sizeof head, data, BL_WIRE_CHUNK_BYTES);
    if (chunk.offset + (size - BL_WIRE_CHUNK_BYTES) > 100)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size == 0)
        return 0;
    if (data[0] % 3 == 0)
        fuzz_message(data + 1, size - 1);
    else if (data[0] % 3 == 1)
        fuzz_goal(data + 1, size - 1);
    else
        fuzz_chunk(data + 1, size - 1);
    return 0;
}
