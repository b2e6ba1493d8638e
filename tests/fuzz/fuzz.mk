# make fuzz: runs every libFuzzer target for FUZZ_SECONDS each, two at once. Needs clang++ with its
# libFuzzer (Debian: clang and libclang-rt-14-dev). A crash leaves its input in build/fuzz and fails
# the run.
FUZZ_SECONDS ?= 60
FUZZ_CXX     ?= clang++
FUZZ_FLAGS   := -std=c++20 -O1 -g -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all \
                -fno-omit-frame-pointer -Isrc -I. -MMD -MP
FUZZ_TARGETS := session gguf gguf_split safetensors config tokenizer_json tokenizer_model chat_template batch_line batch_resume calls call_grammar gbnf json_schema \
                regex
# The folders that read hostile files are compiled with the sanitizers. All other code that they
# call comes from the library as it is.
FUZZ_ROOMS   := api chat cli formats grammar import kv model requests text util
FUZZ_LIB     := $(filter-out src/cli/main.cpp src/cli/allocation.cpp,\
                $(filter $(FUZZ_ROOMS:%=src/%/%),$(LIB_SRC) $(CLI_SRC)))
FUZZ_LIBS    := $(LDLIBS) -ledit
FUZZ_OBJ     := $(FUZZ_LIB:%.cpp=$(BUILD)/fuzz/%.o)
FUZZ_BIN     := $(FUZZ_TARGETS:%=$(BUILD)/fuzz/fuzz_%)

$(BUILD)/fuzz/%.o: %.cpp | fuzz-tools
	@mkdir -p $(@D)
	$(FUZZ_CXX) $(FUZZ_FLAGS) -c $< -o $@
$(BUILD)/fuzz/fuzz_%: $(BUILD)/fuzz/tests/fuzz/fuzz_%.o $(FUZZ_OBJ) $(BUILD)/cli.a $(BUILD)/libriffle.a
	$(FUZZ_CXX) -fsanitize=fuzzer,address,undefined $^ $(FUZZ_LIBS) -o $@
$(BUILD)/fuzz/make_seeds: $(BUILD)/fuzz/tests/fuzz/make_seeds.o $(BUILD)/fuzz/tests/model/test_files.o $(FUZZ_OBJ) $(BUILD)/cli.a $(BUILD)/libriffle.a
	$(FUZZ_CXX) -fsanitize=address,undefined $^ $(FUZZ_LIBS) -o $@

fuzz-tools:
	@echo 'extern "C" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) { return 0; }' | \
	  $(FUZZ_CXX) -x c++ -fsanitize=fuzzer,address - -o /dev/null 2>/dev/null || \
	  { echo "make fuzz: $(FUZZ_CXX) with libFuzzer is missing (Debian: apt-get install clang libclang-rt-14-dev)" >&2; exit 1; }
fuzz: $(FUZZ_BIN) $(BUILD)/fuzz/make_seeds
	@$(BUILD)/fuzz/make_seeds $(BUILD)/fuzz/corpus
	@printf '%s\n' $(FUZZ_TARGETS) | xargs -P 2 -I@ sh -c '\
	  $(BUILD)/fuzz/fuzz_@ -max_total_time=$(FUZZ_SECONDS) -max_len=524288 -rss_limit_mb=2048 -timeout=10 \
	    -print_final_stats=1 -artifact_prefix=$(BUILD)/fuzz/@- $(BUILD)/fuzz/corpus/@ \
	    >$(BUILD)/fuzz/@.log 2>&1 || { tail -n 60 $(BUILD)/fuzz/@.log; echo "fuzz_@: FAILED" >&2; exit 1; }; \
	  echo "fuzz_@: $(FUZZ_SECONDS) s," \
	    "$$(sed -n "s/stat::number_of_executed_units: *//p" $(BUILD)/fuzz/@.log) inputs, no failure"'

-include $(FUZZ_OBJ:.o=.d) $(FUZZ_TARGETS:%=$(BUILD)/fuzz/tests/fuzz/fuzz_%.d) $(BUILD)/fuzz/tests/fuzz/make_seeds.d \
         $(BUILD)/fuzz/tests/model/test_files.d
.SECONDARY: $(FUZZ_OBJ) $(FUZZ_TARGETS:%=$(BUILD)/fuzz/tests/fuzz/fuzz_%.o)
.PHONY: fuzz fuzz-tools
