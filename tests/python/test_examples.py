"""examples/python: the planner's call on NumPy and torch, and as the balancer of engines that are
imitated here by the shape of their calls. Prints TAP."""

import ctypes
import pathlib
import sys
import traceback
import types

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "examples" / "python"))
import ballast_plan
import ballast_policies
from ballast_plan import BallastError, rebalance_experts


class Tensor:
    """As much of a torch tensor as the examples use."""

    def __init__(self, array, device="cuda:0"):
        self.array, self.device = np.asarray(array), device

    shape = property(lambda self: self.array.shape)
    dtype = property(lambda self: self.array.dtype)

    def __getitem__(self, at):
        return Tensor(self.array[at], self.device)

    def __mul__(self, other):
        return Tensor(self.array * other, self.device)

    def __add__(self, other):
        return Tensor(self.array + other, self.device)

    def detach(self):
        return self

    def cpu(self):
        return Tensor(self.array, "cpu")

    def double(self):
        return Tensor(self.array.astype(np.float64), self.device)

    def long(self):
        return Tensor(self.array.astype(np.int64), self.device)

    def numpy(self):
        assert self.device == "cpu", "a tensor on a device has no numpy()"
        return self.array

    def to(self, dtype, device):
        return Tensor(self.array.astype(dtype), device)


Tensor.__module__ = "torch"
torch = types.ModuleType("torch")
torch.Tensor, torch.from_numpy = Tensor, lambda array: Tensor(array, "cpu")
sys.modules["torch"] = torch

HOT = np.array([[16, 12, 11, 15, 0], [1, 1, 1, 1, 1]], dtype=float)


