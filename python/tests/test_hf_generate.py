"""model.generate() with a TieredCache: what DynamicCache gives, for every architecture and every way of decoding."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: make test-python sets it up")
pytest.importorskip("transformers", reason="transformers is not installed: make test-python sets it up")

import tiny_models  # noqa: E402
from tiny_models import KINDS, assert_agree, generate, make, prompt  # noqa: E402
from transformers import DynamicCache  # noqa: E402

import tierkv  # noqa: E402
from tierkv.hf import TieredCache, TieredStreamer  # noqa: E402


def tiered(model, spec: str = "fp16", **options):
    return TieredCache(spec, model, learn=False, **options)


@pytest.mark.parametrize("kind", KINDS)
def test_greedy_is_that_of_the_dynamic_cache_over_256_tokens(kind):
    model, ids = make(kind), prompt(37)
    expected = generate(model, ids, 256)
    cache = tiered(model)
    got = generate(model, ids, 256, cache)
    assert_agree(expected, got, 37, least=16)
    assert cache.get_seq_length() == 37 + 255
    assert cache.tiered.length(cache.sequence_ids[0]) == 37 + 255


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_models_are_served(dtype):
    model, ids = make("llama").to(dtype), prompt(20)
    # oneDNN's half-precision kernels use instructions that some virtual machines announce and do not have.
    with torch.backends.mkldnn.flags(enabled=False):
        expected = generate(model, ids, 24)
        cache = tiered(model)
        assert cache.tiered.config().hot_type == ("bf16" if dtype == torch.bfloat16 else "fp16")
        # Their logits have 8 or 11 bits.
        assert_agree(expected, generate(model, ids, 24, cache), 20, tolerance=0.15 if dtype == torch.bfloat16 else 0.05)


@pytest.mark.parametrize("kind", ["llama", "gemma3", "mistral", "phi"])
def test_left_padded_batches(kind):
    model, lengths = make(kind), [50, 9, 31]
    ids, mask = torch.zeros((3, 50), dtype=torch.long), torch.zeros((3, 50), dtype=torch.long)
    for row, length in enumerate(lengths):
        ids[row, 50 - length :] = prompt(length, seed=row)[0]
        mask[row, 50 - length :] = 1
    expected = generate(model, ids, 40, attention_mask=mask)
    cache = tiered(model)
    got = generate(model, ids, 40, cache, attention_mask=mask)
    assert_agree(expected, got, 50)
    # Padding is not stored.
    assert [cache.tiered.length(seq) for seq in cache.sequence_ids] == [length + 39 for length in lengths]


def test_padding_in_the_middle_as_a_second_turn_has_it():
    model, ids = make("llama"), prompt(60, batch=2)
    mask = torch.ones((2, 60), dtype=torch.long)
    mask[0, :7], mask[1, 20:33], mask[1, 40] = 0, 0, 0
    model.set_attn_implementation("sdpa")
    with torch.no_grad():
        expected = model(ids, attention_mask=mask, position_ids=(mask.cumsum(-1) - 1).clamp(min=0)).logits
        cache = tiered(model)
        first = model(
            ids[:, :30],
            attention_mask=mask[:, :30],
            position_ids=(mask.cumsum(-1) - 1).clamp(min=0)[:, :30],
            past_key_values=cache,
        )
        second = model(
            ids[:, 30:], attention_mask=mask, position_ids=(mask.cumsum(-1) - 1).clamp(min=0)[:, 30:], past_key_values=cache
        )
    got = torch.cat([first.logits, second.logits], dim=1)
    real = mask.bool()
    assert (got - expected)[real].abs().max() < 0.03 * expected[real].std()


@pytest.mark.parametrize("kind", ["llama", "gemma3"])
def test_beam_search_reorders(kind):
    model, ids = make(kind), prompt(21, batch=2)
    options = {"num_beams": 4, "num_return_sequences": 2, "output_scores": True, "length_penalty": 0.0}
    expected = generate(model, ids, 30, **options)
    cache = tiered(model)
    got = generate(model, ids, 30, cache, **options)
    assert torch.allclose(expected.sequences_scores, got.sequences_scores, rtol=2e-3, atol=2e-3)
    assert (expected.sequences == got.sequences).float().mean() > 0.9
    assert len(cache.tiered.sequences()) == 8


def test_sampling_draws_the_same():
    model, ids = make("qwen2"), prompt(15, batch=3)
    torch.manual_seed(5)
    expected = generate(model, ids, 40, do_sample=True, top_k=20)
    torch.manual_seed(5)
    got = generate(model, ids, 40, tiered(model), do_sample=True, top_k=20)
    # A draw may fall between two tokens whose border moved by rounding; what comes before is the same.
    same = (expected.sequences == got.sequences).long().cumprod(dim=1).sum(dim=1) - 15
    assert same.min() >= 8
    for row in range(3):
        step = min(int(same[row]), 39)
        assert (expected.logits[step][row] - got.logits[step][row]).abs().max() < 0.03 * expected.logits[step][row].std()


@pytest.mark.parametrize("kind", ["llama", "gemma3"])
@pytest.mark.parametrize("how", ["assistant", "prompt_lookup"])
def test_assisted_decoding_crops(kind, how):
    model, ids = make(kind), prompt(12).repeat(1, 3)
    expected = generate(model, ids, 48)
    # The assistant is the same model with a little noise: right often, and wrong often.
    if how == "assistant":
        assistant = make(kind)
        with torch.no_grad():
            for parameter in assistant.parameters():
                parameter.add_(0.02 * parameter.std() * torch.randn_like(parameter)) if parameter.numel() > 1 else None
        options = {"assistant_model": assistant}
    else:
        # 4.x wants an end to look for; this one never comes.
        options = {"prompt_lookup_num_tokens": 4, "eos_token_id": 10**6}
    cache = tiered(model)
    got = model.generate(
        ids, attention_mask=torch.ones_like(ids), past_key_values=cache, max_new_tokens=48, do_sample=False, **options
    )
    same = int((expected.sequences[0] == got[0, : expected.sequences.shape[1]]).long().cumprod(0).sum())
    if same < expected.sequences.shape[1]:
        logits, step = expected.logits[same - 36][0], same - 36
        one, other = int(expected.sequences[0, same]), int(got[0, same])
        assert step >= 8 and float(logits[one] - logits[other]) < 0.06 * float(logits.std())


def test_chunked_prefill_reads_the_prompt_in_pieces():
    model, ids = make("llama"), prompt(130)
    expected = generate(model, ids, 20)
    assert_agree(expected, generate(model, ids, 20, tiered(model), prefill_chunk_size=32), 130)


def test_a_conversation_goes_on_with_the_same_cache():
    model, ids = make("qwen3"), prompt(30)
    cache = tiered(model)
    first = generate(model, ids, 10, cache)
    longer = torch.cat([first.sequences, prompt(8, seed=9)], dim=1)
    expected = generate(model, longer, 10, DynamicCache())
    assert_agree(expected, generate(model, longer, 10, cache), longer.shape[1])


def test_a_prompt_is_read_once_and_gone_on_from_many_times():
    model, ids = make("llama"), prompt(90)
    shared = tiered(model)
    with torch.no_grad():
        model(ids, past_key_values=shared)
    before = shared.memory_usage().total_bytes
    for seed in range(3):
        question = torch.cat([ids, prompt(5, seed=seed + 1)], dim=1)
        expected = generate(model, question, 8, DynamicCache())
        assert_agree(expected, generate(model, question, 8, copy.deepcopy(shared)), question.shape[1])
    assert shared.get_seq_length() == 90 and len(shared.tiered.sequences()) == 1
    assert shared.memory_usage().total_bytes <= 2 * before


@pytest.mark.parametrize("policy", ["h2o", "snapkv", "tova", "streaming_llm", "pyramidkv", "scissorhands"])
def test_eviction_policies_by_name(policy):
    model, ids = make("llama"), prompt(100)
    cache = tiered(model, f"fp16,evict={policy}", max_seq_len=64)
    generate(model, ids, 40, cache)
    kept = [len(cache.tiered.positions(cache.sequence_ids[0], layer, 0)) for layer in range(3)]
    assert sum(kept) <= 64 * 3 and cache.get_seq_length() == 139


def test_balanced_takes_less_memory_and_stays_close():
    model, ids = make("llama", hidden_size=256, initializer_range=0.05), prompt(1500)
    with torch.no_grad():
        expected = model(ids, past_key_values=DynamicCache()).logits
        cache = tiered(model, "balanced")
        got = model(ids, past_key_values=cache).logits
    assert cache.memory_usage().compression() > 2.5
    assert float((got - expected).pow(2).mean().sqrt() / expected.std()) < 0.15


def test_the_streamer_shows_tiers(capsys):
    class Words:
        """Enough of a tokenizer for a streamer."""

        def decode(self, tokens, **options):
            return " ".join(f"w{int(token)}" for token in tokens) + " "

    model, cache = make("llama"), None
    cache = tiered(model, "balanced")
    generate(model, prompt(200), 20, cache, streamer=TieredStreamer(Words(), cache, every=8))
    shown = capsys.readouterr()
    assert shown.out.count("w") >= 20
    assert shown.err.count("[S") + shown.err.count("[H") >= 2 and "bits a value" in shown.err
    assert "tier" in cache._repr_html_() and "200" not in repr(type(cache)) and "tokens" in repr(cache)


def test_without_a_tiered_cache_the_model_is_as_before():
    model, ids = make("gemma3"), prompt(60, batch=2)
    mask = torch.ones_like(ids)
    mask[1, :13] = 0
    with torch.no_grad():
        plain = model(ids, attention_mask=mask, use_cache=False).logits
        expected = generate(model, ids, 12, attention_mask=mask)
        tiered(model)
        assert model.config._attn_implementation == "tierkv"
        torch.testing.assert_close(model(ids, attention_mask=mask, use_cache=False).logits, plain)
    assert torch.equal(generate(model, ids, 12, attention_mask=mask).sequences, expected.sequences)


def test_tiny_models_are_tiny():
    assert sum(p.numel() for p in make("llama").parameters()) < 1_000_000
    assert tiny_models.VOCABULARY == 211 and tierkv.__version__
