"""Start-up hook of a process started by `stepscope run`: Python imports this module when it starts.

A process that never imports torch pays only for this file: no part of stepscope is imported before torch's optimizers
are. Then the sitecustomize that this one hides is run, and this folder leaves sys.path.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # typing's own would cost more than everything else here
if TYPE_CHECKING:
    from typing import Any

WATCHED = frozenset(
    {
        "deepspeed.runtime.engine",
        "torch.amp.grad_scaler",
        "torch.autograd",
        "torch.distributed.checkpoint.state_dict",
        "torch.optim.optimizer",
        "torch.utils.data.dataloader",
    }
)
"""Modules that stepscope.zero_code.patches looks into as soon as they are imported."""

_FOLDER = os.path.dirname(os.path.abspath(__file__))
_WHERE_STEPSCOPE_IS = os.path.dirname(os.path.dirname(os.path.dirname(_FOLDER)))


class _ImportWatch:
    """First finder of sys.meta_path: it finds nothing itself and reports which modules are imported."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """What the other finders find."""
        if name not in WATCHED:
            return None
        for finder in sys.meta_path:
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec = None if find is None else find(name, path, target)
            if spec is not None:
                _tell_when_imported(spec.loader)
                return spec
        return None


def _tell_when_imported(loader: Any) -> None:
    execute = getattr(loader, "exec_module", None)
    if execute is None:
        return

    def exec_module(module: Any) -> None:
        del loader.exec_module
        execute(module)
        try:
            _stepscope_looks_into(module)
        except Exception as error:  # the user's import must not fail for it
            sys.stderr.write(f"stepscope does not measure this process: {type(error).__name__}: {error}\n")

    try:
        loader.exec_module = exec_module
    except AttributeError:  # a loader of an unusual kind keeps its own
        return


def _stepscope_looks_into(module: Any) -> None:
    try:
        import stepscope
    except ModuleNotFoundError:  # this Python is not the one that stepscope is installed in, and needs no more than it
        sys.path.append(_WHERE_STEPSCOPE_IS)
        try:
            import stepscope  # noqa: F401
        finally:
            sys.path.remove(_WHERE_STEPSCOPE_IS)
    from stepscope.zero_code.patches import module_imported

    module_imported(module)


def _let_the_hidden_one_run() -> None:
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != _FOLDER]
    ours = sys.modules.pop("sitecustomize")
    try:
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
    except ModuleNotFoundError as error:
        if error.name != "sitecustomize":
            raise
    finally:
        sys.modules.setdefault("sitecustomize", ours)


if __name__ == "sitecustomize":
    if "STEPSCOPE_ZERO_CODE" in os.environ:
        sys.meta_path.insert(0, _ImportWatch())
    _let_the_hidden_one_run()
