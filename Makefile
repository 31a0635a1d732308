# Each target does its own set-up, on a fresh machine too; needed beforehand: make, Python 3.11+ with venv.
# PYTHON=... chooses another interpreter, VENV=... another place for the virtual environment.

VENV ?= .venv
BIN := $(VENV)/bin
DEPENDENCIES := $(VENV)/dependencies.stamp
UV_INSTALL := $(BIN)/uv pip install --quiet --python $(BIN)/python --require-hashes --requirement
PROJECT := $(VENV)/project.stamp
# Prints JAVA_HOME; installs a JRE when it may, or says in one sentence what to install.
JAVA := $(BIN)/python -m tests.support.java --install
# Of what takes as long as it is told to.
UNTIMED := -o faulthandler_timeout=0

export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Where it is set pytest compiles each test anew in every process, which takes a minute of each run.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test long tested tested-on-spark compiled installed versions torture fuzz fuzz-bytes fuzz-principals fuzz-schedules containers lint bench rooms dist audit lock clean

help: ## Show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1\t\2/p' Makefile | expand -t 22

demo: $(PROJECT) ## Run the main job on real flights data
	@JAVA_HOME="$$($(JAVA))" && export JAVA_HOME && $(BIN)/python -m tests.demo

# Beside each other, because many tests wait: the checks of style and types, the tests without Spark and those with it.
# Then, alone, those that load the machine.
test: ## Check style and types, and run every test
	@$(MAKE) --no-print-directory --jobs=3 lint tested tested-on-spark
	@$(BIN)/pytest --durations=50 -n 2 --dist load -m load tests/load

# Without a browser those that need one are skipped.
tested: installed compiled
	@$(BIN)/pytest --durations=50 -n 3 --dist worksteal -m "not spark and not load"

# Two at a time, because each has a JVM to warm up. One process has all tests that share a cluster or a session's
# processes; those that take long begin first. What they print comes as a whole.
tested-on-spark: installed compiled
	@$(BIN)/pytest --durations=50 -n 2 --dist loadfile --no-loadscope-reorder -m spark > $(VENV)/on-spark.txt 2>&1; \
		status=$$?; cat $(VENV)/on-spark.txt; exit $$status

long: LONG = $(BIN)/pytest --long --hypothesis-profile=many --durations=50
long: installed ## Run the tests that are rare or take long, and every property with many examples
	@$(LONG) -n 4 --dist worksteal -m "(long or hypothesis) and not spark and not load" && \
		$(LONG) -n 3 --dist loadfile --no-loadscope-reorder \
			-m "spark and (long or hypothesis)" && \
		$(LONG) -n 2 --dist load -m "load and long" tests/load
	@if $(BIN)/python -m tests.support.container_engine --install; then $(MAKE) --no-print-directory containers; fi

# Once, and not in four processes at once.
compiled: $(PROJECT)
	@$(BIN)/pytest --collect-only --quiet > $(VENV)/collected.txt || { cat $(VENV)/collected.txt; exit 1; }

installed: $(PROJECT)
	@$(BIN)/python -m tests.support.browser --install
	@$(JAVA) > /dev/null

# `make test` has the newest versions, from the lock file.
versions: PYTHONS = $(BIN)/python
versions: VERSIONS = 4.1 4.2 4.3 oldest
versions: UNITS = tests/flight_server tests/spark_client tests/integration/round_trip
versions: TESTS = tests/integration
# PySpark 4.1 leaves the socket of each collect to the collector.
versions: LEAKING = -W ignore::ResourceWarning
versions: installed ## Run the tests on other versions: VERSIONS="4.1 oldest" PYTHONS="python3.12 python3.14"
	@failed= && \
	for python in $(PYTHONS); do for version in $(VERSIONS); do \
		venv=build/versions/$$($$python -c 'import sys; print("%d.%d" % sys.version_info[:2])')-$$version && \
		tests/support/other_versions.sh $(BIN)/uv $$python $$venv $$version && \
		$$venv/bin/pytest $(LEAKING) -n 3 --dist worksteal -m "not spark and not load" $(UNITS) && \
		$$venv/bin/pytest $(LEAKING) -n 3 --dist loadfile --no-loadscope-reorder -m spark $(UNITS) $(TESTS) || \
			failed="$$failed $$python-$$version"; \
	done; done; test -z "$$failed" || { echo "failed on:$$failed"; exit 1; }

torture: SECONDS = 3600
torture: SEED = $(shell date +%s)
torture: $(PROJECT) ## Kill one server after the other under random calls: SECONDS=3600 SEED=1
	@$(BIN)/pytest $(UNTIMED) -m load --torture-seconds $(SECONDS) --torture-seed $(SEED) --capture=no tests/load/test_torture.py

