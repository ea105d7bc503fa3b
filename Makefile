# `make help` lists the targets; CONTRIBUTING.md describes when to use which.
#
# A fresh clone needs only Python 3.11+, make, git, and a network for the first set-up: every target
# that needs the virtual environment creates it first, from the lock files.
#
#   make run                          run the pipeline on generated clicks, with its audit
#   make run CLICKS=path/access.log   the same on your own log (plain or .gz)
#   make run SEED=7 ARGS="..."        another generated site; further flags of `sparq run`
#   make test                         all checks and tests, cheap checks first
#   make test ARGS="tests/log -x"     the same checks, but only these tests

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.installed
# An archive of the classes that Spark loads, with which it starts in half the time.
CLASSES := .venv/spark-classes.jsa
# Four processes run the test files, each whole, so that the fixtures of a file are made once. Two
# cores are enough for four processes, since tests wait for their daemons half of the time: with
# three, the tests took 1,366 s on such a machine, with four 1,158 s.
SPREAD := -n 4 --dist loadfile --no-loadscope-reorder
# A shared machine may stall for seconds, and one of 10,000 tests then times out in a wait. A test
# that fails is rerun up to twice, with at most six reruns in each of the four processes; the
# summary shows each such failure with its traceback. A bug that shows in every run still fails. A
# test that has reached pytest's timeout is not rerun, since that would take as long again.
AGAIN := --reruns 2 --reruns-delay 3 --max-suite-reruns 6 --rerun-show-tracebacks \
	--rerun-except "Timeout .* from pytest-timeout"
LOCKED := locks/build.txt locks/all.txt

.DEFAULT_GOAL := check
.DELETE_ON_ERROR:
PROOFS := simulate crash power bitrot full slow hostile golden cluster \
	operator_day spark mixed
.PHONY: help check run up test style types layers dead tidy tests bench latency idle clients interop deploy wheel security docs site \
	coverage mutants \
	proofs $(PROOFS) delta slow-tests test-all move format lock vendor screenshot \
	venv clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' Makefile

run: $(READY) $(CLASSES) ## run the pipeline end to end, with report and audit (CLICKS= SEED= ARGS=)
	@$(BIN)/sparq run $(if $(CLICKS),--clicks "$(CLICKS)") $(if $(SEED),--seed $(SEED)) $(ARGS)

up: $(READY) $(CLASSES) ## keep the pipeline running, for your own clicks (ARGS=)
	@$(BIN)/sparq up $(ARGS)

# On a virtual machine with a busy host, a page fault takes up to 300 us. So checks, tests and the
# programs that tests start use large pages. On such a machine, parsing all files took 41,000 page
# faults and 38 to 96 s of CPU; with large pages it takes 2,400 and 14 s. Loading nsqd's modules
# took 22 to 27 s of CPU; with large pages it takes 5 to 9 s.
style types layers dead tidy tests: export PYTHONMALLOC := malloc
style types layers dead tidy tests: export GLIBC_TUNABLES := glibc.malloc.hugetlb=1
# Checks and tests also never return memory to the system; daemons that a test starts do.
style types layers dead tidy tests: export MALLOC_TRIM_THRESHOLD_ := 1073741824
style types layers dead tidy tests: export MALLOC_MMAP_MAX_ := 0
style types layers dead tidy tests: export MALLOC_TOP_PAD_ := 16777216

# The tests of the core: those of its packages, and scenarios that run a log or a broker in process.
CORE_TESTS := tests/protocol tests/log tests/broker tests/inspection
CORE_TESTS += $(wildcard tests/scenarios/*/test_broker.py tests/scenarios/*/test_log.py)

check: style types layers dead tidy ## all checks and the tests of the core: the quick round
	@$(BIN)/python -m pytest -rs $(CORE_TESTS)

test: $(READY) ## all checks, and the tests that are not slow, in 10 minutes on two cores (ARGS= SEED=)
	@$(MAKE) --no-print-directory --jobs 2 --output-sync=target style types layers dead $(CLASSES)
	@$(MAKE) --no-print-directory tidy
	@$(MAKE) --no-print-directory tests

style: $(READY) ## ruff: lint rules and format
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check --quiet . || { echo "style: run 'make format'"; exit 1; }

types: $(READY) ## mypy, strict: sparq, the proofs and the bench
	@$(BIN)/mypy --no-error-summary

layers: $(READY) ## import-linter: which package may import which
	@$(BIN)/lint-imports --no-cache

dead: $(READY) ## vulture: unused code in src, except for the names listed in pyproject.toml
	@$(BIN)/vulture

TIDY_TESTS := tests/scenarios/repository/test_tidy.py tests/scenarios/docs/test_links.py

tidy: $(READY) ## sizes of functions, forbidden words, paths, hosts, links
	@$(BIN)/python -m pytest $(TIDY_TESTS)

tests: $(READY) $(CLASSES) ## the tests without the checks (ARGS= SEED=)
	@$(BIN)/python -m pytest -rfEs --durations 25 $(TIDY_TESTS:%=--ignore=%) $(SPREAD) $(AGAIN) $(if $(SEED),--randomly-seed=$(SEED)) $(ARGS)

bench: $(READY) $(CLASSES) ## measure speed and memory (ARGS=)
	@$(BIN)/python -m bench $(ARGS)

