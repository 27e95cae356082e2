// The processor floor. The program calls this first, before any code that may need more than the platform's base.
#pragma once

namespace verbund::compute {

// x86-64: x86-64-v3 (AVX2, FMA, BMI, F16C). Throws unimplemented with a sentence that names what is missing.
void require_cpu();

}  // namespace verbund::compute
