// The outcome of a call: gRPC's codes, a status, and a result with the reply.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <exception>
#include <string>
#include <string_view>
#include <utility>
#include <version>

#if defined(__cpp_lib_expected)
#include <expected>
#endif

#include <nearcall/metadata.hpp>

namespace nearcall {

/// gRPC's status codes, with gRPC's numbers. A peer may send other numbers; they are kept as they are.
enum class code : std::int32_t {
  ok = 0,
  cancelled = 1,
  unknown = 2,
  invalid_argument = 3,
  deadline_exceeded = 4,
  not_found = 5,
  already_exists = 6,
  permission_denied = 7,
  resource_exhausted = 8,
  failed_precondition = 9,
  aborted = 10,
  out_of_range = 11,
  unimplemented = 12,
  internal = 13,
  unavailable = 14,
  data_loss = 15,
  unauthenticated = 16,
};

/// The name of a code as gRPC writes it, `DeadlineExceeded` for instance; `Code(17)` for a number without a name.
std::string to_string(code c);

/// How a call ended. The default is OK.
class status {
 public:
  status() = default;
  /// `details` is a whole serialized google.rpc.Status with the same code, or empty.
  status(nearcall::code c, std::string message, std::string details = {})
      : code_(c), message_(std::move(message)), details_(std::move(details)) {}

  bool ok() const { return code_ == nearcall::code::ok; }
  nearcall::code code() const { return code_; }
  const std::string& message() const { return message_; }
  /// A serialized google.rpc.Status, or empty.
  const std::string& details() const { return details_; }
  /// `DeadlineExceeded: the text`, for logs.
  std::string to_string() const;

 private:
  nearcall::code code_ = nearcall::code::ok;
  std::string message_;
  std::string details_;
};

/// The exception of result::value. A handler may throw it to end its call with a status.
class error : public std::exception {
 public:
  explicit error(nearcall::status s) : status_(std::move(s)), text_(status_.to_string()) {}
  error(nearcall::code c, std::string message) : error(nearcall::status(c, std::move(message))) {}

  const nearcall::status& status() const { return status_; }
  const char* what() const noexcept override { return text_.c_str(); }

 private:
  nearcall::status status_;
  std::string text_;
};

namespace detail {
[[noreturn]] void throw_error(const status& s);  // aborts in a build without exceptions
}

/// The outcome of a unary call: the status and, if it is OK, the reply.
template <class T>
class [[nodiscard]] result {
 public:
  result() = default;

  bool ok() const { return status_.ok(); }
  explicit operator bool() const { return ok(); }
  const nearcall::status& status() const { return status_; }
  /// The metadata that the server sent before the reply, and with the status.
  const metadata& header() const { return header_; }
  const metadata& trailer() const { return trailer_; }

  /// The reply. It is empty if the call failed.
  T& operator*() { return reply(); }
  const T& operator*() const { return reply(); }
  T* operator->() { return &reply(); }
  const T* operator->() const { return &reply(); }
  /// The reply of a call that succeeded. Throws nearcall::error if the call failed; without exceptions the program aborts.
  T& value() & {
    if (!ok()) detail::throw_error(status_);
    return reply();
  }
  T&& value() && {
    if (!ok()) detail::throw_error(status_);
    return std::move(reply());
  }
#if defined(__cpp_lib_expected)
  /// From C++23 on, a result becomes a std::expected: the reply, or the status of a call that failed.
  operator std::expected<T, nearcall::status>() && {
    if (!ok()) return std::unexpected(std::move(status_));
    return std::move(reply());
  }
#endif

 private:
  template <class>
  friend class unary_call;
  template <class, class>
  friend class client_stream;
  explicit result(T* in_arena) : in_arena_(in_arena) {}
  T& reply() { return in_arena_ ? *in_arena_ : reply_; }
  const T& reply() const { return in_arena_ ? *in_arena_ : reply_; }
  nearcall::status status_;
  metadata header_, trailer_;
  T* in_arena_ = nullptr;  // the reply, in place of the next
  T reply_;
};

}  // namespace nearcall
