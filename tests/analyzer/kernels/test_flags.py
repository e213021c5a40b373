"""Kernel flags: names distinguish tensor cores from CUDA cores."""

from __future__ import annotations

import pytest

from stepscope.analyzer.kernels.flags import is_unaligned, uses_tensor_cores


@pytest.mark.parametrize(
    "name",
    [
        "nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_NTT",
        "volta_fp16_s884gemm_fp16_128x128_ldg8_f2f_nn",
        "turing_h1688gemm_128x128_ldg8_stages_32x1_nn",
        "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_64x4_nn",
        "ampere_h16816gemm_256x128_ldg8_stages_32x3_tn",
        "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute",
        "sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize64x128x32_g1_tensor16x8x8_execute",
        "void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_128x64_16x6_nn_align4>(P)",
        "void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_32x32_128x2_tn_align8>(P)",
        "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128_4x1x1_cga1x1x1_kernel0_0",
        "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64, 128, 128, 4>>(P)",
    ],
)
def test_tensor_cores_are_seen(name: str) -> None:
    assert uses_tensor_cores(name) is True


@pytest.mark.parametrize(
    "name",
    [
        "volta_sgemm_128x64_nn",
        "ampere_sgemm_32x32_sliced1x4_tn",
        "volta_fp16_sgemm_fp16_128x32_nn",
        "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize64x32x8_stage3_warpsize2x1x1_ffma_aligna4_execute",
        "void cutlass::Kernel<cutlass_80_simt_sgemm_128x32_8x5_nn_align1>(P)",
        "cudnn_infer_volta_scudnn_128x64_relu_medium_nn_v1",
        "void cudnn::winograd_nonfused::winogradForwardData4x4<float, float>(P)",
        "void cudnn::cnn::wgrad_alg0_engine<float, 128, 6, 7, 3, 3, 5, false, 512>(int)",
        "void implicit_convolve_sgemm<float, float, 1024, 6, 7, 3, 3, 5, 1, false, true, true>(int)",
        "void magma_sgemmEx_kernel<float, float, float, false, false, 6, 3, 5, 3, 3>(int)",
    ],
)
def test_plain_units_are_seen(name: str) -> None:
    assert uses_tensor_cores(name) is False


@pytest.mark.parametrize(
    "name",
    [
        "void gemv2T_kernel_val<int, int, float, float, float, float, 128, 16, 4, 4, false, false>(P)",
        "void gemmk1_kernel<float, 256, 5, false, false, false, false>(P)",
        "Cijk_Alik_Bljk_BBS_BH_Bias_HAS_SAV_UserArgs_MT16x16x256_MI16x16x1_SN_LDSB1",
        "triton_tem_fused_mm_3",
        "attn_fwd",
    ],
)
def test_other_names_do_not_tell(name: str) -> None:
    assert uses_tensor_cores(name) is None


@pytest.mark.parametrize(
    ("name", "unaligned"),
    [
        ("void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_128x128_16x4_nt_align1>(P)", True),
        ("void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_128x128_16x4_nt_align4>(P)", False),
        ("void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_32x32_128x2_tn_align16>(P)", False),
        ("void cutlass::Kernel<cutlass_80_simt_sgemm_128x32_8x5_nn_align1>(P)", False),
    ],
)
def test_narrow_loads_are_seen(name: str, unaligned: bool) -> None:
    assert is_unaligned(name) is unaligned
