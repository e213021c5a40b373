"""An allocator that keeps books like torch's, and writes snapshots in torch's form."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field
from typing import Any

_FORWARD = ("_call_impl", "/lib/torch/nn/modules/module.py", 1), ("train", "train.py", 9)
_STEP = ("step", "/lib/torch/optim/adam.py", 2), ("train", "train.py", 11)
_RECORDING = (
    ("torch::unwind::unwind()", "??", 0),
    ("torch::CapturedTraceback::gather(bool, bool, bool)", "??", 0),
    ("torch::cuda::(anonymous namespace)::gather_with_cpp()", "memory_snapshot.cpp", 0),
    ("c10::cuda::CUDACachingAllocator::Native::NativeCachingAllocator::allocate(unsigned long)", "", 0),
)
_EMPTY = ("at::detail::empty_cuda(c10::ArrayRef<long>, c10::TensorOptions const&)", "??", 0)
_ENGINE = (
    ("torch::autograd::Engine::evaluate_function(std::shared_ptr<torch::autograd::GraphTask>&)", "??", 0),
    ("torch::autograd::Engine::thread_main(std::shared_ptr<torch::autograd::GraphTask> const&)", "??", 0),
    ("__clone", "??", 0),
)
_WORKSPACE = (
    ("at::cuda::setWorkspaceForHandle(cublasContext*)", "", 0),
    ("at::cuda::getCurrentCUDABlasHandle()", "??", 0),
)
_INTERPRETER = tuple(
    (f"_PyEval_{number}", "/usr/local/src/conda/python-3.12/Python/ceval.c", 0) for number in range(60)
)
STACKS: dict[str, tuple[tuple[str, str, int], ...]] = {
    "forward": _FORWARD,
    "optimizer": _STEP,
    "backward": (("backward", "/lib/torch/_tensor.py", 3), ("train", "train.py", 10)),
    "engine": (),
    "init": (("__init__", "/lib/torch/nn/modules/linear.py", 4), ("build", "train.py", 2)),
    "reduce": (("all_reduce", "/lib/torch/distributed/distributed_c10d.py", 5),),
    "own": (("keep", "train.py", 20),),
    # with stacks="all"
    "forward, all": (*_RECORDING, _EMPTY, *_INTERPRETER, *_FORWARD, *_INTERPRETER),
    "engine, all": (
        *_RECORDING,
        _EMPTY,
        ("torch::autograd::VariableType::(anonymous namespace)::mm(at::Tensor const&)", "VariableType_3.cpp", 0),
        ("torch::autograd::generated::MmBackward0::apply(std::vector<at::Tensor>&&)", "??", 0),
        *_ENGINE,
    ),
    "hook, all": (*_RECORDING, _EMPTY, ("_PyEval", "ceval.c", 0), ("on_gradient", "model.py", 3), *_ENGINE),
    "recompute, all": (*_RECORDING, _EMPTY, *_FORWARD[:1], ("recompute", "model.py", 4), *_ENGINE),
    "reducer, all": (*_RECORDING, ("c10d::Reducer::initialize_buckets(int)", "??", 0), *_ENGINE),
    "workspace, all": (*_RECORDING, *_WORKSPACE, *_FORWARD),
    "other thread, all": (*_RECORDING, ("mine::Cache::grow(long)", "/usr/lib/libmine.so", 0), ("__clone", "??", 0)),
    # of inference
    "eval": (_FORWARD[0], ("answer", "serve.py", 9)),
    "no_grad": (_FORWARD[0], ("answer", "serve.py", 9), ("decorate_context", "/lib/torch/utils/_contextlib.py", 5)),
    "kv_cache": (("_allocate_kv_cache_tensors", "/lib/vllm/v1/worker/gpu_model_runner.py", 6),),
}


@dataclass
class Allocator:
    """Segments of one GPU, each a row of blocks; time goes on by 10 us an event."""

    device: int = 0
    segments: dict[int, int] = field(default_factory=dict)
    pools: dict[int, tuple[tuple[int, int], int]] = field(default_factory=dict)
    blocks: dict[int, tuple[int, str]] = field(default_factory=dict)
    trace: list[dict[str, Any]] = field(default_factory=list)
    notes: list[dict[str, Any]] = field(default_factory=list)
    awaited: dict[int, int] = field(default_factory=dict)
    settings: str = ""
    time_us: int = 1_000_000

    def segment(self, address: int, size: int, pool: tuple[int, int] = (0, 0), stream: int = 0) -> None:
        """Memory from the driver."""
        self.segments[address] = size
        self.pools[address] = pool, stream
        self._note("segment_alloc", address, size)

    def give_back(self, address: int) -> None:
        """The whole segment."""
        self._note("segment_free", address, self.segments.pop(address))

    def alloc(self, address: int, size: int, stack: str = "own") -> None:
        """A tensor's memory."""
        self.blocks[address] = size, stack
        self._note("alloc", address, size, stack)

    def free(self, address: int, *, completed: bool = True) -> None:
        """The tensor is gone; not `completed`: another stream still uses it."""
        size, stack = self.blocks.pop(address)
        self._note("free_requested", address, size, stack)
        if completed:
            self._note("free_completed", address, size, stack)
        else:
            self.awaited[address] = size

    def fail(self, size: int, free: int, stack: str = "forward", **more: Any) -> None:
        """An allocation that found no room."""
        self._note("oom", None, size, stack, device_free=free, **more)

    def step_ends(self) -> None:
        """The optimizer's step."""
        self.time_us += 10
        name = "Optimizer.step#Adam.step"
        self.notes.append({"stage": "START", "name": name, "device": self.device, "time_us": self.time_us - 5})
        self.notes.append({"stage": "END", "name": name, "device": self.device, "time_us": self.time_us})

    @property
    def allocated(self) -> int:
        """By our own books."""
        return sum(size for size, _ in self.blocks.values())

    @property
    def reserved(self) -> int:
        """By our own books."""
        return sum(self.segments.values())

    def snapshot(self, newest: int = 100_000) -> dict[str, Any]:
        """As torch.cuda.memory._snapshot() gives it, with so many events."""
        traces: list[list[dict[str, Any]]] = [[] for _ in range(self.device)] + [self.trace[-newest:] if newest else []]
        return {
            "segments": [self._segment(address, size) for address, size in sorted(self.segments.items())],
            "device_traces": traces,
            "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": self.settings},
            "external_annotations": self.notes,
        }

    def pickled(self, protocol: int = 4, newest: int = 100_000) -> bytes:
        """The file."""
        return pickle.dumps(self.snapshot(newest), protocol)

    def _segment(self, address: int, size: int) -> dict[str, Any]:
        blocks, place = [], address
        mine = {at: block for at, block in self.blocks.items() if address <= at < address + size}
        waiting = {at: of for at, of in self.awaited.items() if address <= at < address + size}
        for at in sorted({*mine, *waiting}):
            if at > place:
                blocks.append(_block(place, at - place, "inactive", "engine"))
            of, stack = mine.get(at, (waiting.get(at, 0), "engine"))
            blocks.append(_block(at, of, "active_allocated" if at in mine else "active_awaiting_free", stack))
            place = at + of
        if place < address + size:
            blocks.append(_block(place, address + size - place, "inactive", "engine"))
        pool, stream = self.pools[address]
        return {
            "device": self.device,
            "address": address,
            "total_size": size,
            "stream": stream,
            "segment_pool_id": pool,
            "is_expandable": False,
            "blocks": blocks,
        }

    def _note(self, action: str, address: int | None, size: int, stack: str = "engine", **more: Any) -> None:
        self.time_us += 10
        place = {} if address is None else {"addr": address}
        self.trace.append(
            {
                "action": action,
                **place,
                "size": size,
                "stream": 0,
                "time_us": self.time_us,
                "frames": _frames(stack),
                **more,
            }
        )


def _block(address: int, size: int, state: str, stack: str) -> dict[str, Any]:
    return {"address": address, "size": size, "requested_size": size, "state": state, "frames": _frames(stack)}


def _frames(stack: str) -> list[dict[str, Any]]:
    return [{"name": name, "filename": file, "line": line} for name, file, line in STACKS[stack]]
