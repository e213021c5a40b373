"""Kernel family: the kind of work, from the kernel's name."""

from __future__ import annotations

import pytest

from stepscope.analyzer.roofline.kernel_family import Family, family_of, is_communication

COMMUNICATION = [
    "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)",
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "ncclDevKernel_Generic_4",
    "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
    "nccldevkernel_x",
    "void ncclKernel_AllGather_RING_LL_Sum_int8_t(ncclWorkElem)",
    "mscclKernel_Sum_half_LL_false(ncclDevComm*, mscclAlgo*)",
    "void vllm::cross_device_reduce_1stage<__half,8>(vllm::RankData*, vllm::RankSignals)",
    "void sglang::cross_device_reduce_2stage<__nv_bfloat16, 8>(sglang::RankData*)",
    "void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*, unsigned long)",
    "void one_shot_all_reduce_kernel<c10::BFloat16, 16, 8>(c10::BFloat16**, c10::BFloat16*)",
    "void two_shot_all_reduce_kernel<c10::BFloat16, 16, 8, false>(c10::BFloat16**, unsigned long)",
    "nvshmemi_transfer_rma_p<float>",
    "void deep_ep::intranode::dispatch<8, 768, 8192>(int4*, float*, int*)",
]

COMPUTE = [
    "hipMemsetKernel",
    "hip_fill_kernel",
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float, float>>>",
    "nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_NTT",
    "void deep_ep::layout::get_dispatch_layout<256, 32, 8>(long const*, int*)",
]

FAMILIES = {
    "nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_bias_TNT": Family.MATMUL,
    "nvjet_tst_192x8_64x8_4x1_v_bz_TNT": Family.MATMUL,
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_kernel__5x_cublas": Family.MATMUL,
    "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_64x64_64x6_tn_align8>(Params)": Family.MATMUL,
    "ampere_sgemm_128x64_nn": Family.MATMUL,
    "void gemv2T_kernel_val<int, int, float, float, float, float, 128, 16, 4, 4, false>": Family.MATMUL,
    "std::enable_if<!(false), void>::type internal::gemvx::kernel<int, int, float, float>(P)": Family.MATMUL,
    "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x192x64_MI16x16x1_SN": Family.MATMUL,
    "triton_tem_fused_mm_3": Family.MATMUL,
    "void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16, float>(P)": Family.REDUCTION,
    "cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16_knob_26_64x64x128_1x4x1": Family.ATTENTION,
    "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64, 128>>(P)": Family.ATTENTION,
    "void pytorch_flash::flash_bwd_dot_do_o_kernel<true, Traits>(P)": Family.REDUCTION,
    "void cudnn::fusion::convert_dq_to_16bits<true>(void const*, void*)": Family.COPY_LIKE,
    "fmha_cutlassB_bf16_aligned_64x64_k64_sm80(PyTorchMemEffAttention::Params)": Family.ATTENTION,
    "volta_scudnn_128x64_relu_interior_nn_v1": Family.CONVOLUTION,
    "void cutlass__5x_cudnn::Kernel<cutlass_tensorop_bf16_s16816fprop_optimized_bf16_256x64>(P)": Family.CONVOLUTION,
    "sm80_xmma_wgrad_implicit_gemm_indexed_tf32f32_tf32f32_f32_nhwckrsc_nhwc": Family.CONVOLUTION,
    "igemm_wrw_gtcx3_nhwc_bf16_bx0_ex1_bt64x64x64": Family.CONVOLUTION,
    "void cudnn::ops::nchwToNhwcKernel<float, float, float, false, true>(P)": Family.COPY_LIKE,
    "void cudnn::bn_fw_tr_1C11_singleread<float, 512, true, 1, 2, 0>(P)": Family.NORMALIZATION,
    "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float>(int)": Family.NORMALIZATION,
    "void at::native::(anonymous namespace)::GammaBetaBackwardCUDAKernelTemplate<float>(long)": Family.NORMALIZATION,
    "std::enable_if<(((8)>(0)))&&vllm::_typeConvert<c10::BFloat16>::exists, void>::type "
    "vllm::fused_add_rms_norm_kernel<c10::BFloat16, 8>(P)": Family.NORMALIZATION,
    "void at::native::vectorized_elementwise_kernel<8, at::native::GeluCUDAKernelImpl(P)>": Family.POINTWISE,
    "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, P>": Family.COPY_LIKE,
    "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(P)>": Family.COPY_LIKE,
    "triton_poi_fused__unsafe_view_mul_silu_2": Family.POINTWISE,
    "triton_red_fused_add_mean_mul_pow_rsqrt_0": Family.REDUCTION,
    "triton__0d1d2d3de": Family.TRITON,
    "void at::native::reduce_kernel<128, 4, at::native::ReduceOp<float, at::native::MeanOps<P>>>": Family.REDUCTION,
    "void at::native::(anonymous namespace)::max_pool_forward_nchw<float, float>(int)": Family.REDUCTION,
    "void at::native::vectorized_gather_kernel<16, long>(char*, char*, long*)": Family.EMBEDDING,
    "void at::native::(anonymous namespace)::indexSelectLargeIndex<float, long>(P)": Family.EMBEDDING,
    "void at::native::index_elementwise_kernel<128, 4, at::native::gpu_index_kernel<P>>": Family.EMBEDDING,
    "split_embedding_backward_codegen_rowwise_adagrad_unweighted_kernel_cta_per_row_1": Family.EMBEDDING,
    "void at::native::(anonymous namespace)::cunn_SoftMaxForward<4, float, float, float, P>": Family.SOFTMAX,
    "void at::native::(anonymous namespace)::nll_loss_forward_reduce_cuda_kernel_2d<float>": Family.SOFTMAX,
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<FusedOptimizerTensorListMetadata<4>, "
    "at::native::(anonymous namespace)::FusedAdamMathFunctor<float, 4>>(P)": Family.OPTIMIZER,
    "void multi_tensor_apply_kernel<TensorListMetadata<2>, at::native::LpNormFunctor<float>>(P)": Family.REDUCTION,
    "void multi_tensor_apply_kernel<TensorListMetadata<2>, CopyFunctor<int, long>>(P)": Family.COPY_LIKE,
    "void at::native::(anonymous namespace)::CatArrayBatchedCopy<float, unsigned int, 2>(P)": Family.COPY_LIKE,
    "void at::native::detail::chunk_cat_cuda_kernel<char, char>(char**)": Family.COPY_LIKE,
    "void cub::DeviceRadixSortOnesweepKernel<cub::DeviceRadixSortPolicy<long, int>>(P)": Family.SORT,
    "void fbgemm_gpu::permute_2D_data_kernel<false, int, int>(P)": Family.COPY_LIKE,
    "void at::cuda::(anonymous namespace)::spin_kernel(long)": Family.OTHER,
    "": Family.OTHER,
}


@pytest.mark.parametrize("name", COMMUNICATION)
def test_kernels_that_move_data_between_gpus_are_communication(name: str) -> None:
    assert is_communication(name)


@pytest.mark.parametrize("name", COMPUTE)
def test_amd_and_reducing_kernels_are_not_communication(name: str) -> None:
    assert not is_communication(name)


@pytest.mark.parametrize(("name", "family"), FAMILIES.items())
def test_family_is_read_from_the_name(name: str, family: Family) -> None:
    assert family_of(name) is family


def test_types_in_a_kernels_template_do_not_decide_its_family() -> None:
    name = "void at::native::elementwise_kernel<128, 4, at::native::softmax_gemm_attention_helper<float>>(int)"
    assert family_of(name) is Family.POINTWISE
