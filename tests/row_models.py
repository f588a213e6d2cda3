"""The row operations a second time, slow and obvious, written from docs/numerics.md: a step at a time in the
accumulator's dtype, sums by the model of the pairwise order, exp, log and 1 / sqrt by what test_elementary.py tests."""

from fractions import Fraction

import orders
import torch


def function(name, x):
    return torch.ops.treduce.elementary(x.contiguous(), name)


def wide(x):
    return x.to(torch.float64 if x.dtype == torch.float64 else torch.float32)


PARTS = 1024  # of class `online`


def total(rows, order):
    """(rows, n) -> (rows, 1)"""
    if order == "online":
        zero = torch.zeros(rows.shape[0], 1, dtype=rows.dtype)
        return online((zero,), (rows,), lambda a, b: (a[0] + b[0],))[0]
    return orders.reduce_dims("sum", rows.contiguous(), 1).unsqueeze(1)


def mean(rows, order):
    if order == "online":
        return (total(rows, order) + 0) / rows.shape[1]
    return orders.reduce_dims("mean", rows.contiguous(), 1).unsqueeze(1)


def scale_of_exp(v, order):
    """The maximum of each row, and the sum of exp(v - maximum)."""
    m = v.amax(1, keepdim=True)
    if order != "online":
        return m, total(function("exp", v - m), order)
    none = torch.full_like(m, -float("inf")), torch.zeros_like(m)
    m, s = online(none, (v, torch.ones_like(v)), meet_scaled)
    return m, s + (m - m)


def moments(v, order):
    """The mean of each row, and the mean of the squares around it."""
    if order != "online":
        m = mean(v, order)
        return m, mean((v - m) * (v - m), order)
    zero = torch.zeros(v.shape[0], 1, dtype=v.dtype)
    _, m, q = online((zero, zero, zero), (torch.ones_like(v), v, torch.zeros_like(v)), meet_moments)
    return m, q / v.shape[1]


def online(none, elements, meet):
    """What the parts of each row give, all together. `none` and `elements`: tuples of (rows, 1) and of (rows, n)."""
    rows, n = elements[0].shape
    state = tuple(x.expand(rows, PARTS).clone() for x in none)
    for begin in range(0, n, PARTS):
        new = tuple(x[:, begin : begin + PARTS] for x in elements)
        count = new[0].shape[1]
        for kept, x in zip(state, meet(tuple(k[:, :count] for k in state), new), strict=True):
            kept[:, :count] = x
    half = PARTS // 2
    while half:
        state = meet(tuple(k[:, :half] for k in state), tuple(k[:, half : 2 * half] for k in state))
        half //= 2
    return state


def meet_scaled(a, b):
    rises = b[0] > a[0]
    scale = function("exp", -(a[0] - b[0]).abs().nan_to_num(posinf=float("inf")))  # of two empty parts 1, of no matter
    met = fused(torch.where(rises, a[1], b[1]), scale, torch.where(rises, b[1], a[1]))
    empty = -float("inf")
    return torch.maximum(a[0], b[0]), torch.where(b[0] == empty, a[1], torch.where(a[0] == empty, b[1], met))


def meet_moments(a, b):
    count = a[0] + b[0]
    difference = b[1] - a[1]
    moved = difference * (b[0] / count)
    met = count, a[1] + moved, a[2] + b[2] + difference * moved * a[0]
    return tuple(torch.where(b[0] == 0, old, new) for old, new in zip(a, met, strict=True))


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


PAIRWISE = "row_pairwise"


def softmax(x, order=PAIRWISE):
    m, s = scale_of_exp(wide(x), order)
    return (function("exp", wide(x) - m) * (1 / s)).to(x.dtype)


def log_softmax(x, order=PAIRWISE):
    m, s = scale_of_exp(wide(x), order)
    return (wide(x) - m - function("log", s)).to(x.dtype)


def logsumexp(x, order=PAIRWISE):
    m, s = scale_of_exp(wide(x), order)
    return torch.where(m.isinf(), m, m + function("log", s)).squeeze(1).to(x.dtype)


def layer_norm(x, weight=None, bias=None, eps=1e-5, order=PAIRWISE):
    """The output, the mean and the reciprocal of the standard deviation."""
    v = wide(x)
    m, variance = moments(v, order)
    rstd = function("rsqrt", variance + torch.tensor(eps, dtype=v.dtype))
    return affine((v - m) * rstd, weight, bias).to(x.dtype), m, rstd


def rms_norm(x, weight=None, eps=1e-5, order=PAIRWISE):
    v = wide(x)
    rstd = function("rsqrt", mean(v * v, order) + torch.tensor(eps, dtype=v.dtype))
    return affine(v * rstd, weight, None).to(x.dtype), rstd


def softmax_backward(grad, output, order=PAIRWISE):
    g, y = wide(grad), wide(output)
    return ((g - total(g * y, order)) * y).to(grad.dtype)


def log_softmax_backward(grad, output, order=PAIRWISE):
    g, y = wide(grad), wide(output)
    return fused(-function("exp", y), total(g, order), g).to(grad.dtype)


def layer_norm_backward(grad, x, m, rstd, weight=None, order=PAIRWISE):
    gw = wide(grad) if weight is None else wide(grad) * wide(weight)
    h = (wide(x) - m) * rstd
    return (fused(-h, mean(gw * h, order), gw - mean(gw, order)) * rstd).to(grad.dtype)


def rms_norm_backward(grad, x, rstd, weight=None, order=PAIRWISE):
    gw = wide(grad) if weight is None else wide(grad) * wide(weight)
    h = wide(x) * rstd
    return (fused(-h, mean(gw * h, order), gw) * rstd).to(grad.dtype)
