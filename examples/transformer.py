"""A transformer block, forward and backward, whose matrix products are torch_reduce's: float32 gradients as accurate as
torch's, at the speed of tensor cores.

    python -m examples.transformer --device cpu --size small    # seconds
    python -m examples.transformer --device cuda --size large

The block is attention and a two-layer perceptron, each after a layer norm and with a residual connection. Its matrix
products (six forward, twelve backward) are computed in turn by

- torch in float32, and on a GPU also in tfloat32, the fast mode that drops 13 of 24 bits of every operand;
- torch_reduce.matmul and torch_reduce.linear, with the variant of your choice; on a Hopper GPU "auto" runs float32 on
  tensor cores.

Everything else (norms, softmax, GELU) is torch's in all cases. The reference is the whole block in float64. For each
case the program prints the relative error of the gradients in the Frobenius norm, over all parameters and for the worst
of them, and the time of a step.
"""

import argparse
import contextlib
import math
import statistics
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

import torch_reduce


class Size(NamedTuple):
    """The shape of the block and of its input."""

    batch: int
    tokens: int
    width: int
    heads: int


SIZES = {
    "small": Size(batch=2, tokens=33, width=64, heads=4),
    "medium": Size(batch=4, tokens=512, width=1024, heads=16),
    "large": Size(batch=8, tokens=1024, width=4096, heads=32),
}


class Products(NamedTuple):
    """The functions that multiply matrices."""

    matmul: Callable[..., Tensor]
    linear: Callable[..., Tensor]


TORCH = Products(torch.matmul, functional.linear)


def ours(variant: str = "auto") -> Products:
    """torch_reduce's products, by one variant."""
    return Products(
        lambda a, b: torch_reduce.matmul(a, b, variant=variant),
        lambda x, weight, bias: torch_reduce.linear(x, weight, bias, variant=variant),
    )


# An input, the gradient of the output, and the parameters by name.
Data = tuple[Tensor, Tensor, dict[str, Tensor]]


def initial(size: Size, device: torch.device | str) -> Data:
    """An input, the gradient of the output, and the parameters by name; float32."""
    generator = torch.Generator().manual_seed(1)

    def random(*shape: int, scale: float = 1.0) -> Tensor:
        return (torch.randn(shape, generator=generator) * scale).to(device)

    d = size.width
    parameters = {}
    for name, (outputs, inputs) in {
        "attention_in": (3 * d, d),
        "attention_out": (d, d),
        "mlp_in": (4 * d, d),
        "mlp_out": (d, 4 * d),
    }.items():
        parameters[f"{name}.weight"] = random(outputs, inputs, scale=inputs**-0.5)
        parameters[f"{name}.bias"] = random(outputs, scale=0.1)
    for name in ("attention_norm", "mlp_norm"):
        parameters[f"{name}.weight"] = 1 + random(d, scale=0.1)
        parameters[f"{name}.bias"] = random(d, scale=0.1)
    shape = size.batch, size.tokens, d
    return random(*shape), random(*shape, scale=1 / math.prod(shape)), parameters


