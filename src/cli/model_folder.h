// Where models live on this machine and what a MODEL argument means: a path, or the name of a model in the model folder.
#pragma once

#include <string>

namespace verbund::cli {

// $VERBUND_MODELS, else $XDG_DATA_HOME/verbund/models, else ~/.local/share/verbund/models
std::string model_folder();
// An existing path as it is; else <model folder>/NAME.gguf or <model folder>/NAME/. Throws not_found saying where it looked.
std::string resolve_model(const std::string& text);

}  // namespace verbund::cli