latency: $(READY) ## publish-to-deliver latency at 1,000 messages per second (ARGS=)
	@$(BIN)/python -m bench --parts peers --peers sparq --only "latency at 1,000" $(ARGS)

idle: $(READY) ## 10,000 idle connections: memory, heartbeats, a publisher's rate (ARGS=)
	@$(BIN)/python -m bench.beside idle $(ARGS)

clients: $(READY) ## compare the client with pynsq, gnsq and ansq: consuming, publishing (ARGS=)
	@$(BIN)/python -m bench.clients $(ARGS)

interop: $(READY) ## unmodified clients of other projects against nsqd and nsqlookupd
	@SLOW_TESTS=1 $(BIN)/python -m pytest -rs tests/scenarios/interop

deploy: $(READY) ## the Dockerfile, compose, Kubernetes, systemd, the wheel and the pages about them (ARGS=)
	@SLOW_TESTS=1 $(BIN)/python -m pytest -rs tests/scenarios/deploy $(ARGS)

wheel: $(READY) ## the pipeline from the wheel sparq-mq[spark]; pip downloads 1 GB (ARGS=)
	@$(BIN)/python -m pytest -rs tests/scenarios/deploy/whole_spark.py $(ARGS)

security: $(READY) ## the tests of the security table in SECURITY.md (ARGS=)
	@SLOW_TESTS=1 $(BIN)/python -m pytest -rs $$($(BIN)/python -m tests.scenarios.security.rows) $(ARGS)

docs: $(READY) ## write docs/api.md, flags.md, tools.md and behaviours.md from the code
	@$(BIN)/python -m docs.reference

coverage: $(READY) ## branch coverage of protocol, log and broker, at least 95 % each
	@$(BIN)/python -m proofs.coverage

mutants: $(READY) ## make N= small mistakes in protocol, log and broker; count those that tests notice (SEED= ARGS=)
	@$(BIN)/python -m proofs.mutants $(if $(N),--count $(N)) $(if $(SEED),--seed $(SEED)) $(ARGS)

site: $(READY) ## build the documentation as a site with search: build/site/html/index.html
	@$(BIN)/python -m docs.site

proofs: $(READY) ## run every proof, in about 70 minutes, and write GUARANTEES.md (ARGS=)
	@$(BIN)/python -m proofs $(ARGS)

# One proof: make crash, make power ... (N= its size, SEED=, ARGS=; full and power: FS=ext4, xfs, btrfs or
# btrfs-quota). CONTRIBUTING.md lists them.
$(PROOFS): $(READY)
	@$(BIN)/python -m proofs.$@ $(if $(N),--count $(N)) $(if $(SEED),--seed $(SEED)) \
		$(if $(FS),--file-system $(FS)) $(ARGS)

delta: $(READY) ## kill the pipeline N= times (10), check all its tables, and run the control (ARGS=)
	@SLOW_TESTS=1 DELTA_KILLS=$(or $(N),10) $(BIN)/python -m pytest -rs -s tests/scenarios/pipeline/test_delta_killed.py $(ARGS)

test-all: ## make test, with the slow tests, too, in 35 minutes on two cores (ARGS= SEED=)
	@SLOW_TESTS=1 $(MAKE) --no-print-directory test

slow-tests: $(READY) $(CLASSES) ## the tests that make test skips as slow (ARGS=)
	@SLOW_TESTS=1 $(BIN)/python -m pytest -rs -m slow $(SPREAD) $(ARGS)

move: $(READY) ## test sparq admin move with N= messages (a million), and with kills (ARGS=)
	@MOVE_MESSAGES=$(or $(N),1000000) $(BIN)/python -m pytest -rs --timeout=3600 tests/tools/admin/test_moving.py $(ARGS)

format: $(READY) ## let ruff fix the style and the format
	@$(BIN)/ruff check --fix --quiet . || true
	@$(BIN)/ruff format --quiet .

venv: $(READY) ## only create the virtual environment

$(READY): $(LOCKED) pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "needs Python 3.11 or newer: make PYTHON=python3.12 ..."; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "setting up .venv from the lock files (some minutes the first time)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check \
		--require-hashes -r locks/build.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check \
		--require-hashes --no-build-isolation -r locks/all.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check \
		--no-deps --no-build-isolation -e .
	@# Whatever PYTHONDONTWRITEBYTECODE says: nsqd starts in two thirds of the time.
	@$(BIN)/python -m compileall -q src
	@touch $@

$(CLASSES): $(READY) tests/support/spark_classes.py
	@echo "archiving the classes that Spark loads, once (about a minute)"
	@$(BIN)/python -m tests.support.spark_classes $@

lock: $(READY) ## rewrite the lock files: newest versions, with hashes, no index URL (ARGS=)
	@$(BIN)/python locks/write.py $(ARGS)

vendor: $(READY) ## fetch the scripts and styles that nsqadmin's pages include (needs npm)
	@$(BIN)/python locks/web/vendor.py

screenshot: $(READY) ## docs/nsqadmin_light.png and _dark.png, of a running cluster (needs Chromium; ARGS=)
	@$(BIN)/python -m tests.scenarios.admin_pages.screenshot $(ARGS)

clean: ## delete what the other targets have made, except .venv and ./data
	@rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	@find . -name __pycache__ -type d -not -path './.venv*' -prune -exec rm -rf {} +
