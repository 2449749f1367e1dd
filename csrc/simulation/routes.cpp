#include "simulation/routes.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace fastreduce::simulation {
namespace {

constexpr int kNowhere = std::numeric_limits<int>::max();
constexpr int kNoLink = -1;

}  // namespace

Machine::Machine(std::vector<Node> nodes, std::vector<Link> links)
    : nodes(std::move(nodes)), links(std::move(links)), leaving_(this->nodes.size()) {
  std::vector<double> widths;
  for (size_t link = 0; link < this->links.size(); ++link) {
    leaving_[this->links[link].src].push_back(static_cast<int>(link));
    widths.push_back(std::isnan(this->links[link].bytes_per_s) ? 0 : this->links[link].bytes_per_s);
  }
  std::vector<double> distinct = widths;
  std::sort(distinct.begin(), distinct.end(), std::greater<>());
  distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());
  grades_ = static_cast<int>(distinct.size());
  for (double width : widths)
    grade_.push_back(static_cast<int>(std::ranges::lower_bound(distinct, width, std::greater<>()) - distinct.begin()));
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
  if (widest_[dst] == kNowhere) return std::nullopt;
  const Tree& tree = tree_of(widest_[dst]);
  std::vector<int> route;
  for (int node = dst; node != src; node = links[route.back()].src) route.push_back(tree.parent[node]);
  std::reverse(route.begin(), route.end());
  return route;
}

// The widest route to each node: nodes that wide links reach come before those that need a narrower one.
void Machine::look_from(int src) {
  if (src == src_) return;
  src_ = src;
  trees_.clear();
  widest_.assign(nodes.size(), kNowhere);
  widest_[src] = 0;
  std::vector<std::vector<int>> reached(grades_ + 1);
  reached[0].push_back(src);
  for (int grade = 0; grade < grades_; ++grade) {
    while (!reached[grade].empty()) {
      const int node = reached[grade].back();
      reached[grade].pop_back();
      if (widest_[node] != grade || (node != src && nodes[node].ends_routes)) continue;
      for (int link : leaving_[node]) {
        const int narrowest = std::max(grade, grade_[link]);
        int& known = widest_[links[link].dst];
        if (narrowest >= known) continue;
        known = narrowest;
        reached[narrowest].push_back(links[link].dst);
      }
    }
  }
}

// The shortest way to each node, then the fastest, then the one found first: all nodes one link further at a time.
const Machine::Tree& Machine::tree_of(int grade) {
  for (const Tree& tree : trees_)
    if (tree.grade == grade) return tree;
  Tree& tree = trees_.emplace_back(Tree{grade, std::vector<int>(nodes.size(), kNoLink)});
  std::vector<double> latency_s(nodes.size(), 0);
  std::vector<int64_t> found(nodes.size());  // when, in the order of what is looked at
  int64_t count = 0;
  std::vector<bool> done(nodes.size());
  std::vector<int> now{src_}, next;
  done[src_] = true;
  while (!now.empty()) {
    next.clear();
    for (int node : now) {
      if (node != src_ && nodes[node].ends_routes) continue;
      for (int link : leaving_[node]) {
        const int dst = links[link].dst;
        if (done[dst] || grade_[link] > grade) continue;
        const double further_s = latency_s[node] + links[link].latency_s;
        const bool is_new = tree.parent[dst] == kNoLink;
        if (!is_new && further_s >= latency_s[dst]) continue;
        if (is_new) next.push_back(dst);
        tree.parent[dst] = link;
        latency_s[dst] = further_s;
        found[dst] = ++count;
      }
    }
    std::sort(next.begin(), next.end(),
              [&](int a, int b) { return std::pair(latency_s[a], found[a]) < std::pair(latency_s[b], found[b]); });
    for (int node : next) done[node] = true;
    now.swap(next);
  }
  return tree;
}

}  // namespace fastreduce::simulation
