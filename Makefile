# Needs Python (3.10 or later, with venv) and make; everything else goes into .venv.
#   make demo    the main job on real photographs
#   make test    the test suite (installs what it needs first)
#   make check   linter, formatter, strict types
#   make bench   the benchmarks and their charts, into benchmarks/results
#   make gpu     what needs a CUDA device: its tests, and how fast rows get there (see docs/devices.md)
#   make soak    the long chaos and stress runs

PYTHON ?= python3
VENV   ?= .venv
JOBS   ?= 2
ROWS   ?= 50000
PIP    := $(VENV)/bin/python -m pip --disable-pip-version-check
BIN    := $(VENV)/bin

.PHONY: demo test check format bench gpu soak clean

demo: $(VENV)/.installed-images
	$(BIN)/python examples/preprocess_images.py --rows $(ROWS) --dir demo-output

test: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -n $(JOBS) $(PYTEST_ARGS)

check: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict tdmap/

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.installed-bench
	$(BIN)/python -m benchmarks.map_throughput
	$(BIN)/python -m benchmarks.memory
	$(BIN)/python -m benchmarks.core_ops
	$(BIN)/python -m benchmarks.serialization
	$(BIN)/python -m benchmarks.overhead
	$(BIN)/python -m benchmarks.mapreduce
	$(BIN)/python -m benchmarks.loader
	$(BIN)/python -m benchmarks.ingest

gpu: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -m gpu $(PYTEST_ARGS)
	$(BIN)/python -m benchmarks.device

soak: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -m soak -n $(JOBS) --timeout 3600 $(PYTEST_ARGS)

clean:
	rm -rf $(VENV) demo-output build dist

# One stamp an extra: a second `make test` installs nothing, a changed requirement installs again.
$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed-%: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) install --quiet --constraint constraints.txt --editable ".[$*]"
	@touch $@
