#include "simulation/routes.h"

#include <algorithm>
#include <cmath>
#include <queue>
#include <tuple>

namespace fastreduce::simulation {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();
constexpr int kNoLink = -1;

// Dijkstra's search. `extend` gives the cost after one more link, or nothing if the link may not be used; `settle` is
// called once for each node that is reached, with its least cost and the link that leads to it.
template <class Cost, class Extend, class Settle>
void search(const Machine& machine, const std::vector<std::vector<int>>& leaving, int src, Cost start,
            const Extend& extend, const Settle& settle) {
  using Entry = std::tuple<Cost, int64_t, int, int>;  // cost, count, node, link
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> open;
  std::vector<bool> done(machine.nodes.size());
  int64_t count = 0;
  open.emplace(start, count, src, kNoLink);
  while (!open.empty()) {
    const auto [cost, _, node, link] = open.top();
    open.pop();
    if (done[node]) continue;
    done[node] = true;
    settle(node, cost, link);
    if (node != src && machine.nodes[node].ends_routes) continue;
    for (int next : leaving[node]) {
      if (done[machine.links[next].dst]) continue;
      if (const std::optional<Cost> further = extend(cost, next))
        open.emplace(*further, ++count, machine.links[next].dst, next);
    }
  }
}

}  // namespace

Machine::Machine(std::vector<Node> nodes, std::vector<Link> links)
    : nodes(std::move(nodes)), links(std::move(links)), leaving_(this->nodes.size()) {
  for (size_t link = 0; link < this->links.size(); ++link)
    leaving_[this->links[link].src].push_back(static_cast<int>(link));
}

std::optional<std::vector<int>> Machine::route(int src, int dst) {
  const std::lock_guard lock(mutex_);
  const auto known = routes_.find({src, dst});
  return known != routes_.end() ? known->second : routes_[{src, dst}] = find(src, dst);
}

std::optional<std::vector<int>> Machine::find(int src, int dst) {
  if (src == dst) return std::vector<int>();
  for (int link : leaving_[src])
    if (links[link].dst == dst) return std::vector<int>{link};
  look_from(src);
  if (std::isnan(widest_[dst])) return std::nullopt;
  const Tree& tree = tree_of(widest_[dst]);
  std::vector<int> route;
  for (int node = dst; node != src; node = links[route.back()].src) route.push_back(tree.parent[node]);
  std::reverse(route.begin(), route.end());
  return route;
}

void Machine::look_from(int src) {
  if (src == src_) return;
  src_ = src;
  trees_.clear();
  widest_.assign(nodes.size(), std::nan(""));
  const auto narrower = [this](double narrowness, int link) -> std::optional<double> {
    return std::max(narrowness, -width(link));
  };
  const auto settle = [this](int node, double narrowness, int) { widest_[node] = -narrowness; };
  search<double>(*this, leaving_, src, -kInfinite, narrower, settle);
}

const Machine::Tree& Machine::tree_of(double width) {
  for (const Tree& tree : trees_)
    if (tree.width == width) return tree;
  using Length = std::pair<int, double>;  // links, seconds
  Tree& tree = trees_.emplace_back(Tree{width, std::vector<int>(nodes.size(), kNoLink)});
  const auto longer = [&](Length length, int link) -> std::optional<Length> {
    if (this->width(link) < width) return std::nullopt;
    return Length{length.first + 1, length.second + links[link].latency_s};
  };
  const auto settle = [&](int node, Length, int link) { tree.parent[node] = link; };
  search<Length>(*this, leaving_, src_, {0, 0.0}, longer, settle);
  return tree;
}

double Machine::width(int link) const { return std::isnan(links[link].bytes_per_s) ? 0 : links[link].bytes_per_s; }

}  // namespace fastreduce::simulation
