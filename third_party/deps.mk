# How each dependency is found (README.md beside this file argues for each).
DEPS_CFLAGS :=
DEPS_LIBS   := -lsentencepiece -lpcre2-8 -lutf8proc
CLI_CFLAGS  :=
# mimalloc serves the executable only: its shared object replaces malloc for the whole process.
CLI_LIBS    := -ledit -lmimalloc
