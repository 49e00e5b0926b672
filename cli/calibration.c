#include "cli/calibration.h"

#include <stdio.h>
#include <string.h>

#define US 1e6

json_t *bl_errors_json(const bl_fit_errors *e) {
    if (e->n == 0)
        return json_pack("{s:i}", "n", 0);
    return json_pack("{s:I, s:{s:f, s:f}, s:{s:f, s:f}, s:{s:f, s:f, s:f}}", "n", (json_int_t)e->n,
                     "measured_us", "p50", e->measured * US, "p95", e->measured_p95 * US,
                     "predicted_us", "p50", e->predicted * US, "p95", e->predicted_p95 * US,
                     "error", "median", e->median_error, "p95", e->p95_error, "total",
                     e->total_error);
}

const char *bl_errors_text(const bl_fit_errors *e, const char *what, char *out, size_t room) {
    snprintf(out, room,
             "%.3g ms predicted, %.3g ms measured (medians of %zu unseen %s; p95 %.3g and "
             "%.3g); error %.3g %% (median), %.3g %% (p95)",
             e->predicted * 1e3, e->measured * 1e3, e->n, what, e->predicted_p95 * 1e3,
             e->measured_p95 * 1e3, e->median_error * 100, e->p95_error * 100);
    return out;
}

json_t *bl_fit_json(const bl_fit *fit, const char *const *names) {
    json_t *made = json_object();
    for (int i = 0; i < fit->n_terms; i++) {
        const bl_fit_term *term = &fit->term[i];
        json_t *item =
            term->verdict == BL_FIT_TOLD
                ? json_pack("{s:f, s:f}", "us", term->value * US, "error_us", term->error * US)
                : json_pack("{s:n, s:s}", "us", "why", bl_fit_verdict_text(term->verdict));
        json_object_set_new(made, names[i], item);
    }
    return made;
}

json_t *bl_calibration_json(const bl_calibration *c) {
    json_t *experts = json_array(), *exchange = bl_fit_json(&c->exchange, bl_exchange_term_names);
    const bl_fit_term *wire = &c->exchange.term[BL_TERM_WIRE];
    for (int d = 0; d < c->n_devices; d++)
        json_array_append_new(experts, c->experts[d].n > 0
                                           ? bl_fit_json(&c->experts[d], bl_expert_term_names)
                                           : json_null());
    if (wire->verdict == BL_FIT_TOLD)
        json_object_set_new(exchange, "wire",
                            json_pack("{s:f, s:f}", "factor", wire->value, "error", wire->error));
    return json_pack("{s:o, s:o}", "experts_us", experts, "exchange_us", exchange);
}

/* One term behind the others. */
static size_t term_text(const bl_fit_term *term, const char *name, char *out, size_t room,
                        size_t used) {
    if (used >= room)
        return used;
    const char *comma = used > 0 ? ", " : "";
    const int n = term->verdict == BL_FIT_TOLD ? snprintf(out + used, room - used, "%s%s %.3g us",
                                                          comma, name, term->value * US)
                                               : snprintf(out + used, room - used, "%s%s %s", comma,
                                                          name, bl_fit_verdict_text(term->verdict));
    return used + (size_t)(n > 0 ? n : 0);
}

const char *bl_fit_text(const bl_fit *fit, const char *const *names, char *out, size_t room) {
    size_t used = 0;
    out[0] = '\0';
    for (int i = 0; i < fit->n_terms; i++)
        used = term_text(&fit->term[i], names[i], out, room, used);
    return out;
}

const char *bl_exchange_text(const bl_fit *exchange, char *out, size_t room) {
    const bl_fit_term *wire = &exchange->term[BL_TERM_WIRE];
    const char *const *names = bl_exchange_term_names;
    out[0] = '\0';
    size_t used = term_text(&exchange->term[BL_TERM_LATENCY], names[BL_TERM_LATENCY], out, room, 0);
    if (wire->verdict != BL_FIT_TOLD)
        term_text(wire, "bytes", out, room, used);
    else if (used < room && wire->value > 0.0)
        snprintf(out + used, room - used, ", bytes at %.3g of the base's rate", 1.0 / wire->value);
    else if (used < room)
        snprintf(out + used, room - used, ", bytes cost nothing that could be measured");
    return out;
}
