#include <nearcall/status.hpp>

#include <cstdio>
#include <cstdlib>

namespace nearcall {

std::string to_string(code c) {
  static constexpr const char* names[] = {"OK",          "Canceled",         "Unknown",           "InvalidArgument",
                                          "DeadlineExceeded", "NotFound",    "AlreadyExists",     "PermissionDenied",
                                          "ResourceExhausted", "FailedPrecondition", "Aborted",   "OutOfRange",
                                          "Unimplemented", "Internal",       "Unavailable",       "DataLoss",
                                          "Unauthenticated"};
  auto n = std::int32_t(c);
  if (n >= 0 && n < std::int32_t(std::size(names))) return names[n];
  return "Code(" + std::to_string(n) + ")";
}

std::string status::to_string() const {
  std::string text = nearcall::to_string(code_);
  return message_.empty() ? text : text + ": " + message_;
}

namespace detail {

void throw_error(const status& s) {
#if defined(__cpp_exceptions)
  throw error(s);
#else
  std::fprintf(stderr, "nearcall: the value of a call that failed: %s\n", s.to_string().c_str());
  std::abort();
#endif
}

}  // namespace detail
}  // namespace nearcall
