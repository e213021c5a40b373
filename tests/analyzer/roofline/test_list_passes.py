"""Bytes moved by kernels that process lists of tensors."""

from __future__ import annotations

import pytest

from stepscope.analyzer.roofline.list_passes import bytes_an_element

NATIVE = "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::"


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        # param, gradient, two moments: all read, all but the gradient written
        ("FusedOptimizerTensorListMetadata<4>, at::native::FusedAdamMathFunctor<c10::BFloat16, 4, (M)1, false>>", 14),
        ("FusedOptimizerTensorListMetadata<5>, at::native::FusedAdamMathFunctor<float, 5, (M)1, true>>", 36),
        ("FusedOptimizerTensorListMetadata<3>, at::native::FusedSgdMathFunctor<float, 3>>", 20),
        ("TensorListMetadata<2>, at::native::BinaryOpListAlphaFunctor<float, 2, 2, 0>, std::plus<float>, float>", 12),
        ("TensorListMetadata<3>, at::native::BinaryOpListAlphaFunctor<float, 3, 2, 2>, std::plus<float>, float>", 12),
        ("TensorListMetadata<1>, at::native::BinaryOpScalarFunctor<float, 1, 1, 0>, std::multiplies<float>>", 8),
        ("TensorListScalarListMetadata<float, 3>, at::native::PointwiseOpScalarListFunctor<float, 3, 3, 0>>", 16),
        ("TensorListMetadata<1>, at::native::LpNormFunctor<float, (NormType)1, float, 1, 1, 0>>", 4),
        ("TensorListMetadata<1>, at::native::ZeroFunctor<float, 1, 1, 0>>", 4),
        ("TensorListMetadata<2>, at::native::UnaryOpFunctor<c10::BFloat16, 2, 1, 1>, at::native::Copy<c10::BFloat16, "
         "c10::BFloat16> >", 4),
        ("TensorListMetadata<2>, at::native::CopyFunctor<int, long, 2, 1, 1>, at::native::Copy<int, long> >", 12),
        ("TensorListMetadata<1>, at::native::SomethingNew<float>>", None),
    ],
)  # fmt: skip
def test_bytes_an_element_follow_from_the_lists_and_their_type(template: str, expected: int | None) -> None:
    assert bytes_an_element(NATIVE + template) == expected


def test_apex_adam_reads_four_lists_and_writes_three() -> None:
    assert (
        bytes_an_element("void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor<float>, float>(int)") == 28
    )


def test_other_kernels_are_no_passes() -> None:
    assert (
        bytes_an_element("void at::native::vectorized_elementwise_kernel<4, AddFunctor<float, 1, 1, 0>>(int)") is None
    )
