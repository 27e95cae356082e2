// How rank 0 tells the others what the next step is: one broadcast of a fixed frame, a second one only for long plans.
// While there is nothing to do rank 0 says so regularly, so that the wait of the others has a deadline too.
// Belongs to the rank loop's thread.
#pragma once

#include <chrono>
#include <optional>

#include "engine/step_plan.h"
#include "mesh/mesh.h"

namespace verbund::engine {

enum class Turn : uint32_t { idle = 0, step = 1, stop = 2 };

class PlanChannel {
 public:
  PlanChannel(mesh::Mesh& world, std::chrono::nanoseconds wait, const PlanLimits& limits) : world_(world), wait_(wait), limits_(limits) {}

  void announce(Turn turn);             // idle or stop; rank 0
  void announce(const StepPlan& plan);  // rank 0
  struct Message {
    Turn turn;
    StepPlan plan;
  };
  Message receive();  // other ranks. Throws data_loss if the plan is damaged or out of order

 private:
  void send(Turn turn, std::span<const std::byte> body);

  mesh::Mesh& world_;
  std::chrono::nanoseconds wait_;
  PlanLimits limits_;
  uint64_t last_sequence_ = 0;
};

}  // namespace verbund::engine
