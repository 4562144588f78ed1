# The root module and every nested one, the root first: go.work has the same.
MODULES := . $(sort $(patsubst %/go.mod,%,$(shell find . -mindepth 2 -name go.mod -not -path '*/.*' -not -path '*/testdata/*')))

TESTFLAGS ?=#     more flags for go test, for example TESTFLAGS='-v -run Lease'
TIMEOUT   ?= 10m# of one package's tests
AT_ONCE   ?= $(shell expr 2 '*' $$(getconf _NPROCESSORS_ONLN))# packages: many tests wait for a window to end
BENCH     ?= .
FUZZTIME  ?= 10s# for each target
SOAK      ?= 10m# of a soak
SERVERS   ?=#     folders with a redis-server each, for test-servers

PACKAGES = $(addsuffix /...,$(MODULES))

# tool,name is a tool of tools.mod. It runs in the workspace, which tools.mod is not part of.
tool = $$(GOWORK=off go tool -n -modfile=$(CURDIR)/tools.mod $(1))
STATICCHECK = $(call tool,staticcheck)

.PHONY: help run test test-long test-containers test-servers race lint vulncheck bench bench-quick soak soak-attack benchmarks fuzz cover scoreboard tidy man completions release-check release up down servers

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: ## run the quickstart example
	go run ./examples/quickstart

test: servers ## run all tests against real servers, installed if needed; four minutes
	go test -p $(AT_ONCE) -timeout $(TIMEOUT) $(TESTFLAGS) $(PACKAGES)

test-long: export SLUICE_TEST_LONG = 1
test-long: test ## run them with all seeds, histories and mutants, as in CI

# The tests remove what they start, so testcontainers' reaper, one more image to pull, is off by default. Sentinels, Redis
# Clusters and servers with a clock of their own are local processes here too.
test-containers: servers ## run the fault suite against servers in containers: needs a Docker engine
	cd integration && TESTCONTAINERS_RYUK_DISABLED=$${TESTCONTAINERS_RYUK_DISABLED:-true} \
		go test -tags containers -timeout $(TIMEOUT) $(TESTFLAGS) ./...

test-servers: servers ## run the suites on other servers: SERVERS="dir1 dir2", folders with a redis-server each
	@.ci/servers-matrix $(SERVERS)

# The explorer and the simulation run on one processor, slowly under the detector, which has little to find there.
race: servers ## run all tests under the race detector
	go test -race -p $(AT_ONCE) -timeout $(TIMEOUT) $(TESTFLAGS) $$(go list $(PACKAGES) | grep -Ev '/internal/(explorer|simulation)$$')

lint: ## check formatting, go vet, staticcheck, and the workflows
	@unformatted=$$(gofmt -l .); [ -z "$$unformatted" ] || { echo "gofmt -w needed:"; echo "$$unformatted"; exit 1; }
	go vet $(PACKAGES)
	$(STATICCHECK) $(PACKAGES)
	cd integration && go vet -tags containers ./... && $(STATICCHECK) -tags containers ./...
	$(call tool,actionlint)

vulncheck: ## look for known vulnerabilities in what all modules use
	@set -e; for module in $(MODULES); do echo "$$module" && (cd $$module && $(call tool,govulncheck) ./...); done

bench: servers ## compare with other limiters side by side; ten minutes, on an idle machine
	@cd bench && go run .

bench-quick: servers ## compare in under two minutes
	@cd bench && go run . -quick

soak: servers ## play faults in turn on real servers under load for SOAK, then take from ten million keys
	cd integration && go test -count=1 -timeout 0 -v -run '^TestSoak' . -soak $(SOAK)

soak-attack: servers ## attack the local view for SOAK; fails if it admits too much or its memory grows
	@cd bench && go run . -soak $(SOAK)

benchmarks: servers ## run all Go benchmarks; BENCH=name for some
	@set -e; for dir in $$(grep -rl --include='*_test.go' '^func Benchmark' . | xargs -r -n 1 dirname | sort -u); do \
		(cd $$dir && go test -run '^$$' -bench '$(BENCH)' -benchmem .); done

fuzz: ## fuzz every target for FUZZTIME
	@set -e; grep -rHo --include='*_test.go' '^func Fuzz[A-Za-z0-9_]*' . | sed 's/:func /:/' | sort | \
		while IFS=: read -r file name; do \
			echo "$$file: $$name"; \
			(cd $$(dirname $$file) && go test -run '^$$' -fuzz "^$$name$$" -fuzztime $(FUZZTIME) .) </dev/null; \
		done

cover: servers ## measure the coverage of the root module
	go test -timeout $(TIMEOUT) -coverprofile=cover.out $(TESTFLAGS) ./...
	@go tool cover -func=cover.out | tail -1
	@echo "by line: go tool cover -html=cover.out"

scoreboard: servers ## run the fault suite and write its results to docs/FAULTS.md
	@mkdir -p docs
	cd integration && go test -count=1 -timeout $(TIMEOUT) $(TESTFLAGS) . -scoreboard ../docs/FAULTS.md

tidy: ## run go mod tidy in every module
	@.ci/tidy

man: ## write throttlectl's man pages to dist/man
	cd cmd/throttlectl && go run ./internal/gendocs -man $(CURDIR)/dist/man

completions: ## write throttlectl's completions for bash, zsh, fish and PowerShell to dist/completions
	cd cmd/throttlectl && go run ./internal/gendocs -completions $(CURDIR)/dist/completions

release-check: ## make the release VERSION in a temporary clone, and install and use it from a module proxy
	@.ci/release-check $(VERSION)

release: ## make the commit and the tags of the release VERSION, as RELEASING.md says
	@.ci/release $(VERSION)

up: ## start three groups of Redis, and Memcached, in containers
	@.ci/compose up

down: ## remove these containers
	@.ci/compose down

servers:
	@.ci/servers
