/*
 * mem.h: memory with checked sizes.
 *
 * Sizes come from files and flags, so every product is checked before it reaches malloc. Memory
 * from bl_calloc() is zeroed and given back with free(). An arena serves the scratch of one
 * computation: many allocations, one bl_arena_free(); hot loops allocate nothing.
 */
#ifndef BL_CORE_MEM_H
#define BL_CORE_MEM_H

#include "core/status.h"

#include <stdbool.h>
#include <stddef.h>

/* a * b and a + b; false when the result does not fit, and *out is then unchanged. */
bool bl_size_mul(size_t a, size_t b, size_t *out);
bool bl_size_add(size_t a, size_t b, size_t *out);

/* n zeroed items of item_bytes each; NULL when out of memory or when the product overflows.
 * n = 0 gives a valid pointer. Caller frees with free(). */
void *bl_calloc(size_t n, size_t item_bytes);

/* Allocate `n` zeroed items into the typed pointer lvalue `ptr`; evaluates to a bl_status. */
#define BL_CALLOC(ptr, n, err)                                                     \
    (((ptr) = bl_calloc((size_t)(n), sizeof *(ptr))) != NULL                       \
         ? BL_OK                                                                   \
         : bl_fail((err), BL_ERR_NOMEM, "out of memory: %llu items of %llu bytes", \
                   (unsigned long long)(n), (unsigned long long)sizeof *(ptr)))

/* Grow the array *items (of *capacity items) to hold at least `needed`; doubles, keeps content. */
bl_status bl_grow(void **items, size_t *capacity, size_t needed, size_t item_bytes, bl_error *err);

/* The same on an array of any type, which need not be a void pointer; its status goes to `st`. */
#define BL_GROW(st, array, capacity, needed, err)                               \
    do {                                                                        \
        void *items_ = (array);                                                 \
        (st) = bl_grow(&items_, &(capacity), (needed), sizeof *(array), (err)); \
        (array) = items_;                                                       \
    } while (0)

typedef struct bl_arena bl_arena;

/* An arena that takes its memory from the heap in blocks of about block_bytes (0: a default). */
bl_arena *bl_arena_new(size_t block_bytes);
void bl_arena_free(bl_arena *arena); /* NULL is fine */

/* n zeroed items, aligned for any type; owned by the arena. NULL when out of memory. */
void *bl_arena_calloc(bl_arena *arena, size_t n, size_t item_bytes);

#endif
