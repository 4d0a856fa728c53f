"""Loading a transformers model: where it lives, in which precision, and how its attention is computed."""

from __future__ import annotations

import importlib.util
from typing import Any

from llenvs_fast.core.errors import MissingPackageError


def load_model(path: str, device: str, options: dict[str, Any]) -> Any:
    """The model, ready to generate. `options` go to `from_pretrained`; an attention of None is chosen here."""
    try:
        import torch
        from transformers import AutoConfig, AutoModelForCausalLM
    except ImportError as error:
        raise MissingPackageError("the HuggingFace backend needs torch and transformers: install torch") from error

    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if options["attn_implementation"] is None:
        config = AutoConfig.from_pretrained(path, trust_remote_code=options.get("trust_remote_code", False))
        dtype = config.dtype if options["dtype"] == "auto" else options["dtype"]
        on_gpu = torch.cuda.is_available() and device != "cpu"
        options = options | {"attn_implementation": _attention(str(dtype), on_gpu)}
    model: Any = AutoModelForCausalLM.from_pretrained(path, **options)
    if options["device_map"] is None:
        model = model.to(device)
    return model.eval()


def _attention(dtype: str, on_gpu: bool) -> str:
    """Flash-attention knows half precision alone."""
    half = dtype.removeprefix("torch.") in ("float16", "bfloat16")
    return "flash_attention_2" if half and on_gpu and importlib.util.find_spec("flash_attn") else "sdpa"
