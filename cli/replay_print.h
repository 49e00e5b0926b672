/*
 * replay_print.h: what `ballast replay` answers: tables, or one JSON object.
 */
#ifndef BL_CLI_REPLAY_PRINT_H
#define BL_CLI_REPLAY_PRINT_H

#include "cli/replay_answer.h"

void bl_replay_print_text(const bl_replay_request *o, const bl_replay_inputs *in,
                          const bl_replay_answer *answer);
bl_status bl_replay_print_json(const bl_replay_request *o, const bl_replay_inputs *in,
                               const bl_replay_answer *answer, bl_error *err);

/* Part of the baseline's modelled step that the best plan saves; NaN when not modelled. */
double bl_replay_gain(const bl_replay *replay);

#endif
