"""Models of a few thousand random weights, in the shapes of real architectures."""

from __future__ import annotations

import os
from typing import Any

import torch
import transformers
from transformers import (
    Gemma3TextConfig,
    LlamaConfig,
    MistralConfig,
    Phi3Config,
    PhiConfig,
    Qwen2Config,
    Qwen3Config,
)

VOCABULARY = 211

# Models this small gain nothing from a second thread, and lose a lot where others compute: threads of OpenMP wait by polling.
torch.set_num_threads(1)

# TIERKV_TEST_DEVICE=cuda runs the tests of tierkv.hf on a device, in a build with CUDA: python -m pytest python/tests/test_hf_*.py
DEVICE = os.environ.get("TIERKV_TEST_DEVICE", "cpu")
if DEVICE != "cpu":
    torch.set_default_device(DEVICE)

COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "initializer_range": 0.15,
    "bos_token_id": 1,
    "eos_token_id": None,
    "pad_token_id": 0,
}
KINDS: dict[str, tuple[type, dict[str, Any]]] = {
    "llama": (LlamaConfig, {}),
    "qwen2": (Qwen2Config, {}),
    "qwen3": (Qwen3Config, {"head_dim": 48}),
    "mistral": (MistralConfig, {"sliding_window": 40}),
    "phi": (PhiConfig, {"partial_rotary_factor": 0.5}),
    "phi3": (Phi3Config, {}),
    "gemma3": (
        Gemma3TextConfig,
        {"head_dim": 64, "sliding_window": 24, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
    ),
}


def make(kind: str, seed: int = 0, **changes: Any) -> Any:
    config, more = KINDS[kind]
    torch.manual_seed(seed)
    # The same weights everywhere: made in host memory.
    with torch.device("cpu"):
        model = transformers.AutoModelForCausalLM.from_config(config(**{**COMMON, **more, **changes}), attn_implementation="sdpa")
    model.to(DEVICE)
    model.generation_config.pad_token_id = 0
    return model.eval()


def prompt(tokens: int, batch: int = 1, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator("cpu").manual_seed(seed)
    return torch.randint(2, VOCABULARY, (batch, tokens), generator=generator, device="cpu").to(DEVICE)


def generate(model: Any, ids: torch.Tensor, tokens: int, cache: Any = None, **options: Any) -> Any:
    options = {"do_sample": False, "max_new_tokens": tokens, "return_dict_in_generate": True, "output_logits": True, **options}
    mask = options.pop("attention_mask", torch.ones_like(ids))
    return model.generate(ids, attention_mask=mask, past_key_values=cache, **options)


def assert_agree(expected: Any, got: Any, start: int, tolerance: float = 0.03, least: int = 0) -> None:
    """The same tokens; or up to where two were within rounding of each other. `tolerance` is a share of the logits' spread."""
    assert expected.sequences.shape == got.sequences.shape
    for row in range(expected.sequences.shape[0]):
        for step, (mine, theirs) in enumerate(zip(got.logits, expected.logits)):
            bound = tolerance * float(theirs[row].std())
            off = float((mine[row] - theirs[row]).abs().max())
            assert off <= bound, f"row {row}, step {step}: logits are {off} apart, {bound} are rounding"
            one, other = int(expected.sequences[row, start + step]), int(got.sequences[row, start + step])
            if one != other:
                assert float(theirs[row, one] - theirs[row, other]) <= 2 * bound
                assert step >= least, f"row {row} parts after {step} tokens"
                break
