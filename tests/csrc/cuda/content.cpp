#include "content.h"

namespace engines_test {
namespace {

constexpr int64_t kMargin = 64;

template <class T>
T get(const std::vector<std::byte>& image, int64_t at, int64_t i) {
  T value;
  std::memcpy(static_cast<void*>(&value), image.data() + at + i * sizeof(T), sizeof(T));
  return value;
}
template <class T>
void put(std::vector<std::byte>& image, int64_t at, int64_t i, T value) {
  std::memcpy(image.data() + at + i * sizeof(T), &value, sizeof(T));
}

}  // namespace

Content::Content(const Named& named, Arithmetic arithmetic, Data data, std::vector<int64_t> lengths, Shift shift)
    : named_(named), arithmetic_(arithmetic), data_(data), lengths_(std::move(lengths)) {
  const int64_t size = elem_bytes();
  for (int buffer = 0; buffer < named.program.buffers; ++buffer) {
    const int64_t further = shift.bytes_per_rank * (buffer % named.program.ranks);
    const int64_t shifted = shift.elems * size + (further + size - 1) / size * size;
    int64_t end = kMargin;
    std::vector<int64_t>& begins = begins_.emplace_back();
    for (size_t t = 0; t < lengths_.size(); ++t) {
      begins.push_back((end + 63) / 64 * 64 + shifted);
      end = begins.back() + (named.holds_one_shard[buffer] ? lengths_[t] : elems(t)) * size;
    }
    bytes_.push_back(end + kMargin);
  }
}

int64_t Content::elem_bytes() const {
  return with_type(arithmetic_.dtype, []<class T>(T) { return static_cast<int64_t>(sizeof(T)); });
}

bool Content::is_of_shards() const {
  return std::find(named_.holds_one_shard.begin(), named_.holds_one_shard.end(), true) != named_.holds_one_shard.end();
}

template <class Visit>
void Content::for_each_piece(const Visit& visit) const {
  const int shards = named_.program.shards;
  for (int tensor = 0; tensor < static_cast<int>(lengths_.size()); ++tensor)
    for (int shard = 0; shard < shards; ++shard) {
      const bool whole = named_.program.whole_tensors;
      if (whole && shard != tensor % shards) continue;
      const int64_t all = elems(tensor), each = whole ? all : (all + shards - 1) / shards;
      const int64_t begin = whole ? 0 : shard * each, elems = std::min(each, all - begin);
      if (elems <= 0) continue;
      std::vector<int64_t> at;
      for (int buffer = 0; buffer < buffers(); ++buffer)
        at.push_back(!named_.holds_one_shard[buffer] ? begins_[buffer][tensor] + begin * elem_bytes()
                     : buffer % ranks() == shard     ? begins_[buffer][tensor]
                                                     : -1);
      visit(tensor, shard, begin, elems, at);
    }
}

Table Content::table(const std::vector<std::byte*>& memory) const {
  Table table{arithmetic_.dtype, arithmetic_.op, elem_bytes(), {}, {}};
  for_each_piece([&](int, int shard, int64_t, int64_t elems, const std::vector<int64_t>& at) {
    table.rows.push_back({shard, elems, table.pointers.size()});
    for (int buffer = 0; buffer < buffers(); ++buffer)
      table.pointers.push_back(at[buffer] < 0 ? nullptr : memory[buffer] + at[buffer]);
  });
  return table;
}

template <class T>
std::vector<T> Content::contributed(const Images& images, const std::vector<int>& goal, const std::vector<int64_t>& at,
                                    int64_t elems) const {
  std::vector<T> result(elems), values(goal.size());
  for (int64_t i = 0; i < elems; ++i) {
    for (size_t g = 0; g < goal.size(); ++g) values[g] = get<T>(images[goal[g]], at[goal[g]], i);
    result[i] = values.size() == 1 ? values[0] : reduced(arithmetic_.op, values);
  }
  return result;
}

Images Content::before() const {
  Images images;
  for (int64_t bytes : bytes_) images.emplace_back(bytes, std::byte{0x5a});
  with_type(arithmetic_.dtype, [&]<class T>(T) {
    for_each_piece([&](int tensor, int, int64_t begin, int64_t elems, const std::vector<int64_t>& at) {
      for (int rank = 0; rank < ranks(); ++rank)
        for (int64_t i = 0; i < elems && at[rank] >= 0; ++i)
          put(images[rank], at[rank], i,
              value_of<T>(data_, arithmetic_.op,
                          {ranks(), rank, static_cast<uint64_t>(tensor) << 32 | static_cast<uint64_t>(begin + i)}));
    });
  });
  return images;
}

Images Content::wanted(const Images& before) const {
  Images images = before;
  with_type(arithmetic_.dtype, [&]<class T>(T) {
    for_each_piece([&](int, int shard, int64_t, int64_t elems, const std::vector<int64_t>& at) {
      std::vector<int> last_goal;
      std::vector<T> result;
      for (int buffer = 0; buffer < buffers(); ++buffer) {
        const std::vector<int>& goal = named_.goal(buffer, shard);
        if (goal.empty() || at[buffer] < 0) continue;
        if (goal != last_goal) result = contributed<T>(before, goal, at, elems);
        last_goal = goal;
        std::memcpy(images[buffer].data() + at[buffer], result.data(), elems * sizeof(T));
      }
    });
  });
  return images;
}

void Content::make_nans_alike(Images& images) const {
  with_type(arithmetic_.dtype, [&]<class T>(T) {
    if constexpr (!std::is_integral_v<T>)
      for_each_piece([&](int, int, int64_t, int64_t elems, const std::vector<int64_t>& at) {
        for (int buffer = 0; buffer < buffers(); ++buffer)
          for (int64_t i = 0; i < elems && at[buffer] >= 0; ++i)
            if (std::isnan(static_cast<double>(get<T>(images[buffer], at[buffer], i))))
              put(images[buffer], at[buffer], i, std::numeric_limits<T>::quiet_NaN());
      });
  });
}

void Content::expect_same(Images found, Images wanted, const std::string& where) const {
  if (data_ == Data::special) make_nans_alike(found), make_nans_alike(wanted);
  for (int buffer = 0; buffer < buffers(); ++buffer)
    for (int64_t at = 0; at < bytes_[buffer]; ++at)
      if (found[buffer][at] != wanted[buffer][at])
        fail(where + ": wrong byte " + std::to_string(at) + " of " + std::to_string(bytes_[buffer]) + " in buffer " +
             std::to_string(buffer));
}

}  // namespace engines_test