def block(x: Tensor, parameters: dict[str, Tensor], heads: int, products: Products) -> Tensor:
    """The transformer block, before the norm of the next one."""

    def linear(x: Tensor, name: str) -> Tensor:
        return products.linear(x, parameters[f"{name}.weight"], parameters[f"{name}.bias"])

    def norm(x: Tensor, name: str) -> Tensor:
        return functional.layer_norm(x, x.shape[-1:], parameters[f"{name}.weight"], parameters[f"{name}.bias"])

    batch, tokens, width = x.shape
    mixed = linear(norm(x, "attention_norm"), "attention_in")
    # (3, batch, heads, tokens, width of a head): views, which the products read in place.
    query, key, value = mixed.view(batch, tokens, 3, heads, width // heads).permute(2, 0, 3, 1, 4)
    scores = products.matmul(query, key.mT) * (width // heads) ** -0.5
    attended = products.matmul(scores.softmax(-1), value)
    x = x + linear(attended.transpose(1, 2).reshape(batch, tokens, width), "attention_out")
    return x + linear(functional.gelu(linear(norm(x, "mlp_norm"), "mlp_in")), "mlp_out")


def step(x: Tensor, grad: Tensor, parameters: dict[str, Tensor], heads: int, products: Products) -> dict[str, Tensor]:
    """One forward and backward pass: the gradients of the parameters and of the input."""
    leaves = {name: p.detach().requires_grad_() for name, p in {**parameters, "input": x}.items()}
    y = block(leaves["input"], leaves, heads, products)
    return dict(zip(leaves, torch.autograd.grad(y, list(leaves.values()), grad), strict=True))


@contextlib.contextmanager
def precision(name: str) -> Iterator[None]:
    """Whether a GPU multiplies float32 in full ("ieee") or as "tf32", by torch and by torch_reduce's "auto"."""
    backend = torch.backends.cuda.matmul
    before = backend.fp32_precision
    backend.fp32_precision = name
    try:
        yield
    finally:
        backend.fp32_precision = before


def errors(found: dict[str, Tensor], truth: dict[str, Tensor]) -> tuple[float, float]:
    """The relative error over all gradients, and that of the worst one."""
    missed = {name: (found[name].double() - truth[name]).norm().item() for name in truth}
    sizes = {name: truth[name].norm().item() for name in truth}
    whole = math.hypot(*missed.values()) / math.hypot(*sizes.values())
    return whole, max(missed[name] / sizes[name] for name in truth)


def milliseconds(function: Callable[[], object], device: torch.device, steps: int) -> float:
    """The median time of a call."""
    samples = []
    for _ in range(steps):
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        start = time.perf_counter()
        function()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        samples.append(time.perf_counter() - start)
    return 1e3 * statistics.median(samples)


class Result(NamedTuple):
    """The outcome for one way to multiply."""

    name: str
    error: float
    worst: float
    ms: float


def compare(
    size: Size, device: torch.device | str, steps: int = 5, variant: str = "auto", data: Data | None = None
) -> list[Result]:
    """Runs the block, by default on `initial`, with each way to multiply: errors against float64, and times."""
    device = torch.device(device)
    x, grad, parameters = data or initial(size, device)
    wide = {name: p.double() for name, p in parameters.items()}
    truth = step(x.double(), grad.double(), wide, size.heads, TORCH)
    ways = [("torch float32", TORCH, "ieee"), (f"torch_reduce {variant}", ours(variant), "ieee")]
    if device.type == "cuda":
        ways.insert(1, ("torch tf32", TORCH, "tf32"))
    results = []
    for name, products, mode in ways:
        with precision(mode):

            def run(products: Products = products) -> dict[str, Tensor]:
                return step(x, grad, parameters, size.heads, products)

            found = run()  # the first call warms up
            results.append(Result(name, *errors(found, truth), milliseconds(run, device, steps)))
    return results


def main() -> None:
    """Prints a line for each way to multiply."""
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n\n")[0], formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="cpu, cuda or cuda:1")
    text = "\n".join(f"{name}: {', '.join(f'{k} {v}' for k, v in s._asdict().items())}" for name, s in SIZES.items())
    parser.add_argument("--size", choices=SIZES, help=f"default: large on a GPU, small on the CPU.\n{text}")
    parser.add_argument("--steps", type=int, default=5, help="steps to time; the median is printed (default: 5)")
    parser.add_argument("--variant", default="auto", help="of torch_reduce.matmul; variants('matmul') lists them")
    arguments = parser.parse_args()
    size = arguments.size or ("small" if torch.device(arguments.device).type == "cpu" else "large")
    print(f"{size}: {', '.join(f'{k} {v}' for k, v in SIZES[size]._asdict().items())}, on {arguments.device}")
    print(f"{'products':24}{'gradient error':>16}{'worst of one':>16}{'ms a step':>12}{'speed-up':>10}")
    results = compare(SIZES[size], arguments.device, arguments.steps, arguments.variant)
    for r in results:
        print(f"{r.name:24}{r.error:16.3g}{r.worst:16.3g}{r.ms:12.3f}{results[0].ms / r.ms:9.2f}x")


if __name__ == "__main__":
    main()
