# What a developer calls. `make help` lists it.

SHELL := /bin/bash
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

# make test TESTFLAGS='-run TestWatch -count 3' PACKAGES=./storage/...
TESTFLAGS ?=
PACKAGES ?= ./...
# By default, skipped tests are counted and not listed. The list of databases says why most of them are skipped.
GOTESTSUM_FLAGS ?= --hide-summary skipped
# testname shows every test, dots-v2 a dot for each; see gotestsum --help.
FORMAT ?= pkgname

# The program and pkg/crds are modules of their own, and use the library beside them by go.work. All
# other modules are outside of this workspace, and so is the library, which its users have without
# it. ./... means the library alone; where it is the default, the targets name the other modules.
export GOWORK := off
WORKSPACE := GOWORK=

# The directories of all modules.
MODULES = $(sort $(patsubst %/go.mod,%,$(shell find . -name go.mod -not -path './bin/*')))
# Those that bring other people's programs along, hundreds of megabytes to load and minutes to
# compile. They are verified and linted where their tests run: make test-clients.
DEAR = ./hack/compat/backends

TOOLS := bin/tools
GOTESTSUM := $(TOOLS)/gotestsum
GOLANGCI := $(TOOLS)/golangci-lint
GOVULNCHECK := $(TOOLS)/govulncheck

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z][a-z0-9-]*:.*## / { printf "make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: run
run: ## build the server and serve on https://127.0.0.1:8443 from ./.rowkeeper
	@echo "Compiling the server. On a machine that has not done it before this takes about five minutes."
	@$(MAKE) --no-print-directory --silent build
	@echo "For a page of timelines and metrics, in a second terminal: bin/rowkeeper ui --kubeconfig .rowkeeper/kubeconfig --open"
	@bin/rowkeeper serve --example --enable-history

# make cluster CLUSTER='-port 7443 -dir /tmp/cluster'; CLUSTER=-help lists the flags.
CLUSTER ?=

.PHONY: cluster
cluster: ## run a Kubernetes control plane on a SQLite file, in ./.rowkeeper/cluster; builds Kubernetes first
	@echo "Building the programs. The first time this takes some minutes."
	@hack/e2e/build.sh cluster rowkeeper kube-apiserver kube-controller-manager kube-scheduler kubectl
	@bin/cluster/cluster $(CLUSTER)

.PHONY: build
build: ## build the server as bin/rowkeeper, and as bin/kubectl-rowkeeper for kubectl
	@$(WORKSPACE) hack/build.sh bin/rowkeeper ./cmd/rowkeeper
	@ln -sf rowkeeper bin/kubectl-rowkeeper

.PHONY: ui
ui: ## build the page of "rowkeeper ui", which the program embeds; needs Node.js and npm
	npm --prefix cmd/rowkeeper/ui/web ci --ignore-scripts --no-audit --no-fund
	npm --prefix cmd/rowkeeper/ui/web run build

# The fast tests run on SQLite, and on what these variables name. See hack/testbed/README.md.
FAST = $(strip sqlite $(ROWKEEPER_TEST_ONLY) $(ROWKEEPER_TEST_REQUIRE))

.PHONY: test
test: export ROWKEEPER_TEST_ONLY := $(FAST)
test: ## run the fast tests on SQLite, in 15 minutes on two cores if all has to be compiled; says at the end on which databases they ran
	@echo "The fast tests: go test $(strip -short $(TESTFLAGS) $(PACKAGES)) on $(ROWKEEPER_TEST_ONLY)."
	@echo "All packages (./...) take up to 15 minutes on two cores, most of it to compile. make test-all runs all tests."
	$(call run,-short)

.PHONY: test-all
test-all: ## run all tests, on SQLite and every other database that can be had; says at the end which these were
	@echo "All tests: go test $(strip $(TESTFLAGS) $(PACKAGES)) on SQLite and every other database that can be had here."
	@echo "All packages (./...) take 26 to 40 minutes on two cores with four databases."
	$(call run,)

.PHONY: test-versions
test-versions: ## run what touches the database directly on the other versions of the databases, in containers or from npm; nightly
	hack/testbed/versions.sh

.PHONY: test-tidb
test-tidb: ## run what touches the database directly on TiDB, which is built first, in a quarter of an hour; nightly
	hack/testbed/tidb.sh bin/testbed/tidb env ROWKEEPER_TEST_ONLY=mysql ROWKEEPER_TEST_REQUIRE=mysql \
		$(MAKE) --no-print-directory test-all PACKAGES='./storage ./storage/mysql ./storage/conformance ./storage/internal/mvcc ./storage/internal/database ./storage/etcd'

