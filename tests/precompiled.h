// Headers that most tests include and that take seconds to read. The Makefile compiles them once.
// Files still include what they use.
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <functional>
#include <random>
