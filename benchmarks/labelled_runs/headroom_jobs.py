"""Jobs of one GPU with headroom: models of public libraries that a known change makes faster, and some tuned ones."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from benchmarks.labelled_runs.arms import Arm, arms
from benchmarks.labelled_runs.headroom_models import gated_model, t5_model, unet_model, whisper_model
from benchmarks.labelled_runs.job import Bench, Change, Job
from benchmarks.labelled_runs.models import (
    Model,
    graph_network,
    image_model,
    language_model,
    under_autocast,
)

_FULL, _HALF = torch.float32, torch.bfloat16

_TF32 = Change("tf32", 'torch.set_float32_matmul_precision("high")', "float32_matmul_precision|tf32")
_AUTOCAST = Change("bf16", "torch.autocast(bfloat16)", "autocast|bf16|bfloat16")
_SDPA = Change("sdpa", 'attn_implementation="sdpa"', "sdpa|scaled_dot_product|flash")
_FUSED_ATTENTION = Change("sdpa", "fused_attn=True", "sdpa|scaled_dot_product|fused_attn|flash")
_CHANNELS_LAST = Change("channels_last", "memory_format=torch.channels_last", "channels_last")
_COMPILE = Change("compile", "torch.compile(model)", r"torch.?compile")
_FUSED_OPTIMIZER = Change("fused", "AdamW(fused=True)", r"fused=True|foreach|AdamW|adamw_torch_fused")
_KEEP_ACTIVATIONS = Change("keep", "no gradient checkpointing", "checkpoint|recomput")
_FUSED_NORM = Change("norm", "torch.nn.RMSNorm", "rms_?norm|compile")
_BENCHMARK = Change("benchmark", "torch.backends.cudnn.benchmark = True", r"cudnn\.benchmark", is_apart=True)


def _batch(factor: int) -> Change:
    return Change("batch", f"batch size x {factor}", "batch", samples=factor)


def _vocabulary(size: int) -> Change:
    return Change("vocabulary", f"vocab_size={size}", "vocab|pad_to_multiple_of|multiple of")


_LLAMA, _GPT2, _BERT = (
    ("transformers:LlamaForCausalLM",),
    ("transformers:GPT2LMHeadModel",),
    ("transformers:BertForMaskedLM",),
)
_TIMM = ("timm",)
_COMPILER = ("torch._inductor.compile_fx",)


# Precision


def _in_precision(model: Model, change: str | None) -> Arm:
    """Float32 without tensor cores, or with a change of precision."""
    return Arm(under_autocast(model) if change == "bf16" else model, products="high" if change == "tf32" else "highest")


def _tensor_cores(model: Model, change: str | None) -> Arm:
    """Float32 with TF32, or under autocast."""
    return Arm(under_autocast(model) if change == "bf16" else model, products="high")


def _llama_fp32(bench: Bench, change: str | None) -> Arm:
    return _in_precision(language_model(bench, "llama", width=1536, batch=4, weights=_FULL), change)


def _vit_fp32(bench: Bench, change: str | None) -> Arm:
    depth = bench.size(4, 1)
    model = image_model(bench, "vit_base_patch16_224", 192, weights=_FULL, layout=torch.contiguous_format, depth=depth)
    return _in_precision(model, change)


def _graph_fp32(bench: Bench, change: str | None) -> Arm:
    return _in_precision(graph_network(bench, width=512), change)


def _bert_tf32(bench: Bench, change: str | None) -> Arm:
    return _tensor_cores(language_model(bench, "bert", length=512, batch=32, weights=_FULL), change)


def _swin_tf32(bench: Bench, change: str | None) -> Arm:
    depths = (1, 1, 2, 1) if bench.is_tiny else (2, 2, 4, 2)
    return _tensor_cores(image_model(bench, "swin_tiny_patch4_window7_224", 128, weights=_FULL, depths=depths), change)


def _t5_tf32(bench: Bench, change: str | None) -> Arm:
    return _tensor_cores(t5_model(bench, weights=_FULL), change)


# Attention


def _attention(change: str | None) -> str:
    return "sdpa" if change == "sdpa" else "eager"


def _llama_eager(bench: Bench, change: str | None) -> Arm:
    return Arm(language_model(bench, "llama", length=2048, batch=4, attn_implementation=_attention(change)))


def _bert_eager(bench: Bench, change: str | None) -> Arm:
    return Arm(
        language_model(
            bench,
            "bert",
            length=1024,
            batch=12,
            attn_implementation=_attention(change),
            attention_probs_dropout_prob=0.0,
        )
    )


def _whisper_eager(bench: Bench, change: str | None) -> Arm:
    return Arm(whisper_model(bench, 3, 1, vocab_size=51872, attn_implementation=_attention(change)))


def _vit_unfused(bench: Bench, change: str | None) -> Arm:
    def prepare(module: Any) -> None:
        for block in module.blocks:
            block.attn.fused_attn = change == "sdpa"

    return Arm(image_model(bench, "vit_base_patch16_224", 192, depth=bench.size(5, 1), prepare=prepare))


# Layout of images


def _layout(change: str | None) -> torch.memory_format:
    return torch.channels_last if change == "channels_last" else torch.contiguous_format


def _convolutions(bench: Bench, name: str, batch: int, change: str | None, **sizes: Any) -> Arm:
    """A classifier in float32 under autocast, whose images are NCHW."""
    model = image_model(bench, name, batch, weights=_FULL, layout=_layout(change), **sizes)
    return Arm(under_autocast(model), products="high")


def _resnet_nchw(bench: Bench, change: str | None) -> Arm:
    return _convolutions(bench, "resnet50", 160, change)


def _convnext_nchw(bench: Bench, change: str | None) -> Arm:
    return _convolutions(bench, "convnext_tiny", 128, change, depths=(2, 2, 4, 2))


def _efficientnet_nchw(bench: Bench, change: str | None) -> Arm:
    return _convolutions(bench, "efficientnet_b0", 192, change)


def _unet_nchw(bench: Bench, change: str | None) -> Arm:
    return Arm(under_autocast(unet_model(bench, _layout(change))), products="high")


def _resnet_heuristics(bench: Bench, change: str | None) -> Arm:
    model = image_model(bench, "resnet34", 192, weights=_FULL, layout=torch.contiguous_format)
    return Arm(model, products="high", picks_fastest=change == "benchmark")


# Sizes


def _gpt2_vocabulary(bench: Bench, change: str | None) -> Arm:
    size = 50304 if change == "vocabulary" else 50257
    return Arm(language_model(bench, "gpt2", layers=3, width=768, batch=12, vocab_size=size))


def _bert_vocabulary(bench: Bench, change: str | None) -> Arm:
    size = 30528 if change == "vocabulary" else 30522
    return Arm(language_model(bench, "bert", layers=3, width=768, length=512, batch=48, vocab_size=size))


def _whisper_vocabulary(bench: Bench, change: str | None) -> Arm:
    size = 51872 if change == "vocabulary" else 51865
    return Arm(whisper_model(bench, 1, 3, batch=24, vocab_size=size))


def _llama_odd_width(bench: Bench, change: str | None) -> Arm:
    """Two thirds of four times the width, as of Llama without its rounding: 2730."""
    size = 2736 if change == "width" else 2730
    return Arm(language_model(bench, "llama", layers=5, batch=16, intermediate_size=size))


# Element-wise chains, norms and optimizers


def _gpt2_chain(bench: Bench, change: str | None) -> Arm:
    """GPT-2 as it comes: its activation is written out, and there is dropout."""
    entries: dict[str, Any] = {"activation_function": "gelu_pytorch_tanh"} if change == "gelu" else {}
    return Arm(language_model(bench, "gpt2", layers=3, batch=20, is_compiled=change == "compile", **entries))


def _gated_chain(bench: Bench, change: str | None) -> Arm:
    return Arm(gated_model(bench, is_compiled=change == "compile"))


def _t5_norm(bench: Bench, change: str | None) -> Arm:
    model = t5_model(bench, layers=4, batch=48)
    if change == "norm":
        _replace_norms(model.module)
    return Arm(model)


def _replace_norms(module: nn.Module) -> None:
    """Norms that are written out are replaced by torch's own, with the same weights."""
    for name, child in module.named_children():
        if type(child).__name__.endswith(("RMSNorm", "T5LayerNorm")):
            fused = nn.RMSNorm(child.weight.shape, eps=child.variance_epsilon)  # type: ignore[arg-type]
            fused.weight = child.weight  # type: ignore[assignment]
            setattr(module, name, fused)
        else:
            _replace_norms(child)


