// The figures of `verbund bench link` as a picture.
#pragma once

#include <string>
#include <vector>

#include "cli/link_measure.h"

namespace verbund::cli {

// An SVG document of three panels: half a round trip, bandwidth of a stream, all-reduce; over the size, both axes logarithmic.
// Of the pairs of a mesh the median of each size.
std::string plot_links(const std::vector<MeshFigures>& all);
// Throws unavailable if the file cannot be written.
void write_plot(const std::string& path, const std::vector<MeshFigures>& all);

}  // namespace verbund::cli
