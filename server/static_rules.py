"""The rules of the static checks: their names, what a violation is, and the tables of names they look for.

Data only: imports nothing but the standard library and never sees submitted code.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Rule(StrEnum):
    """Which rule a submission broke."""

    EMPTY = "empty"
    TOO_LARGE = "too_large"
    TOO_COMPLEX = "too_complex"
    SYNTAX = "syntax"
    MISSING_MODEL = "missing_model"
    MISSING_FORWARD = "missing_forward"
    NO_KERNEL = "no_kernel"
    NOT_LAUNCHED = "kernel_not_launched"
    NO_EXTENSION = "no_extension"
    WRONG_LANGUAGE = "wrong_language"
    REFERENCE = "uses_reference"
    TORCH_COMPILE = "torch_compile"
    TORCH_COMPUTE = "torch_compute"
    FALLBACK = "torch_fallback"
    LIBRARY_CALL = "library_call"
    MONKEYPATCH = "monkeypatch"
    GLOBAL_FLAGS = "global_flags"
    INTROSPECTION = "introspection"
    FORBIDDEN_IMPORT = "forbidden_import"
    FORBIDDEN_CALL = "forbidden_call"
    DYNAMIC_CODE = "dynamic_code"


@dataclass(frozen=True)
class Violation:
    """One broken rule. `line` counts from 1 in the submitted file; None where no single line is to blame."""

    rule: Rule
    line: int | None
    message: str


def clip(text: str, limit: int = 60) -> str:
    """`text` made printable, on one line and at most `limit` characters, for use inside a message."""
    flat = " ".join(text[: limit * 2].encode("utf-8", "replace").decode("utf-8").split())
    return flat if len(flat) <= limit else flat[: limit - 3] + "..."


# Names that compute on tensors, in torch.*, torch.nn.functional.*, as tensor methods and as at::* in C++. Left out on
# purpose: allocation, views, copies, casts, gathers and concatenation, dropout (the identity in eval mode), random
# numbers. In-place (relu_) and private (_softmax) spellings are the same name.
COMPUTE = frozenset(
    """
    matmul mm bmm addmm addmm_ baddbmm addbmm addmv addr mv dot vdot inner outer ger einsum tensordot kron chain_matmul
    linear bilinear conv1d conv2d conv3d convolution conv_transpose1d conv_transpose2d conv_transpose3d conv_tbc
    cudnn_convolution mkldnn_convolution int_mm scaled_mm scaled_dot_product_attention multi_head_attention_forward
    softmax log_softmax softmin gumbel_softmax logsumexp relu relu6 leaky_relu prelu rrelu elu selu celu gelu silu mish
    sigmoid logsigmoid log_sigmoid hardsigmoid hardswish hardtanh hardshrink softshrink tanhshrink softplus softsign
    threshold glu tanh sin cos tan sinh cosh asin acos atan atan2 asinh acosh atanh exp exp2 expm1 log log2 log10 log1p
    sqrt rsqrt square pow abs absolute neg negative reciprocal sign sgn floor ceil round trunc frac erf erfc erfinv
    lgamma digamma add sub subtract mul multiply div divide true_divide floor_divide remainder fmod addcmul addcdiv lerp
    maximum minimum fmax fmin clamp clip clamp_min clamp_max where heaviside hypot logaddexp logaddexp2
    sum nansum mean nanmean prod std var std_mean var_mean median nanmedian mode max min amax amin aminmax argmax argmin
    norm vector_norm matrix_norm frobenius_norm renorm normalize cumsum cumprod cummax cummin logcumsumexp cdist dist
    pdist trace tril triu cross diff any all sort argsort topk kthvalue bincount histc unique searchsorted bucketize
    count_nonzero layer_norm native_layer_norm batch_norm native_batch_norm cudnn_batch_norm instance_norm group_norm
    native_group_norm rms_norm fused_rms_norm local_response_norm max_pool1d max_pool2d max_pool3d avg_pool1d avg_pool2d
    avg_pool3d lp_pool1d lp_pool2d lp_pool3d adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d
    adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d fractional_max_pool2d fractional_max_pool3d
    max_pool2d_with_indices interpolate upsample grid_sample embedding embedding_bag lstm gru rnn_tanh rnn_relu
    lstm_cell gru_cell cross_entropy cross_entropy_loss nll_loss mse_loss l1_loss smooth_l1_loss huber_loss kl_div
    binary_cross_entropy binary_cross_entropy_with_logits cosine_similarity cosine_embedding_loss pairwise_distance
    triplet_margin_loss margin_ranking_loss hinge_embedding_loss multi_margin_loss soft_margin_loss poisson_nll_loss
    gaussian_nll_loss ctc_loss multilabel_margin_loss multilabel_soft_margin_loss
    """.split()
)

COMPUTE_NAMESPACES = frozenset(
    """
    torch torch.nn.functional torch.functional torch.Tensor torch._C._nn torch._C._VariableFunctions torch._C.TensorBase
    torch._VF torch._refs torch._refs.nn.functional torch.sparse torch.nn.quantized.functional
    """.split()
)
COMPUTE_NAMESPACES_WHOLE = frozenset({"torch.linalg", "torch.fft", "torch.special"})

# torch.nn classes whose call computes. Identity, Flatten, Unflatten, Dropout and containers are not here.
NN_COMPUTE = frozenset(
    """
    Linear LazyLinear Bilinear Conv1d Conv2d Conv3d ConvTranspose1d ConvTranspose2d ConvTranspose3d LazyConv1d
    LazyConv2d LazyConv3d BatchNorm1d BatchNorm2d BatchNorm3d SyncBatchNorm InstanceNorm1d InstanceNorm2d InstanceNorm3d
    LayerNorm GroupNorm RMSNorm LocalResponseNorm CrossMapLRN2d ReLU ReLU6 LeakyReLU PReLU RReLU ELU SELU CELU GELU SiLU
    Mish Sigmoid LogSigmoid Hardsigmoid Hardswish Hardtanh Hardshrink Softshrink Tanhshrink Softplus Softsign Threshold
    GLU Tanh Softmax Softmax2d LogSoftmax Softmin MaxPool1d MaxPool2d MaxPool3d AvgPool1d AvgPool2d AvgPool3d LPPool1d
    LPPool2d AdaptiveMaxPool1d AdaptiveMaxPool2d AdaptiveMaxPool3d AdaptiveAvgPool1d AdaptiveAvgPool2d AdaptiveAvgPool3d
    RNN LSTM GRU RNNCell LSTMCell GRUCell MultiheadAttention Transformer TransformerEncoder TransformerEncoderLayer
    TransformerDecoder TransformerDecoderLayer Embedding EmbeddingBag Upsample CosineSimilarity PairwiseDistance
    CrossEntropyLoss NLLLoss MSELoss L1Loss SmoothL1Loss HuberLoss KLDivLoss BCELoss BCEWithLogitsLoss
    CosineEmbeddingLoss TripletMarginLoss MarginRankingLoss HingeEmbeddingLoss MultiMarginLoss CTCLoss
    """.split()
)

# Tensor methods and torch functions whose result is a tensor again without any arithmetic.
TENSOR_VIEWS = frozenset(
    """
    contiguous view view_as reshape flatten squeeze unsqueeze transpose permute t expand expand_as clone detach float
    half bfloat16 double to type cuda narrow select movedim swapaxes
    """.split()
)
TENSOR_ALLOCATIONS = frozenset(
    f"torch.{name}"
    for name in "empty empty_like zeros zeros_like ones ones_like full full_like empty_strided as_strided".split()
)

# Dotted name -> rule, for any mention of the name; a prefix matches everything below it.
BANNED: dict[str, tuple[Rule, str]] = {
    **dict.fromkeys(
        ("torch.compile", "torch.compiler.compile", "torch._dynamo.optimize", "torch.jit.script", "torch.jit.trace"),
        (Rule.TORCH_COMPILE, "compiles PyTorch code for you; write the kernel yourself"),
    ),
    "torch._inductor": (Rule.TORCH_COMPILE, "is PyTorch's own compiler; write the kernel yourself"),
    **dict.fromkeys(
        "gc.get_objects gc.get_referrers gc.get_referents sys._getframe sys._current_frames inspect.stack "
        "inspect.currentframe inspect.trace inspect.getouterframes __main__".split(),
        (Rule.INTROSPECTION, "looks into the process around the kernel; remove it"),
    ),
    **dict.fromkeys(
        "ctypes _ctypes cffi subprocess _posixsubprocess socket _socket multiprocessing threading _thread "
        "concurrent.futures torch.multiprocessing".split(),
        (Rule.FORBIDDEN_IMPORT, "is not available to submissions; a kernel needs none of it"),
    ),
    **dict.fromkeys(
        "os.fork os.forkpty os.system os.popen os.posix_spawn os.posix_spawnp os.spawnl os.spawnv os.execv os.execve "
        "os.execl os.execvp".split(),
        (Rule.FORBIDDEN_CALL, "starts another process; remove it"),
    ),
    **dict.fromkeys(
        ("torch.set_float32_matmul_precision", "torch._C._set_cublas_allow_tf32", "torch._C._set_cudnn_allow_tf32"),
        (Rule.GLOBAL_FLAGS, "changes PyTorch's global precision; remove it and choose the precision in the kernel"),
    ),
    **dict.fromkeys(
        "sys.modules.pop sys.modules.update sys.modules.setdefault sys.modules.clear sys.modules.__setitem__ "
        "unittest.mock.patch".split(),
        (Rule.MONKEYPATCH, "replaces code that is not yours; remove it"),
    ),
    **dict.fromkeys(
        ("kernelbench", "KernelBench", "kernel_env", "server"),
        (Rule.REFERENCE, "belongs to the evaluator; compute the result with your own kernel"),
    ),
}
PATCH_ROOTS = frozenset({"torch", "triton", "time", "builtins"})

# C++: vendor libraries, by the start of a header's file name and of a function's name.
LIBRARY_HEADERS = ("cublas", "cudnn", "cusparse", "cusolver", "cufft", "nvblas", "cblas", "mkl", "dnnl")
LIBRARY_FUNCTIONS = ("cublas", "cudnn", "cusparse", "cusolver", "cufft", "cblas_", "mkl_", "dnnl_")
CPP_NAMESPACES = frozenset("native nn functional linalg special fft cuda cpu blas stable redispatch".split())
CPP_METHODS = frozenset(
    "mm matmul bmm addmm baddbmm addmv mv einsum softmax log_softmax relu relu_ sigmoid sigmoid_ logsumexp".split()
)


def canonical(name: str) -> str:
    """The table's spelling of an operator name: `relu_`, `_softmax`, `__matmul__` and `mm_out` lose their trimmings."""
    return name.strip("_").removesuffix("_out")


def torch_compute(path: str) -> bool:
    """Whether a dotted Python name is certainly a PyTorch function that computes."""
    if path == "operator.matmul":
        return True
    if path.startswith("torch.ops.aten."):
        return canonical(path.split(".")[3]) in COMPUTE
    namespace, _, name = path.rpartition(".")
    if namespace in COMPUTE_NAMESPACES_WHOLE:
        return True
    return namespace in COMPUTE_NAMESPACES and canonical(name) in COMPUTE


def nn_compute(path: str) -> bool:
    """Whether a dotted Python name is a torch.nn class whose call computes."""
    return path.startswith("torch.nn.") and path.rpartition(".")[2] in NN_COMPUTE


def banned(path: str) -> tuple[Rule, str] | None:
    """The rule that forbids a dotted name or anything above it, and what to say about it."""
    parts = path.split(".", 4)
    for end in range(1, min(len(parts), 4) + 1):
        if found := BANNED.get(".".join(parts[:end])):
            return found
    return None
