# Needs Python (3.11 or later, with venv) and make; everything else goes into .venv.
#   make demo    the main job on real photographs
#   make test    the test suite (installs what it needs first)
#   make check   linter, formatter, layers (which module may import which), strict types
#   make bench   the benchmarks and their charts, into benchmarks/results, and the tables of the README
#   make gpu     a checklist, tests and figures that need a CUDA device; fails where there is none (see docs/devices.md)
#   make soak    the long chaos and stress runs
#   make docs    the site, into site/: strict, without the network, its links and its search checked

PYTHON ?= python3
VENV   ?= .venv
VENV_OPTIONS ?=
CONSTRAINTS ?= constraints.txt
GPU_VENV ?= .venv-gpu
JOBS   ?= 3
ROWS   ?= 50000
PIP    := $(VENV)/bin/python -m pip --disable-pip-version-check
BIN    := $(VENV)/bin

# The tests start Python by the hundred: without its notes each start would compile both packages, and take a third longer.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test check format bench gpu soak docs clean

demo: $(VENV)/.installed-images
	$(BIN)/python examples/preprocess_images.py --rows $(ROWS) --dir demo-output --keep

test: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -n $(JOBS) --dist loadgroup --no-loadscope-reorder $(PYTEST_ARGS)

check: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/mypy --strict tdmap/ tensordict_lite/

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.installed-bench
	$(BIN)/python -m benchmarks run

gpu: $(GPU_VENV)/.installed
	$(GPU_VENV)/bin/python -m benchmarks.gpu

# With the torch that $(PYTHON) has, if it has one, and what is installed beside it: the constraints are for another torch.
# By a path file, because --system-site-packages passes over the virtual environment that $(PYTHON) may belong to.
$(GPU_VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(GPU_VENV)
	-$(PYTHON) -c "import pathlib, torch; print(pathlib.Path(torch.__file__).parents[1])" \
		> $$($(GPU_VENV)/bin/python -c "import site; print(site.getsitepackages()[0])")/torch.pth
	$(GPU_VENV)/bin/python -m pip --disable-pip-version-check install --quiet --editable ".[gpu]"
	@touch $@

soak: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -m soak -n $(JOBS) --timeout 3600 $(PYTEST_ARGS)

docs: $(VENV)/.installed-docs
	$(BIN)/python docs/site/pages.py
	$(BIN)/zensical build --clean --strict
	$(BIN)/python docs/site/checks.py
	@echo "built site/: python3 -m http.server -d site, then http://localhost:8000"

clean:
	rm -rf $(VENV) $(GPU_VENV) demo-output build dist site .cache

# One stamp an extra: a second `make test` installs nothing, a changed requirement installs again.
$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV_OPTIONS) $(VENV)

$(VENV)/.installed-%: pyproject.toml $(CONSTRAINTS) | $(VENV)/bin/python
	$(PIP) install --quiet --constraint $(CONSTRAINTS) --editable ".[$*]"
	@touch $@
