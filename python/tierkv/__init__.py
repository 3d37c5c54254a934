"""tierkv: a tiered, compressed KV cache for language models.

    import tierkv

    cache = tierkv.Cache("balanced", num_layers=30, num_heads=9, num_kv_heads=3, head_dim=64)

For Hugging Face models: `tierkv.hf.TieredCache("balanced", model)`. `python -m tierkv --help` has a small command, and
docs/use/python.md tells the rest.
"""

from . import _core, cuda
from ._core import (
    BlockMass,
    Calibration,
    CalibrationInfo,
    ColdStats,
    DeepOptions,
    DeepReport,
    LayerThresholds,
    LearningReport,
    MassReport,
    MemoryPressure,
    MemoryStats,
    PromotionReport,
    QualityMetrics,
    SnapshotInfo,
    TierMemory,
)
from .cache import AppendItem, AttentionItem, Cache, HotRows, inspect_snapshot, load_calibration, parse_calibration
from .config import (
    ALL,
    CacheConfig,
    ColdConfig,
    DeepConfig,
    EvictionConfig,
    LayerConfig,
    LayerOverride,
    codecs,
    configure,
    policies,
    presets,
    to_dict,
)
from .errors import (
    Code,
    DataLoss,
    Error,
    FailedPrecondition,
    Internal,
    InvalidArgument,
    IoError,
    NotFound,
    OutOfRange,
    ResourceExhausted,
    Unsupported,
)
from .tables import TierTable

__version__ = _core.version()

__all__ = [
    "ALL",
    "AppendItem",
    "AttentionItem",
    "BlockMass",
    "Cache",
    "CacheConfig",
    "Calibration",
    "CalibrationInfo",
    "Code",
    "ColdConfig",
    "ColdStats",
    "DataLoss",
    "DeepConfig",
    "DeepOptions",
    "DeepReport",
    "Error",
    "EvictionConfig",
    "FailedPrecondition",
    "HotRows",
    "Internal",
    "InvalidArgument",
    "IoError",
    "LayerConfig",
    "LayerOverride",
    "LayerThresholds",
    "LearningReport",
    "MassReport",
    "MemoryPressure",
    "MemoryStats",
    "NotFound",
    "OutOfRange",
    "PromotionReport",
    "QualityMetrics",
    "ResourceExhausted",
    "SnapshotInfo",
    "TierMemory",
    "TierTable",
    "Unsupported",
    "codecs",
    "configure",
    "cuda",
    "inspect_snapshot",
    "load_calibration",
    "parse_calibration",
    "policies",
    "presets",
    "to_dict",
]
