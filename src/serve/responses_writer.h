// The response object and its events. One per request; I/O thread.
#pragma once

#include <functional>

#include "serve/responses_input.h"

namespace verbund::serve {

class ResponsesWriter : public ReplyWriter {
 public:
  // done: called with the id and the final object of a response that succeeded.
  using Done = std::function<void(const std::string& id, const Json& response)>;
  ResponsesWriter(const ServedModel& model, const ResponsesRequest& request, Done done);

  std::string begin(const ReplyStart& start) override;
  std::string delta(const Delta& delta) override;
  std::string finish(const ChoiceResult& result) override;
  std::string end(const ReplyUsage& usage) override;
  std::string failure(const ApiError& error) override;
  std::string keep_alive() override;
  Json whole(const ReplyStart& start, const std::vector<ChoiceResult>& results, const ReplyUsage& usage) override;

 private:
  enum class Item { none, message, reasoning, call };
  std::string event(std::string_view type, Json fields);
  std::string open(Item item);
  std::string close(std::string_view status = "completed");
  std::string open_call(const Delta& delta);
  std::string close_message(std::string_view status), close_reasoning(), close_call();
  Json response(std::string_view status) const;
  Json settled(const ReplyUsage& usage);
  Json message_item(const std::string& text, std::string_view status, Json logprobs) const;
  Json reasoning_item(const std::string& text) const;
  Json call_item(std::string_view status) const;
  Json place() const;  // item_id, output_index

  std::string id_, model_;
  int64_t created_;
  Json echo_;
  bool summary_, logprobs_;
  std::map<std::string, ResponseTool> tools_;
  Done done_;
  uint64_t sequence_ = 0;
  Json output_ = Json::array();
  Item item_ = Item::none;
  std::string item_id_, text_, call_id_;
  Json text_logprobs_ = Json::array();
  ResponseTool tool_;
  Finish finish_ = Finish::stop;
};

}  // namespace verbund::serve
