# The workshop of sparq. `make help` lists the verbs; CONTRIBUTING.md says when to use which.
#
# A fresh clone needs nothing but Python 3.11+, make, git and a network for the first set-up:
# every verb that needs the virtual environment makes it first, from the lock files.
#
#   make run                          the pipeline on generated clicks, with its audit
#   make run CLICKS=path/access.log   the same on a log of your own (plain or .gz)
#   make run SEED=7 ARGS="..."        another generated site; further flags of `sparq run`
#   make test                         everything that is checked, cheap checks first
#   make test ARGS="tests/log -x"     the same checks, but only these tests

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.installed
# An archive of the classes that Spark loads: tests start it in half the time.
CLASSES := .venv/spark-classes.jsa
# Files are handed to three processes as they come: what a file shares is made once. Two cores have
# room for three, since a test waits for its daemons half of its time.
SPREAD := -n 3 --dist loadfile --no-loadscope-reorder
# A machine that others use too may stand still for seconds, and one of 8,500 tests then waits too
# long. A test that fails runs again, twice at most, and six in each of the three processes; the
# summary shows each such failure with its traceback. A fault that is there each time still fails.
# What has taken all of its time is not run again: that would take as long once more.
AGAIN := --reruns 2 --reruns-delay 3 --max-suite-reruns 6 --rerun-show-tracebacks \
	--rerun-except "Timeout .* from pytest-timeout"
LOCKED := locks/build.txt locks/all.txt

.DEFAULT_GOAL := check
.DELETE_ON_ERROR:
PROOFS := simulate model crash power bitrot full ioerror slow hostile equal fds clock term golden \
	net cluster spark museum kill mixed
.PHONY: help check run up test style types layers dead tidy tests bench latency idle clients interop wheel security docs site \
	coverage mutants \
	proofs $(PROOFS) spark-cluster delta slow-tests move format lock vendor screenshot \
	venv clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' Makefile

run: $(READY) ## the pipeline end to end, with report and audit (CLICKS= SEED= ARGS=)
	@$(BIN)/sparq run $(if $(CLICKS),--clicks "$(CLICKS)") $(if $(SEED),--seed $(SEED)) $(ARGS)

up: $(READY) ## the pipeline kept running, for clicks of your own (ARGS=)
	@$(BIN)/sparq up $(ARGS)

# A page of fresh memory costs a virtual machine on a busy host up to 300 us: checks and tests, and what
# tests start, take it in large pages (all files parsed: 41,000 page faults become 2,400, and 38 to 96 s
# of CPU 14 where a page was that dear; nsqd's modules loaded: 22 to 27 s become 5 to 9).
style types layers dead tidy tests: export PYTHONMALLOC := malloc
style types layers dead tidy tests: export GLIBC_TUNABLES := glibc.malloc.hugetlb=1
# Checks and tests also keep what they have; daemons that a test starts do not.
style types layers dead tidy tests: export MALLOC_TRIM_THRESHOLD_ := 1073741824
style types layers dead tidy tests: export MALLOC_MMAP_MAX_ := 0
style types layers dead tidy tests: export MALLOC_TOP_PAD_ := 16777216

# The tests of the core: of its packages, and the scenarios that drive a log or a broker in process.
CORE_TESTS := tests/protocol tests/log tests/broker tests/inspection
CORE_TESTS += $(wildcard tests/scenarios/*/test_broker.py tests/scenarios/*/test_log.py)

check: style types layers dead tidy ## the quick round: checks, then the tests of the core
	@$(BIN)/python -m pytest -rs $(CORE_TESTS)

test: $(READY) ## everything, under 20 minutes on two cores (ARGS= SEED=)
	@$(MAKE) --no-print-directory --jobs 2 --output-sync=target style types layers dead $(CLASSES)
	@$(MAKE) --no-print-directory tidy
	@$(MAKE) --no-print-directory tests

style: $(READY) ## ruff: the rules and the format
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check --quiet . || { echo "style: run 'make format'"; exit 1; }

types: $(READY) ## mypy, strict
	@$(BIN)/mypy --no-error-summary

layers: $(READY) ## who may import whom
	@$(BIN)/lint-imports --no-cache

dead: $(READY) ## code in src that nothing in src uses, but for what pyproject.toml gives a reason for
	@$(BIN)/vulture

tidy: $(READY) ## sizes of files and functions, words that must not stay, paths, hosts, links
	@$(BIN)/python -m pytest tests/scenarios/repository/test_tidy.py tests/scenarios/repository/test_docs.py

