"""Ballast's planner inside Python programs: expert placement in the call shape of EPLB.

    phy2log, log2phy, logcnt = rebalance_experts(
        weight, num_replicas, num_groups, num_nodes, num_gpus, old_phy2log)

    weight    [layers, experts]      load of each expert; a third axis in front (steps) is summed
    phy2log   [layers, P]            the expert in each of the P = num_replicas slots; slot p lives
                                     on rank p // (P // num_gpus)
    log2phy   [layers, experts, X]   the slots of each expert, -1 behind the last; X = P - experts + 1
    logcnt    [layers, experts]      how many slots each expert has

The first five arguments are those that engines pass to DeepSeek's algorithm, so this function can
stand in its place. What is better: balance is searched for, not packed greedily; no rank holds an
expert twice; and with the placement in force as sixth argument, copies that are well where they are
stay in their slots, a layer whose balance would hardly improve is not touched, and a layer without
load keeps its slots. The same arguments give the same tables on every machine, so every rank of an
engine may compute them for itself.

What is not done: num_groups and num_nodes are accepted for the call's sake, but all ranks count as
equal and experts of a group may land on different nodes.

Only ctypes and NumPy are needed. NumPy arrays (and lists) give NumPy arrays back, torch tensors give
torch tensors in host memory; tables are int64. The library is looked for in $BALLAST_PLAN_LIBRARY,
then in the build folder of the source tree this file is in, then where the system keeps libraries.
"""

import ctypes
import ctypes.util
import os
import pathlib
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np

__all__ = ["BallastError", "rebalance_experts"]


class BallastError(RuntimeError):
    """No placement: the message says where and why."""


class _Options(ctypes.Structure):
    """bl_rebalance_options of ballast_plan.h."""

    _fields_ = [
        ("size", ctypes.c_size_t),
        ("seed", ctypes.c_uint64),
        ("min_gain", ctypes.c_double),
        ("max_moves", ctypes.c_int32),
    ]


_LIBRARY = "libballast-plan.so"
_loaded = None


def _candidates():
    named = os.environ.get("BALLAST_PLAN_LIBRARY")
    if named:
        yield named
        return
    for build in sorted(pathlib.Path(__file__).resolve().parents[2].glob("build/release/" + _LIBRARY)):
        yield str(build)
    yield ctypes.util.find_library("ballast-plan") or _LIBRARY


def _library():
    global _loaded
    if _loaded is None:
        errors = []
        for path in _candidates():
            try:
                library = ctypes.CDLL(path)
                break
            except OSError as error:
                errors.append(str(error))
        else:
            raise BallastError(f"cannot load {_LIBRARY}; name it in BALLAST_PLAN_LIBRARY: {'; '.join(errors)}")
        c_int, pointer = ctypes.c_int, ctypes.c_void_p
        library.bl_plan_rebalance.restype = c_int
        library.bl_plan_rebalance.argtypes = (
            [pointer] + [c_int] * 4 + [pointer, ctypes.POINTER(_Options)] + [pointer] * 3
            + [ctypes.c_char_p, ctypes.c_size_t]
        )
        _loaded = library
    return _loaded


# ---- arrays in and out ---------------------------------------------------------------------------


def _is_torch(value):
    return type(value).__module__.partition(".")[0] == "torch"


def _as_numpy(value, dtype):
    """Any array as a contiguous NumPy array; torch tensors come through host memory."""
    if _is_torch(value):
        # Half-precision types that NumPy does not have are widened on the way.
        value = value.detach().cpu()
        value = (value.double() if dtype is np.float64 else value.long()).numpy()
    return np.ascontiguousarray(value, dtype=dtype)


def _like(tables, model):
    """The tables in the kind of array that `model` is."""
    if not _is_torch(model):
        return tables
    torch = sys.modules["torch"]
    return tuple(torch.from_numpy(table) for table in tables)


