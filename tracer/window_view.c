/*
 * window_view.c: reading live windows (window.h) without stopping their writer.
 */
#include "core/mem.h"
#include "core/progress.h"
#include "tracer/window_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define TRIES_BETWEEN_LOOKS 1000

struct bl_window_view {
    const bl_window_memory *memory; /* mapped read-only */
    size_t bytes;
    bl_word *rows;
    int n_layers, n_experts;
    size_t row_words;
    int layers[BL_MAX_LAYERS];
    uint64_t *scratch; /* [n_experts] */
};

static bl_status check(const bl_window_view *view, const char *name, bl_error *err) {
    const bl_window_memory *m = view->memory;
    if (BL_PACK_ACQUIRE(&m->ready) == 0)
        return bl_fail(err, BL_ERR_STATE, "the live windows \"%s\" are not ready yet", name);
    if (m->magic != BL_WINDOW_MAGIC || m->version != BL_WINDOW_VERSION)
        return bl_fail(err, BL_ERR_VERSION, "\"%s\" is no live windows of this version", name);
    if (m->n_layers < 1 || m->n_layers > BL_MAX_LAYERS || m->n_experts < 1 ||
        m->n_experts > BL_MAX_EXPERTS || m->row_words != bl_window_row_words(m->n_experts) ||
        m->rows_offset != (sizeof *m + 63) / 64 * 64 ||
        view->bytes != m->rows_offset + bl_window_n_rows(m->n_layers) * (size_t)m->row_words * 8)
        return bl_fail(err, BL_ERR_PARSE, "the live windows \"%s\" have an impossible layout",
                       name);
    return BL_OK;
}

static bl_status map_view(const char *name, bl_window_view *view, bl_error *err) {
    char object[96];
    struct stat info;
    snprintf(object, sizeof object, BL_WINDOW_PREFIX "%s", name);
    const int fd = shm_open(object, O_RDONLY | O_CLOEXEC, 0);
    if (fd < 0)
        return bl_fail(err, errno == ENOENT ? BL_ERR_STATE : BL_ERR_IO,
                       "no live windows \"%s\": %s; `ballast record --live %s` publishes them",
                       name, strerror(errno), name);
    bl_status st = BL_OK;
    void *memory = MAP_FAILED;
    if (fstat(fd, &info) != 0 || (size_t)info.st_size < sizeof *view->memory)
        st = bl_fail(err, BL_ERR_STATE, "the live windows \"%s\" are not ready yet", name);
    else
        memory = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_SHARED, fd, 0);
    if (st == BL_OK && memory == MAP_FAILED)
        st = bl_fail(err, BL_ERR_IO, "cannot map the live windows \"%s\": %s", name,
                     strerror(errno));
    close(fd);
    BL_TRY(st);
    view->memory = memory;
    view->bytes = (size_t)info.st_size;
    return check(view, name, err);
}

bl_status bl_window_open(const char *name, bl_window_view **view_p, bl_error *err) {
    if (!bl_ring_name_is_valid(name))
        return bl_fail(err, BL_ERR_USAGE, "\"%.80s\" is no name of live windows", name);
    bl_window_view *view = NULL;
    BL_TRY(BL_CALLOC(view, 1, err));
    bl_status st = map_view(name, view, err);
    if (st == BL_OK)
        st = BL_CALLOC(view->scratch, view->memory->n_experts, err);
    if (st < 0) {
        bl_window_view_free(view);
        return st;
    }
    view->n_layers = view->memory->n_layers;
    view->n_experts = view->memory->n_experts;
    view->row_words = (size_t)view->memory->row_words;
    view->rows =
        (bl_word *)(void *)((unsigned char *)(uintptr_t)view->memory + view->memory->rows_offset);
    for (int l = 0; l < view->n_layers; l++)
        view->layers[l] = view->memory->layers[l];
    *view_p = view;
    return BL_OK;
}

void bl_window_view_free(bl_window_view *view) {
    if (view == NULL)
        return;
    if (view->memory != NULL)
        munmap((void *)(uintptr_t)view->memory, view->bytes);
    free(view->scratch);
    free(view);
}

static bool is_live(const bl_window_view *view) {
    return BL_PACK_ACQUIRE(&view->memory->closed) == 0 &&
           bl_ring_who_is_alive(view->memory->writer);
}

void bl_window_read_facts(bl_window_view *view, bl_window_facts *facts) {
    const bl_window_memory *m = view->memory;
    *facts = (bl_window_facts){.n_layers = view->n_layers,
                               .n_experts = view->n_experts,
                               .top_k = m->top_k,
                               .n_ranks = m->n_ranks,
                               .layers = view->layers,
                               .live = is_live(view),
                               .last_step = BL_PACK_LOAD(&m->last_step),
                               .unmapped = BL_PACK_LOAD(&m->unmapped)};
    memcpy(facts->model, m->model, sizeof facts->model);
    facts->model[sizeof facts->model - 1] = '\0';
    const uint64_t now = bl_now_ns(), updated = BL_PACK_LOAD(&m->updated_ns);
    facts->age_s = now > updated ? (double)(now - updated) * 1e-9 : 0;
}

static bl_status read_row(bl_window_view *view, const bl_word *row, uint64_t *tokens,
                          bl_error *err) {
    for (int tries = 1;; tries++) {
        const uint64_t before = BL_PACK_ACQUIRE(&row[BL_ROW_VERSION]);
        *tokens = BL_PACK_ACQUIRE(&row[BL_ROW_TOKENS]);
        for (int expert = 0; expert < view->n_experts; expert++)
            view->scratch[expert] = BL_PACK_ACQUIRE(&row[BL_ROW_COUNT + expert]);
        if (before % 2 == 0 && BL_PACK_LOAD(&row[BL_ROW_VERSION]) == before)
            return BL_OK;
        if (tries % TRIES_BETWEEN_LOOKS == 0 && !is_live(view))
            return bl_fail(err, BL_ERR_PEER, "the recorder died while it wrote this row");
        sched_yield();
    }
}

bl_status bl_window_read(bl_window_view *view, bl_horizon horizon, int phase, int layer_index,
                         uint64_t *count, uint64_t *tokens, bl_error *err) {
    if ((unsigned)horizon >= BL_N_HORIZONS || phase < -1 || phase >= BL_N_PHASES ||
        layer_index < 0 || layer_index >= view->n_layers)
        return bl_fail(err, BL_ERR_RANGE, "no such row of live windows");
    memset(count, 0, (size_t)view->n_experts * sizeof *count);
    uint64_t sum = 0;
    for (int p = phase < 0 ? 0 : phase; p < (phase < 0 ? BL_N_PHASES : phase + 1); p++) {
        const size_t row = bl_window_row(view->n_layers, (int)horizon, p, layer_index);
        uint64_t one;
        BL_TRY(read_row(view, view->rows + row * view->row_words, &one, err));
        sum += one;
        for (int expert = 0; expert < view->n_experts; expert++)
            count[expert] += view->scratch[expert];
    }
    *tokens = sum;
    return BL_OK;
}
