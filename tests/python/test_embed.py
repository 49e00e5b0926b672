"""include/ballast_embed.h by ctypes, as an engine in Python would use it: two ranks as processes, experts by
pointers and in a tensor, a callback, a plan applied, a loss. Prints TAP; `test_embed.py RANK PORT SOCKET` is a rank."""

import ctypes as c
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time

lib = c.CDLL(os.environ["BALLAST_LIBRARY"])
COPY = c.CFUNCTYPE(c.c_int, c.c_void_p, c.c_void_p, c.c_size_t, c.c_void_p, c.c_size_t, c.c_size_t, c.c_size_t)
RECOMPUTE = c.CFUNCTYPE(c.c_int, c.c_void_p, c.c_int, c.POINTER(c.c_char_p), c.c_int, c.POINTER(c.c_int), c.c_int)
FETCH = c.CFUNCTYPE(c.c_int, c.c_void_p, c.c_int, c.c_int, c.c_char_p, c.c_void_p, c.c_size_t)


class Struct(c.Structure):
    """A struct of the header: its size first, the rest zero or as given."""

    def __init__(self, **fields):
        super().__init__(size=c.sizeof(type(self)), **fields)


class Tensor(Struct):
    _fields_ = [("size", c.c_size_t), ("name", c.c_char_p), ("base", c.c_void_p), ("scope", c.c_int), ("entries", c.c_size_t),
                ("rows", c.c_size_t), ("row_bytes", c.c_size_t), ("entry_stride", c.c_size_t), ("row_stride", c.c_size_t),
                ("layout", c.c_char_p), ("recomputed", c.c_int), ("pointers", c.POINTER(c.c_void_p))]


class Layer(Struct):
    _fields_ = [("size", c.c_size_t), ("layer", c.c_int), ("n_slots", c.c_int), ("slots_of_rank", c.POINTER(c.c_int)),
                ("expert", c.POINTER(c.c_int32)), ("tensors", c.POINTER(Tensor)), ("n_tensors", c.c_int),
                ("inventory", c.POINTER(c.c_char_p)), ("n_inventory", c.c_int), ("n_spares", c.c_size_t)]


class Options(Struct):
    _fields_ = [("size", c.c_size_t), ("rank", c.c_int), ("n_ranks", c.c_int), ("rendezvous", c.c_char_p), ("job", c.c_uint64),
                ("transport", c.c_void_p), ("model", c.c_char_p), ("n_experts", c.c_int), ("top_k", c.c_int), ("rule", c.c_char_p),
                ("spares", c.c_int), ("spare_bytes", c.c_size_t), ("step_bytes", c.c_size_t), ("deadline_s", c.c_double),
                ("socket", c.c_char_p), ("config", c.c_char_p), ("window_steps", c.c_int), ("copy", COPY), ("recompute", RECOMPUTE),
                ("user", c.c_void_p), ("fetch", FETCH)]


class News(Struct):
    _fields_ = [("size", c.c_size_t), ("layer", c.c_int), ("busy", c.c_int), ("step", c.c_uint64), ("lost", c.c_int)]


class Map(Struct):
    _fields_ = [("size", c.c_size_t), ("layer", c.c_int32), ("epoch", c.c_uint64), ("n_ranks", c.c_int), ("n_slots", c.c_int),
                ("slots_of_rank", c.POINTER(c.c_int)), ("expert", c.POINTER(c.c_int32))]


class Repaired(Struct):
    _fields_ = [("size", c.c_size_t), ("n_lost", c.c_int), ("lost", c.POINTER(c.c_int)), ("n_fetched", c.c_int),
                ("n_fetched_here", c.c_int), ("step", c.c_uint64)]


EXPERTS, SLOTS, RANKS, FLOATS = 6, 3, 3, 16
START = [0, 1, 2, 3, 4, 5, 0, 1, 2]
PEER = -14


def weights(expert):
    return [expert * 100.0 + i for i in range(FLOATS)]


