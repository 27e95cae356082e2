#include "base/trace.h"

#include <gtest/gtest.h>

#include <string>

namespace verbund {
namespace {

TEST(Trace, SpansSayWhereAndWhen) {
  Trace trace;
  const int64_t before = Trace::now_ns();
  trace.set_step(7, 3, 2);
  { TraceSpan span(&trace, "reduce", 4, 96); }
  { TraceSpan span(&trace, "sample"); }
  ASSERT_EQ(trace.events().size(), 2u);
  const Trace::Event& reduce = trace.events()[0];
  EXPECT_EQ(std::string(reduce.name), "reduce");
  EXPECT_EQ(reduce.layer, 4);
  EXPECT_EQ(reduce.step, 7u);
  EXPECT_EQ(reduce.rows, 3u);
  EXPECT_EQ(reduce.sequences, 2u);
  EXPECT_EQ(reduce.bytes, 96);
  EXPECT_GE(reduce.begin_ns, before);
  EXPECT_GE(reduce.duration_ns, 0);
  EXPECT_EQ(trace.events()[1].layer, -1);
  EXPECT_EQ(trace.events()[1].bytes, -1);
  EXPECT_GE(trace.events()[1].begin_ns, reduce.begin_ns + reduce.duration_ns);
}

TEST(Trace, NoTraceNoSpan) { TraceSpan span(nullptr, "nothing"); }

TEST(Trace, SaysWhenItIsFull) {
  Trace trace;
  for (size_t i = 0; i < Trace::kEventsMax + 10; ++i) trace.add("step", -1, -1, 0, 1);
  EXPECT_EQ(trace.events().size(), Trace::kEventsMax);
  EXPECT_EQ(std::string(trace.events().front().name), "step");
  EXPECT_NE(std::string(trace.events().back().name).find("full"), std::string::npos);
}

}  // namespace
}  // namespace verbund
