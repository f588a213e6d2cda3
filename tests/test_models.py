"""Models of transformers in batch_invariant, unmodified: the six questions, generate, and a training step."""

import pytest
import torch
from bits import assert_same_bits

import torch_reduce
from torch_reduce import _model

pytest.importorskip("transformers", reason="needs transformers, which CHECKS in the Makefile lists")

every_model = pytest.mark.parametrize("family", _model.FAMILIES)
every_attention = pytest.mark.parametrize("attention", _model.ATTENTION)
every_float = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])


def small(family, dtype, device, attention="sdpa"):
    return _model.build(family, "small", dtype, torch.device(device), attention)


@every_model
@every_attention
@every_float
def test_six_questions(family, dtype, attention, device):
    model = small(family, dtype, device, attention)
    # On a GPU, long enough for every kernel that is picked by a length.
    tokens = _model.prompts(model, 5, 300 if device == "cuda" else 37)
    with torch_reduce.batch_invariant(strict=True) as mode:
        answers = _model.answers(model, tokens)
    assert answers == dict.fromkeys(_model.QUESTIONS, True)
    assert sum(op.ours for op in mode.report()) > 100


@pytest.mark.parametrize("family", ["mixtral", "gemma2"])
def test_experts_and_windows(family, device):
    model = small(family, torch.float32, device, "eager")
    with torch_reduce.batch_invariant(strict=True):
        assert _model.answers(model, _model.prompts(model, 5, 37)) == dict.fromkeys(_model.QUESTIONS, True)


@every_model
@every_float
def test_generate_alone_and_in_a_padded_batch(family, dtype, device):
    model = small(family, dtype, device)
    texts = [_model.prompts(model, 1, n)[0] for n in (5, 19, 11)]
    longest = max(map(len, texts))
    padded = torch.zeros(len(texts), longest, dtype=torch.long, device=device)
    real = torch.zeros_like(padded)
    for row, text in enumerate(texts):
        padded[row, longest - len(text) :] = text
        real[row, longest - len(text) :] = 1

    def generate(tokens, mask):
        return model.generate(
            tokens,
            attention_mask=mask,
            max_new_tokens=8,
            do_sample=False,
            return_dict_in_generate=True,
            output_logits=True,
        )

    with torch_reduce.batch_invariant(strict=True):
        together = generate(padded, real)
        for row, text in enumerate(texts):
            alone = generate(text[None], torch.ones_like(text)[None])
            assert torch.equal(alone.sequences[0, len(text) :], together.sequences[row, longest:])
            for a, b in zip(alone.logits, together.logits, strict=True):
                assert_same_bits(a[0], b[row])


@every_model
def test_a_training_step_in_one_batch_and_in_two(family, device):
    """Losses of rows, and gradients of what went in, see no batch. Those of weights are sums over it: here, of two."""
    model = small(family, torch.float32, device)
    tokens = _model.prompts(model, 4, 33)
    embedding = model.get_input_embeddings()

    def step(rows):
        model.zero_grad()
        inputs = embedding(rows).detach().requires_grad_()
        logits = model(inputs_embeds=inputs, use_cache=False).logits
        losses = torch.nn.functional.cross_entropy(logits[:, :-1].mT, rows[:, 1:], reduction="none")
        losses.sum().backward()
        return losses.detach(), inputs.grad, [p.grad.clone() for p in model.parameters() if p.grad is not None]

    with torch_reduce.batch_invariant(strict=True):
        losses, inputs, weights = step(tokens)
        halves = [step(tokens[:2]), step(tokens[2:])]
    assert_same_bits(torch.cat([h[0] for h in halves]), losses)
    assert_same_bits(torch.cat([h[1] for h in halves]), inputs)
    for whole, one, two in zip(weights, halves[0][2], halves[1][2], strict=True):
        torch.testing.assert_close(one + two, whole, rtol=1e-4, atol=1e-4)


def test_checkpointing_and_autocast_keep_the_bits(device):
    model = small("llama", torch.float32, device)
    tokens = _model.prompts(model, 2, 20)
    with torch_reduce.batch_invariant(strict=True):
        expected = _model.gradients(model, tokens)
        # Releases of transformers before this name have the other one, which warns where both are.
        names = ("activation_checkpointing_enable", "gradient_checkpointing_enable")
        getattr(model, next(name for name in names if hasattr(model, name)))({"use_reentrant": False})
        model.train()
        for a, b in zip(_model.gradients(model, tokens), expected, strict=True):
            assert_same_bits(a, b)
        model.eval()
        with torch.autocast(device, torch.bfloat16), torch.no_grad():
            whole = model(tokens, use_cache=False).logits
            assert_same_bits(model(tokens[:1], use_cache=False).logits, whole[:1])


@pytest.mark.cuda
@every_model
@every_float
def test_six_questions_of_a_wide_model(family, dtype, much_memory):
    much_memory(30)
    model = _model.build(family, "real", dtype, torch.device("cuda"), "sdpa")
    with torch_reduce.batch_invariant():
        assert _model.answers(model, _model.prompts(model, 4, 512)) == dict.fromkeys(_model.QUESTIONS, True)
