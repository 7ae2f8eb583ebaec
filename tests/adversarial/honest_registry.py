"""The table of honest kernels: submissions in many styles, none of which may ever be rejected.

Data only; imports nothing heavy. Each file of `honest/` is the exact text of one submission.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

HONEST_DIR = Path(__file__).parent / "honest"


@dataclass(frozen=True)
class Honest:
    """One submission.

    Attributes:
        style: what it does that a check could take for a trick, in a phrase.
        cpu: it runs on the `cpu` evaluator (Triton's interpreter, or C++ in load_inline).
        cpu_only: it has no CUDA source, so it does not run on the `gpu` evaluator.
    """

    name: str
    path: Path
    task_id: str
    language: Literal["triton", "cuda"]
    style: str
    cpu: bool
    cpu_only: bool = False

    @property
    def code(self) -> str:
        return self.path.read_text(encoding="utf-8")


def _honest(name: str, task_id: str, style: str, *, cpu: bool = True) -> Honest:
    return Honest(name, HONEST_DIR / f"{name}.py", task_id, "triton", style, cpu)


def _cuda(name: str, task_id: str, style: str, *, cpu_only: bool = False) -> Honest:
    return Honest(name, HONEST_DIR / f"{name}.py", task_id, "cuda", style, cpu_only, cpu_only)


_RELU = "level1/19_ReLU"
_LEAKY_RELU = "level1/20_LeakyReLU"
_SIGMOID = "level1/21_Sigmoid"
_SOFTMAX = "level1/23_Softmax"
_GELU = "level1/26_GELU_"
_SOFTPLUS = "level1/29_Softplus"
_ELU = "level1/31_ELU"
_RMS_NORM = "level1/36_RMSNorm_"
_FROBENIUS = "level1/37_FrobeniusNorm_"
_LAYER_NORM = "level1/40_LayerNorm"
_MAX_POOL = "level1/42_Max_Pooling_2D"
_AVG_POOL = "level1/44_Average_Pooling_1D"
_SUM = "level1/47_Sum_reduction_over_a_dimension"
_MEAN = "level1/48_Mean_reduction_over_a_dimension"
_CONV = "level1/50_conv_standard_2D__square_input__square_kernel"
_NEW_GELU = "level1/88_MinGPTNewGelu"
_CUMSUM = "level1/89_cumsum"
_MSE = "level1/94_MSELoss"
_CROSS_ENTROPY = "level1/95_CrossEntropyLoss"
_MATMUL = "level1/1_Square_matrix_multiplication_"
_MATVEC = "level1/4_Matrix_vector_multiplication_"

HONEST: tuple[Honest, ...] = (
    # -------------------------------------------------- Triton: how kernels are configured and launched
    _honest("autotune_elementwise", _RELU, "@triton.autotune"),
    _honest("autotune_matmul_pruned", _MATMUL, "@triton.autotune with early pruning, generator of configs"),
    _honest("heuristics_decorator", _SOFTPLUS, "@triton.heuristics"),
    _honest("meta_lambda", _LEAKY_RELU, "meta lambda grid, module constexprs, hints, do_not_specialize"),
    _honest("partial_launch", _ELU, "launch through functools.partial"),
    _honest("kernel_dict", _GELU, "kernels in a dictionary"),
    _honest("closure_grid", _SUM, "closures for grid and launch"),
    _honest("device_functions", _NEW_GELU, "jitted functions called from the kernel"),
    _honest("helper_module", _GELU, "a helper nn.Module, called from forward"),
    _honest("base_class_and_mixin", _MAX_POOL, "forward from a base class, launch from a mixin"),
    _honest("several_kernels", _FROBENIUS, "three launches with intermediate tensors"),
    _honest("libdevice_and_asm", _NEW_GELU, "libdevice and inline PTX", cpu=False),
    _honest("generated_code", _SOFTMAX, "looks like a compiler's output"),
    # -------------------------------------------------- Triton: where outputs and scratch lie
    _honest("returns_reshaped_view", _RELU, "returns a view of a flat output"),
    _honest("permuted_output", _RMS_NORM, "returns a permuted view of a dense result"),
    _honest("channels_last_output", "level2/69_Conv2d_HardSwish_ReLU", "output in channels_last"),
    _honest("empty_strided_output", _SIGMOID, "torch.empty_strided"),
    _honest("full_output", _ELU, "torch.full with NaN"),
    _honest("zeros_and_atomics", _SUM, "torch.zeros and atomic_add"),
    _honest("new_zeros_loss", _CROSS_ENTROPY, "x.new_zeros and atomic_add on a scalar"),
    _honest("inplace_on_clone", _LEAKY_RELU, "in place on a clone of the input"),
    _honest("output_through_view", _CUMSUM, "writes through out.view(...)"),
    _honest("noncontiguous_inputs", _MATMUL, "transposed views as operands and output"),
    _honest("fused_group_norm", "level2/37_Matmul_Swish_Sum_GroupNorm", "second kernel in place on its own tensor"),
    _honest("cached_scratch_attribute", "level2/40_Matmul_Scaling_ResidualAdd", "scratch of the output's size, kept"),
    _honest(
        "cached_transposed_scratch",
        "level2/59_Matmul_Swish_Scaling",
        "scratch of the output's size in another layout, kept",
    ),
    _honest("cached_output_buffer", "level2/95_Matmul_Add_Swish_Tanh_GELU_Hardtanh", "one output buffer for all calls"),
    _honest("registered_buffer_scratch", _MSE, "in place on a registered buffer"),
    _honest("shape_keyed_cache", _FROBENIUS, "module-level cache keyed by shape"),
    # -------------------------------------------------- Triton: weights
    _honest("init_transposed_weights", "level2/76_Gemm_Add_ReLU", "__init__ transposes weights under other names"),
    _honest("init_packed_plain_tensors", "level2/63_Gemm_ReLU_Divide", "__init__ packs into a dictionary of tensors"),
    _honest("init_packed_hidden_buffer", "level2/1_Conv2D_ReLU_BiasAdd", "__init__ packs into an unsaved buffer"),
    _honest("lazy_packing", "level2/12_Gemm_Multiply_LeakyReLU", "first forward packs the weight with a kernel"),
    _honest("lazy_packing_torch_copies", "level3/2_ShallowWideMLP", "first forward pads and joins weights with torch"),
    _honest("linear_containers", "level3/1_MLP", "nn.Linear as containers in nn.Sequential"),
    # -------------------------------------------------- Triton: algorithms
    _honest("dot_tf32", "level2/59_Matmul_Swish_Scaling", "tl.dot in TF32"),
    _honest("dot_fp16_inputs", _MATMUL, "half operands, float32 accumulator"),
    _honest("half_and_back", _SIGMOID, "casts to half and back"),
    _honest("persistent_softmax", _SOFTMAX, "persistent programs"),
    _honest("persistent_matmul", "level2/63_Gemm_ReLU_Divide", "persistent tiles"),
    _honest("split_k", _MATVEC, "split-K and a second reduction kernel"),
    _honest("softmax_two_pass", _SOFTMAX, "two-pass softmax"),
    _honest("softmax_online", _SOFTMAX, "online softmax"),
    _honest("flash_attention", "level3/43_MinGPTCausalAttention", "flash attention on strided views"),
    _honest("packed_qkv_heads", "level3/50_ReLUSelfAttention", "packed intermediate, indexed by views"),
    _honest("welford_layernorm", _LAYER_NORM, "Welford"),
    _honest("block_pointers", "level2/86_Matmul_Divide_GELU", "tl.make_block_ptr"),
    _honest("tensor_descriptors", _MATMUL, "device tensor descriptors, triton.set_allocator"),
    _honest("host_descriptors", "level2/76_Gemm_Add_ReLU", "host tensor descriptors"),
    _honest("im2col_gemm", _CONV, "implicit matrix product"),
    # -------------------------------------------------- Triton: Python around the kernel
    _honest("try_finally", _SUM, "try, re-raise, finally"),
    _honest("prints_and_logs", _AVG_POOL, "prints, logs, warns, reads the clock"),
    _honest("dataclass_config", _SOFTMAX, "dataclass, enum, match, postponed annotations"),
    _honest("scary_comments", _RELU, "comments and strings that name forbidden things"),
    _honest("no_grad_decorator", _MEAN, "@torch.no_grad on forward"),
    _honest("inference_mode", _SOFTPLUS, "@torch.inference_mode on forward"),
    _honest("star_args", _MSE, "forward(*args), last program reduces"),
    _honest("main_guard", _LAYER_NORM, "self-test with torch under __main__"),
    _honest("autograd_function", _ELU, "torch.autograd.Function"),
    _honest("custom_op", _SIGMOID, "torch.library.custom_op in an own namespace"),
    _honest("custom_op_mutating", _RMS_NORM, "own operator that writes into an argument"),
    # -------------------------------------------------- Triton: CUDA's runtime from Python
    _honest("graph_at_first_call", "level3/1_MLP", "CUDA graph captured at first call", cpu=False),
    _honest("graph_at_third_call", _SOFTMAX, "graph captured at third call, static output", cpu=False),
    _honest("side_stream", _RMS_NORM, "side stream with wait_stream", cpu=False),
    _honest("current_stream", _MEAN, "current_stream, event, device context", cpu=False),
    # -------------------------------------------------- C++ on the CPU
    _cuda("cpp_pybind_only", _ELU, "cpp_sources without torch's headers, raw pointers", cpu_only=True),
    _cuda("cpp_torch_extension", _SOFTMAX, "cpp_sources, template over the type, output made in C++", cpu_only=True),
    # -------------------------------------------------- CUDA
    _cuda("cuda_float4_relu", _RELU, "float4 loads, pybind11 alone, stream handle"),
    _cuda("cuda_shared_matmul", _MATMUL, "shared-memory tiles, positional load_inline arguments"),
    _cuda("cuda_templates_elu", _ELU, "C++ templates and functors, launcher and binding apart"),
    _cuda("cuda_warp_shuffle_softmax", _SOFTMAX, "warp shuffles"),
    _cuda("cuda_atomics_mse", _MSE, "atomics into a registered buffer, memset on the stream"),
    _cuda("cuda_grid_stride_sigmoid", _SIGMOID, "grid-stride loop, occupancy calculator"),
    _cuda("cuda_several_functions", _FROBENIUS, "three functions of one load_inline, intermediates made in C++"),
    _cuda("cuda_cached_loader", _SOFTPLUS, "load_inline in a cached function"),
    _cuda("cuda_output_in_cpp", _MAX_POOL, "torch headers in cuda_sources, output from torch::empty"),
    _cuda("cuda_torch_library_op", _AVG_POOL, "TORCH_LIBRARY operator, is_python_module=False"),
    _cuda("cuda_wmma_tf32", "level2/12_Gemm_Multiply_LeakyReLU", "tensor cores through wmma in TF32"),
    _cuda("cuda_dynamic_shared_layernorm", _LAYER_NORM, "96 KiB of dynamic shared memory"),
    _cuda("cuda_cooperative_groups", _FROBENIUS, "cooperative launch with grid synchronisation"),
)
