# Everything a person or a CI runs. `make` alone lists the targets.

PYTHON ?= python3
VENV   ?= .venv
TORCH  ?= torch==2.13.0
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
INSTALL = .venvs/uv/bin/uv pip install --quiet --python $(VENV)
SECONDS := 60
N := 1000
SEED := 1
LOOPS := 48
LEVEL := 1
WAYS := pip pipx uv uvx
# of pytest, for all targets that call it: make unit OPTIONS=--last-failed
OPTIONS :=
TRAINERS := transformers-4.45 transformers-5
FRAMEWORK_LOOPS := accelerate/fabric/lightning/lightning_manual/trainer_compute_loss/trainer_loss_func/trainer_head/trainer_training_step/trl_sft
ON_A_GPU := OMP_NUM_THREADS=1 PYTHONPATH=$(CURDIR)/hooks:$(CURDIR)/monitor:$(CURDIR)/web:$(CURDIR)/migrations:$(PYTHONPATH)
GPU_JOBS := 8
HEADS := transformers-4.57 transformers-5.0 transformers-5
BENCH  := OMP_NUM_THREADS=1 $(BIN)/python bench/
PEERS  := .venvs/peers/bin/python
# Tests of what depends on packages: routes, forms, settings, both databases, alerts, the deployment.
LOWEST_TESTS := tests/unit/alerts tests/unit/web \
	$(addprefix tests/unit/test_,wire.py hostile_batches.py packing.py rebuilt_urls.py operations_page.py) \
	$(addprefix tests/integration/service/test_,access.py login.py other_sites.py operations.py serving.py \
		ingest_refuses_bad_input.py store.py overrides.py) \
	tests/integration/alerts/test_channel_kinds.py tests/integration/deploy tests/e2e/deploy
# Four workers on two cores, because tests wait for processes. The short files of tests/unit go last,
# so that no worker is left alone with a long one.
PARALLEL := -n 4 --dist loadfile --no-loadscope-reorder
# Tests of what is compiled: the rules on any record, texts of all rules, the service that evaluates.
COMPILED_TESTS = tests/compiled tests/unit/test_rules_hold.py tests/unit/test_finding_texts.py \
	$(addprefix tests/integration/service/test_,evaluation.py evaluation_continues.py)

COMMA := ,

# Without it, each of hundreds of processes would compile the sources again.
unexport PYTHONDONTWRITEBYTECODE
# uv trusts the certificates of the system, as pip does: a company may have a package index.
export UV_SYSTEM_CERTS := 1

.DEFAULT_GOAL := help
.PHONY: help environment demo attack test test-fast e2e lint type unit lowest matrix compiled museum proofs parallel courses oracle zoo zero-code missing-division frameworks libraries examples docs coverage mutants bench screenshots gallery security audit fuzz gpu dist sbom image tools clean
.DELETE_ON_ERROR:

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

environment: $(READY) tools  ## what most other targets need first: .venv, chromium and nginx

demo: $(READY)  ## train a model with a bug and without, live on the dashboard (EXIT=1 ends by itself)
	@$(BIN)/gradledger demo $(if $(EXIT),--exit)

test: $(READY) tools  ## linters, types, architecture contracts, tests: what to run before each push
	@$(MAKE) --no-print-directory --jobs 2 lint type
	@$(MAKE) --no-print-directory unit

test-fast: $(READY)  ## tests/unit alone, each property on fewer examples
	$(BIN)/pytest $(OPTIONS) $(subst -n 4,-n 2,$(PARALLEL)) --hypothesis-profile fast tests/unit

e2e: $(READY) tools  ## what takes long: pages in a browser, cold starts, torch.compile, locked and full databases, the deployment, generated requests (WITHOUT=browser,deploy)
	$(BIN)/pytest $(OPTIONS) $(PARALLEL) $(addprefix --ignore tests/e2e/,$(subst $(COMMA), ,$(WITHOUT))) tests/e2e

