// Details of statuses: messages of protobuf in addition to the code and the text. gRPC reads them in every language.
#pragma once

#include <google/protobuf/any.pb.h>

#include <optional>
#include <type_traits>
#include <vector>

#include <nearcall/status.hpp>

namespace nearcall {

/// The details of a status. Bytes that are no google.rpc.Status have none.
std::vector<google::protobuf::Any> details_of(const status& s);
/// The status with these details in place of its own. An OK status has none.
status with_details(const status& s, const std::vector<google::protobuf::Any>& details);

/// A status with messages as its details:
///
///     co_return nearcall::with_details({code::invalid_argument, "the order is empty"}, violation);
template <class... M>
  requires(std::is_base_of_v<google::protobuf::Message, M> && ...)
status with_details(const status& s, const M&... messages) {
  std::vector<google::protobuf::Any> all(sizeof...(messages));
  std::size_t i = 0;
  (all[i++].PackFrom(messages), ...);
  return with_details(s, all);
}

/// The first detail of a type, if the status has one:
///
///     if (auto why = nearcall::detail_of<google::rpc::BadRequest>(r.status())) …
template <class M>
std::optional<M> detail_of(const status& s) {
  M m;
  for (auto& any : details_of(s))
    if (any.UnpackTo(&m)) return m;
  return {};
}

}  // namespace nearcall
