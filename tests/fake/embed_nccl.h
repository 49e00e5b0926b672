/*
 * embed_nccl.h: ranks of a foreign engine on (faked) GPUs: ec_cluster.prepare = take_nccl.
 */
#ifndef BL_FAKE_EMBED_NCCL_H
#define BL_FAKE_EMBED_NCCL_H

#include "tests/fake/nccl.h"
#include "tests/support/embed_cluster.h"

static int copy_rows(void *user, void *to, size_t to_stride, const void *from, size_t from_stride,
                     size_t row_bytes, size_t rows) {
    (void)user;
    return (int)cudaMemcpy2D(to, to_stride, from, from_stride, row_bytes, rows, cudaMemcpyDefault);
}

static void take_nccl(ec_member *m, bl_embed_options *options) {
    const bl_nccl_options nccl = {.device = m->rank, .max_ctas = 4, .join_later = true};
    bl_error err = BL_ERROR_INIT;
    if (bl_transport_nccl_open(&nccl, m->transport, &m->transport, &err) < 0)
        ec_complain(m, err.text);
    options->transport = m->transport;
    options->gpu = m->rank;
    options->copy = copy_rows;
}

#endif
