"""Training loops that belong to a framework: Trainer of Hugging Face and Lightning, one process or several."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Set
from typing import Any

import torch
from torch import nn

from benchmarks.labelled_runs.batches import Source
from benchmarks.labelled_runs.job import Bench, Clock


class _Rows(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Token ids, as Trainer asks for them; each row costs some work besides, given its index."""

    def __init__(self, pool: torch.Tensor, num_rows: int, work: Callable[[int], None] | None = None) -> None:
        self._pool, self._num_rows, self._work = pool, num_rows, work

    def __len__(self) -> int:
        return self._num_rows

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        if self._work is not None:
            self._work(index)
        row = self._pool[index % len(self._pool)]
        return {"input_ids": row, "labels": row}


class HuggingFaceLoop:
    """Training by the Trainer of transformers.

    Args:
        model: or what makes it anew for each call of `train`, where Trainer changes it.
        faults: arguments of TrainingArguments by the name of a fault or a change.
        work: by the name of a fault what each row costs besides.
        hooks: by the name of a fault what happens at the end of each step, given its index.
    """

    def __init__(
        self,
        bench: Bench,
        model: nn.Module | Callable[[], nn.Module],
        source: Source,
        faults: Mapping[str, dict[str, Any]],
        *,
        work: Mapping[str, Callable[[int], None]] | None = None,
        hooks: Mapping[str, Callable[[int], None]] | None = None,
        **arguments: Any,
    ) -> None:
        self._bench, self._model, self._source, self._faults, self._arguments = bench, model, source, faults, arguments
        self._work, self._hooks = work or {}, hooks or {}

    def train(self, num_steps: int, on: Set[str], clock: Clock) -> None:
        from transformers import Trainer, TrainerCallback, TrainingArguments
        from transformers.utils.logging import set_verbosity_error

        from stepscope.training.adapters.huggingface import StepscopeCallback

        set_verbosity_error()
        bench, size = self._bench, self._source.batch_size

        hooks = [hook for name, hook in self._hooks.items() if name in on]

        class Hooks(TrainerCallback):  # type: ignore[misc]
            def on_step_end(self, _arguments: Any, state: Any, *_: Any, **__: Any) -> None:
                for hook in hooks:
                    hook(state.global_step - 1)

        class Tick(TrainerCallback):  # type: ignore[misc]
            def on_step_end(self, *_: Any, **__: Any) -> None:
                clock.step()

        arguments: dict[str, Any] = {
            "output_dir": str(bench.folder / "trainer"),
            "max_steps": num_steps,
            "per_device_train_batch_size": size,
            "per_device_eval_batch_size": size,
            "report_to": [],
            "save_strategy": "no",
            "logging_strategy": "no",
            "disable_tqdm": True,
            "dataloader_num_workers": 2,
            "optim": "adamw_torch_fused",
            "use_cpu": bench.device.type == "cpu",
        }
        arguments |= self._arguments
        for name in on:
            arguments |= self._faults.get(name, {})
        rows = _Rows(
            self._source.pool,
            num_steps * size * bench.num_ranks * arguments.get("gradient_accumulation_steps", 1),
            next((work for name, work in self._work.items() if name in on), None),
        )
        trainer = Trainer(
            model=self._model if isinstance(self._model, nn.Module) else self._model(),
            args=TrainingArguments(**arguments),
            train_dataset=rows,
            eval_dataset=_Rows(self._source.pool, 4 * size * bench.num_ranks),
            callbacks=[Hooks(), Tick() if clock.options is None else StepscopeCallback(**clock.options)],
        )
        trainer.train()


class LightningLoop:
    """Training by the Trainer of Lightning.

    Args:
        loss: of a batch.
        faults: arguments of the Trainer by the name of a fault or a change.
        work: by the name of a fault what each batch costs besides.
        hooks: by the name of a fault what happens at the end of each step, given its index.
    """

    def __init__(
        self,
        bench: Bench,
        model: nn.Module,
        loss: Callable[[torch.Tensor], torch.Tensor],
        source: Source,
        faults: Mapping[str, Callable[[], dict[str, Any]]],
        *,
        work: Mapping[str, Callable[[int], None]] | None = None,
        hooks: Mapping[str, Callable[[int], None]] | None = None,
        **arguments: Any,
    ) -> None:
        self._bench, self._source, self._faults, self._arguments = bench, source, faults, arguments
        self._work, self._hooks = work or {}, hooks or {}
        self._module = _lightning_module(model, loss)

    def train(self, num_steps: int, on: Set[str], clock: Clock) -> None:
        import lightning.pytorch as lightning

        from stepscope.training.adapters.lightning import StepscopeCallback

        hooks = [hook for name, hook in self._hooks.items() if name in on]

        class Hooks(lightning.Callback):  # type: ignore[misc]
            def on_train_batch_end(self, _trainer: Any, _module: Any, _outputs: Any, _batch: Any, index: int) -> None:
                for hook in hooks:
                    hook(index)

        class Tick(lightning.Callback):  # type: ignore[misc]
            def on_train_batch_end(self, *_: Any, **__: Any) -> None:
                clock.step()

        bench = self._bench
        arguments: dict[str, Any] = {
            "max_steps": num_steps,
            "accelerator": "gpu" if bench.device.type == "cuda" else "cpu",
            "devices": bench.num_ranks,
            "logger": False,
            "enable_checkpointing": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "num_sanity_val_steps": 0,
            "limit_val_batches": 0,
            "default_root_dir": str(bench.folder),
            "callbacks": [],
        }
        arguments |= self._arguments
        for name in on:
            arguments |= self._faults[name]() if name in self._faults else {}
        arguments["callbacks"] = [
            Hooks(),
            Tick() if clock.options is None else StepscopeCallback(**clock.options),
            *arguments["callbacks"],
        ]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trainer = lightning.Trainer(**arguments)
            validation = self._source.loader(4, num_workers=0)
            trainer.fit(
                self._module,
                train_dataloaders=self._source.loader(
                    num_steps, next((work for name, work in self._work.items() if name in on), None)
                ),
                val_dataloaders=validation,
            )


def _lightning_module(model: nn.Module, loss: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    import lightning.pytorch as lightning

    class Module(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def training_step(self, batch: torch.Tensor, *_: Any) -> torch.Tensor:
            return loss(batch)

        def validation_step(self, batch: torch.Tensor, *_: Any) -> None:
            loss(batch)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), lr=1e-4)

    return Module()
