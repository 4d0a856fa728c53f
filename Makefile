# Every target sets up .venv first; a second run finds it done.
PY := .venv/bin/python
export OMP_NUM_THREADS ?= 1

.PHONY: setup demo test lint bench clean

setup:
	@.ci/setup

demo: setup
	@.venv/bin/llenvs-fast eval run products -n 24 -r 4 -t 48 -T 0.7 \
		-a '{"max_terms": 2, "max_digits": 1, "answer_extractor": "numeric"}'

test: setup lint
	$(PY) -m pytest

lint: setup
	$(PY) -m ruff check .
	$(PY) -m mypy

bench: setup
	$(PY) -m benchmarks

clean:
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
