#include "channel/service_config.hpp"

#include <google/protobuf/struct.pb.h>
#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <random>

namespace nearcall::detail {
namespace {

using google::protobuf::Struct;
using google::protobuf::Value;

constexpr int most_attempts = 5;  // gRPC's

const Value* field(const Struct& s, const char* key) {
  auto at = s.fields().find(key);
  return at == s.fields().end() ? nullptr : &at->second;
}

/// protobuf's JSON form of a duration: "1.5s". protobuf has durations of up to 10,000 years.
std::optional<std::chrono::duration<double>> read_duration(const Value* v) {
  if (!v || v->string_value().size() < 2 || v->string_value().back() != 's') return {};
  const std::string& text = v->string_value();
  double seconds;
  auto end = text.data() + text.size() - 1;
  if (auto r = std::from_chars(text.data(), end, seconds); r.ec != std::errc{} || r.ptr != end || !(std::abs(seconds) <= 315576000000)) return {};
  return std::chrono::duration<double>(seconds);
}

std::string canonical(std::string name) {  // DEADLINE_EXCEEDED to deadlineexceeded
  std::erase(name, '_');
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return char(std::tolower(c)); });
  return name == "cancelled" ? "canceled" : name;
}

std::optional<std::int32_t> read_code(const Value& v) {
  if (double n = v.number_value(); v.has_number_value()) return n >= 0 && n <= 16 ? std::optional(std::int32_t(n)) : std::nullopt;
  for (std::int32_t c = 0; c <= 16; c++)
    if (canonical(to_string(code(c))) == canonical(v.string_value())) return c;
  return {};
}

std::string read_retry(const Struct& s, retry_policy& p) {
  const Value* attempts = field(s, "maxAttempts");
  auto initial = read_duration(field(s, "initialBackoff")), most = read_duration(field(s, "maxBackoff"));
  const Value *multiplier = field(s, "backoffMultiplier"), *codes = field(s, "retryableStatusCodes");
  if (!attempts || attempts->number_value() < 2) return "maxAttempts is not at least 2";
  if (!initial || initial->count() <= 0) return "initialBackoff is not a positive duration, as \"0.1s\"";
  if (!most || most->count() <= 0) return "maxBackoff is not a positive duration, as \"1s\"";
  if (!multiplier || multiplier->number_value() <= 0) return "backoffMultiplier is not above 0";
  if (!codes || codes->list_value().values().empty()) return "retryableStatusCodes is empty";
  p.max_attempts = int(std::min<double>(attempts->number_value(), most_attempts));
  p.initial_backoff = *initial;
  p.max_backoff = *most;
  p.multiplier = multiplier->number_value();
  for (auto& v : codes->list_value().values()) {
    auto c = read_code(v);
    if (!c) return "retryableStatusCodes has the unknown code " + v.string_value();
    p.codes.insert(*c);
  }
  return {};
}

}  // namespace

std::chrono::duration<double> retry_policy::backoff(int n) const {
  double most = initial_backoff.count();
  for (int i = 1; i < n; i++) most *= multiplier;
  most = std::min(most, max_backoff.count());
  thread_local std::minstd_rand random{std::random_device{}()};
  return std::chrono::duration<double>(std::uniform_real_distribution<>(.8, 1.2)(random) * most);
}

std::unique_ptr<service_config> service_config::parse(std::string_view json, std::string& error) {
  Struct root;
  auto wrong = [&](std::string why) {
    error = "the service config: " + why;
    return nullptr;
  };
  auto parsed = google::protobuf::util::JsonStringToMessage(std::string(json), &root);
  if (!parsed.ok()) return wrong(std::string(parsed.message()));
  auto config = std::make_unique<service_config>();
  if (const Value* list = field(root, "methodConfig"))
    for (auto& entry : list->list_value().values()) {
      const Struct& s = entry.struct_value();
      method_config m;
      const Value* timeout = field(s, "timeout");
      m.timeout = read_duration(timeout);
      if (timeout && !m.timeout) return wrong("timeout is not a duration, as \"1.5s\"");
      if (m.timeout && m.timeout->count() < 0) m.timeout.reset();  // as gRPC does
      if (const Value* v = field(s, "waitForReady")) m.wait_for_ready = v->bool_value();
      if (const Value* v = field(s, "maxResponseMessageBytes")) {
        double n = v->has_number_value() ? v->number_value() : std::atof(v->string_value().c_str());
        if (!(n >= 0)) return wrong("maxResponseMessageBytes is negative");
        m.max_receive = n < double(std::numeric_limits<std::size_t>::max()) ? std::size_t(n) : std::numeric_limits<std::size_t>::max();
      }
      if (const Value* v = field(s, "retryPolicy")) {
        retry_policy p;
        if (std::string why = read_retry(v->struct_value(), p); !why.empty()) return wrong(why);
        m.retry = std::move(p);
      }
      const Value* names = field(s, "name");
      if (!names) continue;
      for (auto& n : names->list_value().values()) {
        const Value *service = field(n.struct_value(), "service"), *method = field(n.struct_value(), "method");
        std::string key = service && !service->string_value().empty() ? "/" + service->string_value() + "/" : "";
        if (method && !method->string_value().empty()) {
          if (key.empty()) return wrong("a name has a method and no service");
          key += method->string_value();
        }
        if (!config->methods_.emplace(key, m).second) return wrong("the name \"" + key + "\" occurs twice");
      }
    }
  if (const Value* v = field(root, "retryThrottling")) {
    const Value *tokens = field(v->struct_value(), "maxTokens"), *ratio = field(v->struct_value(), "tokenRatio");
    config->max_tokens_ = config->tokens_ = tokens ? tokens->number_value() : 0;
    config->token_ratio_ = ratio ? ratio->number_value() : 0;
    if (config->max_tokens_ <= 0 || config->max_tokens_ > 1000) return wrong("maxTokens is not from 1 to 1000");
    if (config->token_ratio_ <= 0) return wrong("tokenRatio is not above 0");
  }
  return config;
}

const method_config* service_config::find(std::string_view method) const {
  if (auto at = methods_.find(method); at != methods_.end()) return &at->second;
  if (auto slash = method.rfind('/'); slash != method.npos)
    if (auto at = methods_.find(method.substr(0, slash + 1)); at != methods_.end()) return &at->second;
  if (auto at = methods_.find(std::string_view{}); at != methods_.end()) return &at->second;
  return nullptr;
}

std::optional<std::chrono::milliseconds> pushback(const metadata& trailer, bool& forbidden) {
  forbidden = false;
  auto text = trailer.get("grpc-retry-pushback-ms");
  if (!text) return {};
  std::int64_t ms;
  auto r = std::from_chars(text->data(), text->data() + text->size(), ms);
  forbidden = r.ec != std::errc{} || r.ptr != text->data() + text->size() || ms < 0;
  if (forbidden) return {};
  return std::chrono::milliseconds(ms);
}

}  // namespace nearcall::detail
