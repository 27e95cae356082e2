// Rank 0's loop with the real decoder of a tiny model in this process: what goes wrong with one request ends that one only.
#include "engine/leader.h"

#include <unistd.h>

#include <condition_variable>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/unix.h"
#include "engine/frames.h"
#include "engine/request_json.h"
#include "model/family.h"
#include "model/model_text.h"
#include "model/shard_weights.h"

namespace verbund::engine {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;
using testing::StartsWith;

constexpr uint32_t kContext = 64, kBlocks = 64, kRows = 128;
constexpr int32_t kBadRow = 7;

// A copy of the tiny Mistral, whose head is its embedding, with one row of it changed: its logit is 3e38 times the first
// value of the last norm, so that it is +infinity for some prompts and finite or -infinity for the others.
std::string copy_with_a_bad_row() {
  const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) / ("leader_test." + std::to_string(::getpid()));
  std::filesystem::remove_all(folder);
  std::filesystem::copy(std::filesystem::path(VERBUND_TEST_DATA) / "models" / "mistral", folder);
  const std::string file = (folder / "model.safetensors").string();
  std::string bytes = read_text_file(file, 16u << 20);
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), 8);
  const auto tensor = nlohmann::json::parse(bytes.substr(8, length)).at("model.embed_tokens.weight");
  if (tensor.at("dtype") != "F32") throw Error(Code::internal, "the tiny model has changed");
  std::vector<float> row(tensor.at("shape").at(1).get<size_t>());
  row[0] = 3e38f;
  const size_t at = 8 + length + tensor.at("data_offsets").at(0).get<size_t>() + kBadRow * row.size() * sizeof(float);
  std::memcpy(bytes.data() + at, row.data(), row.size() * sizeof(float));
  std::ofstream(file, std::ios::binary) << bytes;
  return folder.string();
}

// One rank on this thread's memory, its loop on a thread of its own.
class Running {
 public:
  explicit Running(const std::string& path)
      : files_(formats::open_model(path)), spec_(model::read_spec(files_)), backend_(compute::make_native_backend("auto", 1)) {
    shards_ = model::make_shard_plan(spec_, model::units_of(files_, spec_), {});
    decoder_ = std::make_unique<model::Decoder>(files_, spec_, shards_.units, shards_.ranks[0], *backend_,
                                                model::DecoderOptions{kContext, kBlocks, compute::KvType::f16, kRows}, nullptr);
    text_ = model::load_text(files_, spec_);
    thread_ = std::thread([this] { run(); });
  }
  ~Running() { stop(); }
  void stop() {
    if (!thread_.joinable()) return;
    mailbox_.push({{"op", "stop"}});
    thread_.join();
  }
  // Bytes of the executor's buffers after stop(), and what was counted for them.
  uint64_t held() const { return held_; }
  uint64_t planned() const { return planned_; }

  void submit(const Request& request) { mailbox_.push({{"op", "submit"}, {"request", to_json(request)}}); }

  // The last event of each of `count` requests, by id.
  std::map<uint64_t, nlohmann::json> ends(size_t count) {
    std::unique_lock lock(mutex_);
    if (!told_.wait_for(lock, 60s, [&] { return ends_.size() == count || failed_; })) throw Error(Code::deadline_exceeded, "no end");
    if (failed_) throw *failed_;
    return std::exchange(ends_, {});
  }

 private:
  void run() {
    try {
      const auto world = mesh::make_solo_mesh(), tp = mesh::make_solo_mesh();
      PlanChannel channel(*world, 10s, {});
      StepExecutor executor({*decoder_, *world, *tp, shards_, spec_, 10s, kRows, kRows, 0, {}, nullptr});
      planned_ = StepExecutor::bytes_max(shards_, 0, spec_.hidden, kRows, kRows);
      SchedulerConfig c;
      c.token_budget = kRows, c.context_max = kContext, c.blocks = kBlocks;
      c.vocabulary = static_cast<uint32_t>(std::min(text_.tokenizer->size(), spec_.vocabulary));
      Leader(c, spec_.vocabulary, text_.tokenizer, text_.eos, channel, executor, mailbox_, [this](const nlohmann::json& m) {
        take(m);
      }).run();
      held_ = executor.bytes();
    } catch (...) {
      const std::lock_guard lock(mutex_);
      failed_ = current_error();
      told_.notify_one();
    }
  }
  void take(const nlohmann::json& message) {
    const std::lock_guard lock(mutex_);
    for (const auto& e : message.value("events", nlohmann::json::array()))
      if (e.contains("error") || e.contains("finish")) ends_[e.at("id")] = e;
    told_.notify_one();
  }

  formats::ModelFiles files_;
  model::DecoderSpec spec_;
  std::unique_ptr<compute::Backend> backend_;
  model::ShardPlan shards_;
  std::unique_ptr<model::Decoder> decoder_;
  model::ModelText text_;
  Mailbox mailbox_;
  std::mutex mutex_;
  std::condition_variable told_;
  std::map<uint64_t, nlohmann::json> ends_;
  std::optional<Error> failed_;
  uint64_t held_ = 0, planned_ = 0;
  std::thread thread_;
};

// The request's id is its only token of prompt.
Request of_one_token(int32_t token) {
  Request r;
  r.id = static_cast<uint64_t>(token);
  r.prompt = {token};
  r.params.temperature = 0;
  r.max_tokens = 1;
  return r;
}

constexpr int32_t kFirst = 8, kEnd = 56;

// Which of many requests of the same step the model gave no usable logits. The others must have ended well.
std::set<uint64_t> failed_of(const std::map<uint64_t, nlohmann::json>& ends) {
  std::set<uint64_t> failed;
  for (const auto& [id, end] : ends) {
    if (!end.contains("error")) continue;
    const Error error = error_from_json(end.at("error"));
    EXPECT_EQ(error.lost(), Lost::request);
    EXPECT_THAT(error.what(), StartsWith("the model gave a logit of inf for token id 7"));
    failed.insert(id);
  }
  return failed;
}

TEST(Leader, LogitsThatAreNotFiniteEndTheirRequestOnly) {
  const std::string model = copy_with_a_bad_row();
  Running running(model);
  std::set<uint64_t> failed;
  for (int round = 0; round < 2; ++round) {  // the second time after the errors of the first
    for (int32_t t = kFirst; t < kEnd; ++t) running.submit(of_one_token(t));
    failed = failed_of(running.ends(kEnd - kFirst));
    EXPECT_GT(failed.size(), 0u);
    EXPECT_LT(failed.size(), size_t{kEnd - kFirst});
  }
  // A prompt that is scored: the row of its first token, which speaks of the second, is the same row of logits.
  for (int32_t t = kFirst; t < kEnd; ++t) {
    Request r = of_one_token(t);
    r.prompt.push_back(8);
    r.score_from = 1;
    running.submit(r);
  }
  const auto scored = failed_of(running.ends(kEnd - kFirst));
  for (const uint64_t id : failed) EXPECT_TRUE(scored.contains(id)) << id;
  EXPECT_LT(scored.size(), size_t{kEnd - kFirst});
  running.stop();
  EXPECT_EQ(running.held(), running.planned());  // after steps of all kinds of rows
  EXPECT_GT(running.held(), 0u);
  std::filesystem::remove_all(model);
}

}  // namespace
}  // namespace verbund::engine
