# Ballast. `make help` lists the targets; everything is built under build/<variant>/.
.DEFAULT_GOAL := all
CC       ?= cc
PREFIX   ?= /usr/local
DESTDIR  ?=
VARIANT  ?= release
BUILD    ?= build/$(VARIANT)$(if $(CUDA),-cuda)
VERSION  := 0.1.0

OPT.release   := -O2 -g
OPT.debug     := -O0 -g
OPT.address   := -O1 -g -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
OPT.undefined := -O1 -g -fsanitize=undefined -fno-sanitize-recover=all
OPT.thread    := -O1 -g -fsanitize=thread
OPT.fuzz      := -O1 -g -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=undefined

WARN := -Wall -Wextra -Wshadow -Wconversion -Wstrict-prototypes -Wmissing-prototypes -Wvla
ifdef WERROR
WARN += -Werror
endif
# Contraction into fused multiply-adds would make a sum depend on how the compiler schedules it.
# Nobody reads errno after sqrt(), and without it a row of roots is a few vector instructions.
FLAGS := -std=c11 -D_POSIX_C_SOURCE=200809L -fPIC -ffp-contract=off -fno-math-errno -pthread $(WARN) \
         $(OPT.$(VARIANT)) -I. -Iinclude -DBL_VERSION='"$(VERSION)"' $(CPPFLAGS) $(CFLAGS)
# --as-needed: programs that use no UCX do not load it, whose memory hooks crash under the thread
# sanitizer.
LIBS  := -Wl,--as-needed -lglpk -lcsv -ljansson -lexpat -lyaml -lzstd -lxxhash -lmicrohttpd -lucp -lucs -lrt -lm -pthread

