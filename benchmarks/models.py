"""Whole models of transformers, unmodified: the six questions and times, by torch and in batch_invariant."""

import contextlib
import gc
import importlib.util
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

import torch_reduce
from torch_reduce import _model

DTYPES = ("bfloat16", "float32")
BATCH, LENGTH = 4, 1024
BY = ("torch", "ours")


class Case(NamedTuple):
    family: str
    dtype: str
    attention: str

    def __str__(self) -> str:
        return f"{self.family} {self.dtype} {self.attention}"


CASES = [Case(f, d, a) for f in _model.FAMILIES for d in DTYPES for a in reversed(_model.ATTENTION)]


def key(row: dict[str, Any]) -> Case:
    return Case(row["family"], row["dtype"], row["attention"])


def available() -> bool:
    return importlib.util.find_spec("transformers") is not None


def measure(case: Case, device: torch.device, smoke: bool) -> dict[str, Any]:
    """A row: answers and seconds of each, and the ops that the mode left uncovered."""
    size = "small" if smoke else "real"
    batch, length, repeats = (4, 20, 1) if smoke else (BATCH, LENGTH, 3)
    row: dict[str, Any] = {**case._asdict(), "batch": batch, "length": length, "answers": {}, "seconds": {}}
    model = _model.build(case.family, size, getattr(torch, case.dtype), device, case.attention)
    row["parameters"] = sum(p.numel() for p in model.parameters())
    tokens = _model.prompts(model, batch, length)
    for by in BY:
        mode = torch_reduce.batch_invariant()
        with contextlib.nullcontext() if by == "torch" else mode:
            row["answers"][by] = _model.answers(model, tokens)
            row["seconds"][by] = _model.times(model, tokens, repeats)
        if by == "ours":
            row["uncovered"] = sorted(op.name for op in mode.report() if op.uncovered)
    del model
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return row


def table(rows: Sequence[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Head and lines: for each model the questions with yes, and times in ms, of torch and ours with their ratio."""
    kinds = {"prefill": "prefill", "token": "one token", "training": "training step"}
    lines = []
    for row in rows:
        yes = [f"{sum(row['answers'][by].values())} of {len(_model.QUESTIONS)}" for by in BY]
        cells = []
        for kind in kinds:
            torchs, ours = (1e3 * row["seconds"][by][kind] for by in BY)
            cells.append(f"{torchs:.1f} / {ours:.1f} ({ours / torchs:.2f})")
        lines.append([row["family"], row["dtype"], row["attention"], *yes, *cells])
    return ["model", "dtype", "attention", "yes by torch", "yes by ours", *kinds.values()], lines


def summary(rows: Sequence[dict[str, Any]]) -> list[str]:
    """A line a model, for the terminal, with the questions that ours answers no."""
    _, lines = table(rows)
    found = []
    for row, line in zip(rows, lines, strict=True):
        no = [question for question, yes in row["answers"]["ours"].items() if not yes]
        uncovered = row.get("uncovered")
        note = (f"; ours no: {', '.join(no)}" if no else "") + (
            f"; uncovered: {', '.join(uncovered)}" if uncovered else ""
        )
        found.append("  ".join(line) + note)
    return found
