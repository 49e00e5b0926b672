"""Trace the routing of a Python inference engine through libballast-trace (include/ballast.h), with ctypes.

    tracer = Tracer("my-model.0", model="my-model", layers=range(3, 61), experts=256, top_k=8, rank=0, ranks=32)
    with tracer.step(number, DECODE):            # the engine's forward pass
        ...                                      # hooks call tracer.push(layer, topk_ids)

Ids go in as they are: anything with data_ptr(), element_size(), shape and stride() (a torch tensor on the CPU), or
with __array_interface__ (NumPy). A tensor on a GPU is copied by `Staged`, which never waits for the GPU: it pushes a
step one step later, when its copies are done, and counts a step whose copies are late.

Hooks, by the versions they were written down from (read in public sources, not run here; the tests use fakes of the
same shapes):

    vLLM     fused_moe/router/base_router.py, BaseRouter.set_capture_fn(fn): fn(topk_ids) before the engine's own
             balancer maps them, so logical ids; snapshot 2026-08. Monolithic kernels bypass it.
    SGLang   state_capturer/routed_experts.py, set_global_experts_capturer(obj): obj.capture(layer_id, topk_ids) after
             topk_ids_logical_to_physical, so physical ids; snapshot 2026-07. Their map is told with set_map().

Python does not run when a CUDA graph is replayed: start the engine with graphs off (--enforce-eager,
--disable-cuda-graph), or use the C calls for graphs (ballast.h, "on a GPU").
"""

import contextlib
import ctypes
import os

PREFILL, MIDFILL, DECODE, MIXED, VERIFY, IDLE, UNKNOWN = range(7)
DUMMY = 1
PHYSICAL, TIMES, COUNTS = 1, 2, 4


class _Options(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("model", ctypes.c_char_p), ("n_experts", ctypes.c_int),
                ("top_k", ctypes.c_int), ("layers", ctypes.POINTER(ctypes.c_int)), ("n_layers", ctypes.c_int),
                ("rank", ctypes.c_int), ("n_ranks", ctypes.c_int), ("run", ctypes.c_uint32),
                ("ring_bytes", ctypes.c_size_t), ("source_domain", ctypes.c_int), ("flags", ctypes.c_uint),
                ("epoch", ctypes.c_uint64), ("sample_every", ctypes.c_uint), ("sample_burst", ctypes.c_uint)]


class _Map(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("layer", ctypes.c_int), ("epoch", ctypes.c_uint64),
                ("n_ranks", ctypes.c_int), ("n_slots", ctypes.c_int), ("slots_of_rank", ctypes.POINTER(ctypes.c_int)),
                ("expert", ctypes.POINTER(ctypes.c_int32))]


class _Counters(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("pushed", "kept", "dropped", "skipped")]


def _load():
    path = os.environ.get("BALLAST_TRACE_LIBRARY")
    if path is None:
        here = os.path.dirname(os.path.abspath(__file__))
        path = os.path.join(here, "..", "..", "build", "release", "libballast-trace.so")
    lib = ctypes.CDLL(path)
    pointer, size = ctypes.c_void_p, ctypes.c_size_t
    for name, arguments in {
            "bl_trace_open": [ctypes.c_char_p, ctypes.POINTER(_Options), ctypes.POINTER(pointer)],
            "bl_trace_step_begin": [pointer, ctypes.c_uint64, ctypes.c_int, ctypes.c_uint],
            "bl_trace_push": [pointer, ctypes.c_int, pointer, ctypes.c_int, size, size],
            "bl_trace_set_map": [pointer, ctypes.POINTER(_Map)],
            "bl_trace_step_end": [pointer],
            "bl_trace_read_counters": [pointer, ctypes.POINTER(_Counters)]}.items():
        function = getattr(lib, name)
        function.argtypes, function.restype = arguments, ctypes.c_int
    lib.bl_trace_close.argtypes, lib.bl_trace_close.restype = [pointer], None
    lib.bl_status_string.argtypes, lib.bl_status_string.restype = [ctypes.c_int], ctypes.c_char_p
    return lib


def _rows(ids):
    """(address, bytes of an id, rows, bytes from row to row) of a two-dimensional tensor or array on the host."""
    if hasattr(ids, "data_ptr"):
        width, (rows, k) = ids.element_size(), ids.shape
        if k > 1 and ids.stride(1) != 1:
            raise ValueError("the ids of a token must lie side by side")
        return ids.data_ptr(), width, rows, ids.stride(0) * width
    view = ids.__array_interface__
    rows, k = view["shape"]
    width = int(view["typestr"][2:])
    strides = view.get("strides") or (k * width, width)
    if k > 1 and strides[1] != width:
        raise ValueError("the ids of a token must lie side by side")
    return view["data"][0], width, rows, strides[0]


