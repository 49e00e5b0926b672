"""Ballast as the balancer of vLLM and SGLang: their own recording, their own way of moving weights,
this planner in between.

    import ballast_policies
    ballast_policies.install_vllm()      # in every process of the engine, before it loads a model
    ballast_policies.install_sglang()

Each looks for the place where its engine asks for a new placement and puts Ballast there. The places,
and about when they came:

    vLLM   0.12 on     vllm.distributed.eplb.policy.EPLB_POLICIES["default"]: a class with
                       rebalance_experts(weight, num_replicas, num_groups, num_nodes, num_ranks,
                                         old_global_expert_indices=None)
           0.9 - 0.11  vllm.distributed.eplb.eplb_state.rebalance_experts(weight, num_replicas,
                       num_groups, num_nodes, num_gpus)
    SGLang 0.4.8 on    sglang.srt.eplb.eplb_algorithms.rebalance_experts(tokens_per_expert,
                       num_physical_experts, num_local_physical_experts, num_groups, num_nodes,
                       algorithm); the placement in force is that of
                       sglang.srt.eplb.expert_location.get_global_expert_location_metadata()

Engines change. What is installed therefore trusts no version number: it checks that the place is
there and takes the arguments above, and refuses by name when not; and it answers in the form in which
the engine's own balancer answers a tiny question (one table or three, NumPy or torch), since vLLM has
changed that form.

The balancer is asked on every rank with the same loads and must answer the same on all; Ballast does,
for the same seed. Engines that plan for a part of their ranks (elastic expert parallelism) pass
arguments that are not known here: such a call goes to the engine's own balancer.
"""

import importlib
import inspect
import sys

import numpy as np

from ballast_plan import rebalance_experts

__all__ = ["NotInstalled", "install_vllm", "install_sglang"]


class NotInstalled(RuntimeError):
    """The engine has no place for a balancer that is known here."""


def _find(module, attribute):
    """The attribute of a module, or None where either is not there."""
    try:
        return getattr(importlib.import_module(module), attribute, None)
    except ImportError:
        return None


def _require_parameters(function, names, where):
    """The function takes these arguments first, and any behind them have a default."""
    parameters = inspect.signature(function).parameters.values()
    needed = [p.name for p in parameters if p.default is p.empty]
    if needed != list(names):
        raise NotInstalled(f"{where} takes ({', '.join(needed)}), not ({', '.join(names)})")


def _fit_old(old, n_layers, n_slots):
    """The placement in force, if it is for these slots: an engine that grows asks with another one."""
    if old is None or tuple(old.shape) != (n_layers, n_slots):
        return None
    return old


def _in_form_of(answer, tables):
    """The tables as the engine's own balancer answers: one or three of them, in its kind of array and
    of its integers, on the device of its answer."""
    one = not isinstance(answer, (tuple, list))
    shown = [answer] if one else answer
    if len(shown) not in (1, 3):
        raise NotInstalled(f"the engine's balancer answers with {len(shown)} tables, not with one or three")
    made = []
    for sample, table in zip(shown, tables):
        if isinstance(sample, np.ndarray):
            made.append(np.asarray(table).astype(sample.dtype))
        else:
            torch = sys.modules["torch"]
            tensor = table if isinstance(table, torch.Tensor) else torch.from_numpy(np.asarray(table))
            made.append(tensor.to(dtype=sample.dtype, device=sample.device))
    return made[0] if one else tuple(made)


def _in_place_of(own, names, plan, *also):
    """A function that is called as `own` is. `plan` gets the arguments by name; a call that uses
    any that is neither in `names` nor in `also` goes to `own`."""
    signature = inspect.signature(own)

    def balance(*args, **kwargs):
        given = signature.bind(*args, **kwargs).arguments
        if any(value is not None for name, value in given.items() if name not in (*names, *also)):
            return own(*args, **kwargs)
        return plan(**{name: given.get(name) for name in (*names, *also)})

    return balance


