#include "cli/record_rings.h"

#include "tracer/ring.h"

#include <dirent.h>
#include <errno.h>
#include <fnmatch.h>
#include <stdio.h>
#include <string.h>

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

typedef struct attaching {
    bl_recorder *recorder;
    bool lenient;
    int *n;
} attaching;

static bl_status attach_one(void *user, const char *name, bl_error *err) {
    const attaching *a = user;
    bl_error why = BL_ERROR_INIT;
    if (bl_recorder_has(a->recorder, name))
        return BL_OK;
    const bl_status st = bl_recorder_attach(a->recorder, name, &why);
    if (st == BL_OK)
        ++*a->n;
    if (st == BL_OK || a->lenient || (st == BL_ERR_STATE && !bl_recorder_has_earlier(a->recorder)))
        return BL_OK;
    return bl_fail_at(err, st, bl_at(why.file[0] != '\0' ? why.file : NULL), "%s%s", why.text,
                      st == BL_ERR_MODEL ? "; name the rings with --ring" : "");
}

bl_status bl_record_attach(bl_recorder *recorder, const bl_opt_list *patterns, bool lenient, int *n,
                           bl_error *err) {
    attaching a = {recorder, lenient, n};
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
    const bl_status st = bl_ring_set_control(name, s->control, &why);
    *s->n += st == BL_OK;
    return st == BL_OK || st == BL_ERR_STATE ? BL_OK : bl_fail(err, st, "%s", why.text);
}

bl_status bl_record_set_control(const bl_opt_list *patterns, uint64_t control, int *n,
                                bl_error *err) {
    setting s = {control, n};
    *n = 0;
    return for_each(patterns, set_one, &s, err);
}
