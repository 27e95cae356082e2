#include "compute/native/isa.h"

#include <hwy/targets.h>

#include <algorithm>
#if defined(__x86_64__)
#include <cpuid.h>
#endif
#ifdef __linux__
#include <sys/auxv.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif
#ifdef __APPLE__
#include <sys/sysctl.h>
#endif

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
  fill_product_tiles(kernels, isa);
  fill_products_dense(kernels, isa);
  fill_products_pairs(kernels, isa);
  fill_product_pair_tiles(kernels, isa);
  fill_elementwise(kernels, isa);
  fill_attention(kernels, isa);
#if HWY_ARCH_ARM_A64
  if (isa == Isa::neon_dotprod) fill_products_dotprod(kernels);
  if (isa == Isa::neon_i8mm) fill_products_i8mm(kernels);
#endif
  return kernels;
}

template <Isa isa>
const Kernels& filled() {
  static const Kernels kernels = fill(isa);
  return kernels;
}

#if HWY_ARCH_X86
// CPU has int8 tiles, the system saves their state, and this process may use them (asked for once; threads inherit it).
bool ask_for_tiles() {
#ifdef __linux__
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
  const bool tiles = (d & 1u << 24) != 0, int8 = (d & 1u << 25) != 0;
  return tiles && int8 && syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

bool has_tiles() {
  static const bool has = ask_for_tiles();
  return has;
}
#endif

#if HWY_ARCH_ARM_A64
struct ArmFeatures {
  bool dotprod = false, i8mm = false;
};

#ifdef __APPLE__
bool has_feature(const char* name) {
  int value = 0;
  size_t size = sizeof(value);
  return sysctlbyname(name, &value, &size, nullptr, 0) == 0 && value != 0;
}
ArmFeatures arm_features() { return {has_feature("hw.optional.arm.FEAT_DotProd"), has_feature("hw.optional.arm.FEAT_I8MM")}; }
#elif defined(__linux__)
ArmFeatures arm_features() {
  constexpr unsigned long kDotProducts = 1ul << 20, kMatrixProducts = 1ul << 13;  // HWCAP_ASIMDDP, HWCAP2_I8MM
  return {(getauxval(AT_HWCAP) & kDotProducts) != 0, (getauxval(AT_HWCAP2) & kMatrixProducts) != 0};
}
#else
ArmFeatures arm_features() { return {}; }
#endif
#endif

std::string list(const std::vector<IsaChoice>& choices) {
  std::string text = "auto";
  for (const IsaChoice& choice : choices) text += ", " + choice.name;
  return text;
}

}  // namespace

bool has_bf16_tiles() {
#if HWY_ARCH_X86
  unsigned a = 0, b = 0, c = 0, d = 0;
  return has_tiles() && __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & 1u << 22) != 0;
#else
  return false;
#endif
}

std::vector<IsaChoice> runnable_isas() {
  std::vector<IsaChoice> choices;
#if HWY_ARCH_X86
  const auto supported = hwy::SupportedTargets();
  const bool vnni = (supported & HWY_AVX3_DL) != 0 && __builtin_cpu_supports("avx512vnni");
  if (vnni && has_tiles()) choices.push_back({Isa::amx, "amx", "amx (int8 tiles) and avx512 (VNNI)"});
  if (vnni) choices.push_back({Isa::avx512vnni, "avx512", "avx512 (VNNI)"});
  if (supported & HWY_AVX3) {
    if (!vnni) choices.push_back({Isa::avx512bw, "avx512", "avx512 (without VNNI)"});
    choices.push_back({Isa::avx512bw, "avx512bw", "avx512 (VNNI not used)"});
  }
  if (supported & HWY_AVX2) choices.push_back({Isa::avx2, "avx2", "avx2"});
#elif HWY_ARCH_ARM_A64
  const ArmFeatures features = arm_features();
  if (features.dotprod && features.i8mm) choices.push_back({Isa::neon_i8mm, "neon_i8mm", "neon (int8 matrix products)"});
  if (features.dotprod) choices.push_back({Isa::neon_dotprod, "neon_dotprod", "neon (dot products)"});
  choices.push_back({Isa::neon, "neon", "neon"});
#endif
  choices.push_back({Isa::scalar, "scalar", "scalar (reference)"});
  return choices;
}

IsaChoice choose_isa(const std::string& name) {
  const std::vector<IsaChoice> choices = runnable_isas();
  if (name == "auto") return choices.front();
  for (const IsaChoice& choice : choices)
    if (choice.name == name) return choice;
  const std::vector<std::string> known{"amx", "avx512", "avx512bw", "avx2", "neon_i8mm", "neon_dotprod", "neon", "scalar"};
  const bool exists = std::find(known.begin(), known.end(), name) != known.end();
  throw Error(exists ? Code::unimplemented : Code::invalid_argument,
              exists ? "this machine cannot run the instruction set \"" + name + "\"" : "there is no instruction set \"" + name + "\"",
              "--isa", "choose one of " + list(choices));
}

const Kernels& kernels_of(Isa isa) {
  switch (isa) {
    case Isa::scalar: return reference_kernels();
#if HWY_ARCH_X86
    case Isa::avx2: return filled<Isa::avx2>();
    case Isa::avx512bw: return filled<Isa::avx512bw>();
    case Isa::avx512vnni: return filled<Isa::avx512vnni>();
    case Isa::amx: return filled<Isa::amx>();
#elif HWY_ARCH_ARM_A64
    case Isa::neon_i8mm: return filled<Isa::neon_i8mm>();
    case Isa::neon_dotprod: return filled<Isa::neon_dotprod>();
    case Isa::neon: return filled<Isa::neon>();
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