# ---- vLLM ----------------------------------------------------------------------------------------

_VLLM = ("weight", "num_replicas", "num_groups", "num_nodes")
_VLLM_OLD = "old_global_expert_indices"


def _vllm_balancer(own, where, options):
    """A function in the place of `own`, whose last argument has had two names."""
    last = "num_gpus" if "num_gpus" in inspect.signature(own).parameters else "num_ranks"
    _require_parameters(own, (*_VLLM, last), where)

    def plan(weight, num_replicas, num_groups, num_nodes, **rest):
        old = _fit_old(rest[_VLLM_OLD], weight.shape[-2], num_replicas)
        tables = rebalance_experts(weight, num_replicas, num_groups, num_nodes, rest[last], old, **options)
        # One layer of two experts on one rank, to see how it answers.
        return _in_form_of(own(weight[:1, :2] * 0 + 1, 2, 1, 1, 1), tables)

    return _in_place_of(own, (*_VLLM, last), plan, _VLLM_OLD)


def install_vllm(policy="default", **options):
    """Put Ballast in the place of one of vLLM's policies. `options` are those of rebalance_experts
    (seed, min_gain, max_moves, threads). Returns the name of the place."""
    policies = _find("vllm.distributed.eplb.policy", "EPLB_POLICIES")
    if policies is not None:
        where = f'vllm.distributed.eplb.policy.EPLB_POLICIES["{policy}"]'
        if policy not in policies:
            raise NotInstalled(f"{where} is not there; there are {', '.join(map(str, policies))}")
        own = policies[policy]
        balance = staticmethod(_vllm_balancer(own.rebalance_experts, where, options))
        policies[policy] = type("BallastPolicy", (own,), {"rebalance_experts": balance})
        return where
    where = "vllm.distributed.eplb.eplb_state.rebalance_experts"
    own = _find("vllm.distributed.eplb.eplb_state", "rebalance_experts")
    if own is None:
        raise NotInstalled(f"vLLM has neither vllm.distributed.eplb.policy.EPLB_POLICIES nor {where}")
    sys.modules["vllm.distributed.eplb.eplb_state"].rebalance_experts = _vllm_balancer(own, where, options)
    return where


# ---- SGLang --------------------------------------------------------------------------------------

_SGLANG = (
    "tokens_per_expert", "num_physical_experts", "num_local_physical_experts", "num_groups", "num_nodes",
    "algorithm",
)  # fmt: skip


def _sglang_current(n_layers, n_slots):
    """The map in force, or None before there is one."""
    metadata = _find("sglang.srt.eplb.expert_location", "get_global_expert_location_metadata")
    metadata = metadata() if metadata is not None else None
    for name in ("physical_to_logical_map_cpu", "physical_to_logical_map"):
        slots = getattr(metadata, name, None)
        if slots is not None:
            return _fit_old(slots, n_layers, n_slots)
    return None


def install_sglang(**options):
    """Put Ballast in the place of SGLang's algorithms, whichever --eplb-algorithm names. `options` are
    those of rebalance_experts. Returns the name of the place."""
    where = "sglang.srt.eplb.eplb_algorithms.rebalance_experts"
    own = _find("sglang.srt.eplb.eplb_algorithms", "rebalance_experts")
    if own is None:
        raise NotInstalled(f"SGLang has no {where}")
    _require_parameters(own, _SGLANG, where)

    def plan(tokens_per_expert, num_physical_experts, num_local_physical_experts, num_groups, num_nodes, algorithm):
        del algorithm
        old = _sglang_current(tokens_per_expert.shape[-2], num_physical_experts)
        ranks = num_physical_experts // num_local_physical_experts
        return rebalance_experts(
            tokens_per_expert, num_physical_experts, num_groups, num_nodes, ranks, old, **options
        )

    sys.modules["sglang.srt.eplb.eplb_algorithms"].rebalance_experts = _in_place_of(own, _SGLANG, plan)
    return where
