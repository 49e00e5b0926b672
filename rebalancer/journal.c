#include "rebalancer/journal.h"

#include "core/hash.h"
#include "core/io.h"
#include "core/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define DIGITS 16
#define MAX_JOURNAL_BYTES ((size_t)1 << 31)

typedef struct line {
    struct line *next;
    uint64_t number;
    size_t bytes;
    char *text;
} line;

struct bl_journal {
    int fd;
    off_t good_bytes; /* written whole */
    pthread_t writer;
    pthread_mutex_t lock; /* of all that follows */
    pthread_cond_t something;
    line *first, **last; /* queue */
    uint64_t n_appended, n_durable;
    uint64_t failed; /* number of the last record that could not be written; 0: none */
    int why;         /* errno of that */
    bool closing;
    char path[512];
};

/* ---- reading --------------------------------------------------------------------------------- */

/* One line without its newline, whose record becomes a new reference; NULL when it is damaged. */
static json_t *parse_line(const char *text, size_t bytes) {
    char digits[DIGITS + 1];
    bl_error err = BL_ERROR_INIT;
    json_t *record;
    if (bytes < DIGITS + 3 || text[DIGITS] != ' ')
        return NULL;
    snprintf(digits, sizeof digits, "%016llx",
             (unsigned long long)bl_hash64(text + DIGITS + 1, bytes - DIGITS - 1));
    if (memcmp(digits, text, DIGITS) != 0)
        return NULL;
    if (bl_json_parse(text + DIGITS + 1, bytes - DIGITS - 1, "journal", &record, &err) < 0)
        return NULL;
    if (json_is_object(record))
        return record;
    json_decref(record);
    return NULL;
}

static bl_status read_lines(const char *path, const char *text, size_t bytes,
                            bl_journal_take_fn *take, void *user, size_t *torn_bytes,
                            bl_error *err) {
    size_t at = 0;
    long number = 1;
    *torn_bytes = 0;
    for (; at < bytes; number++) {
        const char *end = memchr(text + at, '\n', bytes - at);
        const size_t length = end != NULL ? (size_t)(end - text) - at : bytes - at;
        json_t *record = end != NULL ? parse_line(text + at, length) : NULL;
        const bool is_last = end == NULL || at + length + 1 == bytes;
        if (record == NULL && is_last) {
            *torn_bytes = bytes - at;
            return BL_OK;
        }
        if (record == NULL)
            return bl_fail_at(err, BL_ERR_CHECKSUM, bl_at_line(path, number),
                              "the record is damaged; later ones are not. Move the journal away to "
                              "start a new one");
        const bl_status st = take(user, record, err);
        json_decref(record);
        BL_TRY(st);
        at += length + 1;
    }
    return BL_OK;
}

bl_status bl_journal_read(const char *path, bl_journal_take_fn *take, void *user,
                          size_t *torn_bytes, bl_error *err) {
    char *text;
    size_t bytes;
    BL_TRY(bl_read_file(path, MAX_JOURNAL_BYTES, &text, &bytes, err));
    const bl_status st = read_lines(path, text, bytes, take, user, torn_bytes, err);
    free(text);
    return st;
}

/* ---- where it was left ----------------------------------------------------------------------- */

typedef struct replay {
    const char *path;
    bl_placement *placement; /* or NULL */
    bl_journal_past *past;
} replay;

/* A committed wave: its layer serves these slots. */
static bl_status replay_wave(const replay *r, const json_t *record, bl_error *err) {
    const json_t *slots = json_object_get(record, "slots");
    int64_t id, epoch;
    BL_TRY(bl_json_int(record, "layer", 0, INT32_MAX, r->path, &id, err));
    BL_TRY(bl_json_int(record, "epoch", 0, INT64_MAX, r->path, &epoch, err));
    bl_layer_placement *layer = bl_placement_layer(r->placement, (int)id);
    if (layer == NULL)
        return bl_fail_at(err, BL_ERR_SHAPE, bl_at_layer(r->path, (int)id),
                          "the journal is of a model that has experts in this layer");
    json_t *layers = json_pack("[{s:i, s:O}]", "layer", (int)id, "slots", slots);
    bl_placement read;
    const bl_status st =
        bl_placement_from_json(layers, layer->n_ranks, layer->n_experts, 0, r->path, &read, err);
    json_decref(layers);
    BL_TRY(st);
    const bool fits = memcmp(read.layers[0].begin, layer->begin,
                             sizeof *layer->begin * ((size_t)layer->n_ranks + 1)) == 0;
    if (fits)
        memcpy(layer->expert, read.layers[0].expert,
               sizeof *layer->expert * (size_t)bl_layer_n_slots(layer));
    bl_placement_free(&read);
    if (!fits)
        return bl_fail_at(err, BL_ERR_SHAPE, bl_at_layer(r->path, (int)id),
                          "the journal is of ranks with other slots");
    return BL_OK;
}

