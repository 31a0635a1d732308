# Each target does its own set-up, on a fresh machine too; needed beforehand: make, Python 3.11+ with venv.
# PYTHON=... chooses another interpreter, VENV=... another place for the virtual environment.

VENV ?= .venv
BIN := $(VENV)/bin
DEPENDENCIES := $(VENV)/dependencies.stamp
PROJECT := $(VENV)/project.stamp
# Prints JAVA_HOME; installs a JRE when it may, or says in one sentence what to install.
JAVA := $(BIN)/python -m tests.support.java --install
# For JVMs that live for a minute: their second compiler would take more time than it saves.
SHORT_LIVED := -XX:TieredStopAtLevel=1 -XX:+UseSerialGC
# Spark's classes as a JVM maps them; a JVM to which they do not apply says nothing, and starts more slowly.
CLASSES := build/spark-classes.jsa
ARCHIVED := -XX:SharedArchiveFile=$(abspath $(CLASSES)) -Xlog:cds=off -Xlog:cds+dynamic=off

export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test versions torture fuzz fuzz-schedules lint bench rooms lock clean

help: ## Show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1\t\2/p' Makefile | expand -t 22

demo: $(PROJECT) ## Run the main job on real flights data
	@JAVA_HOME="$$($(JAVA))" && export JAVA_HOME && $(BIN)/python -m tests.demo

# Four at a time, because many wait, but for those that load the machine. Tests of one file stay together, most
# of those that share a server and all that share a Spark session; of the latter the files with long tests begin first.
# Without a browser those that need one are skipped.
test: ## Check style and types, then run every test
	@$(MAKE) --no-print-directory --jobs=2 lint $(CLASSES)
	@$(BIN)/python -m tests.support.browser --install
	@JAVA_HOME="$$($(JAVA))" && export JAVA_HOME && \
		$(BIN)/pytest --durations=50 -n 4 --dist worksteal -m "not spark and not load" && \
		JDK_JAVA_OPTIONS='$(SHORT_LIVED) $(ARCHIVED)' $(BIN)/pytest --durations=50 -n 4 --dist loadfile \
			--no-loadscope-reorder -m spark && \
		$(BIN)/pytest --durations=50 -n 2 --dist load -m load tests/load

# `make test` has the newest versions, from the lock file.
versions: VERSIONS = 4.1 4.2 4.3 oldest
versions: TESTS = tests/integration
# PySpark 4.1 leaves the socket of each collect to the collector.
versions: LEAKING = -W ignore::ResourceWarning
versions: $(PROJECT) ## Run the client's tests on each PySpark, and on the oldest packages: VERSIONS="4.1 oldest"
	@JAVA_HOME="$$($(JAVA))" && export JAVA_HOME JDK_JAVA_OPTIONS='$(SHORT_LIVED)' && failed= && \
	for version in $(VERSIONS); do \
		venv=build/versions/$$version && \
		tests/support/other_versions.sh $(BIN)/uv $(BIN)/python $$venv $$version && \
		$$venv/bin/pytest $(LEAKING) -n 3 --dist loadfile -m "not load" tests/spark_client && \
		$$venv/bin/pytest $(LEAKING) -n 3 --dist loadfile --no-loadscope-reorder -m spark $(TESTS) || \
			failed="$$failed $$version"; \
	done; test -z "$$failed" || { echo "failed on:$$failed"; exit 1; }

torture: SECONDS = 3600
torture: SEED = $(shell date +%s)
torture: $(PROJECT) ## Kill one server after the other under random calls, and what a cluster has: SECONDS=3600 SEED=1
	@$(BIN)/pytest -m load --torture-seconds $(SECONDS) --torture-seed $(SEED) --capture=no tests/load/test_torture.py
	@JAVA_HOME="$$($(JAVA))" && export JAVA_HOME && JDK_JAVA_OPTIONS='$(SHORT_LIVED)' $(BIN)/pytest -m spark \
		--all-failures tests/tpch/test_tpch_on_cluster.py tests/integration/spark/test_net_hosts.py \
		tests/integration/spark/test_executor_failures.py tests/integration/spark/test_executors_that_go.py \
		tests/integration/spark/test_new_user.py

fuzz: SECONDS = 3600
fuzz: SEED = $(shell date +%s)
fuzz: ON = local
fuzz: SERVERS = 1
fuzz: $(PROJECT) ## Compare random programs with Spark: SECONDS=3600 SEED=1 SERVERS=1 ON=local, connect or cluster
	@JAVA_HOME="$$($(JAVA))" && export JAVA_HOME && JDK_JAVA_OPTIONS='$(SHORT_LIVED)' $(BIN)/pytest -m spark \
		--fuzz-seconds $(SECONDS) --fuzz-seed $(SEED) --fuzz-on $(ON) --fuzz-servers $(SERVERS) --capture=no -k random tests/fuzz/test_fuzz.py

fuzz-schedules: SECONDS = 60
fuzz-schedules: SEED = $(shell date +%s)
fuzz-schedules: $(PROJECT) ## Run the driver's logic in simulated clusters, each schedule twice: SECONDS=60 SEED=1
	@$(BIN)/pytest --schedules-seconds $(SECONDS) --schedules-seed $(SEED) --capture=no -k random_schedules \
		tests/spark_client/servers/test_simulated.py

lint: $(PROJECT) ## Check style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(PROJECT) ## Measure, and print ratios
	@JAVA_HOME="$$($(JAVA))" && export JAVA_HOME && $(BIN)/python -m tests.benchmarks

rooms: $(PROJECT) ## Draw the rooms of the code and what each uses
	@$(BIN)/python -m tests.support.rooms

# The lock names versions and hashes only, never an index: it works behind any mirror. One version for every
# Python (fewest), so that types and tests mean the same on each.
lock: $(PROJECT) ## Write requirements-dev.lock anew from pyproject.toml
	$(BIN)/uv pip compile pyproject.toml --extra dev --universal --python-version 3.11 --fork-strategy fewest --upgrade \
		--generate-hashes --no-emit-index-url --no-emit-find-links --no-annotate \
		--custom-compile-command "make lock" --quiet --output-file requirements-dev.lock

clean: ## Remove what the other targets made
	rm -rf $(VENV) build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache

$(CLASSES): $(PROJECT) tests/support/class_archive.py tests/support/spark_home.py
	@JAVA_HOME="$$($(JAVA))" && export JAVA_HOME && \
		JDK_JAVA_OPTIONS='$(SHORT_LIVED)' $(BIN)/python -m tests.support.class_archive $@

$(PROJECT): pyproject.toml $(DEPENDENCIES)
	$(BIN)/pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

$(DEPENDENCIES): requirements-dev.lock | $(BIN)/python
	$(BIN)/pip install --quiet --require-hashes --requirement requirements-dev.lock
	@touch $@

$(BIN)/python:
	@PYTHON='$(PYTHON)' tests/support/make_venv.sh '$(VENV)'
