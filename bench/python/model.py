"""The default model in torch, and the default text: what the measurements of this folder share.

Both come from the cache folder (`make fetch` puts them there), and nothing is downloaded here. transformers reads the GGUF file and
turns its 4-bit weights into float32, so the weights are those of the command `tierkv`, number for number.
"""

from __future__ import annotations

import os
import pathlib
import platform
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer

import tierkv
from tierkv.hf.cache import cache_folder

NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"


def load(path: pathlib.Path | None = None) -> tuple[Any, Any]:
    """(model, tokenizer) of a GGUF file, in float32 on the processor."""
    path = path or cache_folder() / "models" / NAME
    if not path.exists():
        raise SystemExit(f"{path} is not there: `make fetch` downloads it")
    transformers.utils.logging.disable_progress_bar()
    tokenizer = AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)
    model = AutoModelForCausalLM.from_pretrained(str(path.parent), gguf_file=path.name, dtype=torch.float32)
    return model.eval(), tokenizer


def text_tokens(tokenizer: Any, count: int, path: pathlib.Path | None = None) -> torch.Tensor:
    """The first `count` tokens of a text, WikiText-2 test when none is named: int64 [1, count]."""
    path = path or cache_folder() / "text" / "wiki.test.raw"
    if not path.exists():
        raise SystemExit(f"{path} is not there: `make fetch` downloads it")
    text = path.read_text()[: count * 12]
    ids = tokenizer(text, return_tensors="pt", add_special_tokens=False).input_ids[:, :count]
    if ids.shape[1] < count:
        raise SystemExit(f"{path} has only {ids.shape[1]} tokens, and {count} are asked for")
    return ids


def machine() -> str:
    """The processor and the versions, in a line for the record."""
    name = platform.processor() or platform.machine()
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines() if os.path.exists("/proc/cpuinfo") else []:
        if line.startswith("model name"):
            name = line.split(":", 1)[1].strip()
            break
    return (
        f"{name}, {os.cpu_count()} cores; tierkv {tierkv.__version__}, torch {torch.__version__}, "
        f"transformers {transformers.__version__}, Python {platform.python_version()}"
    )
