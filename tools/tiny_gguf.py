#!/usr/bin/env python3
"""tiny_gguf.py: writes tiny GGUF models with random F32 weights, for tests that compare logits.

    tiny_gguf.py FOLDER [KIND ...]        FOLDER/KIND.gguf for each kind, or for all of them

Kinds that the cache serves: llama, qwen2, qwen3, phi3, gemma2 (logit softcap), gemma3 (sliding window), gpt-oss (sinks, window).
Kinds that it must refuse: bloom (ALiBi), mamba (recurrent), lfm2 (hybrid), deepseek2 (MLA), odd-head (llama with head_dim 24).

The weights depend on nothing but the kind. The vocabulary is bytes and ASCII words, enough for libllama to tokenize any text.
Exit code: 0 done, 2 could not.
"""

import array
import os
import random
import struct
import sys
from pathlib import Path

VOCABULARY = 384
ALIGNMENT = 32
UINT32, FLOAT32, BOOL, STRING, ARRAY = 4, 6, 7, 8, 9
INT32 = 5


class Gguf:
    """Version 3 of the format: header, key-values, tensor descriptions, then the tensors, each aligned."""

    def __init__(self, seed):
        self.values, self.tensors, self.random = [], [], random.Random(seed)

    def string(self, text):
        data = text.encode()
        return struct.pack("<Q", len(data)) + data

    def pack(self, kind, value):
        if kind == STRING:
            return self.string(value)
        return struct.pack({UINT32: "<I", INT32: "<i", FLOAT32: "<f", BOOL: "<?"}[kind], value)

    def set(self, key, kind, value):
        self.values.append(self.string(key) + struct.pack("<I", kind) + self.pack(kind, value))

    def set_array(self, key, kind, values):
        packed = b"".join(self.pack(kind, value) for value in values)
        self.values.append(self.string(key) + struct.pack("<IIQ", ARRAY, kind, len(values)) + packed)

    def tensor(self, name, shape, spread=None, around=0.0):
        """Normal values; a matrix keeps the size of what it multiplies unless `spread` says so. shape[0] is the row length."""
        count = 1
        for n in shape:
            count *= n
        if spread is None:
            spread = shape[0] ** -0.5 if len(shape) > 1 else 0.1
        gauss = self.random.gauss
        self.tensors.append((name, shape, array.array("f", [gauss(around, spread) for _ in range(count)])))

    def write(self, path):
        infos, offset = [], 0
        for name, shape, data in self.tensors:
            infos.append(self.string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, 0, offset))
            offset += -(-len(data) * 4 // ALIGNMENT) * ALIGNMENT
        head = b"GGUF" + struct.pack("<IQQ", 3, len(self.tensors), len(self.values)) + b"".join(self.values) + b"".join(infos)
        with open(path, "wb") as file:
            file.write(head + bytes(-len(head) % ALIGNMENT))
            for _, _, data in self.tensors:
                if sys.byteorder == "big":
                    data.byteswap()
                raw = data.tobytes()
                file.write(raw + bytes(-len(raw) % ALIGNMENT))


class Model:
    """What the architectures have in common, and a place for what they do not."""

    def __init__(self, kind, layers=3, width=128, hidden=192, heads=4, kv_heads=2, head_dim=32):
        self.kind, self.layers, self.width, self.hidden = kind, layers, width, hidden
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, head_dim
        self.file = Gguf(f"tierkv {kind}")
        self.file.set("general.architecture", STRING, kind)
        self.file.set("general.name", STRING, f"tiny {kind}")
        self.set("context_length", UINT32, 4096)
        self.set("embedding_length", UINT32, width)
        self.set("block_count", UINT32, layers)
        self.set("feed_forward_length", UINT32, hidden)
        self.tokenizer()

    def set(self, key, kind, value):
        self.file.set(f"{self.kind}.{key}", kind, value)

    def tokenizer(self):
        tokens = ["<unk>", "<s>", "</s>"] + [f"<0x{i:02X}>" for i in range(256)] + [chr(i) for i in range(33, 127)] + ["\u2581"]
        words = [a + b for a in "taoeins" for b in "hrnedst"]
        tokens += words[: VOCABULARY - len(tokens) - 1] + ["<|endoftext|>"]  # libllama looks for it in phi3
        kinds = [2, 3, 3] + [6] * 256 + [1] * (len(tokens) - 260) + [3]
        self.file.set("tokenizer.ggml.model", STRING, "llama")
        self.file.set_array("tokenizer.ggml.tokens", STRING, tokens)
        self.file.set_array("tokenizer.ggml.scores", FLOAT32, [-float(i) for i in range(len(tokens))])
        self.file.set_array("tokenizer.ggml.token_type", INT32, kinds)
        self.file.set("tokenizer.ggml.bos_token_id", UINT32, 1)
        self.file.set("tokenizer.ggml.eos_token_id", UINT32, 2)
        assert len(tokens) == VOCABULARY

    def attention_keys(self, epsilon="layer_norm_rms_epsilon"):
        self.set("attention.head_count", UINT32, self.heads)
        self.set("attention.head_count_kv", UINT32, self.kv_heads)
        self.set(f"attention.{epsilon}", FLOAT32, 1e-6)
        if self.head_dim * self.heads != self.width:
            self.set("attention.key_length", UINT32, self.head_dim)
            self.set("attention.value_length", UINT32, self.head_dim)
        self.set("rope.dimension_count", UINT32, self.head_dim)
        self.set("rope.freq_base", FLOAT32, 10000.0)

    def ends(self, output=True, norm="output_norm"):
        self.file.tensor("token_embd.weight", [self.width, VOCABULARY], 1.0)
        self.norm(norm)
        if output:
            self.file.tensor("output.weight", [self.width, VOCABULARY])

    def norm(self, name, size=None):
        self.file.tensor(f"{name}.weight", [size or self.width], 0.1, 1.0)

    def matrix(self, name, rows, columns, bias=False, spread=None):
        self.file.tensor(f"{name}.weight", [rows, columns], spread)
        if bias:
            self.file.tensor(f"{name}.bias", [columns])

    # Queries and keys are larger than training would make them: softmax then prefers some tokens, and a wrong key shows.
    def attention(self, b, bias=False, qk_norm=False, fused=False, out_bias=False):
        q, kv, sharp = self.heads * self.head_dim, self.kv_heads * self.head_dim, 1.2 * self.width**-0.5
        self.norm(f"{b}.attn_norm")
        if fused:
            self.matrix(f"{b}.attn_qkv", self.width, q + 2 * kv, bias, sharp)
        else:
            self.matrix(f"{b}.attn_q", self.width, q, bias, sharp)
            self.matrix(f"{b}.attn_k", self.width, kv, bias, sharp)
            self.matrix(f"{b}.attn_v", self.width, kv, bias)
        if qk_norm:
            self.file.tensor(f"{b}.attn_q_norm.weight", [self.head_dim], 0.2, 1.5)
            self.file.tensor(f"{b}.attn_k_norm.weight", [self.head_dim], 0.2, 1.5)
        self.matrix(f"{b}.attn_output", q, self.width, out_bias)

    def feed_forward(self, b, gate=True, double_up=False, bias=False):
        self.norm(f"{b}.ffn_norm")
        if gate:
            self.matrix(f"{b}.ffn_gate", self.width, self.hidden, bias)
        self.matrix(f"{b}.ffn_up", self.width, self.hidden * (2 if double_up else 1), bias)
        self.matrix(f"{b}.ffn_down", self.hidden, self.width, bias)

    def blocks(self):
        return [f"blk.{i}" for i in range(self.layers)]


def llama(kind="llama", **shape):
    m = Model(kind, **shape)
    m.attention_keys()
    m.ends()
    for b in m.blocks():
        m.attention(b)
        m.feed_forward(b)
    return m


def qwen2(kind):
    m = Model(kind, heads=2, kv_heads=1, head_dim=64)
    m.attention_keys()
    m.ends()
    for b in m.blocks():
        m.attention(b, bias=True)
        m.feed_forward(b)
    return m


def qwen3(kind):
    m = Model(kind, heads=4, kv_heads=2, head_dim=64)
    m.attention_keys()
    m.ends(output=False)
    for b in m.blocks():
        m.attention(b, qk_norm=True)
        m.feed_forward(b)
    return m


def phi3(kind):
    m = Model(kind, heads=4, kv_heads=4, head_dim=32)
    m.attention_keys()
    m.ends()
    for b in m.blocks():
        m.attention(b, fused=True)
        m.feed_forward(b, gate=False, double_up=True)
    return m


def gemma(m, **attention):
    m.ends(output=False)
    for b in m.blocks():
        m.attention(b, **attention)
        m.norm(f"{b}.post_attention_norm")
        m.feed_forward(b)
        m.norm(f"{b}.post_ffw_norm")
    return m


def gemma2(kind):
    m = Model(kind, layers=4, heads=4, kv_heads=2, head_dim=64)
    m.attention_keys()
    m.set("attention.sliding_window", UINT32, 48)
    m.set("attn_logit_softcapping", FLOAT32, 3.0)
    m.set("final_logit_softcapping", FLOAT32, 30.0)
    return gemma(m)


def gemma3(kind):
    m = Model(kind, layers=7, width=64, hidden=96, heads=2, kv_heads=1, head_dim=256)
    m.attention_keys()
    m.set("attention.sliding_window", UINT32, 40)
    return gemma(m, qk_norm=True)


def gpt_oss(kind):
    m = Model(kind, layers=4, heads=4, kv_heads=2, head_dim=64)
    experts, size = 4, 64
    m.attention_keys()
    m.set("attention.sliding_window", UINT32, 32)
    m.set("expert_count", UINT32, experts)
    m.set("expert_used_count", UINT32, 2)
    m.set("expert_feed_forward_length", UINT32, size)
    m.ends()
    for b in m.blocks():
        m.attention(b, bias=True, out_bias=True)
        m.norm(f"{b}.post_attention_norm")
        m.file.tensor(f"{b}.attn_sinks.weight", [m.heads], 1.0)
        m.matrix(f"{b}.ffn_gate_inp", m.width, experts, bias=True)
        for name, rows, columns in (("gate", m.width, size), ("up", m.width, size), ("down", size, m.width)):
            m.file.tensor(f"{b}.ffn_{name}_exps.weight", [rows, columns, experts])
            m.file.tensor(f"{b}.ffn_{name}_exps.bias", [columns, experts], 0.1)
    return m


def bloom(kind):
    m = Model(kind, heads=4, kv_heads=4)
    m.attention_keys("layer_norm_epsilon")
    m.ends()
    m.norm("token_embd_norm")
    m.file.tensor("token_embd_norm.bias", [m.width])
    m.file.tensor("output_norm.bias", [m.width])
    for b in m.blocks():
        m.attention(b, fused=True, bias=True, out_bias=True)
        m.file.tensor(f"{b}.attn_norm.bias", [m.width])
        m.feed_forward(b, gate=False, bias=True)
        m.file.tensor(f"{b}.ffn_norm.bias", [m.width])
    return m


def mamba(kind):
    m = Model(kind, layers=2)
    inner, state, rank, kernel = 2 * m.width, 16, 8, 4
    m.set("attention.layer_norm_rms_epsilon", FLOAT32, 1e-6)
    m.set("attention.head_count", UINT32, 0)
    for key, value in (("conv_kernel", kernel), ("inner_size", inner), ("state_size", state), ("time_step_rank", rank)):
        m.set(f"ssm.{key}", UINT32, value)
    m.ends()
    for b in m.blocks():
        m.norm(f"{b}.attn_norm")
        m.matrix(f"{b}.ssm_in", m.width, 2 * inner)
        m.matrix(f"{b}.ssm_conv1d", kernel, inner, bias=True)
        m.matrix(f"{b}.ssm_x", inner, rank + 2 * state)
        m.matrix(f"{b}.ssm_dt", rank, inner, bias=True)
        m.file.tensor(f"{b}.ssm_a", [state, inner], 0.1, -1.0)
        m.file.tensor(f"{b}.ssm_d", [inner])
        m.matrix(f"{b}.ssm_out", inner, m.width)
    return m


def lfm2(kind):
    m = Model(kind, layers=2, heads=4, kv_heads=2)
    m.set("attention.head_count", UINT32, m.heads)
    m.file.set_array(f"{kind}.attention.head_count_kv", UINT32, [0, m.kv_heads])
    m.set("attention.layer_norm_rms_epsilon", FLOAT32, 1e-6)
    m.set("rope.freq_base", FLOAT32, 10000.0)
    m.set("shortconv.l_cache", UINT32, 3)
    m.ends(norm="token_embd_norm")
    m.norm("blk.0.attn_norm")
    m.matrix("blk.0.shortconv.conv", 3, m.width)
    m.matrix("blk.0.shortconv.in_proj", m.width, 3 * m.width)
    m.matrix("blk.0.shortconv.out_proj", m.width, m.width)
    m.feed_forward("blk.0")
    m.attention("blk.1", qk_norm=True)
    m.feed_forward("blk.1")
    return m


def deepseek2(kind):
    m = Model(kind, layers=2, heads=4, kv_heads=1)
    rope, plain, values, latent, q_latent = 16, 32, 32, 64, 48
    m.set("attention.head_count", UINT32, m.heads)
    m.set("attention.head_count_kv", UINT32, 1)
    m.set("attention.layer_norm_rms_epsilon", FLOAT32, 1e-6)
    for key, value in (("q_lora_rank", q_latent), ("kv_lora_rank", latent), ("key_length", latent + rope), ("value_length", latent),
                       ("key_length_mla", plain + rope), ("value_length_mla", values)):
        m.set(f"attention.{key}", UINT32, value)
    m.set("rope.dimension_count", UINT32, rope)
    m.set("leading_dense_block_count", UINT32, m.layers)
    m.set("expert_feed_forward_length", UINT32, 32)
    m.set("expert_shared_count", UINT32, 1)
    m.ends()
    for b in m.blocks():
        m.norm(f"{b}.attn_norm")
        m.norm(f"{b}.attn_q_a_norm", q_latent)
        m.norm(f"{b}.attn_kv_a_norm", latent)
        m.matrix(f"{b}.attn_q_a", m.width, q_latent)
        m.matrix(f"{b}.attn_q_b", q_latent, m.heads * (plain + rope))
        m.matrix(f"{b}.attn_kv_a_mqa", m.width, latent + rope)
        m.file.tensor(f"{b}.attn_k_b.weight", [plain, latent, m.heads])
        m.file.tensor(f"{b}.attn_v_b.weight", [latent, values, m.heads])
        m.matrix(f"{b}.attn_output", m.heads * values, m.width)
        m.feed_forward(b)
    return m


KINDS = {
    "llama": llama, "qwen2": qwen2, "qwen3": qwen3, "phi3": phi3, "gemma2": gemma2, "gemma3": gemma3, "gpt-oss": gpt_oss,
    "bloom": bloom, "mamba": mamba, "lfm2": lfm2, "deepseek2": deepseek2, "odd-head": lambda _: llama(width=96, head_dim=24),
}  # fmt: skip


def main(arguments):
    if not arguments or arguments[0] in ("-h", "--help"):
        print(__doc__)
        return 0 if arguments else 2
    folder, kinds = Path(arguments[0]), arguments[1:] or list(KINDS)
    for kind in kinds:
        if kind not in KINDS:
            print(f"tiny_gguf: there is no kind {kind!r}, only {', '.join(KINDS)}", file=sys.stderr)
            return 2
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for kind in kinds:
            partial = folder / f".{kind}.partial"
            KINDS[kind](kind).file.write(partial)
            os.replace(partial, folder / f"{kind}.gguf")
    except OSError as problem:
        print(f"tiny_gguf: {problem.strerror}: {problem.filename}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
