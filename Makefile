# `make` lists the targets. Each sets up what it needs; an active virtual environment is not used.

PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/installed
DEEPSPEED := .venv-deepspeed/installed
SITE := -c "import sysconfig; print(sysconfig.get_path('purelib'))"
LAUNCH := $(BIN)/accelerate launch --config_file accelerate_configs/cpu.yaml
SMOKE := $(sort $(wildcard recipes/configs/*/smoke*.yaml))
# A file goes to one worker, which builds its fixtures once, and files in the order of their names: contracts, the longest,
# are early. Slow tests are few and long, and go one by one.
WORKERS := --numprocesses auto --maxprocesses 4 --durations 25
FAULT_TESTS := --numprocesses auto --maxprocesses 4 --dist worksteal -m faults tests/faults
BENCHMARKS := $(sort $(filter-out benchmarks/bench_gpu.py, $(wildcard benchmarks/bench_*.py)))

.DEFAULT_GOAL := help
.PHONY: help setup demo smoke test test-slow test-benchmarks test-deepspeed test-real test-faults soak quality \
    bench wheel worked-example docs

# Setup compiles nothing in advance, so what Python has compiled must be kept: each import would take three times as long.
unexport PYTHONDONTWRITEBYTECODE

# Nothing below may need a network once setup is done.
demo smoke test test-slow test-benchmarks test-deepspeed test-real test-faults soak docs: export HF_HUB_OFFLINE := 1

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(INSTALLED) ## create .venv with the tested versions (nothing to do when they have not changed)

# The constraints matter most for torch: left open, pip would choose another build than the machine's. Python compiles
# what is used; all of what is installed would take a minute.
$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -qq --no-compile --constraint constraints.txt --editable '.[dev]'
	@touch $@

# Once DeepSpeed is installed, accelerate imports it in every run. Everything else comes from .venv.
$(DEEPSPEED): $(INSTALLED)
	$(PYTHON) -m venv .venv-deepspeed
	$(BIN)/python $(SITE) > "$$(.venv-deepspeed/bin/python $(SITE))/shared.pth"
	.venv-deepspeed/bin/python -m pip install -qq --no-compile --constraint constraints.txt --editable '.[deepspeed]'
	@touch $@

demo: setup ## train on the sample reviews in this repository, offline, on the CPU
	@rm -rf outputs/demo && mkdir -p outputs
	@echo "Training a small model on 560 sample reviews, on the CPU, without a network ..."
	@$(BIN)/toolkit train reviews --config demo > outputs/demo.log || { cat outputs/demo.log; exit 1; }
	@$(BIN)/toolkit runs outputs/demo
	@echo "Output: outputs/demo.log. Model, predictions and report: outputs/demo; open outputs/demo/report.html."
	@echo "Next, with your own CSV:"
	@echo "  source .venv/bin/activate"
	@echo "  toolkit init reviews.csv --output my_reviews.yaml"
	@echo "  toolkit train reviews --config my_reviews.yaml"

smoke: $(SMOKE:recipes/configs/%.yaml=smoke/%) ## run every smoke configuration through accelerate launch

smoke/%: setup
	rm -rf outputs/$@
	$(LAUNCH) recipes/$(*D).py --config recipes/configs/$*.yaml output_dir=outputs/$@

test: setup ## run the tests, without slow ones, and those of several processes, faults and real data
	$(BIN)/python -m pytest $(WORKERS) --dist loadfile --no-loadscope-reorder

test-slow: setup ## run the slow tests and those of several processes
	$(BIN)/python -m pytest $(WORKERS) --dist loadgroup -m "(slow or distributed) and not real"

test-benchmarks: setup ## run the quick form of every benchmark, after a change of benchmarks/
	$(BIN)/python -m pytest $(WORKERS) --dist worksteal -m benchmarks tests/benchmarks

test-deepspeed: $(DEEPSPEED) ## run the tests of DeepSpeed, which has an environment of its own
	.venv-deepspeed/bin/python -m pytest -m "not real" $(wildcard tests/*/test_deepspeed.py tests/unit/*/test_deepspeed.py)

test-gpu: setup ## run the tests that need a GPU
	TEST_GPU=1 $(BIN)/python -m pytest -m gpu tests/gpu

test-real: setup ## run the tests on public datasets (those of `toolkit data get`; skipped where they are absent)
	$(BIN)/python -m pytest -m real

test-faults: setup ## kill, damage and starve runs: a sample of all faults (FAULT_SHARE=0.1, FAULT_SEED=<number>)
	$(BIN)/python -m pytest $(FAULT_TESTS)

soak: setup ## all faults, up to 90 minutes; writes docs/reliability.md and the figures that it shows
	FAULT_SHARE=1 FAULT_RECORD=tests/faults/soak.json $(BIN)/python -m pytest $(FAULT_TESTS)
	$(BIN)/python docs/render_reliability.py

quality: setup ## check style, format and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: setup ## run every benchmark and print its table
	@test -n "$(BENCHMARKS)" || { echo "bench: no benchmarks/bench_*.py found" >&2; exit 1; }
	@for file in $(BENCHMARKS); do \
	    echo "bench: $$file"; \
	    $(BIN)/python "$$file" || exit 1; \
	done

wheel: setup ## build the wheel and the source distribution in dist/, and check what is in them
	@rm -rf build dist *.egg-info
	$(BIN)/python setup.py -q bdist_wheel sdist
	$(BIN)/python -m pytest tests/packaging/test_wheel.py -m "slow or not slow"

docs: setup ## build the site of the documentation in site/; open site/index.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "Open site/index.html."

worked-example: setup ## measure docs/worked_example.md again, or that of WALK=images or cifar10 (downloads its data and model once)
	$(BIN)/toolkit data get $(or $(patsubst images,fashion,$(filter-out text,$(WALK))),customer_reviews)
	$(BIN)/python docs/worked_example.py --run $(or $(WALK),text)
