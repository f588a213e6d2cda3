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


@pytest.mark.slow
@pytest.mark.parametrize(("family", "dtype"), [("llama", torch.float32), ("gpt2", torch.bfloat16)])
def test_a_compiled_model(family, dtype, device):
    # "sdpa" has other ops where it is traced: always a mask, and so a copy of keys for each head.
    model = small(family, dtype, device, "eager")
    compiled = torch.compile(model, dynamic=True)
    tokens = _model.prompts(model, 5, 37)
    with torch_reduce.batch_invariant(strict=True):
        with torch.no_grad():
            expected = model(tokens, use_cache=False).logits
            assert_same_bits(compiled(tokens, use_cache=False).logits, expected)
            assert_same_bits(compiled(tokens[1:3, :21], use_cache=False).logits, expected[1:3, :21])
        grads = _model.gradients(model, tokens)
        for a, e in zip(_model.gradients(compiled, tokens), grads, strict=True):
            assert_same_bits(a, e)


@pytest.mark.parametrize("family", ["mixtral", "gemma2"])
def test_experts_and_windows(family, device):
    model = small(family, torch.float32, device, "eager")
    with torch_reduce.batch_invariant(strict=True):
        assert _model.answers(model, _model.prompts(model, 5, 37)) == dict.fromkeys(_model.QUESTIONS, True)


# Of other kinds: (kind, class, configuration).
_TEXT = {
    "vocab_size": 211, "hidden_size": 32, "intermediate_size": 72, "num_hidden_layers": 2, "num_attention_heads": 4,
    "max_position_embeddings": 64, "pad_token_id": 0,
}  # fmt: skip
_PAIR = {
    "vocab_size": 211, "d_model": 32, "encoder_layers": 1, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 72, "decoder_ffn_dim": 72, "dropout": 0.0, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2,
}  # fmt: skip
_NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
OTHERS = {
    "bert": ("encoder", "MaskedLM", _TEXT | _NO_DROPOUT),
    "modernbert": ("encoder", "MaskedLM", _TEXT | {"cls_token_id": 1, "sep_token_id": 2}),
    "deepseek_v3": (
        "decoder",
        "CausalLM",
        _TEXT | {
            "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "kv_lora_rank": 16,
            "n_group": 1, "q_lora_rank": 24, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 16,
            "topk_group": 1, "first_k_dense_replace": 1, "bos_token_id": None, "eos_token_id": None,
        },
    ),
    # Linear attention in chunks: a triangular system in each.
    "qwen3_next": (
        "decoder",
        "CausalLM",
        _TEXT | {
            "num_key_value_heads": 2, "head_dim": 8, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
            "linear_key_head_dim": 8, "linear_value_head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2,
            "moe_intermediate_size": 24, "shared_expert_intermediate_size": 24,
            "layer_types": ["linear_attention", "full_attention"],
        },
    ),
    "opt": ("decoder", "CausalLM", _TEXT | {"ffn_dim": 72, "word_embed_proj_dim": 32, "dropout": 0.0}),
    "t5": (
        "pair",
        "Seq2SeqLM",
        {
            "vocab_size": 211, "d_model": 32, "d_kv": 8, "d_ff": 72, "num_layers": 2, "num_heads": 4,
            "dropout_rate": 0.0, "decoder_start_token_id": 0,
        },
    ),
    "whisper": (
        "sound",
        "SpeechSeq2Seq",
        _PAIR | {"num_mel_bins": 8, "max_source_positions": 20, "max_target_positions": 64},
    ),
    "vit": ("image", "ImageClassification", _TEXT | _NO_DROPOUT | {"image_size": 16, "patch_size": 4}),
    "convnext": (
        "image",
        "ImageClassification",
        {"depths": [1, 1, 1, 1], "hidden_sizes": [8, 12, 16, 20], "patch_size": 2},
    ),
}  # fmt: skip


@every_float
@pytest.mark.parametrize("family", OTHERS)
def test_models_of_other_kinds(family, dtype, device):
    """Rows alone and among others, runs and gradients; of decoders prefixes as well."""
    import transformers  # optional, and slow to import

    kind, name, settings = OTHERS[family]
    transformers.logging.set_verbosity_error()
    config = transformers.AutoConfig.for_model(family, **settings)
    torch.manual_seed(0)
    model = getattr(transformers, f"AutoModelFor{name}").from_config(config).to(device, dtype).eval()
    tokens = torch.randint(3, 211, (5, 19), device=device)
    first = {
        "image": {"pixel_values": torch.randn(5, 3, 16, 16, device=device, dtype=dtype)},
        "sound": {"input_features": torch.randn(5, 8, 40, device=device, dtype=dtype)},
    }.get(kind, {"input_ids": tokens})
    whole = {**first, **({"decoder_input_ids": tokens} if kind in ("pair", "sound") else {})}

    def logits(rows=slice(None), columns=slice(None)):
        last = list(whole)[-1]
        return model(
            **{k: v[rows] if k != last or kind == "image" else v[rows, columns] for k, v in whole.items()}
        ).logits

    def gradients():
        parameters = [p for p in model.parameters() if p.requires_grad]
        return torch.autograd.grad(logits().square().mean(), parameters, allow_unused=True)

    with torch_reduce.batch_invariant(strict=True) as mode:
        with torch.no_grad():
            expected = logits()
            assert_same_bits(logits(), expected, "twice")
            assert_same_bits(logits(slice(1)), expected[:1], "alone")
            assert_same_bits(logits(slice(1, 4)), expected[1:4], "three")
            if kind not in ("image", "encoder"):
                assert_same_bits(logits(columns=slice(7)), expected[:, :7], "prefix")
        found = [gradients() for _ in "ab"]
    for a, b in zip(*found, strict=True):
        assert (a is None and b is None) or torch.equal(a, b)
    assert not any(op.uncovered for op in mode.report())


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
