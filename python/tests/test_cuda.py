"""CUDA devices: what is refused without one, and what a cache does there. The latter needs a device, and is skipped elsewhere."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import DIM, HEADS, KV_HEADS, LAYERS, SHAPE, reference, rows

import tierkv

WHY_NOT = tierkv.cuda.why_not()


def on_device(test):
    return pytest.mark.cuda(pytest.mark.skipif(WHY_NOT is not None, reason=f"no CUDA device: {WHY_NOT}")(test))



class OnADevice:
    """What numba and others show of an array; the pointer is never followed here."""

    def __init__(self, shape: tuple[int, ...], typestr: str = "<f4") -> None:
        self.__cuda_array_interface__ = {"shape": shape, "typestr": typestr, "data": (4096, False), "version": 3, "strides": None}


def test_an_array_on_a_device_is_refused_where_none_is_attached(cache):
    seq, array = cache.add_sequence(), OnADevice((3, KV_HEADS, DIM))
    for call in (
        lambda: cache.append(seq, 0, array, array),
        lambda: cache.append_many(0, [tierkv.AppendItem(seq, array, array)]),
        lambda: cache.attention(seq, 0, OnADevice((1, HEADS, DIM)), np.empty((1, HEADS, DIM), np.float32)),
    ):
        with pytest.raises(tierkv.Unsupported, match=r"tierkv\.cuda\.attach"):
            call()
    assert cache.length(seq) == 0


@pytest.mark.skipif(WHY_NOT is None, reason="there is a device")
def test_attaching_without_a_device_says_why(cache):
    assert not tierkv.cuda.available() and WHY_NOT
    with pytest.raises(tierkv.Error) as caught:
        tierkv.cuda.attach(cache)
    assert str(caught.value) == WHY_NOT
    with pytest.raises(tierkv.FailedPrecondition, match="attach"):
        cache._core.cuda_usage()
    tierkv.cuda.detach(cache)  # nothing to do
    # And the cache is as it was.
    seq = cache.add_sequence()
    cache.append(seq, 0, rows(3, KV_HEADS), rows(3, KV_HEADS))


def test_many_sequences_are_appended_to_at_once(cache):
    first, second = cache.add_sequence(), cache.add_sequence()
    items = [tierkv.AppendItem(seq, rows(4, KV_HEADS, seq), rows(4, KV_HEADS, seq + 9)) for seq in (first, second)]
    cache.append_many(0, items)
    assert [cache.length(seq, 0) for seq in (first, second)] == [4, 4]
    queries = rows(1, HEADS, 3)
    for item in items:
        found = cache.attention(item.seq, 0, queries)
        assert np.abs(found - reference(item.keys, item.values, queries)).max() < 2e-2
    # One that is refused leaves the others alone.
    items.append(tierkv.AppendItem(12345, rows(1, KV_HEADS), rows(1, KV_HEADS)))
    with pytest.raises(tierkv.NotFound):
        cache.append_many(0, items)
    assert [item.error is None for item in items] == [True, True, False]
    assert [cache.length(seq, 0) for seq in (first, second)] == [8, 8]
    with pytest.raises(tierkv.InvalidArgument):
        cache.append_many(0, [items[0], items[0]])


# --- a prompt's own attention, which torch does on a device; the same function here


def test_a_prompt_is_attended_to_as_it_is():
    torch = pytest.importorskip("torch", reason="torch is not installed: make test-python sets it up")
    pytest.importorskip("transformers", reason="transformers is not installed: make test-python sets it up")
    from tierkv.hf import prompt

    torch.manual_seed(0)
    key, value = torch.randn(2, KV_HEADS, 37, DIM, device="cpu"), torch.randn(2, KV_HEADS, 37, DIM, device="cpu")
    query = torch.randn(2, HEADS, 37, DIM, device="cpu")

    def wanted(row, places, window=0):
        q, k, v = (t[row, :, places].transpose(0, 1).numpy() for t in (query, key, value))
        if not window:
            return reference(k, v, q)
        return np.concatenate([reference(k[max(0, i - window + 1) : i + 1], v[max(0, i - window + 1) : i + 1], q[i : i + 1])
                               for i in range(len(q))])  # fmt: skip

    everything = torch.arange(37, device="cpu")
    for window in (0, 5, 64):
        out = prompt.prompt_attention(query, key, value, [], None, None, window)
        for row in range(2):
            assert np.abs(out[row].numpy() - wanted(row, everything, window if window < 37 else 0)).max() < 1e-4
    out = prompt.prompt_attention(query, key, value, [0, 9], None, None, 0)
    assert np.abs(out[1, 9:].numpy() - wanted(1, everything[9:])).max() < 1e-4 and not out[1, :9].any()
    picks = [everything[:4], everything[torch.tensor([1, 5, 30], device="cpu")]]
    out = prompt.prompt_attention(query, key, value, [1], picks, None, 0)
    assert np.abs(out[1, picks[1]].numpy() - wanted(1, picks[1])).max() < 1e-4 and not out[0, 4:].any()
    prompt.PIECE, before = 8, prompt.PIECE
    try:
        pieces = prompt.prompt_attention(query, key, value, [], None, None, 5)
        assert np.abs(pieces[0].numpy() - wanted(0, everything, 5)).max() < 1e-4
    finally:
        prompt.PIECE = before


# --- on a device


@pytest.fixture(params=["fp16", "hot=32,warm=64,archive=even4/mid2", "hot=16,warm=0,archive=rot2/mid2"])
def pair(request):
    """A cache on the device and one on the processor, with the same settings."""
    fields = {"calibrate": "off", **SHAPE}
    with tierkv.Cache(request.param, **fields) as one, tierkv.Cache(request.param, **fields) as other:
        yield one, tierkv.cuda.attach(one), other


@on_device
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_rows_queries_and_results_stay_on_the_device(pair, dtype):
    torch = pytest.importorskip("torch")
    ours, device, other = pair
    a, b = ours.add_sequence(), other.add_sequence()
    generator = torch.Generator("cpu").manual_seed(1)

    def draw(tokens, heads):
        # [heads, tokens, dim], seen the other way round: strides as transformers has them.
        return torch.randn((heads, tokens, DIM), generator=generator, device="cpu").to(getattr(torch, dtype)).transpose(0, 1)

    for tokens in (300, 1, 1, 7):
        for layer in range(LAYERS):
            k, v, q = draw(tokens, KV_HEADS), draw(tokens, KV_HEADS), draw(min(tokens, 16), HEADS)
            ours.append(a, layer, k.cuda(), v.cuda())
            other.append(b, layer, k, v)
            found = ours.attention(a, layer, q.cuda(), observe=False)
            assert found.is_cuda and found.dtype == torch.float32
            expected = other.attention(b, layer, q, observe=False)
            assert float((found.cpu() - expected).abs().max()) < 2e-2
    device.check()
    usage = device.usage()
    assert usage.launches > 0 and 0 < usage.device_bytes <= usage.peak_bytes
    # Rows of the host go on working, and so does the processor afterwards.
    host = ours.attention(a, 0, q)
    assert not host.is_cuda
    tierkv.cuda.detach(ours)
    assert np.abs(ours.attention(a, 0, q).numpy() - host.numpy()).max() < 2e-2
    with pytest.raises(tierkv.Unsupported, match="attach"):
        ours.attention(a, 0, q.cuda())


@on_device
def test_streams_and_strange_arrays(pair):
    torch = pytest.importorskip("torch")
    ours, device, _ = pair
    seq = ours.add_sequence()
    k = torch.randn(20, KV_HEADS, DIM, device="cuda")
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            late = k * 1.0  # on this stream
            ours.append(seq, 0, late, late)
        q = torch.randn(2, HEADS, DIM, device="cuda")
        out = ours.attention(seq, 0, q, observe=False)
    stream.synchronize()
    device.check()
    expected = reference(*(k.cpu().numpy()[[*range(20)] * 3],) * 2, q.cpu().numpy())
    assert np.abs(out.cpu().numpy() - expected).max() < 5e-2

    class Interface:
        """torch's own interface, and no DLPack."""

        def __init__(self, tensor):
            self.__cuda_array_interface__ = tensor.__cuda_array_interface__

    ours.append(seq, 0, Interface(k), Interface(k))
    assert ours.length(seq, 0) == 80
    with pytest.raises(tierkv.InvalidArgument, match="CUDA device"):
        ours.attention(seq, 0, q, out=torch.empty(2, HEADS, DIM, device="cpu"))
    with pytest.raises(tierkv.Error):
        ours.append(seq, 0, k, k.cpu())
    with pytest.raises(tierkv.InvalidArgument, match="side by side"):
        ours.append(seq, 0, k.transpose(1, 2).contiguous().transpose(1, 2), k)
    assert ours.length(seq, 0) == 80


