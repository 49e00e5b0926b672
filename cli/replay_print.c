/*
 * replay_print.c: telling how plans would have done.
 */
#include "cli/replay_print.h"

#include "cli/replay_traffic.h"

#include <math.h>

double bl_replay_gain(const bl_replay *replay) {
    const double base = replay->baseline.step_us_mean;
    return base > 0.0 ? replay->plans[replay->best].saved_us / base : NAN;
}

/* ---- tables -----------------------------------------------------------------------------------*/

static void print_score(const bl_replay *replay, const bl_replay_score *s, bool is_plan) {
    printf("%-28.28s %7.4f %7.4f %7.4f %7.4f %7.4f  %7.4f", s->name, s->mean, s->p50, s->p95,
           s->p99, s->max, s->balancedness);
    if (replay->modelled)
        printf("  %10.1f %10.1f", s->step_us_mean, s->step_us_p95);
    if (is_plan && replay->modelled)
        printf("  %10.1f %10.1f  %6lld %9.3g", s->saved_us, s->saved_us_low, (long long)s->moves,
               s->migration_s);
    putchar('\n');
}

static void print_table(const bl_replay *replay) {
    printf("%-28s %7s %7s %7s %7s %7s  %7s", "max/mean of a layer", "mean", "p50", "p95", "p99",
           "max", "balance");
    if (replay->modelled)
        printf("  %10s %10s  %10s %10s  %6s %9s", "step us *", "p95 *", "saved us *", "95% low *",
               "moves", "seconds *");
    putchar('\n');
    print_score(replay, &replay->baseline, false);
    for (int p = 0; p < replay->n_plans; p++)
        print_score(replay, &replay->plans[p], true);
    if (replay->noise_mean > 0.0)
        printf("%-28s %7.4f %7s %7.4f   a statistic, no bound: what steps that vary as these do "
               "leave of a plan level on what is to be expected\n",
               "noise floor", replay->noise_mean, "", replay->noise_p95);
}

static void print_requests(const bl_demand *requests, const bl_demand_phase *phase) {
    if (phase->known)
        printf("requests over %d ranks: max/mean of tokens %.4f, p95 %.4f, max %.4f (attention; no "
               "placement of experts changes it)\n",
               requests->n_ranks, phase->mean, phase->p95, phase->max);
}

/* One phase of several. */
static void print_phase(const bl_replay_inputs *in, int phase, const bl_replay *replay) {
    printf("\n%s: %zu steps scored, %zu left out\n", bl_phase_names[phase], replay->n_steps,
           replay->n_left_out);
    if (replay->n_steps > 0)
        print_table(replay);
    print_requests(&in->demand, &in->demand.phases[phase]);
    printf("%s, %s: %s\n", replay->plans[replay->best].name, bl_phase_names[phase],
           bl_verdict_names[replay->verdict]);
}

void bl_replay_print_text(const bl_replay_request *o, const bl_replay_inputs *in,
                          const bl_replay_answer *answer) {
    const bl_replay *all = &answer->all;
    printf("%zu steps scored, %zu left out because a plan was made from them\n", all->n_steps,
           all->n_left_out);
    if (all->n_steps > 0) {
        print_table(all);
        if (answer->n_phases == 1)
            print_requests(&in->demand, &in->demand.phases[answer->phases[0]]);
        for (int p = 0; p < answer->n_phases && answer->n_phases > 1; p++)
            print_phase(in, answer->phases[p], &answer->apart[p]);
        if (answer->n_phases > 1)
            putchar('\n');
        bl_replay_print_traffic(o, all);
        if (all->modelled)
            printf("* modelled, MoE layers only; saved against %s, over %.0f steps\n",
                   all->baseline.name, o->dwell);
        const double gain = bl_replay_gain(all);
        if (gain <= 0.01)
            printf("the gain over %s is %.2f %% of a step (at most 1 %%)\n", all->baseline.name,
                   100.0 * fmax(gain, 0.0));
    }
    printf("%s: %s\n", all->plans[all->best].name, bl_verdict_names[all->verdict]);
}

/* ---- JSON -------------------------------------------------------------------------------------*/

/* JSON has no NaN: what is not known is null. */
static json_t *number(double value) {
    return isfinite(value) ? json_real(value) : json_null();
}

