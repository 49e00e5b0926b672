"""examples/capture against fakes of the engines' shapes; what arrives is read back by the program. Prints TAP."""

import ctypes
import json
import os
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "examples", "capture"))
import ballast_capture as bc

BALLAST = os.environ["BALLAST"]


class Tensor:
    """What the adapter uses of a torch tensor: rows of k ids, `stride` ids apart."""

    def __init__(self, rows, dtype=ctypes.c_int32, stride=None, is_cuda=False):
        k = len(rows[0]) if rows else 2
        stride = stride or k
        self._data = (dtype * max(1, len(rows) * stride))(*[-7] * (len(rows) * stride))
        for i, row in enumerate(rows):
            for j, value in enumerate(row):
                self._data[i * stride + j] = value
        self.shape, self.is_cuda, self._stride = (len(rows), k), is_cuda, stride

    def data_ptr(self):
        return ctypes.addressof(self._data)

    def element_size(self):
        return ctypes.sizeof(self._data._type_)

    def stride(self, axis):
        return (self._stride, 1)[axis]


class Router:
    def set_capture_fn(self, fn):
        self.fn = fn


class Moe:
    def __init__(self, layer_id):
        self.layer_id, self.router = layer_id, Router()


class Model:
    def __init__(self, layers):
        self._modules = [object()] + [Moe(layer) for layer in layers]

    def modules(self):
        return iter(self._modules)


def open_tracer(name, flags=0):
    return bc.Tracer(name, model="fake", layers=[3, 7], experts=4, top_k=2, flags=flags, ring_bytes=1 << 16)


def recorded(name, work, run):
    """Run `run(tracer)` under a recorder and return {layer: load of each expert}."""
    directory = tempfile.mkdtemp(dir=work)
    tracer = run.tracer
    recorder = subprocess.Popen([BALLAST, "record", "--ring", name, "-o", directory, "--live", name],
                                stderr=subprocess.DEVNULL)
    while subprocess.run([BALLAST, "live", name], capture_output=True).returncode != 0:
        assert recorder.poll() is None
    run(tracer)
    tracer.close()
    assert recorder.wait(60) == 0
    out = subprocess.run([BALLAST, "stat", "--json", directory], capture_output=True, check=True).stdout
    return json.loads(out)


def scenario(flags=0):
    def wrap(body):
        body.flags = flags
        SCENARIOS.append(body)
        return body
    return wrap


SCENARIOS = []


@scenario()
def vllm_routers_push_logical_ids(tracer):
    model = Model([3, 7])
    assert bc.hook_vllm(model, tracer) == 2
    for step in range(3):
        with tracer.step(step, bc.DECODE):
            for module in list(model.modules())[1:]:
                module.router.fn(Tensor([[0, 1], [2, 0], [0, 3]], ctypes.c_int64))
    return {"assignments": 18, "hottest": 0, "tokens": 9}


@scenario(bc.PHYSICAL)
def sglang_slots_become_experts(tracer):
    capturer = bc.SglangCapturer(tracer)
    capturer.maps([3, 7], 1, {3: [3, 2, 1, 0, 3, 3], 7: [3, 2, 1, 0, 3, 3]}, 2)
    with tracer.step(0, bc.PREFILL):
        for layer in (3, 7):
            capturer.capture(layer, topk_ids=Tensor([[0, 3], [4, 2], [5, 1]], stride=5))
    return {"assignments": 6, "hottest": 3, "tokens": 3}


@scenario()
def padding_is_cut_off(tracer):
    with tracer.step(0, bc.DECODE):
        for layer in (3, 7):
            tracer.push(layer, Tensor([[1, 2], [1, 0], [0, 0], [0, 0]], ctypes.c_int16), valid=2)
    with tracer.step(1, bc.IDLE, dummy=True):
        tracer.push(3, Tensor([[0, 1]]))
    return {"assignments": 4, "hottest": 1, "tokens": 2}


@scenario()
def staged_copies_are_never_waited_for(tracer):
    done = [True]

    class Mark:
        def query(self):
            return done[0]

    staged = bc.Staged(tracer, copy=lambda ids: ids, mark=Mark)
    for step in range(4):
        staged.begin(step, bc.DECODE)
        for layer in (3, 7):
            staged.push(layer, Tensor([[2, 1]]))
        staged.end()
        done[0] = step != 1
        if step == 1:
            staged.begin(99)  # the copies of step 1 are late: counted, not waited for
            assert staged.late == 1
            staged._open = None
            done[0] = True
    staged.close()
    return {"assignments": 6, "hottest": 1, "tokens": 3}


def main():
    failed = 0
    with tempfile.TemporaryDirectory() as work:
        for number, body in enumerate(SCENARIOS, 1):
            name = "pytest-%d-%d" % (os.getpid(), number)
            want = {}

            def run(tracer):
                want.update(body(tracer))
            run.tracer = open_tracer(name, body.flags)
            ok = True
            try:
                got = recorded(name, work, run)
                for layer in got["layers"]:
                    ok = ok and layer["conserved"] and layer["assignments"] == want["assignments"]
                ok = ok and got["tokens"] == want["tokens"] and len(got["layers"]) == 2
                ok = ok and all(layer["hottest_expert"] == want["hottest"] for layer in got["layers"])
            except Exception as error:  # a test says what went wrong and goes on
                print("# %s" % error)
                ok = False
            failed += not ok
            print("%sok %d - %s" % ("" if ok else "not ", number, body.__name__))
        try:
            bc.hook_vllm(Model([]), None)
            refused = False
        except RuntimeError as error:
            refused = "another version" in str(error)
        print("%sok %d - a model without such routers is refused" % ("" if refused else "not ", len(SCENARIOS) + 1))
        failed += not refused
    print("1..%d" % (len(SCENARIOS) + 1))
    return failed > 0


sys.exit(main())
