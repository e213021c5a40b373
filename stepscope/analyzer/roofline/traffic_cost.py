"""Cost of memory-bound operators: least bytes of pointwise, norm, reduction, copy and lookup.

To add an operator, add a row to `_STREAMS`, a name to `_POINTWISE` or `_REDUCTIONS`, or a function to `LOOKUP_MODELS`,
with the argument numbers of its schema. FLOPs are 0: these run far below the rate of the vector units.
"""

from __future__ import annotations

from itertools import zip_longest
from math import prod
from typing import NamedTuple

from stepscope.analyzer.roofline.kernel_family import Family
from stepscope.analyzer.roofline.operator_call import CostModel, Dims, OperatorCall, OperatorCost

_POINTWISE_KERNELS = frozenset({Family.POINTWISE, Family.COPY_LIKE})


def traffic(num_bytes: int, families: frozenset[Family]) -> OperatorCost:
    """The cost of an operator that only moves bytes."""
    return OperatorCost(0.0, 0.0, float(num_bytes), None, families)


# Fixed arguments in, outputs as large as some arguments -------------------------------------------------------------


class _Stream(NamedTuple):
    """Arguments read, and arguments as large as what is written; all but the first of each may be absent."""

    reads: tuple[int, ...]
    writes: tuple[int, ...]
    families: frozenset[Family]


_NORM = frozenset({Family.NORMALIZATION})
_SOFTMAX = frozenset({Family.SOFTMAX})
_POOL = frozenset({Family.REDUCTION})
_SORT = frozenset({Family.SORT})

_STREAMS = {
    "aten::native_layer_norm": _Stream((0, 2, 3), (0,), _NORM),
    "aten::native_layer_norm_backward": _Stream((0, 1, 5), (0, 5), _NORM),
    "aten::_fused_rms_norm": _Stream((0, 2), (0,), _NORM),
    "aten::_fused_rms_norm_backward": _Stream((0, 1, 4), (0, 4), _NORM),
    "aten::native_batch_norm": _Stream((0,), (0,), _NORM),
    "aten::native_batch_norm_backward": _Stream((0, 1), (0,), _NORM),
    "aten::cudnn_batch_norm": _Stream((0,), (0,), _NORM),
    "aten::cudnn_batch_norm_backward": _Stream((0, 1), (0,), _NORM),
    "aten::miopen_batch_norm": _Stream((0,), (0,), _NORM),
    "aten::miopen_batch_norm_backward": _Stream((0, 1), (0,), _NORM),
    "aten::_native_batch_norm_legit": _Stream((0,), (0,), _NORM),
    "aten::_batch_norm_with_update": _Stream((0,), (0,), _NORM),
    "aten::batch_norm_backward": _Stream((0, 1), (0,), _NORM),
    "aten::batch_norm_stats": _Stream((0,), (), _NORM),
    "aten::batch_norm_elemt": _Stream((0,), (0,), _NORM),
    "aten::batch_norm_backward_reduce": _Stream((0, 1), (), _NORM),
    "aten::batch_norm_backward_elemt": _Stream((0, 1), (0,), _NORM),
    "aten::native_group_norm": _Stream((0,), (0,), _NORM),
    "aten::native_group_norm_backward": _Stream((0, 1), (0,), _NORM),
    "_C::rms_norm": _Stream((1, 2), (0,), _NORM),
    "_C::fused_add_rms_norm": _Stream((0, 1, 2), (0, 1), _NORM),
    "_C::silu_and_mul": _Stream((1,), (0,), _POINTWISE_KERNELS),
    "aten::_softmax": _Stream((0,), (0,), _SOFTMAX),
    "aten::_log_softmax": _Stream((0,), (0,), _SOFTMAX),
    "aten::_softmax_backward_data": _Stream((0, 1), (0,), _SOFTMAX),
    "aten::_log_softmax_backward_data": _Stream((0, 1), (0,), _SOFTMAX),
    "aten::copy_": _Stream((1,), (0,), _POINTWISE_KERNELS),
    "aten::fill_": _Stream((), (0,), _POINTWISE_KERNELS),
    "aten::zero_": _Stream((), (0,), _POINTWISE_KERNELS),
    "aten::split_with_sizes_copy": _Stream((0,), (0,), _POINTWISE_KERNELS),
    "aten::tril": _Stream((0,), (0,), _POINTWISE_KERNELS),
    "aten::triu": _Stream((0,), (0,), _POINTWISE_KERNELS),
    "aten::flip": _Stream((0,), (0,), _POINTWISE_KERNELS),
    "aten::roll": _Stream((0,), (0,), _POINTWISE_KERNELS),
    "aten::cumsum": _Stream((0,), (0,), _SORT),
    "aten::cumprod": _Stream((0,), (0,), _SORT),
    "aten::sort": _Stream((0,), (0,), _SORT),
    "aten::topk": _Stream((0,), (), _SORT),
    "aten::max_pool2d_with_indices": _Stream((0,), (), _POOL),
    "aten::max_pool2d_with_indices_backward": _Stream((0, 7), (1,), _POOL),
    "aten::avg_pool2d": _Stream((0,), (), _POOL),
    "aten::avg_pool2d_backward": _Stream((0,), (1,), _POOL),
    "aten::_adaptive_avg_pool2d": _Stream((0,), (), _POOL),
    "aten::_adaptive_avg_pool2d_backward": _Stream((0,), (1,), _POOL),
    "aten::adaptive_max_pool2d": _Stream((0,), (), _POOL),
}


