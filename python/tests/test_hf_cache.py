"""TieredCache call by call: rows of a batch, refusals that lose nothing, what is known of a model."""

from __future__ import annotations

import copy
import pickle
import re
import threading
import time

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: make test-python sets it up")
transformers = pytest.importorskip("transformers", reason="transformers is not installed: make test-python sets it up")

from conftest import ROOT  # noqa: E402
from tiny_models import COMMON, DEVICE, KINDS, make, prompt  # noqa: E402

import tierkv  # noqa: E402
from tierkv.hf import TieredCache, shape_of_model  # noqa: E402
from tierkv.hf.attention import attention  # noqa: E402
from tierkv.hf.models import fingerprint_of, grams_of, ropes_of  # noqa: E402


def read(model, ids, cache, **options):
    with torch.no_grad():
        return model(ids, past_key_values=cache, **options).logits


def tiered(model, spec: str = "fp16", **options):
    return TieredCache(spec, model, learn=False, **options)


def test_rows_repeat_select_and_reorder():
    model, ids = make("llama"), prompt(20, batch=2)
    cache, token = tiered(model), prompt(1, seed=4)
    read(model, ids, cache)
    cache.batch_repeat_interleave(2)
    many = read(model, token.expand(4, 1), cache)
    cache.crop(-1)
    torch.testing.assert_close(many[0], many[1])
    assert not torch.allclose(many[1], many[2])
    cache.reorder_cache(torch.tensor([3, 0, 0, 2]))
    turned = read(model, token.expand(4, 1), cache)
    cache.crop(-1)
    torch.testing.assert_close(turned, many[[3, 0, 0, 2]])
    cache.batch_select_indices(torch.tensor([0, 2]))
    # Matrices of another height are multiplied in another order.
    torch.testing.assert_close(read(model, token.expand(2, 1), cache), many[[3, 0]], rtol=1e-2, atol=1e-3)
    assert len(cache.tiered.sequences()) == 2
    cache.batch_select_indices(torch.tensor([False, True]))
    assert len(cache.sequence_ids) == 1
    with pytest.raises(tierkv.InvalidArgument):
        cache.reorder_cache(torch.tensor([5]))


def test_crop_in_both_generations():
    model, ids = make("llama"), prompt(30)
    cache = tiered(model)
    full = read(model, ids, cache)
    cache.crop(-10)
    assert cache.get_seq_length() == 20
    torch.testing.assert_close(read(model, ids[:, 20:], cache), full[:, 20:], atol=0.02, rtol=0)
    cache.crop(25)
    assert cache.get_seq_length() == 25 and cache.tiered.length(cache.sequence_ids[0]) == 25
    cache.crop(100)
    assert cache.get_seq_length() == 25
    read(model, ids[:, 25:], cache)
    cache.crop(torch.tensor(-5))  # as transformers 5.17 has it
    read(model, ids[:, 25:26], cache)
    assert [layer.seen for layer in cache.layers] == [26] * 3
    cache.crop(25)
    cache.crop(0)
    assert cache.get_seq_length() == (0 if transformers.__version__.startswith("4.") else 25)


def test_crop_of_padded_rows_counts_what_is_stored():
    model, ids = make("llama"), prompt(30, batch=2)
    mask = torch.ones_like(ids)
    mask[1, :12] = 0
    cache = tiered(model)
    read(model, ids, cache, attention_mask=mask)
    cache.crop(-5)
    assert [cache.tiered.length(seq) for seq in cache.sequence_ids] == [25, 13]
    cache.reorder_cache(torch.tensor([1, 1]))
    read(model, ids[:, 25:], cache, attention_mask=mask[[1, 1]])
    assert [cache.tiered.length(seq) for seq in cache.sequence_ids] == [18, 18]


def test_reset_starts_anew():
    model = make("qwen2")
    cache = tiered(model)
    expected = read(model, prompt(10), cache)
    read(model, prompt(5, seed=1), cache)
    cache.reset()
    assert cache.get_seq_length() == 0 and not cache.tiered.sequences()
    torch.testing.assert_close(read(model, prompt(10), cache), expected)
    read(model, prompt(10, batch=1), cache)


