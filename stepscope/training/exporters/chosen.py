"""Which libraries are step metrics exported to? As asked for in the call, else in the environment."""

from __future__ import annotations

import importlib.util
import logging
import os
from collections.abc import Callable, Iterable

from stepscope.training.exporters.metrics import Exporter
from stepscope.training.exporters.mlflow import MlflowExporter
from stepscope.training.exporters.otel import OpenTelemetryExporter
from stepscope.training.exporters.wandb import WandbExporter

logger = logging.getLogger(__name__)

VARIABLE = "STEPSCOPE_EXPORT"


def chosen_exporters(asked: str | Iterable[str] | None, run: str, rank: int) -> list[Exporter]:
    """The exporters of these names; one that is not known or not installed costs one warning, of rank 0.

    Args:
        asked: names (otel, wandb, mlflow), in one text with commas between them as well; None: see STEPSCOPE_EXPORT.
    """
    if asked is None:
        asked = os.environ.get(VARIABLE, "")
    makers: dict[str, Callable[[], Exporter]] = {
        "otel": lambda: OpenTelemetryExporter(run, rank),
        "wandb": WandbExporter,
        "mlflow": MlflowExporter,
    }
    exporters: list[Exporter] = []
    level = logging.WARNING if rank == 0 else logging.DEBUG
    for name in dict.fromkeys(asked.replace(",", " ").split() if isinstance(asked, str) else asked):
        if name not in makers:
            logger.log(level, "export knows %s, not %r", ", ".join(makers), name)
            continue
        exporter = makers[name]()
        if _is_installed(exporter.package):
            exporters.append(exporter)
        else:
            logger.log(level, "nothing is exported to %s: the package %s is not installed", name, exporter.package)
    return exporters


def _is_installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except (ImportError, ValueError):  # its parent is missing
        return False