# ruff's cache does not see that a folder came to be which makes a module ours.
lint: $(READY)  ## ruff, the architecture contracts, the types of the scripts, the language
	$(BIN)/ruff check --no-cache
	$(BIN)/ruff format --check
	$(BIN)/lint-imports
	$(BIN)/deno check --quiet --config web/deno.json web/gradledger_web/static/*.js
	$(BIN)/deno lint --quiet --config web/deno.json web/gradledger_web/static
	$(BIN)/pytest $(OPTIONS) -q tests/language

type: $(READY)  ## mypy --strict
	$(BIN)/mypy

unit: $(READY) tools  ## pytest alone; e2e, museum, docs, frameworks and examples have targets of their own
	$(BIN)/pytest $(OPTIONS) $(PARALLEL) tests/e2e/browser/test_every_page.py tests/integration tests/unit

# Older versions of packages use names that newer Python versions and packages call deprecated.
lowest: .venvs/lowest/.ready tools  ## the service on the lowest versions of its dependencies that pyproject.toml allows
	OMP_NUM_THREADS=1 .venvs/lowest/bin/python -m pytest $(OPTIONS) -n 2 --dist loadfile -W ignore::DeprecationWarning $(LOWEST_TESTS)

matrix: .venvs/uv/.ready  ## the hooks on older and newer Pythons and PyTorches, one table (PYTHONS="3.10 3.13" TORCHES="2.6.0 2.8.0" WRITE=1); 2 to 4 minutes for each pair
	@.venvs/uv/bin/python tests/matrix/run.py $(if $(PYTHONS),--pythons "$(PYTHONS)") $(if $(TORCHES),--torches "$(TORCHES)") \
		$(if $(JOBS),--jobs $(JOBS)) $(if $(DISCARD),--discard) $(if $(WRITE),--write docs/compatibility.md)

compiled: build/compiled/.ready-$(LEVEL)  ## model and rules compiled to C: their tests, and the museum on them (LEVEL=0: of the C compiler)
	PYTHONPATH=build/compiled $(BIN)/pytest $(OPTIONS) -n 2 $(COMPILED_TESTS)
	PYTHONPATH=$(CURDIR)/build/compiled $(MAKE) --no-print-directory museum

museum: $(READY)  ## the bug museum: what is found and what is left alone, written to docs/detection.md
	cd tests && ../$(BIN)/python -m museum.run --jobs 2 --write ../docs/detection.md

proofs: $(READY)  ## its mistakes against true gradients, each fix that is shown, hooks that watch some steps, a late device
	$(BIN)/pytest $(OPTIONS) -n 2 --dist load tests/museum -k 'not mistake_is_named'
	cd tests && ../$(BIN)/python -m museum.run --jobs 2 --in-part 3
	cd tests && GRADLEDGER_TEST_DEVICE=late ../$(BIN)/python -m museum.run --jobs 2 --core

parallel: $(READY)  ## its scripts of several ranks alone, and their chapter in docs/detection.md
	cd tests && ../$(BIN)/python -m museum.run --parallel --jobs 2 --write ../docs/detection.md

courses: $(READY)  ## long healthy runs and faulty ones: how often alarmed, how many found; minutes
	cd tests && OMP_NUM_THREADS=1 ../$(BIN)/python -m museum.courses.measure --write ../docs/detection.md
	cd tests && ../$(BIN)/python -m museum.courses.short_histories --seed 20000 --write ../docs/detection.md
	cd tests && ../$(BIN)/python -m museum.courses.short_histories --runs 1000 --steps 10000 --trained 0 --seed 20000 --write ../docs/detection.md

oracle: $(READY)  ## generated programs, each compared with its computed truth (N=1000, SEED=1, MORE=50 of a random seed, ONLY=layout:ddp, SHRINK=1, WRITE=1)
	$(if $(ONLY)$(WRITE),,$(BIN)/pytest $(OPTIONS) -n 2 tests/oracle)
	cd tests && ../$(BIN)/python -m oracle.run $(N) --seed $(SEED) --only '$(ONLY)' $(if $(MORE),--random $(MORE)) $(if $(SHRINK),--shrink) $(if $(WRITE),--write ../docs/detection.md)

zoo: $(READY)  ## unusual programs, each without the hooks and with them: the same in all (ONLY=threads, UNDER=python)
	cd tests && ../$(BIN)/python -m zoo.run --jobs 2 $(if $(ONLY),--only '$(ONLY)') $(if $(UNDER),--python '$(UNDER)')

zero-code: $(READY) $(TRAINERS:%=.venvs/%/.ready)  ## the published Trainer bug is found, and its fix is balanced
	$(BIN)/pytest $(OPTIONS) -v tests/frameworks/zero_code/published_bug.py

missing-division: $(READY) $(HEADS:%=.venvs/%/.ready)  ## Trainer of transformers 4.57, 5.0 and 5.23: 18 model heads against their true gradients; 10 minutes
	$(BIN)/pytest $(OPTIONS) -v tests/frameworks/zero_code/missing_division.py

frameworks: .venvs/frameworks/.ready  ## Trainer, Accelerate, Lightning and trl, watched; and generated programs of their loops (LOOPS=48)
	OMP_NUM_THREADS=1 .venvs/frameworks/bin/python -m pytest $(OPTIONS) -W ignore tests/frameworks
	cd tests && ../.venvs/frameworks/bin/python -W ignore -m oracle.run $(LOOPS) --jobs 1 --only loop:$(FRAMEWORK_LOOPS)

libraries: .venvs/libraries/.ready  ## training code of trl, transformers, sentence-transformers, timm, open_clip and ultralytics, against true gradients; optimizers of other packages
	OMP_NUM_THREADS=1 .venvs/libraries/bin/python -m pytest $(OPTIONS) -W ignore tests/libraries

examples: .venvs/frameworks/.ready  ## every example under `gradledger check`
	.venvs/frameworks/bin/python -m pytest $(OPTIONS) -W ignore tests/examples

docs: $(READY)  ## the documentation, into build/site; warnings are errors, and what it shows is run
	NO_MKDOCS_2_WARNING=1 $(BIN)/pytest $(OPTIONS) tests/docs

coverage: $(READY)  ## lines and branches that no unit test reaches: a map, not a target
	$(BIN)/pytest $(OPTIONS) tests/unit --cov --cov-report=term-missing:skip-covered

mutants: $(READY)  ## changes to the ledger and the rules that no test notices; an hour (ONLY='*rules.norm*')
	@$(INSTALL) --group mutation
	tests/mutation/run $(BIN) $(if $(ONLY),'$(ONLY)')

screenshots: $(READY) tools  ## the README's pictures, of real trainings
	cd tests && ../$(BIN)/python screenshots.py ../docs/images

gallery: $(READY) tools  ## pictures of every page in every state, to be looked at: build/gallery (ONLY=run-wide, THEMES=dark, WIDTHS=390)
	cd tests && ../$(BIN)/python -m gallery.take ../build/gallery $(if $(ONLY),--only '$(ONLY)') \
		$(if $(THEMES),--themes $(THEMES)) $(if $(WIDTHS),--widths $(WIDTHS))

bench: $(READY) tools .venvs/peers/.ready build/compiled/.ready-1  ## what the hooks cost and how fast the service is, beside peers: docs/performance.md; 40 minutes
	@rm -rf build/bench
	$(BENCH)step_cost.py --rounds 12 --peers $(PEERS) --json build/bench/10-step-cost.json
	$(BENCH)norm_cost.py --json build/bench/11-norm.json
	$(BENCH)whole_process.py --long-pairs 4 --pairs 8 --json build/bench/12-whole-process.json
	$(BENCH)absent_service.py --json build/bench/13-absent-service.json 2>/dev/null
	$(BENCH)imports.py --peers $(PEERS) --json build/bench/14-imports.json
	$(BENCH)process_end.py --peers $(PEERS) --json build/bench/15-process-end.json
	$(BENCH)counts.py --json build/bench/16-counts.json
	$(BENCH)growth.py --json build/bench/17-growth.json
	$(BENCH)device_cost.py --json build/bench/18-device.json
	$(BENCH)service_ingest.py --rounds 5 --json build/bench/20-ingest.json
	$(BENCH)service_ingest.py --postgres --rounds 5 --json build/bench/21-ingest-postgres.json
	$(BENCH)service_evaluation.py --rounds 5 --seconds 10 --json build/bench/22-evaluation.json
	$(BENCH)service_long_run.py --steps 100000 --runs 2000 --rounds 2 --json build/bench/23-long-run.json
	$(BENCH)service_peers.py --peers $(PEERS) --long 100000 --json build/bench/24-peers.json
	$(BENCH)page_loads.py --json build/bench/25-page-loads.json
	$(BENCH)page.py build/bench docs/performance.md

security: $(READY)  ## bandit on the source; what is left out, and why, is in pyproject.toml
	$(BIN)/bandit --quiet --configfile pyproject.toml --recursive hooks monitor web migrations deploy .ci

audit: $(READY)  ## known vulnerabilities of what is installed; queries PyPI; reports if it cannot
	@$(BIN)/python .ci/audit.py

fuzz: $(READY)  ## the record decoder against a coverage-guided fuzzer (SECONDS=60)
	@$(INSTALL) --group fuzz
	cd tests && ../$(BIN)/python -m fuzz.decoder -max_total_time=$(SECONDS)

gpu:  ## on a CUDA device, with the PyTorch, the packages and the pytest of PYTHON: tests of the hooks, the museum, generated programs
	$(ON_A_GPU) $(PYTHON) -m pytest $(OPTIONS) tests/integration/hooks/test_on_a_gpu.py tests/libraries/test_on_a_gpu.py
	cd tests && $(ON_A_GPU) GRADLEDGER_TEST_DEVICE=cuda $(PYTHON) -m museum.run --one-rank --jobs $(GPU_JOBS)
	cd tests && $(ON_A_GPU) GRADLEDGER_TEST_DEVICE=cuda $(PYTHON) -m oracle.run $(N) --jobs $(GPU_JOBS) --only layout:one

attack: $(READY)  ## attack real service processes: one table of tries and losses (SECONDS=60, ONLY=bombs)
	cd tests && OMP_NUM_THREADS=1 ../$(BIN)/python -m attack.run --seconds $(SECONDS) $(addprefix --only ,$(ONLY))

dist: .venvs/dist/.ready  ## sdist, wheel and SBOM in dist/, checked, and installed by pip, pipx, uv and uvx (WAYS=pip)
	.ci/dist .venvs/dist/bin "$(TORCH)" "$(WAYS)"

sbom: .venvs/dist/.ready  ## the packages of the service as CycloneDX, in dist/; make dist writes it too
	.ci/sbom .venvs/dist/bin .

image:  ## the container image gradledger:VERSION, with Docker, Podman or Buildah
	deploy/build-image

clean:  ## remove what this file made
	rm -rf $(VENV) .venvs build/compiled dist

# An environment that fits is left alone, and its file .ready too.
ENVIRONMENT = @.ci/environment $(1) $(@D) $(PYTHON) "$(TORCH)"
$(READY): .venvs/uv/.ready FORCE
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 10) or sys.exit("gradledger needs Python 3.10")'
	$(call ENVIRONMENT,dev)

.venvs/uv/.ready: FORCE
	$(call ENVIRONMENT,uv)

.venvs/%/.ready: .venvs/uv/.ready FORCE
	$(call ENVIRONMENT,$*)

FORCE:

# The content of a wheel with a compiled model and rules. It comes before the source on the path.
build/compiled/.ready-%: $(READY) deploy/compile.py $(shell find hooks monitor web migrations -name '*.py')
	@echo "compiling the model and the rules (a minute)"
	@rm -rf $(@D)
	HATCH_BUILD_HOOK_ENABLE_CUSTOM=1 GRADLEDGER_OPTIMIZATION=$* $(INSTALL) --no-deps --target $(@D) .
	@touch $@

tools:
	@.ci/install-tools