def test_a_refused_pass_leaves_the_cache_as_it_was():
    model, ids = make("llama"), prompt(40)
    cache = tiered(model, "fp16", max_seq_len=50)
    read(model, ids, cache)
    for layer in cache.layers:
        assert layer.seen == 40
    with pytest.raises(tierkv.ResourceExhausted, match="max_seq_len"):
        read(model, prompt(20, seed=1), cache)
    assert cache.get_seq_length() == 40 and {layer.seen for layer in cache.layers} == {40}
    assert cache.tiered.length(cache.sequence_ids[0]) == 40
    read(model, prompt(5, seed=1), cache)
    assert cache.get_seq_length() == 45


def test_a_pass_that_died_elsewhere_is_rolled_back_by_hand():
    model, ids = make("llama"), prompt(10)
    cache = tiered(model)
    expected = read(model, ids, tiered(model))

    def die(*arguments):
        raise KeyboardInterrupt

    hook = model.model.layers[1].register_forward_pre_hook(die)
    with pytest.raises(KeyboardInterrupt):
        read(model, ids, cache)
    hook.remove()
    with pytest.raises(tierkv.FailedPrecondition, match="roll_back"):
        read(model, ids, cache)
    cache.roll_back()
    torch.testing.assert_close(read(model, ids, cache), expected)


def test_what_cannot_be_done_is_refused_with_a_sentence():
    model, ids = make("llama"), prompt(10)
    cache = tiered(model)
    with pytest.raises(tierkv.InvalidArgument, match="no_grad"):
        model(ids, past_key_values=cache)
    read(model, ids, cache)
    with pytest.raises(tierkv.InvalidArgument, match="batch of 2"):
        read(model, prompt(3, batch=2), cache)
    mask = torch.ones((1, 13), dtype=torch.long)
    mask[0, 4] = 0
    with pytest.raises(tierkv.InvalidArgument, match="padding"):
        read(model, prompt(3), cache, attention_mask=mask)
    with pytest.raises(tierkv.Unsupported, match="mask"):
        read(model, prompt(3), cache, attention_mask=torch.zeros((1, 1, 3, 13)))
    with pytest.raises(tierkv.FailedPrecondition, match="cache, not on a layer"):
        cache.layers[0].crop(-1)
    with pytest.raises(TypeError, match="save"):
        pickle.dumps(cache)
    assert cache.get_seq_length() == 10
    other = make("qwen3")
    other.set_attn_implementation("tierkv")
    with pytest.raises(tierkv.InvalidArgument, match="another|was made for"):
        read(other, ids, tiered(model))


def test_another_thread_in_the_middle_of_a_pass_is_told_to_take_its_own():
    model, ids = make("llama"), prompt(10)
    expected, cache, heard = read(model, ids, tiered(model)), tiered(model), []

    def other():
        try:
            read(model, prompt(3), cache)
        except tierkv.FailedPrecondition as error:
            heard.append(str(error))

    def between(*_):
        hook.remove()
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()

    hook = model.model.layers[1].register_forward_pre_hook(between)
    torch.testing.assert_close(read(model, ids, cache), expected, rtol=0, atol=0)
    assert len(heard) == 1 and "copy.deepcopy" in heard[0]
    assert cache.get_seq_length() == cache.tiered.length(cache.sequence_ids[0]) == 10


def test_rows_that_change_their_type_or_shape_are_refused_and_nothing_is_lost():
    model = make("llama")
    cache, config = tiered(model), model.config
    heads, dim = config.num_key_value_heads, config.hidden_size // config.num_attention_heads
    query, key = torch.randn(1, config.num_attention_heads, 1, dim), torch.randn(1, heads, 1, dim)

    def one_pass(keys, values):
        for layer in range(config.num_hidden_layers):
            keys, values = cache.update(keys, values, layer)
            attention(model.model.layers[layer].self_attn, query, keys, values, None, scaling=0.2)

    with torch.no_grad():
        one_pass(key, key)
        for keys, values, sentence in (
            (key.double(), key.double(), "float32, float16 or bfloat16"),
            (key, key.double(), "float32, float16 or bfloat16"),
            (key, key[..., :-1], "must be|are not"),
            (key[:, :1], key[:, :1], "was made for"),
        ):
            with pytest.raises(tierkv.InvalidArgument, match=sentence):
                one_pass(keys, values)
            cache.roll_back()
            assert {cache.tiered.length(cache.sequence_ids[0], layer) for layer in range(config.num_hidden_layers)} == {1}
            assert {layer.seen for layer in cache.layers} == {1}
        one_pass(key, key.to(torch.bfloat16))
    assert cache.get_seq_length() == 2
    cache.tiered.close()
    with pytest.raises(tierkv.FailedPrecondition, match="closed"):
        read(model, prompt(1), cache)


