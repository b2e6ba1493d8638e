// The executable's memory comes from mimalloc. Linking its shared object replaces malloc; operator
// new is replaced here, since the one in the shared object aborts when memory runs out, whereas
// riffle reports an error. The library does none of this: an application keeps its own allocator.
#include <mimalloc.h>

#include <cstddef>
#include <new>

static void* allocate(std::size_t bytes) {
  void* p = mi_malloc(bytes);
  if (!p) throw std::bad_alloc();
  return p;
}

static void* allocate(std::size_t bytes, std::align_val_t alignment) {
  void* p = mi_malloc_aligned(bytes, static_cast<std::size_t>(alignment));
  if (!p) throw std::bad_alloc();
  return p;
}

void* operator new(std::size_t n) { return allocate(n); }
void* operator new[](std::size_t n) { return allocate(n); }
void* operator new(std::size_t n, std::align_val_t a) { return allocate(n, a); }
void* operator new[](std::size_t n, std::align_val_t a) { return allocate(n, a); }
void* operator new(std::size_t n, const std::nothrow_t&) noexcept { return mi_malloc(n); }
void* operator new[](std::size_t n, const std::nothrow_t&) noexcept { return mi_malloc(n); }
void operator delete(void* p) noexcept { mi_free(p); }
void operator delete[](void* p) noexcept { mi_free(p); }
void operator delete(void* p, std::size_t) noexcept { mi_free(p); }
void operator delete[](void* p, std::size_t) noexcept { mi_free(p); }
void operator delete(void* p, std::align_val_t) noexcept { mi_free(p); }
void operator delete[](void* p, std::align_val_t) noexcept { mi_free(p); }
void operator delete(void* p, std::size_t, std::align_val_t) noexcept { mi_free(p); }
void operator delete[](void* p, std::size_t, std::align_val_t) noexcept { mi_free(p); }
void operator delete(void* p, const std::nothrow_t&) noexcept { mi_free(p); }
void operator delete[](void* p, const std::nothrow_t&) noexcept { mi_free(p); }