tests: $(READY) $(CLASSES) ## the tests alone
	@$(BIN)/python -m pytest -rs --durations 25 $(SPREAD) $(AGAIN) $(if $(SEED),--randomly-seed=$(SEED)) $(ARGS)

bench: $(READY) ## every figure of speed and memory (ARGS=)
	@$(BIN)/python -m bench $(ARGS)

latency: $(READY) ## publish-to-deliver latency at 1,000 messages a second (ARGS=)
	@$(BIN)/python -m bench.latency $(ARGS)

idle: $(READY) ## 10,000 idle connections: memory, heartbeats, a publisher beside them (ARGS=)
	@$(BIN)/python -m bench.idle $(ARGS)

clients: $(READY) ## the client beside pynsq, gnsq and ansq: consuming, publishing (ARGS=)
	@$(BIN)/python -m bench.clients $(ARGS)

interop: $(READY) ## foreign clients, unmodified, against nsqd and nsqlookupd
	@$(BIN)/python -m pytest -rs tests/scenarios/interop

wheel: $(READY) ## sparq-mq[spark] from its wheel, fetched by pip (1 GB), and the pipeline with it
	@$(BIN)/python -m pytest -rs tests/scenarios/deploy/whole_spark.py $(ARGS)

security: $(READY) ## the security table: a test for each row, counted
	@$(BIN)/python -m pytest -rs tests/scenarios/security $(ARGS)

docs: $(READY) ## the reference pages, from docstrings and options: docs/api.md, docs/tools.md
	@$(BIN)/python -m docs.reference

coverage: $(READY) ## branch coverage of protocol, log and broker by module; writes docs/coverage.md (ARGS=)
	@$(BIN)/python -m proofs.coverage $(ARGS)

mutants: $(READY) ## N= small mistakes in protocol, log and broker: how many do tests notice? (SEED= ARGS=)
	@$(BIN)/python -m proofs.mutants $(if $(N),--count $(N)) $(if $(SEED),--seed $(SEED)) $(ARGS)

site: $(READY) ## the documentation as a site with search: build/site/html/index.html
	@$(BIN)/python -m docs.site

proofs: $(READY) ## every proof, an hour and a half; writes GUARANTEES.md (ARGS=)
	@$(BIN)/python -m proofs $(ARGS)

# One proof: make crash, make power ... (N= how much, SEED=, ARGS=). CONTRIBUTING.md lists them.
$(PROOFS): $(READY)
	@$(BIN)/python -m proofs.$@ $(if $(N),--count $(N)) $(if $(SEED),--seed $(SEED)) $(ARGS)

spark-cluster: $(READY) ## the pipeline on a Spark cluster of this machine, with N= clicks and kills (SEED= ARGS=)
	@$(BIN)/python -m proofs.spark_cluster $(if $(N),--count $(N)) $(if $(SEED),--seed $(SEED)) $(ARGS)

delta: $(READY) ## the Delta archive killed N= times (10), and its control (ARGS=)
	@SLOW_TESTS=1 DELTA_KILLS=$(or $(N),10) $(BIN)/python -m pytest -rs -s tests/scenarios/pipeline/test_delta_killed.py $(ARGS)

slow-tests: $(READY) $(CLASSES) ## the tests that need minutes each, and are skipped in make test (ARGS=)
	@SLOW_TESTS=1 $(BIN)/python -m pytest -rs -m slow $(ARGS)

move: $(READY) ## sparq admin move with a million messages, and with kills in the middle (N= ARGS=)
	@MOVE_MESSAGES=$(or $(N),1000000) $(BIN)/python -m pytest -rs --timeout=3600 tests/tools/admin/test_moving.py $(ARGS)

format: $(READY) ## let ruff put the format right
	@$(BIN)/ruff check --fix --quiet . || true
	@$(BIN)/ruff format --quiet .

venv: $(READY) ## the virtual environment alone

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
	@touch $@

$(CLASSES): $(READY) tests/support/spark_classes.py
	@$(BIN)/python -m tests.support.spark_classes $@

lock: $(READY) ## write the lock files anew: newest versions, with hashes, naming no index
	@$(BIN)/python locks/write.py $(ARGS)

vendor: $(READY) ## developers only: fetch the script and style that nsqadmin's pages carry (needs npm)
	@$(BIN)/python locks/web/vendor.py

screenshot: $(READY) ## docs/nsqadmin_light.png and _dark.png, of a cluster at work (needs Chromium; ARGS=)
	@$(BIN)/python -m tests.scenarios.admin_pages.screenshot $(ARGS)

clean: ## whatever the other verbs made, but not .venv and not ./data
	@rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	@find . -name __pycache__ -type d -not -path './.venv*' -prune -exec rm -rf {} +
