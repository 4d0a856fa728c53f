"""Speed and memory, measured: `python -m benchmarks [case ...]`. Nothing here is a test."""
