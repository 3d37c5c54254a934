// per_thread.h — one T a thread, made when the thread first asks and freed when it ends.
//
// What `thread_local T` does, but for want of memory: the C library ends the process when it cannot note down that a thread_local
// has a destructor. per_thread() throws std::bad_alloc instead, and the next call tries again. The main thread's is freed with the
// process.
// One T for every type: whoever wants two of a type gives each a struct of its own.
#pragma once

namespace tierkv {

namespace per_thread_detail {

struct Node {
  Node* next = nullptr;
  void (*destroy)(Node*) = nullptr;
};

// destroy(node) will be called when this thread ends. Throws std::bad_alloc; node is still the caller's then.
void keep_until_thread_ends(Node* node);

template <class T>
struct Holder : Node {
  T value;
  static inline thread_local Holder* mine = nullptr;
};

}  // namespace per_thread_detail

template <class T>
T& per_thread() {
  using Holder = per_thread_detail::Holder<T>;
  if (Holder::mine) return Holder::mine->value;
  auto* made = new Holder;
  made->destroy = [](per_thread_detail::Node* node) {
    Holder::mine = nullptr;  // a destructor that runs later may ask again
    delete static_cast<Holder*>(node);
  };
  try {
    per_thread_detail::keep_until_thread_ends(made);
  } catch (...) {
    delete made;
    throw;
  }
  Holder::mine = made;
  return made->value;
}

}  // namespace tierkv
