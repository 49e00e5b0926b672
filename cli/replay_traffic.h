/*
 * replay_traffic.h: telling how many rows and bytes travelled (planner/traffic.h), where the trace says
 * on which ranks tokens were born.
 */
#ifndef BL_CLI_REPLAY_TRAFFIC_H
#define BL_CLI_REPLAY_TRAFFIC_H

#include "cli/replay_inputs.h"

/* A table; nothing when nothing is known. */
void bl_replay_print_traffic(const bl_replay_request *o, const bl_replay *replay);

/* {"<level>": bytes of all scored steps and layers, dispatch and combine}; empty when not known. New
 * references. */
json_t *bl_replay_bytes_to_json(const bl_replay_inputs *in, const bl_replay_traffic *t);
/* Modes, rows by level, busiest ports, rows between pairs of ranks, remote nodes per token. */
json_t *bl_replay_traffic_to_json(const bl_replay_request *o, const bl_replay_inputs *in,
                                  const bl_replay_traffic *t);

#endif