class Tracer:
    def __init__(self, ring, *, model, layers, experts, top_k, rank=0, ranks=1, run=0, domain=-1, flags=0, ring_bytes=0):
        self._lib, self._handle = _load(), ctypes.c_void_p()
        layers = list(layers)
        array = (ctypes.c_int * len(layers))(*layers)
        options = _Options(ctypes.sizeof(_Options), model.encode(), experts, top_k, array, len(layers), rank, ranks,
                           run, ring_bytes, domain, flags, 0, 0, 0)
        self._check(self._lib.bl_trace_open(ring.encode(), ctypes.byref(options), ctypes.byref(self._handle)))

    def _check(self, status):
        if status < 0:
            raise RuntimeError("libballast-trace: " + self._lib.bl_status_string(status).decode())

    def begin(self, number, phase=UNKNOWN, dummy=False):
        self._check(self._lib.bl_trace_step_begin(self._handle, number, phase, DUMMY if dummy else 0))

    def push(self, layer, ids, valid=None):
        """Ids of a layer; `valid`: only so many rows are tokens, those behind are padding."""
        address, width, rows, stride = _rows(ids)
        rows = rows if valid is None else min(rows, valid)
        self._check(self._lib.bl_trace_push(self._handle, layer, address, width, rows, stride))

    def end(self):
        self._check(self._lib.bl_trace_step_end(self._handle))

    @contextlib.contextmanager
    def step(self, number, phase=UNKNOWN, dummy=False):
        self.begin(number, phase, dummy)
        try:
            yield self
        finally:
            self.end()

    def set_map(self, layer, epoch, experts, ranks):
        """Which expert is in each slot of a layer, from the next step on."""
        slots = (ctypes.c_int32 * len(experts))(*experts)
        told = _Map(ctypes.sizeof(_Map), layer, epoch, ranks, len(experts), None, slots)
        self._check(self._lib.bl_trace_set_map(self._handle, ctypes.byref(told)))

    def counters(self):
        counters = _Counters()
        self._check(self._lib.bl_trace_read_counters(self._handle, ctypes.byref(counters)))
        return {name: getattr(counters, name) for name, _ in _Counters._fields_}

    def close(self):
        self._lib.bl_trace_close(self._handle)
        self._handle = ctypes.c_void_p()


class Staged:
    """For ids on a GPU: copies go to pinned memory behind the layer's own kernels, and the step is pushed when the
    next one begins. `copy(ids)` starts a copy to the host and returns it; `mark()` returns something whose query()
    says whether all copies before it are done (torch.cuda.Event). A step whose copies are late is not waited for but
    counted in `late`."""

    def __init__(self, tracer, copy, mark):
        self._tracer, self._copy, self._mark = tracer, copy, mark
        self._open, self._waiting = None, None
        self.late = 0

    def begin(self, number, phase=UNKNOWN, dummy=False):
        self._flush()
        self._open = (number, phase, dummy, [])

    def push(self, layer, ids, valid=None):
        self._open[3].append((layer, self._copy(ids), valid))

    def end(self):
        self._waiting, self._open = self._open + (self._mark(),), None

    def close(self):
        self._flush()

    def _flush(self):
        if self._waiting is None:
            return
        number, phase, dummy, pushes, mark = self._waiting
        self._waiting = None
        if not mark.query():
            self.late += 1
            return
        with self._tracer.step(number, phase, dummy):
            for layer, ids, valid in pushes:
                self._tracer.push(layer, ids, valid)


def hook_vllm(model, tracer, layer_of=lambda module: module.layer_id):
    """Let every MoE layer of a vLLM model push what its router picked (logical ids). Returns how many were found."""
    found = 0
    for module in model.modules():
        router = getattr(module, "router", None)
        if router is None or not hasattr(router, "set_capture_fn"):
            continue
        router.set_capture_fn(lambda ids, layer=layer_of(module): tracer.push(layer, ids))
        found += 1
    if found == 0:
        raise RuntimeError("no router with set_capture_fn() in this model: another version of vLLM?")
    return found


class SglangCapturer:
    """An experts capturer for SGLang: set_global_experts_capturer(SglangCapturer(tracer)). The tracer is opened with
    flags=PHYSICAL; tell it physical_to_logical_map with maps() at the start and after every rebalance."""

    def __init__(self, tracer):
        self._tracer = tracer

    def maps(self, layers, epoch, physical_to_logical, ranks):
        for layer in layers:
            self._tracer.set_map(layer, epoch, [int(expert) for expert in physical_to_logical[layer]], ranks)

    def capture(self, layer_id, topk_ids=None, topk_indices=None):
        self._tracer.push(layer_id, topk_ids if topk_ids is not None else topk_indices)