class Engine:
    """One layer; rank 0 has one tensor, the others pieces found by pointers."""

    def __init__(self, rank, port, socket_path):
        self.rank, self.wrong, self.fetched = rank, 0, 0
        self.by_pointers = rank > 0
        self.memory = [(c.c_float * FLOATS)() for _ in range(SLOTS + 1)] if self.by_pointers else (c.c_float * FLOATS * SLOTS)()
        for slot in range(SLOTS):
            self.memory[slot][:] = weights(START[rank * SLOTS + slot])
        self.fetch = FETCH(self.on_fetch)  # kept: C calls it
        self.options = Options(rank=rank, n_ranks=RANKS, rendezvous=f"127.0.0.1:{port}".encode(), job=7, model=b"py", n_experts=EXPERTS,
                               top_k=1, spares=1, socket=socket_path.encode(), fetch=self.fetch)
        self.tensor = Tensor(name=b"w", entries=SLOTS, rows=1, row_bytes=4 * FLOATS)
        if self.by_pointers:
            self.table = (c.c_void_p * (SLOTS + 1))(*[c.addressof(piece) for piece in self.memory])
            self.tensor.pointers = c.cast(self.table, c.POINTER(c.c_void_p))
        else:
            self.tensor.base = c.addressof(self.memory)
        self.expert = (c.c_int32 * len(START))(*START)
        self.layer = Layer(layer=2, n_slots=len(START), expert=self.expert, tensors=c.pointer(self.tensor), n_tensors=1,
                           n_spares=1 if self.by_pointers else 0)
        self.handle, text = c.c_void_p(), c.create_string_buffer(256)
        if lib.bl_embed_open(c.byref(self.options), c.byref(self.handle), text, len(text)) < 0:
            sys.exit(text.value.decode())
        self.call(lib.bl_embed_add_layer, c.byref(self.layer))
        self.call(lib.bl_embed_start)

    def call(self, function, *args):
        status = function(self.handle, *args)
        if status < 0 and status != PEER:
            sys.exit(f"rank {self.rank}: {function.__name__}: {error(self.handle).decode()}")
        return status

    def on_fetch(self, user, layer, expert, tensor, to, n_bytes):
        if (layer, tensor, n_bytes) != (2, b"w", 4 * FLOATS):
            return 1
        if to:
            c.memmove(to, (c.c_float * FLOATS)(*weights(expert)), n_bytes)
            self.fetched += 1
        return 0

    def placed(self):
        place = Map(slots_of_rank=None)
        self.call(lib.bl_map, 2, c.byref(place))
        return place.expert[:place.n_slots]

    def slot(self, slot):
        return c.cast(self.table[slot], c.POINTER(c.c_float))[:FLOATS] if self.by_pointers else self.memory[slot][:]

    def check(self):
        for slot, expert in enumerate(self.placed()[self.rank * SLOTS:(self.rank + 1) * SLOTS]):
            self.wrong += expert >= 0 and self.slot(slot) != weights(expert)

    def serve(self):
        stop = []
        signal.signal(signal.SIGTERM, lambda *_: stop.append(1))
        print("serving", flush=True)
        while not stop:
            news = News()
            self.call(lib.bl_step, c.byref(news))
            if news.lost >= 0:
                repaired = Repaired()
                while self.call(lib.bl_repair, c.byref(repaired)) == PEER:
                    pass
                print(json.dumps({"lost": repaired.lost[:repaired.n_lost], "fetched": repaired.n_fetched, "here": self.fetched}), flush=True)
            self.check()
            time.sleep(0.001)
        print(json.dumps({"wrong": self.wrong, "map": self.placed()}), flush=True)
        lib.bl_embed_close(self.handle)


lib.bl_embed_close.argtypes, lib.bl_embed_close.restype = [c.c_void_p], None
lib.bl_embed_error.argtypes, lib.bl_embed_error.restype = [c.c_void_p], c.c_char_p
error = lib.bl_embed_error


