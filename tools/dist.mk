# make dist makes dist/riffle-VERSION-ARCHITECTURE/ and its .tar.gz: one executable and one shared
# library that need only glibc (on a GPU also the driver and cuBLAS), the headers, the model, and
# the licences of the libraries linked in. ARCHITECTURE is x86_64 or aarch64. Without CUARCH it has
# kernels for all GPU architectures; with CROSS and without CUARCH, none. Its build folder is
# build-dist, with CROSS=TRIPLET build-dist-TRIPLET.
DIST := dist/riffle-$(VERSION)-$(MACHINE)
DIST_BUILD := build-dist$(CROSS:%=-%)
# Debian's packages of the libraries have their licences here.
DOC := $(CROSS_ROOT)/usr/share/doc
LIBRARY_LICENSED := libpcre2-dev libutf8proc-dev libxxhash-dev nlohmann-json3-dev
LICENSED := $(LIBRARY_LICENSED) libedit-dev libncurses-dev libbsd-dev libmd-dev libcli11-dev
# Printed before a new build in build-dist: what it builds, and how long that takes. A core needs
# some 16 minutes for the C++ files and 9 for the kernels of one architecture.
PACKAGE_KERNELS = $(if $(NVCC_HERE),$(if $(filter all,$(PACKAGE_CUARCH)),$(ALL_CUARCH),$(if $(filter native,$(PACKAGE_CUARCH)),$(CUARCH),$(PACKAGE_CUARCH))))
define say_package
@echo "make $@: builds riffle once more, in $(DIST_BUILD), with its libraries inside and"
@echo "  kernels for $(or $(addprefix compute_,$(PACKAGE_KERNELS)),no GPU): up to $$(((16 + 9 * $(words $(PACKAGE_KERNELS))) / $$(nproc) + 1)) minutes on $$(nproc) cores; less if $(DIST_BUILD) exists."
@$(if $(and $(filter all,$(PACKAGE_CUARCH)),$(PACKAGE_KERNELS)),echo "  For this machine alone$(comma) in less than half the time: make $@ CUARCH=native")
endef
dist:
	$(say_package)
	@third_party/setup.sh check && third_party/static.sh
	$(MAKE) STATIC=1 BUILD=$(DIST_BUILD) CUARCH="$(PACKAGE_CUARCH)" dist-folder
dist-folder: all
	rm -rf $(DIST) && mkdir -p $(DIST)/models $(DIST)/licences
	cp $(BUILD)/riffle $(BUILD)/libriffle.so $(DIST)/ && $(STRIP) $(DIST)/riffle && $(STRIP) --strip-unneeded $(DIST)/libriffle.so
	ln -sf libriffle.so $(DIST)/libriffle.so.0
	cp $(HEADERS) README.md $(DIST)/ && cp -r models/riffle-27m-32k $(DIST)/models/
	for p in sentencepiece mimalloc; do cp $(STATIC_DIR)/src/$$p-*/debian/copyright $(DIST)/licences/$$p; done
	for p in $(LICENSED); do [ ! -e $(DOC)/$$p/copyright ] || cp -L $(DOC)/$$p/copyright $(DIST)/licences/$$p; done
	tools/check_dist.sh $(DIST)
	tar -C dist -czf $(DIST).tar.gz $(notdir $(DIST))
	@ls -l $(DIST) $(DIST).tar.gz

# Man pages: the prose of tools/man, with each command's options from the program's own help.
MAN := $(patsubst tools/man/%,$(BUILD)/man/%,$(wildcard tools/man/*.1))
man: $(MAN)
$(BUILD)/man/%.1: tools/man/%.1 tools/man/make_man.py $(BUILD)/riffle
	@mkdir -p $(@D)
	python3 -B tools/man/make_man.py $(BUILD)/riffle $< >$@.part && mv $@.part $@
man-lint: $(MAN)
	mandoc -T lint -W warning $^
.PHONY: dist dist-folder man man-lint