fuzz: SECONDS = 3600
fuzz: SEED = $(shell date +%s)
fuzz: SERVERS = 1
fuzz: installed ## Compare random programs with Spark: SECONDS=3600 SEED=1 SERVERS=1
	@$(BIN)/pytest $(UNTIMED) --long -m spark \
		--fuzz-seconds $(SECONDS) --fuzz-seed $(SEED) --fuzz-servers $(SERVERS) --capture=no -k random tests/fuzz/test_fuzz.py

# atheris is no dependency: its wheels come late to a new Python.
fuzz-bytes: SECONDS = 60
fuzz-bytes: TARGET = all
fuzz-bytes: $(PROJECT) ## Look for bytes that a parser does not refuse as it documents: TARGET=tickets SECONDS=60
	@test -d build/atheris || $(BIN)/uv pip install --quiet --python $(BIN)/python --target build/atheris atheris==3.0.0
	@PYTHONPATH=build/atheris $(BIN)/python -m tests.fuzz.fuzz_bytes $(TARGET) $(SECONDS)

fuzz-principals: SECONDS = 60
fuzz-principals: SEED = $(shell date +%s)
fuzz-principals: $(PROJECT) ## Look for what a principal sees, changes or takes of another's: SECONDS=60 SEED=1
	@$(BIN)/pytest $(UNTIMED) -n 0 --fuzz-seconds $(SECONDS) --fuzz-seed $(SEED) --capture=no tests/fuzz/test_principals.py tests/fuzz/test_quotas.py

fuzz-schedules: SECONDS = 60
fuzz-schedules: SEED = $(shell date +%s)
fuzz-schedules: $(PROJECT) ## Run the driver's logic in simulated clusters, each schedule twice: SECONDS=60 SEED=1
	@$(BIN)/pytest $(UNTIMED) --schedules-seconds $(SECONDS) --schedules-seed $(SEED) --capture=no -k random_schedules \
		tests/spark_client/servers/test_simulated.py

# What an engine of their own has built stays in build/containers, for the next run.
containers: $(PROJECT) ## Build both images, and run Compose with its job and servers on an engine of containers
	@$(BIN)/python -m tests.support.container_engine --install
	@$(BIN)/pytest $(UNTIMED) --capture=no -m containers tests/containers

lint: $(PROJECT) ## Check style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(PROJECT) ## Measure, and print ratios
	@JAVA_HOME="$$($(JAVA))" && export JAVA_HOME && $(BIN)/python -m tests.benchmarks

rooms: $(PROJECT) ## Draw the rooms of the code and what each uses
	@$(BIN)/python -m tests.support.rooms

# Each in an environment that has nothing else.
dist: $(PROJECT) ## Build wheel and sdist, install each with the server, and try it
	@rm -rf dist && $(BIN)/python -m build --no-isolation --outdir dist && for file in dist/*; do \
		$(BIN)/uv venv --quiet --clear --python $(BIN)/python build/dist && \
		$(BIN)/uv pip install --quiet --python build/dist "$$file[server]" && \
		echo "$$file:" && build/dist/bin/python -I tests/support/smoke.py || exit 1; done

# Strict: a package that the advisory service does not know, or an index without one, is not taken for a safe one.
audit: $(PROJECT) ## Ask for known vulnerabilities of all packages of requirements-dev.lock
	@$(BIN)/uv tool run --quiet pip-audit==2.10.* --strict --disable-pip --requirement requirements-dev.lock

# The lock names versions and hashes only, never an index: it works behind any mirror. One version for every
# Python (fewest), so that types and tests mean the same on each.
lock: $(PROJECT) ## Write requirements-dev.lock anew from pyproject.toml
	$(BIN)/uv pip compile pyproject.toml --extra dev --universal --python-version 3.11 --fork-strategy fewest --upgrade \
		--generate-hashes --no-emit-index-url --no-emit-find-links --no-annotate \
		--custom-compile-command "make lock" --quiet --output-file requirements-dev.lock

clean: ## Remove what the other targets made
	rm -rf $(VENV) build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache

$(PROJECT): pyproject.toml $(DEPENDENCIES)
	$(BIN)/pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

# By uv, of the version that the lock names, in a third of pip's time; by pip where only its settings name an index. First
# from uv's cache alone: it builds sources anew, PySpark's for most of a minute, where the index does not say their age.
$(DEPENDENCIES): requirements-dev.lock | $(BIN)/python
	@echo "Installing $< into $(VENV), which takes a minute or two the first time"
	@awk '/^[^ #]/ { of_uv = /^uv==/ } of_uv' $< > $(VENV)/uv.lock
	@$(BIN)/pip install --quiet --require-hashes --requirement $(VENV)/uv.lock
	@$(UV_INSTALL) $< --offline 2> $(VENV)/uv.txt || $(UV_INSTALL) $< || \
		$(BIN)/pip install --quiet --require-hashes --requirement $<
	@touch $@

$(BIN)/python:
	@PYTHON='$(PYTHON)' tests/support/make_venv.sh '$(VENV)'
