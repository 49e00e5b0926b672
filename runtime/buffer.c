#define _DEFAULT_SOURCE 1 /* madvise() */
#include "runtime/buffer.h"

#include <stdlib.h>
#include <sys/mman.h>

#define HUGE_PAGE ((size_t)2 << 20)
#define LARGE (2 * HUGE_PAGE)

void *bl_buffer_alloc(size_t bytes) {
    void *buffer;
    if (posix_memalign(&buffer, bytes < LARGE ? BL_BUFFER_ALIGNMENT : HUGE_PAGE,
                       bytes > 0 ? bytes : 1) != 0)
        return NULL;
#ifdef MADV_HUGEPAGE
    if (bytes >= LARGE)
        madvise(buffer, bytes, MADV_HUGEPAGE); /* a wish: without it all works, slower */
#endif
    return buffer;
}
