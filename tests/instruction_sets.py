"""Digests of results of the CPU, to be compared between its instruction sets: `python tests/instruction_sets.py`.

The extension picks the best set when it is first called; TORCH_REDUCE_CPU asks for less, so each set needs a process.
"""

import functools
import hashlib
import os
import subprocess
import sys

import torch
from cases import EVERY_DTYPE

import torch_reduce

LENGTHS = (*range(1, 20), 31, 49, 64, 100, 128, 129, 300, 1025, 3000, 9000)


def update(digest, result):
    digest.update(result.contiguous().view(-1).view(torch.uint8).numpy().tobytes())


def products():
    digest = hashlib.sha256()
    for dtype in (torch.float32, torch.float64, torch.float16, torch.int8, torch.int32):
        g = torch.Generator().manual_seed(0)
        a, b = (torch.randn(67, 67, generator=g, dtype=torch.float64) * 3 for _ in "ab")
        update(digest, torch_reduce.matmul(a.to(dtype), b.to(dtype)))
    # Few rows, and columns that are contiguous along k: whole squares of them, parts, and every float16 there is.
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
        for m, n, k in ((1, 33, 65), (1, 70, 300), (3, 17, 40), (8, 64, 129)):
            a, b = (torch.randn(s, k, generator=g, dtype=torch.float64).mul(3).to(dtype) for s in (m, n))
            update(digest, torch_reduce.matmul(a, b.t()))
    b = torch.arange(-(2**15), 2**15).to(torch.int16).view(torch.float16).view(64, 1024)
    for a in torch.eye(1024)[::100].half():
        update(digest, torch_reduce.matmul(a[None], b.nan_to_num(0.25, 7.0, -7.0).t()))
    update(digest, torch_reduce.matmul(torch.ones(1, 4).half(), b.view(-1, 4).t()))
    return digest.hexdigest()


def reductions():
    digest = hashlib.sha256()
    g = torch.Generator().manual_seed(0)
    for dtype in EVERY_DTYPE:
        # Zeros of both signs and a NaN, in memory of any alignment.
        x = torch.randn(200_000, generator=g).mul(8).trunc().to(dtype)
        ops = ("sum",) if dtype.is_complex else ("sum", "amax", "amin")
        if dtype.is_floating_point:
            x[77_777] = torch.nan
        for n in LENGTHS:
            for pitch in (n, n + 3):
                view = x[1:].as_strided((min(90_000 // (n + 3), 700), n), (pitch, 1))
                for y, dim in ((view, 1), (view, 0), (view, (0, 1)), (view[:, ::2], 1), (view.t(), 1)):
                    for op in ops:
                        update(digest, getattr(torch_reduce, op)(y, dim))
    return digest.hexdigest()


def row_operations():
    digest = hashlib.sha256()
    g = torch.Generator().manual_seed(0)
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
        for n in (1, 7, 64, 129, 1025, 5003):
            x = torch.randn(3, n, generator=g, dtype=torch.float64).mul(20).to(dtype)
            w = torch.randn(n, generator=g, dtype=torch.float64).to(dtype)
            grad = torch.randn(3, n, generator=g, dtype=torch.float64).to(dtype)
            ops = torch.ops.treduce
            normed, mean, rstd = ops.layer_norm(x, [n], w, w)
            _, of_rms = ops.rms_norm(x, [n], w)
            update(digest, normed)
            update(digest, ops.rms_norm(x, [n], w)[0])
            update(digest, ops.logsumexp(x, 1))
            update(digest, ops.layer_norm_backward(grad, x, [n], mean, rstd, w))
            update(digest, ops.rms_norm_backward(grad, x, [n], of_rms, w))
            for name in ("softmax", "log_softmax"):
                y = getattr(ops, name)(x, 1)
                update(digest, y)
                update(digest, getattr(ops, f"{name}_backward")(grad, y, 1))
            if dtype.itemsize > 2:
                for function in ("exp", "log", "rsqrt"):
                    update(digest, ops.elementary(x.abs() if function != "exp" else x, function))
    return digest.hexdigest()


@functools.cache
def digests():
    """Instruction set -> the digests of `products`, `reductions` and `row_operations`; "best" is what this CPU takes by
    itself."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    children = {
        name: subprocess.Popen(
            [sys.executable, "-W", "ignore", __file__],
            env={**environment, "TORCH_REDUCE_CPU": name},
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in ("baseline", "avx2")
    }
    found = {"best": (products(), reductions(), row_operations())}
    for name, child in children.items():
        found[name] = tuple(child.communicate()[0].split())
        assert child.returncode == 0 and len(found[name]) == 3, name
    return found


if __name__ == "__main__":
    print(products(), reductions(), row_operations())