static json_t *score_to_json(const bl_replay_request *o, const bl_replay_inputs *in,
                             const bl_replay_score *s) {
    json_t *root = json_pack("{s:o, s:{s:o, s:o, s:o, s:o, s:o}, s:o, s:o, s:{s:o, s:o}, s:b}",
                             "name", bl_json_text(s->name), "imbalance", "mean", number(s->mean),
                             "p50", number(s->p50), "p95", number(s->p95), "p99", number(s->p99),
                             "max", number(s->max), "balancedness", number(s->balancedness),
                             "bytes", bl_replay_bytes_to_json(in, &s->traffic), "step_us", "mean",
                             number(s->step_us_mean), "p95", number(s->step_us_p95), "modelled", 1);
    if (s->traffic.n_levels > 0)
        json_object_set_new(root, "traffic", bl_replay_traffic_to_json(o, in, &s->traffic));
    return root;
}

static json_t *plan_to_json(const bl_replay_request *o, const bl_replay_inputs *in,
                            const bl_replay_score *s) {
    json_t *object = score_to_json(o, in, s);
    json_object_set_new(object, "moves", json_integer((json_int_t)s->moves));
    json_object_set_new(object, "move_bytes", json_integer((json_int_t)s->move_bytes));
    json_object_set_new(object, "migration_s", number(s->migration_s));
    json_object_set_new(
        object, "saved_us",
        json_pack("{s:o, s:o}", "mean", number(s->saved_us), "low", number(s->saved_us_low)));
    json_object_set_new(object, "verdict", json_string(bl_verdict_names[s->verdict]));
    return object;
}

static json_t *plans_to_json(const bl_replay_request *o, const bl_replay_inputs *in,
                             const bl_replay *replay) {
    json_t *plans = json_array();
    for (int p = 0; p < replay->n_plans; p++)
        json_array_append_new(plans, plan_to_json(o, in, &replay->plans[p]));
    return plans;
}

static json_t *noise_to_json(const bl_replay *replay) {
    return json_pack("{s:o, s:o, s:b}", "mean", number(replay->noise_mean), "p95",
                     number(replay->noise_p95), "statistic", 1);
}

static json_t *requests_to_json(const bl_demand *requests, const bl_demand_phase *phase) {
    const bool known = phase->known;
    return json_pack("{s:i, s:I, s:I, s:{s:o, s:o, s:o}}", "ranks", requests->n_ranks, "tokens",
                     (json_int_t)phase->tokens, "steps", (json_int_t)phase->steps, "max_over_mean",
                     "mean", number(known ? phase->mean : NAN), "p95",
                     number(known ? phase->p95 : NAN), "max", number(known ? phase->max : NAN));
}

static json_t *phases_to_json(const bl_replay_request *o, const bl_replay_inputs *in,
                              const bl_replay_answer *answer) {
    json_t *phases = json_object();
    for (int p = 0; p < answer->n_phases; p++) {
        const bl_replay *replay = answer->n_phases > 1 ? &answer->apart[p] : &answer->all;
        json_object_set_new(
            phases, bl_phase_names[answer->phases[p]],
            json_pack("{s:I, s:I, s:o, s:o, s:o, s:o, s:s}", "steps", (json_int_t)replay->n_steps,
                      "steps_left_out", (json_int_t)replay->n_left_out, "plans",
                      plans_to_json(o, in, replay), "baseline",
                      score_to_json(o, in, &replay->baseline), "noise_floor", noise_to_json(replay),
                      "requests",
                      requests_to_json(&in->demand, &in->demand.phases[answer->phases[p]]),
                      "verdict", bl_verdict_names[replay->verdict]));
    }
    return phases;
}

bl_status bl_replay_print_json(const bl_replay_request *o, const bl_replay_inputs *in,
                               const bl_replay_answer *answer, bl_error *err) {
    const bl_replay *all = &answer->all;
    json_t *root =
        json_pack("{s:I, s:I, s:o, s:o, s:f, s:o, s:o, s:o, s:o, s:s}", "steps",
                  (json_int_t)all->n_steps, "steps_left_out", (json_int_t)all->n_left_out, "plans",
                  plans_to_json(o, in, all), "baseline", score_to_json(o, in, &all->baseline),
                  "dwell_steps", o->dwell, "best", bl_json_text(all->plans[all->best].name), "gain",
                  number(bl_replay_gain(all)), "noise_floor", noise_to_json(all), "phases",
                  phases_to_json(o, in, answer), "verdict", bl_verdict_names[all->verdict]);
    const bl_status st = root != NULL ? bl_json_write("-", root, 2, err)
                                      : bl_fail(err, BL_ERR_NOMEM, "out of memory");
    json_decref(root);
    return st;
}