def ranks(work):
    """Start three, apply a plan, kill rank 1, stop: what the survivors print."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    path = work + "/s"
    rank_of = [subprocess.Popen([sys.executable, __file__, str(rank), str(port), path], stdout=subprocess.PIPE, text=True) for rank in range(RANKS)]
    try:
        for rank in rank_of:
            assert rank.stdout.readline() == "serving\n"
        subprocess.run([os.environ["BALLAST"], "apply", "--force", "--wait", work + "/plan.json", "--socket", path], check=True,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        rank_of[1].kill()
        rank_of[1].wait()
        survivors = [rank_of[0], rank_of[2]]
        repaired = [json.loads(rank.stdout.readline()) for rank in survivors]
        for rank in survivors:
            rank.terminate()
        return repaired, [json.loads(rank.stdout.readline()) for rank in survivors], [rank.wait() for rank in survivors]
    finally:
        for rank in rank_of:
            rank.kill()


def make_plan(work):
    model = {"name": "py", "num_hidden_layers": 3, "moe_layers": [2], "num_experts": EXPERTS, "num_experts_per_tok": 1, "hidden_size": 8,
             "moe_intermediate_size": 8}
    with open(work + "/model.json", "w", encoding="utf-8") as f:
        json.dump(model, f)
    common = ["--model", work + "/model.json", "--ranks", str(RANKS)]
    quiet = {"check": True, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    ballast = os.environ["BALLAST"]
    subprocess.run([ballast, "synth", *common, "--steps", "20", "--tokens-per-step", "256", "--seed", "5", "-o", work + "/t.blt"], **quiet)
    subprocess.run([ballast, "plan", "--trace", work + "/t.blt", "--topology", "hgx-h100", *common, "--slots", "9", "--seed", "5", "-o", work + "/plan.json"],
                   **quiet)
    with open(work + "/plan.json", encoding="utf-8") as f:
        return json.load(f)["layers"][0]["slots"]


def wrong_use():
    """Careless callers get a status, and a handle that was refused something goes on."""
    text, handle = c.create_string_buffer(256), c.c_void_p()
    options = Options(rank=0, n_ranks=1, model=b"py", n_experts=2, top_k=1, socket=b"")
    options.size = 12345678
    assert lib.bl_embed_open(c.byref(options), c.byref(handle), text, len(text)) == -3 or b"size" in text.value, text.value
    assert lib.bl_embed_open(None, c.byref(handle), text, len(text)) < 0 and b"NULL" in text.value
    assert lib.bl_step(None, None) < 0 and lib.bl_map(None, 0, None) < 0 and error(None) == b""
    options.size = c.sizeof(Options)
    assert lib.bl_embed_open(c.byref(options), c.byref(handle), text, len(text)) == 0, text.value
    assert lib.bl_step(handle, None) < 0 and b"bl_embed_start() comes first" in error(handle)
    lib.bl_embed_close(handle)


def main():
    results = []

    def check(name, passed, note=""):
        results.append(passed)
        print(f"{'ok' if passed else 'not ok'} {len(results)} - {name}" + (f"\n# {note}" if not passed else ""))

    with tempfile.TemporaryDirectory() as work:
        wrong_use()
        check("wrong use is answered", True)
        slots = make_plan(work)
        repaired, last, codes = ranks(work)
        check("the survivors of a loss agree on it", all(r["lost"] == [1] for r in repaired) and repaired[0]["fetched"] == repaired[1]["fetched"], repaired)
        gone = set(slots[1]) - set(slots[0]) - set(slots[2])
        check("what only the lost had was fetched by callback", repaired[0]["fetched"] == len(gone) == sum(r["here"] for r in repaired), (repaired, slots))
        check("every slot held what the map said, at every step", all(r["wrong"] == 0 for r in last), last)
        place = last[0]["map"]
        check("all experts live on two ranks", place == last[1]["map"] and place[3:6] == [-1] * 3 and set(place) == set(range(EXPERTS)) | {-1}, place)
        check("ranks end in order", codes == [0, 0], codes)
    print(f"1..{len(results)}")
    return not all(results)


if __name__ == "__main__":
    if len(sys.argv) == 4:
        Engine(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]).serve()
    else:
        sys.exit(main())
