"""A cache whose attention runs on a CUDA device (include/tierkv/cuda.h).

    device = tierkv.cuda.attach(cache)                 # the first device
    cache.append(seq, layer, keys, values)             # tensors on the device, or in host memory
    out = cache.attention(seq, layer, queries)         # where the queries are, on torch's current stream
    print(device.usage().device_bytes)

`tierkv.hf.TieredCache` does this by itself for a model on a device. Without CUDA in the build (`-C cmake.define.TIERKV_CUDA=ON`) or
without a device every call but :func:`available` and :func:`why_not` raises, with a sentence.
"""

from __future__ import annotations

from ._core import CudaUsage as Usage
from ._core import cuda_available
from .cache import Cache
from .errors import Error

__all__ = ["Device", "Usage", "attach", "available", "detach", "why_not"]


def why_not(device: int = 0) -> str | None:
    """Why :func:`attach` could not work here, or None: it could."""
    try:
        cuda_available(device)
    except Error as error:
        return str(error)
    return None


def available(device: int = 0) -> bool:
    """Whether :func:`attach` could work here."""
    return why_not(device) is None


class Device:
    """What is attached to a cache: reports, and errors that show late."""

    def __init__(self, cache: Cache, number: int) -> None:
        self._cache = cache
        self.number = number

    def usage(self) -> Usage:
        """Bytes on the device, now and at most, and what was done there."""
        return self._cache._core.cuda_usage()

    def check(self) -> None:
        """Waits for the device, and raises what went wrong there since somebody was told: calls themselves do not wait."""
        self._cache._core.cuda_check()

    def __repr__(self) -> str:
        return f"<tierkv.cuda.Device {self.number}, {self.usage().device_bytes:,} bytes>"


def attach(cache: Cache, device: int = 0, byte_limit: int = 0, keep_on_host: bool = True) -> Device:
    """Attention of the cache runs on the device from now on. `byte_limit`: for copies of blocks; 0: what the device has.
    `keep_on_host=False`: sealed blocks that the device has leave host memory, and are fetched when somebody needs them there.

    No other call on the cache may be under way.
    """
    cache._core.cuda_attach(device, byte_limit, keep_on_host)
    return Device(cache, device)


def detach(cache: Cache) -> None:
    """Back to the processor, and to host memory what the device has alone. Without room for it there the device stays attached, and
    ResourceExhausted is raised. No other call on the cache may be under way.
    """
    cache._core.cuda_detach()