def _load_matrix(weight):
    load = _as_numpy(weight, np.float64)
    if load.ndim == 3:
        load = np.ascontiguousarray(load.sum(axis=0))
    if load.ndim != 2 or load.size == 0:
        raise BallastError(f"weight must be [layers, experts], not of shape {load.shape}")
    return load


def _old_slots(old, load, n_slots):
    """The placement in force as int32. Copies that serve nothing (an expert twice on one rank, as
    engines may have them) are the library's business: it fills those slots anew."""
    if old is None:
        return None
    slots = _as_numpy(old, np.int64)
    if slots.shape != (load.shape[0], n_slots):
        raise BallastError(f"the old placement is {slots.shape}, not {(load.shape[0], n_slots)}")
    if slots.min() < -1 or slots.max() >= load.shape[1]:
        raise BallastError(f"the old placement holds ids outside [0, {load.shape[1]})")
    return slots.astype(np.int32)


# ---- the call ------------------------------------------------------------------------------------


def _rebalance_layer(layer, load, n_ranks, old, options, tables):
    """One layer into its row of the tables. The library mixes the layer's number into the seed;
    layers that are passed one by one get the same seeds that way."""
    phy2log, log2phy, logcnt = tables
    seed, min_gain, max_moves = options
    mixed = (seed ^ (layer << 32)) & 0xFFFFFFFFFFFFFFFF
    passed = _Options(ctypes.sizeof(_Options), mixed, min_gain, max_moves)
    text = ctypes.create_string_buffer(512)
    status = _library().bl_plan_rebalance(
        load[layer].ctypes.data, 1, load.shape[1], phy2log.shape[1], n_ranks,
        None if old is None else old[layer].ctypes.data, ctypes.byref(passed),
        phy2log[layer].ctypes.data, log2phy[layer].ctypes.data, logcnt[layer].ctypes.data,
        text, len(text),
    )  # fmt: skip
    if status < 0:
        raise BallastError(text.value.decode("utf-8", "replace").replace("layer 0", f"layer {layer}", 1))


def rebalance_experts(
    weight,
    num_replicas,
    num_groups,
    num_nodes,
    num_gpus,
    old_phy2log=None,
    *,
    seed=1,
    min_gain=-1.0,
    max_moves=-1,
    threads=1,
):
    """Place experts: see the module's text. `min_gain` is the fraction by which a layer's peak must
    fall before it is touched (negative: the library's default), `max_moves` the number of copies per
    layer that may travel (-1: no limit), `threads` how many layers are worked on at a time; it does
    not change the tables."""
    del num_groups, num_nodes  # see the module's text
    load = _load_matrix(weight)
    n_layers, n_experts = load.shape
    n_slots, n_ranks = int(num_replicas), int(num_gpus)
    if not 0 < n_ranks <= n_slots < 2**31 or n_slots < n_experts:
        raise BallastError(f"{n_slots} slots for {n_experts} experts on {n_ranks} ranks")
    old = _old_slots(old_phy2log, load, n_slots)
    tables = (
        np.empty((n_layers, n_slots), dtype=np.int32),
        np.empty((n_layers, n_experts, n_slots - n_experts + 1), dtype=np.int32),
        np.empty((n_layers, n_experts), dtype=np.int32),
    )
    options = (int(seed), float(min_gain), int(max_moves))

    def place(layer):
        _rebalance_layer(layer, load, n_ranks, old, options, tables)

    _library()
    if threads > 1 and n_layers > 1:
        with ThreadPoolExecutor(min(threads, n_layers)) as pool:
            list(pool.map(place, range(n_layers)))
    else:
        for layer in range(n_layers):
            place(layer)
    empty = np.argwhere(tables[0] < 0)
    if empty.size:
        layer, slot = empty[0]
        raise BallastError(f"layer {layer}: slot {slot} was empty and would stay so; engines need an expert in each")
    return _like(tuple(table.astype(np.int64) for table in tables), weight)
