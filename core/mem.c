#include "core/mem.h"

#include <stdalign.h>
#include <stdlib.h>
#include <string.h>

bool bl_size_mul(size_t a, size_t b, size_t *out) {
    if (a != 0 && b > SIZE_MAX / a)
        return false;
    *out = a * b;
    return true;
}

bool bl_size_add(size_t a, size_t b, size_t *out) {
    if (b > SIZE_MAX - a)
        return false;
    *out = a + b;
    return true;
}

void *bl_calloc(size_t n, size_t item_bytes) {
    return calloc(n > 0 ? n : 1, item_bytes > 0 ? item_bytes : 1);
}

bl_status bl_grow(void **items, size_t *capacity, size_t needed, size_t item_bytes, bl_error *err) {
    if (needed <= *capacity)
        return BL_OK;
    size_t grown = *capacity < 16 ? 16 : *capacity;
    while (grown < needed) {
        if (!bl_size_mul(grown, 2, &grown))
            grown = needed;
    }
    size_t bytes;
    void *moved = bl_size_mul(grown, item_bytes, &bytes) ? realloc(*items, bytes) : NULL;
    if (moved == NULL)
        return bl_fail(err, BL_ERR_NOMEM, "out of memory: %zu items of %zu bytes", grown,
                       item_bytes);
    *items = moved;
    *capacity = grown;
    return BL_OK;
}

typedef struct block {
    struct block *next;
    size_t used, bytes; /* of data */
    alignas(max_align_t) unsigned char data[];
} block;

struct bl_arena {
    block *blocks; /* the first one is being filled */
    size_t block_bytes;
};

bl_arena *bl_arena_new(size_t block_bytes) {
    bl_arena *arena = bl_calloc(1, sizeof *arena);
    if (arena != NULL)
        arena->block_bytes = block_bytes > 0 ? block_bytes : (size_t)1 << 16;
    return arena;
}

void bl_arena_free(bl_arena *arena) {
    if (arena == NULL)
        return;
    for (block *b = arena->blocks; b != NULL;) {
        block *next = b->next;
        free(b);
        b = next;
    }
    free(arena);
}

void *bl_arena_calloc(bl_arena *arena, size_t n, size_t item_bytes) {
    const size_t align = alignof(max_align_t);
    size_t bytes;
    if (!bl_size_mul(n, item_bytes, &bytes) || !bl_size_add(bytes, align - 1, &bytes))
        return NULL;
    bytes -= bytes % align;
    block *b = arena->blocks;
    if (b == NULL || b->bytes - b->used < bytes) {
        const size_t room = bytes > arena->block_bytes ? bytes : arena->block_bytes;
        size_t total;
        if (!bl_size_add(room, sizeof *b, &total) || (b = malloc(total)) == NULL)
            return NULL;
        *b = (block){.next = arena->blocks, .bytes = room};
        arena->blocks = b;
    }
    void *items = memset(b->data + b->used, 0, bytes);
    b->used += bytes;
    return items;
}
