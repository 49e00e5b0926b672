#include "cli/record_say.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EVERY_S 1.0
#define LOG_EVERY_S 60.0 /* where nobody looks on */

/* Per second. What a full disk did not take is counted back. */
static double rate(uint64_t now, uint64_t before, double span) {
    return now > before && span > 0 ? (double)(now - before) / span : 0.0;
}

bl_record_voice bl_record_voice_of(const char *directory, const char *status) {
    const double now = bl_now_s();
    return (bl_record_voice){.directory = directory,
                             .status = status,
                             .progress = bl_progress_stderr(),
                             .said_s = now,
                             .noted_s = now};
}

/* ---- the line ------------------------------------------------------------------------------ */

static void say(bl_record_voice *v, const bl_recorder_totals *t, double now) {
    const bl_recorder_totals *last = &v->said;
    const double span = now - v->said_s;
    const bool news = t->dropped != last->dropped || t->n_held != last->n_held ||
                      t->removed != last->removed || t->rejected != last->rejected;
    if (!v->progress.on_terminal && !news && span < LOG_EVERY_S)
        return;
    bl_progress_line(
        &v->progress,
        "%d rings, %.0f records/s, %.2f M ids/s, %.2f MB/s, fullest ring %.0f %%, %llu "
        "dropped, %llu files%s%s%s%s%s",
        t->n_open, rate(t->written, last->written, span), rate(t->ids, last->ids, span) * 1e-6,
        rate(t->bytes, last->bytes, span) * 1e-6, t->fullest * 100, (unsigned long long)t->dropped,
        (unsigned long long)t->files,
        t->removed > last->removed ? ", FILES WERE REMOVED while they were written" : "",
        t->rejected > last->rejected ? ", REJECTED: " : "",
        t->rejected > last->rejected ? t->why_rejected : "", t->n_held > 0 ? ", NOT WRITING: " : "",
        t->n_held > 0 ? t->why_held : "");
    v->said = *t;
    v->said_s = now;
}

/* ---- the status ---------------------------------------------------------------------------- */

static json_t *totals_to_json(const char *directory, const bl_recorder_totals *t) {
    return json_pack("{s:o, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "directory",
                     bl_json_text(directory), "pushed", (json_int_t)t->pushed, "written",
                     (json_int_t)t->written, "dropped", (json_int_t)t->dropped, "rejected",
                     (json_int_t)t->rejected, "skipped", (json_int_t)t->skipped, "earlier",
                     (json_int_t)t->earlier, "ids", (json_int_t)t->ids, "bytes",
                     (json_int_t)t->bytes, "files", (json_int_t)t->files, "removed",
                     (json_int_t)t->removed);
}

static json_t *status_to_json(const bl_record_voice *v, const bl_recorder_totals *t, double span,
                              bool over) {
    json_t *root = totals_to_json(v->directory, t);
    json_t *now = json_pack("{s:b, s:i, s:i, s:f, s:f, s:f, s:f, s:o, s:o}", "over", over, "rings",
                            t->n_open, "not_writing", t->n_held, "fullest", t->fullest,
                            "records_per_s", rate(t->written, v->noted.written, span), "ids_per_s",
                            rate(t->ids, v->noted.ids, span), "bytes_per_s",
                            rate(t->bytes, v->noted.bytes, span), "why_not_writing",
                            bl_json_text(t->n_held > 0 ? t->why_held : ""), "why_rejected",
                            bl_json_text(t->why_rejected));
    if (root != NULL && now != NULL)
        json_object_update(root, now);
    json_decref(now);
    return root;
}

/* A neighbour that takes the name: whoever has the old one open reads that to its end. */
static bool replace(const char *path, const char *text) {
    const size_t room = strlen(path) + sizeof ".tmp";
    char *temp = malloc(room);
    if (temp == NULL)
        return false;
    snprintf(temp, room, "%s.tmp", path);
    FILE *file = fopen(temp, "w");
    bool written = file != NULL && fputs(text, file) >= 0 && fputc('\n', file) != EOF;
    if (file != NULL)
        written = fclose(file) == 0 && written;
    written = written && rename(temp, path) == 0;
    if (file != NULL && !written) {
        const int why = errno;
        unlink(temp);
        errno = why;
    }
    free(temp);
    return written;
}

static void note(bl_record_voice *v, const bl_recorder_totals *t, double now, bool over) {
    json_t *root = status_to_json(v, t, now - v->noted_s, over);
    char *text = root != NULL ? json_dumps(root, JSON_COMPACT) : NULL;
    const bool written = text != NULL && replace(v->status, text);
    if (!written && !v->failed)
        fprintf(stderr, "ballast record: %s: cannot write the status: %s\n", v->status,
                text != NULL ? strerror(errno) : "out of memory");
    v->failed = !written;
    free(text);
    json_decref(root);
    v->noted = *t;
    v->noted_s = now;
}

/* ---- both ---------------------------------------------------------------------------------- */

void bl_record_say(bl_record_voice *v, const bl_recorder *recorder) {
    const double now = bl_now_s();
    const bool line = now - v->said_s >= EVERY_S;
    const bool status = v->status != NULL && now - v->noted_s >= EVERY_S;
    bl_recorder_totals t;
    if (!line && !status)
        return;
    bl_recorder_read_totals(recorder, &t);
    if (line)
        say(v, &t, now);
    if (status)
        note(v, &t, now, false);
}

bl_status bl_record_say_end(bl_record_voice *v, const bl_recorder_totals *t, bool json,
                            bl_error *err) {
    if (v->status != NULL)
        note(v, t, bl_now_s(), true);
    if (t->rejected > 0)
        fprintf(stderr, "ballast record: %llu records rejected, the first: %s\n",
                (unsigned long long)t->rejected, t->why_rejected);
    if (t->removed > 0)
        fprintf(stderr,
                "ballast record: %llu files were removed while they were written, and what they "
                "held with them\n",
                (unsigned long long)t->removed);
    if (!json) {
        fprintf(stderr,
                "ballast record: %s: %llu records, %llu dropped, %llu skipped, %llu files\n",
                v->directory, (unsigned long long)t->written, (unsigned long long)t->dropped,
                (unsigned long long)t->skipped, (unsigned long long)t->files);
        return BL_OK;
    }
    json_t *root = totals_to_json(v->directory, t);
    if (root == NULL)
        return bl_fail(err, BL_ERR_NOMEM, "out of memory");
    const bl_status st = bl_json_write("-", root, 0, err);
    json_decref(root);
    return st;
}