# make test-clients ETCD_TESTS=sqlite,postgres; hack/compat/etcdtests/README.md says more.
ETCD_TESTS ?= sqlite

.PHONY: test-clients
test-clients: ## let etcd's own tests, Vault, CoreDNS, Cilium and a library of JavaScript use "rowkeeper etcd"; nightly
	ROWKEEPER_TEST_ETCD=$(ETCD_TESTS) go -C hack/compat/etcdtests test -v -vet=off -parallel 4 -timeout 100m $(TESTFLAGS) ./...
	ROWKEEPER_TEST_NPM=1 go test -v -vet=off $(TESTFLAGS) ./hack/compat/clients
	GOBIN=$(CURDIR)/bin/litestream go install github.com/benbjohnson/litestream/cmd/litestream@v0.5.18
	PATH=$(CURDIR)/bin/litestream:$$PATH ROWKEEPER_TEST_PROGRAMS=litestream ROWKEEPER_TEST_ONLY=sqlite $(WORKSPACE) go test -v -vet=off -run TestLitestream $(TESTFLAGS) ./cmd/rowkeeper/tests
	ROWKEEPER_TEST_BACKENDS=1 go -C hack/compat/backends test -v -vet=off -timeout 60m $(TESTFLAGS) ./...
	$(MAKE) --no-print-directory lint MODULES='$(DEAR)' DEAR=
	for module in $(DEAR); do (cd $$module && go mod tidy -diff) || exit 1; done

# make test-moves MOVES=100000 TESTFLAGS='-run TestMoves/etcd'
MOVES ?= 10000

.PHONY: test-moves
test-moves: ## let "rowkeeper move" move an etcd, kines and stores under load, kill it, and compare; nightly
	hack/e2e/build.sh etcdutl
	PATH=$(CURDIR)/bin/cluster:$$PATH ROWKEEPER_TEST_MOVES=$(MOVES) go -C hack/bench test -v -vet=off -timeout 100m $(TESTFLAGS) ./moves

.PHONY: test-race
test-race: ## run all tests with the race detector
	@$(MAKE) --no-print-directory test-all TESTFLAGS='-race $(TESTFLAGS)'

# run runs tests with flags, and prints on which databases.
define run
@$(MAKE) --no-print-directory $(GOTESTSUM)
go build -o $(TOOLS)/testdbs ./storage/internal/test/dbtest/testdbs
$(GOTESTSUM) --format $(FORMAT) --format-hide-empty-pkg $(GOTESTSUM_FLAGS) --ignore-non-json-output-lines --raw-command -- \
	$(TOOLS)/testdbs hack/test.sh $(1) $(TESTFLAGS) $(PACKAGES)
endef

# make bench ROWKEEPER_BENCH=sqlite,postgres,mariadb,mysql TESTFLAGS='-bench Update' BENCH_PACKAGES=./storage/...
BENCH_PACKAGES ?= ./storage ./storage/internal/mvcc

.PHONY: bench
bench: ## benchmark the storage on SQLite, or on those that ROWKEEPER_BENCH lists: operations per second, latency percentiles
	go test -run '^$$' -bench . -benchtime 3s -timeout 60m $(TESTFLAGS) $(BENCH_PACKAGES)

# make bench-peers BENCH='-lines create64 -rounds 1'; hack/bench/README.md says more.
BENCH ?=

.PHONY: bench-peers
bench-peers: ## compare with etcd and kine: hack/bench/RESULTS.md, in some hours
	go build -C hack/bench -o ../../bin/bench-peers .
	cd hack/bench && ../../bin/bench-peers $(BENCH)

# make torture TORTURE='-long -databases postgres -results RESULTS.md'; TORTURE=-help lists the flags, hack/torture/README.md says more.
TORTURE ?=

.PHONY: torture
torture: ## kill, cut, freeze and restore servers and databases under load, and check that nothing is lost, late or reordered
	go build -C hack/torture -o ../../bin/torture/torture .
	cd hack/torture && ../../bin/torture/torture $(TORTURE)

# make alerts ALERTS='-databases postgres -faults network-cut -results ALERTS.md'; ALERTS=-help lists the flags.
ALERTS ?=

.PHONY: alerts
alerts: ## let a real Prometheus watch faults, and see which alerts each fires; draw the dashboard; nightly
	go build -C hack/torture -o ../../bin/torture/alerts ./alerts
	cd hack/torture && ../../bin/torture/alerts $(ALERTS)

# make robustness ROBUSTNESS='-databases postgres -runs 20'; ROBUSTNESS=-help lists the flags, hack/torture/robustness/README.md says more.
ROBUSTNESS ?=

