# tern - one Makefile.  make | test | asan | tsan | clients | agents | soak | fuzz | layers | gates | cuda | bench | install
#
# Objects live under $(B); every variant (asan, tsan, clang) is this file again with another B.

B       ?= build
CC      ?= gcc
OBJCOPY ?= objcopy
ifeq ($(origin CC),default)
CC      := gcc
endif
PREFIX  ?= /usr/local
VERSION := 0.1.0
ARCH    := $(shell $(CC) -dumpmachine | cut -d- -f1)

PKGS    := jansson libpcre2-8 libutf8proc zlib hwloc
# Line editing, for the commands alone.
CLI_PKGS := libedit
# What only the server stands on: libtern has no network in it.
SERVE_PKGS := libevent_core libevent_extra libevent_openssl openssl yaml-0.1 libseccomp
PKG_CFLAGS := $(shell pkg-config --cflags $(PKGS) $(SERVE_PKGS) $(CLI_PKGS) 2>/dev/null)
PKG_LIBS   := $(shell pkg-config --libs $(PKGS) 2>/dev/null)
SERVE_LIBS := $(shell pkg-config --libs $(SERVE_PKGS) 2>/dev/null)
CLI_LIBS   := $(shell pkg-config --libs $(CLI_PKGS) 2>/dev/null)
# tern-pull.so alone stands on it; without it everything else is built.
PULL_LIBS  := $(if $(filter 0,$(shell pkg-config --exists libcurl 2>/dev/null; echo $$?)),$(shell pkg-config --libs libcurl) -lcrypto)

# tern-mpi.so alone stands on it; likewise.
MPI_LIBS   := $(shell pkg-config --libs ompi-c 2>/dev/null)
MPI_CFLAGS := $(shell pkg-config --cflags ompi-c 2>/dev/null | sed 's/-I/-isystem /g')

MISSING := $(shell for p in $(PKGS) $(SERVE_PKGS) $(CLI_PKGS); do pkg-config --exists $$p 2>/dev/null || echo $$p; done)
ifneq ($(MISSING),)
ifneq ($(filter-out clean layers gates format cuda cuda-bench uninstall,$(or $(MAKECMDGOALS),all)),)
$(error pkg-config does not find: $(MISSING). 'tools/deps build' installs the Debian packages)
endif
endif

SAN     ?=
OPT     ?= -O2 -g
CFLAGS  := -std=c11 -D_GNU_SOURCE $(OPT) -Wall -Wextra -Wshadow -Werror -fno-math-errno -fPIC -fvisibility=hidden -pthread -Isrc -Iinclude -Itests -Itests/fault -I$(B) \
           $(if $(HARD),-DTERN_HARD) -DTERN_VERSION='"$(VERSION)"' $(PKG_CFLAGS) $(SAN) $(EXTRA_CFLAGS)
LDFLAGS := -pthread $(SAN) $(EXTRA_LDFLAGS)
LDLIBS  := $(PKG_LIBS) -lm

# A file's ending names the instruction set it may use; which one runs is decided at start-up.
FLAGS_avx2   := -mavx2 -mfma -mf16c -mbmi2
FLAGS_avxvnni := $(FLAGS_avx2) -mavxvnni
FLAGS_avx512 := $(FLAGS_avx2) -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni -mavx512vbmi
FLAGS_amx    := $(FLAGS_avx512) -mavx512bf16 -mamx-tile -mamx-int8 -mamx-bf16
FLAGS_neon   := -march=armv8.2-a+dotprod+fp16
FLAGS_i8mm   := $(FLAGS_neon)+i8mm
ISA_x86_64   := avx2 avxvnni avx512 amx
ISA_aarch64  := neon i8mm
isa_flags     = $(foreach i,$(ISA_x86_64) $(ISA_aarch64),$(if $(filter %_$(i),$(basename $(1))),$(FLAGS_$(i))))
skip_isa     := $(filter-out $(ISA_$(ARCH)),$(ISA_x86_64) $(ISA_aarch64))

