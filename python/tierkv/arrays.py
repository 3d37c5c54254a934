"""Outputs that look like inputs: a torch tensor for torch tensors, NumPy arrays for all others."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import numpy as np

Array = Any
"""A NumPy array, a torch tensor, or anything else that has `__dlpack__` or the buffer protocol, in host memory; with a device
attached (tierkv.cuda) also a torch tensor there, or anything that has `__dlpack__` or `__cuda_array_interface__`."""


@runtime_checkable
class HasShape(Protocol):
    """What has a shape."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths of the dimensions."""
        ...


def is_torch(array: object) -> bool:
    """Whether it is a torch tensor; torch is not imported to find out."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(array, torch.Tensor)


def empty_like_rows(array: Array, shape: tuple[int, ...]) -> Array:
    """Room for float32 results, of the kind that `array` is."""
    if is_torch(array):
        torch = sys.modules["torch"]
        return torch.empty(shape, dtype=torch.float32, device=array.device)
    return np.empty(shape, dtype=np.float32)


def stream_reader() -> Callable[[int], int]:
    """A function that says torch's current stream on a CUDA device: a step asks once a layer. Without an object for the stream,
    where torch has that."""
    torch = sys.modules["torch"]
    raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    return raw if raw is not None else lambda device: int(torch.cuda.current_stream(device).cuda_stream)


def current_stream(device: int) -> int:
    """torch's current stream on a CUDA device."""
    return stream_reader()(device)


def stream_of(array: Array) -> int:
    """torch's current stream on the device of a tensor; 0, the default one, for all else."""
    if is_torch(array) and array.is_cuda:
        return current_stream(array.device.index)
    return 0


def shape_of(array: Array) -> tuple[int, ...]:
    """The shape of whatever was given; empty for what has none, which the cache then refuses by name."""
    return tuple(array.shape) if isinstance(array, HasShape) else np.shape(array)


def floats_or_none(array: Array | None) -> Array | None:
    """A float32 array of small parameters, copied where it has another type."""
    if array is None or is_torch(array):
        return array if array is None else array.detach().float().cpu().contiguous()
    return np.ascontiguousarray(array, dtype=np.float32)
