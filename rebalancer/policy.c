#include "rebalancer/policy.h"

#include "core/status.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>

/* Weight of the newest in the moving averages. */
#define TRUST_WEIGHT 0.5
#define DWELL_WEIGHT 0.5
#define LEAST_TRUST 0.05
/* Distrust fades: by this part with every window in which a plan would be welcome. */
#define FORGIVENESS 0.02
/* Windows after a move over which its promise is judged. */
#define WATCHED_WINDOWS 4
/* Windows are compared in step time when their tokens per step differ by no more than this part. */
#define SAME_TOKENS 0.25

static bl_policy_decision decide(bl_policy_verdict verdict, const char *format, ...)
    BL_PRINTF(2, 3);
static bl_policy_decision decide(bl_policy_verdict verdict, const char *format, ...) {
    bl_policy_decision made = {.verdict = verdict};
    va_list args;
    va_start(args, format);
    vsnprintf(made.line, sizeof made.line, format, args);
    va_end(args);
    return made;
}

void bl_policy_init(bl_policy *policy, const bl_policy_options *options) {
    *policy = (bl_policy){.options = *options, .trust = 1.0, .dwell_s = options->dwell_s};
}

double bl_policy_noise(int n_ranks, double rows) {
    return n_ranks > 1 && rows > 0 ? sqrt(2.0 * log((double)n_ranks) / rows) : 0.0;
}

static double saved_per_step(const bl_policy_offer *offer) {
    const double part = offer->now > 0 ? (offer->now - offer->after) / offer->now : 0.0;
    return part * offer->experts_s;
}

bool bl_policy_pays(const bl_policy_offer *offer, double dwell_s, double margin, double *gain_s) {
    *gain_s = offer->step_s > 0 ? saved_per_step(offer) * dwell_s / offer->step_s : 0.0;
    return *gain_s > 0 && *gain_s > margin * offer->cost_s;
}

/* ---- windows --------------------------------------------------------------------------------- */

/* The watch over a move ends: how much of its promise came true? */
static void judge(bl_policy *p) {
    const double promised = p->before - p->predicted, kept = p->before - p->realised;
    const double part = promised > 0 ? kept / promised : 1.0;
    const double bounded = part < 0 ? 0 : part > 1 ? 1 : part;
    p->trust = (1 - TRUST_WEIGHT) * p->trust + TRUST_WEIGHT * bounded;
    p->trust = p->trust < LEAST_TRUST ? LEAST_TRUST : p->trust;
    p->watching = false;
}

static void note_pace(bl_policy *p, const bl_policy_window_in *w) {
    if (w->step_s > 0 && w->tokens > 0)
        p->paces[p->n_paces++ % BL_POLICY_PACES] = (bl_policy_pace){w->step_s, w->tokens};
}

/* The longest steps before the move, with about as many tokens; 0 when fewer than two windows can
 * tell. */
static double slowest_before(const bl_policy *p, double tokens) {
    double slowest = 0;
    int n = 0;
    for (uint64_t i = 0; i < p->n_paces && i < BL_POLICY_PACES; i++) {
        if (fabs(p->paces[i].tokens - tokens) > SAME_TOKENS * tokens)
            continue;
        slowest = fmax(slowest, p->paces[i].step_s);
        n++;
    }
    return n >= 2 ? slowest : 0;
}

/* Windows in a row with steps much longer than before. */
static bool has_become_slow(bl_policy *p, const bl_policy_window_in *w) {
    const double before_s = slowest_before(p, w->tokens);
    const bool slow = before_s > 0 && w->step_s > before_s * (1 + p->options.slower);
    p->n_slow = slow ? p->n_slow + 1 : 0;
    return p->n_slow >= 2 * p->options.patience;
}

/* One window after a move; true when it has to be taken back. */
static bool watch(bl_policy *p, const bl_policy_window_in *w, double noise) {
    p->realised += (w->imbalance - p->realised) / ++p->n_watched;
    const bool worse =
        w->imbalance > p->predicted * (1 + p->options.worse) + noise && w->imbalance > p->before;
    p->n_worse = worse ? p->n_worse + 1 : 0;
    if (p->n_worse >= p->options.patience)
        return true;
    if (has_become_slow(p, w))
        return true;
    if (p->n_watched >= WATCHED_WINDOWS && p->n_worse == 0 && p->n_slow == 0)
        judge(p);
    return false;
}

/* A plan is over when its load has drifted away: learn for how long it was good. */
static void learn_dwell(bl_policy *p, double now_s) {
    if (!p->has_moved || p->n_over != p->options.min_windows)
        return;
    const double lasted = now_s - p->moved_at_s - p->over_s;
    p->dwell_s += DWELL_WEIGHT * ((lasted > 0 ? lasted : 0) - p->dwell_s);
    if (p->dwell_s > p->options.dwell_s)
        p->dwell_s = p->options.dwell_s;
    p->has_moved = false;
}

