#include "cli/link_plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>

#include "base/bytes.h"
#include "base/error.h"

namespace verbund::cli {
namespace {

constexpr double kWidth = 380, kHeight = 300, kLeft = 62, kTop = 46, kGap = 40, kBottom = 96;

struct Point {
  double x, y;
};
struct Curve {
  std::string name;
  std::vector<Point> points;
};
struct PanelText {
  const char *title, *unit;
};

// Told apart in colour blindness and in grey.
const char* colour(size_t i) {
  constexpr const char* kColours[] = {"#0b62a4", "#d1570a", "#2a7f3f", "#8e3a8c", "#5b5b5b", "#a88400"};
  return kColours[i % std::size(kColours)];
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<long>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

template <class Value>
Curve pair_curve(const MeshFigures& figures, Value&& value) {
  Curve curve{fmt::format("{}, {} ranks", figures.transport, figures.ranks), {}};
  for (size_t i = 0; i < figures.pairs.front().rows.size(); ++i) {
    std::vector<double> values;
    for (const PairFigures& pair : figures.pairs) values.push_back(value(pair.rows[i]));
    curve.points.push_back({static_cast<double>(figures.pairs.front().rows[i].bytes), median(values)});
  }
  return curve;
}

// 0.5, 2, 20 and not 0.500000
std::string label(double value) { return value >= 1 || value == 0 ? fmt::format("{:g}", value) : fmt::format("{:.2g}", value); }

// "4.5 KiB" as "4.5K", to stand side by side
std::string size_label(double bytes) {
  std::string text = format_bytes(static_cast<uint64_t>(bytes));
  if (text.ends_with("iB")) text.resize(text.size() - 2);
  if (const size_t zero = text.find(".0"); zero != std::string::npos) text.erase(zero, 2);
  std::erase(text, ' ');
  return text;
}

// A scale from value to place, logarithmic, over whole powers of `base`.
struct Scale {
  double first, last, from, to;
  Scale(double least, double most, double base, double from_at, double to_at) : from(from_at), to(to_at) {
    first = std::pow(base, std::floor(std::log(least) / std::log(base) + 1e-9));
    last = std::pow(base, std::ceil(std::log(most) / std::log(base) - 1e-9));
    if (last <= first) last = first * base;
  }
  double at(double value) const { return from + (to - from) * std::log(value / first) / std::log(last / first); }
};

std::string panel(const PanelText& text, const std::vector<Curve>& curves, double left) {
  std::vector<double> xs, ys;
  for (const Curve& curve : curves)
    for (const Point& p : curve.points) {
      xs.push_back(p.x);
      ys.push_back(std::max(p.y, 1e-6));
    }
  std::string out = fmt::format(R"(<text x="{:.0f}" y="{:.0f}" class="title">{}</text>)", left, kTop - 20, text.title);
  out += fmt::format(R"(<text x="{:.0f}" y="{:.0f}" class="unit">{}</text>)", left, kTop - 6, text.unit);
  if (xs.empty()) return out;
  const Scale x(std::ranges::min(xs), std::ranges::max(xs), 4, left, left + kWidth);
  const Scale y(std::ranges::min(ys), std::ranges::max(ys), 10, kTop + kHeight, kTop);
  for (double v = y.first; v <= y.last * 1.001; v *= 10) {
    out += fmt::format(R"(<line x1="{:.0f}" x2="{:.0f}" y1="{:.1f}" y2="{:.1f}" class="grid"/>)", left, left + kWidth, y.at(v), y.at(v));
    out += fmt::format(R"(<text x="{:.0f}" y="{:.1f}" class="tick end">{}</text>)", left - 8, y.at(v) + 4, label(v));
  }
  for (double v = x.first; v <= x.last * 1.001; v *= 4)
    out += fmt::format(R"(<text x="{:.1f}" y="{:.0f}" class="tick middle">{}</text>)", x.at(v), kTop + kHeight + 18, size_label(v));
  for (size_t i = 0; i < curves.size(); ++i) {
    std::string path;
    for (const Point& p : curves[i].points)
      path += fmt::format("{}{:.1f},{:.1f} ", path.empty() ? "M" : "L", x.at(p.x), y.at(std::max(p.y, 1e-6)));
    out += fmt::format(R"(<path d="{}" fill="none" stroke="{}" stroke-width="2"/>)", path, colour(i));
    for (const Point& p : curves[i].points)
      out += fmt::format(R"(<circle cx="{:.1f}" cy="{:.1f}" r="3" fill="{}"><title>{}, {}: {:.3g} {}</title></circle>)", x.at(p.x),
                         y.at(std::max(p.y, 1e-6)), colour(i), curves[i].name, size_label(p.x), p.y, text.unit);
  }
  return out;
}

}  // namespace

std::string plot_links(const std::vector<MeshFigures>& all) {
  std::vector<Curve> latency, bandwidth, all_reduce;
  for (const MeshFigures& figures : all) {
    if (!figures.pairs.empty()) {
      latency.push_back(pair_curve(figures, [](const LinkRow& row) { return row.p50_us; }));
      bandwidth.push_back(pair_curve(figures, [](const LinkRow& row) { return row.gb_per_s; }));
    }
    Curve curve{fmt::format("{}, {} ranks", figures.transport, figures.ranks), {}};
    for (const LinkRow& row : figures.all_reduce) curve.points.push_back({static_cast<double>(row.bytes), row.p50_us});
    all_reduce.push_back(std::move(curve));
  }
  const double step = kLeft + kWidth + kGap, width = 3 * step, height = kTop + kHeight + kBottom;
  std::string out = fmt::format(
      R"(<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {:.0f} {:.0f}" font-family="system-ui, sans-serif" font-size="12">
<style>text{{fill:#222}} .title{{font-size:15px;font-weight:600}} .unit,.tick{{fill:#666}} .end{{text-anchor:end}} .middle{{text-anchor:middle}} .grid{{stroke:#ddd}}</style>
<rect width="100%" height="100%" fill="#fff"/>
)",
      width, height);
  out += panel({"Half a round trip", "us, p50"}, latency, kLeft) + "\n";
  out += panel({"One way, streamed", "GB/s"}, bandwidth, kLeft + step) + "\n";
  out += panel({"All-reduce", "us, p50"}, all_reduce, kLeft + 2 * step) + "\n";
  double at = kLeft;
  for (size_t i = 0; i < all_reduce.size(); ++i) {
    const double y = kTop + kHeight + 56;
    out += fmt::format(R"(<rect x="{:.0f}" y="{:.0f}" width="18" height="4" fill="{}"/><text x="{:.0f}" y="{:.0f}">{}</text>)", at, y - 6,
                       colour(i), at + 24, y, all_reduce[i].name);
    at += 60 + 7.0 * static_cast<double>(all_reduce[i].name.size());
  }
  return out + "\n</svg>\n";
}

void write_plot(const std::string& path, const std::vector<MeshFigures>& all) {
  std::ofstream file(path, std::ios::trunc);
  file << plot_links(all);
  if (!file.flush())
    throw Error(Code::unavailable, "the picture cannot be written", path, "choose a folder that exists and may be written to");
}

}  // namespace verbund::cli
