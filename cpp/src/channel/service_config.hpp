// gRPC's service config, as far as channels have it: timeouts, waitForReady, sizes, retries and their throttling.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>

#include <nearcall/metadata.hpp>
#include <nearcall/status.hpp>

#include "wire/block.hpp"

namespace nearcall::detail {

/// gRFC A6.
struct retry_policy {
  int max_attempts = 1;
  std::chrono::duration<double> initial_backoff{0}, max_backoff{0};
  double multiplier = 1;
  std::set<std::int32_t> codes;
  /// Before attempt n, the second being 1: a random time up to the backoff.
  std::chrono::duration<double> backoff(int n) const;
};

struct method_config {
  std::optional<std::chrono::duration<double>> timeout;
  std::optional<bool> wait_for_ready;
  std::optional<std::size_t> max_receive;
  std::optional<retry_policy> retry;
};

class service_config {
 public:
  /// The config of a JSON text; or `error`.
  static std::unique_ptr<service_config> parse(std::string_view json, std::string& error);
  /// The config of a method, or null.
  const method_config* find(std::string_view method) const;

  // Throttling: retries stop while more than half of the tokens are used up.
  void failed() { tokens_ = std::max(0.0, tokens_ - 1); }
  void succeeded() { tokens_ = std::min(max_tokens_, tokens_ + token_ratio_); }
  bool may_retry() const { return max_tokens_ == 0 || tokens_ > max_tokens_ / 2; }

 private:
  // By /service/method, by /service/, and by the empty string for all.
  std::unordered_map<std::string, method_config, wire::string_hash, std::equal_to<>> methods_;
  double max_tokens_ = 0, tokens_ = 0, token_ratio_ = 0;
};

/// gRFC A6: the time that a server asks to wait for in a trailer. Negative: no retry.
std::optional<std::chrono::milliseconds> pushback(const metadata& trailer, bool& forbidden);

}  // namespace nearcall::detail