def peaks(load, phy2log, n_ranks):
    """The largest load of a rank in each layer, copies sharing evenly, by brute force."""
    made = []
    for row, slots in zip(load, phy2log):
        ranks = [0.0] * n_ranks
        for slot, expert in enumerate(slots):
            ranks[slot // (len(slots) // n_ranks)] += row[expert] / list(slots).count(expert)
        made.append(max(ranks))
    return made


def module(name, **content):
    made = types.ModuleType(name)
    made.__dict__.update(content)
    for at in range(1, name.count(".") + 1):
        parent = ".".join(name.split(".")[:at])
        sys.modules.setdefault(parent, types.ModuleType(parent))
    sys.modules[name] = made
    return made


def forget(engine):
    for name in [name for name in sys.modules if name.split(".")[0] == engine]:
        del sys.modules[name]


def raises(kind, part, call, *args, **kwargs):
    try:
        call(*args, **kwargs)
    except kind as error:
        assert part in str(error), error
        return
    raise AssertionError(f"{part}: nothing was raised")


# ---- the call ------------------------------------------------------------------------------------


def test_the_call_beats_greedy_where_greedy_is_known_to_fail():
    phy2log, log2phy, logcnt = rebalance_experts(HOT, 6, 1, 1, 2)
    # Greedy copies the hottest expert and reaches 31; the coldest must be copied for 27.
    assert sorted(map(sorted, phy2log[0].reshape(2, 3).tolist())) == [[0, 2, 4], [1, 3, 4]]
    assert peaks(HOT, phy2log, 2)[0] == 27
    assert logcnt.tolist()[0] == [1, 1, 1, 1, 2] and logcnt.sum() == 12
    assert phy2log.dtype == log2phy.dtype == logcnt.dtype == np.int64 and log2phy.shape == (2, 5, 2)


def test_the_tables_agree():
    load = np.random.default_rng(7).gamma(0.5, 1000.0, (4, 32))
    phy2log, log2phy, logcnt = rebalance_experts(load, 40, 1, 1, 8)
    for layer in range(4):
        for expert in range(32):
            slots = [slot for slot in range(40) if phy2log[layer, slot] == expert]
            assert logcnt[layer, expert] == len(slots) >= 1
            assert sorted(log2phy[layer, expert])[-len(slots) :] == slots
            assert (log2phy[layer, expert] == -1).sum() == 9 - len(slots)
        assert all(len(set(rank)) == 5 for rank in phy2log[layer].reshape(8, 5).tolist())


def test_an_unchanged_load_moves_nothing():
    load = np.random.default_rng(8).gamma(0.5, 1000.0, (4, 32))
    first = rebalance_experts(load, 40, 1, 1, 8)[0]
    again = rebalance_experts(load, 40, 1, 1, 8, first)[0]
    assert (first == again).all()


def test_the_number_of_threads_changes_nothing():
    load = np.random.default_rng(9).gamma(0.5, 1000.0, (6, 32))
    one = rebalance_experts(load, 40, 1, 1, 8, seed=5)
    four = rebalance_experts(load, 40, 1, 1, 8, seed=5, threads=4)
    assert all((a == b).all() for a, b in zip(one, four))


def test_moves_are_limited():
    load = np.random.default_rng(10).gamma(0.5, 1000.0, (1, 32))
    old = np.arange(40).reshape(1, 40) % 32
    new = rebalance_experts(load, 40, 1, 1, 8, old, max_moves=2)[0]
    moved = sum(len(set(b) - set(a)) for a, b in zip(old.reshape(8, 5).tolist(), new.reshape(8, 5).tolist()))
    assert 1 <= moved <= 2
    assert peaks(load, new, 8)[0] < peaks(load, old, 8)[0]


def test_a_layer_without_load_keeps_its_slots():
    load = np.array([[0.0] * 5, [16, 12, 11, 15, 0]])
    old = [[4, 3, 2, 1, 0, 4], [0, 1, 2, 3, 4, 0]]
    assert rebalance_experts(load, 6, 1, 1, 2, old)[0][0].tolist() == old[0]


def test_twins_of_the_old_placement_are_free_slots():
    for load in (np.ones((1, 3)), np.zeros((1, 3))):
        made = rebalance_experts(load, 4, 1, 1, 2, [[0, 0, 1, 1]])[0][0].tolist()
        assert made[0] == 0 and made[2] == 1 and set(made) == {0, 1, 2} and made[1] != 0 and made[3] != 1


def test_steps_are_summed():
    steps = np.array([HOT * 0.75, HOT * 0.25])
    steps[0, 0, 0], steps[1, 0, 0] = 0, 16  # seen alone, the first step makes another plan
    assert (rebalance_experts(steps, 6, 1, 1, 2)[0] == rebalance_experts(HOT, 6, 1, 1, 2)[0]).all()


def test_layers_alone_are_as_layers_together():
    load = np.random.default_rng(11).gamma(0.5, 1000.0, (3, 64))
    made = rebalance_experts(load, 72, 1, 1, 8, seed=5)[0]
    options = ballast_plan._Options(ctypes.sizeof(ballast_plan._Options), 5, -1.0, -1)
    whole = np.empty((3, 72), np.int32)
    status = ballast_plan._library().bl_plan_rebalance(
        load.ctypes.data, 3, 64, 72, 8, None, ctypes.byref(options), whole.ctypes.data, None, None, None, 0
    )
    assert status == 0 and (made == whole).all()


def test_tensors_give_tensors():
    tables = rebalance_experts(Tensor(HOT.astype(np.float32)), 6, 1, 1, 2)
    assert all(isinstance(table, Tensor) and table.device == "cpu" for table in tables)
    assert (tables[0].array == rebalance_experts(HOT, 6, 1, 1, 2)[0]).all()
    again = rebalance_experts(Tensor(HOT), 6, 1, 1, 2, Tensor(tables[0].array.astype(np.int32)))
    assert (again[0].array == tables[0].array).all()


def test_what_cannot_be_is_refused():
    raises(BallastError, "[layers, experts]", rebalance_experts, [1, 2, 3], 4, 1, 1, 2)
    raises(BallastError, "[layers, experts]", rebalance_experts, np.empty((0, 4)), 4, 1, 1, 2)
    raises(BallastError, "2 slots for 3 experts", rebalance_experts, [[1, 2, 3]], 2, 1, 1, 2)
    raises(BallastError, "on 0 ranks", rebalance_experts, [[1, 2, 3]], 4, 1, 1, 0)
    raises(BallastError, "layer 1: expert 1", rebalance_experts, [[1, 2], [1, float("nan")]], 2, 1, 1, 2)
    raises(BallastError, "layer 0", rebalance_experts, [[1, -2]], 2, 1, 1, 2)
    raises(BallastError, "no rank holds one twice", rebalance_experts, [[1, 2, 3]], 8, 1, 1, 2)
    raises(BallastError, "not (1, 4)", rebalance_experts, [[1, 2, 3]], 4, 1, 1, 2, [[0, 1, 2]])
    raises(BallastError, "layer 0: slot 1 was empty", rebalance_experts, [[0, 0, 0]], 4, 1, 1, 2, [[0, -1, 1, 2]])
    raises(BallastError, "outside [0, 3)", rebalance_experts, [[1, 2, 3]], 4, 1, 1, 2, [[0, 1, 2, 2**32]])


# ---- engines -------------------------------------------------------------------------------------


def vllm_with(answer):
    """vLLM with a class of policies; its own answers in the form that `answer` gives."""
    forget("vllm")

    class Own:
        calls = 0

        @classmethod
        def rebalance_experts(
            cls, weight, num_replicas, num_groups, num_nodes, num_ranks, old_global_expert_indices=None, masked=None
        ):
            cls.calls += 1
            return answer(weight)

    policies = {"default": Own}
    module("vllm.distributed.eplb.policy", EPLB_POLICIES=policies)
    return Own, policies


def test_vllm_gets_three_tables_on_its_device():
    own, policies = vllm_with(lambda w: tuple(Tensor(np.zeros(1, np.int32), w.device) for _ in range(3)))
    where = ballast_policies.install_vllm(threads=2)
    assert where == 'vllm.distributed.eplb.policy.EPLB_POLICIES["default"]'
    assert issubclass(policies["default"], own) and policies["default"] is not own
    made = policies["default"].rebalance_experts(Tensor(HOT), 6, 1, 1, 2, None)
    assert [table.device for table in made] == ["cuda:0"] * 3 and made[0].dtype == np.int32
    assert peaks(HOT, made[0].array, 2)[0] == 27


def test_vllm_gets_one_table():
    _, policies = vllm_with(lambda w: np.zeros((1, 2), np.int64))
    ballast_policies.install_vllm()
    made = policies["default"].rebalance_experts(HOT, 6, 1, 1, num_ranks=2)
    assert isinstance(made, np.ndarray) and peaks(HOT, made, 2)[0] == 27


def test_vllm_hands_over_the_old_placement():
    _, policies = vllm_with(lambda w: np.zeros((1, 2), np.int64))
    ballast_policies.install_vllm()
    balance = policies["default"].rebalance_experts
    old = np.array([[4, 3, 1, 0, 2, 4], [4, 3, 2, 1, 0, 4]])  # the best there is, in an order of its own
    assert (balance(HOT, 6, 1, 1, 2, old) == old).all()
    assert balance(HOT, 6, 1, 1, 2, old[:, :5]).shape == (2, 6)  # of another size: starts anew


def test_vllm_keeps_calls_that_are_not_known_here():
    own, policies = vllm_with(lambda w: "its own")
    ballast_policies.install_vllm()
    assert policies["default"].rebalance_experts(HOT, 6, 1, 1, 2, None, masked=[1]) == "its own"
    assert own.calls == 1


def test_vllm_before_policies():
    forget("vllm")

    def rebalance_experts_of_vllm(weight, num_replicas, num_groups, num_nodes, num_gpus):
        return tuple(Tensor(np.zeros(1, np.int64), "cpu") for _ in range(3))

    state = module("vllm.distributed.eplb.eplb_state", rebalance_experts=rebalance_experts_of_vllm)
    assert ballast_policies.install_vllm() == "vllm.distributed.eplb.eplb_state.rebalance_experts"
    assert peaks(HOT, state.rebalance_experts(Tensor(HOT), 6, 1, 1, 2)[0].array, 2)[0] == 27


def test_vllm_of_another_shape_is_refused():
    forget("vllm")
    raises(ballast_policies.NotInstalled, "has neither", ballast_policies.install_vllm)
    _, policies = vllm_with(lambda w: None)
    raises(ballast_policies.NotInstalled, '["swift"] is not there', ballast_policies.install_vllm, "swift")

    class Other:
        @classmethod
        def rebalance_experts(cls, load, topology):
            return None

    policies["default"] = Other
    raises(ballast_policies.NotInstalled, "takes (load, topology)", ballast_policies.install_vllm)
    assert policies["default"] is Other
    _, policies = vllm_with(lambda w: (w, w))
    ballast_policies.install_vllm()
    raises(
        ballast_policies.NotInstalled, "2 tables", policies["default"].rebalance_experts, HOT, 6, 1, 1, 2
    )  # fmt: skip


def sglang_with(metadata):
    forget("sglang")

    def own(
        tokens_per_expert, num_physical_experts, num_local_physical_experts, num_groups, num_nodes, algorithm,
        active_ranks=None,
    ):  # fmt: skip
        return "its own"

    algorithms = module("sglang.srt.eplb.eplb_algorithms", rebalance_experts=own)
    module("sglang.srt.eplb.expert_location", get_global_expert_location_metadata=lambda: metadata)
    assert ballast_policies.install_sglang() == "sglang.srt.eplb.eplb_algorithms.rebalance_experts"
    return algorithms


def sglang_asks(algorithms, **more):
    """As ExpertLocationMetadata asks: by keyword, steps in front, every decoder layer."""
    load = np.stack([HOT, HOT])
    return algorithms.rebalance_experts(
        tokens_per_expert=Tensor(load), num_physical_experts=6, num_local_physical_experts=3,
        num_groups=None, num_nodes=1, algorithm="deepseek", **more,
    )  # fmt: skip


def test_sglang_gets_three_tables():
    made = sglang_asks(sglang_with(None))
    assert len(made) == 3 and peaks(HOT, made[0].array, 2)[0] == 27
    assert made[1].shape == (2, 5, 2) and made[2].array.sum() == 12


def test_sglang_hands_over_the_map_in_force():
    old = np.array([[4, 3, 1, 0, 2, 4], [4, 3, 2, 1, 0, 4]])
    metadata = types.SimpleNamespace(physical_to_logical_map_cpu=Tensor(old, "cpu"))
    assert (sglang_asks(sglang_with(metadata))[0].array == old).all()
    metadata = types.SimpleNamespace(physical_to_logical_map=Tensor(old))
    assert (sglang_asks(sglang_with(metadata))[0].array == old).all()


def test_sglang_keeps_calls_that_are_not_known_here():
    assert sglang_asks(sglang_with(None), active_ranks=[1, 0]) == "its own"


def test_sglang_of_another_shape_is_refused():
    forget("sglang")
    raises(ballast_policies.NotInstalled, "SGLang has no", ballast_policies.install_sglang)
    module("sglang.srt.eplb.eplb_algorithms", rebalance_experts=lambda weight: None)
    raises(ballast_policies.NotInstalled, "takes (weight)", ballast_policies.install_sglang)


def main():
    tests = [(name, test) for name, test in globals().items() if name.startswith("test_")]
    failed = 0
    for number, (name, test) in enumerate(tests, 1):
        try:
            test()
            print(f"ok {number} - {name[5:].replace('_', ' ')}")
        except Exception:
            failed += 1
            print(f"not ok {number} - {name[5:].replace('_', ' ')}")
            print("# " + traceback.format_exc().replace("\n", "\n# "))
    print(f"1..{len(tests)}")
    return failed != 0


if __name__ == "__main__":
    sys.exit(main())
