// Compiles the grammars of requests beside the rank loop, so that a large schema holds up nobody's next token. Lives at rank 0.
// start() and take() belong to the rank loop's thread; the work is done in one thread of its own, which the first grammar starts.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "base/error.h"
#include "engine/request.h"
#include "text/grammar.h"

namespace verbund::engine {

class GrammarCompiler {
 public:
  // wake: called from the worker when something is ready.
  GrammarCompiler(std::shared_ptr<const text::Tokenizer> tokenizer, size_t vocabulary, std::vector<int32_t> eos,
                  std::function<void()> wake);
  ~GrammarCompiler();

  struct Compiled {
    uint64_t request;
    std::unique_ptr<text::Matcher> matcher;  // null: see error
    std::optional<Error> error;
  };
  void start(uint64_t request, Grammar grammar);
  std::vector<Compiled> take();

 private:
  void work();
  Compiled compile(uint64_t request, const Grammar& grammar);

  std::shared_ptr<const text::Tokenizer> tokenizer_;
  size_t vocabulary_;
  std::vector<int32_t> eos_;
  std::function<void()> wake_;
  std::unique_ptr<text::GrammarEnvironment> environment_;  // the worker's; a trie of all tokens, made for the first grammar

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::pair<uint64_t, Grammar>> waiting_;
  std::vector<Compiled> ready_;
  bool stop_ = false;
  std::thread worker_;
};

}  // namespace verbund::engine