SRC_ALL := $(shell find src -name '*.c' | LC_ALL=C sort)
SRC     := $(filter-out $(foreach i,$(skip_isa),%_$(i).c),$(SRC_ALL))
CLI_SRC := $(filter src/cli/%,$(SRC))
SERVE_SRC := $(filter src/jobs/% src/net/% src/api/% src/server/% src/worker/% src/convert/% src/loadtest/% src/gang/% src/cluster/% src/member/% src/ledger/%,$(SRC))
PULL_SRC := $(filter src/pull/%,$(SRC))
MPI_SRC := $(filter src/mpi/%,$(SRC))
NCCL_SRC := $(filter src/nccl/%,$(SRC))
# Parts that stand on a library of their own: without it everything else is built.
NATS_LIBS := $(if $(filter 0,$(shell pkg-config --exists libnats 2>/dev/null; echo $$?)),$(shell pkg-config --libs libnats))
LUA_LIBS  := $(if $(filter 0,$(shell pkg-config --exists lua5.4 2>/dev/null; echo $$?)),$(shell pkg-config --libs lua5.4))
PLUG_SRC  := $(filter src/nats/% src/luapolicy/%,$(SRC))
$(B)/src/luapolicy/%.o: CFLAGS += $(shell pkg-config --cflags lua5.4 2>/dev/null)
LIB_SRC := $(filter-out $(CLI_SRC) $(SERVE_SRC) $(PULL_SRC) $(MPI_SRC) $(NCCL_SRC) $(PLUG_SRC),$(SRC))
# Variants take objects from the plain build where compiling them again would take minutes and show nothing. The kernels of one
# instruction set: ThreadSanitizer and the fuzz targets all of them, AddressSanitizer those of AVX-VNNI (the same sources as those of
# AVX2) and those that this machine cannot run. ThreadSanitizer also folders whose code works on data of one thread alone. Hard mode all that does not see its two headers.
CPU_HAS   := $(if $(SAN),$(shell grep -m1 '^flags' /proc/cpuinfo 2>/dev/null))
CANNOT    := $(if $(filter avx512_vnni,$(CPU_HAS)),,avx512) $(if $(filter amx_tile,$(CPU_HAS)),,amx)
PLAIN_ISA := $(if $(SAN),$(if $(findstring thread,$(SAN))$(findstring fuzzer,$(SAN)),$(ISA_$(ARCH)),avxvnni $(if $(CPU_HAS),$(CANNOT))))
PLAIN_DIR := $(if $(findstring thread,$(SAN)),cli convert quant jinja toolcall loadtest)
HARD_SRC  := $(if $(HARD),$(patsubst build/%.d,%.c,$(shell grep -rlE --include='*.d' 'src/(engine/hard|net/conn)\.h' build/src)))
PLAIN_SRC := $(sort $(filter $(foreach i,$(PLAIN_ISA),%_$(i).c) $(foreach d,$(PLAIN_DIR),src/$(d)/%),$(SRC)) $(if $(HARD),$(filter-out $(HARD_SRC),$(SRC))))
PLAIN_OBJ := $(PLAIN_SRC:%.c=build/%.o)
objects    = $(patsubst %.c,build/%.o,$(filter $(PLAIN_SRC),$(1))) $(patsubst %.c,$(B)/%.o,$(filter-out $(PLAIN_SRC),$(1)))
LIB_OBJ   := $(call objects,$(LIB_SRC))
SERVE_OBJ := $(call objects,$(SERVE_SRC))
CLI_OBJ   := $(call objects,$(CLI_SRC))
PULL_OBJ := $(PULL_SRC:%.c=$(B)/%.o)
# Those that need no libcurl: the readers of foreign bytes, for tests and fuzz targets.
PULL_PLAIN := $(foreach m,hubreply part store,$(B)/src/pull/$(m).o)