@on_device
def test_what_is_taken_back_is_gone_from_the_device(pair):
    torch = pytest.importorskip("torch")
    ours, device, other = pair
    a, b = ours.add_sequence(), other.add_sequence()
    generator = torch.Generator("cpu").manual_seed(2)

    def step(tokens):
        for layer in range(LAYERS):
            k, v = (torch.randn((tokens, KV_HEADS, DIM), generator=generator, device="cpu") for _ in range(2))
            q = torch.randn((min(tokens, 16), HEADS, DIM), generator=generator, device="cpu")
            ours.append(a, layer, k.cuda(), v.cuda())
            other.append(b, layer, k, v)
            found = ours.attention(a, layer, q.cuda(), observe=False).cpu()
            worst = float((found - other.attention(b, layer, q, observe=False)).abs().max())
            assert worst < 2e-2, (tokens, layer, worst)

    # As assisted decoding does it: a few tokens are guessed, some are taken back, others come in their place.
    step(40)
    for taken in (1, 3, 4, 2, 5):
        step(5)
        length = ours.length(a) - taken
        ours.truncate(a, length)
        other.truncate(b, length)
        step(1)
    device.check()


@on_device
@pytest.mark.parametrize("spec", ["fp16", "balanced"])
def test_greedy_on_the_device_is_greedy_on_the_processor(spec):
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from tiny_models import assert_agree, generate, make, prompt

    from tierkv.hf import TieredCache

    # A prompt that is hot as a whole: on a device it attends to its rows as they are, and so it does on the processor.
    model, ids = make("llama"), prompt(40)
    host = make("llama").cpu()
    model.cuda()
    with torch.device("cpu"):
        expected = generate(host, ids.cpu(), 128, TieredCache(spec, host, learn=False))
    cache = TieredCache(spec, model, learn=False)
    got = generate(model, ids.cuda(), 128, cache)
    got.sequences, got.logits = got.sequences.cpu(), [step.cpu() for step in got.logits]
    assert_agree(expected, got, 40, tolerance=0.03 if spec == "fp16" else 0.2, least=16)
    usage = cache.device_usage()
    assert usage.launches >= 127 * 3 and usage.on_processor == 0 and usage.device_bytes > 0
    cache.device.check()