def _stream_model(row: _Stream) -> CostModel:
    def model(call: OperatorCall) -> OperatorCost | None:
        read = [call.num_bytes(at) for at in row.reads]
        written = [call.num_bytes(at) for at in row.writes]
        if None in (*read[:1], *written[:1]):
            return None
        return traffic(sum(size or 0 for size in read + written), row.families)

    return model


def _dropout(call: OperatorCall) -> OperatorCost | None:
    """Reads the input, writes the result and a mask of one byte an element."""
    dims, size = call.tensor(0), call.num_bytes(0)
    return traffic(2 * size + prod(dims), _POINTWISE_KERNELS) if dims is not None and size is not None else None


# Pointwise -----------------------------------------------------------------------------------------------------------

_COMPARISONS = frozenset(
    ("eq", "ne", "lt", "gt", "le", "ge", "logical_and", "logical_or", "logical_not", "isnan", "isfinite", "isinf")
)
"""Their results are one byte an element."""

_POINTWISE = {
    1: "abs neg exp exp2 expm1 log log2 log1p sqrt rsqrt reciprocal sin cos tanh sigmoid relu gelu silu mish elu "
    "hardtanh hardswish hardsigmoid leaky_relu softplus erf floor ceil round trunc sign square logit nan_to_num "
    "threshold bitwise_not logical_not isnan isfinite isinf",
    2: "add sub rsub mul div pow fmod remainder floor_divide atan2 maximum minimum fmax fmin clamp_min clamp_max "
    "bitwise_and bitwise_or bitwise_xor eq ne lt gt le ge logical_and logical_or masked_fill mse_loss "
    "gelu_backward silu_backward tanh_backward sigmoid_backward threshold_backward leaky_relu_backward "
    "hardtanh_backward hardswish_backward elu_backward softplus_backward mish_backward native_dropout_backward",
    3: "addcmul addcdiv lerp where clamp mse_loss_backward",
}
"""By the number of arguments that may be tensors. Others are recognised by their kernels' names (operator_cost)."""


def broadcast(shapes: list[Dims]) -> Dims:
    """The common shape of tensors that can be broadcast."""
    reverse = zip_longest(*(shape[::-1] for shape in shapes), fillvalue=1)
    return tuple(max(sizes) for sizes in reverse)[::-1]