def _llama_loop_optimizer(bench: Bench, change: str | None) -> Arm:
    model = language_model(bench, "llama", layers=2, width=6144, batch=1)
    if change != "fused":
        model.optimizer = torch.optim.AdamW(model.module.parameters(), lr=1e-4, foreach=False)
    return Arm(model)


# Recomputing, small batches


def _llama_checkpointing(bench: Bench, change: str | None) -> Arm:
    model = language_model(bench, "llama", layers=5, width=1536, batch=8)
    if change != "keep":
        model.module.gradient_checkpointing_enable()  # type: ignore[operator]
    return Arm(model)


def _vit_checkpointing(bench: Bench, change: str | None) -> Arm:
    def prepare(module: Any) -> None:
        module.set_grad_checkpointing(change != "keep")

    return Arm(image_model(bench, "vit_base_patch16_224", 256, depth=bench.size(5, 1), prepare=prepare))


def _llama_small_batch(bench: Bench, change: str | None) -> Arm:
    batch = 4 if change == "batch" else 1
    return Arm(language_model(bench, "llama", layers=2, width=6144, length=256, batch=batch))


# Tuned


def _llama_plain(bench: Bench, change: str | None) -> Arm:
    batch = 16 if change == "batch" else 8
    model = language_model(bench, "llama", width=1536, batch=batch, is_compiled=change == "compile")
    if change == "norm":
        _replace_norms(model.module)
    return Arm(model)


