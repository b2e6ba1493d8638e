# How each dependency is found (README.md beside this file argues for each).
DEPS_CFLAGS :=
DEPS_LIBS   := -lsentencepiece -lmimalloc -ldl
CLI_CFLAGS  :=
CLI_LIBS    := -ledit
