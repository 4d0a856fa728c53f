"""llenvs_fast: evaluate language models on one-turn and multi-turn tasks at the speed of the engine underneath."""

__version__ = "0.1.0"
