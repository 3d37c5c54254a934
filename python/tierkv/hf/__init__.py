"""tierkv for Hugging Face transformers.

    from tierkv.hf import TieredCache

    cache = TieredCache("balanced", model)
    model.generate(**inputs, past_key_values=cache, max_new_tokens=200)
    print(cache.tiers())

Needs torch and transformers, 4.57 or 5; models whose weights are in host memory or, in a build with CUDA, on one CUDA device.
"""

from .attention import NAME
from .cache import TieredCache
from .models import ModelShape, shape_of_model
from .streamer import TieredStreamer

__all__ = ["NAME", "ModelShape", "TieredCache", "TieredStreamer", "shape_of_model"]
