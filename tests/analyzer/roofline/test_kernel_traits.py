"""Traits of kernels by name: operation, element type and layout in the names of today's libraries."""

from __future__ import annotations

import pytest

from stepscope.analyzer.roofline.kernel_family import Family, is_communication
from stepscope.analyzer.roofline.kernel_traits import is_unknown, kernel_traits

NAMES = {
    "nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_TNT": (Family.MATMUL, "bfloat16", "tnt"),
    "nvjet_sm90_hsh_128x256_64x4_2x1_v_bz_coopA_NTT": (Family.MATMUL, "float16", "ntt"),
    "nvjet_qqtst_128x256_128x6_2x1_2cta_v_bz_TNT": (Family.MATMUL, "float8", "tnt"),
    "nvjet_sm90_qqtst_128x128_128x6_1x2_h_bz_ovscale_TNT": (Family.MATMUL, "float8", "tnt"),
    "nvjet_qqtst_128x256_128x6_2x2_2cta_h_bz_Avec32UE8M0_Bvec32UE8M0_TNT": (Family.MATMUL, "float8", "tnt"),
    "nvjet_sm100_ootst_128x128_256x7_4x1_2cta_v_bx_Avec16UE4M3_Bvec16UE4M3_TNT": (Family.MATMUL, "float4", "tnt"),
    "cutlass3x_sm100_bstensorop_s256x128x64gemm_block_scaled_ue4m3xf4_ue4m3xf4_f32_f16_f16_256x128x256_0_align32": (
        Family.MATMUL,
        "float4",
        None,
    ),
    "bmm_MxE4m3_MxE2m1MxE4m3_Fp32_t128x16x256u2_s3_et128x16_m128x16x32_cga1x1x1_16dp256b_rM_TN_transOut": (
        Family.MATMUL,
        "float4",
        "tn",
    ),
    "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x128x8_stage3_warpsize2x2x1_ffma_aligna4_alignc4": (
        Family.MATMUL,
        "float32",
        "tn",
    ),
    "void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x128_32x3_nn_align4>(Params)": (
        Family.MATMUL,
        "tfloat32",
        "nn",
    ),
    "sm90_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x128x64_warpgroupsize1x1x1": (
        Family.CONVOLUTION,
        "bfloat16",
        "channels_last",
    ),
    "void cudnn::ops::nchwToNhwcKernel<__half, __half, float, false, true, (cudnnKernelDataType_t)0>(T)": (
        Family.COPY_LIKE,
        "float16",
        "changed",
    ),
    "cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16_knob_26_64x64x128_1x4x1_kernel0_0": (
        Family.ATTENTION,
        None,
        None,
    ),
    "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4, cutlass::bfloat16_t>>(P)": (
        Family.ATTENTION,
        "bfloat16",
        None,
    ),
    "void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<flash::Main<cutlass::half_t>>>>": (
        Family.ATTENTION,
        "float16",
        None,
    ),
    "kernel_cutlass_kernel_flash_attncuteflash_fwd_sm100FlashAttentionForwardSm100_object_at__tensorptrbf16gmem": (
        Family.ATTENTION,
        "bfloat16",
        None,
    ),
    "fmhaSm100aKernel_QkvE4m3OBfloat16H64PagedKvCausalP16VarSeqQ128Kv128PersistentContext": (
        Family.ATTENTION,
        "float8",
        None,
    ),
    "kernel_cutlass_kernel___main__PersistentDenseGemmKernel_object_at__TiledMMA_f8E4M3FN": (
        Family.MATMUL,
        "float8",
        None,
    ),
    "kernel_cutlass_kernel___main__RMSNormKernel_object_at__tensorptrbf16gmemalign16": (
        Family.NORMALIZATION,
        "bfloat16",
        None,
    ),
    "triton_tem_fused_addmm_relu_3": (Family.MATMUL, None, None),
    "triton_per_fused__to_copy_add_mean_mul_pow_rsqrt_2": (Family.REDUCTION, None, None),
    "triton_poi_fused_add_mul_5": (Family.POINTWISE, None, None),
    "void transformer_engine::normalization::rmsnorm_fwd_general_kernel<Traits<__nv_bfloat16>>(Params)": (
        Family.NORMALIZATION,
        "bfloat16",
        None,
    ),
    "void transformer_engine::fused_rope_forward_kernel<__nv_bfloat16>(T)": (Family.POINTWISE, "bfloat16", None),
    "void transformer_engine::dispatch::mxfp8::quantize_mxfp8_kernel<__nv_bfloat16, __nv_fp8_e4m3>(T)": (
        Family.POINTWISE,
        "float8",
        None,
    ),
    "_swiglu_forward_kernel": (Family.POINTWISE, None, None),
    "liger_cross_entropy_kernel": (Family.SOFTMAX, None, None),
}


@pytest.mark.parametrize("name", NAMES)
def test_names_of_libraries_tell_operation_type_and_layout(name: str) -> None:
    traits = kernel_traits(name)
    assert (traits.family, traits.dtype, traits.layout) == NAMES[name]
    assert traits.is_known


def test_a_name_nobody_knows_is_unknown_and_known_work_of_no_family_is_not() -> None:
    assert is_unknown("my_company_secret_kernel_v2")
    assert not is_unknown("cask_cudnn::computeOffsetsKernel(cask_cudnn::ComputeOffsetsParams)")
    assert is_communication("nvshmem_putmem_signal_nbi_block")
    assert not is_unknown("nvshmemi_proxy_rma_entrypoint")
