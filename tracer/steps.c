#include "tracer/steps.h"

#include "core/mem.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* First interval that does not end before (run, step). */
static size_t lower_bound(const bl_steps *s, uint32_t run, uint64_t step) {
    size_t low = 0, high = s->n;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        const bl_step_interval *item = &s->items[middle];
        if (item->run < run || (item->run == run && item->last < step))
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static bool holds(const bl_steps *s, size_t at, uint32_t run, uint64_t step) {
    return at < s->n && s->items[at].run == run && s->items[at].first <= step &&
           step <= s->items[at].last;
}

bl_status bl_steps_add(bl_steps *s, uint32_t run, uint64_t step, bl_error *err) {
    if (holds(s, s->hint, run, step))
        return BL_OK;
    const size_t at = lower_bound(s, run, step);
    s->hint = at;
    if (holds(s, at, run, step))
        return BL_OK;
    const bool joins_left =
        at > 0 && s->items[at - 1].run == run && s->items[at - 1].last == step - 1 && step > 0;
    const bool joins_right =
        at < s->n && s->items[at].run == run && step < UINT64_MAX && s->items[at].first == step + 1;
    if (joins_left && joins_right) {
        s->items[at - 1].last = s->items[at].last;
        memmove(&s->items[at], &s->items[at + 1], (s->n - at - 1) * sizeof *s->items);
        s->n--;
        s->hint = at - 1;
    } else if (joins_left) {
        s->items[at - 1].last = step;
        s->hint = at - 1;
    } else if (joins_right) {
        s->items[at].first = step;
    } else {
        void *items = s->items;
        const bl_status st = bl_grow(&items, &s->capacity, s->n + 1, sizeof *s->items, err);
        s->items = items;
        BL_TRY(st);
        memmove(&s->items[at + 1], &s->items[at], (s->n - at) * sizeof *s->items);
        s->items[at] = (bl_step_interval){.run = run, .first = step, .last = step};
        s->n++;
    }
    return BL_OK;
}

uint64_t bl_steps_number(bl_steps *s) {
    uint64_t before = 0;
    for (size_t i = 0; i < s->n; i++) {
        s->items[i].before = before;
        before += s->items[i].last - s->items[i].first + 1;
    }
    return before;
}

bool bl_steps_position(bl_steps *s, uint32_t run, uint64_t step, uint64_t *position) {
    if (!holds(s, s->hint, run, step))
        s->hint = lower_bound(s, run, step);
    if (!holds(s, s->hint, run, step))
        return false;
    *position = s->items[s->hint].before + (step - s->items[s->hint].first);
    return true;
}

void bl_steps_at(const bl_steps *s, uint64_t position, uint32_t *run, uint64_t *step) {
    size_t low = 0, high = s->n;
    while (high - low > 1) {
        const size_t middle = low + (high - low) / 2;
        if (s->items[middle].before <= position)
            low = middle;
        else
            high = middle;
    }
    assert(low < s->n);
    *run = s->items[low].run;
    *step = s->items[low].first + (position - s->items[low].before);
}

void bl_steps_free(bl_steps *s) {
    free(s->items);
    *s = (bl_steps){0};
}
