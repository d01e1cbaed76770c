// The codec of protobuf messages.
#include <google/protobuf/arena.h>
#include <google/protobuf/io/zero_copy_stream.h>
#include <google/protobuf/message_lite.h>

#include <nearcall/call.hpp>
#include <nearcall/server.hpp>

namespace nearcall::detail {
namespace {

/// The steps of a message, for protobuf's parser.
class steps final : public google::protobuf::io::ZeroCopyInputStream {
 public:
  steps(incoming& m, std::string_view first) : message_(m), step_(first) {}

  bool Next(const void** data, int* size) override {
    if (step_.empty()) step_ = message_.next();
    if (step_.empty()) return false;
    *data = step_.data();
    *size = int(step_.size());
    read_ += *size;
    last_ = std::exchange(step_, {});
    return true;
  }
  void BackUp(int n) override {
    step_ = last_.substr(last_.size() - std::size_t(n));
    read_ -= n;
  }
  bool Skip(int n) override {
    const void* data;
    for (int size; n > 0; n -= size) {
      if (!Next(&data, &size)) return false;
      if (size > n) {
        BackUp(size - n);
        return true;
      }
    }
    return true;
  }
  std::int64_t ByteCount() const override { return read_; }

 private:
  incoming& message_;
  std::string_view step_, last_;
  std::int64_t read_ = 0;
};

class protobuf_codec final : public codec {
 public:
  std::size_t size(const void* m) const override { return static_cast<const google::protobuf::MessageLite*>(m)->ByteSizeLong(); }
  void encode(const void* m, char* to) const override {
    (void)static_cast<const google::protobuf::MessageLite*>(m)->SerializeWithCachedSizesToArray(reinterpret_cast<std::uint8_t*>(to));
  }
  bool decode(void* m, incoming& bytes) const override {
    auto* message = static_cast<google::protobuf::MessageLite*>(m);
    std::string_view first = bytes.next();
    if (first.size() == bytes.size) return message->ParseFromArray(first.data(), int(first.size()));
    steps s(bytes, first);
    return message->ParseFromZeroCopyStream(&s) && std::size_t(s.ByteCount()) == bytes.size;
  }
} const instance;

}  // namespace

const codec& protobuf() { return instance; }

call_arena::call_arena(bool wanted) : arena_(wanted ? new google::protobuf::Arena : nullptr) {}
call_arena::~call_arena() { delete arena_; }

}  // namespace nearcall::detail
