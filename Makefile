# Everything runs inside .venv; nothing outside the project is touched.
PYTHON ?= python3
BIN    := .venv/bin
CORE   := .venv/.core
STAMP  := .venv/.installed
SITE   := .venv/.site
# An exact version of torch is installed first and satisfies the package's range: the CPU build, without gigabytes for GPUs.
TORCH  := torch==2.13.0
# What the programs under test keep for their next run stays inside .venv too: compiled functions, fonts, a browser's profile.
KEPT   := XDG_CACHE_HOME=$(CURDIR)/.venv/cache XDG_CONFIG_HOME=$(CURDIR)/.venv/config \
          JAX_COMPILATION_CACHE_DIR=$(CURDIR)/.venv/cache/jax JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0.1

# Two processes run the tests: each has one BLAS thread, for threads that wait for each other cost time.
ONE    := OMP_NUM_THREADS=1

.DEFAULT_GOAL := help
.PHONY: help install demo test test-all lint docs tutorials links tables bench-quick bench bench-full dist clean

help:            ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 16

install: $(STAMP)  ## create .venv and install attnlearn with everything its tests need

$(CORE): pyproject.toml
	@echo "installing attnlearn into .venv: about a minute"
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --upgrade pip
	@$(BIN)/python -m pip install --quiet -e .
	@touch $(CORE)

$(STAMP): $(CORE)
	@echo "installing what the tests need into .venv: a few minutes"
	@$(BIN)/python -m pip install --quiet $(TORCH)
	@$(BIN)/python -m pip install --quiet -e '.[dev]'
	@touch $(STAMP)

demo: $(CORE)      ## the main job, on a real layer; ends with demo/report.html
	@$(BIN)/attnlearn demo --layer tests/layers/sapiens-vh-layer0.safetensors

test: $(STAMP)     ## the test suite, without what is marked slow
	@$(KEPT) $(ONE) $(BIN)/python -m pytest --numprocesses 2 --dist loadfile --doctest-modules src
	@$(KEPT) $(ONE) $(BIN)/python -m pytest --numprocesses 2 --dist loadfile

test-all: $(STAMP) ## the test suite, slow tests included
	@$(KEPT) $(ONE) ATTNLEARN_SHAPES=attnlearn.recovery,attnlearn.solve,attnlearn.scores \
		$(BIN)/python -m pytest --numprocesses 2 --dist loadfile -m ''

lint: $(STAMP)     ## ruff and pyright
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/pyright

$(SITE): $(STAMP)
	@echo "installing what the site needs into .venv: a minute"
	@$(BIN)/python -m pip install --quiet -e '.[docs]'
	@touch $(SITE)

docs: $(SITE)      ## the site, in build/site/index.html; a warning is an error
	@$(BIN)/python -m sphinx -q -W --keep-going -b html docs build/site
	@echo "open build/site/index.html"

links: $(SITE)     ## every link of the site, asked
	@$(BIN)/python -m sphinx -q -b linkcheck docs build/links

tutorials: $(SITE) ## run the notebooks of docs/tutorials again and keep their outputs
	@$(BIN)/python docs/run_tutorials.py

tables: $(STAMP)   ## the tables of README and documents, from the benchmark results
	@$(BIN)/python -m benchmarks render

bench-quick: $(STAMP)  ## two minutes of benchmarks
	@$(BIN)/python -m benchmarks quick

bench: $(STAMP)    ## fifteen minutes of benchmarks, about three seeds a row
	@$(BIN)/python -m benchmarks bench

bench-full: $(STAMP)   ## hours; one JSON line a case, resumable
	@$(BIN)/python -m benchmarks full

dist: $(STAMP)     ## a wheel and an sdist, smoke-tested in an empty environment
	@rm -rf dist build/smoke
	@$(BIN)/python -m build --outdir dist .
	@$(PYTHON) -m venv build/smoke
	@build/smoke/bin/python -m pip install --quiet dist/*.whl
	@build/smoke/bin/python -c "import attnlearn; layer = attnlearn.AttentionLayer.random(2, 4); print(layer)"
	@build/smoke/bin/attnlearn --version
	@du -sm build/smoke | sed "s/\t.*/ MB installed, pip included/"

clean:           ## remove what can be made again
	@rm -rf .venv dist build demo .pytest_cache .ruff_cache