.PHONY: robustness
robustness: ## let etcd's robustness framework judge "rowkeeper etcd" under load and faults
	go build -C hack/torture/robustness -o ../../../bin/robustness/robustness .
	cd hack/torture/robustness && ../../../bin/robustness/robustness $(ROBUSTNESS)

# make simulate SIMULATE='-sim.budget 8h -sim.seed 0'; storage/internal/test/simulate/doc.go says more.
SIMULATE ?= -sim.budget 10m -sim.seed 0

.PHONY: simulate
simulate: ## run the storage core on a simulated database with faults, from seeds, and judge what came of it
	go test ./storage/internal/test/simulate -run 'TestSimulation|TestSpread' -v -timeout 0 $(SIMULATE)

# make mutants MUTANTS='-only "^I3 " -results RESULTS.md'; hack/mutants/main.go says more.
MUTANTS ?=

.PHONY: mutants
mutants: export ROWKEEPER_TEST_ONLY := $(FAST)
mutants: ## put deliberate faults into the code, one by one: the tests have to find each; hours
	go build -o $(TOOLS)/testdbs ./storage/internal/test/dbtest/testdbs
	go build -o bin/mutants ./hack/mutants
	$(TOOLS)/testdbs bin/mutants $(MUTANTS)

# make figures BENCH='-rounds 1 -mysqld /opt/mysql/bin/mysqld'
.PHONY: figures
figures: ## measure all figures again, of this commit: hack/bench/RESULTS.md and REQUESTS.md; needs a quiet machine for two hours
	hack/bench/figures.sh $(BENCH)

.PHONY: image
image: ## build the container image for amd64 and arm64, in bin/image; needs no container engine
	hack/image/build.sh

# make release VERSION=v0.1.0
.PHONY: release
release: ## build what a release consists of, in bin/release: programs, image, manifests, chart, bill of materials, checksums; publishes nothing; nightly
	hack/release/build.sh

# The image of this machine's processor is what the tests run. The release has all: make release.
.PHONY: e2e
e2e: export ARCHITECTURES ?= $(shell go env GOARCH)
e2e: image $(GOTESTSUM) ## test the image, and the manifests of deploy/ behind a real API server; builds Kubernetes first
	hack/e2e/build.sh
	cd hack/e2e && $(abspath $(GOTESTSUM)) --format standard-verbose -- -count 1 -p 1 -timeout 40m $(TESTFLAGS) ./...

.PHONY: lint
lint: $(GOLANGCI) ## run the linters, and vulncheck
	hack/verify/lint.sh $(abspath $(GOLANGCI)) $(filter-out $(DEAR),$(MODULES))
	@$(MAKE) --no-print-directory vulncheck

.PHONY: vulncheck
vulncheck: $(GOVULNCHECK) ## look the dependencies up in the Go vulnerability database; says so if it cannot be reached
	hack/verify/vulncheck.sh $(abspath $(GOVULNCHECK))

.PHONY: fmt
fmt: ## format all Go code
	find . -name '*.go' -not -path './bin/*' -exec gofmt -s -w {} +

.PHONY: generate
generate: ## write all generated code
	hack/codegen/update.sh

.PHONY: tidy
tidy: ## tidy all modules
	@hack/tidy.sh $(MODULES)

# make kubernetes VERSION=v1.38.0; docs/upgrade-kubernetes.md tells what to look at.
.PHONY: kubernetes
kubernetes: ## raise the modules of Kubernetes in all modules here, together
	hack/kubernetes.sh $(VERSION)

.PHONY: verify
verify: ## check that code is formatted, modules are tidy and generated code is up to date
	hack/verify/verify.sh $(filter-out $(DEAR),$(MODULES))

.PHONY: docs
docs: ## make a site of docs/ and deploy/, with search, in bin/site; needs Node.js and npm
	npm --prefix hack/site ci --no-audit --no-fund
	npm --prefix hack/site run build

.PHONY: testbed
testbed: ## build container images of the databases from Debian's packages, for machines without a registry
	hack/testbed/docker.sh start
	hack/testbed/images.sh

.PHONY: clean
clean: ## remove what was built, not what was served
	rm -rf bin

# The tools are pinned by a module of their own.
$(GOTESTSUM): TOOL = gotest.tools/gotestsum
$(GOLANGCI): TOOL = github.com/golangci/golangci-lint/v2/cmd/golangci-lint
$(GOVULNCHECK): TOOL = golang.org/x/vuln/cmd/govulncheck

$(GOTESTSUM) $(GOLANGCI) $(GOVULNCHECK): hack/tools/go.mod hack/tools/go.sum
	@mkdir -p $(TOOLS)
	go build -C hack/tools -o $(abspath $(TOOLS))/ $(TOOL)
	@touch $@