ROOMS := core topologies tracer planner planner/engines runtime rebalancer cli
SRC   := $(wildcard $(ROOMS:%=%/*.c))
# CUDA=1 adds what needs the toolkit and NCCL: *_cuda.c, transport_nccl.c and kernels in *.cu. Without
# it *_cuda_none.c and transport_nccl_none.c stand in for them and say so.
ifdef CUDA
CUDA_HOME ?= /usr/local/cuda
NCCL_HOME ?= $(CUDA_HOME)
NVCC      ?= $(CUDA_HOME)/bin/nvcc
# Intermediate code from Ampere on, which the driver compiles for newer devices, and Hopper's own.
CUDA_ARCH ?= -gencode arch=compute_80,code=compute_80 -gencode arch=compute_90,code=sm_90
FLAGS     += -DBL_HAVE_CUDA -isystem $(CUDA_HOME)/include -isystem $(NCCL_HOME)/include
CUDA_LIBS := $(foreach dir,$(CUDA_HOME)/lib64 $(NCCL_HOME)/lib,-L$(dir) -Wl,-rpath,$(dir)) -lnccl -lcudart
LIBS      += $(CUDA_LIBS) -lstdc++
SRC       := $(filter-out %_cuda_none.c %/transport_nccl_none.c,$(SRC))
else
SRC       := $(filter-out %_cuda.c %/transport_nccl.c,$(SRC))
endif
KERNELS := $(if $(CUDA),$(wildcard $(ROOMS:%=%/*.cu)))
OBJ     := $(SRC:%.c=$(BUILD)/%.o) $(KERNELS:%.cu=$(BUILD)/%.cu.o) $(BUILD)/gen/catalogue.o
# The program's parts without main() and without the stand-in for GLPK: what tests link.
PARTS := $(filter-out $(BUILD)/cli/main.o $(BUILD)/planner/milp_none.o,$(OBJ))
room   = $(filter $(1:%=$(BUILD)/%/%),$(OBJ))

# libballast-trace: inside engines, libc only. libballast: what ranks link. libballast-plan: planning
# from other programs and languages, without GLPK and without the engines' files.
TRACE_OBJ := $(addprefix $(BUILD)/,core/status.o tracer/ring.o tracer/capture.o tracer/capture_rows.o \
             $(if $(CUDA),tracer/capture_host_cuda.o tracer/capture_cuda.cu.o,tracer/capture_cuda_none.o))
PLAN_OBJ  := $(filter-out $(BUILD)/planner/milp_glpk.o $(BUILD)/core/yaml.o $(BUILD)/planner/engines/%, \
             $(call room,core topologies tracer planner)) $(BUILD)/gen/catalogue.o
RANK_OBJ  := $(call room,core tracer runtime rebalancer)
LIBRARIES := $(BUILD)/libballast-trace.a $(BUILD)/libballast.a $(BUILD)/libballast-plan.a \
             $(BUILD)/libballast-trace.so $(BUILD)/libballast-plan.so $(BUILD)/libballast.so

TESTS   := $(patsubst tests/%.c,$(BUILD)/tests/%,$(wildcard tests/test_*.c))
# The thread sanitizer is for programs with threads; a search by itself would only take ten times as long.
ifeq ($(VARIANT),thread)
THREADED := runtime/|rebalancer/|cli/|tests/support/cluster|planner/planning\.h|ballast|tracer/(ring|capture|recorder|window)
TESTS   := $(patsubst tests/%.c,$(BUILD)/tests/%,$(shell grep -lE '\#include ("($(THREADED))|<pthread)' tests/test_*.c))
endif
REPLAYS := $(patsubst tests/fuzz/%.c,$(BUILD)/tests/replay_%,$(wildcard tests/fuzz/fuzz_*.c))
SUPPORT := $(patsubst %.c,$(BUILD)/%.o,$(wildcard tests/support/*.c))
EXAMPLES := $(BUILD)/examples/embed $(BUILD)/examples/embed_static
TOOLS   := $(patsubst tests/tools/%.c,$(BUILD)/tests/tools/%,$(wildcard tests/tools/*.c))
SCRIPTS := $(wildcard tests/cli/test_*.sh)
GPU_TESTS := $(patsubst tests/gpu/%.c,$(BUILD)/tests/gpu/%,$(wildcard tests/gpu/test_*.c))
BENCHES := $(patsubst tests/bench/%.c,$(BUILD)/tests/bench/%,$(wildcard tests/bench/bench_*.c))

.PHONY: all help demo test unit bench memory lint format asan ubsan tsan fuzz install clean deps man check-gpu gpu llama
.SECONDARY:

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 18

all: deps $(BUILD)/ballast $(LIBRARIES) ## install what is missing, build program and libraries

deps: ; @scripts/deps.sh

demo: all ## record, plan and rebalance a small model on four ranks, and show the result
	@BALLAST=$(BUILD)/ballast scripts/demo.sh

test: ## build and run every test
	@scripts/deps.sh test
	@$(MAKE) --no-print-directory all unit

unit: $(BUILD)/ballast $(LIBRARIES) $(TESTS) $(REPLAYS) $(TOOLS) $(EXAMPLES)
	@BUILD=$(BUILD) tests/run.sh $(TESTS) $(REPLAYS) $(SCRIPTS)

bench: all $(BENCHES) ## measure the targets of docs/benchmarks.md side by side
	@BUILD=$(BUILD) scripts/bench.sh $(BENCHES)

# make CUDA=1 is the build with CUDA and NCCL; this builds it and runs what needs a GPU.
check-gpu: ; @CUDA_HOME=$(CUDA_HOME) scripts/check_gpu.sh ## build with CUDA and NCCL, and test on this machine's GPUs
gpu: $(BUILD)/ballast $(LIBRARIES) $(GPU_TESTS)

llama: $(BUILD)/ballast $(LIBRARIES) ## fetch a llama.cpp, build the adapter against it and check that
	@BUILD=$(BUILD) scripts/llama.sh fetch && BUILD=$(BUILD) tests/run.sh tests/cli/test_llama.sh

memory: $(BUILD)/ballast $(BUILD)/tests/tools/peak_memory ## stream 2e9 ids through stat, state its peak memory
	@BUILD=$(BUILD) scripts/memory.sh

lint: all ## formatting, includes and symbols, static analysis
	@BUILD=$(BUILD) scripts/lint.sh

format: ; @clang-format -i $$(git ls-files '*.c' '*.h')

asan: ; @$(MAKE) --no-print-directory VARIANT=address unit ## tests under address and undefined sanitizers
ubsan: ; @$(MAKE) --no-print-directory VARIANT=undefined unit ## tests under the undefined sanitizer
# UCX patches memory calls as it is loaded, which the thread sanitizer does not survive. Threads are
# in the test programs; what the scripts start are processes.
tsan: ; @UCX_MEM_EVENTS=no $(MAKE) --no-print-directory VARIANT=thread SCRIPTS= unit ## test programs under the thread sanitizer
fuzz: ; @scripts/fuzz.sh ## fuzz every reader for FUZZ_SECONDS each (default 10)

man: $(BUILD)/ballast.1
$(BUILD)/ballast.1: $(BUILD)/ballast ; $(BUILD)/ballast help --man > $@

install: $(BUILD)/ballast $(LIBRARIES) ## install under PREFIX (default /usr/local)
	@BUILD=$(BUILD) DESTDIR=$(DESTDIR) PREFIX=$(PREFIX) VERSION=$(VERSION) scripts/install.sh

clean: ; rm -rf build ## remove everything that was built

# ---- rules -----------------------------------------------------------------------------------
STAMP := $(BUILD)/flags.stamp
ifeq ($(shell printf '%s' '$(CC) $(subst ','\'',$(FLAGS))' | cmp -s - $(STAMP) || echo changed),changed)
$(shell mkdir -p $(BUILD) && printf '%s' '$(CC) $(subst ','\'',$(FLAGS))' > $(STAMP))
endif

$(BUILD)/%.o: %.c $(STAMP) | deps
	@mkdir -p $(@D)
	$(Q)$(CC) $(FLAGS) -MMD -MP -c -o $@ $<
$(BUILD)/%.cu.o: %.cu $(STAMP) | deps
	@mkdir -p $(@D)
	$(Q)$(NVCC) -O2 -g $(CUDA_ARCH) -Xcompiler -fPIC,-Wall,-Wextra -I. -Iinclude -DBL_HAVE_CUDA -MMD -MP -c -o $@ $<
# The narrowing of ids: every id of an engine goes through it.
$(BUILD)/tracer/capture_rows.o: FLAGS += $(if $(filter release,$(VARIANT)),-O3)
$(BUILD)/gen/%.o: $(BUILD)/gen/%.c $(STAMP)
	$(Q)$(CC) $(FLAGS) -c -o $@ $<
$(BUILD)/gen/catalogue.c: $(wildcard topologies/catalogue/*.json) scripts/embed.sh
	@mkdir -p $(@D)
	$(Q)scripts/embed.sh bl_catalogue_files $(wildcard topologies/catalogue/*.json) > $@.new && mv $@.new $@

$(BUILD)/parts.a: $(PARTS) ; $(Q)rm -f $@; ar rcs $@ $^
$(BUILD)/ballast: $(BUILD)/cli/main.o $(BUILD)/parts.a ; $(Q)$(CC) $(FLAGS) $(LDFLAGS) -o $@ $^ $(LIBS)
$(BUILD)/libballast-trace.a: $(TRACE_OBJ) ; $(Q)rm -f $@; ar rcs $@ $^
$(BUILD)/libballast-plan.a: $(PLAN_OBJ) ; $(Q)rm -f $@; ar rcs $@ $^
$(BUILD)/libballast.a: $(RANK_OBJ) ; $(Q)rm -f $@; ar rcs $@ $^
$(BUILD)/libballast-trace.so: $(TRACE_OBJ) tracer/exports.map
	$(Q)$(CC) $(FLAGS) $(LDFLAGS) -shared -Wl,--version-script=tracer/exports.map -o $@ $(TRACE_OBJ) -lrt \
	      $(if $(CUDA),-Wl$(comma)--as-needed $(CUDA_LIBS) -lstdc++)
# What an engine's calls need of the ranks' parts, and nothing else.
EMBED_OBJ  := $(filter $(BUILD)/rebalancer/embed%,$(RANK_OBJ))
EMBED_LIBS := -Wl,--as-needed -lucp -lucs -ljansson -lxxhash -lzstd -lrt -lm -pthread $(if $(CUDA),$(CUDA_LIBS) -lstdc++)
$(BUILD)/libballast.so: $(EMBED_OBJ) $(BUILD)/libballast.a rebalancer/exports.map
	$(Q)$(CC) $(FLAGS) $(LDFLAGS) -shared -Wl,--version-script=rebalancer/exports.map -o $@ $(EMBED_OBJ) \
	      $(BUILD)/libballast.a $(EMBED_LIBS)
# As somebody else would build them: public headers and a library.
$(EXAMPLES): examples/embed.c include/ballast_embed.h $(BUILD)/libballast.so $(BUILD)/libballast.a
	@mkdir -p $(@D)
	$(Q)$(CC) $(filter-out -I.,$(FLAGS)) $(LDFLAGS) -o $@ $< $(if $(filter %_static,$@),$(BUILD)/libballast.a \
	      $(EMBED_LIBS),-L$(BUILD) -lballast -Wl$(comma)-rpath$(comma)$(abspath $(BUILD)))
$(BUILD)/libballast-plan.so: $(PLAN_OBJ)
	$(Q)$(CC) $(FLAGS) $(LDFLAGS) -shared -o $@ $^ -lcsv -ljansson -lexpat -lzstd -lxxhash -lm -lrt

# Objects before the archive: what a test names beside it stands in for a member.
$(BUILD)/tests/%: $(BUILD)/tests/%.o $(SUPPORT) $(BUILD)/parts.a
	$(Q)$(CC) $(FLAGS) $(LDFLAGS) -o $@ $(filter %.o,$^) $(filter %.a,$^) $(LIBS) -lcmocka
# NCCL on CPUs: transport and device once more, against the headers and the libraries of tests/fake.
FAKE_NCCL := $(addprefix $(BUILD)/tests/fake/,transport_nccl.o device_cuda.o fake_nccl.o fake_cuda.o)
$(addprefix $(BUILD)/tests/,test_transport test_nccl test_nccl_move test_embed test_embed_loss): $(FAKE_NCCL)
$(BUILD)/tests/fake/%.o: runtime/%.c $(STAMP)
	@mkdir -p $(@D)
	$(Q)$(CC) -Itests/fake $(FLAGS) -MMD -MP -c -o $@ $<
$(BUILD)/tests/fake/%.o: core/%.c $(STAMP)
	@mkdir -p $(@D)
	$(Q)$(CC) -Itests/fake $(FLAGS) -MMD -MP -c -o $@ $<
# The adapter for llama.cpp, against headers and an engine that are imitated.
$(BUILD)/tests/test_llama_capture: $(BUILD)/tests/fake/llama_capture.o
$(BUILD)/tests/test_llama_capture.o: FLAGS += -Itests/fake/llama -Iexamples/capture
$(BUILD)/tests/fake/llama_capture.o: examples/capture/llama_capture.c $(STAMP)
	@mkdir -p $(@D)
	$(Q)$(CC) -Itests/fake/llama $(FLAGS) -MMD -MP -c -o $@ $<
$(BUILD)/tests/replay_%: $(BUILD)/tests/fuzz/%.o $(BUILD)/tests/fuzz/replay.o $(BUILD)/parts.a
	$(Q)$(CC) $(FLAGS) $(LDFLAGS) -o $@ $^ $(LIBS)

comma := ,
Q := $(if $(V),,@)
-include $(shell find $(BUILD) -name '*.d' 2>/dev/null)
