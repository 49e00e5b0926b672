/*
 * replay_answer.h: plans scored on a trace, all phases together and each apart: what `ballast replay`
 * prints and `ballast report` draws.
 */
#ifndef BL_CLI_REPLAY_ANSWER_H
#define BL_CLI_REPLAY_ANSWER_H

#include "cli/replay_inputs.h"

/* An answer: all that was asked for together, and each of its phases apart. */
typedef struct bl_replay_answer {
    bl_replay all;
    int n_phases;
    int phases[BL_N_PHASES];      /* ascending */
    bl_replay apart[BL_N_PHASES]; /* [n_phases]; one phase alone is `all` */
} bl_replay_answer;

/* What is asked for when nothing is said. */
void bl_replay_defaults(bl_replay_request *o);

/* `paths` name the plans and are borrowed. Free with bl_replay_answer_free(), also after an error. */
bl_status bl_replay_answer_make(const bl_replay_request *o, const bl_replay_inputs *in,
                                char **paths, bl_replay_answer *answer, bl_error *err);
void bl_replay_answer_free(bl_replay_answer *answer); /* safe on a zeroed struct */

#endif
