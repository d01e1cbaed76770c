#include <nearcall/details.hpp>

#include "wire/block.hpp"

namespace nearcall {

std::vector<google::protobuf::Any> details_of(const status& s) {
  std::vector<std::string_view> entries;
  if (!wire::read_rpc_status(s.details(), &entries).valid) return {};
  std::vector<google::protobuf::Any> all;
  for (std::string_view e : entries)
    if (!all.emplace_back().ParseFromArray(e.data(), int(e.size()))) all.pop_back();
  return all;
}

status with_details(const status& s, const std::vector<google::protobuf::Any>& details) {
  if (s.ok() || details.empty()) return {s.code(), s.message()};
  std::string text = wire::is_utf8(s.message()) ? s.message() : wire::to_utf8(s.message());
  std::string bytes = "\x08";  // google.rpc.Status: code, message, details
  wire::put_number(bytes, std::uint64_t(std::int64_t(s.code())));
  bytes += '\x12';
  wire::put_string(bytes, text);
  for (auto& any : details) {
    bytes += '\x1a';
    wire::put_string(bytes, any.SerializeAsString());
  }
  return {s.code(), std::move(text), std::move(bytes)};
}

}  // namespace nearcall
