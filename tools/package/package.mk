# make install, uninstall, deb, wheel, abi-check and abi-baseline. README.md in this folder lists
# the contents of each package.
LIBDIR      ?= $(PREFIX)/lib
INCLUDEDIR  ?= $(PREFIX)/include
DATADIR     ?= $(PREFIX)/share
BASHDIR     ?= $(DATADIR)/bash-completion/completions
ZSHDIR      ?= $(DATADIR)/zsh/site-functions
FISHDIR     ?= $(DATADIR)/fish/vendor_completions.d
MODEL_FILES := $(notdir $(wildcard models/riffle-27m-32k/*))

# Shell completion, from the program's own help.
COMPLETION := $(addprefix $(BUILD)/completion/,riffle _riffle riffle.fish)
completion: $(COMPLETION)
$(BUILD)/completion/riffle:      SHELL_NAME := bash
$(BUILD)/completion/_riffle:     SHELL_NAME := zsh
$(BUILD)/completion/riffle.fish: SHELL_NAME := fish
$(COMPLETION): tools/package/make_completion.py tools/man/make_man.py $(BUILD)/riffle
	@mkdir -p $(@D)
	python3 -B tools/package/make_completion.py $(BUILD)/riffle $(SHELL_NAME) >$@.part && mv $@.part $@

# Files of pkg-config and CMake. They hold PREFIX and other paths, so install makes them each time.
# PRIVATE: the libraries that a program needs besides libriffle.a.
PRIVATE := $(strip $(DEPS_LIBS) $(CUDA_LIBS) -lpthread -lstdc++ -lm)
FILLED  := $(addprefix $(BUILD)/package/,riffle.pc riffle-config.cmake riffle-config-version.cmake)
SPACE   := $(subst ,, )
$(FILLED): $(BUILD)/package/%: tools/package/%.in FORCE
	@mkdir -p $(@D)
	@sed -e 's|@PREFIX@|$(PREFIX)|; s|@LIBDIR@|$(LIBDIR)|; s|@INCLUDEDIR@|$(INCLUDEDIR)|' \
	  -e 's|@VERSION@|$(VERSION)|; s|@MAJOR@|$(firstword $(subst ., ,$(VERSION)))|; s|@SONAME@|$(SONAME)|' \
	  -e 's|@PRIVATE@|$(if $(filter %.cmake,$@),$(subst $(SPACE),;,$(PRIVATE)),$(PRIVATE))|' \
	  -e "s|@TO_INCLUDE@|$$(realpath -m --relative-to=$(LIBDIR)/cmake/riffle $(INCLUDEDIR))|" \
	  -e "s|@WORD@|$$(($$(getconf LONG_BIT) / 8))|" $< >$@

# Each file as MODE:SOURCE:DESTINATION, or link:TARGET:DESTINATION. uninstall reads the same list.
INSTALLED = 755:$(BUILD)/riffle:$(PREFIX)/bin/riffle \
  644:$(BUILD)/libriffle.a:$(LIBDIR)/libriffle.a \
  644:$(BUILD)/libriffle.so:$(LIBDIR)/libriffle.so.$(VERSION) \
  link:libriffle.so.$(VERSION):$(LIBDIR)/$(SONAME) \
  link:$(SONAME):$(LIBDIR)/libriffle.so \
  644:$(BUILD)/package/riffle.pc:$(LIBDIR)/pkgconfig/riffle.pc \
  $(foreach f,riffle-config.cmake riffle-config-version.cmake,644:$(BUILD)/package/$(f):$(LIBDIR)/cmake/riffle/$(f)) \
  $(foreach f,$(HEADERS),644:$(f):$(INCLUDEDIR)/$(notdir $(f))) \
  $(foreach f,$(MAN),644:$(f):$(DATADIR)/man/man1/$(notdir $(f))) \
  644:$(BUILD)/completion/riffle:$(BASHDIR)/riffle \
  644:$(BUILD)/completion/_riffle:$(ZSHDIR)/_riffle \
  644:$(BUILD)/completion/riffle.fish:$(FISHDIR)/riffle.fish \
  $(foreach f,$(MODEL_FILES),644:models/riffle-27m-32k/$(f):$(DATADIR)/riffle/models/riffle-27m-32k/$(f))
install: all $(MAN) $(COMPLETION) $(FILLED)
	@tools/package/install.sh install "$(DESTDIR)" $(INSTALLED)
uninstall:
	@tools/package/install.sh uninstall "$(DESTDIR)" $(INSTALLED)

# The interface of libriffle.so against the one recorded in tools/package/abi.
abi-check: $(BUILD)/libriffle.so
	@tools/package/abi.sh check $<
abi-baseline: $(BUILD)/libriffle.so
	@tools/package/abi.sh record $<

# Folder in which make deb and make wheel put packages.
PACKAGES    ?= dist
# The .deb files of this build, for the architecture that it is built for. DEB_LIBDIR is where Debian
# puts libraries of that architecture.
DEB_STAGE  := $(BUILD)/deb/stage
DEB_LIBDIR  = /usr/lib/$(or $(CROSS),$(shell dpkg-architecture -qDEB_HOST_MULTIARCH))
deb: all
	rm -rf $(DEB_STAGE)
	@$(MAKE) --no-print-directory install DESTDIR=$(DEB_STAGE) PREFIX=/usr LIBDIR=$(DEB_LIBDIR) \
	  ZSHDIR=/usr/share/zsh/vendor-completions
	tools/package/deb/make_deb.sh $(DEB_STAGE) $(VERSION) $(SONAME) $(PACKAGES)

# The .whl file: the module riffle and the libriffle.so of make dist, whose say_package is in
# ../dist.mk.
wheel:
	$(say_package)
	@third_party/setup.sh check && third_party/static.sh
	$(MAKE) STATIC=1 BUILD=$(DIST_BUILD) CUARCH="$(PACKAGE_CUARCH)" $(DIST_BUILD)/libriffle.so
	python3 -B tools/package/make_wheel.py $(DIST_BUILD)/libriffle.so $(PACKAGES) \
	  $(STATIC_DIR)/src/sentencepiece-*/debian/copyright \
	  $(wildcard $(foreach p,$(LIBRARY_LICENSED),$(DOC)/$(p)/copyright))
.PHONY: completion install uninstall abi-check abi-baseline deb wheel