static bl_status replay_record(void *user, const json_t *record, bl_error *err) {
    replay *r = user;
    const char *what;
    BL_TRY(bl_json_string(record, "what", r->path, &what, err));
    r->past->n_records++;
    if (strcmp(what, "begin") == 0) {
        int64_t move;
        BL_TRY(bl_json_int(record, "move", 0, INT64_MAX, r->path, &move, err));
        r->past->move = (uint64_t)move;
        r->past->ended = false;
    } else if (strcmp(what, "wave") == 0) {
        r->past->n_waves++;
        if (r->placement != NULL)
            BL_TRY(replay_wave(r, record, err));
    } else if (strcmp(what, "end") == 0) {
        r->past->ended = true;
    }
    return BL_OK;
}

/* ---- writing --------------------------------------------------------------------------------- */

static int write_all(int fd, const char *text, size_t bytes) {
    for (size_t at = 0; at < bytes;) {
        const ssize_t n = write(fd, text + at, bytes - at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? errno : ENOSPC;
        at += (size_t)n;
    }
    return 0;
}

/* A record that did not get onto the disk whole is cut off again. Returns errno or 0. */
static int write_line(bl_journal *journal, const line *l) {
    int why = write_all(journal->fd, l->text, l->bytes);
    if (why == 0 && fsync(journal->fd) != 0)
        why = errno;
    if (why == 0)
        journal->good_bytes += (off_t)l->bytes;
    else if (ftruncate(journal->fd, journal->good_bytes) != 0)
        why = errno;
    return why;
}

static void *write_queue(void *user) {
    bl_journal *journal = user;
    pthread_mutex_lock(&journal->lock);
    for (;;) {
        while (journal->first == NULL && !journal->closing)
            pthread_cond_wait(&journal->something, &journal->lock);
        line *l = journal->first;
        if (l == NULL)
            break;
        pthread_mutex_unlock(&journal->lock);
        const int why = write_line(journal, l);
        pthread_mutex_lock(&journal->lock);
        journal->first = l->next;
        if (journal->first == NULL)
            journal->last = &journal->first;
        journal->n_durable = l->number;
        if (why != 0) {
            journal->failed = l->number;
            journal->why = why;
        }
        free(l->text);
        free(l);
    }
    pthread_mutex_unlock(&journal->lock);
    return NULL;
}

/* ---- life ------------------------------------------------------------------------------------ */

static bl_status lock_file(const bl_journal *journal, bl_error *err) {
    /* not fcntl: its locks are lost when the file, opened once more to be read, is closed */
    if (flock(journal->fd, LOCK_EX | LOCK_NB) == 0)
        return BL_OK;
    if (errno == EWOULDBLOCK)
        return bl_fail_at(err, BL_ERR_STATE, bl_at(journal->path),
                          "another run writes this journal");
    return bl_fail_at(err, BL_ERR_IO, bl_at(journal->path), "cannot be locked: %s",
                      strerror(errno));
}

static bl_status open_file(bl_journal *journal, bl_placement *placement, bl_journal_past *past,
                           bl_error *err) {
    struct stat info;
    journal->fd = open(journal->path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, S_IRUSR | S_IWUSR);
    if (journal->fd < 0)
        return bl_fail_at(err, BL_ERR_IO, bl_at(journal->path), "cannot open the journal: %s",
                          strerror(errno));
    /* reading a device or a pipe may never end */
    if (fstat(journal->fd, &info) != 0 || !S_ISREG(info.st_mode))
        return bl_fail_at(err, BL_ERR_IO, bl_at(journal->path),
                          "is no file; a journal is one that grows");
    BL_TRY(lock_file(journal, err));
    replay r = {journal->path, placement, past};
    *past = (bl_journal_past){0};
    BL_TRY(bl_journal_read(journal->path, replay_record, &r, &past->torn_bytes, err));
    if (fstat(journal->fd, &info) != 0)
        return bl_fail_at(err, BL_ERR_IO, bl_at(journal->path), "cannot tell its size: %s",
                          strerror(errno));
    journal->good_bytes = info.st_size - (off_t)past->torn_bytes;
    if (past->torn_bytes > 0 && ftruncate(journal->fd, journal->good_bytes) != 0)
        return bl_fail_at(err, BL_ERR_IO, bl_at(journal->path), "cannot cut its torn end: %s",
                          strerror(errno));
    return BL_OK;
}

bl_status bl_journal_open(const char *path, bl_placement *placement, bl_journal_past *past,
                          bl_journal **out, bl_error *err) {
    bl_journal *journal;
    if (strlen(path) >= sizeof journal->path)
        return bl_fail_at(err, BL_ERR_RANGE, bl_at(path), "the path is too long");
    BL_TRY(BL_CALLOC(journal, 1, err));
    journal->last = &journal->first;
    snprintf(journal->path, sizeof journal->path, "%s", path);
    bl_status st = open_file(journal, placement, past, err);
    if (st >= 0) {
        pthread_mutex_init(&journal->lock, NULL);
        pthread_cond_init(&journal->something, NULL);
        if (pthread_create(&journal->writer, NULL, write_queue, journal) != 0)
            st = bl_fail(err, BL_ERR_NOMEM, "cannot start the journal's thread");
    }
    if (st < 0) {
        if (journal->fd >= 0)
            close(journal->fd);
        free(journal);
        return st;
    }
    *out = journal;
    return BL_OK;
}

bl_status bl_journal_succeed(const char *path, bl_placement *placement, bl_journal_past *past,
                             bl_journal **out, bl_error *err) {
    int tries = 0;
    bl_status st;
    do
        st = bl_journal_open(path, placement, past, out, err);
    while (st == BL_ERR_STATE && bl_may_be_leaving(&tries));
    return st;
}

void bl_journal_close(bl_journal *journal) {
    if (journal == NULL)
        return;
    pthread_mutex_lock(&journal->lock);
    journal->closing = true;
    pthread_cond_signal(&journal->something);
    pthread_mutex_unlock(&journal->lock);
    pthread_join(journal->writer, NULL);
    pthread_mutex_destroy(&journal->lock);
    pthread_cond_destroy(&journal->something);
    close(journal->fd);
    free(journal);
}

/* ---- appending ------------------------------------------------------------------------------- */

static char *text_of(json_t *record, size_t *bytes) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    json_object_set_new(record, "time",
                        json_real((double)now.tv_sec + 1e-3 * (double)(now.tv_nsec / 1000000)));
    char *body = json_dumps(record, JSON_COMPACT | JSON_SORT_KEYS);
    if (body == NULL)
        return NULL;
    const size_t body_bytes = strlen(body);
    char *text = bl_calloc(DIGITS + 1 + body_bytes + 2, 1);
    if (text != NULL) {
        *bytes = DIGITS + 1 + body_bytes + 1;
        snprintf(text, *bytes + 1, "%016llx %s\n", (unsigned long long)bl_hash64(body, body_bytes),
                 body);
    }
    free(body);
    return text;
}

uint64_t bl_journal_append(bl_journal *journal, json_t *record) {
    line *l = record != NULL ? bl_calloc(1, sizeof *l) : NULL;
    if (l != NULL)
        l->text = text_of(record, &l->bytes);
    json_decref(record);
    if (l == NULL || l->text == NULL) {
        free(l);
        return 0;
    }
    pthread_mutex_lock(&journal->lock);
    const uint64_t number = l->number = ++journal->n_appended;
    *journal->last = l;
    journal->last = &l->next;
    pthread_cond_signal(&journal->something);
    pthread_mutex_unlock(&journal->lock);
    return number;
}

bl_status bl_journal_check(bl_journal *journal, uint64_t number, bl_error *err) {
    if (number == 0)
        return bl_fail(err, BL_ERR_NOMEM, "out of memory");
    pthread_mutex_lock(&journal->lock);
    const bool done = journal->n_durable >= number, failed = journal->failed >= number;
    const int why = journal->why;
    pthread_mutex_unlock(&journal->lock);
    if (failed)
        return bl_fail_at(err, BL_ERR_IO, bl_at(journal->path),
                          "the journal cannot be written (%s); no move starts without it",
                          strerror(why));
    return done ? BL_OK : BL_LIMIT;
}
