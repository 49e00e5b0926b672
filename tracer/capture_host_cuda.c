/*
 * capture_host_cuda.c: what the kernels of capture_cuda.cu need of a tracer. C, since the tracer's
 * struct is; built with CUDA only.
 */
#include "tracer/capture.h"

int bl_capture_cuda_describe(bl_tracer *tracer, void **memory, size_t *bytes, size_t offsets[5],
                             bl_pack_device *device);
int bl_capture_cuda_layer(bl_tracer *tracer, int layer);
void bl_capture_cuda_keep(bl_tracer *tracer, void *cuda);
void *bl_capture_cuda_state(bl_tracer *tracer);

/* Where in the ring's memory its data, head, tail, control word and counters are; the drops' place is
 * left in device->drops, as an offset. The device goes on where the host's producer stands. */
int bl_capture_cuda_describe(bl_tracer *t, void **memory, size_t *bytes, size_t offsets[5],
                             bl_pack_device *device) {
    if (t->in_step || t->cuda != NULL || (t->options & BL_TRACE_PHYSICAL))
        return BL_ERR_STATE;
    *memory = t->ring.memory;
    *bytes = t->ring.mapped_bytes;
    offsets[0] = t->ring.memory->data_offset;
    offsets[1] = offsetof(bl_ring_memory, head);
    offsets[2] = offsetof(bl_ring_memory, tail);
    offsets[3] = offsetof(bl_ring_memory, control);
    offsets[4] = offsetof(bl_ring_memory, counters);
    *device = (bl_pack_device){.ring = t->ring.pack,
                               .drops = (bl_pack_drops *)offsetof(bl_ring_memory, drops),
                               .pushed = t->pushed,
                               .kept = t->kept,
                               .dropped = t->dropped,
                               .skipped = t->skipped,
                               .n_layers = t->n_layers,
                               .n_ids = t->n_experts,
                               .k = t->top_k,
                               .width = bl_capture_width(t->n_experts)};
    return BL_OK;
}

int bl_capture_cuda_layer(bl_tracer *t, int layer) {
    return bl_capture_layer_index(t, layer);
}

void bl_capture_cuda_keep(bl_tracer *t, void *cuda) {
    t->cuda = cuda;
}

void *bl_capture_cuda_state(bl_tracer *t) {
    return t->cuda;
}