static bl_policy_decision roll_back(const bl_policy *p, const bl_policy_window_in *w) {
    if (p->n_worse >= p->options.patience)
        return decide(BL_POLICY_ROLL_BACK,
                      "roll back: imbalance %.3f for %d windows, predicted %.3f, before %.3f",
                      w->imbalance, p->n_worse, p->predicted, p->before);
    return decide(BL_POLICY_ROLL_BACK,
                  "roll back: step time %.3g ms for %d windows, at most %.3g ms before; imbalance "
                  "%.3f, predicted %.3f",
                  w->step_s * 1e3, p->n_slow, slowest_before(p, w->tokens) * 1e3, w->imbalance,
                  p->predicted);
}

bl_policy_decision bl_policy_window(bl_policy *p, const bl_policy_window_in *w, double now_s) {
    const bl_policy_options *o = &p->options;
    if (w->moving)
        return decide(BL_POLICY_WAIT, "wait: experts are on their way");
    const double noise = bl_policy_noise(w->n_ranks, w->rows_per_rank);
    p->last_noise = noise;
    if (p->watching && watch(p, w, noise))
        return roll_back(p, w);
    if (!p->watching)
        note_pace(p, w);
    if (w->imbalance <= o->trigger + noise) {
        p->n_over = 0;
        p->over_s = 0;
        return decide(BL_POLICY_WAIT, "wait: imbalance %.3f, trigger %.3f + %.3f of noise",
                      w->imbalance, o->trigger, noise);
    }
    p->n_over++;
    p->over_s += w->seconds;
    learn_dwell(p, now_s);
    if (p->n_over < o->min_windows)
        return decide(BL_POLICY_WAIT, "wait: imbalance %.3f in %d of %d windows", w->imbalance,
                      p->n_over, o->min_windows);
    if (p->moved_at_s > 0 && now_s - p->moved_at_s < o->rest_s)
        return decide(BL_POLICY_WAIT, "wait: imbalance %.3f, last move %.1f s ago, rest %.1f s",
                      w->imbalance, now_s - p->moved_at_s, o->rest_s);
    p->trust += FORGIVENESS * (1 - p->trust);
    return decide(BL_POLICY_PLAN, "plan: imbalance %.3f for %d windows, trigger %.3f + %.3f",
                  w->imbalance, p->n_over, o->trigger, noise);
}

/* ---- offers ---------------------------------------------------------------------------------- */

bl_policy_decision bl_policy_weigh(bl_policy *p, const bl_policy_offer *offer, double now_s) {
    const double noise = p->last_noise;
    (void)now_s;
    if (offer->moves == 0)
        return decide(BL_POLICY_WAIT, "wait: the placement in force is the best found (%.3f)",
                      offer->now);
    if (offer->now - offer->after <= noise)
        return decide(BL_POLICY_WAIT, "wait: imbalance %.3f -> %.3f is within the noise of %.3f",
                      offer->now, offer->after, noise);
    if (p->over_s < offer->duration_s)
        return decide(BL_POLICY_WAIT,
                      "wait: %d moves take %.2f s, the imbalance is %.2f s old: perhaps a burst",
                      offer->moves, offer->duration_s, p->over_s);
    double gain_s;
    bl_policy_offer damped = *offer;
    damped.experts_s *= p->trust;
    /* What has lasted for a while is expected to last as long again. */
    double dwell_s = p->over_s > p->dwell_s ? p->over_s : p->dwell_s;
    dwell_s = dwell_s < p->options.dwell_s ? dwell_s : p->options.dwell_s;
    const bool pays = bl_policy_pays(&damped, dwell_s, p->options.margin, &gain_s);
    bl_policy_decision made =
        decide(pays ? BL_POLICY_MOVE : BL_POLICY_WAIT,
               "%s: imbalance %.3f -> %.3f, gain %.3g s over %.3g s (trust %.2f), cost %.3g s x "
               "%.2g; %d moves, %.3g MB",
               pays ? "move" : "wait", offer->now, offer->after, gain_s, dwell_s, p->trust,
               offer->cost_s, p->options.margin, offer->moves, offer->bytes * 1e-6);
    made.gain_s = gain_s;
    return made;
}

void bl_policy_moved(bl_policy *p, const bl_policy_offer *offer, bool in_place, double now_s) {
    p->moved_at_s = now_s;
    p->n_over = 0;
    p->over_s = 0;
    p->has_moved = p->watching = in_place;
    p->before = offer->now;
    p->predicted = offer->after;
    p->n_watched = p->n_worse = p->n_slow = 0;
    p->realised = 0;
}

void bl_policy_overtaken(bl_policy *p) {
    p->watching = p->has_moved = false;
}

void bl_policy_rolled_back(bl_policy *p, double now_s) {
    p->realised = p->before;
    judge(p); /* nothing of the promise came true */
    p->trust = p->trust / 2 < LEAST_TRUST ? LEAST_TRUST : p->trust / 2;
    p->moved_at_s = now_s;
    p->has_moved = false;
    p->n_over = 0;
    p->over_s = 0;
}
