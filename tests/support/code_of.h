// Which error a call ends with; fails the test if it does not throw.
#pragma once

#include <gtest/gtest.h>

#include "base/error.h"

namespace verbund::test {

inline Code code_of(const auto& call) {
  try {
    call();
  } catch (const Error& e) { return e.code(); }
  ADD_FAILURE() << "nothing was thrown";
  return Code::internal;
}

}  // namespace verbund::test