TEST_SRC := $(wildcard tests/test_*.c tests/ops/test_*.c)
TESTS    := $(TEST_SRC:%.c=$(B)/%)
FAULT_SRC := $(wildcard tests/fault/fault_*.c)
FAULTS   := $(FAULT_SRC:%.c=$(B)/%)
MUTANTS_OBJ := $(patsubst %.c,$(B)/%.o,$(wildcard tests/mutants/*.c))
MUTANTS  := $(B)/tests/mutants/mutants
FUZZ_SRC := $(wildcard tests/fuzz/fuzz_*.c)
FUZZERS  := $(FUZZ_SRC:%.c=$(B)/%)
TOOL_SRC := $(wildcard tools/*.c)
TOOLS    := $(TOOL_SRC:%.c=$(B)/%)
BENCH_SRC := $(wildcard bench/*.c)
BENCHES  := $(BENCH_SRC:%.c=$(B)/%)

# make V=1 shows the commands
Q   := $(if $(V),,@)
SAY := @$(if $(V)$(findstring s,$(firstword -$(MAKEFLAGS))),:,echo)

.DEFAULT_GOAL := all
FORCE:
.PHONY: FORCE all test unit fault clients soak stress asan tsan fuzz layers gates format cuda cuda-bench bench lib install uninstall clean tests tools fuzzers benches clang arm64

all: $(B)/tern $(if $(PULL_LIBS),$(B)/tern-pull.so,no-pull) $(if $(MPI_LIBS),$(B)/tern-mpi.so,no-mpi) $(B)/tern-nccl.so $(if $(NATS_LIBS),$(B)/tern-nats.so,no-nats) $(if $(LUA_LIBS),$(B)/tern-lua.so,no-lua)

# What --nats and --policy-script of the gateway open.
$(B)/tern-nats.so: $(B)/src/nats/natskv.o $(B)/src/nats/natsledger.o $(B)/libcore.a
	$(SAY) LD $@
	@echo '{ global: tern_nats_1; tern_nats_ledger_2; local: *; };' >$(B)/nats.map
	$(Q)$(CC) $(LDFLAGS) -shared -Wl,--version-script=$(B)/nats.map -o $@.new $^ $(NATS_LIBS) $(LDLIBS) && mv $@.new $@
$(B)/tern-lua.so: $(B)/src/luapolicy/luapolicy.o $(B)/libcore.a
	$(SAY) LD $@
	@echo '{ global: tern_lua_1; local: *; };' >$(B)/lua.map
	$(Q)$(CC) $(LDFLAGS) -shared -Wl,--version-script=$(B)/lua.map -o $@.new $^ $(LUA_LIBS) $(LDLIBS) && mv $@.new $@
.PHONY: no-nats no-lua
no-nats:
	@echo "nats: libnats (Debian: libnats-dev) not found; $(B)/tern-nats.so is not built, and --nats will say so"
no-lua:
	@echo "lua: liblua (Debian: liblua5.4-dev) not found; $(B)/tern-lua.so is not built, and --policy-script will say so"

# What tern pull opens. It has its own copy of what it stands on: nothing of the program is called from it.
$(B)/tern-pull.so: $(PULL_OBJ) $(B)/libcore.a
	$(SAY) LD $@
	@echo '{ global: tern_pull_run; local: *; };' >$(B)/pull.map
	$(Q)$(CC) $(LDFLAGS) -shared -Wl,--version-script=$(B)/pull.map -o $@.new $(PULL_OBJ) $(B)/libcore.a $(PULL_LIBS) $(LDLIBS)
	$(Q)mv $@.new $@
# What transport mpi opens.
$(B)/tern-mpi.so: $(MPI_SRC) src/gang/mpilink.h src/comm/comm.h src/base/err.h
	@mkdir -p $(@D)
	$(SAY) LD $@
	$(Q)$(CC) -std=c11 -D_GNU_SOURCE -O2 -g -Wall -Wextra -Wshadow -Werror -fPIC -fvisibility=hidden -shared -Isrc $(MPI_CFLAGS) -o $@.new $(MPI_SRC) $(MPI_LIBS)
	$(Q)mv $@.new $@
.PHONY: no-mpi
no-mpi:
	@echo "mpi: Open MPI (Debian: libopenmpi-dev) not found; $(B)/tern-mpi.so is not built, and transport mpi will say so"
.PHONY: no-pull
no-pull:
	@echo "pull: libcurl (Debian: libcurl4-openssl-dev) not found; $(B)/tern-pull.so is not built, and tern pull will say so"

$(B)/tern: $(CLI_OBJ) $(B)/libserve.a $(B)/libcore.a
	$(SAY) LD $@
	$(Q)$(CC) $(LDFLAGS) -o $@ $(CLI_OBJ) $(B)/libserve.a $(B)/libcore.a $(SERVE_LIBS) $(CLI_LIBS) $(LDLIBS)

$(B)/libcore.a: $(LIB_OBJ)
	@rm -f $@
	$(Q)ar rcs $@ $(LIB_OBJ)

# The library for others: one object that exports the names of tests/abi/symbols.txt and nothing else, as an
# archive and as a shared object.
ABI := $(firstword $(subst ., ,$(VERSION)))
LIBTERN_SO := libtern.so.$(VERSION)
$(B)/lib/tern.o: $(LIB_OBJ)
	@mkdir -p $(@D)
	$(SAY) LD $@
	$(Q)$(LD) -r -o $@.new $(LIB_OBJ)
	$(Q)$(OBJCOPY) --localize-hidden $@.new
	$(Q)mv $@.new $@
$(B)/lib/libtern.a: $(B)/lib/tern.o
	@rm -f $@
	$(Q)ar rcs $@ $<
$(B)/lib/$(LIBTERN_SO): $(LIB_OBJ)
	@mkdir -p $(@D)
	$(SAY) LD $@
	$(Q)$(CC) $(LDFLAGS) -shared -Wl,-soname,libtern.so.$(ABI) -Wl,--no-undefined -o $@ $(LIB_OBJ) $(LDLIBS)
	$(Q)ln -sf $(LIBTERN_SO) $(B)/lib/libtern.so.$(ABI)
	$(Q)ln -sf libtern.so.$(ABI) $(B)/lib/libtern.so
lib: $(B)/lib/libtern.a $(B)/lib/$(LIBTERN_SO)

$(B)/libserve.a: $(SERVE_OBJ)
	@rm -f $@
	$(Q)ar rcs $@ $(SERVE_OBJ)

# What everything was compiled with last: other flags, or another version, compile it again.
FLAGS_USED := $(filter-out ccache,$(CC)) $(CFLAGS) $(FLAGS_avxvnni) $(FLAGS_amx) $(FLAGS_i8mm)
$(B)/flags: FORCE
	@mkdir -p $(@D)
	@printf '%s\n' '$(subst ','\'',$(FLAGS_USED))' | cmp -s - $@ || printf '%s\n' '$(subst ','\'',$(FLAGS_USED))' >$@

$(B)/%.o: %.c $(B)/flags
	@mkdir -p $(@D)
	$(SAY) CC $@
	$(Q)$(CC) $(CFLAGS) $(call isa_flags,$(notdir $<)) -MMD -MP -c -o $@ $<

$(PLAIN_OBJ): build/%.o: %.c
	@mkdir -p $(@D)
	$(SAY) CC $@
	$(Q)gcc $(subst $(OPT),-O2 -g,$(filter-out $(SAN) -DTERN_HARD,$(CFLAGS))) $(call isa_flags,$(notdir $<)) -MMD -MP -c -o $@ $<

# The page's files as C arrays.
$(B)/web.inc: $(wildcard web/*) tools/embed.sh
	@mkdir -p $(@D)
	$(Q)tools/embed.sh web >$@.new && mv $@.new $@
$(B)/src/server/web.o: $(B)/web.inc

# The git commit, for --version. Written only when it changes.
COMMIT := $(or $(if $(wildcard .git),$(shell git rev-parse --short HEAD 2>/dev/null)),unknown)
$(B)/commit.inc: FORCE
	@mkdir -p $(@D)
	@echo '"$(COMMIT)"' | cmp -s - $@ || echo '"$(COMMIT)"' >$@
$(B)/src/cli/version.o: $(B)/commit.inc

tests: $(TESTS) $(FAULTS) $(MUTANTS)
tools: $(TOOLS)
benches: $(BENCHES)

$(TESTS): $(B)/%: $(B)/%.o $(B)/libserve.a $(B)/libcore.a $(B)/tests/support.o
	$(SAY) LD $@
	$(Q)$(CC) $(LDFLAGS) -o $@ $< $(EVEX) $(MORE_OBJ) $(B)/tests/support.o $(B)/libserve.a $(B)/libcore.a $(SERVE_LIBS) $(LDLIBS) -lcmocka

# The kernels of AVX-VNNI for machines that have AVX-512 VNNI instead (src/kernel/cpu/avxvnni.h).
EVEX_OBJ := $(patsubst src/kernel/cpu/%_avxvnni.c,$(B)/tests/ops/%_evex.o,$(filter %_avxvnni.c,$(LIB_SRC)))
$(EVEX_OBJ): CFLAGS := $(filter-out $(SAN),$(CFLAGS))
$(EVEX_OBJ): $(B)/tests/ops/%_evex.o: src/kernel/cpu/%_avxvnni.c $(B)/flags
	@mkdir -p $(@D)
	$(SAY) CC $@
	$(Q)$(CC) $(CFLAGS) $(FLAGS_avx512) -DTERN_EVEX -MMD -MP -c -o $@ $<
$(B)/tests/ops/test_gemm $(B)/tests/ops/test_linear: $(EVEX_OBJ)
$(B)/tests/ops/test_gemm $(B)/tests/ops/test_linear: EVEX := $(EVEX_OBJ)

$(B)/tests/test_pull: $(PULL_PLAIN)
$(B)/tests/test_pull: MORE_OBJ := $(PULL_PLAIN)

# Fault injection: calls of our own code to these pass through tests/fault/fault.c.
, := ,
FAULT_CALLS := malloc calloc realloc posix_memalign free read open mmap pthread_create
FAULT_LDFLAGS := $(foreach f,$(FAULT_CALLS),-Wl$(,)--wrap=$(f)) -rdynamic
$(FAULTS): $(B)/%: $(B)/%.o $(B)/tests/fault/fault.o $(B)/libserve.a $(B)/libcore.a $(B)/tests/support.o
	$(SAY) LD $@
	$(Q)$(CC) $(LDFLAGS) $(FAULT_LDFLAGS) -o $@ $< $(B)/tests/fault/fault.o $(B)/tests/support.o $(B)/libserve.a $(B)/libcore.a \
	  $(SERVE_LIBS) $(LDLIBS) -lcmocka

# Its own: what starts a process and moves bytes to it.
$(B)/tests/fault/fault_worker: LDFLAGS += $(foreach f,posix_spawn socketpair memfd_create sendmsg recv fcntl syscall,-Wl$(,)--wrap=$(f))

$(MUTANTS): $(MUTANTS_OBJ) $(B)/libserve.a $(B)/libcore.a
	$(SAY) LD $@
	$(Q)$(CC) $(LDFLAGS) -o $@ $(MUTANTS_OBJ) $(B)/libserve.a $(B)/libcore.a $(SERVE_LIBS) $(LDLIBS)

# Counts how often hyper-parameters are read.
$(B)/tests/test_loadplan: LDFLAGS += -Wl,--wrap=hparams_read
# Libraries that tests open by name.
$(B)/tests/test_gpus: | $(B)/tests/fake_nvml.so
$(B)/tests/test_nccllib: | $(B)/tests/fake_nvml.so $(B)/tests/fake_nccl.so $(B)/tern-nccl.so
$(B)/tests/fake_nvml.so $(B)/tests/fake_nccl.so: $(B)/tests/%.so: tests/%.c
	@mkdir -p $(@D)
	$(Q)$(CC) -std=c11 -D_GNU_SOURCE -O1 -Wall -Wextra -Werror -shared -fPIC -o $@ $<

$(TOOLS) $(BENCHES): $(B)/%: $(B)/%.o $(B)/libcore.a
	$(SAY) LD $@
	$(Q)$(CC) $(LDFLAGS) -o $@ $< $(BENCH_OBJ) $(B)/libcore.a $(LDLIBS)
# Placement at the size of a fleet: the gateway's own code.
$(B)/bench/cluster_sim: $(B)/src/cluster/place.o $(B)/src/cluster/affinity.o
$(B)/bench/cluster_sim: BENCH_OBJ := $(B)/src/cluster/place.o $(B)/src/cluster/affinity.o

# Unit tests, and the program from outside. tests/run prints 'N passed, N failed' last. Those that take long begin first.
# With sanitizers the kernels are tested by tests/ops alone, not again by whole programs per instruction set, and what is about the
# library's ABI, other languages, examples, texts, every flag by a process of its own and how progress is shown is tested without.
PLAIN_ONLY := tests/abi/run tests/examples/run tests/examples/readme tests/python/run tests/parity/run tests/soak/run \
              $(foreach t,docs isa knobs loading manual,tests/cli/$(t).sh)
TEST_LIST  := tests/api/run tests/abuse/run tests/cluster/run tests/mutants/run tests/soak/chaos $(PLAIN_ONLY) $(wildcard tests/cli/*.sh) $(FAULTS) $(TESTS)
LONG       := tests/abuse/run tests/cluster/run tests/api/run tests/soak/chaos tests/cli/parallel.sh $(foreach t,engine http grammar,$(B)/tests/fault/fault_$(t)) \
              tests/cli/convert.sh tests/soak/run tests/cli/isolate.sh tests/cli/loading.sh $(foreach t,test_supervisor ops/test_gemm ops/test_attend,$(B)/tests/$(t)) \
              tests/python/run tests/cli/isa.sh tests/examples/readme tests/cli/names.sh tests/cli/sealed.sh tests/cli/pull.sh $(foreach t,http variants conn shard runtime,$(B)/tests/test_$(t))
long_first  = $(filter $(1),$(LONG)) $(filter-out $(LONG),$(1))
TEST_LIST  := $(call long_first,$(filter-out $(if $(SAN),$(PLAIN_ONLY)),$(sort $(TEST_LIST))))
test: all tests tools $(if $(SAN),,lib)
	TERN_BUILD=$(B) tests/run $(TEST_LIST)

# The server under people's own clients, and the page in a browser: Node, npm packages, Chromium.
CLIENT_LIST := tests/clients/run tests/page/run
clients: all
	TERN_BUILD=$(B) tests/run $(CLIENT_LIST)

stress: all
	TERN_BUILD=$(B) tests/soak/run 3600 stress

# Coding agents from npm against a scripted model and the one that calls tools: some hundred megabytes the first time.
.PHONY: agents
agents: all
	TERN_BUILD=$(B) tests/run tests/agents/run

# Half an hour of a stress mix, ten thousand cancels, a thousand loads of the shipped model and a hundred of one of 1.2 B, in the server
# and isolated, eighty killed workers, twenty killed servers with a batch, and the long form of tests/abuse. SOAK_OUT: a file or a
# folder for the results (tests/soak/record.py).
SOAK_OUT ?= bench/results
SOAK_1B  := llama-3.2-1b:Q4_K_M
soak: all $(B)/tests/test_pool_room $(B)/tools/synth
	TERN_BUILD=$(B) tests/soak/run 1800 soak
	TERN_BUILD=$(B) tests/soak/chaos 10000 --out $(SOAK_OUT)
	TERN_BUILD=$(B) tests/soak/chaos 10000 --isolate --out $(SOAK_OUT)
	TERN_BUILD=$(B) TERN_CYCLES=1000 tests/run $(B)/tests/test_pool_room
	TERN_BUILD=$(B) tests/soak/kills 20 --out $(SOAK_OUT)
	TERN_BUILD=$(B) tests/soak/jobs 20 400
	TERN_BUILD=$(B) tests/soak/durable 20
	TERN_BUILD=$(B) tests/soak/cycles 1000 --out $(SOAK_OUT)
	TERN_BUILD=$(B) tests/soak/cycles 1000 --isolate --out $(SOAK_OUT)
	TERN_BUILD=$(B) tests/soak/cycles 100 --model $(SOAK_1B) --out $(SOAK_OUT)
	TERN_BUILD=$(B) tests/soak/cycles 100 --model $(SOAK_1B) --isolate --out $(SOAK_OUT)
	TERN_BUILD=$(B) TERN_ABUSE=long tests/run tests/abuse/run
	TERN_BUILD=$(B) TERN_CLUSTER_KILLS=60 TERN_CLUSTER_PAUSE=10 tests/run tests/cluster/run

unit: tests
	TERN_BUILD=$(B) tests/run $(TESTS) $(FAULTS)

fault: $(FAULTS)
	TERN_BUILD=$(B) tests/run $(FAULTS)

ASAN_MAKE = $(MAKE) B=build/asan OPT='-O1 -g1 -Wno-format-truncation' SAN='-fsanitize=address,undefined,float-cast-overflow -fno-sanitize-recover=all -fno-omit-frame-pointer'
asan:
	+$(ASAN_MAKE) test
asan-build: all
	+$(ASAN_MAKE) all tests tools

# Every file through the other compiler, whose warnings differ. It makes no code here: the fuzz targets are built and run with clang.
clang:
	$(MAKE) B=build/clang CC=clang OPT=-O2 clang-files
CLANG_SRC := $(filter-out $(MPI_SRC) $(if $(PULL_LIBS),,$(PULL_SRC)) $(if $(NATS_LIBS),,src/nats/%) $(if $(LUA_LIBS),,src/luapolicy/%),$(SRC)) \
             $(TEST_SRC) $(FAULT_SRC) $(FUZZ_SRC) $(TOOL_SRC) $(BENCH_SRC) $(wildcard tests/mutants/*.c) tests/support.c tests/fault/fault.c
clang-files: $(CLANG_SRC:%.c=$(B)/%.seen) $(if $(MPI_LIBS),$(B)/tern-mpi.so)
$(B)/%.seen: %.c $(B)/flags
	@mkdir -p $(@D)
	$(SAY) CC $@
	$(Q)$(CC) $(CFLAGS) $(call isa_flags,$(notdir $<)) -fsyntax-only -MMD -MP -MF $(@:.seen=.d) -MT $@ $<
	@touch $@
$(B)/src/luapolicy/%.seen: CFLAGS += $(shell pkg-config --cflags lua5.4 2>/dev/null)
$(B)/src/server/web.seen: $(B)/web.inc
$(B)/src/cli/version.seen: $(B)/commit.inc
.PHONY: asan-build clang-files

# Damaged models: structured mutants of GGUF files, Hugging Face folders and ONNX files, through load and two tokens,
# with sanitizers and leak checks. make mutants N=20000 SEED=1
N ?= 2000
SEED ?= 1
.PHONY: mutants
mutants:
	+$(ASAN_MAKE) build/asan/tests/mutants/mutants
	build/asan/tests/mutants/mutants $(SEED) $(N)

# The threaded ones, and the whole server under chaos; ThreadSanitizer and the rest do not go together.
TSAN_TESTS := jobs manifest sealed prepare runtime workers engine_ends engine_fail engine_live api par compile ops chan pool pool_life pool_park pool_room tiers lifecycle registry confine http conn conn_limit loop worker link supervisor
TSAN_LIST  := $(call long_first,tests/soak/chaos tests/soak/jobs $(foreach t,$(TSAN_TESTS),$(filter %/test_$(t),$(TESTS))))
TSAN_MAKE   = $(MAKE) B=build/tsan OPT='-O1 -g1' SAN='-fsanitize=thread'
tsan: tsan-build
	TERN_BUILD=build/tsan tests/run $(TSAN_LIST:$(B)/%=build/tsan/%)
tsan-build: all
	+$(TSAN_MAKE) $(filter build/tsan/%,$(TSAN_LIST:$(B)/%=build/tsan/%)) build/tsan/tern

# Hard mode (src/engine/hard.h): few KV blocks, preemptions all the time, tiny chunks, outboxes, reads and writes; every
# invariant is checked after every round. The same answers are expected.
HARD_TESTS := engine engine_ends engine_fail engine_live engine_state guided compile kv prefix sched sim chan stream pool onnx encoder tern api health http conn conn_limit
HARD_LIST  := $(call long_first,tests/api/run tests/soak/chaos $(foreach t,$(HARD_TESTS),$(filter %/test_$(t),$(TESTS))))
hard: hard-build
	TERN_BUILD=build/hard tests/run $(HARD_LIST:$(B)/%=build/hard/%)
hard-build: all
	$(MAKE) B=build/hard OPT='-O1 -g1' HARD=1 $(filter build/hard/%,$(HARD_LIST:$(B)/%=build/hard/%)) build/hard/tern
.PHONY: hard hard-build tsan-build

# Every test of every build, in one row, so that no processor waits for the last test of one before the next begins.
check-tests: all tests tools lib
	$(MAKE) hard-build tsan-build asan-build
	tests/run B=$(B) $(CLIENT_LIST) $(TEST_LIST) B=build/hard $(HARD_LIST:$(B)/%=build/hard/%) \
	  B=build/tsan $(TSAN_LIST:$(B)/%=build/tsan/%) B=build/asan $(filter-out $(PLAIN_ONLY),$(TEST_LIST:$(B)/%=build/asan/%))
.PHONY: check-tests

# Compiled where a cross compiler is at hand; the kernels also run under qemu where that is.
arm64:
	tools/arm64

FUZZ_SECONDS ?= 600
fuzzers:
	$(MAKE) B=build/fuzz CC=clang OPT='-O1 -g1' SAN='-fsanitize=address,undefined,fuzzer-no-link -fno-sanitize-recover=all' fuzz-build
.PHONY: fuzz-build
fuzz-build: $(FUZZERS)
# What foreign bytes reach.
FUZZ_OBJ := $(filter $(B)/src/base/% $(B)/src/format/% $(B)/src/token/% $(B)/src/sample/% $(B)/src/grammar/% $(B)/src/toolcall/% $(B)/src/jinja/% $(B)/src/quant/imatrix.o,$(LIB_OBJ)) \
            $(filter $(B)/src/net/httpmsg.o $(B)/src/net/query.o $(B)/src/net/loop.o $(B)/src/worker/frame.o $(B)/src/worker/message.o \
                     $(B)/src/worker/handshake.o $(B)/src/worker/seats.o $(B)/src/worker/link%.o $(B)/src/api/body.o $(B)/src/api/deadline.o $(B)/src/api/params%.o \
                     $(B)/src/gang/%.o $(B)/src/jobs/multipart.o $(B)/src/jobs/batchline.o $(B)/src/jobs/batchobject.o $(B)/src/cluster/storerec.o $(B)/src/loadtest/load_http.o $(B)/src/member/member.o $(B)/src/ledger/jobrecord.o $(B)/src/cluster/fleet_state.o $(B)/src/cluster/promptkey.o $(B)/src/cluster/units.o $(B)/src/cluster/affinity.o \
                     $(B)/src/pool/prompter.o $(B)/src/pool/promptborder.o $(B)/src/pool/chatform.o $(B)/src/server/settings%.o $(B)/src/pool/registry%.o $(B)/src/pool/modelname.o,$(LIB_OBJ) $(SERVE_OBJ)) \
            $(PULL_PLAIN) $(filter $(B)/src/comm/% $(B)/src/engine/% $(B)/src/model/% $(B)/src/kv/% $(B)/src/kernel/% $(B)/src/onnx/%,$(LIB_OBJ)) $(PLAIN_OBJ)
$(B)/libfuzz.a: $(FUZZ_OBJ)
	@rm -f $@
	$(Q)ar rcs $@ $(FUZZ_OBJ)
$(FUZZERS): $(B)/%: $(B)/%.o $(B)/libfuzz.a
	$(SAY) LD $@
	$(Q)$(CC) $(LDFLAGS) -fsanitize=fuzzer -o $@ $< $(B)/libfuzz.a $(SERVE_LIBS) $(LDLIBS)
fuzz: fuzzers
	tests/fuzz/run build/fuzz $(FUZZ_SECONDS)

layers: all
	tools/layers $(B)

format:
	tools/format

gates:
	tools/gates

# The GPU's kernels as a library that the program opens when it is asked for. CUDA_ARCH=90a: for one card only.
NVCC ?= $(firstword $(shell command -v nvcc) $(wildcard /usr/local/cuda/bin/nvcc))
CUDA_ARCH ?= all
CUDA_SRC := $(wildcard src/kernel/cuda/*.cu src/kernel/cuda/inst/*.cu)
# What it stands on, compiled again as its own: nothing of the program is called from it.
CUDA_C   := $(wildcard src/kernel/cuda/*.c) $(wildcard src/kernel/quant*.c) src/kernel/iq_grid.c \
            $(addprefix src/base/,buf.c dtype.c err.c jsonw.c log.c mem.c str.c utf8.c)
CUDA_DIR := $(B)/cuda/$(CUDA_ARCH)
CUDA_OBJ := $(CUDA_SRC:src/kernel/cuda/%.cu=$(CUDA_DIR)/%.cu.o) $(CUDA_C:src/%.c=$(B)/cuda/c/%.o)
CUDA_GEN := $(if $(filter all,$(CUDA_ARCH)),$(foreach a,80 89 90a,-gencode arch=compute_$(a)$(,)code=sm_$(a)) \
              -gencode arch=compute_90$(,)code=compute_90,-gencode arch=compute_$(CUDA_ARCH)$(,)code=sm_$(CUDA_ARCH))
CUDA_FLAGS := -std=c++17 -O3 -lineinfo -Xfatbin -compress-all -Isrc -Iinclude -DTERN_VERSION='"$(VERSION)"' $(CUDA_GEN) -Xcompiler -Wall,-Wextra,-Werror,-fPIC,-fvisibility=hidden
# What comm nccl opens. It needs NVIDIA's libnccl.so.2 at run time only; where NVCC's folder has the header, declarations are checked.
NCCL_INC := $(firstword $(foreach d,$(if $(NVCC),$(dir $(NVCC))../include) /usr/include,$(if $(wildcard $(d)/nccl.h),$(if $(wildcard $(d)/cuda_runtime.h),$(d)))))
$(B)/tern-nccl.so: $(NCCL_SRC) src/kernel/nccllib.h src/base/err.h
	@mkdir -p $(@D)
	$(SAY) LD $@
	$(Q)$(CC) -std=c11 -D_GNU_SOURCE -O2 -g -Wall -Wextra -Wshadow -Werror -fPIC -fvisibility=hidden -shared -Isrc $(if $(NCCL_INC),-DTERN_HAS_NCCL_H -isystem $(NCCL_INC)) -o $@.new $(NCCL_SRC) -ldl
	$(Q)mv $@.new $@
ifeq ($(NVCC),)
cuda:
	@echo "cuda: nvcc not found; $(B)/tern-cuda.so is not built"
else
cuda: $(B)/tern-cuda.so $(B)/tern-nccl.so
endif

$(B)/tern-cuda.so: $(CUDA_OBJ) $(B)/cuda/arch
	$(SAY) LD $@
	$(Q)$(NVCC) -shared $(CUDA_GEN) -Xlinker --version-script=$(B)/cuda/export.map,--no-undefined -o $@.new $(CUDA_OBJ) -lpthread -ldl
	$(Q)mv $@.new $@
# Each part against its reference and the clock: bench/cuda/PART.cu, run on the card.
CUDA_BENCH := $(patsubst %.cu,$(B)/%,$(wildcard bench/cuda/*.cu))
cuda-bench: $(CUDA_BENCH)
$(CUDA_BENCH): $(B)/%: %.cu $(CUDA_OBJ) $(B)/libcore.a
	@mkdir -p $(@D)
	$(SAY) NVCC $@
	$(Q)$(NVCC) $(CUDA_FLAGS) -o $@ $< $(CUDA_OBJ) $(B)/libcore.a -lpthread -ldl -lm
# Which card it was built for last: another one is another library.
$(B)/cuda/arch: FORCE
	@mkdir -p $(@D)
	@echo '{ global: tern_cuda_open; tern_cuda_card; local: *; };' >$(B)/cuda/export.map
	@echo $(CUDA_ARCH) | cmp -s - $@ || echo $(CUDA_ARCH) >$@
.PHONY: cuda-bench
$(CUDA_DIR)/%.cu.o: src/kernel/cuda/%.cu
	@mkdir -p $(@D)
	$(SAY) NVCC $@
	$(Q)$(NVCC) $(CUDA_FLAGS) -MMD -MP -MF $(@:.o=.d) -c -o $@ $<
$(B)/cuda/c/%.o: src/%.c $(B)/flags
	@mkdir -p $(@D)
	$(SAY) CC $@
	$(Q)$(CC) $(CFLAGS) -fPIC -fvisibility=hidden -MMD -MP -c -o $@ $<

bench: all tools
	bench/vs-llama-cpp

# What people read and what shells and systemd take: made by the program from its tables of flags.
$(B)/share/tern.1: $(B)/tern
	@mkdir -p $(@D)
	$(Q)$(B)/tern manual >$@.new && mv $@.new $@
$(B)/share/tern.bash $(B)/share/tern.zsh $(B)/share/tern.fish: $(B)/share/tern.%: $(B)/tern
	@mkdir -p $(@D)
	$(Q)$(B)/tern completion $* >$@.new && mv $@.new $@
$(B)/share/tern.service: packaging/tern.service.in
	@mkdir -p $(@D)
	$(Q)sed 's|@PREFIX@|$(PREFIX)|' $< >$@
.PHONY: $(B)/share/tern.service
SHARED := $(addprefix $(B)/share/,tern.1 tern.bash tern.zsh tern.fish tern.service)

# Every installed file, for uninstall: a new line of install belongs here, too.
INSTALLED := bin/tern include/tern.h lib/libtern.a lib/$(LIBTERN_SO) lib/libtern.so.$(ABI) lib/libtern.so lib/pkgconfig/tern.pc \
  lib/tern/tern-cuda.so lib/tern/tern-nccl.so lib/tern/tern-pull.so lib/tern/tern-mpi.so lib/tern/tern-nats.so lib/tern/tern-lua.so share/tern/models/tern-tales.gguf share/man/man1/tern.1 share/bash-completion/completions/tern \
  share/zsh/site-functions/_tern share/fish/vendor_completions.d/tern.fish lib/systemd/system/tern.service

install: all lib $(SHARED)
	install -D -m 755 $(B)/tern $(DESTDIR)$(PREFIX)/bin/tern
	install -D -m 644 include/tern.h $(DESTDIR)$(PREFIX)/include/tern.h
	install -D -m 644 $(B)/lib/libtern.a $(DESTDIR)$(PREFIX)/lib/libtern.a
	install -D -m 644 $(B)/lib/$(LIBTERN_SO) $(DESTDIR)$(PREFIX)/lib/$(LIBTERN_SO)
	ln -sf $(LIBTERN_SO) $(DESTDIR)$(PREFIX)/lib/libtern.so.$(ABI)
	ln -sf libtern.so.$(ABI) $(DESTDIR)$(PREFIX)/lib/libtern.so
	install -d $(DESTDIR)$(PREFIX)/lib/pkgconfig
	sed -e 's|@PREFIX@|$(PREFIX)|; s|@VERSION@|$(VERSION)|; s|@REQUIRES@|$(PKGS)|' tools/tern.pc.in >$(DESTDIR)$(PREFIX)/lib/pkgconfig/tern.pc
	$(if $(MPI_LIBS),install -D -m 755 $(B)/tern-mpi.so $(DESTDIR)$(PREFIX)/lib/tern/tern-mpi.so)
	$(if $(PULL_LIBS),install -D -m 755 $(B)/tern-pull.so $(DESTDIR)$(PREFIX)/lib/tern/tern-pull.so)
	$(if $(NATS_LIBS),install -D -m 755 $(B)/tern-nats.so $(DESTDIR)$(PREFIX)/lib/tern/tern-nats.so)
	$(if $(LUA_LIBS),install -D -m 755 $(B)/tern-lua.so $(DESTDIR)$(PREFIX)/lib/tern/tern-lua.so)
	$(if $(wildcard $(B)/tern-cuda.so),install -D -m 755 $(B)/tern-cuda.so $(DESTDIR)$(PREFIX)/lib/tern/tern-cuda.so)
	$(if $(wildcard $(B)/tern-nccl.so),install -D -m 755 $(B)/tern-nccl.so $(DESTDIR)$(PREFIX)/lib/tern/tern-nccl.so)
	install -D -m 644 models/tern-tales.gguf $(DESTDIR)$(PREFIX)/share/tern/models/tern-tales.gguf
	install -D -m 644 $(B)/share/tern.1 $(DESTDIR)$(PREFIX)/share/man/man1/tern.1
	install -D -m 644 $(B)/share/tern.bash $(DESTDIR)$(PREFIX)/share/bash-completion/completions/tern
	install -D -m 644 $(B)/share/tern.zsh $(DESTDIR)$(PREFIX)/share/zsh/site-functions/_tern
	install -D -m 644 $(B)/share/tern.fish $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/tern.fish
	install -D -m 644 $(B)/share/tern.service $(DESTDIR)$(PREFIX)/lib/systemd/system/tern.service

# Folders of tern alone are removed; in a staging folder all that are empty.
uninstall:
	rm -f $(addprefix $(DESTDIR)$(PREFIX)/,$(INSTALLED))
	-rmdir $(addprefix $(DESTDIR)$(PREFIX)/,lib/tern share/tern/models share/tern) 2>/dev/null
	$(if $(DESTDIR),find $(DESTDIR)$(PREFIX) -depth -type d -empty -delete)

clean:
	rm -rf build

-include $(PULL_OBJ:.o=.d) $(PLUG_SRC:%.c=$(B)/%.d) $(MUTANTS_OBJ:.o=.d) $(LIB_OBJ:.o=.d) $(SERVE_OBJ:.o=.d) $(CLI_OBJ:.o=.d) $(TEST_SRC:%.c=$(B)/%.d) $(FAULT_SRC:%.c=$(B)/%.d) $(FUZZ_SRC:%.c=$(B)/%.d) $(B)/tests/support.d $(EVEX_OBJ:.o=.d) $(B)/tests/fault/fault.d $(TOOL_SRC:%.c=$(B)/%.d) $(BENCH_SRC:%.c=$(B)/%.d) \
         $(CUDA_OBJ:.o=.d)
