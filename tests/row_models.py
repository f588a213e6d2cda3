"""The row operations a second time, slow and obvious, written from docs/numerics.md: a step at a time in the
accumulator's dtype, sums by the model of the pairwise order, exp, log and 1 / sqrt by what test_elementary.py tests."""

from fractions import Fraction

import orders
import torch


def function(name, x):
    return torch.ops.treduce.elementary(x.contiguous(), name)


def wide(x):
    return x.to(torch.float64 if x.dtype == torch.float64 else torch.float32)


def total(rows):
    """(rows, n) -> (rows, 1)"""
    return orders.reduce_dims("sum", rows.contiguous(), 1).unsqueeze(1)


def mean(rows):
    return orders.reduce_dims("mean", rows.contiguous(), 1).unsqueeze(1)


def largest(rows):
    return rows.amax(1, keepdim=True)


def fused(a, b, c):
    """a * b + c, rounded once."""
    a, b, c = torch.broadcast_tensors(a, b, c)
    if a.dtype == torch.float64:  # Fraction's float() rounds once
        exact = [
            float(Fraction(x) * Fraction(y) + Fraction(z))
            for x, y, z in zip(*(t.flatten().tolist() for t in (a, b, c)), strict=True)
        ]
        return torch.tensor(exact, dtype=torch.float64).view(a.shape)
    return torch.from_numpy(orders.fused_multiply_add(*(t.contiguous().numpy() for t in (a, b, c))))


def affine(h, weight, bias):
    if weight is not None and bias is not None:
        return fused(h, wide(weight), wide(bias))
    h = h if weight is None else h * wide(weight)
    return h if bias is None else h + wide(bias)


def softmax(x):
    v = wide(x)
    e = function("exp", v - largest(v))
    return (e * (1 / total(e))).to(x.dtype)


def log_softmax(x):
    d = wide(x) - largest(wide(x))
    return (d - function("log", total(function("exp", d)))).to(x.dtype)


def logsumexp(x):
    v = wide(x)
    m = largest(v)
    result = m + function("log", total(function("exp", v - m)))
    return torch.where(m.isinf(), m, result).squeeze(1).to(x.dtype)


def layer_norm(x, weight=None, bias=None, eps=1e-5):
    """The output, the mean and the reciprocal of the standard deviation."""
    v = wide(x)
    m = mean(v)
    d = v - m
    rstd = function("rsqrt", mean(d * d) + torch.tensor(eps, dtype=v.dtype))
    return affine(d * rstd, weight, bias).to(x.dtype), m, rstd


def rms_norm(x, weight=None, eps=1e-5):
    v = wide(x)
    rstd = function("rsqrt", mean(v * v) + torch.tensor(eps, dtype=v.dtype))
    return affine(v * rstd, weight, None).to(x.dtype), rstd


def softmax_backward(grad, output):
    g, y = wide(grad), wide(output)
    return ((g - total(g * y)) * y).to(grad.dtype)


def log_softmax_backward(grad, output):
    g, y = wide(grad), wide(output)
    return fused(-function("exp", y), total(g), g).to(grad.dtype)


def layer_norm_backward(grad, x, m, rstd, weight=None):
    gw = wide(grad) if weight is None else wide(grad) * wide(weight)
    h = (wide(x) - m) * rstd
    return (fused(-h, mean(gw * h), gw - mean(gw)) * rstd).to(grad.dtype)


def rms_norm_backward(grad, x, rstd, weight=None):
    gw = wide(grad) if weight is None else wide(grad) * wide(weight)
    h = wide(x) * rstd
    return (fused(-h, mean(gw * h), gw) * rstd).to(grad.dtype)
