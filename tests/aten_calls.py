"""Calls of aten ops that batch_invariant replaces, as functions of a batch."""

import torch
from torch.nn import functional

BATCH = 7


def random(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape)), dtype=torch.float64)


def targets(n, classes, like):
    return torch.randint(0, classes, (n,), generator=torch.Generator().manual_seed(5)).to(like.device)


def of_complex(function, x):
    """Its result's two parts, where each element of x is a part of a complex number."""
    parts = x.to(torch.promote_types(x.dtype, torch.float32))
    return torch.view_as_real(function(torch.complex(parts, parts.flip(-1) + 2))).to(x.dtype)


# name: a function of x (BATCH, 5, 67) and a weight (67, 67) whose result has a row for each of the batch.
ROWS = {
    "mm": lambda x, w: torch.mm(x[:, 0], w),
    "mm out": lambda x, w: torch.mm(x[:, 0], w, out=x.new_empty(0)),
    "addmm": lambda x, w: torch.addmm(w[0], x[:, 0], w),
    "addmm alpha beta": lambda x, w: torch.addmm(x[:, 1], x[:, 0], w, beta=0.5, alpha=2),
    "addmm_": lambda x, w: x[:, 1].clone().addmm_(x[:, 0], w),
    "linear": lambda x, w: functional.linear(x, w, w[1]),
    "linear of one row": lambda x, w: functional.linear(x[:, -1:], w, w[1]),
    "linear of columns": lambda x, w: functional.linear(x.transpose(0, 1).contiguous().transpose(0, 1), w, w[1]),
    "matmul": lambda x, w: x @ w,
    "matmul of one row": lambda x, w: x[:, -1:] @ w,
    "matmul by a vector": lambda x, w: x @ w[0],
    "matmul of a matrix": lambda x, w: w[:4, :5] @ x,
    "matmul of a vector": lambda x, w: w[0, :5] @ x,
    "multi_dot": lambda x, w: torch.linalg.multi_dot((x[:, 0], w, w[:, :3])),
    "bmm": lambda x, w: torch.bmm(x, x.mT),
    "baddbmm": lambda x, w: torch.baddbmm(x[:, :, :5], x, x.mT, beta=0.5, alpha=3),
    "mv": lambda x, w: torch.mv(x[:, 0], w[0]),
    "addmv": lambda x, w: torch.addmv(x[:, 1, 0], x[:, 0], w[0], beta=2),
    "einsum": lambda x, w: torch.einsum("bij,jk->bik", x, w),
    "sum": lambda x, w: x.sum(-1),
    "sum of two dims": lambda x, w: x.sum((1, 2)),
    "mean": lambda x, w: x.mean(1, keepdim=True),
    "amax": lambda x, w: x.amax(1),
    "amin": lambda x, w: x.amin(-1),
    "var": lambda x, w: x.var(-1),
    "std": lambda x, w: x.std((1, 2), correction=0),
    "var_mean": lambda x, w: torch.cat(torch.var_mean(x, -1), -1),
    "norm": lambda x, w: x.norm(dim=-1),
    "norm 3": lambda x, w: torch.linalg.vector_norm(x, 3, dim=(1, 2)),
    "norm 1": lambda x, w: torch.linalg.vector_norm(x, 1, dim=1),
    "norm inf": lambda x, w: torch.linalg.vector_norm(x, float("inf"), dim=1),
    "norm 0": lambda x, w: torch.linalg.vector_norm(x, 0, dim=1),
    "softmax": lambda x, w: x.softmax(-1),
    "softmax of a middle dim": lambda x, w: x.softmax(1),
    "log_softmax": lambda x, w: x.log_softmax(-1),
    "logsumexp": lambda x, w: x.logsumexp(-1),
    "logsumexp of two dims": lambda x, w: x.logsumexp((1, 2), keepdim=True),
    "layer_norm": lambda x, w: functional.layer_norm(x, (67,), w[0], w[1]),
    "layer_norm of two dims": lambda x, w: functional.layer_norm(x, (5, 67)),
    "rms_norm": lambda x, w: functional.rms_norm(x, (67,), w[0], 1e-6),
    "group_norm": lambda x, w: functional.group_norm(x.mT, 1, w[0], w[1]),
    "cross_entropy": lambda x, w: functional.cross_entropy(x.mT, targets(5, 67, x).expand(len(x), 5), reduction="none"),
    "nll_loss": lambda x, w: functional.nll_loss(x[:, 0], targets(1, 67, x).expand(len(x)), reduction="none"),
}
# Left to torch on CUDA.
ELEMENTWISE = {
    "silu": lambda x, w: functional.silu(x),
    "gelu": lambda x, w: functional.gelu(x),
    "gelu tanh": lambda x, w: functional.gelu(x, approximate="tanh"),
    "sigmoid": lambda x, w: torch.sigmoid(x),
    "softplus": lambda x, w: functional.softplus(x),
    "mish": lambda x, w: functional.mish(x),
    "elu": lambda x, w: functional.elu(x),
    "exp2": lambda x, w: torch.exp2(x),
    "rsqrt": lambda x, w: torch.rsqrt(x.abs() + 1),
    "glu": lambda x, w: functional.glu(x[:, :4], dim=1),
    "pow": lambda x, w: (x.abs() + 0.1) ** 1.7,
    "pow of 16": lambda x, w: (x * 0.5) ** 4,
    "pow of a number": lambda x, w: 2.5**x,
    "pow of a tensor": lambda x, w: (x.abs() + 0.1) ** w[0],
    "pow_": lambda x, w: (x.abs() + 0.1).pow_(-0.5),
    "product of complex numbers, sgn": lambda x, w: of_complex(lambda z: (z * z.flip(-2)).sgn(), x),
    "quotient of complex numbers, sgn": lambda x, w: of_complex(lambda z: (z / z.flip(-2)).mul_(z).sgn(), x),
    "angle of complex numbers": lambda x, w: of_complex(lambda z: torch.complex(z.angle(), z.real), x),
    "power of complex numbers": lambda x, w: of_complex(lambda z: (z**2).sgn(), x),
    "atan2": lambda x, w: torch.atan2(x, w[:5]),
    "hypot": lambda x, w: torch.hypot(x, w[:5]),
    "logaddexp": lambda x, w: torch.logaddexp(x, w[:5]),
    "logaddexp2 out": lambda x, w: torch.logaddexp2(x, w[:5], out=x.new_empty(0)),
    "sinh": lambda x, w: torch.sinh(x),
    "cosh": lambda x, w: torch.cosh(x),
    "atanh": lambda x, w: torch.atanh(x.clamp(-4, 4) / 5),
    "logit": lambda x, w: torch.logit(x.clamp(-4, 4) / 10 + 0.5),
    "i0e": lambda x, w: torch.special.i0e(x),
}
ROWS |= ELEMENTWISE | {
    "prod": lambda x, w: (x[:, :, :11] + 1).prod(-1),
    "cumsum": lambda x, w: x.cumsum(-1),
    "cumsum of a middle dim": lambda x, w: x.cumsum(1),
    "cumprod": lambda x, w: (x[:, :, :9] / 4 + 1).cumprod(-1),
    "logcumsumexp": lambda x, w: x.logcumsumexp(-1),
    "instance_norm": lambda x, w: functional.instance_norm(x, weight=w[0, :5], bias=w[1, :5]),
    "scatter_reduce mean": lambda x, w: x.scatter_reduce(
        2, torch.arange(30, device=x.device).remainder(7).expand(len(x), 5, 30), x[:, :, 30:60], "mean"
    ),
    "index_reduce mean": lambda x, w: x.index_reduce(1, torch.tensor([3, 0, 3], device=x.device), x[:, :3] * 2, "mean"),
    "weight norm": lambda x, w: functional.linear(x, torch._weight_norm(w, w.T[:, :1], 0)),
    "conv1d": lambda x, w: functional.conv1d(x, w[:20, :15].reshape(20, 5, 3), w[0, :20], stride=2, padding=1),
    "conv1d of groups": lambda x, w: functional.conv1d(x[:, :4], w[:6, :10].reshape(6, 2, 5), dilation=2, groups=2),
    "conv2d": lambda x, w: functional.conv2d(
        x[:, :, :66].reshape(-1, 5, 6, 11), w[:8, :60].reshape(8, 5, 4, 3), padding=1
    ),
    "conv2d of patches": lambda x, w: functional.conv2d(
        x[:, :, :66].reshape(-1, 5, 6, 11), w[:8, :30].reshape(8, 5, 3, 2), stride=(3, 2)
    ),
    "conv3d": lambda x, w: functional.conv3d(x[:, :, :60].reshape(-1, 5, 3, 4, 5), w[:4, :40].reshape(4, 5, 2, 2, 2)),
    "conv_transpose1d": lambda x, w: functional.conv_transpose1d(
        x, w[:5, :12].reshape(5, 4, 3), w[0, :4], stride=2, padding=1, output_padding=1
    ),
    "conv_transpose2d of groups": lambda x, w: functional.conv_transpose2d(
        x[:, :4, :66].reshape(-1, 4, 6, 11), w[:4, :18].reshape(4, 3, 2, 3), stride=(1, 2), dilation=(2, 1), groups=2
    ),
    "conv_transpose1d of spread windows": lambda x, w: functional.conv_transpose1d(
        x, w[:5, :12].reshape(5, 4, 3), dilation=3, output_padding=2
    ),
    "batch norm, not training": lambda x, w: functional.batch_norm(
        x, w[0, :5].detach(), w[1, :5].detach().abs() + 0.1, w[2, :5], w[3, :5]
    ),
    "gather": lambda x, w: x.gather(2, torch.arange(30, device=x.device).remainder(7).expand(len(x), 5, 30)),
    "index of columns": lambda x, w: x[:, :, torch.tensor([3, 5, 3, 3, -1, 8, 5], device=x.device)],
}