def _vit_plain(bench: Bench, change: str | None) -> Arm:
    batch = 512 if change == "batch" else 256
    depth = bench.size(5, 1)
    return Arm(image_model(bench, "vit_base_patch16_224", batch, is_compiled=change == "compile", depth=depth))


def _resnet_plain(bench: Bench, change: str | None) -> Arm:
    batch = 768 if change == "batch" else 384
    model = image_model(bench, "resnet18", batch, weights=_FULL, is_compiled=change == "compile")
    return Arm(under_autocast(model), products="high")


def _llama_compiled(bench: Bench, change: str | None) -> Arm:
    batch = 24 if change == "batch" else 12
    return Arm(language_model(bench, "llama", layers=3, width=1536, batch=batch, is_compiled=True))


HEADROOM_JOBS: tuple[Job, ...] = (
    Job(
        "llama_fp32",
        "Llama in float32 without TF32",
        arms(_llama_fp32),
        changes=(_TF32, _AUTOCAST),
        imports=_LLAMA,
    ),
    Job("llama_eager", "Llama, eager causal attention", arms(_llama_eager), changes=(_SDPA,), imports=_LLAMA),
    Job(
        "resnet_nchw",
        "timm ResNet-50 under autocast, NCHW images",
        arms(_resnet_nchw),
        changes=(_CHANNELS_LAST,),
        imports=_TIMM,
    ),
    Job(
        "gpt2_vocabulary",
        "GPT-2, a vocabulary of 50257",
        arms(_gpt2_vocabulary),
        changes=(_vocabulary(50304),),
        imports=_GPT2,
    ),
    Job(
        "llama_checkpointing",
        "Llama, gradient checkpointing with memory to spare",
        arms(_llama_checkpointing),
        changes=(_KEEP_ACTIVATIONS,),
        imports=_LLAMA,
    ),
    Job(
        "llama_plain",
        "Llama in bfloat16, nothing wrong",
        arms(_llama_plain),
        changes=(_COMPILE, _FUSED_NORM, _batch(2)),
        is_tuned=True,
        imports=(*_LLAMA, *_COMPILER),
    ),
    Job("vit_fp32", "timm ViT in float32 without TF32", arms(_vit_fp32), changes=(_TF32, _AUTOCAST), imports=_TIMM),
    Job("bert_tf32", "BERT in float32 with TF32", arms(_bert_tf32), changes=(_AUTOCAST,), imports=_BERT),
    Job("bert_eager", "BERT, eager attention", arms(_bert_eager), changes=(_SDPA,), imports=_BERT),
    Job(
        "convnext_nchw",
        "timm ConvNeXt under autocast, NCHW images",
        arms(_convnext_nchw),
        changes=(_CHANNELS_LAST,),
        imports=_TIMM,
    ),
    Job(
        "llama_small_batch",
        "Llama, 256 tokens a step",
        arms(_llama_small_batch),
        changes=(_batch(4),),
        imports=_LLAMA,
    ),
    Job(
        "gpt2_chain",
        "GPT-2, its activation written out, with dropout",
        arms(_gpt2_chain),
        changes=(
            _COMPILE,
            Change("gelu", 'activation_function="gelu_pytorch_tanh"', "gelu_pytorch_tanh|gelu|activation"),
        ),
        imports=(*_GPT2, *_COMPILER),
    ),
    Job(
        "resnet_plain",
        "timm ResNet-18 under autocast, channels-last, nothing wrong",
        arms(_resnet_plain),
        changes=(_COMPILE, _batch(2)),
        is_tuned=True,
        imports=(*_TIMM, *_COMPILER),
    ),
    Job(
        "llama_loop_optimizer",
        "Llama, AdamW with foreach=False",
        arms(_llama_loop_optimizer),
        changes=(_FUSED_OPTIMIZER,),
        imports=_LLAMA,
    ),
    Job(
        "llama_odd_width",
        "Llama, an intermediate size of 2730",
        arms(_llama_odd_width),
        changes=(Change("width", "intermediate_size=2736", "intermediate_size|2736|multiple of"),),
        imports=_LLAMA,
    ),
    Job("swin_tf32", "timm Swin in float32 with TF32", arms(_swin_tf32), changes=(_AUTOCAST,), imports=_TIMM),
    Job(
        "unet_nchw",
        "U-Net under autocast, NCHW images",
        arms(_unet_nchw),
        changes=(_CHANNELS_LAST,),
    ),
    Job(
        "vit_plain",
        "timm ViT in bfloat16, nothing wrong",
        arms(_vit_plain),
        changes=(_COMPILE, _batch(2)),
        is_tuned=True,
        imports=(*_TIMM, *_COMPILER),
    ),
    Job(
        "whisper_eager",
        "Whisper, eager attention",
        arms(_whisper_eager),
        changes=(_SDPA,),
        imports=("transformers:WhisperForConditionalGeneration",),
    ),
    Job(
        "gated_chain",
        "gated blocks, norm and activation written out",
        arms(_gated_chain),
        changes=(_COMPILE,),
        imports=_COMPILER,
    ),
    Job(
        "llama_compiled",
        "Llama in bfloat16, compiled, nothing wrong",
        arms(_llama_compiled),
        changes=(_batch(2),),
        is_tuned=True,
        imports=(*_LLAMA, *_COMPILER),
    ),
    Job(
        "vit_unfused",
        "timm ViT with fused_attn off",
        arms(_vit_unfused),
        changes=(_FUSED_ATTENTION,),
        imports=_TIMM,
    ),
    Job(
        "efficientnet_nchw",
        "timm EfficientNet under autocast, NCHW images",
        arms(_efficientnet_nchw),
        changes=(_CHANNELS_LAST,),
        imports=_TIMM,
    ),
    Job(
        "whisper_vocabulary",
        "Whisper, a vocabulary of 51865",
        arms(_whisper_vocabulary),
        changes=(_vocabulary(51872),),
        imports=("transformers:WhisperForConditionalGeneration",),
    ),
    Job(
        "vit_checkpointing",
        "timm ViT, gradient checkpointing with memory to spare",
        arms(_vit_checkpointing),
        changes=(_KEEP_ACTIVATIONS,),
        imports=_TIMM,
    ),
    Job(
        "resnet_heuristics",
        "timm ResNet-34 in float32, NCHW images, cuDNN chooses by its heuristics",
        arms(_resnet_heuristics),
        changes=(_BENCHMARK,),
        imports=_TIMM,
    ),
    Job(
        "t5_tf32",
        "T5 in float32 with TF32",
        arms(_t5_tf32),
        changes=(_AUTOCAST,),
        imports=("transformers:T5ForConditionalGeneration",),
    ),
    Job(
        "bert_vocabulary",
        "BERT, a vocabulary of 30522",
        arms(_bert_vocabulary),
        changes=(_vocabulary(30528),),
        imports=_BERT,
    ),
    Job(
        "t5_norm",
        "T5 in bfloat16, its norm written out",
        arms(_t5_norm),
        changes=(_FUSED_NORM,),
        imports=("transformers:T5ForConditionalGeneration",),
    ),
    Job(
        "graph_fp32",
        "GraphSAGE in float32 without TF32",
        arms(_graph_fp32),
        changes=(_TF32,),
        imports=("torch_geometric.nn:GraphSAGE",),
    ),
)
"""The most important first: a recording may run out of time."""