@on_device
def test_a_model_is_learned_on_the_device(tmp_path):
    """In prompts that nothing came before, in pieces behind others, and in single tokens; then the archive is calibrated."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from test_hf_cache import structured, wait_for_tables
    from tiny_models import generate, prompt

    from tierkv.hf import TieredCache

    model, path = structured(max_position_embeddings=16384).to("cuda"), tmp_path / "model.tkc"
    cache = TieredCache("balanced", model, learn=path)
    assert cache.learning().phase == "gathering" and cache.gathers == 8192
    assert cache.tiered.archive_codec(0) == "rot4/mid2", "until there are tables"
    with torch.no_grad():
        model(prompt(1500, batch=2).cuda(), past_key_values=cache)  # a prompt, and a piece behind it
        model(prompt(700, batch=2, seed=1).cuda(), past_key_values=cache)
        for seed in range(20):  # single tokens
            model(prompt(1, batch=2, seed=seed).cuda(), past_key_values=cache)
        assert cache.learning().tokens == 2 * 2220 and cache.learning().phase == "gathering"
        assert cache.learning().waiting and cache.memory_usage().tier[3].tokens == 0
        model(prompt(1, batch=2).cuda(), past_key_values=cache)
        assert cache.gathers == 8192 - 2 * 2220
        cache.reset()
        got = generate(model, prompt(6000, seed=5).cuda(), 8, cache)
    assert got.sequences.shape == (1, 6008) and cache.learning().phase != "gathering"
    wait_for_tables(cache)
    assert path.exists() and cache.tiered.archive_codec(0).startswith("klt") and cache.tiered.archive_codec(1).startswith("klt")
    with torch.no_grad():
        # It goes on, what waited is archived meanwhile, and nobody looks at anything.
        before = cache.device_usage().launches
        for seed in range(300):
            logits = model(prompt(1, seed=seed).cuda(), past_key_values=cache).logits
        assert bool(torch.isfinite(logits).all()) and not cache._learns and cache.gathers == 0 and cache.observe_every == 0
    assert cache.device_usage().launches - before >= 600 and cache.memory_usage().tier[3].tokens > 0
    cache.device.check()
    again = TieredCache("balanced", model, learn=path)
    assert again.learning().phase == "off" and again.gathers == 0 and again.tiered.archive_codec(0).startswith("klt")
    # Attention over what was learned while it came, beside the same text in a cache that knew the tables from the start.
    ids = got.sequences[:, :-1]
    with torch.no_grad():
        model(ids, past_key_values=again)
        cache.crop(ids.shape[1] - cache.get_seq_length())
        ours, theirs = (model(prompt(1).cuda(), past_key_values=one).logits for one in (cache, again))
    assert float(torch.cosine_similarity(ours.flatten(), theirs.flatten(), dim=0)) > 0.99


@on_device
def test_masks_are_taken_on_trust_and_checked_later():
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from tiny_models import make, prompt

    from tierkv.hf import TieredCache
    from tierkv.hf.cache import MASKS_ON_TRUST

    model = make("llama").cuda()
    cache = TieredCache("fp16", model, learn=False)
    mask = torch.ones((1, 12), dtype=torch.long, device="cuda")
    with torch.no_grad():
        model(prompt(12).cuda(), attention_mask=mask, past_key_values=cache)
        mask = torch.cat([mask, torch.zeros((1, 1), dtype=torch.long, device="cuda")], dim=1)
        model(prompt(1).cuda(), attention_mask=mask, past_key_values=cache)  # says that its token is padding: not looked at
        with pytest.raises(tierkv.InvalidArgument, match="padding"):
            for _ in range(MASKS_ON_TRUST + 1):
                mask = torch.cat([mask, torch.ones((1, 1), dtype=torch.long, device="cuda")], dim=1)
                model(prompt(1).cuda(), attention_mask=mask, past_key_values=cache)
