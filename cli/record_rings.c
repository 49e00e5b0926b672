#include "cli/record_rings.h"

#include "core/progress.h"
#include "tracer/ring.h"

#include <dirent.h>
#include <errno.h>
#include <fnmatch.h>
#include <stdio.h>
#include <string.h>

#define TELL_AFTER_S 5.0

static bool has_wildcards(const char *pattern) {
    return strpbrk(pattern, "*?[") != NULL;
}

static bool fits(const bl_opt_list *patterns, const char *name) {
    for (int i = 0; i < patterns->n; i++) {
        if (fnmatch(patterns->items[i], name, 0) == 0)
            return true;
    }
    return patterns->n == 0;
}

typedef bl_status ring_fn(void *user, const char *name, bl_error *err);

/* Call `fn` for every ring that fits. */
static bl_status for_each(const bl_opt_list *patterns, ring_fn *fn, void *user, bl_error *err) {
    const char *prefix = &BL_RING_PREFIX[1];
    const size_t n = strlen(prefix);
    DIR *dir = opendir(BL_RING_DIRECTORY);
    if (dir == NULL)
        return bl_fail_at(err, BL_ERR_IO, bl_at(BL_RING_DIRECTORY), "cannot look for rings: %s",
                          strerror(errno));
    bl_status st = BL_OK;
    for (struct dirent *entry; st >= 0 && (entry = readdir(dir)) != NULL;) {
        if (strncmp(entry->d_name, prefix, n) == 0 && fits(patterns, entry->d_name + n))
            st = fn(user, entry->d_name + n, err);
    }
    closedir(dir);
    return st;
}

static bool is_named(const bl_opt_list *patterns, const char *name) {
    for (int i = 0; i < patterns->n; i++) {
        if (strcmp(patterns->items[i], name) == 0)
            return true;
    }
    return false;
}

static void pass_over(bl_record_passed *passed, const char *name, const bl_error *why) {
    int at = 0;
    if (passed->first.text[0] == '\0')
        passed->first = *why;
    while (at < passed->n && strcmp(passed->rings[at].name, name) != 0)
        at++;
    if (at == BL_PASSED_MAX)
        return;
    if (at == passed->n) {
        snprintf(passed->rings[at].name, sizeof passed->rings[at].name, "%s", name);
        passed->rings[at].since_s = bl_now_s();
        passed->rings[at].told = false;
        passed->n++;
    }
    const bool may_yet =
        why->code == BL_ERR_STATE && bl_now_s() - passed->rings[at].since_s < TELL_AFTER_S;
    if (passed->rings[at].told || may_yet)
        return;
    fprintf(stderr, "ballast record: ring \"%s\" is left out: %s\n", name, why->text);
    passed->rings[at].told = true;
}

typedef struct attaching {
    bl_recorder *recorder;
    const bl_opt_list *patterns;
    bool lenient;
    int *n;
    bl_record_passed *passed;
} attaching;

static bl_status attach_one(void *user, const char *name, bl_error *err) {
    const attaching *a = user;
    bl_error why = BL_ERROR_INIT;
    if (bl_recorder_has(a->recorder, name))
        return BL_OK;
    const bl_status st = bl_recorder_attach(a->recorder, name, &why);
    if (st == BL_OK || bl_recorder_has(a->recorder, name)) {
        ++*a->n;
        return BL_OK;
    }
    const bool named = is_named(a->patterns, name) && st != BL_ERR_STATE;
    const bool earlier = st == BL_ERR_STATE && bl_recorder_has_earlier(a->recorder) &&
                         why.file[0] != '\0'; /* it is the directory's fault, not the ring's */
    if (!a->lenient && (named || earlier || st == BL_ERR_MODEL))
        return bl_fail_at(err, st, bl_at(why.file[0] != '\0' ? why.file : NULL), "%s%s", why.text,
                          st == BL_ERR_MODEL && why.file[0] == '\0' ? "; name the rings with --ring"
                                                                    : "");
    pass_over(a->passed, name, &why);
    return BL_OK;
}

bl_status bl_record_attach(bl_recorder *recorder, const bl_opt_list *patterns, bool lenient, int *n,
                           bl_record_passed *passed, bl_error *err) {
    attaching a = {recorder, patterns, lenient, n, passed};
    passed->first = (bl_error)BL_ERROR_INIT;
    BL_TRY(for_each(patterns, attach_one, &a, err));
    for (int i = 0; !lenient && i < patterns->n; i++) {
        const char *name = patterns->items[i];
        if (has_wildcards(name) || bl_recorder_has(recorder, name))
            continue;
        BL_TRY(bl_recorder_attach(recorder, name, err)); /* says why it cannot */
        ++*n;
    }
    return BL_OK;
}

typedef struct setting {
    uint64_t control;
    int *n;
} setting;

static bl_status set_one(void *user, const char *name, bl_error *err) {
    const setting *s = user;
    bl_error why = BL_ERROR_INIT;
    *s->n += bl_ring_set_control(name, s->control, &why) == BL_OK;
    (void)err;
    return BL_OK;
}

bl_status bl_record_set_control(const bl_opt_list *patterns, uint64_t control, int *n,
                                bl_error *err) {
    setting s = {control, n};
    *n = 0;
    return for_each(patterns, set_one, &s, err);
}
