"""A GGUF file with its quantized weights as float32: the very numbers that torch computes with.

    python widen_gguf.py SmolLM2-135M-Instruct.Q4_1.gguf smollm2-f32.gguf

libllama multiplies 4-bit weights with activations that it rounds to 8 bits, and torch does not. With the wide file both do the
same, and what differs between them is the cache alone.
"""

from __future__ import annotations

import pathlib
import sys
from typing import Any

import gguf
import numpy as np

WRITTEN_BY_ITSELF = ("GGUF.version", "GGUF.tensor_count", "GGUF.kv_count", "general.architecture")
ALL_FLOAT32 = 0  # general.file_type of such a file


def copy_fields(source: Any, target: Any) -> None:
    """Every setting of the file, the vocabulary among them."""
    for name, field in source.fields.items():
        if name in WRITTEN_BY_ITSELF:
            continue
        kind = field.types[0]
        value = ALL_FLOAT32 if name == "general.file_type" else field.contents()
        target.add_key_value(name, value, kind, field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None)


def widen(source_path: pathlib.Path, target_path: pathlib.Path) -> None:
    """Writes the wide file."""
    source = gguf.GGUFReader(source_path)
    target = gguf.GGUFWriter(target_path, source.fields["general.architecture"].contents())
    copy_fields(source, target)
    for tensor in source.tensors:
        rows = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        target.add_tensor(tensor.name, np.ascontiguousarray(rows))
    target.write_header_to_file()
    target.write_kv_data_to_file()
    target.write_tensors_to_file()
    target.close()


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    widen(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]))
