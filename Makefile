# Every target sets up .venv first; a second run finds it done.
PY := .venv/bin/python
export OMP_NUM_THREADS ?= 1

.PHONY: setup demo test lint bench clean

setup:
	@.ci/setup

demo: setup
	@.venv/bin/llenvs-fast eval run leg_counting -n 100 -r 8 -t 256

test: setup lint
	$(PY) -m pytest

lint: setup
	$(PY) -m ruff check .
	$(PY) -m mypy

bench: setup
	$(PY) -m benchmarks

clean:
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