def test_results_of_all_layers_are_of_the_models_type_and_stay():
    model = make("llama").to(torch.bfloat16)
    cache, kept = tiered(model), []
    read(model, prompt(9), cache)
    for layer in model.model.layers:
        layer.self_attn.o_proj.register_forward_pre_hook(lambda _, given: kept.append((given[0], given[0].clone())))
    for _ in range(3):
        read(model, prompt(1), cache)
    assert len(kept) == 3 * len(cache.layers) and all(was.dtype is torch.bfloat16 for was, _ in kept)
    assert len({was.data_ptr() for was, _ in kept}) == len(kept), "each has memory of its own"
    assert all(torch.equal(was, copied) for was, copied in kept)


def test_a_model_with_another_attention_is_told_to_use_ours():
    model, ids = make("llama"), prompt(10)
    cache = tiered(model)
    model.set_attn_implementation("sdpa")
    read(model, ids, cache)
    with pytest.raises(tierkv.FailedPrecondition, match="set_attn_implementation|roll_back"):
        read(model, ids, cache)


def odd(kind: str, **changes):
    config = transformers.AutoConfig.for_model(kind, **changes)
    return transformers.AutoModelForCausalLM.from_config(config)


def t5():
    config = transformers.T5Config(vocab_size=99, d_model=64, d_kv=32, d_ff=64, num_layers=1, num_heads=2)
    return transformers.T5ForConditionalGeneration(config)


def deepseek():
    small = {"vocab_size": 99, "hidden_size": 64, "num_hidden_layers": 1, "intermediate_size": 64, "moe_intermediate_size": 32}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
    experts = {"n_routed_experts": 4, "n_group": 1, "topk_group": 1, "num_experts_per_tok": 2, "first_k_dense_replace": 1}
    return odd("deepseek_v3", **small, **heads, **experts)