def pointwise_model(num_inputs: int | None, *, in_place: bool, comparison: bool) -> CostModel:
    """The model of an operator that works element by element.

    Args:
        num_inputs: number of arguments that may be tensors it reads; a tensor after them is the result. None for all.
        in_place: the first is written.
        comparison: the result is one byte an element.
    """

    def model(call: OperatorCall) -> OperatorCost | None:
        limit = len(call.dims) if num_inputs is None else num_inputs
        tensors = [at for at in range(limit) if call.tensor(at)]
        if not tensors:  # all of them one number
            tensors = [at for at in range(limit) if call.tensor(at) is not None]
        sizes, widths = [call.num_bytes(at) for at in tensors], [call.element_bytes(at) for at in tensors]
        if not tensors or None in sizes or (in_place and tensors[0] != 0):
            return None
        given = [call.num_bytes(at) for at in range(limit, len(call.dims)) if call.tensor(at) is not None]
        if in_place:
            written = sizes[0]
        elif given:
            written = given[-1]  # the out= argument is last
        else:
            width = 1 if comparison else max(width or 0 for width in widths)
            written = prod(broadcast([call.dims[at] or () for at in tensors])) * width
        if written is None:
            return None
        return traffic(sum(size or 0 for size in sizes) + written, _POINTWISE_KERNELS)

    return model


# Reductions ----------------------------------------------------------------------------------------------------------

_REDUCTIONS = "sum nansum mean prod amax amin max min argmax argmin any all std var var_mean norm linalg_vector_norm"


def _reduction(call: OperatorCall) -> OperatorCost | None:
    size, dims = call.num_bytes(0), call.tensor(0)
    if size is None or dims is None:
        return None
    reduced = call.integers(1)  # empty or absent: over everything, or not recorded, where the output counts as nothing
    num_reduced = prod(dims[at] for at in reduced) if reduced and max(map(abs, reduced)) <= len(dims) else 0
    return traffic(size + (size // num_reduced if num_reduced else 0), frozenset({Family.REDUCTION}))


def generated_kernel(call: OperatorCall) -> OperatorCost | None:
    """Cost of a kernel generated by Inductor: every tensor argument is read or written at least once."""
    sizes = [call.num_bytes(at) for at in range(len(call.dims)) if call.tensor(at) is not None]
    if not sizes or None in sizes:
        return None
    return traffic(sum(size or 0 for size in sizes), frozenset({Family.POINTWISE, Family.REDUCTION}))


TRAFFIC_MODELS: dict[str, CostModel] = {
    **{
        f"aten::{word}{'_' * in_place}": pointwise_model(num_inputs, in_place=in_place, comparison=word in _COMPARISONS)
        for num_inputs, words in _POINTWISE.items()
        for word in words.split()
        for in_place in (False, True)
    },
    **{f"aten::{word}": _reduction for word in _REDUCTIONS.split()},
    **{name: _stream_model(row) for name, row in _STREAMS.items()},
    "aten::native_dropout": _dropout,
}
"""By the operator's name."""


_LOOKUP = frozenset({Family.EMBEDDING})
_LOSS = frozenset({Family.SOFTMAX})
_JOIN = frozenset({Family.COPY_LIKE, Family.POINTWISE})
_INDEX_BYTES = 8


def _rows_moved(call: OperatorCall, *, table: int, index: int, row_elements: int) -> OperatorCost | None:
    dims, width = call.tensor(index), call.element_bytes(table)
    if dims is None or width is None:
        return None
    # the index is often expanded without storage, so only the rows count, read once and written once
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
    """Elements of argument 0 that one index along the axis of argument 1 selects."""
    table, axis = call.tensor(0), call.integer(1)
    if table is None or axis is None or not -len(table) <= axis < len(table):
        return None
    return prod(table) // max(table[axis], 1)


def _gather(call: OperatorCall) -> OperatorCost | None:
    return _rows_moved(call, table=0, index=2, row_elements=1)


def _scatter_add(call: OperatorCall) -> OperatorCost | None:
    """Reads the source and its destination, writes the destination."""
    dims, width = call.tensor(2), call.element_bytes(0)
    return traffic(3 * prod(dims) * width, _LOOKUP) if dims is not None and width is not None else None


def _index_add(call: OperatorCall) -> OperatorCost | None:
    source = call.num_bytes(3)
    return traffic(3 * source, _LOOKUP) if source is not None else None


def _picked(call: OperatorCall) -> int | None:
    """Elements of argument 0 that a list of index tensors (argument 1) selects; an absent one selects all."""
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
    """Reads the values and writes them at the indices; accumulating reads the destination as well."""
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
    """Tensors of a list copied into one; the type is that of the result where given, else from the kernel's name."""
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
