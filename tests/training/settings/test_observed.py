"""Settings of the training process, read from the torch of this machine."""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import stepscope
from stepscope.core.documents.training_settings import (
    LoaderSettings,
    ModelSettings,
    OptimizerSettings,
    TrainingSettings,
)
from stepscope.training.memory.owners import MemoryOwners
from stepscope.training.settings.environment import relevant_environment
from stepscope.training.settings.observed import ObservedSettings

torch = pytest.importorskip("torch")
_MOST_SECONDS = 0.02


def _read() -> TrainingSettings:
    return ObservedSettings(MemoryOwners()).read()


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    cudnn, num_threads, thresholds = torch.backends.cudnn, torch.get_num_threads(), gc.get_threshold()
    before = cudnn.benchmark, cudnn.deterministic
    cudnn.benchmark, cudnn.deterministic = False, False  # torch's own; a workload of an earlier test may have set them
    yield
    torch.autograd.set_detect_anomaly(False)
    torch.use_deterministic_algorithms(False)
    torch.set_float32_matmul_precision("highest")
    cudnn.benchmark, cudnn.deterministic = before
    cudnn.allow_tf32 = True
    torch.set_num_threads(num_threads)
    gc.set_threshold(*thresholds)
    gc.enable()
    gc.unfreeze()


@pytest.mark.parametrize(
    ("name", "change", "before", "after"),
    [
        ("anomaly_mode", lambda: torch.autograd.set_detect_anomaly(True), False, True),
        ("deterministic", lambda: torch.use_deterministic_algorithms(True), "default", "error"),
        ("deterministic", lambda: torch.set_deterministic_debug_mode("warn"), "default", "warn"),
        ("cudnn_benchmark", lambda: setattr(torch.backends.cudnn, "benchmark", True), False, True),
        ("cudnn_deterministic", lambda: setattr(torch.backends.cudnn, "deterministic", True), False, True),
        ("cudnn_allow_tf32", lambda: setattr(torch.backends.cudnn, "allow_tf32", False), True, False),
        ("float32_matmul_precision", lambda: torch.set_float32_matmul_precision("high"), "highest", "high"),
        ("matmul_allow_tf32", lambda: torch.set_float32_matmul_precision("high"), False, True),
        ("gc_enabled", gc.disable, True, False),
    ],
)
def test_each_setting_is_read_as_it_is(name: str, change: Callable[[], object], before: object, after: object) -> None:
    assert getattr(_read(), name) == before
    change()
    assert getattr(_read(), name) == after


def test_threads_and_garbage_collector() -> None:
    torch.set_num_threads(3)
    gc.set_threshold(50_000, 20, 30)
    gc.freeze()
    settings = _read()
    assert (settings.num_threads, settings.num_interop_threads) == (3, torch.get_num_interop_threads())
    assert settings.gc_thresholds == [50_000, 20, 30]
    assert settings.gc_frozen is not None
    assert settings.gc_frozen > 1000
    assert ObservedSettings(MemoryOwners()).read(counts_frozen=False).gc_frozen is None


def test_autocast_has_its_type_where_it_is_on() -> None:
    assert _read().autocast == {}
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert _read().autocast == {"cpu": "bfloat16"}


def test_two_ways_to_set_tf32_at_once_are_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    def mixed() -> str:
        raise RuntimeError("PyTorch is checking whether allow_tf32 is enabled: a mix of the legacy and new APIs")

    monkeypatch.setattr(torch, "get_float32_matmul_precision", mixed)
    settings = _read()
    assert settings.float32_matmul_precision is None
    assert settings.anomaly_mode is False


def test_without_torch_the_rest_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stepscope.training.settings.observed.sys.modules", {})
    settings = _read()
    assert (settings.anomaly_mode, settings.num_threads, settings.autocast) == (None, None, {})
    assert settings.gc_enabled is True


def test_reading_costs_next_to_nothing() -> None:
    observed = ObservedSettings(MemoryOwners())
    seconds = []
    for _ in range(3):
        began = time.perf_counter()
        observed.read(counts_frozen=False)
        relevant_environment()
        seconds.append(time.perf_counter() - began)
    assert min(seconds) < _MOST_SECONDS


def test_of_the_environment_named_variables_alone_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"NCCL_DEBUG": "INFO", "CUDA_LAUNCH_BLOCKING": "1", "TORCH_DISTRIBUTED_DEBUG": "DETAIL"}
    known |= {"PYTORCH_ALLOC_CONF": "expandable_segments:True", "PYTORCH_CUDA_ALLOC_CONF": "", "OMP_NUM_THREADS": "2"}
    known["TORCH_CUDNN_V8_API_DISABLED"] = "1"
    for name, value in known.items():
        monkeypatch.setenv(name, value)
    for name in ("TORCH_HUB_TOKEN", "NCCL_OWN", "CUDA_LOGIN", "OMP_X", "HOME_SWEET"):
        monkeypatch.setenv(name, "s3cret")
    found = relevant_environment()
    assert known.items() <= found.items()
    assert "s3cret" not in found.values()