REFUSED = {
    "t5": (t5, "encoder"),
    "mamba": (lambda: odd("mamba", vocab_size=99, hidden_size=64, num_hidden_layers=1), "AttentionInterface|layers"),
    "bloom": (lambda: odd("bloom", vocab_size=99, hidden_size=64, n_layer=1, n_head=2), "AttentionInterface"),
    "deepseek_v3": (deepseek, "MLA"),
    "llama": (lambda: make("llama", num_attention_heads=16, num_key_value_heads=2), "8 channels"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_models_that_cannot_be_served_are_refused_by_name(name):
    build, reason = REFUSED[name]
    with pytest.raises(tierkv.Unsupported, match=name) as refused:
        TieredCache("balanced", build())
    assert re.search(reason, str(refused.value)), str(refused.value)


@pytest.mark.parametrize("kind", KINDS)
def test_shapes_and_windows_are_found(kind):
    model = make(kind)
    shape = shape_of_model(model)
    assert (shape.num_layers, shape.num_heads, shape.head_dim) == (3, 4, KINDS[kind][1].get("head_dim", 32))
    windows = {"gemma3": (24, 0, 24), "mistral": (40, 40, 40)}.get(kind, (0, 0, 0))
    assert shape.windows == windows
    config = tiered(model).tiered.config()
    assert tuple(config.layer(layer).window for layer in range(3)) == windows
    assert config.num_kv_heads == COMMON["num_key_value_heads"]


def rotary_of(model, layer: int):
    """cos and sin as the model makes them, for positions 0 to 9."""
    base, positions = model.model, torch.arange(10)[None]
    probe, kind = torch.zeros((1, 10, 8)), getattr(model.config, "layer_types", ["full_attention"] * 3)[layer]
    if hasattr(base, "rotary_emb_local") and kind == "sliding_attention":
        return base.rotary_emb_local(probe, positions)
    try:
        return base.rotary_emb(probe, positions, kind)
    except TypeError:
        return base.rotary_emb(probe, positions)


@pytest.mark.parametrize("kind", KINDS)
def test_rope_is_what_the_model_turns_by(kind):
    model = make(kind)
    shape = shape_of_model(model)
    ropes = ropes_of(model, shape)
    for layer in range(3):
        cos, sin = rotary_of(model, layer)
        width = cos.shape[-1]
        rows = torch.randn(10, width)
        half = width // 2
        turned = rows * cos[0] + torch.cat([-rows[:, half:], rows[:, :half]], dim=1) * sin[0]
        expected = rows.double()
        for position in range(10):
            for a, b, angle in ropes[layer]:
                c, s = (
                    torch.cos(torch.tensor(position * angle, dtype=torch.double)),
                    torch.sin(torch.tensor(position * angle, dtype=torch.double)),
                )
                x, y = rows[position, a].double(), rows[position, b].double()
                expected[position, a], expected[position, b] = x * c - y * s, x * s + y * c
        torch.testing.assert_close(turned.double(), expected, atol=1e-4, rtol=1e-4)
    grams = grams_of(model, shape)
    assert all(gram is not None and gram.shape == (4, shape.head_dim, shape.head_dim) for gram in grams)


def test_fingerprints_tell_models_apart():
    one, same, other = make("llama"), make("llama"), make("llama", seed=1)
    numbers = [fingerprint_of(model, shape_of_model(model)) for model in (one, same, other)]
    assert numbers[0] == numbers[1] != numbers[2]


def structured(seed: int = 0, **changes):
    """A model some of whose channels matter more than others, as those of real models do: there is something to learn."""
    model = make("llama", seed=seed, hidden_size=256, num_hidden_layers=2, **changes)
    decay = torch.exp(-(torch.arange(64) % 32) / 5.0)
    with torch.no_grad():
        for layer in model.model.layers:
            for project in (layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj):
                project.weight.view(-1, 64, 256).mul_(decay[None, :, None])
    return model


def wait_for_tables(cache):
    patience = time.monotonic() + 200  # the thread that solves has the lowest priority, and others may compute here
    while cache.learning().phase in ("gathering", "solving") and time.monotonic() < patience:
        time.sleep(0.1)
    assert cache.learning().phase == "done", cache.learning().sentence


def test_a_model_is_learned_in_passing_and_known_the_next_time(tmp_path):
    model, path = structured(), tmp_path / "model.tkc"
    cache = TieredCache("balanced", model, learn=path)
    assert cache.learning().phase == "gathering"
    for seed in range(5):
        read(model, prompt(2048, seed=seed), cache)
        cache.reset()
    wait_for_tables(cache)
    assert cache.tiered.archive_codec(0).startswith("klt") and path.exists()
    again = TieredCache("balanced", model, learn=path)
    assert again.learning().phase == "off" and again.tiered.archive_codec(0).startswith("klt")
    named = TieredCache("balanced", model, calibration=path)
    assert named.tiered.calibration().describe().id == again.tiered.calibration().describe().id
    # Stretched, the model gets a copy that turns as it does.
    for module in model.modules():
        if hasattr(module, "inv_freq"):
            module.inv_freq /= 4
    stretched = TieredCache(f"balanced,calibration={path}", model).tiered.calibration().describe()
    assert stretched.id != named.tiered.calibration().describe().id
    assert stretched.ropes == ropes_of(model, shape_of_model(model))
    assert TieredCache("balanced", model, learn=path).tiered.calibration().describe().id == stretched.id
    # Another model does not use it.
    stranger = TieredCache("balanced", structured(seed=3), learn=path)
    assert stranger.learning().phase == "gathering"
    assert TieredCache("balanced,calibrate=off", model, learn=path).tiered.calibration() is None


def test_a_model_is_learned_from_one_long_prompt(tmp_path):
    """All of it comes to the first layer before the second one sees any."""
    model, path = structured(max_position_embeddings=16384), tmp_path / "model.tkc"
    cache = TieredCache("balanced", model, learn=path)
    read(model, prompt(9000), cache)
    wait_for_tables(cache)
    assert path.exists() and cache.tiered.archive_codec(1).startswith("klt")


def as_on_a_device(cache):
    """Does in host memory what a cache does with prompts on a device: torch attends to them, and learning is shown queries."""
    cache.exact_prompts = cache._learns = True
    cache.observe_every = cache._observe_every()
    cache._follow_learning()
    return cache


@pytest.mark.skipif(DEVICE != "cpu", reason="a device does it anyway")
def test_a_prompt_that_torch_attends_to_is_learned_from(tmp_path):
    model, path = structured(max_position_embeddings=16384), tmp_path / "model.tkc"
    cache = as_on_a_device(TieredCache("balanced,archive=auto-cuda", model, learn=path))
    assert cache.gathers == 8192 and cache.observe_every == 0
    calls = []
    step = cache.step

    def counted(*arguments):
        calls.append((arguments[4].shape[2], arguments[6] is not None, arguments[11]))
        step(*arguments)

    cache.step = counted
    # Left padding, of two lengths; then one that ends it.
    mask = torch.ones((2, 1500), dtype=torch.long)
    mask[0, :300] = 0
    read(model, prompt(1500, batch=2), cache, attention_mask=mask)
    assert calls[:2] == [(1500, True, True)] * 2, "an attention for each layer, which learning sees"
    assert [cache.tiered.length(seq) for seq in cache.sequence_ids] == [1200, 1500]
    assert cache.learning().tokens == 2700
    twin = copy.deepcopy(cache)
    assert twin.gathers == 0 and not twin._learns, "of host memory: every call observes"
    cache.reset()
    calls.clear()
    out = read(model, prompt(8000), cache)
    # As many as it wants, at most 4,096 at a time; the rest is stored.
    assert calls == [(4096, True, True), (8192 - 2700 - 4096, True, True), (8000 - 8192 + 2700, False, False)] * 2
    assert cache.learning().tokens >= 8192 and cache.learning().phase != "gathering"
    plain = read(model, prompt(8000), transformers.DynamicCache(config=model.config))
    assert float((out - plain).abs().max()) < 1e-3 * float(plain.std()), "the results are torch's"
    read(model, prompt(1), cache)
    assert cache.gathers == 0
    wait_for_tables(cache)
    read(model, prompt(1), cache)
    assert not cache._learns and cache.observe_every == 0
    assert path.exists() and cache.tiered.archive_codec(0).startswith("klt")
    # What waited for the tables is archived as the sequence grows.
    read(model, prompt(300), cache)
    cache.tiered.flush()
    assert cache.memory_usage().tier[3].tokens > 0.9 * 8300 * 2 * 2  # of two layers of two KV heads
    # Nothing is shown to anybody afterwards.
    cache.reset()
    calls.clear()
    read(model, prompt(600), cache)
    assert calls == [(600, False, False)] * 2


@pytest.mark.skipif(DEVICE != "cpu", reason="needs a padding in the middle, which generate() does not make")
def test_odd_padding_is_learned_from_too(tmp_path):
    model = structured()
    cache = as_on_a_device(TieredCache("balanced", model, learn=tmp_path / "model.tkc"))
    mask = torch.ones((2, 40), dtype=torch.long)
    mask[0, 5:9] = 0
    mask[1, 30:] = 0
    read(model, prompt(40, batch=2), cache, attention_mask=mask)
    assert cache.learning().tokens == 66
    assert [cache.tiered.length(seq) for seq in cache.sequence_ids] == [36, 30]


def test_the_archives_for_devices():
    from tierkv.hf.cache import DEVICE_ARCHIVES

    for name, wanted in zip(("auto", "auto1", "auto3"), ("rot4/mid2", "rot4/mid2", "rot4")):
        config = tierkv.configure(f"balanced,archive={DEVICE_ARCHIVES[name]}", num_layers=1, num_kv_heads=1, head_dim=64)
        assert config.wants_calibration()
        with tierkv.Cache(config) as cache:
            assert cache.archive_codec(0) == wanted


def test_tables_of_keys_in_another_order_are_refused():
    """SmolLM2's, made from its GGUF file: the channels of a pair stand side by side there, and half a head apart here."""
    path = ROOT / "data" / "calibration" / "smollm2-135m.tkc"
    shape = {"num_hidden_layers": 30, "hidden_size": 576, "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64}
    model = make("llama", **shape)
    with pytest.raises(tierkv.InvalidArgument, match="another order.*pairs 0 with 1 .*pairs 0 with 32"):
        TieredCache("balanced", model, calibration=path)
    with pytest.raises(tierkv.InvalidArgument, match="another order"):
        TieredCache(f"balanced,calibration={path}", model)
    with pytest.raises(tierkv.InvalidArgument, match="30 layers"):
        TieredCache("balanced", make("llama"), calibration=path)
