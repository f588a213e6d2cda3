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


@functools.cache
def digests():
    """Instruction set -> the digests of `products` and of `reductions`; "best" is what this CPU takes by itself."""
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
    found = {"best": (products(), reductions())}
    for name, child in children.items():
        found[name] = tuple(child.communicate()[0].split())
        assert child.returncode == 0 and len(found[name]) == 2, name
    return found


if __name__ == "__main__":
    print(products(), reductions())
