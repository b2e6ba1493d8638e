# Finds each dependency (README.md in this folder gives the reasons for each).
# CROSS=TRIPLET: the libraries of the other architecture are in a folder that cross.sh fills.
CROSS_ROOT  := $(if $(CROSS),third_party/$(CROSS))
DEPS_CFLAGS := $(if $(CROSS),-isystem $(CROSS_ROOT)/usr/include)
DEPS_LIBS   := -lsentencepiece -lpcre2-8 -lutf8proc
# Only tests call sentencepiece. The owner counts it among the program's packages, so the program
# links it too; without this, a linker may drop a library that nothing calls.
DEPS_KEPT   := -Wl,--push-state,--no-as-needed -lsentencepiece -Wl,--pop-state
CLI_CFLAGS  :=
# mimalloc serves the executable only: its shared object replaces malloc for the whole process.
CLI_LIBS    := -ledit -lmimalloc
ifneq ($(CROSS),)
LDFLAGS     += -L$(CROSS_ROOT)/usr/lib/$(CROSS) -Wl,-rpath-link,$(CROSS_ROOT)/usr/lib/$(CROSS)
endif

STATIC_DIR  := third_party/static$(CROSS:%=-%)

# STATIC=1 (make dist): everything except glibc is linked in. static.sh builds the archives that
# Debian lacks.
ifdef STATIC
LDFLAGS    += -static-libstdc++ -static-libgcc -Wl,--exclude-libs,ALL
DEPS_KEPT  :=
DEPS_LIBS  := -L$(STATIC_DIR) -Wl,-Bstatic -lsentencepiece -lpcre2-8 -lutf8proc -Wl,-Bdynamic
CLI_LIBS   := $(STATIC_DIR)/mimalloc.o -Wl,-Bstatic -ledit -ltinfo -lbsd -lmd -Wl,-Bdynamic
endif
