// The answer format of gpt-oss: messages with a channel and perhaps a recipient (docs: reference api.md section 10.4).
#pragma once

#include "text/output_parser.h"

namespace verbund::text {

// final and commentary are content, analysis is reasoning, a message to functions.N is a call of N.
std::unique_ptr<OutputParser> make_harmony_parser(const OutputFormat& format, Tools tools);

}  // namespace verbund::text
