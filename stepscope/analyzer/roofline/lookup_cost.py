"""How few bytes do operators move that pick, join or scatter: lookups by index, losses by class, cat?

To teach a new operator, add a function to `LOOKUP_MODELS`. Argument numbers are those of the operator's schema.
"""

from __future__ import annotations

from math import prod

from stepscope.analyzer.roofline.kernel_family import Family
from stepscope.analyzer.roofline.operator_call import CostModel, Dims, OperatorCall, OperatorCost
from stepscope.analyzer.roofline.traffic_cost import broadcast, traffic

_LOOKUP = frozenset({Family.EMBEDDING})
_LOSS = frozenset({Family.SOFTMAX})
_JOIN = frozenset({Family.COPY_LIKE, Family.POINTWISE})
_INDEX_BYTES = 8


def _rows_moved(call: OperatorCall, *, table: int, index: int, row_elements: int) -> OperatorCost | None:
    dims, width = call.tensor(index), call.element_bytes(table)
    if dims is None or width is None:
        return None
    # the index is often expanded without being stored: only the rows count, read once and written once
    return traffic(2 * prod(dims) * row_elements * width, _LOOKUP)


def _embedding(call: OperatorCall) -> OperatorCost | None:
    table = call.tensor(0)
    return _rows_moved(call, table=0, index=1, row_elements=table[-1]) if table else None


def _embedding_bag(call: OperatorCall) -> OperatorCost | None:
    """Rows are read, their sums by bag written."""
    table, index, bags, width = call.tensor(0), call.tensor(1), call.tensor(2), call.element_bytes(0)
    if not table or index is None or bags is None or width is None:
        return None
    return traffic((prod(index) + prod(bags)) * table[-1] * width + prod(index) * _INDEX_BYTES, _LOOKUP)


def _embedding_backward(call: OperatorCall) -> OperatorCost | None:
    gradient, size, num_rows, width = call.tensor(0), call.num_bytes(0), call.integer(2), call.element_bytes(0)
    if not gradient or size is None or num_rows is None or width is None:
        return None
    return traffic(size + num_rows * gradient[-1] * width, _LOOKUP)


def _index_select(call: OperatorCall) -> OperatorCost | None:
    row = _row_elements(call)
    return _rows_moved(call, table=0, index=2, row_elements=row) if row is not None else None


def _row_elements(call: OperatorCall) -> int | None:
    """Elements that one index along the axis of argument 1 picks out of argument 0."""
    table, axis = call.tensor(0), call.integer(1)
    if table is None or axis is None or not -len(table) <= axis < len(table):
        return None
    return prod(table) // max(table[axis], 1)


def _gather(call: OperatorCall) -> OperatorCost | None:
    return _rows_moved(call, table=0, index=2, row_elements=1)


def _scatter_add(call: OperatorCall) -> OperatorCost | None:
    """Reads the source and the places it goes to, writes these."""
    dims, width = call.tensor(2), call.element_bytes(0)
    return traffic(3 * prod(dims) * width, _LOOKUP) if dims is not None and width is not None else None


def _index_add(call: OperatorCall) -> OperatorCost | None:
    source = call.num_bytes(3)
    return traffic(3 * source, _LOOKUP) if source is not None else None


def _picked(call: OperatorCall) -> int | None:
    """Elements that a list of index tensors (argument 1) picks out of argument 0; an absent one: all."""
    table, indices = call.tensor(0), call.lists[1] if len(call.lists) > 1 else None
    if table is None or indices is None or len(indices) > len(table):
        return None
    picked: Dims = broadcast([index for index in indices if index])
    whole = [size for at, size in enumerate(table) if at >= len(indices) or not indices[at]]
    return prod(picked) * prod(whole)


def _index(call: OperatorCall) -> OperatorCost | None:
    picked, width = _picked(call), call.element_bytes(0)
    return traffic(2 * picked * width, _LOOKUP) if picked is not None and width is not None else None


def _index_put(call: OperatorCall) -> OperatorCost | None:
    """Reads the values, writes them where the indices say; adding reads these places as well."""
    picked, width, adds = _picked(call), call.element_bytes(0), call.flag(3)
    values = call.num_bytes(2)
    if picked is None and values is not None and width:
        picked = values // width  # indices not recorded: one place a value
    if picked is None or width is None or values is None:
        return None
    return traffic(values + picked * width * (2 if adds else 1), _LOOKUP)


def _nll_loss(*, table: int) -> CostModel:
    """One probability a target is read (forward) or written (backward)."""

    def model(call: OperatorCall) -> OperatorCost | None:
        width, targets = call.element_bytes(table), call.num_bytes(table + 1)
        dims = call.tensor(table + 1)
        if width is None or targets is None or dims is None:
            return None
        return traffic(prod(dims) * width + targets, _LOSS)

    return model


def _join(call: OperatorCall) -> OperatorCost | None:
    """Tensors of a list copied into one: its type is that of the result where given, else in the kernel's name."""
    elements = call.list_elements(0)
    given = [width for at in range(1, len(call.dims)) if call.tensor(at) and (width := call.element_bytes(at))]
    width = given[-1] if given else call.list_element_bytes
    return traffic(2 * elements * width, _JOIN) if elements is not None and width is not None else None


LOOKUP_MODELS: dict[str, CostModel] = {
    "aten::embedding": _embedding,
    "aten::_embedding_bag": _embedding_bag,
    "aten::embedding_dense_backward": _embedding_backward,
    "aten::index_select": _index_select,
    "aten::gather": _gather,
    "aten::take": lambda call: _rows_moved(call, table=0, index=1, row_elements=1),
    "aten::scatter_add_": _scatter_add,
    "aten::scatter_add": _scatter_add,
    "aten::scatter_": _gather,
    "aten::scatter": _gather,
    "aten::index_add_": _index_add,
    "aten::index_add": _index_add,
    "aten::index": _index,
    "aten::index_put_": _index_put,
    "aten::_index_put_impl_": _index_put,
    "aten::nll_loss_forward": _nll_loss(table=0),
    "aten::nll_loss_backward": _nll_loss(table=1),
    "aten::nll_loss2d_forward": _nll_loss(table=0),
    "aten::nll_loss2d_backward": _nll_loss(table=1),
    "aten::cat": _join,
    "aten::_cat": _join,
    "aten::stack": _join,
    "aten::_chunk_cat": _join,
}
"""By the operator's name."""
