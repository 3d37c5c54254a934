#include "base/per_thread.h"

#include <pthread.h>

#include <new>

namespace tierkv::per_thread_detail {
namespace {

void destroy_all(void* list) {
  for (Node* node = static_cast<Node*>(list); node;) {
    Node* next = node->next;
    node->destroy(node);
    node = next;
  }
}

// One key for all: the first few of a process need no memory to be set, and there are not many.
struct Key {
  pthread_key_t key{};
  bool made;
  Key() : made(pthread_key_create(&key, destroy_all) == 0) {}
};

}  // namespace

void keep_until_thread_ends(Node* node) {
  static const Key key;
  if (!key.made) throw std::bad_alloc();
  node->next = static_cast<Node*>(pthread_getspecific(key.key));
  if (pthread_setspecific(key.key, node) != 0) throw std::bad_alloc();
}

}  // namespace tierkv::per_thread_detail
