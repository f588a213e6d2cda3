"""Times the products of attention's heads as models have them, forward and backward, beside torch: matrices that are
small, many, and rarely multiples of a tile."""

import statistics
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import products
import torch
from torch import Tensor

from torch_reduce import bench


class Heads(NamedTuple):
    """Heads of all sequences of a batch, with tokens that ask and that answer, and the width of a head."""

    model: str
    heads: int
    queries: int
    keys: int
    width: int


CASES = (
    Heads("ViT-B/16, an image", 12, 197, 197, 64),
    Heads("ViT-B/16, 32 images", 384, 197, 197, 64),
    Heads("ViT-H/14, 4 images", 64, 257, 257, 80),
    Heads("BERT-base, 16 x 128 tokens", 192, 128, 128, 64),
    Heads("BERT-base, 16 x 512 tokens", 192, 512, 512, 64),
    Heads("CLIP's text, 64 x 77 tokens", 768, 77, 77, 64),
    Heads("GPT-2, 8 x 1,024 tokens", 96, 1024, 1024, 64),
    Heads("Whisper, 30 s", 20, 1500, 1500, 64),
    Heads("heads of 128, 300 tokens", 32, 300, 300, 128),
    Heads("Stable Diffusion, a picture by its text", 16, 4096, 77, 40),
)
SMOKE = (Heads("small", 3, 20, 17, 8),)
KINDS = ("float32", "tf32", "bfloat16")


def operands(case: Heads, generator: torch.Generator) -> dict[str, tuple[Tensor, Tensor]]:
    """Those of each product, as a step has them. Probabilities: a softmax of scores whose standard deviation is 3.
    Causal: a query has no later keys. Sharp: the standard deviation is 15."""

    def normal(*size: int) -> Tensor:
        return torch.randn(case.heads, *size, generator=generator, device=generator.device)

    query, key, value = normal(case.queries, case.width), normal(case.keys, case.width), normal(case.keys, case.width)
    of_scores, of_values = normal(case.queries, case.keys), normal(case.queries, case.width)
    scores = normal(case.queries, case.keys)
    probabilities, sharp = torch.softmax(3 * scores, -1), torch.softmax(15 * scores, -1)
    later = torch.ones_like(scores[0], dtype=torch.bool).triu(1)
    causal = torch.softmax((3 * scores).masked_fill(later, -torch.inf), -1)
    return {
        "scores": (query, key.mT),
        "values": (probabilities, value),
        "values, causal": (causal, value),
        "values, sharp": (sharp, value),
        "gradient of probabilities": (of_values, value.mT),
        "gradient of values": (probabilities.mT, of_values),
        "gradient of values, causal": (causal.mT, of_values),
        "gradient of queries": (of_scores, key),
        "gradient of keys": (of_scores.mT, query),
    }


def measure(
    cases: Sequence[Heads], device: torch.device, settings: bench.Settings, step: Callable[[str], None]
) -> list[dict[str, Any]]:
    """A row a product: times of `auto` and of torch in microseconds (median and quartiles), and the speed-up."""
    rows = []
    for case in cases:
        for name, pair in operands(case, torch.Generator(device).manual_seed(0)).items():
            for kind in KINDS:
                step(f"{case.model}, {name}, {kind}")
                with torch.no_grad(), products.precision(kind) as dtype:
                    found = products.beside_torch(*(x.to(dtype) for x in pair), device, settings)
                rows.append({**case._asdict(), "name": name, "dtype": kind, **found})
    return rows


def table(rows: Sequence[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Head and lines: a model, its sizes, and each product's speed-up, a line a dtype."""
    names = list(dict.fromkeys(row["name"] for row in rows))
    head = ["model", "heads", "queries x keys x width", "dtype", *names]
    lines = []
    for model, kind in dict.fromkeys((row["model"], row["dtype"]) for row in rows):
        found = {row["name"]: row for row in rows if (row["model"], row["dtype"]) == (model, kind)}
        one = next(iter(found.values()))
        sizes = f"{one['queries']:,} x {one['keys']:,} x {one['width']}"
        x = [f"{found[name]['x'][0]:.2f}" for name in names]
        lines.append([model, f"{one['heads']:,}", sizes, kind, *x])
    return head, lines


def summary(rows: Sequence[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Head and lines: of each dtype the mean speed-up, the least, and how many products are behind."""
    lines = []
    for kind in dict.fromkeys(row["dtype"] for row in rows):
        x = [row["x"][0] for row in rows if row["dtype"] == kind]
        behind = sum(ratio < 1 for ratio in x)
        lines.append([kind, f"{statistics.geometric_mean(x):.2f}", f"{min(x):.2f}", f"{behind} of {len(x)}"])
    return ["dtype", "x torch", "least", "torch is faster"], lines
