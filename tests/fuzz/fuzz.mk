# make fuzz: runs every libFuzzer target for FUZZ_SECONDS each, two at once. Needs clang++ with its libFuzzer (Debian: clang and
# libclang-rt-14-dev). A crash leaves its input in build/fuzz and fails the run.
FUZZ_SECONDS ?= 60
FUZZ_CXX     ?= clang++
FUZZ_FLAGS   := -std=c++20 -O1 -g -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all \
                -fno-omit-frame-pointer -Isrc -I. -MMD -MP
FUZZ_TARGETS := session gguf gguf_split safetensors config tokenizer_json tokenizer_model chat_template batch_line batch_resume gbnf json_schema \
                regex
# Sources that read hostile files.
FUZZ_LIB     := $(addprefix src/model/,model weights) \
                $(patsubst %.cpp,%,$(wildcard src/model/families/*.cpp)) \
                $(filter-out %/gguf_writer,$(patsubst %.cpp,%,$(wildcard src/formats/*.cpp))) \
                $(filter-out %/load_model,$(patsubst %.cpp,%,$(wildcard src/import/*.cpp))) \
                $(patsubst %.cpp,%,$(wildcard src/text/*.cpp)) \
                $(patsubst %.cpp,%,$(wildcard src/chat/*.cpp)) \
                $(patsubst %.cpp,%,$(wildcard src/grammar/*.cpp)) \
                $(addprefix src/kv/,kv_shape host_store kv_store working_set file/session_file) \
                $(addprefix src/util/,c_locale checked checksum control_groups cpu_limits file json json_file mapped_file nearest_word \
                read_ahead size_text) \
                src/util/buffer src/util/thread_pool src/util/error $(patsubst %.cpp,%,$(wildcard src/util/settings*.cpp)) \
                $(addprefix src/api/,api_handles api_options api_text info) src/quantize/weight_mix \
                $(addprefix src/select/,papers/lfps papers/lfps_tables papers/settings ranking block_masses int4_keys) \
                $(addprefix kernels/cpu/,attention/attention_scalar attention/gather_scalar attention/gather_avx2 \
                attention/gather_avx512 select/select_scalar select/papers/score_table_scalar \
                select/papers/score_table_avx512) \
                $(addprefix src/cli/,flags options settings text seed saved_text thinking batch/format batch/fields batch/answer_format batch/json_line batch/messages line_reader \
                batch/resume)
FUZZ_LIBS    := -lpcre2-8 -lutf8proc
FUZZ_OBJ     := $(FUZZ_LIB:%=$(BUILD)/fuzz/%.o)
FUZZ_BIN     := $(FUZZ_TARGETS:%=$(BUILD)/fuzz/fuzz_%)

$(BUILD)/fuzz/kernels/%_avx2.o:   FUZZ_FLAGS += -mavx2 -mfma -mf16c
$(BUILD)/fuzz/kernels/%_avx512.o: FUZZ_FLAGS += -mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni
$(BUILD)/fuzz/%.o: %.cpp | fuzz-tools
	@mkdir -p $(@D)
	$(FUZZ_CXX) $(FUZZ_FLAGS) -c $< -o $@
$(BUILD)/fuzz/fuzz_%: $(BUILD)/fuzz/tests/fuzz/fuzz_%.o $(FUZZ_OBJ)
	$(FUZZ_CXX) -fsanitize=fuzzer,address,undefined $^ $(FUZZ_LIBS) -o $@
$(BUILD)/fuzz/make_seeds: $(BUILD)/fuzz/tests/fuzz/make_seeds.o $(FUZZ_OBJ)
	$(FUZZ_CXX) -fsanitize=address,undefined $^ $(FUZZ_LIBS) -o $@

fuzz-tools:
	@echo 'extern "C" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) { return 0; }' | \
	  $(FUZZ_CXX) -x c++ -fsanitize=fuzzer,address - -o /dev/null 2>/dev/null || \
	  { echo "make fuzz: $(FUZZ_CXX) with libFuzzer is missing (Debian: apt-get install clang libclang-rt-14-dev)" >&2; exit 1; }
fuzz: $(FUZZ_BIN) $(BUILD)/fuzz/make_seeds
	@$(BUILD)/fuzz/make_seeds $(BUILD)/fuzz/corpus
	@printf '%s\n' $(FUZZ_TARGETS) | xargs -P 2 -I@ sh -c '\
	  $(BUILD)/fuzz/fuzz_@ -max_total_time=$(FUZZ_SECONDS) -max_len=131072 -rss_limit_mb=2048 -timeout=10 \
	    -print_final_stats=1 -artifact_prefix=$(BUILD)/fuzz/@- $(BUILD)/fuzz/corpus/@ \
	    >$(BUILD)/fuzz/@.log 2>&1 || { tail -n 60 $(BUILD)/fuzz/@.log; echo "fuzz_@: FAILED" >&2; exit 1; }; \
	  echo "fuzz_@: $(FUZZ_SECONDS) s," \
	    "$$(sed -n "s/stat::number_of_executed_units: *//p" $(BUILD)/fuzz/@.log) inputs, no failure"'

-include $(FUZZ_OBJ:.o=.d) $(FUZZ_TARGETS:%=$(BUILD)/fuzz/tests/fuzz/fuzz_%.d) $(BUILD)/fuzz/tests/fuzz/make_seeds.d
.SECONDARY: $(FUZZ_OBJ) $(FUZZ_TARGETS:%=$(BUILD)/fuzz/tests/fuzz/fuzz_%.o)
.PHONY: fuzz fuzz-tools
