"""Six questions to a language model, each with yes where results are functions of their values; and models to ask."""

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

QUESTIONS = {
    "twice": "the same logits on a second run",
    "alone": "one prompt alone has the logits that it has in the batch",
    "three": "three prompts of the batch have the logits that they have in it",
    "prefix": "the first tokens have the logits that they have before others",
    "cache": "tokens one by one, with a cache, have the logits of all at once",
    "gradients": "the same gradients on a second run",
}
FAMILIES = ("llama", "gpt2")  # those of every size
ATTENTION = ("eager", "sdpa")

# Widths of common models; "real" has few of their layers, which all do the same.
SIZES: dict[str, dict[str, dict[str, Any]]] = {
    "small": {
        "llama": {
            "vocab_size": 331, "hidden_size": 96, "intermediate_size": 200, "num_hidden_layers": 2,
            "num_attention_heads": 6, "num_key_value_heads": 2, "max_position_embeddings": 512,
        },
        "gpt2": {"vocab_size": 331, "n_embd": 96, "n_layer": 2, "n_head": 6, "n_positions": 512},
        "mixtral": {
            "vocab_size": 331, "hidden_size": 96, "intermediate_size": 200, "num_hidden_layers": 2,
            "num_attention_heads": 6, "num_key_value_heads": 2, "max_position_embeddings": 512,
        },
        "gemma2": {
            "vocab_size": 331, "hidden_size": 96, "intermediate_size": 200, "num_hidden_layers": 2, "head_dim": 16,
            "num_attention_heads": 6, "num_key_value_heads": 2, "max_position_embeddings": 512,
        },
    },
    "real": {
        "llama": {
            "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 4,
            "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 4096,
        },
        "gpt2": {"vocab_size": 50257, "n_embd": 1600, "n_layer": 8, "n_head": 25, "n_positions": 1024},
    },
}  # fmt: skip


def build(family: str, size: str, dtype: torch.dtype, device: torch.device, attention: str) -> torch.nn.Module:
    """A model of transformers, with random weights and without dropout."""
    import transformers  # optional, and slow to import

    transformers.logging.set_verbosity_error()
    ends: dict[str, Any] = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": 0}
    if family == "gpt2":
        ends |= {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    config = transformers.AutoConfig.for_model(family, **SIZES[size][family], **ends)
    with torch.random.fork_rng([device] if device.type == "cuda" else []), device:
        torch.manual_seed(0)
        model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=attention)
    return model.to(device, dtype).eval()


def prompts(model: torch.nn.Module, batch: int, length: int) -> Tensor:
    """Random tokens (batch, length) on the device of the model."""
    config: Any = model.config
    tokens = torch.randint(1, config.vocab_size, (batch, length), generator=torch.Generator().manual_seed(1))
    return tokens.to(next(model.parameters()).device)


def gradients(model: torch.nn.Module, tokens: Tensor) -> list[Tensor]:
    """Of the mean loss of all tokens, to the parameters."""
    model.zero_grad(set_to_none=True)
    model(tokens, labels=tokens, use_cache=False).loss.backward()
    found = [p.grad for p in model.parameters() if p.grad is not None]
    model.zero_grad(set_to_none=True)
    return found


def answers(model: torch.nn.Module, tokens: Tensor, steps: int = 8) -> dict[str, bool]:
    """Asks `QUESTIONS` of a model as those of transformers are, about tokens (batch of four or more, length).

    Args:
        model: called as model(tokens), with `use_cache`, `past_key_values` and `labels`.
        tokens: prompts, none padded.
        steps: tokens that are computed one by one.

    Returns:
        Whether every bit was the same, by the name of the question.
    """
    before = (tokens.shape[1] - steps) // 2
    with torch.no_grad():
        whole = model(tokens, use_cache=False).logits

        def same(some: Tensor, rows: slice, columns: slice) -> bool:
            return torch.equal(some, whole[rows, columns])

        every = slice(None)
        yes = {
            "twice": same(model(tokens, use_cache=False).logits, every, every),
            "alone": same(model(tokens[:1], use_cache=False).logits, slice(1), every),
            "three": same(model(tokens[1:4], use_cache=False).logits, slice(1, 4), every),
            "prefix": same(model(tokens[:, :before], use_cache=False).logits, every, slice(before)),
        }
        out = model(tokens[:, :before], use_cache=True)
        yes["cache"] = True
        for t in range(before, before + steps):
            out = model(tokens[:, t : t + 1], past_key_values=out.past_key_values, use_cache=True)
            yes["cache"] &= same(out.logits, every, slice(t, t + 1))
    first = gradients(model, tokens)
    yes["gradients"] = all(torch.equal(a, b) for a, b in zip(first, gradients(model, tokens), strict=True))
    return yes


def _seconds(body: Callable[[], object], device: torch.device, repeats: int) -> float:
    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    taken = []
    for _ in range(repeats + 1):
        wait()
        start = time.perf_counter()
        body()
        wait()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken[1:])


def times(model: torch.nn.Module, tokens: Tensor, repeats: int = 5) -> dict[str, float]:
    """Seconds of a prefill of `tokens`, of one token with a cache, and of a training step, without its optimizer."""
    device = tokens.device
    with torch.no_grad():
        prefill = _seconds(lambda: model(tokens, use_cache=False), device, repeats)
        cache = model(tokens[:, :-1], use_cache=True).past_key_values

        def step() -> None:
            model(tokens[:, -1:], past_key_values=cache, use_cache=True)
            cache.crop(-1)

        token = _seconds(step, device, 5 * repeats)  # a few ms, most of it the host's, whose speed varies
    return {"prefill": prefill, "token": token, "training": _seconds(lambda: gradients(model, tokens), device, repeats)}