def test_a_variable_that_is_not_utf8_can_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_DEBUG", "\udcffINFO")
    assert relevant_environment()["NCCL_DEBUG"] == "?INFO"


def test_an_optimizer_is_known_by_its_class_and_implementation() -> None:
    observed = ObservedSettings(MemoryOwners())
    fused = torch.optim.AdamW([torch.nn.Parameter(torch.ones(2))], fused=True)
    other = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1, foreach=False)

    class Wrapper:
        optimizer = other

    observed.optimizer_seen(fused)
    observed.optimizer_seen(Wrapper())
    observed.optimizer_seen(None)
    assert observed.read().optimizers == [OptimizerSettings("AdamW", True, None), OptimizerSettings("SGD", None, False)]


def test_a_watched_model_has_types_and_a_memory_format() -> None:
    owners = MemoryOwners()
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.Linear(2, 2).to(torch.bfloat16))
    owners.watch(model)
    types = ["bfloat16", "float32"]
    assert ObservedSettings(owners).read().models == [ModelSettings("Sequential", types, "contiguous")]
    model[0].to(memory_format=torch.channels_last)
    assert ObservedSettings(owners).read().models == [ModelSettings("Sequential", types, "channels_last")]
    linear = torch.nn.Linear(2, 2)
    owners = MemoryOwners()
    owners.watch(linear)
    observed, expected = ObservedSettings(owners), [ModelSettings("Linear", ["float32"], None)]
    assert observed.read().models == expected
    del linear
    assert observed.read().models == expected


def _loader(**options: Any) -> Any:
    return torch.utils.data.DataLoader(torch.ones(8, 2), batch_size=2, **options)


def _settings_in(run_directory: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run_directory / "run.json").read_bytes())["settings"]
    return found


def test_loaders_are_known_once_they_gave_a_batch() -> None:
    observed = ObservedSettings(MemoryOwners())
    training = iter(_loader(num_workers=2, prefetch_factor=3, persistent_workers=True))
    for learns in (True, True, False):
        observed.loader_gave(training, learns=learns)
    observed.loader_gave(iter(_loader()), learns=False)
    observed.loader_gave(object(), learns=True)
    known: dict[str, Any] = {"kind": "map", "dataset": "Tensor", "in_memory": True, "batch_size": 2}
    assert observed.read().loaders == [
        LoaderSettings(True, 2, False, True, 3, **known),
        LoaderSettings(False, 2, False, True, 3, **known),
        LoaderSettings(False, 0, False, False, None, **known),
    ]


def test_a_dataset_that_may_do_anything_is_not_in_memory() -> None:
    class Stream(torch.utils.data.IterableDataset):  # type: ignore[misc, name-defined]
        def __iter__(self) -> Iterator[Any]:
            return iter([1, 2])

    observed = ObservedSettings(MemoryOwners())
    observed.loader_gave(iter(torch.utils.data.DataLoader(Stream(), batch_size=None)), learns=True)
    [loader] = observed.read().loaders
    assert (loader.kind, loader.dataset, loader.in_memory, loader.batch_size) == ("iterable", "Stream", None, None)


def test_what_is_no_data_loader_is_known_by_its_class() -> None:
    observed = ObservedSettings(MemoryOwners())
    for iterable in (_loader(), [1, 2], iter([3]), [4]):
        observed.iterable_given(iterable)
    assert observed.read().iterables == ["list", "list_iterator"]


def test_the_manifest_has_the_settings_of_the_start_and_then_those_of_the_end(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 1)
    with stepscope.profile(run="r", out=tmp_path, ranks=[]) as prof:
        assert _settings_in(tmp_path / "r")["anomaly_mode"] is False
        assert _settings_in(tmp_path / "r")["loaders"] == []
        prof.watch(model)
        for batch in prof.data(_loader()):
            model(batch).sum().backward()
            prof.step()
        with torch.no_grad():
            list(_loader(num_workers=1))
        torch.autograd.set_detect_anomaly(True)
    settings = _settings_in(tmp_path / "r")
    assert settings["anomaly_mode"] is True
    assert [(loader["trains"], loader["num_workers"]) for loader in settings["loaders"]] == [(True, 0), (False, 1)]
    [known] = settings["models"]
    assert (known["name"], known["parameter_types"], known["memory_format"]) == ("Linear", ["float32"], None)


class _Reserved:
    def __getattr__(self, name: str) -> object:
        raise RuntimeError(name)

    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


class _WithoutParts(torch.nn.Module):  # type: ignore[misc, name-defined]
    def modules(self) -> Any:
        raise RuntimeError("no parts")


def test_objects_that_raise_are_left_out_and_the_others_are_read() -> None:
    observed = ObservedSettings(MemoryOwners())
    model, reserved = torch.nn.Linear(2, 2), _WithoutParts()
    reserved.inner = torch.nn.Linear(2, 2)
    observed.iterable_given(_Reserved())
    observed.model_seen(reserved)
    observed.model_seen(model)
    observed.models_seen()
    assert observed.reduces_gradients() is None
    settings = observed.read()
    assert settings.iterables == ["_Reserved"]
    assert [one.name for one in settings.models] == ["Linear"]
