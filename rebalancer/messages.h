/*
 * messages.h: what the rebalancer puts on the wire.
 *
 * Three things, all little-endian, all checked on the way in: sizes against what arrived, ids against
 * their range. A message that does not decode is an error and changes nothing.
 *
 * Message of the transaction (channel CONTROL):
 *
 *     0  "BLT1"      8  view    32 wave      48 step
 *     4  type        16 term    36 move      56 hash
 *     5  0           24 epoch   40 attempt   64 reason, then payload
 *     6  reason bytes (u16)     44 payload bytes (u32)
 *
 * The sender is told by the transport. The payload is empty but for PREPARE, which carries the goal.
 *
 * Goal: the placement a plan asks for. Epochs do not travel, every rank has its own.
 *
 *     0  ranks, 4  experts, 8  layers, then per layer: its decoder-layer id, slots of each rank,
 *     the expert of each slot (-1: empty); all of them 32 bits
 *
 * Behind it, where bundles go by rounds, "BLN1", 4 bytes of 0 and the 128 bytes that name the ranks'
 * communicator.
 *
 * Chunk: a piece of an expert's bundle (channel MOVE).
 *
 *     0  "BLC1"      8  term      20 attempt
 *     4  wave        16 move      24 offset in the bundle
 *                                 32 xxh3-64 of the whole bundle at its source, 40 bytes
 *
 * then the piece. A chunk without one, at the end of the bundle, is told by a source whose bytes went
 * another way (rebalancer/agent_parts.h).
 */
#ifndef BL_REBALANCER_MESSAGES_H
#define BL_REBALANCER_MESSAGES_H

#include "rebalancer/transaction.h"
#include "runtime/round.h"

#define BL_WIRE_MESSAGE_BYTES 64 /* without reason and payload */
#define BL_WIRE_CHUNK_BYTES 40   /* without the piece */
#define BL_WIRE_NAME_BYTES (8 + BL_ROUND_NAME_BYTES)

/* *data_p is the caller's, freed with free(). */
bl_status bl_wire_encode(const bl_tx_message *message, const void *payload, size_t payload_bytes,
                         unsigned char **data_p, size_t *bytes, bl_error *err);
/* Whether bytes begin like a message of the transaction. */
bool bl_wire_is_message(const void *data, size_t bytes);
/* *payload_p points into `data`. */
bl_status bl_wire_decode(const void *data, size_t bytes, int from, bl_tx_message *out,
                         const unsigned char **payload_p, size_t *payload_bytes, bl_error *err);

/* *data_p is the caller's, freed with free(). */
bl_status bl_wire_encode_goal(const bl_placement *goal, unsigned char **data_p, size_t *bytes,
                              bl_error *err);
/* Shapes and ranges are checked, the hard rules are not. Free with bl_placement_free(). */
bl_status bl_wire_decode_goal(const void *data, size_t bytes, bl_placement *out, bl_error *err);

/* What stands behind a goal. */
void bl_wire_encode_name(const unsigned char name[BL_ROUND_NAME_BYTES],
                         unsigned char tail[BL_WIRE_NAME_BYTES]);
/* The name behind a goal, whose *bytes then are the goal's alone; NULL: there is none. */
const unsigned char *bl_wire_find_name(const unsigned char *goal, size_t *bytes);

typedef struct bl_wire_chunk {
    int32_t wave, move, attempt;
    uint64_t term, offset, hash;
} bl_wire_chunk;

void bl_wire_encode_chunk(const bl_wire_chunk *chunk, unsigned char head[BL_WIRE_CHUNK_BYTES]);
/* The piece is the rest of `data`, which ends within bundle_bytes; empty only at its very end. */
bl_status bl_wire_decode_chunk(const void *data, size_t bytes, size_t bundle_bytes,
                               bl_wire_chunk *out, bl_error *err);

#endif
