#include "compute/native/isa.h"

#include <hwy/targets.h>

#include <algorithm>

#include "base/error.h"
#include "compute/backend.h"
#include "compute/cpu.h"
#include "compute/native/reference.h"

namespace verbund::compute {
namespace native {
namespace {

Kernels fill(Isa isa) {
  Kernels kernels = reference_kernels();
  fill_products_quantised(kernels, isa);
  fill_products_dense(kernels, isa);
  fill_elementwise(kernels, isa);
  fill_attention(kernels, isa);
  return kernels;
}

std::string list(const std::vector<IsaChoice>& choices) {
  std::string text = "auto";
  for (const IsaChoice& choice : choices) text += ", " + choice.name;
  return text;
}

}  // namespace

std::vector<IsaChoice> runnable_isas() {
  std::vector<IsaChoice> choices;
  const auto supported = hwy::SupportedTargets();
#if HWY_ARCH_X86
  const bool vnni = (supported & HWY_AVX3_DL) != 0 && __builtin_cpu_supports("avx512vnni");
  if (vnni) choices.push_back({Isa::avx512vnni, "avx512", "avx512 (VNNI)"});
  if (supported & HWY_AVX3) {
    if (!vnni) choices.push_back({Isa::avx512bw, "avx512", "avx512 (without VNNI)"});
    choices.push_back({Isa::avx512bw, "avx512bw", "avx512 (VNNI not used)"});
  }
  if (supported & HWY_AVX2) choices.push_back({Isa::avx2, "avx2", "avx2"});
#elif HWY_ARCH_ARM
  if (supported & HWY_NEON) choices.push_back({Isa::neon, "neon", "neon"});
#endif
  choices.push_back({Isa::scalar, "scalar", "scalar (reference)"});
  return choices;
}

IsaChoice choose_isa(const std::string& name) {
  const std::vector<IsaChoice> choices = runnable_isas();
  if (name == "auto") return choices.front();
  for (const IsaChoice& choice : choices)
    if (choice.name == name) return choice;
  const std::vector<std::string> known{"avx512", "avx512bw", "avx2", "neon", "scalar"};
  const bool exists = std::find(known.begin(), known.end(), name) != known.end();
  throw Error(exists ? Code::unimplemented : Code::invalid_argument,
              exists ? "this machine cannot run the instruction set \"" + name + "\"" : "there is no instruction set \"" + name + "\"",
              "--isa", "choose one of " + list(choices));
}

const Kernels& kernels_of(Isa isa) {
  switch (isa) {
    case Isa::scalar: return reference_kernels();
#if HWY_ARCH_X86
    case Isa::avx2: {
      static const Kernels kernels = fill(Isa::avx2);
      return kernels;
    }
    case Isa::avx512bw: {
      static const Kernels kernels = fill(Isa::avx512bw);
      return kernels;
    }
    case Isa::avx512vnni: {
      static const Kernels kernels = fill(Isa::avx512vnni);
      return kernels;
    }
#elif HWY_ARCH_ARM
    case Isa::neon: {
      static const Kernels kernels = fill(Isa::neon);
      return kernels;
    }
#endif
    default: return reference_kernels();
  }
}

}  // namespace native

void require_cpu() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  std::string missing;
  const auto need = [&missing](bool has, const char* name) {
    if (!has) missing += (missing.empty() ? "" : ", ") + std::string(name);
  };
  need(__builtin_cpu_supports("avx"), "AVX");
  need(__builtin_cpu_supports("avx2"), "AVX2");
  need(__builtin_cpu_supports("fma"), "FMA");
  need(__builtin_cpu_supports("bmi"), "BMI1");
  need(__builtin_cpu_supports("bmi2"), "BMI2");
  if (missing.empty() && (hwy::SupportedTargets() & HWY_AVX2) == 0)
    missing = "F16C, LZCNT or MOVBE, or the system's support of AVX registers";
  if (!missing.empty())
    throw Error(Code::unimplemented, "this CPU is older than x86-64-v3: it lacks " + missing, "processor",
                "use a machine from 2013 (Intel Haswell), 2017 (AMD Zen) or later");
#endif
}

std::vector<std::string> native_isas() {
  std::vector<std::string> names;
  for (const native::IsaChoice& choice : native::runnable_isas()) names.push_back(choice.name);
  return names;
}

}  // namespace verbund::compute
