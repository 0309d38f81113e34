# Two commands for everybody: `make run` and `make test`.
PYTHON ?= python3
BIN := .venv/bin
# One process per core, and no more threads than that. Bytecode is kept whatever the environment says: the tests start many
# processes, and without it each compiles torch anew.
TESTS := OMP_NUM_THREADS=1 GLASS_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n auto --dist worksteal $(if $(CI),--durations=50)
# pip shows what it downloads: for development it is gigabytes where the index's PyTorch brings CUDA with it.
ADD := $(BIN)/python -m pip --disable-pip-version-check install $(if $(CI),--quiet) --constraint constraints.txt
INSTALL := $(ADD) --editable
TRANSFORMERLENS := transformer-lens==4.3.0 beartype einops fancy-einsum jaxtyping typeguard wadler-lindig # asks for much more than it needs

.PHONY: run setup test test-full test-all test-changed lint style resolution bench studio wheels clean

run: .venv/installed ## one answer from the default model, and how it came to be
	@$(BIN)/glass models pull smollm2
	@$(BIN)/glass run "What is the capital of France?"
	@$(BIN)/glass look "What is the capital of France?"
	@echo "To type glass instead of $(BIN)/glass: source $(BIN)/activate; then for instance: glass chat, glass --help"

setup: .venv/developing ## an environment for development

test: .venv/developing style ## what needs nothing beside Python; its end says what it left out, and then what mypy said meanwhile
	@mkdir -p build; $(BIN)/mypy >build/mypy.log 2>&1 & types=$$!; passed=0; \
	$(TESTS) -m "not (sweep or needs)" || passed=$$?; \
	wait $$types || passed=$$?; cat build/mypy.log; exit $$passed

test-full: .venv/developing ## what `make test` leaves out: browsers, clusters, clients, documents, processes, Triton's interpreter
	$(TESTS) -m "needs and not sweep"

test-all: .venv/developing lint ## all of that, and the wide sweeps
	$(TESTS)

test-changed: .venv/developing ## what the changes since HEAD, or SINCE=origin/main, can reach by imports
	@reached=$$($(BIN)/python tools/changed_tests.py $(SINCE)) || exit; \
	if [ -z "$$reached" ]; then echo "No test reaches what has changed."; else $(TESTS) -m "not sweep" $$reached; fi

lint: .venv/developing style
	$(BIN)/mypy

style: .venv/developing
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

resolution: .venv/developing ## whether every pin can be had from the package index, for each Python and architecture
	$(BIN)/python tools/check_resolution.py

bench: .venv/developing ## side by side with transformers
	$(BIN)/python bench/load.py
	$(BIN)/python bench/plain.py
	$(BIN)/python bench/families.py
	$(BIN)/python bench/text.py
	$(BIN)/python bench/tasks.py
	$(BIN)/python bench/decoding.py
	$(BIN)/python bench/cpu.py
	$(BIN)/python bench/encoders.py
	$(BIN)/python bench/watched.py
	$(BIN)/python bench/quality.py
	$(BIN)/python bench/reference.py
	$(BIN)/python bench/tree.py
	$(BIN)/python bench/patching.py

studio: .venv/developing ## the studio's built files, from studio/ (needs Node 18 or newer)
	$(BIN)/python tools/studio_schema.py studio/openapi.json
	$(BIN)/python tools/studio_palette.py studio/src/palette.css
	cd studio && npm ci --ignore-scripts --no-audit --no-fund && npm run types && npm run check && npm run build

wheels: .venv/packaging ## a release's wheels, one for each architecture, in dist/
	$(BIN)/python tools/wheels.py

define CHECK_PYTHON
@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Glassformer needs Python 3.11 or newer; try: make run PYTHON=python3.12"; exit 1; }
endef

.venv/installed: pyproject.toml constraints.txt # the CPU engine's builder needs the standard library alone
	$(CHECK_PYTHON)
	@echo "Setting up .venv: a few small libraries (30 MB); meanwhile the CPU engine is built, once: half a minute…"
	@PYTHONPATH=src $(PYTHON) -m glassformer.engine.cpu.build & engine=$$!; \
	{ $(PYTHON) -m venv .venv && $(INSTALL) '.[grammar]' --no-compile; } || { kill $$engine; exit 1; }; \
	wait $$engine || { echo "So PyTorch runs the models, and is installed now (on Linux it brings CUDA: 2.8 GB)…"; $(INSTALL) '.[grammar,torch]' --no-compile; }
	@touch $@

.venv/developing: pyproject.toml constraints.txt # --no-compile: of 25,000 files most are never imported
	$(CHECK_PYTHON)
	@$(PYTHON) -m venv .venv
	@echo "Setting up .venv for development: two to four minutes; meanwhile the CPU engine is built for the tests, once…"
	@PYTHONPATH=src $(PYTHON) -c 'from glassformer.engine.cpu import build; build.library(every_level=True)' 2>/dev/null & engine=$$!; \
	{ $(INSTALL) '.[dev]' --no-compile && $(ADD) --no-compile --no-deps $(TRANSFORMERLENS); } || { kill $$engine; exit 1; }; \
	wait $$engine || true  # the tests say what is wrong with the compiler
	@touch .venv/installed $@

.venv/packaging: .venv/installed
	@echo "Adding what builds wheels…"
	@$(INSTALL) '.[wheels]'
	@touch $@

clean:
	rm -rf .venv dist build
	find . -name __pycache__ -prune -exec rm -rf {} +
