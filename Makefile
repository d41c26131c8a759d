# Everything on a fresh machine with python3, make and git:  make demo  |  make test
# On Linux pip's torch is built for CUDA and brings gigabytes along; TORCH=cpu takes PyTorch's build for the CPU.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
# Tests run side by side, so each keeps to one thread; two busy thread pools on two cores crawl.
test test-numerics portable mutants mutate outputs golden fuzz faults: export OMP_NUM_THREADS ?= 1
# Processors add in different orders, so the last digits of float32 differ. Torch's three libraries of kernels can be
# told to leave out the newer instructions: then any x86 processor computes as another one would.
OLD_ATEN := ATEN_CPU_CAPABILITY=default
OLD_CPU  := $(OLD_ATEN) ONEDNN_MAX_CPU_ISA=SSE41 MKL_CBWR=COMPATIBLE
# What computes; without the tests of these folders that judge no number: of types and devices, of plans and texts, of
# what is written down, and of processes that are killed.
NUMERICS := tests/golden tests/contracts tests/train tests/methods tests/models tests/views tests/photos/fitting \
	tests/photos/model tests/test_stats.py tests/test_costs.py tests/test_teacher.py tests/test_evaluate.py tests/test_examples.py src \
	--ignore tests/contracts/test_bfloat16.py --ignore tests/contracts/test_devices.py \
	--ignore tests/contracts/test_no_waiting.py --ignore tests/train/test_callbacks.py --ignore tests/train/test_loggers.py \
	--ignore tests/train/test_pace.py --ignore tests/train/test_execution.py \
	--ignore tests/photos/fitting/test_fit.py --ignore tests/photos/model/test_seen.py \
	--deselect tests/contracts/test_mutants.py::test_mutant_is_caught \
	--deselect tests/train/test_resume.py::test_killed_and_resumed_run_ends_with_the_same_bytes

.PHONY: results demo test test-numerics portable bench lint format check docs gallery mutants mutate outputs golden fuzz audit faults clean

demo: $(VENV)/core
	$(BIN)/meanteacher demo

test: $(VENV)/dev $(VENV)/browser
	$(BIN)/python -m pytest -n 2 --dist worksteal $(ARGS)

# The tests of what computes, as on another processor.
test-numerics: $(VENV)/dev
	$(OLD_CPU) $(BIN)/python -m pytest -n 2 --dist worksteal $(NUMERICS) $(ARGS)

# All tests under three instruction sets.
portable: $(VENV)/dev $(VENV)/browser
	$(BIN)/python -m pytest -n 2 --dist worksteal $(ARGS)
	$(OLD_ATEN) $(BIN)/python -m pytest -n 2 --dist worksteal $(ARGS)
	$(OLD_CPU) $(BIN)/python -m pytest -n 2 --dist worksteal $(ARGS)

# How fast it is on this machine; ARGS="--quick --only plain", ARGS=--help.
bench: $(VENV)/core
	$(BIN)/python -m benchmarks $(ARGS)

lint: $(VENV)/dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(VENV)/dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

check: lint test

# The site, with warnings as errors: site/index.html. (With --quiet, mkdocs would count no warnings.)
docs: $(VENV)/dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# docs/methods.md and its pictures: trains the missing runs, in a few minutes; ARGS=--page-only trains nothing.
# docs/results.md from docs/records.
results: $(VENV)/core
	$(BIN)/python docs/tools/results.py

gallery: $(VENV)/core
	$(BIN)/python docs/tools/gallery.py $(ARGS)

mutants: $(VENV)/dev
	PYTHONPATH=tests:tests/contracts:tests/distributed:docs/tools $(BIN)/python tests/contracts/mutants.py > docs/mutants.md

# Mechanical mutants of a module or package; ARGS="stats costs train --sample 100". A mutant takes some seconds.
mutate: $(VENV)/dev
	$(BIN)/python tests/mutate.py $(ARGS)

outputs: $(VENV)/dev
	PYTHONPATH=tests:tests/contracts:docs/tools $(BIN)/python tests/contracts/outputs.py > docs/outputs.md

# Mutated files for every reader: 10,000 cases, SEED=0; ARGS="--target images --first 17 --cases 1" for one of them.
fuzz: $(VENV)/dev
	PYTHONPATH=tests:tests/fuzz $(BIN)/python tests/fuzz/fuzzing.py --seed $(or $(SEED),0) $(ARGS)

# Whether the index has withdrawn a version of constraints.txt, or knows a vulnerability of it.
audit: $(VENV)/dev
	$(BIN)/python tests/audit.py

# Kills, full disks and other faults, in about eight minutes; ARGS="--only disk". Root also mounts small file systems.
faults: $(VENV)/dev
	PYTHONPATH=tests $(BIN)/python tests/faults/injected.py docs/reliability.md $(ARGS)

golden: $(VENV)/dev
	PYTHONPATH=tests $(BIN)/python tests/golden/test_golden.py > tests/golden/curves.json

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache

$(VENV)/core: pyproject.toml constraints.txt | $(VENV)/pyvenv.cfg $(if $(TORCH),$(VENV)/torch-$(TORCH))
	$(PIP) -e '.[all]'
	@touch $@

$(VENV)/pyvenv.cfg:
	$(PYTHON) -m venv $(VENV)

# One request to PyTorch's own index. Without it the install goes on with the torch that pip finds, and the next
# `make` asks again.
$(VENV)/torch-%: | $(VENV)/pyvenv.cfg
	@$(PIP) --no-deps --upgrade --retries 1 --timeout 20 --index-url https://download.pytorch.org/whl/$* torch \
		&& touch $@ || echo "No torch for '$*' from download.pytorch.org; going on with the torch that pip finds." >&2

# The pages are tested in a real browser; without root, install chromium and chromium-driver by other means first.
$(VENV)/browser: $(VENV)/dev
	@command -v chromium >/dev/null && command -v chromedriver >/dev/null || \
		{ apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y chromium chromium-driver >/dev/null; }
	@touch $@

$(VENV)/dev: $(VENV)/core
	$(PIP) -e '.[test,lint]'
	@touch $@
