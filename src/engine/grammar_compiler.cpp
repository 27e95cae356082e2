#include "engine/grammar_compiler.h"

#include <utility>

namespace verbund::engine {

GrammarCompiler::GrammarCompiler(std::shared_ptr<const text::Tokenizer> tokenizer, size_t vocabulary, std::vector<int32_t> eos,
                                 std::function<void()> wake)
    : tokenizer_(std::move(tokenizer)), vocabulary_(vocabulary), eos_(std::move(eos)), wake_(std::move(wake)) {}

GrammarCompiler::~GrammarCompiler() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_one();
  if (worker_.joinable()) worker_.join();
}

void GrammarCompiler::start(uint64_t request, Grammar grammar) {
  {
    const std::lock_guard lock(mutex_);
    waiting_.emplace_back(request, std::move(grammar));
  }
  if (!worker_.joinable()) worker_ = std::thread([this] { work(); });
  changed_.notify_one();
}

std::vector<GrammarCompiler::Compiled> GrammarCompiler::take() {
  const std::lock_guard lock(mutex_);
  return std::exchange(ready_, {});
}

void GrammarCompiler::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return stop_ || !waiting_.empty(); });
    if (stop_) return;
    const auto [request, grammar] = std::move(waiting_.front());
    waiting_.pop_front();
    lock.unlock();
    Compiled compiled = compile(request, grammar);
    lock.lock();
    ready_.push_back(std::move(compiled));
    wake_();
  }
}

GrammarCompiler::Compiled GrammarCompiler::compile(uint64_t request, const Grammar& grammar) {
  try {
    if (!environment_) environment_ = std::make_unique<text::GrammarEnvironment>(tokenizer_, vocabulary_, eos_);
    return {request, std::make_unique<text::Matcher>(*environment_, grammar.kind, grammar.source), {}};
  } catch (...) { return {request, nullptr, current_error()}; }
}

}  // namespace verbund::engine
